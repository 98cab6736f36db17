//! NFSv4 lists: what changes in them with a mode, and what new files take over.
//!
//! Chapter 05, section 12; properties `aclmode` and `aclinherit`. Invariant: list, mode and the flags
//! that describe the list agree after every change made here.

use cenote_engine::txg::Tx;
use cenote_format::acl::{
    self, ALLOW, Ace, Aces, DIRECTORY_INHERIT, EXECUTE, FILE_INHERIT, INHERIT_ONLY, NO_PROPAGATE,
    WRITE_ACL, WRITE_OWNER, Who,
};
use cenote_format::pflags;
use cenote_format::sa::Attribute;

use super::FilesystemWriter;
use super::object::acl_flags;
use crate::attributes::{Facts, REGULAR, SystemAttributes};
use crate::error::EPERM;
use crate::tree::{Errno, Result};
use crate::view::File;

/// The entry came from the directory.
const INHERITED: u16 = 0x80;
/// All flags of inheritance.
const INHERITANCE: u16 = FILE_INHERIT | DIRECTORY_INHERIT | NO_PROPAGATE | INHERIT_ONLY;
/// Kinds of entries with object types.
const OBJECT_KINDS: std::ops::RangeInclusive<u16> = 5..=8;
/// Flags of a file that follow from its list.
const FROM_LIST: u64 =
    pflags::ACL_TRIVIAL | pflags::NO_EXECS_DENIED | pflags::INHERIT_ACE | pflags::ACL_OBJECT_ACE;

/// Property `aclmode`: what `chmod` does to a list that says more than a mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum AclMode {
    /// It is gone.
    #[default]
    Discard,
    /// Its entries stay, and allow no more than the group's bits.
    GroupMask,
    /// Its entries stay.
    PassThrough,
    /// It keeps the mode from being changed.
    Restricted,
}

impl AclMode {
    /// Of the property's number.
    pub fn from_number(number: u64) -> Self {
        match number {
            2 => Self::GroupMask,
            3 => Self::PassThrough,
            4 => Self::Restricted,
            _ => Self::Discard,
        }
    }
}

/// Property `aclinherit`: what new files take over of their directory's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum AclInherit {
    /// Nothing.
    Discard,
    /// Entries that do not allow anything.
    NoAllow,
    /// All, without the right to change list or owner.
    #[default]
    Restricted,
    /// All; they may decide the mode.
    PassThrough,
    /// The same; files that are not to be executed are not executable by it.
    PassThroughX,
}

impl AclInherit {
    /// Of the property's number.
    pub fn from_number(number: u64) -> Self {
        match number {
            0 => Self::Discard,
            1 => Self::NoAllow,
            3 => Self::PassThrough,
            5 => Self::PassThroughX,
            _ => Self::Restricted,
        }
    }

    fn passes_modes(self) -> bool {
        matches!(self, Self::PassThrough | Self::PassThroughX)
    }
}

fn of_mode(ace: &Ace) -> bool {
    matches!(ace.who(), Who::Owner | Who::OwningGroup | Who::Everyone)
}

/// `list` with the entries of a mode around it. `replaces`: entries for owner, group and everyone
/// give way, and stay only to be inherited; `trims`: nobody is allowed more than the group.
fn with_mode(list: &[Ace], mode: u32, is_directory: bool, replaces: bool, trims: bool) -> Aces {
    let trivial = acl::trivial(mode, is_directory);
    let (exceptions, last) = trivial.split_at(trivial.len().saturating_sub(3));
    let group = last.get(1).map_or(0, |ace| ace.mask);
    let mut all: Aces = exceptions.iter().copied().collect();
    for ace in list {
        let mut ace = *ace;
        if replaces && of_mode(&ace) {
            if !is_directory || ace.flags & (FILE_INHERIT | DIRECTORY_INHERIT) == 0 {
                continue;
            }
            ace.flags |= INHERIT_ONLY;
        }
        if trims && ace.kind == ALLOW && ace.flags & INHERIT_ONLY == 0 {
            ace.mask &= group;
        }
        all.push(ace);
    }
    all.extend(last.iter().copied());
    all
}

/// What a file of type `kind`, asked for with `mode`, takes over of a directory's list; and whether
/// the entries of its mode are to be added.
fn inherited(list: &[Ace], kind: u32, mode: u32, rule: AclInherit) -> (Aces, bool) {
    let is_directory = kind == crate::attributes::DIRECTORY;
    let (mut taken, mut needs_mode) = (Aces::new(), true);
    if rule == AclInherit::Discard {
        return (taken, needs_mode);
    }
    for ace in list {
        let is_for_directories = ace.flags & DIRECTORY_INHERIT != 0;
        let is_for_this = match is_directory {
            true if is_for_directories => true,
            true => ace.flags & FILE_INHERIT != 0 && ace.flags & NO_PROPAGATE == 0,
            false => ace.flags & FILE_INHERIT != 0,
        };
        if !is_for_this || (rule == AclInherit::NoAllow && ace.kind == ALLOW) {
            continue;
        }
        let counts = kind == REGULAR || (is_directory && is_for_directories);
        if rule.passes_modes() && of_mode(ace) && counts {
            needs_mode = false;
        }
        let mut ace = *ace;
        if ace.kind == ALLOW {
            match rule {
                AclInherit::PassThroughX if !is_directory && mode & 0o111 == 0 => {
                    ace.mask &= !EXECUTE;
                }
                AclInherit::Restricted => ace.mask &= !(WRITE_ACL | WRITE_OWNER),
                _ => {}
            }
        }
        if !is_directory || ace.flags & NO_PROPAGATE != 0 {
            ace.flags &= !INHERITANCE;
        } else if is_for_directories {
            ace.flags &= !INHERIT_ONLY;
        } else {
            ace.flags |= INHERIT_ONLY;
        }
        ace.flags |= INHERITED;
        taken.push(ace);
    }
    (taken, needs_mode)
}

/// Facts whose mode and flags say what `list` does.
pub(super) fn described(facts: &Facts, list: &[Ace]) -> Facts {
    let said = acl::mode(list, facts.uid.into(), facts.gid.into());
    let is_directory = facts.is_directory();
    let inheritable = |ace: &Ace| ace.flags & (FILE_INHERIT | DIRECTORY_INHERIT) != 0;
    let mut flags = facts.flags & !FROM_LIST;
    for (is_set, flag) in [
        (acl::is_trivial(list), pflags::ACL_TRIVIAL),
        (said.no_execs_denied, pflags::NO_EXECS_DENIED),
        (is_directory && list.iter().any(inheritable), pflags::INHERIT_ACE),
        (list.iter().any(|ace| OBJECT_KINDS.contains(&ace.kind)), pflags::ACL_OBJECT_ACE),
    ] {
        flags |= if is_set { flag } else { 0 };
    }
    Facts { mode: facts.mode & !0o777 | said.bits, flags, ..*facts }
}

impl FilesystemWriter {
    /// The list of a file.
    fn list_of(&self, file: &File) -> Result<Aces> {
        let table = self.view.attribute_table();
        let attributes = SystemAttributes::open(table.as_deref(), &file.object, file.bonus())?;
        let count = attributes.word(Attribute::AclCount)?.unwrap_or(0);
        let bytes = attributes.value(Attribute::AclEntries)?.unwrap_or_default();
        Ok(acl::decode(&bytes, usize::try_from(count).unwrap_or(usize::MAX))?)
    }

    /// EPERM where property `aclmode` forbids to change the mode of a file.
    pub(super) fn check_mode_change(&self, facts: &Facts) -> Result<()> {
        let restricted = self.properties().acl_mode == AclMode::Restricted;
        match restricted && facts.flags & pflags::ACL_TRIVIAL == 0 {
            true => Err(Errno::new(EPERM, "property aclmode is restricted")),
            false => Ok(()),
        }
    }

    /// Stores facts after `chmod`, with the list that goes with them.
    pub(super) fn store_changed_mode(&self, tx: &Tx, file: &mut File, facts: Facts) -> Result<()> {
        let mode = self.properties().acl_mode;
        let is_directory = facts.is_directory();
        let (facts, list) = match mode {
            _ if file.facts.flags & pflags::ACL_TRIVIAL != 0 && facts.mode == file.facts.mode => {
                return self.store(tx, file, &facts, &[]);
            }
            AclMode::GroupMask | AclMode::PassThrough
                if file.facts.flags & pflags::ACL_TRIVIAL == 0 =>
            {
                let trims = mode == AclMode::GroupMask;
                let list = with_mode(&self.list_of(file)?, facts.mode, is_directory, true, trims);
                (described(&facts, &list), list)
            }
            _ => {
                let flags = facts.flags & !FROM_LIST | acl_flags(facts.mode);
                (Facts { flags, ..facts }, acl::trivial(facts.mode, is_directory))
            }
        };
        let count = (list.len() as u64).to_le_bytes();
        let entries = acl::encode(&list);
        let changes = [
            (Attribute::AclCount, Some(count.as_slice())),
            (Attribute::AclEntries, Some(entries.as_slice())),
        ];
        self.store(tx, file, &facts, &changes)
    }

    /// The facts of a new file in `parent`, and its list, if it takes over any of the directory's.
    pub(super) fn with_inherited(
        &self,
        parent: &File,
        facts: Facts,
    ) -> Result<(Facts, Option<Aces>)> {
        let of = parent.facts.flags;
        let kind = facts.kind();
        if of & pflags::INHERIT_ACE == 0
            || of & pflags::XATTR != 0
            || kind == crate::attributes::SYMLINK
        {
            return Ok((facts, None));
        }
        let properties = self.properties();
        let rule = properties.acl_inherit;
        let (mut list, needs_mode) = inherited(&self.list_of(parent)?, kind, facts.mode, rule);
        if needs_mode {
            let trims = properties.acl_mode == AclMode::GroupMask && !rule.passes_modes();
            list = with_mode(&list, facts.mode, facts.is_directory(), false, trims);
        }
        Ok((described(&facts, &list), Some(list)))
    }
}

#[cfg(test)]
mod tests {
    use cenote_format::acl::{DENY, GROUP, IDENTIFIER_GROUP, OWNER};

    use super::*;
    use crate::attributes::DIRECTORY;

    fn ace(kind: u16, flags: u16, mask: u32, id: u64) -> Ace {
        Ace { kind, flags, mask, id, objects: None }
    }

    const ALL: u32 = 0x1f_01ff;

    #[test]
    fn a_mode_goes_around_a_list() {
        let named = ace(ALLOW, 0, ALL, 7);
        let kept = ace(ALLOW, OWNER | FILE_INHERIT, ALL, 0);
        let plain = ace(ALLOW, GROUP | IDENTIFIER_GROUP, ALL, 0);
        let list = [named, kept, plain];
        let changed = with_mode(&list, 0o640, true, true, false);
        assert_eq!(changed.len(), 5);
        assert_eq!((changed[0], changed[1].flags), (named, OWNER | FILE_INHERIT | INHERIT_ONLY));
        assert_eq!(acl::mode(&changed, 1, 2).bits, 0o640);
        let trimmed = with_mode(&list, 0o640, false, true, true);
        assert_eq!(trimmed.len(), 4);
        // What the group's entry allows, no more.
        assert_eq!(trimmed[0].mask, ALL & trimmed[2].mask);
        assert_eq!(with_mode(&list, 0o640, false, false, false).len(), 6);
        // Bits the group lacks and everybody has are allowed to the owner and denied to the group first.
        let denied = with_mode(&list, 0o604, false, true, false);
        let kinds = (denied[0].kind, denied[1].kind);
        assert_eq!((kinds, acl::mode(&denied, 1, 2).bits), ((ALLOW, DENY), 0o604));
    }

    #[test]
    fn files_and_directories_inherit_what_is_for_them() {
        let files = ace(ALLOW, FILE_INHERIT, ALL, 7);
        let both = ace(ALLOW, FILE_INHERIT | DIRECTORY_INHERIT, ALL, 8);
        let once = ace(DENY, DIRECTORY_INHERIT | NO_PROPAGATE, EXECUTE, 9);
        let here = ace(ALLOW, 0, ALL, 10);
        let list = [files, both, once, here];
        let ids = |list: &Aces| list.iter().map(|ace| (ace.id, ace.flags)).collect::<Vec<_>>();
        let (file, needs) = inherited(&list, REGULAR, 0o644, AclInherit::PassThrough);
        assert_eq!((ids(&file), needs), (vec![(7, INHERITED), (8, INHERITED)], true));
        let (directory, _) = inherited(&list, DIRECTORY, 0o755, AclInherit::Restricted);
        let expected = vec![
            (7, FILE_INHERIT | INHERIT_ONLY | INHERITED),
            (8, FILE_INHERIT | DIRECTORY_INHERIT | INHERITED),
            (9, INHERITED),
        ];
        assert_eq!(ids(&directory), expected);
        assert_eq!(directory[0].mask, ALL & !(WRITE_ACL | WRITE_OWNER));
        assert!(inherited(&list, REGULAR, 0o644, AclInherit::Discard).0.is_empty());
        let (denials, _) = inherited(&list, DIRECTORY, 0o755, AclInherit::NoAllow);
        assert_eq!(ids(&denials), [(9, INHERITED)]);
        let (quiet, _) = inherited(&list, REGULAR, 0o644, AclInherit::PassThroughX);
        assert_eq!(quiet[0].mask, ALL & !EXECUTE);
        let owner = [ace(ALLOW, OWNER | FILE_INHERIT, ALL, 0)];
        assert!(!inherited(&owner, REGULAR, 0o644, AclInherit::PassThrough).1);
        assert!(inherited(&owner, DIRECTORY, 0o755, AclInherit::PassThrough).1);
        assert!(inherited(&owner, REGULAR, 0o644, AclInherit::Restricted).1);
    }
}
