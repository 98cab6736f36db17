//! How a pool is to be opened.
//!
//! Invariant: by default nothing is given up, and nothing is written.

use std::sync::Arc;
use std::time::Duration;

use cenote_format::Txg;

use super::discover::Opener;

/// How far back to look for a state that opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rewind {
    /// Not at all: the newest state or an error.
    #[default]
    None,
    /// The last few transaction groups (`-F`).
    Safe,
    /// As far as there are uberblocks (`-FX`, `-T`).
    Extreme,
}

/// How to open a pool.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// Most bytes of blocks kept in memory.
    pub cache_limit: u64,
    /// Threads that read ahead.
    pub prefetch_threads: usize,
    /// Open the pool as of this transaction group or the newest before it.
    pub max_txg: Option<Txg>,
    /// What to do when the newest state does not open.
    pub rewind: Rewind,
    /// Open the pool as of its checkpoint.
    pub checkpoint: bool,
    /// Open although a log device is missing; its records are not replayed then.
    pub missing_log: bool,
    /// Open although top-level vdevs are missing: what lies on them cannot be read (rescue).
    pub missing_vdevs: bool,
    /// Name the pool goes by while open, and from then on.
    pub name: Option<String>,
    /// That name is not kept: on the disks the pool keeps the one it has.
    pub temporary: bool,
    /// Longest wait for one device while opening.
    pub deadline: Duration,
    /// Open the devices for writing too.
    pub writable: bool,
    /// Transaction group, time and activity of the newest uberblock when it was looked whether another host uses the
    /// pool: if that host has written since, it is not opened for writing. `None`: nobody looked.
    pub watched: Option<(u64, u64, u64)>,
    /// Opens devices for writing; `None`: those of this machine, held exclusively.
    pub devices: Option<Arc<dyn Opener>>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            cache_limit: 256 << 20,
            prefetch_threads: 2,
            max_txg: None,
            rewind: Rewind::None,
            checkpoint: false,
            missing_log: false,
            missing_vdevs: false,
            name: None,
            temporary: false,
            deadline: Duration::from_secs(10),
            writable: false,
            watched: None,
            devices: None,
        }
    }
}
