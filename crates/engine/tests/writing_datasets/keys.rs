//! Encrypted datasets that change places.
//!
//! Invariant: from an encryption root all are reached that need its key, by what lies below and by clones: a key
//! that is changed is changed for all of them, and the root does not go before them.

use cenote_codec::cipher::Suite;
use cenote_engine::keys::Wrapping;
use cenote_engine::pool::change::{Encryption, NewNamed};
use cenote_engine::{ErrorKind, Result};
use cenote_format::crypto_key::KeyFormat;

use super::orders::new;
use super::{World, nothing};

/// Makes `p/enc`, an encryption root, `p/enc/fs` below it, and `p/enc/fs@s`.
fn encrypted() -> World {
    let world = World::new(&[]);
    let orders = world.live.orders();
    let wrapping = Some(Wrapping::new(KeyFormat::Raw, &[7; 32], None).unwrap());
    let encryption = Encryption::On { suite: Some(Suite::Aes256Gcm), wrapping };
    orders.create(NewNamed { encryption, ..new("p/enc") }, nothing).unwrap();
    orders.create(new("p/enc/fs"), nothing).unwrap();
    snapshot(&world, "p/enc/fs@s").unwrap();
    world
}

fn snapshot(world: &World, name: &str) -> Result<()> {
    world.live.orders().snapshot(&[name.to_owned()], Vec::new())
}

fn clone(world: &World, origin: &str, name: &str) {
    world.live.orders().clone_snapshot(origin, name, Vec::new(), 0).unwrap();
}

fn rename(world: &World, from: &str, to: &str) -> Result<()> {
    world.live.orders().rename(&[(from.to_owned(), to.to_owned())])
}

fn destroy(world: &World, names: &[&str]) {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    world.live.orders().destroy(&names, false).unwrap();
}

/// Gives an encryption root another key, which opens what names that root; the directories that do.
fn rekeyed(world: &World, root: &str) -> Vec<String> {
    let wrapping = Wrapping::new(KeyFormat::Raw, &[8; 32], None).unwrap();
    world.live.orders().change_key(root, Some((wrapping, "prompt".to_owned()))).unwrap();
    let (catalog, keys) = (world.live.pool().catalog(), world.live.pool().keys());
    let top = catalog.directory(root).unwrap();
    keys.unload(&top).unwrap();
    keys.load(&catalog, &top, &[8; 32]).unwrap();
    let mut of_root = Vec::new();
    for listed in catalog.list(&catalog.root().unwrap()).unwrap() {
        let Ok(directory) = catalog.directory(&listed.name().to_string()) else { continue };
        if catalog.key_object(&directory).unwrap().is_some_and(|key| key.root == top.id) {
            assert!(keys.keys(&catalog, &directory).unwrap().is_some());
            of_root.push(directory.path);
        }
    }
    of_root.sort();
    of_root
}

#[test]
fn a_clone_outside_of_its_encryption_root_is_not_promoted() {
    let world = encrypted();
    let orders = world.live.orders();
    clone(&world, "p/enc/fs@s", "p/c");
    let refused = orders.promote("p/c").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Permission);
    // Nor where only other clones, which would go with it, make the place above it one of that root.
    clone(&world, "p/enc/fs@s", "p/c/d");
    assert_eq!(orders.promote("p/c/d").unwrap_err().kind(), ErrorKind::Permission);
    destroy(&world, &["p/c/d"]);
    // Within its root it is, and so is one that takes over being the root.
    clone(&world, "p/enc/fs@s", "p/enc/in");
    orders.promote("p/enc/in").unwrap();
    orders.promote("p/enc/fs").unwrap();
    clone(&world, "p/enc/fs@s", "p/enc/fs/below");
    orders.promote("p/enc/fs/below").unwrap();
    assert_eq!(
        rekeyed(&world, "p/enc"),
        ["p/c", "p/enc", "p/enc/fs", "p/enc/fs/below", "p/enc/in"]
    );
    snapshot(&world, "p/enc@s").unwrap();
    clone(&world, "p/enc@s", "p/top");
    orders.promote("p/top").unwrap();
    world.census();
    world.finish();
}

#[test]
fn a_dataset_does_not_move_to_where_its_encryption_root_reaches_it_through_itself_only() {
    let world = encrypted();
    clone(&world, "p/enc/fs@s", "p/c");
    let refused = rename(&world, "p/enc/fs", "p/c/fs").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Permission);
    // Other places are below the root, or below what it reaches otherwise.
    let orders = world.live.orders();
    orders.create(new("p/enc/other"), nothing).unwrap();
    orders.create(new("p/c/x"), nothing).unwrap();
    orders.create(new("p/c/y"), nothing).unwrap();
    rename(&world, "p/enc/fs", "p/enc/other/fs").unwrap();
    rename(&world, "p/c/x", "p/c/y/x").unwrap();
    assert_eq!(
        rekeyed(&world, "p/enc"),
        ["p/c", "p/c/y", "p/c/y/x", "p/enc", "p/enc/other", "p/enc/other/fs"]
    );
    world.census();
    world.finish();
}
