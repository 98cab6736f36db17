//! A pool of simulated disks, and a writer that lays blocks out with parity of its own.

use crate::vdev::extent::Extent;
use crate::vdev::plan::Planner;
use crate::vdev::tree::{NodeId, Shape};
use crate::vdev::*;
use cenote_device::{Device, SimDevice};
use cenote_format::config::{Draid as DraidShape, TopLevel, VdevConfig, VdevKind};
use cenote_format::{Guid, Txg};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

pub const DISK: usize = 80 << 20;

/// Numbers that look random, the same in every run.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).take(len).collect()
    }
}

pub fn leaf(guid: u64) -> VdevConfig {
    VdevConfig { kind: VdevKind::File, guid: Guid(guid), ..VdevConfig::default() }
}

pub fn leaves(guids: std::ops::Range<u64>) -> Vec<VdevConfig> {
    guids.map(leaf).collect()
}

pub fn group(kind: VdevKind, guid: u64, children: Vec<VdevConfig>) -> VdevConfig {
    VdevConfig { kind, guid: Guid(guid), children: Some(children), ..VdevConfig::default() }
}

pub fn raidz(guid: u64, parity: u64, children: Vec<VdevConfig>) -> VdevConfig {
    VdevConfig { nparity: Some(parity), ..group(VdevKind::Raidz, guid, children) }
}

pub fn draid(
    guid: u64,
    parity: u64,
    data: u64,
    spares: u64,
    children: Vec<VdevConfig>,
) -> VdevConfig {
    let disks = children.len() as u64 - spares;
    let groups =
        (1..=disks).find(|groups| (groups * (data + parity)).is_multiple_of(disks)).unwrap();
    let shape = DraidShape { data, spares, groups, children: None };
    VdevConfig {
        nparity: Some(parity),
        draid: Some(shape),
        ..group(VdevKind::Draid, guid, children)
    }
}

pub fn root(ashift: u64, tops: Vec<VdevConfig>) -> VdevConfig {
    let top = TopLevel { ashift, ..TopLevel::default() };
    let tops = tops.into_iter().map(|config| VdevConfig { top: Some(top), ..config }).collect();
    group(VdevKind::Root, 1 << 40, tops)
}

/// A tree and its disks, by guid.
pub struct Rig {
    pub tree: VdevTree,
    pub disks: BTreeMap<u64, Arc<SimDevice>>,
    clock: Arc<AtomicU64>,
}

impl Rig {
    pub fn new(root: VdevConfig) -> Self {
        Self::with_disk_size(root, DISK)
    }

    pub fn with_disk_size(root: VdevConfig, size: usize) -> Self {
        let disks: BTreeMap<u64, Arc<SimDevice>> = root
            .devices()
            .map(|leaf| (leaf.guid.0, Arc::new(SimDevice::new(leaf.guid.to_string(), size))))
            .collect();
        let all = disks.clone();
        let opener = move |leaf: &VdevConfig| {
            let disk = all.get(&leaf.guid.0).cloned();
            disk.map(|disk| disk as Arc<dyn Device>)
                .ok_or_else(|| LeafUnavailable::open_failed("no such disk"))
        };
        let clock = Arc::new(AtomicU64::new(1));
        let seconds = clock.clone();
        let tree = VdevTree::build(&root, Arc::new(opener))
            .unwrap()
            .with_clock(Arc::new(move || Duration::from_secs(seconds.load(Relaxed))));
        Self { tree, disks, clock }
    }

    /// Lets time pass.
    pub fn wait(&self, seconds: u64) {
        self.clock.fetch_add(seconds, Relaxed);
    }

    pub fn disk(&self, guid: u64) -> &SimDevice {
        &self.disks[&guid]
    }

    /// Makes everything `guid` gives wrong.
    pub fn corrupt(&self, guid: u64) {
        let disk = self.disk(guid);
        disk.corrupt_range(0..disk.size(), 0x5a);
    }

    pub fn heal(&self) {
        self.disks.values().for_each(|disk| disk.heal());
        self.tree.clear(None);
    }

    /// Errors counted on a node: reads, checksums.
    pub fn errors(&self, guid: u64) -> (u64, u64) {
        let status = self.tree.status().unwrap();
        let stats = status.find(Guid(guid)).unwrap().stats;
        (stats.read_errors, stats.checksum_errors)
    }

    pub fn state(&self, guid: u64) -> VdevState {
        self.tree.status().unwrap().find(Guid(guid)).unwrap().condition.state
    }

    /// Writes a block with all its copies and parity; gives the guids that hold any of it.
    pub fn write(&self, read: &BlockRead, data: &[u8]) -> Vec<u64> {
        let (node, extent) = self.tree.locate(read).unwrap();
        let mut padded = data.to_vec();
        padded.resize(extent.len as usize, 0);
        let mut touched = Vec::new();
        self.put(&Planner::new(&self.tree, false), node, extent, read.birth, &padded, &mut touched);
        touched.sort_unstable();
        touched.dedup();
        touched
    }

    fn put(
        &self,
        planner: &Planner<'_>,
        id: NodeId,
        extent: Extent,
        birth: Txg,
        data: &[u8],
        touched: &mut Vec<u64>,
    ) {
        let node = &self.tree.nodes[id];
        match &node.shape {
            Shape::Leaf(_) => {
                let guid = node.config.guid.0;
                self.disks[&guid].write(extent.physical().unwrap(), data).unwrap();
                touched.push(guid);
            }
            Shape::Copies => {
                for &child in &node.children {
                    self.put(planner, child, extent, birth, data, touched);
                }
            }
            Shape::DistributedSpare { draid, spare, .. } => {
                let target = planner.spare_target(*draid, *spare, extent.offset).unwrap();
                self.put(planner, target, extent, birth, data, touched);
            }
            Shape::Indirect(_) => {
                let mut rest = data;
                for (target, part) in planner.pieces(node, extent).unwrap() {
                    let (own, after) = rest.split_at(part.len as usize);
                    self.put(planner, target, part, birth, own, touched);
                    rest = after;
                }
            }
            Shape::Raidz(_) | Shape::Draid(_) => {
                let map = planner.map(node, extent, birth).unwrap();
                let mut padded = data.to_vec();
                padded.resize(map.size as usize, 0);
                for (_, row) in map.rows() {
                    let (parity, columns) = row.split_at(map.parity);
                    let height = row[0].size as usize;
                    let data: Vec<Vec<u8>> = columns
                        .iter()
                        .map(|c| {
                            let at = c.position as usize;
                            let mut bytes = padded[at..at + c.size as usize].to_vec();
                            bytes.resize(height, 0);
                            bytes
                        })
                        .collect();
                    let stored = columns.iter().zip(&data).map(|(c, bytes)| (c, bytes.clone()));
                    let sums = parity.iter().enumerate().map(|(i, c)| (c, weighted_sum(&data, i)));
                    for (column, bytes) in stored.chain(sums) {
                        let len = column.size + column.pad;
                        let extent = Extent { offset: column.offset, len, scratch: column.scratch };
                        let child = node.children[column.child as usize];
                        let mut padding = Vec::new();
                        let touched = if column.size > 0 { &mut *touched } else { &mut padding };
                        self.put(planner, child, extent, birth, &bytes[..len as usize], touched);
                    }
                }
            }
            Shape::Root | Shape::Nothing(_) => panic!("no place for data"),
        }
    }

    /// Reads one block the fast way.
    pub fn read(&self, read: &BlockRead) -> Result<Vec<u8>, VdevError> {
        let mut answers = self.tree.read_batch(std::slice::from_ref(read));
        answers.pop().unwrap().map(|bytes| bytes.to_vec())
    }

    /// Reads one block by all means.
    pub fn recover(&self, read: &BlockRead, truth: &[u8]) -> Result<Recovered, VdevError> {
        self.tree.read_recover(read, &mut |bytes| bytes == truth)
    }
}

/// Sum of `data[i] * 2^(index * (k - 1 - i))` in GF(2^8), byte by byte, from logarithms.
fn weighted_sum(data: &[Vec<u8>], index: usize) -> Vec<u8> {
    let mut powers = vec![1u16];
    while powers.len() < 255 {
        let next = powers[powers.len() - 1] << 1;
        powers.push(if next > 255 { next ^ 0x11d } else { next });
    }
    let mut sum = vec![0u8; data[0].len()];
    for (i, column) in data.iter().enumerate() {
        let exponent = index * (data.len() - 1 - i);
        let product: Vec<u8> = (0..256u16)
            .map(|value| match powers.iter().position(|&power| power == value) {
                Some(log) => powers[(log + exponent) % 255] as u8,
                None => 0,
            })
            .collect();
        sum.iter_mut().zip(column).for_each(|(s, &byte)| *s ^= product[usize::from(byte)]);
    }
    sum
}

pub fn block(vdev: u32, offset: u64, size: u64, birth: u64) -> BlockRead {
    BlockRead { vdev, offset, size, birth: Txg(birth) }
}
