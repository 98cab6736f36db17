//! What `zfs list` and `zfs get` show, published.
//!
//! Invariant: the properties of all datasets are read in the background, when the pool is opened and
//! when a question comes after more was written; a question waits for that reading only, and never
//! beyond its deadline: then it gets what was read before. From the devices comes only what groups
//! wrote since the reading before.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cenote_control::protocol::{DatasetQuery, Failure, FailureKind};
use cenote_control::report::{DatasetKind, DatasetReport, Properties, Property, Source};
use cenote_engine::Result;
use cenote_engine::dataset::{
    self, InventoryReader, Known, Listed, Principal, PrincipalUsage, PropertyReader, Surroundings,
};
use cenote_engine::pool::Pool;
use parking_lot::{Condvar, Mutex};

use super::pool_report::convert;
use cenote_control::principal::{self, Who};

/// How long a question waits for the first reading to end.
const PATIENCE: Duration = Duration::from_secs(4);
/// How long a question waits for a newer reading when there is an older one.
const IMPATIENCE: Duration = Duration::from_secs(2);

/// The datasets of a pool as they were read.
pub struct Catalogue {
    state: Mutex<State>,
    /// Never taken by those who only look.
    reader: Mutex<InventoryReader>,
    changed: Condvar,
}

struct State {
    /// What was read last.
    last: Option<Result<Arc<Vec<DatasetReport>>, String>>,
    /// The transaction group that was on the disks when that reading began.
    txg: Option<u64>,
    /// A reading runs; for this group.
    reading: Option<Option<u64>>,
}

impl Catalogue {
    /// Starts reading in the background; `txg` is the newest group on the disks.
    pub fn start(pool: &Arc<Pool>, altroot: &str, txg: Option<u64>) -> Arc<Self> {
        let state = State { last: None, txg, reading: None };
        let catalogue = Arc::new(Self {
            state: Mutex::new(state),
            reader: Mutex::default(),
            changed: Condvar::new(),
        });
        catalogue.begin(pool, altroot, txg);
        catalogue
    }

    fn begin(self: &Arc<Self>, pool: &Arc<Pool>, altroot: &str, txg: Option<u64>) {
        self.state.lock().reading = Some(txg);
        let (own, pool, altroot) = (self.clone(), pool.clone(), altroot.to_owned());
        let run = move || {
            let result = own.read(&pool, &altroot);
            own.finish(result, txg);
        };
        let started = std::thread::Builder::new().name("datasets".into()).spawn(run);
        if let Err(error) = started {
            let mut state = self.state.lock();
            (state.last, state.reading) = (Some(Err(error.to_string())), None);
        }
    }

    fn finish(&self, result: Result<Vec<DatasetReport>>, txg: Option<u64>) {
        let mut state = self.state.lock();
        state.last = Some(result.map(Arc::new).map_err(|error| error.to_string()));
        (state.txg, state.reading) = (txg, None);
        self.changed.notify_all();
    }

    /// Reads all datasets anew, here and now.
    pub fn read_again(
        &self,
        pool: &Arc<Pool>,
        altroot: &str,
        txg: Option<u64>,
    ) -> Result<(), Failure> {
        let result = self.read(pool, altroot);
        let failed = result.as_ref().err().map(ToString::to_string);
        self.finish(result, txg);
        match failed {
            None => Ok(()),
            Some(reason) => Err(Failure::new(FailureKind::Other, reason)),
        }
    }

    fn read(&self, pool: &Arc<Pool>, altroot: &str) -> Result<Vec<DatasetReport>> {
        let mut reader = self.reader.lock();
        let (catalog, changed) = pool.take_changed();
        let keys = &**pool.keys();
        let inventory = reader.next(&catalog, keys, &changed, false);
        let inventory = inventory.inspect_err(|_| pool.give_back_changed())?;
        let around = Surroundings::new(pool.capacity(), keys, altroot);
        inventory.all().map(|known| report(&known, &around)).collect()
    }

    /// All datasets as of group `txg`, waiting for the reading at most [`PATIENCE`].
    pub fn all(
        self: &Arc<Self>,
        pool: &Arc<Pool>,
        altroot: &str,
        txg: Option<u64>,
    ) -> Result<Arc<Vec<DatasetReport>>, Failure> {
        let mut state = self.state.lock();
        if state.txg != txg && state.reading.is_none() {
            drop(state);
            self.begin(pool, altroot, txg);
            state = self.state.lock();
        }
        let wait = if state.last.is_some() { IMPATIENCE } else { PATIENCE };
        let end = Instant::now() + wait;
        while state.reading.is_some() {
            if self.changed.wait_until(&mut state, end).timed_out() {
                break;
            }
        }
        match &state.last {
            Some(Ok(datasets)) => Ok(datasets.clone()),
            Some(Err(reason)) => Err(Failure::new(FailureKind::Other, reason.clone())),
            None => {
                let reason = "the datasets are still being read, try again";
                Err(Failure::new(FailureKind::Busy, reason))
            }
        }
    }
}

fn report(known: &Known<'_>, around: &Surroundings<'_>) -> Result<DatasetReport> {
    let properties = convert(known.properties(around)?);
    let kind = match (known.facts(), known.kind()) {
        (Some(facts), _) if facts.dataset.is_snapshot() => DatasetKind::Snapshot,
        (_, Some(dataset::DatasetKind::Filesystem)) => DatasetKind::Filesystem,
        (_, Some(dataset::DatasetKind::Volume)) => DatasetKind::Volume,
        (_, None) => DatasetKind::Bookmark,
    };
    Ok(DatasetReport {
        name: known.name().to_string(),
        kind,
        createtxg: known.created_in(),
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
    let catalog = pool.catalog();
    let reader = PropertyReader::new(&catalog, space.capacity(), &**pool.keys(), altroot);
    let usage = catalog.usage(&found, &**pool.keys());
    let listed = Listed::Dataset(found);
    for name in missing {
        if let (Some((what, id)), Ok(usage)) = (of_somebody(name), &usage) {
            let of = usage.iter().find(|(whose, _)| **whose == id);
            let number = of.map_or(0, |(_, usage)| what(usage));
            dataset.properties.set(name, number.to_string(), Source::Local);
            continue;
        }
        if let Ok(Some(value)) = reader.get(&listed, name) {
            dataset.properties.0.extend(convert(vec![value]).0);
        }
    }
}

/// One number of what somebody uses or may use.
type Figure = fn(&PrincipalUsage) -> u64;

/// What a property as `userquota@root` means, and whose it is.
fn of_somebody(property: &str) -> Option<(Figure, Principal)> {
    let (what, whom) = property.split_once('@')?;
    let (who, what) = [("user", Who::User), ("group", Who::Group), ("project", Who::Project)]
        .into_iter()
        .find_map(|(prefix, who)| Some((who, what.strip_prefix(prefix)?)))?;
    let figure: Figure = match what {
        "used" => |usage| usage.used,
        "quota" => |usage| usage.quota.unwrap_or(0),
        "objused" => |usage| usage.objects.unwrap_or(0),
        "objquota" => |usage| usage.object_quota.unwrap_or(0),
        _ => return None,
    };
    let id = u64::from(principal::id(who, whom)?);
    let principal = match who {
        Who::User => Principal::User(id),
        Who::Group => Principal::Group(id),
        Who::Project => Principal::Project(id),
    };
    Some((figure, principal))
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
