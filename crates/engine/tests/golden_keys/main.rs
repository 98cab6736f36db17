//! Blocks that OpenZFS encrypted, opened and sealed again: every byte and every MAC must come back.
//!
//! Invariant: a pool passes only if blocks of every kind were seen in it: encrypted data, blocks
//! of dnodes, blocks with a MAC only, indirect blocks, object sets.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail")]

#[path = "../golden_properties/fixtures.rs"]
mod fixtures;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use cenote_engine::dataset::{Catalog, Listed};
use cenote_engine::keys::{DatasetKeys, KeyStore};
use cenote_engine::pipe::{Decryptor, Encryptor, PoolIo, ReadContext};
use cenote_format::{BlockPointer, Dnode, ObjectType, Objset, objset};

fn load_keys(fixture: &Path, catalog: &Catalog) -> KeyStore {
    let store = KeyStore::new();
    let files = ["pp", "rawkey", "hexkey"].map(|file| fs::read(fixture.join(file)));
    let materials: Vec<Vec<u8>> = files.into_iter().flatten().collect();
    for directory in catalog.walk(&catalog.root().unwrap()).unwrap() {
        let key = catalog.key_object(&directory).unwrap();
        if key.is_some_and(|key| key.root == directory.id) {
            let opens = |m: &Vec<u8>| store.load(catalog, &directory, m).is_ok();
            assert!(materials.iter().any(opens), "no key opens {}", directory.path);
        }
    }
    store
}

/// Blocks seen, by kind.
type Seen = BTreeMap<&'static str, u64>;

struct Walk<'a> {
    io: &'a Arc<PoolIo>,
    context: ReadContext,
    keys: Arc<DatasetKeys>,
    seen: &'a mut Seen,
}

impl Walk<'_> {
    fn block(&mut self, bp: &BlockPointer) {
        if bp.is_hole() || bp.is_embedded() {
            return;
        }
        assert!(bp.is_crypt(), "{bp:?}");
        let logical = self.io.pipe.read(bp, &self.context).unwrap();
        self.check(bp, &logical);
        if bp.level().0 > 0 {
            BlockPointer::decode_all(&logical).for_each(|child| self.block(&child));
        } else if bp.object_type() == ObjectType::DNODE {
            let mut at = 0;
            while at < logical.len() {
                let dnode = Dnode::decode(&logical[at..]).unwrap();
                at += dnode.as_ref().map_or(1, |d| usize::from(d.extra_slots) + 1) * 512;
                self.dnode(dnode.as_ref());
            }
        } else if bp.object_type() == ObjectType::OBJSET {
            let set = Objset::decode(&logical).unwrap();
            self.dnode(Some(&set.meta_dnode));
            for special in [&set.user_used, &set.group_used, &set.project_used] {
                self.dnode(special.as_ref());
            }
        }
    }

    fn dnode(&mut self, dnode: Option<&Dnode>) {
        let Some(dnode) = dnode else { return };
        dnode.pointers.iter().chain(&dnode.spill).for_each(|bp| self.block(bp));
    }

    fn check(&mut self, bp: &BlockPointer, logical: &[u8]) {
        let kind = if bp.level().0 > 0 {
            assert_eq!(self.keys.indirect_mac(logical).unwrap(), bp.mac(), "{bp:?}");
            "indirect"
        } else if bp.object_type() == ObjectType::OBJSET {
            let mut block = logical.to_vec();
            for at in objset::MACS_AT {
                block[at..at + 32].fill(0xee);
            }
            self.keys.seal_object_set(&mut block).unwrap();
            for at in objset::MACS_AT {
                let range = at..at + 32;
                assert_eq!(block[range.clone()], logical[range], "MAC at {at} of {bp:?}");
            }
            let set = Objset::decode(logical).unwrap();
            if set.local_mac == [0; 32] { "object set" } else { "object set, accounted" }
        } else {
            let stored = self.io.pipe.read_stored_many(&[*bp]).pop().unwrap().unwrap();
            if bp.is_encrypted() {
                let mut plain = stored.to_vec();
                self.keys.decrypt(bp, &mut plain).unwrap();
                let mut again = plain.clone();
                let kind = bp.object_type();
                let mac = self.keys.encrypt_with(kind, bp.salt(), bp.iv(), &mut again).unwrap();
                assert_eq!(mac, bp.mac(), "{bp:?}");
                assert_eq!(again, stored, "{bp:?}");
                match kind {
                    ObjectType::DNODE if plain == again => "dnodes, nothing to hide",
                    ObjectType::DNODE => "dnodes",
                    _ => "encrypted",
                }
            } else {
                assert_eq!(Encryptor::mac(&*self.keys, &stored).unwrap(), bp.mac(), "{bp:?}");
                "authenticated"
            }
        };
        *self.seen.entry(kind).or_default() += 1;
    }
}

#[test]
fn blocks_of_openzfs_are_sealed_again_to_the_same_bytes() {
    let mut pools = 0;
    for fixture in fixtures::fixtures() {
        let name = fixture.file_name().unwrap().to_string_lossy().into_owned();
        if !name.starts_with("crypt") {
            continue;
        }
        let (_dir, pool) = fixtures::open(&fixture);
        let catalog = pool.catalog();
        let store = load_keys(&fixture, &catalog);
        let mut seen = Seen::new();
        for listed in catalog.list(&catalog.root().unwrap()).unwrap() {
            let Listed::Dataset(dataset) = listed else { continue };
            let Some(keys) = store.keys(&catalog, &dataset.directory).unwrap() else { continue };
            let set = catalog.object_set(&dataset, &store).unwrap();
            let context = set.context().clone();
            let mut walk = Walk { io: pool.io(), context, keys, seen: &mut seen };
            walk.block(set.root_pointer());
        }
        for kind in ["indirect", "object set, accounted", "dnodes", "encrypted", "authenticated"] {
            assert!(seen.contains_key(kind), "{name}: no {kind} among {seen:?}");
        }
        println!("{name}: {seen:?}");
        pools += 1;
    }
    assert!(pools > 0);
}
