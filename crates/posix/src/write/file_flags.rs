//! Flags of files, and the project their space is counted for.
//!
//! Chapter 05, section 7. Invariant: a file whose flag says that it has a project has the attribute,
//! at the place where accounting looks for it.

use cenote_engine::txg::Purpose;
use cenote_format::sa::Attribute;
use cenote_format::{ObjectId, pflags};

use super::FilesystemWriter;
use crate::attributes::{Facts, REGULAR};
use crate::error::{EINVAL, EOPNOTSUPP};
use crate::tree::{Errno, FileFlags, Result, Timestamp};

/// Flags that are set and cleared here.
const SETTABLE: u64 =
    pflags::IMMUTABLE | pflags::APPEND_ONLY | pflags::NODUMP | pflags::PROJECT_INHERIT;
/// No project has this number.
const NO_PROJECT: u32 = u32::MAX;

/// The flags in `facts`.
pub fn file_flags(facts: &Facts) -> FileFlags {
    let is = |flag: u64| facts.flags & flag != 0;
    FileFlags {
        immutable: is(pflags::IMMUTABLE),
        append_only: is(pflags::APPEND_ONLY),
        no_dump: is(pflags::NODUMP),
        project_inherit: is(pflags::PROJECT_INHERIT),
        project: u32::try_from(facts.project).unwrap_or(0),
    }
}

fn bits_of(flags: &FileFlags) -> u64 {
    let bit = |is_set: bool, bit: u64| if is_set { bit } else { 0 };
    bit(flags.immutable, pflags::IMMUTABLE)
        | bit(flags.append_only, pflags::APPEND_ONLY)
        | bit(flags.no_dump, pflags::NODUMP)
        | bit(flags.project_inherit, pflags::PROJECT_INHERIT)
}

impl FilesystemWriter {
    /// Changes flags and project of a file.
    pub fn set_file_flags(&self, id: ObjectId, wanted: &FileFlags) -> Result<()> {
        let later = self.retrying(|| {
            let node = self.node(id)?;
            let _reservation = self.admit_followed(&node, Purpose::Spare)?;
            let mut state = node.write()?;
            let file = &mut state.file;
            let old = file.facts;
            if old.kind() != REGULAR && !old.is_directory() {
                return Err(Errno::new(EOPNOTSUPP, "neither a file nor a directory"));
            }
            let mut flags = old.flags & !SETTABLE | bits_of(wanted);
            let project = u64::from(wanted.project);
            let names_project = project != old.project || flags & pflags::PROJECT_INHERIT != 0;
            if names_project && old.flags & pflags::PROJECT == 0 {
                if !self.properties().projects {
                    let reason = "feature project_quota is not enabled";
                    return Err(Errno::new(EOPNOTSUPP, reason));
                }
                flags |= pflags::PROJECT;
            }
            if wanted.project == NO_PROJECT {
                return Err(Errno::new(EINVAL, "no such project"));
            }
            let facts = Facts { flags, project, changed: Timestamp::now(), ..old };
            if (flags, project) == (old.flags, old.project) {
                return Ok(Vec::new());
            }
            if project != old.project {
                self.check_quota_of_owner(&old, &facts)?;
            }
            let word = project.to_le_bytes();
            // A project of number 0 is no change of the number.
            let added = flags & !old.flags & pflags::PROJECT != 0 && project == old.project;
            let more: &[_] = &[(Attribute::Project, Some(word.as_slice()))];
            let (mut now, later) = self.followers(file, &facts)?;
            let tx = self.begin()?;
            self.follow(&tx, &facts, &mut now)?;
            self.store(&tx, file, &facts, if added { more } else { &[] })?;
            self.note_whole(&tx);
            Ok(later)
        })?;
        self.follow_later(id, &later)
    }
}
