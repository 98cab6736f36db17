//! Feature flags: what a pool may use beyond version 28, and what that asks of whoever opens it.
//!
//! Invariant: the table names every feature of OpenZFS up to 2.4; a guid that is not in it is one this
//! code cannot read. Chapter 01, section 16.

use bitflags::bitflags;

/// Pool version that says "see the feature flags".
pub const FEATURE_VERSION: u64 = 5000;
/// Highest version before feature flags.
pub const LAST_LEGACY_VERSION: u64 = 28;

bitflags! {
    /// How a feature behaves.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Flags: u8 {
        /// Who does not know it may still read the pool.
        const READ_ONLY_COMPATIBLE = 1;
        /// Named in labels while active, because the pool's metadata cannot be read without it.
        const IN_LABEL = 2;
        /// Active from the moment it is enabled.
        const ACTIVE_WHEN_ENABLED = 4;
        /// Counted per dataset.
        const PER_DATASET = 8;
        /// Not enabled by a plain upgrade or creation.
        const NOT_BY_DEFAULT = 16;
    }
}

/// One feature of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature {
    /// Name on disk, `reverse.dns:name`.
    pub guid: &'static str,
    /// How it behaves.
    pub flags: Flags,
    /// Short names of the features that must be enabled before it.
    pub depends: &'static [&'static str],
    /// Text stored in the pool when the feature is enabled.
    pub description: &'static str,
}

impl Feature {
    /// The short name: the part of the guid after the colon, as in `feature@name`.
    pub fn name(&self) -> &'static str {
        self.guid.split_once(':').map_or(self.guid, |(_, name)| name)
    }

    /// The pool remains readable to who does not know this feature.
    pub fn read_only_compatible(&self) -> bool {
        self.flags.contains(Flags::READ_ONLY_COMPATIBLE)
    }
}

/// The feature of this guid; `None` if it is not known here, and so cannot be read.
pub fn by_guid(guid: &str) -> Option<&'static Feature> {
    FEATURES.iter().find(|feature| feature.guid == guid)
}

/// The feature of this short name.
pub fn by_name(name: &str) -> Option<&'static Feature> {
    FEATURES.iter().find(|feature| feature.name() == name)
}

/// Whether pools of this version can be opened at all.
pub fn version_is_supported(version: u64) -> bool {
    matches!(version, 1..=LAST_LEGACY_VERSION | FEATURE_VERSION)
}

/// Whether `guid` has the form every feature's guid has.
pub fn is_valid_guid(guid: &str) -> bool {
    let lower = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    guid.split_once(':').is_some_and(|(domain, name)| {
        domain.bytes().all(|byte| lower(byte) || byte == b'.' || byte == b'-')
            && name.bytes().all(|byte| lower(byte) || byte == b'_')
    })
}

const fn entry(
    guid: &'static str,
    flags: Flags,
    depends: &'static [&'static str],
    description: &'static str,
) -> Feature {
    Feature { guid, flags, depends, description }
}

/// Every feature, oldest first (chapter 01, section 16.4).
#[rustfmt::skip]
pub static FEATURES: &[Feature] = &[
    entry("com.delphix:async_destroy", Flags::READ_ONLY_COMPATIBLE, &[], "Destroy filesystems asynchronously."),
    entry("com.delphix:empty_bpobj", Flags::READ_ONLY_COMPATIBLE, &[], "Snapshots use less space."),
    entry("org.illumos:lz4_compress", Flags::ACTIVE_WHEN_ENABLED, &[], "LZ4 compression algorithm support."),
    entry("com.joyent:multi_vdev_crash_dump", Flags::empty(), &[], "Crash dumps to multiple vdev pools."),
    entry("com.delphix:spacemap_histogram", Flags::READ_ONLY_COMPATIBLE, &[], "Spacemaps maintain space histograms."),
    entry("com.delphix:enabled_txg", Flags::READ_ONLY_COMPATIBLE, &[], "Record txg at which a feature is enabled"),
    entry("com.delphix:hole_birth", Flags::IN_LABEL.union(Flags::ACTIVE_WHEN_ENABLED), &["enabled_txg"], "Retain hole birth txg for more precise zfs send"),
    entry("com.delphix:extensible_dataset", Flags::empty(), &[], "Enhanced dataset functionality, used by other features."),
    entry("com.delphix:bookmarks", Flags::READ_ONLY_COMPATIBLE, &["extensible_dataset"], "\"zfs bookmark\" command"),
    entry("com.joyent:filesystem_limits", Flags::READ_ONLY_COMPATIBLE, &["extensible_dataset"], "Filesystem and snapshot limits."),
    entry("com.delphix:embedded_data", Flags::IN_LABEL.union(Flags::ACTIVE_WHEN_ENABLED), &[], "Blocks which compress very well use even less space."),
    entry("org.open-zfs:large_blocks", Flags::PER_DATASET, &["extensible_dataset"], "Support for blocks larger than 128KB."),
    entry("org.zfsonlinux:large_dnode", Flags::PER_DATASET, &["extensible_dataset"], "Variable on-disk size of dnodes."),
    entry("org.illumos:sha512", Flags::PER_DATASET, &["extensible_dataset"], "SHA-512/256 hash algorithm."),
    entry("org.illumos:skein", Flags::PER_DATASET, &["extensible_dataset"], "Skein hash algorithm."),
    entry("org.illumos:edonr", Flags::PER_DATASET, &["extensible_dataset"], "Edon-R hash algorithm."),
    entry("org.zfsonlinux:userobj_accounting", Flags::READ_ONLY_COMPATIBLE.union(Flags::PER_DATASET), &["extensible_dataset"], "User/Group object accounting."),
    entry("com.datto:encryption", Flags::PER_DATASET, &["extensible_dataset", "bookmark_v2"], "Support for dataset level encryption"),
    entry("org.zfsonlinux:project_quota", Flags::READ_ONLY_COMPATIBLE.union(Flags::PER_DATASET), &["extensible_dataset"], "space/object accounting based on project ID."),
    entry("com.delphix:device_removal", Flags::IN_LABEL, &[], "Top-level vdevs can be removed, reducing logical pool size."),
    entry("com.delphix:obsolete_counts", Flags::READ_ONLY_COMPATIBLE, &["extensible_dataset", "device_removal"], "Reduce memory used by removed devices when their blocks are freed or remapped."),
    entry("com.delphix:zpool_checkpoint", Flags::READ_ONLY_COMPATIBLE, &[], "Pool state can be checkpointed, allowing rewind later."),
    entry("com.delphix:spacemap_v2", Flags::READ_ONLY_COMPATIBLE.union(Flags::ACTIVE_WHEN_ENABLED), &[], "Space maps representing large segments are more efficient."),
    entry("org.zfsonlinux:allocation_classes", Flags::READ_ONLY_COMPATIBLE, &[], "Support for separate allocation classes."),
    entry("com.datto:resilver_defer", Flags::READ_ONLY_COMPATIBLE, &[], "Support for deferring new resilvers when one is already running."),
    entry("com.datto:bookmark_v2", Flags::empty(), &["extensible_dataset", "bookmarks"], "Support for larger bookmarks"),
    entry("com.delphix:redaction_bookmarks", Flags::empty(), &["bookmark_v2", "extensible_dataset", "bookmarks"], "Support for bookmarks which store redaction lists for zfs redacted send/recv."),
    entry("com.delphix:redacted_datasets", Flags::PER_DATASET, &["extensible_dataset"], "Support for redacted datasets, produced by receiving a redacted zfs send stream."),
    entry("com.delphix:bookmark_written", Flags::empty(), &["bookmark_v2", "extensible_dataset", "bookmarks"], "Additional accounting, enabling the written#<bookmark> property (space written since a bookmark), and estimates of send stream sizes for incrementals from bookmarks."),
    entry("com.delphix:log_spacemap", Flags::READ_ONLY_COMPATIBLE, &["spacemap_v2"], "Log metaslab changes on a single spacemap and flush them periodically."),
    entry("com.delphix:livelist", Flags::READ_ONLY_COMPATIBLE, &["extensible_dataset"], "Improved clone deletion performance."),
    entry("org.openzfs:device_rebuild", Flags::READ_ONLY_COMPATIBLE, &[], "Support for sequential mirror/dRAID device rebuilds"),
    entry("org.freebsd:zstd_compress", Flags::PER_DATASET, &["extensible_dataset"], "zstd compression algorithm support."),
    entry("org.openzfs:draid", Flags::IN_LABEL, &[], "Support for distributed spare RAID"),
    entry("org.openzfs:zilsaxattr", Flags::READ_ONLY_COMPATIBLE.union(Flags::PER_DATASET), &["extensible_dataset"], "Support for xattr=sa extended attribute logging in ZIL."),
    entry("com.delphix:head_errlog", Flags::ACTIVE_WHEN_ENABLED, &[], "Support for per-dataset on-disk error logs."),
    entry("org.openzfs:blake3", Flags::PER_DATASET, &["extensible_dataset"], "BLAKE3 hash algorithm."),
    entry("com.fudosecurity:block_cloning", Flags::READ_ONLY_COMPATIBLE, &[], "Support for block cloning via Block Reference Table."),
    entry("com.klarasystems:vdev_zaps_v2", Flags::IN_LABEL, &[], "Support for root vdev ZAP."),
    entry("com.delphix:redaction_list_spill", Flags::empty(), &["redaction_bookmarks"], "Support for increased number of redaction_snapshot arguments in zfs redact."),
    entry("org.openzfs:raidz_expansion", Flags::IN_LABEL, &[], "Support for raidz expansion"),
    entry("com.klarasystems:fast_dedup", Flags::READ_ONLY_COMPATIBLE, &[], "Support for advanced deduplication"),
    entry("org.zfsonlinux:longname", Flags::PER_DATASET, &["extensible_dataset"], "support filename up to 1024 bytes"),
    entry("com.klarasystems:large_microzap", Flags::READ_ONLY_COMPATIBLE.union(Flags::PER_DATASET), &["extensible_dataset", "large_blocks"], "Support for microzaps larger than 128KB."),
    entry("com.klarasystems:dynamic_gang_header", Flags::IN_LABEL.union(Flags::NOT_BY_DEFAULT), &[], "Support for dynamically sized gang headers"),
    entry("com.truenas:block_cloning_endian", Flags::READ_ONLY_COMPATIBLE, &[], "Fixes BRT ZAP endianness on new pools."),
    entry("com.truenas:physical_rewrite", Flags::READ_ONLY_COMPATIBLE.union(Flags::PER_DATASET), &["extensible_dataset"], "Support for preserving logical birth time during rewrite."),
    entry("com.seagate:draid_failure_domains", Flags::IN_LABEL, &["draid"], "Support for failure domains in dRAID"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_consistent() {
        assert_eq!(FEATURES.len(), 48);
        for (index, feature) in FEATURES.iter().enumerate() {
            assert!(is_valid_guid(feature.guid), "{}", feature.guid);
            assert_eq!(by_guid(feature.guid), Some(feature));
            assert_eq!(by_name(feature.name()), Some(feature));
            assert_eq!(FEATURES.iter().filter(|f| f.name() == feature.name()).count(), 1);
            for depends in feature.depends {
                assert!(by_name(depends).is_some(), "{index}: {depends}");
            }
            let per_dataset = feature.flags.contains(Flags::PER_DATASET);
            assert!(!per_dataset || feature.depends.contains(&"extensible_dataset"));
        }
    }

    #[test]
    fn known_features_have_their_flags() {
        let hole_birth = by_guid("com.delphix:hole_birth").unwrap();
        assert_eq!(hole_birth.flags, Flags::IN_LABEL | Flags::ACTIVE_WHEN_ENABLED);
        assert_eq!(hole_birth.depends, ["enabled_txg"]);
        assert!(by_name("async_destroy").unwrap().read_only_compatible());
        assert_eq!(by_guid("org.example:unknown"), None);
        assert!(!is_valid_guid("Upper:case") && !is_valid_guid("nocolon"));
    }

    #[test]
    fn versions() {
        let supported: Vec<u64> = (0..6000).filter(|v| version_is_supported(*v)).collect();
        assert_eq!(supported, (1..=28).chain([5000]).collect::<Vec<_>>());
    }
}
