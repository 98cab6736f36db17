//! What the datasets are called here that a stream brings.
//!
//! Invariant: a name that is made is the target's, or lies below it.

use cenote_control::changes::ReceivedNames;

use super::super::below;

/// Where a snapshot goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Destination {
    /// Filesystem or volume.
    pub(super) dataset: String,
    /// The part of the snapshot's name after the `@`.
    pub(super) snapshot: String,
}

/// Where the snapshot `name` of a stream goes that was sent of the dataset `sent` and those below it; else why
/// it can go nowhere. `several`: more may come with it.
pub(super) fn destination(
    target: &str,
    how: ReceivedNames,
    sent: &str,
    name: &str,
    several: bool,
) -> Result<Destination, String> {
    let (dataset, snapshot) = name.split_once('@').ok_or("invalid stream (bad snapshot name)")?;
    if dataset.is_empty() || snapshot.is_empty() || snapshot.contains('@') {
        return Err("invalid stream (bad snapshot name)".to_owned());
    }
    let below = below(dataset, sent).ok_or("invalid stream (bad snapshot name)")?;
    if let Some((dataset, snapshot)) = target.split_once('@') {
        return match how {
            ReceivedNames::WithoutPool => {
                Err("invalid argument - snapshot not allowed with -d".to_owned())
            }
            ReceivedNames::LastPart => {
                Err("invalid argument - snapshot not allowed with -e".to_owned())
            }
            ReceivedNames::Exact if several => {
                Err("cannot specify snapshot name for multi-snapshot stream".to_owned())
            }
            ReceivedNames::Exact => {
                Ok(Destination { dataset: dataset.to_owned(), snapshot: snapshot.to_owned() })
            }
        };
    }
    let tail = match how {
        ReceivedNames::Exact => below.to_owned(),
        ReceivedNames::WithoutPool => match dataset.split_once('/') {
            Some((_, rest)) => format!("/{rest}"),
            None => String::new(),
        },
        ReceivedNames::LastPart => {
            let last = sent.rsplit('/').next().unwrap_or(sent);
            format!("/{last}{below}")
        }
    };
    let dataset = format!("{target}{tail}");
    if dataset.len() + snapshot.len() + 1 >= 256 || !is_name(&dataset) || !is_part(snapshot) {
        return Err(format!("invalid name '{dataset}@{snapshot}'"));
    }
    Ok(Destination { dataset, snapshot: snapshot.to_owned() })
}

/// Whether this can be the name of a filesystem or volume.
fn is_name(name: &str) -> bool {
    name.split('/').all(is_part)
}

fn is_part(part: &str) -> bool {
    let may = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | ' ');
    !part.is_empty() && part != "." && part != ".." && part.chars().all(may)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(target: &str, how: ReceivedNames, sent: &str, name: &str) -> String {
        match destination(target, how, sent, name, false) {
            Ok(found) => format!("{}@{}", found.dataset, found.snapshot),
            Err(why) => why,
        }
    }

    #[test]
    fn names_follow_the_target() {
        use ReceivedNames::{Exact, LastPart, WithoutPool};
        for (target, how, sent, name, expected) in [
            ("b/c", Exact, "t/a", "t/a@s", "b/c@s"),
            ("b/c", Exact, "t/a", "t/a/x/y@s", "b/c/x/y@s"),
            ("b/c@z", Exact, "t/a", "t/a@s", "b/c@z"),
            ("b/c", WithoutPool, "t/a", "t/a/x@s", "b/c/a/x@s"),
            ("b/c", WithoutPool, "t", "t@s", "b/c@s"),
            ("b/c", LastPart, "t/a", "t/a/x@s", "b/c/a/x@s"),
            ("b/c", LastPart, "t", "t@s", "b/c/t@s"),
            ("b/c", LastPart, "t/a/x", "t/a/x@s", "b/c/x@s"),
        ] {
            assert_eq!(of(target, how, sent, name), expected);
        }
        assert!(of("b@z", WithoutPool, "t", "t@s").contains("not allowed with -d"));
        assert!(of("b", Exact, "t", "t/../x@s").contains("invalid name"));
        assert!(of("b", Exact, "t", "t/%recv@s").contains("invalid name"));
        assert!(of("b", Exact, "t", "t").contains("bad snapshot name"));
        assert!(destination("b@z", Exact, "t", "t@s", true).is_err());
        // Not beside the target, nor what was not sent with the dataset.
        for (sent, name) in [("t/a", "t/ab@s"), ("t/a", "t@s"), ("t/a", "u/x@s")] {
            for how in [Exact, LastPart, WithoutPool] {
                assert!(of("b/c", how, sent, name).contains("bad snapshot name"), "{name}");
            }
        }
    }
}
