//! The directory that a copy goes to, and what is made below it.
//!
//! Invariant: below it no link is followed and no `..` taken, so that nothing outside it is ever changed, whatever
//! an image says and whatever lies there already.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};

/// See the module.
pub struct Below {
    top: Rc<OwnedFd>,
    /// The directory that was entered last: most entries lie in the same as the one before.
    last: Option<(PathBuf, Rc<OwnedFd>)>,
}

impl Below {
    /// Whatever `to` names is the top, by way of links too: a user said it.
    ///
    /// # Errors
    /// If it is no directory.
    pub fn open(to: &Path) -> io::Result<Self> {
        let top =
            openat(CWD, to, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { top: Rc::new(top), last: None })
    }

    /// The same, made if it is not there.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn make(to: &Path) -> io::Result<Self> {
        fs::create_dir_all(to)?;
        Self::open(to)
    }

    /// Enters a directory below the top; with `missing`, those that are not there are made.
    ///
    /// # Errors
    /// If a part of the way is no directory, or leads out.
    pub fn enter(&mut self, directory: &Path, missing: bool) -> io::Result<Rc<OwnedFd>> {
        if let Some((path, entered)) = &self.last
            && path == directory
        {
            return Ok(entered.clone());
        }
        let mut entered = self.top.clone();
        for part in directory.components() {
            let name = match part {
                Component::Normal(name) => name,
                Component::CurDir => continue,
                _ => return Err(io::Error::other("it leads out of the target")),
            };
            if missing {
                match mkdirat(&*entered, name, Mode::from_raw_mode(0o777)) {
                    Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            entered = Rc::new(openat(&*entered, name, flags, Mode::empty())?);
        }
        self.last = Some((directory.to_owned(), entered.clone()));
        Ok(entered)
    }

    /// The directory where something below the top lies, and its name there.
    ///
    /// # Errors
    /// If that is no directory, or leads out.
    pub fn place(&mut self, path: &Path) -> io::Result<Place> {
        let name = path.file_name().ok_or_else(|| io::Error::other("it has no name"))?;
        let directory = self.enter(path.parent().unwrap_or(Path::new("")), false)?;
        Ok(Place { directory, name: PathBuf::from(name) })
    }
}

/// Where something is made.
#[derive(Clone)]
pub struct Place {
    /// The directory.
    pub directory: Rc<OwnedFd>,
    /// The one part of its name there.
    pub name: PathBuf,
}

/// What of `path` lies below `base`; none if it lies elsewhere, or leads out again.
pub fn inside<'a>(base: &str, path: &'a str) -> Option<&'a Path> {
    let rest = Path::new(path).strip_prefix(base).ok()?;
    rest.components().all(|part| matches!(part, Component::Normal(_))).then_some(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leads_out_of_a_mountpoint_is_not_inside() {
        assert_eq!(inside("/tank", "/tank/a/b"), Some(Path::new("a/b")));
        assert_eq!(inside("/", "/a"), Some(Path::new("a")));
        assert_eq!(inside("/tank", "/tank"), Some(Path::new("")));
        assert_eq!(inside("/tank", "/tank/../../etc/cron.d"), None);
        assert_eq!(inside("/tank", "/tanker/a"), None);
        assert_eq!(inside("/tank", "/etc"), None);
    }

    #[test]
    fn no_link_is_followed_below_the_top() {
        let (outside, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir(outside.path().join("there")).unwrap();
        std::os::unix::fs::symlink(outside.path(), to.path().join("link")).unwrap();
        let mut below = Below::make(to.path()).unwrap();
        for (path, missing) in [
            ("link", false),
            ("link", true),
            ("link/new", true),
            ("link/there", false),
            ("..", false),
            ("a/../..", true),
        ] {
            assert!(below.enter(Path::new(path), missing).is_err(), "{path}");
        }
        assert!(below.place(Path::new("link/there")).is_err());
        assert!(below.place(Path::new("link")).is_ok());
        assert!(!outside.path().join("new").exists());
        assert!(below.enter(Path::new("./b/c"), true).is_ok());
        assert!(to.path().join("b/c").is_dir());
        // The top may be a link itself: its user named it.
        assert!(Below::make(&to.path().join("link/there")).is_ok());
    }
}
