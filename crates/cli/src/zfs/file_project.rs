//! The project of a file of any filesystem, through the ioctls for it.
//!
//! Invariant: of what the filesystem tells of a file, only the project and its inheritance are changed.
//! No library offers these requests; the kernel is asked directly.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `FS_IOC_FSGETXATTR`.
const GET_ATTRIBUTES: libc::Ioctl = 0x801C_581F;
/// `FS_IOC_FSSETXATTR`.
const SET_ATTRIBUTES: libc::Ioctl = 0x401C_5820;
/// `FS_XFLAG_PROJINHERIT`.
const INHERIT: u32 = 0x200;

/// `struct fsxattr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct FileAttributes {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    copy_extent_size: u32,
    pad: [u8; 8],
}

/// The project of an open file of any filesystem, and whether new files in it inherit that; what is
/// told of it otherwise, to be given back to [`set_project`].
pub struct FileProject(FileAttributes);

impl FileProject {
    /// Number of the project.
    pub fn id(&self) -> u32 {
        self.0.project
    }

    /// New files in the directory inherit it.
    pub fn is_inherited(&self) -> bool {
        self.0.flags & INHERIT != 0
    }

    /// The same with another project.
    #[must_use]
    pub fn with(mut self, id: u32, inherit: bool) -> Self {
        self.0.project = id;
        self.0.flags = self.0.flags & !INHERIT | if inherit { INHERIT } else { 0 };
        self
    }
}

/// Reads the project of an open file.
///
/// # Errors
/// What the system says; ENOTTY if the filesystem knows no projects.
pub fn project(file: &File) -> io::Result<FileProject> {
    let mut found = FileAttributes::default();
    let place = &raw mut found;
    // SAFETY: the request writes one such structure behind the pointer, which outlives the call.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), GET_ATTRIBUTES, place) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(FileProject(found)) }
}

/// Sets the project of an open file.
///
/// # Errors
/// What the system says.
pub fn set_project(file: &File, project: &FileProject) -> io::Result<()> {
    let place = &raw const project.0;
    // SAFETY: the request reads one such structure behind the pointer, which outlives the call.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), SET_ATTRIBUTES, place) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
