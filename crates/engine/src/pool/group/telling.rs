//! What happens to the pool, told as events to who wants to know.
//!
//! Chapter 08, section 28. Invariant: what an order does is told when it has succeeded, and not otherwise.

use std::sync::Arc;

use cenote_format::Guid;

use super::LivePool;
use super::outage::FailMode;
use crate::events::{Events, Members, Origin};
use crate::pool::Pool;

impl Pool {
    /// What happens to the pool and its devices.
    pub fn events(&self) -> Arc<Events> {
        self.vdevs().events().clone()
    }

    /// From now on what happens is told. For pools that can only be read; one that is written does so
    /// itself.
    pub fn begin_events(&self) {
        self.begin_events_with("");
    }

    pub(super) fn begin_events_with(&self, failmode: &'static str) {
        let (pool, guid) = (self.name().to_owned(), self.guid());
        let origin = Origin { pool, guid, failmode, ..Origin::default() };
        self.events().begin(origin);
    }
}

impl FailMode {
    /// The word of the property.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Wait => "wait",
            Self::Continue => "continue",
            Self::Panic => "panic",
        }
    }
}

impl LivePool {
    /// Tells `sysevent.fs.zfs.NAME` once the task under way has succeeded; at once if there is none.
    pub(in crate::pool) fn tell(&self, name: &'static str, more: Members) {
        self.when_done(move |live| live.vdevs().events().system(name, more));
    }

    /// The same about a vdev of the pool, as it is then; nothing if it has left by then.
    pub(in crate::pool) fn tell_of(&self, name: &'static str, vdev: Guid) {
        self.when_done(move |live| {
            let vdevs = live.vdevs();
            vdevs.events().system(name, vdevs.named_in_event(vdev));
        });
    }

    /// The same about a vdev that leaves: as it is now.
    pub(in crate::pool) fn tell_of_gone(&self, name: &'static str, vdev: Guid) {
        self.tell(name, self.vdevs().named_in_event(vdev));
    }
}
