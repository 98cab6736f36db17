//! Arrows: which crates use which, and which parts of a crate use which of its parts.
//!
//! Invariant: the tables here, the manifests and the drawing in `docs/architecture.md` say the same.

use std::collections::BTreeSet;

use super::circles::{is_name, module, tokens};
use super::exceptions;

/// Which crates of ours a crate uses: these, and no others.
pub const ARROWS: &[(&str, &[&str])] = &[
    ("format", &[]),
    ("codec", &[]),
    ("device", &[]),
    ("engine", &["format", "codec", "device"]),
    ("lua", &[]),
    ("posix", &["engine", "format"]),
    ("control", &["format"]),
    ("serve", &["posix"]),
    ("process", &["serve", "posix", "engine", "control", "format", "device", "lua"]),
    ("inspect", &["posix", "engine", "control", "format", "codec", "device"]),
    ("cli", &["control"]),
    ("cenote", &["cli", "inspect", "process", "control"]),
];

/// The parts of crates from low to high: a part uses only parts before it.
const PARTS: &[(&str, &[&str])] = &[
    (
        "engine",
        &[
            "error", "events", "stream", "txg", "job", "vdev", "alloc", "cache", "pipe", "walk",
            "object", "zap", "dataset", "keys", "intent", "pool", "receive", "send", "check",
        ],
    ),
    (
        "cli",
        &[
            "getopt",
            "usage",
            "leftovers",
            "settings",
            "version",
            "datasets",
            "keys",
            "zpool",
            "zfs",
            "zed",
            "zinject",
            "drill",
            "policy",
            "replicate",
            "mount_helper",
        ],
    ),
    (
        "process",
        &[
            "log",
            "memory",
            "lock_holder",
            "planned",
            "whole_disks",
            "program",
            "service",
            "opening",
            "beginning",
        ],
    ),
    (
        "inspect",
        &["disks", "offline", "cache_file", "in_use", "clear_labels", "importable", "look", "zdb"],
    ),
];

/// The arrows of a crate's manifest are those of the table: none is missing, none too many.
pub fn check_manifest(krate: &str, allowed: &[&str], manifest: &str, found: &mut Vec<String>) {
    let product = manifest.split("[dev-dependencies]").next().unwrap_or("");
    for (other, _) in ARROWS {
        let uses = product.contains(&format!("cenote-{other}."));
        match (uses, allowed.contains(other)) {
            (true, false) => {
                found.push(format!("crates/{krate}/Cargo.toml: {krate} must not use {other}"));
            }
            (false, true) => found.push(format!(
                "crates/{krate}/Cargo.toml: {krate} does not use {other}: take the arrow out of \
                 docs/architecture.md and xtask/src/tidy/arrows.rs"
            )),
            _ => {}
        }
    }
}

/// The sentence about arrows and the list of rooms in the architecture are those of the tables.
pub fn check_drawing(architecture: &str, found: &mut Vec<String>) {
    let told = told_arrows(architecture);
    let arrows = |(krate, others): &(&'static str, &[&'static str])| {
        others.iter().map(|other| (*krate, *other)).collect::<Vec<_>>()
    };
    let known: BTreeSet<(&str, &str)> = ARROWS.iter().flat_map(arrows).collect();
    for (krate, other) in known.difference(&told) {
        found.push(format!("docs/architecture.md: the arrow {krate} -> {other} is not drawn"));
    }
    for (krate, other) in told.difference(&known) {
        found.push(format!("docs/architecture.md: there is no arrow {krate} -> {other}"));
    }
    let rooms = drawn_rooms(architecture, "engine");
    let parts = PARTS.iter().filter(|(krate, _)| *krate == "engine");
    // `error` is a file, no room.
    let parts: Vec<&str> =
        parts.flat_map(|(_, parts)| *parts).copied().filter(|part| *part != "error").collect();
    if rooms != parts {
        found.push(format!(
            "docs/architecture.md: the rooms of engine are drawn as {rooms:?}, but tidy knows {parts:?}"
        ));
    }
}

/// The arrows of the sentence that begins with "Arrows, only these".
fn told_arrows(architecture: &str) -> BTreeSet<(&str, &str)> {
    let sentence = architecture.split_once("Arrows, only these:").map_or("", |(_, rest)| rest);
    let sentence = sentence.split("Nothing of ours").next().unwrap_or_default();
    let told = sentence.split('`').skip(1).step_by(2).filter_map(|told| told.split_once(" -> "));
    told.flat_map(|(krate, others)| others.split(", ").map(move |other| (krate, other))).collect()
}

/// The rooms drawn below a crate, from top to bottom.
fn drawn_rooms<'a>(architecture: &'a str, krate: &str) -> Vec<&'a str> {
    let head = format!("  {krate}/ ");
    let below = architecture.lines().skip_while(|line| !line.starts_with(&head)).skip(1);
    // Two spaces more than a crate has, and one for the air; what goes on is further in.
    let rooms = below.take_while(|line| line.starts_with("     "));
    rooms
        .filter_map(|line| line.strip_prefix("     ")?.split_once("/ ").map(|(room, _)| room))
        .filter(|room| is_name(room))
        .collect()
}

/// Top-level modules that stand in no list of parts: nobody would see their arrows.
pub fn check_parts(names: &[&str], found: &mut Vec<String>) {
    for (krate, parts) in PARTS {
        let source = format!("crates/{krate}/src/");
        let modules = names.iter().filter(|name| name.starts_with(&source));
        let tops: BTreeSet<String> =
            modules.filter_map(|name| module(&source, name).into_iter().next()).collect();
        for top in tops.iter().filter(|top| !parts.contains(&top.as_str())) {
            found.push(format!(
                "crates/{krate}/src: {top} is in no place among the parts of {krate}: give it one in \
                 xtask/src/tidy/arrows.rs"
            ));
        }
        for part in parts.iter().filter(|part| !tops.contains(**part)) {
            found.push(format!("xtask/src/tidy/arrows.rs: {krate} has no part {part}"));
        }
    }
}

/// Arrows between the parts of a crate.
pub fn check_arrows(name: &str, text: &str, found: &mut Vec<String>) {
    for (number, other) in upward_arrows(name, text) {
        if !exceptions::ARROWS.iter().any(|(file, part, _)| (*file, *part) == (name, other)) {
            found.push(format!("{name}:{number}: must not use {other}, a part above"));
        }
    }
}

/// The lines that use a part above the file's own, and that part.
pub fn upward_arrows(name: &str, text: &str) -> Vec<(usize, &'static str)> {
    let inside = PARTS.iter().find_map(|(krate, parts)| {
        let source = format!("crates/{krate}/src/");
        name.starts_with(&source).then(|| (module(&source, name), *parts))
    });
    let Some((own, parts)) = inside else { return Vec::new() };
    let rank = |part: &str| parts.iter().position(|other| *other == part);
    let Some(own_rank) = own.first().and_then(|part| rank(part)) else { return Vec::new() };
    let used = used_parts(own.len(), text).into_iter();
    used.filter_map(|(line, part)| {
        let rank = rank(&part).filter(|rank| *rank > own_rank)?;
        Some((line, *parts.get(rank)?))
    })
    .collect()
}

/// What follows the root of the crate in every path of a file whose module lies `depth` below it.
fn used_parts(depth: usize, text: &str) -> Vec<(usize, String)> {
    let tokens = tokens(text);
    let token = |at: usize| tokens.get(at).map(|(_, token)| token.as_str());
    let mut out = Vec::new();
    // How many braces are open, and at which number of them modules within the file began.
    let (mut braces, mut within) = (0_usize, Vec::new());
    let mut at = 0;
    while let Some(now) = token(at) {
        let mut next = at + 1;
        match now {
            "mod" if token(at + 2) == Some("{") => within.push(braces),
            "{" => braces += 1,
            "}" => {
                braces = braces.saturating_sub(1);
                within.pop_if(|began| *began == braces);
            }
            "crate" | "super" if token(at + 1) == Some("::") => {
                let mut up = usize::from(now == "super");
                next = at + 2;
                while token(next) == Some("super") && token(next + 1) == Some("::") {
                    (up, next) = (up + 1, next + 2);
                }
                if now == "crate" || up >= depth + within.len() {
                    out.extend(first_names(tokens.get(next..).unwrap_or_default()));
                }
            }
            _ => {}
        }
        at = next;
    }
    out
}

/// The name a path begins with, or the names if it begins with a list.
fn first_names(tokens: &[(usize, String)]) -> Vec<(usize, String)> {
    if tokens.first().is_none_or(|(_, token)| token != "{") {
        return tokens.first().cloned().into_iter().collect();
    }
    let mut depth = 0;
    let mut before = "";
    let mut out = Vec::new();
    for (line, token) in tokens {
        match token.as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            name if depth == 1 && matches!(before, "{" | ",") => out.push((*line, name.to_owned())),
            _ => {}
        }
        if depth == 0 {
            break;
        }
        before = token;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, text: &str) -> Vec<String> {
        let mut found = Vec::new();
        check_arrows(name, text, &mut found);
        found
    }

    #[test]
    fn upward_arrows_are_found() {
        let text = "//! x\nuse crate::pool::Pool;\nuse crate::vdev::Leaf;\n";
        assert_eq!(found("crates/engine/src/object/tree.rs", text).len(), 1);
        let text = "use crate::{getopt, zfs};\nuse crate::zfs::keys;\n";
        let said = found("crates/cli/src/zpool/list.rs", text);
        assert_eq!(said.len(), 2, "{said:?}");
        assert_eq!(said[0], "crates/cli/src/zpool/list.rs:1: must not use zfs, a part above");
    }

    #[test]
    fn upward_arrows_in_lists_of_several_lines_and_by_way_of_super_are_found() {
        let list = "//! x\nuse crate::{\n    getopt::{self, zed},\n    zfs::{a, b},\n};\n";
        let zfs = ["crates/cli/src/zpool/list.rs:4: must not use zfs, a part above"];
        assert_eq!(found("crates/cli/src/zpool/list.rs", list), zfs);
        let up =
            "use super::zfs;\n// super::super::zfs\n\nfn f() { super::super::zfs::g(\"\n\") }\n";
        assert_eq!(found("crates/cli/src/zpool/list.rs", up), zfs);
        assert_eq!(found("crates/cli/src/zpool/mod.rs", up).len(), 2);
        let tests =
            "fn f() {}\nmod tests {\n    use super::super::zfs;\n}\nuse super::super::zed::g;\n";
        let zed = ["crates/cli/src/zpool/list.rs:5: must not use zed, a part above"];
        assert_eq!(found("crates/cli/src/zpool/list.rs", tests), zed);
    }

    #[test]
    fn modules_without_a_place_are_found() {
        let mut found = Vec::new();
        let of = |(krate, parts): &(&str, &[&str])| {
            parts.iter().map(|part| format!("crates/{krate}/src/{part}.rs")).collect::<Vec<_>>()
        };
        let mut names: Vec<String> = PARTS.iter().flat_map(of).collect();
        names.extend(["crates/cli/src/lib.rs".to_owned(), "crates/posix/src/x.rs".to_owned()]);
        check_parts(&names.iter().map(String::as_str).collect::<Vec<_>>(), &mut found);
        assert_eq!(found, Vec::<String>::new());
        names.push("crates/cli/src/other/mod.rs".to_owned());
        names.retain(|name| name != "crates/engine/src/pool.rs");
        check_parts(&names.iter().map(String::as_str).collect::<Vec<_>>(), &mut found);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("engine has no part pool"), "{found:?}");
        assert!(found[1].contains("other is in no place"), "{found:?}");
    }

    #[test]
    fn arrows_that_are_not_allowed_or_not_there_are_found() {
        let mut found = Vec::new();
        let manifest = "cenote-engine.workspace = true\n[dev-dependencies]\ncenote-codec.workspace";
        check_manifest("posix", &["engine"], manifest, &mut found);
        assert_eq!(found, Vec::<String>::new());
        check_manifest("posix", &["format"], manifest, &mut found);
        assert_eq!(found.len(), 2, "{found:?}");
    }

    #[test]
    fn another_drawing_than_the_tables_is_found() {
        let drawing = "Arrows, only these: `cenote -> cli, control`; `cli -> control` (x `y`);\n\
                       `posix -> codec`. Nothing of ours below `z -> codec`.";
        let expected =
            [("cenote", "cli"), ("cenote", "control"), ("cli", "control"), ("posix", "codec")];
        assert_eq!(told_arrows(drawing), expected.into());
        let mut found = Vec::new();
        check_drawing(drawing, &mut found);
        assert!(
            found.contains(&"docs/architecture.md: there is no arrow posix -> codec".to_owned())
        );
        let missing = "docs/architecture.md: the arrow serve -> posix is not drawn".to_owned();
        assert!(found.contains(&missing), "{found:?}");
        let rooms = "  engine/   x\n     txg/    a/ b\n             c/ d\n     job/  e\n  posix/ f\n     g/ h";
        assert_eq!(drawn_rooms(rooms, "engine"), ["txg", "job"]);
    }
}
