//! Opening the files of a dataset anew under its mount, which stays, with what is open and what is mounted inside.
//!
//! Invariant: a mount shows the files of now, or is said to be lost; a change is made once, or not at all.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_control::report::DatasetReport;
use cenote_engine::pool::Pool;
use cenote_posix::tree::{Attributes, ROOT, Tree};
use cenote_serve::fuse::{AccessTimes, Exchanged, Next};

use super::Mounts;
use super::table::{Mount, find_to_mount, flags, keep_access_times};
use crate::service::changes::Files;

/// What became of a mount whose files were opened anew.
pub struct Reopened {
    /// It serves no more, and is to be unmounted by force.
    pub is_lost: bool,
    /// Mounts inside whose places are other directories now, or none.
    pub moved: Vec<String>,
}

/// A directory on the way to a mount inside: its node, generation and time of creation.
type Step = (u64, u64, cenote_posix::tree::Timestamp);

impl Mounts {
    /// Makes `change` while nobody has the files of `dataset` open, and opens them anew under their mount.
    /// `change` tells whether they are others then. None, and nothing is made: it is not mounted, or its files cannot be
    /// exchanged under its users.
    pub fn exchange(
        &self,
        pool: &Arc<Pool>,
        dataset: &DatasetReport,
        change: impl FnOnce() -> bool,
    ) -> Option<Reopened> {
        let name = dataset.name.as_str();
        let mount = self.table.get(name).filter(|mount| mount.files.writer().is_some())?;
        let wanted = flags(dataset, &mount.temporary);
        let inside = self.ways_inside(&mount.at);
        let (mut files, mut moved) = (None, Vec::new());
        // Nobody reads for a user: what is looked at here keeps its times.
        let keep_times = |files: &Files| {
            files
                .writer()
                .into_iter()
                .for_each(|one| one.force_access_times(Some(AccessTimes::Never)));
        };
        keep_times(&mount.files);
        let exchanged = mount.mounted.exchange(|| {
            let ways = |files: &Files| inside.iter().map(|(_, way)| steps(&**files, way)).collect();
            let (before, numbers): (Vec<_>, _) = (ways(&mount.files), mount.files.numbers());
            // At once: they are opened again below.
            if let Err(error) = self.changes.closed_files(&mount.files) {
                tracing::warn!(dataset = name, %error, "not closed");
            }
            let is_other = change();
            // What is open without a name stays if nothing was changed.
            let opened = self.reopened(pool, name, wanted.read_only || !is_other);
            let Some(opened) = opened else { return Next::Nothing };
            opened.go_on_with(numbers);
            keep_times(&opened);
            let now: Vec<_> = ways(&opened);
            let ways = inside.iter().zip(before.iter().zip(&now));
            moved = ways
                .filter(|(_, (before, now))| before != now)
                .map(|(one, _)| one.0.clone())
                .collect();
            files = Some(opened.clone());
            if is_other { Next::Other(opened) } else { Next::Same(opened) }
        });
        if exchanged == Exchanged::NotBegun {
            keep_access_times(&mount.files, &wanted);
            return None;
        }
        if let Some(files) = files {
            keep_access_times(&files, &wanted);
            self.table.put(name, Mount { files, ..Mount::clone(&mount) });
        }
        Some(Reopened { is_lost: exchanged == Exchanged::CutOff, moved })
    }

    fn reopened(&self, pool: &Arc<Pool>, name: &str, read_only: bool) -> Option<Files> {
        let found = find_to_mount(pool, name).map_err(|(_, reason)| reason);
        let files = found.and_then(|(found, _)| {
            self.changes.open_files(pool, &found, read_only).map_err(|error| error.reason)
        });
        let files = files
            .inspect_err(|reason| tracing::error!(dataset = name, reason, "not opened again"))
            .ok()?;
        if let Some(admin) = self.admin.get() {
            files.administer(admin.clone());
        }
        Some(files)
    }

    /// Names of what is mounted inside `place`, and the ways there.
    fn ways_inside(&self, place: &Path) -> Vec<(String, PathBuf)> {
        let table = self.table.now();
        let way = |mount: &Mount| Some(mount.at.strip_prefix(place).ok()?.to_path_buf());
        let all = table.iter().filter(|(_, mount)| mount.at != place && mount.is_there());
        all.filter_map(|(name, mount)| Some((name.to_string(), way(mount)?))).collect()
    }
}

/// The directories on the way; none if there is no such way.
fn steps(files: &dyn Tree, way: &Path) -> Option<Vec<Step>> {
    let mut node = ROOT;
    let mut steps = Vec::new();
    for name in way {
        let Attributes { node: found, generation, created, .. } =
            files.lookup(node, name.as_encoded_bytes()).ok()?;
        steps.push((found, generation, created));
        node = found;
    }
    Some(steps)
}
