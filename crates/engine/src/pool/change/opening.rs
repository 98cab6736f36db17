//! Opening a pool to write it: logs are claimed, and the history told, before anybody changes anything.
//!
//! Invariant: a pool that keeps something this code does not keep up is not written.

use std::sync::Arc;

use cenote_format::{Txg, Uberblock};

use crate::alloc::Allocator;
use crate::dataset::change::OBJECT_DIRECTORY;
use crate::object::ObjectSet;
use crate::pipe::ReadContext;
use crate::pool::assemble::PoolCandidate;
use crate::pool::group::{LivePool, MosSource, WriteOptions, last_group, seconds_now};
use crate::pool::{OpenOptions, Pool, labels, supported};
use crate::zap::Zap;
use crate::{Error, Result};

/// Transaction groups beyond which a pool is not written: none has come near by itself.
const LAST_TXG: Txg = Txg(1 << 60);

impl LivePool {
    /// Opens the pool behind `candidate` for reading and writing, and starts writing groups.
    pub fn open(
        candidate: &PoolCandidate,
        options: &OpenOptions,
        write: WriteOptions,
    ) -> Result<Arc<Self>> {
        let options = OpenOptions { writable: true, ..options.clone() };
        let pool = Pool::open(candidate, &options)?;
        Self::over(pool, write)
    }

    /// Starts writing a pool whose devices are open for it.
    pub fn over(pool: Arc<Pool>, write: WriteOptions) -> Result<Arc<Self>> {
        check_maintained(&pool)?;
        let io = pool.io().clone();
        let uberblock = pool.uberblock();
        let mos = ObjectSet::open_live(&io, uberblock.root, ReadContext::default())?;
        let source = Arc::new(MosSource::new(mos.clone()));
        let allocator = Allocator::open(io.pipe.vdev_handle().clone(), source, last_group(&pool))?;
        let live = Self::with(pool, mos, allocator, write)?;
        live.check_host()?;
        live.claim_logs()?;
        live.note_opening();
        live.load_scan()?;
        live.load_deferred();
        live.load_error_scrub()?;
        live.load_errors();
        live.list_errors_to_scrub();
        live.load_rebuilds();
        live.load_sweeps();
        live.settle_frees();
        // What could refuse the pool has not: from here on it is what was opened.
        match live.pool().gone_back() {
            None => labels::spread_uberblock(&live.vdevs(), &uberblock)?,
            Some(back) if uberblock.checkpoint_txg != 0 => {
                let (txg, timestamp) = (back.from, seconds_now().max(back.as_of + back.lost));
                let newest = Uberblock { txg, timestamp, ..uberblock };
                labels::write_checkpoint(&live.vdevs(), &newest)?;
            }
            // What came after does not open.
            Some(_) => {}
        }
        let claimed_sealed = !live.fresh.lock().is_empty();
        live.start()?;
        if claimed_sealed {
            // Nobody may open these sets before what the claim changed in them is on the disks.
            live.sync()?;
        }
        live.mend_vdev_zaps()?;
        live.mend_bootfs()?;
        live.mend_split()?;
        Ok(live)
    }
}

/// Refuses to write pools in which something is kept that this code does not keep up yet.
fn check_maintained(pool: &Pool) -> Result<()> {
    let refuse = |what: &str| {
        let reason = format!("{what}: writing such a pool is not supported yet");
        Err(Error::only_read(reason))
    };
    let txg = last_group(pool);
    if txg > LAST_TXG {
        let reason = format!("the uberblock says that {txg} transaction groups were written");
        return Err(Error::corrupt(reason).with_advice("open the pool read-only"));
    }
    if pool.uberblock().version < 26 {
        return refuse(&format!("the pool has version {}", pool.uberblock().version));
    }
    check_features(pool)
}

/// Refuses to write pools that use a feature which is not known here: it may keep something of what is written.
fn check_features(pool: &Pool) -> Result<()> {
    let mos = pool.mos();
    let features = supported::read(&mos, &Zap::open(mos.object(OBJECT_DIRECTORY)?)?)?;
    let unknown = supported::unknown_in_use(&features, |_| true);
    if unknown.is_empty() {
        return Ok(());
    }
    let reason = format!(
        "unsupported version or feature: it cannot be written without {}",
        unknown.join(", ")
    );
    Err(Error::unsupported(reason).with_advice("import it with '-o readonly=on'"))
}
