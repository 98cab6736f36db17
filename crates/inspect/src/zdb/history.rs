//! `zdb -h`: the pool's history.
//!
//! Chapter 06, section 3.4. Invariant: records come oldest first; twice `-h` shows every field.

use std::sync::Arc;

use cenote_control::text::time;
use cenote_engine::Error;
use cenote_engine::pool::Pool;
use cenote_engine::pool::history::{History, Kind};
use serde_json::{Value, json};

use super::render;
use super::sink::Sink;

/// Every record; commands alone unless `detail` is above 1.
pub fn show(pool: &Arc<Pool>, detail: u8, sink: &mut Sink) -> Result<(), Error> {
    let history = History::open(&pool.catalog())?;
    sink.line("\nHistory:");
    if history.lost() > 0 {
        sink.line(format_args!("({} records were overwritten)", history.lost()));
    }
    let lost = history.lost();
    let mut told = Vec::new();
    for record in history {
        if sink.is_closed() {
            break;
        }
        let record = match record {
            Ok(record) => record,
            Err(error) => {
                sink.complain();
                sink.line(format_args!("(the rest is unreadable: {error})"));
                told.push(json!({ "error": error.to_string() }));
                break;
            }
        };
        if sink.is_json() {
            let mut value = render::nvlist(&record.fields);
            if let Value::Object(map) = &mut value {
                map.insert("time_text".into(), json!(time::history(record.time().cast_signed())));
            }
            told.push(value);
        } else if detail > 1 || record.kind() == Kind::Command {
            let when = time::history(record.time().cast_signed());
            sink.line(record.text(&when, detail > 1, &|_| None));
        }
        if detail > 2 && !sink.is_json() {
            sink.line(render::text(&render::nvlist(&record.fields), 1).trim_end());
        }
    }
    sink.json("history", json!({ "lost": lost, "records": told }));
    Ok(())
}
