//! Opening a pool straight from its devices, without a pool process.
//!
//! Invariant: nothing is written, neither to the devices nor to the run directory.

use std::path::PathBuf;
use std::sync::Arc;

use cenote_engine::pool::assemble::{PoolCandidate, candidates};
use cenote_engine::pool::{OpenOptions, Pool};
use cenote_engine::{Error, ErrorKind};

/// The one pool called `wanted` (name or guid) on the devices in `places`.
pub fn find(wanted: &str, places: &[PathBuf]) -> Result<PoolCandidate, Error> {
    let matches = |candidate: &PoolCandidate| {
        candidate.name == wanted || candidate.guid.to_string() == wanted
    };
    let mut found: Vec<PoolCandidate> = candidates(places).into_iter().filter(matches).collect();
    match (found.pop(), found.len()) {
        (Some(candidate), 0) => Ok(candidate),
        (Some(_), others) => {
            let reason = format!("{} pools are called '{wanted}'", others + 1);
            Err(Error::invalid(reason).with_advice("name one by its numeric id"))
        }
        (None, _) => {
            let reason = format!("no pool '{wanted}' found");
            let advice = "say where its devices are with '-d DIRECTORY' or '-d FILE'";
            Err(Error::new(ErrorKind::NotFound, reason).with_advice(advice))
        }
    }
}

/// Finds and opens the pool called `wanted`.
pub fn open(wanted: &str, places: &[PathBuf], options: &OpenOptions) -> Result<Arc<Pool>, Error> {
    Pool::open(&find(wanted, places)?, options)
}
