//! Checking a whole pool: every block counted, verified, and compared with the space maps.
//!
//! What `zdb -b` and `zdb -c` do. Invariant: nothing is written; whatever is broken becomes a
//! [`Finding`] and the check goes on; memory does not grow with the number of blocks, but by one
//! bit for every sector in use.

pub mod census;
mod log;
mod pending;
mod progress;
mod shared;
mod space;
mod walk;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use cenote_format::{BlockPointer, Guid, Txg};

use crate::intent::first_unclaimed;
use crate::pool::Pool;
use crate::pool::space::PoolSpace;
use crate::walk::{Spread, Tree};
use crate::{Error, Result};

pub use census::{BlockKind, Census, SizeHistogram, Tally};
pub use progress::Progress;
pub use space::Extent;

/// Which blocks are read and compared with their checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Verify {
    /// Only those whose content leads to others.
    #[default]
    Structure,
    /// Metadata (`-c`).
    Metadata,
    /// All (`-cc`).
    Everything,
}

/// How to check.
#[derive(Clone, Copy, Debug)]
pub struct CheckOptions {
    /// What to verify.
    pub verify: Verify,
    /// Verify every copy and all parity, not just one good copy.
    pub every_copy: bool,
    /// Compare with the space maps.
    pub leaks: bool,
    /// Threads.
    pub threads: usize,
    /// Findings that are kept; further ones are counted.
    pub findings_kept: usize,
    /// Time between reports of progress.
    pub interval: Duration,
}

impl Default for CheckOptions {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(4, usize::from);
        Self {
            verify: Verify::Structure,
            every_copy: false,
            leaks: true,
            threads: threads.clamp(2, 16),
            findings_kept: 1000,
            interval: Duration::from_millis(500),
        }
    }
}

/// Something that is not as it should be.
#[derive(Clone, Debug)]
pub struct Finding {
    /// What kind.
    pub kind: FindingKind,
    /// Where and why.
    pub error: Error,
    /// The pointer to the block, if there is one.
    pub pointer: Option<Box<BlockPointer>>,
}

/// Kinds of [`Finding`]s.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FindingKind {
    /// No copy of the block can be read: its content is lost.
    Unreadable,
    /// The block can be read, but not all copies are good: leaves that gave wrong bytes, leaves
    /// that did not answer, addresses behind which nothing is right.
    BadCopy {
        /// Leaves with wrong bytes.
        liars: Vec<Guid>,
        /// Leaves without an answer.
        failed: Vec<Guid>,
        /// Addresses without a good copy.
        lost: u32,
    },
    /// Verified bytes make no sense.
    Malformed,
    /// The block shares space with another one, and is neither deduplicated nor cloned.
    Overlap,
    /// The pointer leads outside its device.
    BadAddress,
    /// Space maps or tables of references could not be read.
    Accounting,
}

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Blocks by kind and level.
    pub census: Census,
    /// What deduplication saves according to its tables: allocated bytes of references beyond
    /// the first.
    pub dedup_saved: u64,
    /// Blocks in the dedup tables with more than one reference.
    pub dedup_entries: u64,
    /// Their references beyond the first.
    pub dedup_references: u64,
    /// Allocated bytes of references to cloned blocks beyond the first.
    pub clone_saved: u64,
    /// Number of those references.
    pub clone_references: u64,
    /// Bytes that only the pool's checkpoint holds.
    pub checkpoint: u64,
    /// Bytes copied by a removal that is under way.
    pub removing: u64,
    /// Bytes allocated according to the space maps.
    pub allocated: u64,
    /// Bytes allocated according to the metaslabs' own maps, by top-level vdev, without what is
    /// still only in the logs.
    pub flushed: Vec<(u32, u64)>,
    /// Allocated, but not in use; the first ones.
    pub leaked: Vec<Extent>,
    /// Bytes of all of them.
    pub leaked_bytes: u64,
    /// In use, but not allocated: the next write may destroy them. The first ones.
    pub unallocated: Vec<Extent>,
    /// Bytes of all of them.
    pub unallocated_bytes: u64,
    /// What is wrong, in no special order; the first ones.
    pub findings: Vec<Finding>,
    /// How many findings there are.
    pub findings_total: u64,
    /// Blocks whose content was read and verified.
    pub verified_blocks: u64,
    /// The space maps were compared.
    pub leaks_checked: bool,
    /// The check was stopped before its end.
    pub stopped: bool,
}

impl Report {
    /// Bytes in use that the walk accounts for: to be compared with [`Self::allocated`].
    pub fn found(&self) -> u64 {
        let shared = self.dedup_saved.saturating_add(self.clone_saved);
        let held = self.checkpoint.saturating_add(self.removing);
        self.census.total().allocated.saturating_sub(shared).saturating_add(held)
    }

    /// Nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.findings_total == 0
            && !self.stopped
            && (!self.leaks_checked || (self.leaked_bytes, self.unallocated_bytes) == (0, 0))
    }

    fn add(&mut self, finding: Finding, kept: usize) {
        self.findings_total += 1;
        if self.findings.len() < kept {
            self.findings.push(finding);
        }
    }
}

/// Checks `pool`. `progress` is told now and then, and can stop the check.
pub fn check(
    pool: &Arc<Pool>,
    options: &CheckOptions,
    progress: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
) -> Result<Report> {
    // Groups may be written meanwhile.
    let view = pool.view();
    let mos = &view.mos;
    let directory = view.catalog.object_directory()?;
    let tree = view.config.vdev_tree.clone().unwrap_or_default();
    let mut report = Report { leaks_checked: options.leaks, ..Report::default() };
    let mut complaints = Vec::new();
    let space = match options.leaks {
        true => space::Space::load(mos, &tree, &directory, |error| complaints.push(error)),
        false => space::Space::default(),
    };
    report.allocated = space.allocated();
    report.checkpoint = space.checkpoint();
    report.flushed = space.flushed().collect();
    let used = options.leaks.then_some(&space);
    let shared = shared::SharedBlocks::load(mos, &directory, used, &mut complaints);
    report.dedup_saved = shared.dedup_saved;
    report.dedup_entries = shared.dedup_entries;
    report.dedup_references = shared.dedup_references;
    for error in complaints.drain(..) {
        let finding = Finding { kind: FindingKind::Accounting, error, pointer: None };
        report.add(finding, options.findings_kept);
    }
    let total = match options.leaks {
        true => report.allocated,
        false => PoolSpace::read(&view.catalog, &tree).map_or(0, |space| space.allocated()),
    };
    let unclaimed = first_unclaimed(&view.uberblock);
    let checker = walk::Checker::new(pool, *options, &space, &shared, total, unclaimed);
    let walk = Spread::new(&*pool.io().pipe, &checker);
    // The dnodes of the pool's own object set lead to all others.
    walk.add(Tree::new(0, Txg(0), walk::Set::default()), *mos.root_pointer());
    pending::start(&checker, &walk, mos, &directory);
    checker.run(&walk, &mut report, progress);
    report.removing = space.copied();
    if options.leaks && !report.stopped {
        space.leaked(|extent| {
            report.leaked_bytes = report.leaked_bytes.saturating_add(extent.length);
            if report.leaked.len() < options.findings_kept {
                report.leaked.push(extent);
            }
        });
        space.unallocated(|extent| {
            report.unallocated_bytes = report.unallocated_bytes.saturating_add(extent.length);
            if report.unallocated.len() < options.findings_kept {
                report.unallocated.push(extent);
            }
        });
    }
    Ok(report)
}
