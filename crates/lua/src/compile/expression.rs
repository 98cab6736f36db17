//! Expressions.
//!
//! Invariant: an expression that has been put on the stack makes it higher by one, but for a call or `...` whose
//! number of values is opened after that.

use super::function::{Function, Variable};
use super::{Parsed, Parser};
use crate::lex::Token;
use crate::op::{Arith, Compare, OPEN, Op, Subject};
use crate::value::{Str, Value};

/// Elements of a table that are put into it together.
const TOGETHER: u16 = 50;
/// Strength of the unary operators.
const UNARY: u8 = 8;

/// What has been read of an expression.
pub(super) enum Expression {
    /// A variable that has not been read yet.
    Local(usize, Str),
    Outer(u16, Str),
    Global(Str),
    /// A table, of this name, and its key, lie on the stack.
    Index(Option<Subject>),
    /// A table, of this name, lies on the stack.
    Field(Str, Option<Subject>),
    /// The value lies on the stack.
    Value,
    /// So does the first result of the call made there.
    Call(usize),
    /// So does the first of the extra arguments.
    Varargs(usize),
}

/// Strengths to the left and to the right, and what it does.
enum Binary {
    Arith(Arith),
    Concat,
    Compare(Compare),
    And,
    Or,
}

fn binary(token: &Token) -> Option<(u8, u8, Binary)> {
    let Token::Word(word) = token else { return None };
    Some(match *word {
        "or" => (1, 1, Binary::Or),
        "and" => (2, 2, Binary::And),
        "<" => (3, 3, Binary::Compare(Compare::Less)),
        ">" => (3, 3, Binary::Compare(Compare::Greater)),
        "<=" => (3, 3, Binary::Compare(Compare::LessEqual)),
        ">=" => (3, 3, Binary::Compare(Compare::GreaterEqual)),
        "~=" => (3, 3, Binary::Compare(Compare::Unequal)),
        "==" => (3, 3, Binary::Compare(Compare::Equal)),
        ".." => (5, 4, Binary::Concat),
        "+" => (6, 6, Binary::Arith(Arith::Add)),
        "-" => (6, 6, Binary::Arith(Arith::Sub)),
        "*" => (7, 7, Binary::Arith(Arith::Mul)),
        "/" => (7, 7, Binary::Arith(Arith::Div)),
        "%" => (7, 7, Binary::Arith(Arith::Mod)),
        "^" => (10, 9, Binary::Arith(Arith::Pow)),
        _ => return None,
    })
}

impl Expression {
    pub(super) fn subject(&self) -> Option<Subject> {
        match self {
            Self::Local(_, name) => Some(("local", name.clone())),
            Self::Outer(_, name) => Some(("upvalue", name.clone())),
            Self::Global(name) => Some(("global", name.clone())),
            Self::Field(name, _) => Some(("field", name.clone())),
            _ => None,
        }
    }
}

impl Parser<'_> {
    /// One value on the stack.
    pub(super) fn expression(&mut self) -> Parsed<()> {
        let found = self.sub_expression(0)?;
        self.discharge(found)
    }

    fn sub_expression(&mut self, limit: u8) -> Parsed<Expression> {
        self.enter()?;
        let mut left = self.operand()?;
        while let Some((strength, right, what)) = binary(&self.token) {
            if strength <= limit {
                break;
            }
            let line = self.line;
            let left_subject = left.subject();
            self.advance()?;
            self.discharge(left)?;
            self.rest_of(&what, right, left_subject, line)?;
            left = Expression::Value;
        }
        self.leave();
        Ok(left)
    }

    /// The right side of an operator, and what it does.
    fn rest_of(
        &mut self,
        what: &Binary,
        strength: u8,
        left: Option<Subject>,
        line: u32,
    ) -> Parsed<()> {
        let op = match what {
            Binary::And | Binary::Or => {
                let jump = self.emit(Op::JumpKeep(matches!(what, Binary::Or), 0));
                self.function().shrink(1);
                let right = self.sub_expression(strength)?;
                self.discharge(right)?;
                self.function().patch_here(jump);
                return Ok(());
            }
            Binary::Arith(arith) => Op::Arith(*arith),
            Binary::Concat => Op::Concat,
            Binary::Compare(compare) => Op::Compare(*compare),
        };
        let right = self.sub_expression(strength)?;
        let subjects = [left, right.subject()];
        self.discharge(right)?;
        let function = self.function();
        let pc = function.emit(op, line);
        function.name_operands(pc, subjects);
        function.shrink(1);
        Ok(())
    }

    /// An operand with the unary operators before it.
    fn operand(&mut self) -> Parsed<Expression> {
        let op = match self.token {
            Token::Word("not") => Op::Not,
            Token::Word("-") => Op::Negate,
            Token::Word("#") => Op::Length,
            _ => return self.simple(),
        };
        self.advance()?;
        let of = self.sub_expression(UNARY)?;
        let subject = of.subject();
        self.discharge(of)?;
        let pc = self.emit(op);
        self.function().name_operands(pc, [subject, None]);
        Ok(Expression::Value)
    }

    fn simple(&mut self) -> Parsed<Expression> {
        let op = match &self.token {
            Token::Number(number) => {
                let number = *number;
                Op::Const(self.constant(Value::Int(number))?)
            }
            Token::Text(text) => {
                let text = self.text(&text.clone());
                Op::Const(self.constant(Value::Str(text))?)
            }
            Token::Word("nil") => Op::Nil(1),
            Token::Word("true") => Op::Bool(true),
            Token::Word("false") => Op::Bool(false),
            Token::Word("...") => {
                if !self.function().is_vararg {
                    return Err(self.wrong("cannot use '...' outside a vararg function"));
                }
                self.advance()?;
                let pc = self.emit(Op::Varargs(1));
                self.function().grow(1);
                return Ok(Expression::Varargs(pc));
            }
            Token::Word("{") => return self.table().map(|()| Expression::Value),
            Token::Word("function") => {
                let line = self.line;
                self.advance()?;
                return self.body(line, false).map(|()| Expression::Value);
            }
            _ => return self.suffixed(),
        };
        self.advance()?;
        self.emit(op);
        self.function().grow(1);
        Ok(Expression::Value)
    }

    /// A name or an expression in brackets, with what follows it.
    pub(super) fn suffixed(&mut self) -> Parsed<Expression> {
        let mut at = self.primary()?;
        loop {
            match &self.token {
                Token::Word(".") => {
                    let subject = at.subject();
                    self.advance()?;
                    self.discharge(at)?;
                    at = Expression::Field(self.name()?, subject);
                }
                Token::Word("[") => {
                    let subject = at.subject();
                    self.discharge(at)?;
                    self.advance()?;
                    self.expression()?;
                    self.expect("]")?;
                    at = Expression::Index(subject);
                }
                Token::Word(":") => {
                    let line = self.line;
                    self.advance()?;
                    let subject = at.subject();
                    self.discharge(at)?;
                    let name = self.name()?;
                    let key = self.constant(Value::Str(name.clone()))?;
                    let pc = self.emit(Op::Method(key));
                    let function = self.function();
                    function.name_operands(pc, [subject, None]);
                    function.grow(1);
                    at = self.arguments(Some(("method", name)), 1, line)?;
                }
                Token::Word("(" | "{") | Token::Text(_) => {
                    let line = self.line;
                    let subject = at.subject();
                    self.discharge(at)?;
                    at = self.arguments(subject, 0, line)?;
                }
                _ => return Ok(at),
            }
        }
    }

    fn primary(&mut self) -> Parsed<Expression> {
        if self.is("(") {
            let line = self.line;
            self.enter()?;
            self.advance()?;
            self.expression()?;
            self.expect_match(")", "(", line)?;
            self.leave();
            return Ok(Expression::Value);
        }
        if !matches!(self.token, Token::Name(_)) {
            return Err(self.wrong("unexpected symbol"));
        }
        let name = self.name()?;
        self.named(name)
    }

    /// The variable of this name.
    pub(super) fn named(&mut self, name: Str) -> Parsed<Expression> {
        Ok(match self.variable(&name)? {
            Some(Variable::Local(local)) => Expression::Local(local, name),
            Some(Variable::Outer(outer)) => Expression::Outer(outer, name),
            None => Expression::Global(name),
        })
    }

    /// Arguments of a call of what lies on the stack with `own` arguments of its own.
    fn arguments(&mut self, subject: Option<Subject>, own: u16, line: u32) -> Parsed<Expression> {
        let slot = self.function().height.saturating_sub(own + 1);
        let mut args = own;
        if let Token::Text(text) = &self.token {
            let text = self.text(&text.clone());
            let constant = self.constant(Value::Str(text))?;
            self.advance()?;
            self.emit(Op::Const(constant));
            self.function().grow(1);
            args += 1;
        } else if self.is("{") {
            self.table()?;
            args += 1;
        } else {
            let open = self.line;
            self.advance()?;
            if !self.is(")") {
                args = match self.expressions()? {
                    (count, last) if self.open(&last) => {
                        let _ = count;
                        OPEN
                    }
                    (count, _) => args.saturating_add(count),
                };
            }
            self.expect_match(")", "(", open)?;
        }
        let function = self.function();
        let pc = function.emit(Op::Call { slot, args, results: 1 }, line);
        function.name_operands(pc, [subject, None]);
        function.height = slot;
        function.grow(1);
        Ok(Expression::Call(pc))
    }

    /// A list of values on the stack; how many, and the last of them.
    pub(super) fn expressions(&mut self) -> Parsed<(u16, Expression)> {
        let mut count = 1_u16;
        loop {
            let found = self.sub_expression(0)?;
            let last = match found {
                Expression::Call(pc) => Expression::Call(pc),
                Expression::Varargs(pc) => Expression::Varargs(pc),
                other => {
                    self.discharge(other)?;
                    Expression::Value
                }
            };
            if !self.take(",")? {
                return Ok((count, last));
            }
            count = count.saturating_add(1);
        }
    }

    /// Opens the number of values of a call or of `...`; whether it is one.
    pub(super) fn open(&mut self, last: &Expression) -> bool {
        self.set_results(last, OPEN)
    }

    /// So many values are wanted of a call or of `...`; whether it is one.
    pub(super) fn set_results(&mut self, last: &Expression, wanted: u16) -> bool {
        let (Expression::Call(pc) | Expression::Varargs(pc)) = last else { return false };
        match self.function().op_mut(*pc) {
            Some(Op::Call { results, .. } | Op::Varargs(results)) => {
                *results = wanted;
                true
            }
            _ => false,
        }
    }

    /// Makes `wanted` values of the `count` on the stack.
    pub(super) fn adjust(&mut self, wanted: u16, count: u16, last: &Expression) {
        let more = wanted.saturating_sub(count);
        if self.set_results(last, more + 1) && wanted >= count {
            self.function().grow(more.into());
            return;
        }
        // A call of which nothing more is wanted gives one value, as any expression.
        self.set_results(last, 1);
        if more > 0 {
            self.emit(Op::Nil(more));
            self.function().grow(more.into());
        } else if count > wanted {
            let function = self.function();
            function.shrink((count - wanted).into());
            let height = function.height;
            self.emit(Op::Height(height));
        }
    }

    /// Puts the value on the stack.
    pub(super) fn discharge(&mut self, what: Expression) -> Parsed<()> {
        let grows = match what {
            Expression::Value | Expression::Call(_) | Expression::Varargs(_) => 0,
            Expression::Local(local, _) => {
                let slot = self.function().slot_of(local, true);
                self.emit(Op::GetLocal(slot));
                1
            }
            Expression::Outer(outer, _) => {
                self.emit(Op::GetUpvalue(outer));
                1
            }
            Expression::Global(name) => {
                self.environment()?;
                self.get_field(name, None)?;
                0
            }
            Expression::Field(name, subject) => {
                self.get_field(name, subject)?;
                0
            }
            Expression::Index(subject) => {
                let pc = self.emit(Op::GetIndex);
                let function = self.function();
                function.name_operands(pc, [subject, None]);
                function.shrink(1);
                0
            }
        };
        self.function().grow(grows);
        Ok(())
    }

    fn get_field(&mut self, name: Str, subject: Option<Subject>) -> Parsed<()> {
        let key = self.constant(Value::Str(name))?;
        let pc = self.emit(Op::GetField(key));
        self.function().name_operands(pc, [subject, None]);
        Ok(())
    }

    /// Puts the table of globals on the stack.
    pub(super) fn environment(&mut self) -> Parsed<()> {
        let name = self.text(b"_ENV");
        match self.named(name)? {
            // There always is one: the program's outer variable.
            Expression::Global(_) => Err(self.wrong_meaning("no globals")),
            found => self.discharge(found),
        }
    }

    fn table(&mut self) -> Parsed<()> {
        let line = self.line;
        self.enter()?;
        self.expect("{")?;
        let slot = self.function().height;
        self.emit(Op::NewTable);
        self.function().grow(1);
        let (mut stored, mut pending) = (0_u32, 0_u16);
        while !self.is("}") {
            let is_named =
                matches!(self.token, Token::Name(_)) && *self.ahead()? == Token::Word("=");
            if self.is("[") || is_named {
                self.table_entry(slot, pending)?;
            } else {
                let found = self.sub_expression(0)?;
                let is_last = self.is("}");
                if is_last && self.open(&found) {
                    self.emit(Op::SetList(slot, OPEN, stored));
                    self.function().height = slot + 1;
                    pending = 0;
                    break;
                }
                self.discharge(found)?;
                pending += 1;
                if pending == TOGETHER {
                    self.set_list(slot, pending, stored);
                    stored = stored.saturating_add(pending.into());
                    pending = 0;
                }
            }
            if !self.take(",")? && !self.take(";")? {
                break;
            }
        }
        if pending > 0 {
            self.set_list(slot, pending, stored);
        }
        self.leave();
        self.expect_match("}", "{", line)
    }

    fn set_list(&mut self, slot: u16, count: u16, stored: u32) {
        self.emit(Op::SetList(slot, count, stored));
        self.function().height = slot + 1;
    }

    /// `[key] = value` or `name = value`.
    fn table_entry(&mut self, slot: u16, pending: u16) -> Parsed<()> {
        if let Token::Name(name) = &self.token {
            let name = self.text(&name.clone());
            let key = self.constant(Value::Str(name))?;
            self.advance()?;
            self.expect("=")?;
            self.expression()?;
            self.emit(Op::SetField(slot, key));
            self.function().shrink(1);
            return Ok(());
        }
        self.advance()?;
        // The table once more, for elements may lie above it.
        self.emit(Op::GetLocal(slot));
        self.function().grow(1);
        self.expression()?;
        self.expect("]")?;
        self.expect("=")?;
        self.expression()?;
        let at = slot + pending + 1;
        self.emit(Op::SetIndex(at));
        self.function().height = at;
        self.emit(Op::Height(at));
        Ok(())
    }

    /// Parameters and body of a function that begins in `line`; the function on the stack.
    pub(super) fn body(&mut self, line: u32, is_method: bool) -> Parsed<()> {
        self.enter()?;
        self.functions.push(Function::new(line.max(1), false));
        let mut names = Vec::new();
        if is_method {
            names.push(self.text(b"self"));
        }
        self.expect("(")?;
        while !self.is(")") {
            if self.take("...")? {
                self.function().is_vararg = true;
                break;
            }
            names.push(self.name()?);
            if !self.take(",")? {
                break;
            }
            if self.is(")") {
                return Err(self.expected("<name>"));
            }
        }
        self.expect(")")?;
        let function = self.function();
        function.parameters = u16::try_from(names.len()).unwrap_or(u16::MAX);
        function.grow(names.len());
        self.declare(names)?;
        self.block_until(&["end"])?;
        self.expect_match("end", "function", line)?;
        self.emit(Op::Return(0, 0));
        let proto = self.finish_function()?;
        let function = self.function();
        function.protos.push(proto);
        let place = u32::try_from(function.protos.len() - 1).unwrap_or(u32::MAX);
        self.emit(Op::Closure(place));
        self.function().grow(1);
        self.leave();
        Ok(())
    }
}
