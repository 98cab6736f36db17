//! Files that the guides name.
//!
//! Invariant: whoever follows a name in a guide finds one file or directory, and need not guess.

use std::collections::BTreeSet;

/// What is checked. Names lie below `crates/`, `src/` left out.
pub const GUIDES: &[&str] = &["docs/architecture.md", "CONTRIBUTING.md"];

/// Every `file.rs` of a guide is named by its whole path, every `room/file` so that it is only one;
/// `files` are those of the tree, and `exists` tells of other things that are at its root.
pub fn check(
    guide: &str,
    text: &str,
    files: &[&str],
    exists: impl Fn(&str) -> bool,
    found: &mut Vec<String>,
) {
    let places = places(files);
    for (number, line) in text.lines().enumerate() {
        let mut say = |words: String| found.push(format!("{guide}:{}: {words}", number + 1));
        for name in line.split('`').skip(1).step_by(2).filter(|name| is_path(name)) {
            if name.ends_with(".rs") {
                for name in alternatives(name) {
                    if !files.contains(&name.as_str())
                        && !files.contains(&in_source(&name).as_str())
                    {
                        say(format!("there is no {name}; write the whole path"));
                    }
                }
            } else if name.contains('/') && !exists(name) {
                let end = format!("/{name}");
                let meant = places.iter().filter(|place| **place == name || place.ends_with(&end));
                match meant.count() {
                    1 => {}
                    0 => say(format!("there is no {name}")),
                    _ => say(format!("{name} can be several files; write more of the path")),
                }
            }
        }
    }
}

/// Names of files and rooms, as against paths of a system, options and members of types.
fn is_path(name: &str) -> bool {
    let name = name.strip_suffix(".rs").unwrap_or(name);
    let is_part = |part: &str| {
        !part.is_empty() && part.chars().all(|c| c.is_ascii_lowercase() || "_{},".contains(c))
    };
    name.split('/').all(is_part) && !name.starts_with("target/")
}

/// `a/{b,c}.rs` is two files.
fn alternatives(name: &str) -> Vec<String> {
    let list = name.split_once('{').and_then(|(before, rest)| {
        let (list, after) = rest.split_once('}')?;
        Some(list.split(',').map(|one| format!("{before}{one}{after}")).collect())
    });
    list.unwrap_or_else(|| vec![name.to_owned()])
}

/// `crate/room/file.rs` as it lies in the tree.
fn in_source(name: &str) -> String {
    let (krate, inside) = name.split_once('/').unwrap_or_default();
    format!("crates/{krate}/src/{inside}")
}

/// What can be named without `.rs`: files, and directories that hold any, as guides write them.
fn places<'a>(files: &[&'a str]) -> BTreeSet<String> {
    let shown = |file: &'a str| {
        let name = file.strip_prefix("crates/").unwrap_or(file).replacen("/src/", "/", 1);
        name.trim_end_matches(".rs").trim_end_matches("/mod").to_owned()
    };
    let mut places = BTreeSet::new();
    for name in files.iter().map(|file| shown(file)) {
        let ends = name.match_indices('/').map(|(end, _)| end);
        places.extend(ends.filter_map(|end| name.get(..end)).map(str::to_owned));
        places.insert(name);
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_nowhere_or_to_a_guess_are_found() {
        let files = [
            "crates/posix/src/live.rs",
            "crates/posix/src/write/data.rs",
            "crates/engine/src/intent/data.rs",
            "crates/engine/src/pool/mod.rs",
            "torture/src/orders.rs",
        ];
        let check = |text: &str| {
            let mut found = Vec::new();
            check("x.md", text, &files, |name| name == "tests/fixtures", &mut found);
            found
        };
        let right = "`posix/live.rs`, `engine/pool`, `write/data`, `/dev/fuse`, `rename`, `tests/fixtures`,\n\
                     `torture/src/orders.rs`, `engine/{intent/data,pool/mod}.rs`, `Seed::x`";
        assert_eq!(check(right), Vec::<String>::new());
        assert_eq!(
            check("\n`live.rs` `posix/gone.rs` `engine/pool/{mod,x}.rs`"),
            [
                "x.md:2: there is no live.rs; write the whole path",
                "x.md:2: there is no posix/gone.rs; write the whole path",
                "x.md:2: there is no engine/pool/x.rs; write the whole path",
            ]
        );
        assert_eq!(check("`pool/gone`"), ["x.md:1: there is no pool/gone"]);
        let files = ["crates/posix/src/a/b.rs", "crates/serve/src/a/b.rs"];
        let mut found = Vec::new();
        super::check("x.md", "`a/b`", &files, |_| false, &mut found);
        assert_eq!(found, ["x.md:1: a/b can be several files; write more of the path"]);
    }
}
