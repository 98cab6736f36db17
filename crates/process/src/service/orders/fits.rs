//! Whether values of properties fit a dataset as it is.
//!
//! Invariant: the words are those of OpenZFS, recorded from 2.1.11.

use cenote_control::plan::PropertySetting;
use cenote_control::protocol::FailureKind;
use cenote_control::report::DatasetReport;

/// Why a value cannot be set on a dataset as it is now.
pub(super) fn does_not_fit(
    dataset: &DatasetReport,
    property: &PropertySetting,
) -> Option<(FailureKind, String)> {
    let now = |name: &str| dataset.properties.number(name).unwrap_or(0);
    let small = "size is less than current used or reserved space";
    let large = "size is greater than available space";
    let refuse = |words: &str| Some((FailureKind::NoSpace, words.to_owned()));
    let text = property.value.text();
    match (property.name.as_str(), property.value.number()) {
        ("quota", Some(size)) if size != 0 && size < now("used").max(now("reservation")) => {
            refuse(small)
        }
        ("refquota", Some(size)) if size != 0 && size < now("referenced") => refuse(small),
        ("reservation", Some(size)) => {
            let more = size.saturating_sub(now("used").max(now("reservation")));
            if more > now("available") { refuse(large) } else { None }
        }
        ("refreservation", Some(size)) => {
            let own = now("usedbydataset").max(now("refreservation"));
            if size.saturating_sub(own) > now("available") { refuse(large) } else { None }
        }
        ("volsize", Some(_)) if dataset.properties.value("readonly") == Some("on") => {
            Some((FailureKind::Other, "dataset is read-only".to_owned()))
        }
        ("volsize", Some(size)) => {
            let block = now("volblocksize").max(1);
            (size % block != 0).then(|| {
                let block = cenote_control::text::number::plain(block);
                let words = format!("'volsize' must be a multiple of volume block size ({block})");
                (FailureKind::Other, words)
            })
        }
        ("version", Some(version)) if version < now("version") => {
            let words = format!("Can not downgrade; already at version {}", now("version"));
            Some((FailureKind::Other, words))
        }
        ("keylocation", _) => {
            let root = dataset.properties.value("encryptionroot").unwrap_or("");
            let words = match (root, text) {
                ("", Some("none")) => return None,
                ("", _) => "keylocation must be 'none' for unencrypted datasets",
                (root, _) if root != dataset.name => {
                    "keylocation may only be set on encryption roots"
                }
                (_, Some("none")) => "keylocation must not be 'none' for encrypted datasets",
                _ => return None,
            };
            Some((FailureKind::Other, words.to_owned()))
        }
        _ => None,
    }
}
