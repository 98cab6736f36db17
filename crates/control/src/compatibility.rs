//! Sets of features that other implementations can use: `-o compatibility=`.
//!
//! Invariant: a set only holds features of the table; what a file names besides is refused.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::feature::{self, FEATURES, Flags};

/// Where the administrator's own sets are.
const ETC: &str = "/etc/zfs/compatibility.d";
/// Where the system's sets are.
const SHARE: &str = "/usr/share/zfs/compatibility.d";
/// Longest file that is read, in bytes.
const FILE_MOST: u64 = 16_384;

/// Features of OpenZFS 2.0, without those of 2.1 and later.
const OPENZFS_2_0: &str = "allocation_classes async_destroy bookmark_v2 bookmark_written bookmarks \
    device_rebuild device_removal edonr embedded_data empty_bpobj enabled_txg encryption \
    extensible_dataset filesystem_limits hole_birth large_blocks large_dnode livelist \
    log_spacemap lz4_compress multi_vdev_crash_dump obsolete_counts project_quota \
    redacted_datasets redaction_bookmarks resilver_defer sha512 skein spacemap_histogram \
    spacemap_v2 userobj_accounting zpool_checkpoint zstd_compress";

/// A set made of another: its name, the other's, what is added and left out.
struct Shipped {
    name: &'static str,
    base: &'static str,
    added: &'static str,
    removed: &'static str,
}

const fn set(
    name: &'static str,
    base: &'static str,
    added: &'static str,
    removed: &'static str,
) -> Shipped {
    Shipped { name, base, added, removed }
}

/// The sets OpenZFS ships (2.4). A base that is the name of a set stands before it.
#[rustfmt::skip]
const SHIPPED: &[Shipped] = &[
    set("openzfs-2.0-linux", OPENZFS_2_0, "", ""),
    set("openzfs-2.0-freebsd", "openzfs-2.0-linux", "", "edonr"),
    set("openzfs-2.1-linux", "openzfs-2.0-linux", "draid", ""),
    set("openzfs-2.1-freebsd", "openzfs-2.1-linux", "", "edonr"),
    set("openzfs-2.2", "openzfs-2.1-linux", "blake3 block_cloning head_errlog vdev_zaps_v2 zilsaxattr", ""),
    set("openzfs-2.3", "openzfs-2.2", "fast_dedup large_microzap longname raidz_expansion redaction_list_spill", ""),
    set("openzfs-2.4", "openzfs-2.3", "block_cloning_endian dynamic_gang_header physical_rewrite", ""),
    set("openzfsonosx-2.1.6", "openzfs-2.1-linux", "blake3 head_errlog zilsaxattr", ""),
    set("zol-0.6.1", "async_destroy empty_bpobj lz4_compress", "", ""),
    set("zol-0.6.4", "zol-0.6.1", "bookmarks embedded_data enabled_txg extensible_dataset hole_birth spacemap_histogram", ""),
    set("zol-0.6.5", "zol-0.6.4", "filesystem_limits large_blocks", ""),
    set("zol-0.7", "zol-0.6.5", "edonr large_dnode multi_vdev_crash_dump sha512 skein userobj_accounting", ""),
    set("zol-0.8", "zol-0.7", "allocation_classes bookmark_v2 device_removal encryption obsolete_counts project_quota resilver_defer spacemap_v2 zpool_checkpoint", ""),
    set("ubuntu-18.04", "zol-0.7", "", ""),
    set("ubuntu-20.04", "zol-0.8", "", ""),
    set("grub2", "zol-0.6.5", "", ""),
    set("grub2-2.06", "allocation_classes async_destroy block_cloning device_rebuild embedded_data empty_bpobj enabled_txg hole_birth log_spacemap lz4_compress resilver_defer spacemap_histogram spacemap_v2 zpool_checkpoint", "", ""),
    set("grub2-2.12", "grub2-2.06", "bookmarks extensible_dataset filesystem_limits large_blocks livelist project_quota userobj_accounting zilsaxattr", ""),
    set("compat-2018", "zol-0.6.5", "", ""),
    set("compat-2019", "compat-2018", "multi_vdev_crash_dump sha512 skein", ""),
    set("compat-2020", "compat-2019", "", ""),
    set("compat-2021", "compat-2020", "device_removal obsolete_counts spacemap_v2 zpool_checkpoint", ""),
    set("2018", "compat-2018", "", ""),
    set("2019", "compat-2019", "", ""),
    set("2020", "compat-2020", "", ""),
    set("2021", "compat-2021", "", ""),
    set("freebsd-11.0", "compat-2019", "", ""),
    set("freebsd-11.1", "freebsd-11.0", "", ""),
    set("freebsd-11.2", "freebsd-11.0", "device_removal obsolete_counts zpool_checkpoint", ""),
    set("freebsd-11.3", "freebsd-11.2", "spacemap_v2", ""),
    set("freebsd-11.4", "freebsd-11.3", "", ""),
    set("freebsd-12.0", "freebsd-11.3", "", ""),
    set("freebsd-12.1", "freebsd-11.3", "", ""),
    set("freebsd-12.2", "freebsd-11.3", "", ""),
    set("freenas-9.10.2", "zol-0.6.5", "multi_vdev_crash_dump", ""),
    set("freenas-11.0", "freebsd-11.0", "", ""),
    set("freenas-11.1", "freebsd-11.0", "", ""),
    set("freenas-11.2", "freebsd-11.2", "", ""),
    set("freenas-11.3", "freebsd-11.3", "", ""),
    set("truenas-12.0", "openzfs-2.0-freebsd", "", ""),
    set("openzfsonosx-1.7.0", "freebsd-11.0", "edonr", ""),
    set("openzfsonosx-1.8.1", "openzfsonosx-1.7.0", "device_removal encryption obsolete_counts spacemap_v2 zpool_checkpoint", ""),
    set("openzfsonosx-1.9.3", "zol-0.8", "", ""),
    set("openzfsonosx-1.9.4", "openzfsonosx-1.9.3", "", ""),
];

/// The set a new pool has if nothing else is asked for: every OpenZFS in use can import it.
pub const PORTABLE: &str = "openzfs-2.1-linux";

/// Short names of features.
pub type Features = BTreeSet<&'static str>;

/// The shipped set of that name.
pub fn shipped(name: &str) -> Option<Features> {
    let entry = SHIPPED.iter().find(|entry| entry.name == name)?;
    let mut features = match SHIPPED.iter().find(|other| other.name == entry.base) {
        Some(base) => shipped(base.name)?,
        None => known(entry.base),
    };
    features.extend(known(entry.added));
    for removed in entry.removed.split_whitespace() {
        features.remove(removed);
    }
    Some(features)
}

fn known(names: &str) -> Features {
    names.split_whitespace().filter_map(feature::by_name).map(|known| known.name()).collect()
}

/// Every feature that is enabled unless something forbids it.
pub fn everything() -> Features {
    let usual = FEATURES.iter().filter(|known| !known.flags.contains(Flags::NOT_BY_DEFAULT));
    usual.map(|known| known.name()).collect()
}

/// The features a value of `compatibility` allows: `off` all, `legacy` none, else those in all of
/// the files and sets named.
///
/// # Errors
/// The lines to print, without `Error: `.
pub fn allowed(value: &str) -> Result<Features, String> {
    match value {
        "" | "off" => return Ok(everything()),
        "legacy" => return Ok(Features::new()),
        _ => {}
    }
    let mut features: Option<Features> = None;
    for name in value.split(',') {
        let one = named(name)?;
        features = Some(match features {
            None => one,
            Some(all) => all.intersection(&one).copied().collect(),
        });
    }
    Ok(features.unwrap_or_default())
}

/// How the features of a pool fit the value of its `compatibility`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// It has those that are asked for.
    Fits,
    /// It lacks some.
    Lacks,
    /// It has some that are not asked for.
    Exceeds,
    /// What is asked for cannot be told.
    Unknown,
}

/// How the features of a pool with this value of `compatibility` fit it; `enabled` tells by its short name whether it
/// has one. As OpenZFS does, only the first feature that does not fit counts.
pub fn fit(value: &str, enabled: impl Fn(&str) -> bool) -> Fit {
    let Ok(wanted) = allowed(value) else { return Fit::Unknown };
    let any_is_wanted = matches!(value, "" | "off");
    let mut judged = FEATURES.iter().map(|known| {
        let name = known.name();
        match (wanted.contains(name), enabled(name)) {
            (true, false) => Fit::Lacks,
            (false, true) if !any_is_wanted => Fit::Exceeds,
            _ => Fit::Fits,
        }
    });
    judged.find(|fit| *fit != Fit::Fits).unwrap_or(Fit::Fits)
}

fn named(name: &str) -> Result<Features, String> {
    let unreadable = || format!("could not read/parse feature file(s): {name} ");
    if name.is_empty() {
        return Err(unreadable());
    }
    if name.starts_with('/') {
        return file(Path::new(name)).unwrap_or_else(|| Err(unreadable()));
    }
    if name.contains('/') {
        return Err(unreadable());
    }
    if let Some(own) = file(&Path::new(ETC).join(name)) {
        return own;
    }
    if let Some(features) = shipped(name) {
        return Ok(features);
    }
    file(&Path::new(SHARE).join(name)).unwrap_or_else(|| Err(unreadable()))
}

/// The features a file names; `None` if it cannot be read or is no such file.
fn file(path: &Path) -> Option<Result<Features, String>> {
    let size = fs::metadata(path).ok().filter(fs::Metadata::is_file)?.len();
    if size > FILE_MOST {
        return None;
    }
    let text = fs::read_to_string(path).ok()?;
    let words = text
        .lines()
        .filter_map(|line| line.split('#').next())
        .flat_map(|line| line.split(|c: char| c.is_whitespace() || c == ','))
        .filter(|word| !word.is_empty());
    let (mut features, mut unknown) = (Features::new(), Vec::new());
    for word in words {
        match feature::by_name(word) {
            Some(known) => {
                features.insert(known.name());
            }
            None => unknown.push(word.to_owned()),
        }
    }
    if unknown.is_empty() {
        return Some(Ok(features));
    }
    let words = unknown.join(" ");
    Some(Err(format!("invalid feature(s) in compatibility file(s):\n{words} ({})", path.display())))
}

/// The features in the order of the table, each after those it depends on, which are added.
pub fn with_dependencies(wanted: &Features) -> Vec<String> {
    fn add(name: &str, out: &mut Vec<String>) {
        if out.iter().any(|known| known == name) {
            return;
        }
        let Some(known) = feature::by_name(name) else { return };
        known.depends.iter().for_each(|other| add(other, out));
        out.push(name.to_owned());
    }
    let mut out = Vec::new();
    for known in FEATURES.iter().filter(|known| wanted.contains(known.name())) {
        add(known.name(), &mut out);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_sets_have_the_sizes_of_the_files() {
        for (name, size) in [
            ("openzfs-2.0-linux", 33),
            ("openzfs-2.0-freebsd", 32),
            ("openzfs-2.1-linux", 34),
            ("openzfs-2.1-freebsd", 33),
            ("openzfs-2.2", 39),
            ("openzfs-2.3", 44),
            ("openzfs-2.4", 47),
            ("openzfsonosx-2.1.6", 37),
            ("grub2", 11),
            ("grub2-2.06", 14),
            ("grub2-2.12", 22),
            ("zol-0.8", 26),
            ("compat-2018", 11),
            ("compat-2021", 18),
            ("freebsd-11.2", 17),
            ("freenas-9.10.2", 12),
            ("openzfsonosx-1.8.1", 20),
            ("2021", 18),
        ] {
            assert_eq!(shipped(name).map(|set| set.len()), Some(size), "{name}");
        }
        for entry in SHIPPED {
            let words = |text: &str| text.split_whitespace().count();
            assert_eq!(known(entry.added).len(), words(entry.added), "{}", entry.name);
            assert!(!shipped(entry.name).unwrap().is_empty(), "{}", entry.name);
        }
    }

    /// Where OpenZFS is installed, our sets are its sets (macOS 2.1.6 lacks one feature of ours).
    #[test]
    fn shipped_sets_are_those_of_openzfs() {
        let Ok(entries) = fs::read_dir(SHARE) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(theirs) = file(&entry.path()) else { continue };
            assert_eq!(shipped(&name), theirs.ok(), "{name}");
        }
    }

    #[test]
    fn values_are_read() {
        assert_eq!(allowed("legacy").unwrap().len(), 0);
        assert_eq!(allowed("off").unwrap().len(), 47);
        let both = allowed("grub2,openzfs-2.1-linux").unwrap();
        assert_eq!(both.len(), 11);
        let message = "could not read/parse feature file(s): bogus ";
        assert_eq!(allowed("bogus"), Err(message.into()));
        assert!(allowed("grub2,bogus").is_err() && allowed("../x").is_err());
    }

    #[test]
    fn features_fit_what_is_asked_for_or_not() {
        let all = everything();
        let portable = shipped(PORTABLE).unwrap();
        let of = |value: &str, has: &Features| fit(value, |name| has.contains(name));
        assert_eq!(of("off", &all), Fit::Fits);
        assert_eq!(of("off", &portable), Fit::Lacks);
        assert_eq!(of(PORTABLE, &portable), Fit::Fits);
        assert_eq!(of("grub2", &portable), Fit::Exceeds);
        assert_eq!(of("legacy", &Features::new()), Fit::Fits);
        assert_eq!(of("bogus", &all), Fit::Unknown);
        // One that has to be asked for by name does not harm where anything may be.
        let with = all.iter().copied().chain(["dynamic_gang_header"]).collect();
        assert_eq!(of("off", &with), Fit::Fits);
    }

    #[test]
    fn dependencies_come_first() {
        let wanted: Features = ["encryption"].into();
        let names = with_dependencies(&wanted);
        assert_eq!(names, ["extensible_dataset", "bookmarks", "bookmark_v2", "encryption"]);
    }
}
