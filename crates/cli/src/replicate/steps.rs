//! What has to be sent next, told from the snapshots at both ends.
//!
//! Invariant: two snapshots are the same if their guids are, whatever they are called; nothing at the target is taken
//! back unless that was asked for.

/// A snapshot or bookmark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Point {
    /// With its `@` or `#`.
    pub(super) name: String,
    pub(super) guid: u64,
}

impl Point {
    fn is_snapshot(&self) -> bool {
        self.name.starts_with('@')
    }
}

/// The lines of `zfs list -Hp -o name,guid -s createtxg`, of this dataset.
pub(super) fn points(listed: &str, of: &str) -> Vec<Point> {
    let point = |line: &str| {
        let (name, guid) = line.split_once('\t')?;
        let name = name.strip_prefix(of)?;
        let guid = guid.trim().parse().ok()?;
        name.starts_with(['@', '#']).then(|| Point { name: name.to_owned(), guid })
    };
    listed.lines().filter_map(point).collect()
}

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The target has the newest snapshot.
    Done,
    /// All of this snapshot is sent.
    Full(String),
    /// What came after the first up to the second, with all between them if both are snapshots.
    Since { from: String, to: String, all: bool, takes_back: bool },
}

/// The next step; `target`: what is there, if it exists. Both are in the order of their groups.
///
/// # Errors
/// Why there is none.
pub(super) fn next(
    source: &[Point],
    target: Option<&[Point]>,
    force: bool,
) -> Result<Step, String> {
    let snapshots: Vec<&Point> = source.iter().filter(|point| point.is_snapshot()).collect();
    let (Some(oldest), Some(newest)) = (snapshots.first(), snapshots.last()) else {
        return Err("it has no snapshots (cenote replicate --snapshot takes one)".to_owned());
    };
    let Some(target) = target else { return Ok(Step::Full(oldest.name.clone())) };
    let known = |point: &&Point| source.iter().any(|other| other.guid == point.guid);
    let Some(common) = target.iter().rev().find(known) else {
        return match target.is_empty() {
            true if force => Ok(Step::Full(oldest.name.clone())),
            true => {
                Err("the target is there and has no snapshots (--force overwrites it)".to_owned())
            }
            false => Err("the target has no snapshot in common with it".to_owned()),
        };
    };
    let takes_back = target.last().is_some_and(|last| last.guid != common.guid);
    if common.guid == newest.guid && !takes_back {
        return Ok(Step::Done);
    }
    if takes_back && !force {
        let last = target.last().map_or("", |last| last.name.as_str());
        let name = &common.name;
        return Err(format!(
            "the target has changed since {name}: {last} is not from here (--force takes it back)"
        ));
    }
    if common.guid == newest.guid {
        // Nothing to send takes it back.
        return Err(format!("the target has snapshots that are newer than {}", newest.name));
    }
    let same = |point: &&&Point| point.guid == common.guid;
    if let Some(from) = snapshots.iter().find(same) {
        let (from, to) = (from.name.clone(), newest.name.clone());
        return Ok(Step::Since { from, to, all: true, takes_back });
    }
    // From a bookmark only one snapshot can be sent: the first after it.
    let at = source.iter().position(|point| point.guid == common.guid).unwrap_or(0);
    let after = source.iter().skip(at).find(|point| point.is_snapshot());
    match (source.get(at), after) {
        (Some(from), Some(to)) => {
            let (from, to) = (from.name.clone(), to.name.clone());
            Ok(Step::Since { from, to, all: false, takes_back })
        }
        _ => Err("nothing follows the bookmark that the target has".to_owned()),
    }
}

/// Snapshots of the source, from the first that both have on, that the target lacks.
pub(super) fn missing(source: &[Point], target: &[Point]) -> Vec<String> {
    let has = |point: &Point| target.iter().any(|other| other.guid == point.guid);
    let from = source.iter().position(|point| point.is_snapshot() && has(point));
    let after = source.iter().skip(from.unwrap_or(0)).filter(|point| point.is_snapshot());
    after.filter(|point| !has(point)).map(|point| point.name.clone()).collect()
}

/// Of what `zfs send -t` complains of: the reason, if what was sent is not there any more.
pub(super) fn lost(said: &str) -> Option<&str> {
    let reason = said.lines().find_map(|line| line.strip_prefix("cannot resume send: "))?;
    let is_source =
        reason.starts_with("incremental source ") && reason.ends_with(" no longer exists");
    let is_lost = is_source
        || reason.ends_with("' used in the initial send no longer exists")
        || reason.ends_with("' is no longer the same snapshot used in the initial send");
    is_lost.then_some(reason)
}

/// Whether the snapshot that a reason names is one of this dataset. One that names none is of what was found.
pub(super) fn is_of(reason: &str, dataset: &str) -> bool {
    let named = reason.strip_prefix('\'').and_then(|rest| rest.split_once('@'));
    named.is_none_or(|(of, _)| of == dataset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lost_is_told_from_what_went_wrong() {
        for (reason, own) in [
            ("'tank/a@x' used in the initial send no longer exists", true),
            ("'tank/b@x' is no longer the same snapshot used in the initial send", false),
            ("incremental source 0x5e no longer exists", true),
        ] {
            let said = format!("other words\ncannot resume send: {reason}\n");
            assert_eq!((lost(&said), is_of(reason, "tank/a")), (Some(reason), own));
        }
        for other in ["cannot resume send: resume token is corrupt", "ssh: no route to host", ""] {
            assert_eq!(lost(other), None);
        }
    }

    fn all(names: &[(&str, u64)]) -> Vec<Point> {
        names.iter().map(|(name, guid)| Point { name: (*name).to_owned(), guid: *guid }).collect()
    }

    fn since(from: &str, to: &str, all: bool, takes_back: bool) -> Result<Step, String> {
        Ok(Step::Since { from: from.into(), to: to.into(), all, takes_back })
    }

    #[test]
    fn lines_are_read_and_others_passed_over() {
        let text = "tank/a@x\t5\ntank/a#y\t6\ntank/a/b@x\t7\ntank/ab@x\t8\nodd\n";
        assert_eq!(points(text, "tank/a"), all(&[("@x", 5), ("#y", 6)]));
    }

    #[test]
    fn the_next_step() {
        let source = all(&[("@a", 1), ("#old", 2), ("@c", 3), ("@d", 4)]);
        let step = |target: &[(&str, u64)], force| next(&source, Some(&all(target)), force);
        assert_eq!(next(&source, None, false), Ok(Step::Full("@a".into())));
        assert_eq!(step(&[("@a", 1)], false), since("@a", "@d", true, false));
        // It has another name there.
        assert_eq!(step(&[("@first", 1), ("@third", 3)], false), since("@c", "@d", true, false));
        assert_eq!(step(&[("@b", 2)], false), since("#old", "@c", false, false));
        assert_eq!(step(&[("@d", 4)], false), Ok(Step::Done));
        assert_eq!(step(&[("@a", 1), ("@own", 9)], true), since("@a", "@d", true, true));
        for (target, force) in [
            (&[("@a", 1), ("@own", 9)][..], false),
            (&[("@own", 9)], true),
            (&[], false),
            (&[("@d", 4), ("@own", 9)], true),
        ] {
            assert!(step(target, force).is_err(), "{target:?}");
        }
        assert_eq!(step(&[], true), Ok(Step::Full("@a".into())));
        assert!(next(&all(&[("#only", 1)]), None, true).is_err());
    }

    #[test]
    fn what_the_target_lacks() {
        let source = all(&[("@a", 1), ("@b", 2), ("@c", 3)]);
        assert_eq!(missing(&source, &all(&[("@b", 2), ("@c", 3)])), Vec::<String>::new());
        assert_eq!(missing(&source, &all(&[("@b", 2)])), ["@c"]);
        assert_eq!(missing(&source, &[]), ["@a", "@b", "@c"]);
    }
}
