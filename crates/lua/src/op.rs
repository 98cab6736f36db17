//! Instructions of a stack machine, and what a function consists of.
//!
//! Invariant: the height of the stack before every instruction is known when it is compiled, but for results of
//! which there may be any number: those are taken by the very next instruction.

use std::collections::HashMap;
use std::rc::Rc;

use crate::value::{Str, Value};

/// Instead of a number of arguments or results: all there are.
pub const OPEN: u16 = u16::MAX;

/// An instruction. Slots are counted from the base of the function's part of the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Nothing, in the place of a [`Op::NewCell`] that was not needed.
    Nop,
    /// Puts nil on the stack so many times.
    Nil(u16),
    /// Puts a truth value on the stack.
    Bool(bool),
    /// Puts a constant on the stack.
    Const(u32),
    /// Puts a slot's value on the stack.
    GetLocal(u16),
    /// Takes a value into a slot.
    SetLocal(u16),
    /// The value of the slot moves into a variable that functions share.
    NewCell(u16),
    /// As [`Op::GetLocal`], of a shared variable.
    GetCell(u16),
    /// As [`Op::SetLocal`], of a shared variable.
    SetCell(u16),
    /// Puts the value of an outer variable on the stack.
    GetUpvalue(u16),
    /// Takes a value into an outer variable.
    SetUpvalue(u16),
    /// Table and key become the value.
    GetIndex,
    /// A table becomes the value of this key.
    GetField(u32),
    /// Takes the value for the table in the slot, with the key after it.
    SetIndex(u16),
    /// Takes the value for the table in the slot and this key.
    SetField(u16, u32),
    /// Puts a new table on the stack.
    NewTable,
    /// Takes what lies above the table in the slot as its elements after so many.
    SetList(u16, u16, u32),
    /// An object becomes its method of this name and itself.
    Method(u32),
    /// Two operands become the result.
    Arith(Arith),
    /// Changes the sign.
    Negate,
    /// Turns truth round.
    Not,
    /// The length.
    Length,
    /// Joins two.
    Concat,
    /// Compares two.
    Compare(Compare),
    /// Goes on elsewhere.
    Jump(u32),
    /// Takes a value and goes on elsewhere if it is as true as this.
    JumpIf(bool, u32),
    /// Goes on elsewhere if the value is as true as this, else takes it.
    JumpKeep(bool, u32),
    /// Calls what is in the slot; arguments and results lie from there on.
    Call {
        /// Where the function lies.
        slot: u16,
        /// Number of arguments.
        args: u16,
        /// Number of results.
        results: u16,
    },
    /// As [`Op::Call`], in the place of the function that calls.
    TailCall(u16, u16),
    /// Ends the function with so many values from the slot on.
    Return(u16, u16),
    /// Puts so many of the extra arguments on the stack.
    Varargs(u16),
    /// Puts a new function on the stack.
    Closure(u32),
    /// Begins a loop over numbers.
    ForPrepare(u16, u32),
    /// Goes on with it.
    ForLoop(u16, u32),
    /// Goes on with a loop over an iterator.
    ForEach(u16, u32),
    /// Makes the stack so high.
    Height(u16),
}

impl Op {
    /// Counts as an instruction: what moves values only does not, so that programs may do here at least what they
    /// may do where instructions name registers. Every loop has one that counts.
    pub fn counts(self) -> bool {
        !matches!(
            self,
            Self::Nop
                | Self::Nil(_)
                | Self::Bool(_)
                | Self::Const(_)
                | Self::GetLocal(_)
                | Self::SetLocal(_)
                | Self::GetCell(_)
                | Self::SetCell(_)
                | Self::NewCell(_)
                | Self::GetUpvalue(_)
                | Self::Height(_)
        )
    }
}

/// Arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arith {
    /// `+`
    Add,
    /// `-`
    Sub,
    /// `*`
    Mul,
    /// `/`
    Div,
    /// `%`
    Mod,
    /// `^`
    Pow,
}

/// Comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// `==`
    Equal,
    /// `~=`
    Unequal,
    /// `<`
    Less,
    /// `<=`
    LessEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterEqual,
}

/// Where a new function finds an outer variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capture {
    /// In this slot of the function that makes it.
    Slot(u16),
    /// Among the outer variables of that function.
    Upvalue(u16),
}

/// What an operand is called in the program: kind and name.
pub type Subject = (&'static str, Str);

/// A function as it was compiled.
pub struct Proto {
    /// What it does.
    pub code: Vec<Op>,
    /// The line of each instruction.
    pub lines: Vec<u32>,
    /// Constants.
    pub constants: Vec<Value>,
    /// Functions in it.
    pub protos: Vec<Rc<Proto>>,
    /// Where its outer variables come from.
    pub captures: Vec<Capture>,
    /// Names of the operands of instructions.
    pub subjects: HashMap<u32, [Option<Subject>; 2]>,
    /// Number of parameters.
    pub parameters: u16,
    /// It takes more arguments than it names.
    pub is_vararg: bool,
    /// The line it begins at; 0: it is the program.
    pub line: u32,
}

impl Proto {
    /// Bytes that it takes, with the functions in it.
    pub fn cost(&self) -> usize {
        let own = self.code.len().saturating_add(self.constants.len()).saturating_mul(16);
        self.protos.iter().fold(own, |sum, inner| sum.saturating_add(inner.cost()))
    }

    /// The line of an instruction.
    pub fn line_at(&self, pc: usize) -> u32 {
        self.lines.get(pc).copied().unwrap_or(0)
    }
}
