//! Following the events of all pools.
//!
//! Invariant: a follower hears every event of a pool once and in order, however often he has to ask anew,
//! unless more happened meanwhile than the pool keeps: then he is told how many he missed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::client::Client;
use crate::events::{EventsAsked, EventsPart, Position};
use crate::protocol::{Failure, FailureKind};
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
    /// The pool cannot be followed now, and why; it is tried again, and said again when it could be followed meanwhile.
    Refused(String, Failure),
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
    let mut refused = BTreeSet::new();
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
                let heard = match client.events(&name, asked, told) {
                    Err(failure) if failure.kind == FailureKind::Busy => {
                        Heard::Refused(name, failure)
                    }
                    _ => Heard::End(name),
                };
                drop(sender.send(heard));
            });
            if listening.is_err() {
                // No thread can be had: later.
                followed.insert(pool, Some(Instant::now()));
            }
        }
        let heard = receiver.recv_timeout(GLANCE).unwrap_or(Heard::Nothing);
        match &heard {
            Heard::Events(pool, part) => {
                refused.remove(pool);
                let position = positions.entry(pool.clone()).or_default();
                if position.life != part.life {
                    *position = Position { life: part.life, number: 0 };
                }
                position.number = part.events.last().map_or(position.number, |last| last.number);
            }
            Heard::End(pool) | Heard::Refused(pool, _) => {
                followed.insert(pool.clone(), Some(Instant::now()));
            }
            Heard::Nothing => {}
        }
        let is_old = match &heard {
            Heard::Events(_, part) => part.events.is_empty() && part.dropped == 0,
            Heard::Refused(pool, _) => !refused.insert(pool.clone()),
            _ => false,
        };
        if !hear(if is_old { Heard::Nothing } else { heard }) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Timed;
    use crate::protocol::{Reply, Request};
    use crate::run_directory;

    #[test]
    fn who_is_refused_is_told_so_once() {
        let directory = tempfile::tempdir().unwrap();
        let files = run_directory::files(directory.path(), "tank");
        let _claim = run_directory::claim(&files, "tank").unwrap();
        let listener = std::os::unix::net::UnixListener::bind(&files.socket).unwrap();
        let (asked, times) = mpsc::channel();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let timed = Timed::new(&stream, Duration::from_secs(5));
                let _: Result<Request, _> = timed.receive();
                let busy = Failure::new(FailureKind::Busy, "too many");
                drop(timed.send(Reply::Failed(busy)));
                let _ = asked.send(());
            }
        });
        let (mut told, mut tries) = (Vec::new(), 0);
        follow(&Client::new(directory.path().to_owned()), None, &BTreeMap::new(), |heard| {
            match heard {
                Heard::Refused(pool, why) => told.push((pool, why.message)),
                Heard::Nothing => {}
                other => panic!("{other:?}"),
            }
            tries += times.try_iter().count();
            tries < 2
        });
        assert_eq!(told, [("tank".to_owned(), "too many".to_owned())]);
    }
}
