//! The changes of a pool that is open for writing.
//!
//! Invariant: everything is looked up again in the group that makes the change, so that what an
//! order saw of the pool may be old but never wrong.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use cenote_control::changes::{Grant, NewDataset};
use cenote_control::plan::{NewKey, PropertySetting, PropertyValue, VdevPlan};
use cenote_control::report::UnreplayedLog;
use cenote_device::HostLock;
use cenote_engine::dataset::change::{
    MosChange, NewDataset as EngineDataset, PropertyData, PropertyInput,
};
use cenote_engine::dataset::{Catalog, Dataset, Listed, PropertyReader, Value};
use cenote_engine::keys::Wrapping;
use cenote_engine::pool::Pool;
use cenote_engine::pool::change::Encryption;
use cenote_engine::pool::group::LivePool;
use cenote_engine::pool::leaves::HeldDevices;
use cenote_engine::{Error, ErrorKind, Result};
use cenote_format::crypto_key::KeyFormat;
use cenote_format::delegation::Key;
use cenote_format::master_node::CaseSensitivity;
use cenote_format::objset::ObjsetKind;
use cenote_format::{Guid, ObjectId, Txg};
use cenote_posix::Filesystem;
use cenote_posix::create::NewFilesystem;
use cenote_posix::tree::{Errno, Timestamp};
use cenote_posix::write::QuotaKind;
use parking_lot::Mutex;

use super::changes::{Files, PoolChanges};

/// Block size of a volume that does not say one, in bytes.
const VOLUME_BLOCK: u64 = 16 << 10;
/// Number of `encryption=off`.
const ENCRYPTION_OFF: u64 = 2;

/// Changes of a writable pool.
pub struct LiveChanges {
    live: Arc<LivePool>,
    /// Files that are mounted, to tell them of changed properties.
    open: Mutex<HashMap<ObjectId, Weak<Filesystem>>>,
    /// This machine's lock of the pool: that of its present guid.
    lock: Mutex<Option<HostLock>>,
}

impl LiveChanges {
    /// The changes of `live`, a pool locked on this machine with `lock`.
    pub fn new(live: Arc<LivePool>, lock: Option<HostLock>) -> Self {
        Self { live, open: Mutex::default(), lock: Mutex::new(lock) }
    }

    fn catalog(&self) -> Catalog {
        self.live.pool().catalog()
    }

    fn find(&self, name: &str) -> Result<Dataset> {
        self.catalog().dataset_named(name)
    }

    /// Sets what is kept inside a dataset: quotas of somebody, the size of a volume.
    fn set_inside(&self, name: &str, inputs: &[PropertyInput]) -> Result<()> {
        if inputs.is_empty() {
            return Ok(());
        }
        let dataset = self.find(name)?;
        let words = |error: Errno| Error::invalid(error.reason);
        let number = |input: &PropertyInput| match input.value {
            PropertyData::Number(number) => Ok(number),
            PropertyData::Text(_) => Err(Error::invalid(format!("'{}' is a number", input.name))),
        };
        let quotas: Vec<&PropertyInput> =
            inputs.iter().filter(|input| input.name != "volsize").collect();
        if let Some(size) = inputs.iter().find(|input| input.name == "volsize") {
            let volume = self.live.open_dataset(&dataset)?;
            let resized = cenote_posix::create::resize_volume(
                volume.set(),
                &self.live.begin()?,
                number(size)?,
            );
            drop(volume);
            self.live.close_dataset(dataset.id)?;
            resized.map_err(words)?;
        }
        if quotas.is_empty() {
            return Ok(());
        }
        let mounted = self.open.lock().get(&dataset.id).and_then(Weak::upgrade);
        let is_mounted = mounted.is_some();
        let files = match mounted {
            Some(files) => files,
            None => cenote_posix::live::open(&self.live, &dataset, true).map_err(words)?,
        };
        let set = || -> Result<()> {
            let writer = files.writer().ok_or_else(|| Error::invalid("opened for reading"))?;
            for quota in quotas {
                let (kind, id) = quota.name.split_once('@').unwrap_or_default();
                let kind = QuotaKind::of_property(kind);
                let kind = kind.ok_or_else(|| Error::invalid(quota.name.clone()))?;
                let id = id.parse().map_err(|_| Error::invalid(quota.name.clone()))?;
                writer.set_quota(kind, id, number(quota)?).map_err(words)?;
            }
            Ok(())
        };
        let done = set();
        drop(files);
        if !is_mounted {
            self.live.close_dataset(dataset.id)?;
        }
        done
    }

    /// A filesystem compares names as the one above it does, unless it is told otherwise.
    fn inherit_form(
        &self,
        parent: &str,
        settings: &[PropertySetting],
        files: &mut NewFilesystem,
    ) -> Result<()> {
        let catalog = self.catalog();
        let keys = self.live.pool().keys();
        let reader = PropertyReader::new(&catalog, self.live.capacity(), keys.as_ref(), "");
        let above = Listed::Dataset(catalog.dataset_named(parent)?);
        let of_parent = |name: &str| -> Result<Option<u64>> {
            if settings.iter().any(|setting| setting.name == name) {
                return Ok(None);
            }
            Ok(match reader.get(&above, name)?.map(|found| found.value) {
                Some(Value::Number(number)) => Some(number),
                _ => None,
            })
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

    /// Policies and mounted files follow what was set.
    fn follow(&self) {
        self.live.refresh_policies();
        let catalog = self.catalog();
        let mut open = self.open.lock();
        open.retain(|id, files| {
            let Some(files) = files.upgrade() else { return false };
            let follow = || -> std::result::Result<(), Errno> {
                let dataset = catalog.dataset_by_id(*id)?;
                let properties = cenote_posix::live::write_properties(&self.live, &dataset)?;
                if let Some(writer) = files.writer() {
                    writer.set_properties(properties);
                }
                Ok(())
            };
            if let Err(error) = follow() {
                tracing::warn!(%error, "properties of a mounted filesystem not read");
            }
            true
        });
    }
}

/// A setting as the engine takes it.
pub fn input(setting: &PropertySetting) -> PropertyInput {
    match &setting.value {
        PropertyValue::Number(number) => PropertyInput::number(&setting.name, *number),
        PropertyValue::Text(text) => PropertyInput::text(&setting.name, text),
    }
}

fn unsupported<T>(what: impl std::fmt::Display) -> Result<T> {
    Err(Error::unsupported(format!("{what} is not supported yet")))
}

/// The user that this process runs as: whoever gives it orders, or root.
pub fn user() -> u64 {
    rustix::process::getuid().as_raw().into()
}

/// What settings of a new dataset come to.
pub struct NewSettings {
    /// What shapes a filesystem when it is made.
    pub files: NewFilesystem,
    /// Block size of a volume in bytes.
    pub block: u64,
    /// The `encryption` property, if it is set.
    pub encryption: Option<u64>,
    /// The rest, which is stored.
    pub stored: Vec<PropertyInput>,
}

/// Sorts the settings of a new dataset.
pub fn split_settings(settings: &[PropertySetting]) -> Result<NewSettings> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut files = NewFilesystem {
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        time: Timestamp {
            seconds: i64::try_from(now.as_secs()).unwrap_or(i64::MAX),
            nanoseconds: now.subsec_nanos(),
        },
        ..NewFilesystem::default()
    };
    let (mut block, mut encryption) = (VOLUME_BLOCK, None);
    let mut stored = Vec::new();
    for setting in settings {
        let number = setting.value.number().unwrap_or(0);
        match setting.name.as_str() {
            "normalization" => {
                files.normalization = number;
                files.utf8_only |= number != 0;
            }
            "utf8only" => files.utf8_only = number != 0,
            "casesensitivity" => {
                files.case = CaseSensitivity::from_raw(number)
                    .ok_or_else(|| Error::invalid(format!("case sensitivity {number}")))?;
            }
            "version" if number != 5 => return unsupported("another version than 5"),
            "version" => {}
            "volblocksize" => block = number,
            "encryption" => encryption = Some(number).filter(|number| *number != 0),
            "keyformat" | "pbkdf2iters" => {}
            name if name.contains('@') => return unsupported(format!("setting '{name}'")),
            _ => stored.push(input(setting)),
        }
    }
    Ok(NewSettings { files, block, encryption, stored })
}

/// A user key ready to wrap with; for a passphrase this takes a while.
pub fn wrapping_of(key: &NewKey) -> Result<Wrapping> {
    let format = match key.format.as_str() {
        "raw" => KeyFormat::Raw,
        "hex" => KeyFormat::Hex,
        "passphrase" => KeyFormat::Passphrase,
        other => return Err(Error::invalid(format!("key format {other}"))),
    };
    let iterations = (key.iterations != 0).then_some(key.iterations);
    Wrapping::new(format, &key.secret.0, iterations)
}

/// How a dataset with these settings and this key is encrypted.
fn encryption_of(setting: Option<u64>, key: Option<&NewKey>) -> Result<Encryption> {
    if setting == Some(ENCRYPTION_OFF) {
        return Ok(Encryption::Off);
    }
    let suite = match setting {
        Some(raw) => {
            let suite = cenote_engine::keys::suite_of_property(raw);
            Some(suite.ok_or_else(|| Error::invalid(format!("encryption {raw}")))?)
        }
        None => None,
    };
    Ok(match (suite, key) {
        (None, None) => Encryption::Inherited,
        (suite, key) => Encryption::On { suite, wrapping: key.map(wrapping_of).transpose()? },
    })
}

fn parent_of(name: &str) -> Result<(&str, &str)> {
    name.rsplit_once('/').ok_or_else(|| Error::invalid(format!("'{name}' is the name of a pool")))
}

fn key_of(grant: &Grant) -> Result<Key> {
    Ok(Key::parse(grant.key.as_bytes())?)
}

/// The catalog of the group being written.
fn present(live: &LivePool, change: &MosChange<'_>) -> Result<Catalog> {
    Catalog::open(change.mos.clone(), live.pool().name())
}

impl PoolChanges for LiveChanges {
    fn refusal(&self) -> Option<String> {
        self.live.gate().failure().map(|error| format!("the pool cannot be written: {error}"))
    }

    fn unreplayed(&self) -> Vec<UnreplayedLog> {
        let failures = self.live.unreplayed();
        if failures.is_empty() {
            return Vec::new();
        }
        let catalog = self.catalog();
        let named = |(id, error): (ObjectId, Error)| {
            let dataset = catalog.dataset_by_id(id).ok()?.name.to_string();
            Some(UnreplayedLog { dataset, reason: error.to_string() })
        };
        failures.into_iter().filter_map(named).collect()
    }

    fn stuck_freeing(&self) -> Option<String> {
        self.live.stuck_freeing().map(|error| error.to_string())
    }

    fn keys_loaded(&self) {
        cenote_posix::live::replay_volumes(&self.live);
    }

    fn synced_txg(&self) -> Option<u64> {
        Some(self.live.gate().figures().synced.0)
    }

    fn create_dataset(&self, new: &NewDataset) -> Result<()> {
        let NewSettings { mut files, block, encryption, mut stored } =
            split_settings(&new.properties)?;
        let encryption = encryption_of(encryption, new.key.as_ref())?;
        if let Some(key) = &new.key {
            stored.push(PropertyInput::text("keylocation", &key.location));
        }
        let volume = new.volume_size;
        let (parent, name) = parent_of(&new.name)?;
        if volume.is_none() {
            self.inherit_form(parent, &new.properties, &mut files)?;
        }
        let (parent, name) = (parent.to_owned(), name.to_owned());
        let creator = rustix::process::getuid().as_raw();
        self.live.change(move |live, change| {
            let catalog = present(live, change)?;
            let above = catalog.directory(&parent)?;
            match catalog.directory(&format!("{parent}/{name}")) {
                Ok(_) => return Err(Error::new(ErrorKind::Exists, "dataset already exists")),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            change.check_filesystem_limit(above.id, 1)?;
            let dataset = EngineDataset {
                parent: above.id,
                name: &name,
                creator: Some(creator),
                properties: &stored,
                case_insensitive: files.case != CaseSensitivity::Sensitive,
                ..EngineDataset::default()
            };
            let words = |error: Errno| Error::invalid(error.reason);
            let kind = if volume.is_some() { ObjsetKind::Zvol } else { ObjsetKind::Zfs };
            live.make_encrypted_dataset(change, &dataset, &encryption, kind, |set, tx| {
                let filled = match volume {
                    None => cenote_posix::create::initialise(set, tx, &files),
                    Some(size) => cenote_posix::create::initialise_volume(set, tx, size, block),
                };
                filled.map_err(words)
            })
            .map(drop)
        })
    }

    fn destroy(&self, names: &[String], defer: bool) -> Result<()> {
        let check = {
            let names = names.to_vec();
            move |live: &LivePool, change: &MosChange<'_>| -> Result<()> {
                for name in names.iter().filter(|name| name.contains('@') && !defer) {
                    let catalog = present(live, change)?;
                    let snapshot = catalog.dataset_named(name)?;
                    match change.check_destroy_snapshot(snapshot.id) {
                        // Its clones go before it.
                        Err(error) if error.kind() == ErrorKind::Exists => {
                            let clones = catalog.clones(&snapshot)?;
                            if !clones.iter().all(|clone| names.contains(&clone.to_string())) {
                                return Err(error);
                            }
                        }
                        checked => checked?,
                    }
                }
                Ok(())
            }
        };
        self.live.change(check.clone())?;
        for name in names {
            if let Ok(dataset) = self.find(name)
                && !dataset.is_snapshot()
            {
                self.live.close_dataset(dataset.id)?;
            }
        }
        let names = names.to_vec();
        self.live.change(move |live, change| {
            // What can be refused is refused before anything is changed.
            check(live, change)?;
            for name in &names {
                if let Some((head, mark)) = name.split_once('#') {
                    let head = present(live, change)?.dataset_named(head)?;
                    change.destroy_bookmark(head.id, mark)?;
                    continue;
                }
                let dataset = present(live, change)?.dataset_named(name)?;
                if dataset.is_snapshot() {
                    change.destroy_snapshot(dataset.id, defer)?;
                } else {
                    change.check_destroy_head(dataset.id)?;
                    change.destroy_head(dataset.id)?;
                }
            }
            live.wake_freeing();
            Ok(())
        })
    }

    fn rename(&self, pairs: &[(String, String)]) -> Result<()> {
        let pairs = pairs.to_vec();
        self.live.change(move |live, change| {
            for (from, to) in &pairs {
                let catalog = present(live, change)?;
                if let (Some((head, from)), Some((_, to))) =
                    (from.split_once('@'), to.split_once('@'))
                {
                    let head = catalog.dataset_named(head)?;
                    change.rename_snapshot(head.id, from, to)?;
                } else {
                    let (parent, name) = parent_of(to)?;
                    let (directory, parent) =
                        (catalog.directory(from)?, catalog.directory(parent)?);
                    change.rename_directory(directory.id, parent.id, name)?;
                }
            }
            Ok(())
        })
    }

    fn set_properties(&self, dataset: &str, properties: &[PropertySetting]) -> Result<()> {
        let inputs: Vec<PropertyInput> = properties.iter().map(input).collect();
        let (inside, inputs): (Vec<_>, Vec<_>) = inputs
            .into_iter()
            .partition(|input| input.name.contains('@') || input.name == "volsize");
        self.set_inside(dataset, &inside)?;
        if inputs.is_empty() {
            return Ok(());
        }
        let name = dataset.to_owned();
        self.live.change(move |live, change| {
            let dataset = present(live, change)?.dataset_named(&name)?;
            inputs.iter().try_for_each(|input| change.check_value(dataset.id, input))?;
            inputs.iter().try_for_each(|input| change.set_property(dataset.id, input))
        })?;
        self.follow();
        Ok(())
    }

    fn inherit(&self, dataset: &str, property: &str, received: bool) -> Result<()> {
        let (name, property) = (dataset.to_owned(), property.to_owned());
        self.live.change(move |live, change| {
            let dataset = present(live, change)?.dataset_named(&name)?;
            change.inherit_property(dataset.id, &property, received)
        })?;
        self.follow();
        Ok(())
    }

    fn snapshot(&self, names: &[String], properties: &[PropertySetting]) -> Result<()> {
        let inputs: Vec<PropertyInput> = properties.iter().map(input).collect();
        let names = names.to_vec();
        self.live.change(move |live, change| {
            let catalog = present(live, change)?;
            let mut heads = Vec::with_capacity(names.len());
            for full in &names {
                let (head, name) = full
                    .split_once('@')
                    .ok_or_else(|| Error::invalid(format!("'{full}' is no snapshot")))?;
                let head = catalog.dataset_named(head)?;
                change.check_snapshot(head.id, name)?;
                heads.push((head.id, name));
            }
            for (head, name) in heads {
                change.create_snapshot(head, name, &inputs)?;
            }
            Ok(())
        })
    }

    fn clone_snapshot(&self, origin: &str, new: &NewDataset) -> Result<()> {
        let stored = split_settings(&new.properties)?.stored;
        let (parent, name) = parent_of(&new.name)?;
        let (parent, name, origin) = (parent.to_owned(), name.to_owned(), origin.to_owned());
        let creator = rustix::process::getuid().as_raw();
        self.live.change(move |live, change| {
            let catalog = present(live, change)?;
            let above = catalog.directory(&parent)?;
            let origin = catalog.dataset_named(&origin)?;
            change.check_filesystem_limit(above.id, 1)?;
            let dataset = EngineDataset {
                parent: above.id,
                name: &name,
                origin: Some(origin.id),
                creator: Some(creator),
                properties: &stored,
                ..EngineDataset::default()
            };
            live.clone_dataset(change, &dataset).map(drop)
        })
    }

    fn promote(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.live.change(move |live, change| {
            let clone = present(live, change)?.dataset_named(&name)?;
            change.promote(clone.id)
        })
    }

    fn rollback(&self, snapshot: &str) -> Result<()> {
        let (head, snapshot) = (snapshot.split('@').next().unwrap_or(""), snapshot.to_owned());
        self.live.close_dataset(self.find(head)?.id)?;
        self.live.change(move |live, change| {
            let catalog = present(live, change)?;
            let to = catalog.dataset_named(&snapshot)?;
            let head = catalog.head(&to.directory)?;
            if head.phys.previous_snapshot != to.id {
                return Err(Error::new(ErrorKind::Exists, "more recent snapshots exist"));
            }
            live.rollback_dataset(change, head.id)
        })
    }

    fn hold(&self, snapshots: &[String], tag: &str) -> Result<()> {
        let (names, tag) = (snapshots.to_vec(), tag.to_owned());
        self.live.change(move |live, change| {
            let catalog = present(live, change)?;
            let mut found = Vec::new();
            for name in &names {
                let snapshot = catalog.dataset_named(name)?;
                if catalog.holds(&snapshot)?.iter().any(|(held, _)| *held == tag) {
                    let reason = "tag already exists on this dataset";
                    return Err(Error::new(ErrorKind::Exists, reason));
                }
                found.push(snapshot.id);
            }
            found.into_iter().try_for_each(|id| change.hold(id, &tag, false))
        })
    }

    fn release(&self, snapshots: &[String], tag: &str) -> Result<()> {
        let (names, tag) = (snapshots.to_vec(), tag.to_owned());
        self.live.change(move |live, change| {
            let catalog = present(live, change)?;
            let mut found = Vec::new();
            for name in &names {
                let snapshot = catalog.dataset_named(name)?;
                if !catalog.holds(&snapshot)?.iter().any(|(held, _)| *held == tag) {
                    return Err(Error::not_found("no such tag on this dataset"));
                }
                found.push(snapshot.id);
            }
            let mut destroyed = false;
            for id in found {
                destroyed |= change.release(id, &tag)?;
            }
            if destroyed {
                live.wake_freeing();
            }
            Ok(())
        })
    }

    fn bookmark(&self, from: &str, to: &str) -> Result<()> {
        let (from, to) = (from.to_owned(), to.to_owned());
        self.live.change(move |live, change| {
            let catalog = present(live, change)?;
            let (head, name) =
                to.split_once('#').ok_or_else(|| Error::invalid("not the name of a bookmark"))?;
            let head = catalog.dataset_named(head)?;
            if catalog.bookmarks(&head)?.iter().any(|(known, _)| known.to_string() == to) {
                return Err(Error::new(ErrorKind::Exists, "bookmark exists"));
            }
            let is_ancestor = |directory: ObjectId, txg: Txg| -> Result<bool> {
                if directory == head.directory.id {
                    return Ok(true);
                }
                let mut at = head.clone();
                while let Some(previous) = catalog.previous(&at)? {
                    if previous.directory.id == directory && previous.phys.creation_txg >= txg {
                        return Ok(true);
                    }
                    at = previous;
                }
                Ok(false)
            };
            let stranger =
                || Error::invalid("source is not an ancestor of the new bookmark's dataset");
            if from.contains('#') {
                let from = cenote_engine::dataset::DatasetName::parse(&from)?;
                let source = catalog.bookmark(&from)?;
                let home = catalog.directory(from.path())?;
                if !is_ancestor(home.id, source.creation_txg)? {
                    return Err(stranger());
                }
                return change.copy_bookmark(head.id, name, &source);
            }
            let snapshot = catalog.dataset_named(&from)?;
            if !is_ancestor(snapshot.directory.id, snapshot.phys.creation_txg)? {
                return Err(stranger());
            }
            change.create_bookmark(head.id, name, snapshot.id)
        })
    }

    fn allow(&self, dataset: &str, grants: &[Grant]) -> Result<()> {
        let name = dataset.to_owned();
        let keyed = |grant: &Grant| Ok((key_of(grant)?, grant.permissions.clone()));
        let given = grants.iter().map(keyed).collect::<Result<Vec<_>>>()?;
        self.live.change(move |live, change| {
            change.allow(present(live, change)?.dataset_named(&name)?.directory.id, &given)
        })
    }

    fn disallow(&self, datasets: &[String], grants: &[Grant]) -> Result<()> {
        let names = datasets.to_vec();
        let keyed = |grant: &Grant| {
            let permissions = grant.permissions.clone();
            Ok((key_of(grant)?, (!permissions.is_empty()).then_some(permissions)))
        };
        let taken = grants.iter().map(keyed).collect::<Result<Vec<_>>>()?;
        self.live.change(move |live, change| {
            let catalog = present(live, change)?;
            let found = names.iter().map(|name| catalog.dataset_named(name));
            let found = found.collect::<Result<Vec<_>>>()?;
            found.iter().try_for_each(|dataset| change.disallow(dataset.directory.id, &taken))
        })
    }

    fn delete_queue(&self, dataset: ObjectId) -> Result<u64> {
        let mounted = self.open.lock().get(&dataset).and_then(Weak::upgrade);
        match mounted.as_ref().and_then(|files| files.writer()) {
            Some(writer) => writer.queued().map_err(|error| Error::invalid(error.reason)),
            None => Ok(0),
        }
    }

    fn change_key(&self, dataset: &str, key: Option<&NewKey>) -> Result<()> {
        let new = match key {
            Some(key) => Some((wrapping_of(key)?, key.location.clone())),
            None => None,
        };
        let name = dataset.to_owned();
        self.live.change(move |live, change| {
            let new = new.as_ref().map(|(wrapping, location)| (wrapping, location.as_str()));
            live.change_key(change, &name, new)
        })
    }

    fn is_key_in_use(&self, root: ObjectId) -> Result<bool> {
        self.live.is_key_in_use(root)
    }

    fn set_pool_property(&self, property: &PropertySetting) -> Result<()> {
        self.live.set_pool_property(input(property))
    }

    fn enable_features(&self, names: &[String]) -> Result<()> {
        let names = names.to_vec();
        self.live
            .change(move |_, change| names.iter().try_for_each(|name| change.enable_feature(name)))
    }

    fn add_vdevs(&self, plan: &[VdevPlan]) -> Result<()> {
        let opener = HeldDevices::new().new_leaves();
        let mut plan = plan.to_vec();
        let _partitions = crate::whole_disks::partition(&mut plan).map_err(Error::invalid)?;
        self.live.add_vdevs(crate::opening::sorted(&plan), opener)
    }

    fn remove_vdev(&self, guid: Guid) -> Result<()> {
        self.live.remove_vdev(guid)
    }

    fn reguid(&self, guid: Option<Guid>) -> Result<()> {
        let wanted = match guid {
            Some(guid) => guid,
            None => Guid(super::load_guid().max(1)),
        };
        let mut lock = self.lock.lock();
        if lock.is_none() || wanted == self.live.pool().guid() {
            return self.live.reguid(Some(wanted));
        }
        // Both are held until the new one is on the disks.
        let new = HostLock::take(wanted.0)
            .map_err(|error| Error::new(ErrorKind::Busy, error.to_string()))?;
        self.live.reguid(Some(wanted))?;
        *lock = Some(new);
        Ok(())
    }

    fn checkpoint(&self, discard: bool) -> Result<()> {
        match discard {
            true => self.live.discard_checkpoint(),
            false => self.live.take_checkpoint(),
        }
    }

    fn suspended(&self) -> Option<bool> {
        self.live.suspension().map(|now| now.refuses)
    }

    fn cleared(&self) {
        self.live.retry_now();
    }

    fn abandon(&self) -> u64 {
        self.live.abandon().0
    }

    fn sync(&self) -> Result<()> {
        self.live.sync()
    }

    fn export(&self) -> Result<()> {
        self.live.export()
    }

    fn destroy_pool(&self) -> Result<()> {
        self.live.destroy()
    }

    fn log_command(&self, line: &str) -> Result<()> {
        let line = line.to_owned();
        self.live.change(move |_, change| change.log_command(&line, user()))
    }

    fn open_files(
        &self,
        pool: &Arc<Pool>,
        dataset: &Dataset,
        read_only: bool,
    ) -> std::result::Result<Files, Errno> {
        if dataset.is_snapshot() {
            return cenote_posix::mount::open_in(pool, dataset).map(Arc::new);
        }
        let files = cenote_posix::live::open(&self.live, dataset, read_only)?;
        self.open.lock().insert(dataset.id, Arc::downgrade(&files));
        Ok(files)
    }

    fn closed_files(&self, name: &str) -> Result<()> {
        let dataset = self.find(name)?;
        self.open.lock().remove(&dataset.id);
        self.live.close_dataset(dataset.id)
    }
}

/// For the root of a new pool.
pub fn root_properties(stored: &[PropertyInput]) -> Vec<PropertyInput> {
    stored
        .iter()
        .filter(|input| !matches!(&input.value, PropertyData::Text(text) if text.is_empty()))
        .cloned()
        .collect()
}
