//! Why a process is interrupted: what its pending signals will do to it.
//!
//! Invariant: a process that is not about to die is never called dying: a signal that is blocked, ignored or
//! caught does not count as deadly.

/// What a signal without a handler leaves running: CHLD, CONT, STOP, TSTP, TTIN, TTOU, URG, WINCH.
const HARMLESS: u64 = mask(&[17, 18, 19, 20, 21, 22, 23, 28]);
/// Those that ask to end, or to stop waiting, where they are caught: HUP, INT, QUIT, ALRM, TERM.
const ASKS: u64 = mask(&[1, 2, 3, 14, 15]);

const fn mask(signals: &[u32]) -> u64 {
    let mut all = 0;
    let mut index = 0;
    while index < signals.len() {
        all |= 1 << (signals[index] - 1);
        index += 1;
    }
    all
}

/// What will become of the waiting process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// It goes on.
    GoesOn,
    /// It catches a signal that asks it to end, or cannot be seen from here.
    IsAsked,
    /// A signal kills it as soon as it returns to itself.
    Dies,
}

/// The fate of the thread with this number.
pub(super) fn fate_of(thread: u32) -> Fate {
    // 0: of a process that our namespace does not show.
    let status = match thread {
        0 => return Fate::IsAsked,
        thread => std::fs::read_to_string(format!("/proc/{thread}/status")),
    };
    status.map_or(Fate::IsAsked, |status| fate_in(&status))
}

/// As `/proc/PID/status` tells.
fn fate_in(status: &str) -> Fate {
    let set = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| u64::from_str_radix(line.trim(), 16).ok()).unwrap_or(0)
    };
    let pending = (set("SigPnd:") | set("ShdPnd:")) & !set("SigBlk:") & !set("SigIgn:");
    let caught = set("SigCgt:");
    match pending {
        _ if pending & !caught & !HARMLESS != 0 => Fate::Dies,
        _ if pending & caught & ASKS != 0 => Fate::IsAsked,
        _ => Fate::GoesOn,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_deadly_signals_kill() {
        let fate = |pending: u64, blocked: u64, ignored: u64, caught: u64| {
            fate_in(&format!(
                "Name:\tdd\nSigPnd:\t{pending:016x}\nShdPnd:\t0000000000000000\n\
                 SigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\nSigCgt:\t{caught:016x}\n"
            ))
        };
        let (term, kill, urgent, child) = (1 << 14, 1 << 8, 1 << 22, 1 << 16);
        assert_eq!(fate(term, 0, 0, 0), Fate::Dies);
        assert_eq!(fate(kill, 0, 0, !kill), Fate::Dies);
        assert_eq!(fate(term, 0, 0, term), Fate::IsAsked);
        assert_eq!(fate(urgent, 0, 0, urgent), Fate::GoesOn);
        assert_eq!(fate(child, 0, 0, 0), Fate::GoesOn);
        assert_eq!(fate(term, term, 0, 0), Fate::GoesOn);
        assert_eq!(fate(term, 0, term, 0), Fate::GoesOn);
        assert_eq!(fate(0, 0, 0, 0), Fate::GoesOn);
    }

    #[test]
    fn a_thread_that_nobody_signals_goes_on() {
        assert_eq!(fate_of(std::process::id()), Fate::GoesOn);
        assert_eq!(fate_of(0), Fate::IsAsked);
    }
}
