//! The clock and the random numbers of this process: the machine's, or simulated from a seed.
//!
//! Invariant: after [`simulate`] nothing that asks here depends on the machine: the clock stands still
//! unless [`advance`] is called, and the numbers follow from the seed and the order of the questions: of those of the
//! threads that write groups, and of those of all others, which work beside each other.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

/// When simulated time begins: in 2026.
const BEGIN: Duration = Duration::from_secs(1_790_000_000);

struct Simulated {
    /// Of the threads that write groups, and of all others.
    states: [u64; 2],
    now: Duration,
}

/// Name of the threads that write groups.
pub const WRITER: &str = "txg";

static IS_SIMULATED: AtomicBool = AtomicBool::new(false);
static SIMULATED: Mutex<Simulated> = Mutex::new(Simulated { states: [0; 2], now: BEGIN });

/// From now on time and randomness of this process follow from `seed`. For tests: keys that are made
/// then are no secret.
pub fn simulate(seed: u64) {
    *SIMULATED.lock() = Simulated { states: [!seed, seed], now: BEGIN };
    IS_SIMULATED.store(true, Ordering::SeqCst);
}

/// Whether [`simulate`] was called.
pub fn is_simulated() -> bool {
    IS_SIMULATED.load(Ordering::Relaxed)
}

/// Simulated time passes.
pub fn advance(time: Duration) {
    let mut simulated = SIMULATED.lock();
    simulated.now = simulated.now.saturating_add(time);
}

/// Time since 1970.
pub fn now() -> Duration {
    match is_simulated() {
        true => SIMULATED.lock().now,
        false => SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
    }
}

/// The next simulated number (splitmix64).
fn next() -> u64 {
    let [of_writers, of_others] = &mut SIMULATED.lock().states;
    let state = match std::thread::current().name() == Some(WRITER) {
        true => of_writers,
        false => of_others,
    };
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut number = *state;
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// A random number.
///
/// # Errors
/// If the machine has none.
pub fn random_u64() -> Result<u64, getrandom::Error> {
    if is_simulated() { Ok(next()) } else { getrandom::u64() }
}

/// Fills `bytes` with random ones.
///
/// # Errors
/// If the machine has none.
pub fn fill_random(bytes: &mut [u8]) -> Result<(), getrandom::Error> {
    if !is_simulated() {
        return getrandom::fill(bytes);
    }
    for part in bytes.chunks_mut(8) {
        let number = next().to_le_bytes();
        part.copy_from_slice(number.get(..part.len()).unwrap_or_default());
    }
    Ok(())
}
