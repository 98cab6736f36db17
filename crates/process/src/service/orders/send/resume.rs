//! `zfs send -t`: going on where a receive was cut off.
//!
//! Chapter 07, section 10. Invariant: what is sent has the guid that the token says, whatever it is called now.

use cenote_control::protocol::{Failure, FailureKind, Part};
use cenote_engine::ErrorKind;
use cenote_engine::dataset::{Catalog, resume_token};
use cenote_engine::send::{Options, Redaction, resumed_options, resumed_snapshot, resumed_source};
use cenote_format::NvList;
use cenote_format::nvlist::Value;

use super::super::Doing;
use super::head::Head;
use super::plan::{Plan, Stream};

/// What a token asks for.
pub(super) struct Resumed {
    pub(super) plan: Plan,
    pub(super) options: Options,
}

/// Plans the rest of a stream.
pub(super) fn plan(
    doing: &Doing<'_>,
    catalog: &Catalog,
    token: &str,
    head: Option<&Head<'_>>,
    told: bool,
) -> Result<Resumed, Failure> {
    let refuse = |reason: &str| doing.refuse(FailureKind::Other, reason);
    let list = resume_token::decode(token)
        .map_err(|error| refuse(&format!("resume token is corrupt ({})", error.reason())))?;
    let (Some(name), Some(guid)) = (list.string("toname"), list.u64("toguid")) else {
        return Err(refuse("resume token is corrupt (it names no snapshot)"));
    };
    let pool = name.split(['/', '@']).next().unwrap_or_default();
    if pool != doing.pool.name() {
        // Another pool's process is asked by the command.
        return Err(doing.refuse(FailureKind::NotFound, &format!("'{pool}' is another pool")));
    }
    if told {
        doing.replies.part(Part::Said(contents(&list)))?;
    }
    let to = match head {
        Some(head) => head.snapshot(catalog),
        None => resumed_snapshot(catalog, name, guid),
    };
    let to = to.map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            refuse(&format!("'{name}' used in the initial send no longer exists"))
        }
        ErrorKind::Outdated => {
            refuse(&format!("'{name}' is no longer the same snapshot used in the initial send"))
        }
        _ => doing.refused(&error),
    })?;
    let (mut since, mut before, mut shown) = (None, None, None);
    // What is left out is not to be sent because a list cannot be read.
    let guids = |key: &str| match (list.get(key), list.u64_array(key)) {
        (Some(_), None) => Err(refuse(&format!("resume token is corrupt ('{key}')"))),
        (_, guids) => Ok(guids),
    };
    if let Some(from) = list.u64("fromguid") {
        let gone = || refuse(&format!("incremental source {from:#x} no longer exists"));
        let found = resumed_source(catalog, &to, from, guids("book_redact_snaps")?);
        let found = found.map_err(|error| doing.refused(&error))?;
        let (point, name) = found.ok_or_else(gone)?;
        (since, shown, before) = (Some(point), Some(name.to_string()), Some(name));
    }
    let redaction =
        match guids("redact_snaps")? {
            Some(guids) => Some(Redaction::of_snapshots(catalog, &to, guids).map_err(|error| {
                match error.kind() {
                    ErrorKind::NotFound | ErrorKind::InvalidArgument => refuse(error.reason()),
                    _ => doing.refused(&error),
                }
            })?),
            None => None,
        };
    let options = resumed_options(&list);
    let streams = vec![Stream { to, since, before, shown }];
    Ok(Resumed { plan: Plan { streams, redaction, ..Plan::default() }, options })
}

/// The lines of a list, as OpenZFS prints lists.
pub(super) fn contents(list: &NvList) -> Vec<String> {
    let mut lines = vec!["resume token contents:".to_owned(), "nvlist version: 0".to_owned()];
    for pair in list {
        let name = String::from_utf8_lossy(&pair.name);
        let value = match &pair.value {
            Value::Uint64(number) => format!("{number:#x}"),
            Value::String(text) => String::from_utf8_lossy(text).into_owned(),
            Value::Boolean => "1".to_owned(),
            Value::Uint64Array(numbers) => {
                let numbers: Vec<String> = numbers.iter().map(|one| format!("{one:#x}")).collect();
                numbers.join(" ")
            }
            other => format!("{other:?}"),
        };
        lines.push(format!("\t{name} = {value}"));
    }
    lines
}
