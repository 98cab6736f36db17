//! Creating a pool.
//!
//! Chapter 06, section 7. Invariant: nothing is written to a device before all of them are open and
//! large enough; the pool exists from the moment its first uberblocks are written.

use std::sync::Arc;

use cenote_codec::checksum::Salt;
use cenote_codec::cipher::Suite;
use cenote_format::config::{PoolConfig, PoolState, TopLevel, VdevConfig, VdevKind};
use cenote_format::objset::ObjsetKind;
use cenote_format::uberblock::{ACTIVITY_MAGIC, Uberblock};
use cenote_format::zap::Value;
use cenote_format::{BlockPointer, Guid, ObjectId, Txg};

use super::add::AuxiliaryKind;
use super::events::log_version;
use crate::alloc::{Allocator, VdevToInit};
use crate::dataset::change::{MosChange, NewPool, OBJECT_DIRECTORY, PropertyInput};
use crate::keys::Wrapping;
use crate::object::ObjectSet;
use crate::pipe::{Pipe, PoolIo, Prefetcher, ReadContext};
use crate::pool::group::config::FIRST_TXG;
use crate::pool::group::vdev_zaps::{leaf_zaps, new_zap_map, vdev_zap};
use crate::pool::group::{LivePool, Task, Work, WriteOptions};
use crate::pool::group::{MosSource, MosStore};
use crate::pool::open_options::OpenOptions;
use crate::pool::{Pool, labels};
use crate::txg::Tx;
use crate::vdev::{AllocationClass, LeafOpener, Topology, VdevTree};
use crate::{Error, ErrorKind, Result, zap};

/// A pool to be created.
pub struct NewPoolPlan {
    /// Its name.
    pub name: String,
    /// Name it goes by while it is open, if that is another one.
    pub temporary_name: Option<String>,
    /// Pool version: 5000.
    pub version: u64,
    /// The top-level vdevs in order, with kinds, paths, children, `top.ashift` and `top.is_log`.
    /// Guids, ids and sizes are filled in here.
    pub tops: Vec<(VdevConfig, AllocationClass)>,
    /// Hot spares.
    pub spares: Vec<VdevConfig>,
    /// Cache devices.
    pub caches: Vec<VdevConfig>,
    /// Short names of the features to enable.
    pub features: Vec<String>,
    /// Properties of the pool that are stored.
    pub pool_properties: Vec<PropertyInput>,
    /// Properties of the root dataset.
    pub properties: Vec<PropertyInput>,
    /// Suite and user key, if the root dataset is encrypted; `keylocation` is among its properties.
    pub encryption: Option<(Suite, Wrapping)>,
    /// The command line and the number of the user who gave it, for the history.
    pub command: Option<(String, u64)>,
    /// Host that creates it.
    pub hostid: u64,
    /// Its name.
    pub hostname: String,
}

impl NewPoolPlan {
    fn classes(&self) -> Vec<AllocationClass> {
        self.tops.iter().map(|(_, class)| *class).collect()
    }
}

pub(super) fn random() -> Result<u64> {
    loop {
        let number = crate::environment::random_u64()
            .map_err(|error| Error::new(ErrorKind::Io, format!("no random numbers: {error}")))?;
        if number != 0 {
            return Ok(number);
        }
    }
}

pub(super) fn assign_guids(node: &mut VdevConfig, id: u64) -> Result<()> {
    node.id = Some(id);
    node.guid = Guid(random()?);
    for (id, child) in (0..).zip(node.children.iter_mut().flatten()) {
        assign_guids(child, id)?;
    }
    Ok(())
}

/// Creates the pool of `plan` on the devices that `opener` gives, and goes on writing it. `fill`
/// makes the files of the root dataset.
pub fn create(
    plan: NewPoolPlan,
    opener: Arc<dyn LeafOpener>,
    options: &OpenOptions,
    write: WriteOptions,
    fill: impl FnOnce(&ObjectSet, &Tx) -> Result<()> + Send + 'static,
) -> Result<Arc<LivePool>> {
    let (vdevs, root) = open_devices(&plan, opener)?;
    labels::initialise(&vdevs)?;
    let pipe = Pipe::new(vdevs, options.cache_limit);
    let salt = random_salt()?;
    pipe.set_salt(Salt::new(salt));
    let io = Arc::new(PoolIo { pipe, prefetcher: Prefetcher::new(options.prefetch_threads) });
    let mos = ObjectSet::new_live(&io, ReadContext::default(), ObjsetKind::Meta);
    let source = Arc::new(MosSource::new(mos.clone()));
    let before = Txg(FIRST_TXG.0 - 1);
    let allocator = Allocator::open(io.pipe.vdev_handle().clone(), source, before)?;
    let name = plan.temporary_name.as_ref().unwrap_or(&plan.name).clone();
    let (config, uberblock) = (first_config(&plan, &root), uberblock_before(&plan, &root, before));
    let pool = Pool::unwritten(name, root.guid, config, uberblock, io);
    let live = LivePool::with(pool, mos, allocator, write)?;
    let run = move |live: &LivePool, change: &MosChange<'_>| {
        fill_metadata(live, change, plan, root, &salt, fill)
    };
    write_first_group(&live, Box::new(run))?;
    live.start()?;
    Ok(live)
}

/// Opens the devices of a plan, all of which must be there, and gives them guids, ids and sizes: the
/// tree of devices, and what is recorded of it.
fn open_devices(
    plan: &NewPoolPlan,
    opener: Arc<dyn LeafOpener>,
) -> Result<(Arc<VdevTree>, VdevConfig)> {
    let mut root = VdevConfig {
        guid: Guid(random()?),
        children: Some(plan.tops.iter().map(|(top, _)| top.clone()).collect()),
        ..VdevConfig::placeholder(VdevKind::Root, 0)
    };
    root.create_txg = Some(FIRST_TXG);
    for (id, top) in (0..).zip(root.children.iter_mut().flatten()) {
        assign_guids(top, id)?;
        top.create_txg = Some(FIRST_TXG);
    }
    let vdevs = VdevTree::build(&root, opener)?;
    for (id, top) in (0_u32..).zip(root.children.iter_mut().flatten()) {
        let missing = || {
            let path = top.devices().find_map(|leaf| leaf.path.clone()).unwrap_or_default();
            Error::new(ErrorKind::Io, format!("cannot open every device of vdev {id} ({path})"))
        };
        let complete =
            vdevs.top_condition(id).is_some_and(|now| now == crate::vdev::Condition::ONLINE);
        if !complete {
            return Err(missing());
        }
        let asize = vdevs.top_asize(id).filter(|size| *size > 0).ok_or_else(missing)?;
        let recorded = top.top.get_or_insert_default();
        *recorded = TopLevel { asize, ..*recorded };
    }
    let topology = Topology::of(root.clone())?.with_classes(&plan.classes());
    Ok((Arc::new(vdevs.with_topology(topology)?), root))
}

/// The configuration a new pool begins with.
fn first_config(plan: &NewPoolPlan, root: &VdevConfig) -> PoolConfig {
    PoolConfig {
        version: Some(plan.version),
        name: Some(plan.name.clone()),
        state: Some(PoolState::Active),
        txg: Some(FIRST_TXG),
        pool_guid: Some(root.guid),
        errata: Some(0),
        hostid: (plan.hostid != 0).then_some(plan.hostid),
        hostname: Some(plan.hostname.clone()),
        has_per_vdev_zaps: true,
        vdev_children: Some(root.children().len() as u64),
        vdev_tree: Some(root.clone()),
        features_for_read: Some(Vec::new()),
        ..PoolConfig::default()
    }
}

/// What the first uberblock is made from: that of group `before`, which nobody has written.
fn uberblock_before(plan: &NewPoolPlan, root: &VdevConfig, before: Txg) -> Uberblock {
    Uberblock {
        order: cenote_format::bytes::ByteOrder::Little,
        version: plan.version,
        txg: before,
        guid_sum: root.guid_sum(),
        timestamp: 0,
        root: BlockPointer::HOLE,
        software_version: plan.version,
        activity_magic: ACTIVITY_MAGIC,
        activity_delay: 0,
        activity_config: 0,
        checkpoint_txg: 0,
        reflow: Default::default(),
    }
}

/// What some checksums of the pool are to begin with.
fn random_salt() -> Result<[u8; 32]> {
    let mut salt = [0; 32];
    for part in salt.chunks_mut(8) {
        part.copy_from_slice(&random()?.to_le_bytes());
    }
    Ok(salt)
}

/// Writes the first group, in which `run` fills the metadata. No thread writes groups yet.
fn write_first_group(live: &LivePool, run: Work) -> Result<()> {
    let (done, _) = crossbeam_channel::bounded(1);
    let task = Task { run, early: false, since: Txg(0), by_steps: false, done };
    let txg = live.gate.close();
    let mut answers = Vec::new();
    live.vdevs().events().set_creating(true);
    let written = live.write_group(txg, vec![task], &mut answers);
    live.vdevs().events().set_creating(false);
    written?;
    for (_, answer) in answers {
        answer?;
    }
    live.gate.finished(txg);
    Ok(())
}

/// Everything in the metadata of a new pool.
fn fill_metadata(
    live: &LivePool,
    change: &MosChange<'_>,
    plan: NewPoolPlan,
    mut root: VdevConfig,
    salt: &[u8; 32],
    fill: impl FnOnce(&ObjectSet, &Tx) -> Result<()>,
) -> Result<()> {
    let classes = plan.classes();
    let normal = root.children().iter().zip(&classes);
    let size = normal
        .filter(|(_, class)| **class == AllocationClass::Normal)
        .map(|(top, _)| top.top.map_or(0, |top| top.asize))
        .fold(0, u64::saturating_add);
    let features: Vec<&str> = plan.features.iter().map(String::as_str).collect();
    let skeleton = change.create_pool_skeleton(&NewPool { features: &features, size })?;
    change.hooks.tell("pool_create", Vec::new());
    log_version(change, "create")?;
    for property in &plan.pool_properties {
        live.put_pool_property(change, property)?;
    }
    for feature in features {
        change.enable_feature(feature)?;
    }
    let directory = change.mos.object(OBJECT_DIRECTORY)?;
    let salt = Value::of_bytes(salt)?;
    zap::insert(&directory, change.tx, "org.illumos:checksum_salt", &salt)?;

    let map = new_zap_map(change)?;
    if change.is_enabled("vdev_zaps_v2")? {
        root.root_zap = Some(vdev_zap(change, map)?);
        change.add_reference("vdev_zaps_v2")?;
    }
    for (id, (top, class)) in (0_u32..).zip(root.children.iter_mut().flatten().zip(&classes)) {
        prepare_top(live, change, Some(map), id, top, *class, FIRST_TXG)?;
    }
    let mut spares = plan.spares;
    spares.extend(distributed_spares(root.children())?);
    live.add_auxiliary(change, AuxiliaryKind::Spare, spares)?;
    live.add_auxiliary(change, AuxiliaryKind::Cache, plan.caches)?;
    live.change_topology(|_| Ok(Topology::of(root)?.with_classes(&classes)))?;
    let keys = match &plan.encryption {
        Some((suite, wrapping)) => {
            Some(live.encrypt_root(change, skeleton.root, *suite, wrapping)?)
        }
        None => None,
    };
    live.fill_dataset(change, skeleton.root, ObjsetKind::Zfs, keys, fill)?;
    for property in &plan.properties {
        change.check_features(property)?;
        change.set_property(skeleton.root.dataset, property)?;
    }
    if let Some((command, user)) = &plan.command {
        change.log_command(command, *user)?;
    }
    Ok(())
}

/// Makes what a new top-level vdev has in the metadata: ZAPs, class, space maps. Its blocks can be
/// allocated from group `from` on.
pub(super) fn prepare_top(
    live: &LivePool,
    change: &MosChange<'_>,
    map: Option<ObjectId>,
    id: u32,
    top: &mut VdevConfig,
    class: AllocationClass,
    from: Txg,
) -> Result<()> {
    if let Some(map) = map {
        leaf_zaps(change, map, top)?;
        top.top_zap = Some(vdev_zap(change, map)?);
    }
    let bias = match class {
        AllocationClass::Special => Some("special"),
        AllocationClass::Dedup => Some("dedup"),
        AllocationClass::Normal | AllocationClass::Log => None,
    };
    if let (Some(bias), Some(zap)) = (bias, top.top_zap) {
        let text = Value::of_bytes(format!("{bias}\0").as_bytes())?;
        let object = change.mos.object(zap)?;
        zap::insert(&object, change.tx, "org.zfsonlinux:allocation_bias", &text)?;
        change.add_reference("allocation_classes")?;
    }
    if top.kind == VdevKind::Draid {
        change.add_reference("draid")?;
    }
    let zap = top.top_zap.unwrap_or_default();
    let vdev = VdevToInit { id, config: top, zap, class, from };
    let made = live.allocator.init_vdev(&mut MosStore::new(change), &vdev)?;
    live.when_undone(move |live| live.allocator.forget_vdev(id));
    if let Some(recorded) = &mut top.top {
        recorded.metaslab_array = made.metaslab_array;
        recorded.metaslab_shift = made.metaslab_shift.into();
    }
    Ok(())
}

/// The distributed spares of dRAID vdevs, for the list of spares.
pub(super) fn distributed_spares(tops: &[VdevConfig]) -> Result<Vec<VdevConfig>> {
    let mut spares = Vec::new();
    for top in tops {
        let Some(draid) = top.draid.filter(|_| top.kind == VdevKind::Draid) else { continue };
        let (parity, id) = (top.nparity.unwrap_or(1), top.id.unwrap_or(0));
        for number in 0..draid.spares {
            spares.push(VdevConfig {
                guid: Guid(random()?),
                path: Some(format!("draid{parity}-{id}-{number}")),
                top_guid: Some(top.guid),
                spare_id: Some(number),
                ..VdevConfig::placeholder(VdevKind::DistributedSpare, 0)
            });
        }
    }
    Ok(spares)
}
