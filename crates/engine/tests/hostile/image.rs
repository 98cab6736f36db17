//! A pool image without checksums and compression, as a list of its blocks: the base of attacks.
//!
//! Such an image is made from a real pool: every block of its trees stored as it is, every pointer
//! rewritten. Invariant: whatever byte is changed here, the reader believes it, because block
//! pointers ask for no checksum and labels are sealed anew.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_codec::checksum::{Algorithm, Width, WordOrder, seal_embedded};
use cenote_device::{Bytes, Device, DeviceError};
use cenote_engine::pool::assemble::{PoolCandidate, assemble};
use cenote_engine::pool::discover::{Candidate, Opener, ScanOptions, scan};
use cenote_format::dnode::{CORE, FLAG_SPILL, SLOT};
use cenote_format::{BlockPointer, Dnode, ObjectType, Objset, blkptr};

const MAGIC: &[u8; 8] = b"CNFLAT01";
/// Object type that marks the config block of a label.
pub const LABEL_CONFIG: u8 = 254;
/// Object type that marks an uberblock.
pub const UBERBLOCK: u8 = 255;
/// First byte of a device's data area.
pub const DATA_START: u64 = 4 << 20;
/// Offset of the block pointer in the bonus of a dataset, in bytes.
const DATASET_POINTER: usize = 128;

/// One stored block.
#[derive(Clone)]
pub struct Extent {
    /// Where it lies on the device, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub len: usize,
    /// Object type of what it holds.
    pub kind: u8,
    /// Level in its block tree.
    pub level: u8,
    /// Its bytes up to the last that is not zero.
    pub used: Arc<Vec<u8>>,
}

/// A device as the list of its blocks, by offset; the rest reads as zeros.
#[derive(Clone)]
pub struct FlatImage {
    /// Size of the device in bytes.
    pub size: u64,
    /// Its blocks.
    pub extents: Vec<Extent>,
}

fn word(data: &mut &[u8]) -> u64 {
    let (head, rest) = data.split_first_chunk::<8>().expect("whole image");
    *data = rest;
    u64::from_le_bytes(*head)
}

/// Reads the file form of a pool's devices, zstd outside.
pub fn load(compressed: &[u8]) -> Vec<FlatImage> {
    let mut raw = Vec::new();
    zstd::Decoder::new(compressed).unwrap().read_to_end(&mut raw).unwrap();
    let mut data = &raw[..];
    let mut images = Vec::new();
    while let Some(rest) = data.strip_prefix(MAGIC) {
        data = rest;
        images.push(FlatImage::take(&mut data));
    }
    assert!(data.is_empty(), "a whole number of devices");
    images
}

/// The file form of a pool's devices.
pub fn save(images: &[FlatImage]) -> Vec<u8> {
    let mut raw = Vec::new();
    images.iter().for_each(|image| image.put(&mut raw));
    zstd::encode_all(&raw[..], 12).unwrap()
}

impl FlatImage {
    fn take(data: &mut &[u8]) -> Self {
        let (size, count) = (word(data), word(data));
        let mut extents = Vec::new();
        for _ in 0..count {
            let (offset, len, kinds) = (word(data), word(data), word(data));
            let used = word(data) as usize;
            let (bytes, rest) = data.split_at(used);
            *data = rest;
            extents.push(Extent {
                offset,
                len: len as usize,
                kind: kinds as u8,
                level: (kinds >> 8) as u8,
                used: Arc::new(bytes.to_vec()),
            });
        }
        Self { size, extents }
    }

    fn put(&self, raw: &mut Vec<u8>) {
        raw.extend(MAGIC);
        for number in [self.size, self.extents.len() as u64] {
            raw.extend(number.to_le_bytes());
        }
        for extent in &self.extents {
            let kinds = u64::from(extent.kind) | u64::from(extent.level) << 8;
            for number in [extent.offset, extent.len as u64, kinds, extent.used.len() as u64] {
                raw.extend(number.to_le_bytes());
            }
            raw.extend_from_slice(&extent.used);
        }
    }

    /// Writes `bytes` at `position` of extent `index`, as far as they fit.
    pub fn patch(&mut self, index: usize, position: usize, bytes: &[u8]) {
        let extent = &mut self.extents[index];
        let end = (position + bytes.len()).min(extent.len);
        let used = Arc::make_mut(&mut extent.used);
        if used.len() < end {
            used.resize(end, 0);
        }
        if position < end {
            used[position..end].copy_from_slice(&bytes[..end - position]);
        }
        extent.seal();
    }

    /// The device, called `name`.
    pub fn device(self, name: &str) -> Arc<FlatDevice> {
        Arc::new(FlatDevice { name: name.into(), image: self })
    }
}

impl Extent {
    /// Bytes `position..position + len`, zeros beyond what is used.
    pub fn bytes(&self, position: usize, len: usize) -> Vec<u8> {
        let from = position.min(self.used.len());
        let mut out = self.used[from..(position + len).min(self.used.len()).max(from)].to_vec();
        out.resize(len, 0);
        out
    }

    /// Gives label blocks the checksum they carry in themselves.
    pub fn seal(&mut self) {
        if self.kind < LABEL_CONFIG {
            return;
        }
        let used = Arc::make_mut(&mut self.used);
        used.resize(self.len, 0);
        let verifier = [self.offset, 0, 0, 0];
        let (label, order) = (Algorithm::Label, WordOrder::Little);
        seal_embedded(used, label, &verifier, order, Width::Full).unwrap();
    }
}

/// A read-only device over an image.
pub struct FlatDevice {
    name: PathBuf,
    image: FlatImage,
}

impl std::fmt::Debug for FlatDevice {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}", self.name.display())
    }
}

impl Device for FlatDevice {
    fn path(&self) -> PathBuf {
        self.name.clone()
    }

    fn size(&self) -> u64 {
        self.image.size
    }

    fn sector_size(&self) -> u32 {
        512
    }

    fn read(&self, offset: u64, len: usize) -> Result<Bytes, DeviceError> {
        let size = self.size();
        let Some(end) = offset.checked_add(len as u64).filter(|end| *end <= size) else {
            return Err(DeviceError::OutOfRange { offset, len: len as u64, size });
        };
        let mut out = vec![0; len];
        let extents = &self.image.extents;
        let first = extents.partition_point(|extent| extent.offset + extent.len as u64 <= offset);
        for extent in extents[first..].iter().take_while(|extent| extent.offset < end) {
            let from = extent.offset.max(offset);
            let to = (extent.offset + extent.used.len() as u64).min(end);
            if from < to {
                let source = (from - extent.offset) as usize..(to - extent.offset) as usize;
                out[(from - offset) as usize..(to - offset) as usize]
                    .copy_from_slice(&extent.used[source]);
            }
        }
        Ok(out.into())
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<(), DeviceError> {
        Err(DeviceError::ReadOnly)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// Devices for a scan.
pub struct Shelf(pub Vec<Arc<dyn Device>>);

impl Opener for Shelf {
    fn candidates(&self, _: &Path) -> Result<Vec<Candidate>, DeviceError> {
        let candidate =
            |device: &Arc<dyn Device>| Candidate { path: device.path(), identity: None };
        Ok(self.0.iter().map(candidate).collect())
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn Device>, DeviceError> {
        self.0.iter().find(|device| device.path() == path).cloned().ok_or(DeviceError::Gone)
    }
}

/// The devices of a pool, called `/d0` and so on.
pub fn shelf(images: Vec<FlatImage>) -> Vec<Arc<dyn Device>> {
    let named = |(n, image): (usize, FlatImage)| image.device(&format!("/d{n}")) as Arc<dyn Device>;
    images.into_iter().enumerate().map(named).collect()
}

/// What `zpool import` would find on these devices.
pub fn discover(devices: Vec<Arc<dyn Device>>) -> Vec<PoolCandidate> {
    let opener: Arc<dyn Opener> = Arc::new(Shelf(devices));
    assemble(&scan(&opener, &ScanOptions::new(vec!["/".into()])))
}

/// Puts what `link` makes of it in the place of every pointer to a block: those in `data`, which is
/// of a tree of `kind`, at `level` there.
pub fn relink(
    kind: ObjectType,
    level: u8,
    data: &mut [u8],
    link: &mut dyn FnMut(&BlockPointer) -> BlockPointer,
) {
    if level > 0 {
        relink_pointers(data, link);
    } else if kind == ObjectType::DNODE {
        let mut at = 0;
        while at < data.len() {
            let len = Dnode::slots_at(&data[at..]) as usize * SLOT;
            if let Some(dnode) = Dnode::decode(&data[at..]).unwrap() {
                relink_dnode(&mut data[at..at + len], &dnode, link);
            }
            at += len;
        }
    } else if kind == ObjectType::OBJSET {
        let header = Objset::decode(data).unwrap();
        relink_dnode(&mut data[..SLOT], &header.meta_dnode, link);
        for at in [1024, 1536, 2048] {
            if let Some(slot) = data.get_mut(at..at + SLOT)
                && let Ok(Some(dnode)) = Dnode::decode(slot)
            {
                relink_dnode(slot, &dnode, link);
            }
        }
    }
}

fn relink_pointers(data: &mut [u8], link: &mut dyn FnMut(&BlockPointer) -> BlockPointer) {
    for raw in data.chunks_exact_mut(blkptr::SIZE) {
        let old = BlockPointer::decode(raw).unwrap();
        raw.copy_from_slice(&link(&old).encode());
    }
}

fn relink_dnode(
    raw: &mut [u8],
    dnode: &Dnode,
    link: &mut dyn FnMut(&BlockPointer) -> BlockPointer,
) {
    let bonus = CORE + dnode.pointers.len() * blkptr::SIZE;
    relink_pointers(&mut raw[CORE..bonus], link);
    if dnode.flags & FLAG_SPILL != 0 {
        let at = raw.len() - blkptr::SIZE;
        relink_pointers(&mut raw[at..], link);
    }
    if dnode.bonus_type == ObjectType::DSL_DATASET {
        let at = bonus + DATASET_POINTER;
        relink_pointers(&mut raw[at..at + blkptr::SIZE], link);
    }
}
