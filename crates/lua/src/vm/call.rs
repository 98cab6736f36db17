//! Calls and returns.
//!
//! Invariant: a frame's part of the stack begins after its function; when it returns, its results lie from there on,
//! as many as were wanted.

use std::rc::Rc;

use super::{Code, DEEPEST, Vm};
use crate::error::{Result, Stop};
use crate::op::{OPEN, Proto};
use crate::value::{FunctionId, ThreadId, Value};

/// Values with `__call` on the way to a function.
const CALLABLES: usize = 20;

/// What is done with a function's only result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// Nothing.
    Leave,
    /// It is as true as this.
    Truth(bool),
}

/// Takes arguments and gives results.
type Run<'h> = dyn Fn(&mut Vm<'h>, &[Value]) -> Result<Vec<Value>> + 'h;

/// What a function that is none of the program's does.
#[derive(Clone)]
pub(crate) enum NativeCode<'h> {
    /// Takes arguments and gives results.
    Plain(Rc<Run<'h>>),
    /// `coroutine.resume`.
    Resume,
    /// `coroutine.yield`.
    Yield,
    /// What `coroutine.wrap` gives.
    Wrapped(ThreadId),
}

impl NativeCode<'_> {
    /// The coroutine it refers to.
    pub(super) fn thread(&self) -> Option<ThreadId> {
        match self {
            Self::Wrapped(thread) => Some(*thread),
            _ => None,
        }
    }
}

/// A function under way.
pub(super) struct Frame<'h> {
    pub(super) function: FunctionId,
    /// `None`: it is none of the program's.
    pub(super) proto: Option<Rc<Proto>>,
    pub(super) pc: usize,
    /// Where its function lies.
    pub(super) slot: usize,
    pub(super) varargs: Vec<Value>,
    /// Number of results wanted.
    pub(super) results: u16,
    pub(super) after: After,
    /// The loop of execution that began with it ends with it.
    pub(super) is_entry: bool,
    /// It took the place of the one that called it.
    pub(super) is_tail: bool,
    pub(super) native: std::marker::PhantomData<&'h ()>,
}

/// How a function is called.
#[derive(Clone, Copy)]
pub(super) struct How {
    pub(super) results: u16,
    pub(super) after: After,
    pub(super) is_entry: bool,
    pub(super) is_tail: bool,
}

impl How {
    pub(super) fn wanting(results: u16) -> Self {
        Self { results, after: After::Leave, is_entry: false, is_tail: false }
    }
}

impl<'h> Vm<'h> {
    /// Calls a function and waits for its results.
    ///
    /// # Errors
    /// Why it stopped.
    pub fn call(&mut self, function: &Value, args: &[Value]) -> Result<Vec<Value>> {
        self.call_deep(function, args, 1)
    }

    /// The same by what needs so many times the room of others here.
    pub(crate) fn call_deep(
        &mut self,
        function: &Value,
        args: &[Value],
        weight: u32,
    ) -> Result<Vec<Value>> {
        if self.depth + weight > DEEPEST {
            return Err(self.bare_error("C stack overflow"));
        }
        self.depth += weight;
        let resumed_before = std::mem::replace(&mut self.resumed_before, self.resumers.len());
        let slot = self.stack.len();
        self.stack.push(function.clone());
        self.stack.extend_from_slice(args);
        let how = How { is_entry: true, ..How::wanting(OPEN) };
        let done = self.begin_call(slot, how).and_then(|()| self.execute());
        self.resumed_before = resumed_before;
        self.depth = self.depth.saturating_sub(weight);
        done.map(|()| self.stack.split_off(slot.min(self.stack.len())))
    }

    fn bare_error(&mut self, reason: &str) -> Stop {
        let place = self.place(0);
        match self.string(format!("{place}{reason}").as_bytes()) {
            Ok(value) => Stop::Error(value),
            Err(stop) => stop,
        }
    }

    /// Begins a call of what lies in `slot`, with all above it as arguments; one that is none of the program's is
    /// done at once.
    pub(super) fn begin_call(&mut self, slot: usize, how: How) -> Result<()> {
        let mut id = None;
        for _ in 0..CALLABLES {
            let called = self.stack.get(slot).cloned().unwrap_or(Value::Nil);
            if let Value::Function(function) = called {
                id = Some(function);
                break;
            }
            let through = self.metamethod(&called, "__call");
            if through.is_nil() {
                return Err(self.operand_error("call", &called, 0));
            }
            self.stack.insert(slot, through);
        }
        let Some(id) = id else { return Err(self.error("attempt to call a chain of tables")) };
        let code = match self.functions.get(id.0).map(|function| &function.code) {
            Some(Code::Program(proto)) => Ok(proto.clone()),
            Some(Code::Native(native)) => Err(native.clone()),
            None => return Err(self.error("attempt to call a function that is gone")),
        };
        match code {
            Ok(proto) => self.begin_program(id, proto, slot, how),
            Err(native) => self.run_native(id, native, slot, how),
        }
    }

    fn begin_program(
        &mut self,
        id: FunctionId,
        proto: Rc<Proto>,
        slot: usize,
        how: How,
    ) -> Result<()> {
        let wanted = slot + 1 + usize::from(proto.parameters);
        let mut varargs = Vec::new();
        if proto.is_vararg && self.stack.len() > wanted {
            varargs = self.stack.split_off(wanted);
        }
        self.stack.resize(wanted, Value::Nil);
        let frame = Frame { varargs, proto: Some(proto), ..self.frame(id, slot, how) };
        self.frames.push(frame);
        self.collect_if_due()
    }

    fn frame(&self, function: FunctionId, slot: usize, how: How) -> Frame<'h> {
        let How { results, after, is_entry, is_tail } = how;
        Frame {
            function,
            proto: None,
            pc: 0,
            slot,
            varargs: Vec::new(),
            results,
            after,
            is_entry,
            is_tail,
            native: std::marker::PhantomData,
        }
    }

    fn run_native(
        &mut self,
        id: FunctionId,
        native: NativeCode<'h>,
        slot: usize,
        how: How,
    ) -> Result<()> {
        // Its arguments stay on the stack while it runs: so they are known to live.
        let args = self.stack.get(slot + 1..).unwrap_or_default().to_vec();
        self.frames.push(self.frame(id, slot, how));
        match native {
            NativeCode::Plain(run) => {
                let results = run(self, &args)?;
                self.finish_call(results);
                self.collect_if_due_in(how)
            }
            NativeCode::Resume => self.resume(&args),
            NativeCode::Yield => self.suspend(args),
            NativeCode::Wrapped(thread) => self.resume_thread(thread, &args, true),
        }
    }

    /// Unused memory is looked for after calls by instructions only: others hold what they got.
    fn collect_if_due_in(&mut self, how: How) -> Result<()> {
        if how.is_entry { Ok(()) } else { self.collect_if_due() }
    }

    /// The innermost function ends with these results.
    pub(super) fn finish_call(&mut self, mut results: Vec<Value>) {
        let Some(frame) = self.frames.pop() else { return };
        self.stack.truncate(frame.slot);
        if let After::Truth(as_it_is) = frame.after {
            let truth = results.first().is_some_and(Value::is_true);
            results = vec![Value::Bool(truth == as_it_is)];
        }
        if frame.results != OPEN {
            results.resize(frame.results.into(), Value::Nil);
        }
        self.stack.append(&mut results);
        self.entry_ended |= frame.is_entry;
    }

    /// Ends the innermost function with the values from `slot` on.
    pub(super) fn return_values(&mut self, slot: usize, count: u16) -> Result<()> {
        let mut results = self.stack.split_off(slot.min(self.stack.len()));
        if count != OPEN {
            results.truncate(count.into());
        }
        let ends_coroutine = self.frames.len() == 1 && self.resumers.len() > self.resumed_before;
        if ends_coroutine {
            self.frames.pop();
            return self.end_coroutine(results);
        }
        self.finish_call(results);
        Ok(())
    }

    /// Calls what lies in `slot` in the place of the innermost function.
    pub(super) fn tail_call(&mut self, slot: usize, args: u16) -> Result<()> {
        if args != OPEN {
            self.stack.truncate(slot + 1 + usize::from(args));
        }
        let called = self.stack.get(slot).cloned().unwrap_or(Value::Nil);
        let is_program = matches!(&called, Value::Function(id)
            if matches!(self.functions.get(id.0).map(|f| &f.code), Some(Code::Program(_))));
        if !is_program {
            // The instruction after this returns its results.
            return self.begin_call(slot, How::wanting(OPEN));
        }
        let moved = self.stack.split_off(slot);
        let Some(frame) = self.frames.pop() else { return Ok(()) };
        self.stack.truncate(frame.slot);
        self.stack.extend(moved);
        let (results, after, is_entry) = (frame.results, frame.after, frame.is_entry);
        self.begin_call(frame.slot, How { results, after, is_entry, is_tail: true })
    }
}
