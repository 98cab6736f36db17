//! Which features a pool uses, and whether that lets us read it.
//!
//! Chapter 01, sections 11.6 and 16. Invariant: a pool with an active feature that we do not know
//! and that is not read-only compatible is refused, the feature named.

use cenote_format::{ObjectId, feature};

use crate::object::ObjectSet;
use crate::pipe::Pipe;
use crate::zap::Zap;
use crate::{Error, Result};

/// A feature the pool has enabled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolFeature {
    /// Its guid, e.g. `org.openzfs:draid`.
    pub guid: String,
    /// Users of it; 0 is enabled but not active.
    pub references: u64,
    /// Needed for writing only.
    pub for_write: bool,
}

/// The features enabled in a pool; none before version 5000.
pub fn read(mos: &ObjectSet, directory: &Zap) -> Result<Vec<PoolFeature>> {
    let mut features = Vec::new();
    for (key, for_write) in [("features_for_read", false), ("features_for_write", true)] {
        let Some(number) = directory.lookup_u64(key)? else { continue };
        let zap = Zap::open(mos.object(ObjectId(number))?)?;
        for entry in zap.entries() {
            let entry = entry?;
            features.push(PoolFeature {
                guid: String::from_utf8_lossy(entry.name()).into_owned(),
                references: entry.value.as_u64().unwrap_or(0),
                for_write,
            });
        }
    }
    Ok(features)
}

/// Guids of the features in use that are not known here, as far as they matter.
pub(super) fn unknown_in_use(
    features: &[PoolFeature],
    matters: impl Fn(&PoolFeature) -> bool,
) -> Vec<&str> {
    let in_use = features.iter().filter(|one| one.references > 0 && matters(one));
    in_use.map(|one| one.guid.as_str()).filter(|guid| feature::by_guid(guid).is_none()).collect()
}

/// Checks that every feature needed for reading is known, and tells the pipe what it must know.
pub(super) fn check(mos: &ObjectSet, directory: &Zap, pipe: &Pipe) -> Result<()> {
    let features = read(mos, directory)?;
    let active = |guid: &str| features.iter().any(|f| f.guid == guid && f.references > 0);
    pipe.set_large_gangs(active("com.klarasystems:dynamic_gang_header"));
    let unknown = unknown_in_use(&features, |feature| !feature.for_write);
    if unknown.is_empty() {
        return Ok(());
    }
    let reason = format!("the pool uses features not supported here: {}", unknown.join(", "));
    Err(Error::unsupported(reason))
}
