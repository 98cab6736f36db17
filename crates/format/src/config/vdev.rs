//! One node of a vdev tree.
//!
//! Invariant: the tree's depth is bounded by the list it came from, and a node always has a kind and a
//! guid. Chapter 01, sections 7.3 and 7.4.

use super::Builder;
use crate::nvlist::{NvList, Value};
use crate::{Error, Guid, ObjectId, Result, Txg};

const STRUCTURE: &str = "vdev config";
/// Why a vdev is faulty or degraded where somebody said so.
pub const EXTERNAL: &str = "external";
/// The same where its errors did.
pub const ERRORS_EXCEEDED: &str = "err_exceeded";

/// What a vdev is (chapter 01, section 7.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum VdevKind {
    /// The root of the tree.
    #[default]
    Root,
    /// A block device.
    Disk,
    /// A file.
    File,
    /// All children hold the same.
    Mirror,
    /// A mirror of a device and the one that replaces it.
    Replacing,
    /// A mirror of a device and the hot spare that stands in for it.
    Spare,
    /// Data and one to three parities over all children, stripe by stripe.
    Raidz,
    /// RAID-Z groups permuted over all children, with distributed spares.
    Draid,
    /// A spare distributed over the children of a draid; has no device of its own.
    DistributedSpare,
    /// A removed log vdev.
    Hole,
    /// A top-level vdev nothing is known of; never on disk.
    Missing,
    /// A removed data vdev whose blocks were moved elsewhere.
    Indirect,
}

impl VdevKind {
    const NAMES: [(Self, &'static str); 12] = [
        (Self::Root, "root"),
        (Self::Disk, "disk"),
        (Self::File, "file"),
        (Self::Mirror, "mirror"),
        (Self::Replacing, "replacing"),
        (Self::Spare, "spare"),
        (Self::Raidz, "raidz"),
        (Self::Draid, "draid"),
        (Self::DistributedSpare, "dspare"),
        (Self::Hole, "hole"),
        (Self::Missing, "missing"),
        (Self::Indirect, "indirect"),
    ];

    /// The kind of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(_, known)| *known == name).map(|(kind, _)| *kind)
    }

    /// The name on disk.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(kind, _)| *kind == self).map_or("root", |(_, name)| name)
    }

    /// Has a device of its own, with labels on it.
    pub fn has_device(self) -> bool {
        matches!(self, Self::Disk | Self::File)
    }

    /// Has no children: a device, a distributed spare, or a placeholder.
    pub fn is_leaf(self) -> bool {
        self.has_device() || matches!(self, Self::DistributedSpare | Self::Hole | Self::Missing)
    }

    /// Stores blocks now: neither the root, nor a placeholder, nor a removed vdev.
    pub fn is_concrete(self) -> bool {
        !matches!(self, Self::Root | Self::Hole | Self::Missing | Self::Indirect)
    }
}

/// What only top-level vdevs carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TopLevel {
    /// MOS object that lists the space maps; 0 before the first sync and for removed vdevs.
    pub metaslab_array: ObjectId,
    /// Logarithm of a metaslab's bytes.
    pub metaslab_shift: u64,
    /// Logarithm of the allocation unit in bytes.
    pub ashift: u64,
    /// Allocatable bytes.
    pub asize: u64,
    /// Smallest allocation in bytes, if recorded.
    pub min_alloc: Option<u64>,
    /// Serves only the intent log.
    pub is_log: bool,
    /// Allocations are switched off, if recorded.
    pub non_allocating: Option<u64>,
    /// Is being emptied, if recorded.
    pub removing: Option<u64>,
}

/// Shape of a draid vdev.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Draid {
    /// Data columns of a group.
    pub data: u64,
    /// Distributed spares.
    pub spares: u64,
    /// Groups of a permutation row set.
    pub groups: u64,
    /// Children of one failure domain, if there are such.
    pub children: Option<u64>,
}

/// Where a removed vdev's blocks went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndirectObjects {
    /// MOS object of the mapping.
    pub mapping: ObjectId,
    /// MOS object of the births.
    pub births: ObjectId,
    /// Id of the vdev removed before this one.
    pub previous: Option<u64>,
}

/// One node of a vdev tree. What is `None` was not there; `bool`s are keys of value 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VdevConfig {
    /// What it is.
    pub kind: VdevKind,
    /// Index in its parent; absent in lists of spares and cache devices.
    pub id: Option<u64>,
    /// Its identity; 0 for placeholders.
    pub guid: Guid,
    /// Guid of its top-level vdev (newest releases, and distributed spares).
    pub top_guid: Option<Guid>,
    /// Path of its device when the config was written.
    pub path: Option<String>,
    /// Persistent name of its device.
    pub devid: Option<String>,
    /// Physical path of its device.
    pub phys_path: Option<String>,
    /// Sysfs path of its enclosure slot.
    pub enclosure_path: Option<String>,
    /// Field-replaceable unit.
    pub fru: Option<String>,
    /// Parity columns of raidz and draid.
    pub nparity: Option<u64>,
    /// A RAID-Z expansion is running.
    pub raidz_expanding: bool,
    /// Transaction groups at which expansions were finished, ascending.
    pub raidz_expand_txgs: Option<Vec<u64>>,
    /// Shape of a draid.
    pub draid: Option<Draid>,
    /// Index of a distributed spare in its draid.
    pub spare_id: Option<u64>,
    /// ZFS owns the whole disk and its partition table.
    pub whole_disk: Option<bool>,
    /// Rotating medium, if recorded.
    pub rotational: Option<u64>,
    /// The device was missing when the pool was last imported.
    pub not_present: bool,
    /// A hot spare in use (or an entry of the list of spares).
    pub is_spare: bool,
    /// What only top-level vdevs carry.
    pub top: Option<TopLevel>,
    /// `ashift` of a node without the other top-level keys (cache devices).
    pub aux_ashift: Option<u64>,
    /// Dirty time log: space map of the transaction groups this leaf missed.
    pub dirty_time_log: Option<ObjectId>,
    /// Where a removed vdev's blocks went, or go.
    pub indirect: Option<IndirectObjects>,
    /// Transaction group of its creation.
    pub create_txg: Option<Txg>,
    /// Unix time of the last growth.
    pub expansion_time: Option<u64>,
    /// Per-leaf ZAP.
    pub leaf_zap: Option<ObjectId>,
    /// Per-top-level ZAP.
    pub top_zap: Option<ObjectId>,
    /// The root's ZAP.
    pub root_zap: Option<ObjectId>,
    /// A resilver waits for the running one.
    pub resilver_defer: bool,
    /// Its children, in id order; `None` if there was no such key.
    pub children: Option<Vec<VdevConfig>>,
    /// Taken offline by the administrator.
    pub offline: bool,
    /// Transaction group its resilver began at.
    pub resilver_txg: Option<Txg>,
    /// Transaction group its sequential rebuild began at.
    pub rebuild_txg: Option<Txg>,
    /// Persistently faulted.
    pub faulted: bool,
    /// Persistently degraded.
    pub degraded: bool,
    /// Physically removed.
    pub removed: bool,
    /// The spare beside it is to be detached when its resilver is done.
    pub unspare: bool,
    /// Marked as a hole.
    pub is_hole: bool,
    /// Why it is faulted: `err_exceeded` or `external`.
    pub aux_state: Option<String>,
    /// Its guid before it took over its parent's.
    pub original_guid: Option<Guid>,
}

impl VdevConfig {
    /// A placeholder of `kind` for the top-level id `id`.
    pub fn placeholder(kind: VdevKind, id: u64) -> Self {
        Self { kind, id: Some(id), is_hole: kind == VdevKind::Hole, ..Self::default() }
    }

    /// Reads a node and what is below it. Fails when a node has no known type or no guid, or when
    /// `children` is not an array of lists.
    pub fn from_nvlist(list: &NvList) -> Result<Self> {
        let name = list.string("type").ok_or_else(|| Error::new(STRUCTURE, "no type"))?;
        let kind = VdevKind::from_name(name)
            .ok_or_else(|| Error::new(STRUCTURE, format!("unknown type {name:?}")))?;
        let guid = list.u64("guid").ok_or_else(|| Error::new(STRUCTURE, "no guid"))?;
        let children = match list.get("children") {
            None => None,
            Some(Value::ListArray(children)) => {
                Some(children.iter().map(Self::from_nvlist).collect::<Result<Vec<_>>>()?)
            }
            Some(_) => return Err(Error::new(STRUCTURE, "children is not an array of lists")),
        };
        let is = |name: &str| list.u64(name) == Some(1);
        let object = |name: &str| list.u64(name).map(ObjectId);
        let top = list.u64("metaslab_array").map(|array| TopLevel {
            metaslab_array: ObjectId(array),
            metaslab_shift: list.u64("metaslab_shift").unwrap_or(0),
            ashift: list.u64("ashift").unwrap_or(0),
            asize: list.u64("asize").unwrap_or(0),
            min_alloc: list.u64("min_alloc"),
            is_log: is("is_log"),
            non_allocating: list.u64("non_allocating"),
            removing: list.u64("removing"),
        });
        let indirect =
            match (object("com.delphix:indirect_object"), object("com.delphix:indirect_births")) {
                (Some(mapping), Some(births)) => Some(IndirectObjects {
                    mapping,
                    births,
                    previous: list.u64("com.delphix:prev_indirect_vdev"),
                }),
                _ => None,
            };
        Ok(Self {
            kind,
            id: list.u64("id"),
            guid: Guid(guid),
            top_guid: list.u64("top_guid").map(Guid),
            path: list.string_lossy("path"),
            devid: list.string_lossy("devid"),
            phys_path: list.string_lossy("phys_path"),
            enclosure_path: list.string_lossy("vdev_enc_sysfs_path"),
            fru: list.string_lossy("fru"),
            nparity: list.u64("nparity"),
            raidz_expanding: list.flag("raidz_expanding"),
            raidz_expand_txgs: list.u64_array("raidz_expand_txgs").map(<[u64]>::to_vec),
            draid: list.u64("draid_ndata").map(|data| Draid {
                data,
                spares: list.u64("draid_nspares").unwrap_or(0),
                groups: list.u64("draid_ngroups").unwrap_or(0),
                children: list.u64("draid_nchildren"),
            }),
            spare_id: list.u64("spareid"),
            whole_disk: list.u64("whole_disk").map(|value| value != 0),
            rotational: list.u64("rotational"),
            not_present: is("not_present"),
            is_spare: is("is_spare"),
            aux_ashift: if top.is_none() { list.u64("ashift") } else { None },
            top,
            dirty_time_log: object("DTL"),
            indirect,
            create_txg: list.u64("create_txg").map(Txg),
            expansion_time: list.u64("expansion_time"),
            leaf_zap: object("com.delphix:vdev_zap_leaf"),
            top_zap: object("com.delphix:vdev_zap_top"),
            root_zap: object("com.klarasystems:vdev_zap_root"),
            resilver_defer: list.flag("com.datto:resilver_defer"),
            children,
            offline: is("offline"),
            resilver_txg: list.u64("resilver_txg").map(Txg),
            rebuild_txg: list.u64("rebuild_txg").map(Txg),
            faulted: is("faulted"),
            degraded: is("degraded"),
            removed: is("removed"),
            unspare: is("unspare"),
            is_hole: is("is_hole"),
            aux_state: list.string_lossy("aux_state"),
            original_guid: list.u64("orig_guid").map(Guid),
        })
    }

    /// The list OpenZFS would write for this node and what is below it, keys in its order.
    pub fn to_nvlist(&self) -> NvList {
        let mut out = Builder::default();
        out.text("type", Some(self.kind.name()));
        out.number("id", self.id);
        out.number("guid", Some(self.guid.0));
        out.number("top_guid", self.top_guid.map(|guid| guid.0));
        out.text("path", self.path.as_deref());
        out.text("devid", self.devid.as_deref());
        out.text("phys_path", self.phys_path.as_deref());
        out.text("vdev_enc_sysfs_path", self.enclosure_path.as_deref());
        out.text("fru", self.fru.as_deref());
        out.number("nparity", self.nparity);
        out.flag("raidz_expanding", self.raidz_expanding);
        out.value("raidz_expand_txgs", self.raidz_expand_txgs.clone());
        if let Some(draid) = &self.draid {
            out.number("draid_ndata", Some(draid.data));
            out.number("draid_nspares", Some(draid.spares));
            out.number("draid_ngroups", Some(draid.groups));
            out.number("draid_nchildren", draid.children);
        }
        out.number("spareid", self.spare_id);
        out.number("whole_disk", self.whole_disk.map(u64::from));
        out.number("rotational", self.rotational);
        out.number("not_present", self.not_present.then_some(1));
        out.number("is_spare", self.is_spare.then_some(1));
        if let Some(top) = &self.top {
            out.number("metaslab_array", Some(top.metaslab_array.0));
            out.number("metaslab_shift", Some(top.metaslab_shift));
            out.number("ashift", Some(top.ashift));
            out.number("asize", Some(top.asize));
            out.number("min_alloc", top.min_alloc);
            out.number("is_log", Some(u64::from(top.is_log)));
            out.number("non_allocating", top.non_allocating);
            out.number("removing", top.removing);
        }
        out.number("ashift", self.aux_ashift);
        out.number("DTL", self.dirty_time_log.map(|object| object.0));
        if let Some(indirect) = &self.indirect {
            out.number("com.delphix:indirect_object", Some(indirect.mapping.0));
            out.number("com.delphix:indirect_births", Some(indirect.births.0));
            out.number("com.delphix:prev_indirect_vdev", indirect.previous);
        }
        out.number("create_txg", self.create_txg.map(|txg| txg.0));
        out.number("expansion_time", self.expansion_time);
        out.number("com.delphix:vdev_zap_leaf", self.leaf_zap.map(|object| object.0));
        out.number("com.delphix:vdev_zap_top", self.top_zap.map(|object| object.0));
        out.number("com.klarasystems:vdev_zap_root", self.root_zap.map(|object| object.0));
        out.flag("com.datto:resilver_defer", self.resilver_defer);
        out.value(
            "children",
            self.children
                .as_ref()
                .map(|children| children.iter().map(Self::to_nvlist).collect::<Vec<_>>()),
        );
        out.number("offline", self.offline.then_some(1));
        out.number("resilver_txg", self.resilver_txg.map(|txg| txg.0));
        out.number("rebuild_txg", self.rebuild_txg.map(|txg| txg.0));
        out.number("faulted", self.faulted.then_some(1));
        out.number("degraded", self.degraded.then_some(1));
        out.number("removed", self.removed.then_some(1));
        out.number("unspare", self.unspare.then_some(1));
        out.number("is_hole", self.is_hole.then_some(1));
        out.text("aux_state", self.aux_state.as_deref());
        out.number("orig_guid", self.original_guid.map(|guid| guid.0));
        out.list
    }

    /// Its children; none for a leaf.
    pub fn children(&self) -> &[Self] {
        self.children.as_deref().unwrap_or_default()
    }

    /// This node and every node below it, parents first.
    pub fn walk(&self) -> impl Iterator<Item = &Self> {
        let mut pending = vec![self];
        std::iter::from_fn(move || {
            let node = pending.pop()?;
            pending.extend(node.children().iter().rev());
            Some(node)
        })
    }

    /// The leaves with a device at or below this node.
    pub fn devices(&self) -> impl Iterator<Item = &Self> {
        self.walk().filter(|node| node.kind.has_device())
    }

    /// The device must not be opened: taken offline, or forced to fail by the administrator.
    pub fn is_withheld(&self) -> bool {
        self.offline || self.faulted && self.is_external()
    }

    /// That it is faulty or degraded was said by somebody, and not by errors.
    pub fn is_external(&self) -> bool {
        self.aux_state.as_deref() == Some(EXTERNAL)
    }

    /// Sum of the guids of this node and all below it, modulo 2^64: what an uberblock records for
    /// the root. Holes count 0 (chapter 01, section 7.6).
    pub fn guid_sum(&self) -> u64 {
        self.walk().fold(0, |sum: u64, node| sum.wrapping_add(node.guid.0))
    }
}
