//! A function that is being compiled: its instructions, its variables, its labels.
//!
//! Invariant: a variable that a function inside uses lives in a cell from its declaration on: the place of the
//! instruction that makes the cell is kept free until the variable's scope ends and that is known.

use std::collections::HashMap;
use std::rc::Rc;

use super::{Parsed, Parser};
use crate::op::{Capture, Op, Proto, Subject};
use crate::value::{Str, Value};

/// Most slots of a function.
const SLOTS: usize = 250;
/// Most outer variables of a function.
const OUTER: usize = 255;
/// Most local variables of a function.
const LOCALS: usize = 200;

/// A variable in scope.
pub(super) struct Local {
    pub(super) name: Str,
    slot: u16,
    /// Its place for [`Op::NewCell`].
    declared: usize,
    /// Instructions that read or write it.
    uses: Vec<usize>,
    captured: bool,
}

/// A jump that waits for its label.
pub(super) struct Goto {
    pub(super) name: Str,
    pub(super) pc: usize,
    pub(super) line: u32,
    /// Variables in scope.
    pub(super) active: usize,
    /// Depth of its block.
    pub(super) level: usize,
}

/// A place to jump to.
pub(super) struct Label {
    pub(super) name: Str,
    pub(super) pc: usize,
    pub(super) line: u32,
}

/// A block.
#[derive(Default)]
pub(super) struct Block {
    /// Variables and height of the stack before it.
    pub(super) active: usize,
    pub(super) height: u16,
    pub(super) is_loop: bool,
    pub(super) breaks: Vec<usize>,
    pub(super) labels: Vec<Label>,
}

/// What a name stands for.
pub(super) enum Variable {
    Local(usize),
    Outer(u16),
}

/// See the module.
pub(super) struct Function {
    code: Vec<Op>,
    lines: Vec<u32>,
    constants: Vec<Value>,
    places: HashMap<Value, u32>,
    pub(super) protos: Vec<Rc<Proto>>,
    subjects: HashMap<u32, [Option<Subject>; 2]>,
    pub(super) outer: Vec<(Str, Capture)>,
    pub(super) locals: Vec<Local>,
    pub(super) blocks: Vec<Block>,
    pub(super) gotos: Vec<Goto>,
    /// Height of the stack now.
    pub(super) height: u16,
    pub(super) parameters: u16,
    pub(super) is_vararg: bool,
    pub(super) line: u32,
    /// It needs more slots than there can be.
    pub(super) too_large: bool,
}

impl Function {
    pub(super) fn new(line: u32, is_vararg: bool) -> Self {
        Self {
            code: Vec::new(),
            lines: Vec::new(),
            constants: Vec::new(),
            places: HashMap::new(),
            protos: Vec::new(),
            subjects: HashMap::new(),
            outer: Vec::new(),
            locals: Vec::new(),
            blocks: Vec::new(),
            gotos: Vec::new(),
            height: 0,
            parameters: 0,
            is_vararg,
            line,
            too_large: false,
        }
    }

    pub(super) fn emit(&mut self, op: Op, line: u32) -> usize {
        self.code.push(op);
        self.lines.push(line);
        self.code.len() - 1
    }

    /// Where the next instruction will be.
    pub(super) fn here(&self) -> u32 {
        u32::try_from(self.code.len()).unwrap_or(u32::MAX)
    }

    /// The stack gets `up` values more, of which none is left out of account.
    pub(super) fn grow(&mut self, up: usize) {
        let height = usize::from(self.height) + up;
        self.too_large |= height > SLOTS;
        self.height = u16::try_from(height.min(SLOTS)).unwrap_or(0);
    }

    pub(super) fn shrink(&mut self, down: usize) {
        self.height = self.height.saturating_sub(u16::try_from(down).unwrap_or(u16::MAX));
    }

    pub(super) fn constant(&mut self, value: Value) -> Option<u32> {
        if let Some(place) = self.places.get(&value) {
            return Some(*place);
        }
        let place = u32::try_from(self.constants.len()).ok()?;
        self.places.insert(value.clone(), place);
        self.constants.push(value);
        Some(place)
    }

    pub(super) fn name_operands(&mut self, pc: usize, subjects: [Option<Subject>; 2]) {
        if subjects.iter().any(Option::is_some)
            && let Ok(pc) = u32::try_from(pc)
        {
            self.subjects.insert(pc, subjects);
        }
    }

    pub(super) fn op_mut(&mut self, pc: usize) -> Option<&mut Op> {
        self.code.get_mut(pc)
    }

    /// A jump goes to `target`.
    pub(super) fn patch(&mut self, pc: usize, target: u32) {
        if let Some(
            Op::Jump(to)
            | Op::JumpIf(_, to)
            | Op::JumpKeep(_, to)
            | Op::ForPrepare(_, to)
            | Op::ForLoop(_, to)
            | Op::ForEach(_, to),
        ) = self.code.get_mut(pc)
        {
            *to = target;
        }
    }

    pub(super) fn patch_here(&mut self, pc: usize) {
        let here = self.here();
        self.patch(pc, here);
    }

    fn find_local(&self, name: &Str) -> Option<usize> {
        self.locals.iter().rposition(|local| local.name == *name)
    }

    /// Why a jump has no place to go to.
    pub(super) fn unresolved(&self) -> Option<String> {
        let goto = self.gotos.first()?;
        Some(format!("no visible label '{}' for <goto> at line {}", goto.name.lossy(), goto.line))
    }

    /// The variable's slot, and that of the instruction is noted as one that uses it.
    pub(super) fn slot_of(&mut self, local: usize, used_next: bool) -> u16 {
        let here = self.code.len();
        match self.locals.get_mut(local) {
            Some(local) => {
                if used_next {
                    local.uses.push(here);
                }
                local.slot
            }
            None => 0,
        }
    }

    pub(super) fn finish(self) -> Proto {
        Proto {
            code: self.code,
            lines: self.lines,
            constants: self.constants,
            protos: self.protos,
            captures: self.outer.into_iter().map(|(_, capture)| capture).collect(),
            subjects: self.subjects,
            parameters: self.parameters,
            is_vararg: self.is_vararg,
            line: self.line,
        }
    }
}

impl Parser<'_> {
    /// The values in the topmost slots get names, in order.
    pub(super) fn declare(&mut self, names: Vec<Str>) -> Parsed<()> {
        let first = usize::from(self.function().height).saturating_sub(names.len());
        for (at, name) in names.into_iter().enumerate() {
            if self.function().locals.len() >= LOCALS {
                return Err(self.wrong("too many local variables (limit is 200) in function"));
            }
            let slot = u16::try_from(first + at).unwrap_or(0);
            let declared = self.emit(Op::Nop);
            let local = Local { name, slot, declared, uses: Vec::new(), captured: false };
            self.function().locals.push(local);
        }
        Ok(())
    }

    /// The scope of all variables but the first `active` ends.
    pub(super) fn close_locals(&mut self, active: usize) {
        let function = self.function();
        let ended = function.locals.split_off(active.min(function.locals.len()));
        for local in ended.into_iter().filter(|local| local.captured) {
            if let Some(op) = function.op_mut(local.declared) {
                *op = Op::NewCell(local.slot);
            }
            for pc in local.uses {
                match function.op_mut(pc) {
                    Some(op @ Op::GetLocal(_)) => *op = Op::GetCell(local.slot),
                    Some(op @ Op::SetLocal(_)) => *op = Op::SetCell(local.slot),
                    _ => {}
                }
            }
        }
    }

    /// What a name stands for in the function under way; `None`: a global variable.
    pub(super) fn variable(&mut self, name: &Str) -> Parsed<Option<Variable>> {
        let depth = self.functions.len().saturating_sub(1);
        match self.functions.last().and_then(|function| function.find_local(name)) {
            Some(local) => Ok(Some(Variable::Local(local))),
            None => Ok(self.outer(depth, name)?.map(Variable::Outer)),
        }
    }

    /// The place of `name` among the outer variables of the function at `depth`.
    fn outer(&mut self, depth: usize, name: &Str) -> Parsed<Option<u16>> {
        let Some(function) = self.functions.get(depth) else { return Ok(None) };
        if let Some(known) = function.outer.iter().position(|(known, _)| known == name) {
            return Ok(u16::try_from(known).ok());
        }
        let Some(around) = depth.checked_sub(1) else { return Ok(None) };
        let Some(parent) = self.functions.get_mut(around) else { return Ok(None) };
        let capture = if let Some(local) = parent.find_local(name) {
            let Some(local) = parent.locals.get_mut(local) else { return Ok(None) };
            local.captured = true;
            Capture::Slot(local.slot)
        } else {
            match self.outer(around, name)? {
                Some(outer) => Capture::Upvalue(outer),
                None => return Ok(None),
            }
        };
        let Some(function) = self.functions.get_mut(depth) else { return Ok(None) };
        if function.outer.len() >= OUTER {
            return Err(self.wrong("too many upvalues (limit is 255) in function"));
        }
        function.outer.push((name.clone(), capture));
        Ok(u16::try_from(function.outer.len() - 1).ok())
    }
}
