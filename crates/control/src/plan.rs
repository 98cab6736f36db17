//! What a pool or device to be made should look like, as the command line decided it.
//!
//! Invariant: a plan is complete: paths are absolute and checked, counts are filled in, values are
//! parsed. Who carries it out looks at nothing else.

use serde::{Deserialize, Serialize};

use crate::report::VdevClass;
use crate::secret::Secret;

/// The value of a property to set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PropertyValue {
    /// A number, size in bytes, or the number of an index value, as it is stored.
    Number(u64),
    /// Text, as it is stored.
    Text(String),
}

impl PropertyValue {
    /// The number, if it is one.
    pub fn number(&self) -> Option<u64> {
        match self {
            PropertyValue::Number(number) => Some(*number),
            PropertyValue::Text(_) => None,
        }
    }

    /// The text, if it is one.
    pub fn text(&self) -> Option<&str> {
        match self {
            PropertyValue::Number(_) => None,
            PropertyValue::Text(text) => Some(text),
        }
    }
}

/// One property to set. The name of a quota of somebody is `userquota@1000`, always with the
/// numeric id; that of a user property has a colon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PropertySetting {
    /// Full name.
    pub name: String,
    /// Value.
    pub value: PropertyValue,
}

impl PropertySetting {
    /// A setting of a number.
    pub fn number(name: &str, value: u64) -> PropertySetting {
        PropertySetting { name: name.to_owned(), value: PropertyValue::Number(value) }
    }

    /// A setting of a text.
    pub fn text(name: &str, value: &str) -> PropertySetting {
        PropertySetting { name: name.to_owned(), value: PropertyValue::Text(value.to_owned()) }
    }
}

/// A key for new or changed encryption.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewKey {
    /// The key as the user gave it, checked for its form: 32 raw bytes, 64 hexadecimal digits, or
    /// a passphrase.
    pub secret: Secret,
    /// `raw`, `hex` or `passphrase`.
    pub format: String,
    /// Where it is found later (`prompt`, `file:///...`).
    pub location: String,
    /// Rounds of PBKDF2 for a passphrase; zero otherwise.
    pub iterations: u64,
}

/// The layout of one device and what is below it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum VdevPlanKind {
    /// A regular file.
    #[default]
    File,
    /// A block device: a partition, or a whole disk (see [`VdevPlan::whole_disk`]).
    Disk,
    /// Every child holds everything.
    Mirror,
    /// Parity over the children.
    Raidz {
        /// 1, 2 or 3.
        parity: u8,
    },
    /// Parity over permuted groups, with distributed spares.
    Draid {
        /// 1, 2 or 3.
        parity: u8,
        /// Data disks per group.
        data: u8,
        /// Children; equals their number.
        children: u8,
        /// Distributed spares.
        spares: u8,
        /// Groups that fill a whole number of rows.
        groups: u8,
    },
}

/// A device to be made. Top-level ones have a class; children have that of their parent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VdevPlan {
    /// What it is.
    pub kind: VdevPlanKind,
    /// What its space is for. Cache devices and spares are always leaves.
    pub class: VdevClass,
    /// Absolute path of a leaf.
    pub path: Option<String>,
    /// Stable name of the leaf's device (`/dev/disk/by-id`), if it has one.
    pub devid: Option<String>,
    /// The leaf is a disk that gets a partition table of its own.
    pub whole_disk: bool,
    /// Size of the leaf in bytes.
    pub size: u64,
    /// log2 of the block size of the top-level device; `None`: what the devices report, at least 9.
    pub ashift: Option<u8>,
    /// Children of a mirror, raidz or draid.
    pub children: Vec<VdevPlan>,
}

impl VdevPlan {
    /// Whether nothing is below.
    pub fn is_leaf(&self) -> bool {
        matches!(self.kind, VdevPlanKind::File | VdevPlanKind::Disk)
    }

    /// All leaves, in order.
    pub fn leaves(&self) -> Vec<&VdevPlan> {
        if self.is_leaf() {
            return vec![self];
        }
        self.children.iter().flat_map(VdevPlan::leaves).collect()
    }

    /// Type on disk: `mirror`, `raidz2`, `draid1:4d:7c:1s`, or the path of a leaf. What layouts show.
    pub fn label(&self) -> String {
        match self.kind {
            VdevPlanKind::File | VdevPlanKind::Disk => self.path.clone().unwrap_or_default(),
            VdevPlanKind::Mirror => "mirror".to_owned(),
            VdevPlanKind::Raidz { parity } => format!("raidz{parity}"),
            VdevPlanKind::Draid { parity, data, children, spares, .. } => {
                format!("draid{parity}:{data}d:{children}c:{spares}s")
            }
        }
    }
}

/// What `zpool create` asks for. Sent to the new pool process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CreatePool {
    /// Name on disk.
    pub name: String,
    /// Name while it is imported (`-t`); `None`: the same.
    pub temporary_name: Option<String>,
    /// What goes before all mountpoints (`-R`); not stored.
    pub altroot: Option<String>,
    /// Top-level devices, cache devices and spares, in the order given.
    pub vdevs: Vec<VdevPlan>,
    /// Properties of the pool that are stored (`comment`, `autotrim`, ...).
    pub properties: Vec<PropertySetting>,
    /// Short names of the features to enable, with all they depend on.
    pub features: Vec<String>,
    /// Properties of the root filesystem.
    pub root_properties: Vec<PropertySetting>,
    /// Key of the root filesystem, if it is encrypted.
    pub root_key: Option<NewKey>,
    /// For the history.
    pub command: String,
}

impl CreatePool {
    /// The name the pool has once it is there.
    pub fn imported_name(&self) -> &str {
        self.temporary_name.as_deref().unwrap_or(&self.name)
    }
}
