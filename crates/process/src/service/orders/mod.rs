//! Orders: each has a file that says who may give it, how its refusals begin, how errors of the engine are
//! worded, what depends on the state of the pool, which mounts move with it, what the history is told, and
//! how far it is.
//!
//! Invariant: nothing is changed when an order is refused; what was mounted before is mounted
//! after, unless the change says otherwise or a warning says why not.

mod allow;
mod bookmark;
mod change_key;
mod clone;
mod create;
mod destroy;
mod devices;
mod diff;
mod export;
mod fits;
mod held;
mod inject;
mod keys;
mod members;
mod mount;
mod now;
mod pool;
mod program;
mod promote;
mod properties;
mod receive;
mod redact;
mod remount;
mod rename;
mod rollback;
mod scan;
mod send;
mod snapshot;
mod split;
mod sweeps;

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use cenote_control::changes::{Change, ChangeRequest};
use cenote_control::peer::Peer;
use cenote_control::protocol::{Failure, FailureKind};
use cenote_control::replies::Replies;
use cenote_control::secret::Secret;
use cenote_control::server::{Call, Carried, PoolService};
use cenote_engine::pool::Pool;
use cenote_engine::pool::change::DatasetOrders;
use cenote_engine::pool::group::LivePool;
use cenote_engine::receive::TEMPORARY;
use cenote_engine::{Error, ErrorKind};

use super::changes::Given;
use super::datasets::{Datasets, Shown};
use super::delegation::{self, Need};
use super::{Service, failure, no_dataset, places};

/// What is said to who is not allowed something.
pub(super) const DENIED: &str = "permission denied";
/// What orders are told while devices are away.
pub(super) const SUSPENDED: &str = "pool I/O is currently suspended";

/// Longest command line of who does not own the process, in bytes.
const COMMAND_MAX: usize = 4096;

/// Lines for standard error.
pub(super) type Warnings = Vec<String>;

/// An order, its arguments parsed.
trait Order {
    /// The start of every refusal; `pool` is the pool's name.
    fn cannot(&self, pool: &str) -> String;

    /// What `who` has to be allowed who is neither root nor the owner of the process; none: only those give it.
    fn needs(&self, all: &Shown, who: &Peer) -> Option<Vec<Need>> {
        let _ = (all, who);
        None
    }

    /// The start of the refusal for who is not allowed it.
    fn cannot_for_want(&self, pool: &str) -> String {
        self.cannot(pool)
    }

    /// That refusal.
    fn denial(&self, pool: &str) -> String {
        format!("{}: {DENIED}", self.cannot_for_want(pool))
    }

    /// What an error of the engine is called on the command line, where it is not what it is called for
    /// most orders.
    fn words(&self, error: &Error) -> Option<String> {
        let _ = error;
        None
    }

    /// The function of OpenZFS that does it, one of [`cenote_control::faults::FUNCTIONS`], for who is to die there.
    fn function(&self) -> Option<&'static str> {
        None
    }

    /// It waits for no order under way and for no device.
    fn is_urgent(&self) -> bool {
        false
    }

    /// It has a meaning for a pool that can only be read.
    fn suits_read_only(&self) -> bool {
        false
    }

    /// It takes mounts down, puts up others or lets them follow: then no other order is under way.
    /// Beside it, others see only what is on the disks: what they need is checked again in the group.
    fn moves_mounts(&self) -> bool {
        true
    }

    /// What is published is not up to date when it has been carried out.
    fn changes_what_is_published(&self) -> bool {
        true
    }

    /// There is no pool when it has been carried out.
    fn ends_the_pool(&self) -> bool {
        false
    }

    /// What it does while writing is suspended.
    fn carry_out_suspended(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        Err(doing.refuse(FailureKind::Other, SUSPENDED))
    }

    /// Takes what comes with it from who gave it, who may be slow: nobody waits for that.
    fn take(&self, doing: &Doing<'_>) -> Result<(), Failure> {
        let _ = doing;
        Ok(())
    }

    /// Checks what depends on the state of the pool, and does it. The command line goes into the history
    /// with what is changed ([`Doing::given`]), or else after it.
    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure>;
}

/// The order of a change: here is which file says what of which.
fn order(change: &Change) -> Box<dyn Order + '_> {
    match change {
        Change::Mount(request) => Box::new(mount::Mount(request)),
        Change::Unmount(request) => Box::new(mount::Unmount(request)),
        Change::LoadKey(request) => Box::new(keys::LoadKey::new(request)),
        Change::UnloadKey(dataset) => Box::new(keys::UnloadKey(dataset)),
        Change::CreateDataset(new) => Box::new(create::Create(new)),
        Change::Destroy(destroy) => Box::new(destroy::Destroy(destroy)),
        Change::Rename(rename) => Box::new(rename::Rename(rename)),
        Change::SetProperties { datasets, mount } => {
            Box::new(properties::Set { datasets, mount: *mount })
        }
        Change::Inherit { datasets, property, received } => {
            Box::new(properties::Inherit { datasets, property, received: *received })
        }
        Change::Snapshot { names, properties } => {
            Box::new(snapshot::Snapshot { names, properties })
        }
        Change::Clone { origin, new } => Box::new(clone::Clone { origin, new }),
        Change::Promote(name) => Box::new(promote::Promote(name)),
        Change::Rollback { snapshot, newer, force } => {
            Box::new(rollback::Rollback { snapshot, newer, force: *force })
        }
        Change::Receive(request) => Box::new(receive::Receive(request)),
        Change::AbortReceive(dataset) => Box::new(receive::Abort(dataset)),
        Change::Send(request) => Box::new(send::Send(request)),
        Change::Diff(request) => Box::new(diff::Diff(request)),
        Change::Program(request) => Box::new(program::Program(request)),
        Change::Hold { snapshots, tag } => Box::new(held::Hold { snapshots, tag }),
        Change::Release { snapshots, tag } => Box::new(held::Release { snapshots, tag }),
        Change::Redact(request) => Box::new(redact::Redact(request)),
        Change::Bookmark { from, to } => Box::new(bookmark::Bookmark { from, to }),
        Change::Allow { dataset, grants } => Box::new(allow::Allow { dataset, grants }),
        Change::Unallow { dataset, grants, recursive } => {
            Box::new(allow::Unallow { dataset, grants, recursive: *recursive })
        }
        Change::ChangeKey { dataset, key } => Box::new(change_key::ChangeKey { dataset, key }),
        Change::SetPoolProperty(property) => Box::new(pool::SetProperty(property)),
        Change::EnableFeatures(names) => Box::new(pool::EnableFeatures(names)),
        Change::AddVdevs(plan) => Box::new(devices::Add(plan)),
        Change::RemoveVdev(device) => Box::new(devices::Remove(device)),
        Change::CancelRemoval => Box::new(devices::CancelRemoval),
        Change::AttachVdev { beside, device, sequential } => {
            members::TakeIn::order(beside, device, (false, *sequential))
        }
        Change::ReplaceVdev { old, device, sequential } => {
            members::TakeIn::order(old, device, (true, *sequential))
        }
        Change::DetachVdev(device) => Box::new(members::Detach(device)),
        Change::OfflineVdev { device, temporary, faulty } => {
            Box::new(members::Offline { device, temporary: *temporary, faulty: *faulty })
        }
        Change::OnlineVdev { device, expand } => members::Online::order(device, *expand),
        Change::Reopen => Box::new(devices::Reopen),
        Change::SplitPool(request) => Box::new(split::Split(request)),
        Change::Scan(request) => Box::new(scan::Scan(*request)),
        Change::Sweep(request) => Box::new(sweeps::Sweep(request)),
        Change::Clear(device) => Box::new(devices::Clear(device.as_deref())),
        Change::Reguid(guid) => Box::new(pool::Reguid(*guid)),
        Change::Checkpoint { discard } => Box::new(pool::Checkpoint { discard: *discard }),
        Change::Sync => Box::new(pool::Sync),
        Change::Export { force } => Box::new(export::Export { force: *force }),
        Change::DestroyPool { force } => Box::new(pool::Destroy { force: *force }),
        Change::Inject(fault) => Box::new(inject::Inject(fault)),
        Change::ForgetFaults(id) => Box::new(inject::Forget(*id)),
        Change::CountAsBad { device, faulted } => members::CountAsBad::order(device, *faulted),
        Change::Log => Box::new(pool::Log),
    }
}

/// The refusal for who may not give this order; none for who may.
pub(super) fn denied(change: &Change, who: &Peer, service: &Service) -> Option<String> {
    if who.is_owner() {
        return None;
    }
    let order = order(change);
    let is_allowed = service.shown().is_ok_and(|all| service.allows(&*order, &all, who));
    (!is_allowed).then(|| {
        let pool = service.pool().map(|pool| pool.name().to_owned()).unwrap_or_default();
        order.denial(&pool)
    })
}

impl Service {
    /// Whether what stands on the datasets lets `who` give this order.
    fn allows(&self, order: &dyn Order, all: &Shown, who: &Peer) -> bool {
        order.needs(all, who).is_some_and(|needs| self.has(all, who, &needs))
    }

    /// Whether `who` has all this, or needs none of it.
    pub(super) fn has(&self, all: &Shown, who: &Peer, needs: &[Need]) -> bool {
        let delegates = || self.report().properties.value("delegation") != Some("off");
        who.is_owner() || delegates() && needs.iter().all(|need| delegation::has(all, who, need))
    }
}

/// An order under way.
struct Doing<'a> {
    service: &'a Service,
    pool: &'a Arc<Pool>,
    order: &'a dyn Order,
    /// The start of every refusal.
    start: String,
    /// The command line that gave it.
    command: Option<&'a str>,
    /// It goes into the history with the change.
    noted: &'a Cell<bool>,
    /// To who gave it: how far it is, and whether he still waits for more.
    replies: &'a Replies<'a>,
    /// What he gave with it.
    descriptors: &'a RefCell<Vec<OwnedFd>>,
    who: &'a Peer,
}

impl Doing<'_> {
    /// The datasets as they are now.
    fn shown(&self) -> Result<Shown, Failure> {
        self.service.shown()
    }

    /// Whether there is such a dataset, be it one that no list shows: what was received in part beside another.
    fn is_there(&self, all: &Shown, name: &str) -> bool {
        let is_partial = name.rsplit_once('/').is_some_and(|(_, last)| last == TEMPORARY);
        all.has(name) || is_partial && self.pool.catalog().dataset_named(name).is_ok()
    }

    /// The key that came with it.
    fn key(&self) -> io::Result<Secret> {
        let descriptors = self.descriptors.take();
        Call { replies: self.replies, who: self.who.clone(), descriptors }.key()
    }

    /// Carries it out as if nothing were suspended.
    fn as_ever(&self) -> Result<Warnings, Failure> {
        let _turn = self.service.begin_order();
        self.service.pool()?;
        let done = self.order.carry_out(self);
        if self.order.changes_what_is_published() {
            self.service.publish_quietly(self.pool);
        }
        done
    }

    /// Refuses for this reason.
    fn refuse(&self, kind: FailureKind, reason: &str) -> Failure {
        Failure::new(kind, format!("{}: {reason}", self.start))
    }

    /// The reason that a refusal of this order gives.
    fn reason<'a>(&self, failure: &'a Failure) -> &'a str {
        let reason = failure.message.strip_prefix(&self.start).unwrap_or(&failure.message);
        reason.trim_start_matches(": ")
    }

    /// What an error of the engine is called on the command line.
    fn refused(&self, error: &Error) -> Failure {
        let words = self.order.words(error).unwrap_or_else(|| words(error));
        Failure { message: format!("{}: {words}", self.start), ..failure(error) }
    }

    /// What the engine makes of an order about the pool.
    fn engine(
        &self,
        order: impl FnOnce(&Arc<LivePool>) -> cenote_engine::Result<()>,
    ) -> cenote_engine::Result<()> {
        order(self.service.changes.live()?)
    }

    /// What the engine makes of an order about datasets.
    fn orders(
        &self,
        order: impl FnOnce(DatasetOrders<'_>) -> cenote_engine::Result<()>,
    ) -> cenote_engine::Result<()> {
        order(self.given_orders()?)
    }

    /// Who gives it, with the command line, which goes into the history with the change.
    fn given(&self) -> Given<'_> {
        self.noted.set(self.noted.get() || self.command.is_some());
        Given { command: self.command, ..self.by() }
    }

    /// Who gives it.
    fn by(&self) -> Given<'_> {
        Given { command: None, user: self.who.uid(), group: self.who.gid() }
    }

    /// Orders of the engine, of which the last one brings the command line into the history.
    fn given_orders(&self) -> cenote_engine::Result<DatasetOrders<'_>> {
        self.service.changes.orders(self.given())
    }

    /// On whose behalf mounts are made: root and the owner of the process make theirs where they like.
    fn on_behalf(&self) -> Option<u32> {
        (!self.who.is_owner()).then(|| self.who.uid())
    }

    /// Mounts one filesystem if its properties say that it should be.
    fn mount_if_due(&self, all: &dyn Datasets, name: &str) -> Result<(), Failure> {
        self.service.mount_if_due(self.pool, all, name, self.on_behalf())
    }

    /// Nothing was mounted because it was for a user who may not mount it there.
    fn may_not_mount(&self, failure: &Failure) -> bool {
        failure.kind == FailureKind::Permission && self.on_behalf().is_some()
    }

    /// Refuses what who gave this may not do.
    fn check(&self, needs: &[Need]) -> Result<(), Failure> {
        match self.service.has(&self.shown()?, self.who, needs) {
            true => Ok(()),
            false => Err(self.refuse(FailureKind::Permission, DENIED)),
        }
    }

    /// Carries out another order as a part of this one, if who gave this may give that.
    fn carry_out_too(&self, order: &dyn Order) -> Result<Warnings, Failure> {
        let start = order.cannot(self.pool.name());
        let doing = Doing { start, order, command: None, ..*self };
        if !self.who.is_owner() && !self.service.allows(order, &self.shown()?, self.who) {
            return Err(doing.refuse(FailureKind::Permission, DENIED));
        }
        order.carry_out(&doing)
    }

    /// Does one by one what was refused together, as OpenZFS does it: what is refused is said of each, the
    /// others are done. The first that is done brings the command line into the history.
    fn one_by_one<T: Order>(&self, orders: impl Iterator<Item = T>) -> Result<Warnings, Failure> {
        let (mut lines, mut refused, mut command) = (Vec::new(), None, self.command);
        for order in orders {
            let (start, noted) = (order.cannot(self.pool.name()), &Cell::new(false));
            match order.carry_out(&Doing { order: &order, start, command, noted, ..*self }) {
                Ok(warnings) => {
                    lines.extend(warnings);
                    command = None;
                }
                Err(failure) => {
                    lines.push(failure.message);
                    refused = refused.or(Some(failure.kind));
                }
            }
        }
        self.noted.set(command.is_none());
        match refused {
            Some(kind) => Err(Failure::new(kind, lines.join("\n"))),
            None => Ok(lines),
        }
    }

    /// Nothing but what the engine does.
    fn simply(&self, done: cenote_engine::Result<()>) -> Result<Warnings, Failure> {
        done.map(|()| Vec::new()).map_err(|error| self.refused(&error))
    }
}

/// As much of a command line as goes into the history: what others write there wears nothing out.
fn bounded<'a>(command: &'a str, who: &Peer) -> &'a str {
    match who.is_owner() {
        true => command,
        false => command.get(..command.floor_char_boundary(COMMAND_MAX)).unwrap_or_default(),
    }
}

/// What an error of the engine is called for most orders.
fn words(error: &Error) -> String {
    match error.kind() {
        ErrorKind::Exists => "dataset already exists".to_owned(),
        ErrorKind::NotFound => "dataset does not exist".to_owned(),
        ErrorKind::ReadOnly => "dataset is read-only".to_owned(),
        ErrorKind::NoSpace | ErrorKind::Quota => "out of space".to_owned(),
        ErrorKind::KeyNotLoaded => "encryption root's key is not loaded or provided".to_owned(),
        // Numbers of objects tell who gave the order nothing.
        ErrorKind::InvalidArgument if error.place().name.is_none() => error.reason().to_owned(),
        _ => error.to_string(),
    }
}

/// A refusal of several with a line for each of them; as it is, where there are none.
fn in_lines(failure: Failure, lines: &[String]) -> Failure {
    match lines {
        [] => failure,
        lines => Failure { message: lines.join("\n"), ..failure },
    }
}

/// What `name` has behind the name of `top`, if it is that or lies below it.
fn below<'a>(name: &'a str, top: &str) -> Option<&'a str> {
    name.strip_prefix(top).filter(|rest| rest.is_empty() || rest.starts_with('/'))
}

pub(super) fn is_at_or_below(name: &str, top: &str) -> bool {
    below(name, top).is_some()
}

impl Service {
    /// Serves [`cenote_control::server::PoolService::carry_out`].
    pub(super) fn give(&self, request: &ChangeRequest, call: Call<'_>) -> Result<Carried, Failure> {
        let pool = self.pool()?;
        let order = &*order(&request.change);
        let Call { replies, who, descriptors } = call;
        let command = request.command.as_deref().filter(|_| self.is_told_of(order, &who));
        let doing = Doing {
            service: self,
            pool: &pool,
            order,
            start: order.cannot(pool.name()),
            command: command.map(|command| bounded(command, &who)),
            noted: &Cell::new(false),
            replies,
            descriptors: &RefCell::new(descriptors),
            who: &who,
        };
        let warnings = self.carry_out_now(&doing)?;
        if order.ends_the_pool() {
            if !pool.is_written() {
                pool.events().system("pool_export", Vec::new());
            }
            self.told.end();
        }
        Ok(Carried { warnings, ends: order.ends_the_pool() })
    }

    /// Gives an order that moves no mounts for a request of files, which waits so long at most for orders that do.
    pub(super) fn give_for_files(
        &self,
        change: &Change,
        who: &Peer,
        patience: Duration,
    ) -> Result<(), Failure> {
        let pool = self.pool()?;
        let order = &*order(change);
        let replies = Replies::to_nobody();
        let doing = Doing {
            service: self,
            pool: &pool,
            order,
            start: order.cannot(pool.name()),
            command: None,
            noted: &Cell::new(false),
            replies: &replies,
            descriptors: &RefCell::default(),
            who,
        };
        if self.changes.suspended().is_some() {
            return Err(doing.refuse(FailureKind::Busy, SUSPENDED));
        }
        if let Some(reason) = self.changes.refusal() {
            return Err(doing.refuse(FailureKind::ReadOnly, &reason));
        }
        if !who.is_owner() && !self.allows(order, &self.shown()?, who) {
            return Err(doing.refuse(FailureKind::Permission, DENIED));
        }
        let busy = || doing.refuse(FailureKind::Busy, "mounts are being moved");
        let _turn = self.turns.beside_within(patience).ok_or_else(busy)?;
        order.carry_out(&doing)?;
        self.publish_quietly(&pool);
        Ok(())
    }

    /// Whether the history tells of an order: not of what anybody may ask for.
    fn is_told_of(&self, order: &dyn Order, who: &Peer) -> bool {
        let needs = || self.shown().ok().and_then(|all| order.needs(&all, who)).unwrap_or_default();
        who.is_owner() || !needs().is_empty()
    }

    fn carry_out_now(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let (order, command) = (doing.order, doing.command);
        order.take(doing)?;
        if order.is_urgent() {
            let warnings = order.carry_out(doing)?;
            if self.changes.suspended().is_none() {
                self.note_command(Given { command, ..doing.by() });
            }
            return Ok(warnings);
        }
        if self.changes.suspended().is_some() {
            return order.carry_out_suspended(doing);
        }
        let _turn = match order.moves_mounts() {
            true => self.begin_order(),
            false => self.turns.beside(),
        };
        // It may have been exported meanwhile.
        self.pool()?;
        if let Some(reason) = self.changes.refusal()
            && !order.suits_read_only()
        {
            return Err(doing.refuse(FailureKind::ReadOnly, &reason));
        }
        let live = self.changes.live().ok();
        let _dying =
            order.function().zip(live).and_then(|(name, live)| self.deaths.entered(name, live));
        let mut warnings = order.carry_out(doing)?;
        if order.ends_the_pool() {
            return Ok(warnings);
        }
        if !doing.noted.get() {
            self.note_command(Given { command, ..doing.by() });
        }
        if order.changes_what_is_published()
            && let Err(error) = self.publish(doing.pool)
        {
            let name = doing.pool.name();
            warnings.push(format!("what '{name}' shows is not up to date: {error}"));
        }
        Ok(warnings)
    }

    /// Adds a command line to the history.
    pub(super) fn note_command(&self, given: Given<'_>) {
        if let Some(command) = given.command
            && let Err(error) = self.changes.log_command(command, given.user.into())
        {
            tracing::warn!(%error, command, "not in the history");
        }
    }
}

#[cfg(test)]
mod tests;
