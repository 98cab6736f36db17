//! Listings of pools in every condition, from simulated devices.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cenote_device::{Device, DeviceError};

use super::*;
use crate::pool::activity::{Clock, Settings};
use crate::pool::assemble::assemble;
use crate::pool::discover::FoundDevice;
use crate::pool::inspect::{Inspector, Loader, Trusted, inspect};
use crate::pool::testing::{
    POOL, Shelf, config, leaf, mirror, top, uberblock, write_label, write_labels, write_uberblock,
};
use cenote_format::Guid;
use cenote_format::config::PoolConfig;

struct NoTime;

impl Clock for NoTime {
    fn sleep(&self, _: Duration) {}
}

fn host() -> HostIdentity {
    HostIdentity { id: 0x5eed, name: "here".into() }
}

fn list_with(shelf: Shelf, loader: Option<&Loader<'_>>, host: &HostIdentity) -> ImportablePool {
    let candidate = assemble(&shelf.scan()).pop().unwrap();
    let inspector = Inspector {
        host,
        loader,
        clock: &NoTime,
        settings: Settings::default(),
        deadline: Duration::from_secs(10),
        max_txg: None,
        missing_log: false,
    };
    let found = inspect(&candidate, &inspector);
    importable(&candidate, &found, host)
}

fn list(shelf: Shelf) -> ImportablePool {
    list_with(shelf, None, &host())
}

/// A loader that finds the tree `tops` in the metadata.
fn metadata(tops: Vec<VdevConfig>) -> Trusted {
    let tree = VdevConfig { guid: POOL, children: Some(tops), ..VdevConfig::default() };
    let config = PoolConfig { vdev_tree: Some(tree), ..PoolConfig::default() };
    Trusted { config, ..Trusted::default() }
}

fn lines(vdev: &ImportableVdev) -> Vec<String> {
    let reason = vdev.reason.as_ref().map(|reason| format!(" {reason}")).unwrap_or_default();
    let own = format!("{} {}{reason}", vdev.name, vdev.state);
    let below = vdev.children.iter().flat_map(lines).map(|line| format!("  {line}"));
    std::iter::once(own).chain(below).collect()
}

#[test]
fn a_healthy_pool() {
    let (shelf, tree) = mirror(7);
    let loader = |_: &PoolCandidate, _: &_| Ok(metadata(vec![tree.clone()]));
    let pool = list_with(shelf, Some(&loader), &host());
    assert_eq!(
        lines(&pool.root),
        ["tank ONLINE", "  mirror-0 ONLINE", "    /a ONLINE", "    /b ONLINE"]
    );
    assert_eq!((pool.status.clone(), pool.message_code.clone()), (None, None));
    assert_eq!(pool.action, "The pool can be imported using its name or numeric identifier.");
    assert!(pool.importable && pool.exported && !pool.needs_force && !pool.incomplete);
    assert_eq!((pool.txg, pool.last_access), (7, 1_700_000_007));
}

#[test]
fn a_missing_half_of_a_mirror() {
    let (mut shelf, _) = mirror(7);
    shelf.devices.remove(Path::new("/a"));
    let pool = list(shelf);
    assert_eq!(
        lines(&pool.root),
        ["tank DEGRADED", "  mirror-0 DEGRADED", "    /a UNAVAIL cannot open", "    /b ONLINE"]
    );
    assert_eq!(pool.status.as_deref(), Some("One or more devices are missing from the system."));
    assert_eq!(pool.message_code.as_deref(), Some("ZFS-8000-2Q"));
    assert!(pool.action.starts_with("The pool can be imported despite missing"));
    assert!(pool.importable);
}

#[test]
fn a_bad_label_of_a_mirror() {
    let (shelf, tree) = mirror(7);
    let device = shelf.devices[Path::new("/b")].clone();
    // Labels that unpack but whose checksums are wrong: listed, not used.
    for index in 0..4 {
        write_label(&device, index, &config(&tree, 12, 7, 1));
        let offset = cenote_format::label::label_offset(crate::pool::testing::SIZE as u64, index);
        device
            .corrupt_range(offset.unwrap() + 0x4000 + 50_000..offset.unwrap() + 0x4000 + 50_001, 1);
    }
    let pool = list(shelf);
    assert_eq!(lines(&pool.root)[3], "    /b UNAVAIL invalid label");
    assert_eq!(pool.status.as_deref(), Some("One or more devices contains corrupted data."));
    assert_eq!(pool.message_code.as_deref(), Some("ZFS-8000-4J"));
}

#[test]
fn nothing_left_but_a_log() {
    let (mut shelf, tree) = mirror(7);
    shelf.devices.remove(Path::new("/a"));
    let disk = top(VdevKind::File, 1, 0, vec![leaf(1, 21, "/d")]);
    let loader = |_: &PoolCandidate, _: &_| Ok(metadata(vec![tree.clone(), disk.clone()]));
    let pool = list_with(shelf, Some(&loader), &host());
    assert_eq!(lines(&pool.root)[0], "tank UNAVAIL insufficient replicas");
    assert_eq!(lines(&pool.root)[4], "  /d UNAVAIL cannot open");
    assert_eq!(pool.message_code.as_deref(), Some("ZFS-8000-3C"));
    assert_eq!(
        pool.action,
        "The pool cannot be imported. Attach the missing\ndevices and try again."
    );
    assert!(!pool.importable);
}

#[test]
fn vdevs_no_label_describes() {
    let (shelf, tree) = mirror(7);
    for (path, guid) in [("/a", 11), ("/b", 12)] {
        write_labels(&shelf.devices[Path::new(path)], &config(&tree, guid, 7, 2));
    }
    let pool = list(shelf);
    assert_eq!(lines(&pool.root)[0], "tank UNAVAIL missing device");
    assert_eq!(pool.root.children.len(), 1);
    assert!(pool.incomplete);
    assert_eq!(pool.message_code.as_deref(), Some("ZFS-8000-6X"));
}

#[test]
fn a_missing_log_stops_an_import() {
    let (shelf, tree) = mirror(7);
    let mut log = top(VdevKind::File, 1, 0, vec![leaf(1, 21, "/l")]);
    let mut keys = log.top.unwrap();
    keys.is_log = true;
    log.top = Some(keys);
    let loader = |_: &PoolCandidate, _: &_| Ok(metadata(vec![tree.clone(), log.clone()]));
    let pool = list_with(shelf, Some(&loader), &host());
    assert_eq!(lines(&pool.root)[0], "tank UNAVAIL missing device");
    assert_eq!(lines(&pool.logs[0]), ["/l UNAVAIL cannot open"]);
    assert!(pool.incomplete);
}

#[test]
fn metadata_that_cannot_be_read() {
    let (shelf, _) = mirror(7);
    let loader = |_: &PoolCandidate, _: &_| Err(crate::Error::corrupt("no copy is intact"));
    let pool = list_with(shelf, Some(&loader), &host());
    assert_eq!(lines(&pool.root)[0], "tank FAULTED corrupted data");
    assert_eq!(pool.status.as_deref(), Some("The pool metadata is corrupted."));
    assert_eq!(pool.message_code.as_deref(), Some("ZFS-8000-72"));
    assert_eq!(pool.action, "The pool cannot be imported due to damaged devices or data.");
    assert_eq!((pool.note, pool.reason.as_deref()), (None, Some("no copy is intact")));
}

#[test]
fn no_uberblock_of_a_destroyed_pool() {
    let mut shelf = Shelf::default();
    let tree = top(VdevKind::File, 0, 0, vec![leaf(0, 11, "/a")]);
    let mut label = config(&tree, 11, 7, 1);
    label.state = Some(PoolState::Destroyed);
    write_labels(&shelf.add("/a"), &label);
    let pool = list(shelf);
    assert_eq!((pool.state.as_str(), pool.destroyed), ("FAULTED", true));
    assert!(pool.note.unwrap().contains("'-Df'"));
}

#[test]
fn unknown_features() {
    let (shelf, tree) = mirror(7);
    for (path, guid) in [("/a", 11), ("/b", 12)] {
        let mut label = config(&tree, guid, 7, 1);
        label.features_for_read = Some(vec!["org.example:later".into()]);
        write_labels(&shelf.devices[Path::new(path)], &label);
    }
    let pool = list(shelf);
    assert_eq!(lines(&pool.root)[0], "tank UNAVAIL unsupported feature(s)");
    assert_eq!(
        pool.status.as_deref(),
        Some(
            "The pool uses the following feature(s) not supported on this system:\norg.example:later"
        )
    );
    assert!(!pool.importable);

    let (shelf, tree) = mirror(7);
    let loader = |_: &PoolCandidate, _: &_| {
        let mut trusted = metadata(vec![tree.clone()]);
        trusted.features.for_write.push(("org.example:ledger".into(), 1));
        let text = ("org.example:ledger".into(), "Keeps a ledger.".into());
        trusted.features.descriptions.push(text);
        Ok(trusted)
    };
    let pool = list_with(shelf, Some(&loader), &host());
    assert!(pool.importable && pool.read_only);
    assert!(pool.status.unwrap().ends_with("\norg.example:ledger (Keeps a ledger.)"));
    assert!(pool.action.contains("'-o readonly=on'"));
}

#[test]
fn a_pool_of_another_host() {
    let (shelf, tree) = mirror(7);
    for (path, guid) in [("/a", 11), ("/b", 12)] {
        let mut label = config(&tree, guid, 7, 1);
        label.state = Some(PoolState::Active);
        label.hostid = Some(0xbeef);
        label.hostname = Some("there".into());
        write_labels(&shelf.devices[Path::new(path)], &label);
    }
    let pool = list(shelf);
    assert!(pool.needs_force && pool.importable);
    assert_eq!(pool.status.as_deref(), Some("The pool was last accessed by another system."));
    assert_eq!(pool.message_code.as_deref(), Some("ZFS-8000-EY"));
    assert!(pool.action.ends_with("and\nthe '-f' flag."));
    assert_eq!((pool.hostid, pool.hostname.as_deref()), (0xbeef, Some("there")));
}

#[test]
fn multihost() {
    let make = || {
        let (shelf, tree) = mirror(7);
        for (path, guid) in [("/a", 11), ("/b", 12)] {
            let device = &shelf.devices[Path::new(path)];
            let mut label = config(&tree, guid, 7, 1);
            label.state = Some(PoolState::Active);
            label.hostid = Some(0xbeef);
            label.hostname = Some("there".into());
            write_labels(device, &label);
            let mut active = uberblock(7, POOL.0 + tree.guid_sum());
            active.activity_delay = 1_000_000_000;
            active.activity_config = 0x000a_0000_0003_e807;
            (0..4).for_each(|index| write_uberblock(device, index, &active));
        }
        shelf
    };
    // Nothing changes while it is watched.
    assert_eq!(list(make()).state, "ONLINE");
    let nobody = HostIdentity::default();
    let pool = list_with(make(), None, &nobody);
    assert_eq!(lines(&pool.root)[0], "tank UNAVAIL currently in use");
    assert!(pool.status.unwrap().starts_with("The pool has the multihost property on."));
    assert!(pool.action.starts_with("Set a unique system hostid"));
    assert!(pool.hostid_required && !pool.active_elsewhere && !pool.importable);

    struct Other(std::sync::Arc<cenote_device::SimDevice>);
    impl Clock for Other {
        fn sleep(&self, _: Duration) {
            let mut active = uberblock(7, 0);
            active.timestamp += 1;
            write_uberblock(&self.0, 0, &active);
        }
    }
    let shelf = make();
    let other = Other(shelf.devices[Path::new("/a")].clone());
    let candidate = assemble(&shelf.scan()).pop().unwrap();
    let host = host();
    let inspector = Inspector {
        host: &host,
        loader: None,
        clock: &other,
        settings: Settings::default(),
        deadline: Duration::from_secs(10),
        max_txg: None,
        missing_log: false,
    };
    let pool = importable(&candidate, &inspect(&candidate, &inspector), &host);
    assert_eq!(pool.status.as_deref(), Some("The pool is currently imported by another system."));
    assert!(pool.active_elsewhere && !pool.hostid_required && !pool.importable);
    assert_eq!(
        pool.action,
        "The pool must be exported from there (hostid=beef)\nbefore it can be safely imported."
    );
}

#[test]
fn classes_spares_and_caches() {
    let mut shelf = Shelf::default();
    let data = top(VdevKind::File, 0, 0, vec![leaf(0, 11, "/a")]);
    let special = top(VdevKind::File, 1, 0, vec![leaf(1, 21, "/s")]);
    let sum = POOL.0 + 11 + 21;
    for (tree, guid, path) in [(&data, 11, "/a"), (&special, 21, "/s")] {
        let device = shelf.add(path);
        write_labels(&device, &config(tree, guid, 7, 2));
        write_uberblock(&device, 0, &uberblock(7, sum));
    }
    let cache = PoolConfig {
        version: Some(5000),
        state: Some(PoolState::Cache),
        guid: Some(Guid(31)),
        ..PoolConfig::default()
    };
    write_labels(&shelf.add("/moved"), &cache);
    let loader = |_: &PoolCandidate, _: &_| {
        let mut trusted = metadata(vec![data.clone(), special.clone()]);
        trusted.classes.insert(1, AllocationClass::Special);
        trusted.caches.push(leaf(0, 31, "/c"));
        trusted.spares.push(leaf(0, 41, "/p"));
        Ok(trusted)
    };
    let pool = list_with(shelf, Some(&loader), &host());
    assert_eq!(lines(&pool.root), ["tank ONLINE", "  /a ONLINE"]);
    assert_eq!(lines(&pool.special[0]), ["/s ONLINE"]);
    assert_eq!((pool.caches, pool.spares), (vec!["/moved".to_string()], vec!["/p".to_string()]));
    assert_eq!(pool.status, None);
}

/// A device whose medium has larger blocks than it takes.
#[derive(Debug)]
struct Coarse(Arc<dyn Device>);

impl Device for Coarse {
    fn path(&self) -> PathBuf {
        self.0.path()
    }

    fn size(&self) -> u64 {
        self.0.size()
    }

    fn sector_size(&self) -> u32 {
        self.0.sector_size()
    }

    fn physical_sector_size(&self) -> u32 {
        8192
    }

    fn read(&self, offset: u64, len: usize) -> Result<Bytes, DeviceError> {
        self.0.read(offset, len)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.0.write(offset, data)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.0.flush()
    }
}

#[test]
fn block_sizes_and_errata_are_told() {
    let (shelf, tree) = mirror(7);
    let mut candidate = assemble(&shelf.scan()).pop().unwrap();
    let told = |candidate: &PoolCandidate, errata: u64, feature: Option<&str>| {
        let loader = |_: &PoolCandidate, _: &_| {
            let mut trusted = metadata(vec![tree.clone()]);
            trusted.config.errata = Some(errata);
            trusted.features.for_read.extend(feature.map(|guid| (guid.to_owned(), 0)));
            Ok(trusted)
        };
        let inspector = Inspector {
            host: &host(),
            loader: Some(&loader),
            clock: &NoTime,
            settings: Settings::default(),
            deadline: Duration::from_secs(10),
            max_txg: None,
            missing_log: false,
        };
        let pool = importable(candidate, &inspect(candidate, &inspector), &host());
        assert!(pool.importable);
        (pool.status.unwrap_or_default(), pool.message_code, pool.is_fine)
    };
    assert_eq!(told(&candidate, 0, None), (String::new(), None, true));
    let errata = ("Errata #1 detected.".to_owned(), Some("ZFS-8000-ER".to_owned()), false);
    assert_eq!(told(&candidate, 1, None), errata);
    let (early, _, _) = told(&candidate, 0, Some("com.datto:encryption"));
    assert_eq!(early, "Errata #4 detected.");
    let found = candidate.devices.values_mut().next().unwrap();
    let device: Arc<dyn Device> = Arc::new(Coarse(found.device.clone()));
    *found = Arc::new(FoundDevice { device, ..(**found).clone() });
    let (coarse, code, _) = told(&candidate, 1, None);
    assert!(coarse.starts_with("One or more devices were configured to use a non-native block"));
    assert_eq!(code, None);
}
