//! Key names and values of the master node (object 1) of a file system.
//!
//! Chapter 05, section 2.

/// Object number of the master node.
pub const OBJECT: crate::ObjectId = crate::ObjectId(1);
/// ZPL version; 5 if absent.
pub const VERSION: &[u8] = b"VERSION";
/// Object number of the root directory.
pub const ROOT: &[u8] = b"ROOT";
/// Object number of the delete queue.
pub const DELETE_QUEUE: &[u8] = b"DELETE_QUEUE";
/// Object number of the system attribute master.
pub const SYSTEM_ATTRIBUTES: &[u8] = b"SA_ATTRS";
/// Unicode normalization of names; 0 if absent.
pub const NORMALIZATION: &[u8] = b"normalization";
/// Whether names must be UTF-8; 0 if absent.
pub const UTF8_ONLY: &[u8] = b"utf8only";
/// Case sensitivity; 0 if absent.
pub const CASE_SENSITIVITY: &[u8] = b"casesensitivity";
/// Object number of the FUID table.
pub const FUID: &[u8] = b"FUID";
/// Object number of the shares directory.
pub const SHARES: &[u8] = b"SHARES";
/// Quota ZAPs: per user, group, project; bytes, then objects.
pub const QUOTAS: [&[u8]; 6] = [
    b"userquota@",
    b"groupquota@",
    b"projectquota@",
    b"userobjquota@",
    b"groupobjquota@",
    b"projectobjquota@",
];
/// Default quotas in the order of [`QUOTAS`].
pub const DEFAULT_QUOTAS: [&[u8]; 6] = [
    b"defaultuserquota",
    b"defaultgroupquota",
    b"defaultprojectquota",
    b"defaultuserobjquota",
    b"defaultgroupobjquota",
    b"defaultprojectobjquota",
];
/// Key in the system attribute master: the registry object.
pub const SA_REGISTRY: &[u8] = b"REGISTRY";
/// Key in the system attribute master: the layouts object.
pub const SA_LAYOUTS: &[u8] = b"LAYOUTS";

/// Newest ZPL version.
pub const NEWEST_VERSION: u64 = 5;

/// How names that differ in case relate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum CaseSensitivity {
    /// They are different names.
    #[default]
    Sensitive,
    /// They are the same name.
    Insensitive,
    /// Different, unless the caller asks otherwise.
    Mixed,
}

impl CaseSensitivity {
    /// From the stored number.
    pub fn from_raw(raw: u64) -> Option<Self> {
        match raw {
            0 => Some(Self::Sensitive),
            1 => Some(Self::Insensitive),
            2 => Some(Self::Mixed),
            _ => None,
        }
    }
}

/// Normalization flags of a directory ZAP: the property's bits, and upper-casing if case may be
/// ignored.
pub fn directory_normalization(normalization: u64, case: CaseSensitivity) -> u64 {
    normalization | if case == CaseSensitivity::Sensitive { 0 } else { 2 }
}
