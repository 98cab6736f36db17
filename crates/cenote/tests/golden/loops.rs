//! Directories that are inside themselves, as only damaged or hostile images have them.
//!
//! Invariant: `cenote tree` and `cenote cp` enter each once, say which they did not enter again, and
//! end.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};

use cenote_engine::dataset::NoKeys;
use cenote_engine::object::{Object, ObjectSet};
use cenote_engine::zap::Zap;
use cenote_format::ObjectId;

use crate::bench::Bench;

/// A directory, as an entry of its parent says it.
const DIRECTORY: u64 = 4 << 60;

fn number(table: &Object, name: &str) -> u64 {
    let found = Zap::open(table.clone()).unwrap().lookup(name.as_bytes()).unwrap();
    found.unwrap().as_u64().unwrap()
}

fn directory(set: &ObjectSet, parent: &Object, name: &str) -> Object {
    set.object(ObjectId(number(parent, name) & !DIRECTORY)).unwrap()
}

/// Makes the entry `name` of a small directory lead to another directory.
fn point(bench: &mut Bench, table: &Object, name: &str, to: &Object) {
    let (old, new) = (number(table, name), DIRECTORY | to.id().0);
    let extent = bench.block(table, 0, 0);
    let bytes = bench.image.extents[extent].used.clone();
    let at = bytes.windows(8).position(|found| found == old.to_le_bytes()).unwrap();
    bench.image.patch(extent, at, &new.to_le_bytes());
}

fn write(bench: &Bench, path: &Path) {
    let file = std::fs::File::create(path).unwrap();
    file.set_len(bench.image.size).unwrap();
    for extent in &bench.image.extents {
        file.write_all_at(&extent.used, extent.offset).unwrap();
    }
}

fn cenote(arguments: &[&str]) -> (Output, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_cenote")).args(arguments).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (shown, said) = (text(&output.stdout), text(&output.stderr));
    (output, shown, said)
}

#[test]
fn a_directory_in_itself_is_entered_once() {
    let mut bench = Bench::new();
    let catalog = bench.pool.catalog();
    let set = catalog.object_set(&catalog.dataset_named("fuzzed").unwrap(), &NoKeys).unwrap();
    let root = directory(&set, &set.object(ObjectId(1)).unwrap(), "ROOT");
    let (big, plain) = (directory(&set, &root, "big"), directory(&set, &root, "plain"));
    // the root in itself, and its directories under second names
    point(&mut bench, &root, "fifo", &root);
    point(&mut bench, &root, "null", &big);
    point(&mut bench, &root, "sparse", &plain);
    let here = tempfile::tempdir().unwrap();
    let place = here.path().join("d");
    std::fs::create_dir(&place).unwrap();
    write(&bench, &place.join("d0"));

    let place = place.display().to_string();
    let (output, shown, said) = cenote(&["tree", "-d", &place, "fuzzed:/"]);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let lines = |name: &str| shown.lines().filter(|line| line.trim_start() == name).count();
    for name in ["fifo/", "null/", "sparse/", "big/", "plain/"] {
        assert_eq!(lines(name), 1, "{name}: {shown}");
    }
    assert_eq!(lines("a rather long name that makes the directory fat, number 7"), 1, "{shown}");
    // what follows a directory is in it
    let mut names = shown.lines().skip_while(|line| *line != "big/").skip(1);
    assert!(names.next().is_some_and(|line| line.starts_with("  ")), "{shown}");
    let again = "a directory that has another name already: not entered again";
    for name in ["fifo", "null", "sparse"] {
        assert!(said.contains(&format!("cenote: {name}: {again}\n")), "{said}");
    }
    let entries = shown.lines().count() - 1;
    assert!(shown.ends_with(&format!("\n{entries} entries\n")), "{shown}");

    let copy = here.path().join("copy").display().to_string();
    let (output, _, said) = cenote(&["cp", "-d", &place, "--recursive", "fuzzed:/", &copy]);
    assert!(!output.status.success());
    assert!(said.contains(again), "{said}");
    for name in ["fifo", "null", "sparse"] {
        let found = std::fs::read_dir(here.path().join("copy").join(name)).unwrap().count();
        assert_eq!(found, 0, "{name}");
    }
    let found = std::fs::read_dir(here.path().join("copy/big")).unwrap().count();
    assert!(found > 50, "{found} files were copied");
}
