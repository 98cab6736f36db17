//! From a word on the command line to a file or block device.
//!
//! Invariant: only regular files and block devices come out, with absolute paths; nothing is opened
//! for writing.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;

use cenote_control::device_names;
use cenote_control::look::{self, Disk, Look};
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
    let data = fs::metadata(&path).map_err(|_| format!("cannot resolve path '{shown}'"))?;
    let kind = data.file_type();
    if kind.is_file() {
        return Ok(VdevPlan {
            kind: VdevPlanKind::File,
            path: Some(shown.to_string()),
            size: data.len(),
            ..VdevPlan::default()
        });
    }
    if !kind.is_block_device() {
        return Err(format!("cannot use '{shown}': must be a block device or regular file"));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path();
        let file = at.join("d0");
        fs::write(&file, vec![0; 4096]).unwrap();
        let leaf = resolve(&file.display().to_string()).unwrap();
        assert_eq!((leaf.kind, leaf.size), (VdevPlanKind::File, 4096));
        let shown = at.display();
        let words = format!("cannot use '{shown}': must be a block device or regular file");
        assert_eq!(resolve(&shown.to_string()), Err(words));
        assert_eq!(resolve("/d/nope"), Err("cannot resolve path '/d/nope'".into()));
        let words = "cannot open 'no-such-disk': no such device in /dev\nmust be a full path or \
                     shorthand device name";
        assert_eq!(resolve("no-such-disk"), Err(words.into()));
        assert!(resolve("./d0").is_err() && resolve("../dev/null").is_err());
    }
}
