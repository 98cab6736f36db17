//! Pools that more than one process wrote: one after the other, or apart from each other.
//!
//! Invariant: the state that is opened holds everything any process had written, or none is opened.

use std::path::Path;
use std::sync::Arc;

use cenote_device::{Device, DeviceError};
use cenote_engine::ErrorKind;
use cenote_engine::pool::OpenOptions;
use cenote_engine::pool::assemble::assemble;
use cenote_engine::pool::discover::{Candidate, Opener, ScanOptions, scan};
use cenote_engine::pool::live::{LivePool, WriteOptions};
use cenote_format::config::VdevKind;
use parking_lot::Mutex;

use super::suspended::{Disks, object};
use super::{census, noise};

/// Whose devices are to be had only after another process has written on and ended.
struct Waiting {
    disks: Disks,
    other: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Opener for Waiting {
    fn candidates(&self, place: &Path) -> Result<Vec<Candidate>, DeviceError> {
        self.disks.candidates(place)
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn Device>, DeviceError> {
        if let Some(other) = self.other.lock().take() {
            other();
        }
        self.disks.open(path)
    }
}

#[test]
fn what_was_written_while_the_devices_were_waited_for_is_seen() {
    let (disks, live) = Disks::create(VdevKind::Mirror, 2);
    let object = object(&live);
    live.sync().unwrap();
    let opener: Arc<dyn Opener> = Arc::new(disks.clone());
    let found = assemble(&scan(&opener, &ScanOptions::new(vec!["/sim".into()])));
    let writes_on = move || {
        for seed in 0..3 {
            object.write(&live.begin().unwrap(), seed << 17, &noise(1 << 17, seed)).unwrap();
            live.sync().unwrap();
        }
        // As when it is killed: not exported.
        live.close().unwrap();
    };
    let waiting = Waiting { disks: disks.clone(), other: Mutex::new(Some(Box::new(writes_on))) };
    let options = OpenOptions { devices: Some(Arc::new(waiting)), ..OpenOptions::default() };
    let write = WriteOptions::default();
    let error = LivePool::open(&found[0], &options, write).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Outdated, "{error}");
    let again = disks.reopen();
    assert!(again.pool().gone_back().is_none());
    again.export().unwrap();
    census(again.pool());
}
