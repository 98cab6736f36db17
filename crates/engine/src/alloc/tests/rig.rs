//! A pool without data: metadata in memory, devices that only have a size.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use cenote_device::{Device, DeviceError};
use cenote_format::config::{Draid, TopLevel, VdevConfig, VdevKind};
use cenote_format::{Guid, ObjectId, Txg};
use parking_lot::Mutex;

use crate::alloc::{
    AllocRequest, Allocator, DIRECTORY, Dvas, HISTOGRAM, LOGS, NewSpaceObject, SpaceSource,
    SpaceStore, TWO_WORDS, VdevToInit,
};
use crate::vdev::{AllocationClass, LeafUnavailable, VdevHandle, VdevTree};
use crate::{Error, ErrorKind, Result};

#[derive(Debug)]
struct Blank(u64);

impl Device for Blank {
    fn path(&self) -> PathBuf {
        "/blank".into()
    }
    fn size(&self) -> u64 {
        self.0
    }
    fn sector_size(&self) -> u32 {
        512
    }
    fn read(&self, _: u64, len: usize) -> Result<Bytes, DeviceError> {
        Ok(vec![0; len].into())
    }
    fn write(&self, _: u64, _: &[u8]) -> Result<(), DeviceError> {
        Ok(())
    }
    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }
}

#[derive(Debug, Default, Clone)]
pub struct MemoryObject {
    pub block_size: u64,
    pub bonus: Vec<u8>,
    pub data: Vec<u8>,
}

/// Objects, ZAPs and features in memory.
#[derive(Debug, Default)]
pub struct Memory {
    pub objects: BTreeMap<u64, MemoryObject>,
    pub zaps: BTreeMap<u64, BTreeMap<String, u64>>,
    pub features: BTreeMap<String, i64>,
    /// Objects of which what they hold does not verify.
    pub damaged: BTreeSet<u64>,
    next: u64,
}

impl Memory {
    fn verify(&self, object: ObjectId) -> Result<()> {
        match self.damaged.contains(&object.0) {
            true => Err(Error::new(ErrorKind::Checksum, "no copy matches its checksum")),
            false => Ok(()),
        }
    }
}

/// Shares a [`Memory`].
#[derive(Debug, Clone, Default)]
pub struct MemoryStore(pub Arc<Mutex<Memory>>);

fn absent<T>(found: Option<T>) -> Result<T> {
    found.ok_or_else(|| Error::not_found("no such object"))
}

impl MemoryStore {
    pub fn with_features(features: &[&str]) -> Self {
        let store = Self::default();
        let mut memory = store.0.lock();
        memory.next = 2;
        memory.zaps.insert(DIRECTORY.0, BTreeMap::new());
        memory.features = features.iter().map(|guid| ((*guid).to_owned(), 0)).collect();
        drop(memory);
        store
    }
}

impl SpaceSource for MemoryStore {
    fn bonus(&self, object: ObjectId) -> Result<Vec<u8>> {
        absent(self.0.lock().objects.get(&object.0)).map(|object| object.bonus.clone())
    }
    fn block_size(&self, object: ObjectId) -> Result<u64> {
        absent(self.0.lock().objects.get(&object.0)).map(|object| object.block_size)
    }
    fn read(&self, object: ObjectId, offset: u64, bytes: usize) -> Result<Vec<u8>> {
        let memory = self.0.lock();
        memory.verify(object)?;
        let data = &absent(memory.objects.get(&object.0))?.data;
        let mut out: Vec<u8> = data.iter().skip(offset as usize).take(bytes).copied().collect();
        out.resize(bytes, 0);
        Ok(out)
    }
    fn zap_number(&self, zap: ObjectId, name: &str) -> Result<Option<u64>> {
        Ok(absent(self.0.lock().zaps.get(&zap.0))?.get(name).copied())
    }
    fn zap_words(&self, zap: ObjectId, name: &str) -> Result<Option<Vec<u64>>> {
        Ok(self.zap_number(zap, name)?.map(|number| vec![number]))
    }
    fn zap_has(&self, zap: ObjectId, name: &str) -> Result<bool> {
        Ok(self.zap_number(zap, name)?.is_some())
    }
    fn zap_numbers(&self, zap: ObjectId) -> Result<Vec<(String, u64)>> {
        let memory = self.0.lock();
        Ok(absent(memory.zaps.get(&zap.0))?.iter().map(|(n, v)| (n.clone(), *v)).collect())
    }
    fn feature_enabled(&self, guid: &str) -> bool {
        self.0.lock().features.contains_key(guid)
    }
}

impl SpaceStore for MemoryStore {
    fn create(&mut self, new: &NewSpaceObject) -> Result<ObjectId> {
        let mut memory = self.0.lock();
        let id = memory.next;
        memory.next += 1;
        let (block_size, bonus) = (new.block_size, new.bonus.clone());
        memory.objects.insert(id, MemoryObject { block_size, bonus, data: Vec::new() });
        Ok(ObjectId(id))
    }
    fn create_zap(&mut self) -> Result<ObjectId> {
        let mut memory = self.0.lock();
        let id = memory.next;
        memory.next += 1;
        memory.zaps.insert(id, BTreeMap::new());
        Ok(ObjectId(id))
    }
    fn destroy(&mut self, object: ObjectId) -> Result<()> {
        absent(self.0.lock().objects.remove(&object.0)).map(drop)
    }
    fn truncate(&mut self, object: ObjectId) -> Result<()> {
        absent(self.0.lock().objects.get_mut(&object.0)).map(|object| object.data.clear())
    }
    fn write(&mut self, object: ObjectId, offset: u64, new: &[u8]) -> Result<()> {
        let mut memory = self.0.lock();
        let block_size = absent(memory.objects.get(&object.0))?.block_size.max(1);
        if !offset.is_multiple_of(block_size) {
            memory.verify(object)?;
        }
        let data = &mut absent(memory.objects.get_mut(&object.0))?.data;
        let (from, to) = (offset as usize, offset as usize + new.len());
        data.resize(data.len().max(to), 0);
        data[from..to].copy_from_slice(new);
        Ok(())
    }
    fn set_bonus(&mut self, object: ObjectId, bonus: &[u8]) -> Result<()> {
        let mut memory = self.0.lock();
        let object = absent(memory.objects.get_mut(&object.0))?;
        assert_eq!(object.bonus.len(), bonus.len());
        object.bonus = bonus.to_vec();
        Ok(())
    }
    fn zap_set(&mut self, zap: ObjectId, name: &str, value: u64) -> Result<()> {
        let mut memory = self.0.lock();
        absent(memory.zaps.get_mut(&zap.0))?.insert(name.to_owned(), value);
        Ok(())
    }
    fn zap_remove(&mut self, zap: ObjectId, name: &str) -> Result<()> {
        absent(absent(self.0.lock().zaps.get_mut(&zap.0))?.remove(name)).map(drop)
    }
    fn feature_add(&mut self, guid: &str, change: i64) -> Result<()> {
        let mut memory = self.0.lock();
        let count = absent(memory.features.get_mut(guid))?;
        *count += change;
        assert!(*count >= 0, "{guid}");
        Ok(())
    }
}

/// A top-level vdev to be made.
#[derive(Debug, Clone)]
pub struct Shape {
    pub kind: VdevKind,
    pub children: u64,
    pub asize: u64,
    pub ashift: u64,
    pub class: AllocationClass,
}

/// One device of so many bytes.
pub fn disk(asize: u64) -> Shape {
    let (kind, class) = (VdevKind::File, AllocationClass::Normal);
    Shape { kind, children: 0, asize, ashift: 12, class }
}

fn config(index: u64, shape: &Shape) -> VdevConfig {
    let leaf = |guid| VdevConfig { kind: VdevKind::File, guid: Guid(guid), ..Default::default() };
    let top = TopLevel {
        ashift: shape.ashift,
        asize: shape.asize,
        is_log: shape.class == AllocationClass::Log,
        ..TopLevel::default()
    };
    let guid = 1000 * (index + 1);
    let base = match shape.kind {
        VdevKind::File => leaf(guid),
        kind => VdevConfig {
            kind,
            guid: Guid(guid),
            children: Some((1..=shape.children).map(|n| leaf(guid + n)).collect()),
            nparity: matches!(kind, VdevKind::Raidz | VdevKind::Draid).then_some(1),
            draid: (kind == VdevKind::Draid).then_some(Draid {
                data: 2,
                spares: 0,
                groups: shape.children,
                children: None,
            }),
            ..VdevConfig::default()
        },
    };
    VdevConfig { id: Some(index), top: Some(top), ..base }
}

/// Devices of these vdevs that only have a size.
pub fn tree(tops: &[VdevConfig]) -> Arc<VdevTree> {
    tree_on(tops, Arc::new(Blank(1 << 44)))
}

/// These vdevs, each leaf on the same device.
pub fn tree_on(tops: &[VdevConfig], device: Arc<dyn Device>) -> Arc<VdevTree> {
    let root = VdevConfig {
        kind: VdevKind::Root,
        guid: Guid(1),
        children: Some(tops.to_vec()),
        ..VdevConfig::default()
    };
    let opener =
        move |_: &VdevConfig| -> Result<Arc<dyn Device>, LeafUnavailable> { Ok(device.clone()) };
    let tree = VdevTree::build(&root, Arc::new(opener)).unwrap();
    Arc::new(tree)
}

/// An allocator on metadata in memory, one group after the other.
pub struct Rig {
    pub store: MemoryStore,
    pub tops: Vec<VdevConfig>,
    pub classes: Vec<AllocationClass>,
    pub allocator: Arc<Allocator>,
    /// The open group.
    pub txg: Txg,
}

/// The features of a pool of today.
pub const ALL: &[&str] = &[HISTOGRAM, TWO_WORDS, LOGS];
/// Those of one without logs.
pub const NO_LOGS: &[&str] = &[HISTOGRAM, TWO_WORDS];

impl Rig {
    pub fn new(features: &[&str], shapes: &[Shape]) -> Self {
        let mut store = MemoryStore::with_features(features);
        let mut tops: Vec<_> = (0..).zip(shapes).map(|(i, shape)| config(i, shape)).collect();
        let source = Arc::new(store.clone());
        let vdevs = VdevHandle::new(tree(&tops));
        let allocator = Arc::new(Allocator::open(vdevs, source, Txg(3)).unwrap());
        for (id, top) in (0..).zip(&mut tops) {
            let zap = store.create_zap().unwrap();
            let class = shapes[id as usize].class;
            let init = VdevToInit { id, config: top, zap, class, from: Txg(4) };
            let new = allocator.init_vdev(&mut store, &init).unwrap();
            top.top_zap = Some(zap);
            let state = top.top.as_mut().unwrap();
            state.metaslab_array = new.metaslab_array;
            state.metaslab_shift = new.metaslab_shift.into();
        }
        let classes = shapes.iter().map(|shape| shape.class).collect();
        Self { store, tops, classes, allocator, txg: Txg(4) }
    }

    /// The allocator another process would open now.
    pub fn reopened(&self, store: &MemoryStore) -> Result<Allocator> {
        self.reopened_from(Arc::new(store.clone()))
    }

    /// The same, with its metadata read from `source`.
    pub fn reopened_from(&self, source: Arc<dyn SpaceSource>) -> Result<Allocator> {
        let plain = tree(&self.tops);
        let topology = plain.topology().with_classes(&self.classes);
        let vdevs = VdevHandle::new(Arc::new(plain.with_topology(topology).unwrap()));
        Allocator::open(vdevs, source, Txg(self.txg.0 - 1))
    }

    /// Goes on with an allocator opened anew.
    pub fn reopen(&mut self) {
        self.allocator = Arc::new(self.reopened(&self.store).unwrap());
    }

    pub fn allocate(&self, psize: u64) -> Result<Dvas> {
        self.allocator.allocate(&AllocRequest::new(psize, self.txg))
    }

    /// Ends the open group; gives the number of passes that recorded something.
    pub fn sync(&mut self) -> u32 {
        let mut pass = 1;
        while self.allocator.sync(&mut self.store, self.txg, pass).unwrap() {
            pass += 1;
            assert!(pass < 20);
        }
        self.allocator.sync_done(self.txg).unwrap();
        self.txg.0 += 1;
        pass - 1
    }

    /// Free ranges that can be allocated now, by vdev, everything loaded.
    pub fn free_space(allocator: &Allocator) -> BTreeMap<u32, Vec<(u64, u64)>> {
        let mut state = allocator.state.lock();
        let slabs: Vec<(u32, usize)> = state
            .tops
            .iter()
            .flatten()
            .flat_map(|top| (0..top.metaslabs.len()).map(|index| (top.facts.id, index)))
            .collect();
        let mut free: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
        for (vdev, index) in slabs {
            assert!(allocator.load(&mut state, vdev, index).unwrap(), "{vdev} {index}");
            let slab = state.slab(vdev, index).unwrap();
            free.entry(vdev).or_default().extend(slab.loaded().unwrap().tree.iter());
        }
        free
    }
}
