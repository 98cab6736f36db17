//! Opening a pool straight from its devices, without a pool process.
//!
//! Invariant: nothing is written, neither to the devices nor to the run directory.

use std::path::PathBuf;
use std::sync::Arc;

use cenote_control::client::Client;
use cenote_control::report::VdevReport;
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

/// Guid and devices of the pool that is imported here under this name.
fn imported(name: &str) -> Option<(u64, Vec<PathBuf>)> {
    fn leaves(vdev: &VdevReport, out: &mut Vec<PathBuf>) {
        out.extend(vdev.path.as_deref().map(PathBuf::from));
        vdev.children.iter().for_each(|child| leaves(child, out));
    }
    let client = Client::default();
    let report = client.knows(name).then(|| client.pool_report(name).ok())??;
    let mut devices = Vec::new();
    leaves(&report.root, &mut devices);
    Some((report.guid, devices))
}

/// Finds and opens the pool called `wanted`. Where no place is given, the pool process knows the devices
/// of one that is imported.
pub fn open(wanted: &str, places: &[PathBuf], options: &OpenOptions) -> Result<Arc<Pool>, Error> {
    let known = if places.is_empty() { imported(wanted) } else { None };
    let candidate = match known {
        Some((guid, devices)) => find(&guid.to_string(), &devices)?,
        None => find(wanted, places)?,
    };
    Pool::open(&candidate, options)
}
