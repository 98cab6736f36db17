//! From words to functions, in one pass.
//!
//! Invariant: nesting is bounded ([`LEVELS`]); the height of the stack that is reckoned here is the one there will be.

mod expression;
mod function;
mod statement;

use std::rc::Rc;

use self::function::Function;
use crate::lex::{Lexer, Token, Wrong};
use crate::op::{Op, Proto};
use crate::value::{Meter, Str, Value};

/// How deep statements and expressions may be nested.
const LEVELS: u32 = 200;

/// Compiles the program `text`; an error says what is wrong after `chunk` and a line.
pub fn compile(text: &[u8], chunk: &str, meter: &Meter) -> Result<Rc<Proto>, String> {
    let mut parser = Parser {
        lexer: Lexer::new(text),
        token: Token::End,
        line: 1,
        last_line: 1,
        ahead: None,
        functions: Vec::new(),
        levels: 0,
        meter: meter.clone(),
    };
    parser.program().map_err(|wrong| {
        let near = match wrong.near {
            Some(near) if near == b"<eof>" => " near <eof>".to_owned(),
            Some(near) => format!(" near '{}'", String::from_utf8_lossy(&near)),
            None => String::new(),
        };
        format!("{chunk}:{}: {}{near}", wrong.line, wrong.reason)
    })
}

/// Goes through the words of a program.
pub(super) struct Parser<'a> {
    lexer: Lexer<'a>,
    token: Token,
    /// The line of the word, and of the one before it.
    line: u32,
    last_line: u32,
    ahead: Option<(Token, u32)>,
    /// Functions under way, the innermost last.
    functions: Vec<Function>,
    levels: u32,
    meter: Meter,
}

type Parsed<T> = Result<T, Wrong>;

impl Parser<'_> {
    fn program(&mut self) -> Parsed<Rc<Proto>> {
        self.functions.push(Function::new(0, true));
        // The variable in which globals are looked up is the program's only outer one.
        let environment = self.text(b"_ENV");
        self.function().outer.push((environment, crate::op::Capture::Upvalue(0)));
        self.advance()?;
        self.block_until(&[])?;
        if self.token != Token::End {
            return Err(self.expected("<eof>"));
        }
        self.emit(Op::Return(0, 0));
        self.finish_function()
    }

    fn text(&self, bytes: &[u8]) -> Str {
        Str::new(bytes, &self.meter)
    }

    fn advance(&mut self) -> Parsed<()> {
        self.last_line = self.line;
        (self.token, self.line) = match self.ahead.take() {
            Some(ahead) => ahead,
            None => {
                let token = self.lexer.next()?;
                (token, self.lexer.line)
            }
        };
        Ok(())
    }

    /// The word after this one.
    fn ahead(&mut self) -> Parsed<&Token> {
        if self.ahead.is_none() {
            let token = self.lexer.next()?;
            self.ahead = Some((token, self.lexer.line));
        }
        Ok(self.ahead.as_ref().map_or(&Token::End, |(token, _)| token))
    }

    fn is(&self, word: &str) -> bool {
        matches!(self.token, Token::Word(found) if found == word)
    }

    /// Goes past this word if it is the next.
    fn take(&mut self, word: &str) -> Parsed<bool> {
        let is = self.is(word);
        if is {
            self.advance()?;
        }
        Ok(is)
    }

    fn expect(&mut self, word: &str) -> Parsed<()> {
        match self.take(word)? {
            true => Ok(()),
            false => Err(self.expected(&format!("'{word}'"))),
        }
    }

    /// The end of what was opened by `open` in line `line`.
    fn expect_match(&mut self, close: &str, open: &str, line: u32) -> Parsed<()> {
        if self.take(close)? {
            return Ok(());
        }
        Err(match line == self.line {
            true => self.expected(&format!("'{close}'")),
            false => self.expected(&format!("'{close}' (to close '{open}' at line {line})")),
        })
    }

    fn name(&mut self) -> Parsed<Str> {
        let Token::Name(name) = &self.token else { return Err(self.expected("<name>")) };
        let name = self.text(&name.clone());
        self.advance()?;
        Ok(name)
    }

    fn expected(&self, what: &str) -> Wrong {
        self.wrong(&format!("{what} expected"))
    }

    fn wrong(&self, reason: &str) -> Wrong {
        let near = match &self.token {
            Token::End => b"<eof>".to_vec(),
            Token::Name(text) | Token::Text(text) => text.to_vec(),
            Token::Number(number) => number.to_string().into_bytes(),
            Token::Word(word) => word.as_bytes().to_vec(),
        };
        Wrong { reason: reason.to_owned(), line: self.line, near: Some(near) }
    }

    /// What has a meaning wrong, not its form.
    fn wrong_meaning(&self, reason: &str) -> Wrong {
        Wrong { near: None, ..self.wrong(reason) }
    }

    fn enter(&mut self) -> Parsed<()> {
        self.levels += 1;
        if self.levels <= LEVELS {
            return Ok(());
        }
        let whom = match self.functions.last() {
            Some(function) if function.line > 0 => format!("function at line {}", function.line),
            _ => "main function".to_owned(),
        };
        Err(self.wrong(&format!("too many C levels (limit is {LEVELS}) in {whom}")))
    }

    fn leave(&mut self) {
        self.levels = self.levels.saturating_sub(1);
    }

    /// The function under way.
    fn function(&mut self) -> &mut Function {
        if self.functions.is_empty() {
            self.functions.push(Function::new(0, true));
        }
        let last = self.functions.len() - 1;
        // There is one: that was seen to.
        #[allow(clippy::indexing_slicing)]
        &mut self.functions[last]
    }

    fn emit(&mut self, op: Op) -> usize {
        let line = self.last_line;
        self.function().emit(op, line)
    }

    fn constant(&mut self, value: Value) -> Parsed<u32> {
        let found = self.function().constant(value);
        found.ok_or_else(|| self.wrong_meaning("too many constants"))
    }

    fn finish_function(&mut self) -> Parsed<Rc<Proto>> {
        self.close_locals(0);
        let Some(function) = self.functions.pop() else {
            return Err(self.wrong_meaning("no function to end"));
        };
        if let Some(reason) = function.unresolved() {
            return Err(self.wrong_meaning(&reason));
        }
        if function.too_large {
            return Err(self.wrong_meaning("function or expression too complex"));
        }
        Ok(Rc::new(function.finish()))
    }
}
