//! Devices beyond the redundancy, and two things at a time.
//!
//! Invariant: what fails says so, and what was acknowledged is there when the devices are back; who
//! comes second sees a pool in which the first has not begun or is done. Threads take turns here, so that
//! the order of what they do follows from the plan.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use cenote_device::before_write;
use cenote_engine::Result;
use cenote_engine::pool::change::DatasetOrders;
use cenote_posix::tree::Tree;

use crate::disks::{NEWCOMER, WIDER, settle};
use crate::model::PoolState;
use crate::plan::{Step, Trouble};
use crate::random::bytes;
use crate::run::{Runner, Verdict};

/// Longest time a group waits for what is done beside it: that may wait for the group itself.
const TURN: Duration = Duration::from_secs(1);
/// Longest time until a pool whose devices are back goes on.
const RETURN: Duration = Duration::from_secs(20);
/// How long a group is given to be written before an fsync that it should wait for.
const OVERTAKES: Duration = Duration::from_millis(150);

impl Runner {
    /// All devices fail for a while.
    pub(crate) fn dark(&mut self, trouble: Trouble, fill: u32, end: u8) -> Verdict {
        self.tally.faults += 1;
        let mut all: BTreeMap<_, _> =
            self.disks.leaves().into_iter().map(|path| (path, trouble)).collect();
        // Those that came and have not gone.
        all.extend([NEWCOMER, WIDER].map(|path| (path.to_owned(), trouble)));
        // Logs lie on them too.
        self.dark = true;
        self.disks.ail(&all);
        let done = self.in_the_dark(trouble, fill);
        if end % 4 == 3 && done.is_ok() {
            self.dark = false;
            let back = (fill % 300) as u16;
            self.troubles.clear();
            return self.cut(back, (fill >> 9) as u8 % 3, fill, 0, 0);
        }
        if end % 4 == 2 && done.is_ok() {
            self.dark = false;
            self.troubles.clear();
            return self.cut_now(0, 1, 0);
        }
        if end % 4 == 1 {
            // A disk that was well all the time keeps what it said yes to.
            all.keys().filter_map(|path| self.disks.at(path)).for_each(|disk| disk.crash());
            self.disks.record();
        }
        // Leaves got some copies, and others not.
        self.rotten |= self.disks.all().count() > 1;
        self.ail();
        self.dark = false;
        done?;
        self.live.vdevs().reopen();
        self.live.vdevs().clear(None);
        self.live.retry_now();
        let begin = std::time::Instant::now();
        while self.live.gate().suspension().is_some() && begin.elapsed() < RETURN {
            std::thread::sleep(Duration::from_millis(2));
        }
        // Whichever group comes next is under way already, or is not.
        settle(&self.live);
        self.still_writes()?;
        self.group()?;
        if self.troubles.is_empty() { self.read_all() } else { Ok(()) }
    }

    fn in_the_dark(&mut self, trouble: Trouble, fill: u32) -> Verdict {
        // With 'sync=always' a change that is refused may have been made.
        let set = self.set(0).1;
        let prompt = self.model.sets.get(&set).is_some_and(|set| set.prompt);
        // What is not mounted cannot be mounted now.
        let turns = if prompt || !self.trees.contains_key(&set) { 0 } else { 3 };
        for turn in 0..turns {
            let Some((_, file)) = self.file(set, (fill >> turn) as u8) else { break };
            // In one block: of several, some may be changed before one cannot be read.
            let data = bytes(300, fill.wrapping_add(turn), false);
            if self.write_at(set, file, (turn as usize) << 12, &data)? {
                self.fsync(set, file)?;
            }
        }
        let synced = self.live.sync();
        if synced.is_ok() && trouble != Trouble::Reads && trouble != Trouble::Loses {
            return Err("all devices fail, and a group is called written".into());
        }
        match self.live.gate().failure() {
            Some(error) => Err(format!("the pool stopped for good: {error}")),
            None => Ok(()),
        }
    }

    /// Gives an order that fails in its middle: then it has changed nothing.
    pub(crate) fn fails(&mut self, order: &Step, at: u8) -> Verdict {
        self.tally.faults += 1;
        self.live.fail_order_at(at.into());
        self.failing = true;
        let done = self.step(order);
        self.failing = false;
        self.live.fail_order_at(0);
        done
    }

    /// Does `second` in the middle of `first`.
    pub(crate) fn beside(&mut self, first: &Step, second: &Step) -> Verdict {
        self.between = Some(second.clone());
        let done = self.step(first);
        self.between = None;
        done
    }

    /// An order is between looking and changing: another is done.
    pub(crate) fn interlude(&mut self) -> Verdict {
        match self.between.take() {
            Some(step) => {
                let done = self.step(&step);
                settle(&self.live);
                done.map_err(|reason| format!("{} beside it: {reason}", crate::run::name(&step)))
            }
            None => Ok(()),
        }
    }

    /// Does an order, and `steps` in the middle of its group.
    pub(crate) fn during(&mut self, order: &Step, steps: &[Step]) -> Verdict {
        self.meanwhile = steps.to_vec();
        let done = match order {
            Step::Group => {
                let same = self.model.pool.newest().clone();
                self.alter(same, |orders| orders.set_properties(Vec::new())).map(drop)
            }
            order => self.step(order),
        };
        self.meanwhile.clear();
        done
    }

    /// Has a group written while an fsync is about to write, and ends this life there.
    pub(crate) fn overtaken(&mut self, set: u8, file: u8, fill: u32, writes: u8) -> Verdict {
        let set = self.set(set).1;
        let Some((_, file)) = self.file(set, file) else { return self.pass() };
        // A chain is there, and goes on.
        for turn in 0..2 {
            if !self.write_at(set, file, 0, &bytes(300, fill.wrapping_add(turn), false))? {
                return self.pass();
            }
            if turn == 0 {
                self.fsync(set, file)?;
            }
        }
        self.tally.faults += 1;
        let tree = self.tree(&self.name_of(set), set)?;
        let (node, mark) = (self.node(set, file), self.model.mark());
        let (reach, reached) = channel();
        let (go, going) = channel::<()>();
        let writer = std::thread::spawn(move || {
            before_write(writes.into(), move || {
                let _ = reach.send(());
                let _ = going.recv_timeout(TURN);
            });
            tree.sync(node, false)
        });
        let mut left = None;
        if reached.recv_timeout(TURN).is_ok() {
            let (live, all) = (self.live.clone(), self.model.mark());
            let (tell, told) = channel();
            let group = std::thread::spawn(move || tell.send(live.sync()).is_ok());
            if let Ok(synced) = told.recv_timeout(OVERTAKES) {
                synced.map_err(|error| format!("the group is not written: {error}"))?;
                self.model.acknowledge(&all);
                left = Some(self.disks.copy());
            }
            drop(go);
            group.join().map_err(|_| "the group panics")?;
        }
        let answer = writer.join().map_err(|_| "the fsync panics")?;
        if let Some(left) = left {
            return self.end_life(left, u64::MAX, 0);
        }
        if self.model.damaged.contains(&node) && answer.is_err() {
            return Ok(());
        }
        answer.map_err(|error| format!("fsync: {error}"))?;
        if !self.model.sets[&set].careless {
            self.model.committed(set, file, &mark);
        }
        Ok(())
    }

    /// Gives an order and does the steps that are to be done meanwhile.
    pub(crate) fn alter_beside<T: Send + 'static>(
        &mut self,
        next: PoolState,
        order: impl FnOnce(DatasetOrders<'_>) -> Result<T> + Send + 'static,
    ) -> Verdict<bool> {
        let steps = std::mem::take(&mut self.meanwhile);
        let mark = self.begun(next);
        let (reach, reached) = channel();
        let (go, going) = channel::<()>();
        let live = self.live.clone();
        let going = Mutex::new(going);
        let order = std::thread::spawn(move || {
            order(live.orders().and_then(move || {
                let _ = reach.send(());
                let _ = going.lock().map(|going| going.recv_timeout(TURN));
            }))
        });
        let mut done = Ok(());
        if reached.recv_timeout(RETURN).is_ok() {
            // The group waits for them.
            self.live.gate().keep_in_step(false);
            self.middle = true;
            // After a cut perhaps nothing is open yet.
            let steps = if self.usable_sets().is_empty() { Vec::new() } else { steps };
            for step in &steps {
                done = done.and_then(|()| self.file_step(step).unwrap_or(Ok(())));
            }
            self.middle = false;
            self.live.gate().keep_in_step(true);
        }
        drop(go);
        let answer = order.join().map_err(|_| "the order panics")?;
        done.map_err(|reason| format!("beside the order: {reason}"))?;
        self.answered(mark, answer)
    }
}
