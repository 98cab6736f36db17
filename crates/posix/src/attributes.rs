//! What a file's bonus says of it: system attributes or a legacy znode.
//!
//! Invariant: [`Facts`] of one object come from one dnode, so they agree with each other. This is
//! the path of every `stat`: no allocation, no lookup by name.

use cenote_engine::object::Object;
use cenote_format::sa::{Attribute, AttributeTable, View as Buffer};
use cenote_format::znode::Znode;
use cenote_format::{Dnode, ObjectType, fuid::Fuid, pflags};

use crate::error::{EIO, ESTALE};
use crate::tree::{Attributes, Errno, NodeId, Result, Timestamp};

/// File type bits of a mode.
pub const TYPE: u32 = 0o170_000;
/// Directory.
pub const DIRECTORY: u32 = 0o040_000;
/// Regular file.
pub const REGULAR: u32 = 0o100_000;
/// Symbolic link.
pub const SYMLINK: u32 = 0o120_000;
/// Character device.
pub const CHARACTER: u32 = 0o020_000;
/// Block device.
pub const BLOCK: u32 = 0o060_000;

/// What the bonus says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// `st_mode`.
    pub mode: u32,
    /// Length in bytes; entries + 2 of a directory.
    pub size: u64,
    /// Transaction group of creation.
    pub generation: u64,
    /// Object of the parent directory.
    pub parent: u64,
    /// Hard links.
    pub links: u64,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// See [`cenote_format::pflags`].
    pub flags: u64,
    /// Device number as stored, 0 if the file is none.
    pub device: u64,
    /// Project id, 0 if it has none.
    pub project: u64,
    /// Last access.
    pub accessed: Timestamp,
    /// Last change of content.
    pub modified: Timestamp,
    /// Last change of attributes.
    pub changed: Timestamp,
    /// Creation.
    pub created: Timestamp,
}

impl Facts {
    /// Reads the bonus of `object`; the spill block is read only if something stands there.
    pub fn read(table: Option<&AttributeTable>, object: &Object) -> Result<Self> {
        match object.dnode().bonus_type {
            ObjectType::SYSTEM_ATTRIBUTES => {
                SystemAttributes::open(table, object, object.dnode().bonus())?.facts()
            }
            ObjectType::ZNODE => Ok(Self::from_znode(&Znode::decode(object.dnode().bonus())?)),
            _ => Err(Errno::new(ESTALE, format!("object {} is no file", object.id()))),
        }
    }

    fn from_znode(znode: &Znode) -> Self {
        Self {
            mode: znode.mode as u32,
            size: znode.size,
            generation: znode.generation,
            parent: znode.parent,
            links: znode.links,
            uid: Fuid::decode(znode.owner).posix(),
            gid: Fuid::decode(znode.group).posix(),
            flags: znode.flags,
            device: if is_device(znode.mode as u32) { znode.device } else { 0 },
            project: 0,
            accessed: stored_time(znode.accessed),
            modified: stored_time(znode.modified),
            changed: stored_time(znode.changed),
            created: stored_time(znode.created),
        }
    }

    /// File type bits.
    pub fn kind(&self) -> u32 {
        self.mode & TYPE
    }

    /// It is a directory.
    pub fn is_directory(&self) -> bool {
        self.kind() == DIRECTORY
    }

    /// What `stat` reports, as OpenZFS does.
    pub fn attributes(&self, node: NodeId, dnode: &Dnode) -> Attributes {
        let slots = u64::from(dnode.extra_slots) + 1;
        Attributes {
            node,
            generation: self.generation,
            mode: self.mode,
            links: u32::try_from(self.links).unwrap_or(u32::MAX),
            uid: self.uid,
            gid: self.gid,
            rdev: glibc_device(self.device),
            size: self.size,
            // The dnode's own slots are charged too.
            sectors: (dnode.used_bytes().saturating_add(256) >> 9).saturating_add(slots),
            block_size: u32::try_from(dnode.block_size()).unwrap_or(u32::MAX),
            accessed: self.accessed,
            modified: self.modified,
            changed: self.changed,
            created: self.created,
        }
    }
}

/// Whether a mode is that of a device node.
pub fn is_device(mode: u32) -> bool {
    matches!(mode & TYPE, CHARACTER | BLOCK)
}

/// A time as it is stored: seconds, which may be negative, and nanoseconds.
pub(crate) fn stored_time([seconds, nanoseconds]: [u64; 2]) -> Timestamp {
    let nanoseconds = u32::try_from(nanoseconds).unwrap_or(u32::MAX).min(999_999_999);
    Timestamp { seconds: seconds.cast_signed(), nanoseconds }
}

/// A stored device number as glibc's `makedev` encodes it.
///
/// Linux stores major << 20 | minor, FreeBSD and illumos major << 32 | minor (chapter 05,
/// section 10); majors above 0 make the second form recognizable.
pub fn glibc_device(stored: u64) -> u64 {
    let (major, minor) = match stored >> 32 {
        0 => (stored >> 20, stored & 0xf_ffff),
        major => (major, stored & 0xffff_ffff),
    };
    (major & 0xffff_f000) << 32 | (major & 0xfff) << 8 | (minor & 0xffff_ff00) << 12 | minor & 0xff
}

/// The attribute buffers of one object: bonus first, spill when the bonus lacks something.
pub struct SystemAttributes<'a> {
    table: &'a AttributeTable,
    object: &'a Object,
    bonus: Buffer<'a>,
}

impl<'a> SystemAttributes<'a> {
    /// Opens `bonus`, which is that of `object`.
    pub fn open(
        table: Option<&'a AttributeTable>,
        object: &'a Object,
        bonus: &'a [u8],
    ) -> Result<Self> {
        let none = || Errno::new(EIO, "system attributes in a filesystem without their registry");
        let table = table.ok_or_else(none)?;
        let bonus = table.view(bonus).map_err(|error| {
            let error = cenote_engine::Error::from(error);
            error.at_object(object.set().id(), object.id().0)
        })?;
        Ok(Self { table, object, bonus })
    }

    /// Runs `read` on the bonus, then, if that finds nothing, on the spill block.
    fn find<T>(
        &self,
        read: impl Fn(&Buffer<'_>) -> cenote_format::Result<Option<T>>,
    ) -> Result<Option<T>> {
        if let Some(found) = read(&self.bonus)? {
            return Ok(Some(found));
        }
        match self.object.spill()? {
            Some(spill) => Ok(read(&self.table.view(&spill)?)?),
            None => Ok(None),
        }
    }

    /// The first word of an attribute.
    pub fn word(&self, attribute: Attribute) -> Result<Option<u64>> {
        self.find(|buffer| buffer.word(attribute))
    }

    /// The value of an attribute, little-endian.
    pub fn value(&self, attribute: Attribute) -> Result<Option<Vec<u8>>> {
        self.find(|buffer| Ok(buffer.value(attribute)?.map(std::borrow::Cow::into_owned)))
    }

    fn required(&self, attribute: Attribute) -> Result<u64> {
        self.word(attribute)?.ok_or_else(|| self.missing(attribute))
    }

    fn time(&self, attribute: Attribute) -> Result<Timestamp> {
        let pair = self.find(|buffer| buffer.pair(attribute))?;
        let (seconds, nanoseconds) = pair.ok_or_else(|| self.missing(attribute))?;
        Ok(stored_time([seconds, nanoseconds]))
    }

    fn missing(&self, attribute: Attribute) -> Errno {
        let reason = format!("object {} has no {}", self.object.id(), attribute.name());
        Errno::new(EIO, reason)
    }

    /// What the attributes say.
    pub fn facts(&self) -> Result<Facts> {
        let mode = self.required(Attribute::Mode)? as u32;
        let device = if is_device(mode) { self.word(Attribute::Device)? } else { None };
        let flags = self.required(Attribute::Flags)?;
        let has_project = flags & pflags::PROJECT != 0;
        let project = if has_project { self.word(Attribute::Project)? } else { None };
        Ok(Facts {
            mode,
            size: self.required(Attribute::Size)?,
            generation: self.required(Attribute::Generation)?,
            parent: self.required(Attribute::Parent)?,
            links: self.required(Attribute::Links)?,
            uid: Fuid::decode(self.required(Attribute::Owner)?).posix(),
            gid: Fuid::decode(self.required(Attribute::Group)?).posix(),
            flags,
            device: device.unwrap_or(0),
            project: project.unwrap_or(0),
            accessed: self.time(Attribute::Accessed)?,
            modified: self.time(Attribute::Modified)?,
            changed: self.time(Attribute::Changed)?,
            created: self.time(Attribute::Created)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_of_every_system() {
        // 1:3 and 259:77777 as Linux stores them; 259:77777 as FreeBSD does.
        assert_eq!(glibc_device(1 << 20 | 3), 0x103);
        let expected = 259 << 8 | (77777 & !0xff) << 12 | 77777 & 0xff;
        assert_eq!(glibc_device(259 << 20 | 77777), expected);
        assert_eq!(glibc_device(259 << 32 | 77777), expected);
        assert_eq!(glibc_device(0), 0);
    }

    #[test]
    fn times_before_1970_and_wild_nanoseconds() {
        assert_eq!(stored_time([u64::MAX, 5]), Timestamp { seconds: -1, nanoseconds: 5 });
        assert_eq!(stored_time([0, u64::MAX]).nanoseconds, 999_999_999);
    }

    #[test]
    fn znode_facts() {
        let znode = Znode {
            mode: 0o100644,
            size: 9,
            owner: 1 << 32 | 5,
            group: 7,
            device: 99,
            modified: [1, 2],
            ..Znode::default()
        };
        let facts = Facts::from_znode(&znode);
        assert_eq!((facts.uid, facts.gid, facts.device), (65534, 7, 0));
        assert_eq!(facts.modified, Timestamp { seconds: 1, nanoseconds: 2 });
    }
}
