//! Orders that change a pool: checks what depends on its state, has the engine make the change,
//! publishes the result, and moves mounts as the change demands.
//!
//! Invariant: nothing is changed when an order is refused; what was mounted before is mounted
//! after, unless the change says otherwise or a warning says why not.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use cenote_control::changes::{Change, ChangeRequest, DestroyRequest, NewDataset, RenameRequest};
use cenote_control::plan::PropertySetting;
use cenote_control::protocol::{Failure, FailureKind, MountRequest};
use cenote_control::report::{DatasetKind, DatasetReport, Source};
use cenote_engine::pool::Pool;
use cenote_engine::{Error, ErrorKind};
use cenote_format::Guid;

use super::mounts::{self, Place};
use super::{Service, failure, places};

/// Value of property `canmount`.
const CANMOUNT_OFF: u64 = 0;
/// Properties whose change only shows in a mount that is made anew.
const REMOUNT: [&str; 3] = ["xattr", "acltype", "snapdir"];
/// Properties that a mount can follow while it is in use.
const FOLLOWED: [&str; 6] = ["readonly", "exec", "setuid", "devices", "atime", "relatime"];

/// What orders are told while devices are away.
pub(super) const SUSPENDED: &str = "pool I/O is currently suspended";

/// Lines for standard error.
pub(super) type Warnings = Vec<String>;

impl Service {
    /// Serves `zpool destroy -f` while devices fail: the pool goes, as far as they let it.
    fn forget_suspended(&self) -> Result<Warnings, Failure> {
        self.changes.abandon();
        let _order = self.begin_order();
        let name = self.pool()?.name().to_owned();
        self.mounts.unmount_all(true)?;
        *self.pool.write() = None;
        Ok(vec![format!(
            "'{name}' was suspended: its devices could not be marked as destroyed; use 'zpool \
             labelclear' when they are back"
        )])
    }

    /// Serves [`cenote_control::server::PoolService::change`].
    pub(super) fn carry_out(&self, request: &ChangeRequest) -> Result<Warnings, Failure> {
        let pool = self.pool()?;
        let change = &request.change;
        let start = start(change, pool.name());
        // Before orders that may wait for devices.
        if let Change::Clear(device) = change {
            let warnings = self.clear(&pool, device.as_deref(), &start)?;
            if self.changes.suspended().is_none() {
                self.note_command(request.command.as_deref());
            }
            return Ok(warnings);
        }
        if self.changes.suspended().is_some() {
            if let Change::DestroyPool { force: true } = change {
                return self.forget_suspended();
            }
            return Err(Failure::new(FailureKind::Other, format!("{start}: {SUSPENDED}")));
        }
        let _order = self.begin_order();
        let destroys = matches!(change, Change::DestroyPool { .. });
        if let Some(reason) = self.changes.refusal()
            && !(matches!(change, Change::Sync))
        {
            return Err(Failure::new(FailureKind::ReadOnly, format!("{start}: {reason}")));
        }
        let cannot = |error: Error| refused(&start, change, &error);
        let mut warnings = match change {
            Change::CreateDataset(new) => self.create(&pool, new, &start)?,
            Change::Destroy(destroy) => self.destroy(&pool, destroy, &start)?,
            Change::Rename(rename) => self.rename(&pool, rename, &start)?,
            Change::SetProperties { dataset, properties, mount } => {
                self.set(&pool, dataset, properties, *mount, &start)?
            }
            Change::Inherit { dataset, property, received } => {
                let inherit = || self.changes.inherit(dataset, property, *received);
                self.with_mounts(&pool, dataset, &[property], true, &start, change, &inherit)?
            }
            Change::Snapshot { names, properties } => {
                self.snapshot(&pool, names, properties)?;
                self.tell_snapshots(names);
                Vec::new()
            }
            Change::Clone { origin, new } => self.clone_snapshot(&pool, origin, new, &start)?,
            Change::Promote(name) => {
                self.promote(&pool, name, &start)?;
                Vec::new()
            }
            Change::Rollback { snapshot, newer, force } => {
                self.rollback(&pool, snapshot, newer, *force, &start)?
            }
            Change::Hold { snapshots, tag } => {
                self.changes.hold(snapshots, tag).map_err(cannot)?;
                Vec::new()
            }
            Change::Release { snapshots, tag } => {
                self.changes.release(snapshots, tag).map_err(cannot)?;
                self.tell_snapshots(snapshots);
                Vec::new()
            }
            Change::Bookmark { from, to } => {
                self.changes.bookmark(from, to).map_err(cannot)?;
                Vec::new()
            }
            Change::Allow { dataset, grants } => {
                self.changes.allow(dataset, grants).map_err(cannot)?;
                Vec::new()
            }
            Change::Unallow { dataset, grants, recursive } => {
                let all = self.fresh(&pool)?;
                let live =
                    all.iter().map(|one| &one.name).filter(|name| !name.contains(['@', '#']));
                let below = live.filter(|name| *recursive && is_at_or_below(name, dataset));
                let names: BTreeSet<String> = below.chain([dataset]).cloned().collect();
                let names: Vec<String> = names.into_iter().collect();
                self.changes.disallow(&names, grants).map_err(cannot)?;
                Vec::new()
            }
            Change::ChangeKey { dataset, key } => {
                self.changes.change_key(dataset, key.as_ref()).map_err(cannot)?;
                Vec::new()
            }
            Change::SetPoolProperty(property) => {
                self.changes.set_pool_property(property).map_err(cannot)?;
                Vec::new()
            }
            Change::EnableFeatures(names) => {
                self.changes.enable_features(names).map_err(cannot)?;
                Vec::new()
            }
            Change::AddVdevs(plan) => {
                self.changes.add_vdevs(plan).map_err(cannot)?;
                Vec::new()
            }
            Change::RemoveVdev(device) => {
                let guid = self.device_guid(device, &start)?;
                self.changes.remove_vdev(guid).map_err(cannot)?;
                Vec::new()
            }
            Change::Reguid(guid) => {
                self.changes.reguid(guid.map(Guid)).map_err(cannot)?;
                Vec::new()
            }
            Change::Checkpoint { discard } => {
                self.changes.checkpoint(*discard).map_err(cannot)?;
                Vec::new()
            }
            Change::Sync if self.changes.refusal().is_some() => Vec::new(),
            Change::Sync => {
                self.changes.sync().map_err(cannot)?;
                self.mounts.changes_are_written();
                Vec::new()
            }
            Change::DestroyPool { force } => {
                let mounted = self.mounts.names();
                let all = self.fresh(&pool).unwrap_or_default();
                let made = places::made(&all, |name| mounted.iter().any(|one| one == name));
                self.mounts.unmount_all(*force)?;
                self.note_command(request.command.as_deref());
                self.changes.destroy_pool().map_err(cannot)?;
                *self.pool.write() = None;
                places::remove(made);
                Vec::new()
            }
            Change::Log | Change::Clear(_) => Vec::new(),
        };
        if destroys {
            return Ok(warnings);
        }
        self.note_command(request.command.as_deref());
        if let Err(error) = self.publish(&pool) {
            warnings.push(format!("what '{}' shows is not up to date: {error}", pool.name()));
        }
        Ok(warnings)
    }

    /// Adds a command line to the history.
    pub(super) fn note_command(&self, command: Option<&str>) {
        if let Some(command) = command
            && let Err(error) = self.changes.log_command(command)
        {
            tracing::warn!(%error, command, "not in the history");
        }
    }

    pub(super) fn create(
        &self,
        pool: &Arc<Pool>,
        new: &NewDataset,
        start: &str,
    ) -> Result<Warnings, Failure> {
        let all = self.fresh(pool)?;
        let find = |name: &str| all.iter().find(|dataset| dataset.name == name);
        let refuse = |kind, reason: &str| Err(Failure::new(kind, format!("{start}: {reason}")));
        if find(&new.name).is_some() {
            if new.parents {
                return Ok(Vec::new());
            }
            return refuse(FailureKind::Already, "dataset already exists");
        }
        let missing = match missing_parents(&all, &new.name) {
            Ok(missing) => missing,
            Err(reason) => return refuse(FailureKind::Other, reason),
        };
        if !missing.is_empty() && !new.parents {
            return refuse(FailureKind::NotFound, "parent does not exist");
        }
        let change = Change::CreateDataset(new.clone());
        let cannot = |error: Error| refused(start, &change, &error);
        for name in &missing {
            let parent = NewDataset { name: name.clone(), ..NewDataset::default() };
            self.changes.create_dataset(&parent).map_err(cannot)?;
        }
        self.changes.create_dataset(new).map_err(cannot)?;
        self.publish(pool)?;
        let mut warnings = Vec::new();
        let fresh = self.fresh(pool)?;
        let own = (new.mount && new.volume_size.is_none()).then_some(&new.name);
        for name in missing.iter().chain(own) {
            if let Err(failure) = self.mount_if_due(pool, &fresh, name) {
                warnings.push(failure.message);
                warnings.push("filesystem successfully created, but not mounted".to_owned());
            }
        }
        Ok(warnings)
    }

    /// Mounts one filesystem if its properties say that it should be.
    pub(super) fn mount_if_due(
        &self,
        pool: &Arc<Pool>,
        all: &[DatasetReport],
        name: &str,
    ) -> Result<(), Failure> {
        let Some(dataset) = all.iter().find(|dataset| dataset.name == name) else { return Ok(()) };
        let value = |name: &str| dataset.properties.value(name).unwrap_or("");
        let due = dataset.kind == DatasetKind::Filesystem
            && value("canmount") == "on"
            && value("mountpoint").starts_with('/')
            && value("keystatus") != "unavailable"
            && self.mounts.of(name).is_none();
        if !due {
            return Ok(());
        }
        self.mount_again(pool, all, name)
    }

    /// Mounts one filesystem, at its place of now.
    fn mount_again(
        &self,
        pool: &Arc<Pool>,
        all: &[DatasetReport],
        name: &str,
    ) -> Result<(), Failure> {
        let request = MountRequest { dataset: Some(name.to_owned()), ..MountRequest::default() };
        self.mounts.mount(pool, all, &request).map(|_| ())
    }

    pub(super) fn destroy(
        &self,
        pool: &Arc<Pool>,
        destroy: &DestroyRequest,
        start: &str,
    ) -> Result<Warnings, Failure> {
        let all = self.fresh(pool)?;
        for name in &destroy.names {
            if !all.iter().any(|dataset| dataset.name == *name) {
                let words = format!("cannot open '{name}': dataset does not exist");
                return Err(Failure::new(FailureKind::NotFound, words));
            }
        }
        let before = self.mounts.places();
        self.mounts.take_down_named(&destroy.names, destroy.force)?;
        let made = places::made(&all, |name| destroy.names.iter().any(|gone| gone == name));
        let change = Change::Destroy(destroy.clone());
        let done = self.changes.destroy(&destroy.names, destroy.defer);
        if let Err(error) = done {
            self.publish(pool)?;
            let fresh = self.fresh(pool)?;
            let mut names: Vec<&String> = destroy.names.iter().collect();
            names.sort();
            for name in names {
                if let Err(failure) = self.mount_if_due(pool, &fresh, name) {
                    tracing::warn!(%failure, "not mounted again");
                }
            }
            let failure = refused(start, &change, &error);
            return Err(name_the_held(failure, &fresh, destroy, error.kind()));
        }
        self.mounts.uncover_bare(&before);
        places::remove(made);
        self.tell_snapshots(&destroy.names);
        Ok(Vec::new())
    }

    fn rename(
        &self,
        pool: &Arc<Pool>,
        rename: &RenameRequest,
        start: &str,
    ) -> Result<Warnings, Failure> {
        let all = self.fresh(pool)?;
        let change = Change::Rename(rename.clone());
        let exists = |name: &str| all.iter().any(|dataset| dataset.name == name);
        let cannot = |error: Error| refused(start, &change, &error);
        let pairs = if rename.recursive { snapshots_of_all(&all, rename) } else { Vec::new() };
        let pairs = match pairs.is_empty() {
            true => vec![(rename.from.clone(), rename.to.clone())],
            false => pairs,
        };
        if !exists(&rename.from) {
            let words = format!("cannot open '{}': dataset does not exist", rename.from);
            return Err(Failure::new(FailureKind::NotFound, words));
        }
        if rename.from == rename.to {
            return Ok(Vec::new());
        }
        if let Some((_, taken)) = pairs.iter().find(|(_, to)| exists(to)) {
            let words = match rename.recursive {
                true => format!("cannot rename to '{taken}': dataset already exists"),
                false => format!("{start}: dataset already exists"),
            };
            return Err(Failure::new(FailureKind::Already, words));
        }
        if rename.from.contains('@') {
            self.changes.rename(&pairs).map_err(cannot)?;
            let names: Vec<String> = pairs.into_iter().flat_map(|(from, to)| [from, to]).collect();
            self.tell_snapshots(&names);
            return Ok(Vec::new());
        }
        let missing = match missing_parents(&all, &rename.to) {
            Ok(missing) => missing,
            Err(reason) => {
                let words = format!("cannot create '{}': {reason}", rename.to);
                return Err(Failure::new(FailureKind::Other, words));
            }
        };
        if !missing.is_empty() && !rename.parents {
            let words = format!("cannot create '{}': parent does not exist", rename.to);
            return Err(Failure::new(FailureKind::NotFound, words));
        }
        if rename.to.starts_with(&format!("{}/", rename.from)) {
            let words = "New dataset name cannot be a descendant of current dataset name";
            let words = format!("cannot rename to '{}': {words}", rename.to);
            return Err(Failure::new(FailureKind::Other, words));
        }
        let below = |name: &str| is_at_or_below(name, &rename.from);
        let moved: Vec<String> = match rename.keep_mounts {
            true => Vec::new(),
            false => self.mounts.names().into_iter().filter(|name| below(name)).collect(),
        };
        let others = self.mounts.places();
        self.mounts.take_down_named(&moved, rename.force)?;
        let made = missing.iter().try_for_each(|name| {
            let parent = NewDataset { name: name.clone(), ..NewDataset::default() };
            self.changes.create_dataset(&parent)
        });
        let renamed = made.and_then(|()| self.changes.rename(&pairs));
        if renamed.is_ok() {
            self.mounts.rename(&rename.from, &rename.to);
            places::remove(places::made(&all, |name| moved.iter().any(|from| from == name)));
        }
        self.publish(pool)?;
        let fresh = self.fresh(pool)?;
        let now = |mut place: Place| {
            if let Some(rest) = place.dataset.strip_prefix(&rename.from)
                && below(&place.dataset)
                && renamed.is_ok()
            {
                place.dataset = format!("{}{rest}", rename.to);
            }
            place
        };
        let mut warnings = Vec::new();
        if !rename.keep_mounts {
            let again: Vec<Place> = others.into_iter().map(now).collect();
            warnings = self.restore(pool, &fresh, &again);
        }
        renamed.map_err(cannot)?;
        for name in &missing {
            if let Err(failure) = self.mount_if_due(pool, &fresh, name) {
                warnings.push(failure.message);
            }
        }
        Ok(warnings)
    }

    /// Mounts again what was mounted and is not any more, as far as its properties let it.
    pub(super) fn restore(
        &self,
        pool: &Arc<Pool>,
        all: &[DatasetReport],
        places: &[Place],
    ) -> Warnings {
        let (mut by_hand, mut due) = (Vec::new(), Vec::new());
        for place in places.iter().filter(|place| self.mounts.of(&place.dataset).is_none()) {
            let Some(dataset) = all.iter().find(|dataset| dataset.name == place.dataset) else {
                continue;
            };
            let value = |name: &str| dataset.properties.value(name).unwrap_or("");
            if place.is_by_hand() && !value("mountpoint").starts_with('/') {
                by_hand.push(place.clone());
            } else if value("mountpoint").starts_with('/') && value("canmount") != "off" {
                due.push((value("mountpoint").to_owned(), &place.dataset));
            }
        }
        due.sort();
        // Where nothing comes back, directories to mount on may be made at once.
        let comes_back = |place: &Place| {
            due.iter().any(|(at, _)| Path::new(at) == place.at)
                || by_hand.iter().any(|other| other.at == place.at)
        };
        self.mounts.uncover_bare(places.iter().filter(|place| !comes_back(place)));
        let mut warnings = Vec::new();
        for (at, name) in due {
            if let Err(failure) = self.mount_again(pool, all, name) {
                self.mounts.uncover(Path::new(&at));
                warnings.push(failure.message);
            }
        }
        self.mounts.restore(pool, all, by_hand);
        self.mounts.uncover_bare(places);
        warnings
    }

    fn set(
        &self,
        pool: &Arc<Pool>,
        name: &str,
        properties: &[PropertySetting],
        mount: bool,
        start: &str,
    ) -> Result<Warnings, Failure> {
        let all = self.fresh(pool)?;
        let Some(dataset) = all.iter().find(|dataset| dataset.name == name) else {
            let words = format!("cannot open '{name}': dataset does not exist");
            return Err(Failure::new(FailureKind::NotFound, words));
        };
        for property in properties {
            if let Some((kind, reason)) = does_not_fit(dataset, property) {
                return Err(Failure::new(kind, format!("{start}: {reason}")));
            }
        }
        // A filesystem that has this version has it already.
        let now = dataset.properties.number("version");
        let has = |one: &PropertySetting| one.name == "version" && one.value.number() == now;
        let properties: Vec<PropertySetting> =
            properties.iter().filter(|one| !has(one)).cloned().collect();
        if properties.is_empty() {
            return Ok(Vec::new());
        }
        let names: Vec<&str> = properties.iter().map(|property| property.name.as_str()).collect();
        let change = Change::SetProperties {
            dataset: name.to_owned(),
            properties: properties.clone(),
            mount,
        };
        let set = || self.changes.set_properties(name, &properties);
        self.with_mounts(pool, name, &names, mount, start, &change, &set)
    }

    /// Makes a change of properties, with the mounts it concerns taken down before and put up after.
    #[allow(clippy::too_many_arguments)] // what a change is made of
    fn with_mounts(
        &self,
        pool: &Arc<Pool>,
        name: &str,
        properties: &[impl AsRef<str>],
        mount: bool,
        start: &str,
        change: &Change,
        make: &dyn Fn() -> cenote_engine::Result<()>,
    ) -> Result<Warnings, Failure> {
        let touched = |wanted: &str| properties.iter().any(|name| name.as_ref() == wanted);
        let before = self.fresh(pool)?;
        // Other values of canmount leave a mount, or what is not mounted, as it is.
        let ends = matches!(change, Change::SetProperties { properties, .. } if properties
            .iter()
            .any(|one| one.name == "canmount" && one.value.number() == Some(CANMOUNT_OFF)));
        let moves = mount && (touched("mountpoint") || ends);
        let remounted = REMOUNT.iter().find(|name| mount && touched(name)).copied();
        let mounted = self.mounts.places();
        let was = |dataset: &DatasetReport| {
            dataset.properties.value("mountpoint").unwrap_or("").to_owned()
        };
        let old = before.iter().find(|dataset| dataset.name == name).map(was).unwrap_or_default();
        let concerned = match moves {
            true if touched("mountpoint") => affected(&before, name, "mountpoint"),
            true => BTreeSet::from([name.to_owned()]),
            false => BTreeSet::new(),
        };
        let down: Vec<String> =
            self.mounts.names().into_iter().filter(|name| concerned.contains(name)).collect();
        self.mounts.take_down_named(&down, false)?;
        let made = make();
        if made.is_ok() && touched("mountpoint") {
            places::remove(places::made(&before, |name| down.iter().any(|gone| gone == name)));
        }
        let followed: Vec<&str> =
            FOLLOWED.into_iter().filter(|followed| mount && touched(followed)).collect();
        let followers: BTreeSet<String> =
            followed.iter().flat_map(|property| affected(&before, name, property)).collect();
        if made.is_ok() {
            self.mounts.end_temporary(&followers, &followed);
        }
        self.publish(pool)?;
        let fresh = self.fresh(pool)?;
        let mut warnings = Vec::new();
        if moves {
            warnings = self.restore(pool, &fresh, &mounted);
            let was_elsewhere = matches!(old.as_str(), "none" | "legacy" | "-" | "");
            if made.is_ok() && was_elsewhere {
                // All that had no place with it have one now.
                let mut due: Vec<&DatasetReport> =
                    fresh.iter().filter(|dataset| concerned.contains(&dataset.name)).collect();
                due.sort_by_key(|a| was(a));
                let mounted = due.iter().map(|one| self.mount_if_due(pool, &fresh, &one.name));
                warnings.extend(mounted.filter_map(Result::err).map(|failure| failure.message));
            }
        }
        made.map_err(|error| refused(start, change, &error))?;
        warnings.extend(self.follow(pool, &fresh, &followers));
        if let Some(property) = remounted.filter(|_| !moves) {
            let concerned = affected(&before, name, property);
            let names = mounted.iter().map(|place| &place.dataset);
            for name in names.filter(|name| concerned.contains(*name)) {
                let down = self.mounts.take_down_named(std::slice::from_ref(name), false);
                // all below came down with it
                let up = down.map(|()| self.restore(pool, &fresh, &mounted));
                match up {
                    Ok(lines) => warnings.extend(lines),
                    Err(_) => {
                        let words = "property may be set but unable to remount filesystem";
                        warnings.push(words.to_owned());
                    }
                }
            }
        }
        Ok(warnings)
    }

    /// Lets the mounts of these datasets follow their properties.
    fn follow(
        &self,
        pool: &Arc<Pool>,
        fresh: &[DatasetReport],
        followers: &BTreeSet<String>,
    ) -> Warnings {
        let mounted = self.mounts.places();
        let mut warnings = Vec::new();
        for dataset in fresh.iter().filter(|dataset| followers.contains(&dataset.name)) {
            if self.mounts.follow(dataset).is_ok() {
                continue;
            }
            // Not as it is: then anew, with all below.
            let name = std::slice::from_ref(&dataset.name);
            let down = self.mounts.take_down_named(name, false);
            match down.map(|()| self.restore(pool, fresh, &mounted)) {
                Ok(lines) => warnings.extend(lines),
                Err(_) => {
                    let words = "property may be set but unable to remount filesystem";
                    warnings.push(words.to_owned());
                }
            }
        }
        warnings
    }

    fn snapshot(
        &self,
        pool: &Arc<Pool>,
        names: &[String],
        properties: &[PropertySetting],
    ) -> Result<(), Failure> {
        let all = self.fresh(pool)?;
        let known: BTreeSet<&str> = all.iter().map(|dataset| dataset.name.as_str()).collect();
        // What was received in part only, so far, is left out, also where it was named.
        let partial = all.iter().filter(|dataset| mounts::is_partial(pool, dataset));
        let partial: BTreeSet<&str> = partial.map(|dataset| dataset.name.as_str()).collect();
        let (mut lines, mut whole) = (Vec::new(), Vec::with_capacity(names.len()));
        for name in names {
            let (of, _) = name.split_once('@').unwrap_or((name, ""));
            if partial.contains(of) {
                continue;
            }
            whole.push(name.clone());
            if !known.contains(of) {
                lines.push(format!("cannot create snapshot '{name}': dataset does not exist"));
            } else if known.contains(name.as_str()) {
                lines.push(format!("cannot create snapshot '{name}': dataset already exists"));
            }
        }
        if !lines.is_empty() {
            if whole.len() > 1 {
                lines.push("no snapshots were created".to_owned());
            }
            return Err(Failure::new(FailureKind::Already, lines.join("\n")));
        }
        if whole.is_empty() {
            return Ok(());
        }
        let change = Change::Snapshot { names: whole.clone(), properties: properties.to_vec() };
        let start = start(&change, pool.name());
        self.changes.snapshot(&whole, properties).map_err(|error| {
            let mut failure = refused(&start, &change, &error);
            if whole.len() > 1 {
                failure.message.push_str("\nno snapshots were created");
            }
            failure
        })
    }
}

/// The start of every refusal of a change.
pub(super) fn start(change: &Change, pool: &str) -> String {
    match change {
        Change::CreateDataset(new) => format!("cannot create '{}'", new.name),
        Change::Destroy(destroy) => match destroy.names.as_slice() {
            [only] if only.contains('@') => format!("cannot destroy snapshot {only}"),
            [only] => format!("cannot destroy '{only}'"),
            [.., last] if !last.contains('@') => format!("cannot destroy '{last}'"),
            _ => "cannot destroy snapshots".to_owned(),
        },
        Change::Rename(rename) => format!("cannot rename '{}'", rename.from),
        Change::SetProperties { dataset, .. } => format!("cannot set property for '{dataset}'"),
        Change::Inherit { dataset, property, .. } => {
            format!("cannot inherit {property} for '{dataset}'")
        }
        Change::Snapshot { names, .. } => match names.as_slice() {
            [only] => format!("cannot create snapshot '{only}'"),
            _ => "cannot create snapshots ".to_owned(),
        },
        Change::Clone { new, .. } => format!("cannot create '{}'", new.name),
        Change::Promote(name) => format!("cannot promote '{name}'"),
        Change::Rollback { snapshot, .. } => {
            format!("cannot rollback '{}'", snapshot.split('@').next().unwrap_or(""))
        }
        Change::Hold { snapshots, .. } => match snapshots.as_slice() {
            [only] => format!("cannot hold snapshot '{only}'"),
            _ => "cannot hold".to_owned(),
        },
        Change::Release { snapshots, .. } => match snapshots.as_slice() {
            [only] => format!("cannot release hold from snapshot '{only}'"),
            _ => "cannot release".to_owned(),
        },
        Change::Bookmark { to, .. } => format!("cannot create bookmark '{to}'"),
        Change::Allow { dataset, .. } | Change::Unallow { dataset, .. } => {
            format!("cannot set permissions on '{dataset}'")
        }
        Change::ChangeKey { .. } => "Key change error".to_owned(),
        Change::SetPoolProperty(_) => format!("cannot set property for '{pool}'"),
        Change::EnableFeatures(_) => format!("cannot upgrade '{pool}'"),
        Change::AddVdevs(_) => format!("cannot add to '{pool}'"),
        Change::RemoveVdev(device) => format!("cannot remove {device}"),
        Change::Reguid(_) => format!("cannot reguid '{pool}'"),
        Change::Checkpoint { discard: false } => format!("cannot checkpoint '{pool}'"),
        Change::Checkpoint { discard: true } => format!("cannot discard checkpoint in '{pool}'"),
        Change::Clear(device) => {
            format!("cannot clear errors for {}", device.as_deref().unwrap_or(pool))
        }
        Change::Sync => format!("cannot sync '{pool}'"),
        Change::DestroyPool { .. } => format!("cannot destroy '{pool}'"),
        Change::Log => format!("cannot write the history of '{pool}'"),
    }
}

/// What an error of the engine is called on the command line.
pub(super) fn refused(start: &str, change: &Change, error: &Error) -> Failure {
    let words = match (error.kind(), change) {
        (
            ErrorKind::Exists | ErrorKind::NotFound,
            Change::Hold { .. }
            | Change::Release { .. }
            | Change::Rollback { .. }
            | Change::Checkpoint { .. }
            | Change::Reguid(_),
        ) => error.reason().to_owned(),
        (ErrorKind::Exists, Change::Bookmark { .. }) => "bookmark exists".to_owned(),
        (ErrorKind::NotFound, Change::SetPoolProperty(_)) => "no such pool or dataset".to_owned(),
        (ErrorKind::Unsupported, Change::SetPoolProperty(_)) => {
            "operation not supported on this type of pool".to_owned()
        }
        (ErrorKind::InvalidArgument, Change::Promote(_) | Change::Bookmark { .. }) => {
            error.reason().to_owned()
        }
        (ErrorKind::NotFound | ErrorKind::Busy | ErrorKind::Unsupported, Change::RemoveVdev(_))
        | (ErrorKind::Io, Change::Reguid(_)) => error.reason().to_owned(),
        (
            ErrorKind::Unsupported,
            Change::SetProperties { .. } | Change::CreateDataset(_) | Change::Clone { .. },
        ) => error.reason().to_owned(),
        (ErrorKind::Exists, _) => "dataset already exists".to_owned(),
        (ErrorKind::NotFound, Change::CreateDataset(_)) => "parent does not exist".to_owned(),
        (ErrorKind::NotFound, _) => "dataset does not exist".to_owned(),
        (ErrorKind::Busy, Change::Destroy(_) | Change::Rename(_)) => "dataset is busy".to_owned(),
        (
            ErrorKind::ReadOnly,
            Change::AddVdevs(_)
            | Change::RemoveVdev(_)
            | Change::SetPoolProperty(_)
            | Change::Checkpoint { .. },
        ) => "pool is read-only".to_owned(),
        (ErrorKind::ReadOnly, _) => "dataset is read-only".to_owned(),
        (ErrorKind::NoSpace, Change::SetProperties { .. }) => match error.reason() {
            reason if reason.starts_with("size is ") => reason.to_owned(),
            _ => "size is greater than available space".to_owned(),
        },
        (ErrorKind::NoSpace | ErrorKind::Quota, _) => "out of space".to_owned(),
        (ErrorKind::Permission, Change::Rename(_)) => {
            "cannot move encrypted child outside of its encryption root".to_owned()
        }
        (ErrorKind::KeyNotLoaded, Change::ChangeKey { .. }) => "Key must be loaded.".to_owned(),
        (ErrorKind::KeyNotLoaded, _) => {
            "encryption root's key is not loaded or provided".to_owned()
        }
        _ => error.to_string(),
    };
    Failure { message: format!("{start}: {words}"), ..failure(error) }
}

/// Of several snapshots those that are held are named, one in a line.
fn name_the_held(
    failure: Failure,
    all: &[DatasetReport],
    destroy: &DestroyRequest,
    kind: ErrorKind,
) -> Failure {
    let is_held = |dataset: &&DatasetReport| {
        destroy.names.contains(&dataset.name)
            && dataset.properties.number("userrefs").is_some_and(|holds| holds > 0)
    };
    let snapshots_only = destroy.names.iter().all(|name| name.contains('@'));
    if kind != ErrorKind::Busy || !snapshots_only || destroy.names.len() < 2 {
        return failure;
    }
    let words =
        |one: &DatasetReport| format!("cannot destroy snapshot {}: dataset is busy", one.name);
    let lines: Vec<String> = all.iter().filter(is_held).map(words).collect();
    match lines.is_empty() {
        true => failure,
        false => Failure { message: lines.join("\n"), ..failure },
    }
}

fn is_at_or_below(name: &str, top: &str) -> bool {
    name.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Parents of `name` that are not there, outermost first.
pub(super) fn missing_parents(
    all: &[DatasetReport],
    name: &str,
) -> Result<Vec<String>, &'static str> {
    let mut missing = Vec::new();
    let mut path = name;
    while let Some((parent, _)) = path.rsplit_once('/') {
        match all.iter().find(|dataset| dataset.name == parent) {
            Some(found) if found.kind == DatasetKind::Filesystem => {
                missing.reverse();
                return Ok(missing);
            }
            Some(_) => return Err("parent is not a filesystem"),
            None => missing.push(parent.to_owned()),
        }
        path = parent;
    }
    Err("missing dataset name")
}

/// The snapshots a recursive rename is about, with their new names.
fn snapshots_of_all(all: &[DatasetReport], rename: &RenameRequest) -> Vec<(String, String)> {
    let (Some((top, old)), Some((_, new))) =
        (rename.from.split_once('@'), rename.to.split_once('@'))
    else {
        return Vec::new();
    };
    let snapshots = all.iter().filter(|dataset| dataset.kind == DatasetKind::Snapshot);
    let ours = snapshots.filter_map(|dataset| dataset.name.split_once('@'));
    let ours = ours.filter(|(of, name)| *name == old && is_at_or_below(of, top));
    ours.map(|(of, _)| (format!("{of}@{old}"), format!("{of}@{new}"))).collect()
}

/// The datasets whose value of a property follows from that of `name`: itself, and those below that
/// inherit it through it.
fn affected(all: &[DatasetReport], name: &str, property: &str) -> BTreeSet<String> {
    let follows = |dataset: &DatasetReport| match dataset.properties.get(property) {
        _ if dataset.name == name => true,
        Some(own) => match &own.source {
            Source::Inherited(from) => is_at_or_below(name, from),
            Source::Default => true,
            _ => false,
        },
        None => false,
    };
    let below = all.iter().filter(|dataset| is_at_or_below(&dataset.name, name));
    below.filter(|dataset| follows(dataset)).map(|dataset| dataset.name.clone()).collect()
}

/// Why a value cannot be set on a dataset as it is now.
fn does_not_fit(
    dataset: &DatasetReport,
    property: &PropertySetting,
) -> Option<(FailureKind, String)> {
    let now = |name: &str| dataset.properties.number(name).unwrap_or(0);
    let small = "size is less than current used or reserved space";
    let large = "size is greater than available space";
    let refuse = |words: &str| Some((FailureKind::NoSpace, words.to_owned()));
    let text = property.value.text();
    match (property.name.as_str(), property.value.number()) {
        ("quota", Some(size)) if size != 0 && size < now("used").max(now("reservation")) => {
            refuse(small)
        }
        ("refquota", Some(size)) if size != 0 && size < now("referenced") => refuse(small),
        ("reservation", Some(size)) => {
            let more = size.saturating_sub(now("used").max(now("reservation")));
            if more > now("available") { refuse(large) } else { None }
        }
        ("refreservation", Some(size)) => {
            let own = now("usedbydataset").max(now("refreservation"));
            if size.saturating_sub(own) > now("available") { refuse(large) } else { None }
        }
        ("volsize", Some(_)) if dataset.properties.value("readonly") == Some("on") => {
            Some((FailureKind::Other, "dataset is read-only".to_owned()))
        }
        ("volsize", Some(size)) => {
            let block = now("volblocksize").max(1);
            (size % block != 0).then(|| {
                let block = cenote_control::text::number::plain(block);
                let words = format!("'volsize' must be a multiple of volume block size ({block})");
                (FailureKind::Other, words)
            })
        }
        ("version", Some(version)) if version < now("version") => {
            let words = format!("Can not downgrade; already at version {}", now("version"));
            Some((FailureKind::Other, words))
        }
        ("keylocation", _) => {
            let root = dataset.properties.value("encryptionroot").unwrap_or("");
            let words = match (root, text) {
                ("", Some("none")) => return None,
                ("", _) => "keylocation must be 'none' for unencrypted datasets",
                (root, _) if root != dataset.name => {
                    "keylocation may only be set on encryption roots"
                }
                (_, Some("none")) => "keylocation must not be 'none' for encrypted datasets",
                _ => return None,
            };
            Some((FailureKind::Other, words.to_owned()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dataset(name: &str, kind: DatasetKind, source: Source) -> DatasetReport {
        let mut dataset = DatasetReport { name: name.into(), kind, ..DatasetReport::default() };
        dataset.properties.set("mountpoint", "/x", source);
        dataset
    }

    #[test]
    fn parents_are_found_missing() {
        let all = [
            dataset("tank", DatasetKind::Filesystem, Source::Default),
            dataset("tank/vol", DatasetKind::Volume, Source::Default),
        ];
        assert_eq!(missing_parents(&all, "tank/a"), Ok(vec![]));
        let two = vec!["tank/a".to_owned(), "tank/a/b".to_owned()];
        assert_eq!(missing_parents(&all, "tank/a/b/c"), Ok(two));
        assert_eq!(missing_parents(&all, "tank/vol/x"), Err("parent is not a filesystem"));
        assert_eq!(missing_parents(&all, "nope/x"), Err("missing dataset name"));
    }

    #[test]
    fn a_mountpoint_moves_what_inherits_it() {
        let fs = DatasetKind::Filesystem;
        let all = [
            dataset("tank", fs, Source::Local),
            dataset("tank/a", fs, Source::Inherited("tank".into())),
            dataset("tank/a/b", fs, Source::Inherited("tank".into())),
            dataset("tank/a/own", fs, Source::Local),
            dataset("tank/a/own/c", fs, Source::Inherited("tank/a/own".into())),
            dataset("tank/ab", fs, Source::Inherited("tank".into())),
        ];
        let names: Vec<String> = affected(&all, "tank/a", "mountpoint").into_iter().collect();
        assert_eq!(names, ["tank/a", "tank/a/b"]);
    }

    /// Recorded from OpenZFS 2.1.11.
    #[test]
    fn values_that_do_not_fit_are_refused_as_openzfs_does() {
        let mut one = dataset("tank/x", DatasetKind::Filesystem, Source::Default);
        for (name, value) in
            [("used", 2 << 20), ("available", 10 << 20), ("referenced", 1 << 20), ("version", 5)]
        {
            one.properties.set(name, value.to_string(), Source::None);
        }
        let words = |name: &str, value: u64| {
            does_not_fit(&one, &PropertySetting::number(name, value)).map(|(_, words)| words)
        };
        let small = Some("size is less than current used or reserved space".to_owned());
        assert_eq!(words("quota", 1 << 20), small);
        assert_eq!(words("quota", 0), None);
        assert_eq!(words("quota", 2 << 20), None);
        assert_eq!(words("refquota", 1024), small);
        let large = Some("size is greater than available space".to_owned());
        assert_eq!(words("reservation", 100 << 30), large);
        assert_eq!(words("reservation", 11 << 20), None);
        assert_eq!(words("version", 4), Some("Can not downgrade; already at version 5".into()));
        let location = does_not_fit(&one, &PropertySetting::text("keylocation", "prompt"));
        let expected = "keylocation must be 'none' for unencrypted datasets";
        assert_eq!(location.map(|(_, words)| words).as_deref(), Some(expected));
        let mut volume = dataset("tank/v", DatasetKind::Volume, Source::Default);
        volume.properties.set("volblocksize", "8192", Source::None);
        let odd = does_not_fit(&volume, &PropertySetting::number("volsize", 1000));
        let expected = "'volsize' must be a multiple of volume block size (8K)";
        assert_eq!(odd.map(|(_, words)| words).as_deref(), Some(expected));
        volume.properties.set("readonly", "on", Source::Inherited("tank".into()));
        let kept = does_not_fit(&volume, &PropertySetting::number("volsize", 8192));
        assert_eq!(kept.map(|(_, words)| words).as_deref(), Some("dataset is read-only"));
    }

    #[test]
    fn a_recursive_rename_names_every_snapshot() {
        let all = [
            dataset("tank@s", DatasetKind::Snapshot, Source::None),
            dataset("tank/a@s", DatasetKind::Snapshot, Source::None),
            dataset("tank/a@t", DatasetKind::Snapshot, Source::None),
        ];
        let rename = RenameRequest {
            from: "tank@s".into(),
            to: "tank@n".into(),
            recursive: true,
            ..RenameRequest::default()
        };
        let pairs = snapshots_of_all(&all, &rename);
        assert_eq!(pairs.len(), 2);
        assert_eq!(pairs[1], ("tank/a@s".to_owned(), "tank/a@n".to_owned()));
    }
}
