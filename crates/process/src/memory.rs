//! Keeping a pool within its share of memory while it is imported.
//!
//! Invariant: what is handed out follows from [`Budget`] alone; a process in a small control group gets
//! slower instead of being killed.

use std::sync::{Arc, Weak};
use std::time::Duration;

use cenote_control::budget::{Budget, Group};
use cenote_engine::pool::group::WriteOptions;
use cenote_engine::pool::{OpenOptions, Pool};
use cenote_engine::txg::Gate;

/// How often the share is looked at again.
const TICK: Duration = Duration::from_secs(2);
/// Bytes of blocks that a pool keeps in memory that is opened for a moment.
const PART_CACHE: u64 = 16 << 20;

/// Settles how this process takes memory, before it takes much.
pub fn begin() {
    let budget = Budget::now();
    cenote_serve::fuse::limit_threads(budget.all_threads);
    if !budget.huge_pages
        && let Err(error) = rustix::thread::disable_transparent_huge_pages(true)
    {
        tracing::info!(%error, "memory comes in huge pages");
    }
}

/// Keeps a pool within its share as pools come and go, and lets its cache give way when its control
/// group runs short.
pub fn watch(pool: &Arc<Pool>, gate: Option<Arc<Gate>>) {
    let pool = Arc::downgrade(pool);
    let thread = std::thread::Builder::new().name("memory".into());
    if let Err(error) = thread.spawn(move || keep(&pool, gate.as_ref())) {
        tracing::warn!(%error, "nobody watches the memory");
    }
}

fn keep(pool: &Weak<Pool>, gate: Option<&Arc<Gate>>) {
    let group = Group::own();
    let mut last = Budget::now();
    loop {
        std::thread::sleep(TICK);
        let Some(pool) = pool.upgrade() else { return };
        let budget = Budget::now();
        let cache = pool.io().pipe.cache();
        let limit = match &group {
            Some(group) if group.is_pressed() => cache.weight() / 2,
            // After it gave way it grows back by steps.
            _ => budget.cache.min(cache.limit().saturating_mul(5) / 4 + 1),
        };
        if limit != cache.limit() {
            cache.set_limit(limit);
        }
        if budget != last {
            last = budget;
            cenote_device::keep_buffers(usize::try_from(budget.buffers).unwrap_or(usize::MAX));
            if let Some(gate) = gate {
                gate.set_limit(budget.dirty);
            }
        }
    }
}

/// How a pool is opened and written for a moment beside another one.
pub fn options_of_part() -> (OpenOptions, WriteOptions) {
    let options = OpenOptions { cache_limit: PART_CACHE, ..OpenOptions::default() };
    (options, write_options())
}

/// How pools are written.
pub fn write_options() -> WriteOptions {
    let budget = Budget::now();
    cenote_device::keep_buffers(usize::try_from(budget.buffers).unwrap_or(usize::MAX));
    WriteOptions {
        dirty_limit: budget.dirty,
        in_flight: budget.in_flight,
        ..WriteOptions::default()
    }
}
