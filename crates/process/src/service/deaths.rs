//! Deaths on purpose: what the process is asked to die at.
//!
//! Invariant: it dies only while an order of that function is carried out, and none of it counts then.

use cenote_control::faults::{FaultOrder, FaultReport};
use cenote_engine::pool::group::LivePool;
use parking_lot::Mutex;

/// The functions to die at, by numbers of faults.
#[derive(Default)]
pub struct Deaths(Mutex<Vec<(u64, String)>>);

/// While this is there, the next group is not lived to see.
pub struct Dying<'a>(&'a LivePool);

impl Deaths {
    pub fn add(&self, id: u64, function: &str) {
        self.0.lock().push((id, function.to_owned()));
    }

    /// Forgets that of this number, or all; how many there were.
    pub fn forget(&self, id: Option<u64>) -> usize {
        let mut all = self.0.lock();
        let before = all.len();
        all.retain(|(own, _)| id.is_some_and(|id| id != *own));
        before - all.len()
    }

    pub fn reports(&self) -> Vec<FaultReport> {
        let shown = |(id, function): &(u64, String)| {
            let order = FaultOrder::Death(function.clone());
            FaultReport { id: *id, guid: 0, order, happened: 0 }
        };
        self.0.lock().iter().map(shown).collect()
    }

    /// What does this function is about to be carried out.
    pub fn entered<'a>(&self, function: &str, live: &'a LivePool) -> Option<Dying<'a>> {
        let dies = self.0.lock().iter().any(|(_, own)| own == function);
        dies.then(|| {
            live.die_before_next_group(true);
            Dying(live)
        })
    }
}

impl Drop for Dying<'_> {
    fn drop(&mut self) {
        // It was refused.
        self.0.die_before_next_group(false);
    }
}
