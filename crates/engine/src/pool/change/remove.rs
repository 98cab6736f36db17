//! Taking devices out of a pool that is open for writing: logs, spares, cache devices.
//!
//! Chapter 01, sections 7.5, 7.8 and 17; chapter 03, sections 7 to 9. Invariant: a log device goes
//! in a group after the last that had anything on it; its labels are made useless only when the
//! group without it is on the disks. The ids of the others stay: a hole keeps its place.

use std::sync::Arc;

use cenote_device::Device;
use cenote_format::config::{PoolConfig, VdevConfig, VdevKind};
use cenote_format::nvlist::Value;
use cenote_format::{Guid, NvList, ObjectId, Txg};

use super::add::AuxiliaryKind;
use super::evacuate::{BUSY, Passive};
use crate::dataset::Table;
use crate::dataset::change::{MosChange, OBJECT_DIRECTORY};
use crate::events::string;
use crate::pool::found_labels::read_labels;
use crate::pool::group::LiveDataset;
use crate::pool::group::LivePool;
use crate::pool::group::MosStore;
use crate::pool::group::config::write_packed;
use crate::pool::group::vdev_zaps::free_objects_of;
use crate::pool::leaves::open_exclusive;
use crate::pool::{labels, packed};
use crate::vdev::{AllocationClass, VdevTree};
use crate::{Error, ErrorKind, Result};

/// Largest list of spares or cache devices that is read.
const LIST_MAX: u64 = 16 << 20;
/// What is said of what no device of its kind can do.
const NOT_SUPPORTED: &str = "operation not supported on this type of pool";
/// Groups within which what was freed on a log device is released.
const GROUPS: usize = 8;

impl LivePool {
    /// Takes a log device, spare or cache device out of the pool, or begins to empty a vdev that holds
    /// data.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the pool has no such device; [`ErrorKind::Busy`] if a log device
    /// holds a log that was not replayed, or the spare is in use; [`ErrorKind::Unsupported`] if the spare is
    /// distributed over a dRAID; those of removing devices that hold
    /// data. Nothing is changed then.
    pub fn remove_vdev(&self, guid: Guid) -> Result<()> {
        for kind in [AuxiliaryKind::Spare, AuxiliaryKind::Cache] {
            if let Some(entry) = self.listed(kind, guid)? {
                return self.remove_auxiliary(kind, guid, &entry);
            }
        }
        let vdevs = self.vdevs();
        let topology = vdevs.topology();
        let missing = || Error::not_found("no such device in pool");
        let id = topology.top_of(guid).ok_or_else(missing)?;
        if topology.top(id).is_none_or(|top| top.guid != guid) {
            return Err(Error::unsupported(NOT_SUPPORTED));
        }
        match topology.class(id) {
            AllocationClass::Log => self.remove_log(id),
            _ => self.evacuate(id),
        }
    }

    /// Empties log vdev `id` and leaves a hole in its place.
    fn remove_log(&self, id: u32) -> Result<()> {
        let passive = Passive::make(&self.allocator, id);
        self.empty_log(id)?;
        let before = self.change(move |live, change| {
            Self::refuse_checkpoint(change)?;
            let before = live.leave_hole(change, id)?;
            live.when_done(|_| passive.stay());
            Ok(before)
        })?;
        // The pool has forgotten them: whether they learn of it does not matter to it.
        self.forget_devices(&before, id);
        Ok(())
    }

    /// Has all intent logs in use begin anew, where new blocks go now.
    pub(super) fn renew_logs(&self) -> Result<()> {
        let open: Vec<Arc<LiveDataset>> = self.datasets.lock().values().cloned().collect();
        open.iter().filter_map(|dataset| dataset.log()).try_for_each(|log| log.renew())
    }

    /// Waits until nothing is on log vdev `id` any more.
    pub(super) fn empty_log(&self, id: u32) -> Result<()> {
        self.renew_logs()?;
        for _ in 0..GROUPS {
            if self.allocator.is_empty(id) == Some(true) {
                return Ok(());
            }
            self.sync()?;
        }
        Err(Error::new(ErrorKind::Busy, BUSY))
    }

    /// Puts a hole in place of log vdev `id`, and frees what the metadata has of it. The vdevs before.
    fn leave_hole(&self, change: &MosChange<'_>, id: u32) -> Result<Arc<VdevTree>> {
        let before = self.vdevs();
        let topology = before.topology().leave_hole(id, change.tx.txg())?;
        let missing = || Error::bug("a vdev that has left a hole is not there");
        let gone = before.topology().top(id).cloned().ok_or_else(missing)?;
        let tree = Arc::new(before.with_topology(topology)?);
        let mut store = MosStore::new(change);
        self.allocator.remove_vdev(&mut store, id)?;
        free_objects_of(change, &mut store, gone.walk())?;
        let path = gone.path.clone().unwrap_or_else(|| "-".to_owned());
        let words = format!("{} vdev (log) {path}", self.pool.name());
        change.log_event("vdev remove", None, &words)?;
        self.tell_of_gone("vdev_remove_dev", gone.guid);
        self.when_done(move |live| {
            live.allocator.forget_vdev(id);
            live.forget_missed(&gone);
            live.take_vdevs(tree);
        });
        Ok(before)
    }

    /// Gives devices of vdev `id` of those before labels that cannot be imported.
    fn forget_devices(&self, before: &VdevTree, id: u32) {
        let topology = before.topology().leaving(id);
        let facts = PoolConfig { txg: Some(Txg(0)), ..self.config.lock().facts() };
        for leaf in before.devices().into_iter().filter(|leaf| leaf.top == id) {
            let Some(own) = topology.label(&facts, leaf.guid) else { continue };
            self.forget_device(&leaf.device, own);
        }
    }

    /// Gives a device that has left `label`.
    pub(super) fn forget_device(&self, device: &Arc<dyn Device>, label: PoolConfig) {
        let device = std::slice::from_ref(&(device.clone(), label)).to_vec();
        if let Err(error) = labels::initialise_devices(&device, &self.pool.uberblock()) {
            tracing::warn!(%error, "a removed device keeps its labels");
        }
    }

    /// The entries of a list of spares or cache devices, and its object.
    pub(super) fn entries(&self, kind: AuxiliaryKind) -> Result<Option<(ObjectId, Vec<NvList>)>> {
        let Some(directory) = Table::open(&self.mos, OBJECT_DIRECTORY)? else { return Ok(None) };
        let Some(id) = directory.number(kind.list())?.filter(|id| *id != 0) else {
            return Ok(None);
        };
        let list = packed::read(&self.mos, ObjectId(id), LIST_MAX)?;
        let entries = list.nvlist_array(kind.list()).unwrap_or(&[]).to_vec();
        Ok(Some((ObjectId(id), entries)))
    }

    fn listed(&self, kind: AuxiliaryKind, guid: Guid) -> Result<Option<NvList>> {
        let entries = self.entries(kind)?.map(|(_, entries)| entries).unwrap_or_default();
        Ok(entries.into_iter().find(|entry| entry.u64("guid") == Some(guid.0)))
    }

    /// Strikes a device off the list of spares or cache devices: its path.
    pub(super) fn unlist(
        &self,
        change: &MosChange<'_>,
        kind: AuxiliaryKind,
        guid: Guid,
    ) -> Result<Option<String>> {
        let gone = || Error::not_found("no such device in pool");
        let (id, mut entries) = self.entries(kind)?.ok_or_else(gone)?;
        let is_it = |entry: &NvList| entry.u64("guid") == Some(guid.0);
        let place = entries.iter().position(is_it).ok_or_else(gone)?;
        let path = entries.remove(place).string_lossy("path");
        let mut list = NvList::new();
        list.push(kind.list(), entries);
        write_packed(change, id, &list)?;
        Ok(path)
    }

    /// Takes a device off the list of spares or cache devices.
    fn remove_auxiliary(&self, kind: AuxiliaryKind, guid: Guid, entry: &NvList) -> Result<()> {
        if self.vdevs().topology().find(guid).is_some() {
            return Err(Error::new(ErrorKind::Busy, BUSY));
        }
        // Its room is set aside in the dRAID for good: nothing could bring it back.
        if VdevConfig::from_nvlist(entry)?.kind == VdevKind::DistributedSpare {
            return Err(Error::unsupported(NOT_SUPPORTED));
        }
        let path = self.change(move |live, change| {
            let path = live.unlist(change, kind, guid)?;
            let shown = path.as_deref().unwrap_or("-");
            let words = format!("{} vdev ({}) {shown}", live.pool.name(), kind.name());
            change.log_event("vdev remove", None, &words)?;
            let mut members = vec![("vdev_guid", Value::from(guid.0))];
            members.extend(path.as_deref().map(|path| ("vdev_path", string(path))));
            live.tell("vdev_remove_aux", members);
            Ok(path)
        })?;
        let Some(path) = path else { return Ok(()) };
        match open_exclusive(path.as_ref()) {
            // Another device may have its name by now, or another pool share it.
            Ok(device) if !is_labelled(&*device, guid) => {
                tracing::warn!(
                    path,
                    "what is there now keeps its labels: they are not those of what was removed"
                );
            }
            Ok(device) => {
                if let Err(error) = labels::clear_labels(&device) {
                    tracing::warn!(%error, "a removed device keeps its labels");
                }
            }
            Err(error) => tracing::warn!(%error, "a removed device keeps its labels"),
        }
        Ok(())
    }
}

/// Whether all labels of a device are those of the device `guid`.
fn is_labelled(device: &dyn Device, guid: Guid) -> bool {
    let labels = read_labels(device).unwrap_or_default();
    labels.iter().filter_map(|found| found.config.guid).all(|own| own == guid)
}
