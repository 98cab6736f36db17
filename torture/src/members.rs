//! Steps in which devices come, take the place of others, leave, and rest.
//!
//! Invariant: the devices a pool has after such a step are those it had before, unless a cut goes back into
//! its middle; whatever was there when it ended is asked for in every copy.

use cenote_device::{Device, SimDevice};
use cenote_engine::Result;
use cenote_engine::pool::change::Newcomer;
use cenote_engine::pool::group::{ScanKind, ScanOrder, SweepKind, SweepOrder};
use cenote_engine::vdev::{Aux, VdevState};
use cenote_format::Guid;
use cenote_format::config::VdevKind;

use crate::disks::{NEWCOMER, WIDER, leaf, settle};
use crate::random::bytes;
use crate::run::{Runner, Verdict};

/// Bytes by which disks grow: more than a metaslab of any of these pools.
const GROWTH: u64 = 96 << 20;
/// Groups within which a resilver of a small pool ends.
const GROUPS: usize = 80;
/// Groups within which the blocks of a small RAID-Z are spread over one device more.
const SPREAD: usize = 1_200;

/// The disk at `path` as one more half of a mirror, one of three in the order of the disks.
pub(crate) fn another_half(beside: Guid, path: &str, fill: u32) -> Newcomer {
    Newcomer {
        beside,
        leaf: leaf(path.as_ref()),
        replaces: false,
        goes_back: false,
        sequential: fill.is_multiple_of(3),
    }
}

impl Runner {
    /// Lets one leaf rest or count as faulty, be replaced and come back, be overwritten, have another beside it, be
    /// initialized or trimmed; or all disks grow, or a RAID-Z is spread over one more.
    pub(crate) fn members(&mut self, what: u8, which: u8, fill: u32) -> Verdict {
        let are_well = self.are_well()?;
        let Some((path, kind)) = self.member(which).filter(|_| are_well) else {
            return self.pass();
        };
        if !self.spare_leaves()? {
            return Ok(());
        }
        let done = match what % 6 {
            0 => self.rests(&path, what > 127, fill)?,
            3 => self.is_faulted(&path, what > 127, fill)?,
            4 => return self.grows(fill),
            5 => return self.swept(&path, what, fill),
            // What is damaged everywhere counts as missing as long as a device is away that might have it.
            1 if what > 127 && self.model.damaged.is_empty() => {
                self.is_overwritten(&path, what > 191, fill)?
            }
            1 => {
                self.change_places(&path, NEWCOMER, fill)?
                    && self.change_places(NEWCOMER, &path, fill)?
            }
            _ if kind == VdevKind::Mirror => self.third(&path, fill)?,
            _ if kind == VdevKind::Raidz => return self.spreads(&path, what > 127, fill),
            _ => return self.pass(),
        };
        if done {
            self.note_whole();
        }
        Ok(())
    }

    /// Every copy is right, and no leaf lacks anything, from now on.
    pub(crate) fn note_whole(&mut self) {
        self.clean_since = SimDevice::newest_order();
        self.whole_since = self.clean_since;
    }

    /// No device lacks anything, and any can be done without.
    pub(crate) fn are_well(&self) -> Verdict<bool> {
        // As long as there is a checkpoint, no device is said to have what it missed.
        let space = self.live.pool().space().map_err(|error| error.to_string())?;
        let ails = !self.troubles.is_empty() || self.rotten || self.rotten_labels;
        Ok(space.checkpoint.is_none() && !ails && self.live.vdevs().missed().is_empty())
    }

    /// A leaf below a vdev that makes up for its loss, and the kind of that.
    pub(crate) fn member(&self, which: u8) -> Option<(String, VdevKind)> {
        let vdevs = self.live.vdevs();
        let leaves = vdevs.topology().tops().iter().flat_map(|top| {
            top.devices()
                .filter(|leaf| leaf.guid != top.guid)
                .map(|leaf| (leaf.path.clone(), top.kind))
        });
        let all: Vec<_> = leaves.collect();
        let (path, kind) = all.get(usize::from(which) % all.len().max(1))?.clone();
        path.filter(|path| path != NEWCOMER).map(|path| (path, kind))
    }

    /// A leaf has left together with the vdev it belonged to, which was being emptied.
    fn has_left(&self, leaf: Guid) -> bool {
        self.live.vdevs().topology().find(leaf).is_none()
    }

    pub(crate) fn guid_of(&self, path: &str) -> Guid {
        let vdevs = self.live.vdevs();
        let mut leaves = vdevs.topology().root().devices();
        let own = leaves.find(|leaf| leaf.path.as_deref() == Some(path));
        own.map_or(Guid(0), |leaf| leaf.guid)
    }

    /// What an order about devices came to: true if it was done.
    pub(crate) fn ordered(&mut self, order: impl FnOnce(&Self) -> Result<()>) -> Verdict<bool> {
        let mark = self.model.mark();
        match order(self) {
            Ok(()) => {
                self.model.acknowledge(&mark);
                self.note_missed();
                Ok(true)
            }
            Err(error) => self.declined(&error).map(|()| false),
        }
    }

    fn rests(&mut self, path: &str, temporary: bool, fill: u32) -> Verdict<bool> {
        let leaf = self.guid_of(path);
        if !self.ordered(|runner| runner.live.offline(leaf, temporary))? {
            return Ok(false);
        }
        self.touch(fill)?;
        let woken = self.ordered(|runner| runner.live.online(leaf).map(drop))?;
        if !woken && !self.has_left(leaf) {
            return Err("a device does not wake".into());
        }
        self.made_whole()?;
        Ok(true)
    }

    /// The disk of the leaf is overwritten as a whole while the pool has it open. Who looks, or scrubs, finds out, and
    /// another one takes its place.
    fn is_overwritten(&mut self, path: &str, scrubs: bool, fill: u32) -> Verdict<bool> {
        // Of those that are a new pool's nobody knows what to look for.
        self.export()?;
        let (leaf, disk) = (self.guid_of(path), self.disks.at(path).cloned());
        let Some(disk) = disk.filter(|_| leaf != Guid(0)) else { return Ok(false) };
        self.tally.faults += 1;
        (self.rotten, self.rotten_labels) = (true, true);
        for (at, piece) in disk.written() {
            disk.write(at, &vec![0; piece.len()]).map_err(|error| error.to_string())?;
        }
        disk.flush().map_err(|error| error.to_string())?;
        let looks = |runner: &Self| match scrubs {
            true => runner.live.scan(ScanOrder::Begin(ScanKind::Scrub)),
            false => runner.live.look_again(),
        };
        if !self.ordered(looks)? && self.has_left(leaf) {
            return Ok(false);
        }
        let status = self.live.vdevs().status();
        let own = status.as_ref().and_then(|root| root.find(leaf)).map(|own| own.condition.aux);
        if own != Some(Aux::BadLabel) {
            return Err(format!("{path} was overwritten, and is not left out: {own:?}"));
        }
        self.touch(fill)?;
        let is_back = self.change_places(path, NEWCOMER, fill)?
            && self.change_places(NEWCOMER, path, fill)?;
        // What did not come back is away for the rest of the plan.
        (self.rotten, self.rotten_labels) = (!is_back, !is_back);
        Ok(is_back)
    }

    /// The leaf is said to be faulty, and trusted again.
    fn is_faulted(&mut self, path: &str, temporary: bool, fill: u32) -> Verdict<bool> {
        let leaf = self.guid_of(path);
        if !self.ordered(|runner| runner.live.fault(leaf, temporary))? {
            return Ok(false);
        }
        self.touch(fill)?;
        if self.has_left(leaf) {
            return Ok(true);
        }
        let status = self.live.vdevs().status();
        let own = status.as_ref().and_then(|root| root.find(leaf));
        if own.is_none_or(|own| own.condition.state == VdevState::Online) {
            return Err(format!("{path} was said to be faulty, and is online"));
        }
        if !self.ordered(|runner| runner.live.trust(Some(leaf)))? {
            return Err("a device is not trusted again".into());
        }
        self.made_whole()?;
        Ok(true)
    }

    /// A cut went back to where a leaf rested or counted as faulty, which it does until it is told otherwise.
    /// Others could not ail meanwhile.
    pub(crate) fn wake(&mut self) -> Verdict {
        let status = self.live.vdevs().status().filter(|_| self.troubles.is_empty());
        let Some(status) = status else { return Ok(()) };
        let leaves: Vec<Guid> =
            self.live.vdevs().topology().root().devices().map(|leaf| leaf.guid).collect();
        let mut woken = false;
        for leaf in leaves {
            woken |= match status.find(leaf).map(|own| own.condition.state) {
                Some(VdevState::Offline) => {
                    self.ordered(|runner| runner.live.online(leaf).map(drop))?
                }
                Some(VdevState::Faulted) => self.ordered(|runner| runner.live.trust(Some(leaf)))?,
                _ => false,
            };
        }
        if woken {
            self.made_whole()?;
        }
        // So did those that had become a pool of their own.
        if self.mirrors_again(0)? || woken {
            self.note_whole();
        }
        Ok(())
    }

    /// The disks have become larger, and the pool with them.
    fn grows(&mut self, fill: u32) -> Verdict {
        let bytes = |runner: &Self| -> u64 {
            runner.live.allocator().figures().tops.iter().map(|top| top.size).sum()
        };
        // A vdev that holds a leaf with too many errors does not grow, nor one that is being spread.
        let vdevs = self.live.vdevs();
        let status = vdevs.status();
        let may = status.is_some_and(|root| root.condition.state == VdevState::Online)
            && vdevs.expanding().is_none();
        let before = bytes(self);
        self.disks.grow(GROWTH);
        if !self.ordered(|runner| runner.live.grow(None))? {
            return Ok(());
        }
        if may && bytes(self) <= before {
            return Err(format!("all disks grew, and the pool still has {before} bytes"));
        }
        // What may be promised is known with the next group, which was asked for.
        settle(&self.live);
        self.touch(fill)
    }

    /// The free space of the leaf is overwritten, or given up; it may be left in the middle.
    fn swept(&mut self, path: &str, what: u8, fill: u32) -> Verdict {
        let leaf = self.guid_of(path);
        let kind = if what & 64 == 0 { SweepKind::Initialize } else { SweepKind::Trim };
        let begin = SweepOrder::Begin { rate: None };
        if !self.ordered(|runner| runner.live.sweep(leaf, kind, begin))? {
            return Ok(());
        }
        self.touch(fill)?;
        if what > 127 && self.live.is_sweeping() {
            self.ordered(|runner| runner.live.sweep(leaf, kind, SweepOrder::Suspend))?;
            self.touch(fill.wrapping_add(1))?;
            self.ordered(|runner| runner.live.sweep(leaf, kind, begin))?;
        }
        for _ in 0..GROUPS {
            if !self.live.is_sweeping() {
                return Ok(());
            }
            self.group()?;
        }
        Err(format!("after {GROUPS} groups {path} is not done"))
    }

    pub(crate) fn change_places(&mut self, old: &str, new: &str, fill: u32) -> Verdict<bool> {
        let newcomer = Newcomer {
            beside: self.guid_of(old),
            leaf: leaf(new.as_ref()),
            replaces: true,
            goes_back: false,
            // One of three in the order of the disks.
            sequential: fill.is_multiple_of(3),
        };
        let opener = self.disks.opener();
        if !self.ordered(|runner| runner.live.take_in(newcomer, opener))? {
            return Ok(false);
        }
        self.touch(fill)?;
        self.made_whole()?;
        match self.guid_of(old) {
            Guid(0) => Ok(true),
            _ => Err(format!("{old} was replaced, and stays")),
        }
    }

    /// One more half of a mirror comes and leaves.
    fn third(&mut self, path: &str, fill: u32) -> Verdict<bool> {
        let newcomer = another_half(self.guid_of(path), NEWCOMER, fill);
        let opener = self.disks.opener();
        if !self.ordered(|runner| runner.live.take_in(newcomer, opener))? {
            return Ok(false);
        }
        self.touch(fill)?;
        self.made_whole()?;
        let new = self.guid_of(NEWCOMER);
        self.ordered(|runner| runner.live.let_go(new))
    }

    /// The RAID-Z that a leaf belongs to is spread over one device more; it may be left in the middle.
    fn spreads(&mut self, path: &str, is_left: bool, fill: u32) -> Verdict {
        if !self
            .live
            .vdevs()
            .topology()
            .root()
            .devices()
            .any(|own| own.path.as_deref() == Some(WIDER))
        {
            let own = self.guid_of(path);
            let vdevs = self.live.vdevs();
            let mut tops = vdevs.topology().tops().iter();
            let top = tops.find(|top| top.devices().any(|leaf| leaf.guid == own));
            let newcomer = Newcomer {
                beside: top.map_or(Guid(0), |top| top.guid),
                leaf: leaf(WIDER.as_ref()),
                replaces: false,
                goes_back: false,
                sequential: false,
            };
            let opener = self.disks.opener();
            if !self.ordered(|runner| runner.live.take_in(newcomer, opener))? {
                return Ok(());
            }
        }
        let groups = if is_left { fill as usize % 40 } else { SPREAD };
        for round in 0..groups {
            if self.live.vdevs().expanding().is_none() {
                return Ok(());
            }
            self.touch(fill.wrapping_add(round as u32))?;
        }
        match is_left {
            true => Ok(()),
            false => Err(format!("after {SPREAD} groups it is not spread: {:?}", self.live.jobs())),
        }
    }

    /// Something is written while not all devices have everything.
    pub(crate) fn touch(&mut self, fill: u32) -> Verdict {
        let set = self.set(0).1;
        if let Some((_, file)) = self.file(set, fill as u8) {
            self.write_at(set, file, 0, &bytes(30_000, fill, false))?;
        }
        self.group()
    }

    /// Waits until all devices have everything, and those that were replaced have left.
    pub(crate) fn made_whole(&mut self) -> Verdict {
        self.ordered(|runner| runner.live.scan(ScanOrder::Begin(ScanKind::Resilver)))?;
        self.resilver_until("devices still miss something", |runner| {
            runner.live.let_replaced_go();
            let vdevs = runner.live.vdevs();
            Ok(vdevs.missed().is_empty() && vdevs.replaced().is_none())
        })
    }

    /// Has devices get what they missed until that is so; `otherwise` says what is wrong if it never is.
    pub(crate) fn resilver_until(
        &mut self,
        otherwise: &str,
        is_so: impl Fn(&Self) -> Verdict<bool>,
    ) -> Verdict {
        for _ in 0..GROUPS {
            if is_so(self)? {
                return Ok(());
            }
            if self.live.is_scanning().is_none() {
                self.ordered(|runner| runner.live.scan(ScanOrder::Begin(ScanKind::Resilver)))?;
            }
            self.group()?;
        }
        let missed = self.live.vdevs().missed();
        Err(format!("after {GROUPS} groups {otherwise}: {missed:?}"))
    }
}
