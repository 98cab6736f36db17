//! Coroutines.
//!
//! Invariant: a coroutine at work has its stack in the machine, those that resumed it wait with theirs in order;
//! it gives way only to whoever resumed it in the same loop of execution.

use super::call::{Frame, How};
use super::{DEEPEST, FRAME_COST, Vm};
use crate::error::{Result, Stop};
use crate::op::OPEN;
use crate::table::VALUE_COST;
use crate::value::{ThreadId, Value};

/// A coroutine.
pub(super) enum Coroutine<'h> {
    /// It waits: at its beginning, without frames, its function and arguments being on the stack; or in a call of
    /// `yield`, the innermost frame.
    Suspended { stack: Vec<Value>, frames: Vec<Frame<'h>> },
    /// It is at work, or has resumed another.
    Running,
    /// It has ended.
    Dead,
}

impl Coroutine<'_> {
    pub(super) fn running() -> Self {
        Self::Running
    }

    pub(super) fn cost(&self) -> usize {
        match self {
            Self::Suspended { stack, frames } => {
                stack.len() * VALUE_COST + frames.len() * FRAME_COST
            }
            _ => 0,
        }
    }
}

/// Who waits for a coroutine.
pub(super) struct Resumer<'h> {
    pub(super) thread: Option<ThreadId>,
    pub(super) stack: Vec<Value>,
    pub(super) frames: Vec<Frame<'h>>,
    /// Errors go on in it.
    pub(super) wraps: bool,
}

impl<'h> Vm<'h> {
    /// A coroutine that begins with `function`.
    pub(crate) fn new_coroutine(&mut self, function: Value) -> Result<ThreadId> {
        self.meter.add(VALUE_COST);
        self.new_thread(Coroutine::Suspended { stack: vec![function], frames: Vec::new() })
    }

    /// The coroutine at work, and whether it is the program itself.
    pub(crate) fn running(&self) -> (Option<ThreadId>, bool) {
        (self.current.or(self.main), self.current.is_none())
    }

    pub(crate) fn status(&self, thread: ThreadId) -> &'static str {
        if self.running().0 == Some(thread) {
            return "running";
        }
        match self.threads.get(thread.0) {
            Some(Coroutine::Suspended { .. }) => "suspended",
            Some(Coroutine::Running) => "normal",
            Some(Coroutine::Dead) | None => "dead",
        }
    }

    /// `coroutine.resume`, its frame being the innermost.
    pub(super) fn resume(&mut self, args: &[Value]) -> Result<()> {
        match args.split_first() {
            Some((Value::Thread(thread), args)) => self.resume_thread(*thread, args, false),
            _ => Err(self.argument_error(1, "coroutine expected")),
        }
    }

    pub(super) fn resume_thread(
        &mut self,
        thread: ThreadId,
        args: &[Value],
        wraps: bool,
    ) -> Result<()> {
        let depth = u32::try_from(self.resumers.len()).unwrap_or(u32::MAX);
        let refusal = match self.status(thread) {
            "suspended" if depth.saturating_add(self.depth) < DEEPEST => None,
            "suspended" => Some("C stack overflow"),
            "dead" => Some("cannot resume dead coroutine"),
            _ => Some("cannot resume non-suspended coroutine"),
        };
        if let Some(refusal) = refusal {
            if wraps {
                return Err(self.error(refusal));
            }
            let reason = self.string(refusal.as_bytes())?;
            return self.finish_resume(vec![Value::Bool(false), reason]);
        }
        let Some(coroutine) = self.threads.get_mut(thread.0) else { return Ok(()) };
        let cost = coroutine.cost();
        let Coroutine::Suspended { stack, frames } =
            std::mem::replace(coroutine, Coroutine::Running)
        else {
            return Ok(());
        };
        self.meter.sub(cost);
        let resumer = Resumer {
            thread: self.current.replace(thread),
            stack: std::mem::replace(&mut self.stack, stack),
            frames: std::mem::replace(&mut self.frames, frames),
            wraps,
        };
        self.resumers.push(resumer);
        if !self.frames.is_empty() {
            return self.finish_resume(args.to_vec());
        }
        self.stack.extend_from_slice(args);
        self.begin_call(0, How::wanting(OPEN))?;
        // A function that is none of the program's has ended already.
        if self.frames.is_empty() && self.current == Some(thread) {
            let results = std::mem::take(&mut self.stack);
            return self.end_coroutine(results);
        }
        Ok(())
    }

    /// `coroutine.yield`, its frame being the innermost.
    pub(super) fn suspend(&mut self, values: Vec<Value>) -> Result<()> {
        let Some(thread) = self.current else {
            return Err(self.error("attempt to yield from outside a coroutine"));
        };
        if self.resumers.len() <= self.resumed_before {
            return Err(self.error("attempt to yield across a C-call boundary"));
        }
        let (stack, frames) = (std::mem::take(&mut self.stack), std::mem::take(&mut self.frames));
        let suspended = Coroutine::Suspended { stack, frames };
        self.meter.add(suspended.cost());
        self.leave_coroutine(thread, suspended);
        self.deliver(values)
    }

    /// The coroutine at work has ended with these results.
    pub(super) fn end_coroutine(&mut self, results: Vec<Value>) -> Result<()> {
        if let Some(thread) = self.current {
            self.leave_coroutine(thread, Coroutine::Dead);
        }
        self.deliver(results)
    }

    /// Goes back to who resumed it, whose call of `resume` is the innermost frame then.
    fn leave_coroutine(&mut self, thread: ThreadId, state: Coroutine<'h>) {
        if let Some(coroutine) = self.threads.get_mut(thread.0) {
            *coroutine = state;
        }
        if let Some(resumer) = self.resumers.pop() {
            self.current = resumer.thread;
            self.stack = resumer.stack;
            self.frames = resumer.frames;
            self.last_wraps = resumer.wraps;
        }
    }

    fn deliver(&mut self, mut values: Vec<Value>) -> Result<()> {
        if !self.last_wraps {
            values.insert(0, Value::Bool(true));
        }
        self.finish_resume(values)
    }

    /// The call of `resume` gives these. A coroutine whose whole function is `resume` ends with it.
    fn finish_resume(&mut self, values: Vec<Value>) -> Result<()> {
        self.finish_call(values);
        if self.frames.is_empty()
            && self.current.is_some()
            && self.resumers.len() > self.resumed_before
        {
            let results = std::mem::take(&mut self.stack);
            return self.end_coroutine(results);
        }
        Ok(())
    }

    /// An error in a coroutine that was resumed in this loop of execution ends that one; whoever resumed it is
    /// told, or fails himself.
    pub(super) fn catch(&mut self, mut stop: Stop) -> Result<()> {
        while let Stop::Error(value) = &stop
            && self.resumers.len() > self.resumed_before
            && let Some(thread) = self.current
        {
            let value = value.clone();
            self.leave_coroutine(thread, Coroutine::Dead);
            if !self.last_wraps {
                return self.finish_resume(vec![Value::Bool(false), value]);
            }
            stop = match &value {
                Value::Str(text) => {
                    let text = text.lossy();
                    self.error(&text)
                }
                _ => Stop::Error(value),
            };
        }
        Err(stop)
    }
}
