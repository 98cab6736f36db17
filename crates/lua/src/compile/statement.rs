//! Statements.
//!
//! Invariant: between statements the stack is as high as there are variables in scope, with the hidden ones of
//! loops.

use super::expression::Expression;
use super::function::{Block, Goto, Label};
use super::{Parsed, Parser};
use crate::lex::Token;
use crate::op::{OPEN, Op, Subject};
use crate::value::{Str, Value};

impl Parser<'_> {
    /// Statements up to one of these words, in a scope of their own.
    pub(super) fn block_until(&mut self, ends: &[&str]) -> Parsed<()> {
        self.open_block(false);
        self.statements(ends)?;
        self.close_block()
    }

    fn statements(&mut self, ends: &[&str]) -> Parsed<()> {
        while self.token != Token::End && !ends.iter().any(|end| self.is(end)) {
            if self.is("return") {
                return self.return_statement(ends);
            }
            self.statement(ends)?;
        }
        Ok(())
    }

    fn open_block(&mut self, is_loop: bool) {
        let function = self.function();
        let (active, height) = (function.locals.len(), function.height);
        function.blocks.push(Block { active, height, is_loop, ..Block::default() });
    }

    /// The block's variables go; jumps out of it that look for labels look in the one around it.
    fn close_block(&mut self) -> Parsed<()> {
        let Some(block) = self.function().blocks.pop() else { return Ok(()) };
        self.close_locals(block.active);
        let function = self.function();
        let level = function.blocks.len();
        for goto in function.gotos.iter_mut().filter(|goto| goto.level > level) {
            goto.level = level;
            goto.active = goto.active.min(block.active);
        }
        if function.height != block.height {
            function.height = block.height;
            self.emit(Op::Height(block.height));
        }
        for jump in block.breaks {
            self.function().patch_here(jump);
        }
        if block.is_loop {
            self.emit(Op::Height(block.height));
        }
        Ok(())
    }

    fn statement(&mut self, ends: &[&str]) -> Parsed<()> {
        self.enter()?;
        let line = self.line;
        let Token::Word(word) = self.token else {
            self.expression_statement()?;
            self.leave();
            return Ok(());
        };
        match word {
            ";" => self.advance()?,
            "if" => self.if_statement(line)?,
            "while" => self.while_statement(line)?,
            "do" => {
                self.advance()?;
                self.block_until(&["end"])?;
                self.expect_match("end", "do", line)?;
            }
            "for" => self.for_statement(line)?,
            "repeat" => self.repeat_statement(line)?,
            "function" => self.function_statement(line)?,
            "local" => {
                self.advance()?;
                match self.take("function")? {
                    true => self.local_function(line)?,
                    false => self.local_statement()?,
                }
            }
            "::" => self.label(ends)?,
            "break" => self.break_statement()?,
            "goto" => self.goto_statement(line)?,
            _ => self.expression_statement()?,
        }
        self.leave();
        Ok(())
    }

    fn if_statement(&mut self, line: u32) -> Parsed<()> {
        let mut ends = Vec::new();
        loop {
            self.advance()?;
            self.expression()?;
            self.expect("then")?;
            let jump = self.emit(Op::JumpIf(false, 0));
            self.function().shrink(1);
            self.block_until(&["else", "elseif", "end"])?;
            if self.is("else") || self.is("elseif") {
                ends.push(self.emit(Op::Jump(0)));
            }
            self.function().patch_here(jump);
            if !self.is("elseif") {
                break;
            }
        }
        if self.take("else")? {
            self.block_until(&["end"])?;
        }
        for jump in ends {
            self.function().patch_here(jump);
        }
        self.expect_match("end", "if", line)
    }

    fn while_statement(&mut self, line: u32) -> Parsed<()> {
        self.advance()?;
        let start = self.function().here();
        self.expression()?;
        let exit = self.emit(Op::JumpIf(false, 0));
        self.function().shrink(1);
        self.expect("do")?;
        self.open_block(true);
        self.block_until(&["end"])?;
        self.emit(Op::Jump(start));
        self.function().patch_here(exit);
        self.close_block()?;
        self.expect_match("end", "while", line)
    }

    fn repeat_statement(&mut self, line: u32) -> Parsed<()> {
        self.advance()?;
        let start = self.function().here();
        self.open_block(true);
        // What is declared in it can be used in the condition.
        self.open_block(false);
        self.statements(&["until"])?;
        self.expect_match("until", "repeat", line)?;
        self.expression()?;
        let exit = self.emit(Op::JumpIf(true, 0));
        self.function().shrink(1);
        let base = self.function().blocks.last().map_or(0, |block| block.height);
        self.emit(Op::Height(base));
        self.emit(Op::Jump(start));
        self.function().patch_here(exit);
        self.close_block()?;
        self.close_block()
    }

    fn for_statement(&mut self, line: u32) -> Parsed<()> {
        self.advance()?;
        let name = self.name()?;
        self.open_block(true);
        match self.is("=") {
            true => self.for_numbers(name, line)?,
            false => self.for_each(name, line)?,
        }
        self.expect_match("end", "for", line)?;
        self.close_block()
    }

    fn for_numbers(&mut self, name: Str, line: u32) -> Parsed<()> {
        self.advance()?;
        let slot = self.function().height;
        self.expression()?;
        self.expect(",")?;
        self.expression()?;
        if self.take(",")? {
            self.expression()?;
        } else {
            let one = self.constant(Value::Int(1))?;
            self.emit(Op::Const(one));
            self.function().grow(1);
        }
        self.expect("do")?;
        let prepare = self.function().emit(Op::ForPrepare(slot, 0), line);
        let start = self.function().here();
        self.loop_body(vec![name])?;
        self.function().patch_here(prepare);
        self.function().emit(Op::ForLoop(slot, start), line);
        Ok(())
    }

    fn for_each(&mut self, name: Str, line: u32) -> Parsed<()> {
        let mut names = vec![name];
        while self.take(",")? {
            names.push(self.name()?);
        }
        self.expect("in")?;
        let slot = self.function().height;
        let (count, last) = self.expressions()?;
        self.adjust(3, count, &last);
        self.expect("do")?;
        let wanted = u16::try_from(names.len()).unwrap_or(u16::MAX);
        let jump = self.emit(Op::Jump(0));
        let start = self.function().here();
        self.loop_body(names)?;
        self.function().patch_here(jump);
        let iterator: Subject = ("for iterator", self.text(b"for iterator"));
        let function = self.function();
        for hidden in 0..3 {
            function.emit(Op::GetLocal(slot + hidden), line);
        }
        function.grow(3);
        let pc = function.emit(Op::Call { slot: slot + 3, args: 2, results: wanted }, line);
        function.name_operands(pc, [Some(iterator), None]);
        function.shrink(3);
        function.emit(Op::ForEach(slot, start), line);
        Ok(())
    }

    /// The body of a loop whose variables were just put on the stack.
    fn loop_body(&mut self, names: Vec<Str>) -> Parsed<()> {
        self.open_block(false);
        self.function().grow(names.len());
        self.declare(names)?;
        self.block_until(&["end"])?;
        self.close_block()
    }

    fn function_statement(&mut self, line: u32) -> Parsed<()> {
        self.advance()?;
        let height = self.function().height;
        let name = self.name()?;
        let mut target = self.named(name)?;
        let mut is_method = false;
        while self.is(".") || self.is(":") {
            is_method = self.is(":");
            self.advance()?;
            let subject = target.subject();
            self.discharge(target)?;
            target = Expression::Field(self.name()?, subject);
            if is_method {
                break;
            }
        }
        let target = self.target(target)?;
        self.body(line, is_method)?;
        self.store(target)?;
        self.lower(height);
        Ok(())
    }

    fn local_function(&mut self, line: u32) -> Parsed<()> {
        let name = self.name()?;
        self.emit(Op::Nil(1));
        self.function().grow(1);
        self.declare(vec![name.clone()])?;
        self.body(line, false)?;
        let target = self.named(name)?;
        self.store((target, 0))
    }

    fn local_statement(&mut self) -> Parsed<()> {
        let mut names = vec![self.name()?];
        while self.take(",")? {
            names.push(self.name()?);
        }
        let wanted = u16::try_from(names.len()).unwrap_or(u16::MAX);
        if self.take("=")? {
            let (count, last) = self.expressions()?;
            self.adjust(wanted, count, &last);
        } else {
            self.emit(Op::Nil(wanted));
            self.function().grow(wanted.into());
        }
        self.declare(names)
    }

    fn expression_statement(&mut self) -> Parsed<()> {
        let height = self.function().height;
        let first = self.suffixed()?;
        if self.is("=") || self.is(",") {
            return self.assignment(first, height);
        }
        let Expression::Call(pc) = first else { return Err(self.wrong("syntax error")) };
        if let Some(Op::Call { results, .. }) = self.function().op_mut(pc) {
            *results = 0;
        }
        self.function().height = height;
        Ok(())
    }

    fn assignment(&mut self, first: Expression, height: u16) -> Parsed<()> {
        let mut targets = vec![self.target(first)?];
        while self.take(",")? {
            self.enter()?;
            let next = self.suffixed()?;
            targets.push(self.target(next)?);
        }
        for _ in 1..targets.len() {
            self.leave();
        }
        self.expect("=")?;
        let (count, last) = self.expressions()?;
        self.adjust(u16::try_from(targets.len()).unwrap_or(u16::MAX), count, &last);
        for target in targets.into_iter().rev() {
            self.store(target)?;
        }
        self.lower(height);
        Ok(())
    }

    /// The stack is so high again.
    fn lower(&mut self, height: u16) {
        if self.function().height != height {
            self.function().height = height;
            self.emit(Op::Height(height));
        }
    }

    /// What can be assigned to, with the slot its table lies in.
    fn target(&mut self, what: Expression) -> Parsed<(Expression, u16)> {
        match what {
            Expression::Local(..) | Expression::Outer(..) => Ok((what, 0)),
            Expression::Global(name) => {
                self.environment()?;
                Ok((Expression::Field(name, None), self.function().height - 1))
            }
            Expression::Field(..) => Ok((what, self.function().height.saturating_sub(1))),
            Expression::Index(_) => Ok((what, self.function().height.saturating_sub(2))),
            _ => Err(self.wrong("syntax error")),
        }
    }

    /// Takes the value from the stack.
    fn store(&mut self, (target, slot): (Expression, u16)) -> Parsed<()> {
        let (op, subject) = match target {
            Expression::Local(local, _) => {
                (Op::SetLocal(self.function().slot_of(local, true)), None)
            }
            Expression::Outer(outer, _) => (Op::SetUpvalue(outer), None),
            Expression::Field(name, subject) => {
                (Op::SetField(slot, self.constant(Value::Str(name))?), subject)
            }
            Expression::Index(subject) => (Op::SetIndex(slot), subject),
            _ => return Err(self.wrong("syntax error")),
        };
        let pc = self.emit(op);
        let function = self.function();
        function.name_operands(pc, [subject, None]);
        function.shrink(1);
        Ok(())
    }

    fn return_statement(&mut self, ends: &[&str]) -> Parsed<()> {
        self.advance()?;
        let slot = self.function().height;
        let mut count = 0;
        if self.token != Token::End && !self.is(";") && !ends.iter().any(|end| self.is(end)) {
            let (found, last) = self.expressions()?;
            count = found;
            if self.open(&last) {
                count = OPEN;
                self.make_tail_call(found, &last);
            }
        }
        self.emit(Op::Return(slot, count));
        self.function().height = slot;
        self.take(";")?;
        match self.token == Token::End || ends.iter().any(|end| self.is(end)) {
            true => Ok(()),
            false => Err(self.expected(ends.first().map_or("<eof>", |_| "'end'"))),
        }
    }

    /// What is returned is what the only call gives.
    fn make_tail_call(&mut self, count: u16, last: &Expression) {
        if let (1, Expression::Call(pc)) = (count, last)
            && let Some(op) = self.function().op_mut(*pc)
            && let Op::Call { slot, args, .. } = *op
        {
            *op = Op::TailCall(slot, args);
        }
    }

    fn break_statement(&mut self) -> Parsed<()> {
        let line = self.line;
        self.advance()?;
        let jump = self.emit(Op::Jump(0));
        match self.function().blocks.iter_mut().rev().find(|block| block.is_loop) {
            Some(block) => {
                block.breaks.push(jump);
                Ok(())
            }
            None => Err(self.wrong_meaning(&format!("<break> at line {line} not inside a loop"))),
        }
    }

    fn goto_statement(&mut self, line: u32) -> Parsed<()> {
        self.advance()?;
        let name = self.name()?;
        let pc = self.emit(Op::Jump(0));
        let function = self.function();
        let mut labels = function.blocks.iter().rev().flat_map(|block| &block.labels);
        if let Some(label) = labels.find(|label| label.name == name).map(|label| label.pc) {
            function.patch(pc, u32::try_from(label).unwrap_or(u32::MAX));
            return Ok(());
        }
        let (active, level) = (function.locals.len(), function.blocks.len());
        function.gotos.push(Goto { name, pc, line, active, level });
        Ok(())
    }

    fn label(&mut self, ends: &[&str]) -> Parsed<()> {
        self.advance()?;
        let (name, line) = (self.name()?, self.line);
        self.expect("::")?;
        let mut labels = self.function().blocks.iter().flat_map(|block| &block.labels);
        if let Some(known) = labels.find(|label| label.name == name) {
            let (name, line) = (name.lossy(), known.line);
            return Err(
                self.wrong_meaning(&format!("label '{name}' already defined on line {line}"))
            );
        }
        let height = self.function().height;
        // Whoever jumps here may have had more on the stack.
        let pc = self.emit(Op::Height(height));
        while self.is(";") {
            self.advance()?;
        }
        let is_last = self.token == Token::End || ends.iter().any(|end| self.is(end));
        let is_until = self.is("until");
        let function = self.function();
        let level = function.blocks.len();
        let before = function.blocks.last().map_or(0, |block| block.active);
        // At the end of a block its variables count as out of scope.
        let active = if is_last && !is_until { before } else { function.locals.len() };
        if let Some(block) = function.blocks.last_mut() {
            block.labels.push(Label { name: name.clone(), pc, line });
        }
        let gotos = std::mem::take(&mut function.gotos);
        let (meant, rest): (Vec<_>, Vec<_>) =
            gotos.into_iter().partition(|goto| goto.name == name && goto.level >= level);
        function.gotos = rest;
        for goto in meant {
            if goto.active < active {
                let local = self.function().locals.get(goto.active).map(|local| local.name.lossy());
                return Err(self.wrong_meaning(&format!(
                    "<goto {}> at line {} jumps into the scope of local '{}'",
                    name.lossy(),
                    goto.line,
                    local.unwrap_or_default()
                )));
            }
            self.function().patch(goto.pc, u32::try_from(pc).unwrap_or(u32::MAX));
        }
        Ok(())
    }
}
