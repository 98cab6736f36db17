//! What a pool's own metadata tells of it, read from the devices of a candidate without opening it.
//!
//! Invariant: nothing is believed but blocks whose checksums matched; what cannot be read is told by
//! [`Trusted::failure`], and the rest is left empty. Chapter 01, section 11.4, stages B to D.

use std::sync::Arc;

use cenote_format::config::{PoolConfig, VdevConfig};
use cenote_format::scan_state::{ScanFunction, ScanPhase, ScanState};
use cenote_format::{NvList, ObjectId, Txg};

use super::assemble::{PoolCandidate, correct_paths};
use super::choose::Choice;
use super::inspect::Trusted;
use super::leaves::CandidateLeaves;
use super::{packed, removed, supported};
use crate::object::ObjectSet;
use crate::pipe::{Pipe, PoolIo, Prefetcher};
use crate::vdev::{AllocationClass, VdevTree};
use crate::zap::{Value, Zap};
use crate::{Error, Result};

/// Bytes of blocks kept in memory while looking.
const CACHE: u64 = 16 << 20;
/// Largest packed list that is believed, in bytes.
const MAX_LIST: u64 = 64 << 20;

/// Reads what the metadata of `candidate` tells, at the uberblock of `choice`. Fails only if not even
/// the configuration can be read.
pub fn read_metadata(candidate: &PoolCandidate, choice: &Choice) -> Result<Trusted> {
    let tree = VdevTree::build(&candidate.tree, CandidateLeaves::new(candidate))?;
    tree.set_reflow_word(choice.best.reflow.0);
    let pipe = Pipe::new(Arc::new(tree), CACHE);
    let io = Arc::new(PoolIo { pipe, prefetcher: Prefetcher::new(0) });
    let mos = ObjectSet::open(&io, choice.best.root, 0, None)?;
    let directory = Zap::open(mos.object(ObjectId(1))?)?;
    let config = directory.require_u64("config")?;
    let config = PoolConfig::from_nvlist(packed::read(&mos, ObjectId(config), MAX_LIST)?)?;
    let mut tree = config
        .vdev_tree
        .clone()
        .ok_or_else(|| Error::corrupt("the pool's configuration has no vdev tree"))?;
    correct_paths(&mut tree, &candidate.devices);
    let mut trusted = Trusted { config, ..Trusted::default() };
    let leaves =
        CandidateLeaves::trusted(&candidate.known_as(&trusted.config), Some(choice.best.txg));
    let vdevs = VdevTree::build(&tree, leaves)?;
    vdevs.set_reflow_word(choice.best.reflow.0);
    io.pipe.vdev_handle().exchange(Arc::new(vdevs));
    if let Err(error) = read_rest(&io, &mos, &directory, &tree, choice.best.txg, &mut trusted) {
        trusted.failure = Some(error.to_string());
    }
    Ok(trusted)
}

fn read_rest(
    io: &Arc<PoolIo>,
    mos: &ObjectSet,
    directory: &Zap,
    tree: &VdevConfig,
    last: Txg,
    trusted: &mut Trusted,
) -> Result<()> {
    removed::load_mappings(&io.pipe.vdevs(), mos)?;
    for feature in supported::read(mos, directory)? {
        let list = if feature.for_write {
            &mut trusted.features.for_write
        } else {
            &mut trusted.features.for_read
        };
        list.push((feature.guid, feature.references));
    }
    if let Some(number) = directory.lookup_u64("feature_descriptions")? {
        for entry in Zap::open(mos.object(ObjectId(number))?)?.entries() {
            let entry = entry?;
            let name = String::from_utf8_lossy(entry.name()).into_owned();
            trusted.features.descriptions.push((name, text(&entry.value)));
        }
    }
    super::group::load_missed(&io.pipe.vdevs(), mos, last);
    trusted.missed = io.pipe.vdevs().missed();
    trusted.spares = read_list(mos, directory, "spares")?;
    trusted.caches = read_list(mos, directory, "l2cache")?;
    for (id, top) in (0..).zip(tree.children()) {
        if let Some(zap) = top.top_zap
            && let Some(class) = read_class(mos, zap)?
        {
            trusted.classes.insert(id, class);
        }
    }
    if let Some(value) = directory.lookup(b"scan")? {
        let words = value.as_u64s().unwrap_or_default();
        // A record of an unknown shape says nothing of how the pool can be imported.
        trusted.resilvering = ScanState::from_words(&words).is_ok_and(|scan| {
            scan.function == ScanFunction::Resilver && scan.phase == ScanPhase::Scanning
        });
    }
    Ok(())
}

fn read_list(mos: &ObjectSet, directory: &Zap, name: &str) -> Result<Vec<VdevConfig>> {
    let Some(number) = directory.lookup_u64(name)? else { return Ok(Vec::new()) };
    let list: NvList = packed::read(mos, ObjectId(number), MAX_LIST)?;
    let nodes = list.nvlist_array(name).unwrap_or_default();
    Ok(nodes.iter().map(VdevConfig::from_nvlist).collect::<Result<_, _>>()?)
}

/// What a top-level vdev is set aside for, by its ZAP; `None` for ordinary data.
pub(super) fn read_class(mos: &ObjectSet, zap: ObjectId) -> Result<Option<AllocationClass>> {
    let zap = Zap::open(mos.object(zap)?)?;
    let Some(value) = zap.lookup(b"org.zfsonlinux:allocation_bias")? else { return Ok(None) };
    Ok(match text(&value).as_str() {
        "log" => Some(AllocationClass::Log),
        "special" => Some(AllocationClass::Special),
        "dedup" => Some(AllocationClass::Dedup),
        _ => None,
    })
}

fn text(value: &Value) -> String {
    String::from_utf8_lossy(value.as_c_string().unwrap_or_default()).into_owned()
}
