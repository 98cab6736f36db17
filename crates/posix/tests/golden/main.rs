//! Pools made by OpenZFS, read through [`Tree`] and compared with what OpenZFS showed of them.

// A test ends at the first surprise, in helpers too.
#![allow(clippy::unwrap_used)]

mod fixture;
mod listing;

use std::sync::Arc;

use cenote_posix::tree::{Caller, ROOT, Seek, Tree};

use fixture::{Fixture, Mounts};

/// Everything the manifest of the whole pool says, through the heads.
fn heads_match(name: &str) {
    let fixture = Fixture::unpack(name);
    let mounts = fixture.mounts();
    let found = listing::of(&mounts, &format!("/{}", fixture.pool_name()));
    listing::compare(&found, &fixture.manifest(&fixture.pool_name()), name);
}

macro_rules! heads {
    ($($test:ident = $name:literal;)*) => {
        $(#[test] fn $test() { heads_match($name); })*
    };
}

heads! {
    classes = "classes";
    encrypted = "crypt-small";
    degraded = "degraded";
    draid = "draid2";
    gang = "gang";
    history = "history";
    modern = "modern";
    raidz1 = "raidz1x5";
    striped = "striped";
}

fn mounts_of_snaps() -> (Fixture, Mounts) {
    let fixture = Fixture::unpack("snaps");
    let mounts = fixture.mounts();
    (fixture, mounts)
}

#[test]
fn heads_with_normalized_names() {
    heads_match("snaps");
    let (_fixture, mounts) = mounts_of_snaps();
    let tree = mounts.at("/g101/ci");
    let folded = tree.lookup(ROOT, b"SIZES").unwrap();
    assert_eq!(tree.lookup(ROOT, b"sizes").unwrap(), folded);
    assert_eq!(tree.lookup(ROOT, b"\xff").unwrap_err().code, 84);
    let sensitive = mounts.at("/snapview");
    assert_eq!(sensitive.lookup(ROOT, b"SIZES").unwrap_err().code, 2);
}

#[test]
fn snapshots_are_reached_through_zfs() {
    let (fixture, mounts) = mounts_of_snaps();
    let tree = mounts.at("/snapview");
    listing::compare(&listing::of(&mounts, "/snapview"), &fixture.manifest("a_head"), "a");
    let control = tree.lookup(ROOT, b".zfs").unwrap().node;
    let snapshots = tree.lookup(control, b"snapshot").unwrap().node;
    let list = || {
        let mut names = Vec::new();
        tree.read_directory(snapshots, 0, &mut |entry| {
            names.push((String::from_utf8(entry.name).unwrap(), entry.node));
            true
        })
        .unwrap();
        names
    };
    // Those that nobody has looked up yet are to be looked up.
    for (name, listed_node) in list().iter().skip(2) {
        assert!(tree.attributes(*listed_node).is_err(), "{name}");
        tree.lookup(snapshots, name.as_bytes()).unwrap();
    }
    let names = list();
    let listed: Vec<&str> = names.iter().map(|entry| entry.0.as_str()).collect();
    assert_eq!(listed.len(), 7, "{listed:?}");
    for (name, listed_node) in &names[2..] {
        let root = tree.lookup(snapshots, name.as_bytes()).unwrap();
        assert_eq!(tree.attributes(*listed_node).unwrap(), root, "{name}");
        assert_eq!(root.node >> 48, listed_node >> 48, "{name}");
        let found = listing::below(&*tree, root.node);
        listing::compare(&found, &fixture.manifest(&format!("a_at_{name}")), name);
        let parent = listing::parent(&*tree, root.node);
        assert_eq!(parent, snapshots, "{name}");
        assert_eq!(tree.lookup(root.node, b".zfs").unwrap_err().code, 2);
    }
    assert_eq!(tree.lookup(snapshots, b"absent").unwrap_err().code, 2);
    assert_eq!(listing::parent(&*tree, snapshots), control);
    assert_eq!(listing::parent(&*tree, control), tree.attributes(ROOT).unwrap().node);
    // snapdir=visible: listed, and counted as a link.
    assert!(listing::names(&*tree, ROOT).contains(&b".zfs".to_vec()));
    let hidden = mounts.at("/g101");
    assert!(!listing::names(&*hidden, ROOT).contains(&b".zfs".to_vec()));
    assert!(hidden.lookup(ROOT, b".zfs").is_ok());
}

#[test]
fn listings_resume_anywhere() {
    let fixture = Fixture::unpack("striped");
    let mounts = fixture.mounts();
    let tree = mounts.at("/g101");
    let many = tree.lookup(ROOT, b"many").unwrap().node;
    let all = listing::names(&*tree, many);
    assert!(all.len() > 900);
    let mut resumed = Vec::new();
    let mut cursor = 0;
    loop {
        let before = resumed.len();
        tree.read_directory(many, cursor, &mut |entry| {
            resumed.push(entry.name);
            cursor = entry.next;
            resumed.len() < before + 7
        })
        .unwrap();
        if resumed.len() == before {
            break;
        }
    }
    assert!(resumed[2..] == all, "{} names resumed, {} listed", resumed.len(), all.len());
}

#[test]
fn errors_and_edges() {
    let fixture = Fixture::unpack("striped");
    let mounts = fixture.mounts();
    let tree = mounts.at("/g101");
    let code = |result: Result<_, cenote_posix::tree::Errno>| match result {
        Ok(()) => 0,
        Err(error) => error.code,
    };
    let root = tree.attributes(ROOT).unwrap();
    assert_eq!(tree.attributes(root.node).unwrap(), root);
    assert_ne!(root.node, ROOT);
    let sizes = tree.lookup(ROOT, b"sizes").unwrap().node;
    let file = tree.lookup(sizes, b"f4097").unwrap();
    assert_eq!(file.links, 6);
    assert_eq!(code(tree.lookup(sizes, &[b'x'; 1024]).map(drop)), 36);
    assert_eq!(code(tree.lookup(file.node, b"x").map(drop)), 20);
    assert_eq!(code(tree.read(sizes, 0, 10).map(drop)), 21);
    assert_eq!(code(tree.read_link(file.node).map(drop)), 22);
    assert_eq!(code(tree.attributes(1 << 47).map(drop)), 116);
    assert_eq!(code(tree.attributes(3 << 48 | 34).map(drop)), 116);
    assert_eq!(code(tree.get_xattr(file.node, b"user.none").map(drop)), 61);
    let read = |offset, len| {
        tree.read(file.node, offset, len).unwrap().iter().map(|piece| piece.len()).sum::<usize>()
    };
    assert_eq!(
        (read(0, 1 << 20), read(4096, 10), read(4097, 10), read(u64::MAX, 9)),
        (4097, 1, 0, 0)
    );
    let other = Caller { uid: 12345, gid: 12345, pid: 0 };
    assert!(tree.access(file.node, other, 4).is_ok());
    assert_eq!(code(tree.access(file.node, other, 1)), 13);
    assert_eq!(code(tree.access(file.node, other, 2)), 30);
}

#[test]
fn holes_are_found() {
    let fixture = Fixture::unpack("striped");
    let mounts = fixture.mounts();
    let tree = mounts.at("/g101");
    let data = tree.lookup(ROOT, b"data").unwrap().node;
    let tail = tree.lookup(data, b"tail-hole").unwrap();
    let seek = |at, what| tree.seek(tail.node, at, what).map_err(|error| error.code);
    assert_eq!(seek(0, Seek::Data), Ok(0));
    let hole = seek(0, Seek::Hole).unwrap();
    assert!(hole > 0 && hole < tail.size, "{hole}");
    assert_eq!(seek(hole, Seek::Data), Err(6));
    assert_eq!(seek(hole + 1, Seek::Hole), Ok(hole + 1));
    assert_eq!(seek(tail.size, Seek::Hole), Err(6));
    // What the data ranges hold and the holes between them make up the whole sparse file.
    let sparse = tree.lookup(data, b"sparse").unwrap();
    let (mut at, mut stored, mut ranges) = (0, 0, 0);
    while let Ok(start) = tree.seek(sparse.node, at, Seek::Data) {
        let end = tree.seek(sparse.node, start, Seek::Hole).unwrap();
        assert!(start >= at && end > start);
        (at, stored, ranges) = (end, stored + end - start, ranges + 1);
    }
    assert!((5..=12).contains(&ranges) && stored < sparse.size / 8, "{ranges} {stored}");
}

#[test]
fn volume_of_a_pool() {
    let (fixture, _mounts) = mounts_of_snaps();
    for name in ["g101/vol", "g101/vol@v1"] {
        let volume = fixture.volume(name);
        assert_eq!((volume.size(), volume.block_size()), (32 << 20, 8 << 10));
        let mut hash = listing::Hash::default();
        let mut at = 0;
        while at < volume.size() {
            for piece in volume.read_at(at, 100_000).unwrap() {
                hash.update(&piece);
                at += piece.len() as u64;
            }
        }
        assert_eq!(hash.hex(), fixture.volume_hash());
        assert!(volume.read_at(volume.size(), 1).unwrap().is_empty());
        let (mut at, mut stored) = (0, 0);
        while let Some((start, end)) = volume.next_stored(at).unwrap() {
            assert!(start >= at && end > start && end <= volume.size());
            (at, stored) = (end, stored + end - start);
        }
        assert!(stored > 0 && stored < 4 << 20, "{stored}");
    }
}

#[test]
fn snapshots_can_be_mounted_by_themselves() {
    let (fixture, _mounts) = mounts_of_snaps();
    let tree: Arc<dyn Tree> = Arc::new(fixture.filesystem("g101/a@one"));
    let found = listing::below(&*tree, ROOT);
    listing::compare(&found, &fixture.manifest("a_at_one"), "a@one");
    assert_eq!(tree.lookup(ROOT, b".zfs").unwrap_err().code, 2);
}
