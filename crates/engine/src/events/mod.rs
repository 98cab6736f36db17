//! What happens to a pool, told to who wants to know: a bounded ring of events with the classes and members
//! of OpenZFS.
//!
//! Chapter 08, sections 27 to 29. Invariant: telling something waits for nothing but short locks and never fails; the
//! newest [`MOST`] events are kept, their numbers (`eid`) ascend by one, and nothing is told before
//! [`Events::begin`] says of which pool.

mod limits;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use cenote_format::Guid;
use cenote_format::nvlist::{NvList, Value};
use parking_lot::{Condvar, Mutex};

use crate::environment;
pub use limits::Limited;
use limits::Limits;

/// What is done with a pool that is created.
const CREATE: i32 = 6;
/// Most events that are kept.
pub const MOST: usize = 512;

/// The pool that events are about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Its name.
    pub pool: String,
    /// Its guid.
    pub guid: Guid,
    /// The word of its property `failmode`; empty where it can only be read.
    pub failmode: &'static str,
    /// Its state as labels tell it: 0 active, 1 exported, 2 destroyed.
    pub state: u64,
    /// What is done with it: 0 nothing special, 6 it is created.
    pub context: i32,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its number, from 1.
    pub number: u64,
    /// When, since 1970.
    pub time: Duration,
    /// Its class, as `sysevent.fs.zfs.scrub_start`.
    pub class: String,
    /// All about it, class, time and number included, in the order of OpenZFS.
    pub members: NvList,
}

/// Some events, and how many before them nobody has any more.
#[derive(Clone, Debug, Default)]
pub struct News {
    /// In the order of their numbers.
    pub events: Vec<Arc<Event>>,
    /// What was lost between the number asked for and the first of these, and what was told too often.
    pub dropped: u64,
    /// The pool is closed: there will be no more.
    pub is_end: bool,
}

/// The events of a pool.
#[derive(Debug, Default)]
pub struct Events {
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct State {
    origin: Option<Origin>,
    ring: VecDeque<Arc<Event>>,
    /// The number of the last one.
    last: u64,
    limits: Limits,
    ended: bool,
}

/// Pairs for a list, in order.
pub type Members = Vec<(&'static str, Value)>;

/// A text as a member.
pub fn string(text: &str) -> Value {
    Value::from(text.replace('\0', "").as_str())
}

impl Events {
    /// From now on events are told: they are about this pool.
    pub fn begin(&self, origin: Origin) {
        self.state.lock().origin = Some(origin);
    }

    /// The pool's property `failmode` has another value.
    pub fn set_failmode(&self, word: &'static str) {
        if let Some(origin) = self.state.lock().origin.as_mut() {
            origin.failmode = word;
        }
    }

    /// The pool's state is another, as labels tell it.
    pub fn set_state(&self, state: u64) {
        if let Some(origin) = self.state.lock().origin.as_mut() {
            origin.state = state;
        }
    }

    /// The pool is being created, or not any more.
    pub fn set_creating(&self, is_created: bool) {
        if let Some(origin) = self.state.lock().origin.as_mut() {
            origin.context = if is_created { CREATE } else { 0 };
        }
    }

    /// The pool has another guid.
    pub fn set_guid(&self, guid: Guid) {
        if let Some(origin) = self.state.lock().origin.as_mut() {
            origin.guid = guid;
        }
    }

    /// Whether somebody could be told something.
    pub fn is_on(&self) -> bool {
        self.state.lock().origin.is_some()
    }

    /// Tells `sysevent.fs.zfs.NAME`; `more` comes behind the members that all have.
    pub fn system(&self, name: &str, more: Members) {
        self.tell(&format!("sysevent.fs.zfs.{name}"), more, Self::notice);
    }

    /// Tells `resource.fs.zfs.NAME`.
    pub fn resource(&self, name: &str, more: Members) {
        self.tell(&format!("resource.fs.zfs.{name}"), more, Self::notice);
    }

    /// Tells `ereport.fs.zfs.NAME`; `vdev`: the guid of the device it is about.
    pub fn report(&self, name: &str, vdev: Option<Guid>, more: Members) {
        self.tell(&format!("ereport.fs.zfs.{name}"), more, |class, origin, time| {
            let mut detector = NvList::new();
            detector.push("version", Value::Uint8(0));
            detector.push("scheme", "zfs");
            detector.push("pool", origin.guid.0);
            if let Some(vdev) = vdev {
                detector.push("vdev", vdev.0);
            }
            let mut list = NvList::new();
            list.push("class", class);
            list.push("ena", ena(time));
            list.push("detector", detector);
            about_pool(&mut list, origin);
            if !origin.failmode.is_empty() {
                list.push("pool_failmode", origin.failmode);
            }
            list
        });
    }

    /// Whether one more report of this kind is to be told: there are not too many of it, nor was the very
    /// same told a while ago.
    pub fn admits(&self, what: &Limited) -> bool {
        let mut state = self.state.lock();
        state.origin.is_some() && state.limits.admit(what, environment::now())
    }

    /// What was told once is told again when it happens again: a scan has ended, or errors were cleared.
    pub fn forget_told(&self) {
        self.state.lock().limits.forget();
    }

    fn notice(class: &str, origin: &Origin, _: Duration) -> NvList {
        let mut list = NvList::new();
        list.push("version", Value::Uint8(0));
        list.push("class", class);
        about_pool(&mut list, origin);
        list
    }

    fn tell(
        &self,
        class: &str,
        more: Members,
        begin: impl FnOnce(&str, &Origin, Duration) -> NvList,
    ) {
        let mut state = self.state.lock();
        let Some(origin) = state.origin.as_ref().filter(|_| !state.ended) else { return };
        let time = environment::now();
        let mut members = begin(class, origin, time);
        more.into_iter().for_each(|(name, value)| members.push(name, value));
        let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        members.push("time", Value::Int64Array(vec![seconds, time.subsec_nanos().into()]));
        state.last = state.last.saturating_add(1);
        members.push("eid", state.last);
        let event = Event { number: state.last, time, class: class.to_owned(), members };
        tracing::debug!(class, number = event.number, "event");
        if state.ring.len() >= MOST {
            state.ring.pop_front();
        }
        state.ring.push_back(Arc::new(event));
        drop(state);
        self.news.notify_all();
    }

    /// The events after the one with this number, once there are some, or after so long.
    pub fn after(&self, number: u64, wait: Duration) -> News {
        let mut state = self.state.lock();
        if state.last <= number && !state.ended && !wait.is_zero() {
            self.news.wait_for(&mut state, wait);
        }
        let events: Vec<_> =
            state.ring.iter().filter(|event| event.number > number).cloned().collect();
        let first = events.first().map_or(state.last.saturating_add(1), |first| first.number);
        let lost = first.saturating_sub(number.saturating_add(1));
        News {
            dropped: lost.saturating_add(state.limits.take_dropped()),
            is_end: state.ended,
            events,
        }
    }

    /// Forgets all events; how many there were.
    pub fn clear(&self) -> u64 {
        let mut state = self.state.lock();
        let count = state.ring.len() as u64;
        state.ring.clear();
        count
    }

    /// The pool is closed: who waits for more is told.
    pub fn end(&self) {
        self.state.lock().ended = true;
        self.news.notify_all();
    }
}

/// A number that reports of one moment have in common.
fn ena(time: Duration) -> u64 {
    // Format 1 in the lowest bits, the time above.
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX) << 2 | 1
}

fn about_pool(list: &mut NvList, origin: &Origin) {
    list.push("pool", string(&origin.pool));
    list.push("pool_guid", origin.guid.0);
    list.push("pool_state", origin.state);
    list.push("pool_context", Value::Int32(origin.context));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on() -> Events {
        let events = Events::default();
        let pool = "tank".to_owned();
        events.begin(Origin { pool, guid: Guid(7), failmode: "wait", ..Origin::default() });
        events
    }

    #[test]
    fn the_newest_events_are_kept_and_numbered() {
        let events = Events::default();
        events.system("scrub_start", Vec::new());
        assert_eq!(events.after(0, Duration::ZERO).events.len(), 0);
        let events = on();
        for _ in 0..MOST + 3 {
            events.system("config_sync", Vec::new());
        }
        let all = events.after(0, Duration::ZERO);
        assert_eq!((all.events.len(), all.dropped, all.events[0].number), (MOST, 3, 4));
        let last = events.after(514, Duration::ZERO);
        assert_eq!((last.events.len(), last.dropped), (1, 0));
        assert_eq!((events.clear(), events.clear()), (MOST as u64, 0));
        assert_eq!(events.after(515, Duration::ZERO).dropped, 0);
    }

    #[test]
    fn members_have_the_order_of_openzfs() {
        let events = on();
        events.system("resilver_start", vec![("resilver_type", string("healing"))]);
        events.report("io_failure", None, Vec::new());
        let names = |event: &Event| {
            let names = event.members.iter().map(|pair| String::from_utf8_lossy(&pair.name));
            names.collect::<Vec<_>>().join(" ")
        };
        let all = events.after(0, Duration::ZERO).events;
        let common = "pool pool_guid pool_state pool_context";
        assert_eq!(names(&all[0]), format!("version class {common} resilver_type time eid"));
        assert_eq!(names(&all[1]), format!("class ena detector {common} pool_failmode time eid"));
        assert_eq!(all[1].class, "ereport.fs.zfs.io_failure");
    }

    #[test]
    fn who_waits_hears_of_what_happens_and_of_the_end() {
        let events = Arc::new(on());
        let other = events.clone();
        let wait = Duration::from_secs(20);
        let heard = std::thread::spawn(move || other.after(0, wait).events.len());
        events.system("pool_import", Vec::new());
        assert_eq!(heard.join().unwrap(), 1);
        let other = events.clone();
        let heard = std::thread::spawn(move || other.after(1, wait).is_end);
        events.end();
        assert!(heard.join().unwrap());
        events.system("pool_import", Vec::new());
        assert_eq!(events.after(0, wait).events.len(), 1);
    }
}
