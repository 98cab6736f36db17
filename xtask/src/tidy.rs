//! The rules of the house, checked over the source tree.
//!
//! Invariant: a rule names the file, the line where it can, and what to do instead.

mod arrows;
mod circles;
mod exceptions;
mod named;

use std::fs;
use std::path::{Path, PathBuf};

use arrows::{ARROWS, check_arrows, check_drawing, check_manifest, check_parts};

/// What a crate's root must say, so that the compiler refuses the rest.
const REFUSED: &[(&str, &str)] = &[
    ("format", "#![forbid(unsafe_code)]"),
    ("format", "#![deny(clippy::indexing_slicing)]"),
    ("codec", "#![deny(clippy::indexing_slicing)]"),
    ("engine", "#![forbid(unsafe_code)]"),
    ("lua", "#![forbid(unsafe_code)]"),
    ("lua", "#![deny(clippy::indexing_slicing)]"),
];

/// Lines a file of code may have.
const LONGEST: usize = 800;

/// Lines a file of the engine may have, but for tests.
const LONGEST_OF_ENGINE: usize = 600;

/// Lines a function may have.
const LONGEST_FUNCTION: usize = 70;

/// Lines a function of tests may have: a test tells its story in one piece.
const LONGEST_TEST: usize = 100;

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
        check_manifest(
            krate,
            allowed,
            &fs::read_to_string(manifest).unwrap_or_default(),
            &mut found,
        );
    }
    for (krate, words) in REFUSED {
        let name = format!("crates/{krate}/src/lib.rs");
        let text = fs::read_to_string(root.join(&name)).unwrap_or_default();
        check_refused(&name, &text, words, &mut found);
    }
    let mut texts = Vec::new();
    for file in rust_files(root) {
        let Ok(text) = fs::read_to_string(&file) else {
            found.push(format!("{}: not readable as UTF-8", file.display()));
            continue;
        };
        let name = file.strip_prefix(root).unwrap_or(&file).display().to_string();
        check_file(&name, &text, &mut found);
        texts.push((name, text));
    }
    check_circles(&texts, &mut found);
    let names: Vec<&str> = texts.iter().map(|(name, _)| name.as_str()).collect();
    check_parts(&names, &mut found);
    for guide in named::GUIDES {
        let text = fs::read_to_string(root.join(guide)).unwrap_or_default();
        named::check(guide, &text, &names, |name| root.join(name).exists(), &mut found);
    }
    let architecture = fs::read_to_string(root.join("docs/architecture.md")).unwrap_or_default();
    check_drawing(&architecture, &mut found);
    found
}

fn check_refused(name: &str, text: &str, words: &str, found: &mut Vec<String>) {
    if !text.lines().any(|line| line == words) {
        found.push(format!("{name}:1: say {words}"));
    }
}

fn check_circles(texts: &[(String, String)], found: &mut Vec<String>) {
    for circle in all_circles(texts) {
        let excepted = |(anchor, most, _): &(&str, usize, &str)| {
            circle.len() <= *most && circle.iter().any(|file| file == anchor)
        };
        if !exceptions::CIRCLES.iter().any(excepted) {
            let files = circle.join(", ");
            found.push(format!(
                "{files}: need one another in a circle; let what both need have a file below both, \
                 or give the reason in xtask/src/tidy/exceptions.rs"
            ));
        }
    }
}

fn all_circles(texts: &[(String, String)]) -> Vec<Vec<String>> {
    let of_crate = |krate: &str| {
        let source = format!("crates/{krate}/src/");
        let files: Vec<(String, String)> = texts
            .iter()
            .filter(|(name, _)| name.starts_with(&source) && !is_test(name))
            .cloned()
            .collect();
        circles::circles(&source, &files)
    };
    ARROWS.iter().flat_map(|(krate, _)| of_crate(krate)).collect()
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
    let tests = is_test(name);
    let longest_function = if tests { LONGEST_TEST } else { LONGEST_FUNCTION };
    for (line, function, length) in functions(text) {
        let excepted = exceptions::FUNCTIONS.iter().any(|(f, n, _)| (*f, *n) == (name, function));
        if name.contains("/src/") && length > longest_function && !excepted {
            found.push(format!("{name}:{line}: {function} has {length} lines; give parts a name"));
        }
    }
    let lines = text.lines().count();
    let excepted = exceptions::FILES.iter().any(|(file, _)| *file == name);
    if lines > longest_file(name) && !excepted {
        found.push(format!("{name}: {lines} lines; it probably has two subjects"));
    }
    for (number, line) in text.lines().enumerate() {
        for (word, instead) in BANNED {
            if line.contains(word) {
                found.push(format!("{name}:{}: {word}: {instead}", number + 1));
            }
        }
    }
    check_arrows(name, text, found);
}

fn longest_file(name: &str) -> usize {
    let engine = name.starts_with("crates/engine/src/") && !is_test(name);
    if engine { LONGEST_OF_ENGINE } else { LONGEST }
}

fn is_test(name: &str) -> bool {
    name.contains("tests") || name.ends_with("testing.rs")
}

fn invariant(line: &str) -> bool {
    line.contains("nvariant")
}

/// Files of the product have one; the format's is its reference, tests have none.
fn needs_invariant(name: &str) -> bool {
    let product = name.starts_with("crates/") && name.contains("/src/");
    product && !is_test(name) && !name.starts_with("crates/format/")
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
    let words = ["pub ", "const ", "async ", "unsafe ", "extern \"C\" "];
    let mut rest = line;
    loop {
        let visible = rest.strip_prefix("pub(").and_then(|rest| rest.split_once(") "));
        match visible.map(|(_, less)| less).or(words.iter().find_map(|w| rest.strip_prefix(w))) {
            Some(less) => rest = less,
            None => break,
        }
    }
    rest.strip_prefix("fn ")?.split(['(', '<']).next()
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

    fn texts(root: &Path) -> Vec<(String, String)> {
        let name = |file: &Path| file.strip_prefix(root).unwrap().display().to_string();
        let files = rust_files(root).into_iter();
        files.map(|file| (name(&file), fs::read_to_string(&file).unwrap())).collect()
    }

    #[test]
    fn exceptions_are_needed() {
        let texts = texts(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap());
        let text = |file: &str| &texts.iter().find(|(name, _)| name == file).expect(file).1;
        for (file, function, _) in exceptions::FUNCTIONS {
            let mut named = functions(text(file)).into_iter().filter(|(_, n, _)| n == function);
            assert!(named.any(|(_, _, length)| length > LONGEST_FUNCTION), "{file} {function}");
        }
        for (file, _) in exceptions::FILES {
            assert!(text(file).lines().count() > longest_file(file), "{file}");
        }
        for (file, part, _) in exceptions::ARROWS {
            let arrows = arrows::upward_arrows(file, text(file));
            assert!(arrows.iter().any(|(_, other)| other == part), "{file} {part}");
        }
        let circles = all_circles(&texts);
        for (file, most, _) in exceptions::CIRCLES {
            let circle = circles.iter().find(|circle| circle.iter().any(|member| member == file));
            assert_eq!(circle.map(Vec::len), Some(*most), "{file}: {circle:?}");
        }
    }

    #[test]
    fn long_functions_are_found() {
        let long = "    a();\n".repeat(LONGEST_FUNCTION);
        for kind in ["pub(super) fn", "pub(in crate::a) fn", "async fn", "const unsafe fn"] {
            let head = format!("//! x\n\n{kind} long<T>(\n    a: T,\n) {{\n");
            let text = format!("{head}{long}}}\n\nfn a() {{}}\n");
            let mut found = Vec::new();
            check_file("xtask/src/x.rs", &text, &mut found);
            let expected = "xtask/src/x.rs:3: long has 74 lines; give parts a name";
            assert_eq!(found, [expected], "{kind}");
            check_file("crates/engine/src/alloc/tests/x.rs", &text, &mut found);
            assert_eq!(found.len(), 1, "{kind}");
        }
    }

    #[test]
    fn headers_without_invariant_are_found() {
        let mut found = Vec::new();
        check_file("crates/engine/src/object/tree.rs", "//! x\n", &mut found);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("invariant"), "{found:?}");
        check_file("crates/engine/src/object/tree.rs", "//! x. Invariant: y.\n", &mut found);
        check_file("crates/engine/src/object/tests.rs", "//! x\n", &mut found);
        assert_eq!(found.len(), 1, "{found:?}");
    }

    #[test]
    fn long_files_are_found() {
        let text = format!("//! Invariant: x.\n{}", "\n".repeat(LONGEST_OF_ENGINE));
        let mut found = Vec::new();
        check_file("crates/posix/src/live.rs", &text, &mut found);
        assert_eq!(found, Vec::<String>::new());
        check_file("crates/engine/src/object/tree.rs", &text, &mut found);
        assert_eq!(found.len(), 1, "{found:?}");
        check_file("crates/posix/src/live.rs", &format!("{text}{text}"), &mut found);
        assert_eq!(found.len(), 2, "{found:?}");
    }

    #[test]
    fn crates_that_may_index_are_found() {
        let mut found = Vec::new();
        let words = "#![deny(clippy::indexing_slicing)]";
        check_refused("lib.rs", &format!("//! x\n{words}\n"), words, &mut found);
        assert_eq!(found, Vec::<String>::new());
        check_refused("lib.rs", &format!("//! {words}\n"), words, &mut found);
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn circles_are_found() {
        let file = |name: &str, text: &str| (format!("crates/posix/src/{name}"), text.to_owned());
        let texts = [
            file("a.rs", "use crate::b::B;\npub struct A(B);\n"),
            file("b.rs", "use super::c::A;\npub struct B(Vec<A>);\n"),
            file("c.rs", "pub use crate::a::A;\n"),
        ];
        let mut found = Vec::new();
        check_circles(&texts, &mut found);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("crates/posix/src/a.rs, crates/posix/src/b.rs: need"));
    }
}
