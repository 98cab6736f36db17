//! Processes that are not waited for if a device holds them up.
//!
//! Invariant: nobody waits longer than a moment for the end of a process that has said what it had to say.

use std::process::Child;
use std::time::{Duration, Instant};

/// How long one that has answered may take to end.
const PATIENCE: Duration = Duration::from_millis(200);
/// Time between two looks at whether it has.
const PAUSE: Duration = Duration::from_millis(1);

/// Waits until the devices that it had are closed, but not for those that do not let go: false then.
pub(crate) fn leave(child: &mut Child) -> bool {
    let start = Instant::now();
    while matches!(child.try_wait(), Ok(None)) {
        if start.elapsed() >= PATIENCE {
            return false;
        }
        std::thread::sleep(PAUSE);
    }
    true
}
