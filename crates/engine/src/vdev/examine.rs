//! Looking again at devices that are open: whether they still are the pool's.
//!
//! Invariant: a device is left out only if the others of its top-level vdev have all that is there; one that holds what
//! no other does stays, whatever became of its labels.

use super::leaf::LeafUnavailable;
use super::state::Aux;
use super::tree::{LeafId, VdevTree};

/// What a look at all devices found.
#[derive(Debug, Default)]
pub struct Examined {
    /// Devices that are not the pool's any more.
    strangers: Vec<(LeafId, LeafUnavailable)>,
    /// Some device has lost labels.
    is_torn: bool,
}

impl Examined {
    /// Some device is not what it was.
    pub fn has_strangers(&self) -> bool {
        !self.strangers.is_empty()
    }

    /// Some device says that it is another one.
    pub fn has_others(&self) -> bool {
        self.strangers.iter().any(|(_, why)| why.condition.aux == Aux::CorruptData)
    }

    /// Some device has lost labels, and stays.
    pub fn is_torn(&self) -> bool {
        self.is_torn
    }
}

impl VdevTree {
    /// Looks at what the devices that are open say of themselves now. Those that do not answer are not asked.
    pub fn examine_devices(&self) -> Examined {
        let mut found = Examined::default();
        for (id, leaf) in self.leaves.iter().enumerate() {
            let Some(device) = leaf.device() else { continue };
            if leaf.health.lock().is_given_up() || leaf.stalls().is_some() {
                continue;
            }
            match self.opener.still_is(&leaf.config, &device) {
                Ok(is_whole) => found.is_torn |= !is_whole,
                Err(why) => found.strangers.push((id, why)),
            }
        }
        let strange: Vec<LeafId> = found.strangers.iter().map(|(id, _)| *id).collect();
        let is_left = |leaf: LeafId| {
            let own = self.leaves.get(leaf).filter(|_| !strange.contains(&leaf));
            own.is_some_and(|own| own.is_complete() && own.condition().state.is_readable())
        };
        let can_go = |id: &LeafId| {
            let top = self.leaves.get(*id).and_then(|leaf| self.tops.get(leaf.top as usize));
            top.is_some_and(|top| self.stands(top.node, &is_left))
        };
        let (strangers, needed) = std::mem::take(&mut found.strangers)
            .into_iter()
            .partition::<Vec<_>, _>(|(id, _)| can_go(id));
        for (id, why) in needed {
            // What is another's by now is not told that it is ours.
            found.is_torn |= why.condition.aux == Aux::BadLabel;
            let device = self.leaves.get(id).map(|leaf| leaf.name());
            let reason = why.reason;
            tracing::error!(
                device,
                reason,
                "it stays in use: nothing else has what it should hold"
            );
        }
        found.strangers = strangers;
        found
    }

    /// Lets go of devices that are not the pool's any more.
    pub fn leave_out_strangers(&self, found: Examined) {
        for (id, why) in found.strangers {
            let Some(leaf) = self.leaves.get(id) else { continue };
            tracing::warn!(leaf = leaf.config.guid.0, reason = why.reason, "device left out");
            leaf.leave_out(why.condition);
            self.opener.forget(leaf.config.guid);
        }
        self.refresh();
    }
}
