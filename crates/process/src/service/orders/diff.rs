//! `zfs diff`: what of the files of a snapshot is different later.
//!
//! Invariant: it changes nothing, but for a snapshot of what is now, which goes again when the order has ended; no
//! other order waits for it.

use std::path::PathBuf;

use cenote_control::changes::DiffRequest;
use cenote_control::peer::Peer;
use cenote_control::protocol::{Failure, FailureKind, Part};
use cenote_engine::dataset::Dataset;
use cenote_engine::object::ObjectSet;
use cenote_engine::send::Since;
use cenote_engine::{Error, ErrorKind};
use cenote_posix::attributes::{BLOCK, CHARACTER, DIRECTORY, REGULAR, SYMLINK};
use cenote_posix::difference::{Difference, How, differences};
use cenote_posix::tree::Errno;

use super::now::Now;
use super::{Doing, Order, SUSPENDED, Warnings};
use crate::service::datasets::{Datasets, Shown};
use crate::service::delegation::Need;

/// Lines that are told together.
const TOGETHER: usize = 64;
/// Kinds of files in `st_mode`, beside those of `attributes`.
const FIFO: u32 = 0o010_000;
const SOCKET: u32 = 0o140_000;

pub(super) struct Diff<'a>(pub(super) &'a DiffRequest);

impl Order for Diff<'_> {
    fn cannot(&self, _: &str) -> String {
        "Unable to obtain diffs".to_owned()
    }

    fn needs(&self, _: &Shown, _: &Peer) -> Option<Vec<Need>> {
        Some(vec![Need::new("diff", &self.0.to)])
    }

    fn denial(&self, pool: &str) -> String {
        match self.0.to.contains('@') {
            true => format!(
                "{}: \n   The sys_mount privilege or diff delegated permission is needed\n   to \
                 execute the diff ioctl",
                self.cannot(pool)
            ),
            false => "The diff delegated permission is needed in order\nto create a just-in-time \
                      snapshot for diffing\n: unable to generate diffs"
                .to_owned(),
        }
    }

    fn words(&self, error: &Error) -> Option<String> {
        let is_other = error.kind() == ErrorKind::InvalidArgument;
        is_other.then(|| "\n   Not an earlier snapshot from the same fs".to_owned())
    }

    /// It waits for nobody.
    fn is_urgent(&self) -> bool {
        true
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        if doing.service.changes.suspended().is_some() {
            return Err(doing.refuse(FailureKind::Other, SUSPENDED));
        }
        let request = self.0;
        let all = doing.shown()?;
        for name in [&request.from, &request.to] {
            if !all.has(name) {
                return Err(doing.refuse(FailureKind::NotFound, "No such file or directory"));
            }
        }
        if request.to.contains('@') {
            return self.compare(doing, &request.to);
        }
        let now = Now::taken(doing, &request.to, "zfs-diff")?;
        self.compare(doing, &now.name)
    }
}

impl Diff<'_> {
    fn compare(&self, doing: &Doing<'_>, to: &str) -> Result<Warnings, Failure> {
        let catalog = doing.pool.catalog();
        let refused = |error: Error| doing.refused(&error);
        let from = catalog.dataset_named(&self.0.from).map_err(refused)?;
        let to = catalog.dataset_named(to).map_err(refused)?;
        let _kept = [&from, &to].map(|one| doing.pool.kept().keep(one.id));
        let since = Since::snapshot(&catalog, &to, &from).map_err(|error| {
            let is_other = from.directory.id != to.directory.id;
            match is_other && error.kind() == ErrorKind::InvalidArgument {
                true => {
                    let words = "Not an earlier snapshot from the same fs: invalid name";
                    Failure::new(FailureKind::Other, words)
                }
                false => refused(error),
            }
        })?;
        let set = |of: &Dataset| -> Result<ObjectSet, Failure> {
            catalog.object_set(of, &**doing.pool.keys()).map_err(refused)
        };
        let (old, new) = (set(&from)?, set(&to)?);
        let place = self.place(doing)?;
        let place = place.display().to_string();
        let mut lines = Vec::new();
        let mut gone = None;
        let looked_at = |object| doing.replies.progress(object, u64::MAX);
        let told = differences(&old, &new, since.creation_txg, &looked_at, &mut |difference| {
            if let Err(error) = doing.service.leaving.check() {
                gone = Some(doing.refuse(FailureKind::Other, &error.to_string()));
                return Err(Errno::new(cenote_posix::error::EIO, "the process ends"));
            }
            lines.push(self.line(&place, &difference));
            if lines.len() < TOGETHER {
                return Ok(());
            }
            let said = doing.replies.part(Part::Said(std::mem::take(&mut lines)));
            said.map_err(|failure| {
                gone = Some(failure);
                Errno::new(cenote_posix::error::EIO, "nobody listens")
            })
        });
        match (told, gone) {
            (_, Some(failure)) => Err(failure),
            (Err(error), None) => Err(doing.refuse(FailureKind::Other, &error.reason)),
            (Ok(()), None) => doing.replies.part(Part::Said(lines)).map(|()| Vec::new()),
        }
    }

    /// Where the files are, or would be.
    fn place(&self, doing: &Doing<'_>) -> Result<PathBuf, Failure> {
        let of = self.0.to.split('@').next().unwrap_or_default();
        if let Some(place) = doing.service.mounts.of(of) {
            return Ok(place);
        }
        let found = doing.shown()?.find(of);
        let place = found.as_ref().and_then(|found| found.properties.value("mountpoint"));
        match place.filter(|place| place.starts_with('/')) {
            Some(place) => Ok(PathBuf::from(place)),
            None => Err(doing.refuse(FailureKind::Other, "Cannot diff an unmounted snapshot")),
        }
    }

    fn line(&self, place: &str, difference: &Difference) -> String {
        let request = self.0;
        let mut line = String::new();
        if request.times {
            let at = difference.changed;
            line.push_str(&format!("{:10}.{:09}\t", at.seconds, at.nanoseconds));
        }
        line.push_str(match difference.how {
            How::Added => "+\t",
            How::Removed => "-\t",
            How::Modified | How::Links(_) => "M\t",
            How::Renamed => "R\t",
        });
        if request.classify {
            line.push_str(kind(difference.mode));
            line.push('\t');
        }
        let place = if place == "/" { "" } else { place };
        let named =
            |path: &[u8]| format!("{}{}", self.written(place.as_bytes()), self.written(path));
        line.push_str(&named(&difference.path));
        if let Some(to) = &difference.to {
            line.push_str(if request.scripted { "\t" } else { " -> " });
            line.push_str(&named(to));
        }
        if let How::Links(change) = difference.how {
            line.push_str(&format!("\t({change:+})"));
        }
        line
    }

    /// A path as it is shown.
    fn written(&self, path: &[u8]) -> String {
        if self.0.plain {
            return String::from_utf8_lossy(path).into_owned();
        }
        let shown = |byte: &u8| match byte {
            b'\\' | 0..=b' ' | 0x7f.. => format!("\\{byte:04o}"),
            plain => char::from(*plain).to_string(),
        };
        path.iter().map(shown).collect()
    }
}

/// The letter of a kind of file.
fn kind(mode: u32) -> &'static str {
    match mode & 0o170_000 {
        REGULAR => "F",
        DIRECTORY => "/",
        SYMLINK => "@",
        BLOCK => "B",
        CHARACTER => "C",
        FIFO => "|",
        SOCKET => "=",
        _ => "?",
    }
}
