//! `zpool import` without a pool name: what could be imported.
//!
//! Invariant: what this prints for real pools equals what OpenZFS printed for them.

use super::table::pad;
use super::vdev_name::{self, Naming, SECTIONS};
use super::{time, words};
use crate::report::{ImportReport, PoolStatus, VdevClass, VdevReason, VdevReport, VdevState};

/// One importable pool.
pub fn render(pool: &ImportReport) -> String {
    let mut out = format!("   pool: {}\n     id: {}\n", pool.name, pool.guid);
    out.push_str(&format!("  state: {}", words::state(pool.state, pool.reason)));
    if pool.destroyed {
        out.push_str(" (DESTROYED)");
    }
    out.push('\n');
    if let Some(status) = status(&pool.status) {
        out.push_str(&format!("status: {status}\n"));
    }
    out.push_str(&action(pool));
    if let Some(comment) = &pool.comment {
        out.push_str(&format!("comment: {comment}\n"));
    }
    if let Some(article) = words::article(&pool.status) {
        out.push_str(&format!("   see: {}\n", words::article_address(article)));
    }
    out.push_str(" config:\n\n");
    out.push_str(&config(pool));
    if pool.reason == VdevReason::BadGuidSum {
        out.push_str(
            "\n\tAdditional devices are known to be part of this pool, though their\n\texact \
             configuration cannot be determined.\n",
        );
    }
    out
}

fn status(status: &PoolStatus) -> Option<String> {
    let text = match status {
        PoolStatus::MissingDevice
        | PoolStatus::MissingDeviceNoReplicas
        | PoolStatus::BadGuidSum => "One or more devices are missing from the system.",
        PoolStatus::CorruptLabel | PoolStatus::CorruptLabelNoReplicas => {
            "One or more devices contains corrupted data."
        }
        PoolStatus::CorruptData => "The pool data is corrupted.",
        PoolStatus::OfflineDevice => "One or more devices are offlined.",
        PoolStatus::CorruptPool => "The pool metadata is corrupted.",
        PoolStatus::VersionOlder => "The pool is formatted using a legacy on-disk version.",
        PoolStatus::VersionNewer => "The pool is formatted using an incompatible version.",
        PoolStatus::FeaturesDisabled => {
            "Some supported features are not enabled on the pool.\n\t(Note that they may be \
             intentionally disabled if the\n\t'compatibility' property is set.)"
        }
        PoolStatus::CompatibilityError => {
            "Error reading or parsing the file(s) indicated by the 'compatibility'\n\tproperty."
        }
        PoolStatus::IncompatibleFeature => {
            "One or more features are enabled on the pool despite not being\n\trequested by the \
             'compatibility' property."
        }
        PoolStatus::UnsupportedFeaturesRead(names) => {
            return Some(format!(
                "The pool uses the following feature(s) not supported on this system:{}",
                names.iter().map(|name| format!("\n\t{name}")).collect::<String>()
            ));
        }
        PoolStatus::UnsupportedFeaturesWrite(names) => {
            return Some(format!(
                "The pool can only be accessed in read-only mode on this system. It\n\tcannot be \
                 accessed in read-write mode because it uses the following\n\tfeature(s) not \
                 supported on this system:{}",
                names.iter().map(|name| format!("\n\t{name}")).collect::<String>()
            ));
        }
        PoolStatus::HostActive => "The pool is currently imported by another system.",
        PoolStatus::HostRequired => {
            "The pool has the multihost property on.  It cannot\n\tbe safely imported when the \
             system hostid is not set."
        }
        PoolStatus::HostMismatch => "The pool was last accessed by another system.",
        PoolStatus::FaultedDevice | PoolStatus::FaultedDeviceNoReplicas => {
            "One or more devices are faulted."
        }
        PoolStatus::BadLog => "An intent log record cannot be read.",
        PoolStatus::Resilvering | PoolStatus::Rebuilding => {
            "One or more devices were being resilvered."
        }
        PoolStatus::Errata(number) => return Some(format!("Errata #{number} detected.")),
        PoolStatus::NonNativeAshift => {
            "One or more devices are configured to use a non-native block size.\n\tExpect reduced \
             performance."
        }
        _ => return None,
    };
    Some(text.to_owned())
}

fn action(pool: &ImportReport) -> String {
    let text = match (pool.state, &pool.status) {
        (VdevState::Online, PoolStatus::VersionOlder | PoolStatus::FeaturesDisabled) => {
            "The pool can be imported using its name or numeric identifier, though\n\tsome \
             features will not be available without an explicit 'zpool upgrade'."
        }
        (VdevState::Online, PoolStatus::CompatibilityError) => {
            "The pool can be imported using its name or numeric\n\tidentifier, though the file(s) \
             indicated by its 'compatibility'\n\tproperty cannot be parsed at this time."
        }
        (VdevState::Online, PoolStatus::HostMismatch) => {
            "The pool can be imported using its name or numeric identifier and\n\tthe '-f' flag."
        }
        (VdevState::Online, _) => "The pool can be imported using its name or numeric identifier.",
        (VdevState::Degraded, _) => {
            "The pool can be imported despite missing or damaged devices.  The\n\tfault tolerance \
             of the pool may be compromised if imported."
        }
        (_, PoolStatus::VersionNewer) => {
            "The pool cannot be imported.  Access the pool on a system running newer\n\tsoftware, \
             or recreate the pool from backup."
        }
        (_, PoolStatus::UnsupportedFeaturesRead(_)) => {
            "The pool cannot be imported. Access the pool on a system that supports\n\tthe \
             required feature(s), or recreate the pool from backup."
        }
        (_, PoolStatus::UnsupportedFeaturesWrite(_)) => {
            "The pool cannot be imported in read-write mode. Import the pool with\n\t'-o \
             readonly=on', access the pool on a system that supports the\n\trequired feature(s), \
             or recreate the pool from backup."
        }
        (
            _,
            PoolStatus::MissingDevice
            | PoolStatus::MissingDeviceNoReplicas
            | PoolStatus::BadGuidSum,
        ) => "The pool cannot be imported. Attach the missing\n\tdevices and try again.",
        (_, PoolStatus::HostActive) => {
            let (host, id) = match &pool.last_host {
                Some((name, id, _)) => (name.as_str(), *id),
                None => ("<unknown>", 0),
            };
            return format!(
                " action: The pool must be exported from {host} (hostid={id:x})\n\tbefore it can \
                 be safely imported.\n"
            );
        }
        (_, PoolStatus::HostRequired) => {
            "Set a unique system hostid with the zgenhostid(8) command."
        }
        _ => "The pool cannot be imported due to damaged devices or data.",
    };
    let mut out = format!(" action: {text}\n");
    if pool.destroyed {
        out.push_str("\tThe pool was destroyed, but can be imported using the '-Df' flags.\n");
    }
    out
}

fn config(pool: &ImportReport) -> String {
    let naming = Naming::default();
    let others = pool.caches.iter().chain(&pool.spares);
    let width = others
        .map(|vdev| vdev_name::widest(vdev, 2, naming))
        .fold(vdev_name::widest(&pool.root, 0, naming), usize::max)
        .max(10);
    let mut out = String::new();
    device(&mut out, &pool.root, 0, width);
    for (heading, devices) in [("cache", &pool.caches), ("spares", &pool.spares)] {
        if !devices.is_empty() {
            out.push_str(&format!("\t{heading}\n"));
            for vdev in devices {
                out.push_str(&format!("\t  {}\n", vdev_name::name(vdev, naming)));
            }
        }
    }
    for (heading, class) in SECTIONS {
        let tops: Vec<_> = vdev_name::tops(&pool.root, class).collect();
        if !tops.is_empty() {
            out.push_str(&format!("\t{heading}\t\n"));
            tops.into_iter().for_each(|vdev| device(&mut out, vdev, 2, width));
        }
    }
    out
}

fn device(out: &mut String, vdev: &VdevReport, depth: usize, width: usize) {
    if vdev.kind == "missing" || vdev.kind == "hole" {
        return;
    }
    let name = vdev_name::name(vdev, Naming::default());
    let state = words::state(vdev.state, vdev.reason);
    let name = pad(&name, width.saturating_sub(depth), false);
    out.push_str(&format!("\t{}{name}  {state}", " ".repeat(depth)));
    if vdev.reason != VdevReason::None {
        out.push_str(&format!("  {}", words::reason(vdev.reason)));
    }
    out.push('\n');
    for child in &vdev.children {
        if vdev.kind != "root" || child.class == VdevClass::Normal {
            device(out, child, depth + 2, width);
        }
    }
}

/// What `zpool import NAME` says when another host used the pool last.
pub fn used_elsewhere(name: &str, host: &str, id: u64, seconds: i64) -> String {
    format!(
        "cannot import '{name}': pool was previously in use from another system.\nLast accessed \
         by {host} (hostid={id:x}) at {}\nThe pool can be imported, use 'zpool import -f' to \
         import the pool.\n",
        time::long(seconds)
    )
}
