//! What a receive is asked about encryption, and whether what comes can have it.
//!
//! Invariant: what is refused here is refused before what is to be filled is made.

use cenote_control::protocol::{Failure, FailureKind};

use super::words::Speaking;
use super::{ENCRYPTION, Plan, Session};
use crate::service::datasets::Datasets;
use crate::service::delegation::above;

/// The property.
const KEY_LOCATION: &str = "keylocation";

impl Session<'_> {
    /// Refuses orders about encryption where what comes has that settled already.
    pub(super) fn check_encryption(
        &self,
        plan: &Plan,
        made: bool,
        speaking: &Speaking<'_>,
    ) -> Result<(), Failure> {
        let is_of_key = |name: &str| [ENCRYPTION, "keyformat", "pbkdf2iters"].contains(&name);
        let request = self.request;
        let set = request.properties.iter().map(|own| own.name.as_str());
        let set = set.chain(request.key.iter().map(|_| "keyformat"));
        let set = set.filter(|name| is_of_key(name)).min();
        let excluded = request.excluded.iter().map(String::as_str).find(|name| is_of_key(name));
        let refuse = |name: &str, words: &str| {
            let reason = format!("encryption property '{name}' {words}");
            Err(speaking.refuse(FailureKind::Other, &reason))
        };
        // What is below the first of a package inherits.
        match (set, excluded) {
            (Some(name), _) | (None, Some(name)) if plan.is_raw => {
                refuse(name, "cannot be set or excluded for raw streams.")
            }
            (Some(name), _) if !made && self.package.is_none() => {
                refuse(name, "cannot be set for incremental streams.")
            }
            _ => self.check_key_location(plan, made, speaking),
        }
    }

    /// Refuses a place for the key of what has none of its own: it would be a property that means nothing.
    fn check_key_location(
        &self,
        plan: &Plan,
        made: bool,
        speaking: &Speaking<'_>,
    ) -> Result<(), Failure> {
        let is_given = self.request.properties.iter().any(|own| own.name == KEY_LOCATION);
        if !is_given || plan.is_raw {
            return Ok(());
        }
        let all = self.doing.shown()?;
        let dataset = &speaking.to.dataset;
        let is_encrypted = all.is_encrypted(if made { above(dataset) } else { dataset });
        let words = match (made, is_encrypted) {
            (true, true) => "Keyformat required for new encryption root.",
            (false, true) => return Ok(()),
            (_, false) => "Encryption must be turned on to set encryption properties.",
        };
        Err(speaking.refuse(FailureKind::Other, words))
    }
}
