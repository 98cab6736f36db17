//! Steps that send a snapshot of the pool and receive it there under another name.
//!
//! Invariant: what a stream leads to is what was sent, whatever is done meanwhile; a receive that does not come
//! to its end leaves everything as it was, or what can go on from where it was cut off.

use cenote_engine::dataset::{Catalog, Dataset, resume_token};
use cenote_engine::pool::group::LivePool;
use cenote_engine::receive::{Landing, ReceiveOrder, StreamFacts, give_up_partial, next_record};
use cenote_engine::send::{
    Options, Sending, Since, resumed_options, resumed_snapshot, resumed_source,
};
use cenote_engine::stream::{StreamReader, StreamWriter};
use cenote_engine::{Error, ErrorKind, Result};
use cenote_format::ObjectId;
use cenote_format::send_stream::Record;

use crate::disks::{NAME, settle};
use crate::judge::Seen;
use crate::model::{Partial, PoolState, SetStory};
use crate::plan::Step;
use crate::run::{Runner, Verdict, load_key};

/// Bits of `forms`: large blocks, embedded, compressed, raw; it can go on; what is newer goes.
const LARGE: u8 = 1;
const EMBEDDED: u8 = 2;
const COMPRESSED: u8 = 4;
const RAW: u8 = 8;
const RESUMABLE: u8 = 16;
const FORCE: u8 = 32;
/// All of a stream, in thousandths.
const WHOLE: u16 = 1000;

/// A stream on its way.
struct Journey {
    /// Where it goes.
    target: String,
    /// What is there already.
    head: Option<ObjectId>,
    partial: Partial,
    /// What it is made a clone of.
    origin: Option<ObjectId>,
    stream: Vec<u8>,
    resumable: bool,
    force: bool,
    /// It is there in part, and known to be.
    is_known: bool,
    /// How many bytes of it come, and whether that is not all.
    cut: usize,
    is_cut: bool,
    /// After how many of them `steps` are done.
    at: usize,
    steps: Vec<Step>,
}

/// Sends a snapshot.
fn sent(live: &LivePool, to: &Dataset, since: Option<Since>, options: &Options) -> Result<Vec<u8>> {
    let catalog = live.pool().catalog();
    let sending = Sending::new(live.pool(), &catalog, to, since, options)?;
    let mut writer = StreamWriter::new(Vec::new());
    sending.write(&mut writer, &mut |_| Ok(()))?;
    Ok(std::mem::take(writer.sink()))
}

fn short(name: &str) -> String {
    name.split_once('@').map_or(String::new(), |(_, short)| short.to_owned())
}

fn part(whole: usize, thousandths: u16) -> usize {
    whole * usize::from(thousandths.min(WHOLE)) / usize::from(WHOLE)
}

impl Runner {
    pub(crate) fn transfer(&mut self, step: &Step) -> Verdict {
        let Step::Transfer { snapshot, to, since, forms, cut, at, steps } = step else {
            return self.pass();
        };
        let Some(name) = self.chosen_snapshot(*snapshot) else { return self.pass() };
        let target = format!("{NAME}/v{}", to % 3);
        let state = self.state();
        let over = state.filesystems.get(&target);
        if over.is_some_and(|over| self.closed.contains(over)) || name.starts_with(&target) {
            return self.pass();
        }
        let found = self.way(&name, over.map(|_| target.as_str()), *since);
        let (source, since, origin, head) = match found {
            Ok(found) => found,
            Err(_) if !self.model.damaged.is_empty() => return self.pass(),
            Err(error) => return Err(format!("looking for '{name}': {error}")),
        };
        let has = |bit: u8| forms & bit != 0;
        let options = Options {
            large_blocks: has(LARGE),
            embedded: has(EMBEDDED),
            compressed: has(COMPRESSED),
            raw: has(RAW),
            ..Options::default()
        };
        let from = since.as_ref().map_or(0, |since| since.guid.0);
        let Some(stream) = self.stream(&source, since, &options)? else { return Ok(()) };
        let catalog = self.live.pool().catalog();
        let clone_of = origin.as_ref().and_then(|origin| catalog.dataset_named(origin).ok());
        let partial = Partial {
            listing: state.snapshots[&name].clone(),
            snapshot: short(&name),
            origin,
            from,
            raw: has(RAW) && self.setup.encrypted,
            is_new: over.is_none(),
            behind: match head.filter(|_| from != 0 && !has(FORCE)) {
                None => from,
                // Nothing was changed since `from`, or this is refused, as it is without a newest one.
                Some(head) => self.newest_snapshot(head).unwrap_or(from),
            },
        };
        self.travel(Journey {
            head,
            partial,
            origin: clone_of.map(|origin| origin.id),
            resumable: has(RESUMABLE),
            force: has(FORCE),
            is_known: false,
            cut: part(stream.len(), *cut),
            is_cut: *cut < WHOLE,
            at: part(stream.len(), *at),
            stream,
            target,
            steps: steps.clone(),
        })
    }

    /// The snapshot `name`, what a stream of it to `target` can go on from, the snapshot that a new filesystem
    /// is a clone of then, and the head that is there.
    #[allow(clippy::type_complexity, reason = "taken apart at once")]
    fn way(
        &self,
        name: &str,
        target: Option<&str>,
        since: bool,
    ) -> Result<(Dataset, Option<Since>, Option<String>, Option<ObjectId>)> {
        let catalog = self.live.pool().catalog();
        let source = catalog.dataset_named(name)?;
        let head = target.map(|target| catalog.dataset_named(target)).transpose()?;
        let head_id = head.as_ref().map(|head| head.id);
        if !since {
            return Ok((source, None, None, head_id));
        }
        let Some(head) = head else {
            let Some(origin) = catalog.origin(&source.directory)? else {
                return Ok((source, None, None, None));
            };
            let since = Since::snapshot(&catalog, &source, &origin).ok();
            let name = since.as_ref().map(|_| origin.name.to_string());
            return Ok((source, since, name, None));
        };
        let since = common(&catalog, &source, &head)?;
        Ok((source, since, None, head_id))
    }

    /// The guid of the newest snapshot of a head.
    fn newest_snapshot(&self, head: ObjectId) -> Result<u64> {
        let catalog = self.live.pool().catalog();
        let newest = catalog.dataset_by_id(head)?.phys.previous_snapshot;
        Ok(catalog.dataset_by_id(newest)?.phys.guid.0)
    }

    /// The stream of a snapshot; `None` if it cannot be had, for a good reason.
    fn stream(
        &mut self,
        source: &Dataset,
        since: Option<Since>,
        options: &Options,
    ) -> Verdict<Option<Vec<u8>>> {
        match sent(&self.live, source, since, options) {
            Ok(stream) => Ok(Some(stream)),
            Err(_) if !self.model.damaged.is_empty() => self.pass().map(|()| None),
            Err(error) => Err(format!("'{}' is not sent: {error}", source.name)),
        }
    }

    /// What was received in part goes on.
    pub(crate) fn resume(&mut self, which: u8, cut: u16, end: u8) -> Verdict {
        let state = self.state();
        let partials = &state.partials;
        let chosen = partials.iter().nth(which as usize % partials.len().max(1));
        let Some((target, partial)) = chosen.map(|(a, b)| (a.clone(), b.clone())) else {
            return self.pass();
        };
        if state.filesystems.get(&target).is_some_and(|over| self.closed.contains(over)) {
            return self.pass();
        }
        if end == 0 {
            return self.give_up_below(&[target]).map(drop);
        }
        let catalog = self.live.pool().catalog();
        let words = |error: Error| format!("going on with '{target}': {error}");
        let head = catalog.dataset_named(&target).map_err(words)?;
        let token = catalog.resume_token(&head).map_err(words)?;
        let token = token.ok_or_else(|| format!("'{target}' has no token"))?;
        let list = resume_token::decode(&token).map_err(words)?;
        let name = list.string("toname").unwrap_or_default();
        let Ok(source) = resumed_snapshot(&catalog, name, list.u64("toguid").unwrap_or(0)) else {
            return self.pass();
        };
        let since = match list.u64("fromguid") {
            None => None,
            Some(guid) => match resumed_source(&catalog, &source, guid, None) {
                Ok(Some((since, _))) => Some(since),
                _ => return self.pass(),
            },
        };
        let stream = self.stream(&source, since, &resumed_options(&list))?;
        let Some(stream) = stream else { return Ok(()) };
        self.travel(Journey {
            head: (!partial.is_new).then_some(head.id),
            partial,
            origin: None,
            resumable: true,
            force: end & 1 != 0,
            is_known: true,
            cut: part(stream.len(), cut),
            is_cut: cut < WHOLE,
            at: usize::MAX,
            stream,
            target,
            steps: Vec::new(),
        })
    }

    /// Gives up what was received in part into filesystems of these names; whether that was done.
    pub(crate) fn give_up_below(&mut self, names: &[String]) -> Verdict<bool> {
        for name in names {
            let mut next = self.state();
            if next.partials.remove(name).is_none() {
                continue;
            }
            let given_up = self.order(next, |live| give_up_partial(live, name))?;
            if !given_up {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Receives.
    fn travel(&mut self, mut journey: Journey) -> Verdict {
        let stream = std::mem::take(&mut journey.stream);
        let stream = stream.get(..journey.cut).unwrap_or(&stream);
        let mut reader = StreamReader::new(stream);
        let Ok(first) = next_record(&mut reader) else { return self.pass() };
        let Record::Begin(begin) = first.record else { return Err("no beginning".into()) };
        let facts = StreamFacts::of(&begin, &first.payload);
        let facts = facts.map_err(|error| format!("what was sent is no stream: {error}"))?;
        let order = ReceiveOrder {
            dataset: journey.target.clone(),
            snapshot: journey.partial.snapshot.clone(),
            origin: journey.partial.origin.clone().filter(|_| !journey.is_known),
            force: journey.force,
            resumable: journey.resumable,
            ..ReceiveOrder::default()
        };
        let mut next = self.state();
        if journey.resumable {
            next.partials.insert(journey.target.clone(), journey.partial.clone());
        }
        let mark = self.begun(next);
        let begun = Landing::begin(&self.live, facts, order);
        let (landing, answer) = match begun {
            Ok(landing) => (Some(landing), Ok(())),
            Err(error) => (None, Err(error)),
        };
        self.answered(mark, answer)?;
        let Some(mut landing) = landing else { return self.nothing_left() };
        let applied = self.apply(&mut landing, &mut reader, &mut journey)?;
        match applied {
            Ok(()) => self.arrive(landing, &journey),
            Err(error) => {
                drop(landing);
                settle(&self.live);
                self.gave_up(&journey, &error)
            }
        }
    }

    /// Applies what comes, and does the steps that are to be done meanwhile.
    fn apply(
        &mut self,
        landing: &mut Landing,
        reader: &mut StreamReader<&[u8]>,
        journey: &mut Journey,
    ) -> Verdict<Result<()>> {
        let (mut steps, mut inside) = (std::mem::take(&mut journey.steps), Ok(()));
        let at = journey.at as u64;
        let applied = landing.apply_all(reader, |now| {
            if now < at {
                return Ok(());
            }
            for step in std::mem::take(&mut steps) {
                inside = self
                    .step(&step)
                    .map_err(|reason| format!("{} meanwhile: {reason}", crate::run::name(&step)));
                settle(&self.live);
                if inside.is_err() {
                    return Err(Error::invalid("what was done meanwhile failed"));
                }
            }
            Ok(())
        });
        inside.map(|()| applied)
    }

    /// A receive did not come to its end.
    fn gave_up(&mut self, journey: &Journey, error: &Error) -> Verdict {
        if !journey.is_cut && error.kind() == ErrorKind::Interrupted {
            return Err(format!("a whole stream ends too early: {error}"));
        }
        if error.kind() == ErrorKind::InvalidArgument && self.model.damaged.is_empty() {
            return Err(format!("what was sent is not received: {error}"));
        }
        self.declined(error)?;
        self.nothing_left()?;
        match Seen::of(self.live.pool())?.differs(self.model.pool.newest()) {
            None => Ok(()),
            Some(differs) => Err(format!("after {error} {differs}")),
        }
    }

    /// No receive is under way but those that can go on, while devices are well.
    fn nothing_left(&self) -> Verdict {
        let left = Seen::of(self.live.pool())?.left;
        let is_fair =
            self.dark || self.failing || !self.model.damaged.is_empty() || self.live.is_receiving();
        match left.is_empty() || is_fair {
            true => Ok(()),
            false => Err(format!("what was received in part is still there: {left:?}")),
        }
    }

    /// The whole stream is there.
    fn arrive(&mut self, landing: Landing, journey: &Journey) -> Verdict {
        let Partial { listing, raw, .. } = &journey.partial;
        // What is there may have got another name, or other content.
        let catalog = self.live.pool().catalog();
        let found = journey.head.map(|head| catalog.dataset_by_id(head));
        let target = match found {
            None => journey.target.clone(),
            Some(Ok(head)) => head.name.to_string(),
            Some(Err(error)) => return Err(format!("what is received into is gone: {error}")),
        };
        let fresh = self.model.next_set();
        let next = self.arrived(&target, fresh, journey)?;
        if let Some(over) = self.model.pool.newest().filesystems.get(&target) {
            self.trees.remove(over);
        }
        self.model.sets.insert(fresh, SetStory::of(listing, false, false));
        let mark = self.begun(next);
        let ended = landing.end();
        settle(&self.live);
        let done = self.answered(mark, ended)?;
        self.nothing_left()?;
        if done && *raw {
            load_key(&self.live, &self.setup)?;
        }
        self.reopen_lost()?;
        if !done {
            return Ok(());
        }
        self.tally.received += 1;
        self.compare_received(&target)
    }

    /// What there is when the stream has arrived.
    fn arrived(&self, target: &str, fresh: u64, journey: &Journey) -> Verdict<PoolState> {
        let partial = &journey.partial;
        let mut next = self.state();
        if let Some(head) = journey.head.filter(|_| partial.from != 0 && journey.force) {
            let catalog = self.live.pool().catalog();
            let all = catalog.dataset_by_id(head).and_then(|head| catalog.snapshots(&head));
            let all = all.map_err(|error| format!("the snapshots of '{target}': {error}"))?;
            let behind = all.iter().find(|one| one.phys.guid.0 == partial.behind);
            let behind = behind.map_or(u64::MAX, |behind| behind.phys.creation_txg.0);
            for newer in all.iter().filter(|one| one.phys.creation_txg.0 > behind) {
                next.snapshots.remove(&newer.name.to_string());
            }
        }
        next.partials.remove(target);
        next.filesystems.insert(target.to_owned(), fresh);
        next.snapshots.insert(format!("{target}@{}", partial.snapshot), partial.listing.clone());
        if partial.is_new {
            // A promotion may have moved it meanwhile.
            let moved =
                journey.origin.map(|origin| self.live.pool().catalog().dataset_by_id(origin));
            let origin = match moved {
                None => partial.origin.clone(),
                Some(Ok(origin)) => Some(origin.name.to_string()),
                Some(Err(error)) => return Err(format!("what '{target}' is a clone of: {error}")),
            };
            next.origins.extend(origin.map(|origin| (target.to_owned(), origin)));
        }
        Ok(next)
    }

    /// Head and snapshot are what was sent.
    fn compare_received(&mut self, target: &str) -> Verdict {
        let Some(number) = self.model.pool.newest().filesystems.get(target).copied() else {
            return Ok(());
        };
        let tree = self.tree(target, number)?;
        let listing = self.model.sets[&number].listing();
        crate::judge::compare(&tree, &listing, target, &self.model.damaged)
    }
}

/// What `source` and the filesystem `head` share last.
fn common(catalog: &Catalog, source: &Dataset, head: &Dataset) -> Result<Option<Since>> {
    let there = catalog.snapshots(head)?;
    let of_source = catalog.snapshots(&catalog.head(&source.directory)?)?;
    let mut known: Vec<&Dataset> = of_source
        .iter()
        .filter(|one| one.phys.creation_txg < source.phys.creation_txg)
        .filter(|one| there.iter().any(|other| other.phys.guid == one.phys.guid))
        .collect();
    known.sort_by_key(|one| one.phys.creation_txg);
    known.last().map(|from| Since::snapshot(catalog, source, from)).transpose()
}
