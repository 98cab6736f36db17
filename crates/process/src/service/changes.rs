//! How the process reaches a pool to change it, or why it does not.
//!
//! Invariant: files that are mounted follow what is set; the lock of the pool's guid on this machine is held
//! as long as this is.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use cenote_control::changes::{DatasetSettings, NewDataset};
use cenote_control::plan::{PropertySetting, VdevPlan};
use cenote_control::report::{JobReport, UnreplayedLog};
use cenote_device::{HostLock, partition_path};
use cenote_engine::dataset::change::PropertyInput;
use cenote_engine::dataset::{Dataset, Listed, PropertyReader};
use cenote_engine::pool::Pool;
use cenote_engine::pool::change::{DatasetOrders, NewNamed, Newcomer, Parents, SplitPlan};
use cenote_engine::pool::group::{ExpansionProgress, LivePool, RebuildProgress, ScanProgress};
use cenote_engine::pool::leaves::HeldDevices;
use cenote_engine::{Error, ErrorKind, Result};
use cenote_format::master_node::CaseSensitivity;
use cenote_format::objset::ObjsetKind;
use cenote_format::{Guid, ObjectId, Txg};
use cenote_posix::Filesystem;
use cenote_posix::create::NewFilesystem;
use cenote_posix::error::EBUSY;
use cenote_posix::tree::Errno;
use cenote_posix::write::{Quota, put_first_quotas};
use parking_lot::Mutex;

use super::jobs;
use super::settings::{NewSettings, encryption_of, input, number, quota, split_settings};

/// How old the first noted time of a read gets before those of its filesystem are stored.
const ACCESS_TIMES_AGE: Duration = Duration::from_secs(30);

/// How long a pool whose devices answer again may take to go on before who cleared it is answered.
const RESUMED_WITHIN: Duration = Duration::from_secs(4);

/// Files that can be mounted.
pub type Files = Arc<Filesystem>;

/// Who gives an order.
#[derive(Clone, Copy, Debug)]
pub struct Given<'a> {
    /// The command line, which goes into the history with what it changes.
    pub command: Option<&'a str>,
    /// His number: what he makes is his.
    pub user: u32,
    /// His first group.
    pub group: u32,
}

/// How changes of files are treated while writing is suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspended {
    /// They wait.
    Waiting,
    /// They are refused.
    Refusing,
    /// They wait; another host may not see that the pool is in use (`multihost`).
    Unseen,
}

/// A pool as this process may change it.
pub struct PoolChanges {
    /// `None`: it is only read.
    live: Option<Arc<LivePool>>,
    /// What keeps a pool from being written that was not to be opened for reading only.
    because: Option<String>,
    /// Files that are mounted, to tell them of changed properties.
    open: Mutex<HashMap<ObjectId, Weak<Filesystem>>>,
    /// Held while mounted files are told of changed properties, one order after another.
    following: Mutex<()>,
    /// Held while times of reads are stored: no dataset is closed below that.
    storing: Mutex<()>,
    /// This machine's lock of the pool: that of its present guid. Those of two while it is not known which of them
    /// the next import finds.
    lock: Mutex<Vec<HostLock>>,
}

impl PoolChanges {
    /// Of `live`, a pool locked on this machine with `lock`.
    pub fn of(live: Arc<LivePool>, lock: Option<HostLock>) -> Arc<Self> {
        Self::with(Some(live), None, lock)
    }

    /// Of a pool that is only read; `because`: it was to be written.
    pub fn none(because: Option<String>, lock: Option<HostLock>) -> Arc<Self> {
        Self::with(None, because, lock)
    }

    fn with(
        live: Option<Arc<LivePool>>,
        because: Option<String>,
        lock: Option<HostLock>,
    ) -> Arc<Self> {
        Arc::new(Self {
            live,
            because,
            open: Mutex::default(),
            following: Mutex::default(),
            storing: Mutex::default(),
            lock: Mutex::new(lock.into_iter().collect()),
        })
    }

    /// The pool, to be changed.
    ///
    /// # Errors
    /// [`ErrorKind::ReadOnly`] if it is only read.
    pub fn live(&self) -> Result<&Arc<LivePool>> {
        self.live.as_ref().ok_or_else(|| Error::new(ErrorKind::ReadOnly, "pool is read-only"))
    }

    /// Orders about its datasets; the command line that gives them goes into the history with what they
    /// change.
    ///
    /// # Errors
    /// As [`Self::live`].
    pub fn orders(&self, given: Given<'_>) -> Result<DatasetOrders<'_>> {
        let mut orders = self.live()?.orders();
        if given.user == 0 {
            orders = orders.beyond_limits();
        }
        Ok(match given.command {
            Some(line) => orders.given_by(line, given.user.into()),
            None => orders,
        })
    }

    /// Whether the pool can be changed at all; else why not (`pool is read-only`).
    pub fn refusal(&self) -> Option<String> {
        match (&self.live, &self.because) {
            (Some(live), _) => {
                live.gate().failure().map(|error| format!("the pool cannot be written: {error}"))
            }
            (None, Some(because)) => Some(format!("pool is read-only: {because}")),
            (None, None) => Some("pool is read-only".to_owned()),
        }
    }

    /// Whether nobody can change it: it was opened for reading only.
    pub fn is_only_read(&self) -> bool {
        self.live.is_none()
    }

    /// Whether nothing more can be written to it, although it was opened for that.
    pub fn has_stopped(&self) -> bool {
        self.live.as_ref().is_some_and(|live| live.gate().failure().is_some())
    }

    /// What keeps a pool from being written that was not to be opened for reading only.
    pub fn read_only_because(&self) -> Option<String> {
        self.because.clone()
    }

    /// Datasets whose intent log could not be replayed and is kept.
    pub fn unreplayed(&self) -> Vec<UnreplayedLog> {
        let Some(live) = &self.live else { return Vec::new() };
        let failures = live.unreplayed();
        if failures.is_empty() {
            return Vec::new();
        }
        let catalog = live.pool().catalog();
        let named = |(id, error): (ObjectId, Error)| {
            let dataset = catalog.dataset_by_id(id).ok()?.name.to_string();
            Some(UnreplayedLog { dataset, reason: error.to_string() })
        };
        failures.into_iter().filter_map(named).collect()
    }

    /// Long work of the pool that is not done.
    pub fn jobs(&self) -> Vec<JobReport> {
        self.live.as_ref().map(|live| jobs::reports(live)).unwrap_or_default()
    }

    /// How far the scan of the pool is.
    pub fn scan_progress(&self) -> Option<ScanProgress> {
        self.live.as_ref().map(|live| live.scan_progress())
    }

    /// How far the expansion of a vdev is.
    pub fn expansion_progress(&self) -> Option<ExpansionProgress> {
        self.live.as_ref()?.expansion_progress()
    }

    /// Since when the scrub of the error log pauses, in seconds since 1970, if there was one.
    pub fn error_scrub_pause(&self) -> Option<u64> {
        let (_, paused) = self.live.as_ref()?.error_scrub_progress()?;
        Some(paused)
    }

    /// How far sequential rebuilds are.
    pub fn rebuild_progress(&self) -> Vec<RebuildProgress> {
        self.live.as_ref().map(|live| live.rebuild_progress()).unwrap_or_default()
    }

    /// The pool was opened, or keys were loaded: what waited for that is done.
    pub fn keys_loaded(&self) {
        if let Some(live) = &self.live {
            cenote_posix::live::replay_volumes(live);
        }
    }

    /// Waits until a group after `seen` is on the disks, at most so long. The newest that is; 0 for ever
    /// if the pool is only read.
    pub fn wait_past(&self, seen: Txg, patience: Duration) -> Txg {
        match &self.live {
            Some(live) => live.gate().wait_past(seen, patience),
            None => {
                std::thread::sleep(patience);
                Txg(0)
            }
        }
    }

    /// Creates a filesystem or volume, and the parents it lacks, in one group. `NewDataset::mount` is the
    /// caller's affair.
    ///
    /// # Errors
    /// `Exists`, `NotFound` (parent), no space, `KeyNotLoaded`.
    pub fn create_dataset(
        &self,
        new: &NewDataset,
        missing: &[String],
        given: Given<'_>,
    ) -> Result<()> {
        let live = self.live()?;
        let NewSettings { mut files, block, encryption, mut stored, quotas } =
            split_settings(&new.properties)?;
        (files.uid, files.gid) = (given.user, given.group);
        let encryption = encryption_of(encryption, new.key.as_ref())?;
        if let Some(key) = &new.key {
            stored.push(PropertyInput::text("keylocation", &key.location));
        }
        let volume = new.volume_size;
        if volume.is_some() && !quotas.is_empty() {
            return Err(Error::invalid("volumes have no quotas of somebody"));
        }
        let above = missing.first().unwrap_or(&new.name).rsplit_once('/').map(|(above, _)| above);
        if volume.is_none()
            && let Some(above) = above
        {
            inherit_form(live, above, &new.properties, &mut files)?;
        }
        let named = NewNamed {
            name: new.name.clone(),
            properties: stored,
            creator: given.user,
            encryption,
            kind: if volume.is_some() { ObjsetKind::Zvol } else { ObjsetKind::Zfs },
            case_insensitive: files.case != CaseSensitivity::Sensitive,
        };
        let orders = self.above(self.orders(given)?, missing, given)?;
        orders.create(named, move |set, tx| {
            let filled = match volume {
                None => cenote_posix::create::initialise(set, tx, &files)
                    .and_then(|()| put_first_quotas(set, tx, &quotas)),
                Some(size) => cenote_posix::create::initialise_volume(set, tx, size, block),
            };
            filled.map_err(|error| Error::invalid(error.reason))
        })
    }

    /// `orders` that make the filesystems `missing`, too, outermost first.
    ///
    /// # Errors
    /// What the disks say.
    pub fn above<'a>(
        &'a self,
        orders: DatasetOrders<'a>,
        missing: &[String],
        given: Given<'_>,
    ) -> Result<DatasetOrders<'a>> {
        let Some((above, _)) = missing.first().and_then(|first| first.rsplit_once('/')) else {
            return Ok(orders);
        };
        let mut files = split_settings(&[])?.files;
        (files.uid, files.gid) = (given.user, given.group);
        inherit_form(self.live()?, above, &[], &mut files)?;
        let case_insensitive = files.case != CaseSensitivity::Sensitive;
        Ok(orders.with_parents(Parents {
            names: missing.to_vec(),
            creator: given.user,
            case_insensitive,
            fill: Arc::new(move |set, tx| {
                let filled = cenote_posix::create::initialise(set, tx, &files);
                filled.map_err(|error| Error::invalid(error.reason))
            }),
        }))
    }

    /// Sets properties of filesystems, volumes and snapshots, each its own: all or none. A size of a quota or
    /// reservation is in bytes, zero for none; `filesystem_limit` and `snapshot_limit` are `u64::MAX` for
    /// none; `userquota@1000` and its like carry the number of the user, group or project; other names are
    /// as the property tables have them. What is kept inside a dataset (those quotas, `volsize`) is set of
    /// one dataset at a time only.
    ///
    /// # Errors
    /// No space (a reservation that does not fit), `InvalidArgument`.
    pub fn set_properties(&self, datasets: &[DatasetSettings], given: Given<'_>) -> Result<()> {
        let live = self.live()?;
        match datasets {
            [only] if only.properties.iter().any(is_inside) => {
                self.set_inside(live, only, given)?
            }
            _ => {
                let all = datasets
                    .iter()
                    .map(|one| (one.dataset.clone(), one.properties.iter().map(input).collect()));
                self.orders(given)?.set_properties(all.collect())?;
            }
        }
        let names: Vec<String> = datasets.iter().map(|one| one.dataset.clone()).collect();
        self.follow(live, &names);
        Ok(())
    }

    /// Removes the local values of a property, of all these datasets or of none; `received`: the received
    /// one shows again, else it is hidden too.
    ///
    /// # Errors
    /// What the disks say.
    pub fn inherit(
        &self,
        datasets: &[String],
        property: &str,
        received: bool,
        given: Given<'_>,
    ) -> Result<()> {
        let live = self.live()?;
        self.orders(given)?.inherit(datasets, property, received)?;
        self.follow(live, datasets);
        Ok(())
    }

    /// Values that these datasets inherit were changed: what is open follows.
    pub fn follow_properties(&self, datasets: &[String]) {
        if let Ok(live) = self.live() {
            self.follow(live, datasets);
        }
    }

    /// Sets properties of which some are kept inside the dataset, in one group.
    fn set_inside(
        &self,
        live: &Arc<LivePool>,
        settings: &DatasetSettings,
        given: Given<'_>,
    ) -> Result<()> {
        let dataset = live.pool().catalog().dataset_named(&settings.dataset)?;
        if dataset.phys.is_inconsistent() {
            // Who receives it has it open, and closes it.
            return Err(Error::new(ErrorKind::Busy, "dataset is busy"));
        }
        let (inside, stored): (Vec<_>, Vec<_>) =
            settings.properties.iter().partition(|one| is_inside(one));
        let stored: Vec<PropertyInput> = stored.into_iter().map(input).collect();
        let orders = self.orders(given)?;
        if let Some(size) = inside.iter().find(|one| one.name == "volsize") {
            let (size, volume) = (number(size)?, live.open_dataset(&dataset)?);
            let done = orders.set_with(&settings.dataset, stored, move |tx| {
                cenote_posix::create::resize_volume(volume.set(), tx, size).map_err(words)
            });
            live.close_dataset(dataset.id)?;
            return done;
        }
        let quotas: Vec<Quota> = inside.into_iter().map(quota).collect::<Result<_>>()?;
        let mounted = self.open.lock().get(&dataset.id).and_then(Weak::upgrade);
        let is_mounted = mounted.is_some();
        let files = match mounted {
            Some(files) => files,
            None => cenote_posix::live::open(live, &dataset, true).map_err(words)?,
        };
        let done = set_quotas(&orders, settings, stored, quotas, &files);
        drop(files);
        if !is_mounted {
            live.close_dataset(dataset.id)?;
        }
        done
    }

    /// Policies and mounted files follow what was set on the datasets `names`.
    fn follow(&self, live: &Arc<LivePool>, names: &[String]) {
        // Who comes later sees the newer properties.
        let _turn = self.following.lock();
        let concerned = live.open_below(names).unwrap_or_else(|error| {
            tracing::warn!(%error, "properties of mounted filesystems not read");
            Vec::new()
        });
        live.refresh_policies(&concerned);
        for dataset in &concerned {
            let files = self.open.lock().get(&dataset.id).and_then(Weak::upgrade);
            let Some(files) = files else { continue };
            let written = cenote_posix::live::write_properties(live, dataset);
            let keeps = cenote_posix::live::keeps_data(live, dataset);
            match written.and_then(|properties| Ok((properties, keeps?))) {
                Ok((properties, keeps)) => {
                    files.set_keeps_data(keeps);
                    if let Some(writer) = files.writer() {
                        writer.set_properties(properties);
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "properties of a mounted filesystem not read");
                }
            }
        }
    }

    /// How many files of a filesystem wait to be deleted; 0 if it is not mounted.
    ///
    /// # Errors
    /// What the disks say.
    pub fn delete_queue(&self, dataset: ObjectId) -> Result<u64> {
        let mounted = self.open.lock().get(&dataset).and_then(Weak::upgrade);
        match mounted.as_ref().and_then(|files| files.writer()) {
            Some(writer) => writer.queued().map_err(|error| Error::invalid(error.reason)),
            None => Ok(0),
        }
    }

    /// Whether files that are open need the user key of the encryption root in directory `root`.
    ///
    /// # Errors
    /// What the disks say.
    pub fn is_key_in_use(&self, root: ObjectId) -> Result<bool> {
        self.live.as_ref().map_or(Ok(false), |live| live.is_key_in_use(root))
    }

    /// Adds top-level devices, cache devices and spares; whole disks get their partitions before.
    ///
    /// # Errors
    /// What the disks say.
    pub fn add_vdevs(&self, plan: &[VdevPlan]) -> Result<()> {
        let opener = HeldDevices::new().new_leaves();
        let (mut plan, live) = (plan.to_vec(), self.live()?);
        self.refuse_members(&plan)?;
        for path in whole_disks(&plan) {
            live.refuse_listed_at(&partition_path(path, 1))?;
        }
        let _partitions = crate::whole_disks::partition(&mut plan).map_err(Error::invalid)?;
        live.add_vdevs(crate::planned::sorted(&plan), opener)
    }

    /// Whole disks lose their labels when they get their partitions: those of members of this pool are refused before.
    fn refuse_members(&self, plan: &[VdevPlan]) -> Result<()> {
        let live = self.live()?;
        for path in whole_disks(plan) {
            live.refuse_member_at(path)?;
            live.refuse_member_at(&partition_path(path, 1))?;
        }
        Ok(())
    }

    /// Splits a pool off.
    ///
    /// # Errors
    /// As [`LivePool::split`] says.
    pub fn split(&self, plan: SplitPlan) -> Result<()> {
        let (options, write) = crate::memory::options_of_part();
        self.live()?.split(plan, &options, write)
    }

    /// Takes a device in beside the one of guid `beside`, or in its place.
    ///
    /// # Errors
    /// As [`LivePool::take_in`] says.
    pub fn take_in(
        &self,
        beside: Guid,
        device: &VdevPlan,
        (replaces, sequential): (bool, bool),
    ) -> Result<()> {
        let opener = HeldDevices::new().new_leaves();
        let mut plan = vec![device.clone()];
        self.refuse_members(&plan)?;
        let _partitions = crate::whole_disks::partition(&mut plan).map_err(Error::invalid)?;
        let leaf = plan.first().map(crate::planned::member).unwrap_or_default();
        let newcomer = Newcomer { beside, leaf, replaces, goes_back: false, sequential };
        self.live()?.take_in(newcomer, opener)
    }

    /// Gives the pool a new guid, this one or a random one.
    ///
    /// # Errors
    /// `Io` if devices are not healthy; what the disks say.
    pub fn reguid(&self, guid: Option<Guid>) -> Result<()> {
        let live = self.live()?;
        let wanted = match guid {
            Some(guid) => guid,
            None => Guid(super::load_guid().max(1)),
        };
        let mut lock = self.lock.lock();
        if lock.is_empty() || wanted == live.pool().guid() {
            return live.reguid(Some(wanted));
        }
        // Both are held until the new one is on the disks.
        let new = HostLock::take(wanted.0)
            .map_err(|error| Error::new(ErrorKind::Busy, error.to_string()))?;
        match live.reguid(Some(wanted)) {
            // It gets the new one when writing goes on.
            Err(error) if error.kind() == ErrorKind::TimedOut => {
                lock.push(new);
                Err(error)
            }
            Err(error) => Err(error),
            Ok(()) => {
                *lock = vec![new];
                Ok(())
            }
        }
    }

    /// Whether writing is suspended because devices failed, and how.
    pub fn suspended(&self) -> Option<Suspended> {
        let live = self.live.as_ref()?;
        live.suspension().map(|now| match now.refuses {
            // Nothing may be written, whatever the devices take, until other hosts see that the pool is in use.
            _ if live.gate().is_held() => Suspended::Unseen,
            true => Suspended::Refusing,
            false => Suspended::Waiting,
        })
    }

    /// Whoever waits for a group waits for devices to come back; not where the pool was given up.
    pub fn waits_for_devices(&self) -> bool {
        self.suspended().is_some()
            && self.live.as_ref().is_some_and(|live| live.gate().failure().is_none())
    }

    /// After devices were forgiven: if writing is suspended, it is tried again now, and waited for a moment
    /// where devices answer. What still cannot be written then, if it stays suspended.
    pub fn cleared(&self) -> Option<Error> {
        let live = self.live.as_ref()?;
        live.retry_now();
        if live.vdevs().condition().state.is_readable() {
            live.gate().wait_resumed(RESUMED_WITHIN);
        }
        live.suspension().map(|suspension| suspension.error)
    }

    /// Stops writing a suspended pool, without what is not on the disks. The newest group that is.
    pub fn abandon(&self) -> u64 {
        self.live.as_ref().map_or(0, |live| live.abandon().0)
    }

    /// Writes what is dirty, marks the labels exported and stops. Nothing is mounted. Also called
    /// for pools that are only read.
    ///
    /// # Errors
    /// What the disks say; the pool stays as it is.
    pub fn export(&self) -> Result<()> {
        self.live.as_ref().map_or(Ok(()), |live| live.export())
    }

    /// Adds a command line to the history, if the pool is open for writing.
    ///
    /// # Errors
    /// What the disks say.
    pub fn log_command(&self, line: &str, user: u64) -> Result<()> {
        let Some(live) = &self.live else { return Ok(()) };
        let line = line.to_owned();
        live.change(move |_, change| change.log_command(&line, user))
    }

    /// The files of `dataset`, to be mounted. `read_only`: nothing is to be changed for now, but
    /// may be after a remount.
    ///
    /// # Errors
    /// With the errno and the reason.
    pub fn open_files(
        &self,
        pool: &Arc<Pool>,
        dataset: &Dataset,
        read_only: bool,
    ) -> std::result::Result<Files, Errno> {
        let Some(live) = self.live.as_ref().filter(|_| !dataset.is_snapshot()) else {
            return cenote_posix::dataset_files::open_in(pool, dataset).map(Arc::new);
        };
        // Two sessions of one filesystem would not know of each other, whatever it is called by now.
        if self.open.lock().get(&dataset.id).is_some_and(|files| files.strong_count() > 0) {
            return Err(Errno::new(EBUSY, "it is mounted already"));
        }
        let files = cenote_posix::live::open(live, dataset, read_only)?;
        self.open.lock().insert(dataset.id, Arc::downgrade(&files));
        Ok(files)
    }

    /// Stores when files were read, where that was noted some time ago. Waits for nobody.
    pub fn store_old_access_times(&self) {
        let _storing = self.storing.lock();
        let open: Vec<Files> = self.open.lock().values().filter_map(Weak::upgrade).collect();
        for writer in open.iter().filter_map(|files| files.writer()) {
            writer.store_old_access_times(ACCESS_TIMES_AGE);
        }
    }

    /// These files are no longer mounted.
    ///
    /// # Errors
    /// What the disks say: what was changed last may not be on them.
    pub fn closed_files(&self, files: &Files) -> Result<()> {
        let (Some(live), Some(id)) = (&self.live, self.id_of(files)) else { return Ok(()) };
        self.open.lock().remove(&id);
        self.end_writing(files);
        live.close_dataset(id)
    }

    /// The same for who does not wait until the pool, which is suspended, goes on. Until then they are mounted nowhere
    /// again.
    pub fn close_later(self: &Arc<Self>, files: &Files) {
        let (changes, files) = (self.clone(), files.clone());
        let close = move || {
            let (Some(live), Some(id)) = (&changes.live, changes.id_of(&files)) else { return };
            changes.end_writing(&files);
            if let Err(error) = live.close_dataset(id) {
                tracing::warn!(dataset = id.0, %error, "not closed");
            }
            changes.open.lock().remove(&id);
        };
        if let Err(error) = std::thread::Builder::new().name("close".into()).spawn(close) {
            tracing::error!(%error, "a dataset stays open until the pool is exported");
        }
    }

    /// The dataset of mounted files; none for a snapshot, and for what was closed before.
    fn id_of(&self, files: &Files) -> Option<ObjectId> {
        let is_this = |other: &Weak<Filesystem>| other.as_ptr() == Arc::as_ptr(files);
        self.open.lock().iter().find(|(_, other)| is_this(other)).map(|(id, _)| *id)
    }

    fn end_writing(&self, files: &Files) {
        drop(self.storing.lock());
        if let Some(writer) = files.writer() {
            writer.store_access_times();
            // A request that outlives the mount has no dataset to write to.
            writer.close();
        }
    }
}

/// Whether a property is kept inside the dataset: quotas of somebody, the size of a volume.
pub fn is_inside(setting: &PropertySetting) -> bool {
    setting.name.contains('@') || setting.name == "volsize"
}

/// Where the whole disks of a plan are.
fn whole_disks(plan: &[VdevPlan]) -> impl Iterator<Item = &Path> {
    let disks = plan.iter().flat_map(VdevPlan::leaves).filter(|leaf| leaf.whole_disk);
    disks.filter_map(|leaf| leaf.path.as_deref().map(Path::new))
}

fn words(error: Errno) -> Error {
    Error::invalid(error.reason)
}

/// Sets `quotas` of somebody on `files` together with the properties `stored`.
fn set_quotas(
    orders: &DatasetOrders<'_>,
    settings: &DatasetSettings,
    stored: Vec<PropertyInput>,
    quotas: Vec<Quota>,
    files: &Files,
) -> Result<()> {
    let closed = || Error::invalid("opened for reading");
    let writer = files.writer().ok_or_else(closed)?;
    quotas.iter().try_for_each(|quota| writer.make_quota_table(quota.kind).map_err(words))?;
    let set = files.clone();
    let done = orders.set_with(&settings.dataset, stored, move |tx| {
        let writer = set.writer().ok_or_else(closed)?;
        quotas.iter().try_for_each(|quota| writer.put_quota(tx, quota).map_err(words))
    });
    writer.reload_quotas().map_err(words)?;
    done
}

/// A filesystem compares names as the one above it does, unless it is told otherwise.
fn inherit_form(
    live: &LivePool,
    parent: &str,
    settings: &[PropertySetting],
    files: &mut NewFilesystem,
) -> Result<()> {
    let catalog = live.pool().catalog();
    let keys = live.pool().keys();
    let reader = PropertyReader::new(&catalog, live.capacity(), keys.as_ref(), "");
    let above = Listed::Dataset(catalog.dataset_named(parent)?);
    let of_parent = |name: &str| -> Result<Option<u64>> {
        if settings.iter().any(|setting| setting.name == name) {
            return Ok(None);
        }
        reader.number(&above, name)
    };
    if let Some(form) = of_parent("normalization")? {
        files.normalization = form;
    }
    files.utf8_only |= of_parent("utf8only")?.is_some_and(|only| only != 0);
    if let Some(case) = of_parent("casesensitivity")?.and_then(CaseSensitivity::from_raw) {
        files.case = case;
    }
    Ok(())
}
