//! `cenote cp`: copies a tree out of a pool with its attributes, sparse, without mounting.
//!
//! Invariant: nothing is written that its checksum does not vouch for. What cannot be read is
//! listed with its reason; with `skip_errors` the readable rest of a damaged file is kept and its
//! missing ranges are listed and left as holes.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use cenote_posix::tree::{Attributes, Errno, NodeId, Seek, Timestamp, Tree};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags, chmodat, chownat,
    fchmod, fchown, fsetxattr, futimens, linkat, lsetxattr, mknodat, openat, symlinkat, unlinkat,
    utimensat,
};

use super::below::{Below, Place};
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
    let attributes = tree.attributes(from).map_err(io_error)?;
    if FileType::from_raw_mode(attributes.mode) == FileType::Directory {
        return copy_below(tree, from, (&mut Below::make(to)?, Path::new("")), options, progress);
    }
    let name = to.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::IsADirectory))?;
    let above = to.parent().filter(|above| !above.as_os_str().is_empty());
    let mut below = Below::open(above.unwrap_or(Path::new(".")))?;
    let mut copier = Copier::new(tree, options, progress, &mut below);
    copier.entry(&attributes, Path::new(name), Path::new("."))?;
    Ok(copier.report)
}

/// Copies the content of the directory `from` into the directory `at` of `below`.
pub fn copy_below(
    tree: &dyn Tree,
    from: NodeId,
    (below, at): (&mut Below, &Path),
    options: CopyOptions,
    progress: &mut Progress<'_>,
) -> io::Result<CopyReport> {
    let attributes = tree.attributes(from).map_err(io_error)?;
    let mut copier = Copier::new(tree, options, progress, below);
    match copier.below.enter(at, true) {
        Err(error) if !ends_the_copy(&error) => {
            copier.lose(Path::new("."), None, format!("cannot be made: {error}"));
            return Ok(copier.report);
        }
        entered => drop(entered?),
    }
    let mut directories = vec![(attributes, at.to_owned(), PathBuf::from("."))];
    let mut unreadable = Vec::new();
    walk::walk(tree, from, &mut |step| {
        let (path, attributes) = match step {
            Step::Entry { path, attributes } => (path, attributes),
            Step::Unreadable { path, error } => {
                unreadable.push((path.to_owned(), error));
                return Ok(true);
            }
        };
        let target = at.join(path);
        let made = match FileType::from_raw_mode(attributes.mode) {
            FileType::Directory => copier.below.enter(&target, true).map(|_| {
                directories.push((attributes.clone(), target, path.to_owned()));
                copier.count(0);
            }),
            _ => copier.entry(attributes, &target, path),
        };
        match made {
            Err(error) if ends_the_copy(&error) => Err(error),
            Err(error) => {
                copier.lose(path, None, format!("cannot be made: {error}"));
                Ok(false)
            }
            Ok(()) => Ok(true),
        }
    })?;
    for (path, error) in unreadable {
        copier.lose(&path, None, error.reason);
    }
    // Deepest first: filling a directory changes its times.
    for (attributes, target, path) in directories.into_iter().rev() {
        copier.dress_directory(&attributes, &target, &path);
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
    below: &'a mut Below,
    root: bool,
    report: CopyReport,
    /// First copy of every file with several links.
    links: HashMap<NodeId, PathBuf>,
}

impl<'a, 'b> Copier<'a, 'b> {
    fn new(
        tree: &'a dyn Tree,
        options: CopyOptions,
        progress: &'a mut Progress<'b>,
        below: &'a mut Below,
    ) -> Self {
        let root = rustix::process::geteuid().is_root();
        let (report, links) = (CopyReport::default(), HashMap::new());
        Self { tree, options, progress, below, root, report, links }
    }

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
        let place = self.below.place(target)?;
        if attributes.links > 1 {
            if let Some(first) = self.links.get(&attributes.node).cloned() {
                let first = self.below.place(&first)?;
                replace(&place, || {
                    let none = AtFlags::empty();
                    linkat(&*first.directory, &first.name, &*place.directory, &place.name, none)
                })?;
                self.count(0);
                return Ok(());
            }
            self.links.insert(attributes.node, target.to_owned());
        }
        match FileType::from_raw_mode(attributes.mode) {
            FileType::RegularFile => {
                let Some(file) = self.regular(attributes, &place, path)? else { return Ok(()) };
                self.count(0);
                self.dress(attributes, (&place, Some(file.as_fd())), path);
                return Ok(());
            }
            FileType::Symlink => match self.tree.read_link(attributes.node) {
                Ok(link) => {
                    let link = Path::new(std::ffi::OsStr::from_bytes(&link)).to_owned();
                    replace(&place, || symlinkat(&link, &*place.directory, &place.name))?;
                }
                Err(error) => {
                    self.lose(path, None, error.reason);
                    return Ok(());
                }
            },
            kind => {
                let mode = Mode::from_raw_mode(attributes.mode & 0o7777);
                let rdev = attributes.rdev;
                let made =
                    replace(&place, || mknodat(&*place.directory, &place.name, kind, mode, rdev));
                if let Err(error) = made {
                    self.lose(path, None, format!("device or special file not made: {error}"));
                    return Ok(());
                }
            }
        }
        self.count(0);
        self.dress(attributes, (&place, None), path);
        Ok(())
    }

    /// The file, if it is there (perhaps with holes where it was damaged).
    fn regular(
        &mut self,
        attributes: &Attributes,
        place: &Place,
        path: &Path,
    ) -> io::Result<Option<File>> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        let file = replace(place, || openat(&*place.directory, &place.name, flags, mode))?;
        let file = File::from(file);
        file.set_len(attributes.size)?;
        let mut offset = 0;
        while offset < attributes.size {
            let start = match self.tree.seek(attributes.node, offset, Seek::Data) {
                Ok(start) => start,
                Err(error) if error.code == rustix::io::Errno::NXIO.raw_os_error() => break,
                Err(error) => {
                    self.missing(path, (offset, attributes.size), error.reason);
                    if !self.options.skip_errors {
                        return give_up(place);
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
                    return give_up(place);
                }
                offset += len;
            }
        }
        Ok(Some(file))
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

    fn dress_directory(&mut self, attributes: &Attributes, target: &Path, path: &Path) {
        match self.below.enter(target, false) {
            Ok(directory) => {
                // From an earlier copy it may have a mode that does not let it be read.
                let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let open = openat(&*directory, ".", flags, Mode::empty()).ok();
                let place = Place { directory, name: ".".into() };
                self.dress(attributes, (&place, open.as_ref().map(AsFd::as_fd)), path);
            }
            Err(error) => self.lose(path, None, format!("owner, mode and times not set: {error}")),
        }
    }

    /// Owner, mode, extended attributes, times. What the user may not set is not a loss, except
    /// extended attributes. What is not open is what was made at `place` just now.
    fn dress(
        &mut self,
        attributes: &Attributes,
        (place, open): (&Place, Option<BorrowedFd<'_>>),
        path: &Path,
    ) {
        let is_link = FileType::from_raw_mode(attributes.mode) == FileType::Symlink;
        let (directory, own) = (&*place.directory, AtFlags::SYMLINK_NOFOLLOW);
        if self.root {
            let (uid, gid) = (Uid::from_raw(attributes.uid), Gid::from_raw(attributes.gid));
            let set = match open {
                Some(open) => fchown(open, Some(uid), Some(gid)),
                None => chownat(directory, &place.name, Some(uid), Some(gid), own),
            };
            if let Err(error) = set {
                self.lose(path, None, format!("owner not set: {error}"));
            }
        }
        // No call sets one of a name in an open directory.
        let by_name = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
        let by_name = by_name.join(&place.name);
        for name in self.tree.list_xattr(attributes.node).unwrap_or_default() {
            let Ok(c_name) = CString::new(name.clone()) else { continue };
            let value = self.tree.get_xattr(attributes.node, &name).map_err(io_error);
            let set = value.and_then(|value| {
                let set = match open {
                    Some(open) => fsetxattr(open, &c_name, &value, XattrFlags::empty()),
                    None => lsetxattr(&by_name, &c_name, &value, XattrFlags::empty()),
                };
                Ok(set?)
            });
            if let Err(error) = set {
                let name = String::from_utf8_lossy(&name).into_owned();
                self.lose(path, None, format!("extended attribute {name} not set: {error}"));
            }
        }
        if !is_link {
            let mode = Mode::from_raw_mode(attributes.mode & 0o7777);
            let set = match open {
                Some(open) => fchmod(open, mode),
                None => chmodat(directory, &place.name, mode, AtFlags::empty()),
            };
            if let Err(error) = set {
                self.lose(path, None, format!("mode not set: {error}"));
            }
        }
        let times = Timestamps {
            last_access: timespec(attributes.accessed),
            last_modification: timespec(attributes.modified),
        };
        let set = match open {
            Some(open) => futimens(open, &times),
            None => utimensat(directory, &place.name, &times, own),
        };
        if let Err(error) = set {
            self.lose(path, None, format!("times not set: {error}"));
        }
    }
}

fn timespec(time: Timestamp) -> Timespec {
    Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() }
}

/// Makes something at `place`, replacing what an earlier copy left there.
fn replace<T>(place: &Place, make: impl Fn() -> rustix::io::Result<T>) -> io::Result<T> {
    match make() {
        Err(rustix::io::Errno::EXIST) => {
            unlinkat(&*place.directory, &place.name, AtFlags::empty())?;
            Ok(make()?)
        }
        result => Ok(result?),
    }
}

/// Removes what was begun.
fn give_up(place: &Place) -> io::Result<Option<File>> {
    unlinkat(&*place.directory, &place.name, AtFlags::empty())?;
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use cenote_posix::tree::{Caller, DirectoryEntry, Pieces, ROOT, Result, Space};

    use super::*;

    /// A directory `x` with a directory `y` in it, and a file of seven bytes in that; `l` is a link.
    struct Small;

    const X: NodeId = 10;
    const Y: NodeId = 11;
    const FILE: NodeId = 12;
    const LINK: NodeId = 13;

    impl Small {
        fn entries(node: NodeId) -> &'static [(&'static str, NodeId)] {
            match node {
                ROOT => &[("l", LINK), ("x", X)],
                X => &[("y", Y)],
                Y => &[("file", FILE)],
                _ => &[],
            }
        }
    }

    fn none<T>(error: rustix::io::Errno) -> Result<T> {
        Err(Errno { code: error.raw_os_error(), reason: "none".into() })
    }

    impl Tree for Small {
        fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Attributes> {
            match Self::entries(parent).iter().find(|entry| entry.0.as_bytes() == name) {
                Some(entry) => self.attributes(entry.1),
                None => none(rustix::io::Errno::NOENT),
            }
        }
        fn attributes(&self, node: NodeId) -> Result<Attributes> {
            let (mode, size) = match node {
                FILE => (0o100_640, 7),
                LINK => (0o120_777, 4),
                _ => (0o040_750, 2),
            };
            let time = Timestamp { seconds: 1_000_000, nanoseconds: 5 };
            Ok(Attributes {
                node,
                generation: 1,
                mode,
                links: 1,
                uid: rustix::process::getuid().as_raw(),
                gid: rustix::process::getgid().as_raw(),
                rdev: 0,
                size,
                sectors: 1,
                block_size: 512,
                accessed: time,
                modified: time,
                changed: time,
                created: time,
            })
        }
        fn access(&self, _: NodeId, _: Caller, _: u32) -> Result<()> {
            Ok(())
        }
        fn read_link(&self, _: NodeId) -> Result<Vec<u8>> {
            Ok(b"/etc".to_vec())
        }
        fn read(&self, _: NodeId, offset: u64, _: usize) -> Result<Pieces> {
            Ok([bytes::Bytes::from_static(b"content").slice(offset as usize..)]
                .into_iter()
                .collect())
        }
        fn read_directory(
            &self,
            node: NodeId,
            _: u64,
            each: &mut dyn FnMut(DirectoryEntry) -> bool,
        ) -> Result<()> {
            for (number, (name, node)) in (1..).zip(Self::entries(node)) {
                each(DirectoryEntry {
                    node: *node,
                    name: name.as_bytes().to_vec(),
                    kind: 0,
                    next: number,
                });
            }
            Ok(())
        }
        fn seek(&self, _: NodeId, offset: u64, what: Seek) -> Result<u64> {
            Ok(if matches!(what, Seek::Data) { offset } else { 7 })
        }
        fn get_xattr(&self, _: NodeId, _: &[u8]) -> Result<Vec<u8>> {
            none(rustix::io::Errno::NODATA)
        }
        fn list_xattr(&self, _: NodeId) -> Result<Vec<Vec<u8>>> {
            Ok(Vec::new())
        }
        fn space(&self) -> Result<Space> {
            none(rustix::io::Errno::NOSYS)
        }
    }

    fn losses(report: &CopyReport) -> Vec<&str> {
        report.losses.iter().map(|loss| loss.path.as_str()).collect()
    }

    #[test]
    fn a_tree_is_copied_with_modes_and_times() {
        use std::os::unix::fs::MetadataExt;
        let to = tempfile::tempdir().unwrap();
        let to = to.path().join("new");
        for _ in 0..2 {
            let report = copy(&Small, ROOT, &to, CopyOptions::default(), &mut |_, _| ()).unwrap();
            assert!(report.losses.is_empty(), "{:?}", report.losses);
        }
        assert_eq!(fs::read(to.join("x/y/file")).unwrap(), b"content");
        assert_eq!(fs::read_link(to.join("l")).unwrap(), Path::new("/etc"));
        for (path, mode) in [("x/y/file", 0o100_640), ("x/y", 0o040_750), ("x", 0o040_750)] {
            let seen = fs::metadata(to.join(path)).unwrap();
            assert_eq!(
                (seen.mode(), seen.mtime(), seen.mtime_nsec()),
                (mode, 1_000_000, 5),
                "{path}"
            );
        }
        let file = to.with_file_name("alone");
        copy(&Small, FILE, &file, CopyOptions::default(), &mut |_, _| ()).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"content");
    }

    #[test]
    fn what_an_earlier_copy_left_leads_nowhere_else() {
        let (outside, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(outside.path().join("y")).unwrap();
        symlink(outside.path(), to.path().join("x")).unwrap();
        let report = copy(&Small, ROOT, to.path(), CopyOptions::default(), &mut |_, _| ()).unwrap();
        assert_eq!(losses(&report), ["x"], "{:?}", report.losses);
        assert!(!outside.path().join("y/file").exists());
    }

    #[test]
    fn a_dataset_below_a_link_stays_out() {
        let (outside, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        symlink(outside.path(), to.path().join("etc")).unwrap();
        let mut below = Below::make(to.path()).unwrap();
        let at = (&mut below, Path::new("etc/cron.d"));
        let report = copy_below(&Small, ROOT, at, CopyOptions::default(), &mut |_, _| ()).unwrap();
        assert_eq!((losses(&report), report.entries), (vec!["."], 0));
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
    }
}
