//! Clearing the labels of a device (`zpool labelclear`).
//!
//! Invariant: nothing is written to a device of a pool that is imported here, and only to places
//! where a label was found.

use std::fs::File;
use std::path::Path;

use cenote_control::look::Refusal;
use cenote_device::Mode;
use cenote_engine::pool::discover::{FileOpener, Opener};
use cenote_engine::pool::found_labels::read_labels;
use cenote_engine::pool::in_use::{Holder, device_in_use};
use cenote_engine::pool::leaves::open_exclusive;
use cenote_format::config::PoolState;

use crate::in_use::listed_by;

/// Bytes of a label.
const LABEL: u64 = 256 << 10;
/// Exit code if there is nothing to clear.
const NOTHING: u8 = 255;

/// Clears the labels of the device at `path`; `force` is `-f`.
///
/// # Errors
/// What `zpool labelclear` says, and its exit code.
pub fn clear_labels(path: &Path, force: bool) -> Result<(), Refusal> {
    clear(&path.display().to_string(), force).map_err(|(message, code)| Refusal { message, code })
}

fn clear(path: &str, force: bool) -> Result<(), (String, u8)> {
    let plain = |words: String| (words, 1);
    let place = Path::new(path);
    let file = File::options().read(true).write(true).open(place).map_err(|error| {
        let words = match error.kind() {
            std::io::ErrorKind::NotFound => "No such file or directory".to_owned(),
            std::io::ErrorKind::PermissionDenied => "Permission denied".to_owned(),
            std::io::ErrorKind::IsADirectory => "Is a directory".to_owned(),
            _ => error.to_string(),
        };
        plain(format!("failed to open {path}: {words}"))
    })?;
    let unreadable = || plain(format!("failed to read label from {path}"));
    let opener = FileOpener { mode: Mode::ReadOnly };
    let device = opener.open(place).map_err(|_| unreadable())?;
    let size = device.size();
    if size < 4 * LABEL {
        return Err(unreadable());
    }
    let labels = read_labels(&*device).map_err(|_| unreadable())?;
    drop(device);
    let failed = || (format!("failed to clear label for {path}"), NOTHING);
    if labels.is_empty() {
        return Err(failed());
    }
    may_be_cleared(path, force).map_err(plain)?;
    // Held while it is written to: nobody imports it between this look and the last write.
    drop(file);
    let device = open_exclusive(place).map_err(|error| plain(error.to_string()))?;
    let end = size / LABEL * LABEL;
    let zeros = vec![0; usize::try_from(LABEL).unwrap_or(0)];
    for label in &labels {
        let offset = match label.index {
            index @ 0..=1 => LABEL * index as u64,
            index @ 2..=3 => end - LABEL * (4 - index as u64),
            _ => continue,
        };
        device.write(offset, &zeros).map_err(|_| failed())?;
    }
    device.flush().map_err(|_| failed())
}

/// Refuses what is in use, or may be.
fn may_be_cleared(path: &str, force: bool) -> Result<(), String> {
    let found = device_in_use(Path::new(path)).map_err(|error| error.to_string())?;
    let advice = if force { ". Offline the disk first to clear its label." } else { "" };
    if let Some(holder) = &found.holder {
        let pool = found.pool.as_ref().map(|pool| pool.name.as_str()).unwrap_or_default();
        return Err(match holder {
            Holder::Process => format!("{path} is a member (ACTIVE) of pool \"{pool}\"{advice}"),
            _ => format!("{path} is in use"),
        });
    }
    let Some(pool) = found.pool else { return Ok(()) };
    let aside = match pool.state {
        PoolState::Spare => Some("SPARE"),
        PoolState::Cache => Some("L2CACHE"),
        _ => None,
    };
    if let Some(kind) = aside {
        // Its label does not say whose it is.
        return match listed_by(Path::new(path)) {
            Some(pool) => Err(format!("{path} is a member ({kind}) of pool \"{pool}\"{advice}")),
            None => Ok(()),
        };
    }
    let what = match pool.state {
        PoolState::Exported => "exported",
        PoolState::Active => "potentially active",
        _ => return Ok(()),
    };
    if force {
        return Ok(());
    }
    let name = pool.name;
    Err(format!(
        "use '-f' to override the following error:\n{path} is a member of {what} pool \"{name}\""
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_labels_are_cleared() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("d0").display().to_string();
        let words = format!("failed to open {path}: No such file or directory");
        assert_eq!(clear(&path, false), Err((words, 1)));
        std::fs::write(&path, b"hi").unwrap();
        let words = format!("failed to read label from {path}");
        assert_eq!(clear(&path, true), Err((words, 1)));
        std::fs::write(&path, vec![7; 2 << 20]).unwrap();
        let words = format!("failed to clear label for {path}");
        assert_eq!(clear(&path, false), Err((words, 255)));
        assert!(std::fs::read(&path).unwrap().iter().all(|byte| *byte == 7));
    }
}
