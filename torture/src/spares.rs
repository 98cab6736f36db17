//! Steps in which a hot spare stands in for a device.
//!
//! Invariant: when such a step has ended no spare stands in, and the device it stood in for has its place again,
//! unless a cut goes back into its middle.

use cenote_engine::ErrorKind;
use cenote_engine::pool::change::{Additions, Newcomer};
use cenote_format::Guid;
use cenote_format::config::{VdevConfig, VdevKind};

use crate::disks::{NEWCOMER, leaf};
use crate::run::{Runner, Verdict};

/// The guid of the hot spare that is a disk.
const SPARE: Guid = Guid(0x5_ba2e_5ba2_e000);

impl Runner {
    /// A leaf rests, and a hot spare stands in for it, a distributed one where there is one. Then the leaf comes
    /// back, and the spare goes back by itself; or the leaf leaves for good (`stays`) and replaces the spare.
    pub(crate) fn spared(&mut self, which: u8, stays: bool, fill: u32) -> Verdict {
        // What is damaged everywhere counts as missing as long as a device rests that might have it.
        let may = self.are_well()? && self.model.damaged.is_empty();
        let Some((path, kind)) = self.member(which).filter(|_| may) else { return self.pass() };
        let own = self.guid_of(&path);
        if !self.spare_leaves()? {
            return Ok(());
        }
        let Some(spare) = self.spare_for(own, kind)? else { return Ok(()) };
        if !self.ordered(|runner| runner.live.offline(own, false))? {
            return Ok(());
        }
        self.touch(fill)?;
        let newcomer = Newcomer {
            beside: own,
            leaf: spare,
            replaces: true,
            goes_back: true,
            // One of three in the order of the disks.
            sequential: fill.is_multiple_of(3),
        };
        let opener = self.disks.opener();
        if !self.ordered(|runner| runner.live.take_in(newcomer, opener))? {
            return self.wake();
        }
        self.touch(fill.wrapping_add(1))?;
        self.spare_has_all()?;
        self.touch(fill.wrapping_add(2))?;
        if stays && kind != VdevKind::Draid {
            if !self.ordered(|runner| runner.live.let_go(own))? {
                return Err(format!("{path}, which a spare stands in for, does not leave"));
            }
            self.change_places(NEWCOMER, &path, fill)?;
        } else {
            if let Some(second) = self.second_stands_in(own, fill)? {
                self.ordered(|runner| runner.live.online(second).map(drop))?;
            }
            if !self.ordered(|runner| runner.live.online(own).map(drop))? {
                return Err(format!("{path}, which a spare stands in for, does not wake"));
            }
            self.made_whole()?;
            if let Some(spare) = self.standing_in() {
                return Err(format!("{path} is back, and spare {} stands in for it", spare.0));
            }
        }
        self.spare_leaves()?;
        self.note_whole();
        Ok(())
    }

    /// The spare that may stand in for a leaf below a vdev of this kind; a disk becomes one if it has to. None if
    /// that is refused.
    fn spare_for(&mut self, own: Guid, kind: VdevKind) -> Verdict<Option<VdevConfig>> {
        if kind == VdevKind::Draid {
            return Ok(Some(self.distributed_spare(own, 0)));
        }
        let spare = VdevConfig { guid: SPARE, ..leaf(NEWCOMER.as_ref()) };
        let plan = Additions { spares: vec![spare.clone()], ..Additions::default() };
        let opener = self.disks.opener();
        let added = self.ordered(|runner| runner.live.add_vdevs(plan, opener))?;
        Ok(added.then_some(spare))
    }

    fn distributed_spare(&self, own: Guid, number: u64) -> VdevConfig {
        let vdevs = self.live.vdevs();
        let topology = vdevs.topology();
        let id = topology.top_of(own).unwrap_or(0);
        let parity = topology.top(id).and_then(|top| top.nparity).unwrap_or(1);
        let path = Some(format!("draid{parity}-{id}-{number}"));
        let placeholder = VdevConfig::placeholder(VdevKind::DistributedSpare, 0);
        VdevConfig { path, ..placeholder }
    }

    /// Where a dRAID has two spares, one more leaf rests, and the second stands in for it: what the first holds lies in
    /// part on that leaf. Which one it is.
    fn second_stands_in(&mut self, first: Guid, fill: u32) -> Verdict<Option<Guid>> {
        let others: Vec<Guid> = {
            let vdevs = self.live.vdevs();
            let topology = vdevs.topology();
            let top = topology.top_of(first).and_then(|id| topology.top(id));
            let top = top.filter(|top| top.draid.as_ref().is_some_and(|draid| draid.spares > 1));
            let leaves = top.into_iter().flat_map(|top| top.devices());
            leaves.map(|leaf| leaf.guid).filter(|leaf| *leaf != first).collect()
        };
        let Some(&second) = others.get(fill as usize % others.len().max(1)) else {
            return Ok(None);
        };
        if !self.ordered(|runner| runner.live.offline(second, false))? {
            return Ok(None);
        }
        self.touch(fill.wrapping_add(3))?;
        let newcomer = Newcomer {
            beside: second,
            leaf: self.distributed_spare(second, 1),
            replaces: true,
            goes_back: true,
            sequential: fill.is_multiple_of(2),
        };
        let opener = self.disks.opener();
        if self.ordered(|runner| runner.live.take_in(newcomer, opener))? {
            self.touch(fill.wrapping_add(4))?;
            self.resilver_until("one of two spares still misses something", |runner| {
                let missed = runner.live.vdevs().missed();
                Ok(missed.iter().all(|(lacks, _)| [first, second].contains(lacks)))
            })?;
        }
        Ok(Some(second))
    }

    /// The spare that stands in for another.
    fn standing_in(&self) -> Option<Guid> {
        let vdevs = self.live.vdevs();
        let stands = vdevs.topology().root().walk().find(|node| node.kind == VdevKind::Spare)?;
        stands.children().last().map(|spare| spare.guid)
    }

    /// Waits until the spare that stands in has everything.
    fn spare_has_all(&mut self) -> Verdict {
        self.resilver_until("the spare still misses something", |runner| {
            let Some(spare) = runner.standing_in() else {
                return Err("the spare has left before its time".into());
            };
            Ok(runner.live.vdevs().missed().iter().all(|(lacks, _)| *lacks != spare))
        })
    }

    /// A cut may have gone back to where a spare stood in, or was there. Whether there is none any more.
    pub(crate) fn spare_leaves(&mut self) -> Verdict<bool> {
        while let Some(spare) = self.standing_in() {
            if !self.ordered(|runner| runner.live.let_go(spare))? {
                return Ok(false);
            }
        }
        // One that took a place for good is a spare no more.
        let mark = self.model.mark();
        match self.live.remove_vdev(SPARE) {
            Ok(()) => {
                self.model.acknowledge(&mark);
                self.note_missed();
            }
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Unsupported) => {}
            Err(error) => return self.declined(&error).map(|()| false),
        }
        Ok(true)
    }
}
