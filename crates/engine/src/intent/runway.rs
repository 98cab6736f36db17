//! Space for log blocks that was written before.
//!
//! In a file, a block on space that never was written makes its flush wait for the filesystem below,
//! which commits where that space lies: 112 us instead of 65 on ext4. So zeros go ahead of the log, a
//! stretch at a time, once it has proved to be in use.
//! Invariant: zeros are written over nothing but space that is allocated for them in an open group,
//! which is given back in the same group: nothing of it is ever recorded, and nobody else has it
//! while they are on their way. Afterwards it is free space like any other.

use std::collections::BTreeMap;

use cenote_format::{Dva, Txg};
use parking_lot::Mutex;

use crate::alloc::{AllocRequest, Allocator};
use crate::pipe::zeros;
use crate::vdev::{AllocationClass, BlockWrite, VdevTree};

/// Bytes written ahead at once.
const STRETCH: u64 = 1 << 20;
/// Log blocks on other space before the first stretch, and after one that could not be had.
const PATIENCE: u32 = 16;

/// Where the next log blocks of a pool go.
#[derive(Debug, Default)]
pub struct Runway {
    state: Mutex<RunwayState>,
}

#[derive(Debug, Default)]
struct RunwayState {
    stretch: Option<Stretch>,
    /// Somebody writes the next stretch.
    preparing: bool,
    /// Blocks that went elsewhere since it was last tried.
    elsewhere: u32,
    /// What is written already, one range of each vdev: the log comes round again.
    written: BTreeMap<u32, (u64, u64)>,
}

#[derive(Clone, Copy, Debug)]
struct Stretch {
    vdev: u32,
    next: u64,
    end: u64,
}

impl Runway {
    /// Allocates a log block of `size` bytes on what was prepared; `None` if nothing is.
    pub(super) fn take(
        &self,
        allocator: &Allocator,
        vdevs: &VdevTree,
        size: u64,
        txg: Txg,
    ) -> Option<Dva> {
        let mut state = self.state.lock();
        let stretch = state.stretch.as_mut()?;
        let (vdev, offset) = (stretch.vdev, stretch.next);
        let asize = vdevs.asize(vdev, size, txg)?;
        stretch.next = offset.checked_add(asize)?;
        let dva = Dva { vdev, offset, asize, gang: false };
        if stretch.next <= stretch.end && allocator.allocate_for_log(&dva, txg).ok()? {
            return Some(dva);
        }
        state.stretch = None;
        None
    }

    /// A log block went elsewhere in group `txg`, which stays open meanwhile: prepares the next
    /// stretch if it is time and there are files that gain by it.
    pub(super) fn prepare(&self, allocator: &Allocator, vdevs: &VdevTree, txg: Txg) {
        {
            let mut state = self.state.lock();
            state.elsewhere = state.elsewhere.saturating_add(1);
            if state.preparing || state.stretch.is_some() || state.elsewhere < PATIENCE {
                return;
            }
            state.preparing = true;
        }
        let stretch = self.lay(allocator, vdevs, txg);
        let mut state = self.state.lock();
        state.preparing = false;
        if stretch.is_none() {
            state.elsewhere = 0;
        }
        state.stretch = stretch;
    }

    fn lay(&self, allocator: &Allocator, vdevs: &VdevTree, txg: Txg) -> Option<Stretch> {
        let class = AllocationClass::Log;
        let request = AllocRequest { class, ..AllocRequest::new(STRETCH, txg) };
        let dva = allocator.allocate_at_once(&request).ok()?.first().copied()?;
        let laid = is_on_files(vdevs, dva.vdev) && self.write(vdevs, &dva, txg);
        allocator.unalloc(&dva, txg).ok()?;
        let Dva { vdev, offset, asize, .. } = dva;
        laid.then_some(Stretch { vdev, next: offset, end: offset.checked_add(asize)? })
    }

    /// Writes zeros there unless that was done before.
    fn write(&self, vdevs: &VdevTree, dva: &Dva, txg: Txg) -> bool {
        let (from, to) = (dva.offset, dva.offset.saturating_add(dva.asize));
        let written = self.state.lock().written.get(&dva.vdev).copied();
        if written.is_some_and(|(first, last)| first <= from && to <= last) {
            return true;
        }
        let zeros = BlockWrite {
            sides: None,
            vdev: dva.vdev,
            offset: dva.offset,
            data: zeros(STRETCH),
            birth: txg,
        };
        if vdevs.write_batch(&[zeros]).iter().any(Result::is_err) {
            return false;
        }
        let joined = written.filter(|(first, last)| *first <= to && from <= *last);
        let range = joined.map_or((from, to), |(first, last)| (first.min(from), last.max(to)));
        self.state.lock().written.insert(dva.vdev, range);
        true
    }
}

/// Whether all devices of a top-level vdev are files.
fn is_on_files(vdevs: &VdevTree, vdev: u32) -> bool {
    let devices = vdevs.devices();
    let mut of_it = devices.iter().filter(|leaf| leaf.top == vdev).peekable();
    of_it.peek().is_some() && of_it.all(|leaf| leaf.device.is_file())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;

    use bytes::Bytes;
    use cenote_device::{Device, DeviceError};

    use super::*;
    use crate::alloc::tests::rig::{ALL, Rig, disk, tree_on};

    /// Remembers what was written where.
    #[derive(Debug)]
    struct Paper {
        is_file: bool,
        writes: Mutex<Vec<(u64, u64)>>,
    }

    impl Device for Paper {
        fn path(&self) -> PathBuf {
            "/paper".into()
        }
        fn size(&self) -> u64 {
            1 << 40
        }
        fn sector_size(&self) -> u32 {
            512
        }
        fn read(&self, _: u64, len: usize) -> Result<Bytes, DeviceError> {
            Ok(vec![0; len].into())
        }
        fn write(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
            assert!(data.iter().all(|byte| *byte == 0));
            self.writes.lock().push((offset, data.len() as u64));
            Ok(())
        }
        fn flush(&self) -> Result<(), DeviceError> {
            Ok(())
        }
        fn is_file(&self) -> bool {
            self.is_file
        }
    }

    struct World {
        rig: Rig,
        paper: Arc<Paper>,
        vdevs: Arc<VdevTree>,
        runway: Runway,
    }

    /// A pool of one device, and a log that has used as much other space as it takes.
    fn world(is_file: bool) -> World {
        let rig = Rig::new(ALL, &[disk(4 << 30)]);
        let paper = Arc::new(Paper { is_file, writes: Mutex::default() });
        let vdevs = tree_on(&rig.tops, paper.clone());
        let world = World { rig, paper, vdevs, runway: Runway::default() };
        world.wait();
        world
    }

    impl World {
        fn take(&self) -> Option<Dva> {
            self.runway.take(&self.rig.allocator, &self.vdevs, 8192, self.rig.txg)
        }
        fn wait(&self) {
            for _ in 0..PATIENCE {
                assert_eq!(self.take(), None);
                self.runway.prepare(&self.rig.allocator, &self.vdevs, self.rig.txg);
            }
        }
        fn writes(&self) -> Vec<(u64, u64)> {
            std::mem::take(&mut *self.paper.writes.lock())
        }
    }

    /// Where the address space of a vdev begins on its device.
    const START: u64 = 4 << 20;

    #[test]
    fn blocks_lie_one_after_the_other_on_what_was_written() {
        let mut world = world(true);
        let before = Rig::free_space(&world.rig.allocator);
        let [(start, STRETCH)] = world.writes()[..] else { panic!("one stretch") };
        for number in 0..STRETCH / 8192 {
            let dva = world.take().unwrap();
            assert_eq!((dva.vdev, dva.offset + START), (0, start + number * 8192));
        }
        assert_eq!((world.take(), world.writes()), (None, vec![]));
        // What was taken is recorded, and nothing else.
        world.rig.sync();
        let after = Rig::free_space(&world.rig.allocator);
        let count = |all: &[(u64, u64)]| all.iter().map(|(from, to)| to - from).sum::<u64>();
        assert_eq!(count(&before[&0]) - count(&after[&0]), STRETCH);
        // The next follows at once, and is written too.
        world.runway.prepare(&world.rig.allocator, &world.vdevs, world.rig.txg);
        assert_eq!(world.take().unwrap().offset + START, world.writes()[0].0);
    }

    #[test]
    fn what_was_written_once_is_not_written_again() {
        let mut world = world(true);
        let first = world.take().unwrap();
        world.rig.allocator.unalloc(&first, world.rig.txg).unwrap();
        world.runway.state.lock().stretch = None;
        world.rig.reopen();
        assert_eq!(world.writes().len(), 1);
        world.runway.prepare(&world.rig.allocator, &world.vdevs, world.rig.txg);
        assert_eq!((world.take(), world.writes()), (Some(first), vec![]));
    }

    #[test]
    fn space_that_others_took_or_may_not_be_used_ends_a_stretch() {
        let world = world(true);
        let first = world.take().unwrap();
        let next = Dva { offset: first.offset + first.asize, ..first };
        world.rig.allocator.claim(&next, world.rig.txg).unwrap();
        assert_eq!(world.take(), None);
        world.runway.prepare(&world.rig.allocator, &world.vdevs, world.rig.txg);
        world.take().unwrap();
        world.rig.allocator.set_passive(0, true);
        assert_eq!(world.take(), None);
    }

    #[test]
    fn disks_are_left_alone() {
        let world = world(false);
        world.wait();
        assert_eq!(world.writes(), []);
    }
}
