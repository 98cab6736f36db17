//! Makes the base of whole-image attacks: `flatten POOL-DEVICE OUTPUT`.
//!
//! Reads a pool of one device and writes every block that its trees reach uncompressed, with
//! pointers that ask for no checksum. Invariant: what the reader sees through the new pointers is
//! what it saw through the old ones.

#[path = "../../../crates/engine/tests/hostile/image.rs"]
mod image;

use std::collections::HashMap;
use std::sync::Arc;

use cenote_device::{Device, FileDevice, Mode};
use cenote_engine::pipe::{Pipe, ReadContext};
use cenote_engine::pool::{OpenOptions, Pool};
use cenote_format::dnode::{CORE, FLAG_SPILL, SLOT};
use cenote_format::{BlockPointer, Dnode, ObjectType, Objset, blkptr, label};
use image::{DATA_START, Extent, FlatImage, LABEL_CONFIG, UBERBLOCK};

/// Offset of the block pointer in the bonus of a dataset, in bytes.
const DATASET_POINTER: usize = 128;

struct Flattener {
    pipe: Arc<Pipe>,
    extents: Vec<Extent>,
    next: u64,
    done: HashMap<([u64; 6], u64), BlockPointer>,
}

impl Flattener {
    fn extent(&mut self, offset: u64, kind: u8, level: u8, mut bytes: Vec<u8>) {
        let len = bytes.len();
        bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
        self.extents.push(Extent { offset, len, kind, level, used: Arc::new(bytes) });
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
        let data = match self.pipe.read(old, &ReadContext::default()) {
            Ok(data) => data,
            Err(error) => {
                eprintln!("left as it is: {error}");
                return *old;
            }
        };
        let mut data = data.to_vec();
        let kind = old.object_type();
        if old.level().0 > 0 {
            self.pointers(&mut data);
        } else if kind == ObjectType::DNODE {
            self.dnodes(&mut data);
        } else if kind == ObjectType::OBJSET {
            let header = Objset::decode(&data).unwrap();
            self.dnode(&mut data[..2 * SLOT], &header.meta_dnode);
            for at in [1024, 1536, 2048] {
                if let Some(slot) = data.get_mut(at..at + SLOT)
                    && let Ok(Some(dnode)) = Dnode::decode(slot)
                {
                    self.dnode(slot, &dnode);
                }
            }
        }
        let offset = self.next;
        let size = data.len() as u64;
        self.next += size;
        let mut new = *old;
        new.words[..6].fill(0);
        new.words[0] = size >> 9;
        new.words[1] = offset >> 9;
        new.words[12..].fill(0);
        let sectors = (size >> 9) - 1;
        // Sizes, compression off, checksum off, type, level, little-endian.
        let kept = old.prop() & (0xff << 48 | 0x1f << 56);
        new.words[6] = sectors | sectors << 16 | 2 << 32 | 2 << 40 | kept | 1 << 63;
        self.extent(DATA_START + offset, kind.0, old.level().0, data);
        self.done.insert(key, new);
        new
    }

    fn pointers(&mut self, data: &mut [u8]) {
        for raw in data.chunks_exact_mut(blkptr::SIZE) {
            let old = BlockPointer::decode(raw).unwrap();
            raw.copy_from_slice(&self.block(&old).encode());
        }
    }

    fn dnodes(&mut self, data: &mut [u8]) {
        let mut at = 0;
        while at < data.len() {
            let len = Dnode::slots_at(&data[at..]) as usize * SLOT;
            if let Some(dnode) = Dnode::decode(&data[at..]).unwrap() {
                self.dnode(&mut data[at..at + len], &dnode);
            }
            at += len;
        }
    }

    fn dnode(&mut self, raw: &mut [u8], dnode: &Dnode) {
        let bonus = CORE + dnode.pointers.len() * blkptr::SIZE;
        self.pointers(&mut raw[CORE..bonus]);
        if dnode.flags & FLAG_SPILL != 0 {
            let at = (usize::from(dnode.extra_slots) + 1) * SLOT - blkptr::SIZE;
            self.pointers(&mut raw[at..at + blkptr::SIZE]);
        }
        if dnode.bonus_type == ObjectType::DSL_DATASET {
            let at = bonus + DATASET_POINTER;
            self.pointers(&mut raw[at..at + blkptr::SIZE]);
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, source, output] = &arguments[..] else { panic!("flatten POOL-DEVICE OUTPUT") };
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(source, Mode::ReadOnly).unwrap());
    let candidates = image::discover(vec![device.clone()]);
    let pool = Pool::open(&candidates[0], &OpenOptions::default()).unwrap();
    let pipe = pool.io().pipe.clone();
    let mut flat = Flattener { pipe, extents: Vec::new(), next: 0, done: HashMap::new() };
    let mut uberblock = pool.uberblock().clone();
    uberblock.root = flat.block(&uberblock.root);
    for index in 0..2 {
        let start = label::label_offset(device.size(), index).unwrap();
        let config = device.read(start + label::CONFIG_OFFSET, label::CONFIG_SIZE).unwrap();
        flat.extent(start + label::CONFIG_OFFSET, LABEL_CONFIG, 0, config.to_vec());
        let mut slot = uberblock.encode().to_vec();
        slot.resize(1024, 0);
        let slot_offset = start + label::slot_offset(10, uberblock.txg.0 % 128).unwrap();
        flat.extent(slot_offset, UBERBLOCK, 0, slot);
    }
    let mut extents = flat.extents;
    extents.sort_by_key(|extent| extent.offset);
    extents.iter_mut().for_each(Extent::seal);
    let image = FlatImage { size: device.size(), extents };
    let file = image.save();
    eprintln!("{} blocks, {} bytes", image.extents.len(), file.len());
    std::fs::write(output, file).unwrap();
}
