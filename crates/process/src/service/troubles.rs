//! Data that is lost, for `zpool status -v`: the error logs of the pool and what could not be read
//! since it was opened, each with the file it belongs to.
//!
//! Chapter 03, section 16. Invariant: naming reads from the devices, so it is done when the list
//! changes and never by those who only look; no more than [`MOST_NAMED`] files are named.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use cenote_control::report::PoolReport;
use cenote_engine::Result;
use cenote_engine::pipe::Fault;
use cenote_engine::pool::Pool;
use cenote_engine::pool::group::read_error_logs;
use cenote_format::ObjectId;
use cenote_posix::attributes::Facts;
use cenote_posix::paths::Paths;
use cenote_posix::view::View;

/// Most files that are named.
const MOST_NAMED: usize = 4096;

/// A file or object that is damaged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Damaged {
    /// Name of the dataset, if it is known.
    dataset: Option<String>,
    /// Path in the dataset, if it has one.
    path: Option<String>,
}

/// What is damaged.
#[derive(Clone, Debug, Default)]
pub struct Troubles {
    logged: BTreeSet<Fault>,
    /// What was known of faults in memory when the list was made.
    seen: u64,
    /// The objects that were looked for, lost or not.
    named: BTreeMap<(u64, u64), Damaged>,
}

impl Troubles {
    /// Reads the error logs and names what is in them and what was met since.
    pub fn read(pool: &Pool) -> Result<Self> {
        // What a pool that is written has read of its logs, or written into them, is in memory.
        let logged = match pool.is_written() {
            true => BTreeSet::new(),
            false => read_error_logs(&pool.mos())?.into_iter().flatten().collect(),
        };
        let mut troubles = Self { logged, ..Self::default() };
        troubles.name(pool);
        Ok(troubles)
    }

    /// Whether something was met that is not in the list.
    pub fn is_old(&self, pool: &Pool) -> bool {
        self.seen != pool.io().pipe.faults().changes()
    }

    /// Names everything that is known by now.
    pub fn name(&mut self, pool: &Pool) {
        let pipe = &pool.io().pipe;
        let all = pipe.faults().lost().into_iter().chain(pipe.passing_faults());
        let all = self.logged.iter().copied().chain(all);
        let objects: BTreeSet<(u64, u64)> = all.map(|f| (f.objset, f.object)).collect();
        let mut known = std::mem::take(&mut self.named);
        let mut last: Option<Named> = None;
        for (objset, object) in objects.into_iter().take(MOST_NAMED) {
            let named = known.remove(&(objset, object)).unwrap_or_else(|| {
                let set = last.take().filter(|last| last.objset == objset);
                let set = set.unwrap_or_else(|| Named::open(pool, objset));
                last.insert(set).damaged(object)
            });
            self.named.insert((objset, object), named);
        }
        // Looking for names may have met more of the same.
        self.seen = pipe.faults().changes();
    }

    /// Puts what could not be read until now into a report; `mounted` tells where a dataset is
    /// mounted. What was met since the last naming goes by its number.
    pub fn put(
        &self,
        pool: &Pool,
        report: &mut PoolReport,
        mounted: impl Fn(&str) -> Option<PathBuf>,
    ) {
        let pipe = &pool.io().pipe;
        let mut lost = pipe.faults().lost();
        lost.extend(&self.logged);
        let mut passing = pipe.passing_faults();
        passing.retain(|fault| !lost.contains(fault));
        report.passing_errors = passing.len() as u64;
        report.error_count = (lost.len() + passing.len()) as u64;
        report.errors = self.lines(&lost, &mounted);
        report.passing = self.lines(&passing, &mounted);
    }

    /// The files of these blocks, as `zpool status -v` prints them.
    fn lines(
        &self,
        faults: &BTreeSet<Fault>,
        mounted: &impl Fn(&str) -> Option<PathBuf>,
    ) -> Vec<String> {
        let objects: BTreeSet<(u64, u64)> = faults.iter().map(|f| (f.objset, f.object)).collect();
        let line = |(objset, object): (u64, u64)| {
            let named = self.named.get(&(objset, object));
            let named = named.map(|named| (named.dataset.as_ref(), named.path.as_ref()));
            match named.unwrap_or_default() {
                _ if objset == 0 => format!("<metadata>:<{object:#x}>"),
                (None, _) => format!("<{objset:#x}>:<{object:#x}>"),
                (Some(dataset), None) => format!("{dataset}:<{object:#x}>"),
                (Some(dataset), Some(path)) => match mounted(dataset) {
                    Some(at) => format!("{}{path}", at.display()),
                    None => format!("{dataset}:{path}"),
                },
            }
        };
        objects.into_iter().take(MOST_NAMED).map(line).collect()
    }
}

/// A dataset whose objects are named.
struct Named {
    objset: u64,
    dataset: Option<String>,
    view: Option<View>,
    paths: Paths,
}

impl Named {
    fn open(pool: &Pool, objset: u64) -> Self {
        let catalog = pool.catalog();
        let found = match objset {
            0 => None,
            _ => catalog.dataset_by_id(ObjectId(objset)).ok(),
        };
        let set = found.as_ref().and_then(|found| catalog.object_set(found, &**pool.keys()).ok());
        Self {
            objset,
            dataset: found.map(|found| found.name.to_string()),
            view: set.and_then(|set| View::open(set, 0).ok()),
            paths: Paths::default(),
        }
    }

    fn damaged(&self, object: u64) -> Damaged {
        Damaged { dataset: self.dataset.clone(), path: self.path(ObjectId(object)) }
    }

    fn path(&self, id: ObjectId) -> Option<String> {
        let view = self.view.as_ref()?;
        let object = view.objects().object(id).ok()?;
        let facts = Facts::read(view.attribute_table().as_deref(), &object).ok()?;
        self.paths.find(view, id, facts.parent).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_what_openzfs_says() {
        let file = |objset, object, dataset: Option<&str>, path: Option<&str>| {
            let (dataset, path) = (dataset.map(str::to_owned), path.map(str::to_owned));
            ((objset, object), Damaged { dataset, path })
        };
        let named = BTreeMap::from([
            file(0, 2, None, None),
            file(54, 2, None, None),
            file(55, 2, Some("two/sub"), None),
            file(55, 3, Some("two/sub"), Some("/a/b/file")),
            file(56, 2, Some("two/sub@one"), Some("/a/b/file")),
        ]);
        let mut faults: BTreeSet<Fault> =
            named.keys().map(|&(objset, object)| Fault { objset, object, block: None }).collect();
        // Met since, and not named yet.
        faults.insert(Fault { objset: 57, object: 2, block: Some((0, 7)) });
        let troubles = Troubles { named, ..Troubles::default() };
        let mounted = |name: &str| (name == "two/sub").then(|| PathBuf::from("/mnt/two/sub"));
        let theirs = [
            "<metadata>:<0x2>",
            "<0x36>:<0x2>",
            "two/sub:<0x2>",
            "/mnt/two/sub/a/b/file",
            "two/sub@one:/a/b/file",
            "<0x39>:<0x2>",
        ];
        assert_eq!(troubles.lines(&faults, &mounted), theirs);
    }
}
