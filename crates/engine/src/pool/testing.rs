//! Simulated devices with labels, for the tests of this room.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_codec::checksum::{Algorithm, Width, WordOrder, seal_embedded};
use cenote_device::{Device, DeviceError, SimDevice};
use cenote_format::bytes::ByteOrder;
use cenote_format::config::{PoolConfig, PoolState, TopLevel, VdevConfig, VdevKind};
use cenote_format::label;
use cenote_format::uberblock::{Reflow, Uberblock};
use cenote_format::{BlockPointer, Guid, Txg};

use super::discover::{Candidate, Opener, Scan, ScanOptions, scan};

/// Size of a simulated device in bytes.
pub const SIZE: usize = 64 << 20;
/// Guid of every test pool.
pub const POOL: Guid = Guid(1000);

/// Devices by path.
#[derive(Default)]
pub struct Shelf {
    pub devices: BTreeMap<PathBuf, Arc<SimDevice>>,
}

impl Opener for Shelf {
    fn candidates(&self, place: &Path) -> Result<Vec<Candidate>, DeviceError> {
        let inside = self.devices.keys().filter(|path| path.starts_with(place));
        Ok(inside.map(|path| Candidate { path: path.clone(), identity: None }).collect())
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn Device>, DeviceError> {
        let device = self.devices.get(path).ok_or(DeviceError::Gone)?;
        Ok(device.clone())
    }
}

impl Shelf {
    /// A blank device at `path`.
    pub fn add(&mut self, path: &str) -> Arc<SimDevice> {
        let device = Arc::new(SimDevice::new(path, SIZE));
        self.devices.insert(path.into(), device.clone());
        device
    }

    /// Scans everything below `/`.
    pub fn scan(self) -> Scan {
        let opener: Arc<dyn Opener> = Arc::new(self);
        scan(&opener, &ScanOptions::new(vec!["/".into()]))
    }
}

/// A leaf at `path`.
pub fn leaf(id: u64, guid: u64, path: &str) -> VdevConfig {
    VdevConfig {
        kind: VdevKind::File,
        id: Some(id),
        guid: Guid(guid),
        path: Some(path.into()),
        ..VdevConfig::default()
    }
}

/// A top-level vdev of `kind` over `children`; the one child itself for a leaf kind.
pub fn top(kind: VdevKind, id: u64, guid: u64, children: Vec<VdevConfig>) -> VdevConfig {
    let base = if kind.has_device() {
        children.into_iter().next().unwrap()
    } else {
        VdevConfig {
            kind,
            guid: Guid(guid),
            nparity: (kind == VdevKind::Raidz).then_some(1),
            children: Some(children),
            ..VdevConfig::default()
        }
    };
    let top = TopLevel { ashift: 12, asize: 1 << 18, ..TopLevel::default() };
    VdevConfig { id: Some(id), top: Some(top), ..base }
}

/// The label of the leaf `guid` below `top`.
pub fn config(top: &VdevConfig, guid: u64, txg: u64, tops: u64) -> PoolConfig {
    PoolConfig {
        version: Some(5000),
        name: Some("tank".into()),
        state: Some(PoolState::Exported),
        txg: Some(Txg(txg)),
        pool_guid: Some(POOL),
        top_guid: Some(top.guid),
        guid: Some(Guid(guid)),
        vdev_children: Some(tops),
        vdev_tree: Some(top.clone()),
        features_for_read: Some(vec!["com.delphix:hole_birth".into()]),
        ..PoolConfig::default()
    }
}

/// Writes `config` as label `index` of `device`.
pub fn write_label(device: &SimDevice, index: usize, config: &PoolConfig) {
    let offset = label::label_offset(SIZE as u64, index).unwrap() + label::CONFIG_OFFSET;
    let mut block = label::encode_config(&config.to_nvlist()).unwrap();
    seal(&mut block, offset);
    device.write(offset, &block).unwrap();
}

/// Writes `config` as all four labels.
pub fn write_labels(device: &SimDevice, config: &PoolConfig) {
    (0..4).for_each(|index| write_label(device, index, config));
}

/// Writes `uberblock` into its slot of ring `index`.
pub fn write_uberblock(device: &SimDevice, index: usize, uberblock: &Uberblock) {
    let slot = label::sync_slot(12, uberblock.txg.0, false, false);
    let offset =
        label::label_offset(SIZE as u64, index).unwrap() + label::slot_offset(12, slot).unwrap();
    let mut block = uberblock.encode().to_vec();
    block.resize(4096, 0);
    seal(&mut block, offset);
    device.write(offset, &block).unwrap();
}

fn seal(block: &mut [u8], offset: u64) {
    let verifier = [offset, 0, 0, 0];
    seal_embedded(block, Algorithm::Label, &verifier, WordOrder::Little, Width::Full).unwrap();
}

/// An uberblock of `txg`.
pub fn uberblock(txg: u64, guid_sum: u64) -> Uberblock {
    Uberblock {
        order: ByteOrder::Little,
        version: 5000,
        txg: Txg(txg),
        guid_sum,
        timestamp: 1_700_000_000 + txg,
        root: BlockPointer::HOLE,
        software_version: 5000,
        activity_magic: cenote_format::uberblock::ACTIVITY_MAGIC,
        activity_delay: 0,
        activity_config: 0,
        checkpoint_txg: 0,
        reflow: Reflow(0),
    }
}

/// A mirror of two leaves with labels and uberblocks of `txg` on both, at `/a` and `/b`.
pub fn mirror(txg: u64) -> (Shelf, VdevConfig) {
    let mut shelf = Shelf::default();
    let tree = top(VdevKind::Mirror, 0, 10, vec![leaf(0, 11, "/a"), leaf(1, 12, "/b")]);
    for (guid, path) in [(11, "/a"), (12, "/b")] {
        let device = shelf.add(path);
        write_labels(&device, &config(&tree, guid, txg, 1));
        let sum = POOL.0 + tree.guid_sum();
        (0..4).for_each(|index| write_uberblock(&device, index, &uberblock(txg, sum)));
    }
    (shelf, tree)
}
