//! From a word on the command line to a file or block device.
//!
//! Invariant: only regular files and block devices come out, with absolute paths; nothing is opened
//! for writing.

use std::path::PathBuf;

use cenote_control::device_names;
use cenote_control::look::{self, Disk, Kind, Look};
use cenote_control::plan::{VdevPlan, VdevPlanKind};

/// The leaf a word names.
///
/// # Errors
/// The lines of OpenZFS.
pub fn resolve(word: &str) -> Result<VdevPlan, String> {
    let path = if word.starts_with('/') {
        PathBuf::from(word)
    } else {
        device_names::short_name(word).ok_or_else(|| {
            format!(
                "cannot open '{word}': no such device in /dev\nmust be a full path or shorthand \
                 device name"
            )
        })?
    };
    let shown = path.display();
    // Even that may never be answered.
    let kind: Option<Kind> = look::ask(&Look::Kind(path.clone()))?;
    match kind {
        None => return Err(format!("cannot resolve path '{shown}'")),
        Some(Kind::File(size)) => {
            return Ok(VdevPlan {
                kind: VdevPlanKind::File,
                path: Some(shown.to_string()),
                size,
                ..VdevPlan::default()
            });
        }
        Some(Kind::Other) => {
            return Err(format!("cannot use '{shown}': must be a block device or regular file"));
        }
        Some(Kind::BlockDevice) => {}
    }
    let disk: Result<Disk, String> = look::ask(&Look::Disk(path.clone()))?;
    let disk = disk.map_err(|reason| format!("cannot open '{shown}': {reason}"))?;
    Ok(VdevPlan {
        kind: VdevPlanKind::Disk,
        devid: disk.stable_name,
        path: Some(shown.to_string()),
        whole_disk: disk.whole,
        size: disk.size,
        ..VdevPlan::default()
    })
}
