//! `zfs receive`: streams of one snapshot, and packages of several.
//!
//! Invariant: while a stream is read no other order waits; what it goes into is looked up when it begins and
//! again when it ends. A receive that fails leaves that as it was.

mod encryption;
mod names;
mod package;
mod properties;
mod replicate;
mod source;
mod words;

use std::sync::Arc;
use std::time::Instant;

use cenote_control::changes::{NewDataset, ReceiveRequest, ReceivedNames};
use cenote_control::peer::Peer;
use cenote_control::protocol::{Failure, FailureKind, Part};
use cenote_control::report::DatasetKind;
use cenote_control::text::number;
use cenote_engine::dataset::Known;
use cenote_engine::pool::group::LivePool;
use cenote_engine::receive::{self, Landing, ReceiveOrder, StreamFacts, next_record};
use cenote_engine::stream::StreamReader;
use cenote_engine::{Error, ErrorKind};
use cenote_format::NvList;
use cenote_format::objset::ObjsetKind;
use cenote_format::send_stream::{Begin, BeginFlags, Features, HeaderKind, Record};

use super::create::missing_parents;
use super::destroy::needs_to_destroy;
use super::remount::Exchange;
use super::{DENIED, Doing, Order, SUSPENDED, Warnings, is_at_or_below};
use crate::service::datasets::{Datasets, Shown};
use crate::service::delegation::{Need, above};
use names::{Destination, destination};
use package::{Package, Sent};
use source::Source;
use words::{START, Speaking, unreadable};

/// The property.
const ENCRYPTION: &str = "encryption";

pub(super) struct Receive<'a>(pub(super) &'a ReceiveRequest);

impl Order for Receive<'_> {
    fn cannot(&self, _: &str) -> String {
        START.to_owned()
    }

    /// Where it really goes is known, and checked, when the stream is read.
    fn needs(&self, all: &Shown, _: &Peer) -> Option<Vec<Need>> {
        let target = self.0.target.split('@').next().unwrap_or_default();
        Some(match self.0.names {
            ReceivedNames::Exact => needs_to_receive(all, target, self.0.force),
            _ => vec![need_to_receive(&format!("{target}/-"), self.0.force)],
        })
    }

    /// It takes its turn at the beginning and at the end.
    fn is_urgent(&self) -> bool {
        true
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let service = doing.service;
        if service.changes.suspended().is_some() {
            return Err(doing.refuse(FailureKind::Other, SUSPENDED));
        }
        if let Some(reason) = service.changes.refusal() {
            return Err(doing.refuse(FailureKind::ReadOnly, &reason));
        }
        let from = doing.descriptors.take().pop();
        let from = from.ok_or_else(|| doing.refuse(FailureKind::Other, "no stream"))?;
        let live = service.changes.live().map_err(|error| doing.refused(&error))?.clone();
        let reader = StreamReader::new(Source::new(from, doing.replies, &service.leaving));
        let mut session = Session {
            doing,
            request: self.0,
            live,
            reader,
            sent: String::new(),
            package: None,
            warnings: Vec::new(),
            is_mounted: true,
        };
        session.run()?;
        match session.is_mounted {
            true => Ok(session.warnings),
            // It is there all the same.
            false => Err(Failure::new(FailureKind::Other, session.warnings.join("\n"))),
        }
    }
}

/// Gives up what a resumable receive has left in a dataset.
pub(super) struct Abort<'a>(pub(super) &'a str);

impl Order for Abort<'_> {
    fn cannot(&self, _: &str) -> String {
        format!("'{}'", self.0)
    }

    fn needs(&self, _: &Shown, _: &Peer) -> Option<Vec<Need>> {
        Some(needs_to_destroy(self.0))
    }

    fn words(&self, error: &Error) -> Option<String> {
        match error.kind() {
            ErrorKind::Busy => Some("dataset is busy".to_owned()),
            _ => None,
        }
    }

    fn moves_mounts(&self) -> bool {
        false
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let done = doing.engine(|live| receive::give_up_partial(live, self.0));
        done.map(|()| Vec::new()).map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                let words = "does not have any resumable receive state to abort";
                Failure::new(FailureKind::NotFound, format!("'{}' {words}", self.0))
            }
            _ => doing.refused(&error),
        })
    }
}

/// What receiving into `dataset` needs, which may not be there yet; `force`: with `-F`.
fn needs_to_receive(all: &Shown, dataset: &str, force: bool) -> Vec<Need> {
    let at = if all.has(dataset) { dataset } else { above(dataset) };
    vec![need_to_receive(at, force), Need::new("mount", at), Need::new("create", at)]
}

/// Who may only append takes nothing back and destroys nothing.
fn need_to_receive(at: &str, force: bool) -> Need {
    let receive = Need::new("receive", at);
    if force { receive } else { receive.or("receive:append") }
}

/// A receive under way.
struct Session<'a> {
    doing: &'a Doing<'a>,
    request: &'a ReceiveRequest,
    live: Arc<LivePool>,
    reader: StreamReader<Source<'a>>,
    /// The dataset that was sent.
    sent: String,
    package: Option<Package>,
    warnings: Warnings,
    /// All is that is due to be, and may be by who gave the order.
    is_mounted: bool,
}

impl Session<'_> {
    fn run(&mut self) -> Result<(), Failure> {
        let first = next_record(&mut self.reader).map_err(|error| unreadable(&error))?;
        let Record::Begin(begin) = first.record else {
            let reason = "invalid stream (malformed header)";
            return Err(self.doing.refuse(FailureKind::Other, reason));
        };
        if begin.features.contains(Features::DEDUP) {
            return Err(Failure::new(FailureKind::NotSupported, words::DEDUPLICATED));
        }
        let name = String::from_utf8_lossy(&begin.to_name).into_owned();
        self.sent = name.split('@').next().unwrap_or_default().to_owned();
        if begin.kind == HeaderKind::Substream {
            return self.one(&begin, &first.payload);
        }
        let list = match first.payload.is_empty() {
            true => NvList::new(),
            false => NvList::decode(&first.payload).map_err(|_| {
                self.doing.refuse(FailureKind::Other, "invalid stream (bad package list)")
            })?,
        };
        let package = Package::of(&list);
        let end = next_record(&mut self.reader).map_err(|error| unreadable(&error))?;
        if !matches!(end.record, Record::End(_)) {
            let reason = "invalid stream (malformed package)";
            return Err(self.doing.refuse(FailureKind::Other, reason));
        }
        self.follow(&package, &name)?;
        self.package = Some(package);
        loop {
            let item = next_record(&mut self.reader).map_err(|error| unreadable(&error))?;
            match item.record {
                Record::Begin(begin) => self.one(&begin, &item.payload)?,
                Record::End(_) => return self.follow_roots(),
                _ => {
                    let reason = "invalid stream (malformed package)";
                    return Err(self.doing.refuse(FailureKind::Other, reason));
                }
            }
        }
    }

    /// What came raw has the encryption roots of its source from now on. The topmost never gets one above it.
    fn follow_roots(&self) -> Result<(), Failure> {
        let (doing, request) = (self.doing, self.request);
        let Some(package) = self.package.as_ref().filter(|package| package.is_raw) else {
            return Ok(());
        };
        if request.dry_run {
            return Ok(());
        }
        let mut all = Vec::new();
        for sent in &package.datasets {
            let Some(dataset) = self.local_of(sent)? else { continue };
            if sent.is_root || sent.name != self.sent {
                all.push(sent.root_of(dataset));
            }
        }
        all.sort_by(|one, other| one.dataset.cmp(&other.dataset));
        let _turn = doing.service.turns.beside();
        doing.service.pool()?;
        doing.engine(|live| live.follow_roots(&all)).map_err(|error| doing.refused(&error))?;
        doing.service.publish(doing.pool)
    }

    /// What a dataset of the package is called here.
    fn local_of(&self, sent: &Sent) -> Result<Option<String>, Failure> {
        let shown = self.doing.shown()?;
        let of = |name: &str| {
            let request = self.request;
            destination(&request.target, request.names, &self.sent, &format!("{name}@-"), true)
        };
        let (Ok(top), Ok(expected)) = (of(&self.sent), of(&sent.name)) else { return Ok(None) };
        for (snapshot, guid) in &sent.snapshots {
            let name = format!("{}@{snapshot}", expected.dataset);
            let known =
                shown.known(&name).and_then(|known| Some(known.facts()?.dataset.phys.guid.0));
            if known == Some(*guid) {
                return Ok(Some(expected.dataset));
            }
        }
        for guid in sent.snapshots.values() {
            let found = self.named(*guid, &expected.dataset)?;
            let found = found.as_deref().and_then(|name| name.split('@').next());
            if let Some(found) = found.filter(|found| is_at_or_below(found, &top.dataset)) {
                return Ok(Some(found.to_owned()));
            }
        }
        Ok(None)
    }

    /// Destroys and renames what the sender of a package has destroyed and renamed, if that is asked for.
    fn follow(&self, package: &Package, name: &str) -> Result<(), Failure> {
        let request = self.request;
        let is_asked = request.force && package.is_recursive && !request.dry_run;
        if !is_asked || package.from.is_none() {
            return Ok(());
        }
        let top = destination(&request.target, request.names, &self.sent, name, true)
            .map_err(|reason| self.doing.refuse(FailureKind::Other, &reason))?;
        if !self.doing.shown()?.has(&top.dataset) {
            return Ok(());
        }
        replicate::follow(self.doing, package, &top.dataset, &self.sent)
    }

    /// Receives the snapshot that `begin` tells of.
    fn one(&mut self, begin: &Begin, list: &[u8]) -> Result<(), Failure> {
        let request = self.request;
        let name = String::from_utf8_lossy(&begin.to_name).into_owned();
        let several = self.is_recursive();
        if request.names != ReceivedNames::Exact && !self.doing.shown()?.has(&request.target) {
            let reason = format!("specified fs ({}) does not exist", request.target);
            return Err(self.doing.refuse(FailureKind::NotFound, &reason));
        }
        let to = destination(&request.target, request.names, &self.sent, &name, several)
            .map_err(|reason| self.doing.refuse(FailureKind::Other, &reason))?;
        let plan = Plan::of(begin, request);
        let facts = StreamFacts::of(begin, list);
        let to = self.found_again(to, begin, &plan)?;
        let speaking = Speaking { start: plan.start, to: &to };
        if request.corrective {
            return self.correct(facts, &speaking);
        }
        let needs = needs_to_receive(&self.doing.shown()?, &to.dataset, request.force);
        self.doing.check(&needs).map_err(|_| speaking.refuse(FailureKind::Permission, DENIED))?;
        let facts = facts.map_err(|error| speaking.not_begun(&error))?;
        if !plan.is_new && self.has(&to, facts.to.0)? {
            return self.pass_over(&to, &facts);
        }
        let origin = self.origin(begin, &speaking)?;
        let made = self.check(&plan, facts.kind, &speaking)?;
        self.check_given(&facts, &speaking)?;
        self.check_encryption(&plan, made, &speaking)?;
        self.say_begin(&to, &facts);
        if request.dry_run {
            return self.skip();
        }
        let order = self.order(&to, &facts, origin, made);
        let mut order = order.map_err(|error| speaking.failed(&error))?;
        self.leave_out_denied(&mut order, made)?;
        let (begun, before) = (Instant::now(), self.reader.bytes());
        self.land(facts, order, &speaking, made)?;
        self.say_end(self.reader.bytes().saturating_sub(before), begun);
        Ok(())
    }

    /// Makes damaged blocks of a snapshot right with what the stream of it has.
    fn correct(
        &mut self,
        facts: cenote_engine::Result<StreamFacts>,
        speaking: &Speaking<'_>,
    ) -> Result<(), Failure> {
        let Destination { dataset, snapshot } = speaking.to;
        let name = format!("{dataset}@{snapshot}");
        let needs = needs_to_receive(&self.doing.shown()?, dataset, self.request.force);
        self.doing.check(&needs).map_err(|_| speaking.refuse(FailureKind::Permission, DENIED))?;
        let found = self.live.pool().catalog().dataset_named(&name);
        let Some(found) = found.ok().filter(|_| self.request.target.contains('@')) else {
            let words = "corrective recv must specify an existing snapshot to heal";
            return Err(speaking.refuse(FailureKind::NotFound, words));
        };
        let facts = facts.map_err(|error| speaking.not_begun(&error))?;
        let kind = if facts.from.0 == 0 { "full" } else { "incremental" };
        let doing = if self.request.dry_run { "would receive" } else { "receiving" };
        self.say(format!("{doing} corrective {kind} stream of {} into {name}", facts.name));
        if self.request.dry_run {
            return self.skip();
        }
        let (begun, before) = (Instant::now(), self.reader.bytes());
        let corrected = receive::correct(&self.live, &found, &facts, &mut self.reader, |_| Ok(()));
        let done = corrected.map_err(|error| speaking.failed(&error))?;
        tracing::info!(name, blocks = done.blocks, "damaged blocks were made right by a stream");
        self.say_end(self.reader.bytes().saturating_sub(before), begun);
        Ok(())
    }

    /// What `-v` shows.
    fn say(&self, line: String) {
        if self.request.verbose {
            // Who does not listen any more is noticed where the stream is read.
            drop(self.doing.replies.part(Part::Said(vec![line])));
        }
    }

    fn say_begin(&self, to: &Destination, facts: &StreamFacts) {
        let doing = if self.request.dry_run { "would receive" } else { "receiving" };
        let kind = if facts.from.0 == 0 { "full" } else { "incremental" };
        let (name, dataset, snapshot) = (&facts.name, &to.dataset, &to.snapshot);
        self.say(format!("{doing} {kind} stream of {name} into {dataset}@{snapshot}"));
    }

    fn say_end(&self, bytes: u64, begun: Instant) {
        let seconds = begun.elapsed().as_secs_f64().max(0.01);
        let (all, rate) = (size(bytes), size((bytes as f64 / seconds) as u64));
        self.say(format!("received {all} stream in {seconds:.2} seconds ({rate}/sec)"));
    }

    /// The snapshot is there already.
    fn pass_over(&mut self, to: &Destination, facts: &StreamFacts) -> Result<(), Failure> {
        let begun = Instant::now();
        self.say_begin(to, facts);
        self.skip()?;
        self.say(format!("snap {}@{} already exists; ignoring", to.dataset, to.snapshot));
        self.say_end(0, begun);
        Ok(())
    }

    /// Reads what belongs to a snapshot that is not received.
    fn skip(&mut self) -> Result<(), Failure> {
        receive::skip(&mut self.reader, |_| Ok(())).map_err(|error| unreadable(&error))
    }

    /// Whether this very snapshot is there.
    fn has(&self, to: &Destination, guid: u64) -> Result<bool, Failure> {
        let shown = self.doing.shown()?;
        let known = shown.known(&format!("{}@{}", to.dataset, to.snapshot));
        Ok(known.and_then(|known| Some(known.facts()?.dataset.phys.guid.0)) == Some(guid))
    }

    /// Where the stream goes, if what it goes on from has another name by now.
    fn found_again(
        &self,
        to: Destination,
        begin: &Begin,
        plan: &Plan,
    ) -> Result<Destination, Failure> {
        let shown = self.doing.shown()?;
        let is_below = self.package.is_some() || self.request.names != ReceivedNames::Exact;
        if shown.has(&to.dataset) || !is_below {
            return Ok(to);
        }
        if !plan.is_new {
            let found = self.named(begin.from_guid.0, &to.dataset)?;
            return Ok(match found.as_deref().and_then(|name| name.split('@').next()) {
                Some(dataset) => Destination { dataset: dataset.to_owned(), ..to },
                None => to,
            });
        }
        let (Some((parent, last)), Some(sent)) =
            (to.dataset.rsplit_once('/'), self.sent_of(begin.to_guid.0))
        else {
            return Ok(to);
        };
        if shown.has(parent) || sent.above == 0 {
            return Ok(to);
        }
        let above = self.named(sent.above, parent)?;
        Ok(match above.as_deref().and_then(|name| name.split('@').next()) {
            Some(above) => Destination { dataset: format!("{above}/{last}"), ..to },
            None => to,
        })
    }

    fn sent_of(&self, guid: u64) -> Option<&Sent> {
        Some(self.package.as_ref()?.of_snapshot(guid)?.0)
    }

    /// The snapshot with this guid, in the pool: the nearest to the dataset `near`.
    fn named(&self, guid: u64, near: &str) -> Result<Option<String>, Failure> {
        let shown = self.doing.shown()?;
        let is_it = |known: &Known<'_>| {
            known.facts().is_some_and(|facts| {
                facts.dataset.is_snapshot() && facts.dataset.phys.guid.0 == guid
            })
        };
        let shared = |name: &String| {
            let (path, _) = name.split_once('@').unwrap_or((name, ""));
            path.split('/').zip(near.split('/')).take_while(|(one, other)| one == other).count()
        };
        let all = shown.inventory().all().filter(is_it);
        Ok(all.map(|known| known.name().to_string()).max_by_key(shared))
    }

    /// What a new dataset is cloned from.
    fn origin(&self, begin: &Begin, speaking: &Speaking<'_>) -> Result<Option<String>, Failure> {
        if let Some(origin) = &self.request.origin {
            return Ok(Some(origin.clone()));
        }
        let is_clone = begin.flags.contains(BeginFlags::CLONE);
        if !is_clone || begin.features.contains(Features::RESUMING) {
            return Ok(None);
        }
        let found = self.named(begin.from_guid.0, &speaking.to.dataset)?;
        let Destination { dataset, snapshot } = speaking.to;
        let missing = || {
            let reason = format!("local origin for clone {dataset}@{snapshot} does not exist");
            speaking.refuse(FailureKind::NotFound, &reason)
        };
        let found = found.ok_or_else(missing)?;
        self.say(format!("found clone origin {found}"));
        Ok(Some(found))
    }

    /// Refuses what does not fit what is there; makes parents that are missing, if they are to be. Whether
    /// the stream makes a dataset.
    fn check(
        &self,
        plan: &Plan,
        kind: ObjsetKind,
        speaking: &Speaking<'_>,
    ) -> Result<bool, Failure> {
        let shown = self.doing.shown()?;
        let dataset = &speaking.to.dataset;
        let Some(known) = shown.known(dataset) else {
            if !plan.is_new {
                let reason = format!("destination '{dataset}' does not exist");
                return Err(speaking.refuse(FailureKind::NotFound, &reason));
            }
            self.make_parents(dataset, speaking)?;
            return Ok(true);
        };
        if !plan.is_new {
            return match plan.is_raw && !shown.is_encrypted(dataset) {
                true => Err(speaking.refuse(FailureKind::Other, words::RAW_ON_PLAIN)),
                false => Ok(false),
            };
        }
        let exists = |reason: String| Err(speaking.refuse(FailureKind::Already, &reason));
        if !self.request.force {
            let hint = "must specify -F to overwrite it";
            return exists(format!("destination '{dataset}' exists\n{hint}"));
        }
        if let Some((snapshot, _)) = shown.snapshots(dataset).first() {
            return exists(format!(
                "destination has snapshots (eg. {dataset}@{snapshot})\nmust destroy them to \
                 overwrite it"
            ));
        }
        let origin = known.facts().map(|facts| facts.dataset.directory.phys.origin);
        let catalog = self.live.pool().catalog();
        let common = catalog.common_origin().ok().flatten();
        if origin.is_some_and(|origin| origin.0 != 0 && Some(origin) != common) {
            let hint = "must destroy it to overwrite it";
            return exists(format!("destination '{dataset}' is a clone\n{hint}"));
        }
        if kind == ObjsetKind::Zvol
            && let Some(why) = hinders_volume(&shown, dataset)
        {
            return exists(format!("{why}\ncannot overwrite with a ZVOL"));
        }
        match plan.is_raw || shown.is_encrypted(dataset) {
            true => exists(words::KEYS_STAY.to_owned()),
            false => Ok(false),
        }
    }

    fn make_parents(&self, dataset: &str, speaking: &Speaking<'_>) -> Result<(), Failure> {
        let (doing, service) = (self.doing, self.doing.service);
        let shown = doing.shown()?;
        let missing = missing_parents(&shown, dataset)
            .map_err(|reason| speaking.refuse(FailureKind::Other, reason))?;
        let Some((last, above)) = missing.split_last() else { return Ok(()) };
        if self.request.names != ReceivedNames::WithoutPool || self.request.dry_run {
            let words = format!(
                "cannot open '{last}': dataset does not exist\n{}: unable to restore to destination",
                speaking.start
            );
            return Err(Failure::new(FailureKind::NotFound, words));
        }
        let new = NewDataset { name: last.clone(), mount: true, ..NewDataset::default() };
        let _turn = service.turns.beside();
        service.pool()?;
        let made = service.changes.create_dataset(&new, above, doing.by());
        made.map_err(|error| speaking.failed(&error))?;
        service.publish(doing.pool)?;
        let fresh = doing.shown()?;
        let _mounting = service.turns.mounting();
        for name in missing.iter().filter(|_| !self.request.keep_unmounted) {
            if let Err(failure) = doing.mount_if_due(&fresh, name) {
                tracing::warn!(%failure, name, "not mounted");
            }
        }
        Ok(())
    }

    /// Every snapshot of a dataset brings the same properties: once is enough.
    fn warn_once(&mut self, line: String) {
        if !self.warnings.contains(&line) {
            self.warnings.push(line);
        }
    }

    /// Receives the records of one snapshot.
    fn land(
        &mut self,
        facts: StreamFacts,
        order: ReceiveOrder,
        speaking: &Speaking<'_>,
        made: bool,
    ) -> Result<(), Failure> {
        let (doing, service) = (self.doing, self.doing.service);
        let is_related = facts.from.0 != 0;
        let landing = {
            let _turn = service.turns.beside();
            service.pool()?;
            Landing::begin(&self.live, facts, order.clone())
        };
        let mut landing = landing.map_err(|error| speaking.not_begun(&error))?;
        service.publish(doing.pool)?;
        if let Err(error) = landing.apply_all(&mut self.reader, |_| Ok(())) {
            drop(landing);
            service.publish_quietly(doing.pool);
            return Err(speaking.cut_off(&error, doing.pool));
        }
        let made = made || !landing.replaces();
        let refused = match landing.replaces() {
            true => self.replace(landing, is_related, &order, speaking)?,
            false => {
                let _turn = service.turns.beside();
                service.pool()?;
                landing.end().map_err(|error| speaking.failed(&error))?
            }
        };
        for property in refused {
            let dataset = &order.dataset;
            self.warn_once(format!("cannot receive {property} property on {dataset}"));
        }
        self.show(&order.dataset, made && !self.request.keep_unmounted)
    }

    /// Shows what was received, and mounts it if it is due. An export that came in between waited for the
    /// receive only: nothing is mounted of the pool after it.
    fn show(&mut self, dataset: &str, mounts: bool) -> Result<(), Failure> {
        let (doing, service) = (self.doing, self.doing.service);
        let _turn = service.turns.beside();
        if service.pool().is_err() {
            return Ok(());
        }
        service.publish_quietly(doing.pool);
        if mounts {
            let _mounting = service.turns.mounting();
            let fresh = doing.shown()?;
            if let Err(failure) = doing.mount_if_due(&fresh, dataset) {
                self.is_mounted &= doing.may_not_mount(&failure);
                self.warnings.push(failure.message);
            }
        }
        Ok(())
    }

    /// Puts what was received in the place of what is there, whose users wait meanwhile. Where it `is_related`, what
    /// they have open and is there still goes on.
    fn replace(
        &self,
        landing: Landing,
        is_related: bool,
        order: &ReceiveOrder,
        speaking: &Speaking<'_>,
    ) -> Result<Vec<String>, Failure> {
        let (doing, service) = (self.doing, self.doing.service);
        let _turn = service.begin_order();
        service.pool()?;
        if let Err(error) = landing.check_name() {
            drop(landing);
            service.publish_quietly(doing.pool);
            return Err(match error.kind() {
                ErrorKind::NotFound => speaking.refuse(FailureKind::NotFound, words::GONE),
                _ => speaking.failed(&error),
            });
        }
        let mounted = service.mounts.places();
        let local = order.local.clone();
        let exchange =
            Exchange { dataset: &order.dataset, mounted: &mounted, is_related, force: true };
        let (done, warnings) = exchange.make(doing, || {
            let done = landing.end();
            let is_other = done.is_ok();
            let done = match (done, local.is_empty()) {
                (Ok(refused), false) => service
                    .changes
                    .orders(doing.by())
                    .and_then(|orders| orders.set_properties(vec![(order.dataset.clone(), local)]))
                    .map(|()| refused),
                (done, _) => done,
            };
            (done, is_other)
        })?;
        warnings.iter().for_each(|line| tracing::warn!(line, "after a receive"));
        done.map_err(|error| speaking.failed(&error))
    }
}

/// Why a volume cannot take the place of a dataset.
fn hinders_volume(all: &Shown, dataset: &str) -> Option<String> {
    if !dataset.contains('/') {
        return Some(format!("destination {dataset} is the root dataset"));
    }
    let below = all.below(dataset);
    let is_head = |kind| matches!(kind, DatasetKind::Filesystem | DatasetKind::Volume);
    let child = below.iter().find(|(name, kind)| is_head(*kind) && name != dataset);
    child.map(|(child, _)| format!("destination has children (eg. {child})"))
}

/// As OpenZFS shows bytes of streams.
fn size(bytes: u64) -> String {
    let shown = number::bytes(bytes);
    if shown.ends_with(|c: char| c.is_ascii_digit()) { format!("{shown}B") } else { shown }
}

/// What a stream is to do.
struct Plan {
    /// How refusals begin.
    start: &'static str,
    /// It makes a dataset, or takes the place of all that one holds.
    is_new: bool,
    /// Its blocks come as they lie on the disks.
    is_raw: bool,
}

impl Plan {
    fn of(begin: &Begin, request: &ReceiveRequest) -> Self {
        let resumes = begin.features.contains(Features::RESUMING);
        let is_new = begin.from_guid.0 == 0
            || begin.flags.contains(BeginFlags::CLONE)
            || request.origin.is_some();
        let start = match (resumes, is_new) {
            (true, _) => "cannot receive resume stream",
            (_, true) => "cannot receive new filesystem stream",
            _ => "cannot receive incremental stream",
        };
        Self { start, is_new: is_new && !resumes, is_raw: begin.features.contains(Features::RAW) }
    }
}
