//! The beginning of a receive: what is refused, and the head that is filled.
//!
//! Chapter 07, section 12. Invariant: what can be refused is refused before anything is made.

use std::sync::Arc;

use cenote_format::ObjectId;
use cenote_format::dsl_dataset::KEY_REDACTED_DATASETS;
use cenote_format::objset::ObjsetKind;

use super::end::destroy;
use super::{Landing, RawFacts, ReceiveOrder, StreamFacts, TEMPORARY, Target};
use crate::dataset::change::{MosChange, NewDataset, PropertyInput};
use crate::dataset::{Catalog, Dataset, DatasetKind, are_same_snapshots};
use crate::keys::ReceivedSeals;
use crate::pool::change::Encryption;
use crate::pool::group::{LiveDataset, LivePool};
use crate::{Error, ErrorKind, Result};

/// What is said of a stream that splits blocks which its source did not split.
const SPLIT: &str =
    "incremental send stream requires -L (--large-block), to match previous receive.";

/// Features of a dataset that no block of it shows, or not for sure.
const TOLD: [&str; 2] = ["longname", "large_microzap"];

/// The head to be filled, what it takes the place of, bytes received before, and properties that cannot be
/// had.
struct Begun {
    head: ObjectId,
    target: Target,
    bytes: u64,
    refused: Vec<String>,
}

impl Landing {
    /// Begins a receive: makes the head that is filled, in a transaction group.
    ///
    /// # Errors
    /// `NotFound`: no dataset above, or nothing that an incremental stream could start from; `Exists`: the
    /// dataset or its snapshot is there; `Outdated`: the dataset was changed since its newest snapshot;
    /// `Busy`: something is being received into it; `Unsupported`: a feature is not enabled; no space;
    /// `KeyNotLoaded`.
    pub fn begin(live: &Arc<LivePool>, facts: StreamFacts, order: ReceiveOrder) -> Result<Self> {
        let (told, wanted) = (facts.clone(), order.clone());
        let raw = facts.raw.clone().map(|raw| {
            let seals = ReceivedSeals::new(raw.keys.wrapped.version, raw.portable);
            (raw, Arc::new(seals))
        });
        let seals = raw.as_ref().map(|(_, seals)| seals.clone());
        let Begun { head, target, bytes, refused } = live.change(move |live, change| {
            change
                .beyond_limits(wanted.beyond_limits, || begin(live, change, &told, &wanted, seals))
        })?;
        live.claim_received(head)?;
        let opened = live.pool().catalog().dataset_by_id(head).and_then(|dataset| match &raw {
            None => live.open_dataset(&dataset),
            Some(raw) => open_raw(live, &dataset, raw),
        });
        let filled = match opened {
            Ok(filled) => filled,
            Err(error) => {
                live.release_received(head);
                // What was received before this stays, whoever wants to go on with it.
                if !order.resumable && facts.resumed.is_none() {
                    destroy(live, head)?;
                }
                return Err(error);
            }
        };
        Ok(Self {
            live: live.clone(),
            facts,
            order,
            filled,
            target,
            current: None,
            raw,
            reaches: None,
            bytes,
            is_over: false,
            refused,
        })
    }
}

/// What came sealed.
type Seals = Option<Arc<ReceivedSeals>>;

/// Opens a head that is filled with what came sealed.
fn open_raw(
    live: &LivePool,
    dataset: &Dataset,
    (raw, seals): &(RawFacts, Arc<ReceivedSeals>),
) -> Result<Arc<LiveDataset>> {
    let filled = live.open_sealed(dataset, seals.clone())?;
    filled.set().shape_sealed(0, raw.last_dnode_block, raw.checksum, raw.compression)?;
    Ok(filled)
}

fn begin(
    live: &LivePool,
    change: &MosChange<'_>,
    facts: &StreamFacts,
    order: &ReceiveOrder,
    seals: Seals,
) -> Result<Begun> {
    for feature in &facts.features {
        if !change.is_enabled(feature)? {
            let reason = format!("the feature '{feature}' is not enabled");
            return Err(Error::unsupported(reason).with_advice("see 'zpool upgrade'"));
        }
    }
    let catalog = change.catalog()?;
    let found = match catalog.dataset_named(&order.dataset) {
        Ok(found) => Some(found),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    if facts.resumed.is_some() {
        return go_on(change, &catalog, facts, found);
    }
    match found {
        Some(head) => begin_over(live, change, facts, order, &head),
        None => begin_new(live, change, &catalog, (facts, order), seals),
    }
}

/// Activates the features that only the stream tells of; the blocks and dnodes show the others.
fn activate_told(change: &MosChange<'_>, facts: &StreamFacts, head: ObjectId) -> Result<()> {
    let told = facts.features.iter().filter(|feature| TOLD.contains(feature));
    told.into_iter().try_for_each(|feature| change.activate_feature(head, feature))
}

/// Makes a new dataset.
fn begin_new(
    live: &LivePool,
    change: &MosChange<'_>,
    catalog: &Catalog,
    (facts, order): (&StreamFacts, &ReceiveOrder),
    seals: Seals,
) -> Result<Begun> {
    let whole = &order.dataset;
    let (parent, name) =
        whole.rsplit_once('/').ok_or_else(|| Error::not_found("dataset does not exist"))?;
    let above = catalog.directory(parent)?;
    change.check_filesystem_limit(above.id, 1)?;
    let mut new = NewDataset {
        parent: above.id,
        name,
        creator: order.creator,
        properties: &order.local,
        case_insensitive: facts.case_insensitive,
        ..NewDataset::default()
    };
    let mut local = order.local.clone();
    if let (Some(raw), None) = (&facts.raw, &order.origin) {
        new.keys = Some(raw.keys.clone());
        if local.iter().all(|input| input.name != "keylocation") {
            local.push(PropertyInput::text("keylocation", "prompt"));
        }
        new.properties = &local;
    }
    let made = match &order.origin {
        Some(origin) => {
            let origin = catalog.dataset_named(origin)?;
            check_kind(catalog, facts, &origin)?;
            check_raw(change, catalog, facts, &origin)?;
            check_large_blocks(catalog, facts, &origin)?;
            check_redacted(catalog, facts, &origin)?;
            if facts.from.0 != 0 && origin.phys.guid != facts.from {
                return Err(no_source());
            }
            new.origin = Some(origin.id);
            live.clone_dataset(change, &new)?
        }
        None if facts.from.0 != 0 => return Err(no_source()),
        None if let Some(seals) = seals => {
            live.make_sealed_dataset(change, &new, facts.kind, seals)?
        }
        None => {
            let encryption = &order.encryption;
            live.make_encrypted_dataset(change, &new, encryption, facts.kind, |_, _| Ok(()))?
        }
    };
    activate_told(change, facts, made.dataset)?;
    let refused = order.store_received(change, made.dataset, facts.dataset_kind())?;
    let resume = order.resumable.then(|| facts.resume_facts());
    change.set_redacted(made.dataset, facts.redacted.as_deref())?;
    change.begin_receive(made.dataset, resume.as_ref())?;
    Ok(Begun { head: made.dataset, target: Target::Itself, bytes: 0, refused })
}

/// Makes what will take the place of `head`.
fn begin_over(
    live: &LivePool,
    change: &MosChange<'_>,
    facts: &StreamFacts,
    order: &ReceiveOrder,
    head: &Dataset,
) -> Result<Begun> {
    let busy = |reason: &str| Err(Error::new(ErrorKind::Busy, reason));
    if head.phys.is_inconsistent() || has_temporary(&change.catalog()?, head)? {
        return busy("something was received into it in part");
    }
    if change.catalog()?.snapshot(head, &order.snapshot).is_ok() {
        return Err(Error::new(ErrorKind::Exists, "the snapshot exists"));
    }
    let new = NewDataset {
        parent: head.directory.id,
        name: TEMPORARY,
        case_insensitive: facts.case_insensitive,
        ..NewDataset::default()
    };
    let (made, from) = if facts.from.0 != 0 {
        check_kind(&change.catalog()?, facts, head)?;
        let from = change.snapshot_with_guid(head.id, facts.from)?.ok_or_else(no_source)?;
        let catalog = change.catalog()?;
        let source = catalog.dataset_by_id(from)?;
        check_raw(change, &catalog, facts, &source)?;
        check_large_blocks(&catalog, facts, &source)?;
        check_redacted(&catalog, facts, &source)?;
        let from = match order.force {
            true => from,
            false => unchanged_since(change, head, from, facts.raw.is_some())?,
        };
        let new = NewDataset { origin: Some(from), ..new };
        (live.clone_dataset(change, &new)?.dataset, Some(from))
    } else {
        (replacement(live, change, facts, order, head, &new)?, None)
    };
    activate_told(change, facts, made)?;
    let resume = order.resumable.then(|| facts.resume_facts());
    change.set_redacted(made, facts.redacted.as_deref())?;
    change.begin_receive(made, resume.as_ref())?;
    let target = Target::Head { head: head.id, from };
    Ok(Begun { head: made, target, bytes: 0, refused: Vec::new() })
}

/// Refuses a head that has changed since its snapshot `from`; its newest snapshot, which has the same content.
/// What is received raw has initialisation vectors of one snapshot: there that has to be the newest.
fn unchanged_since(
    change: &MosChange<'_>,
    head: &Dataset,
    from: ObjectId,
    is_raw: bool,
) -> Result<ObjectId> {
    let newest = head.phys.previous_snapshot;
    let is_changed = change.is_modified_since(head.id, from)?
        || newest != from && (is_raw || change.is_modified_since(newest, from)?);
    match is_changed {
        true => {
            let reason = "the dataset has been modified since its most recent snapshot";
            Err(Error::new(ErrorKind::Outdated, reason))
        }
        false => Ok(newest),
    }
}

/// Makes the empty head that a full stream fills to take the place of `head`.
fn replacement(
    live: &LivePool,
    change: &MosChange<'_>,
    facts: &StreamFacts,
    order: &ReceiveOrder,
    head: &Dataset,
    new: &NewDataset<'_>,
) -> Result<ObjectId> {
    let catalog = change.catalog()?;
    if !order.force {
        return Err(Error::new(ErrorKind::Exists, "dataset already exists"));
    }
    if !catalog.snapshots(head)?.is_empty() || catalog.origin(&head.directory)?.is_some() {
        let reason = "a dataset with snapshots, or a clone, is not replaced";
        return Err(Error::new(ErrorKind::Exists, reason));
    }
    if facts.raw.is_some() || catalog.key_object(&head.directory)?.is_some() {
        let reason =
            "a full stream that takes the place of an encrypted dataset is not supported yet";
        return Err(Error::unsupported(reason));
    }
    // Nothing lies below a volume, and no pool's root is one.
    let is_root = head.directory.phys.parent.0 == 0;
    if facts.kind == ObjsetKind::Zvol && (is_root || catalog.walk(&head.directory)?.len() > 1) {
        let reason = "a volume does not take the place of a pool's root or of what has children";
        return Err(Error::new(ErrorKind::Exists, reason));
    }
    let encryption = Encryption::Off;
    let made = live.make_encrypted_dataset(change, new, &encryption, facts.kind, |_, _| Ok(()))?;
    Ok(made.dataset)
}

/// Refuses a stream of a volume that starts from a filesystem, and one of a filesystem that starts from a volume.
fn check_kind(catalog: &Catalog, facts: &StreamFacts, from: &Dataset) -> Result<()> {
    match (catalog.kind(from)?, facts.dataset_kind()) {
        (DatasetKind::Volume, DatasetKind::Filesystem) => {
            Err(Error::invalid("a filesystem does not start from a volume"))
        }
        (DatasetKind::Filesystem, DatasetKind::Volume) => {
            Err(Error::invalid("a volume does not start from a filesystem"))
        }
        _ => Ok(()),
    }
}

/// Refuses a raw stream that starts from what is not sealed with its keys, and one that is not raw where the
/// source only came so.
fn check_raw(
    change: &MosChange<'_>,
    catalog: &Catalog,
    facts: &StreamFacts,
    from: &Dataset,
) -> Result<()> {
    let Some(raw) = &facts.raw else { return Ok(()) };
    if !is_sealed_with(catalog, from, raw)? {
        return Err(Error::invalid("the raw stream has other keys than what it starts from"));
    }
    match (raw.from_ivset, change.ivset(from.id)?.unwrap_or(0)) {
        (0, _) => Err(Error::invalid("the raw stream does not say the IV set of its source")),
        (source, known) if source == known => Ok(()),
        _ => Err(Error::invalid(
            "the IV set of the stream's source is not that of its snapshot here",
        )),
    }
}

/// Whether `dataset` is sealed with the keys of the raw stream.
fn is_sealed_with(catalog: &Catalog, dataset: &Dataset, raw: &RawFacts) -> Result<bool> {
    let key = catalog.key_object(&dataset.directory)?;
    Ok(key.is_some_and(|key| key.wrapped.guid == raw.keys.wrapped.guid))
}

/// Refuses a stream that splits large blocks where its source came with them: files would have other blocks.
fn check_large_blocks(catalog: &Catalog, facts: &StreamFacts, from: &Dataset) -> Result<()> {
    let feature = cenote_format::feature::by_name("large_blocks");
    let has = catalog.dataset_features(from)?;
    let is_large = feature.is_some_and(|feature| has.contains(&feature.guid));
    match is_large && !facts.large_blocks {
        true => Err(Error::new(ErrorKind::Unsupported, SPLIT)),
        false => Ok(()),
    }
}

/// Refuses a stream that counts on blocks which `from`, received redacted, has not.
fn check_redacted(catalog: &Catalog, facts: &StreamFacts, from: &Dataset) -> Result<()> {
    let Some(lacking) = catalog.dataset_fields(from, KEY_REDACTED_DATASETS)? else {
        return Ok(());
    };
    // A whole stream counts on nothing.
    if facts.from.0 == 0 && facts.redacted.is_none() {
        return Ok(());
    }
    let are_there = |guids: &Vec<u64>| guids.iter().all(|guid| lacking.contains(guid));
    let fits = match (&facts.redacted_from, &facts.redacted) {
        (Some(from), _) => are_there(from),
        (None, Some(guids)) => are_there(guids),
        (None, None) => lacking.contains(&facts.to.0),
    };
    match fits {
        true => Ok(()),
        false => Err(Error::invalid(
            "what the stream starts from was received redacted, and lacks what the stream counts on",
        )),
    }
}

/// Goes on where a receive was cut off.
fn go_on(
    change: &MosChange<'_>,
    catalog: &Catalog,
    facts: &StreamFacts,
    found: Option<Dataset>,
) -> Result<Begun> {
    let none = || Error::not_found("no receive was cut off here").with_advice("begin anew");
    let head = found.ok_or_else(none)?;
    let (filled, target) = match change.resume_point(head.id)? {
        Some(_) => (head, Target::Itself),
        None => {
            let directory = catalog.child(&head.directory, TEMPORARY).map_err(|_| none())?;
            let filled = catalog.head(&directory)?;
            let from = match facts.from.0 {
                0 => None,
                _ => Some(filled.phys.previous_snapshot),
            };
            (filled, Target::Head { head: head.id, from })
        }
    };
    let (known, point) = change.resume_point(filled.id)?.ok_or_else(none)?;
    let is_next = facts.resumed == Some((point.object, point.offset));
    // Redacted otherwise, it would lack more than what is recorded, or less.
    let lacking = catalog.dataset_fields(&filled, KEY_REDACTED_DATASETS)?;
    let is_redacted_so = are_same_snapshots(lacking.as_deref(), facts.redacted.as_deref())
        && are_same_snapshots(known.redacted_from.as_deref(), facts.redacted_from.as_deref());
    if facts.from.0 != 0 {
        let source = catalog.dataset_by_id(filled.phys.previous_snapshot)?;
        check_redacted(catalog, facts, &source)?;
    }
    if known.to != facts.to || known.from != facts.from || !is_next || !is_redacted_so {
        let reason = "the stream does not go on where the receive was cut off";
        return Err(Error::invalid(reason).with_advice("send with the present token"));
    }
    // A snapshot of the same guid elsewhere, say in a copy that was not received raw, is sealed otherwise.
    if let Some(raw) = &facts.raw
        && !is_sealed_with(catalog, &filled, raw)?
    {
        let reason = "the raw stream has other keys than what was received before it was cut off";
        let advice = "send the snapshot that it began with, or begin anew after 'zfs receive -A'";
        return Err(Error::invalid(reason).with_advice(advice));
    }
    Ok(Begun { head: filled.id, target, bytes: point.bytes, refused: Vec::new() })
}

fn has_temporary(catalog: &Catalog, head: &Dataset) -> Result<bool> {
    match catalog.child(&head.directory, TEMPORARY) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn no_source() -> Error {
    Error::not_found("there is no snapshot that the stream starts from")
}
