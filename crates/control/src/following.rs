//! Following the events of all pools.
//!
//! Invariant: a follower hears every event of a pool once and in order, however often he has to ask anew,
//! unless more happened meanwhile than the pool keeps: then he is told how many he missed.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::client::Client;
use crate::events::{EventsAsked, EventsPart, Position};
use crate::threads::spawn;

/// How often new pools are looked for.
const GLANCE: Duration = Duration::from_millis(500);
/// How long a pool that answered no more is left alone.
const PAUSE: Duration = Duration::from_secs(2);

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
    let mut followed: BTreeMap<String, Option<Instant>> = BTreeMap::new();
    loop {
        followed.retain(|_, ended| ended.is_none_or(|ended| ended.elapsed() < PAUSE));
        for pool in client.pools() {
            let is_wanted = only.is_none_or(|only| only == pool);
            if !is_wanted || followed.contains_key(&pool) || !client.lives(&pool) {
                continue;
            }
            followed.insert(pool.clone(), None);
            let asked = EventsAsked { after: positions.get(&pool).copied(), follow: true };
            let (client, sender, name) = (client.clone(), sender.clone(), pool.clone());
            let listening = spawn(move || {
                let told = |part| drop(sender.send(Heard::Events(name.clone(), part)));
                // What a pool says no more of is told by the end; the process may have died.
                drop(client.events(&name, asked, told));
                drop(sender.send(Heard::End(name)));
            });
            if listening.is_err() {
                // No thread can be had: later.
                followed.insert(pool, Some(Instant::now()));
            }
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
                followed.insert(pool.clone(), Some(Instant::now()));
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
