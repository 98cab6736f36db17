//! Writing labels and uberblocks.
//!
//! Chapter 01, sections 2 to 8. Invariant: at every moment half the labels of a device agree with
//! an uberblock that is on it: labels 0 and 2, flush, uberblocks, flush, labels 1 and 3, flush. A
//! group counts as written only when every top-level vdev has its uberblock.

use std::collections::HashSet;

use bytes::Bytes;
use cenote_codec::checksum::{Algorithm, Width, WordOrder, seal_embedded};
use cenote_format::config::{PoolConfig, VdevConfig};
use cenote_format::label::{
    self, BOOT_ENV_OFFSET, BOOT_ENV_SIZE, CONFIG_OFFSET, LABEL_SIZE, LABELS,
};
use cenote_format::uberblock::Uberblock;
use cenote_format::{Guid, ObjectId};

use crate::vdev::{LeafDevice, LeafWrite, VdevTree};
use crate::{Error, ErrorKind, Result};

/// Puts checksum and place into the trailer of a block of a label at byte `offset` of its device.
fn sealed(mut block: Vec<u8>, offset: u64) -> Result<Bytes> {
    let verifier = [offset, 0, 0, 0];
    seal_embedded(&mut block, Algorithm::Label, &verifier, WordOrder::Little, Width::Full)
        .map_err(|error| Error::corrupt(error.to_string()))?;
    Ok(Bytes::from(block))
}

fn offset(leaf: &LeafDevice, index: usize) -> Result<u64> {
    label::label_offset(leaf.device.size(), index).ok_or_else(|| {
        let path = leaf.device.path();
        Error::invalid(format!("{} is too small for labels", path.display()))
    })
}

/// What the label of a leaf holds: the pool, and the leaf's own top-level vdev.
fn leaf_config(pool: &PoolConfig, top: &VdevConfig, leaf: Guid) -> PoolConfig {
    let tree = pool.vdev_tree.as_ref();
    let holes = tree.map(VdevConfig::children).unwrap_or_default().iter();
    let holes = holes.filter(|top| top.is_hole).filter_map(|top| top.id).collect();
    PoolConfig {
        top_guid: Some(top.guid),
        guid: Some(leaf),
        has_per_vdev_zaps: false,
        holes,
        is_log: top.top.is_some_and(|top| top.is_log),
        vdev_tree: Some(without_zaps(top.clone())),
        ..pool.clone()
    }
}

/// A label does not tell the numbers of the vdevs' ZAPs.
fn without_zaps(mut node: VdevConfig) -> VdevConfig {
    (node.leaf_zap, node.top_zap, node.root_zap) = (None, None, None);
    node.dirty_time_log = node.dirty_time_log.filter(|log| *log != ObjectId(0));
    node.children = node.children.map(|all| all.into_iter().map(without_zaps).collect());
    node
}

/// Answers of leaf writes: which top-level vdevs have a leaf that took all of them.
struct Taken {
    good: HashSet<u32>,
    failed: HashSet<Guid>,
}

fn write(
    vdevs: &VdevTree,
    leaves: &[LeafDevice],
    blocks: impl Fn(&LeafDevice) -> Result<Vec<(u64, Bytes)>>,
) -> Result<Taken> {
    let (mut writes, mut owners) = (Vec::new(), Vec::new());
    for (index, leaf) in leaves.iter().enumerate() {
        for (offset, data) in blocks(leaf)? {
            writes.push(LeafWrite { leaf: leaf.guid, offset, data });
            owners.push(index);
        }
    }
    let mut failed = HashSet::new();
    for (index, answer) in owners.into_iter().zip(vdevs.write_leaves(writes, false)) {
        if let (Err(error), Some(leaf)) = (answer, leaves.get(index)) {
            tracing::warn!(device = %leaf.device.path().display(), %error, "label not written");
            failed.insert(leaf.guid);
        }
    }
    let guids: Vec<Guid> = leaves.iter().map(|leaf| leaf.guid).collect();
    for (guid, answer) in guids.iter().zip(vdevs.flush_leaves(&guids, false)) {
        if let Err(error) = answer {
            tracing::warn!(%error, "label not flushed");
            failed.insert(*guid);
        }
    }
    let taken = leaves.iter().filter(|leaf| !failed.contains(&leaf.guid));
    Ok(Taken { good: taken.map(|leaf| leaf.top).collect(), failed })
}

/// Every top-level vdev with devices must have one that took the write.
fn expect_all(leaves: &[LeafDevice], taken: &Taken) -> Result<()> {
    match leaves.iter().find(|leaf| !taken.good.contains(&leaf.top)) {
        None => Ok(()),
        Some(leaf) => {
            let reason = format!("no device of vdev {} took the label", leaf.top);
            Err(Error::new(ErrorKind::Io, reason))
        }
    }
}

fn uberblocks(vdevs: &VdevTree, uberblock: &Uberblock) -> Result<Taken> {
    let leaves = vdevs.devices();
    let taken = write(vdevs, &leaves, |leaf| {
        let ashift = vdevs.ashift(leaf.top).unwrap_or(9);
        let shift = label::slot_shift(ashift.into());
        let slot = label::sync_slot(shift, uberblock.txg.0, false, false);
        let within = label::slot_offset(shift, slot)
            .ok_or_else(|| Error::corrupt("an uberblock beyond its ring"))?;
        (0..LABELS)
            .map(|index| {
                let at = offset(leaf, index)? + within;
                let mut block = uberblock.encode().to_vec();
                block.resize(1 << shift, 0);
                Ok((at, sealed(block, at)?))
            })
            .collect()
    })?;
    expect_all(&leaves, &taken)?;
    Ok(taken)
}

/// Writes the uberblock alone, into its slot of every label.
pub fn write_uberblock(vdevs: &VdevTree, uberblock: &Uberblock) -> Result<()> {
    uberblocks(vdevs, uberblock).map(drop)
}

/// Writes all labels of all leaves, and the uberblock between them. `config` is the pool's, with
/// the whole tree.
pub fn write_labels(vdevs: &VdevTree, config: &PoolConfig, uberblock: &Uberblock) -> Result<()> {
    let leaves = vdevs.devices();
    let tree = config.vdev_tree.as_ref();
    let tree = tree.ok_or_else(|| Error::corrupt("a configuration without vdevs"))?;
    let half = |indexes: [usize; 2]| {
        write(vdevs, &leaves, |leaf| {
            let top = tree.children().get(leaf.top as usize);
            let top = top.ok_or_else(|| Error::corrupt("a leaf of a vdev that is not there"))?;
            let list = leaf_config(config, top, leaf.guid).to_nvlist();
            let block = label::encode_config(&list)?;
            indexes
                .iter()
                .map(|&index| {
                    let at = offset(leaf, index)? + CONFIG_OFFSET;
                    Ok((at, sealed(block.clone(), at)?))
                })
                .collect()
        })
    };
    let even = half([0, 2])?;
    expect_all(&leaves, &even)?;
    uberblocks(vdevs, uberblock)?;
    let odd = half([1, 3])?;
    expect_all(&leaves, &odd)?;
    if !even.failed.is_empty() || !odd.failed.is_empty() {
        tracing::warn!("labels of some devices are old; they are behind the others");
    }
    Ok(())
}

/// Clears what older pools left on new devices: labels, uberblocks, boot environments.
pub fn initialise(vdevs: &VdevTree) -> Result<()> {
    let leaves = vdevs.devices();
    let taken = write(vdevs, &leaves, |leaf| {
        let mut blocks = Vec::new();
        for index in 0..LABELS {
            let start = offset(leaf, index)?;
            let mut blank = vec![0; LABEL_SIZE as usize];
            let at = start + BOOT_ENV_OFFSET;
            let environment = sealed(vec![0; BOOT_ENV_SIZE], at)?;
            let within = BOOT_ENV_OFFSET as usize;
            if let Some(target) = blank.get_mut(within..within + BOOT_ENV_SIZE) {
                target.copy_from_slice(&environment);
            }
            blocks.push((start, Bytes::from(blank)));
        }
        Ok(blocks)
    })?;
    match leaves.iter().find(|leaf| taken.failed.contains(&leaf.guid)) {
        None => Ok(()),
        Some(leaf) => {
            let path = leaf.device.path();
            let reason = format!("cannot write to {}", path.display());
            Err(Error::new(ErrorKind::Io, reason))
        }
    }
}
