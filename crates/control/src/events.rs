//! Events as they cross the control socket, and following those of all pools.
//!
//! Invariant: a follower hears every event of a pool once and in order, however often he has to ask anew,
//! unless more happened meanwhile than the pool keeps: then he is told how many he missed.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::client::Client;

/// How often new pools are looked for.
const GLANCE: Duration = Duration::from_millis(500);
/// How long a pool that answered no more is left alone.
const PAUSE: Duration = Duration::from_secs(2);

/// A value of an event, by the data types of nvlists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventValue {
    /// It is there.
    Boolean,
    /// True or false.
    BooleanValue(bool),
    /// A whole number: its size in bits, and its bits.
    Number(u8, u64),
    /// A number with a sign.
    Signed(i64),
    /// Numbers: their size in bits, and their bits.
    Numbers(u8, Vec<u64>),
    /// Numbers with signs.
    SignedNumbers(Vec<i64>),
    /// A text.
    Text(String),
    /// Texts.
    Texts(Vec<String>),
    /// A list.
    List(Vec<(String, EventValue)>),
}

/// Something that happened to a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventRecord {
    /// Its number in the life of the pool's process.
    pub number: u64,
    /// When, in seconds since 1970.
    pub seconds: i64,
    /// The rest of that, in nanoseconds.
    pub nanoseconds: u32,
    /// Its class, as `sysevent.fs.zfs.scrub_finish`.
    pub class: String,
    /// Everything about it, in order.
    pub members: Vec<(String, EventValue)>,
}

impl EventRecord {
    /// The member of this name.
    pub fn get(&self, name: &str) -> Option<&EventValue> {
        self.members.iter().find(|(own, _)| own == name).map(|(_, value)| value)
    }

    /// The text of this name.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.get(name) {
            Some(EventValue::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// The number of this name.
    pub fn number_of(&self, name: &str) -> Option<u64> {
        match self.get(name) {
            Some(EventValue::Number(_, number)) => Some(*number),
            _ => None,
        }
    }

    /// What comes behind `fs.zfs.` in its class; the whole class if nothing does.
    pub fn subclass(&self) -> &str {
        let after = self.class.split_once("fs.zfs.").map(|(_, after)| after);
        after.filter(|after| !after.is_empty()).unwrap_or(&self.class)
    }
}

/// An event of the life of a pool's process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Tells this life from others.
    pub life: u64,
    /// The number of the event.
    pub number: u64,
}

/// Which events are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventsAsked {
    /// Those after this one; of another life, all.
    pub after: Option<Position>,
    /// Those to come, too, until the pool is closed. Meanwhile a part comes every two seconds, if only an
    /// empty one.
    pub follow: bool,
}

/// Some events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventsPart {
    /// Of this life.
    pub life: u64,
    /// How many before them are lost.
    pub dropped: u64,
    /// In order.
    pub events: Vec<EventRecord>,
}

/// What a follower hears of a pool.
#[derive(Debug)]
pub enum Heard {
    /// These events happened, or are told of first.
    Events(String, EventsPart),
    /// The pool says no more: it was exported, or its process has died.
    End(String),
    /// Nothing for a moment.
    Nothing,
}

/// Follows the events of one pool, or of all, those that come later included, as long as `hear` says so.
/// Of a pool in `from`, events after that position are told.
pub fn follow(
    client: &Client,
    only: Option<&str>,
    from: &BTreeMap<String, Position>,
    mut hear: impl FnMut(Heard) -> bool,
) {
    let (sender, receiver) = mpsc::channel();
    let mut positions = from.clone();
    let mut followed: BTreeMap<String, Option<std::time::Instant>> = BTreeMap::new();
    loop {
        followed.retain(|_, ended| ended.is_none_or(|ended| ended.elapsed() < PAUSE));
        for pool in client.pools() {
            let is_wanted = only.is_none_or(|only| only == pool);
            if !is_wanted || followed.contains_key(&pool) || !client.lives(&pool) {
                continue;
            }
            followed.insert(pool.clone(), None);
            let asked = EventsAsked { after: positions.get(&pool).copied(), follow: true };
            let (client, sender) = (client.clone(), sender.clone());
            std::thread::spawn(move || {
                let told = |part| drop(sender.send(Heard::Events(pool.clone(), part)));
                // What a pool says no more of is told by the end; the process may have died.
                drop(client.events(&pool, asked, told));
                drop(sender.send(Heard::End(pool)));
            });
        }
        let heard = receiver.recv_timeout(GLANCE).unwrap_or(Heard::Nothing);
        match &heard {
            Heard::Events(pool, part) => {
                let position = positions.entry(pool.clone()).or_default();
                if position.life != part.life {
                    *position = Position { life: part.life, number: 0 };
                }
                position.number = part.events.last().map_or(position.number, |last| last.number);
            }
            Heard::End(pool) => {
                followed.insert(pool.clone(), Some(std::time::Instant::now()));
            }
            Heard::Nothing => {}
        }
        let is_empty =
            matches!(&heard, Heard::Events(_, part) if part.events.is_empty() && part.dropped == 0);
        if !hear(if is_empty { Heard::Nothing } else { heard }) {
            return;
        }
    }
}
