//! Pool and vdev configs: what a pool is made of, as its labels and its MOS tell it.
//!
//! Invariant: a config OpenZFS 2.1 to 2.3 wrote turns into these types and back into the same list;
//! keys not known here are dropped on the way back, as OpenZFS does, but stay in
//! [`PoolConfig::raw`]. Chapter 01, section 7.

mod vdev;

pub use vdev::{Draid, ERRORS_EXCEEDED, EXTERNAL, IndirectObjects, TopLevel, VdevConfig, VdevKind};

use crate::nvlist::{NvList, Value};
use crate::{Error, Guid, Result, Txg};

/// State of a pool as its labels tell it (chapter 01, section 14).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PoolState {
    /// Imported somewhere, or not exported before its host stopped.
    Active,
    /// Cleanly exported.
    Exported,
    /// Destroyed, data still in place.
    Destroyed,
    /// The label of an unused hot spare.
    Spare,
    /// The label of a cache device.
    Cache,
}

impl PoolState {
    /// The state of this number; `None` for those never on disk.
    pub fn from_number(number: u64) -> Option<Self> {
        Some(match number {
            0 => Self::Active,
            1 => Self::Exported,
            2 => Self::Destroyed,
            3 => Self::Spare,
            4 => Self::Cache,
            _ => return None,
        })
    }

    /// The number on disk.
    pub fn number(self) -> u64 {
        match self {
            Self::Active => 0,
            Self::Exported => 1,
            Self::Destroyed => 2,
            Self::Spare => 3,
            Self::Cache => 4,
        }
    }

    /// The label is that of a device which belongs to no single pool.
    pub fn is_auxiliary(self) -> bool {
        matches!(self, Self::Spare | Self::Cache)
    }
}

/// A config: of a label (with this device's guids and its top-level vdev) or of the whole pool.
///
/// What is `None` was not there; the label of a spare or cache device has hardly anything.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PoolConfig {
    /// Pool version.
    pub version: Option<u64>,
    /// Pool name.
    pub name: Option<String>,
    /// Pool state, or kind of an auxiliary device.
    pub state: Option<PoolState>,
    /// Transaction group this copy was written in; 0 if the device is not (any more) in a pool.
    pub txg: Option<Txg>,
    /// Identity of the pool.
    pub pool_guid: Option<Guid>,
    /// Known on-disk damage by old releases, 0 for none.
    pub errata: Option<u64>,
    /// Smallest allocation of any data vdev, in bytes.
    pub min_alloc: Option<u64>,
    /// Largest minimum allocation of any data vdev, in bytes.
    pub max_alloc: Option<u64>,
    /// The pool's comment.
    pub comment: Option<String>,
    /// Names of the compatibility files.
    pub compatibility: Option<String>,
    /// Id of the host that wrote this.
    pub hostid: Option<u64>,
    /// Name of the host that wrote this.
    pub hostname: Option<String>,
    /// Guid of this device's top-level vdev.
    pub top_guid: Option<Guid>,
    /// Guid of this device.
    pub guid: Option<Guid>,
    /// This device is a hot spare in use.
    pub is_spare: bool,
    /// This device is a log vdev by itself.
    pub is_log: bool,
    /// A split in progress, or its result.
    pub split: Option<NvList>,
    /// Whether per-vdev ZAPs can be relied on (MOS only).
    pub has_per_vdev_zaps: bool,
    /// Ids of removed log vdevs.
    pub holes: Vec<u64>,
    /// Number of top-level ids, holes and removed vdevs included.
    pub vdev_children: Option<u64>,
    /// Pool this one was split from.
    pub split_guid: Option<Guid>,
    /// This device's top-level vdev, or the root of the whole tree.
    pub vdev_tree: Option<VdevConfig>,
    /// Active features one must know to read the pool's metadata.
    pub features_for_read: Option<Vec<String>>,
    /// Creating transaction group of a label that was only initialised.
    pub create_txg: Option<Txg>,
    /// The list this was read from.
    pub raw: NvList,
}

impl PoolConfig {
    /// Reads a config. Fails only when its vdev tree is malformed.
    pub fn from_nvlist(list: NvList) -> Result<Self> {
        let vdev_tree = match list.get("vdev_tree") {
            None => None,
            Some(Value::List(tree)) => Some(VdevConfig::from_nvlist(tree)?),
            Some(_) => return Err(Error::new("pool config", "vdev_tree is not a list")),
        };
        let features = list.nvlist("features_for_read").map(|features| {
            features.iter().map(|pair| String::from_utf8_lossy(&pair.name).into_owned()).collect()
        });
        Ok(Self {
            version: list.u64("version"),
            name: list.string_lossy("name"),
            state: list.u64("state").and_then(PoolState::from_number),
            txg: list.u64("txg").map(Txg),
            pool_guid: list.u64("pool_guid").map(Guid),
            errata: list.u64("errata"),
            min_alloc: list.u64("min_alloc"),
            max_alloc: list.u64("max_alloc"),
            comment: list.string_lossy("comment"),
            compatibility: list.string_lossy("compatibility"),
            hostid: list.u64("hostid"),
            hostname: list.string_lossy("hostname"),
            top_guid: list.u64("top_guid").map(Guid),
            guid: list.u64("guid").map(Guid),
            is_spare: list.u64("is_spare") == Some(1),
            is_log: list.u64("is_log") == Some(1),
            split: list.nvlist("splitcfg").cloned(),
            has_per_vdev_zaps: list.flag("com.delphix:has_per_vdev_zaps"),
            holes: list.u64_array("hole_array").unwrap_or_default().to_vec(),
            vdev_children: list.u64("vdev_children"),
            split_guid: list.u64("split_guid").map(Guid),
            vdev_tree,
            features_for_read: features,
            create_txg: list.u64("create_txg").map(Txg),
            raw: list,
        })
    }

    /// Decodes a packed list and reads it.
    pub fn decode(data: &[u8]) -> Result<Self> {
        Self::from_nvlist(NvList::decode(data)?)
    }

    /// The list OpenZFS would write for this config, keys in its order.
    pub fn to_nvlist(&self) -> NvList {
        let mut out = Builder::default();
        out.number("version", self.version);
        out.text("name", self.name.as_deref());
        out.number("state", self.state.map(PoolState::number));
        out.number("txg", self.txg.map(|txg| txg.0));
        out.number("pool_guid", self.pool_guid.map(|guid| guid.0));
        out.number("errata", self.errata);
        out.number("min_alloc", self.min_alloc);
        out.number("max_alloc", self.max_alloc);
        out.text("comment", self.comment.as_deref());
        out.text("compatibility", self.compatibility.as_deref());
        out.number("hostid", self.hostid);
        out.text("hostname", self.hostname.as_deref());
        out.number("top_guid", self.top_guid.map(|guid| guid.0));
        out.number("guid", self.guid.map(|guid| guid.0));
        out.number("is_spare", self.is_spare.then_some(1));
        out.number("is_log", self.is_log.then_some(1));
        out.value("splitcfg", self.split.clone());
        out.flag("com.delphix:has_per_vdev_zaps", self.has_per_vdev_zaps);
        out.value("hole_array", (!self.holes.is_empty()).then(|| self.holes.clone()));
        out.number("vdev_children", self.vdev_children);
        out.number("split_guid", self.split_guid.map(|guid| guid.0));
        out.value("vdev_tree", self.vdev_tree.as_ref().map(VdevConfig::to_nvlist));
        out.value(
            "features_for_read",
            self.features_for_read.as_ref().map(|features| {
                let mut names = NvList::new();
                features.iter().for_each(|name| names.push(name, Value::Boolean));
                names
            }),
        );
        out.number("create_txg", self.create_txg.map(|txg| txg.0));
        out.list
    }
}

/// Appends to a list what is there.
#[derive(Default)]
struct Builder {
    list: NvList,
}

impl Builder {
    fn value(&mut self, name: &str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.list.push(name, value);
        }
    }

    fn number(&mut self, name: &str, value: Option<u64>) {
        self.value(name, value);
    }

    fn text(&mut self, name: &str, value: Option<&str>) {
        self.value(name, value);
    }

    fn flag(&mut self, name: &str, present: bool) {
        self.value(name, present.then_some(Value::Boolean));
    }
}

#[cfg(test)]
mod tests;
