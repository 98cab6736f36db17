//! Who may still write, by what is used on the disks and what is promised beyond that.
//!
//! Chapter 06, section 8.4. The writer of groups tells what a group left of every head and directory in
//! the moment its promises are settled, so that nothing is counted twice or not at all. As OpenZFS
//! does it: a change is let in while what is used and promised lies below every limit, so a quota is
//! overrun by one block at most; where only promises are in the way, a group is waited for.
//! Invariant: the pool's reserve is left alone by what makes files grow, and half of it by everything
//! but replays, so that groups can always be written.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use cenote_format::{ObjectId, Txg};
use parking_lot::Mutex;

use super::allowance::{Allowance, DirectoryLimits};
use super::name::DEPTH_MAX;
use crate::txg::{Account, Promised, Purpose, Reservation};
use crate::{Error, ErrorKind};

/// Groups waited for where the disks say that nothing is left, but something may be given back.
const LAST_WAITS: u32 = 3;
/// Part of the reserve that what makes files grow leaves free, as a shift.
const GROW_LEAVES: u32 = 1;
/// The same of what keeps up or frees.
const SPARE_LEAVES: u32 = 2;
/// What replaces leaves this part of the reserve to that besides, as a shift: a snapshot or the
/// checkpoint may keep all that was replaced.
const REPLACE_LEAVES: u32 = 3;
/// Part of what the log may take that it takes in one group before that is written, as a shift.
const LOG_SHARE: u32 = 2;
/// Bytes promised below a quota for which no group is written.
const CROWD_LEAST: u64 = 1 << 20;
/// Bytes of the log for which no group is written.
const LOG_LEAST: u64 = 1 << 20;

/// What the pool offers, as of a group on the disks; in bytes datasets are charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolRoom {
    /// What datasets may use together: not the reserve.
    pub usable: u64,
    /// Bytes kept back.
    pub slop: u64,
    /// Bytes of ordinary devices that can be allocated now.
    pub free: u64,
    /// Bytes that can be allocated after the next groups.
    pub deferred: u64,
}

/// A directory as of a group on the disks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectoryFacts {
    /// What bounds it.
    pub limits: DirectoryLimits,
    /// The directory above; 0 for the pool's root.
    pub parent: ObjectId,
    /// Its table of properties.
    pub properties: ObjectId,
}

/// A head as of a group on the disks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeadFacts {
    /// Its directory.
    pub directory: ObjectId,
    /// Bytes it refers to.
    pub referenced: u64,
    /// Bytes of it that no snapshot has.
    pub unique: u64,
}

/// What its properties say of a head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeadLimits {
    /// Most bytes it may refer to; 0 for any.
    pub refquota: u64,
    /// Bytes held back for it.
    pub refreservation: u64,
}

struct Directory {
    facts: DirectoryFacts,
    promised: Arc<Promised>,
}

struct Head {
    facts: HeadFacts,
    limits: HeadLimits,
    promised: Arc<Promised>,
    account: Arc<Account>,
    /// Its directory and those above, the pool's root last.
    chain: Vec<ObjectId>,
}

#[derive(Default)]
struct PromisesState {
    /// The newest group that was settled.
    settled: Txg,
    pool: PoolRoom,
    root: Arc<Promised>,
    directories: HashMap<ObjectId, Directory>,
    heads: HashMap<ObjectId, Head>,
    /// A head was closed: some of the directories may be used no more.
    closed: bool,
}

/// What a group left, of whatever changed in it.
#[derive(Debug, Default)]
pub struct Left {
    /// The pool.
    pub pool: PoolRoom,
    /// Directories.
    pub directories: Vec<(ObjectId, DirectoryFacts)>,
    /// Heads; their properties if those may have changed.
    pub heads: Vec<(ObjectId, HeadFacts, Option<HeadLimits>)>,
}

/// What a change asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// What its blocks can cost.
    pub cost: u64,
    /// What one of them can cost.
    pub block: u64,
    /// What for.
    pub purpose: Purpose,
}

/// Whether a change may begin.
#[derive(Debug)]
pub enum Answer {
    /// It may, and this is held for it.
    Granted(Reservation),
    /// When another group is on the disks, it may be.
    Wait,
    /// There is no room.
    Refused(Error),
}

/// What is promised in a pool.
#[derive(Default)]
pub struct Promises {
    state: Mutex<PromisesState>,
    /// Blocks of intent logs and what they place, by the group that records them.
    logs: Promised,
}

/// What stands in the way.
struct Obstacle {
    kind: ErrorKind,
    /// On the disks there is room: only what is promised stands in the way.
    is_promised: bool,
    /// Something may be given back.
    may_pass: bool,
}

impl Obstacle {
    fn of(kind: ErrorKind, (used, limit): (u64, u64), promised: u64) -> Self {
        Self { kind, is_promised: used < limit, may_pass: promised > 0 }
    }

    fn error(&self) -> Error {
        let reason = match self.kind {
            ErrorKind::Quota => "disk quota exceeded",
            _ => "no space left in the pool",
        };
        Error::new(self.kind, reason)
    }
}

impl PromisesState {
    /// The directory of `head` and those above, as far as they are known.
    fn chain(&self, first: ObjectId) -> Vec<ObjectId> {
        let (mut chain, mut at) = (Vec::new(), first);
        while at.0 != 0 && chain.len() <= DEPTH_MAX {
            chain.push(at);
            at = self.directories.get(&at).map_or(ObjectId(0), |found| found.facts.parent);
        }
        chain
    }

    fn set_chain(&mut self, id: ObjectId) {
        let Some(first) = self.heads.get(&id).map(|head| head.facts.directory) else { return };
        let chain = self.chain(first);
        let above: Vec<_> = chain
            .iter()
            .filter_map(|id| self.directories.get(id))
            .map(|directory| directory.promised.clone())
            .collect();
        let Some(head) = self.heads.get_mut(&id) else { return };
        if head.chain != chain {
            head.account.set_places(std::iter::once(head.promised.clone()).chain(above).collect());
            head.chain = chain;
        }
    }

    fn take(&mut self, left: Left) {
        self.pool = left.pool;
        let mut moved = false;
        for (id, facts) in left.directories {
            let fresh = || Directory { facts, promised: Arc::default() };
            let known = self.directories.entry(id).or_insert_with(fresh);
            moved |= known.facts.parent != facts.parent;
            known.facts = facts;
            if facts.parent.0 == 0 {
                self.root = known.promised.clone();
            }
        }
        let mut told = Vec::with_capacity(left.heads.len());
        for (id, facts, limits) in left.heads {
            if let Some(head) = self.heads.get_mut(&id) {
                head.facts = facts;
                head.limits = limits.unwrap_or(head.limits);
                told.push(id);
            }
        }
        if moved {
            told = self.heads.keys().copied().collect();
        }
        told.into_iter().for_each(|id| self.set_chain(id));
        if moved || std::mem::take(&mut self.closed) {
            let used: HashSet<ObjectId> =
                self.heads.values().flat_map(|head| head.chain.iter().copied()).collect();
            self.directories.retain(|id, known| known.facts.parent.0 == 0 || used.contains(id));
        }
    }

    /// What a group made heads refer to more was promised in it. Orders (a rollback, a clone that takes
    /// the place of its origin) promise nothing of what they move: after them nothing is known.
    fn assert_promised(&self, txg: Txg, left: &Left) {
        for (id, facts, limits) in &left.heads {
            let Some(head) = self.heads.get(id).filter(|head| !head.chain.is_empty()) else {
                continue;
            };
            let grown = facts.referenced.saturating_sub(head.facts.referenced);
            let promised = head.promised.of(txg);
            debug_assert!(
                limits.is_some() || grown <= promised,
                "dataset {} took {grown} bytes in group {txg}, {promised} were promised",
                id.0
            );
        }
    }

    /// What stands in the way of a change of a head.
    fn obstacle(&self, head: &Head, logs: u64, want: Want) -> Result<(), Obstacle> {
        let Want { cost, purpose, .. } = want;
        // A limit may be overrun by the last block.
        let most = cost.saturating_sub(want.block);
        let HeadFacts { referenced, unique, .. } = head.facts;
        let HeadLimits { refquota, refreservation } = head.limits;
        let on_its_way = head.promised.total();
        let quotas = matches!(purpose, Purpose::Grow | Purpose::Replace);
        let refers = referenced.saturating_add(most);
        if quotas && refquota != 0 && refers.saturating_add(on_its_way) >= refquota {
            return Err(Obstacle::of(ErrorKind::Quota, (refers, refquota), on_its_way));
        }
        // What is held back for the head is used already, as far as its directory goes.
        let own = unique.saturating_add(on_its_way);
        let growth = |from: u64, reserved: u64, bytes: u64| {
            from.saturating_add(bytes).max(reserved).saturating_sub(from.max(reserved))
        };
        let mut bytes = growth(own, refreservation, cost);
        let mut held = refreservation.saturating_sub(unique);
        for id in &head.chain {
            let Some(level) = self.directories.get(id) else { break };
            let promised = level.promised.total();
            let DirectoryLimits { used, quota, reserved } = level.facts.limits;
            let used = used.saturating_sub(std::mem::take(&mut held));
            let with = used.saturating_add(promised);
            let then = used.saturating_add(most.min(bytes));
            if quotas && quota != 0 && then.saturating_add(promised) >= quota {
                return Err(Obstacle::of(ErrorKind::Quota, (then, quota), promised));
            }
            let limit = match purpose {
                Purpose::Grow => self.pool.usable,
                Purpose::Replace => self.pool.usable.saturating_add(self.pool.slop >> 2),
                Purpose::Spare => self.pool.usable.saturating_add(self.pool.slop >> 1),
                Purpose::Replay => u64::MAX,
            };
            let is_root = level.facts.parent.0 == 0;
            if is_root && then.saturating_add(promised) >= limit && bytes > 0 {
                return Err(Obstacle::of(ErrorKind::NoSpace, (then, limit), promised));
            }
            bytes = growth(with, reserved, bytes);
            if bytes == 0 {
                break;
            }
        }
        // Whatever is reserved for whom: the bytes must be there.
        let promised = self.root.total().saturating_add(logs);
        let floor = self.floor(purpose).saturating_add(cost);
        if self.pool.free > floor.saturating_add(promised) {
            return Ok(());
        }
        let is_promised = self.pool.free > floor;
        let may_pass = promised > 0 || self.pool.deferred > 0;
        Err(Obstacle { kind: ErrorKind::NoSpace, is_promised, may_pass })
    }

    /// Free bytes that are left alone.
    fn floor(&self, purpose: Purpose) -> u64 {
        match purpose {
            Purpose::Grow => self.pool.slop >> GROW_LEAVES,
            Purpose::Replace => {
                (self.pool.slop >> SPARE_LEAVES) + (self.pool.slop >> REPLACE_LEAVES)
            }
            Purpose::Spare => self.pool.slop >> SPARE_LEAVES,
            Purpose::Replay => 0,
        }
    }

    /// What an intent log may still take: it leaves alone what promises need, and half of the
    /// reserve.
    fn for_logs(&self) -> u64 {
        let kept = (self.pool.slop >> GROW_LEAVES).saturating_add(self.root.total());
        self.pool.free.saturating_sub(kept)
    }
}

impl Promises {
    /// A head is open for writing with this account; [`Promises::tell`] has to say more of it.
    pub fn open(&self, id: ObjectId, account: Arc<Account>) {
        let mut state = self.state.lock();
        if let Some(head) = state.heads.get_mut(&id) {
            if !Arc::ptr_eq(&head.account, &account) {
                // Somebody else opened it at the same time: this is the one in use.
                head.account = account;
                head.chain.clear();
                state.set_chain(id);
            }
            return;
        }
        let head = Head {
            facts: HeadFacts::default(),
            limits: HeadLimits::default(),
            promised: Arc::default(),
            account,
            chain: Vec::new(),
        };
        state.heads.insert(id, head);
    }

    /// A head is not open any more.
    pub fn close(&self, id: ObjectId) {
        let mut state = self.state.lock();
        state.closed |= state.heads.remove(&id).is_some();
    }

    /// Which of the objects a group wrote are directories above open heads, and which open heads
    /// may have other facts or properties.
    pub fn concerned(&self, written: &BTreeSet<ObjectId>) -> (Vec<ObjectId>, Vec<ObjectId>) {
        let state = self.state.lock();
        let directories: Vec<ObjectId> =
            written.iter().filter(|id| state.directories.contains_key(id)).copied().collect();
        let written: HashSet<&ObjectId> = written.iter().collect();
        let is_concerned = |(id, head): &(&ObjectId, &Head)| {
            let directory = &head.facts.directory;
            let table = state.directories.get(directory).map(|known| known.facts.properties);
            written.contains(id)
                || written.contains(directory)
                || table.is_some_and(|table| written.contains(&table))
        };
        let heads = state.heads.iter().filter(is_concerned).map(|(id, _)| *id).collect();
        (directories, heads)
    }

    /// The newest group that was settled.
    pub fn settled(&self) -> Txg {
        self.state.lock().settled
    }

    /// Says what is known since `settled` was the newest group; false if it is not any more, and
    /// what is said may be outdated.
    pub fn tell(&self, settled: Txg, left: Left) -> bool {
        let mut state = self.state.lock();
        if state.settled != settled {
            return false;
        }
        state.take(left);
        true
    }

    /// Group `txg` is on the disks and left this.
    pub fn settle(&self, txg: Txg, left: Left) {
        let mut state = self.state.lock();
        if cfg!(debug_assertions) {
            state.assert_promised(txg, &left);
        }
        state.settled = txg;
        state.take(left);
        self.logs.settle(txg);
        state.heads.values().for_each(|head| head.promised.settle(txg));
        state.directories.values().for_each(|directory| directory.promised.settle(txg));
    }

    /// What `blocks` blocks of `size` bytes in a head can cost.
    pub fn want(&self, id: ObjectId, blocks: u64, size: u64, purpose: Purpose) -> Want {
        let state = self.state.lock();
        let costs = state.heads.get(&id).map(|head| head.account.costs());
        let block = costs.unwrap_or_default().block(size, false);
        Want { cost: block.saturating_mul(blocks), block, purpose }
    }

    /// Asks for room for a change of a head, after `waited` groups.
    pub fn ask(&self, id: ObjectId, want: Want, waited: u32) -> Answer {
        let state = self.state.lock();
        let Some(head) = state.heads.get(&id) else {
            return Answer::Granted(Reservation::none());
        };
        match state.obstacle(head, self.logs.total(), want) {
            Ok(()) => Answer::Granted(head.account.reserve(want.cost)),
            Err(it) if it.may_pass && waited < LAST_WAITS => Answer::Wait,
            Err(_) if want.purpose == Purpose::Replay => {
                Answer::Granted(head.account.reserve(want.cost))
            }
            Err(it) if it.may_pass && it.is_promised => Answer::Wait,
            Err(it) => Answer::Refused(it.error()),
        }
    }

    /// Whether more than half of what a quota leaves to a head is only promised: time for a group, so
    /// that it is known how much of it is used, as near a quota in OpenZFS.
    pub fn is_crowded(&self, id: ObjectId) -> bool {
        let state = self.state.lock();
        let Some(head) = state.heads.get(&id) else { return false };
        let crowds = |promised: u64, used: u64, quota: u64| {
            quota != 0 && promised > CROWD_LEAST && promised > quota.saturating_sub(used) >> 1
        };
        crowds(head.promised.total(), head.facts.referenced, head.limits.refquota)
            || head.chain.iter().filter_map(|id| state.directories.get(id)).any(|level| {
                let DirectoryLimits { used, quota, .. } = level.facts.limits;
                crowds(level.promised.total(), used, quota)
            })
    }

    /// Whether an order may make something that stays: it leaves as much as what replaces.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] if not.
    pub fn ask_order(&self) -> crate::Result<()> {
        let state = self.state.lock();
        let kept = state.floor(Purpose::Replace).saturating_add(state.root.total());
        if state.pool == PoolRoom::default() || state.pool.free > kept {
            return Ok(());
        }
        Err(Error::new(ErrorKind::NoSpace, "no space left in the pool"))
    }

    /// What bounds a head, as of the newest group on the disks.
    pub fn allowance(&self, id: ObjectId) -> Option<(Allowance, PoolRoom)> {
        let state = self.state.lock();
        let head = state.heads.get(&id)?;
        let levels = head.chain.iter().filter_map(|id| state.directories.get(id));
        let allowance = Allowance {
            directories: levels.map(|level| level.facts.limits).collect(),
            referenced: head.facts.referenced,
            refquota: head.limits.refquota,
            unique: head.facts.unique,
            refreservation: head.limits.refreservation,
        };
        Some((allowance, state.pool))
    }

    /// Whether an intent log may take `bytes` of ordinary devices now.
    pub fn may_log(&self, bytes: u64) -> bool {
        self.logs.total().saturating_add(bytes) <= self.state.lock().for_logs()
    }

    /// An intent log took `bytes` in group `txg`; whether that is to be written soon, so that what
    /// is not needed any more becomes free.
    pub fn logged(&self, txg: Txg, bytes: u64) -> bool {
        self.logs.add(txg, bytes);
        let share = self.state.lock().for_logs() >> LOG_SHARE;
        self.logs.of(txg) > share.max(LOG_LEAST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::txg::Costs;

    const HEAD: ObjectId = ObjectId(9);
    const BELOW: ObjectId = ObjectId(5);
    const ROOT: ObjectId = ObjectId(2);

    fn pool(free: u64) -> PoolRoom {
        PoolRoom { usable: 800, slop: 200, free, deferred: 0 }
    }

    fn directory(used: u64, quota: u64, reserved: u64, parent: ObjectId) -> DirectoryFacts {
        let properties = ObjectId(parent.0 + 100);
        DirectoryFacts { limits: DirectoryLimits { used, quota, reserved }, parent, properties }
    }

    fn left(root: DirectoryFacts, below: DirectoryFacts, pool: PoolRoom) -> Left {
        let unique = below.limits.used;
        let facts = HeadFacts { directory: BELOW, referenced: unique, unique };
        Left {
            pool,
            directories: vec![(ROOT, root), (BELOW, below)],
            heads: vec![(HEAD, facts, Some(HeadLimits::default()))],
        }
    }

    fn world(left: Left) -> (Promises, Arc<Account>) {
        let (promises, account) = (Promises::default(), Arc::new(Account::default()));
        account.set_costs(Costs { metadata_copies: 1, ..Costs::default() });
        promises.open(HEAD, account.clone());
        assert!(promises.tell(Txg(0), left) && !promises.tell(Txg(1), Left::default()));
        (promises, account)
    }

    fn asked(promises: &Promises, purpose: Purpose, waited: u32) -> &'static str {
        match promises.ask(HEAD, Want { cost: 10, block: 10, purpose }, waited) {
            Answer::Granted(_) => "granted",
            Answer::Wait => "wait",
            Answer::Refused(error) if error.kind() == ErrorKind::Quota => "quota",
            Answer::Refused(_) => "full",
        }
    }

    #[test]
    fn a_quota_counts_what_is_promised() {
        let facts =
            || left(directory(300, 0, 0, ObjectId(0)), directory(100, 150, 0, ROOT), pool(700));
        let (promises, account) = world(facts());
        assert_eq!(asked(&promises, Purpose::Grow, 0), "granted");
        account.promise(Txg(5), |_| 50);
        // It may take less than was promised, however long that takes to tell.
        assert_eq!(asked(&promises, Purpose::Grow, 0), "wait");
        assert_eq!(asked(&promises, Purpose::Grow, 99), "wait");
        assert_eq!(asked(&promises, Purpose::Spare, 0), "granted");
        promises.settle(Txg(5), facts());
        assert_eq!(asked(&promises, Purpose::Grow, 0), "granted");
        let full = left(directory(350, 0, 0, ObjectId(0)), directory(150, 150, 0, ROOT), pool(650));
        promises.settle(Txg(6), full);
        assert_eq!(asked(&promises, Purpose::Grow, 0), "quota");
        assert_eq!(asked(&promises, Purpose::Replace, 0), "quota");
        account.promise(Txg(7), |_| 1);
        assert_eq!(asked(&promises, Purpose::Grow, 0), "wait");
        assert_eq!(asked(&promises, Purpose::Grow, LAST_WAITS), "quota");
    }

    #[test]
    fn the_reserve_is_for_what_keeps_up() {
        let root = |used| directory(used, 0, 0, ObjectId(0));
        let (promises, account) = world(left(root(800), directory(700, 0, 0, ROOT), pool(200)));
        assert_eq!(asked(&promises, Purpose::Grow, 0), "full");
        assert_eq!(asked(&promises, Purpose::Replace, 0), "granted");
        // A snapshot may keep what was replaced: what frees can go on.
        account.promise(Txg(1), |_| 60);
        assert_eq!(asked(&promises, Purpose::Replace, 9), "wait");
        assert_eq!(asked(&promises, Purpose::Spare, 9), "granted");
        account.promise(Txg(1), |_| 40);
        assert_eq!(asked(&promises, Purpose::Spare, 9), "wait");
        assert_eq!(asked(&promises, Purpose::Replay, 9), "granted");
        // Space that was freed cannot be had before its time.
        let deferred = PoolRoom { deferred: 500, ..pool(100) };
        promises.settle(Txg(1), left(root(300), directory(200, 0, 0, ROOT), deferred));
        assert_eq!(asked(&promises, Purpose::Grow, 0), "wait");
        assert_eq!(asked(&promises, Purpose::Grow, LAST_WAITS), "full");
        // What is reserved below a full root is there.
        promises.settle(Txg(2), left(root(800), directory(100, 0, 300, ROOT), pool(400)));
        assert_eq!(asked(&promises, Purpose::Grow, 0), "granted");
    }

    #[test]
    fn a_group_is_wanted_when_a_quota_is_promised_to_half() {
        let root = directory(300 << 20, 0, 0, ObjectId(0));
        let room = PoolRoom { usable: 800 << 20, free: 500 << 20, ..PoolRoom::default() };
        let with = |quota: u64| left(root, directory(100 << 20, quota << 20, 0, ROOT), room);
        let (promises, account) = world(with(120));
        account.promise(Txg(1), |_| 9 << 20);
        assert!(!promises.is_crowded(HEAD));
        account.promise(Txg(1), |_| 2 << 20);
        assert!(promises.is_crowded(HEAD));
        promises.settle(Txg(1), with(120));
        assert!(!promises.is_crowded(HEAD));
        let (promises, account) = world(with(0));
        account.promise(Txg(1), |_| 400 << 20);
        assert!(!promises.is_crowded(HEAD));
    }

    #[test]
    fn logs_leave_promises_alone() {
        let root = directory(300, 0, 0, ObjectId(0));
        let pool = PoolRoom { usable: 80 << 20, slop: 20 << 20, free: 60 << 20, deferred: 0 };
        let (promises, account) = world(left(root, directory(100, 0, 0, ROOT), pool));
        assert!(promises.may_log(50 << 20) && !promises.may_log(51 << 20));
        account.promise(Txg(1), |_| 10 << 20);
        assert!(!promises.may_log(41 << 20));
        assert!(!promises.logged(Txg(1), 9 << 20) && promises.logged(Txg(1), 9 << 20));
        assert!(!promises.may_log(23 << 20));
    }
}
