//! Dataset properties on the command line: `zfs create -o`, `zfs set`, `zpool create -O`.
//!
//! Invariant: what depends only on the property, the value and the kind of dataset is decided here;
//! what depends on the pool's state (does a quota fit) is left to the pool process.

use cenote_control::plan::PropertySetting;
use cenote_control::properties;
use cenote_control::property::{self, Kind, Property, Types};
use cenote_control::report::DatasetKind;
use cenote_control::text::number as shown;

use super::number;
use cenote_control::principal::{self, QUOTAS};

/// Smallest record or volume block in bytes.
const BLOCK_LEAST: u64 = 512;
/// Most bytes of the name of a user property.
const USER_NAME_MAX: usize = property::USER_NAME_MAX;
/// Most bytes of the value of a user property.
const USER_VALUE_MAX: usize = property::USER_VALUE_MAX;
/// Fewest rounds of PBKDF2.
pub const ITERATIONS_LEAST: u64 = 100_000;
/// Most bytes of a native text property.
const TEXT_MAX: usize = 4095;

/// What a property is set on.
#[derive(Clone, Copy, Debug)]
pub struct Subject {
    /// Kind of dataset.
    pub kind: DatasetKind,
    /// The dataset is being created.
    pub creating: bool,
    /// Largest record of the pool in bytes (16 MiB, or 128 KiB without large blocks).
    pub block_most: u64,
}

impl Subject {
    /// A dataset of this kind in a pool with large blocks.
    pub fn new(kind: DatasetKind, creating: bool) -> Subject {
        Subject { kind, creating, block_most: 16 << 20 }
    }

    fn types(&self) -> Types {
        match self.kind {
            DatasetKind::Filesystem => Types::FILESYSTEM,
            DatasetKind::Volume => Types::VOLUME,
            DatasetKind::Snapshot => Types::SNAPSHOT,
            DatasetKind::Bookmark => Types::BOOKMARK,
        }
    }
}

/// The native property of that name or short name.
pub fn native(name: &str) -> Option<&'static Property> {
    let name = properties::dataset(name).map_or(name, |info| info.name);
    property::dataset(name)
}

/// Whether a name can be one of a dataset property at all.
pub fn is_property(name: &str) -> bool {
    native(name).is_some() || properties::dataset_show(name).is_some()
}

/// Reads one `property=value`.
///
/// # Errors
/// The words of OpenZFS, without `cannot ... 'x': `.
pub fn parse(name: &str, value: &str, subject: &Subject) -> Result<PropertySetting, String> {
    match native(name) {
        Some(property) => parse_native(property, value, subject),
        None => parse_other(name, value, subject),
    }
}

fn parse_other(name: &str, value: &str, subject: &Subject) -> Result<PropertySetting, String> {
    for (prefix, who) in QUOTAS {
        let Some(whom) = name.strip_prefix(prefix) else { continue };
        if subject.kind != DatasetKind::Filesystem {
            return Err(format!("'{name}' does not apply to datasets of this type"));
        }
        let bad = || format!("'{name}' has an invalid user/group name");
        let id = principal::id(who, whom).ok_or_else(bad)?;
        let bytes = if value == "none" { 0 } else { number::parse(value)? };
        return Ok(PropertySetting::number(&format!("{prefix}{id}"), bytes));
    }
    if properties::DATASET_DYNAMIC.iter().any(|(prefix, _)| name.starts_with(prefix)) {
        return Err(format!("'{name}' is readonly"));
    }
    if !name.contains(':') {
        return Err(format!("invalid property '{name}'"));
    }
    if name.len() > USER_NAME_MAX {
        return Err(format!("property name '{name}' is too long"));
    }
    if !properties::is_user_property(name) {
        return Err(format!("invalid property '{name}'"));
    }
    if value.len() > USER_VALUE_MAX {
        return Err(format!("property value of '{name}' is too long"));
    }
    Ok(PropertySetting::text(name, value))
}

fn parse_native(
    property: &'static Property,
    value: &str,
    subject: &Subject,
) -> Result<PropertySetting, String> {
    let name = property.name;
    if subject.kind == DatasetKind::Snapshot {
        return Err("this property can not be modified for snapshots".to_owned());
    }
    if !property.types.contains(subject.types()) {
        return Err(format!("'{name}' does not apply to datasets of this type"));
    }
    if property.is_read_only() && !(subject.creating && property.is_settable_once()) {
        return Err(format!("'{name}' is readonly"));
    }
    match property.kind {
        Kind::Index(table) => {
            let values = properties::dataset(name).map_or("", |info| info.values);
            let entry = table.iter().find(|(word, _)| *word == value);
            let (_, index) = entry.ok_or_else(|| format!("'{name}' must be one of '{values}'"))?;
            Ok(PropertySetting::number(name, *index))
        }
        Kind::String => text(name, value, subject),
        Kind::Number => numeric(name, value, subject),
    }
}

fn text(name: &str, value: &str, subject: &Subject) -> Result<PropertySetting, String> {
    if value.len() > TEXT_MAX {
        return Err(format!("'{name}' is too long"));
    }
    match name {
        "mountpoint" if !(value.starts_with('/') || value == "none" || value == "legacy") => {
            return Err("'mountpoint' must be an absolute path, 'none', or 'legacy'".to_owned());
        }
        "keylocation" if !is_key_location(value) && (value != "none" || subject.creating) => {
            return Err("invalid keylocation".to_owned());
        }
        "mlslabel" if value != "none" => return Err("mlslabels are unsupported".to_owned()),
        _ => {}
    }
    Ok(PropertySetting::text(name, value))
}

/// Whether a key can be there: `prompt`, or a file or web address.
pub fn is_key_location(value: &str) -> bool {
    let rest = |scheme: &str| value.strip_prefix(scheme).is_some_and(|rest| !rest.is_empty());
    value == "prompt"
        || value.strip_prefix("file://").is_some_and(|path| path.starts_with('/'))
        || rest("https://")
        || rest("http://")
}

/// `refreservation=auto` before it is known of which volume.
pub const AUTO: u64 = u64::MAX;

fn numeric(name: &str, value: &str, subject: &Subject) -> Result<PropertySetting, String> {
    let number = match value {
        "none" if matches!(name, "filesystem_limit" | "snapshot_limit") => u64::MAX,
        "none" => 0,
        "auto" if name == "refreservation" && subject.kind == DatasetKind::Volume => AUTO,
        "auto" if name == "refreservation" => {
            return Err("'refreservation=auto' only allowed on volumes".to_owned());
        }
        _ => match number::parse(value)? {
            0 if matches!(name, "quota" | "refquota") => {
                return Err("use 'none' to disable quota/refquota".to_owned());
            }
            number => number,
        },
    };
    let is_block = |most: u64| number.is_power_of_two() && (BLOCK_LEAST..=most).contains(&number);
    match name {
        "recordsize" | "volblocksize" if !is_block(subject.block_most) => {
            let most = shown::plain(subject.block_most);
            return Err(format!("'{name}' must be power of 2 from 512B to {most}"));
        }
        "special_small_blocks" if number != 0 && !is_block(1 << 20) => {
            return Err(format!(
                "invalid 'special_small_blocks={number}' property: must be zero or a power of 2 \
                 from 512B to 1M"
            ));
        }
        "volsize" if number == 0 => return Err("'volsize' cannot be zero".to_owned()),
        "pbkdf2iters" if number < ITERATIONS_LEAST => {
            return Err(format!("minimum pbkdf2 iterations is {ITERATIONS_LEAST}"));
        }
        _ => {}
    }
    Ok(PropertySetting::number(name, number))
}

/// What only shows when all properties of a new dataset are seen together. Adds what follows from
/// others.
///
/// # Errors
/// As of [`parse`].
pub fn complete(settings: &mut Vec<PropertySetting>) -> Result<(), String> {
    let number = |settings: &[PropertySetting], name: &str| {
        settings.iter().find(|s| s.name == name).and_then(|s| s.value.number())
    };
    if number(settings, "normalization").is_some_and(|form| form != 0) {
        match number(settings, "utf8only") {
            Some(0) => {
                return Err("'utf8only' must be set 'on' if normalization chosen".to_owned());
            }
            Some(_) => {}
            None => settings.push(PropertySetting::number("utf8only", 1)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use cenote_control::plan::PropertyValue;

    use super::*;

    fn set(setting: &str, kind: DatasetKind, creating: bool) -> Result<PropertyValue, String> {
        let (name, value) = setting.split_once('=').unwrap();
        parse(name, value, &Subject::new(kind, creating)).map(|setting| setting.value)
    }

    fn refused(setting: &str, kind: DatasetKind, creating: bool, words: &str) {
        assert_eq!(set(setting, kind, creating), Err(words.to_owned()), "{setting}");
    }

    /// Recorded from OpenZFS 2.1.11 in a virtual machine.
    #[test]
    fn refusals_have_the_words_of_openzfs() {
        use DatasetKind::{Filesystem, Snapshot, Volume};
        for (setting, words) in [
            ("bogus=1", "invalid property 'bogus'"),
            ("used=1", "'used' is readonly"),
            ("type=x", "'type' is readonly"),
            ("name=x", "'name' is readonly"),
            ("written@x=1", "'written@x' is readonly"),
            ("userused@root=1", "'userused@root' is readonly"),
            ("atime=maybe", "'atime' must be one of 'on | off'"),
            ("exec=yes", "'exec' must be one of 'on | off'"),
            ("copies=4", "'copies' must be one of '1 | 2 | 3'"),
            ("version=9", "'version' must be one of '1 | 2 | 3 | 4 | 5 | current'"),
            (
                "dnodesize=3k",
                "'dnodesize' must be one of 'legacy | auto | 1k | 2k | 4k | 8k | 16k'",
            ),
            ("acltype=bogus", "'acltype' must be one of 'off | nfsv4 | posix'"),
            ("recordsize=3", "'recordsize' must be power of 2 from 512B to 16M"),
            ("recordsize=128.5k", "'recordsize' must be power of 2 from 512B to 16M"),
            ("recordsize=32M", "'recordsize' must be power of 2 from 512B to 16M"),
            ("quota=x", "bad numeric value 'x'"),
            ("quota=1X", "invalid numeric suffix 'X'"),
            ("quota=0", "use 'none' to disable quota/refquota"),
            ("volsize=1G", "'volsize' does not apply to datasets of this type"),
            ("mountpoint=rel", "'mountpoint' must be an absolute path, 'none', or 'legacy'"),
            ("mountpoint=", "'mountpoint' must be an absolute path, 'none', or 'legacy'"),
            ("keylocation=bogus", "invalid keylocation"),
            ("pbkdf2iters=5", "minimum pbkdf2 iterations is 100000"),
            ("nocolonUP=z", "invalid property 'nocolonUP'"),
            ("com.X:y=z", "invalid property 'com.X:y'"),
            ("userquota@nosuchuser=1G", "'userquota@nosuchuser' has an invalid user/group name"),
            ("projectquota@root=1", "'projectquota@root' has an invalid user/group name"),
            ("userquota=1", "invalid property 'userquota'"),
            ("filesystem_limit=x", "bad numeric value 'x'"),
            ("mlslabel=x", "mlslabels are unsupported"),
            (
                "special_small_blocks=3",
                "invalid 'special_small_blocks=3' property: must be zero or a power of 2 from \
                 512B to 1M",
            ),
        ] {
            refused(setting, Filesystem, true, words);
        }
        refused("casesensitivity=mixed", Filesystem, false, "'casesensitivity' is readonly");
        refused("encryption=off", Filesystem, false, "'encryption' is readonly");
        refused("volblocksize=8k", Volume, false, "'volblocksize' is readonly");
        refused("volsize=0", Volume, false, "'volsize' cannot be zero");
        let other = "does not apply to datasets of this type";
        refused("recordsize=8k", Volume, false, &format!("'recordsize' {other}"));
        refused("mountpoint=/x", Volume, true, &format!("'mountpoint' {other}"));
        let snapshot = "this property can not be modified for snapshots";
        refused("atime=off", Snapshot, false, snapshot);
        refused("primarycache=all", Snapshot, false, snapshot);
        let long = format!("com.x:{}=x", "0".repeat(300));
        let name = long.trim_end_matches("=x");
        refused(&long, Filesystem, false, &format!("property name '{name}' is too long"));
    }

    #[test]
    fn values_are_stored_as_openzfs_stores_them() {
        use DatasetKind::{Filesystem, Snapshot, Volume};
        let number = |n: u64| Ok(PropertyValue::Number(n));
        let text = |t: &str| Ok(PropertyValue::Text(t.to_owned()));
        assert_eq!(set("quota=1.5G", Filesystem, true), number(3 << 29));
        assert_eq!(set("quota=none", Filesystem, true), number(0));
        assert_eq!(set("snapshot_limit=none", Filesystem, true), number(u64::MAX));
        assert_eq!(set("compression=zstd-3", Filesystem, true), number(16 | 3 << 7));
        assert_eq!(set("compress=gzip", Filesystem, true), number(10));
        assert_eq!(set("dedup=sha256,verify", Filesystem, true), number(0x108));
        assert_eq!(set("aclinherit=secure", Filesystem, true), number(4));
        assert_eq!(set("acltype=posixacl", Filesystem, true), number(1));
        assert_eq!(set("refreservation=auto", Volume, true), number(u64::MAX));
        assert_eq!(set("mountpoint=legacy", Filesystem, false), text("legacy"));
        assert_eq!(set("com.x:y=", Snapshot, false), text(""));
        assert_eq!(set("keylocation=file:///d/key", Filesystem, true), text("file:///d/key"));
        let setting = parse("userquota@root", "1G", &Subject::new(Filesystem, false)).unwrap();
        assert_eq!(setting, PropertySetting::number("userquota@0", 1 << 30));
        assert!(is_property("compress") && is_property("a:b") && !is_property("bogus"));
    }

    #[test]
    fn normalization_wants_utf8() {
        let form = PropertySetting::number("normalization", 0x10);
        let mut settings = vec![form.clone()];
        complete(&mut settings).unwrap();
        assert_eq!(settings.last(), Some(&PropertySetting::number("utf8only", 1)));
        let mut settings = vec![form, PropertySetting::number("utf8only", 0)];
        assert!(complete(&mut settings).is_err());
    }
}
