//! Listing a tree the way the manifests of the fixtures were made, through [`Tree`] only.
//!
//! A line is one entry as JSON with sorted keys: what two copies of a tree must agree on.

use std::fmt::Write;

use cenote_posix::tree::{Attributes, NodeId, ROOT, Tree};
use sha2::Digest;

use crate::fixture::Mounts;

/// SHA-256 in hexadecimal.
#[derive(Default)]
pub struct Hash(sha2::Sha256);

impl Hash {
    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The sum.
    pub fn hex(self) -> String {
        hex::encode(self.0.finalize())
    }
}

/// Names in a directory, "." and ".." left out.
pub fn names(tree: &dyn Tree, node: NodeId) -> Vec<Vec<u8>> {
    let mut names = Vec::new();
    tree.read_directory(node, 0, &mut |entry| {
        names.push(entry.name);
        true
    })
    .unwrap();
    assert_eq!(names[..2], [b".".to_vec(), b"..".to_vec()]);
    names.split_off(2)
}

/// Node of "..".
pub fn parent(tree: &dyn Tree, node: NodeId) -> NodeId {
    let mut parent = 0;
    tree.read_directory(node, 1, &mut |entry| {
        assert_eq!(entry.name, b"..");
        parent = entry.node;
        false
    })
    .unwrap();
    parent
}

/// Lines for everything below `path`, across mounts, sorted.
pub fn of(mounts: &Mounts, path: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let tree = mounts.at(path);
    walk(&*tree, ROOT, "", &mut lines, &|below| mounts.find(&format!("{path}/{below}")));
    lines.sort();
    lines.into_iter().map(|(_, line)| line).collect()
}

/// Lines for everything below `node`, sorted.
pub fn below(tree: &dyn Tree, node: NodeId) -> Vec<String> {
    let mut lines = Vec::new();
    walk(tree, node, "", &mut lines, &|_| None);
    lines.sort();
    lines.into_iter().map(|(_, line)| line).collect()
}

type Find<'a> = dyn Fn(&str) -> Option<std::sync::Arc<dyn Tree>> + 'a;

fn walk(
    tree: &dyn Tree,
    node: NodeId,
    prefix: &str,
    lines: &mut Vec<(String, String)>,
    mounted: &Find<'_>,
) {
    let attributes = tree.attributes(node).unwrap();
    let names = names(tree, node);
    let shown = names.iter().filter(|name| *name != b".zfs");
    assert_eq!(attributes.size, shown.clone().count() as u64 + 2, "size of '{prefix}'");
    for name in shown {
        let path = format!("{prefix}{}", text(name));
        let found = tree.lookup(node, name).unwrap_or_else(|error| panic!("{path}: {error}"));
        if let Some(other) = mounted(&path) {
            let root = other.attributes(ROOT).unwrap();
            lines.push((path.clone(), line(&*other, &root, &path)));
            walk(&*other, ROOT, &format!("{path}/"), lines, mounted);
            continue;
        }
        assert_eq!(tree.attributes(found.node).unwrap(), found, "{path}");
        lines.push((path.clone(), line(tree, &found, &path)));
        if is_directory(&found) {
            assert_eq!(parent(tree, found.node), attributes.node, "parent of {path}");
            walk(tree, found.node, &format!("{path}/"), lines, mounted);
        }
    }
}

fn text(name: &[u8]) -> String {
    String::from_utf8(name.to_vec()).unwrap()
}

fn is_directory(attributes: &Attributes) -> bool {
    attributes.mode & 0o170_000 == 0o040_000
}

/// One line of a manifest.
fn line(tree: &dyn Tree, of: &Attributes, path: &str) -> String {
    let mut entry = serde_json::Map::new();
    entry.insert("gid".into(), of.gid.into());
    entry.insert("mode".into(), format!("0o{:o}", of.mode).into());
    let modified = of.modified.seconds * 1_000_000_000 + i64::from(of.modified.nanoseconds);
    entry.insert("mtime_ns".into(), modified.into());
    entry.insert("nlink".into(), if is_directory(of) { 0 } else { of.links }.into());
    entry.insert("path".into(), path.into());
    match of.mode & 0o170_000 {
        0o020_000 | 0o060_000 => {
            let major = (of.rdev >> 8 & 0xfff) | (of.rdev >> 32 & !0xfff);
            let minor = (of.rdev & 0xff) | (of.rdev >> 12 & 0xffff_ff00);
            entry.insert("rdev".into(), vec![major, minor].into());
        }
        0o100_000 => {
            entry.insert("sha256".into(), hash(tree, of).into());
            entry.insert("size".into(), of.size.into());
        }
        0o120_000 => {
            let target = tree.read_link(of.node).unwrap();
            assert_eq!(of.size, target.len() as u64);
            entry.insert("target".into(), text(&target).into());
        }
        _ => {}
    }
    entry.insert("uid".into(), of.uid.into());
    let mut xattrs = serde_json::Map::new();
    let mut names = tree.list_xattr(of.node).unwrap();
    names.sort();
    for name in names {
        let value = tree.get_xattr(of.node, &name).unwrap();
        xattrs.insert(text(&name), hex::encode(value).into());
    }
    if !xattrs.is_empty() {
        entry.insert("xattr".into(), xattrs.into());
    }
    serde_json::Value::from(entry).to_string()
}

/// The file's content, read in pieces that do not meet its blocks.
fn hash(tree: &dyn Tree, of: &Attributes) -> String {
    let mut hash = Hash::default();
    let mut at = 0;
    while at < of.size {
        let mut read = 0;
        for piece in tree.read(of.node, at, 777_777).unwrap() {
            hash.update(&piece);
            read += piece.len() as u64;
        }
        assert!(read > 0, "short read at {at} of {}", of.size);
        at += read;
    }
    assert_eq!(at, of.size);
    hash.hex()
}

/// Compares lines with a manifest, whatever the spacing of its JSON.
pub fn compare(found: &[String], manifest: &[String], what: &str) {
    let plain = |line: &String| -> String {
        let value: serde_json::Value = serde_json::from_str(line).unwrap();
        value.to_string()
    };
    let expected: Vec<String> = manifest.iter().map(plain).collect();
    let missing = || expected.iter().filter(|line| !found.contains(line));
    let extra = || found.iter().filter(|line| !expected.contains(line));
    if found.len() == expected.len() && missing().next().is_none() {
        return;
    }
    let mut report = String::new();
    for (sign, line) in missing().take(4).map(|l| ('-', l)).chain(extra().take(4).map(|l| ('+', l)))
    {
        let _ = writeln!(report, "{sign} {line}");
    }
    panic!("{what}: {} lines missing, {} extra\n{report}", missing().count(), extra().count());
}
