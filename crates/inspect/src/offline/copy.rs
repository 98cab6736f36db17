//! `cenote cp`: copies a tree out of a pool with its attributes, sparse, without mounting.
//!
//! Invariant: nothing is written that its checksum does not vouch for. What cannot be read is
//! listed with its reason; with `skip_errors` the readable rest of a damaged file is kept and its
//! missing ranges are listed and left as holes.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use cenote_posix::tree::{Attributes, Errno, NodeId, Seek, Timestamp, Tree};
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};

use super::walk::{self, Step};

/// Bytes read at a time.
const CHUNK: u64 = 1 << 20;
/// Bytes tried at a time where a chunk could not be read.
const SALVAGE: u64 = 4096;

/// How to copy.
#[derive(Debug, Clone, Copy, Default)]
pub struct CopyOptions {
    /// Keep what verifies of a damaged file, map what does not, and go on.
    pub skip_errors: bool,
}

/// One thing that could not be copied as it is.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Loss {
    /// Path inside the copied tree.
    pub path: String,
    /// Byte range that is missing, if only part of a file is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range: Option<(u64, u64)>,
    /// Why.
    pub reason: String,
}

/// What was copied and what was not.
#[derive(Debug, Clone, Default, serde::Serialize)]
pub struct CopyReport {
    /// Files, directories, links and nodes made.
    pub entries: u64,
    /// Bytes of data written.
    pub bytes: u64,
    /// What is missing or different.
    pub losses: Vec<Loss>,
}

/// Called with (entries, bytes) as the copy goes on.
pub type Progress<'a> = dyn FnMut(u64, u64) + 'a;

/// Copies the file or directory `from` of `tree` to `to`. A directory's content goes into `to`,
/// which is made if it does not exist.
pub fn copy(
    tree: &dyn Tree,
    from: NodeId,
    to: &Path,
    options: CopyOptions,
    progress: &mut Progress<'_>,
) -> io::Result<CopyReport> {
    let root = rustix::process::geteuid().is_root();
    let mut copier = Copier {
        tree,
        options,
        progress,
        root,
        report: CopyReport::default(),
        links: HashMap::new(),
    };
    let attributes = tree.attributes(from).map_err(io_error)?;
    let file_type = FileType::from_raw_mode(attributes.mode);
    if file_type != FileType::Directory {
        copier.entry(&attributes, to, Path::new("."))?;
        return Ok(copier.report);
    }
    fs::create_dir_all(to)?;
    let mut directories = vec![(attributes.clone(), to.to_owned(), PathBuf::from("."))];
    let mut unreadable = Vec::new();
    walk::walk(tree, from, &mut |step| {
        match step {
            Step::Entry { path, attributes } => {
                let target = to.join(path);
                if FileType::from_raw_mode(attributes.mode) == FileType::Directory {
                    match fs::create_dir(&target) {
                        Ok(()) => copier.count(0),
                        // A link of that name would lead the copy out of its target.
                        Err(_) if fs::symlink_metadata(&target).is_ok_and(|m| m.is_dir()) => {
                            copier.count(0);
                        }
                        Err(error) => {
                            copier.lose(path, None, format!("cannot be made: {error}"));
                            return Ok(());
                        }
                    }
                    directories.push((attributes.clone(), target, path.to_owned()));
                } else if let Err(error) = copier.entry(attributes, &target, path) {
                    if ends_the_copy(&error) {
                        return Err(error);
                    }
                    copier.lose(path, None, format!("cannot be made: {error}"));
                }
            }
            Step::Unreadable { path, error } => unreadable.push((path.to_owned(), error)),
        }
        Ok(())
    })?;
    for (path, error) in unreadable {
        copier.lose(&path, None, error.reason);
    }
    // Deepest first: filling a directory changes its times.
    for (attributes, target, path) in directories.into_iter().rev() {
        copier.dress(&attributes, &target, &path);
    }
    Ok(copier.report)
}

/// Whether nothing more can be written to the target.
fn ends_the_copy(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem)
}

fn io_error(error: Errno) -> io::Error {
    io::Error::new(io::Error::from_raw_os_error(error.code).kind(), error.reason)
}

struct Copier<'a, 'b> {
    tree: &'a dyn Tree,
    options: CopyOptions,
    progress: &'a mut Progress<'b>,
    root: bool,
    report: CopyReport,
    /// First copy of every file with several links.
    links: HashMap<NodeId, PathBuf>,
}

impl Copier<'_, '_> {
    fn lose(&mut self, path: &Path, range: Option<(u64, u64)>, reason: String) {
        self.report.losses.push(Loss { path: path.display().to_string(), range, reason });
    }

    fn count(&mut self, bytes: u64) {
        if bytes == 0 {
            self.report.entries += 1;
        }
        self.report.bytes += bytes;
        (self.progress)(self.report.entries, self.report.bytes);
    }

    /// Copies anything but a directory. An error of the target ends the copy (its disk is full);
    /// an error of the source is a loss.
    fn entry(&mut self, attributes: &Attributes, target: &Path, path: &Path) -> io::Result<()> {
        if attributes.links > 1 {
            if let Some(first) = self.links.get(&attributes.node) {
                replace(target, || fs::hard_link(first, target))?;
                self.count(0);
                return Ok(());
            }
            self.links.insert(attributes.node, target.to_owned());
        }
        match FileType::from_raw_mode(attributes.mode) {
            FileType::RegularFile => {
                if !self.regular(attributes, target, path)? {
                    return Ok(());
                }
            }
            FileType::Symlink => match self.tree.read_link(attributes.node) {
                Ok(link) => {
                    let link = Path::new(std::ffi::OsStr::from_bytes(&link)).to_owned();
                    replace(target, || symlink(&link, target))?;
                }
                Err(error) => {
                    self.lose(path, None, error.reason);
                    return Ok(());
                }
            },
            kind => {
                let mode = Mode::from_raw_mode(attributes.mode & 0o7777);
                let made = replace(target, || {
                    Ok(rustix::fs::mknodat(CWD, target, kind, mode, attributes.rdev)?)
                });
                if let Err(error) = made {
                    self.lose(path, None, format!("device or special file not made: {error}"));
                    return Ok(());
                }
            }
        }
        self.count(0);
        self.dress(attributes, target, path);
        Ok(())
    }

    /// Returns whether the file is there (perhaps with holes where it was damaged).
    fn regular(&mut self, attributes: &Attributes, target: &Path, path: &Path) -> io::Result<bool> {
        let open = || File::options().write(true).create_new(true).mode(0o600).open(target);
        let file = replace(target, open)?;
        file.set_len(attributes.size)?;
        let mut offset = 0;
        while offset < attributes.size {
            let start = match self.tree.seek(attributes.node, offset, Seek::Data) {
                Ok(start) => start,
                Err(error) if error.code == rustix::io::Errno::NXIO.raw_os_error() => break,
                Err(error) => {
                    self.missing(path, (offset, attributes.size), error.reason);
                    if !self.options.skip_errors {
                        return self.give_up(target);
                    }
                    break;
                }
            };
            let end = self.tree.seek(attributes.node, start, Seek::Hole).unwrap_or(start + CHUNK);
            let end = end.clamp(start.saturating_add(1), attributes.size.max(start + 1));
            offset = start;
            while offset < end.min(attributes.size) {
                let len = CHUNK.min(end - offset).min(attributes.size - offset);
                if !self.chunk(attributes.node, &file, path, offset, len)? {
                    return self.give_up(target);
                }
                offset += len;
            }
        }
        Ok(true)
    }

    fn give_up(&mut self, target: &Path) -> io::Result<bool> {
        fs::remove_file(target)?;
        Ok(false)
    }

    fn missing(&mut self, path: &Path, range: (u64, u64), reason: String) {
        if let Some(last) = self.report.losses.last_mut() {
            let same = last.path == path.display().to_string() && last.reason == reason;
            if let (true, Some((_, end))) = (same, &mut last.range)
                && *end == range.0
            {
                *end = range.1;
                return;
            }
        }
        self.lose(path, Some(range), reason);
    }

    /// Copies one range; false if it could not be read and errors are not skipped.
    fn chunk(
        &mut self,
        node: NodeId,
        file: &File,
        path: &Path,
        offset: u64,
        len: u64,
    ) -> io::Result<bool> {
        match self.tree.read(node, offset, len as usize) {
            Ok(pieces) => {
                let mut at = offset;
                for piece in pieces {
                    file.write_all_at(&piece, at)?;
                    at += piece.len() as u64;
                }
                self.count(len);
                Ok(true)
            }
            Err(error) if !self.options.skip_errors => {
                self.missing(path, (offset, offset + len), error.reason);
                Ok(false)
            }
            Err(error) if len <= SALVAGE => {
                self.missing(path, (offset, offset + len), error.reason);
                Ok(true)
            }
            Err(_) => {
                // Halves, down to single sectors: a chunk may span several blocks.
                let half = (len / 2).next_multiple_of(SALVAGE).min(len - 1);
                self.chunk(node, file, path, offset, half)?;
                self.chunk(node, file, path, offset + half, len - half)
            }
        }
    }

    /// Owner, mode, extended attributes, times. What the user may not set is not a loss, except
    /// extended attributes.
    fn dress(&mut self, attributes: &Attributes, target: &Path, path: &Path) {
        let is_link = FileType::from_raw_mode(attributes.mode) == FileType::Symlink;
        if self.root {
            let (uid, gid) = (attributes.uid, attributes.gid);
            if let Err(error) = std::os::unix::fs::lchown(target, Some(uid), Some(gid)) {
                self.lose(path, None, format!("owner not set: {error}"));
            }
        }
        for name in self.tree.list_xattr(attributes.node).unwrap_or_default() {
            let Ok(c_name) = CString::new(name.clone()) else { continue };
            let set =
                self.tree.get_xattr(attributes.node, &name).map_err(io_error).and_then(|v| {
                    Ok(rustix::fs::lsetxattr(target, &c_name, &v, XattrFlags::empty())?)
                });
            if let Err(error) = set {
                let name = String::from_utf8_lossy(&name).into_owned();
                self.lose(path, None, format!("extended attribute {name} not set: {error}"));
            }
        }
        if !is_link {
            let mode = Mode::from_raw_mode(attributes.mode & 0o7777);
            if let Err(error) = rustix::fs::chmod(target, mode) {
                self.lose(path, None, format!("mode not set: {error}"));
            }
        }
        let times = Timestamps {
            last_access: timespec(attributes.accessed),
            last_modification: timespec(attributes.modified),
        };
        if let Err(error) = rustix::fs::utimensat(CWD, target, &times, AtFlags::SYMLINK_NOFOLLOW) {
            self.lose(path, None, format!("times not set: {error}"));
        }
    }
}

fn timespec(time: Timestamp) -> Timespec {
    Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() }
}

/// Makes something at `target`, replacing what an earlier copy left there.
fn replace<T>(target: &Path, make: impl Fn() -> io::Result<T>) -> io::Result<T> {
    match make() {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_file(target)?;
            make()
        }
        result => result,
    }
}
