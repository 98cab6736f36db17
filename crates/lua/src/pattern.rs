//! Patterns of Lua.
//!
//! Invariant: matching recurses at most [`DEEPEST`] times, and takes at most [`STEPS`] steps: a pattern that needs
//! more is too complex.

/// Recursion.
const DEEPEST: u32 = 200;
/// Steps.
const STEPS: u64 = 20_000_000;
/// Captures.
const CAPTURES: usize = 32;

/// Why nothing could be looked for.
pub type Wrong = String;

/// A part of what matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capture {
    /// From a place, so many bytes.
    Text(usize, usize),
    /// A place.
    Position(usize),
    /// From a place on, the end being looked for.
    Open(usize),
}

/// Looks for a pattern in a text.
pub struct Matcher<'a> {
    text: &'a [u8],
    pattern: &'a [u8],
    /// What was captured by the match found.
    pub captures: Vec<Capture>,
    depth: u32,
    steps: u64,
}

type Found = Result<Option<usize>, Wrong>;

impl<'a> Matcher<'a> {
    /// Of a pattern without the `^` it may begin with.
    pub fn new(text: &'a [u8], pattern: &'a [u8]) -> Self {
        Self { text, pattern, captures: Vec::new(), depth: 0, steps: 0 }
    }

    /// Where a match that begins at `at` ends.
    pub fn match_at(&mut self, at: usize) -> Found {
        self.captures.clear();
        self.depth = 0;
        self.matches(at, 0)
    }

    fn at(&self, place: usize) -> Option<u8> {
        self.text.get(place).copied()
    }

    fn step(&mut self) -> Result<(), Wrong> {
        self.steps += 1;
        if self.steps > STEPS { Err("pattern too complex".to_owned()) } else { Ok(()) }
    }

    fn matches(&mut self, at: usize, from: usize) -> Found {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err("pattern too complex".to_owned());
        }
        let found = self.go_on(at, from);
        self.depth = self.depth.saturating_sub(1);
        found
    }

    fn go_on(&mut self, mut at: usize, mut from: usize) -> Found {
        loop {
            self.step()?;
            let rest = self.pattern.get(from..).unwrap_or_default();
            match rest {
                [] => return Ok(Some(at)),
                [b'(', b')', ..] => return self.open(at, from + 2, Capture::Position(at)),
                [b'(', ..] => return self.open(at, from + 1, Capture::Open(at)),
                [b')', ..] => return self.close(at, from + 1),
                [b'$'] => return Ok((at == self.text.len()).then_some(at)),
                [b'%', b'b', ..] => match self.balance(at, from + 2)? {
                    Some(end) => (at, from) = (end, from + 4),
                    None => return Ok(None),
                },
                [b'%', b'f', ..] => match self.frontier(at, from + 2)? {
                    Some(after) => from = after,
                    None => return Ok(None),
                },
                [b'%', digit @ b'0'..=b'9', ..] => match self.repeated(at, *digit)? {
                    Some(end) => (at, from) = (end, from + 2),
                    None => return Ok(None),
                },
                _ => {
                    if let Some(found) = self.single(&mut at, &mut from)? {
                        return Ok(found);
                    }
                }
            }
        }
    }

    /// One class and what follows it. `None`: to be gone on behind it.
    fn single(&mut self, at: &mut usize, from: &mut usize) -> Result<Option<Option<usize>>, Wrong> {
        let end = self.class_end(*from)?;
        match self.pattern.get(end) {
            Some(b'?') => {
                if self.is_one(*at, *from, end)
                    && let Some(found) = self.matches(*at + 1, end + 1)?
                {
                    return Ok(Some(Some(found)));
                }
                *from = end + 1;
                Ok(None)
            }
            Some(b'+') => match self.is_one(*at, *from, end) {
                true => self.most(*at + 1, *from, end).map(Some),
                false => Ok(Some(None)),
            },
            Some(b'*') => self.most(*at, *from, end).map(Some),
            Some(b'-') => self.least(*at, *from, end).map(Some),
            _ if self.is_one(*at, *from, end) => {
                (*at, *from) = (*at + 1, end);
                Ok(None)
            }
            _ => Ok(Some(None)),
        }
    }

    fn most(&mut self, at: usize, from: usize, end: usize) -> Found {
        let mut count = 0;
        while self.is_one(at + count, from, end) {
            self.step()?;
            count += 1;
        }
        loop {
            if let Some(found) = self.matches(at + count, end + 1)? {
                return Ok(Some(found));
            }
            match count.checked_sub(1) {
                Some(less) => count = less,
                None => return Ok(None),
            }
        }
    }

    fn least(&mut self, mut at: usize, from: usize, end: usize) -> Found {
        loop {
            if let Some(found) = self.matches(at, end + 1)? {
                return Ok(Some(found));
            }
            if !self.is_one(at, from, end) {
                return Ok(None);
            }
            self.step()?;
            at += 1;
        }
    }

    fn open(&mut self, at: usize, from: usize, capture: Capture) -> Found {
        if self.captures.len() >= CAPTURES {
            return Err("too many captures".to_owned());
        }
        self.captures.push(capture);
        let height = self.captures.len();
        let found = self.matches(at, from)?;
        if found.is_none() {
            self.captures.truncate(height - 1);
        }
        Ok(found)
    }

    fn close(&mut self, at: usize, from: usize) -> Found {
        let open = self.captures.iter().rposition(|capture| matches!(capture, Capture::Open(_)));
        let Some(place) = open else { return Err("invalid pattern capture".to_owned()) };
        let Some(Capture::Open(start)) = self.captures.get(place).copied() else { return Ok(None) };
        self.set_capture(place, Capture::Text(start, at - start));
        let found = self.matches(at, from)?;
        if found.is_none() {
            self.set_capture(place, Capture::Open(start));
        }
        Ok(found)
    }

    fn set_capture(&mut self, place: usize, capture: Capture) {
        if let Some(old) = self.captures.get_mut(place) {
            *old = capture;
        }
    }

    fn balance(&mut self, at: usize, from: usize) -> Found {
        let (Some(open), Some(close)) = (self.pattern.get(from), self.pattern.get(from + 1)) else {
            return Err("malformed pattern (missing arguments to '%b')".to_owned());
        };
        if self.at(at) != Some(*open) {
            return Ok(None);
        }
        let (mut depth, mut place) = (1_u32, at + 1);
        while let Some(byte) = self.at(place) {
            if byte == *close {
                depth -= 1;
                if depth == 0 {
                    return Ok(Some(place + 1));
                }
            } else if byte == *open {
                depth += 1;
            }
            place += 1;
        }
        Ok(None)
    }

    /// Where the pattern goes on if the place is a frontier of the set.
    fn frontier(&mut self, at: usize, from: usize) -> Found {
        if self.pattern.get(from) != Some(&b'[') {
            return Err("missing '[' after '%f' in pattern".to_owned());
        }
        let end = self.class_end(from)?;
        let before = at.checked_sub(1).and_then(|before| self.at(before)).unwrap_or(0);
        let here = self.at(at).unwrap_or(0);
        let is = !self.in_set(before, from, end) && self.in_set(here, from, end);
        Ok(is.then_some(end))
    }

    fn repeated(&mut self, at: usize, digit: u8) -> Found {
        let place = usize::from(digit).checked_sub(usize::from(b'1'));
        match place.and_then(|place| self.captures.get(place)) {
            Some(Capture::Text(start, length)) => {
                let text = self.text.get(*start..start + length).unwrap_or_default();
                let rest = self.text.get(at..).unwrap_or_default();
                Ok(rest.starts_with(text).then_some(at + length))
            }
            Some(Capture::Position(_)) => Ok(None),
            _ => Err(format!("invalid capture index %{}", i32::from(digit) - i32::from(b'0'))),
        }
    }

    /// Where the class that begins there ends.
    fn class_end(&self, from: usize) -> Result<usize, Wrong> {
        match self.pattern.get(from) {
            Some(b'%') => match self.pattern.get(from + 1) {
                Some(_) => Ok(from + 2),
                None => Err("malformed pattern (ends with '%')".to_owned()),
            },
            Some(b'[') => {
                let mut place = from + 1;
                if self.pattern.get(place) == Some(&b'^') {
                    place += 1;
                }
                let mut is_first = true;
                loop {
                    match self.pattern.get(place) {
                        None => return Err("malformed pattern (missing ']')".to_owned()),
                        Some(b']') if !is_first => return Ok(place + 1),
                        Some(b'%') => place += 2,
                        Some(_) => place += 1,
                    }
                    is_first = false;
                }
            }
            _ => Ok(from + 1),
        }
    }

    fn is_one(&self, at: usize, from: usize, end: usize) -> bool {
        let Some(byte) = self.at(at) else { return false };
        match self.pattern.get(from) {
            Some(b'.') => true,
            Some(b'%') => self.pattern.get(from + 1).is_some_and(|class| in_class(byte, *class)),
            Some(b'[') => self.in_set(byte, from, end),
            Some(literal) => *literal == byte,
            None => false,
        }
    }

    fn in_set(&self, byte: u8, from: usize, end: usize) -> bool {
        let mut set = self.pattern.get(from + 1..end.saturating_sub(1)).unwrap_or_default();
        let mut truth = true;
        if let [b'^', rest @ ..] = set {
            (truth, set) = (false, rest);
        }
        loop {
            match set {
                [] => return !truth,
                [b'%', class, rest @ ..] => {
                    if in_class(byte, *class) {
                        return truth;
                    }
                    set = rest;
                }
                [low, b'-', high, rest @ ..] => {
                    if (*low..=*high).contains(&byte) {
                        return truth;
                    }
                    set = rest;
                }
                [literal, rest @ ..] => {
                    if *literal == byte {
                        return truth;
                    }
                    set = rest;
                }
            }
        }
    }
}

/// Where a text first holds another.
pub fn find_plain(text: &[u8], wanted: &[u8]) -> Found {
    let mut steps = STEPS;
    for (at, window) in text.windows(wanted.len().max(1)).enumerate() {
        let same = window.iter().zip(wanted).take_while(|(one, other)| one == other).count();
        if same == wanted.len() {
            return Ok(Some(at));
        }
        let taken = u64::try_from(same).unwrap_or(u64::MAX);
        steps = steps.checked_sub(taken).ok_or_else(|| "pattern too complex".to_owned())?;
    }
    Ok(wanted.is_empty().then_some(0))
}

fn in_class(byte: u8, class: u8) -> bool {
    let is = match class.to_ascii_lowercase() {
        b'a' => byte.is_ascii_alphabetic(),
        b'c' => byte.is_ascii_control(),
        b'd' => byte.is_ascii_digit(),
        b'g' => byte.is_ascii_graphic(),
        b'l' => byte.is_ascii_lowercase(),
        b'p' => byte.is_ascii_punctuation(),
        b's' => byte.is_ascii_whitespace() || byte == 0x0b,
        b'u' => byte.is_ascii_uppercase(),
        b'w' => byte.is_ascii_alphanumeric(),
        b'x' => byte.is_ascii_hexdigit(),
        _ => return class == byte,
    };
    is != class.is_ascii_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, pattern: &str) -> Option<(usize, usize)> {
        let mut matcher = Matcher::new(text.as_bytes(), pattern.as_bytes());
        (0..=text.len()).find_map(|at| Some((at, matcher.match_at(at).unwrap()?)))
    }

    #[test]
    fn classes_sets_repetitions_and_captures() {
        assert_eq!(found("key = value", "(%w+)%s*=%s*(%w+)"), Some((0, 11)));
        assert_eq!(found("x[[a]]y", "%b[]"), Some((1, 6)));
        assert_eq!(found("THE (quick) fox", "%f[%a]%a+%f[%A]"), Some((0, 3)));
        assert_eq!(found("aXb", "[^%l]"), Some((1, 2)));
        assert_eq!(found("a]b", "[]]"), Some((1, 2)));
        assert_eq!(found("abab", "(ab)%1$"), Some((0, 4)));
    }

    #[test]
    fn what_takes_for_ever_is_too_complex() {
        let text = "a".repeat(300);
        let pattern = "a-".repeat(30) + "b";
        let mut matcher = Matcher::new(text.as_bytes(), pattern.as_bytes());
        assert!(matcher.match_at(0).is_err());
    }
}
