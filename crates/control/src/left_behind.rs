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

/// Whether it waits for something else than a processor: no thread of it would go on if it were given one.
pub(crate) fn is_held_up(child: &Child) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{}/task", child.id()));
    !threads.into_iter().flatten().flatten().any(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The name, in parentheses, can be anything.
        stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('R'))
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn who_computes_is_not_held_up() {
        let run = |text: &str| Command::new("sh").args(["-c", text]).spawn().unwrap();
        let (mut busy, mut idle) = (run("while :; do :; done"), run("exec sleep 60"));
        let start = Instant::now();
        let mut seen = (false, false);
        while seen != (true, true) && start.elapsed() < Duration::from_secs(20) {
            seen = (!is_held_up(&busy), is_held_up(&idle));
            std::thread::sleep(PAUSE);
        }
        for child in [&mut busy, &mut idle] {
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(is_held_up(child));
        }
        assert_eq!(seen, (true, true));
    }
}
