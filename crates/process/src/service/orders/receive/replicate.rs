//! Following what the sender of a package destroyed and renamed since the snapshots it starts from.
//!
//! Chapter 07, section 15. Invariant: nothing is destroyed or renamed without `-F`; what has a snapshot that
//! is in the package is never destroyed.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use cenote_control::changes::{DestroyRequest, RenameRequest};
use cenote_control::protocol::Failure;
use cenote_engine::pool::change::SentRoot;

use super::super::destroy::Destroy;
use super::super::promote::Promote;
use super::super::rename::Rename;
use super::super::{Doing, below};
use super::package::{Package, Sent};
use crate::service::datasets::{Datasets, Shown};

/// A dataset that is there, and what of the package it is.
struct Local {
    name: String,
    /// Names and guids of its snapshots.
    snapshots: Vec<(String, u64)>,
}

impl Local {
    /// What it shares with the package begins where that begins, too.
    fn starts_there(&self, package: &Package) -> bool {
        let from = package.from.as_deref();
        self.snapshots.iter().any(|(name, guid)| {
            let known = package.of_snapshot(*guid).map_or(name.as_str(), |(_, name)| name);
            Some(known) == from
        })
    }

    fn sent<'a>(&self, package: &'a Package) -> Option<&'a Sent> {
        self.snapshots.iter().find_map(|(_, guid)| Some(package.of_snapshot(*guid)?.0))
    }
}

/// The datasets at and below `top`.
fn locals(shown: &Shown, top: &str) -> Vec<Local> {
    let mut found: BTreeMap<String, Vec<(String, u64)>> = BTreeMap::new();
    for known in shown.inventory().below(top) {
        let Some(facts) = known.facts() else { continue };
        let name = known.name().to_string();
        match name.split_once('@') {
            None => drop(found.entry(name).or_default()),
            Some((head, snapshot)) => {
                let guid = facts.dataset.phys.guid.0;
                found.entry(head.to_owned()).or_default().push((snapshot.to_owned(), guid));
            }
        }
    }
    found.into_iter().map(|(name, snapshots)| Local { name, snapshots }).collect()
}

/// Destroys below `top` what the package, of the dataset `sent` and all below it, does not have, and
/// renames what has other names in it.
pub(super) fn follow(
    doing: &Doing<'_>,
    package: &Package,
    top: &str,
    sent: &str,
) -> Result<(), Failure> {
    let _turn = doing.service.begin_order();
    promote(doing, package, top)?;
    let shown = doing.shown()?;
    let all = locals(&shown, top);
    let mut gone = Vec::new();
    // What lies below goes before what is above.
    for local in all.iter().rev() {
        let known = local.sent(package);
        if known.is_some() && !local.starts_there(package) {
            // What it starts from must have been destroyed here: nothing follows.
            continue;
        }
        let goes = |(_, guid): &&(String, u64)| package.of_snapshot(*guid).is_none();
        gone.extend(
            local.snapshots.iter().filter(goes).map(|(name, _)| format!("{}@{name}", local.name)),
        );
        if known.is_none() && local.name != top {
            gone.push(local.name.clone());
        }
    }
    if !gone.is_empty() {
        destroy(doing, gone)?;
    }
    for local in &all {
        rename_snapshots(doing, package, local)?;
    }
    rename_datasets(doing, package, &all, (top, sent))
}

/// Promotes what the sender promoted: what has no origin there, or an earlier one than here.
fn promote(doing: &Doing<'_>, package: &Package, top: &str) -> Result<(), Failure> {
    let mut tried = BTreeSet::new();
    loop {
        let shown = doing.shown()?;
        let all = shown.inventory().all().filter_map(|one| Some(&one.facts()?.dataset));
        let all = all.filter(|one| one.is_snapshot());
        let (mut by_id, mut by_guid) = (HashMap::new(), HashMap::new());
        for snapshot in all {
            let taken = snapshot.phys.creation_txg;
            by_id.insert(snapshot.id, (snapshot.phys.guid.0, taken));
            by_guid.entry(snapshot.phys.guid.0).or_insert(taken);
        }
        let is_due = |local: &Local| {
            let own = shown.known(&local.name)?.facts()?.dataset.directory.phys.origin;
            let (guid, taken) = by_id.get(&own)?;
            let sent = local.sent(package)?.origin;
            let is_later = by_guid.get(&sent).map_or(sent == 0, |there| there < taken);
            (*guid != sent && is_later).then_some(())
        };
        let all = locals(&shown, top);
        let next = all.iter().find(|local| !tried.contains(&local.name) && is_due(local).is_some());
        let Some(Local { name, .. }) = next else { return Ok(()) };
        if let Err(failure) = doing.carry_out_too(&Promote(name)) {
            tracing::info!(%failure, name, "not promoted beside what is received");
        }
        tried.insert(name.clone());
        doing.service.publish(doing.pool)?;
    }
}

/// Destroys all of these, or as many of them as go: what something else was cloned from stays, as in OpenZFS.
fn destroy(doing: &Doing<'_>, gone: Vec<String>) -> Result<(), Failure> {
    let request = |names| DestroyRequest { names, force: true, defer: false };
    let mut left = match doing.carry_out_too(&Destroy(&request(gone.clone()))) {
        Ok(_) => Vec::new(),
        Err(_) => gone,
    };
    // What went may have been cloned from what did not go.
    let mut before = usize::MAX;
    while !left.is_empty() && left.len() < before {
        before = left.len();
        let mut stays = Vec::new();
        for name in left {
            if let Err(failure) = doing.carry_out_too(&Destroy(&request(vec![name.clone()]))) {
                tracing::info!(%failure, name, "stays beside what is received");
                stays.push(name);
            }
            doing.service.publish(doing.pool)?;
        }
        left = stays;
    }
    doing.service.publish(doing.pool)
}

/// Snapshots get the names that they have in the package.
fn rename_snapshots(doing: &Doing<'_>, package: &Package, local: &Local) -> Result<(), Failure> {
    let moved = local.snapshots.iter().filter_map(|(name, guid)| {
        let (_, now) = package.of_snapshot(*guid)?;
        (now != name).then(|| (format!("{}@{name}", local.name), format!("{}@{now}", local.name)))
    });
    for (from, to) in moved {
        rename(doing, from, to)?;
    }
    Ok(())
}

/// Datasets get the names that they have in the package, from the top down.
fn rename_datasets(
    doing: &Doing<'_>,
    package: &Package,
    all: &[Local],
    (top, sent): (&str, &str),
) -> Result<(), Failure> {
    for local in all.iter().filter(|local| local.name != top) {
        let Some(rest) = local.sent(package).and_then(|known| below(&known.name, sent)) else {
            continue;
        };
        let to = format!("{top}{rest}");
        let shown = doing.shown()?;
        let above = to.rsplit_once('/').map_or("", |(above, _)| above);
        // What moved with its parent has its name already; what has no place yet is found by its guids.
        if to != local.name && shown.has(&local.name) && !shown.has(&to) && shown.has(above) {
            let renamed = rename(doing, local.name.clone(), to.clone());
            match renamed {
                // It may be on its way out of its encryption root: at the end it has the one it is to have.
                Err(_) if package.is_raw => {
                    let root =
                        SentRoot { dataset: local.name.clone(), is_root: true, location: None };
                    let freed = doing.engine(|live| live.follow_roots(&[root]));
                    freed.map_err(|error| doing.refused(&error))?;
                    rename(doing, local.name.clone(), to)?;
                }
                renamed => renamed?,
            }
        }
    }
    Ok(())
}

fn rename(doing: &Doing<'_>, from: String, to: String) -> Result<(), Failure> {
    let request = RenameRequest { from, to, force: true, ..RenameRequest::default() };
    doing.carry_out_too(&Rename(&request))?;
    doing.service.publish(doing.pool)
}
