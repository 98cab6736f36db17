//! The pool process's side of its control socket.
//!
//! Invariant: questions that only look are answered from what the service has published, on a
//! thread of their own (one that has answered may wait for the next) and in slots that orders have no
//! part in, so that orders which wait for a disk delay nobody else, however many they are. Orders are
//! taken from whom the service does not deny them; who asks is what the kernel says. Who does not read his answer is waited for [`PATIENCE`] for each part of it, and not in a slot
//! that others need to look.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::time::Duration;

use crate::changes::{Change, ChangeRequest, Grant};
use crate::events::EventsAsked;
use crate::faults::FaultReport;
use crate::frame::{ExchangeError, FRAME_MAX, Timed, VERSION};
use crate::peer::Peer;
use crate::protocol::{Answer, DatasetQuery, Failure, FailureKind, LOOK_DEADLINE, Reply, Request};
use crate::replies::Replies;
use crate::report::PoolReport;
use crate::secret::Secret;
use crate::threads::Crew;

/// Exchanges served at the same time, orders that have been read left out, of those who own the process, and of
/// others; more wait to be taken.
const EXCHANGES_MAX: usize = 64;
/// Connections that wait for that; who comes then is sent away.
const WAITING_MAX: usize = 1024;
/// Longest request in bytes of who does not own the process.
const OTHERS_FRAME_MAX: usize = 512 << 10;
/// Orders that are carried out or wait at the same time, of those who own the process, and of others; more are
/// refused.
const ORDERS_MAX: [usize; 2] = [256, 64];
/// Exchanges of which the client reads slowly, beside those, of both, too.
const SLOW_MAX: [usize; 2] = [256, 64];
/// How long a request may take to arrive, and each part of its answer to be read.
const PATIENCE: Duration = LOOK_DEADLINE;

/// What a pool process can do; `cenote-process` implements it over the engine.
pub trait PoolService: Send + Sync {
    /// The published snapshot. Must not wait for a disk.
    fn report(&self) -> PoolReport;

    /// Whether what only looks has to be read from disks this time, so that it waits with the orders.
    fn reads(&self, request: &Request) -> bool {
        let _ = request;
        false
    }

    /// Gives out datasets with their properties. Must not wait for a disk unless it
    /// [`reads`](Self::reads).
    ///
    /// # Errors
    /// `NotFound` if the root of the query does not exist.
    fn datasets(&self, query: &DatasetQuery, replies: &Replies<'_>) -> Result<(), Failure>;

    /// Gives out the history, oldest first, with internal records. Must not wait for a disk unless it
    /// [`reads`](Self::reads).
    ///
    /// # Errors
    /// If it cannot be read.
    fn history(&self, replies: &Replies<'_>) -> Result<(), Failure>;

    /// Gives out who uses how much of a filesystem or snapshot. Must not wait for a disk unless it
    /// [`reads`](Self::reads).
    ///
    /// # Errors
    /// If it cannot be read.
    fn usage(&self, dataset: &str, replies: &Replies<'_>) -> Result<(), Failure>;

    /// The holds on a snapshot: tag, and when it was placed (seconds since 1970).
    ///
    /// # Errors
    /// `NotFound`.
    fn holds(&self, snapshot: &str) -> Result<Vec<(String, u64)>, Failure> {
        Err(Failure::not_supported(&format!("listing the holds of '{snapshot}'")))
    }

    /// The permissions on a dataset and on those above it that have any, nearest first.
    ///
    /// # Errors
    /// `NotFound`.
    fn permissions(&self, dataset: &str) -> Result<Vec<(String, Vec<Grant>)>, Failure> {
        Err(Failure::not_supported(&format!("listing the permissions on '{dataset}'")))
    }

    /// How many files of a filesystem wait to be deleted; 0 if it is not mounted.
    ///
    /// # Errors
    /// `NotFound`.
    fn delete_queue(&self, dataset: &str) -> Result<u64, Failure> {
        Err(Failure::not_supported(&format!("waiting for '{dataset}'")))
    }

    /// Gives out events; if more are to follow, until the pool is closed.
    ///
    /// # Errors
    /// If who asked has gone.
    fn events(&self, asked: &EventsAsked, replies: &Replies<'_>) -> Result<(), Failure> {
        let _ = (asked, replies);
        Err(Failure::not_supported("listing events"))
    }

    /// The faults that may happen on purpose.
    fn faults(&self) -> Vec<FaultReport> {
        Vec::new()
    }

    /// Forgets all events: how many there were.
    ///
    /// # Errors
    /// If there are none to forget.
    fn clear_events(&self) -> Result<u64, Failure> {
        Err(Failure::not_supported("clearing events"))
    }

    /// Why `who` may not ask for this, if so.
    fn denied(&self, request: &Request, who: &Peer) -> Option<Failure> {
        let is_open = request.only_looks() || who.is_owner();
        (!is_open).then(|| Failure::new(FailureKind::Permission, "permission denied"))
    }

    /// This process is told to end: streams under way are cut off, and the pool is exported.
    ///
    /// # Errors
    /// If it cannot be; what was changed is on the disks as far as they take it, and what can be is unmounted.
    fn leave(&self) -> Result<(), Failure> {
        Err(Failure::not_supported("exporting"))
    }

    /// Carries out an order. The lines are for standard error: what went wrong without making the whole
    /// order fail.
    ///
    /// # Errors
    /// With the words of the command that gives it; nothing is changed then.
    fn carry_out(&self, request: &ChangeRequest, call: Call<'_>) -> Result<Carried, Failure>;
}

/// What comes with an order beside its arguments.
pub struct Call<'a> {
    /// The way back to who gave it.
    pub replies: &'a Replies<'a>,
    /// Who gave it.
    pub who: Peer,
    /// The descriptors it brings, as many as it has to.
    pub descriptors: Vec<OwnedFd>,
}

impl Call<'_> {
    /// The key that the first descriptor holds.
    ///
    /// # Errors
    /// If it cannot be read, or does not come in time.
    pub fn key(self) -> io::Result<Secret> {
        let from = self.descriptors.into_iter().next();
        Secret::read(from.ok_or(io::ErrorKind::NotFound)?, PATIENCE)
    }
}

/// What came of an order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Lines for standard error.
    pub warnings: Vec<String>,
    /// There is no pool any more: the process ends.
    pub ends: bool,
}

/// Why the server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The pool was exported or destroyed.
    Exported,
    /// It was told to quit at once.
    Quit,
}

/// Binds the socket at `path`, replacing one that a dead process left. The caller holds the lock
/// of the pid file.
///
/// # Errors
/// What the filesystem says.
pub fn bind(path: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    // everybody may look; who may give orders is checked for each request
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}

/// Serves until the pool is exported or the process is told to quit.
#[derive(Debug)]
pub struct Server {
    ended: mpsc::Sender<Ending>,
    ending: mpsc::Receiver<Ending>,
}

impl Default for Server {
    fn default() -> Self {
        let (ended, ending) = mpsc::channel();
        Self { ended, ending }
    }
}

impl Server {
    /// By which the process may be ended, too.
    pub fn ended(&self) -> mpsc::Sender<Ending> {
        self.ended.clone()
    }

    /// From now on it answers.
    ///
    /// # Errors
    /// If there are no threads for it.
    pub fn begin(&self, listener: UnixListener, service: Arc<dyn PoolService>) -> io::Result<()> {
        let places = Places::new();
        let begin = |name: &str, run: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new().name(name.into()).spawn(run).map(drop)
        };
        let crew = Crew::new(Exchange::serve);
        let mut lines = Vec::new();
        for slots in &places.lookers {
            let (queue, waiting) = mpsc::sync_channel(WAITING_MAX);
            let line = Line { slots: slots.clone(), queue, queued: Arc::default() };
            let (crew, slots, queued) = (crew.clone(), slots.clone(), line.queued.clone());
            begin("serve", Box::new(move || serve_each(&waiting, &slots, &queued, &crew)))?;
            lines.push(line);
        }
        let ended = self.ended();
        let exchange = move |stream: UnixStream, who| {
            let (service, ended, places) = (service.clone(), ended.clone(), places.clone());
            Exchange { stream, who, slot: None, service, ended, places }
        };
        begin("accept", Box::new(move || accept(&listener, &exchange, &lines, &crew)))
    }

    /// Waits for the end.
    pub fn ending(&self) -> Ending {
        self.ending.recv().unwrap_or(Ending::Quit)
    }
}

/// Places of which each is taken by one at a time.
struct Slots {
    free: Mutex<usize>,
    changed: Condvar,
}

impl Slots {
    fn new(count: usize) -> Arc<Self> {
        Arc::new(Self { free: Mutex::new(count), changed: Condvar::new() })
    }

    fn try_take(self: &Arc<Self>) -> Option<Slot> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        *free = free.checked_sub(1)?;
        Some(Slot(self.clone()))
    }

    /// Waits for one.
    fn take(self: &Arc<Self>) -> Slot {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let free = self.changed.wait_while(free, |free| *free == 0);
        let mut free = free.unwrap_or_else(PoisonError::into_inner);
        *free = free.saturating_sub(1);
        Slot(self.clone())
    }
}

/// One of [`Slots`], until it is dropped.
struct Slot(Arc<Slots>);

impl Drop for Slot {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.changed.notify_one();
    }
}

/// What a client connects for.
struct Exchange {
    stream: UnixStream,
    who: Peer,
    /// Its place, once it has one.
    slot: Option<Slot>,
    service: Arc<dyn PoolService>,
    ended: mpsc::Sender<Ending>,
    places: Arc<Places>,
}

impl Exchange {
    /// Serves one that has a place.
    fn serve(self) {
        let Some(slot) = self.slot else { return };
        if let Some(ending) = exchange((&self.stream, self.who), &*self.service, slot, &self.places)
        {
            drop(self.stream);
            // nobody waits any more once the first ending was taken
            let _ = self.ended.send(ending);
        }
    }
}

/// The exchanges that share places, and wait for them.
struct Line {
    slots: Arc<Slots>,
    queue: mpsc::SyncSender<Exchange>,
    /// Those that wait.
    queued: Arc<AtomicUsize>,
}

impl Line {
    /// Begins an exchange if there is a place and a thread for it and nobody waits for one; else it waits. Who finds the
    /// queue full is sent away.
    fn begin(&self, mut exchange: Exchange, crew: &Arc<Crew<Exchange>>) {
        if self.queued.load(Ordering::Acquire) == 0 {
            exchange.slot = self.slots.try_take();
        }
        let waits = match exchange.slot {
            Some(_) => crew.start(exchange).err(),
            None => Some(exchange),
        };
        let Some(exchange) = waits else { return };
        self.queued.fetch_add(1, Ordering::AcqRel);
        if self.queue.try_send(exchange).is_err() {
            self.queued.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Those who own the process wait in a line of their own: others who connect and say nothing do not shut them out.
fn accept(
    listener: &UnixListener,
    exchange: &dyn Fn(UnixStream, Peer) -> Exchange,
    lines: &[Line],
    crew: &Arc<Crew<Exchange>>,
) {
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                let who = Peer::of(&stream);
                if let Some(line) = lines.get(usize::from(!who.is_owner())) {
                    line.begin(exchange(stream, who), crew);
                }
            }
            // out of descriptors or interrupted: try again, but do not spin
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Begins those that had to wait.
fn serve_each(
    waiting: &mpsc::Receiver<Exchange>,
    slots: &Arc<Slots>,
    queued: &AtomicUsize,
    crew: &Arc<Crew<Exchange>>,
) {
    while let Ok(mut exchange) = waiting.recv() {
        // Exchanges that are read or only look end by themselves; meanwhile the queue keeps the rest.
        exchange.slot.get_or_insert_with(|| slots.take());
        while let Err(again) = crew.start(exchange) {
            // there will be a thread: others end
            std::thread::sleep(Duration::from_millis(20));
            exchange = again;
        }
        queued.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What exchanges are served in: each of those who own the process, and of others, so that these keep those from
/// nothing.
struct Places {
    lookers: [Arc<Slots>; 2],
    orders: [Arc<Slots>; 2],
    slow: [Arc<Slots>; 2],
}

impl Places {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            lookers: [EXCHANGES_MAX; 2].map(Slots::new),
            orders: ORDERS_MAX.map(Slots::new),
            slow: SLOW_MAX.map(Slots::new),
        })
    }
}

/// One request and its answers; how the server ends, if this was an order to. `slot` is one of the lookers'
/// and given up for one of the orders' if it does not only look, and for a slow one's when the client has
/// to be waited for.
fn exchange(
    (stream, who): (&UnixStream, Peer),
    service: &dyn PoolService,
    slot: Slot,
    places: &Places,
) -> Option<Ending> {
    let [orders, slow] = [&places.orders, &places.slow].map(|[own, others]| match who.is_owner() {
        true => own,
        false => others,
    });
    let place = Mutex::new(Some(slot));
    let own = || place.lock().unwrap_or_else(PoisonError::into_inner);
    let replies = Replies::to(stream, PATIENCE).when_slow(|| {
        let mut own = own();
        let looks = |slot: &Slot| places.lookers.iter().any(|of| Arc::ptr_eq(&slot.0, of));
        if own.as_ref().is_some_and(looks)
            && let Some(slow) = slow.try_take()
        {
            *own = Some(slow);
        }
    });
    let most = if who.is_owner() { FRAME_MAX } else { OTHERS_FRAME_MAX };
    let (request, descriptors) = match receive(stream, most) {
        Ok(received) => received,
        Err(failure) => {
            // the client may be gone
            drop(replies.end(Reply::Failed(failure)));
            return None;
        }
    };
    let mut ending = None;
    let denied = service.denied(&request, &who);
    // To end the process there is always room.
    let looks = request.only_looks() && !service.reads(&request);
    let looks = looks || denied.is_some() || matches!(request, Request::Quit);
    if !looks {
        *own() = orders.try_take();
    } else if matches!(&request, Request::Events(asked) if asked.follow) {
        // Those who stay take no place that others need to look.
        *own() = slow.try_take();
    }
    let has_place = own().is_some();
    let answer = match denied {
        Some(denied) => Err(denied),
        None if has_place => {
            let call = Call { replies: &replies, who, descriptors };
            answer(request, call, service, &mut ending)
        }
        None => {
            let words = match looks {
                true => "too many follow the events already",
                false => "too many orders wait already, try again",
            };
            Err(Failure::new(FailureKind::Busy, words))
        }
    };
    // a client that went away misses its answer; nothing else depends on it
    drop(replies.end(answer.map_or_else(Reply::Failed, Reply::Last)));
    ending
}

/// A request of `most` bytes with the descriptors it has to bring.
fn receive(stream: &UnixStream, most: usize) -> Result<(Request, Vec<OwnedFd>), Failure> {
    let failed = |words: String| Failure::new(FailureKind::Other, words);
    match Timed::new(stream, PATIENCE).receive_at_most::<Request>(most) {
        Ok((request, descriptors)) if descriptors.len() == request.descriptors() => {
            Ok((request, descriptors))
        }
        Ok((request, descriptors)) => {
            let (got, wanted) = (descriptors.len(), request.descriptors());
            Err(failed(format!("control request: brings {got} descriptors, not {wanted}")))
        }
        Err(ExchangeError::Version(theirs)) => Err(failed(format!(
            "the pool's process {} speaks version {VERSION} of the control protocol, who asks \
             version {theirs}: use the program that imported the pool, or import it again with the \
             new one",
            std::process::id()
        ))),
        Err(error) => Err(failed(format!("control request: {error}"))),
    }
}

/// Puts the key in its place that came in a pipe.
fn take_new_key(change: &mut Change, descriptors: &mut Vec<OwnedFd>) -> Result<(), Failure> {
    let Some(key) = change.new_key() else { return Ok(()) };
    let from = descriptors.pop().ok_or_else(|| io::ErrorKind::NotFound.into());
    key.secret = from.and_then(|from| Secret::read(from, PATIENCE)).map_err(|error| {
        Failure::new(FailureKind::Other, format!("Failed to read key material: {error}"))
    })?;
    Ok(())
}

fn answer(
    request: Request,
    mut call: Call<'_>,
    service: &dyn PoolService,
    ending: &mut Option<Ending>,
) -> Result<Answer, Failure> {
    let replies = call.replies;
    let nothing = |()| Answer::Done { warnings: Vec::new() };
    Ok(match request {
        Request::PoolReport => Answer::Pool(Box::new(service.report())),
        Request::Datasets(query) => nothing(service.datasets(&query, replies)?),
        Request::History => nothing(service.history(replies)?),
        Request::Usage(dataset) => nothing(service.usage(&dataset, replies)?),
        Request::Holds(snapshot) => Answer::Holds(service.holds(&snapshot)?),
        Request::Permissions(dataset) => Answer::Permissions(service.permissions(&dataset)?),
        Request::DeleteQueue(dataset) => Answer::Count(service.delete_queue(&dataset)?),
        Request::Events(asked) => nothing(service.events(&asked, replies)?),
        Request::Faults => Answer::Faults(service.faults()),
        Request::ClearEvents => Answer::Count(service.clear_events()?),
        Request::Change(mut request) => {
            take_new_key(&mut request.change, &mut call.descriptors)?;
            let carried = service.carry_out(&request, call)?;
            if carried.ends {
                *ending = Some(Ending::Exported);
            }
            Answer::Done { warnings: carried.warnings }
        }
        Request::Quit => {
            *ending = Some(Ending::Quit);
            nothing(())
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Part;
    use crate::report::HistoryRecord;

    /// A service whose orders wait until they are let go; how many have come so far.
    struct Waiting {
        go: Mutex<mpsc::Receiver<()>>,
        come: Mutex<usize>,
        comes: Condvar,
    }

    impl Waiting {
        fn new(go: mpsc::Receiver<()>) -> Arc<Self> {
            Arc::new(Self { go: Mutex::new(go), come: Mutex::new(0), comes: Condvar::new() })
        }

        fn wait(&self) {
            *self.come.lock().unwrap() += 1;
            self.comes.notify_all();
            let _ = self.go.lock().unwrap().recv();
        }

        /// Until `count` orders wait.
        fn have_come(&self, count: usize) {
            let come = self.come.lock().unwrap();
            let short = |come: &mut usize| *come < count;
            let (come, late) =
                self.comes.wait_timeout_while(come, Duration::from_secs(60), short).unwrap();
            assert!(!late.timed_out(), "{come} of {count} orders came");
        }
    }

    impl PoolService for Waiting {
        fn report(&self) -> PoolReport {
            PoolReport::default()
        }
        fn datasets(&self, _: &DatasetQuery, _: &Replies<'_>) -> Result<(), Failure> {
            Ok(())
        }
        fn reads(&self, request: &Request) -> bool {
            matches!(request, Request::History)
        }
        fn history(&self, _: &Replies<'_>) -> Result<(), Failure> {
            self.wait();
            Ok(())
        }
        fn usage(&self, _: &str, _: &Replies<'_>) -> Result<(), Failure> {
            Ok(())
        }
        fn carry_out(&self, _: &ChangeRequest, _: Call<'_>) -> Result<Carried, Failure> {
            self.wait();
            Ok(Carried::default())
        }
    }

    #[test]
    fn who_looks_is_answered_however_many_orders_wait() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let (go, wait) = mpsc::channel();
        let service = Waiting::new(wait);
        let listener = bind(&path).unwrap();
        let server = Server::default();
        server.begin(listener, service.clone()).unwrap();
        let ask = |request: Request| {
            let stream = UnixStream::connect(&path).unwrap();
            Timed::new(&stream, LOOK_DEADLINE).send(request).unwrap();
            stream
        };
        // What has to be read waits with the orders.
        let request = |number: usize| match number % 2 {
            0 => Change::Sync.into(),
            _ => Request::History,
        };
        let waiting: Vec<UnixStream> = (0..ORDERS_MAX[0]).map(|n| ask(request(n))).collect();
        // Whichever of them is read last: an order that is asked before takes its place.
        service.have_come(waiting.len());
        let mut longest = Duration::ZERO;
        for _ in 0..2 * EXCHANGES_MAX {
            let begun = std::time::Instant::now();
            let stream = ask(Request::PoolReport);
            let answer: Reply = Timed::new(&stream, LOOK_DEADLINE).receive().unwrap();
            assert!(matches!(answer, Reply::Last(Answer::Pool(_))), "{answer:?}");
            longest = longest.max(begun.elapsed());
        }
        println!("{} orders wait; longest look {longest:?}", waiting.len());
        let stream = ask(Change::Sync.into());
        let refused: Reply = Timed::new(&stream, LOOK_DEADLINE).receive().unwrap();
        assert!(matches!(&refused, Reply::Failed(why) if why.kind == FailureKind::Busy));
        drop(go);
        for stream in waiting {
            let answer: Reply = Timed::new(&stream, LOOK_DEADLINE).receive().unwrap();
            assert!(matches!(answer, Reply::Last(Answer::Done { .. })), "{answer:?}");
        }
    }

    #[test]
    fn who_owns_the_process_is_served_however_much_others_ask() {
        let (_go, wait) = mpsc::channel();
        let service = Waiting::new(wait);
        let places = Places::new();
        let own = rustix::process::geteuid().as_raw();
        let ask = |user: u32, request: Request| {
            let (client, stream) = UnixStream::pair().unwrap();
            Timed::new(&client, LOOK_DEADLINE).send(request).unwrap();
            let who = Peer { user: Some(user), groups: Vec::new() };
            let (service, places) = (service.clone(), places.clone());
            std::thread::spawn(move || {
                let slot = Slots::new(1).take();
                exchange((&stream, who), &*service, slot, &places)
            });
            client
        };
        let answer = |client: &UnixStream, patience| -> Option<Reply> {
            Timed::new(client, patience).receive().ok()
        };
        let (soon, most) = (Duration::from_millis(300), ORDERS_MAX[0] + ORDERS_MAX[1]);
        let others: Vec<UnixStream> = (0..most).map(|_| ask(own + 1, Request::History)).collect();
        let refused = |client: &UnixStream| matches!(answer(client, soon), Some(Reply::Failed(why)) if why.kind == FailureKind::Busy);
        assert!(others.iter().rev().any(refused), "none of the others was refused");
        service.have_come(ORDERS_MAX[1]);
        let waits = ask(own, Change::Sync.into());
        service.have_come(ORDERS_MAX[1] + 1);
        let reply = answer(&waits, soon);
        assert!(reply.is_none(), "{reply:?}");
    }

    /// A service with a history that no socket holds.
    struct Long;

    impl PoolService for Long {
        fn report(&self) -> PoolReport {
            PoolReport::default()
        }
        fn datasets(&self, _: &DatasetQuery, _: &Replies<'_>) -> Result<(), Failure> {
            Ok(())
        }
        fn history(&self, replies: &Replies<'_>) -> Result<(), Failure> {
            let all = std::iter::repeat_with(|| Ok(HistoryRecord::default()));
            replies.list(all, Part::History)
        }
        fn usage(&self, _: &str, _: &Replies<'_>) -> Result<(), Failure> {
            Ok(())
        }
        fn carry_out(&self, _: &ChangeRequest, _: Call<'_>) -> Result<Carried, Failure> {
            Ok(Carried::default())
        }
    }

    #[test]
    fn who_does_not_read_keeps_nobody_from_looking() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = bind(&path).unwrap();
        let server = Server::default();
        server.begin(listener, Arc::new(Long)).unwrap();
        let ask = |request: Request| {
            let stream = UnixStream::connect(&path).unwrap();
            Timed::new(&stream, LOOK_DEADLINE).send(request).unwrap();
            stream
        };
        let silent: Vec<UnixStream> =
            (0..2 * EXCHANGES_MAX).map(|_| ask(Request::History)).collect();
        let begun = std::time::Instant::now();
        let stream = ask(Request::PoolReport);
        let answer: Reply = Timed::new(&stream, LOOK_DEADLINE).receive().unwrap();
        assert!(matches!(answer, Reply::Last(Answer::Pool(_))), "{answer:?}");
        assert!(begun.elapsed() < PATIENCE / 2, "{:?}", begun.elapsed());
        // They are given up: what was sent ends in the middle of a frame.
        std::thread::sleep(PATIENCE + Duration::from_secs(1));
        for stream in &silent {
            let next = || Timed::new(stream, Duration::from_secs(1)).receive::<Reply>();
            let ended = std::iter::repeat_with(next).find_map(Result::err).unwrap();
            assert!(matches!(ended, ExchangeError::Io(_)), "{ended}");
        }
    }
}
