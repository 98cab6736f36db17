//! How much memory is in use, and which of it is not needed any more.
//!
//! Invariant: whatever can be reached from the stacks, the frames and the globals stays; what is weak in a table
//! goes from it before it goes.

use super::call::Frame;
use super::coroutine::Coroutine;
use super::{
    CELL_COST, Code, FRAME_COST, FUNCTION_COST, GLANCE_BYTES, LEAST_BEFORE_COLLECTION, THREAD_COST,
    Vm,
};
use crate::arena::Arena;
use crate::error::{Result, Stop};
use crate::table::VALUE_COST;
use crate::value::{TableId, Value};

impl Vm<'_> {
    /// Bytes in use.
    pub fn used(&self) -> usize {
        let resumers = self
            .resumers
            .iter()
            .map(|resumer| resumer.stack.len() * VALUE_COST + resumer.frames.len() * FRAME_COST);
        let stacks = self.stack.len() * VALUE_COST + self.frames.len() * FRAME_COST;
        self.meter.used().saturating_add(stacks).saturating_add(resumers.sum())
    }

    /// Makes sure that there is room for so many bytes more.
    ///
    /// # Errors
    /// [`Stop::Memory`].
    pub fn room_for(&mut self, more: usize) -> Result<()> {
        if more > self.limits.memory {
            return Err(Stop::Memory);
        }
        self.made = self.made.saturating_add(more);
        if self.made > GLANCE_BYTES {
            self.made = 0;
            self.check()?;
        }
        let used =
            self.meter.used().saturating_add(self.stack.len() * VALUE_COST).saturating_add(more);
        if used > self.limits.memory { Err(Stop::Memory) } else { Ok(()) }
    }

    /// The same, after looking for unused memory if there is none: for what holds nothing but strings and what lies
    /// on the stack.
    pub(crate) fn make_room(&mut self, more: usize) -> Result<()> {
        match self.room_for(more) {
            Err(Stop::Memory) if more <= self.limits.memory => {
                self.collect();
                self.room_for(more)
            }
            done => done,
        }
    }

    /// An error if more is in use than may be.
    pub(crate) fn check_memory(&mut self) -> Result<()> {
        if self.used() <= self.limits.memory { Ok(()) } else { Err(Stop::Memory) }
    }

    /// Looks for unused memory if much was taken since it was last looked for. Only between two instructions:
    /// what functions beside the program hold is not known then to be needed.
    pub(super) fn collect_if_due(&mut self) -> Result<()> {
        #[cfg(test)]
        if self.eager {
            self.collect_at = 0;
        }
        if self.used() <= self.collect_at {
            return Ok(());
        }
        self.collect();
        let used = self.used();
        if used > self.limits.memory {
            return Err(Stop::Memory);
        }
        let next =
            used.saturating_add(used / 2).max(used.saturating_add(LEAST_BEFORE_COLLECTION / 4));
        // Near the limit it is looked for more often, but not for every byte.
        let most = self.limits.memory.saturating_sub(self.limits.memory / 8).max(used);
        self.collect_at = next.min(most.saturating_add(self.limits.memory / 64));
        Ok(())
    }

    /// Gives up all memory that nothing refers to.
    pub(crate) fn collect(&mut self) {
        let mut marker = Marker { pending: Vec::new(), weak: Vec::new() };
        marker.pending.extend(self.globals.map(Value::Table));
        marker.pending.extend(self.string_meta.map(Value::Table));
        marker.pending.extend(self.main.map(Value::Thread));
        marker.pending.extend(self.current.map(Value::Thread));
        marker.pending.extend(self.kept.iter().cloned());
        marker.stack(&self.stack, &self.frames);
        for resumer in &self.resumers {
            marker.pending.extend(resumer.thread.map(Value::Thread));
            marker.stack(&resumer.stack, &resumer.frames);
        }
        while let Some(value) = marker.pending.pop() {
            self.mark(&value, &mut marker);
        }
        for table in marker.weak {
            self.clear_weak(table);
        }
        let meter = self.meter.clone();
        self.tables.sweep(|table| meter.sub(table.cost()));
        self.cells.sweep(|_| meter.sub(CELL_COST));
        self.functions.sweep(|function| {
            meter.sub(FUNCTION_COST + function.cells.len() * VALUE_COST);
        });
        self.threads.sweep(|coroutine| meter.sub(THREAD_COST + coroutine.cost()));
    }

    fn mark(&mut self, value: &Value, marker: &mut Marker) {
        match value {
            Value::Table(id) if self.tables.mark(id.0) => self.mark_table(*id, marker),
            Value::Function(id) if self.functions.mark(id.0) => {
                let Some(function) = self.functions.get(id.0) else { return };
                marker.pending.extend(function.cells.iter().map(|cell| Value::Cell(*cell)));
                if let Code::Native(native) = &function.code {
                    marker.pending.extend(native.thread().map(Value::Thread));
                }
            }
            Value::Cell(id) if self.cells.mark(id.0) => {
                marker.pending.extend(self.cells.get(id.0).cloned());
            }
            Value::Thread(id) if self.threads.mark(id.0) => {
                if let Some(Coroutine::Suspended { stack, frames, .. }) = self.threads.get(id.0) {
                    marker.stack(stack, frames);
                }
            }
            _ => {}
        }
    }

    fn mark_table(&mut self, id: TableId, marker: &mut Marker) {
        let meta = self.tables.get(id.0).and_then(|table| table.meta);
        marker.pending.extend(meta.map(Value::Table));
        let mode = meta.map_or(Value::Nil, |meta| self.field(meta, "__mode"));
        let (mut keys, mut values) = (true, true);
        if let Value::Str(mode) = mode {
            keys = !mode.bytes().contains(&b'k');
            values = !mode.bytes().contains(&b'v');
        }
        if !keys || !values {
            marker.weak.push(id);
        }
        let Some(table) = self.tables.get(id.0) else { return };
        for (key, value) in table.values() {
            if keys {
                marker.pending.extend(key.cloned());
            }
            if values {
                marker.pending.push(value.clone());
            }
        }
    }

    fn clear_weak(&mut self, id: TableId) {
        let (mut weak, meter) = (std::mem::take(&mut self.tables), self.meter.clone());
        if let Some(table) = weak.get_mut(id.0) {
            // Itself it is marked, whatever it is asked for.
            let mut taken = std::mem::take(table);
            let before = taken.cost();
            taken.retain(|value| self.lives(value, &weak));
            meter.sub(before.saturating_sub(taken.cost()));
            if let Some(table) = weak.get_mut(id.0) {
                *table = taken;
            }
        }
        self.tables = weak;
    }

    fn lives(&self, value: &Value, tables: &Arena<crate::table::Table>) -> bool {
        match value {
            Value::Table(id) => tables.is_marked(id.0),
            Value::Function(id) => self.functions.is_marked(id.0),
            Value::Thread(id) => self.threads.is_marked(id.0),
            _ => true,
        }
    }
}

/// What is left to be looked through.
struct Marker {
    pending: Vec<Value>,
    weak: Vec<TableId>,
}

impl Marker {
    fn stack(&mut self, stack: &[Value], frames: &[Frame<'_>]) {
        let refers = |value: &&Value| {
            matches!(
                value,
                Value::Table(_) | Value::Function(_) | Value::Cell(_) | Value::Thread(_)
            )
        };
        self.pending.extend(stack.iter().filter(refers).cloned());
        for frame in frames {
            self.pending.push(Value::Function(frame.function));
            self.pending.extend(frame.varargs.iter().filter(refers).cloned());
        }
    }
}
