//! The pool's history as the report has it.
//!
//! Invariant: everything before the first record that cannot be read is shown.

use cenote_control::report::HistoryRecord;
use cenote_engine::pool::Pool;
use cenote_engine::pool::history::{History, listed};
use cenote_engine::{Error, Result};
use cenote_format::history::key;
use cenote_format::nvlist::NvList;

use cenote_control::principal;

/// Every record, oldest first. A record that cannot be read ends the list.
pub fn records(pool: &Pool) -> Result<Vec<HistoryRecord>> {
    let mut out = Vec::new();
    for record in History::open(&pool.catalog())? {
        match record {
            Ok(record) => out.push(convert(&record.fields)),
            Err(error) if out.is_empty() => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "the history ends early");
                break;
            }
        }
    }
    Ok(out)
}

fn convert(list: &NvList) -> HistoryRecord {
    let text = |name: &str| list.string_lossy(name);
    let signed = |name: &str| list.u64(name).and_then(|number| i64::try_from(number).ok());
    let dataset = match (text(key::DATASET_NAME), list.u64(key::DATASET_ID)) {
        (Some(name), Some(id)) => Some((name, id)),
        _ => None,
    };
    HistoryRecord {
        time: signed(key::TIME).unwrap_or(0),
        command: text(key::COMMAND),
        ioctl: text(key::IOCTL),
        internal_name: text(key::INTERNAL_NAME),
        internal_text: text(key::INTERNAL_TEXT),
        internal_number: list.u64(key::INTERNAL_EVENT),
        dataset,
        txg: list.u64(key::TXG),
        elapsed_nanoseconds: list.i64(key::ELAPSED).and_then(|n| u64::try_from(n).ok()),
        input: list.nvlist(key::INPUT).map(listed),
        output: list.nvlist(key::OUTPUT).map(listed),
        error_number: list.i64(key::ERRNO),
        who: list.u64(key::WHO),
        user: list.u64(key::WHO).and_then(|who| principal::name(principal::Who::User, who)),
        host: text(key::HOSTNAME),
        zone: text(key::ZONE),
    }
}

/// What to say when the history cannot be read.
pub fn failure(error: &Error) -> String {
    format!("cannot get history: {error}")
}
