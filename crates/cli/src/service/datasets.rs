//! What `zfs list` and `zfs get` show, published.
//!
//! Invariant: the properties of all datasets are read once, in the background, when the pool is
//! opened (nothing changes in a pool that is only read); a question waits for that reading only,
//! and never beyond its deadline.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cenote_control::protocol::{DatasetQuery, Failure, FailureKind};
use cenote_control::report::{DatasetKind, DatasetReport, Properties, Property, Source};
use cenote_engine::Result;
use cenote_engine::dataset::{self, Listed, PropertyReader};
use cenote_engine::pool::Pool;
use parking_lot::{Condvar, Mutex};

use super::pool_report::convert;

/// How long a question waits for the first reading to end.
const PATIENCE: Duration = Duration::from_secs(4);

/// The datasets of a pool as they were read.
pub struct Catalogue {
    state: Mutex<State>,
    changed: Condvar,
}

enum State {
    Reading,
    Ready(Arc<Vec<DatasetReport>>),
    Failed(String),
}

impl Catalogue {
    /// Starts reading in the background.
    pub fn start(pool: &Arc<Pool>, altroot: &str) -> Arc<Self> {
        let catalogue =
            Arc::new(Self { state: Mutex::new(State::Reading), changed: Condvar::new() });
        let (own, pool, altroot) = (catalogue.clone(), pool.clone(), altroot.to_owned());
        let run = move || own.finish(read(&pool, &altroot));
        let started = std::thread::Builder::new().name("datasets".into()).spawn(run);
        if let Err(error) = started {
            *catalogue.state.lock() = State::Failed(error.to_string());
        }
        catalogue
    }

    fn finish(&self, result: Result<Vec<DatasetReport>>) {
        *self.state.lock() = match result {
            Ok(datasets) => State::Ready(Arc::new(datasets)),
            Err(error) => State::Failed(error.to_string()),
        };
        self.changed.notify_all();
    }

    /// All datasets, waiting for the first reading at most [`PATIENCE`].
    pub fn all(&self) -> Result<Arc<Vec<DatasetReport>>, Failure> {
        let end = Instant::now() + PATIENCE;
        let mut state = self.state.lock();
        loop {
            match &*state {
                State::Ready(datasets) => return Ok(datasets.clone()),
                State::Failed(reason) => {
                    return Err(Failure::new(FailureKind::Other, reason.clone()));
                }
                State::Reading => {
                    if self.changed.wait_until(&mut state, end).timed_out() {
                        let reason = "the datasets are still being read, try again";
                        return Err(Failure::new(FailureKind::Busy, reason));
                    }
                }
            }
        }
    }
}

fn read(pool: &Arc<Pool>, altroot: &str) -> Result<Vec<DatasetReport>> {
    let catalog = pool.catalog();
    let reader = PropertyReader::new(catalog, pool.capacity(), &**pool.keys(), altroot);
    let mut out = Vec::new();
    for listed in catalog.list(&catalog.root()?)? {
        out.push(report(pool, &reader, &listed)?);
    }
    Ok(out)
}

fn report(pool: &Pool, reader: &PropertyReader<'_>, listed: &Listed) -> Result<DatasetReport> {
    let properties = convert(reader.all(listed)?);
    let kind = match listed {
        Listed::Bookmark(..) => DatasetKind::Bookmark,
        Listed::Dataset(dataset) if dataset.is_snapshot() => DatasetKind::Snapshot,
        Listed::Dataset(dataset) => match pool.catalog().kind(dataset)? {
            dataset::DatasetKind::Filesystem => DatasetKind::Filesystem,
            dataset::DatasetKind::Volume => DatasetKind::Volume,
        },
    };
    Ok(DatasetReport {
        name: listed.name().to_string(),
        kind,
        createtxg: properties.number("createtxg").unwrap_or(0),
        mounted_at: None,
        properties,
    })
}

/// The datasets `query` asks for, brought up to date by `freshen`.
pub fn answer(
    pool: &Arc<Pool>,
    all: &[DatasetReport],
    query: &DatasetQuery,
    altroot: &str,
    freshen: &dyn Fn(&mut DatasetReport),
) -> Result<Vec<DatasetReport>, Failure> {
    if let Some(root) = &query.root
        && !all.iter().any(|dataset| dataset.name == *root)
    {
        let message = format!("cannot open '{root}': dataset does not exist");
        return Err(Failure::new(FailureKind::NotFound, message));
    }
    let mut out = Vec::new();
    for dataset in all.iter().filter(|dataset| query.selects(&dataset.name, dataset.kind)) {
        let mut dataset = dataset.clone();
        freshen(&mut dataset);
        if let Some(wanted) = &query.properties {
            with_arguments(pool, &mut dataset, wanted, altroot);
            let kept = dataset.properties.0.into_iter().filter(|p| query.wants(&p.name)).collect();
            dataset.properties = Properties(kept);
        }
        out.push(dataset);
    }
    Ok(out)
}

/// Adds the properties whose names carry an argument (`written@x`, `userused@0`).
fn with_arguments(pool: &Arc<Pool>, dataset: &mut DatasetReport, wanted: &[String], altroot: &str) {
    let missing: Vec<&String> = wanted
        .iter()
        .filter(|name| name.contains(['@', '#']) && dataset.properties.get(name).is_none())
        .collect();
    if missing.is_empty() || dataset.kind == DatasetKind::Bookmark {
        return;
    }
    let Ok(found) = pool.catalog().dataset_named(&dataset.name) else { return };
    let Ok(space) = pool.space() else { return };
    let reader = PropertyReader::new(pool.catalog(), space.capacity(), &**pool.keys(), altroot);
    let listed = Listed::Dataset(found);
    for name in missing {
        if let Ok(Some(value)) = reader.get(&listed, name) {
            dataset.properties.0.extend(convert(vec![value]).0);
        }
    }
}

/// Sets or replaces a computed property.
pub fn set(dataset: &mut DatasetReport, name: &str, value: &str) {
    let known = dataset.properties.0.iter_mut().find(|property| property.name == name);
    match known {
        Some(property) => property.value = value.to_owned(),
        None => {
            // `mounted` stands after the space figures in every listing.
            let at = dataset.properties.0.iter().position(|p| p.name == "quota");
            let at = at.unwrap_or(dataset.properties.0.len());
            let property = Property {
                name: name.to_owned(),
                value: value.to_owned(),
                source: Source::None,
                received: None,
            };
            dataset.properties.0.insert(at, property);
        }
    }
}
