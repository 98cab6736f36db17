//! Spreading a RAID-Z vdev over one device more: what is asked before, and the beginning.
//!
//! Chapter 08, sections 14 and 21.1. What follows is a job (`group/expanding`). Invariant: labels of the device that
//! comes cannot be imported before the group that takes it in is on the disks.

use std::sync::Arc;

use cenote_format::config::{PoolConfig, VdevConfig, VdevKind};
use cenote_format::{Guid, Txg};

use super::add::Joined;
use super::create::random;
use super::evacuate::is_removing;
use super::members::{check_newcomer, device_of, name_of};
use crate::alloc::{SpaceSource, SpaceStore};
use crate::dataset::change::MosChange;
use crate::pool::group::expanding::{ACTIVE, COPIED, END, START, STATE};
use crate::pool::group::vdev_zaps::{vdev_zap, zap_map};
use crate::pool::group::{LivePool, MosStore, seconds_now};
use crate::pool::labels;
use crate::vdev::raidz::BOOT_TO_DATA;
use crate::vdev::{LeafOpener, VdevTree};
use crate::{Error, ErrorKind, Result};

/// The feature's guid.
const FEATURE: &str = "org.openzfs:raidz_expansion";

/// What is refused while a vdev is being expanded.
pub(super) fn expansion_runs() -> Error {
    Error::new(ErrorKind::Busy, "raidz expansion in progress")
}

/// The pool's vdevs with `leaf` as one more child of `raidz`.
fn tree_with(
    others: &Arc<VdevTree>,
    raidz: Guid,
    leaf: &VdevConfig,
    by: &Arc<dyn LeafOpener>,
    txg: Txg,
) -> Result<VdevTree> {
    let joined = Joined::new([leaf.guid], by, others);
    let topology = others.topology().expand(raidz, leaf.clone(), txg)?;
    let tree = others.succeeded_by(topology, Arc::new(joined))?;
    check_newcomer(&tree, leaf.guid)?;
    Ok(tree)
}

impl LivePool {
    /// The vdev of this guid is a RAID-Z at the top.
    pub(super) fn is_raidz(&self, guid: Guid) -> bool {
        let vdevs = self.vdevs();
        vdevs.topology().find(guid).is_some_and(|node| node.kind == VdevKind::Raidz)
    }

    /// Begins to spread `raidz` over `leaf`, too, which `opener` opens.
    pub(super) fn expand(
        &self,
        raidz: Guid,
        mut leaf: VdevConfig,
        opener: Arc<dyn LeafOpener>,
    ) -> Result<()> {
        leaf.guid = Guid(random()?);
        self.check_expandable(raidz)?;
        // What cannot be opened is told before a group waits for it; the device stays open meanwhile.
        let held = tree_with(&self.vdevs(), raidz, &leaf, &opener, Txg(0))?;
        let begun = self.change(move |live, change| live.expand_now(change, raidz, leaf, &opener));
        drop(held);
        begun
    }

    fn check_expandable(&self, raidz: Guid) -> Result<()> {
        if !self.feature_enabled(FEATURE) {
            let reason = "raidz_expansion feature must be enabled in order to attach a device to \
                          raidz";
            return Err(Error::unsupported(reason));
        }
        let vdevs = self.vdevs();
        if vdevs.expanding().is_some() {
            return Err(expansion_runs());
        }
        let topology = vdevs.topology();
        let missing = || Error::not_found("no such device in pool");
        let id = topology.top_of(raidz).ok_or_else(missing)?;
        let node = topology.find(raidz).ok_or_else(missing)?;
        let width = (node.children().len() as u64).saturating_add(1);
        let shift = vdevs.ashift(id).unwrap_or(0);
        if width.checked_shl(shift).is_none_or(|row| row > BOOT_TO_DATA) {
            return Err(Error::unsupported("can only attach to mirrors and top-level disks"));
        }
        let status = vdevs.status();
        let own = status.as_ref().and_then(|root| root.find(raidz));
        let is_well = own.is_some_and(|own| {
            let is_leaf = |child: &crate::vdev::VdevStatus| child.config.kind.has_device();
            own.children.iter().all(|child| is_leaf(child) && child.condition.state.is_readable())
        });
        if is_well {
            return Ok(());
        }
        // OpenZFS's words.
        let reason = "raidz vdev has devices that are are offline or being replaced";
        Err(Error::new(ErrorKind::Busy, reason))
    }

    fn expand_now(
        &self,
        change: &MosChange<'_>,
        raidz: Guid,
        mut leaf: VdevConfig,
        opener: &Arc<dyn LeafOpener>,
    ) -> Result<()> {
        Self::refuse_checkpoint(change)?;
        if is_removing(change)? {
            return Err(Error::new(ErrorKind::Busy, "device removal in progress"));
        }
        self.check_expandable(raidz)?;
        let (txg, others) = (change.tx.txg(), self.vdevs());
        if let Some(map) = zap_map(change)? {
            leaf.leaf_zap = Some(vdev_zap(change, map)?);
        }
        let tree = tree_with(&others, raidz, &leaf, opener, txg)?;
        let id = tree.topology().top_of(raidz).unwrap_or(0);
        let top = tree.topology().top(id).cloned().unwrap_or_default();
        let zap = top.top_zap.ok_or_else(|| Error::corrupt(format!("vdev {id} has no ZAP")))?;
        let facts = PoolConfig { txg: Some(Txg(0)), ..self.config.lock().facts() };
        let label = tree
            .topology()
            .label(&facts, leaf.guid)
            .ok_or_else(|| Error::bug("a new device is not in the configuration"))?;
        let device = device_of(&tree, leaf.guid)?.device;
        self.refuse_member(&*device)?;
        labels::initialise_devices(&[(device, label)], &self.pool.uberblock())?;
        change.add_reference("raidz_expansion")?;
        let mut store = MosStore::new(change);
        for key in [END, COPIED] {
            if store.zap_number(zap, key)?.is_some() {
                store.zap_remove(zap, key)?;
            }
        }
        store.zap_set(zap, STATE, ACTIVE)?;
        store.zap_set(zap, START, seconds_now())?;
        let width = top.children().len();
        let words = format!("{} vdev {id} new width {width}", self.pool.name());
        change.log_event("raidz vdev expansion started", None, &words)?;
        let old = format!("raidz{}-{id}", top.nparity.unwrap_or(1));
        let words = format!("attach vdev={} to vdev={old}", name_of(&leaf));
        change.log_event("vdev attach", None, &words)?;
        self.when_done(move |live| {
            live.take_vdevs(Arc::new(tree));
            live.expansion_begins();
        });
        self.tell_of("vdev_attach", leaf.guid);
        Ok(())
    }
}
