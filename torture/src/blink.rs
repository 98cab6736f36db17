//! Devices that fail, beyond the redundancy too, only while a pool is opened and its logs are replayed.
//!
//! Invariant: a read that fails is the end of nothing: whatever becomes of such an import, what was acknowledged is
//! there when the devices are well again.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use cenote_device::{Bytes, Device, DeviceError, SimDevice};
use cenote_engine::ErrorKind;
use cenote_engine::pool::discover::{Candidate, Opener};

use crate::disks::{Disks, open_with, settle};
use crate::judge::Seen;
use crate::run::{Runner, Verdict, load_key};

/// EIO.
const EIO: i32 = 5;

/// Disks of which some reads fail: so many in a row, after so many.
#[derive(Clone)]
struct Blinking {
    disks: Disks,
    reads: Arc<AtomicU64>,
    failing: std::ops::Range<u64>,
}

impl Opener for Blinking {
    fn candidates(&self, place: &Path) -> Result<Vec<Candidate>, DeviceError> {
        self.disks.candidates(place)
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn Device>, DeviceError> {
        let disk = self.disks.disk(path)?;
        Ok(Arc::new(BlinkingDisk { disk, of: self.clone() }))
    }
}

struct BlinkingDisk {
    disk: Arc<SimDevice>,
    of: Blinking,
}

impl std::fmt::Debug for BlinkingDisk {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.disk.fmt(formatter)
    }
}

impl Device for BlinkingDisk {
    fn path(&self) -> PathBuf {
        self.disk.path()
    }

    fn size(&self) -> u64 {
        self.disk.size()
    }

    fn measure(&self) -> u64 {
        self.disk.measure()
    }

    fn sector_size(&self) -> u32 {
        self.disk.sector_size()
    }

    fn read(&self, offset: u64, len: usize) -> Result<Bytes, DeviceError> {
        let number = self.of.reads.fetch_add(1, SeqCst);
        if self.of.failing.contains(&number) {
            return Err(std::io::Error::from_raw_os_error(EIO).into());
        }
        self.disk.read(offset, len)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.disk.write(offset, data)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.disk.flush()
    }
}

impl Runner {
    /// The process dies, and `reads` reads fail while the pool is opened and mounted, after `skip` of them.
    pub(crate) fn blink(&mut self, skip: u16, reads: u16) -> Verdict {
        self.tally.cuts += 1;
        self.tally.faults += 1;
        let left = self.disks.copy();
        let attempt = left.copy();
        attempt.ail(&self.troubles);
        self.open_blinking(&attempt, skip, reads)?;
        let judge = self.judge(attempt, u64::MAX);
        judge.disks.ail(&self.troubles);
        judge.judge().map_err(|reason| format!("after devices failed in an import: {reason}"))?;
        self.end_life(left, u64::MAX, 0)
    }

    fn open_blinking(&self, disks: &Disks, skip: u16, reads: u16) -> Verdict {
        let found = disks.candidate().map_err(|error| error.to_string())?;
        let failing = u64::from(skip)..u64::from(skip) + u64::from(reads);
        let devices = Blinking { disks: disks.clone(), reads: Arc::default(), failing };
        let live = match open_with(&found, Arc::new(devices)) {
            Ok(live) => live,
            Err(error) if error.kind() == ErrorKind::Bug => return Err(error.to_string()),
            Err(_) => return Ok(()),
        };
        // What does not work now works later.
        if load_key(&live, &self.setup).is_ok()
            && let Ok(seen) = Seen::of(live.pool())
        {
            for name in seen.filesystems {
                let dataset = live.pool().catalog().dataset_named(&name);
                drop(dataset.map(|dataset| cenote_posix::live::open(&live, &dataset, false)));
                settle(&live);
            }
        }
        let _ = live.sync();
        live.abandon();
        Ok(())
    }
}
