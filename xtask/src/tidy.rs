//! The rules of the house, checked over the source tree.
//!
//! Invariant: a rule names the file, the line where it can, and what to do instead.

use std::fs;
use std::path::{Path, PathBuf};

/// Which crates of ours a crate may use.
const ARROWS: &[(&str, &[&str])] = &[
    ("format", &[]),
    ("codec", &[]),
    ("device", &[]),
    ("engine", &["format", "codec", "device"]),
    ("posix", &["engine", "format"]),
    ("control", &["format"]),
    ("serve", &["posix"]),
    ("process", &["serve", "posix", "engine", "control", "format", "device"]),
    ("inspect", &["posix", "engine", "control", "format", "codec", "device"]),
    ("cli", &["control"]),
    ("cenote", &["cli", "inspect", "process", "control"]),
];

/// The engine's rooms from low to high: a room uses only rooms before it.
const ROOMS: &[&str] = &[
    "error", "txg", "vdev", "alloc", "cache", "pipe", "walk", "object", "zap", "dataset", "keys",
    "intent", "pool", "check",
];

/// Lines a file of code may have.
const LONGEST: usize = 1000;

/// Lines a function may have.
const LONGEST_FUNCTION: usize = 100;

/// Functions that are one table.
const TABLES: &[(&str, &str)] = &[
    ("crates/control/src/text/words.rs", "advice"),
    ("crates/serve/src/fuse/changes.rs", "change"),
];

/// Words that must not stay in the tree. Spelled apart so that this file may hold them.
const BANNED: &[(&str, &str)] = &[
    (concat!("TO", "DO"), "do it or say in SHORTCOMINGS.md that it is missing"),
    (concat!("FIX", "ME"), "fix it"),
    (concat!("todo", "!("), "answer with a clear error"),
    (concat!("unimplemented", "!("), "answer with a clear error"),
    (concat!("#[ig", "nore"), "a test that does not run proves nothing"),
];

/// Every broken rule below `root`, one line each.
pub fn check(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for (krate, allowed) in ARROWS {
        let manifest = root.join("crates").join(krate).join("Cargo.toml");
        let text = fs::read_to_string(&manifest).unwrap_or_default();
        let product = text.split("[dev-dependencies]").next().unwrap_or("");
        for (other, _) in ARROWS {
            if product.contains(&format!("cenote-{other}.")) && !allowed.contains(other) {
                found.push(format!("{}: {krate} must not use {other}", manifest.display()));
            }
        }
    }
    for file in rust_files(root) {
        let Ok(text) = fs::read_to_string(&file) else {
            found.push(format!("{}: not readable as UTF-8", file.display()));
            continue;
        };
        let name = file.strip_prefix(root).unwrap_or(&file).display().to_string();
        check_file(&name, &text, &mut found);
    }
    found
}

fn check_file(name: &str, text: &str, found: &mut Vec<String>) {
    if !text.starts_with("//!") {
        found.push(format!("{name}:1: say in a //! header what the file is for"));
    }
    if needs_invariant(name)
        && !text.lines().take_while(|line| line.starts_with("//!")).any(invariant)
    {
        found.push(format!("{name}:1: say in the header which invariant the file keeps"));
    }
    for (line, function, length) in functions(text) {
        let product = name.contains("/src/");
        if product && length > LONGEST_FUNCTION && !TABLES.contains(&(name, function)) {
            found.push(format!("{name}:{line}: {function} has {length} lines; give parts a name"));
        }
    }
    let lines = text.lines().count();
    if lines > LONGEST && !name.contains("table") {
        found.push(format!("{name}: {lines} lines; it probably has two subjects"));
    }
    for (number, line) in text.lines().enumerate() {
        for (word, instead) in BANNED {
            if line.contains(word) {
                found.push(format!("{name}:{}: {word}: {instead}", number + 1));
            }
        }
    }
    if let Some(room) = engine_room(name) {
        let own = ROOMS.iter().position(|r| *r == room);
        for (number, line) in text.lines().enumerate() {
            for (rank, other) in ROOMS.iter().enumerate() {
                let uses = line.contains(&format!("crate::{other}::"));
                if uses && own.is_some_and(|own| rank > own) {
                    let at = number + 1;
                    found.push(format!("{name}:{at}: {room} must not use {other}, a room above"));
                }
            }
        }
    }
}

fn invariant(line: &str) -> bool {
    line.contains("nvariant")
}

/// Files of the product have one; the format's is its reference, tests have none.
fn needs_invariant(name: &str) -> bool {
    let product = name.starts_with("crates/") && name.contains("/src/");
    let tests = name.contains("tests") || name.ends_with("testing.rs");
    product && !tests && !name.starts_with("crates/format/")
}

/// Line, name and length of every function, as rustfmt lays them out.
fn functions(text: &str) -> Vec<(usize, &str, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut out = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let indent = line.len() - line.trim_start().len();
        let Some(name) = function_name(line.trim_start()) else { continue };
        let is_end = |line: &&str| {
            let end = line.trim_start();
            line.len() - end.len() == indent && (end == "}" || end.ends_with(';'))
        };
        let rest = lines.get(start..).unwrap_or_default();
        if rest.first().is_some_and(|first| first.ends_with(['}', ';'])) {
            continue;
        }
        if let Some(length) = rest.iter().position(is_end) {
            out.push((start + 1, name, length + 1));
        }
    }
    out
}

fn function_name(line: &str) -> Option<&str> {
    let words = ["pub ", "pub(crate) ", "pub(super) ", "const ", "unsafe ", "extern \"C\" "];
    let mut rest = line;
    while let Some(less) = words.iter().find_map(|word| rest.strip_prefix(word)) {
        rest = less;
    }
    rest.strip_prefix("fn ")?.split(['(', '<']).next()
}

/// The engine room a file belongs to.
fn engine_room(name: &str) -> Option<&str> {
    let rest = name.strip_prefix("crates/engine/src/")?;
    let room = rest.split(['/', '.']).next()?;
    (room != "lib").then_some(room)
}

fn rust_files(root: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    let rooms = ["crates", "xtask", "fuzz", "torture"];
    let mut pending: Vec<PathBuf> = rooms.iter().map(|room| root.join(room)).collect();
    while let Some(directory) = pending.pop() {
        let Ok(entries) = fs::read_dir(&directory) else { continue };
        for entry in entries.flatten() {
            let path = entry.path();
            if path.is_dir() {
                if entry.file_name() != "target" {
                    pending.push(path);
                }
            } else if path.extension().is_some_and(|e| e == "rs") {
                out.push(path);
            }
        }
    }
    out.sort();
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_tidy() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        assert_eq!(check(root), Vec::<String>::new());
    }

    #[test]
    fn long_functions_are_found() {
        let long = "    a();\n".repeat(LONGEST_FUNCTION);
        let text =
            format!("//! x\n\npub(super) fn long<T>(\n    a: T,\n) {{\n{long}}}\n\nfn a() {{}}\n");
        let mut found = Vec::new();
        check_file("xtask/src/x.rs", &text, &mut found);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("xtask/src/x.rs:3: long has 104 lines"), "{found:?}");
        check_file("crates/engine/src/object/tree.rs", "//! x\n", &mut found);
        assert!(found[1].contains("invariant"), "{found:?}");
    }

    #[test]
    fn upward_arrows_are_found() {
        let mut found = Vec::new();
        let text = "//! x. Invariant: y.\nuse crate::pool::Pool;\nuse crate::vdev::Leaf;\n";
        check_file("crates/engine/src/object/tree.rs", text, &mut found);
        assert_eq!(found.len(), 1, "{found:?}");
    }
}
