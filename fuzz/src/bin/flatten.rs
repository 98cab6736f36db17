//! Makes the base of whole-image attacks: `flatten OUTPUT POOL-DEVICE...`.
//!
//! Reads a pool and writes every block that its trees reach uncompressed, with pointers that ask
//! for no checksum. In pools of several devices the blocks of datasets get checksums, so that
//! changes to them reach the reconstruction; of large files only the beginnings are kept. Blocks
//! of encrypted datasets stay as they are stored, except for the addresses in them, which their
//! MACs do not cover. Invariant: what the reader sees through the new pointers is what it saw
//! through the old ones.

#[allow(dead_code, reason = "the attacks use the rest")]
#[path = "../../../crates/engine/tests/hostile/image.rs"]
mod image;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use cenote_codec::checksum::{Algorithm, Salt, WordOrder, compute};
use cenote_device::{Bytes, Device, DeviceError, FileDevice, Mode};
use cenote_engine::pipe::{Pipe, ReadContext};
use cenote_engine::pool::{OpenOptions, Pool};
use cenote_engine::vdev::{BlockRead, BlockWrite};
use cenote_format::{BlockPointer, ObjectType, label};
use image::{Extent, FlatImage, LABEL_CONFIG, UBERBLOCK};

/// Bytes of file contents that are kept, of pools with several devices or encryption.
const CONTENTS: usize = 64 << 10;
/// Blocks of file contents up to this size are always kept.
const SMALL: usize = 2048;

/// A device that is read, and whose writes are only collected.
#[derive(Debug)]
struct Collector {
    device: FileDevice,
    writes: Mutex<Vec<(u64, Vec<u8>)>>,
}

impl Device for Collector {
    fn path(&self) -> PathBuf {
        self.device.path()
    }

    fn size(&self) -> u64 {
        self.device.size()
    }

    fn sector_size(&self) -> u32 {
        self.device.sector_size()
    }

    fn read(&self, offset: u64, len: usize) -> Result<Bytes, DeviceError> {
        self.device.read(offset, len)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.writes.lock().unwrap().push((offset, data.to_vec()));
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }
}

struct Flattener {
    pipe: Arc<Pipe>,
    devices: Vec<Arc<Collector>>,
    images: Vec<FlatImage>,
    next: u64,
    done: HashMap<([u64; 6], u64), BlockPointer>,
    /// Blocks get checksums.
    sealing: bool,
    /// File contents that may still be kept.
    contents: usize,
}

fn extent(offset: u64, kind: u8, level: u8, mut bytes: Vec<u8>) -> Extent {
    let len = bytes.len();
    bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
    Extent { offset, len, kind, level, used: Arc::new(bytes) }
}

impl Flattener {
    /// Writes a block behind the others, with its copies and parity; gives its address words.
    fn place(&mut self, bp: &BlockPointer, data: &[u8]) -> [u64; 2] {
        let (offset, vdevs, birth) = (self.next, self.pipe.vdevs(), bp.physical_birth());
        let asize = vdevs.asize(0, data.len() as u64, birth).unwrap();
        self.next += asize;
        let data = Bytes::copy_from_slice(data);
        let write = BlockWrite { sides: None, vdev: 0, offset, data, birth };
        vdevs.write_batch(&[write]).remove(0).unwrap();
        for (device, image) in self.devices.iter().zip(&mut self.images) {
            for (offset, bytes) in device.writes.lock().unwrap().drain(..) {
                image.extents.push(extent(offset, bp.object_type().0, bp.level().0, bytes));
            }
        }
        [asize >> 9, offset >> 9]
    }

    /// The bytes behind a pointer into an encrypted dataset, as far as they are kept as stored.
    fn stored(&self, bp: &BlockPointer) -> Option<Vec<u8>> {
        let opaque = !matches!(bp.object_type(), ObjectType::OBJSET | ObjectType::DNODE);
        if !bp.is_crypt() || bp.level().0 > 0 || !opaque {
            return None;
        }
        let dva = bp.first_dva().unwrap();
        let (vdev, offset, size) = (dva.vdev, dva.offset, bp.psize());
        let read = BlockRead { vdev, offset, size, birth: bp.physical_birth() };
        let found = self.pipe.vdevs().read_recover(&read, &mut |_| true).unwrap();
        Some(found.data.to_vec())
    }

    /// Stores the block behind `old` and all below it; gives the pointer to it.
    fn block(&mut self, old: &BlockPointer) -> BlockPointer {
        if old.is_hole() || old.is_embedded() {
            return *old;
        }
        let mut address = [0; 6];
        address.copy_from_slice(&old.words[..6]);
        let key = (address, old.prop());
        if let Some(new) = self.done.get(&key) {
            return *new;
        }
        let stored = self.stored(old);
        let kept = stored.is_some();
        let context = ReadContext { sealed: true, ..ReadContext::default() };
        let data = match stored.map_or_else(|| self.pipe.read(old, &context), |raw| Ok(raw.into()))
        {
            Ok(data) => data,
            Err(error) => {
                eprintln!("left as it is: {error}");
                return *old;
            }
        };
        let mut data = data.to_vec();
        let kind = old.object_type();
        image::relink(kind, old.level().0, &mut data, &mut |old| self.link(old));
        if kind == ObjectType::PLAIN_FILE && old.level().0 == 0 && data.len() > SMALL {
            match self.contents.checked_sub(data.len()) {
                Some(left) => self.contents = left,
                None if kept => return *old,
                None => return BlockPointer { words: [0; 16] },
            }
        }
        let size = data.len() as u64;
        let mut new = *old;
        new.words[..4].fill(0);
        [new.words[0], new.words[1]] = self.place(old, &data);
        let sectors = (size >> 9) - 1;
        let mut checksum = 2;
        if !old.is_crypt() {
            new.words[4..6].fill(0);
            new.words[12..].fill(0);
            if self.sealing {
                let algorithm = Algorithm::Fletcher4;
                checksum = u64::from(algorithm.id());
                let sum = compute(algorithm, &data, WordOrder::Little, &Salt::new([0; 32]));
                new.words[12..].copy_from_slice(&sum);
            }
        }
        new.words[6] = if kept {
            old.prop() & !(0xff << 40) | checksum << 40
        } else {
            // Sizes, compression off, checksum, type, encryption, level, little-endian.
            let kept = old.prop() & (0xff << 48 | 0x1f << 56 | 1 << 61);
            sectors | sectors << 16 | 2 << 32 | checksum << 40 | kept | 1 << 63
        };
        self.done.insert(key, new);
        new
    }

    /// The same for a pointer in a block. What belongs to a dataset gets checksums, if there are
    /// several devices.
    fn link(&mut self, old: &BlockPointer) -> BlockPointer {
        if old.is_hole() || old.object_type() != ObjectType::OBJSET {
            return self.block(old);
        }
        self.sealing = self.devices.len() > 1;
        let new = self.block(old);
        self.sealing = false;
        new
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [output, sources @ ..] = &arguments[..] else { panic!("flatten OUTPUT POOL-DEVICE...") };
    let open = |source: &String| {
        let device = FileDevice::open(source, Mode::ReadOnly).unwrap();
        Arc::new(Collector { device, writes: Mutex::default() })
    };
    let devices: Vec<Arc<Collector>> = sources.iter().map(open).collect();
    let shelf = devices.iter().map(|device| device.clone() as Arc<dyn Device>);
    let candidates = image::discover(shelf.collect());
    let pool = Pool::open(&candidates[0], &OpenOptions::default()).unwrap();
    let pipe = pool.io().pipe.clone();
    let empty = |device: &Arc<Collector>| FlatImage { size: device.size(), extents: Vec::new() };
    let mut flat = Flattener {
        pipe,
        images: devices.iter().map(empty).collect(),
        devices,
        next: 0,
        done: HashMap::new(),
        sealing: false,
        contents: CONTENTS,
    };
    let mut uberblock = pool.uberblock().clone();
    uberblock.root = flat.block(&uberblock.root);
    let mut slot = uberblock.encode().to_vec();
    let ashift = pool.io().pipe.vdevs().ashift(0).unwrap();
    let shift = label::slot_shift(ashift.into());
    slot.resize(1 << shift, 0);
    for (device, image) in flat.devices.iter().zip(&mut flat.images) {
        for index in 0..2 {
            let start = label::label_offset(device.size(), index).unwrap();
            let config = device.read(start + label::CONFIG_OFFSET, label::CONFIG_SIZE).unwrap();
            let place = start + label::CONFIG_OFFSET;
            image.extents.push(extent(place, LABEL_CONFIG, 0, config.to_vec()));
            let number = label::sync_slot(shift, uberblock.txg.0, false, false);
            let place = start + label::slot_offset(shift, number).unwrap();
            image.extents.push(extent(place, UBERBLOCK, 0, slot.clone()));
        }
        image.extents.sort_by_key(|extent| extent.offset);
        image.extents.iter_mut().for_each(Extent::seal);
    }
    let blocks: usize = flat.images.iter().map(|image| image.extents.len()).sum();
    let file = image::save(&flat.images);
    eprintln!("{blocks} pieces, {} bytes", file.len());
    std::fs::write(output, file).unwrap();
}
