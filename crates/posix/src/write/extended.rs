//! Attributes beyond those of POSIX in records of the intent log: flags, project, time of creation.
//!
//! Chapter 05, section 17. Invariant: what a record asks for is done in the transaction of the rest
//! of it, or refused; nothing is left out.

use cenote_engine::txg::Tx;
use cenote_format::pflags;
use cenote_format::sa::Attribute;
use cenote_format::zil::ExtendedAttributes;

use super::FilesystemWriter;
use crate::attributes::{Facts, stored_time};
use crate::error::EOPNOTSUPP;
use crate::tree::{Errno, Result, Timestamp};
use crate::view::File;

const CREATED: u32 = 0x1;
const APPEND_ONLY: u32 = 0x80;
const OPAQUE: u32 = 0x200;
const PROJECT: u32 = 0x4_0000;

/// Bits of records and the flags of files that they are.
const FLAGS: [(u32, u64); 15] = [
    (0x2, pflags::ARCHIVE),
    (0x4, pflags::SYSTEM),
    (0x8, pflags::READONLY),
    (0x10, pflags::HIDDEN),
    (0x20, pflags::NOUNLINK),
    (0x40, pflags::IMMUTABLE),
    (APPEND_ONLY, pflags::APPEND_ONLY),
    (0x100, pflags::NODUMP),
    (OPAQUE, pflags::OPAQUE),
    (0x400, pflags::QUARANTINED),
    (0x800, pflags::SCAN_MODIFIED),
    (0x2000, pflags::REPARSE),
    (0x8000, pflags::OFFLINE),
    (0x1_0000, pflags::SPARSE),
    (0x2_0000, pflags::PROJECT_INHERIT),
];

/// What a record asks for.
pub(super) struct Extended {
    set: u64,
    clear: u64,
    project: Option<u64>,
    created: Option<Timestamp>,
}

impl Extended {
    /// EOPNOTSUPP where it asks for what there is not here.
    pub(super) fn of(record: &ExtendedAttributes) -> Result<Self> {
        let [requested, more @ ..] = record.requested;
        let known = FLAGS.iter().fold(CREATED | PROJECT, |known, (bit, _)| known | bit);
        if requested & !known != 0 || more.iter().any(|word| *word != 0) {
            let reason =
                format!("a record with attributes {:#x?} is not supported", record.requested);
            return Err(Errno::new(EOPNOTSUPP, reason));
        }
        let has = |bit: u32| requested & bit != 0;
        let is_on = |bit: u32| record.values & u64::from(bit) != 0;
        let (mut set, mut clear) = (0, 0);
        for (bit, flag) in FLAGS.into_iter().filter(|(bit, _)| has(*bit)) {
            // OpenZFS puts the value of the one where that of the other belongs.
            let misplaced = bit == OPAQUE && !has(APPEND_ONLY) && is_on(APPEND_ONLY);
            match is_on(bit) || misplaced {
                true => set |= flag,
                false => clear |= flag,
            }
        }
        let [a, b, c, d, e, f, g, h, ..] = record.stamp;
        let project = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        Ok(Self {
            set,
            clear,
            project: has(PROJECT).then_some(project),
            created: has(CREATED).then(|| stored_time(record.created)),
        })
    }

    /// The facts without the flags it takes away.
    pub(super) fn cleared(&self, facts: &Facts) -> Facts {
        Facts { flags: facts.flags & !self.clear, ..*facts }
    }

    /// The facts as it leaves them. `projects`: files can have a project.
    pub(super) fn after(&self, facts: &Facts, projects: bool) -> Result<Facts> {
        let mut flags = facts.flags & !self.clear | self.set;
        let project = self.project.unwrap_or(facts.project);
        let names_project = project != facts.project || flags & pflags::PROJECT_INHERIT != 0;
        if names_project && flags & pflags::PROJECT == 0 {
            if !projects {
                return Err(Errno::new(EOPNOTSUPP, "feature project_quota is not enabled"));
            }
            flags |= pflags::PROJECT;
        }
        Ok(Facts { flags, project, created: self.created.unwrap_or(facts.created), ..*facts })
    }
}

impl FilesystemWriter {
    /// Gives a file the attribute of its project, if `facts` say that it has it now.
    pub(super) fn add_project(&self, tx: &Tx, file: &mut File, facts: &Facts) -> Result<()> {
        if facts.flags & !file.facts.flags & pflags::PROJECT == 0 {
            return Ok(());
        }
        let word = facts.project.to_le_bytes();
        let change = [(Attribute::Project, Some(word.as_slice()))];
        self.layouts.change(&self.view, tx, file, &change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_refused() {
        let record = |word: u32, more: u32, values: u64| {
            Extended::of(&ExtendedAttributes {
                requested: [word, more, 0],
                values,
                ..ExtendedAttributes::default()
            })
        };
        for (word, more) in [(0x1000, 0), (0x4000, 0), (0x8_0000, 0), (0x40, 1)] {
            assert_eq!(record(word, more, 0).err().unwrap().code, EOPNOTSUPP);
        }
        let both = record(0x40 | 0x100, 0, 0x100).unwrap();
        assert_eq!((both.set, both.clear), (pflags::NODUMP, pflags::IMMUTABLE));
        let opaque = record(OPAQUE, 0, 0x80).unwrap();
        assert_eq!((opaque.set, opaque.clear), (pflags::OPAQUE, 0));
    }
}
