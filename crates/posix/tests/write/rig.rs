//! A filesystem in memory: a live object set that is never written.

use std::sync::Arc;

use cenote_device::Device;
use cenote_engine::object::ObjectSet;
use cenote_engine::pipe::{Pipe, PoolIo, Prefetcher, ReadContext};
use cenote_engine::txg::Gate;
use cenote_engine::vdev::{LeafOpener, LeafUnavailable, VdevTree};
use cenote_format::Txg;
use cenote_format::config::{VdevConfig, VdevKind};
use cenote_format::objset::ObjsetKind;
use cenote_posix::create::{NewFilesystem, initialise};
use cenote_posix::tree::{Attributes, Caller, Errno, NewNode, NodeId, Space, Timestamp, Tree};
use cenote_posix::{
    AclType, ChangeLog, Filesystem, FilesystemOptions, SnapshotDirectory, SpaceCheck, WriteOptions,
    WriteProperties, XattrMode,
};

struct NoLeaves;

impl LeafOpener for NoLeaves {
    fn open(&self, _config: &VdevConfig) -> Result<Arc<dyn Device>, LeafUnavailable> {
        Err(LeafUnavailable::open_failed("none"))
    }
}

/// The superuser.
pub const SUPERUSER: Caller = Caller { uid: 0, gid: 0, pid: 0 };
/// Somebody.
pub const SOMEBODY: Caller = Caller { uid: 1000, gid: 100, pid: 0 };

/// An empty live set of a filesystem.
pub fn empty_set() -> ObjectSet {
    set_of(ObjsetKind::Zfs)
}

/// An empty live set.
pub fn set_of(kind: ObjsetKind) -> ObjectSet {
    let root = VdevConfig::placeholder(VdevKind::Root, 0);
    let tree = VdevTree::build(&root, Arc::new(NoLeaves)).unwrap();
    let pipe = Pipe::new(Arc::new(tree), 8 << 20);
    let io = Arc::new(PoolIo { pipe, prefetcher: Prefetcher::new(0) });
    ObjectSet::new_live(&io, ReadContext { objset: 5, ..ReadContext::default() }, kind)
}

/// How a filesystem for a test is made.
#[derive(Default)]
pub struct Setup {
    pub new: NewFilesystem,
    pub xattr: XattrMode,
    pub acl: AclType,
    pub properties: WriteProperties,
    pub long_names: bool,
    pub log: Option<Arc<dyn ChangeLog>>,
    pub space: Option<Arc<dyn SpaceCheck>>,
}

/// A filesystem, and its set.
pub struct Rig {
    pub tree: Filesystem,
    pub objects: ObjectSet,
    pub gate: Arc<Gate>,
}

impl Setup {
    /// The filesystem.
    pub fn make(self) -> Rig {
        let objects = empty_set();
        let gate = Gate::new(Txg(3), 1 << 40);
        initialise(&objects, &gate.begin().unwrap(), &self.new).unwrap();
        self.mount(objects, gate)
    }

    /// Mounts what is in `objects`.
    pub fn mount(self, objects: ObjectSet, gate: Arc<Gate>) -> Rig {
        let write = WriteOptions {
            gate: gate.clone(),
            properties: self.properties,
            durability: None,
            log: self.log,
            space: self.space,
            cloning: None,
        };
        let tree = Filesystem::open(FilesystemOptions {
            objects: objects.clone(),
            xattr: self.xattr,
            acl: self.acl,
            snapshot_directory: SnapshotDirectory::Disabled,
            long_names: self.long_names,
            keeps_data: true,
            read_only: false,
            write: Some(write),
            mounted: Timestamp::default(),
            snapshots: None,
            space: Box::new(Space::default),
        })
        .unwrap();
        Rig { tree, objects, gate }
    }
}

/// A plain filesystem.
pub fn plain() -> Rig {
    Setup::default().make()
}

/// What a node is made of.
pub fn new_node(mode: u32) -> NewNode<'static> {
    NewNode { mode, umask: 0o022, rdev: 0, target: &[] }
}

impl Rig {
    pub fn make(&self, parent: NodeId, name: &str, mode: u32) -> Result<Attributes, Errno> {
        self.tree.create(SUPERUSER, parent, name.as_bytes(), new_node(mode))
    }

    pub fn file(&self, parent: NodeId, name: &str) -> NodeId {
        self.make(parent, name, 0o100_644).unwrap().node
    }

    pub fn directory(&self, parent: NodeId, name: &str) -> NodeId {
        self.make(parent, name, 0o040_755).unwrap().node
    }

    pub fn write(&self, node: NodeId, offset: u64, data: &[u8]) {
        self.tree.write(SUPERUSER, node, offset, data, false).unwrap();
    }

    pub fn read(&self, node: NodeId, offset: u64, len: usize) -> Vec<u8> {
        self.tree.read(node, offset, len).unwrap().concat()
    }
}

/// The errno of a failure; 0 for success.
pub fn code<T>(result: Result<T, Errno>) -> i32 {
    result.map_or_else(|error| error.code, |_| 0)
}
