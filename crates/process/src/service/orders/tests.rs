//! What orders refuse, and which mounts they concern.

use cenote_control::changes::RenameRequest;
use cenote_control::plan::PropertySetting;
use cenote_control::report::{DatasetKind, DatasetReport, Source};

use super::create::missing_parents;
use super::fits::does_not_fit;
use super::remount::affected;
use super::rename::snapshots_of_all;

fn dataset(name: &str, kind: DatasetKind, source: Source) -> DatasetReport {
    let mut dataset = DatasetReport { name: name.into(), kind, ..DatasetReport::default() };
    dataset.properties.set("mountpoint", "/x", source);
    dataset
}

#[test]
fn parents_are_found_missing() {
    let all = vec![
        dataset("tank", DatasetKind::Filesystem, Source::Default),
        dataset("tank/vol", DatasetKind::Volume, Source::Default),
    ];
    assert_eq!(missing_parents(&all, "tank/a"), Ok(vec![]));
    let two = vec!["tank/a".to_owned(), "tank/a/b".to_owned()];
    assert_eq!(missing_parents(&all, "tank/a/b/c"), Ok(two));
    assert_eq!(missing_parents(&all, "tank/vol/x"), Err("parent is not a filesystem"));
    assert_eq!(missing_parents(&all, "nope/x"), Err("missing dataset name"));
}

#[test]
fn a_mountpoint_moves_what_inherits_it() {
    let fs = DatasetKind::Filesystem;
    let all = vec![
        dataset("tank", fs, Source::Local),
        dataset("tank/a", fs, Source::Inherited("tank".into())),
        dataset("tank/a/b", fs, Source::Inherited("tank".into())),
        dataset("tank/a/own", fs, Source::Local),
        dataset("tank/a/own/c", fs, Source::Inherited("tank/a/own".into())),
        dataset("tank/ab", fs, Source::Inherited("tank".into())),
    ];
    let of = |names: &[&str]| -> Vec<String> {
        let names = names.iter().copied().collect();
        affected(&all, &names, "mountpoint").into_iter().collect()
    };
    assert_eq!(of(&["tank/a"]), ["tank/a", "tank/a/b"]);
    assert_eq!(of(&["tank/a/own", "tank/ab"]), ["tank/a/own", "tank/a/own/c", "tank/ab"]);
    assert_eq!(of(&["tank", "tank/a/own"]).len(), 6);
    assert_eq!(of(&["tank/a/b", "tank/a/nothing"]), ["tank/a/b"]);
}

/// Recorded from OpenZFS 2.1.11.
#[test]
fn values_that_do_not_fit_are_refused_as_openzfs_does() {
    let mut one = dataset("tank/x", DatasetKind::Filesystem, Source::Default);
    for (name, value) in
        [("used", 2 << 20), ("available", 10 << 20), ("referenced", 1 << 20), ("version", 5)]
    {
        one.properties.set(name, value.to_string(), Source::None);
    }
    let words = |name: &str, value: u64| {
        does_not_fit(&one, &PropertySetting::number(name, value)).map(|(_, words)| words)
    };
    let small = Some("size is less than current used or reserved space".to_owned());
    assert_eq!(words("quota", 1 << 20), small);
    assert_eq!(words("quota", 0), None);
    assert_eq!(words("quota", 2 << 20), None);
    assert_eq!(words("refquota", 1024), small);
    let large = Some("size is greater than available space".to_owned());
    assert_eq!(words("reservation", 100 << 30), large);
    assert_eq!(words("reservation", 11 << 20), None);
    assert_eq!(words("version", 4), Some("Can not downgrade; already at version 5".into()));
    let location = does_not_fit(&one, &PropertySetting::text("keylocation", "prompt"));
    let expected = "keylocation must be 'none' for unencrypted datasets";
    assert_eq!(location.map(|(_, words)| words).as_deref(), Some(expected));
    let mut volume = dataset("tank/v", DatasetKind::Volume, Source::Default);
    volume.properties.set("volblocksize", "8192", Source::None);
    let odd = does_not_fit(&volume, &PropertySetting::number("volsize", 1000));
    let expected = "'volsize' must be a multiple of volume block size (8K)";
    assert_eq!(odd.map(|(_, words)| words).as_deref(), Some(expected));
    volume.properties.set("readonly", "on", Source::Inherited("tank".into()));
    let kept = does_not_fit(&volume, &PropertySetting::number("volsize", 8192));
    assert_eq!(kept.map(|(_, words)| words).as_deref(), Some("dataset is read-only"));
}

#[test]
fn a_recursive_rename_names_every_snapshot() {
    let all = vec![
        dataset("tank@s", DatasetKind::Snapshot, Source::None),
        dataset("tank/a@s", DatasetKind::Snapshot, Source::None),
        dataset("tank/a@t", DatasetKind::Snapshot, Source::None),
    ];
    let rename = RenameRequest {
        from: "tank@s".into(),
        to: "tank@n".into(),
        recursive: true,
        ..RenameRequest::default()
    };
    let pairs = snapshots_of_all(&all, &rename);
    assert_eq!(pairs.len(), 2);
    assert_eq!(pairs[1], ("tank/a@s".to_owned(), "tank/a@n".to_owned()));
}
