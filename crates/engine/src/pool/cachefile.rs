//! The file that lists the pools a host had imported (`zpool.cache`).
//!
//! Invariant: the file is a hint where to look; a pool is only as real as the labels of its devices.
//! Chapter 01, section 15.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use cenote_format::config::{PoolConfig, PoolState};
use cenote_format::nvlist::{NvList, Value};
use cenote_format::{Guid, Txg};

use super::assemble::{PoolCandidate, by_guid, correct_paths};
use super::discover::Scan;
use crate::Result;

/// Where OpenZFS keeps the file.
pub const DEFAULT_PATH: &str = "/etc/zfs/zpool.cache";

/// The configurations in the file, in either encoding. An empty file has none; an entry that is no
/// configuration is left out.
pub fn decode(bytes: &[u8]) -> Result<Vec<PoolConfig>> {
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let mut pools = Vec::new();
    for pair in &NvList::decode(bytes)? {
        let Value::List(config) = &pair.value else { continue };
        match PoolConfig::from_nvlist(config.clone()) {
            Ok(config) => pools.push(config),
            Err(error) => {
                let name = String::from_utf8_lossy(&pair.name);
                tracing::warn!(%name, %error, "cache file entry left out");
            }
        }
    }
    Ok(pools)
}

/// The devices a configuration names: what to scan for [`candidate`].
pub fn places(config: &PoolConfig) -> Vec<PathBuf> {
    let leaves = config.vdev_tree.iter().flat_map(|tree| tree.devices());
    leaves.filter_map(|leaf| leaf.path.as_deref().map(PathBuf::from)).collect()
}

/// The pool `config` describes, with those of its devices that `scan` found; `None` if the
/// configuration has no tree or guid.
pub fn candidate(config: &PoolConfig, scan: &Scan) -> Option<PoolCandidate> {
    let mut tree = config.vdev_tree.clone()?;
    let guid = config.pool_guid.filter(|guid| *guid != Guid(0))?;
    let (auxiliary, own): (Vec<_>, Vec<_>) = scan
        .devices
        .iter()
        .filter(|found| {
            let label = found.config();
            let pool = label.and_then(|label| label.pool_guid);
            found.state().is_some_and(PoolState::is_auxiliary) || pool == Some(guid)
        })
        .cloned()
        .partition(|found| found.state().is_some_and(PoolState::is_auxiliary));
    let stored = tree
        .devices()
        .filter_map(|leaf| Some((leaf.guid, leaf.path.clone()?)))
        .collect::<BTreeMap<_, _>>();
    let devices = by_guid(own, &stored);
    correct_paths(&mut tree, &devices);
    // What the labels say now counts for more than what the file remembers.
    let label = devices.values().next().and_then(|found| found.config());
    Some(PoolCandidate {
        guid,
        name: config.name.clone().unwrap_or_default(),
        version: config.version.unwrap_or(0),
        state: label.and_then(|label| label.state).or(config.state).unwrap_or(PoolState::Active),
        comment: config.comment.clone(),
        compatibility: config.compatibility.clone(),
        hostid: label.and_then(|label| label.hostid).or(config.hostid).unwrap_or(0),
        hostname: label
            .and_then(|label| label.hostname.clone())
            .or_else(|| config.hostname.clone()),
        txg: config.txg.unwrap_or(Txg(0)),
        tree,
        devices,
        auxiliary: Arc::new(by_guid(auxiliary, &BTreeMap::new())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::testing::{POOL, config, mirror};
    use cenote_format::VdevConfig;
    use cenote_format::bytes::ByteOrder;
    use cenote_format::nvlist::Encoding;
    use std::path::Path;

    #[test]
    fn a_pool_of_the_file_is_found_by_its_paths() {
        let (mut shelf, tree) = mirror(7);
        let mut whole = config(&tree, 11, 7, 1);
        let root = VdevConfig { guid: POOL, children: Some(vec![tree]), ..VdevConfig::default() };
        whole.vdev_tree = Some(root);
        let mut file = NvList::new();
        file.push("tank", whole.to_nvlist());
        file.push("nonsense", 5);
        for encoding in [Encoding::Xdr, Encoding::Native(ByteOrder::Little)] {
            let pools = decode(&file.encode(encoding).unwrap()).unwrap();
            assert_eq!(pools.len(), 1);
            assert_eq!(places(&pools[0]), [Path::new("/a"), Path::new("/b")]);
        }
        shelf.devices.remove(Path::new("/b"));
        let found = candidate(&whole, &shelf.scan()).unwrap();
        assert_eq!((found.guid, found.name.as_str()), (POOL, "tank"));
        assert_eq!(found.devices.keys().copied().collect::<Vec<_>>(), [Guid(11)]);
        assert_eq!(found.state, PoolState::Exported);
    }

    #[test]
    fn an_empty_file_has_no_pools() {
        assert!(decode(&[]).unwrap().is_empty());
        assert!(decode(b"not a list").is_err());
    }
}
