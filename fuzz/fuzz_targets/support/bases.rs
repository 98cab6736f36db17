//! The pools that `pool_image` starts from, with the keys of the encrypted one.
//!
//! Invariant: user keys are made from what is known when the fuzzer starts, once; the key objects
//! they open are read anew each time, as they are after the changes.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use cenote_codec::cipher::SecretKey;
use cenote_engine::Result;
use cenote_engine::dataset::{Catalog, Dataset, Keys};
use cenote_engine::keys::{DatasetKeys, open_keys};
use cenote_engine::pipe::Decryptor;
use cenote_engine::pool::Pool;
use cenote_format::{BlockPointer, ObjectId};

use crate::image::{self, FlatImage};
use crate::walk;

/// Reads the pool `name`: when the fuzzer starts, for `flatten`, which makes it, is built with it.
fn read(name: &str) -> Vec<FlatImage> {
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/hostile");
    let path = format!("{fixtures}/{name}.zst");
    image::load(&std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}")))
}

macro_rules! pool {
    ($name:literal) => {
        LazyLock::new(|| read($name))
    };
}

static BASES: [LazyLock<Vec<FlatImage>>; 4] =
    [pool!("everything"), pool!("crypt"), pool!("raidz"), pool!("draid")];

/// The pool that byte `choice` of the input names.
pub fn base(choice: u8) -> Vec<FlatImage> {
    BASES[usize::from(choice) % BASES.len()].clone()
}

/// What opens the encryption roots of the encrypted pool.
const MATERIAL: [&[u8]; 3] = [
    include_bytes!("../../../tests/fixtures/crypt-small/pp"),
    include_bytes!("../../../tests/fixtures/crypt-small/hexkey"),
    include_bytes!("../../../tests/fixtures/crypt-small/rawkey"),
];

static USER_KEYS: LazyLock<HashMap<ObjectId, SecretKey>> = LazyLock::new(|| {
    let candidates = image::discover(image::shelf(base(1)));
    let pool = Pool::open(&candidates[0], &walk::options()).unwrap();
    let catalog = pool.catalog();
    let mut keys = HashMap::new();
    for directory in catalog.walk(&catalog.root().unwrap()).unwrap() {
        let Some(key) = catalog.key_object(&directory).unwrap() else { continue };
        if key.root != directory.id {
            continue;
        }
        let mut tried = MATERIAL.iter().filter_map(|text| key.wrapping_key(text).ok());
        let found = tried.find(|user| open_keys(&key, user).is_ok());
        keys.insert(key.root, found.expect("the fixture's keys open its datasets"));
    }
    keys
});

/// The keys of the encrypted pool: what it says opens with what the user said before.
pub struct UserKeys {
    /// MACs of indirect blocks and object sets are not checked, so that changes of them reach the
    /// code behind.
    pub lenient: bool,
}

/// Keys that are easily satisfied.
struct Lenient(DatasetKeys);

impl Decryptor for Lenient {
    fn decrypt(&self, bp: &BlockPointer, data: &mut [u8]) -> Result<()> {
        self.0.decrypt(bp, data)
    }

    fn authenticate(&self, bp: &BlockPointer, data: &[u8]) -> Result<()> {
        self.0.authenticate(bp, data)
    }

    fn authenticate_indirect(&self, bp: &BlockPointer, data: &[u8]) -> Result<()> {
        let _ = self.0.authenticate_indirect(bp, data);
        Ok(())
    }

    fn authenticate_object_set(&self, block: &[u8]) -> Result<()> {
        let _ = self.0.authenticate_object_set(block);
        Ok(())
    }
}

impl Keys for UserKeys {
    fn is_loaded(&self, root: ObjectId) -> bool {
        USER_KEYS.contains_key(&root)
    }

    fn decryptor(
        &self,
        catalog: &Catalog,
        dataset: &Dataset,
    ) -> Result<Option<Arc<dyn Decryptor>>> {
        let Some(key) = catalog.key_object(&dataset.directory)? else { return Ok(None) };
        let Some(user) = USER_KEYS.get(&key.root) else { return Ok(None) };
        let keys = open_keys(&key, user)?;
        Ok(Some(if self.lenient { Arc::new(Lenient(keys)) } else { Arc::new(keys) }))
    }
}
