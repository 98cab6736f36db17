//! `zfs send --saved`: what was received in part goes on to somewhere else.
//!
//! Chapter 07, sections 5 and 10. Invariant: nobody goes on with what is sent, or gives it up, before it is.

use std::sync::Arc;

use cenote_control::protocol::{Failure, FailureKind, Part};
use cenote_engine::dataset::{Catalog, Dataset, DatasetName};
use cenote_engine::pool::group::LivePool;
use cenote_engine::send::{Options, Since, resumed_options, resumed_source};
use cenote_format::{Guid, NvList, ObjectId};

use super::super::Doing;
use super::plan::{Plan, Stream};
use super::resume::{Resumed, contents};

/// The start of refusals.
const START: &str = "saved send failed";

/// Plans a stream of what was received in part into the dataset `name`.
pub(super) fn plan(
    doing: &Doing<'_>,
    catalog: &Catalog,
    name: &str,
    told: bool,
) -> Result<Resumed, Failure> {
    let refuse = |kind, reason: &str| Failure::new(kind, format!("{START}: {reason}"));
    let head = catalog.dataset_named(name).map_err(|error| doing.refused(&error))?;
    let found = catalog.received_in_part(&head).map_err(|error| doing.refused(&error))?;
    let none =
        || refuse(FailureKind::NotFound, &format!("'{name}' has no partially received state"));
    let (mut to, list) = found.ok_or_else(none)?;
    let (Some(of), Some(guid)) = (list.string("toname"), list.u64("toguid")) else {
        return Err(refuse(FailureKind::Other, "dataset's resume token is corrupt"));
    };
    if list.flag("rawok") {
        let reason = "sending what was received raw in part is not supported yet";
        return Err(refuse(FailureKind::NotSupported, reason));
    }
    if told {
        doing.replies.part(Part::Said(contents(&from_the_beginning(&list, name))))?;
    }
    let (mut since, mut before, mut shown) = (None, None, None);
    if let Some(from) = list.u64("fromguid") {
        let found = resumed_source(catalog, &to, from, list.u64_array("book_redact_snaps"));
        let gone = || {
            let reason = format!("incremental source {from:#x} no longer exists");
            refuse(FailureKind::Other, &reason)
        };
        let (point, from) = found.map_err(|error| doing.refused(&error))?.ok_or_else(gone)?;
        // Beside its dataset it is a clone for the moment only.
        let is_origin = point.is_origin && from.path() != name;
        since = Some(Since { is_origin, ..point });
        (shown, before) = (Some(from.to_string()), Some(from));
    }
    to.name = DatasetName::parse(name).map_err(|error| doing.refused(&error))?;
    let rest = resumed_options(&list);
    let options = Options { resume: None, saved: rest.resume, ..rest };
    let part_of = Some((of.to_owned(), Guid(guid)));
    let streams = vec![Stream { to, since, before, shown }];
    Ok(Resumed { plan: Plan { streams, part_of, ..Plan::default() }, options })
}

/// The list of a token, as if nothing had been received.
fn from_the_beginning(list: &NvList, name: &str) -> NvList {
    let replaced = ["object", "offset", "bytes", "toname"];
    let mut all = NvList::new();
    for pair in
        list.into_iter().filter(|pair| !replaced.iter().any(|own| own.as_bytes() == &*pair.name))
    {
        all.push(&pair.name, pair.value.clone());
    }
    ["object", "offset", "bytes"].iter().for_each(|key| all.push(key, 0_u64));
    all.push("toname", name);
    all
}

/// Keeps others from a head that was received in part, as long as it lives.
pub(super) struct Claim(Arc<LivePool>, ObjectId);

impl Claim {
    /// Of that head; none where nothing is received because the pool is only read.
    pub(super) fn of(doing: &Doing<'_>, head: &Dataset) -> Result<Option<Self>, Failure> {
        let Ok(live) = doing.service.changes.live() else { return Ok(None) };
        live.claim_received(head.id).map_err(|error| doing.refused(&error))?;
        let claim = Self(live.clone(), head.id);
        let now = doing.pool.catalog().dataset_by_id(head.id);
        let now = now.map_err(|error| doing.refused(&error))?;
        match now.phys.pointer == head.phys.pointer {
            true => Ok(Some(claim)),
            // Somebody went on with it since it was looked up.
            false => Err(doing.refuse(FailureKind::Busy, "dataset is busy")),
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.release_received(self.1);
    }
}
