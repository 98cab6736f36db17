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
    ("serve", &["posix", "control"]),
    ("process", &["serve", "posix", "engine", "control", "format", "device"]),
    ("inspect", &["posix", "engine", "control", "format", "codec", "device"]),
    ("cli", &["control"]),
    ("cenote", &["cli", "inspect", "process", "control"]),
];

/// The engine's rooms from low to high: a room uses only rooms before it.
const ROOMS: &[&str] = &[
    "error", "txg", "vdev", "alloc", "cache", "pipe", "object", "zap", "dataset", "keys", "intent",
    "pool", "check",
];

/// Lines a file of code may have.
const LONGEST: usize = 1000;

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
    fn upward_arrows_are_found() {
        let mut found = Vec::new();
        let text = "//! x\nuse crate::pool::Pool;\nuse crate::vdev::Leaf;\n";
        check_file("crates/engine/src/object/tree.rs", text, &mut found);
        assert_eq!(found.len(), 1, "{found:?}");
    }
}
