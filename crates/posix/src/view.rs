//! One object set seen as files: the head of a filesystem, or one of its snapshots.
//!
//! Chapter 05, sections 1 to 10. Invariant: a view never changes what it says of itself (version,
//! root, naming rules); nodes it gives carry its number in the upper 16 bits, so that files of
//! different snapshots never share an identity.

use std::sync::Arc;

use cenote_engine::ErrorKind;
use cenote_engine::object::{Object, ObjectSet};
use cenote_engine::zap::Zap;
use cenote_format::master_node::{self, CaseSensitivity};
use cenote_format::objset::ObjsetKind;
use cenote_format::sa::{Attribute, AttributeTable};
use cenote_format::zap::MatchKind;
use cenote_format::znode::Znode;
use cenote_format::{ObjectId, ObjectType};
use parking_lot::RwLock;

use crate::attributes::{Facts, REGULAR, SYMLINK, SystemAttributes};
use crate::error::{EINVAL, EIO, EISDIR, ENOTDIR, ENXIO, EOPNOTSUPP, ESTALE};
use crate::open_directories::OpenDirectories;
use crate::tree::{Attributes, Errno, NodeId, Pieces, Result, Seek};

/// Bits of a node that hold the object number.
pub const OBJECT_BITS: u32 = 48;
/// Longest target of a symbolic link that is believed.
const LINK_MAX: u64 = 65_535;

/// How names of a filesystem are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Naming {
    /// Whether case matters.
    pub case: CaseSensitivity,
    /// Unicode normalization flags.
    pub normalization: u64,
    /// Names must be UTF-8.
    pub utf8_only: bool,
}

impl Naming {
    /// How a stored name is compared with one that is looked for.
    pub fn match_kind(&self) -> MatchKind {
        match self.case {
            CaseSensitivity::Sensitive if self.normalization == 0 => MatchKind::Exact,
            CaseSensitivity::Sensitive | CaseSensitivity::Insensitive => MatchKind::Normalized,
            CaseSensitivity::Mixed => MatchKind::NormalizedKeepCase,
        }
    }
}

/// A file: its object and what its bonus says.
pub struct File {
    /// The object.
    pub object: Object,
    /// What the bonus says.
    pub facts: Facts,
    /// The bonus where it was changed after `object` was opened.
    pub(crate) changed_bonus: Option<Vec<u8>>,
}

impl File {
    /// The bonus as it is now.
    pub fn bonus(&self) -> &[u8] {
        self.changed_bonus.as_deref().unwrap_or_else(|| self.object.dnode().bonus())
    }

    /// Whether the file has system attributes; older ones have a znode.
    pub fn has_system_attributes(&self) -> bool {
        self.object.dnode().bonus_type == ObjectType::SYSTEM_ATTRIBUTES
    }
}

/// One object set as files.
pub struct View {
    objects: ObjectSet,
    number: u16,
    root: ObjectId,
    version: u64,
    naming: Naming,
    pub(crate) table: Option<RwLock<Arc<AttributeTable>>>,
    pub(crate) directories: OpenDirectories,
}

impl View {
    /// Opens the files of `objects`; `number` distinguishes this view (0 is the head).
    pub fn open(objects: ObjectSet, number: u16) -> Result<Self> {
        if objects.kind() != ObjsetKind::Zfs {
            let reason = format!("dataset object {} holds no files", objects.id());
            return Err(Errno::new(EINVAL, reason));
        }
        let master = Zap::open(objects.object(master_node::OBJECT)?)?;
        let number_of = |key: &[u8], otherwise: u64| -> Result<u64> {
            Ok(master.lookup(key)?.and_then(|value| value.as_u64()).unwrap_or(otherwise))
        };
        let version = number_of(master_node::VERSION, master_node::NEWEST_VERSION)?;
        if version == 0 || version > master_node::NEWEST_VERSION {
            let reason = format!("ZPL version {version} is not supported");
            return Err(Errno::new(EOPNOTSUPP, reason));
        }
        let root = match number_of(master_node::ROOT, 0)? {
            0 => return Err(Errno::new(EIO, "the master node names no root directory")),
            root => ObjectId(root),
        };
        let case = number_of(master_node::CASE_SENSITIVITY, 0)?;
        let case = CaseSensitivity::from_raw(case)
            .ok_or_else(|| Errno::new(EOPNOTSUPP, format!("case sensitivity {case}")))?;
        let naming = Naming {
            case,
            normalization: number_of(master_node::NORMALIZATION, 0)?,
            utf8_only: number_of(master_node::UTF8_ONLY, 0)? != 0,
        };
        let table = match number_of(master_node::SYSTEM_ATTRIBUTES, 0)? {
            0 => None,
            object => Some(RwLock::new(Arc::new(attribute_table(&objects, ObjectId(object))?))),
        };
        let directories = OpenDirectories::default();
        Ok(Self { objects, number, root, version, naming, table, directories })
    }

    /// The object set.
    pub fn objects(&self) -> &ObjectSet {
        &self.objects
    }

    /// ZPL version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// How names are compared.
    pub fn naming(&self) -> Naming {
        self.naming
    }

    /// Object of the root directory.
    pub fn root(&self) -> ObjectId {
        self.root
    }

    /// The attribute registry; filesystems before ZPL 5 have none.
    pub fn attribute_table(&self) -> Option<Arc<AttributeTable>> {
        self.table.as_ref().map(|table| table.read().clone())
    }

    /// The node of an object of this view.
    pub fn node(&self, object: ObjectId) -> NodeId {
        u64::from(self.number) << OBJECT_BITS | object.0 & ((1 << OBJECT_BITS) - 1)
    }

    /// The file of an object; ESTALE if there is none.
    pub fn file(&self, id: ObjectId) -> Result<File> {
        let object = self.objects.object(id).map_err(|error| match error.kind() {
            ErrorKind::NotFound => Errno::new(ESTALE, error.to_string()),
            _ => error.into(),
        })?;
        let kind = object.dnode().object_type;
        if kind != ObjectType::PLAIN_FILE && kind != ObjectType::DIRECTORY {
            let reason = format!("object {id} is a {}, no file", kind.name());
            return Err(Errno::new(ESTALE, reason));
        }
        let facts = Facts::read(self.attribute_table().as_deref(), &object)?;
        Ok(File { object, facts, changed_bonus: None })
    }

    /// As [`Self::file`], which must be a directory.
    pub fn directory(&self, id: ObjectId) -> Result<File> {
        let file = self.file(id)?;
        if !file.facts.is_directory() || file.object.dnode().object_type != ObjectType::DIRECTORY {
            return Err(Errno::new(ENOTDIR, "not a directory"));
        }
        Ok(file)
    }

    /// `stat`.
    pub fn attributes(&self, id: ObjectId) -> Result<Attributes> {
        let file = self.file(id)?;
        Ok(file.facts.attributes(self.node(id), file.object.dnode()))
    }

    /// Target of a symbolic link.
    pub fn read_link(&self, file: &File) -> Result<Vec<u8>> {
        if file.facts.kind() != SYMLINK {
            return Err(Errno::new(EINVAL, "not a symbolic link"));
        }
        if file.has_system_attributes() {
            if let Some(target) = self.value(file, Attribute::SymlinkTarget)? {
                return Ok(target);
            }
        } else if let Some(target) = Znode::decode(file.bonus())?.tail_target(file.bonus()) {
            return Ok(target.to_vec());
        }
        let size = file.facts.size;
        if size > LINK_MAX {
            return Err(Errno::new(EIO, format!("target of {size} bytes")));
        }
        Ok(file.object.read_vec(0, size as usize)?)
    }

    /// The value of a system attribute of `file`, little-endian.
    pub fn value(&self, file: &File, attribute: Attribute) -> Result<Option<Vec<u8>>> {
        let table = self.attribute_table();
        SystemAttributes::open(table.as_deref(), &file.object, file.bonus())?.value(attribute)
    }

    /// The first word of a system attribute of `file`.
    pub fn word(&self, file: &File, attribute: Attribute) -> Result<Option<u64>> {
        let table = self.attribute_table();
        SystemAttributes::open(table.as_deref(), &file.object, file.bonus())?.word(attribute)
    }

    /// Bytes of a regular file, clipped to its length.
    pub fn read(file: &File, offset: u64, len: usize) -> Result<Pieces> {
        Self::expect_data(file)?;
        let rest = file.facts.size.saturating_sub(offset);
        let len = usize::try_from(rest).unwrap_or(usize::MAX).min(len);
        Ok(file.object.read(offset, len)?)
    }

    /// Next data or hole.
    pub fn seek(file: &File, offset: u64, what: Seek) -> Result<u64> {
        Self::expect_data(file)?;
        let size = file.facts.size;
        let beyond = || Errno::new(ENXIO, "no more data");
        if offset >= size {
            return Err(beyond());
        }
        match what {
            Seek::Data => file.object.seek_data(offset)?.filter(|at| *at < size).ok_or_else(beyond),
            Seek::Hole => {
                // What lies beyond the last block is a hole, and so is the end of the file.
                let blocks = file.object.block_count();
                let end = blocks.saturating_mul(file.object.block_size()).max(offset);
                Ok(file.object.seek_hole(offset)?.unwrap_or(end).min(size))
            }
        }
    }

    fn expect_data(file: &File) -> Result<()> {
        match file.facts.kind() {
            REGULAR => Ok(()),
            _ if file.facts.is_directory() => Err(Errno::new(EISDIR, "a directory")),
            _ => Err(Errno::new(EINVAL, "not a regular file")),
        }
    }
}

/// Reads REGISTRY and LAYOUTS behind the attribute master object.
fn attribute_table(objects: &ObjectSet, master: ObjectId) -> Result<AttributeTable> {
    let master = Zap::open(objects.object(master)?)?;
    let part = |key: &[u8]| -> Result<Vec<(Vec<u8>, cenote_format::zap::Value)>> {
        let Some(object) = master.lookup(key)?.and_then(|value| value.as_u64()) else {
            return Ok(Vec::new());
        };
        let zap = Zap::open(objects.object(ObjectId(object))?)?;
        let entry = |entry: cenote_engine::Result<cenote_engine::zap::Entry>| {
            let entry = entry?;
            Ok((entry.name().to_vec(), entry.value))
        };
        zap.entries().map(entry).collect()
    };
    let bad = |what: &str, name: &[u8]| {
        let name = String::from_utf8_lossy(name).into_owned();
        Errno::new(EIO, format!("bad {what} entry '{name}' of the system attributes"))
    };
    let registry = part(master_node::SA_REGISTRY)?;
    let mut registrations = Vec::with_capacity(registry.len());
    for (name, value) in &registry {
        let raw = value.as_u64().ok_or_else(|| bad("registry", name))?;
        registrations.push((name.as_slice(), raw));
    }
    let mut layouts = Vec::new();
    for (name, value) in part(master_node::SA_LAYOUTS)? {
        let number = std::str::from_utf8(&name).ok().and_then(|name| name.parse::<u16>().ok());
        let numbers: Option<Vec<u16>> =
            value.integers().map(|number| u16::try_from(number).ok()).collect();
        match (number, numbers) {
            (Some(number), Some(numbers)) if value.integer_size() == 2 => {
                layouts.push((number, numbers));
            }
            _ => return Err(bad("layout", &name)),
        }
    }
    Ok(AttributeTable::new(registrations, layouts)?)
}
