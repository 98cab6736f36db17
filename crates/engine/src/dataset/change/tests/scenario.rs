//! Single operations, and what the read side sees of them.

use cenote_format::dsl_dataset::FLAG_UNIQUE_ACCURATE;
use cenote_format::feature;

use super::*;
use crate::ErrorKind;
use crate::dataset::{DatasetName, Table};

fn count(world: &World, name: &str) -> Option<u64> {
    world.change(9, |change| change.feature_count(name)).unwrap()
}

#[test]
fn a_new_pool_has_what_loaders_require() {
    for features in [&[][..], FEATURES] {
        let world = World::new(features);
        world.audit(4);
        let directory = Table::open(&world.mos, OBJECT_DIRECTORY).unwrap().unwrap();
        for name in [
            "root_dataset",
            "config",
            "sync_bplist",
            "creation_version",
            "deflate",
            "history",
            "free_bpobj",
            "features_for_read",
            "features_for_write",
            "feature_descriptions",
        ] {
            assert!(directory.number(name).unwrap().is_some_and(|n| n != 0), "{name}");
        }
        let catalog = world.catalog();
        let root = catalog.root().unwrap();
        let names: Vec<String> = catalog
            .all_children(&root)
            .unwrap()
            .iter()
            .map(|child| child.component().to_owned())
            .collect();
        assert_eq!(names, ["$FREE", "$MOS", "$ORIGIN"]);
        let head = catalog.head(&root).unwrap();
        assert_eq!((head.phys.previous_snapshot_txg, head.phys.creation_txg), (Txg(1), Txg(1)));
        let origin = catalog.origin(&root).unwrap();
        assert!(origin.is_none(), "the empty snapshot is nobody's origin");
        let empty = catalog.dataset_by_id(head.phys.previous_snapshot).unwrap();
        assert_eq!(empty.name.to_string(), "tank/$ORIGIN@$ORIGIN");
        assert_eq!((empty.phys.children, empty.phys.flags), (2, FLAG_UNIQUE_ACCURATE));
        assert!(empty.phys.pointer.is_hole());
        assert_eq!(empty.phys.next_snapshot, empty.directory.phys.head_dataset);
        for table in [empty.phys.next_clones, empty.directory.phys.clones] {
            let clones = Table::open(&world.mos, table).unwrap().unwrap().numbers().unwrap();
            assert_eq!(clones, [(format!("{:x}", head.id.0), head.id.0)]);
        }
        let deadlist = Table::open(&world.mos, head.phys.deadlist).unwrap().unwrap();
        let keys: Vec<String> =
            deadlist.numbers().unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(keys, ["0"]);
    }
}

#[test]
fn features_are_counted() {
    let world = World::full();
    assert_eq!(count(&world, "lz4_compress"), Some(1));
    assert_eq!(count(&world, "async_destroy"), Some(0));
    assert_eq!(count(&world, "blake3"), None);
    let table = Table::open(&world.mos, OBJECT_DIRECTORY).unwrap().unwrap();
    let txgs = table.number("feature_enabled_txg").unwrap().unwrap();
    let txgs = Table::open(&world.mos, ObjectId(txgs)).unwrap().unwrap().numbers().unwrap();
    assert_eq!(count(&world, "enabled_txg"), Some(txgs.len() as u64));
    assert!(txgs.iter().all(|(guid, txg)| feature::by_guid(guid).is_some() && *txg == 4));

    let fs = world.filesystem(5, "fs");
    // The deadlist of a dataset made now shares the empty list.
    assert_eq!(count(&world, "empty_bpobj"), Some(1));
    world
        .change(6, |change| {
            change.activate_feature(fs.dataset, "large_blocks")?;
            change.activate_feature(fs.dataset, "large_blocks")
        })
        .unwrap();
    assert_eq!(
        (count(&world, "large_blocks"), count(&world, "extensible_dataset")),
        (Some(1), Some(1))
    );
    world.change(7, |change| change.create_snapshot(fs.dataset, "s", &[])).unwrap();
    assert_eq!(count(&world, "large_blocks"), Some(2));
    // Head, snapshot, and the directory that notes when snapshots change.
    assert_eq!(count(&world, "extensible_dataset"), Some(3));
    let snapshot = world.catalog().dataset_named("tank/fs@s").unwrap();
    world.change(8, |change| change.destroy_snapshot(snapshot.id, false)).unwrap();
    world.change(9, |change| change.destroy_head(fs.dataset)).unwrap();
    for name in ["large_blocks", "extensible_dataset", "empty_bpobj", "livelist"] {
        assert_eq!(count(&world, name), Some(0), "{name}");
    }
}

#[test]
fn datasets_come_and_go() {
    let world = World::full();
    let before = world.mos.next_object(0).unwrap();
    let fs = world.filesystem(5, "fs");
    let new = NewDataset { parent: fs.directory, name: "a", ..NewDataset::default() };
    let a = world.change(6, |change| change.create_dataset(&new)).unwrap();
    let error = world.change(6, |change| change.create_dataset(&new)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exists);
    let catalog = world.catalog();
    assert_eq!(catalog.dataset_named("tank/fs/a").unwrap().id, a.dataset);
    let paths: Vec<String> = catalog
        .walk(&catalog.root().unwrap())
        .unwrap()
        .into_iter()
        .map(|directory| directory.path)
        .collect();
    assert_eq!(paths, ["tank", "tank/fs", "tank/fs/a"]);
    let busy = world.change(7, |change| change.destroy_head(fs.dataset)).unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Exists);
    world
        .change(8, |change| {
            change.rename_directory(a.directory, world.skeleton.root.directory, "b")
        })
        .unwrap();
    assert_eq!(world.catalog().dataset_named("tank/b").unwrap().id, a.dataset);
    let under_itself =
        world.change(8, |change| change.rename_directory(fs.directory, fs.directory, "x"));
    assert_eq!(under_itself.unwrap_err().kind(), ErrorKind::InvalidArgument);
    world.change(9, |change| change.destroy_head(fs.dataset)).unwrap();
    world.change(9, |change| change.destroy_head(a.dataset)).unwrap();
    world.audit(9);
    let catalog = world.catalog();
    assert!(catalog.children(&catalog.root().unwrap()).unwrap().is_empty());
    assert_eq!(world.mos.next_object(0).unwrap(), before);
    let empty = catalog.dataset_named("tank").unwrap().phys.previous_snapshot;
    assert_eq!(catalog.dataset_by_id(empty).unwrap().phys.children, 2);
}

#[test]
fn renaming_moves_space() {
    let world = World::full();
    let (one, other) = (world.filesystem(5, "one"), world.filesystem(5, "other"));
    let new = NewDataset { parent: one.directory, name: "x", ..NewDataset::default() };
    let x = world.change(6, |change| change.create_dataset(&new)).unwrap();
    world.write(6, x.dataset, &[block(1, 6), block(2, 6)], &[]).unwrap();
    let reserve = PropertyInput::number("reservation", 1 << 20);
    world.change(7, |change| change.set_property(x.dataset, &reserve)).unwrap();
    world.audit(7);
    world.change(8, |change| change.rename_directory(x.directory, other.directory, "y")).unwrap();
    world.audit(8);
    world
        .change(8, |change| {
            assert_eq!(change.directory(one.directory)?.used_bytes, 0);
            assert_eq!(change.directory(other.directory)?.used_bytes, 1 << 20);
            Ok(())
        })
        .unwrap();
}

#[test]
fn reservations_and_quotas() {
    let world = World::full();
    let fs = world.filesystem(5, "fs");
    let set = |txg, name: &str, value| {
        let input = PropertyInput::number(name, value);
        world.change(txg, |change| change.set_property(fs.dataset, &input)).unwrap();
        world.audit(txg);
    };
    set(6, "refreservation", 100 << 12);
    set(6, "reservation", 200 << 12);
    let blocks: Vec<BlockPointer> = (0..50).map(|number| block(number, 7)).collect();
    world.write(7, fs.dataset, &blocks, &[]).unwrap();
    world.audit(7);
    let used = || world.change(9, |change| change.directory(fs.directory)).unwrap();
    assert_eq!(used().used_bytes, 100 << 12);
    assert_eq!(used().used_breakdown.refreservation, 50 << 12);
    // Old blocks are the snapshot's from now on: the reservation is for as many again.
    world.change(8, |change| change.create_snapshot(fs.dataset, "s", &[])).unwrap();
    world.audit(8);
    assert_eq!(used().used_bytes, 150 << 12);
    set(9, "refreservation", 0);
    set(9, "reservation", 0);
    set(9, "quota", 60 << 12);
    assert_eq!((used().used_bytes, used().quota), (50 << 12, 60 << 12));
    let catalog = world.catalog();
    let head = catalog.dataset_named("tank/fs").unwrap();
    let capacity = PoolCapacity { usable: ROOM, slop: 0 };
    assert_eq!(catalog.available(&head, &capacity, 0, 0).unwrap(), 10 << 12);
}

#[test]
fn snapshots_keep_blocks() {
    let world = World::full();
    let fs = world.filesystem(5, "fs");
    let [a, b, c] = [block(1, 6), block(2, 6), block(3, 6)];
    world.write(6, fs.dataset, &[a, b, c], &[]).unwrap();
    let s1 = world.change(6, |change| change.create_snapshot(fs.dataset, "s1", &[])).unwrap();
    let again = world.change(6, |change| change.check_snapshot(fs.dataset, "s1"));
    assert_eq!(again.unwrap_err().kind(), ErrorKind::Exists);
    world.write(7, fs.dataset, &[block(4, 7)], &[a]).unwrap();
    assert!(world.hooks.freed.lock().is_empty());
    let s2 = world.change(7, |change| change.create_snapshot(fs.dataset, "s2", &[])).unwrap();
    world.write(8, fs.dataset, &[], &[b, block(4, 7)]).unwrap();
    world.audit(8);
    let unique = |id| world.change(9, |change| change.dataset(id)).unwrap().unique_bytes;
    assert_eq!((unique(s1), unique(s2), unique(fs.dataset)), (4096, 4096, 0));
    let keys = |id: ObjectId| {
        let phys = world.change(9, |change| change.dataset(id)).unwrap();
        let entries = world.change(9, |change| change.deadlist_entries(phys.deadlist)).unwrap();
        entries.0.keys().map(|key| key.0).collect::<Vec<u64>>()
    };
    assert_eq!((keys(s1), keys(s2), keys(fs.dataset)), (vec![0], vec![0, 1], vec![0, 1, 6]));
    world.change(9, |change| change.destroy_snapshot(s1, false)).unwrap();
    world.audit(9);
    assert_eq!(keys(fs.dataset), [0, 1]);
    let progress = world
        .change(10, |change| {
            change.process_async_destroy(&mut FreeingPass::default(), Budget::blocks(100))
        })
        .unwrap();
    assert!(progress.finished);
    assert_eq!(world.hooks.freed.lock().len(), 1);
    assert_eq!(world.hooks.freed.lock()[0].first_dva(), a.first_dva());
    assert_eq!(unique(s2), 8192);
    world.change(11, |change| change.rename_snapshot(fs.dataset, "s2", "t")).unwrap();
    assert_eq!(world.catalog().dataset_named("tank/fs@t").unwrap().id, s2);
    world.change(11, |change| change.destroy_snapshot(s2, false)).unwrap();
    world
        .change(12, |change| {
            change.process_async_destroy(&mut FreeingPass::default(), Budget::blocks(1))
        })
        .unwrap();
    world
        .change(13, |change| {
            change.process_async_destroy(&mut FreeingPass::default(), Budget::blocks(100))
        })
        .unwrap();
    world.audit(13);
    assert_eq!(world.hooks.freed.lock().len(), 3);
    assert_eq!(unique(fs.dataset), 4096);
    let free = world.change(13, |change| change.hidden_directory("$FREE")).unwrap();
    assert_eq!(world.change(13, |change| change.directory(free)).unwrap().used_bytes, 0);
}

#[test]
fn holds_and_clones_defer_destruction() {
    let world = World::full();
    let fs = world.filesystem(5, "fs");
    let s = world.change(6, |change| change.create_snapshot(fs.dataset, "s", &[])).unwrap();
    world.change(7, |change| change.hold(s, "keep", false)).unwrap();
    world.change(7, |change| change.hold(s, "brief", true)).unwrap();
    let parent = world.skeleton.root.directory;
    let new = NewDataset { parent, name: "c", origin: Some(s), ..NewDataset::default() };
    let clone = world.change(7, |change| change.create_dataset(&new)).unwrap();
    assert_eq!(count(&world, "livelist"), Some(1));
    let head = world.catalog().dataset_named("tank/c").unwrap();
    assert_eq!(world.catalog().origin(&head.directory).unwrap().unwrap().id, s);
    let busy = world.change(8, |change| change.destroy_snapshot(s, false)).unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy);
    world.change(8, |change| change.destroy_snapshot(s, true)).unwrap();
    world.change(9, |change| change.release_temporary_holds()).unwrap();
    assert!(!world.change(9, |change| change.release(s, "keep")).unwrap());
    world.change(10, |change| change.destroy_head(clone.dataset)).unwrap();
    assert!(world.catalog().dataset_named("tank/fs@s").is_err());
    world
        .change(11, |change| {
            change.process_async_destroy(&mut FreeingPass::default(), Budget::blocks(10))
        })
        .unwrap();
    assert_eq!(count(&world, "livelist"), Some(0));
    world.audit(11);
}

#[test]
fn bookmarks_count_what_was_freed() {
    let world = World::full();
    let fs = world.filesystem(5, "fs");
    let [a, b] = [block(1, 6), block(2, 6)];
    world.write(6, fs.dataset, &[a, b], &[]).unwrap();
    let s = world.change(6, |change| change.create_snapshot(fs.dataset, "s", &[])).unwrap();
    world.change(7, |change| change.create_bookmark(fs.dataset, "m", s)).unwrap();
    for (name, used) in [("bookmarks", 1), ("bookmark_v2", 1), ("bookmark_written", 1)] {
        assert_eq!(count(&world, name), Some(used));
    }
    world.write(8, fs.dataset, &[], &[a]).unwrap();
    let name = DatasetName::parse("tank/fs#m").unwrap();
    let details = || world.catalog().bookmark(&name).unwrap().details.unwrap();
    assert_eq!((details().freed_before_next.used, details().flags), (4096, 3));
    world.change(9, |change| change.destroy_snapshot(s, false)).unwrap();
    assert_eq!((details().freed_before_next.used, details().flags), (4096, 1));
    world.write(10, fs.dataset, &[], &[b]).unwrap();
    assert_eq!(details().freed_before_next.used, 8192);
    world.change(11, |change| change.create_snapshot(fs.dataset, "t", &[])).unwrap();
    world.change(12, |change| change.destroy_bookmark(fs.dataset, "m")).unwrap();
    for name in ["bookmarks", "bookmark_v2", "bookmark_written"] {
        assert_eq!(count(&world, name), Some(0), "{name}");
    }
    world.audit(12);
}

#[test]
fn limits_count_and_refuse() {
    let world = World::full();
    let root = world.skeleton.root;
    let fs = world.filesystem(5, "fs");
    let new = NewDataset { parent: fs.directory, name: "a", ..NewDataset::default() };
    world.change(5, |change| change.create_dataset(&new)).unwrap();
    world.change(6, |change| change.create_snapshot(fs.dataset, "s", &[])).unwrap();
    let limit = PropertyInput::number("filesystem_limit", 2);
    world.change(7, |change| change.set_property(root.dataset, &limit)).unwrap();
    let refused = world.change(8, |change| change.check_filesystem_limit(fs.directory, 1));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Quota);
    let new = NewDataset { parent: fs.directory, name: "b", ..NewDataset::default() };
    let b = world.change(8, |change| change.create_dataset(&new)).unwrap();
    let counts = |directory| {
        use cenote_format::dsl_directory::{KEY_FILESYSTEM_COUNT, KEY_SNAPSHOT_COUNT};
        world
            .change(9, |change| {
                let filesystems = change.number_field(directory, KEY_FILESYSTEM_COUNT)?;
                Ok((filesystems, change.number_field(directory, KEY_SNAPSHOT_COUNT)?))
            })
            .unwrap()
    };
    assert_eq!(counts(root.directory), (Some(3), Some(1)));
    assert_eq!(
        (counts(fs.directory), counts(b.directory)),
        ((Some(2), Some(1)), (Some(0), Some(0)))
    );
    world.change(9, |change| change.rename_directory(b.directory, root.directory, "b")).unwrap();
    assert_eq!(
        (counts(root.directory), counts(fs.directory)),
        ((Some(3), Some(1)), (Some(1), Some(1)))
    );
}

#[test]
fn history_is_kept() {
    let world = World::full();
    world.filesystem(5, "fs");
    for round in 0..6000 {
        world
            .change(6, |change| change.log_event("test", None, &format!("round {round}")))
            .unwrap();
    }
    let history = world.skeleton.history;
    let dnode = world.mos.dnode(history).unwrap();
    let header = cenote_format::history::HistoryHeader::decode(dnode.bonus()).unwrap();
    assert!(header.lost > 0);
    let object = world.mos.object(history).unwrap();
    let mut bytes = Vec::new();
    for (offset, length) in header.spans(header.begin, header.end - header.begin) {
        bytes.extend(object.read_vec(offset, length as usize).unwrap());
    }
    let records: Vec<_> = cenote_format::history::records(&bytes)
        .map(|record| cenote_format::nvlist::NvList::decode(record.unwrap()).unwrap())
        .collect();
    let last = records.last().unwrap();
    assert_eq!(last.string("history internal str"), Some("round 5999"));
    assert_eq!(last.u64("history txg"), Some(6));
    assert!(records.len() > 500);
}

#[test]
fn properties_are_stored_and_inherited() {
    use cenote_format::property::{HAS_RECEIVED, RECEIVED_SUFFIX};
    let world = World::full();
    let fs = world.filesystem(5, "fs");
    let table = world.change(5, |change| change.directory(fs.directory)).unwrap().properties;
    let entries = || {
        let table = Table::open(&world.mos, table).unwrap().unwrap();
        let mut names: Vec<String> =
            table.entries().unwrap().into_iter().map(|(name, _)| name).collect();
        names.sort();
        names
    };
    let set = |input: PropertyInput| {
        world.change(6, |change| change.set_property(fs.dataset, &input)).unwrap();
    };
    set(PropertyInput::number("compression", 15));
    set(PropertyInput::text("mountpoint", "/mnt"));
    set(PropertyInput::number("redundant_metadata", 3));
    assert_eq!(
        entries(),
        ["compression", "mountpoint", "redundant_metadata", "redundant_metadata$iuv"]
    );
    world
        .change(7, |change| change.inherit_property(fs.dataset, "redundant_metadata", false))
        .unwrap();
    world
        .change(7, |change| {
            change.put_number(table, HAS_RECEIVED, 0)?;
            change.put_number(table, &format!("compression{RECEIVED_SUFFIX}"), 3)?;
            change.inherit_property(fs.dataset, "compression", false)
        })
        .unwrap();
    assert_eq!(entries(), ["$hasrecvd", "compression$inherit", "compression$recvd", "mountpoint"]);
    world.change(8, |change| change.inherit_property(fs.dataset, "compression", true)).unwrap();
    assert_eq!(entries(), ["$hasrecvd", "compression$recvd", "mountpoint"]);
    let refused = world.change(8, |change| change.inherit_property(fs.dataset, "quota", false));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidArgument);
    let note = [PropertyInput::text("org:note", "x")];
    let s = world.change(9, |change| change.create_snapshot(fs.dataset, "s", &note)).unwrap();
    assert_ne!(world.change(9, |change| change.dataset(s)).unwrap().properties.0, 0);
    world.change(9, |change| change.inherit_property(s, "org:note", false)).unwrap();
    assert_eq!(world.change(9, |change| change.dataset(s)).unwrap().properties.0, 0);
}

#[test]
fn values_that_need_a_disabled_feature_are_refused() {
    let world = World::new(&[]);
    let parent = world.skeleton.root.directory;
    for (name, value) in [("dnodesize", 1), ("compression", 15), ("compression", 16)] {
        let properties = [PropertyInput::number(name, value)];
        let new =
            NewDataset { parent, name: "fs", properties: &properties, ..NewDataset::default() };
        let error = world.change(5, |change| change.create_dataset(&new)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}");
        let full = World::full();
        full.change(5, |change| change.check_features(&properties[0])).unwrap();
    }
    assert!(world.catalog().dataset_named("tank/fs").is_err());
}

#[test]
fn lists_of_remapped_blocks_are_counted() {
    use cenote_format::dsl_dataset::KEY_REMAP_DEADLIST;
    let counted = [FEATURES, &["device_removal", "obsolete_counts"]].concat();
    let world = World::new(&counted);
    let head = world.filesystem(5, "a").dataset;
    let remap = |txg| {
        let made = world.change(txg, |change| {
            let list = change.new_deadlist()?;
            change.set_number_field(head, KEY_REMAP_DEADLIST, list.0)?;
            change.add_reference("obsolete_counts")
        });
        made.unwrap();
    };
    remap(6);
    let snapshot = world.change(7, |change| change.create_snapshot(head, "s", &[])).unwrap();
    remap(8);
    assert_eq!(count(&world, "obsolete_counts"), Some(2));
    world.change(10, |change| change.destroy_snapshot(snapshot, false)).unwrap();
    assert_eq!(count(&world, "obsolete_counts"), Some(1));
    world.change(11, |change| change.destroy_head(head)).unwrap();
    assert_eq!(count(&world, "obsolete_counts"), Some(0));
}
