//! Options as the C library's `getopt_long` reads them.
//!
//! Letters may be combined (`-Hp`), arguments may be attached (`-oname`) or follow, `--` ends the
//! options, options may stand after operands, long options may be shortened while unambiguous.
//! Invariant: the order of options and of operands is kept.

/// The options a command takes.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// Letters; one followed by `:` takes an argument.
    pub letters: &'static str,
    /// Long options: name, the letter it stands for, whether it takes an argument.
    pub long: &'static [(&'static str, char, bool)],
}

/// What was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    /// Options in order, with their arguments.
    pub options: Vec<(char, Option<String>)>,
    /// Everything else in order.
    pub operands: Vec<String>,
}

/// Why options cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OptionError {
    /// No such letter.
    Unknown(char),
    /// No such long option (as typed, without its dashes), or an ambiguous one.
    UnknownLong(String),
    /// The argument is missing.
    Missing(char),
}

impl OptionError {
    /// The words of most commands.
    pub fn message(&self) -> String {
        match self {
            OptionError::Unknown(letter) => format!("invalid option '{letter}'"),
            OptionError::UnknownLong(name) => format!("invalid option '--{name}'"),
            OptionError::Missing(letter) => format!("missing argument for '{letter}' option"),
        }
    }
}

impl Parsed {
    /// Whether an option was given.
    pub fn has(&self, letter: char) -> bool {
        self.options.iter().any(|(given, _)| *given == letter)
    }

    /// The argument of the last such option.
    pub fn argument(&self, letter: char) -> Option<&str> {
        self.arguments(letter).last()
    }

    /// The arguments of all such options.
    pub fn arguments(&self, letter: char) -> impl DoubleEndedIterator<Item = &str> {
        self.options
            .iter()
            .filter(move |(given, _)| *given == letter)
            .filter_map(|(_, argument)| argument.as_deref())
    }
}

impl Spec {
    fn letter(&self, letter: char) -> Option<bool> {
        if letter == ':' {
            return None;
        }
        let at = self.letters.find(letter)?;
        Some(self.letters[at + letter.len_utf8()..].starts_with(':'))
    }

    fn long(&self, name: &str) -> Option<(char, bool)> {
        let exact = self.long.iter().find(|(known, _, _)| *known == name);
        let mut close = self.long.iter().filter(|(known, _, _)| known.starts_with(name));
        let (_, letter, argument) = match exact {
            Some(found) => found,
            None => {
                let first = close.next()?;
                if close.next().is_some() {
                    return None;
                }
                first
            }
        };
        Some((*letter, *argument))
    }

    /// Takes the arguments of a command apart.
    ///
    /// # Errors
    /// At the first option that is unknown or lacks its argument.
    pub fn parse(&self, arguments: &[String]) -> Result<Parsed, OptionError> {
        let mut parsed = Parsed::default();
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            if argument == "--" {
                parsed.operands.extend(rest.by_ref().cloned());
            } else if let Some(long) = argument.strip_prefix("--") {
                self.parse_long(long, &mut rest, &mut parsed)?;
            } else if let Some(letters) = argument.strip_prefix('-').filter(|l| !l.is_empty()) {
                self.parse_letters(letters, &mut rest, &mut parsed)?;
            } else {
                parsed.operands.push(argument.clone());
            }
        }
        Ok(parsed)
    }

    fn parse_long(
        &self,
        text: &str,
        rest: &mut std::slice::Iter<'_, String>,
        parsed: &mut Parsed,
    ) -> Result<(), OptionError> {
        let (name, attached) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (text, None),
        };
        let unknown = || OptionError::UnknownLong(text.to_owned());
        let (letter, takes) = self.long(name).ok_or_else(unknown)?;
        let argument = match (takes, attached) {
            (false, None) => None,
            (false, Some(_)) => return Err(unknown()),
            (true, Some(value)) => Some(value),
            (true, None) => Some(rest.next().ok_or(OptionError::Missing(letter))?.clone()),
        };
        parsed.options.push((letter, argument));
        Ok(())
    }

    fn parse_letters(
        &self,
        letters: &str,
        rest: &mut std::slice::Iter<'_, String>,
        parsed: &mut Parsed,
    ) -> Result<(), OptionError> {
        let mut letters = letters.chars();
        while let Some(letter) = letters.next() {
            let takes = self.letter(letter).ok_or(OptionError::Unknown(letter))?;
            let mut argument = None;
            if takes {
                let attached = letters.as_str();
                let value = if attached.is_empty() {
                    rest.next().ok_or(OptionError::Missing(letter))?.clone()
                } else {
                    attached.to_owned()
                };
                argument = Some(value);
                letters = "".chars();
            }
            parsed.options.push((letter, argument));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: Spec =
        Spec { letters: "Hpo:d:r", long: &[("json", 'j', false), ("json-int", 'J', false)] };

    fn parse(line: &str) -> Result<Parsed, OptionError> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        SPEC.parse(&words)
    }

    #[test]
    fn reads_like_getopt() {
        let parsed = parse("-Hpo name,used -d0 tank -r -- -H").unwrap();
        assert!(parsed.has('H') && parsed.has('p') && parsed.has('r') && !parsed.has('j'));
        assert_eq!(parsed.argument('o'), Some("name,used"));
        assert_eq!(parsed.argument('d'), Some("0"));
        assert_eq!(parsed.operands, ["tank", "-H"]);

        let parsed = parse("--json-i --json -oa -ob").unwrap();
        assert_eq!(parsed.options[0].0, 'J');
        assert_eq!(parsed.options[1].0, 'j');
        assert_eq!(parsed.arguments('o').collect::<Vec<_>>(), ["a", "b"]);

        assert_eq!(parse("-x"), Err(OptionError::Unknown('x')));
        assert_eq!(parse("-Ho"), Err(OptionError::Missing('o')));
        assert_eq!(parse("--js"), Err(OptionError::UnknownLong("js".into())));
        assert_eq!(parse("--nope"), Err(OptionError::UnknownLong("nope".into())));
        assert_eq!(parse("-:"), Err(OptionError::Unknown(':')));
    }
}
