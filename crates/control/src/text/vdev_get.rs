//! `zpool get` of device properties, in the form of OpenZFS 2.2.
//!
//! Invariant: the properties come in OpenZFS's order; one that cannot be known here is `-`.

use super::number;
use super::pool_get::{Field, Row, Widths, table};
use super::vdev_name::{self, Naming};
use super::words;
use crate::report::{PoolReport, VdevReport};

/// The native properties in order.
pub const NAMES: [&str; 47] = [
    "capacity",
    "state",
    "guid",
    "asize",
    "psize",
    "ashift",
    "size",
    "free",
    "allocated",
    "comment",
    "expandsize",
    "fragmentation",
    "bootsize",
    "parity",
    "path",
    "devid",
    "physpath",
    "encpath",
    "fru",
    "parent",
    "children",
    "numchildren",
    "read_errors",
    "write_errors",
    "checksum_errors",
    "initialize_errors",
    "null_ops",
    "read_ops",
    "write_ops",
    "free_ops",
    "claim_ops",
    "trim_ops",
    "null_bytes",
    "read_bytes",
    "write_bytes",
    "free_bytes",
    "claim_bytes",
    "trim_bytes",
    "removing",
    "allocating",
    "failfast",
    "checksum_n",
    "checksum_t",
    "io_n",
    "io_t",
    "slow_io_n",
    "slow_io_t",
];

/// A device and what it belongs to.
#[derive(Clone, Copy, Debug)]
pub struct Device<'a> {
    /// The device.
    pub vdev: &'a VdevReport,
    /// What it is part of; none for the root.
    pub parent: Option<&'a VdevReport>,
}

/// Every device of a pool with its parent, outermost first.
pub fn devices(pool: &PoolReport) -> Vec<Device<'_>> {
    fn add<'a>(vdev: &'a VdevReport, parent: Option<&'a VdevReport>, out: &mut Vec<Device<'a>>) {
        out.push(Device { vdev, parent });
        vdev.children.iter().for_each(|child| add(child, Some(vdev), out));
    }
    let mut out = Vec::new();
    add(&pool.root, None, &mut out);
    pool.caches.iter().for_each(|cache| add(cache, Some(&pool.root), &mut out));
    out
}

/// What a device is called: the root is `root-0`, as OpenZFS calls it.
pub fn name(vdev: &VdevReport) -> String {
    match vdev.kind.as_str() {
        "root" => "root-0".to_owned(),
        _ => vdev_name::name(vdev, Naming::default()),
    }
}

/// Whether a device is called `wanted` in one of all the ways.
pub fn is_called(vdev: &VdevReport, wanted: &str) -> bool {
    name(vdev) == wanted || vdev.guid.to_string() == wanted || vdev.path.as_deref() == Some(wanted)
}

/// Sets the value and the source of one property; none if there is no such property.
pub fn value(device: &Device<'_>, property: &str, exact: bool) -> Option<(String, &'static str)> {
    let Device { vdev, parent } = device;
    let count = |n: u64| if exact { n.to_string() } else { number::plain(n) };
    let percent = |n: u64| if exact { n.to_string() } else { format!("{n}%") };
    let used = u128::from(vdev.allocated) * 100;
    let capacity = used.checked_div(vdev.space.into()).unwrap_or(0);
    let text = |text: Option<String>| text.filter(|text| !text.is_empty());
    let names = |list: &[VdevReport]| list.iter().map(name).collect::<Vec<_>>().join(",");
    let shown = match property {
        "capacity" => Some(percent(u64::try_from(capacity).unwrap_or(100))),
        "state" => Some(words::state(vdev.state, vdev.reason).to_owned()),
        "guid" => Some(vdev.guid.to_string()),
        "asize" => Some(count(vdev.allocatable)),
        "psize" => Some(count(vdev.physical_size)),
        "ashift" => Some(vdev.configured_ashift.to_string()),
        "size" => Some(count(vdev.space)),
        "free" => Some(count(vdev.space.saturating_sub(vdev.allocated))),
        "allocated" => Some(count(vdev.allocated)),
        "comment" => return Some(("-".to_owned(), "default")),
        "expandsize" => (vdev.expandable > 0).then(|| count(vdev.expandable)),
        "fragmentation" => vdev.fragmentation.map(percent),
        "parity" => Some(vdev.parity.to_string()),
        "path" => text(vdev.path.clone()),
        "parent" => parent.map(name),
        "children" => text(Some(names(&vdev.children))),
        "numchildren" => Some(vdev.children.len().to_string()),
        "read_errors" => Some(count(vdev.read_errors)),
        "write_errors" => Some(count(vdev.write_errors)),
        "checksum_errors" => Some(count(vdev.checksum_errors)),
        "read_ops" => Some(count(vdev.counters.reads)),
        "write_ops" => Some(count(vdev.counters.writes)),
        "read_bytes" => Some(count(vdev.counters.read_bytes)),
        "write_bytes" => Some(count(vdev.counters.write_bytes)),
        "bootsize" | "initialize_errors" | "null_ops" | "free_ops" | "claim_ops" | "trim_ops"
        | "null_bytes" | "free_bytes" | "claim_bytes" | "trim_bytes" => Some("0".to_owned()),
        "removing" => Some(if vdev.removing { "on" } else { "off" }.to_owned()),
        "allocating" if vdev.non_allocating => return Some(("off".to_owned(), "local")),
        "allocating" | "failfast" => return Some(("on".to_owned(), "default")),
        "checksum_n" | "checksum_t" | "io_n" | "io_t" | "slow_io_n" | "slow_io_t" => {
            return Some(("-".to_owned(), "default"));
        }
        "devid" | "physpath" | "encpath" | "fru" => None,
        _ => return None,
    };
    Some((shown.unwrap_or_else(|| "-".to_owned()), "-"))
}

/// `zpool get` of these properties (`None`: all) of these devices.
pub fn render(
    devices: &[Device<'_>],
    wanted: Option<&[String]>,
    fields: &[Field],
    exact: bool,
    scripted: bool,
) -> String {
    let (mut rows, mut widths) = (Vec::new(), Widths::default());
    for device in devices {
        let called = name(device.vdev);
        widths.name = widths.name.max(called.len());
        let all = || NAMES.map(str::to_owned).to_vec();
        for property in wanted.map_or_else(all, <[String]>::to_vec) {
            let Some((value, source)) = value(device, &property, exact) else { continue };
            widths.property = widths.property.max(property.len());
            widths.value = widths.value.max(value.len());
            let (name, received) = (called.clone(), "-".to_owned());
            rows.push(Row { name, property, value, received, source: source.to_owned() });
        }
    }
    table(&rows, fields, widths, scripted)
}

#[cfg(test)]
mod tests {
    use super::super::pool_get::DEFAULT_FIELDS;
    use super::*;

    #[test]
    fn devices_have_parents_children_and_numbers() {
        let leaf = VdevReport {
            kind: "file".into(),
            path: Some("/d0".into()),
            guid: 7,
            configured_ashift: 12,
            physical_size: 1 << 27,
            ..VdevReport::default()
        };
        let mirror = VdevReport {
            name: "mirror-0".into(),
            kind: "mirror".into(),
            space: 200,
            allocated: 50,
            children: vec![leaf],
            ..VdevReport::default()
        };
        let root =
            VdevReport { kind: "root".into(), children: vec![mirror], ..VdevReport::default() };
        let pool = PoolReport { root, ..PoolReport::default() };
        let all = devices(&pool);
        assert_eq!(all.len(), 3);
        let wanted: Vec<String> =
            ["parent", "children", "psize", "capacity", "allocating"].map(str::to_owned).to_vec();
        let leaf: Vec<Device<'_>> =
            all.iter().filter(|device| is_called(device.vdev, "/d0")).copied().collect();
        let text = render(&leaf, Some(&wanted), &DEFAULT_FIELDS, false, true);
        let ours = "/d0\tparent\tmirror-0\t-\n/d0\tchildren\t-\t-\n/d0\tpsize\t128M\t-\n\
                    /d0\tcapacity\t0%\t-\n/d0\tallocating\ton\tdefault\n";
        assert_eq!(text, ours);
        let mirror: Vec<Device<'_>> =
            all.iter().filter(|device| is_called(device.vdev, "mirror-0")).copied().collect();
        let text = render(&mirror, Some(&wanted), &DEFAULT_FIELDS, true, true);
        assert!(text.contains("children\t/d0\t") && text.contains("capacity\t25\t"), "{text}");
        assert!(text.contains("parent\troot-0\t"), "{text}");
        let all = render(&mirror, None, &DEFAULT_FIELDS, false, false);
        assert_eq!(all.lines().count(), NAMES.len() + 1);
    }
}
