//! The command line's side of the control sockets.
//!
//! Invariant: a pool process that is dead or hangs costs its deadline and a line on standard error;
//! the other pools are asked at the same time and shown. What a pool sends is read as it comes, whatever
//! becomes of what it is shown on.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use crate::changes::{Change, ChangeRequest, Grant, LoadKeyRequest};
use crate::events::{EventsAsked, EventsPart};
use crate::faults::FaultReport;
use crate::frame::{ExchangeError, Timed, VERSION, connect};
use crate::principal;
use crate::protocol::{
    Answer as Last, Failure, FailureKind, LOOK_DEADLINE, Part, Progress, Reply, Request,
};
use crate::report::{DatasetReport, HistoryRecord, PoolReport, UsageRecord};
use crate::run_directory::{self, PoolFiles};
use crate::secret::Secret;
use crate::terminal;
use crate::threads::spawn;

/// The sockets of one run directory; for a user also those of root's pools, which decide what they let him do.
#[derive(Clone, Debug)]
pub struct Client {
    directory: PathBuf,
    shared: Option<PathBuf>,
}

/// What came of asking one pool.
#[derive(Debug)]
pub struct Answer<T> {
    /// Name of the pool, or the stem of its socket if even the name is unknown.
    pub pool: String,
    /// The answer, or why there is none.
    pub result: Result<T, Failure>,
}

/// What comes of the history of a pool.
#[derive(Debug)]
pub enum History {
    /// Some records.
    Some(Vec<HistoryRecord>),
    /// That was all, or it ended early.
    End(Result<(), Failure>),
}

impl Default for Client {
    fn default() -> Client {
        let (directory, shared) = (run_directory::path(), run_directory::shared());
        let (Some(error), Some(of_root)) = (run_directory::distrusted(&directory), &shared) else {
            return Client { directory, shared };
        };
        // What answers there may be anybody, and would be told keys.
        static TOLD: std::sync::Once = std::sync::Once::new();
        TOLD.call_once(|| terminal::complain(&format!("{}: {error}", directory.display())));
        Client::new(of_root.clone())
    }
}

impl Client {
    /// A client for this run directory.
    pub fn new(directory: PathBuf) -> Client {
        Client { directory, shared: None }
    }

    /// The run directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The files of a pool: his who asks, if there are such.
    fn files(&self, pool: &str) -> PoolFiles {
        let own = run_directory::files(&self.directory, pool);
        let shared = self.shared.iter().map(|shared| run_directory::files(shared, pool));
        let mut there = std::iter::once(own.clone()).chain(shared);
        there.find(|files| files.socket.exists()).unwrap_or(own)
    }

    /// Names of all imported pools, also of those whose process died, sorted.
    pub fn pools(&self) -> Vec<String> {
        let mut names = Vec::new();
        let directories = std::iter::once(&self.directory).chain(&self.shared);
        let entries = directories.filter_map(|directory| std::fs::read_dir(directory).ok());
        for entry in entries.flatten().flatten() {
            let path = entry.path();
            if path.extension().is_none_or(|extension| extension != "sock") {
                continue;
            }
            let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
            let owner = run_directory::owner(&path.with_extension("pid"));
            match owner.map(|owner| owner.pool).filter(|pool| !pool.is_empty()).or(stem) {
                Some(name) if !name.is_empty() => names.push(name),
                _ => {}
            }
        }
        names.sort();
        names.dedup();
        names
    }

    /// Whether a pool of this name is imported (its process may be dead).
    pub fn knows(&self, pool: &str) -> bool {
        self.files(pool).socket.exists()
    }

    /// Whether the process of a pool lives (it may hang).
    pub fn lives(&self, pool: &str) -> bool {
        let files = self.files(pool);
        run_directory::owner(&files.pid).is_some_and(|owner| owner.alive)
    }

    /// The process of a pool, if it lives.
    pub fn process(&self, pool: &str) -> Option<u32> {
        let files = self.files(pool);
        run_directory::owner(&files.pid).filter(|owner| owner.alive).map(|owner| owner.pid)
    }

    /// Asks one pool; `descriptors` go with the request, and every part goes to `each` as it comes.
    fn exchange(
        &self,
        pool: &str,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
        mut each: impl FnMut(Part),
    ) -> Result<Last, Failure> {
        let files = self.files(pool);
        let problem = |error: ExchangeError| describe(pool, &files, request, &error);
        let stream = connect(&files.socket, request.deadline()).map_err(problem)?;
        let timed = || Timed::new(&stream, request.deadline());
        timed().send_with(request, descriptors).map_err(problem)?;
        loop {
            match timed().receive().map_err(problem)? {
                Reply::Part(part) => each(part),
                Reply::Last(last) => return Ok(last),
                Reply::Failed(failure) => return Err(failure),
            }
        }
    }

    /// Asks one pool for something that comes in parts of one kind.
    fn list<T>(
        &self,
        pool: &str,
        request: &Request,
        mut each: impl FnMut(Vec<T>),
        of: impl Fn(Part) -> Result<Vec<T>, Part>,
    ) -> Result<(), Failure> {
        let mut odd = None;
        let last = self.exchange(pool, request, &[], |part| match of(part) {
            Ok(some) => each(some),
            Err(other) => odd = Some(unexpected(pool, &other)),
        })?;
        match (last, odd) {
            (Last::Done { .. }, None) => Ok(()),
            (_, Some(odd)) => Err(odd),
            (other, _) => Err(unexpected(pool, &other)),
        }
    }

    /// The report of one pool.
    ///
    /// # Errors
    /// If the pool is not imported or its process does not answer.
    pub fn pool_report(&self, pool: &str) -> Result<PoolReport, Failure> {
        match self.exchange(pool, &Request::PoolReport, &[], |_| {})? {
            Last::Pool(report) => Ok(*report),
            other => Err(unexpected(pool, &other)),
        }
    }

    /// Datasets of one pool.
    ///
    /// # Errors
    /// As for [`Client::pool_report`]; `NotFound` if the root of the query does not exist.
    pub fn datasets(
        &self,
        pool: &str,
        query: &crate::protocol::DatasetQuery,
    ) -> Result<Vec<DatasetReport>, Failure> {
        let mut all = Vec::new();
        let mut query = query.clone();
        for property in query.properties.iter().flatten() {
            let whose = principal::of_property(property);
            // Nobody named is the user 0, as in OpenZFS.
            let number = whose.and_then(|(who, _, whom)| match whom {
                "" => Some(0),
                whom => principal::id(who, whom),
            });
            query.people.extend(number.map(|number| (property.clone(), number)));
        }
        let request = Request::Datasets(query);
        self.list(
            pool,
            &request,
            |some| all.extend(some),
            |part| match part {
                Part::Datasets(some) => Ok(some),
                other => Err(other),
            },
        )?;
        Ok(all)
    }

    /// The history of one pool; `each` gets some records at a time, oldest first, as they come.
    ///
    /// # Errors
    /// As for [`Client::pool_report`].
    pub fn history(
        &self,
        pool: &str,
        mut each: impl FnMut(Vec<HistoryRecord>),
    ) -> Result<(), Failure> {
        let mut names = HashMap::new();
        let mut name = |who: u64| {
            let known = names.entry(who);
            known.or_insert_with(|| principal::name(principal::Who::User, who)).clone()
        };
        let named = |mut some: Vec<HistoryRecord>| {
            some.iter_mut().for_each(|record| record.user = record.who.and_then(&mut name));
            each(some);
        };
        self.list(pool, &Request::History, named, |part| match part {
            Part::History(some) => Ok(some),
            other => Err(other),
        })
    }

    /// The histories of several pools, which are asked at once: `show` gets them one pool after another,
    /// some records at a time, and then how it ended.
    pub fn histories(&self, pools: &[String], mut show: impl FnMut(&str, History)) {
        let streams: Vec<_> = pools
            .iter()
            .map(|pool| {
                let (sender, receiver) = mpsc::channel();
                let (client, name) = (self.clone(), pool.clone());
                let asked = spawn(move || {
                    // who shows it may have given up
                    let each = |some| drop(sender.send(History::Some(some)));
                    let ended = client.history(&name, each);
                    drop(sender.send(History::End(ended)));
                });
                asked.unwrap_or_else(|ask| ask());
                (pool, receiver)
            })
            .collect();
        for (pool, receiver) in streams {
            receiver.into_iter().for_each(|one| show(pool, one));
        }
    }

    /// Who uses how much of a filesystem or snapshot.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn usage(&self, pool: &str, dataset: &str) -> Result<Vec<UsageRecord>, Failure> {
        let mut all = Vec::new();
        let request = Request::Usage(dataset.to_owned());
        self.list(
            pool,
            &request,
            |some| all.extend(some),
            |part| match part {
                Part::Usage(some) => Ok(some),
                other => Err(other),
            },
        )?;
        Ok(all)
    }

    /// The holds on a snapshot: tag, and when it was placed (seconds since 1970).
    ///
    /// # Errors
    /// If there is no such snapshot.
    pub fn holds(&self, pool: &str, snapshot: &str) -> Result<Vec<(String, u64)>, Failure> {
        match self.exchange(pool, &Request::Holds(snapshot.to_owned()), &[], |_| {})? {
            Last::Holds(holds) => Ok(holds),
            other => Err(unexpected(pool, &other)),
        }
    }

    /// The permissions on a dataset and on those above it that have any, nearest first.
    ///
    /// # Errors
    /// If there is no such dataset.
    pub fn permissions(
        &self,
        pool: &str,
        dataset: &str,
    ) -> Result<Vec<(String, Vec<Grant>)>, Failure> {
        match self.exchange(pool, &Request::Permissions(dataset.to_owned()), &[], |_| {})? {
            Last::Permissions(levels) => Ok(levels),
            other => Err(unexpected(pool, &other)),
        }
    }

    /// How many files of a filesystem wait to be deleted; 0 if it is not mounted.
    ///
    /// # Errors
    /// If there is no such filesystem.
    pub fn delete_queue(&self, pool: &str, dataset: &str) -> Result<u64, Failure> {
        match self.exchange(pool, &Request::DeleteQueue(dataset.to_owned()), &[], |_| {})? {
            Last::Count(count) => Ok(count),
            other => Err(unexpected(pool, &other)),
        }
    }

    /// Events of one pool; `each` gets some at a time, as they come.
    ///
    /// # Errors
    /// As for [`Client::pool_report`].
    pub fn events(
        &self,
        pool: &str,
        asked: EventsAsked,
        mut each: impl FnMut(EventsPart),
    ) -> Result<(), Failure> {
        let each = |parts: Vec<EventsPart>| parts.into_iter().for_each(&mut each);
        self.list(pool, &Request::Events(asked), each, |part| match part {
            Part::Events(some) => Ok(vec![some]),
            other => Err(other),
        })
    }

    /// The faults that may happen on purpose to one pool.
    ///
    /// # Errors
    /// As for [`Client::pool_report`].
    pub fn faults(&self, pool: &str) -> Result<Vec<FaultReport>, Failure> {
        match self.exchange(pool, &Request::Faults, &[], |_| {})? {
            Last::Faults(faults) => Ok(faults),
            other => Err(unexpected(pool, &other)),
        }
    }

    /// Has one pool forget its events: how many there were.
    ///
    /// # Errors
    /// As for [`Client::pool_report`].
    pub fn clear_events(&self, pool: &str) -> Result<u64, Failure> {
        match self.exchange(pool, &Request::ClearEvents, &[], |_| {})? {
            Last::Count(count) => Ok(count),
            other => Err(unexpected(pool, &other)),
        }
    }

    /// Gives an order; the warnings of what could not be done in full.
    ///
    /// # Errors
    /// If it was not carried out.
    pub fn order(&self, pool: &str, request: &Request) -> Result<Vec<String>, Failure> {
        self.order_with(pool, request, &[], |_| {})
    }

    /// The same for an order that tells how far it is, or brings descriptors.
    ///
    /// # Errors
    /// As [`Self::order`].
    pub fn order_with(
        &self,
        pool: &str,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
        mut told: impl FnMut(Progress),
    ) -> Result<Vec<String>, Failure> {
        self.order_in_parts(pool, request, descriptors, |part| {
            if let Part::Progress(progress) = part {
                told(progress);
            }
        })
    }

    /// The same for an order that also says something while it is carried out; each part goes to `each` as it
    /// comes.
    ///
    /// # Errors
    /// As [`Self::order`].
    pub fn order_in_parts(
        &self,
        pool: &str,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
        each: impl FnMut(Part),
    ) -> Result<Vec<String>, Failure> {
        // an order may take long, but a process that hangs is noticed at once
        self.pool_report(pool)?;
        let apart = match request {
            Request::Change(order) if order.change.has_new_key() => Some(key_apart(order)?),
            _ => None,
        };
        let mut with = descriptors.to_vec();
        with.extend(apart.as_ref().map(|(_, pipe)| pipe.as_fd()));
        let request = apart.as_ref().map_or(request, |(request, _)| request);
        match self.exchange(pool, request, &with, each)? {
            Last::Done { warnings } => Ok(warnings),
            other => Err(unexpected(pool, &other)),
        }
    }

    /// Loads or checks a key.
    ///
    /// # Errors
    /// If it was not carried out.
    pub fn load_key(
        &self,
        pool: &str,
        request: LoadKeyRequest,
        key: &Secret,
    ) -> Result<(), Failure> {
        let pipe = key.in_pipe().map_err(no_pipe)?;
        self.order_with(pool, &Change::LoadKey(request).into(), &[pipe.as_fd()], |_| {}).map(|_| ())
    }

    /// Asks several pools at once. An answer comes for each, in the order given; one that takes
    /// longer than `wait` counts as failed. A single one that is waited for at least as long as an answer may take
    /// ([`LOOK_DEADLINE`]) is waited for as long as `ask` does.
    pub fn ask_all<T: Send + 'static>(
        &self,
        pools: &[String],
        wait: Duration,
        ask: impl Fn(&Client, &str) -> Result<T, Failure> + Clone + Send + 'static,
    ) -> Vec<Answer<T>> {
        if let [pool] = pools
            && wait >= LOOK_DEADLINE
        {
            return vec![Answer { pool: pool.clone(), result: ask(self, pool) }];
        }
        let (sender, receiver) = mpsc::channel();
        for (index, pool) in pools.iter().enumerate() {
            let (client, pool, ask, sender) =
                (self.clone(), pool.clone(), ask.clone(), sender.clone());
            let asked = spawn(move || {
                // the receiver may have given up
                drop(sender.send((index, ask(&client, &pool))));
            });
            asked.unwrap_or_else(|ask| ask());
        }
        drop(sender);
        let mut results: Vec<Option<Result<T, Failure>>> = pools.iter().map(|_| None).collect();
        let end = std::time::Instant::now() + wait;
        loop {
            let left = end.saturating_duration_since(std::time::Instant::now());
            let Ok((index, result)) = receiver.recv_timeout(left) else {
                break;
            };
            if let Some(slot) = results.get_mut(index) {
                *slot = Some(result);
            }
        }
        let answers = pools.iter().zip(results);
        answers
            .map(|(pool, result)| Answer {
                pool: pool.clone(),
                result: result.unwrap_or_else(|| {
                    let files = self.files(pool);
                    Err(describe(pool, &files, &Request::PoolReport, &ExchangeError::Deadline))
                }),
            })
            .collect()
    }

    /// Removes what a dead pool process left behind. False if the process lives.
    pub fn sweep(&self, pool: &str) -> bool {
        run_directory::sweep(&self.files(pool), || ())
    }
}

fn no_pipe(error: std::io::Error) -> Failure {
    Failure::new(FailureKind::Other, format!("no pipe for the key: {error}"))
}

/// An order whose new key is no part of it, but lies in a pipe.
fn key_apart(order: &ChangeRequest) -> Result<(Request, OwnedFd), Failure> {
    let mut order = order.clone();
    let key = order.change.new_key().map(|key| std::mem::take(&mut key.secret));
    let pipe = key.unwrap_or_default().in_pipe().map_err(no_pipe)?;
    Ok((Request::Change(Box::new(order)), pipe))
}

fn unexpected(pool: &str, answer: &dyn std::fmt::Debug) -> Failure {
    let text = format!("{answer:?}");
    let start: String = text.chars().take(60).collect();
    Failure::new(
        FailureKind::Other,
        format!("the process of pool '{pool}' gave an answer to another question: {start}"),
    )
}

fn describe(pool: &str, files: &PoolFiles, request: &Request, error: &ExchangeError) -> Failure {
    let owner = run_directory::owner(&files.pid);
    let alive = owner.as_ref().is_some_and(|owner| owner.alive);
    let process = match &owner {
        Some(owner) if owner.pid != 0 => format!("its process {}", owner.pid),
        _ => "its process".to_owned(),
    };
    let log = files.log.display();
    let message = match error {
        ExchangeError::Io(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Failure::new(
                FailureKind::NotFound,
                format!("cannot open '{pool}': no such pool"),
            );
        }
        ExchangeError::Io(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return Failure::new(
                FailureKind::Permission,
                format!("cannot open '{pool}': permission denied"),
            );
        }
        _ if !alive => format!(
            "cannot open '{pool}': {process} has died (log: {log}); 'zpool export {pool}' clears \
             what it left, then import the pool again"
        ),
        ExchangeError::Deadline => format!(
            "cannot open '{pool}': {process} did not answer in {} seconds (log: {log})",
            request.deadline().as_secs()
        ),
        ExchangeError::Version(theirs) => {
            other_version(pool, owner.map_or(0, |one| one.pid), *theirs)
        }
        error => format!("cannot open '{pool}': {process}: {error} (log: {log})"),
    };
    Failure::new(FailureKind::Other, message)
}

/// What to do with a pool process of another version.
fn other_version(pool: &str, process: u32, theirs: u32) -> String {
    let program = |of: &str| match std::fs::read_link(format!("/proc/{of}/exe")) {
        Ok(path) => match path.to_string_lossy().strip_suffix(" (deleted)") {
            Some(before) => format!(" ({before}, replaced since)"),
            None => format!(" ({})", path.display()),
        },
        Err(_) => String::new(),
    };
    format!(
        "cannot open '{pool}': its process {process}{} speaks version {theirs} of the control \
         protocol, this program{} version {VERSION}\nexport the pool with the program that imported \
         it, or end its process with 'kill {process}', which exports it too, whatever is in use; then \
         import it again",
        program(&process.to_string()),
        program("self"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::NewKey;

    #[test]
    fn a_new_key_is_no_part_of_the_message() {
        let secret = Secret(b"a passphrase".to_vec());
        let key = NewKey {
            secret: secret.clone(),
            format: "passphrase".into(),
            location: "prompt".into(),
            iterations: 1,
        };
        let change = Change::ChangeKey { dataset: "tank/a".into(), key: Some(key) };
        let (request, pipe) = key_apart(&ChangeRequest { command: None, change }).unwrap();
        let text = serde_json::to_string(&request).unwrap();
        assert!(text.contains(r#""secret":[]"#), "{text}");
        assert_eq!(request.descriptors(), 1);
        assert!(Secret::read(pipe, Duration::from_secs(5)).unwrap() == secret);
    }
}
