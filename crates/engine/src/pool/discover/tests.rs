//! Scans of simulated and real files.

use std::io::Write;

use super::*;
use crate::pool::testing::{SIZE, config, leaf, mirror, top, write_label, write_labels};
use cenote_format::VdevKind;

#[test]
fn labelled_devices_are_found_and_others_are_not() {
    let (mut shelf, _) = mirror(7);
    shelf.add("/blank");
    let scan = shelf.scan();
    assert_eq!(scan.devices.iter().map(|d| d.guid().0).collect::<Vec<_>>(), [11, 12]);
    assert!(scan.problems.is_empty());
    let found = &scan.devices[0];
    assert_eq!(found.quality(), 4);
    assert!(found.labels.iter().all(|label| label.verified));
    assert_eq!(found.path(Some("/elsewhere")), Path::new("/a"));
}

#[test]
fn a_label_at_the_wrong_place_is_found_but_not_verified() {
    let (shelf, tree) = mirror(7);
    let device = shelf.devices[Path::new("/a")].clone();
    let start = label::CONFIG_OFFSET;
    let first = device.read(start, label::CONFIG_SIZE).unwrap();
    device.write(start + label::LABEL_SIZE, &first).unwrap();
    let scan = shelf.scan();
    let verified: Vec<_> = scan.devices[0].labels.iter().map(|l| l.verified).collect();
    assert_eq!(verified, [true, false, true, true]);
    assert_eq!(tree.guid, Guid(10));
}

#[test]
fn a_removed_device_does_not_count() {
    let (mut shelf, tree) = mirror(7);
    let device = shelf.add("/c");
    write_labels(&device, &config(&tree, 13, 0, 1));
    assert_eq!(shelf.scan().devices.len(), 2);
}

#[test]
fn the_first_counting_label_names_the_device() {
    let (shelf, _) = mirror(7);
    let device = shelf.devices[Path::new("/a")].clone();
    let other = top(VdevKind::File, 0, 0, vec![leaf(0, 99, "/x")]);
    write_label(&device, 2, &config(&other, 99, 50, 1));
    write_label(&device, 0, &config(&other, 98, 0, 1));
    let scan = shelf.scan();
    assert_eq!(scan.devices[0].guid(), Guid(11));
    assert_eq!(scan.devices[0].quality(), 2);
}

#[test]
fn a_device_that_fails_is_a_problem_and_hides_no_other() {
    let (shelf, _) = mirror(7);
    shelf.devices[Path::new("/a")].fail_range(0..SIZE as u64);
    let scan = shelf.scan();
    assert_eq!(scan.devices.iter().map(|d| d.guid().0).collect::<Vec<_>>(), [12]);
    assert_eq!(scan.problems.len(), 1);
    assert_eq!(scan.problems[0].path, Path::new("/a"));
}

#[test]
fn a_device_that_does_not_answer_costs_its_deadline_once() {
    let (shelf, _) = mirror(7);
    shelf.devices[Path::new("/a")].set_delay(Duration::from_secs(5));
    let opener: Arc<dyn Opener> = Arc::new(shelf);
    let mut options = ScanOptions::new(vec!["/".into()]);
    options.deadline = Duration::from_millis(200);
    let scan = scan(&opener, &options);
    assert_eq!(scan.devices.iter().map(|d| d.guid().0).collect::<Vec<_>>(), [12]);
    assert!(scan.problems[0].reason.contains("no answer"));
}

#[test]
fn two_names_of_one_file_are_one_device() {
    let directory = tempfile::tempdir().unwrap();
    let (shelf, _) = mirror(7);
    let head = shelf.devices[Path::new("/a")].read(0, 1 << 20).unwrap();
    let path = directory.path().join("disk");
    let mut file = std::fs::File::create(&path).unwrap();
    file.write_all(&head).unwrap();
    file.set_len(SIZE as u64).unwrap();
    let link = directory.path().join("alias");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    std::fs::write(directory.path().join("text"), "not a device").unwrap();
    let opener: Arc<dyn Opener> = Arc::new(FileOpener { mode: Mode::ReadOnly });
    let missing = directory.path().join("missing");
    let places = vec![directory.path().into(), path.clone(), missing.clone()];
    let scan = scan(&opener, &ScanOptions::new(places));
    assert_eq!(scan.devices.len(), 1);
    assert_eq!(scan.devices[0].paths, [link, path.clone()]);
    assert_eq!(scan.devices[0].path(path.to_str()), path);
    assert_eq!(scan.problems.iter().map(|p| p.path.clone()).collect::<Vec<_>>(), [missing]);
}
