//! What a user names: `POOL/DATASET[@SNAPSHOT]:/PATH`, and opening it without mounting.
//!
//! Invariant: keys come from where the user says, or from the dataset's own `keylocation` if that
//! is a file; they are asked for on the terminal only by the caller.

use std::path::PathBuf;
use std::sync::Arc;

use cenote_engine::dataset::{Dataset, DatasetName, Directory, Listed, PropertyReader, Value};
use cenote_engine::pool::{OpenOptions, Pool, Rewind};
use cenote_engine::{Error, ErrorKind};
use cenote_format::Txg;
use cenote_posix::Filesystem;
use clap::Args;

/// Options of every command that reads straight from devices.
#[derive(Args, Debug, Clone, Default)]
pub struct SourceOptions {
    /// Where to look for devices: a directory or a file; may be given several times
    #[arg(short = 'd', long = "device", value_name = "PATH")]
    pub places: Vec<PathBuf>,
    /// Key material: FILE for every dataset, or LOCATION=FILE for those with that keylocation
    #[arg(long = "key", value_name = "[LOCATION=]FILE")]
    pub keys: Vec<String>,
    /// Open the pool as of this transaction group or the newest before it
    #[arg(short = 'T', long, value_name = "TXG")]
    pub txg: Option<u64>,
    /// If the newest state does not open, go back to one that does
    #[arg(short = 'F', long)]
    pub rewind: bool,
    /// Open although top-level devices are missing; what lies on them is reported as unreadable
    #[arg(long)]
    pub missing: bool,
    /// Most memory for cached blocks, in MiB (default: a quarter of the machine's)
    #[arg(long, value_name = "MIB")]
    pub cache: Option<u64>,
}

impl SourceOptions {
    /// Finds and opens `pool`, and loads the keys that were given.
    pub fn open(&self, pool: &str) -> Result<Arc<Pool>, Error> {
        let options = OpenOptions {
            cache_limit: self
                .cache
                .map_or_else(|| cenote_control::budget::Budget::now().cache, |mib| mib << 20),
            max_txg: self.txg.map(Txg),
            rewind: match (self.rewind, self.txg) {
                (_, Some(_)) => Rewind::Extreme,
                (true, None) => Rewind::Safe,
                (false, None) => Rewind::None,
            },
            missing_log: true,
            missing_vdevs: self.missing,
            ..OpenOptions::default()
        };
        let pool = super::pool::open(pool, &self.places, &options)?;
        if !self.keys.is_empty() {
            self.load_keys(&pool)?;
        }
        Ok(pool)
    }

    /// Loads every key that fits an encryption root of the pool.
    fn load_keys(&self, pool: &Arc<Pool>) -> Result<(), Error> {
        let catalog = pool.catalog();
        let capacity = pool.capacity();
        for directory in catalog.walk(&catalog.root()?)? {
            let is_root = catalog.key_object(&directory)?.is_some_and(|k| k.root == directory.id);
            if !is_root {
                continue;
            }
            let reader = PropertyReader::new(&catalog, capacity, &**pool.keys(), "");
            let head = Listed::Dataset(catalog.head(&directory)?);
            let location = match reader.get(&head, "keylocation")?.map(|p| p.value) {
                Some(Value::Text(location)) => location,
                _ => String::new(),
            };
            self.load_key(pool, &directory, &location)?;
        }
        Ok(())
    }

    fn load_key(&self, pool: &Pool, directory: &Directory, location: &str) -> Result<(), Error> {
        for key in &self.keys {
            let file = match key.split_once('=') {
                Some((wanted, file)) if wanted == location => file,
                Some((wanted, _)) if wanted.contains("://") => continue,
                _ => key.as_str(),
            };
            let material = std::fs::read(file).map_err(|error| {
                Error::new(ErrorKind::NotFound, format!("key file '{file}': {error}"))
            })?;
            return pool.keys().load(&pool.catalog(), directory, &material);
        }
        Ok(())
    }
}

/// A dataset and a path in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Full name of the dataset or snapshot.
    pub dataset: String,
    /// Path inside it, `/` for its root.
    pub path: String,
}

impl std::str::FromStr for Target {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (dataset, path) = text.split_once(":/").unwrap_or((text.trim_end_matches(':'), ""));
        if dataset.is_empty() || dataset.starts_with('/') {
            let reason = format!("'{text}' does not start with a pool's name");
            return Err(Error::invalid(reason).with_advice("write POOL/DATASET[@SNAPSHOT]:/PATH"));
        }
        Ok(Self { dataset: dataset.to_owned(), path: format!("/{path}") })
    }
}

impl Target {
    /// Name of its pool.
    pub fn pool(&self) -> &str {
        self.dataset.split(['/', '@']).next().unwrap_or_default()
    }

    /// The dataset in the open pool.
    pub fn dataset(&self, pool: &Pool) -> Result<Dataset, Error> {
        let name = DatasetName::parse(&self.dataset)?;
        pool.catalog().dataset(&name)
    }

    /// The files of the dataset.
    pub fn filesystem(&self, pool: &Arc<Pool>) -> Result<Filesystem, Error> {
        let dataset = self.dataset(pool)?;
        cenote_posix::dataset_files::open_in(pool, &dataset).map_err(|error| {
            Error::new(ErrorKind::Io, format!("'{}': {}", self.dataset, error.reason))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_split_at_the_first_colon_slash() {
        let target: Target = "tank/a@b:/c:/d".parse().unwrap();
        assert_eq!((target.dataset.as_str(), target.path.as_str()), ("tank/a@b", "/c:/d"));
        assert_eq!(target.pool(), "tank");
        let whole: Target = "tank".parse().unwrap();
        assert_eq!((whole.dataset.as_str(), whole.path.as_str()), ("tank", "/"));
        assert!("/etc/passwd".parse::<Target>().is_err());
    }
}
