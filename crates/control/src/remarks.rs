//! What is said of a pool that works, but not as well as it could.
//!
//! Invariant: what is wrong is never hidden by a remark; they are looked for in the order of OpenZFS.

use crate::compatibility::{self, Fit};
use crate::feature::FEATURE_VERSION;
use crate::report::{PoolReport, PoolStatus, VdevReport};

/// Who sets this variable wants to hear nothing of block sizes.
const NO_BLOCK_SIZES: &str = "ZPOOL_STATUS_NON_NATIVE_ASHIFT_IGNORE";

/// Adds to the report what there is to remark. Reads the files that `compatibility` names, as they are on the
/// machine of who asks.
pub fn add(report: &mut PoolReport) {
    let says_sizes = std::env::var_os(NO_BLOCK_SIZES).is_none();
    if !says_sizes {
        forget_block_sizes(&mut report.root);
    }
    if report.status == PoolStatus::Healthy {
        report.status = remark(report);
    }
}

fn forget_block_sizes(vdev: &mut VdevReport) {
    vdev.physical_ashift = 0;
    vdev.children.iter_mut().for_each(forget_block_sizes);
}

fn remark(report: &PoolReport) -> PoolStatus {
    if is_misfit(&report.root) {
        return PoolStatus::NonNativeAshift;
    }
    if report.errata != 0 {
        return PoolStatus::Errata(report.errata);
    }
    let value = report.properties.value("compatibility").unwrap_or("off");
    if report.pool_version < FEATURE_VERSION {
        // Who asks for the old format knows.
        return match value {
            "legacy" => PoolStatus::Healthy,
            _ => PoolStatus::VersionOlder,
        };
    }
    let enabled = |name: &str| {
        let state = report.properties.value(&format!("feature@{name}"));
        state.is_some_and(|state| state != "disabled")
    };
    match compatibility::fit(value, enabled) {
        Fit::Fits => PoolStatus::Healthy,
        Fit::Lacks => PoolStatus::FeaturesDisabled,
        Fit::Exceeds => PoolStatus::IncompatibleFeature,
        Fit::Unknown => PoolStatus::CompatibilityError,
    }
}

/// Whether a device is written in smaller blocks than its own.
fn is_misfit(vdev: &VdevReport) -> bool {
    match vdev.kind.as_str() {
        // One of the two leaves soon.
        "replacing" | "hole" | "missing" | "indirect" => false,
        _ if vdev.is_leaf() => vdev.configured_ashift < vdev.physical_ashift,
        _ => vdev.children.iter().any(is_misfit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Source;

    fn pool(compatibility: &str, features: &[&str]) -> PoolReport {
        let mut pool = PoolReport { pool_version: FEATURE_VERSION, ..PoolReport::default() };
        pool.properties.set("compatibility", compatibility, Source::Local);
        for known in crate::feature::FEATURES {
            let state = if features.contains(&known.name()) { "enabled" } else { "disabled" };
            pool.properties.set(&format!("feature@{}", known.name()), state, Source::Local);
        }
        pool
    }

    fn said(mut pool: PoolReport) -> PoolStatus {
        add(&mut pool);
        pool.status
    }

    #[test]
    fn the_first_remark_is_made() {
        let all: Vec<&str> = compatibility::everything().into_iter().collect();
        let fine = pool("off", &all);
        assert_eq!(said(fine.clone()), PoolStatus::Healthy);
        assert_eq!(said(pool("off", &all[1..])), PoolStatus::FeaturesDisabled);
        assert_eq!(said(pool("grub2", &all)), PoolStatus::IncompatibleFeature);
        assert_eq!(said(pool("bogus", &all)), PoolStatus::CompatibilityError);
        let old = |value| PoolReport { pool_version: 28, ..pool(value, &[]) };
        assert_eq!(said(old("off")), PoolStatus::VersionOlder);
        assert_eq!(said(old("legacy")), PoolStatus::Healthy);
        let errata = PoolReport { errata: 4, ..old("off") };
        assert_eq!(said(errata.clone()), PoolStatus::Errata(4));
        let leaf = |configured_ashift, physical_ashift| VdevReport {
            kind: "disk".into(),
            configured_ashift,
            physical_ashift,
            ..VdevReport::default()
        };
        let with = |children| PoolReport {
            root: VdevReport { kind: "root".into(), children, ..VdevReport::default() },
            ..errata.clone()
        };
        assert_eq!(said(with(vec![leaf(12, 9), leaf(9, 12)])), PoolStatus::NonNativeAshift);
        assert_eq!(said(with(vec![leaf(12, 9), leaf(12, 12)])), PoolStatus::Errata(4));
        let worse = PoolReport { status: PoolStatus::CorruptData, ..errata };
        assert_eq!(said(worse), PoolStatus::CorruptData);
    }
}
