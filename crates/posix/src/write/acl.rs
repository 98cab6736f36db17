//! POSIX access control lists: inheritance, and how mode and list follow each other.
//!
//! Invariant: a file's mode and its access list agree: owner, mask (or group) and others are the
//! nine low bits; a list that says no more than the mode is not stored.

use cenote_format::acl::Aces;
use cenote_format::posix_acl::{ACCESS_NAME, DEFAULT_NAME, Entry, PosixAcl, Tag};

use super::FilesystemWriter;
use crate::attributes::{DIRECTORY, SYMLINK};
use crate::error::{EINVAL, ENODATA, EOPNOTSUPP};
use crate::tree::{Errno, Result};
use crate::view::File;
use crate::xattr::AclType;

/// What a new file takes over from its directory.
pub struct Inherited {
    /// Its mode without the type.
    pub mode: u32,
    /// Names and values of the lists it gets.
    pub lists: Vec<(&'static [u8], Vec<u8>)>,
    /// Its NFSv4 list, if that says more than its mode.
    pub entries: Option<Aces>,
}

impl Inherited {
    /// Nothing.
    pub fn none(mode: u32) -> Self {
        Self { mode, lists: Vec::new(), entries: None }
    }
}

fn bits(mode: u32, shift: u32) -> u8 {
    (mode >> shift & 7) as u8
}

/// Where an entry's bits stand in the mode; the group's bits are the mask's if there is one.
fn shift_of(tag: Tag, has_mask: bool) -> Option<u32> {
    match tag {
        Tag::Owner => Some(6),
        Tag::Mask => Some(3),
        Tag::OwningGroup if !has_mask => Some(3),
        Tag::Other => Some(0),
        _ => None,
    }
}

/// Changes every entry that stands in the mode.
fn each_of_mode(list: &mut PosixAcl, mut change: impl FnMut(&mut Entry, u32)) {
    let has_mask = list.entries.iter().any(|entry| entry.tag == Tag::Mask);
    for entry in &mut list.entries {
        if let Some(shift) = shift_of(entry.tag, has_mask) {
            change(entry, shift);
        }
    }
}

/// A default list as the access list of a file made with `mode`: each takes from the other what it
/// does not grant. Gives the mode that is left.
pub fn inherit(list: &mut PosixAcl, mode: u32) -> u32 {
    each_of_mode(list, |entry, shift| entry.permissions &= bits(mode, shift));
    mode & !0o777 | list.mode()
}

/// A list after `chmod`.
pub fn change_mode(list: &mut PosixAcl, mode: u32) {
    each_of_mode(list, |entry, shift| entry.permissions = bits(mode, shift));
}

/// EINVAL unless the list has the entries it must have, once each and in order, and a mask where it
/// names users or groups.
pub fn check(list: &PosixAcl) -> Result<()> {
    let bad = |why| Err(Errno::new(EINVAL, format!("the access control list {why}")));
    let rank = |tag| match tag {
        Tag::Owner => 0,
        Tag::User(_) => 1,
        Tag::OwningGroup => 2,
        Tag::Group(_) => 3,
        Tag::Mask => 4,
        Tag::Other => 5,
    };
    let count = |wanted: u8| list.entries.iter().filter(|entry| rank(entry.tag) == wanted).count();
    if [0, 2, 5].iter().any(|wanted| count(*wanted) != 1) || count(4) > 1 {
        return bad("lacks an entry or has one twice");
    }
    if count(1) + count(3) > 0 && count(4) == 0 {
        return bad("has no mask");
    }
    if !list.entries.is_sorted_by_key(|entry| rank(entry.tag)) {
        return bad("is not in order");
    }
    let mut named: Vec<Tag> = list.entries.iter().map(|entry| entry.tag).collect();
    named.sort_unstable();
    if named.windows(2).any(|pair| pair.first() == pair.last()) {
        return bad("names somebody twice");
    }
    Ok(())
}

impl FilesystemWriter {
    /// What a file of type `kind`, asked for with `mode`, takes over from `parent`.
    pub(super) fn inherited(
        &self,
        parent: &File,
        kind: u32,
        mode: u32,
        umask: u32,
    ) -> Result<Inherited> {
        if kind == SYMLINK {
            return Ok(Inherited::none(0o777));
        }
        if self.rules.acl != AclType::Posix {
            return Ok(Inherited::none(mode & !umask));
        }
        let default = match self.view.get_xattr(parent, DEFAULT_NAME, self.rules) {
            Ok(value) => value,
            Err(error) if error.code == ENODATA || error.code == EOPNOTSUPP => {
                return Ok(Inherited::none(mode & !umask));
            }
            Err(error) => return Err(error),
        };
        let mut list = PosixAcl::decode(&default)?;
        let mode = inherit(&mut list, mode);
        let mut lists = Vec::new();
        if !list.is_equivalent_to_mode() {
            lists.push((ACCESS_NAME, list.encode()));
        }
        if kind == DIRECTORY {
            lists.push((DEFAULT_NAME, default));
        }
        Ok(Inherited { mode, lists, entries: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(Tag, u8)]) -> PosixAcl {
        let entry = |(tag, permissions): &(Tag, u8)| Entry { tag: *tag, permissions: *permissions };
        PosixAcl { entries: entries.iter().map(entry).collect() }
    }

    #[test]
    fn defaults_and_modes_take_from_each_other() {
        let default = [
            (Tag::Owner, 7),
            (Tag::User(5), 7),
            (Tag::OwningGroup, 5),
            (Tag::Mask, 7),
            (Tag::Other, 0),
        ];
        let mut made = list(&default);
        assert_eq!(inherit(&mut made, 0o644), 0o640);
        let expected = [
            (Tag::Owner, 6),
            (Tag::User(5), 7),
            (Tag::OwningGroup, 5),
            (Tag::Mask, 4),
            (Tag::Other, 0),
        ];
        assert_eq!(made, list(&expected));
        change_mode(&mut made, 0o751);
        assert_eq!(made.mode(), 0o751);
        assert_eq!(made.entries[2].permissions, 5, "the mask stands for the group");
    }

    #[test]
    fn lists_that_are_none() {
        let plain = [(Tag::Owner, 6), (Tag::OwningGroup, 4), (Tag::Other, 4)];
        assert!(check(&list(&plain)).is_ok());
        assert!(check(&list(&plain[..2])).is_err());
        assert!(check(&list(&[plain[1], plain[0], plain[2]])).is_err());
        let named = [plain[0], (Tag::User(3), 7), plain[1], plain[2]];
        assert!(check(&list(&named)).is_err(), "no mask");
        let masked = [plain[0], (Tag::User(3), 7), plain[1], (Tag::Mask, 7), plain[2]];
        assert!(check(&list(&masked)).is_ok());
        let twice =
            [plain[0], (Tag::User(3), 7), (Tag::User(3), 6), plain[1], (Tag::Mask, 7), plain[2]];
        assert!(check(&list(&twice)).is_err());
    }
}
