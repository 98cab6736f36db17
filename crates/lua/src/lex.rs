//! From text to words.
//!
//! Invariant: a word is never longer than the text; errors name the line and the word they are near.

use std::rc::Rc;

use crate::value::parse_number;

/// A word of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    /// The end.
    End,
    /// A name.
    Name(Rc<[u8]>),
    /// A string.
    Text(Rc<[u8]>),
    /// A number.
    Number(i64),
    /// A keyword or an operator.
    Word(&'static str),
}

/// Keywords.
const KEYWORDS: &[&str] = &[
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "goto", "if", "in",
    "local", "nil", "not", "or", "repeat", "return", "then", "true", "until", "while",
];

/// Operators, longer ones before those they begin with.
const OPERATORS: &[&str] = &[
    "...", "..", "::", "==", "~=", "<=", ">=", "+", "-", "*", "/", "%", "^", "#", "<", ">", "=",
    "(", ")", "{", "}", "[", "]", ";", ":", ",", ".",
];

/// What is wrong, the line, and the word it is near.
#[derive(Debug)]
pub struct Wrong {
    /// What.
    pub reason: String,
    /// Where.
    pub line: u32,
    /// Near what, if that is said.
    pub near: Option<Vec<u8>>,
}

/// Goes through a text.
pub struct Lexer<'a> {
    text: &'a [u8],
    at: usize,
    /// The line it is at.
    pub line: u32,
    /// Where the last word began.
    start: usize,
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

impl<'a> Lexer<'a> {
    /// From the beginning; a first line that begins with `#` is left out.
    pub fn new(text: &'a [u8]) -> Self {
        let at = match text.first() {
            Some(b'#') => text.iter().position(|byte| *byte == b'\n').unwrap_or(text.len()),
            _ => 0,
        };
        Self { text, at, line: 1, start: 0 }
    }

    fn rest(&self) -> &'a [u8] {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn wrong(&self, reason: &str) -> Wrong {
        let near = self.text.get(self.start..self.at).unwrap_or_default().to_vec();
        Wrong { reason: reason.to_owned(), line: self.line, near: Some(near) }
    }

    fn unfinished(&self, reason: &str) -> Wrong {
        Wrong { reason: reason.to_owned(), line: self.line, near: Some(b"<eof>".to_vec()) }
    }

    /// One end of a line, of one or two bytes.
    fn newline(&mut self) {
        let first = self.peek();
        self.at += 1;
        let second = self.peek();
        if matches!((first, second), (Some(b'\n'), Some(b'\r')) | (Some(b'\r'), Some(b'\n'))) {
            self.at += 1;
        }
        self.line = self.line.saturating_add(1);
    }

    fn skip_blanks(&mut self) -> Result<(), Wrong> {
        loop {
            match self.rest() {
                [b'\n' | b'\r', ..] => self.newline(),
                [b'-', b'-', ..] => {
                    self.start = self.at;
                    self.at += 2;
                    if let Some(level) = self.long_bracket() {
                        self.long_text(level, "unfinished long comment")?;
                    } else {
                        while self.peek().is_some_and(|byte| !matches!(byte, b'\n' | b'\r')) {
                            self.at += 1;
                        }
                    }
                }
                [b' ' | b'\t' | 0x0b | 0x0c, ..] => self.at += 1,
                _ => return Ok(()),
            }
        }
    }

    /// The level of a long bracket that begins here.
    fn long_bracket(&self) -> Option<usize> {
        let rest = self.rest().strip_prefix(b"[")?;
        let level = rest.iter().take_while(|byte| **byte == b'=').count();
        (rest.get(level) == Some(&b'[')).then_some(level)
    }

    fn long_text(&mut self, level: usize, unfinished: &str) -> Result<Vec<u8>, Wrong> {
        self.at += level + 2;
        if matches!(self.peek(), Some(b'\n' | b'\r')) {
            self.newline();
        }
        let mut text = Vec::new();
        loop {
            match self.peek() {
                None => return Err(self.unfinished(unfinished)),
                Some(b']') => {
                    let rest = self.rest().get(1..).unwrap_or_default();
                    let found = rest.iter().take_while(|byte| **byte == b'=').count();
                    if found == level && rest.get(level) == Some(&b']') {
                        self.at += level + 2;
                        return Ok(text);
                    }
                    text.push(b']');
                    self.at += 1;
                }
                Some(b'\n' | b'\r') => {
                    self.newline();
                    text.push(b'\n');
                }
                Some(byte) => {
                    text.push(byte);
                    self.at += 1;
                }
            }
        }
    }

    /// The next word.
    pub fn next(&mut self) -> Result<Token, Wrong> {
        self.skip_blanks()?;
        self.start = self.at;
        let Some(first) = self.peek() else { return Ok(Token::End) };
        if first.is_ascii_alphabetic() || first == b'_' {
            return Ok(self.name());
        }
        let second = self.rest().get(1).copied();
        if first.is_ascii_digit() || first == b'.' && second.is_some_and(|b| b.is_ascii_digit()) {
            return self.number();
        }
        if matches!(first, b'"' | b'\'') {
            return self.quoted(first);
        }
        if let Some(level) = self.long_bracket() {
            let text = self.long_text(level, "unfinished long string")?;
            return Ok(Token::Text(text.into()));
        }
        match OPERATORS.iter().find(|word| self.rest().starts_with(word.as_bytes())) {
            Some(word) => {
                self.at += word.len();
                Ok(Token::Word(word))
            }
            None => {
                self.at += 1;
                Err(self.wrong("unexpected symbol"))
            }
        }
    }

    fn name(&mut self) -> Token {
        while self.peek().is_some_and(is_name) {
            self.at += 1;
        }
        let name = self.text.get(self.start..self.at).unwrap_or_default();
        match KEYWORDS.iter().find(|word| word.as_bytes() == name) {
            Some(word) => Token::Word(word),
            None => Token::Name(name.into()),
        }
    }

    fn number(&mut self) -> Result<Token, Wrong> {
        while self.peek().is_some_and(|byte| is_name(byte) || byte == b'.') {
            self.at += 1;
        }
        let word = self.text.get(self.start..self.at).unwrap_or_default();
        parse_number(word).map(Token::Number).ok_or_else(|| self.wrong("malformed number"))
    }

    fn quoted(&mut self, quote: u8) -> Result<Token, Wrong> {
        self.at += 1;
        let mut text = Vec::new();
        loop {
            match self.peek() {
                None => return Err(self.unfinished("unfinished string")),
                Some(b'\n' | b'\r') => return Err(self.wrong("unfinished string")),
                Some(byte) if byte == quote => {
                    self.at += 1;
                    return Ok(Token::Text(text.into()));
                }
                Some(b'\\') => {
                    self.at += 1;
                    self.escape(&mut text)?;
                }
                Some(byte) => {
                    text.push(byte);
                    self.at += 1;
                }
            }
        }
    }

    fn escape(&mut self, text: &mut Vec<u8>) -> Result<(), Wrong> {
        let Some(byte) = self.peek() else { return Ok(()) };
        let plain = match byte {
            b'a' => 7,
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'v' => 11,
            b'\\' | b'"' | b'\'' => byte,
            b'\n' | b'\r' => {
                self.newline();
                text.push(b'\n');
                return Ok(());
            }
            b'x' => return self.hexadecimal(text),
            b'z' => {
                self.at += 1;
                while let Some(byte) = self.peek().filter(u8::is_ascii_whitespace) {
                    if matches!(byte, b'\n' | b'\r') { self.newline() } else { self.at += 1 }
                }
                return Ok(());
            }
            b'0'..=b'9' => return self.decimal(text),
            _ => {
                self.at += 1;
                return Err(self.wrong("invalid escape sequence"));
            }
        };
        self.at += 1;
        text.push(plain);
        Ok(())
    }

    fn hexadecimal(&mut self, text: &mut Vec<u8>) -> Result<(), Wrong> {
        let digits = self.rest().get(1..3).unwrap_or_default();
        let value = digits
            .iter()
            .try_fold(0_u32, |sum, digit| Some(sum * 16 + char::from(*digit).to_digit(16)?));
        let length = digits.len();
        match value.and_then(|value| u8::try_from(value).ok()).filter(|_| length == 2) {
            Some(byte) => {
                self.at += 3;
                text.push(byte);
                Ok(())
            }
            None => {
                self.at += 1;
                Err(self.wrong("hexadecimal digit expected"))
            }
        }
    }

    fn decimal(&mut self, text: &mut Vec<u8>) -> Result<(), Wrong> {
        let mut value = 0_u32;
        let digits = self.rest().iter().take(3).take_while(|byte| byte.is_ascii_digit());
        let mut count = 0;
        for digit in digits {
            value = value * 10 + u32::from(digit - b'0');
            count += 1;
        }
        self.at += count;
        let byte = u8::try_from(value).map_err(|_| self.wrong("decimal escape too large"))?;
        text.push(byte);
        Ok(())
    }
}
