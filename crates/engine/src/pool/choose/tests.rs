//! Choices among rings and labels that disagree.

use std::path::Path;

use super::*;
use crate::pool::assemble::{PoolCandidate, assemble};
use crate::pool::testing::{SIZE, Shelf, config, mirror, uberblock, write_label, write_uberblock};
use cenote_format::uberblock::Reflow;

const DEADLINE: Duration = Duration::from_secs(10);

fn candidate(shelf: Shelf) -> PoolCandidate {
    assemble(&shelf.scan()).pop().unwrap()
}

fn run(shelf: Shelf, max_txg: Option<u64>) -> Result<Choice, ChooseError> {
    let candidate = candidate(shelf);
    choose(&candidate.leaves(&candidate.tree), max_txg.map(Txg), DEADLINE)
}

#[test]
fn the_newest_of_all_devices_wins() {
    let (shelf, _) = mirror(7);
    let late = shelf.devices[Path::new("/b")].clone();
    write_uberblock(&late, 3, &uberblock(9, 0));
    let choice = run(shelf, None).unwrap();
    assert_eq!((choice.best.txg, choice.leaf), (Txg(9), Guid(12)));
    assert_eq!(choice.label.unwrap().txg, Some(Txg(7)));
}

#[test]
fn a_limit_rewinds() {
    let (shelf, _) = mirror(7);
    let late = shelf.devices[Path::new("/b")].clone();
    write_uberblock(&late, 3, &uberblock(9, 0));
    let choice = run(shelf, Some(8)).unwrap();
    assert_eq!((choice.best.txg, choice.latest.txg), (Txg(7), Txg(9)));
    let (shelf, _) = mirror(7);
    assert_eq!(run(shelf, Some(6)).unwrap_err(), ChooseError::NoUberblock(Some(Txg(6))));
}

#[test]
fn a_damaged_slot_or_one_of_another_place_is_not_chosen() {
    let (shelf, _) = mirror(7);
    let device = shelf.devices[Path::new("/a")].clone();
    write_uberblock(&device, 0, &uberblock(9, 0));
    let from = label::RING_OFFSET + 9 * 4096;
    let slot = device.read(from, 4096).unwrap();
    device.write(from + label::LABEL_SIZE + 4096, &slot).unwrap();
    let mut torn = slot.to_vec();
    torn[20] ^= 1;
    device.write(from, &torn).unwrap();
    assert_eq!(run(shelf, None).unwrap().best.txg, Txg(7));
}

#[test]
fn labels_newer_than_the_uberblock_are_passed_over() {
    let (shelf, tree) = mirror(7);
    for path in ["/a", "/b"] {
        let device = shelf.devices[Path::new(path)].clone();
        let guid = if path == "/a" { 11 } else { 12 };
        // A crash in the middle of a sync: even labels are of a group no uberblock commits.
        write_label(&device, 0, &config(&tree, guid, 8, 1));
        write_label(&device, 2, &config(&tree, guid, 8, 1));
    }
    let choice = run(shelf, None).unwrap();
    assert_eq!(choice.label.unwrap().txg, Some(Txg(7)));
}

#[test]
fn only_newer_labels_is_no_label() {
    let (shelf, tree) = mirror(7);
    let device = shelf.devices[Path::new("/a")].clone();
    (0..4).for_each(|index| write_label(&device, index, &config(&tree, 11, 8, 1)));
    let labels = read_labels(&*device).unwrap();
    assert!(best_label(&labels, Some(Txg(7))).is_none());
    assert_eq!(best_label(&labels, None).unwrap().config.txg, Some(Txg(8)));
}

#[test]
fn of_leaves_that_hold_the_same_one_with_a_label_is_believed() {
    let (shelf, tree) = mirror(7);
    let device = shelf.devices[Path::new("/a")].clone();
    (0..4).for_each(|index| write_label(&device, index, &config(&tree, 11, 8, 1)));
    for device in shelf.devices.values() {
        write_uberblock(device, 3, &uberblock(7, 0));
    }
    let choice = run(shelf, None).unwrap();
    assert_eq!((choice.leaf, choice.label.unwrap().txg), (Guid(12), Some(Txg(7))));
}

#[test]
fn devices_too_busy_to_say_are_not_devices_without_labels() {
    let (shelf, _) = mirror(7);
    let devices = shelf.devices.clone();
    let candidate = candidate(shelf);
    let leaves = candidate.leaves(&candidate.tree);
    let busy = |path: &str, ranges: Vec<_>| devices[Path::new(path)].hold_reads(ranges);
    let config = label::CONFIG_OFFSET..label::CONFIG_OFFSET + label::CONFIG_SIZE as u64;
    busy("/a", vec![config.clone()]);
    let choice = choose(&leaves, None, Duration::from_millis(300)).unwrap();
    assert_eq!((choice.leaf, choice.label.unwrap().txg), (Guid(12), Some(Txg(7))));
    busy("/b", vec![config]);
    let said = choose(&leaves, None, Duration::from_millis(300)).unwrap_err();
    assert_eq!(said, ChooseError::NoAnswer(2, Duration::from_millis(300)));
    busy("/a", Vec::new());
    busy("/b", Vec::new());
}

#[test]
fn rewinding_across_an_expansion_is_refused() {
    let (shelf, _) = mirror(7);
    let device = shelf.devices[Path::new("/a")].clone();
    let mut newer = uberblock(9, 0);
    newer.reflow = Reflow(1 << 20);
    write_uberblock(&device, 0, &newer);
    assert_eq!(run(shelf, Some(8)).unwrap_err(), ChooseError::ReflowChanged);
}

#[test]
fn one_unreadable_ring_leaves_three() {
    let (shelf, _) = mirror(7);
    for device in shelf.devices.values() {
        device.fail_range(label::RING_OFFSET..label::RING_OFFSET + 4096);
    }
    assert_eq!(run(shelf, None).unwrap().best.txg, Txg(7));
    let (shelf, _) = mirror(7);
    let candidate = candidate(shelf);
    let leaves = candidate.leaves(&candidate.tree);
    assert_eq!(leaves[0].ashift, Some(12));
    let unknown: Vec<_> = read_uberblocks(&*leaves[0].device, None).unwrap();
    assert_eq!(unknown.len(), 4);
    assert_eq!(leaves[0].device.size(), SIZE as u64);
}
