//! What happens to the pool, as those who follow it are told.
//!
//! Invariant: who follows takes nothing from others: he reads what is kept, waits on a thread of his own, and
//! is given up when he has gone. The process ends no sooner than he was told of the end, or a moment later.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cenote_control::events::{EventRecord, EventValue, EventsAsked, EventsPart};
use cenote_control::protocol::{Failure, Part};
use cenote_control::replies::Replies;
use cenote_engine::events::{Event, Events, News};
use cenote_format::nvlist::{NvList, Value};

/// How often who follows is told something, if only that there is nothing.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// How long an ending process waits for those who follow.
const LAST_WORDS: Duration = Duration::from_millis(500);
/// Events in one part.
const PART: usize = 64;

/// The events of the pool, for as long as somebody follows them.
pub struct Told {
    events: Arc<Events>,
    life: u64,
    followers: AtomicUsize,
    /// Whether the end has been told and waited for.
    ended: Mutex<bool>,
}

impl Told {
    /// Of this life of the process.
    pub fn new(events: Arc<Events>, life: u64) -> Self {
        Self { events, life, followers: AtomicUsize::new(0), ended: Mutex::new(false) }
    }

    /// Gives out what is asked for.
    ///
    /// # Errors
    /// `Gone`.
    pub fn give(&self, asked: &EventsAsked, replies: &Replies<'_>) -> Result<(), Failure> {
        self.followers.fetch_add(1, SeqCst);
        let given = self.give_all(asked, replies);
        self.followers.fetch_sub(1, SeqCst);
        given
    }

    fn give_all(&self, asked: &EventsAsked, replies: &Replies<'_>) -> Result<(), Failure> {
        let own = asked.after.filter(|after| after.life == self.life);
        let mut seen = own.map_or(0, |after| after.number);
        let mut is_first = true;
        loop {
            let wait = if asked.follow && !is_first { HEARTBEAT } else { Duration::ZERO };
            let News { events, mut dropped, is_end } = self.events.after(seen, wait);
            seen = events.last().map_or(seen.saturating_add(dropped), |last| last.number);
            if is_first && own.is_none() {
                // What was before anybody asked is no loss of his.
                dropped = 0;
            }
            is_first = false;
            let parts =
                events.chunks(PART).map(|some| some.iter().map(|one| record(one)).collect());
            let mut parts: Vec<Vec<EventRecord>> = parts.collect();
            if parts.is_empty() {
                parts.push(Vec::new());
            }
            for events in parts {
                let dropped = std::mem::take(&mut dropped);
                replies.part(Part::Events(EventsPart { life: self.life, dropped, events }))?;
            }
            if is_end || !asked.follow {
                return Ok(());
            }
        }
    }

    /// Forgets all events; how many there were.
    pub fn clear(&self) -> u64 {
        self.events.clear()
    }

    /// There will be no more: waits a moment for those who follow.
    pub fn end(&self) {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut ended, true) {
            return;
        }
        self.events.end();
        let start = Instant::now();
        while self.followers.load(SeqCst) > 0 && start.elapsed() < LAST_WORDS {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn record(event: &Event) -> EventRecord {
    EventRecord {
        number: event.number,
        seconds: i64::try_from(event.time.as_secs()).unwrap_or(i64::MAX),
        nanoseconds: event.time.subsec_nanos(),
        class: event.class.clone(),
        members: members(&event.members),
    }
}

fn members(list: &NvList) -> Vec<(String, EventValue)> {
    let member = |pair: &cenote_format::nvlist::Pair| {
        (String::from_utf8_lossy(&pair.name).into_owned(), value(&pair.value))
    };
    list.iter().map(member).collect()
}

fn words(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}

fn value(value: &Value) -> EventValue {
    fn all<T: Copy + Into<u64>>(size: u8, numbers: &[T]) -> EventValue {
        EventValue::Numbers(size, numbers.iter().map(|number| (*number).into()).collect())
    }
    fn signed<T: Copy + Into<i64>>(numbers: &[T]) -> EventValue {
        EventValue::SignedNumbers(numbers.iter().map(|number| (*number).into()).collect())
    }
    match value {
        Value::Boolean => EventValue::Boolean,
        Value::BooleanValue(value) => EventValue::BooleanValue(*value),
        Value::Byte(number) | Value::Uint8(number) => EventValue::Number(8, (*number).into()),
        Value::Uint16(number) => EventValue::Number(16, (*number).into()),
        Value::Uint32(number) => EventValue::Number(32, (*number).into()),
        Value::Uint64(number) | Value::Double(number) => EventValue::Number(64, *number),
        Value::Int8(number) => EventValue::Signed((*number).into()),
        Value::Int16(number) => EventValue::Signed((*number).into()),
        Value::Int32(number) => EventValue::Signed((*number).into()),
        Value::Int64(number) | Value::HighResolutionTime(number) => EventValue::Signed(*number),
        Value::String(text) => EventValue::Text(words(text)),
        Value::StringArray(texts) => {
            EventValue::Texts(texts.iter().map(|text| words(text)).collect())
        }
        Value::ByteArray(numbers) | Value::Uint8Array(numbers) => all(8, numbers),
        Value::Uint16Array(numbers) => all(16, numbers),
        Value::Uint32Array(numbers) => all(32, numbers),
        Value::Uint64Array(numbers) => all(64, numbers),
        Value::BooleanArray(values) => {
            let numbers: Vec<u64> = values.iter().map(|value| u64::from(*value)).collect();
            EventValue::Numbers(32, numbers)
        }
        Value::Int8Array(numbers) => signed(numbers),
        Value::Int16Array(numbers) => signed(numbers),
        Value::Int32Array(numbers) => signed(numbers),
        Value::Int64Array(numbers) => signed(numbers),
        Value::List(list) => EventValue::List(members(list)),
        Value::ListArray(lists) => {
            let numbered = |(number, list): (usize, &NvList)| {
                (number.to_string(), EventValue::List(members(list)))
            };
            EventValue::List(lists.iter().enumerate().map(numbered).collect())
        }
    }
}
