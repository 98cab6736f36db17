//! Directories that were made to mount something on, and go when nothing is mounted there any more.
//!
//! Invariant: only empty directories are removed, of datasets whose mountpoint follows from their
//! name; one that somebody chose stays.

use std::fs;
use std::path::PathBuf;

use cenote_control::report::{DatasetReport, Source};

use super::datasets::Datasets;

/// The mountpoints of the datasets called `names`, as far as nobody chose them.
pub(super) fn made(all: &dyn Datasets, names: &[String]) -> Vec<PathBuf> {
    let follows = |dataset: &DatasetReport| {
        let source = dataset.properties.get("mountpoint").map(|property| &property.source);
        matches!(source, Some(Source::Default | Source::Inherited(_)))
    };
    let meant = names.iter().filter_map(|name| all.find(name)).filter(follows);
    let places = meant.filter_map(|dataset| {
        let place = dataset.properties.value("mountpoint")?;
        place.starts_with('/').then(|| PathBuf::from(place))
    });
    places.collect()
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
        let all = vec![
            dataset("a", Source::Default),
            dataset("a/b", from()),
            dataset("chosen", Source::Local),
            dataset("full", from()),
            dataset("other", from()),
        ];
        fs::write(directory.path().join("full/file"), "x").unwrap();
        let names =
            |all: &[DatasetReport]| all.iter().map(|one| one.name.clone()).collect::<Vec<_>>();
        remove(made(&all, &names(all.get(..4).unwrap())));
        let left = |name: &str| directory.path().join(name).exists();
        assert_eq!(["a", "chosen", "full", "other"].map(left), [false, true, true, true]);
        // Also of pools that are gone.
        remove(made(&all, &names(&all)));
        assert!(left("full") && !left("other"));
    }
}
