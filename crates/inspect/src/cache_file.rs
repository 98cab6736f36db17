//! Cache files (`zpool import -c`): the pools a host had, with the paths of their devices.
//!
//! Chapter 01, sections 4 and 6. Invariant: a cache file only tells where to look; what is imported
//! is what the devices themselves say.

use cenote_control::look::Cached;
use cenote_control::terminal;
use cenote_engine::pool::cachefile;

/// Largest cache file that is read, in bytes.
const MOST: u64 = 64 << 20;

/// Reads a cache file; `Err` with the words of `zpool import`.
pub fn read(path: &str) -> Result<Cached, String> {
    let fail = |error: std::io::Error| {
        format!("failed to open cache file: {}", terminal::words_of(&error))
    };
    let size = std::fs::metadata(path).map_err(fail)?.len();
    let bad = || "invalid or corrupt cache file contents: invalid or missing cache file".to_owned();
    if size == 0 || size > MOST {
        return Err(bad());
    }
    let bytes = std::fs::read(path).map_err(fail)?;
    let mut cached = Cached::default();
    for config in cachefile::decode(&bytes).map_err(|_| bad())? {
        cached.pools.extend(config.pool_guid.map(|guid| guid.0));
        cached.devices.extend(cachefile::places(&config).into_iter().filter(|path| path.exists()));
    }
    Ok(cached)
}
