//! `zfs send` of a filesystem or volume itself: of what it holds now.
//!
//! Chapter 07, section 5. Invariant: nobody changes what is sent (`now`). The stream says that it is of the
//! dataset.

use cenote_control::protocol::{Failure, FailureKind};
use cenote_engine::dataset::{Catalog, Dataset, resume_token};

use super::super::now::Now;
use super::super::{Doing, SUSPENDED};
use super::plan::Plan;

/// What streams have behind the name of a dataset that is sent itself.
const HEAD: &str = "@--head--";

/// A dataset that is sent itself.
pub(super) struct Head<'a> {
    now: Now<'a>,
    head: Dataset,
}

impl<'a> Head<'a> {
    /// The dataset `name`.
    pub(super) fn of(doing: &'a Doing<'a>, name: &str) -> Result<Self, Failure> {
        if doing.service.changes.suspended().is_some() {
            return Err(doing.refuse(FailureKind::Other, SUSPENDED));
        }
        let changes = &doing.service.changes;
        if let Some(reason) = changes.refusal().filter(|_| !changes.is_only_read()) {
            return Err(doing.refuse(FailureKind::ReadOnly, &reason));
        }
        if doing.service.mounts.of(name).is_some() {
            let why = "target is busy; if a filesystem, it must not be mounted";
            return Err(doing.refuse(FailureKind::Busy, why));
        }
        let head = doing.pool.catalog().dataset_named(name);
        let head = head.map_err(|error| doing.refused(&error))?;
        Ok(Self { now: Now::taken(doing, name, "zfs-send")?, head })
    }

    /// The dataset that the stream of a token is of, if it is of one itself that is there still.
    pub(super) fn of_token(doing: &'a Doing<'a>, token: &str) -> Result<Option<Self>, Failure> {
        let Ok(list) = resume_token::decode(token) else { return Ok(None) };
        let Some(name) = list.string("toname").and_then(|name| name.strip_suffix(HEAD)) else {
            return Ok(None);
        };
        let found = doing.pool.catalog().dataset_named(name).ok();
        let is_it = found.is_some_and(|head| Some(head.phys.guid.0) == list.u64("toguid"));
        is_it.then(|| Self::of(doing, name)).transpose()
    }

    /// What is read for it.
    pub(super) fn name(&self) -> &str {
        &self.now.name
    }

    /// The same.
    pub(super) fn snapshot(&self, catalog: &Catalog) -> cenote_engine::Result<Dataset> {
        catalog.dataset_named(&self.now.name)
    }

    /// What is planned for the snapshot is of the dataset.
    pub(super) fn stands_in(&self, mut plan: Plan) -> Plan {
        let name = &self.head.name;
        plan.streams.iter_mut().for_each(|stream| stream.to.name = name.clone());
        Plan { part_of: Some((format!("{name}{HEAD}"), self.head.phys.guid)), ..plan }
    }
}
