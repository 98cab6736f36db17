//! Which objects to show: `N`, `FIRST:LAST`, `FIRST:LAST:TYPES`.
//!
//! Invariant: an operand is a single object or a range, never silently something else.

use cenote_engine::Error;
use cenote_format::ObjectType;
use cenote_format::object_type::SwapClass;

/// One operand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// First object; negative numbers are the accounting objects.
    pub first: i64,
    /// Last object, included.
    pub last: i64,
    kinds: Option<Kinds>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Kinds {
    all: bool,
    with: Vec<char>,
    without: Vec<char>,
}

impl Selection {
    /// Parses an operand.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let bad = || {
            Error::invalid(format!("'{text}' is not an object number"))
                .with_advice("write NUMBER, or FIRST:LAST[:TYPES] with LAST -1 for the end")
        };
        let number = |part: &str| match part.strip_prefix("0x") {
            Some(hex) => i64::from_str_radix(hex, 16).map_err(|_| bad()),
            None => part.parse::<i64>().map_err(|_| bad()),
        };
        let mut parts = text.split(':');
        let first = number(parts.next().unwrap_or_default())?;
        let Some(last) = parts.next() else {
            return Ok(Self { first, last: first, kinds: None });
        };
        let last = match number(last)? {
            -1 => i64::MAX,
            last => last,
        };
        let kinds = parts.next().map(Self::kinds).transpose()?;
        if parts.next().is_some() || last < first || first < 0 {
            return Err(bad());
        }
        Ok(Self { first, last, kinds })
    }

    fn kinds(text: &str) -> Result<Kinds, Error> {
        let mut kinds = Kinds::default();
        let mut minus = false;
        for letter in text.chars() {
            match letter {
                '+' => minus = false,
                '-' => minus = true,
                'A' => kinds.all = !minus,
                'd' | 'f' | 'm' | 'z' if minus => kinds.without.push(letter),
                'd' | 'f' | 'm' | 'z' => kinds.with.push(letter),
                _ => {
                    let reason = format!("'{letter}' is not a type of objects");
                    let advice =
                        "A all, d directories, f files, m space maps, z ZAPs; '-' excludes";
                    return Err(Error::invalid(reason).with_advice(advice));
                }
            }
        }
        kinds.all |= kinds.with.is_empty();
        Ok(kinds)
    }

    /// Every object.
    pub fn everything() -> Self {
        Self { first: 0, last: i64::MAX, kinds: None }
    }

    /// Only one object is named.
    pub fn is_single(&self) -> bool {
        self.first == self.last
    }

    /// Objects of this type are wanted.
    pub fn wants(&self, kind: ObjectType) -> bool {
        let Some(kinds) = &self.kinds else { return true };
        let is = |letter: &char| match letter {
            'd' => kind == ObjectType::DIRECTORY,
            'f' => kind == ObjectType::PLAIN_FILE,
            'm' => kind == ObjectType::SPACE_MAP,
            _ => kind.swap_class() == SwapClass::Zap,
        };
        (kinds.all || kinds.with.iter().any(is)) && !kinds.without.iter().any(is)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_are_numbers_or_ranges() {
        let one = Selection::parse("0x10").unwrap();
        assert_eq!((one.first, one.last, one.is_single()), (16, 16, true));
        assert_eq!(Selection::parse("-2").unwrap().first, -2);
        let range = Selection::parse("3:-1:f").unwrap();
        assert_eq!((range.first, range.last), (3, i64::MAX));
        assert!(range.wants(ObjectType::PLAIN_FILE) && !range.wants(ObjectType::DIRECTORY));
        let others = Selection::parse("0:9:A-z").unwrap();
        assert!(others.wants(ObjectType::PLAIN_FILE) && !others.wants(ObjectType::DIRECTORY));
        for bad in ["", "x", "5:3", "1:2:q", "1:2:f:3", "-3:4"] {
            assert!(Selection::parse(bad).is_err(), "{bad}");
        }
    }
}
