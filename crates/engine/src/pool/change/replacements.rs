//! New devices in the places of those that went: the property `autoreplace`.
//!
//! Chapter 08, section 14. Invariant: only a device on which nothing is known to be is taken, at the very path of
//! one that is lost, and not at once: what is plugged in may be about to be used for something else.

use std::path::Path;
use std::time::Instant;

use cenote_format::config::VdevConfig;

use super::members::Newcomer;
use crate::pool::group::{LivePool, MosSource};
use crate::pool::in_use::device_in_use;
use crate::pool::leaves::HeldDevices;
use crate::vdev::Aux;

/// The property.
const PROPERTY: &str = "autoreplace";

impl LivePool {
    /// Takes new devices that are where lost ones were, if the pool wants that.
    pub(in crate::pool) fn replace_by_itself(&self) {
        let vdevs = self.vdevs();
        if !vdevs.has_away() || self.gate.suspension().is_some() {
            return;
        }
        // What is there has answered, and is no part of the pool.
        let Some(status) = vdevs.status() else { return };
        let is_other = |leaf: &&VdevConfig| {
            status.find(leaf.guid).is_some_and(|own| own.condition.aux == Aux::BadLabel)
        };
        let others: Vec<_> = vdevs.topology().root().devices().filter(is_other).collect();
        let guids: Vec<_> = others.iter().map(|leaf| leaf.guid).collect();
        let due = self.replacements.due(&guids, Instant::now());
        if due.is_empty() {
            return;
        }
        let stored = MosSource::new(self.mos.clone()).pool_property(PROPERTY);
        if stored.is_none_or(|value| value == 0) {
            return;
        }
        for leaf in others.into_iter().filter(|leaf| due.contains(&leaf.guid)) {
            self.replace_in_place(leaf);
        }
    }

    fn replace_in_place(&self, old: &VdevConfig) {
        let Some(path) = old.path.as_deref() else { return };
        match device_in_use(Path::new(path)) {
            Ok(found) if found.is_free() => {}
            _ => return tracing::info!(path, "what is there now may be used: it is left alone"),
        }
        // In the order of the disks where that can be done.
        for sequential in [true, false] {
            let leaf = VdevConfig {
                kind: old.kind,
                path: old.path.clone(),
                whole_disk: old.whole_disk,
                ..VdevConfig::default()
            };
            let newcomer =
                Newcomer { beside: old.guid, leaf, replaces: true, goes_back: false, sequential };
            match self.take_in(newcomer, HeldDevices::new().new_leaves()) {
                Ok(()) => {
                    return tracing::warn!(path, "a new device takes the place of a lost one");
                }
                Err(error) => tracing::info!(path, %error, "a new device is not taken"),
            }
        }
    }
}
