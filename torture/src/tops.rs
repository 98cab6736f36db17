//! Steps in which top-level vdevs that hold data leave, and come again.
//!
//! Invariant: whether a removal is under way, at its end or given up changes nothing of what the pool holds;
//! with all devices well one that is left to go on comes to its end.

use cenote_device::SimDevice;
use cenote_engine::pool::change::Additions;
use cenote_engine::vdev::AllocationClass;
use cenote_format::Guid;
use cenote_format::config::{TopLevel, VdevConfig, VdevKind};

use crate::disks::leaf;
use crate::random::bytes;
use crate::run::{Runner, Verdict};

/// Groups within which a small vdev is emptied.
const GROUPS: usize = 600;

fn is_leaving(top: &VdevConfig) -> bool {
    top.top.is_some_and(|facts| facts.removing == Some(1))
}

impl Runner {
    /// A top-level vdev begins to leave, or one that leaves goes on; then so many groups, and it comes to
    /// its end (`end` 0 or 1; 1: it is added again), is given up (2), or is left where it is.
    pub(crate) fn evacuate(&mut self, which: u8, groups: u8, end: u8, fill: u32) -> Verdict {
        if !self.is_evacuating() {
            let Some(guid) = self.removable(which) else { return self.pass() };
            let mark = self.model.mark();
            match self.live.remove_vdev(guid) {
                Ok(()) => {
                    self.model.acknowledge(&mark);
                    self.note_missed();
                }
                Err(error) => return self.declined(&error),
            }
        }
        for round in 0..u32::from(groups) {
            if !self.is_evacuating() {
                break;
            }
            self.stir(fill.wrapping_add(round))?;
        }
        match end {
            0 | 1 if self.troubles.is_empty() => self.emptied(end == 1),
            2 if self.is_evacuating() => {
                let mark = self.model.mark();
                match self.live.cancel_removal() {
                    Ok(()) => {
                        self.model.acknowledge(&mark);
                        self.note_missed();
                    }
                    Err(error) => return self.declined(&error),
                }
                match self.is_evacuating() {
                    true => Err("a removal that was given up goes on".into()),
                    false => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn is_evacuating(&self) -> bool {
        let vdevs = self.live.vdevs();
        let mut tops = vdevs.topology().tops().iter();
        tops.any(is_leaving)
    }

    fn removable(&self, which: u8) -> Option<Guid> {
        let vdevs = self.live.vdevs();
        let all = (0_u32..).zip(vdevs.topology().tops()).filter(|(id, top)| {
            let is_data = vdevs.class(*id) != AllocationClass::Log;
            is_data && matches!(top.kind, VdevKind::File | VdevKind::Mirror)
        });
        let all: Vec<Guid> = all.map(|(_, top)| top.guid).collect();
        all.get(usize::from(which) % all.len().max(1)).copied()
    }

    /// Something is written, and sometimes freed, while the vdev is emptied.
    fn stir(&mut self, fill: u32) -> Verdict {
        let set = self.set(0).1;
        if fill.is_multiple_of(3)
            && let Some((_, file)) = self.file(set, fill as u8)
        {
            self.write_at(set, file, 0, &bytes(30_000, fill, false))?;
        }
        self.group()
    }

    /// The removal comes to its end.
    fn emptied(&mut self, comes_again: bool) -> Verdict {
        for _ in 0..GROUPS {
            if !self.is_evacuating() {
                break;
            }
            self.group()?;
        }
        if self.is_evacuating() {
            let jobs = self.live.jobs();
            return Err(format!("after {GROUPS} groups a vdev is not emptied: {jobs:?}"));
        }
        self.group()?;
        self.clean_since = self.clean_since.max(SimDevice::newest_order());
        if comes_again { self.come_again() } else { Ok(()) }
    }

    /// Devices that have left become a vdev again.
    fn come_again(&mut self) -> Verdict {
        let width = match self.setup.layout.as_str() {
            "many" => 1,
            "pairs" => 2,
            _ => return Ok(()),
        };
        let vdevs = self.live.vdevs();
        let in_use: Vec<&String> =
            vdevs.topology().root().devices().filter_map(|leaf| leaf.path.as_ref()).collect();
        let all = self.disks.leaves();
        let free = all.chunks(width).find(|paths| paths.iter().all(|path| !in_use.contains(&path)));
        let Some(free) = free.map(<[String]>::to_vec) else { return Ok(()) };
        let facts = Some(TopLevel { ashift: self.setup.ashift, ..TopLevel::default() });
        let leaves: Vec<VdevConfig> = free.iter().map(|path| leaf(path.as_ref())).collect();
        let top = match leaves.first() {
            Some(only) if width == 1 => VdevConfig { top: facts, ..only.clone() },
            _ => VdevConfig {
                kind: VdevKind::Mirror,
                top: facts,
                children: Some(leaves),
                ..VdevConfig::default()
            },
        };
        let mut next = self.model.pool.newest().clone();
        next.tops.push(format!("again {free:?}"));
        let plan = Additions { tops: vec![(top, AllocationClass::Normal)], ..Additions::default() };
        let opener = self.disks.opener();
        let mark = self.begun(next);
        let answer = self.live.add_vdevs(plan, opener);
        self.answered(mark, answer).map(drop)
    }
}
