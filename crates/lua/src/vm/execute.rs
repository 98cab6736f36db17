//! The loop that carries out instructions.
//!
//! Invariant: it ends when the function that it began with has ended; what is not on the stack reads as nil.

use std::rc::Rc;

use super::call::{After, How};
use super::{Code, Function, Vm};
use crate::error::{Result, Stop};
use crate::op::{Capture, OPEN, Op, Proto};
use crate::value::{CellId, Value};

impl Vm<'_> {
    pub(super) fn execute(&mut self) -> Result<()> {
        while !std::mem::take(&mut self.entry_ended) {
            match self.step() {
                Ok(()) => {}
                Err(stop @ Stop::Error(_)) => self.catch(stop)?,
                Err(stop) => return Err(stop),
            }
        }
        Ok(())
    }

    fn step(&mut self) -> Result<()> {
        let Some(frame) = self.frames.last_mut() else { return Err(Stop::Interrupted) };
        let Some(proto) = &frame.proto else { return Err(Stop::Interrupted) };
        let op = proto.code.get(frame.pc).copied().unwrap_or(Op::Return(0, 0));
        let base = frame.slot + 1;
        frame.pc += 1;
        if op.counts() {
            self.count()?;
        }
        match op {
            Op::Nop
            | Op::Nil(_)
            | Op::Bool(_)
            | Op::Const(_)
            | Op::GetLocal(_)
            | Op::SetLocal(_)
            | Op::NewCell(_)
            | Op::GetCell(_)
            | Op::SetCell(_)
            | Op::GetUpvalue(_)
            | Op::SetUpvalue(_)
            | Op::Height(_) => self.move_values(op, base),
            Op::Jump(_) | Op::JumpIf(..) | Op::JumpKeep(..) => {
                self.jump(op);
                Ok(())
            }
            Op::ForPrepare(slot, to) => self.prepare_loop(base + usize::from(slot), to),
            Op::ForLoop(slot, to) => {
                self.continue_loop(base + usize::from(slot), to);
                Ok(())
            }
            Op::ForEach(slot, to) => {
                let slot = base + usize::from(slot);
                let first = self.at(slot + 3);
                if !first.is_nil() {
                    self.put(slot + 2, first);
                    self.jump_to(to);
                }
                Ok(())
            }
            Op::Call { slot, args, results } => {
                let slot = base + usize::from(slot);
                if args != OPEN {
                    self.stack.truncate(slot + 1 + usize::from(args));
                }
                self.begin_call(slot, How::wanting(results))
            }
            Op::TailCall(slot, args) => self.tail_call(base + usize::from(slot), args),
            Op::Return(slot, count) => self.return_values(base + usize::from(slot), count),
            Op::Varargs(count) => {
                self.varargs(count);
                Ok(())
            }
            Op::Closure(place) => self.closure(place, base),
            Op::SetList(slot, count, after) => {
                self.set_list(base + usize::from(slot), count, after)
            }
            _ => self.operate(op, base),
        }
    }

    /// The value at a place of the stack.
    pub(super) fn at(&self, place: usize) -> Value {
        self.stack.get(place).cloned().unwrap_or(Value::Nil)
    }

    pub(super) fn put(&mut self, place: usize, value: Value) {
        if let Some(old) = self.stack.get_mut(place) {
            *old = value;
        }
    }

    pub(super) fn pop(&mut self) -> Value {
        self.stack.pop().unwrap_or(Value::Nil)
    }

    pub(super) fn proto(&self) -> Option<Rc<Proto>> {
        self.frames.last().and_then(|frame| frame.proto.clone())
    }

    pub(super) fn constant(&self, place: u32) -> Value {
        let proto = self.frames.last().and_then(|frame| frame.proto.as_ref());
        let value = proto.and_then(|proto| proto.constants.get(place as usize));
        value.cloned().unwrap_or(Value::Nil)
    }

    fn cell_at(&self, place: usize) -> Option<CellId> {
        match self.stack.get(place) {
            Some(Value::Cell(cell)) => Some(*cell),
            _ => None,
        }
    }

    fn outer(&self, place: u16) -> Option<CellId> {
        let function = self.frames.last()?.function;
        self.functions.get(function.0)?.cells.get(usize::from(place)).copied()
    }

    fn read_cell(&self, cell: Option<CellId>) -> Value {
        cell.and_then(|cell| self.cells.get(cell.0)).cloned().unwrap_or(Value::Nil)
    }

    fn write_cell(&mut self, cell: Option<CellId>, value: Value) {
        if let Some(old) = cell.and_then(|cell| self.cells.get_mut(cell.0)) {
            *old = value;
        }
    }

    fn move_values(&mut self, op: Op, base: usize) -> Result<()> {
        match op {
            Op::Nil(count) => self.stack.resize(self.stack.len() + usize::from(count), Value::Nil),
            Op::Bool(truth) => self.stack.push(Value::Bool(truth)),
            Op::Const(place) => self.stack.push(self.constant(place)),
            Op::GetLocal(slot) => self.stack.push(self.at(base + usize::from(slot))),
            Op::SetLocal(slot) => {
                let value = self.pop();
                self.put(base + usize::from(slot), value);
            }
            Op::NewCell(slot) => {
                let place = base + usize::from(slot);
                let cell = self.new_cell(self.at(place))?;
                self.put(place, Value::Cell(cell));
            }
            Op::GetCell(slot) => {
                self.stack.push(self.read_cell(self.cell_at(base + usize::from(slot))));
            }
            Op::SetCell(slot) => {
                let value = self.pop();
                self.write_cell(self.cell_at(base + usize::from(slot)), value);
            }
            Op::GetUpvalue(place) => self.stack.push(self.read_cell(self.outer(place))),
            Op::SetUpvalue(place) => {
                let value = self.pop();
                self.write_cell(self.outer(place), value);
            }
            Op::Height(height) => self.stack.resize(base + usize::from(height), Value::Nil),
            _ => {}
        }
        Ok(())
    }

    fn jump_to(&mut self, target: u32) {
        if let Some(frame) = self.frames.last_mut() {
            frame.pc = target as usize;
        }
    }

    fn jump(&mut self, op: Op) {
        match op {
            Op::Jump(to) => self.jump_to(to),
            Op::JumpIf(truth, to) => {
                let is = self.pop().is_true();
                if is == truth {
                    self.jump_to(to);
                }
            }
            Op::JumpKeep(truth, to) => {
                if self.stack.last().is_some_and(Value::is_true) == truth {
                    self.jump_to(to);
                } else {
                    self.pop();
                }
            }
            _ => {}
        }
    }

    fn prepare_loop(&mut self, slot: usize, to: u32) -> Result<()> {
        let mut numbers = [0; 3];
        let names = ["initial value", "limit", "step"];
        for ((at, name), number) in names.iter().enumerate().zip(&mut numbers) {
            match self.at(slot + at).to_int() {
                Some(found) => *number = found,
                None => return Err(self.error_here(&format!("'for' {name} must be a number"))),
            }
        }
        let [first, limit, step] = numbers;
        self.put(slot, Value::Int(first.wrapping_sub(step)));
        self.put(slot + 1, Value::Int(limit));
        self.put(slot + 2, Value::Int(step));
        self.jump_to(to);
        Ok(())
    }

    fn continue_loop(&mut self, slot: usize, to: u32) {
        let (Value::Int(at), Value::Int(limit), Value::Int(step)) =
            (self.at(slot), self.at(slot + 1), self.at(slot + 2))
        else {
            return;
        };
        let next = at.wrapping_add(step);
        let goes_on = if step > 0 { next <= limit } else { limit <= next };
        if goes_on {
            self.put(slot, Value::Int(next));
            self.stack.truncate(slot + 3);
            self.stack.push(Value::Int(next));
            self.jump_to(to);
        }
    }

    fn varargs(&mut self, count: u16) {
        let Some(frame) = self.frames.last() else { return };
        let mut values = frame.varargs.clone();
        if count != OPEN {
            values.resize(count.into(), Value::Nil);
        }
        self.stack.append(&mut values);
    }

    fn closure(&mut self, place: u32, base: usize) -> Result<()> {
        let Some(proto) = self.proto().and_then(|proto| proto.protos.get(place as usize).cloned())
        else {
            return Ok(());
        };
        let mut cells = Vec::with_capacity(proto.captures.len());
        for capture in &proto.captures {
            let cell = match capture {
                Capture::Slot(slot) => self.cell_at(base + usize::from(*slot)),
                Capture::Upvalue(place) => self.outer(*place),
            };
            cells.push(cell.unwrap_or(CellId(u32::MAX)));
        }
        let function = self.new_function(Function { code: Code::Program(proto), cells })?;
        self.stack.push(function);
        self.collect_if_due()
    }

    fn set_list(&mut self, slot: usize, count: u16, after: u32) -> Result<()> {
        let Value::Table(table) = self.at(slot) else { return Ok(()) };
        let mut values = self.stack.split_off((slot + 1).min(self.stack.len()));
        if count != OPEN {
            values.truncate(count.into());
        }
        for (at, value) in (1_i64..).zip(values) {
            self.raw_set(table, Value::Int(i64::from(after).saturating_add(at)), value)?;
        }
        Ok(())
    }

    /// The result of a metamethod is as true as `truth`.
    pub(super) fn truth(truth: bool) -> How {
        How { after: After::Truth(truth), ..How::wanting(1) }
    }
}
