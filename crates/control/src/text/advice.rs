//! What `zpool status` says of a pool that is not well, and what to do.
//!
//! Invariant: of what OpenZFS knows too these are its words; monitoring tools compare them.

use crate::report::{JobReport, PoolReport, PoolStatus, UnreplayedLog};

/// The article about intent logs that cannot be read.
const BAD_LOG: &str = "ZFS-8000-K4";

/// What `zpool status` says about a pool that is not well.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Advice {
    /// What is wrong; continuation lines start with a tab.
    pub status: String,
    /// What to do.
    pub action: String,
    /// Identifier of the article (`ZFS-8000-9P`).
    pub article: Option<&'static str>,
}

/// What is said of a status of any pool.
struct Row {
    status: PoolStatus,
    article: Option<&'static str>,
    what: &'static str,
    action: &'static str,
}

const fn row(
    status: PoolStatus,
    article: Option<&'static str>,
    what: &'static str,
    action: &'static str,
) -> Row {
    Row { status, article, what, action }
}

/// The statuses that say the same of every pool. A status that stands neither here nor in
/// [`with_details`] is not spoken of.
static ROWS: &[Row] = &[
    row(
        PoolStatus::MissingDevice,
        Some("ZFS-8000-2Q"),
        "One or more devices could not be opened.  Sufficient replicas exist for\n\tthe pool to \
         continue functioning in a degraded state.",
        "Attach the missing device and online it using 'zpool online'.",
    ),
    row(
        PoolStatus::MissingDeviceNoReplicas,
        Some("ZFS-8000-3C"),
        "One or more devices could not be opened.  There are insufficient\n\treplicas for the \
         pool to continue functioning.",
        "Attach the missing device and online it using 'zpool online'.",
    ),
    row(
        PoolStatus::CorruptLabel,
        Some("ZFS-8000-4J"),
        "One or more devices could not be used because the label is missing or\n\tinvalid.  \
         Sufficient replicas exist for the pool to continue\n\tfunctioning in a degraded \
         state.",
        "Replace the device using 'zpool replace'.",
    ),
    row(
        PoolStatus::CorruptLabelNoReplicas,
        Some("ZFS-8000-5E"),
        "One or more devices could not be used because the label is missing \n\tor invalid.  \
         There are insufficient replicas for the pool to continue\n\tfunctioning.",
        "Destroy and re-create the pool from\n\ta backup source.",
    ),
    row(
        PoolStatus::FailingDevice,
        Some("ZFS-8000-9P"),
        "One or more devices has experienced an unrecoverable error.  An\n\tattempt was made \
         to correct the error.  Applications are unaffected.",
        "Determine if the device needs to be replaced, and clear the errors\n\tusing 'zpool \
         clear' or replace the device with 'zpool replace'.",
    ),
    row(
        PoolStatus::OfflineDevice,
        None,
        "One or more devices has been taken offline by the administrator.\n\tSufficient \
         replicas exist for the pool to continue functioning in a\n\tdegraded state.",
        "Online the device using 'zpool online' or replace the device with\n\t'zpool replace'.",
    ),
    row(
        PoolStatus::RemovedDevice,
        None,
        "One or more devices has been removed by the administrator.\n\tSufficient replicas \
         exist for the pool to continue functioning in a\n\tdegraded state.",
        "Online the device using zpool online' or replace the device with\n\t'zpool replace'.",
    ),
    row(
        PoolStatus::Resilvering,
        None,
        "One or more devices is currently being resilvered.  The pool will\n\tcontinue to \
         function, possibly in a degraded state.",
        "Wait for the resilver to complete.",
    ),
    row(
        PoolStatus::Rebuilding,
        None,
        "One or more devices is currently being resilvered.  The pool will\n\tcontinue to \
         function, possibly in a degraded state.",
        "Wait for the resilver to complete.",
    ),
    row(
        PoolStatus::RebuildScrub,
        None,
        "One or more devices have been sequentially resilvered, scrubbing\n\tthe pool is \
         recommended.",
        "Use 'zpool scrub' to verify all data checksums.",
    ),
    row(
        PoolStatus::CorruptData,
        Some("ZFS-8000-8A"),
        "One or more devices has experienced an error resulting in data\n\tcorruption.  \
         Applications may be affected.",
        "Restore the file in question if possible.  Otherwise restore the\n\tentire pool from \
         backup.",
    ),
    row(
        PoolStatus::CorruptPool,
        Some("ZFS-8000-72"),
        "The pool metadata is corrupted and the pool cannot be opened.",
        "Destroy and re-create the pool from\n\ta backup source.",
    ),
    row(
        PoolStatus::VersionOlder,
        None,
        "The pool is formatted using a legacy on-disk format.  The pool can\n\tstill be used, \
         but some features are unavailable.",
        "Upgrade the pool using 'zpool upgrade'.  Once this is done, the\n\tpool will no \
         longer be accessible on software that does not support\n\tfeature flags.",
    ),
    row(
        PoolStatus::VersionNewer,
        Some("ZFS-8000-A5"),
        "The pool has been upgraded to a newer, incompatible on-disk version.\n\tThe pool \
         cannot be accessed on this system.",
        "Access the pool from a system running more recent software, or\n\trestore the pool \
         from backup.",
    ),
    row(
        PoolStatus::FeaturesDisabled,
        None,
        "Some supported and requested features are not enabled on the pool.\n\tThe pool can \
         still be used, but some features are unavailable.",
        "Enable all features using 'zpool upgrade'. Once this is done,\n\tthe pool may no \
         longer be accessible by software that does not support\n\tthe features. See \
         zpool-features(7) for details.",
    ),
    row(
        PoolStatus::CompatibilityError,
        None,
        "This pool has a compatibility list specified, but it could not be\n\tread/parsed at \
         this time. The pool can still be used, but this\n\tshould be investigated.",
        "Check the value of the 'compatibility' property against the\n\tappropriate file in \
         /etc/zfs/compatibility.d or /usr/share/zfs/compatibility.d.",
    ),
    row(
        PoolStatus::IncompatibleFeature,
        None,
        "One or more features are enabled on the pool despite not being\n\trequested by the \
         'compatibility' property.",
        "Consider setting 'compatibility' to an appropriate value, or\n\tadding needed \
         features to the relevant file in\n\t/etc/zfs/compatibility.d or \
         /usr/share/zfs/compatibility.d.",
    ),
    row(
        PoolStatus::FaultedDevice,
        None,
        "One or more devices are faulted in response to persistent errors.\n\tSufficient \
         replicas exist for the pool to continue functioning in a\n\tdegraded state.",
        "Replace the faulted device, or use 'zpool clear' to mark the device\n\trepaired.",
    ),
    row(
        PoolStatus::FaultedDeviceNoReplicas,
        None,
        "One or more devices are faulted in response to persistent errors.  There are \
         insufficient replicas for the pool to\n\tcontinue functioning.",
        "Destroy and re-create the pool from a backup source.  Manually marking the \
         device\n\trepaired using 'zpool clear' may allow some data to be recovered.",
    ),
    row(
        PoolStatus::IoFailureMultihost,
        Some("ZFS-8000-MM"),
        "The pool is suspended because multihost writes failed or were delayed;\n\tanother \
         system could import the pool undetected.",
        "Make sure the pool's devices are connected, then reboot your system and\n\timport \
         the pool or run 'zpool clear' to resume the pool.",
    ),
    row(
        PoolStatus::IoFailureWait,
        Some("ZFS-8000-HC"),
        "One or more devices are faulted in response to IO failures.",
        "Make sure the affected devices are connected, then run 'zpool clear'.",
    ),
    row(
        PoolStatus::IoFailureContinue,
        Some("ZFS-8000-JQ"),
        "One or more devices are faulted in response to IO failures.",
        "Make sure the affected devices are connected, then run 'zpool clear'.",
    ),
    row(
        PoolStatus::BadLog,
        Some(BAD_LOG),
        "An intent log record could not be read.\n\tWaiting for administrator intervention to \
         fix the faulted pool.",
        "Either restore the affected device(s) and run 'zpool online',\n\tor ignore the \
         intent log records by running 'zpool clear'.",
    ),
    row(
        PoolStatus::NonNativeAshift,
        None,
        "One or more devices are configured to use a non-native block size.\n\tExpect reduced \
         performance.",
        "Replace affected devices with devices that support the\n\tconfigured block size, or \
         migrate data to a properly configured\n\tpool.",
    ),
    row(
        PoolStatus::HostMismatch,
        Some("ZFS-8000-EY"),
        "Mismatch between pool hostid and system hostid on imported pool.\n\tThis pool was \
         previously imported into a system with a different hostid,\n\tand then was verbatim \
         imported into this system.",
        "Export this pool on all systems on which it is imported.\n\tThen import it to \
         correct the mismatch.",
    ),
];

/// Address of an article.
pub fn article_address(article: &str) -> String {
    format!("https://openzfs.github.io/openzfs-docs/msg/{article}")
}

/// The word for that many transaction groups.
fn plural(groups: u64) -> &'static str {
    if groups == 1 { "group" } else { "groups" }
}

/// Lists features, one a line.
fn features(names: &[String]) -> String {
    names.iter().map(|name| format!("\n\t{name}")).collect()
}

/// What it says of a pool with intent logs that could not be replayed and are kept; `None` if there
/// are none.
fn unreplayed(logs: &[UnreplayedLog]) -> Option<Advice> {
    let lines: String =
        logs.iter().map(|log| format!("\n\t{}: {}", log.dataset, log.reason)).collect();
    (!logs.is_empty()).then(|| Advice {
        status: format!(
            "One or more intent logs could not be replayed.  Their records are\n\tkept, and the \
             datasets are only accessible in read-only mode:{lines}"
        ),
        action: "Restore the affected device(s), then unmount and mount the datasets or\n\timport \
                 the pool again.  To discard the intent log records, export the\n\tpool and import \
                 it with 'zpool import -m'."
            .to_owned(),
        article: Some(BAD_LOG),
    })
}

/// What it says of a pool with a job that cannot be done.
fn stuck(job: &JobReport) -> Option<Advice> {
    let because = job.trouble.as_deref()?;
    let what = match job.name.as_str() {
        "freeing" => {
            "Space of destroyed datasets or snapshots stays in use, as what names their\n\tblocks \
             cannot be read:"
        }
        "discarding checkpoint" => {
            "Space that the discarded checkpoint held stays in use, as what lists it\n\tcannot be \
             read:"
        }
        _ => "What the pool does in the background cannot go on:",
    };
    Some(Advice {
        status: format!("{what}\n\t{because}"),
        action: "The pool can be used.  Restore the affected device(s), then run 'zpool \
                 clear':\n\tit is tried again."
            .to_owned(),
        article: None,
    })
}

/// What it says of a pool that is open for reading only because of a lack of this program.
fn kept_from_writing(because: &str) -> Advice {
    Advice {
        status: format!("The pool is open for reading only:\n\t{because}"),
        action:
            "Everything in it can be read.  To change it, import it on a system with\n\tOpenZFS."
                .to_owned(),
        article: None,
    }
}

/// What `zpool status` says of a pool; `None` if there is nothing to say.
pub fn pool_advice(pool: &PoolReport) -> Option<Advice> {
    let logs = (!pool.suspended).then(|| unreplayed(&pool.unreplayed)).flatten();
    let kept = || pool.read_only_because.as_deref().map(kept_from_writing);
    let own = advice(&pool.status);
    let (own, remark) = if pool.status.is_remark() { (None, own) } else { (own, None) };
    let wrong =
        pool.jobs.iter().filter_map(stuck).fold(logs.or(own).or_else(kept), |advice, stuck| {
            Some(match advice {
                Some(advice) => {
                    Advice { status: format!("{}\n\t{}", advice.status, stuck.status), ..advice }
                }
                None => stuck,
            })
        });
    wrong.or(remark)
}

/// What `zpool status` says of a status, or `None` for a healthy pool.
pub fn advice(status: &PoolStatus) -> Option<Advice> {
    let row = ROWS.iter().find(|row| row.status == *status);
    let spoken = row.map(|row| Advice {
        status: row.what.to_owned(),
        action: row.action.to_owned(),
        article: row.article,
    });
    spoken.or_else(|| with_details(status))
}

/// What is said of a pool with damage by an old release of this number.
fn errata(number: u32) -> Advice {
    let (more, action) = match number {
        1 => ("", "To correct the issue run 'zpool scrub'."),
        3 => (
            "\n\tExisting encrypted datasets contain an on-disk incompatibility\n\twhich needs to be \
             corrected.",
            "To correct the issue backup existing encrypted datasets to new\n\tencrypted datasets and \
             destroy the old ones. 'zfs mount -o ro' can\n\tbe used to temporarily mount existing \
             encrypted datasets readonly.",
        ),
        4 => (
            "\n\tExisting encrypted snapshots and bookmarks contain an on-disk\n\tincompatibility. This \
             may cause on-disk corruption if they are used\n\twith 'zfs recv'.",
            "To correct the issue, enable the bookmark_v2 feature. No additional\n\taction is needed if \
             there are no encrypted snapshots or bookmarks.\n\tIf preserving the encrypted snapshots \
             and bookmarks is required, use\n\ta non-raw send to backup and restore them. Alternately, \
             they may be\n\tremoved to resolve the incompatibility.",
        ),
        _ => ("", "Access the pool from a system running more recent software."),
    };
    Advice {
        status: format!("Errata #{number} detected.{more}"),
        action: action.to_owned(),
        article: Some("ZFS-8000-ER"),
    }
}

/// What is said of a status that comes with names or numbers.
fn with_details(status: &PoolStatus) -> Option<Advice> {
    let (what, action) = match status {
        PoolStatus::UnsupportedFeaturesRead(names) => (
            format!(
                "The pool cannot be accessed on this system because it uses the\n\tfollowing \
                 feature(s) not supported on this system:{}",
                features(names)
            ),
            "Access the pool from a system that supports the required feature(s),\n\tor restore the \
             pool from backup.",
        ),
        PoolStatus::UnsupportedFeaturesWrite(names) => (
            format!(
                "The pool can only be accessed in read-only mode on this system. It\n\tcannot be \
                 accessed in read-write mode because it uses the following\n\tfeature(s) not \
                 supported on this system:{}",
                features(names)
            ),
            "The pool cannot be accessed in read-write mode. Import the pool with\n\t\"-o \
             readonly=on\", access the pool from a system that supports the\n\trequired feature(s), \
             or restore the pool from backup.",
        ),
        PoolStatus::MissedWrites(groups) => (
            format!(
                "One or more devices missed writes ({groups} transaction {}) and have not\n\tbeen \
                 resilvered.  The other devices have what was missed.",
                plural(*groups)
            ),
            "Keep the other devices: the pool cannot do without them until this one\n\twas \
             resilvered or replaced.  A resilver begins by itself when the\n\tpool is open for \
             writing and no other scan is under way.",
        ),
        PoolStatus::OutOfReach(groups) => {
            let what = match groups {
                0 => "Data could not be read because devices are away or fail.".to_owned(),
                groups => format!(
                    "Devices are away, and those that are left missed writes: what was\n\twritten in \
                     {groups} transaction {} may not be readable.",
                    plural(*groups)
                ),
            };
            let action = "Attach the missing devices and online them using 'zpool online', or\n\tmake \
                          sure that they are connected and run 'zpool clear'.";
            (what, action)
        }
        PoolStatus::Errata(number) => return Some(errata(*number)),
        _ => return None,
    };
    Some(Advice { status: what, action: action.to_owned(), article: None })
}
