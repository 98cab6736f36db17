//! Fixture pools: unpacking, opening, mounting every filesystem where OpenZFS had it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use cenote_device::Mode;
use cenote_engine::dataset::{Keys, Listed, PropertyReader};
use cenote_engine::keys::KeyStore;
use cenote_engine::pool::assemble::assemble;
use cenote_engine::pool::discover::{FileOpener, Opener, ScanOptions, scan};
use cenote_engine::pool::space::PoolSpace;
use cenote_engine::pool::{OpenOptions, Pool};
use cenote_posix::tree::{Timestamp, Tree};
use cenote_posix::{Filesystem, Volume, dataset_files};
use tempfile::TempDir;

/// An unpacked and opened fixture pool.
pub struct Fixture {
    source: PathBuf,
    pool: Arc<Pool>,
    keys: Arc<dyn Keys>,
    // Last: the devices go after the pool.
    _devices: TempDir,
}

/// Filesystems by mountpoint.
pub struct Mounts(BTreeMap<String, Arc<dyn Tree>>);

impl Mounts {
    /// The filesystem mounted exactly at `path`.
    pub fn at(&self, path: &str) -> Arc<dyn Tree> {
        self.find(path).unwrap_or_else(|| panic!("nothing is mounted at {path}"))
    }

    /// The filesystem mounted exactly at `path`, if one is.
    pub fn find(&self, path: &str) -> Option<Arc<dyn Tree>> {
        self.0.get(path).cloned()
    }
}

fn decompressed(path: &Path) -> Vec<u8> {
    let file = fs::File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut out = Vec::new();
    zstd::Decoder::new(file).unwrap().read_to_end(&mut out).unwrap();
    out
}

impl Fixture {
    /// Unpacks and opens the committed fixture `name`.
    pub fn unpack(name: &str) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let source = root.join("tests/fixtures").join(name);
        let devices = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut tar = Command::new("tar")
            .args(["-S", "-xf", "-", "-C"])
            .arg(devices.path())
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let images = decompressed(&source.join("images.tar.zst"));
        tar.stdin.take().unwrap().write_all(&images).unwrap();
        assert!(tar.wait().unwrap().success());
        let opener: Arc<dyn Opener> = Arc::new(FileOpener { mode: Mode::ReadOnly });
        let found = scan(&opener, &ScanOptions::new(vec![devices.path().to_owned()]));
        let candidates = assemble(&found);
        assert_eq!(candidates.len(), 1, "{name}");
        let pool = Pool::open(&candidates[0], &OpenOptions::default())
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let store = KeyStore::new();
        load_keys(&store, &pool, &source);
        Self { source, pool, keys: Arc::new(store), _devices: devices }
    }

    /// Name of the pool.
    pub fn pool_name(&self) -> String {
        self.pool.name().to_owned()
    }

    /// The lines of manifest `name`.
    pub fn manifest(&self, name: &str) -> Vec<String> {
        let path = self.source.join("manifest").join(format!("{name}.jsonl.zst"));
        let text = String::from_utf8(decompressed(&path)).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    /// The recorded SHA-256 of its volume.
    pub fn volume_hash(&self) -> String {
        let text = fs::read_to_string(self.source.join("vol.sha256")).unwrap();
        text.split_whitespace().next().unwrap().to_owned()
    }

    /// Opens the files of a dataset.
    pub fn filesystem(&self, name: &str) -> Filesystem {
        let catalog = &self.pool.catalog();
        let dataset = catalog.dataset_named(name).unwrap();
        let tree = self.pool.config().vdev_tree.clone().unwrap();
        let capacity = PoolSpace::read(catalog, &tree).unwrap().capacity();
        dataset_files::open(catalog, &dataset, &self.keys, capacity, Timestamp::default())
            .unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Opens a volume.
    pub fn volume(&self, name: &str) -> Volume {
        let catalog = &self.pool.catalog();
        let dataset = catalog.dataset_named(name).unwrap();
        Volume::open(&catalog.object_set(&dataset, &*self.keys).unwrap()).unwrap()
    }

    /// Every filesystem of the pool at its mountpoint.
    pub fn mounts(&self) -> Mounts {
        let catalog = &self.pool.catalog();
        let reader = PropertyReader::new(catalog, Default::default(), &*self.keys, "");
        let mut mounts = BTreeMap::new();
        for directory in catalog.walk(&catalog.root().unwrap()).unwrap() {
            let head = catalog.head(&directory).unwrap();
            let name = head.name.to_string();
            if catalog.kind(&head).unwrap() != cenote_engine::dataset::DatasetKind::Filesystem {
                continue;
            }
            let listed = Listed::Dataset(head);
            let property = reader.get(&listed, "mountpoint").unwrap().unwrap();
            let tree: Arc<dyn Tree> = Arc::new(self.filesystem(&name));
            mounts.insert(property.parsable(), tree);
        }
        Mounts(mounts)
    }
}

/// Loads the keys that lie beside an encrypted pool.
fn load_keys(store: &KeyStore, pool: &Pool, source: &Path) {
    let catalog = &pool.catalog();
    for directory in catalog.walk(&catalog.root().unwrap()).unwrap() {
        let Some(key) = catalog.key_object(&directory).unwrap() else { continue };
        if key.root != directory.id {
            continue;
        }
        let head = catalog.head(&directory).unwrap();
        let reader = PropertyReader::new(catalog, Default::default(), store, "");
        let location = reader.get(&Listed::Dataset(head), "keylocation").unwrap().unwrap();
        let location = location.parsable();
        let file = location.rsplit('/').next().unwrap();
        let material = fs::read(source.join(file)).unwrap();
        store.load(catalog, &directory, &material).unwrap();
    }
}
