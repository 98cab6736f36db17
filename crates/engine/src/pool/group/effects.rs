//! What a task does beside the meta object set: done when the task succeeded, or taken back.
//!
//! Invariant: a task that fails leaves the pool as it was. What cannot be taken back (freeing space,
//! showing new devices, switching keys) is put off with [`LivePool::when_done`] until nothing of the
//! task can fail any more; what must happen at once says with [`LivePool::when_undone`] how it is
//! taken back. Only the thread that writes groups runs tasks, one after another.

use cenote_format::{BlockPointer, ObjectId, Txg};

use super::hooks::GroupHooks;
use super::{Answers, LivePool, Relaxed, Task};
use crate::Result;
use crate::dataset::change::{MosChange, PoolHooks};

/// Something done to the pool.
type Effect = Box<dyn FnOnce(&LivePool) + Send>;

/// What the task under way has put off.
#[derive(Default)]
pub(in crate::pool) struct Effects {
    done: Vec<Effect>,
    undone: Vec<Effect>,
    freed: Vec<BlockPointer>,
    /// Sets the tasks before it made.
    fresh: usize,
}

impl LivePool {
    /// Does `effect` when the task under way has succeeded; at once if there is none.
    pub(crate) fn when_done(&self, effect: impl FnOnce(&Self) + Send + 'static) {
        {
            let mut effects = self.effects.lock();
            if let Some(effects) = effects.as_mut() {
                effects.done.push(Box::new(effect));
                return;
            }
        }
        effect(self);
    }

    /// Does `effect` if the task under way fails.
    pub(in crate::pool) fn when_undone(&self, effect: impl FnOnce(&Self) + Send + 'static) {
        if let Some(effects) = self.effects.lock().as_mut() {
            effects.undone.push(Box::new(effect));
        }
    }

    /// Puts off the freeing of a block; `false` if no task is under way.
    pub(in crate::pool) fn free_when_done(&self, pointer: &BlockPointer) -> bool {
        match self.effects.lock().as_mut() {
            Some(effects) => {
                effects.freed.push(*pointer);
                true
            }
            None => false,
        }
    }

    /// Does `work` in group `txg`: all of it, or, if it fails, nothing.
    pub(in crate::pool) fn all_or_nothing<T>(
        &self,
        txg: Txg,
        hooks: &dyn PoolHooks,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let fresh = self.fresh.lock().len();
        self.mos.make_savepoint(txg)?;
        *self.effects.lock() = Some(Effects { fresh, ..Effects::default() });
        let done = work();
        let effects = self.effects.lock().take().unwrap_or_default();
        if done.is_err() {
            self.mos.undo_changes();
            self.fresh.lock().truncate(effects.fresh);
            effects.undone.into_iter().rev().for_each(|effect| effect(self));
            return done;
        }
        self.mos.keep_changes();
        effects.done.into_iter().for_each(|effect| effect(self));
        for pointer in &effects.freed {
            if let Err(error) = hooks.free(pointer) {
                // Nothing names the block any more: its space is lost, and nothing else.
                tracing::error!(%error, "the space of a freed block is lost");
            }
        }
        done
    }

    /// What the head has got in this group is not to be written: it goes, or gets something else.
    pub(in crate::pool) fn forget_fresh(&self, head: ObjectId) {
        let mut fresh = self.fresh.lock();
        let all = fresh.len();
        let made_before = self.effects.lock().as_ref().map_or(all, |effects| effects.fresh);
        let newer = fresh.split_off(made_before.min(all));
        let old: Vec<_> = fresh.extract_if(.., |one| one.id() == head).collect();
        fresh.extend(newer.into_iter().filter(|one| one.id() != head));
        drop(fresh);
        if let Some(effects) = self.effects.lock().as_mut() {
            effects.fresh = effects.fresh.saturating_sub(old.len());
        }
        self.when_undone(move |live| live.fresh.lock().extend(old));
    }

    /// One step of a task that consists of them: all of it, or, if it fails, nothing.
    pub(in crate::pool) fn step<T>(
        &self,
        change: &MosChange<'_>,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.all_or_nothing(change.tx.txg(), change.hooks, work)
    }

    /// For tests: the `step`th thing that an order does from now on fails; 0: none does. How many were
    /// left of the number given before.
    pub fn fail_order_at(&self, step: u64) -> u64 {
        self.fails.swap(step, Relaxed)
    }

    /// Does `tasks`; one that fails changes nothing.
    pub(in crate::pool) fn run_tasks(
        &self,
        tasks: Vec<Task>,
        change: &MosChange<'_>,
        hooks: &GroupHooks<'_>,
        answers: &mut Answers,
    ) -> Result<()> {
        for task in tasks {
            let Task { run, by_steps, done, .. } = task;
            self.mos.fail_at_step(self.fails.swap(0, Relaxed));
            let answer = match by_steps {
                true => run(self, change),
                false => self.all_or_nothing(change.tx.txg(), hooks, || run(self, change)),
            };
            self.fails.store(self.mos.fail_at_step(0), Relaxed);
            let creating = self.mos.committed_root().is_hole();
            let failed = answer.as_ref().err().filter(|_| creating).cloned();
            answers.push((done, answer));
            if let Some(error) = failed {
                // There is no pool without it.
                return Err(error);
            }
        }
        Ok(())
    }
}
