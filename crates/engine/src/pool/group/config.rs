//! The configuration of a pool open for writing: in its metadata and in the labels.
//!
//! Chapter 01, sections 5 to 7; chapter 06, section 3.1. Invariant: the labels are rewritten in the
//! group whose metadata holds the same configuration.

use std::sync::Arc;

use cenote_format::config::{PoolConfig, PoolState, VdevConfig};
use cenote_format::feature::{self, Feature};
use cenote_format::nvlist::Encoding;
use cenote_format::uberblock::Uberblock;
use cenote_format::{Guid, NvList, ObjectId, Txg};

use super::LivePool;
use crate::dataset::Table;
use crate::dataset::change::{MosChange, OBJECT_DIRECTORY};
use crate::pool::host::HostIdentity;
use crate::pool::{Pool, labels};
use crate::vdev::{Topology, VdevError, VdevTree};
use crate::{Error, Result};

/// Packed lists are padded to this many bytes.
const PACKED_UNIT: usize = 16 << 10;

/// What the configuration tells beside the vdevs, and what of all that is not on the disks yet.
pub(in crate::pool) struct ConfigState {
    /// Its vdevs are left out: they are those of the pool's topology.
    config: PoolConfig,
    /// The metadata's copy and the labels are to be written.
    dirty: bool,
    /// The labels are to be written.
    labels: bool,
}

/// What changes in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigChange {
    /// State of the pool, as the labels tell it.
    State(PoolState),
    /// Name of the pool.
    Name(String),
    /// Guid of the pool.
    Guid(Guid),
    /// Comment; empty: none.
    Comment(String),
    /// Names of compatibility files; empty or "off": none.
    Compatibility(String),
    /// A split under way.
    Split(Option<NvList>),
}

impl ConfigState {
    pub(in crate::pool) fn of(pool: &Pool) -> Self {
        let mut config = PoolConfig { vdev_tree: None, ..(*pool.config()).clone() };
        let host = HostIdentity::of_this_machine();
        config.name = Some(pool.stored_name().to_owned());
        config.state = Some(PoolState::Active);
        config.hostid = (host.id != 0).then_some(host.id);
        config.hostname = Some(host.name);
        if config.features_for_read.is_none() && pool.uberblock().version >= 5000 {
            config.features_for_read = Some(Vec::new());
        }
        if pool.candidate().is_some() {
            // Where it was split from is told until it is opened; what was to leave, until that is mended.
            config.split_guid = None;
            config.split = config.split.filter(|split| split.u64_array("guid_list").is_some());
        }
        // An opened pool says so in its labels, and who opened it.
        Self { config, dirty: true, labels: true }
    }

    pub(in crate::pool) fn is_dirty(&self) -> bool {
        self.dirty || self.labels
    }

    pub(in crate::pool) fn feature_changed(&mut self, feature: &Feature, count: u64) {
        if !feature.flags.contains(feature::Flags::IN_LABEL) {
            return;
        }
        let guid = feature.guid;
        let list = self.config.features_for_read.get_or_insert_default();
        let known = list.iter().position(|name| name == guid);
        match (known, count) {
            (None, 1..) => list.push(guid.to_owned()),
            (Some(index), 0) => {
                list.remove(index);
            }
            _ => return,
        }
        self.dirty = true;
    }

    /// The configuration of the pool, whose vdevs are those of `topology`.
    pub(in crate::pool) fn whole(&self, topology: &Topology) -> PoolConfig {
        topology.config(&self.config)
    }

    /// What it tells beside the vdevs.
    pub(in crate::pool) fn facts(&self) -> PoolConfig {
        self.config.clone()
    }

    /// Whether the configuration says that vdevs have ZAPs: those of older software, which knows of none, does not.
    pub(in crate::pool) fn has_vdev_zaps(&self) -> bool {
        self.config.has_per_vdev_zaps
    }

    /// All vdevs have ZAPs.
    pub(in crate::pool) fn gets_vdev_zaps(&mut self) {
        self.config.has_per_vdev_zaps = true;
        self.dirty = true;
    }

    /// The vdevs have changed.
    pub(in crate::pool) fn topology_changed(&mut self) {
        self.dirty = true;
    }

    pub(in crate::pool) fn apply(&mut self, change: ConfigChange) {
        let text = |text: String| (!text.is_empty() && text != "off").then_some(text);
        match change {
            ConfigChange::State(state) => self.config.state = Some(state),
            ConfigChange::Name(name) => self.config.name = Some(name),
            ConfigChange::Guid(guid) => self.config.pool_guid = Some(guid),
            ConfigChange::Comment(comment) => self.config.comment = text(comment),
            ConfigChange::Compatibility(files) => self.config.compatibility = text(files),
            ConfigChange::Split(split) => self.config.split = split,
        }
        self.dirty = true;
    }
}

/// Writes a packed list into object `id`, whose bonus tells its length.
pub(in crate::pool) fn write_packed(
    change: &MosChange<'_>,
    id: ObjectId,
    list: &cenote_format::NvList,
) -> Result<()> {
    let mut data = list.encode(Encoding::Xdr)?;
    let length = data.len() as u64;
    data.resize(data.len().next_multiple_of(PACKED_UNIT), 0);
    let object = change.mos.object(id)?;
    object.write(change.tx, 0, &data)?;
    object.free_range(change.tx, data.len() as u64, u64::MAX)?;
    object.set_bonus(change.tx, object.dnode().bonus_type, &length.to_le_bytes())
}

impl LivePool {
    /// Changes the configuration from the next group on. The group is to be asked for.
    pub fn change_config(&self, change: ConfigChange) {
        self.config.lock().apply(change);
    }

    /// The same once the task under way has succeeded.
    pub(in crate::pool) fn change_config_when_done(&self, change: ConfigChange) {
        self.when_done(move |live| live.change_config(change));
    }

    /// Puts `vdevs` in the place of the pool's. Whoever begins something takes those from then on; the
    /// group being written records them.
    pub(in crate::pool) fn take_vdevs(&self, vdevs: Arc<VdevTree>) {
        self.io.pipe.vdev_handle().exchange(vdevs);
        self.config.lock().topology_changed();
    }

    /// The same with what `change` makes of the topology, none of whose leaves are new.
    ///
    /// # Errors
    /// Those of `change`; nothing is changed then.
    pub(in crate::pool) fn change_topology(
        &self,
        change: impl FnOnce(&Topology) -> std::result::Result<Topology, VdevError>,
    ) -> Result<()> {
        let handle = self.io.pipe.vdev_handle();
        handle.change(|vdevs| vdevs.with_topology(change(vdevs.topology())?))?;
        self.config.lock().topology_changed();
        Ok(())
    }

    /// Has the configuration of `leaves` say what `mark` makes of it, when the task under way has succeeded.
    pub(in crate::pool) fn mark_leaves(
        &self,
        change: &MosChange<'_>,
        leaves: Vec<Guid>,
        mark: impl Fn(&mut VdevConfig) + Send + 'static,
    ) {
        if leaves.is_empty() {
            return;
        }
        let txg = change.tx.txg();
        self.when_done(move |live| {
            let marked = live.change_topology(|topology| Ok(topology.marked(&leaves, txg, &mark)));
            if let Err(error) = marked {
                tracing::warn!(%error, "the configuration does not tell of a resilver");
            }
        });
    }

    /// Writes the configuration into the metadata if it changed.
    pub(in crate::pool) fn write_config(&self, change: &MosChange<'_>) -> Result<()> {
        let config = {
            let mut state = self.config.lock();
            if !state.dirty {
                return Ok(());
            }
            state.dirty = false;
            state.labels = true;
            state.config.txg = Some(change.tx.txg());
            state.whole(self.vdevs().topology())
        };
        let directory = Table::open(change.mos, OBJECT_DIRECTORY)?
            .ok_or_else(|| Error::corrupt("the pool has no object directory"))?;
        let id = directory
            .number("config")?
            .ok_or_else(|| Error::corrupt("the pool has no configuration object"))?;
        write_packed(change, ObjectId(id), &config.to_nvlist())
    }

    /// Writes what makes group `uberblock.txg` the pool's newest.
    pub(in crate::pool) fn write_roots(&self, uberblock: &Uberblock) -> Result<()> {
        let vdevs = &self.vdevs();
        let (config, all) = {
            let mut state = self.config.lock();
            let all = std::mem::take(&mut state.labels);
            (state.facts(), all)
        };
        let written = if all {
            let config = PoolConfig { txg: Some(uberblock.txg), ..config };
            labels::write_labels(vdevs, &config, uberblock)
        } else {
            labels::write_uberblock(vdevs, uberblock)
        };
        match &written {
            Err(_) if all => self.config.lock().labels = true,
            Ok(()) if all => vdevs.events().system("config_sync", Vec::new()),
            _ => {}
        }
        written
    }

    /// Writes the labels in the next group.
    pub(in crate::pool) fn dirty_labels(&self) {
        self.config.lock().labels = true;
    }
}

/// The first group of a new pool.
pub(in crate::pool) const FIRST_TXG: Txg = Txg(4);
