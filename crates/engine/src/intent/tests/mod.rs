//! The log over a disk in memory that can be stopped after any write.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, OnceLock, Weak};

use bytes::Bytes;
use cenote_codec::checksum::{Algorithm, Width, verify_embedded};
use cenote_format::blkptr::Dva;
use cenote_format::zil::{Header, Payload, Record};
use cenote_format::{BlockPointer, Txg};
use parking_lot::Mutex;

use super::walk::Met;
use super::*;
use crate::object::DirtyBlocks;
use crate::txg::Tx;
use crate::vdev::BlockWrite;
use crate::{Error, ErrorKind, Result};

mod blocks;
mod commits;
mod crashes;

const OBJSET: u64 = 0x84;

/// What reached the disk, in order.
#[derive(Clone)]
enum Event {
    Write {
        batch: u64,
        offset: u64,
        data: Bytes,
    },
    Synced {
        txg: Txg,
        header: Header,
    },
    /// Records up to this one were acknowledged.
    Acked(u64),
}

/// A pool in memory whose groups are written when somebody waits for them.
#[derive(Default)]
struct World {
    inner: Mutex<Inner>,
    log: OnceLock<Weak<IntentLog>>,
}

#[derive(Default)]
struct Inner {
    synced: u64,
    next: u64,
    free: Vec<(u64, u64)>,
    events: Vec<Event>,
    batches: u64,
    /// Allocations left before there is no space; none means there is always.
    room: Option<u64>,
    /// Writes that fail.
    failing: u64,
    /// Who waits next is told that nobody wants it any more.
    interrupts: bool,
    /// Bytes of parity per block, to look like raidz.
    parity: u64,
}

impl World {
    fn start(synced: u64, header: Header) -> (Arc<Self>, Arc<IntentLog>) {
        let world = Arc::new(Self::default());
        world.inner.lock().synced = synced;
        world.inner.lock().next = 1 << 20;
        let log = Arc::new(IntentLog::new(world.clone(), OBJSET, header, None));
        world.log.set(Arc::downgrade(&log)).unwrap();
        (world, log)
    }

    /// Writes the open group.
    fn sync(&self) {
        let log = self.log.get().and_then(Weak::upgrade).unwrap();
        let txg = Txg(self.inner.lock().synced + 1);
        let change = log.sync(txg).unwrap();
        let header = Header::decode(&change.header).unwrap();
        let mut inner = self.inner.lock();
        for pointer in change.freed {
            let dva = pointer.first_dva().unwrap();
            assert!(!inner.free.iter().any(|(offset, _)| *offset == dva.offset), "freed twice");
            inner.free.push((dva.offset, dva.asize));
        }
        inner.synced = txg.0;
        inner.events.push(Event::Synced { txg, header });
        drop(inner);
        log.synced(txg);
    }
}

impl LogPool for World {
    fn begin(&self) -> Result<Tx> {
        Ok(Tx::detached(Txg(self.inner.lock().synced + 1)))
    }
    fn synced(&self) -> Txg {
        Txg(self.inner.lock().synced)
    }
    fn wait_synced(&self, txg: Txg) -> Result<()> {
        if std::mem::take(&mut self.inner.lock().interrupts) {
            return Err(Error::new(ErrorKind::Interrupted, "killed"));
        }
        while self.synced() < txg {
            self.sync();
        }
        Ok(())
    }
    fn allocate(&self, _tx: &Tx, size: u64) -> Result<Dva> {
        let mut inner = self.inner.lock();
        if let Some(room) = &mut inner.room {
            *room = room.checked_sub(1).ok_or_else(|| Error::new(ErrorKind::NoSpace, "full"))?;
        }
        let asize = size + inner.parity;
        // What was freed is used again at once.
        let at = inner.free.iter().position(|(_, free)| *free == asize);
        let offset = match at {
            Some(at) => inner.free.remove(at).0,
            None => {
                inner.next += asize;
                inner.next - asize
            }
        };
        Ok(Dva { vdev: 0, offset, asize, gang: false })
    }
    fn write(&self, writes: Vec<LogWrite>, _data: Vec<BlockWrite>) -> Result<()> {
        let mut inner = self.inner.lock();
        if inner.failing > 0 {
            inner.failing -= 1;
            return Err(Error::new(ErrorKind::Io, "the device is gone"));
        }
        inner.batches += 1;
        let batch = inner.batches;
        for write in writes {
            assert!(write.data.len() % 4096 == 0 && write.data.len() as u64 <= write.dva.asize);
            if write.dva.asize % 4096 != 0 {
                assert_eq!(write.data.len() as u64 + inner.parity, write.dva.asize);
            }
            inner.events.push(Event::Write { batch, offset: write.dva.offset, data: write.data });
        }
        Ok(())
    }
    fn placed_from(&self) -> Option<u64> {
        None
    }
    fn place(&self, _tx: &Tx, _blocks: &[DirtyBlocks]) -> Result<Option<Placement>> {
        Ok(None)
    }
    fn random(&self) -> [u64; 2] {
        let mut inner = self.inner.lock();
        inner.batches += 1;
        [inner.batches.wrapping_mul(0x9e37_79b9_7f4a_7c15), inner.next]
    }
}

/// The disk as a crash left it.
#[derive(Default)]
struct Disk {
    blocks: HashMap<u64, Bytes>,
    header: Header,
    synced: u64,
    acked: u64,
}

impl Disk {
    /// What events leave of which those in `lost` never happened.
    fn after(events: &[Event], lost: &BTreeSet<usize>) -> Self {
        let mut disk = Self::default();
        for (index, event) in events.iter().enumerate() {
            match event {
                _ if lost.contains(&index) => {}
                Event::Write { offset, data, .. } => {
                    let mut block = data.to_vec();
                    // Beyond what is written, a block holds what it held.
                    if let Some(old) = disk.blocks.get(offset) {
                        block.extend_from_slice(old.get(block.len()..).unwrap_or(&[]));
                    }
                    disk.blocks.insert(*offset, block.into());
                }
                Event::Synced { txg, header } => (disk.synced, disk.header) = (txg.0, *header),
                Event::Acked(record) => disk.acked = *record,
            }
        }
        disk
    }
}

impl LogReader for Disk {
    fn read_log_block(&self, pointer: &BlockPointer) -> Result<Option<Bytes>> {
        let offset = pointer.first_dva().unwrap().offset;
        let Some(data) = self.blocks.get(&offset) else { return Ok(None) };
        let mut data = data.to_vec();
        data.resize(pointer.psize() as usize, 0);
        let verifier = pointer.checksum();
        let is_good = verify_embedded(&data, Algorithm::Zilog2, &verifier, Width::Full).is_ok();
        Ok(is_good.then(|| data.into()))
    }
    fn read_data(&self, _pointer: &BlockPointer) -> Result<Bytes> {
        Err(Error::corrupt("no data blocks here"))
    }
}

#[derive(Default)]
struct Claims(Mutex<Vec<BlockPointer>>);

impl Claimer for Claims {
    fn is_written(&self, _pointer: &BlockPointer) -> Result<bool> {
        Ok(true)
    }
    fn claim(&self, pointer: &BlockPointer) -> Result<()> {
        self.0.lock().push(*pointer);
        Ok(())
    }
    fn complete(&self, _pointer: &BlockPointer) {}
    fn refer(&self, _pointer: &BlockPointer) -> Result<()> {
        Ok(())
    }
}

/// The record with this number: a name, or a write of as many bytes as it says.
fn append(log: &IntentLog, tx: &Tx, number: u64, bytes: usize) {
    match bytes {
        0 => {
            let name = format!("{number}").into_bytes();
            let payload = Payload::Remove { directory: 1, name, is_directory: false };
            log.append(tx, 1, payload, false).unwrap();
        }
        bytes => {
            let data = Bytes::from(vec![number as u8; bytes]);
            log.append_write(tx, number, 0, data, true);
        }
    }
}

fn records_of(disk: &Disk, header: &Header) -> Vec<Record> {
    let mut records: Vec<Record> = Vec::new();
    walk(disk, header, None, |met| {
        if let Met::Record(raw) = met {
            records.push(raw.decode()?);
        }
        Ok(true)
    })
    .unwrap();
    assert!(records.windows(2).all(|pair| pair[1].sequence == pair[0].sequence + 1));
    records
}
