//! A pool written by ourselves whose pointers ask for no checksum, so that whatever is changed in
//! it is believed: the base of attacks on a pool that is written.
//!
//! Invariant: every block stays where it was allocated, at its size there; so without changes the
//! pool is sound in every respect, its space maps included.

use std::collections::HashMap;
use std::sync::Arc;

use cenote_codec::compress::{self, Algorithm, Method};
use cenote_device::Device;
use cenote_engine::pipe::{Pipe, ReadContext};
use cenote_engine::pool::{OpenOptions, Pool};
use cenote_format::{BlockPointer, ObjectType, blkptr, label};

use crate::image::{self, DATA_START, Extent, FlatImage, LABEL_CONFIG, UBERBLOCK};

/// Where one block lies.
#[derive(Clone)]
struct Place {
    /// Bytes from the start of the device, of every copy.
    offsets: Vec<u64>,
    /// Bytes allocated for each.
    asize: usize,
    /// It is stored as it is.
    raw: bool,
}

/// The pool.
pub struct Base {
    device: Vec<u8>,
    /// The expanded blocks that can be changed, and the label.
    pub image: FlatImage,
    places: HashMap<u64, Place>,
}

struct Stripper {
    pipe: Arc<Pipe>,
    extents: Vec<Extent>,
    places: HashMap<u64, Place>,
    done: HashMap<(u64, u64), BlockPointer>,
}

impl Base {
    /// From a device with a pool of one disk. Its blocks of metadata are stored anew, with pointers
    /// that ask for no checksum; those of files stay as they are.
    pub fn of(mut device: Vec<u8>) -> Self {
        let size = device.len() as u64;
        let disk = cenote_device::SimDevice::from_bytes("/base", device.clone());
        let disk: Arc<dyn Device> = Arc::new(disk);
        let candidates = image::discover(vec![disk]);
        let pool = Pool::open(&candidates[0], &OpenOptions::default()).unwrap();
        let mut stripper = Stripper {
            pipe: pool.io().pipe.clone(),
            extents: Vec::new(),
            places: HashMap::new(),
            done: HashMap::new(),
        };
        let mut uberblock = pool.uberblock().clone();
        uberblock.root = stripper.block(&uberblock.root);
        let Stripper { mut extents, mut places, .. } = stripper;
        let shift = label::slot_shift(pool.vdevs().ashift(0).unwrap().into());
        let mut slot = uberblock.encode().to_vec();
        slot.resize(1 << shift, 0);
        // One label is enough; the others would only speak against changes of it.
        let start = label::label_offset(size, 0).unwrap();
        for index in 1..4 {
            let start = label::label_offset(size, index).unwrap() as usize;
            device[start..start + (256 << 10)].fill(0);
        }
        let at = start + label::CONFIG_OFFSET;
        let config = device[at as usize..at as usize + label::CONFIG_SIZE].to_vec();
        let number = label::sync_slot(shift, uberblock.txg.0, false, false);
        let slot_at = start + label::slot_offset(shift, number).unwrap();
        for (offset, kind, bytes) in [(at, LABEL_CONFIG, config), (slot_at, UBERBLOCK, slot)] {
            let asize = bytes.len();
            places.insert(offset, Place { offsets: vec![offset], asize, raw: true });
            let mut extent = Extent { offset, len: asize, kind, level: 0, used: Arc::new(bytes) };
            extent.seal();
            extents.push(extent);
        }
        extents.sort_by_key(|extent| extent.offset);
        let mut base = Self { device, image: FlatImage { size, extents }, places };
        let mut device = std::mem::take(&mut base.device);
        for extent in &base.image.extents {
            assert!(base.put(&mut device, extent), "every block fits where it was");
        }
        base.device = device;
        base
    }

    /// The device with what was changed in `image`. A block that grew too large is left as it was.
    pub fn device(&self, image: &FlatImage) -> Vec<u8> {
        let mut device = self.device.clone();
        for (extent, old) in image.extents.iter().zip(&self.image.extents) {
            if !Arc::ptr_eq(&extent.used, &old.used) {
                self.put(&mut device, extent);
            }
        }
        device
    }

    fn put(&self, device: &mut [u8], extent: &Extent) -> bool {
        let place = &self.places[&extent.offset];
        let block = extent.bytes(0, extent.len);
        let mut stored = vec![0; place.asize];
        if place.raw {
            stored[..block.len()].copy_from_slice(&block);
        } else if compress::compress(Method::Lz4, &block, &mut stored).is_none() {
            return false;
        }
        for offset in &place.offsets {
            let at = *offset as usize;
            device[at..at + place.asize].copy_from_slice(&stored);
        }
        true
    }
}

impl Stripper {
    /// Takes up the block behind `old` and all below it; gives the pointer to it.
    fn block(&mut self, old: &BlockPointer) -> BlockPointer {
        if old.is_hole() || old.is_embedded() {
            return *old;
        }
        let kind = old.object_type();
        let mut new = *old;
        new.words[12..].fill(0);
        new.words[6] = old.prop() & !(0xff << 40) | u64::from(blkptr::CHECKSUM_OFF) << 40;
        let contents = matches!(kind, ObjectType::PLAIN_FILE | ObjectType::ZVOL);
        if contents && old.level().0 == 0 {
            return new;
        }
        let key = (old.first_dva().unwrap().offset, old.prop());
        if let Some(new) = self.done.get(&key) {
            return *new;
        }
        let mut data = self.pipe.read(old, &ReadContext::default()).unwrap().to_vec();
        image::relink(kind, old.level().0, &mut data, &mut |old| self.block(old));
        let asize = old.first_dva().unwrap().asize;
        let offsets = old.dvas().map(|dva| DATA_START + dva.offset).collect::<Vec<u64>>();
        let raw = data.len() as u64 <= asize;
        let compression = if raw { 2 } else { u64::from(Algorithm::Lz4.id()) };
        let sectors = (asize.min(data.len() as u64) >> 9) - 1;
        new.words[6] &= !(0xffff << 16 | 0x7f << 32);
        new.words[6] |= sectors << 16 | compression << 32;
        let place = Place { offsets, asize: asize as usize, raw };
        let offset = place.offsets[0];
        self.places.insert(offset, place);
        let (len, level) = (data.len(), old.level().0);
        data.truncate(data.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
        self.extents.push(Extent { offset, len, kind: kind.0, level, used: Arc::new(data) });
        self.done.insert(key, new);
        new
    }
}
