//! Making datasets, clones, and heads that go back: what is written into them in the group under way.
//!
//! Invariant: a head that takes over the content of a snapshot begins with an intent log of its own.

use std::sync::Arc;

use cenote_format::objset::{
    FLAG_PROJECTQUOTA_COMPLETE, FLAG_USERACCOUNTING_COMPLETE, FLAG_USEROBJACCOUNTING_COMPLETE,
    ObjsetKind, ZIL_HEADER,
};
use cenote_format::zil::Header as LogHeader;
use cenote_format::{ObjectId, Txg};

use super::keys::Encryption;
use crate::dataset::change::{MadeDataset, MosChange, NewDataset};
use crate::keys::DatasetKeys;
use crate::object::ObjectSet;
use crate::pipe::{Decryptor, Encryptor, ObjsetPolicy, ReadContext};
use crate::pool::group::{LiveDataset, LivePool, sealed_policy};
use crate::txg::Tx;
use crate::{Error, ErrorKind, Result};

impl LivePool {
    /// Makes a dataset whose object set `fill` fills, in the group being written. For work given to
    /// [`LivePool::change`]. Below an encrypted dataset it is encrypted too.
    pub fn make_dataset(
        &self,
        change: &MosChange<'_>,
        new: &NewDataset<'_>,
        kind: ObjsetKind,
        fill: impl FnOnce(&ObjectSet, &Tx) -> Result<()>,
    ) -> Result<MadeDataset> {
        self.make_encrypted_dataset(change, new, &Encryption::Inherited, kind, fill)
    }

    /// Makes an encrypted dataset whose key is not known here, of which `seals` seals what is written. For work
    /// given to [`LivePool::change`].
    pub fn make_sealed_dataset(
        &self,
        change: &MosChange<'_>,
        new: &NewDataset<'_>,
        kind: ObjsetKind,
        seals: Arc<dyn Encryptor>,
    ) -> Result<MadeDataset> {
        let made = change.create_dataset(new)?;
        let objset = made.dataset.0;
        let context = ReadContext { objset, sealed: true, ..ReadContext::default() };
        let set = ObjectSet::new_live(&self.io, context, kind);
        let policy = ObjsetPolicy { copies: 1, encryptor: Some(seals), ..ObjsetPolicy::mos() };
        self.fresh.lock().push(LiveDataset::new(made.dataset, set, policy));
        Ok(made)
    }

    /// Makes a clone, in the group being written. For work given to [`LivePool::change`].
    pub fn clone_dataset(
        &self,
        change: &MosChange<'_>,
        new: &NewDataset<'_>,
    ) -> Result<MadeDataset> {
        let origin = new.origin.ok_or_else(|| Error::invalid("a clone needs an origin"))?;
        self.check_log_header(change, origin)?;
        let made = change.create_dataset(new)?;
        self.clear_log(change, made.dataset)?;
        Ok(made)
    }

    /// Takes a head that is not open back to its newest snapshot, in the group being written. For
    /// work given to [`LivePool::change`].
    pub fn rollback_dataset(&self, change: &MosChange<'_>, head: ObjectId) -> Result<()> {
        self.change_closed(head)?;
        let catalog = change.catalog()?;
        self.check_log_header(change, catalog.dataset_by_id(head)?.phys.previous_snapshot)?;
        self.forget_fresh(head);
        change.rollback(head)?;
        self.clear_log(change, head)?;
        self.when_done(move |live| live.set_unreplayed(head, None));
        self.wake_freeing();
        Ok(())
    }

    /// Refuses what [`Self::clear_log`] could not do for a head with the content of `snapshot`.
    fn check_log_header(&self, change: &MosChange<'_>, snapshot: ObjectId) -> Result<()> {
        let catalog = change.catalog()?;
        let snapshot = catalog.dataset_by_id(snapshot)?;
        let header = catalog.sealed_object_set(&snapshot)?.header().zil_header;
        let is_empty = header.iter().all(|byte| *byte == 0);
        match (!is_empty).then(|| self.dataset_keys(&catalog, &snapshot)) {
            Some(Err(error)) if error.kind() != ErrorKind::KeyNotLoaded => Err(error),
            _ => Ok(()),
        }
    }

    /// The log with this header is none of `head`'s, which got the content of a snapshot in group `txg`.
    fn note_foreign_log(&self, txg: Txg, head: ObjectId, header: &[u8]) -> Result<()> {
        let log = (txg, head, LogHeader::decode(header)?.log);
        let mut all = self.foreign_logs.lock();
        all.retain(|(of, ..)| *of == txg);
        if all.contains(&log) {
            return Ok(());
        }
        all.push(log);
        drop(all);
        self.when_undone(move |live| live.foreign_logs.lock().retain(|known| *known != log));
        Ok(())
    }

    /// A head got the content of a snapshot: the intent log of back then is not its own.
    fn clear_log(&self, change: &MosChange<'_>, head: ObjectId) -> Result<()> {
        let catalog = change.catalog()?;
        let dataset = catalog.dataset_by_id(head)?;
        if dataset.phys.pointer.is_hole() {
            return Ok(());
        }
        let header = catalog.sealed_object_set(&dataset)?.header().zil_header;
        if header.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let keys = match self.dataset_keys(&catalog, &dataset) {
            // No MAC covers the header.
            Err(error) if error.kind() == ErrorKind::KeyNotLoaded => {
                let set = self.sealed_set(&dataset)?;
                self.note_foreign_log(change.tx.txg(), head, &header)?;
                set.set_zil_header(&[0; ZIL_HEADER])?;
                self.fresh.lock().push(LiveDataset::new(head, set, sealed_policy(true)));
                return Ok(());
            }
            keys => keys?,
        };
        let decryptor = keys.clone().map(|keys| keys as Arc<dyn Decryptor>);
        let encryptor = keys.map(|keys| keys as Arc<dyn Encryptor>);
        let context = ReadContext { objset: head.0, decryptor, ..ReadContext::default() };
        let set = ObjectSet::open_live(&self.io, dataset.phys.pointer, context)?;
        self.note_foreign_log(change.tx.txg(), head, &header)?;
        set.set_zil_header(&[0; ZIL_HEADER])?;
        let policy = ObjsetPolicy { copies: 1, encryptor, ..ObjsetPolicy::mos() };
        self.fresh.lock().push(LiveDataset::new(head, set, policy));
        Ok(())
    }

    pub(super) fn fill_dataset(
        &self,
        change: &MosChange<'_>,
        made: MadeDataset,
        kind: ObjsetKind,
        keys: Option<Arc<DatasetKeys>>,
        fill: impl FnOnce(&ObjectSet, &Tx) -> Result<()>,
    ) -> Result<()> {
        let decryptor = keys.clone().map(|keys| keys as Arc<dyn Decryptor>);
        let encryptor = keys.map(|keys| keys as Arc<dyn Encryptor>);
        let objset = made.dataset.0;
        let context = ReadContext { objset, decryptor, ..ReadContext::default() };
        let set = ObjectSet::new_live(&self.io, context, kind);
        if kind == ObjsetKind::Zfs {
            let mut flags = FLAG_USERACCOUNTING_COMPLETE;
            if change.is_enabled("userobj_accounting")? {
                flags |= FLAG_USEROBJACCOUNTING_COMPLETE;
                change.activate_feature(made.dataset, "userobj_accounting")?;
            }
            if change.is_enabled("project_quota")? {
                flags |= FLAG_PROJECTQUOTA_COMPLETE;
                change.activate_feature(made.dataset, "project_quota")?;
            }
            set.set_flags(flags)?;
        }
        fill(&set, change.tx)?;
        // Its properties are not known before it is on the disks; its first blocks are small.
        let policy = ObjsetPolicy { copies: 1, encryptor, ..ObjsetPolicy::mos() };
        self.fresh.lock().push(LiveDataset::new(made.dataset, set, policy));
        Ok(())
    }
}
