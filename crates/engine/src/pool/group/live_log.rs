//! The intent log of a dataset open for writing.
//!
//! Invariant: what an earlier life of the pool left in the log is known to it from the beginning.

use std::sync::Arc;

use cenote_format::ObjectId;
use cenote_format::zil::Header;

use super::LivePool;
use crate::Result;
use crate::intent::{
    DataWriter, IntentLog, LogCipher, LogSpace, PoolLog, PoolLogReader, SetSource, SharedPolicy,
    WriteSource,
};
use crate::keys::DatasetKeys;
use crate::object::ObjectSet;

/// The log of one dataset.
pub(in crate::pool) struct LiveLog {
    pub(in crate::pool) log: Arc<IntentLog>,
    pub(in crate::pool) pool: Arc<PoolLog>,
    /// What of an old log cannot be read or replayed is given up.
    accepts_losses: bool,
    /// Where data of writes comes from until a door has a better source.
    _source: Arc<dyn WriteSource>,
}

impl LiveLog {
    /// Reads what an earlier life of the pool left, for the object set `set`.
    pub(in crate::pool) fn reader(&self, set: &ObjectSet) -> PoolLogReader {
        PoolLogReader {
            io: set.io().clone(),
            context: set.context().clone(),
            accepts_losses: self.accepts_losses,
        }
    }
}

impl LivePool {
    /// The log of the head `id`, whose set is `set`, written by `policy`; encrypted with its keys if it has any.
    pub(in crate::pool) fn open_log(
        &self,
        id: ObjectId,
        set: &ObjectSet,
        policy: SharedPolicy,
        keys: Option<Arc<DatasetKeys>>,
    ) -> Result<LiveLog> {
        let header = Header::decode(&set.zil_header())?;
        let data =
            DataWriter { workers: self.workers.clone(), rules: self.shared_rules.clone(), policy };
        let (gate, allocator) = (self.gate.clone(), self.allocator.clone());
        let space =
            LogSpace { allocator, runway: self.runway.clone(), promises: self.promises.clone() };
        let pool = PoolLog::new(gate, space, self.io.clone(), data, set.clone());
        let cipher = keys.map(|keys| keys as Arc<dyn LogCipher>);
        let log = Arc::new(IntentLog::new(pool.clone(), id.0, header, cipher));
        let source: Arc<dyn WriteSource> = Arc::new(SetSource(set.clone()));
        log.set_source(Arc::downgrade(&source));
        let accepts_losses = self.options.accepts_log_losses;
        Ok(LiveLog { log, pool, accepts_losses, _source: source })
    }
}
