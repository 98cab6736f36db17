//! Attacks on labels and uberblocks.

use cenote_engine::pool::Pool;
use cenote_format::config::{PoolConfig, VdevConfig, VdevKind};
use cenote_format::{Guid, label};

use crate::bench::{Bench, soon};
use crate::image::{self, FlatImage, LABEL_CONFIG};
use crate::walk;

/// An image whose labels say `config`.
fn with_labels(config: &PoolConfig) -> FlatImage {
    let mut image = Bench::base();
    let block = label::encode_config(&config.to_nvlist()).unwrap();
    for index in 0..image.extents.len() {
        if image.extents[index].kind == LABEL_CONFIG {
            image.patch(index, 0, &block);
        }
    }
    image
}

/// The label as it is.
fn config() -> PoolConfig {
    let base = Bench::base();
    let extent = base.extents.iter().find(|extent| extent.kind == LABEL_CONFIG).unwrap();
    PoolConfig::from_nvlist(label::decode_config(&extent.bytes(0, extent.len)).unwrap()).unwrap()
}

fn attack(images: Vec<FlatImage>) {
    soon(20, || {
        for candidate in image::discover(image::shelf(images)) {
            walk::judge(&candidate);
            if let Err(error) = Pool::open(&candidate, &walk::options()) {
                assert!(error.to_string().len() < 2000, "{error}");
            }
        }
    });
}

#[test]
fn impossible_numbers_of_top_level_vdevs() {
    for count in [0, 65_535, 65_536, 65_537, 1 << 32, u64::MAX] {
        attack(vec![with_labels(&PoolConfig { vdev_children: Some(count), ..config() })]);
    }
    for id in [1, 65_535, 1 << 32, u64::MAX] {
        let mut config = config();
        config.vdev_tree.as_mut().unwrap().id = Some(id);
        attack(vec![
            with_labels(&config),
            with_labels(&PoolConfig { vdev_children: None, ..config }),
        ]);
    }
}

#[test]
fn trees_that_overlap_or_repeat() {
    let leaf = config().vdev_tree.unwrap();
    let node = |kind: VdevKind, children: Vec<VdevConfig>| VdevConfig {
        kind,
        nparity: Some(1),
        children: Some(children),
        guid: leaf.guid,
        id: Some(0),
        top: leaf.top,
        ..VdevConfig::default()
    };
    let twins = node(VdevKind::Mirror, vec![leaf.clone(); 100]);
    let many = node(VdevKind::Raidz, vec![leaf.clone(); 120]);
    let alone = node(VdevKind::Raidz, vec![leaf.clone()]);
    let empty = node(VdevKind::Mirror, Vec::new());
    let root = node(VdevKind::Root, vec![leaf.clone(), leaf.clone()]);
    let draid = node(VdevKind::Draid, vec![leaf.clone(); 7]);
    let mut deep = leaf.clone();
    for _ in 0..12 {
        deep = node(VdevKind::Mirror, vec![deep]);
    }
    for tree in [twins, many, alone, empty, root, draid, deep] {
        attack(vec![with_labels(&PoolConfig { vdev_tree: Some(tree), ..config() })]);
    }
    // The same device twice, and with another pool's guid.
    attack(vec![Bench::base(), Bench::base()]);
    let other = PoolConfig { pool_guid: Some(Guid(1)), ..config() };
    attack(vec![with_labels(&other), Bench::base()]);
}

#[test]
fn top_level_vdevs_that_are_the_same_device() {
    let leaf = config().vdev_tree.unwrap();
    let top = |id: u64| {
        let tree = Some(VdevConfig { id: Some(id), ..leaf.clone() });
        with_labels(&PoolConfig { vdev_tree: tree, vdev_children: Some(2), ..config() })
    };
    // Two devices that say they are both; the same child in both of two mirrors.
    attack(vec![top(0), top(1)]);
    attack(vec![top(1), top(0), top(1)]);
    let mirror = |id: u64, guid: u64| {
        let tree = VdevConfig {
            kind: VdevKind::Mirror,
            children: Some(vec![leaf.clone(), leaf.clone()]),
            guid: Guid(guid),
            id: Some(id),
            top: leaf.top,
            ..VdevConfig::default()
        };
        let (vdev_tree, vdev_children) = (Some(tree), Some(2));
        with_labels(&PoolConfig { vdev_tree, vdev_children, ..config() })
    };
    attack(vec![mirror(0, 5), mirror(1, 5)]);
    attack(vec![mirror(0, 5), mirror(1, 6)]);
}

#[test]
fn impossible_shapes() {
    let leaf = config().vdev_tree.unwrap();
    for number in [0, 1, 8, 17, 63, 64, 1 << 20, u64::MAX] {
        for field in 0..5 {
            let mut tree = leaf.clone();
            let top = tree.top.as_mut().unwrap();
            match field {
                0 => top.ashift = number,
                1 => top.asize = number,
                2 => top.metaslab_shift = number,
                3 => top.metaslab_array = cenote_format::ObjectId(number),
                _ => tree.nparity = Some(number),
            }
            attack(vec![with_labels(&PoolConfig { vdev_tree: Some(tree), ..config() })]);
        }
    }
}

#[test]
fn labels_full_of_anything() {
    let base = Bench::base();
    let index = base.extents.iter().position(|extent| extent.kind == LABEL_CONFIG).unwrap();
    let used = base.extents[index].bytes(0, 4096);
    // Every word of the packed list in turn is as large as it gets.
    for at in (0..1600).step_by(4) {
        let mut image = base.clone();
        let mut bytes = used.clone();
        bytes[at..at + 4].copy_from_slice(&[0x7f, 0xff, 0xff, 0xff]);
        image.patch(index, 0, &bytes);
        attack(vec![image]);
    }
}
