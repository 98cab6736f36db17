//! Configs in the shape OpenZFS writes them turn into values and back.

use super::*;

fn leaf(id: u64, guid: u64) -> NvList {
    let mut list = NvList::new();
    list.push("type", "file");
    list.push("id", id);
    list.push("guid", guid);
    list.push("path", "/tmp/v/d0");
    list.push("create_txg", 4);
    list
}

fn label() -> NvList {
    let mut tree = NvList::new();
    tree.push("type", "mirror");
    tree.push("id", 0);
    tree.push("guid", 30);
    tree.push("metaslab_array", 256);
    tree.push("metaslab_shift", 24);
    tree.push("ashift", 12);
    tree.push("asize", 263_716_864);
    tree.push("is_log", 0);
    tree.push("create_txg", 4);
    let mut offline = leaf(1, 12);
    offline.push("offline", 1);
    tree.push("children", vec![leaf(0, 11), offline]);
    let mut features = NvList::new();
    features.push("com.delphix:hole_birth", Value::Boolean);
    let mut list = NvList::new();
    list.push("version", 5000);
    list.push("name", "tank");
    list.push("state", 1);
    list.push("txg", 77);
    list.push("pool_guid", 99);
    list.push("errata", 0);
    list.push("hostid", 0xabcd);
    list.push("hostname", "here");
    list.push("top_guid", 30);
    list.push("guid", 11);
    list.push("hole_array", vec![1]);
    list.push("vdev_children", 3);
    list.push("vdev_tree", tree);
    list.push("features_for_read", features);
    list
}

#[test]
fn a_label_turns_into_values_and_back() {
    let config = PoolConfig::from_nvlist(label()).unwrap();
    assert_eq!(config.name.as_deref(), Some("tank"));
    assert_eq!(config.state, Some(PoolState::Exported));
    assert_eq!(config.holes, [1]);
    let tree = config.vdev_tree.as_ref().unwrap();
    assert_eq!(tree.kind, VdevKind::Mirror);
    assert_eq!(tree.top.unwrap().ashift, 12);
    assert!(tree.children()[1].offline && !tree.children()[0].offline);
    assert_eq!(tree.devices().map(|leaf| leaf.guid.0).collect::<Vec<_>>(), [11, 12]);
    assert_eq!(tree.guid_sum(), 53);
    assert_eq!(config.features_for_read.as_deref(), Some(&["com.delphix:hole_birth".into()][..]));
    assert_eq!(config.to_nvlist(), label());
}

#[test]
fn an_auxiliary_label_has_hardly_anything() {
    let mut list = NvList::new();
    list.push("version", 5000);
    list.push("state", 4);
    list.push("guid", 7);
    let config = PoolConfig::from_nvlist(list.clone()).unwrap();
    assert_eq!(config.state, Some(PoolState::Cache));
    assert!(config.state.unwrap().is_auxiliary());
    assert_eq!(config.to_nvlist(), list);
}

#[test]
fn malformed_trees_are_errors() {
    for (key, value) in [
        ("type", Value::from("flux")),
        ("type", Value::Uint64(1)),
        ("guid", Value::from("text")),
        ("children", Value::Uint64(1)),
        ("children", Value::ListArray(vec![NvList::new()])),
    ] {
        let mut list = leaf(0, 1);
        list.set(key, value.clone());
        assert!(VdevConfig::from_nvlist(&list).is_err(), "{key} {value:?}");
    }
    let mut list = label();
    list.set("vdev_tree", 5);
    assert!(PoolConfig::from_nvlist(list).is_err());
}

#[test]
fn guid_sum_of_a_real_pool() {
    // Chapter 01, section 20.6: a pool with a three-way mirror, a hole and a disk.
    let node = |kind, guid, children| VdevConfig {
        kind,
        guid: Guid(guid),
        children: Some(children),
        ..VdevConfig::default()
    };
    let disk = |guid| VdevConfig { kind: VdevKind::Disk, guid: Guid(guid), ..Default::default() };
    let mirror = node(
        VdevKind::Mirror,
        17_150_097_999_449_081_873,
        vec![disk(15_953_289_540_775_837_449), disk(10_833_162_572_123_189_548)],
    );
    let root = node(
        VdevKind::Root,
        4_030_832_073_988_880_855,
        vec![
            disk(10_231_396_096_296_740_077),
            mirror,
            VdevConfig::placeholder(VdevKind::Hole, 2),
            disk(10_143_194_817_294_330_852),
        ],
    );
    assert_eq!(root.guid_sum(), 13_001_740_878_799_405_806);
}
