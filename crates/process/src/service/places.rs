//! Directories that were made to mount something on, and go when nothing is mounted there any more.
//!
//! Invariant: only empty directories are removed, of datasets whose mountpoint follows from their
//! name; one that somebody chose stays.

use std::fs;
use std::path::PathBuf;

use cenote_control::report::{DatasetReport, Source};

/// The mountpoints of the datasets that `is_meant` names, as far as nobody chose them.
pub(super) fn made(all: &[DatasetReport], is_meant: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let follows = |dataset: &&DatasetReport| {
        let source = dataset.properties.get("mountpoint").map(|property| &property.source);
        matches!(source, Some(Source::Default | Source::Inherited(_)))
    };
    let meant = all.iter().filter(|dataset| is_meant(&dataset.name)).filter(follows);
    let places = meant.filter_map(|dataset| dataset.properties.value("mountpoint"));
    places.filter(|place| place.starts_with('/')).map(PathBuf::from).collect()
}

/// Removes those that are empty, the innermost first. Nothing can be mounted on what is removed: the
/// kernel sees to that.
pub(super) fn remove(mut places: Vec<PathBuf>) {
    places.sort();
    for place in places.into_iter().rev().filter(|place| place.parent().is_some()) {
        if let Err(error) = fs::remove_dir(&place) {
            tracing::debug!(place = %place.display(), %error, "not removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_mounting_made_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let dataset = |name: &str, source: Source| {
            let place = directory.path().join(name);
            fs::create_dir_all(&place).unwrap();
            let mut dataset = DatasetReport { name: name.into(), ..DatasetReport::default() };
            dataset.properties.set("mountpoint", place.to_str().unwrap(), source);
            dataset
        };
        let from = || Source::Inherited("tank".into());
        let all = [
            dataset("a", Source::Default),
            dataset("a/b", from()),
            dataset("chosen", Source::Local),
            dataset("full", from()),
            dataset("other", from()),
        ];
        fs::write(directory.path().join("full/file"), "x").unwrap();
        remove(made(&all, |name| name != "other"));
        let left = |name: &str| directory.path().join(name).exists();
        assert_eq!(["a", "chosen", "full", "other"].map(left), [false, true, true, true]);
        // Also of pools that are gone.
        remove(made(&all, |_| true));
        assert!(left("full") && !left("other"));
    }
}
