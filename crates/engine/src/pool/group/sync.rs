//! Writing one transaction group.
//!
//! Chapter 06, section 22. Order: blocks of datasets; changes of the metadata (snapshots take the
//! sets as just written); the meta object set, again until its own space is recorded; then, when
//! every write has ended, flush, sectors that an expansion moves, uberblocks, flush. Invariant: until the uberblocks are on the
//! disks nothing that an older group refers to is overwritten, so that a crash shows the older one.

use std::sync::Arc;

use cenote_codec::checksum::Algorithm as Checksum;
use cenote_format::object_type::SwapClass;
use cenote_format::objset::ObjsetKind;
use cenote_format::uberblock::{Reflow, Uberblock};
use cenote_format::{BlockPointer, Dnode, Txg};

use super::dataset::LiveDataset;
use super::hooks::{GroupHooks, MosLedger};
use super::outage::PatientAddresses;
use super::store::MosStore;
use super::{Answers, LivePool, Task};
use crate::dataset::change::{DatasetLedger, Delta, MosChange, OBJECT_DIRECTORY};
use crate::dataset::{Written, charge_owners};
use crate::object::{
    Ledger, SetToSync, SyncContext, Synced, SyncedObject, sync_objects, sync_roots,
};
use crate::pipe::{BlockWriter, ObjsetPolicy, Rules, WriteFeatures, dedup_checksum};
use crate::txg::Tx;
use crate::vdev::VdevTree;
use crate::{Error, Result};

/// Passes over the meta object set after which it should long have come to rest.
const PASSES: u32 = 64;
/// Most bytes of memory that writing datasets together takes beside their data.
const TOGETHER_MOST: u64 = 512 << 20;

pub(in crate::pool) fn seconds_now() -> u64 {
    crate::environment::now().as_secs()
}

impl LivePool {
    /// Writes group `txg`, which is closed, and does `tasks` in it.
    pub(in crate::pool) fn write_group(
        &self,
        txg: Txg,
        tasks: Vec<Task>,
        answers: &mut Answers,
    ) -> Result<()> {
        let tx = Tx::detached(txg);
        let hooks = GroupHooks::new(self, txg);
        let version = self.pool.uberblock().version;
        let name = self.pool.name().to_owned();
        let change = MosChange::new(&self.mos, &tx, seconds_now(), version, &name, &hooks)?
            .with_names(self.pool.names().clone());
        let has_orders = !tasks.is_empty();
        let (root, written) = self.write_blocks(&change, &hooks, tasks, answers)?;
        let vdevs = self.vdevs();
        let moved = self.move_some(&vdevs);
        let uberblock = self.write_uberblock(root, moved.word, &change)?;
        self.have_moved(moved);
        self.show(uberblock, written, &change, has_orders)?;
        hooks.forget_outdated();
        Ok(())
    }

    /// Writes all blocks of a group, and does its tasks: the root of the meta object set, and the
    /// datasets written. All that an uberblock with that root leads to is on the disks then.
    fn write_blocks(
        &self,
        change: &MosChange<'_>,
        hooks: &GroupHooks<'_>,
        tasks: Vec<Task>,
        answers: &mut Answers,
    ) -> Result<(BlockPointer, WrittenDatasets)> {
        let txg = change.tx.txg();
        let mut writer = self.block_writer(change)?;
        let vdevs = self.vdevs();
        let group = Group { live: self, txg, writer: &writer, vdevs: &vdevs, change };
        let mut written = WrittenDatasets::new();

        self.dedup.begin(change)?;
        self.refer_to_cloned(txg)?;
        let (early, tasks) = tasks.into_iter().partition(|task: &Task| task.early);
        self.run_tasks(early, change, hooks, answers)?;
        group.write_datasets(self.dirty_datasets(txg), &mut written)?;
        self.record_receives(change)?;
        self.run_tasks(tasks, change, hooks, answers)?;

        // Features may have been enabled, and devices added.
        writer.rules = Arc::new(self.rules(change)?);
        *self.shared_rules.write() = Some(writer.rules.clone());
        let vdevs = self.vdevs();
        let group = Group { live: self, txg, writer: &writer, vdevs: &vdevs, change };
        let fresh = std::mem::take(&mut *self.fresh.lock());
        group.write_datasets(fresh, &mut written)?;
        self.free_destroyed(change, hooks);
        self.go_on_discarding(change, txg)?;
        self.go_on_evacuating(change, hooks)?;
        self.go_on_expanding(change)?;
        self.go_on_condensing(change, hooks);
        self.go_on_scanning(change, hooks);
        self.go_on_rebuilding(change, hooks);
        self.go_on_sweeping(change, hooks);
        self.log_errors(change, hooks);
        Ok((group.write_mos_and_flush()?, written))
    }

    /// What writes the blocks of a group.
    fn block_writer(&self, change: &MosChange<'_>) -> Result<BlockWriter> {
        let (allocator, outage) = (self.allocator.clone(), self.outage.clone());
        Ok(BlockWriter {
            addresses: Arc::new(PatientAddresses { allocator, outage }),
            submit: self.submit.clone(),
            workers: self.workers.clone(),
            rules: Arc::new(self.rules(change)?),
            dedup: Some(self.dedup.clone()),
        })
    }

    /// Writes the uberblock that leads to `root`: from then on the group is what the pool holds.
    fn write_uberblock(
        &self,
        root: BlockPointer,
        reflow: Reflow,
        change: &MosChange<'_>,
    ) -> Result<Uberblock> {
        let mut uberblock = Uberblock {
            txg: change.tx.txg(),
            root,
            timestamp: change.now,
            guid_sum: self.vdevs().topology().guid_sum(),
            checkpoint_txg: 0,
            reflow,
            ..self.pool.uberblock()
        };
        self.outage.wait_while_held()?;
        self.mark_activity(&mut uberblock);
        self.die_if_asked();
        while let Err(error) = self.write_roots(&uberblock) {
            if error.kind() != crate::ErrorKind::Io {
                return Err(error);
            }
            self.outage.pause(&error)?;
        }
        self.outage.over();
        Ok(uberblock)
    }

    /// Shows everybody the group of `uberblock`, which is on the disks.
    fn show(
        &self,
        uberblock: Uberblock,
        written: WrittenDatasets,
        change: &MosChange<'_>,
        has_orders: bool,
    ) -> Result<()> {
        let txg = uberblock.txg;
        for (dataset, synced) in written {
            dataset.set().commit(synced)?;
            dataset.log_synced(txg);
        }
        self.dirty.written(txg);
        if cfg!(debug_assertions) {
            self.assert_written(txg);
        }
        self.allocator.sync_done(txg)?;
        let config = self.config.lock().whole(self.vdevs().topology());
        let objects = std::mem::take(&mut *self.written.lock());
        let names = change.take_renamed();
        self.pool.publish(uberblock, config, Written { objects: objects.clone(), names })?;
        self.show_changed_closed();
        self.settle_promises(change, txg, &objects, has_orders);
        self.part_with_devices();
        self.use_grown()?;
        self.wake_condensing();
        Ok(())
    }

    /// Nothing of group `txg` is left in memory only, marked or not: it would be lost without a word.
    fn assert_written(&self, txg: Txg) {
        debug_assert!(!self.mos.is_dirty(txg), "metadata changed after group {txg} was written");
        for (id, dataset) in &*self.datasets.lock() {
            let is_left = dataset.set().is_dirty(txg);
            debug_assert!(!is_left, "changes of dataset {} are not in group {txg}", id.0);
        }
    }

    fn rules(&self, change: &MosChange<'_>) -> Result<Rules> {
        let mut features = WriteFeatures { embedded_data: false, hole_birth: false, lz4: false };
        // A pool that is being created has no features yet.
        if change.mos.committed_root().is_hole() && change.mos.object(OBJECT_DIRECTORY).is_err() {
            return Ok(Rules { features, units: self.units(), salt: self.io.pipe.checksum_salt() });
        }
        features.embedded_data = change.is_enabled("embedded_data")?;
        features.hole_birth = change.is_active("hole_birth")?;
        features.lz4 = change.is_active("lz4_compress")?;
        Ok(Rules { features, units: self.units(), salt: self.io.pipe.checksum_salt() })
    }

    /// How often writing groups has waited for blocks to be written: once a group, unless devices fail.
    pub fn write_waits(&self) -> u64 {
        self.submit.waits()
    }
}

/// Datasets that a group has written, and what becomes of them when it is on the disks.
type WrittenDatasets = Vec<(Arc<LiveDataset>, Synced)>;

/// One group being written.
struct Group<'a> {
    live: &'a LivePool,
    txg: Txg,
    writer: &'a BlockWriter,
    vdevs: &'a VdevTree,
    change: &'a MosChange<'a>,
}

impl Group<'_> {
    /// Writes datasets together: as many at a time as there is memory for what they write and free.
    fn write_datasets(
        &self,
        datasets: Vec<Arc<LiveDataset>>,
        written: &mut WrittenDatasets,
    ) -> Result<()> {
        let limit = (self.live.options.dirty_limit / 2).min(TOGETHER_MOST);
        let (mut together, mut bytes) = (Vec::new(), 0_u64);
        for dataset in datasets {
            bytes = bytes.saturating_add(dataset.set().memory_to_sync(self.txg));
            together.push(dataset);
            if bytes > limit {
                self.write_together(std::mem::take(&mut together), written)?;
                bytes = 0;
            }
        }
        self.write_together(together, written)
    }

    fn write_together(
        &self,
        datasets: Vec<Arc<LiveDataset>>,
        written: &mut WrittenDatasets,
    ) -> Result<()> {
        let mut parts = Vec::with_capacity(datasets.len());
        for dataset in &datasets {
            dataset.sync_log(self.change, self.txg)?;
            parts.push((dataset.policy(), DatasetLedger::new(self.change, dataset.id())?));
        }
        let sets = datasets.iter().zip(&parts).map(|(dataset, (policy, ledger))| SetToSync {
            set: dataset.set(),
            context: self.context(1, policy, ledger),
        });
        let sets: Vec<SetToSync<'_>> = sets.collect();
        let mut objects = sync_objects(&sets)?;
        for ((dataset, (policy, _)), objects) in datasets.iter().zip(&parts).zip(&mut objects) {
            self.activate(dataset, policy, objects)?;
            let set = dataset.set();
            if set.kind() == ObjsetKind::Zfs {
                charge_owners(set, self.change.tx, set.flags(), objects)?;
            }
        }
        let synced = sync_roots(&sets, objects)?;
        for ((dataset, (_, ledger)), synced) in datasets.into_iter().zip(parts).zip(synced) {
            ledger.apply(self.change, Some(synced.root()))?;
            written.push((dataset, synced));
        }
        Ok(())
    }

    fn context<'a>(
        &'a self,
        pass: u32,
        policy: &'a ObjsetPolicy,
        ledger: &'a dyn Ledger,
    ) -> SyncContext<'a> {
        let (writer, vdevs, txg) = (self.writer, self.vdevs, self.txg);
        SyncContext { writer, vdevs, txg, pass, policy, ledger }
    }

    /// Activates the features that what was written needs.
    fn activate(
        &self,
        dataset: &LiveDataset,
        policy: &ObjsetPolicy,
        objects: &[SyncedObject],
    ) -> Result<()> {
        let new = || objects.iter().filter_map(|object| object.new.as_ref());
        let written = !objects.is_empty();
        let dedup = dedup_checksum(policy.dedup)?;
        // The set's root is written even if no object was.
        let hashed = |checksum: Checksum| {
            policy.checksum == u64::from(checksum.id()) || written && dedup == Some(checksum)
        };
        // Whoever sends them says so, or it is no ZAP that anybody reads.
        let microzaps = new().any(is_large_microzap) && self.change.is_enabled("large_microzap")?;
        let needed = [
            ("large_blocks", new().any(|dnode| dnode.block_size() > 128 << 10)),
            ("large_microzap", microzaps),
            ("large_dnode", new().any(|dnode| dnode.extra_slots > 0)),
            ("longname", dataset.set().has_long_names()),
            ("zilsaxattr", dataset.log().is_some_and(|log| log.has_xattr_records())),
            ("zstd_compress", written && policy.compression & 0x7f == 16),
            ("sha512", hashed(Checksum::Sha512)),
            ("skein", hashed(Checksum::Skein)),
            ("edonr", hashed(Checksum::Edonr)),
            ("blake3", hashed(Checksum::Blake3)),
        ];
        for (feature, _) in needed.iter().filter(|(_, needed)| *needed) {
            self.change.activate_feature(dataset.id(), feature)?;
        }
        Ok(())
    }

    /// Writes the meta object set and waits until all blocks of the group are on the disks; its root.
    fn write_mos_and_flush(&self) -> Result<BlockPointer> {
        let mut pass = 0;
        loop {
            let root = self.write_mos(&mut pass)?;
            self.live.submit.flush(self.vdevs)?;
            // The last writes, or the flush, may have failed on some device.
            if !self.live.has_missed(self.vdevs) {
                return Ok(root);
            }
        }
    }

    /// Writes the meta object set until nothing of it changes any more, in passes after `pass`; its
    /// root.
    fn write_mos(&self, pass: &mut u32) -> Result<BlockPointer> {
        let mos = self.change.mos;
        let ledger = MosLedger::new(self.change.meter().clone());
        let policy = ObjsetPolicy::mos();
        let mut store = MosStore::new(self.change);
        while *pass < PASSES {
            *pass += 1;
            let (gained, killed) = ledger.take();
            for pointer in &killed {
                self.change.hooks.free(pointer)?;
            }
            if gained != Delta::default() {
                self.change.charge_mos(gained)?;
            }
            self.live.dedup.sync(self.change)?;
            self.live.clones.sync(self.change)?;
            self.live.write_missed(self.change)?;
            self.live.write_config(self.change)?;
            self.live.allocator.sync(&mut store, self.txg, *pass)?;
            if !mos.needs_sync(self.txg) {
                return Ok(mos.committed_root());
            }
            let sets = [SetToSync { set: mos, context: self.context(*pass, &policy, &ledger) }];
            let objects = sync_objects(&sets)?;
            self.live.written.lock().extend(objects.iter().flatten().map(SyncedObject::id));
            let written = sync_roots(&sets, objects)?;
            // The next pass reads what this one handed in.
            written.into_iter().try_for_each(|written| mos.commit(written))?;
        }
        let reason = format!("the metadata of group {} did not come to rest", self.txg);
        Err(Error::bug(reason))
    }
}

/// A ZAP in one block larger than those had before that feature; other ZAPs have no blocks so large.
fn is_large_microzap(dnode: &Dnode) -> bool {
    dnode.object_type.swap_class() == SwapClass::Zap && dnode.block_size() > 128 << 10
}
