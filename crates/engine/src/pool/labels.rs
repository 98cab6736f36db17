//! Writing labels and uberblocks.
//!
//! Chapter 01, sections 3, 9 and 10. Invariant: at every moment between two flushes the devices
//! hold an uberblock and, on the same leaf, a label no newer than it that goes with it: even labels
//! are durable before the uberblock that needs them is written, odd ones are left alone until it
//! is durable. Where a power loss damaged the odd ones they are made good first: the even ones of such
//! a leaf are all it has.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use cenote_codec::checksum::{Algorithm, Width, WordOrder, seal_embedded};
use cenote_device::{DEFAULT_DEADLINE, Device, DeviceError, WriteOp, flush_batch, write_batch};
use cenote_format::bytes::ByteOrder;
use cenote_format::config::PoolConfig;
use cenote_format::label;
use cenote_format::uberblock::{ScratchState, Uberblock};
use cenote_format::{Guid, Txg};
use std::sync::Arc;

use super::found_labels::{is_verified, read_labels};
use crate::vdev::{LeafDevice, LeafWrite, VdevTree};
use crate::{Error, ErrorKind, Result};

/// The labels written before the uberblock.
const EVEN: [usize; 2] = [0, 2];
/// The labels written after it.
const ODD: [usize; 2] = [1, 3];
/// All of them.
const ALL: [usize; 4] = [0, 1, 2, 3];

/// Writes the labels of every leaf, which tell of `tree` and what `config` has beside vdevs, and
/// `uberblock` as the newest of the pool: even labels, uberblock, odd labels, each made durable before the
/// next. The labels carry the uberblock's transaction group. What the group consists of must be
/// durable before.
///
/// Leaves may fail as long as one of each top-level vdev (logs excepted) took everything;
/// otherwise [`ErrorKind::Io`], and calling it again with the same arguments does no harm.
pub fn write_labels(tree: &VdevTree, config: &PoolConfig, uberblock: &Uberblock) -> Result<()> {
    let config = PoolConfig { txg: Some(uberblock.txg), ..config.clone() };
    let mut blocks: Vec<(Guid, Vec<u8>)> = Vec::new();
    for leaf in tree.devices() {
        let own = tree.topology().label(&config, leaf.guid).ok_or_else(|| {
            Error::corrupt(format!("device {} is not in the pool's configuration", leaf.guid))
        })?;
        let block = label::encode_config(&own.to_nvlist())
            .map_err(|error| Error::invalid(format!("the configuration is too large: {error}")))?;
        blocks.push((leaf.guid, block));
    }
    let step = |indexes: [usize; 2]| {
        write_step(tree, "labels", &|leaf| {
            let block = blocks.iter().find(|(guid, _)| *guid == leaf.guid).map(|(_, block)| block);
            let block = block.map(Vec::as_slice).unwrap_or_default();
            sealed(leaf, &indexes, label::CONFIG_OFFSET, block, WordOrder::Little)
        })
    };
    mend_odd(tree, uberblock.txg)?;
    step(EVEN)?;
    write_uberblock(tree, uberblock)?;
    step(ODD)
}

/// Gives leaves none of whose odd labels can be believed what their even ones say, before those
/// are overwritten by group `next`. What a leaf does not take is left as it is.
fn mend_odd(tree: &VdevTree, next: Txg) -> Result<()> {
    let leaves = tree.devices();
    let mut writes = Vec::new();
    let odd = believed(tree, &leaves, ODD, next);
    let damaged: Vec<LeafDevice> = leaves
        .into_iter()
        .zip(odd)
        .filter(|(_, odd)| odd.is_none())
        .map(|(leaf, _)| leaf)
        .collect();
    let even = believed(tree, &damaged, EVEN, next);
    for (leaf, block) in damaged.iter().zip(even) {
        let Some(block) = block else { continue };
        tracing::warn!(device = %leaf.device.path().display(), "labels 1 and 3 are damaged, mended");
        writes.extend(sealed(leaf, &ODD, label::CONFIG_OFFSET, &block, WordOrder::Little)?);
    }
    if writes.is_empty() {
        return Ok(());
    }
    let written: BTreeSet<Guid> = writes.iter().map(|write| write.leaf).collect();
    tree.write_leaves(writes, false);
    tree.flush_leaves(&written.into_iter().collect::<Vec<_>>(), false);
    Ok(())
}

/// For each of `leaves`, the block of the newest label among `indexes` that is whole, its own, and
/// of a group before `next`.
fn believed(
    tree: &VdevTree,
    leaves: &[LeafDevice],
    indexes: [usize; 2],
    next: Txg,
) -> Vec<Option<Bytes>> {
    let place = |leaf: &LeafDevice, index| {
        let start = label::label_offset(leaf.device.size(), index)?;
        Some((leaf.guid, start + label::CONFIG_OFFSET))
    };
    let places: Vec<(Guid, u64)> = leaves
        .iter()
        .flat_map(|leaf| indexes.into_iter().filter_map(move |index| place(leaf, index)))
        .collect();
    let blocks = tree.read_leaves(&places, label::CONFIG_SIZE);
    let mut best: BTreeMap<Guid, (Txg, Bytes)> = BTreeMap::new();
    for ((guid, offset), block) in places.into_iter().zip(blocks) {
        let Ok(block) = block else { continue };
        let config = label::decode_config(&block).and_then(PoolConfig::from_nvlist);
        let Ok(config) = config else { continue };
        let txg = config.txg.unwrap_or_default();
        let newer = best.get(&guid).is_none_or(|(known, _)| txg > *known);
        if is_verified(&block, offset) && config.guid == Some(guid) && txg < next && newer {
            best.insert(guid, (txg, block));
        }
    }
    leaves.iter().map(|leaf| best.remove(&leaf.guid).map(|(_, block)| block)).collect()
}

/// Writes `uberblock` alone into its slot of all labels of every leaf, and makes it durable.
/// Otherwise as [`write_labels`].
pub fn write_uberblock(tree: &VdevTree, uberblock: &Uberblock) -> Result<()> {
    write_step(tree, "an uberblock", &|leaf| uberblock_on(tree, leaf, uberblock))?;
    tree.opener().committed(uberblock);
    Ok(())
}

/// Writes the uberblock a pool is opened at to all leaves that miss nothing, before what it freed is
/// given out again: a power loss between those writes may have left it on some of them only, and the
/// state before, which the others have, will not be whole any more. What a leaf does not take is left.
pub fn spread_uberblock(tree: &VdevTree, uberblock: &Uberblock) -> Result<()> {
    let (_, failed) = write_to_whole_leaves(tree, uberblock)?;
    if let Some(error) = failed {
        tracing::warn!(%error, "the newest uberblock is not on all devices");
    }
    Ok(())
}

/// Writes the uberblock that takes a pool back to its checkpoint to all leaves that miss nothing: from then on the
/// newer state, which will be written over, is found no more (chapter 01, section 13.4).
///
/// # Errors
/// If no leaf takes it.
pub fn write_checkpoint(tree: &VdevTree, uberblock: &Uberblock) -> Result<()> {
    match write_to_whole_leaves(tree, uberblock)? {
        (0, error) => {
            let why = error.map_or_else(|| "no device takes it".to_owned(), |why| why.to_string());
            let reason = format!("the checkpoint does not become the pool's state: {why}");
            Err(Error::new(ErrorKind::Io, reason).with_advice("restore the devices and try again"))
        }
        (_, Some(error)) => {
            tracing::warn!(%error, "the uberblock of the checkpoint is not on all devices");
            Ok(())
        }
        (_, None) => Ok(()),
    }
}

/// Writes an uberblock to all leaves that miss nothing, or where each misses something to all: how many have it, and
/// what another did not take.
fn write_to_whole_leaves(
    tree: &VdevTree,
    uberblock: &Uberblock,
) -> Result<(usize, Option<DeviceError>)> {
    let missed: BTreeSet<Guid> = tree.missed().into_iter().map(|(leaf, _)| leaf).collect();
    let mut leaves = tree.devices();
    if !leaves.iter().all(|leaf| missed.contains(&leaf.guid)) {
        leaves.retain(|leaf| !missed.contains(&leaf.guid));
    }
    let (mut failed, mut first) = (BTreeSet::new(), None);
    for (leaf, answer) in put_uberblock(tree, &leaves, uberblock)? {
        if let Err(error) = answer {
            failed.insert(leaf);
            first.get_or_insert(error);
        }
    }
    Ok((leaves.len().saturating_sub(failed.len()), first))
}

/// Writes `uberblock` to all leaves, beside one of the same group: all of `needed` must take it.
pub fn rewrite_uberblock(tree: &VdevTree, uberblock: &Uberblock, needed: &[Guid]) -> Result<()> {
    let leaves = tree.devices();
    for (leaf, answer) in put_uberblock(tree, &leaves, uberblock)? {
        if let (true, Err(error)) = (needed.contains(&leaf), answer) {
            let reason = format!("device {leaf} does not take an uberblock: {error}");
            return Err(Error::new(ErrorKind::Io, reason));
        }
    }
    match needed.iter().find(|leaf| leaves.iter().all(|own| own.guid != **leaf)) {
        Some(leaf) => Err(Error::new(ErrorKind::Io, format!("device {leaf} is away"))),
        None => Ok(()),
    }
}

/// Writes an uberblock to these leaves and makes it durable: what each said to the writes and the flush.
fn put_uberblock(
    tree: &VdevTree,
    leaves: &[LeafDevice],
    uberblock: &Uberblock,
) -> Result<Vec<(Guid, std::result::Result<(), DeviceError>)>> {
    let mut writes = Vec::new();
    for leaf in leaves {
        writes.extend(uberblock_on(tree, leaf, uberblock)?);
    }
    let of: Vec<Guid> = writes.iter().map(|write| write.leaf).collect();
    let mut answers: Vec<_> = of.into_iter().zip(tree.write_leaves(writes, false)).collect();
    let all: Vec<Guid> = leaves.iter().map(|leaf| leaf.guid).collect();
    answers.extend(all.iter().copied().zip(tree.flush_leaves(&all, false)));
    Ok(answers)
}

/// An uberblock in its slot of all labels of a leaf.
fn uberblock_on(
    tree: &VdevTree,
    leaf: &LeafDevice,
    uberblock: &Uberblock,
) -> Result<Vec<LeafWrite>> {
    let order = match uberblock.order {
        ByteOrder::Little => WordOrder::Little,
        ByteOrder::Big => WordOrder::Big,
    };
    let multihost = uberblock.has_activity() && uberblock.activity_delay != 0;
    let scratch = uberblock.reflow.scratch() == ScratchState::Valid;
    let shift = label::slot_shift(u64::from(tree.ashift(leaf.top).unwrap_or(0)));
    let slot = label::sync_slot(shift, uberblock.txg.0, multihost, scratch);
    let offset =
        label::slot_offset(shift, slot).ok_or_else(|| Error::bug("the uberblock has no slot"))?;
    let mut block = uberblock.encode().to_vec();
    block.resize(1 << shift, 0);
    sealed(leaf, &ALL, offset, &block, order)
}

/// Writes `uberblock` into the last slot of one label of `leaf`, at random, without flushing: an
/// activity write.
pub fn write_activity(tree: &VdevTree, leaf: &LeafDevice, uberblock: &Uberblock) -> Result<()> {
    let order = match uberblock.order {
        ByteOrder::Little => WordOrder::Little,
        ByteOrder::Big => WordOrder::Big,
    };
    let shift = label::slot_shift(u64::from(tree.ashift(leaf.top).unwrap_or(0)));
    let offset = label::slot_offset(shift, label::slot_count(shift).saturating_sub(1))
        .ok_or_else(|| Error::bug("the uberblock has no slot"))?;
    let mut block = uberblock.encode().to_vec();
    block.resize(1 << shift, 0);
    let index = getrandom::u32().unwrap_or(0) as usize % ALL.len();
    let writes = sealed(leaf, &[index], offset, &block, order)?;
    for answer in tree.write_leaves(writes, false) {
        answer.map_err(|error| {
            Error::new(ErrorKind::Io, format!("{}: {error}", leaf.device.path().display()))
        })?;
    }
    Ok(())
}

/// Clears what was on new devices before they become a pool's: labels, uberblocks, the signatures
/// of other filesystems in the first 8 KiB and in the unused tail. The boot environment becomes an
/// empty one. Fails if any device does.
pub fn initialise(tree: &VdevTree) -> Result<()> {
    let devices: Vec<Arc<dyn Device>> =
        tree.devices().into_iter().map(|leaf| leaf.device).collect();
    let blank = vec![0; label::LABEL_SIZE as usize];
    write_new(&devices, &|_| Ok(blank.clone()))
}

/// Writes fresh labels on devices about to join a pool (chapter 01, section 3): `config` tells
/// what goes into the label of each (with transaction group 0, or that of a spare or cache
/// device), `uberblock` is the pool's newest, copied as a template that cannot be loaded.
pub fn initialise_devices(
    devices: &[(Arc<dyn Device>, PoolConfig)],
    uberblock: &Uberblock,
) -> Result<()> {
    let template = Uberblock { txg: Txg(0), ..uberblock.clone() }.encode();
    let open: Vec<Arc<dyn Device>> = devices.iter().map(|(device, _)| device.clone()).collect();
    write_new(&open, &|index| {
        let config = devices.get(index).map(|(_, config)| config.to_nvlist()).unwrap_or_default();
        let mut image = vec![0; label::LABEL_SIZE as usize];
        put(&mut image, label::CONFIG_OFFSET, &label::encode_config(&config)?)?;
        put(&mut image, label::RING_OFFSET, &template)?;
        Ok(image)
    })
}

/// Makes a device forget that it was a pool's (`zpool labelclear`): clears every label that can be
/// unpacked, its configuration and uberblocks. The number cleared; 0 if there is none.
pub fn clear_labels(device: &Arc<dyn Device>) -> Result<usize> {
    let failed = |error: DeviceError| {
        Error::new(ErrorKind::Io, format!("{}: {error}", device.path().display()))
    };
    let labels = read_labels(&**device).map_err(failed)?;
    let zeros = Bytes::from(vec![0; (label::LABEL_SIZE - label::CONFIG_OFFSET) as usize]);
    let mut ops = Vec::new();
    for found in labels.iter().filter(|found| found.config.guid.is_some()) {
        if let Some(start) = label::label_offset(device.size(), found.index) {
            let offset = start + label::CONFIG_OFFSET;
            ops.push(WriteOp { device: device.clone(), offset, data: zeros.clone() });
        }
    }
    let count = ops.len();
    for answer in write_batch(ops, DEFAULT_DEADLINE) {
        answer.map_err(failed)?;
    }
    for answer in flush_batch(std::slice::from_ref(device), DEFAULT_DEADLINE) {
        answer.map_err(failed)?;
    }
    Ok(count)
}

/// `block` with its trailer, at `offset` inside each of the labels `indexes` of a leaf.
fn sealed(
    leaf: &LeafDevice,
    indexes: &[usize],
    offset: u64,
    block: &[u8],
    order: WordOrder,
) -> Result<Vec<LeafWrite>> {
    let mut writes = Vec::with_capacity(indexes.len());
    for &index in indexes {
        let start = label::label_offset(leaf.device.size(), index)
            .ok_or_else(|| Error::corrupt("a device is too small for labels"))?;
        let offset = start + offset;
        let mut data = block.to_vec();
        seal(&mut data, offset, order)?;
        writes.push(LeafWrite { leaf: leaf.guid, offset, data: data.into() });
    }
    Ok(writes)
}

fn seal(block: &mut [u8], offset: u64, order: WordOrder) -> Result<()> {
    seal_embedded(block, Algorithm::Label, &[offset, 0, 0, 0], order, Width::Full)
        .map_err(|error| Error::bug(error.to_string()))
}

/// Writes what `make` gives for each leaf and flushes it; tried a second time, on devices that
/// were given up as well, if too few leaves took it.
fn write_step(
    tree: &VdevTree,
    what: &str,
    make: &dyn Fn(&LeafDevice) -> Result<Vec<LeafWrite>>,
) -> Result<()> {
    let leaves = tree.devices();
    let mut writes: Vec<LeafWrite> = Vec::new();
    for leaf in &leaves {
        writes.extend(make(leaf)?);
    }
    match write_once(tree, what, &leaves, writes.clone(), false) {
        Ok(()) => Ok(()),
        Err(_) => write_once(tree, what, &leaves, writes, true),
    }
}

fn write_once(
    tree: &VdevTree,
    what: &str,
    leaves: &[LeafDevice],
    writes: Vec<LeafWrite>,
    desperate: bool,
) -> Result<()> {
    let targets: Vec<Guid> = writes.iter().map(|write| write.leaf).collect();
    let mut failure: Option<(Guid, DeviceError)> = None;
    let mut written: BTreeSet<Guid> = BTreeSet::new();
    for (guid, answer) in targets.into_iter().zip(tree.write_leaves(writes, desperate)) {
        match answer {
            Ok(()) => {
                written.insert(guid);
            }
            Err(error) => failure = Some((guid, error)),
        }
    }
    let flushed: Vec<Guid> = written.iter().copied().collect();
    for (guid, answer) in flushed.iter().zip(tree.flush_leaves(&flushed, desperate)) {
        if let Err(error) = answer {
            written.remove(guid);
            failure = Some((*guid, error));
        }
    }
    if failure.is_some() {
        tree.note_unspread();
    }
    for vdev in 0..tree.top_count() {
        let Some(config) = tree.topology().top(vdev) else { continue };
        let is_log = config.top.is_some_and(|top| top.is_log);
        let took = |leaf: &LeafDevice| leaf.top == vdev && written.contains(&leaf.guid);
        if !config.kind.is_concrete() || is_log || leaves.iter().any(took) {
            continue;
        }
        let failure = failure.as_ref().and_then(|(guid, error)| {
            let leaf = leaves.iter().find(|leaf| leaf.guid == *guid && leaf.top == vdev)?;
            Some(format!(": {}: {error}", leaf.device.path().display()))
        });
        let why = failure.unwrap_or_default();
        let reason = format!("no device of top-level vdev {vdev} takes {what}{why}");
        return Err(Error::new(ErrorKind::Io, reason));
    }
    Ok(())
}

/// Writes whole labels, with the trailers of boot environment, configuration and ring where those
/// hold something, and clears the unused tails. `image` gives the label of each device.
fn write_new(devices: &[Arc<dyn Device>], image: &dyn Fn(usize) -> Result<Vec<u8>>) -> Result<()> {
    let mut ops: Vec<WriteOp> = Vec::new();
    for (index, device) in devices.iter().enumerate() {
        let image = image(index)?;
        for label in ALL {
            let start = label::label_offset(device.size(), label).ok_or_else(|| {
                let reason = format!("{} is too small", device.path().display());
                Error::invalid(reason)
            })?;
            let mut data = image.clone();
            seal_part(&mut data, start, label::BOOT_ENV_OFFSET, label::BOOT_ENV_SIZE)?;
            for (offset, size) in [
                (label::CONFIG_OFFSET, label::CONFIG_SIZE),
                (label::RING_OFFSET, label::RING_SIZE as usize),
            ] {
                let part = part_of(&mut data, offset, size)?;
                if part.iter().any(|byte| *byte != 0) {
                    seal(part, start + offset, WordOrder::Little)?;
                }
            }
            ops.push(WriteOp { device: device.clone(), offset: start, data: data.into() });
        }
        let tail = label::usable_size(device.size());
        let data = Bytes::from(vec![0; device.size().saturating_sub(tail) as usize]);
        ops.push(WriteOp { device: device.clone(), offset: tail, data });
    }
    let names: Vec<_> = ops.iter().map(|op| op.device.path()).collect();
    for (path, answer) in names.iter().zip(write_batch(ops, DEFAULT_DEADLINE)) {
        answer
            .map_err(|error| Error::new(ErrorKind::Io, format!("{}: {error}", path.display())))?;
    }
    for (device, answer) in devices.iter().zip(flush_batch(devices, DEFAULT_DEADLINE)) {
        answer.map_err(|error| {
            Error::new(ErrorKind::Io, format!("{}: {error}", device.path().display()))
        })?;
    }
    Ok(())
}

fn part_of(image: &mut [u8], offset: u64, size: usize) -> Result<&mut [u8]> {
    let start = usize::try_from(offset).ok();
    let range = start.and_then(|start| Some(start..start.checked_add(size)?));
    range
        .and_then(|range| image.get_mut(range))
        .ok_or_else(|| Error::bug("a part lies outside its label"))
}

fn seal_part(image: &mut [u8], start: u64, offset: u64, size: usize) -> Result<()> {
    seal(part_of(image, offset, size)?, start + offset, WordOrder::Little)
}

fn put(image: &mut [u8], offset: u64, data: &[u8]) -> Result<()> {
    part_of(image, offset, data.len())?.copy_from_slice(data);
    Ok(())
}

#[cfg(test)]
mod tests;
