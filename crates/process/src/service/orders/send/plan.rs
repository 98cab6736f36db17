//! Which streams are sent, of what, in which order.
//!
//! Chapter 07, section 11. Invariant: what a stream goes on from was sent before it, or the receiver must have
//! it already: it is older than what the order is about.

use cenote_control::changes::SendRequest;
use cenote_engine::dataset::{Catalog, Dataset, DatasetName, Directory, Suffix};
use cenote_engine::send::{Member, Package, Redaction, Since};
use cenote_engine::{Error, ErrorKind};
use cenote_format::{Guid, ObjectId, Txg};

use super::super::is_at_or_below;

/// Why nothing is planned: an error, or a line of its own.
pub(super) enum Refusal {
    /// What could not be read or found.
    Error(Error),
    /// The whole line.
    Line(String),
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// One stream.
pub(super) struct Stream {
    pub(super) to: Dataset,
    pub(super) since: Option<Since>,
    /// Where it begins, for estimates.
    pub(super) before: Option<DatasetName>,
    /// What that is called in lines.
    pub(super) shown: Option<String>,
}

/// What is sent.
#[derive(Default)]
pub(super) struct Plan {
    pub(super) streams: Vec<Stream>,
    /// Filesystems and volumes, if it is a package.
    pub(super) members: Vec<Member>,
    /// Lines for standard error: what is left out.
    pub(super) warnings: Vec<String>,
    /// Blocks that are left out of the one stream there is.
    pub(super) redaction: Option<Redaction>,
    /// Name and guid of the snapshot that it is a part of.
    pub(super) part_of: Option<(String, Guid)>,
}

/// Which of them there are to plan.
struct Planner<'a> {
    catalog: &'a Catalog,
    request: &'a SendRequest,
    /// Name of the snapshot that is sent, after the `@`.
    to: &'a str,
    /// Name of the snapshot it goes on from, after the `@`.
    from: Option<&'a str>,
    /// Group the snapshot of the topmost was taken in, once that is known.
    taken_in: Option<Txg>,
    plan: Plan,
}

/// There may be several streams.
fn is_of_several(request: &SendRequest) -> bool {
    request.recursive || request.intermediates
}

/// Streams follow a record that says so.
pub(super) fn is_package(request: &SendRequest) -> bool {
    is_of_several(request) || is_listed(request)
}

/// The package says what is in it.
pub(super) fn is_listed(request: &SendRequest) -> bool {
    request.recursive || request.properties || request.backup || request.holds
}

/// How the package begins.
pub(super) fn package(request: &SendRequest) -> Package<'_> {
    // One stream alone may go on from what is elsewhere: who receives it looks at the stream only.
    let from = request.from.as_deref().filter(|_| is_of_several(request));
    let from = from.and_then(|from| from.split_once('@'));
    Package {
        name: &request.snapshot,
        from: from.map(|(_, snapshot)| snapshot),
        recursive: request.recursive,
        raw: request.raw,
        listed: is_listed(request),
        received_only: request.backup,
        holds: request.holds,
    }
}

/// Plans what is asked for.
///
/// # Errors
/// What is not there, or cannot be read.
pub(super) fn plan(catalog: &Catalog, request: &SendRequest) -> Result<Plan, Refusal> {
    let (path, to) = request.snapshot.split_once('@').unwrap_or((&request.snapshot, ""));
    let top = catalog.directory(path)?;
    let from = request.from.as_deref();
    let outside = from.filter(|from| !from.starts_with(&format!("{path}@")));
    let mut planner = Planner {
        catalog,
        request,
        to,
        from: from.filter(|_| outside.is_none()).and_then(|from| Some(from.split_once('@')?.1)),
        taken_in: None,
        plan: Plan::default(),
    };
    if !is_of_several(request) {
        planner.alone(&top)?;
        return Ok(planner.plan);
    }
    if let Some(origin) = outside {
        planner.since_origin(&top, origin)?;
        return Ok(planner.plan);
    }
    let mut directories = match request.recursive {
        true => catalog.walk(&top)?,
        false => vec![top],
    };
    directories.retain(|directory| !is_excluded(request, &directory.path));
    directories.sort_by(|a, b| a.path.split('/').cmp(b.path.split('/')));
    planner.all(directories)?;
    Ok(planner.plan)
}

fn is_excluded(request: &SendRequest, path: &str) -> bool {
    request.excluded.iter().any(|one| is_at_or_below(path, one))
}

fn short(snapshot: &Dataset) -> String {
    let name = snapshot.name.to_string();
    name.split_once('@').map_or(String::new(), |(_, short)| short.to_owned())
}

impl Planner<'_> {
    /// One stream of one snapshot, or of a dataset that nobody changes. What it goes on from is a bookmark, or a snapshot
    /// of it or of what it comes from.
    fn alone(&mut self, top: &Directory) -> Result<(), Refusal> {
        let (catalog, request) = (self.catalog, self.request);
        let head = catalog.head(top)?;
        let to = match request.snapshot.contains('@') {
            true => self.snapshot(&head, self.to)?.ok_or_else(|| unopened(&request.snapshot))?,
            false => head.clone(),
        };
        let before = request.from.as_deref().map(DatasetName::parse).transpose()?;
        let since = before.as_ref().map(|name| self.since(&to, name)).transpose()?;
        if is_listed(request) {
            self.refuse_sealed(top)?;
            let origin = catalog.origin(top)?.map(|origin| origin.phys.guid);
            let snapshots = vec![to.clone()];
            self.plan.members.push(Member { head, snapshots, parent_from: Guid(0), origin });
        }
        let shown = request.from.clone();
        self.plan.streams.push(Stream { to, since, before, shown });
        Ok(())
    }

    fn since(&self, to: &Dataset, from: &DatasetName) -> Result<Since, Refusal> {
        let is_bookmark = matches!(from.suffix(), Suffix::Bookmark(_));
        let found = match is_bookmark {
            true => Since::bookmark(self.catalog, to, from),
            false => {
                let from = self.catalog.dataset(from);
                from.and_then(|from| Since::snapshot(self.catalog, to, &from))
            }
        };
        found.map_err(|error| match (error.kind(), is_bookmark) {
            (ErrorKind::NotFound, true) => {
                let name = &to.name;
                let why = format!("incremental source ({from}) does not exist");
                Refusal::Line(format!("warning: cannot send '{name}': {why}"))
            }
            (ErrorKind::NotFound, false) => unopened(&from.to_string()),
            _ => Refusal::Error(error),
        })
    }

    /// All snapshots of a clone, since what it was cloned from.
    fn since_origin(&mut self, top: &Directory, origin: &str) -> Result<(), Refusal> {
        let catalog = self.catalog;
        let head = catalog.head(top)?;
        let to = self.snapshot(&head, self.to)?.ok_or_else(|| missing(&head, self.to))?;
        let before = catalog.dataset_named(origin)?;
        let mut snapshots = catalog.snapshots(&head)?;
        snapshots.retain(|one| one.phys.creation_txg <= to.phys.creation_txg);
        self.streams(&snapshots, false, Some(&before))?;
        let origin = catalog.origin(top)?.map(|origin| origin.phys.guid);
        self.plan.members.push(Member { head, snapshots, parent_from: Guid(0), origin });
        Ok(())
    }

    /// Properties of what is encrypted go with raw streams only.
    fn refuse_sealed(&self, directory: &Directory) -> Result<(), Refusal> {
        let is_listed = is_listed(self.request) && !self.request.raw;
        if !is_listed || self.catalog.key_object(directory)?.is_none() {
            return Ok(());
        }
        let (path, to) = (&directory.path, self.to);
        Err(Refusal::Line(format!(
            "cannot send {path}@{to}: encrypted dataset {path} may not be sent with properties \
             without the raw flag"
        )))
    }

    fn snapshot(&self, head: &Dataset, name: &str) -> Result<Option<Dataset>, Error> {
        match self.catalog.snapshot(head, name) {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Streams of all of these, clones after what they were cloned from.
    fn all(&mut self, directories: Vec<Directory>) -> Result<(), Refusal> {
        let inside: Vec<ObjectId> = directories.iter().map(|directory| directory.id).collect();
        let (mut waiting, mut sent): (Vec<Directory>, Vec<ObjectId>) = (directories, Vec::new());
        let mut left_out: Vec<String> = Vec::new();
        while !waiting.is_empty() {
            let mut later = Vec::new();
            let before = sent.len();
            for directory in std::mem::take(&mut waiting) {
                if left_out.iter().any(|path| is_at_or_below(&directory.path, path)) {
                    sent.push(directory.id);
                    continue;
                }
                let origin = self.catalog.origin(&directory)?;
                let needs = [Some(directory.phys.parent), origin.map(|one| one.directory.id)];
                let is_ready = |id: &ObjectId| !inside.contains(id) || sent.contains(id);
                if !needs.iter().flatten().all(is_ready) {
                    later.push(directory);
                    continue;
                }
                sent.push(directory.id);
                if !self.one(&directory)? {
                    left_out.push(directory.path);
                }
            }
            if sent.len() == before {
                let line = "cannot send: clones and their origins form a circle".to_owned();
                return Err(Refusal::Line(line));
            }
            waiting = later;
        }
        Ok(())
    }

    /// It has no such snapshot: leaves it out, with all that is below it, or refuses.
    fn without(&mut self, head: &Dataset) -> Result<(), Refusal> {
        let (name, to) = (&head.name, self.to);
        if self.taken_in.is_some_and(|txg| head.phys.creation_txg > txg) {
            if self.request.verbose {
                let why = format!("it was created after the destination snapshot ({to})");
                self.plan.warnings.push(format!("skipping dataset {name}: {why}"));
            }
            return Ok(());
        }
        if self.request.skip_missing {
            let why = format!("snapshot {to} does not exist");
            let line = format!("WARNING: skipping dataset {name} and its children: {why}");
            self.plan.warnings.push(line);
            return Ok(());
        }
        let below = if self.request.recursive { " recursively" } else { "" };
        let sent = &self.request.snapshot;
        Err(Refusal::Line(format!(
            "cannot send {sent}{below}: snapshot {name}@{to} does not exist\nwarning: cannot send '{sent}': backup \
             failed"
        )))
    }

    /// Streams of one filesystem or volume. False if it is left out, with what is below it.
    fn one(&mut self, directory: &Directory) -> Result<bool, Refusal> {
        let head = self.catalog.head(directory)?;
        let Some(to) = self.snapshot(&head, self.to)? else {
            return self.without(&head).map(|()| false);
        };
        self.refuse_sealed(directory)?;
        self.taken_in.get_or_insert(to.phys.creation_txg);
        let from = match self.from {
            Some(from) => self.snapshot(&head, from)?,
            None => None,
        };
        let lost = self.from.filter(|_| from.is_none() && !self.request.recursive);
        if let Some(from) = lost {
            let why = format!("incremental source ({}@{from}) does not exist", directory.path);
            return Err(warning(&to, &why));
        }
        if let Some(from) = &from
            && from.phys.creation_txg >= to.phys.creation_txg
        {
            // OpenZFS does not come by what is later.
            let is_passed = self.request.recursive || from.id == to.id;
            let what = if is_passed { "is not earlier than it" } else { "does not exist" };
            let why = format!("incremental source ({}) {what}", from.name);
            return Err(warning(&to, &why));
        }
        let origin = self.catalog.origin(directory)?;
        let first = from.as_ref().map_or(Txg(0), |from| from.phys.creation_txg);
        let mut between = self.catalog.snapshots(&head)?;
        between.retain(|one| one.phys.creation_txg <= to.phys.creation_txg);
        // A package of all that is below lists what there is: who receives it with -F destroys the rest.
        let listed = self.request.recursive.then(|| between.clone());
        between.retain(|one| one.phys.creation_txg >= first);
        // With all that is below, a new filesystem is sent from its beginning.
        let is_new = from.is_none() && self.request.recursive;
        if !self.request.intermediates && !is_new {
            // What clones come from goes along: the clones are somewhere below.
            let is_origin = |one: &Dataset| self.request.recursive && one.phys.children > 1;
            let is_end =
                |one: &Dataset| one.id == to.id || from.as_ref().is_some_and(|it| it.id == one.id);
            between.retain(|one| is_end(one) || is_origin(one));
        }
        self.streams(&between, from.is_some(), origin.as_ref().filter(|_| is_new))?;
        let parent_from = self.parent_from(directory)?;
        if !self.request.recursive && from.is_some() {
            between.remove(0);
        }
        let origin = origin.map(|origin| origin.phys.guid);
        let snapshots = listed.unwrap_or(between);
        self.plan.members.push(Member { head, snapshots, parent_from, origin });
        Ok(true)
    }

    /// Streams of each of these since the one before; the first is there if `has_first`.
    fn streams(
        &mut self,
        snapshots: &[Dataset],
        has_first: bool,
        origin: Option<&Dataset>,
    ) -> Result<(), Refusal> {
        let mut before: Option<&Dataset> = origin;
        for (place, to) in snapshots.iter().enumerate() {
            if place > 0 || !has_first {
                let since = before.map(|from| Since::snapshot(self.catalog, to, from));
                let shown = before.map(|from| match from.directory.id == to.directory.id {
                    true => short(from),
                    false => from.name.to_string(),
                });
                self.plan.streams.push(Stream {
                    to: to.clone(),
                    since: since.transpose()?,
                    before: before.map(|from| from.name.clone()),
                    shown,
                });
            }
            before = Some(to);
        }
        Ok(())
    }

    /// What the receiver finds the parent by.
    fn parent_from(&self, directory: &Directory) -> Result<Guid, Refusal> {
        let in_package = |member: &&Member| member.head.directory.id == directory.phys.parent;
        let Some(parent) = self.plan.members.iter().find(in_package) else { return Ok(Guid(0)) };
        let name = self.from.unwrap_or(self.to);
        let snapshot = self.snapshot(&parent.head, name)?;
        Ok(snapshot.map_or(Guid(0), |snapshot| snapshot.phys.guid))
    }
}

fn unopened(name: &str) -> Refusal {
    Refusal::Line(format!("cannot open '{name}': dataset does not exist"))
}

fn missing(head: &Dataset, to: &str) -> Refusal {
    Refusal::Line(format!("WARNING: could not send {}@{to}: does not exist", head.name))
}

fn warning(to: &Dataset, why: &str) -> Refusal {
    Refusal::Line(format!("WARNING: could not send {}:\n{why}", to.name))
}
