//! The FUSE door: a [`Tree`] as a mounted filesystem.
//!
//! [`mount`] needs either root or the helper `fusermount3`. Decoding, handling and encoding
//! ([`request`], [`change_request`], [`handler`], [`reply`]) know no transport; [`session`] is the one over
//! `/dev/fuse`.
//!
//! Invariant: a mount never outlives its server silently: when the process dies, the kernel
//! answers ENOTCONN; when a [`Mounted`] is dropped, its mount goes away.

pub mod abi;
mod arguments;
mod backlog;
mod change_handler;
pub mod change_request;
mod changed_names;
mod covered;
mod exchange;
mod file_flags;
pub mod handler;
mod interrupts;
mod listing_policy;
mod mount;
mod mount_table;
mod nodes;
mod refused;
pub mod reply;
pub mod request;
mod request_buffer;
mod send;
mod session;
mod signals;
mod slot;
mod threads;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use cenote_posix::tree::{NodeId, Tree};
use zerocopy::IntoBytes;

pub use cenote_posix::AccessTimes;
pub use exchange::{Exchanged, Next};
pub use mount::{is_dead, resolve};
pub use mount_table::mounted_places;
pub use threads::limit_threads;

use handler::{Handler, HandlerOptions, MAX_IO};
use session::{Session, SessionOptions};

/// How long the first exchange with the kernel may take.
const INIT_TIME: Duration = Duration::from_secs(10);
/// How long the threads of a session may take to end once the mount is gone.
const END_TIME: Duration = Duration::from_secs(5);
/// The same where nobody waits for their answers any more: they may wait for devices, as long as those please.
const CUT_OFF_TIME: Duration = Duration::from_secs(1);

/// How a tree is mounted.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// An existing directory. If a mount whose server died is there, it is replaced.
    pub mountpoint: PathBuf,
    /// That directory, open: nothing else is mounted on. Its path is taken as it is, then.
    pub pinned: Option<Arc<OwnedFd>>,
    /// Where inside other mounts are about to be made: nothing gets a name there until
    /// [`Covers::end_soon`].
    pub covered: Vec<PathBuf>,
    /// What `df` and `mount` show as the source: the dataset's name.
    pub source: String,
    /// Whether users other than the one who mounts may enter. Default: when root mounts, or when
    /// `/etc/fuse.conf` has the line `user_allow_other`. Mode bits count in any case.
    pub allow_other: bool,
    /// Nothing may be changed. Always so where the tree is not writable.
    pub read_only: bool,
    /// What the table of mounts says of access times; the tree itself keeps them.
    pub access_times: AccessTimes,
    /// Whether the kernel collects writes before it sends them: small writes get faster, creating
    /// and removing slower, and errors show at fsync only.
    pub write_back: bool,
    /// Whether set-user-id bits count (only when root mounts).
    pub set_id: bool,
    /// Whether device nodes work (only when root mounts).
    pub devices: bool,
    /// Whether programs may be run.
    pub execute: bool,
    /// Whether the tree may have POSIX ACLs; saves requests if not.
    pub posix_acl: bool,
    /// Threads that wait for requests while some come. More come while all of these are busy; a mount that is quiet has none.
    pub threads: usize,
    /// Most threads, for requests that wait for disks. Half of them at most change
    /// data, a quarter names; the rest is for reading.
    pub max_threads: usize,
    /// Read-ahead of the kernel in bytes, set where permitted (root); 0 leaves it alone.
    pub read_ahead: u32,
    /// How long the kernel may keep names and attributes.
    pub validity: Duration,
    /// How long a thread watches for the next request before it sleeps; zero for never.
    pub spin: Duration,
}

impl MountOptions {
    /// The defaults, for `mountpoint` and `source`.
    pub fn new(mountpoint: impl Into<PathBuf>, source: impl Into<String>) -> Self {
        Self {
            mountpoint: mountpoint.into(),
            pinned: None,
            covered: Vec::new(),
            source: source.into(),
            allow_other: rustix::process::geteuid().is_root() || mount::users_may_open_mounts(),
            read_only: false,
            access_times: AccessTimes::Relative,
            write_back: false,
            set_id: true,
            devices: true,
            execute: true,
            posix_acl: true,
            threads: 2,
            max_threads: 64,
            read_ahead: MAX_IO,
            validity: Duration::from_secs(24 * 3600),
            spin: Duration::from_micros(20),
        }
    }
}

/// What of a mount can be changed while it is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MountFlagOptions {
    /// Nothing may be changed.
    pub read_only: bool,
    /// What the table of mounts says of access times; the tree itself keeps them.
    pub access_times: AccessTimes,
    /// Whether set-user-id bits count.
    pub set_id: bool,
    /// Whether device nodes work.
    pub devices: bool,
    /// Whether programs may be run.
    pub execute: bool,
}

impl MountOptions {
    /// With these instead of its own.
    #[must_use]
    pub fn with_flags(self, flags: MountFlagOptions) -> Self {
        let MountFlagOptions { read_only, access_times, set_id, devices, execute } = flags;
        Self { read_only, access_times, set_id, devices, execute, ..self }
    }

    /// Those that can be changed later.
    pub fn flags(&self) -> MountFlagOptions {
        MountFlagOptions {
            read_only: self.read_only,
            access_times: self.access_times,
            set_id: self.set_id,
            devices: self.devices,
            execute: self.execute,
        }
    }
}

/// Why a tree could not be mounted or unmounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// A system call failed.
    #[error("{doing}: {error}")]
    System {
        /// What was being done.
        doing: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// `fusermount3` refused; its words.
    #[error("{0}")]
    Helper(String),
    /// The kernel did not begin within the deadline, or its FUSE is too old.
    #[error("the kernel did not start serving the mount")]
    NoStart,
    /// Files of the mount are in use.
    #[error("the mount is busy")]
    Busy,
    /// What is mounted there is mounted at another place too, and in use as long as it is.
    #[error("pool or dataset is busy: mounted at another place too, maybe in another namespace")]
    Elsewhere,
}

impl MountError {
    fn system(doing: impl Into<String>) -> impl FnOnce(rustix::io::Errno) -> Self {
        let doing = doing.into();
        move |error| Self::System { doing, error: error.into() }
    }
}

/// A mounted tree. Dropping it unmounts, by force if need be.
#[derive(Debug)]
pub struct Mounted {
    mountpoint: PathBuf,
    session: Arc<Session>,
    /// It is not mounted there any more, but somewhere.
    has_left: AtomicBool,
}

/// Says which directories of a mount other mounts cover.
#[derive(Debug, Clone)]
pub struct Covers(Arc<Session>);

impl Covers {
    /// The directory at `path`, seen from the root, is covered by another mount, or will be: nothing
    /// gets a name in it until [`Covers::end_soon`], and a moment more. Reads directories.
    pub fn cover(&self, path: &Path) {
        self.0.handler().cover(path);
    }

    /// The directory at `path` is not covered, nor will be. Reads directories.
    pub fn uncover(&self, path: &Path) {
        self.0.handler().uncover(path);
    }

    /// What is to be mounted inside is mounted.
    pub fn end_soon(&self) {
        self.0.handler().uncover_soon();
    }
}

/// Mounts `tree` (read-only unless it is writable) and serves it until it is unmounted. When this
/// returns, the mount answers.
pub fn mount(tree: Arc<dyn Tree>, options: MountOptions) -> Result<Mounted, MountError> {
    // The kernel resolves links; the table of mounts shows the result.
    let mountpoint = match options.pinned {
        Some(_) => options.mountpoint.clone(),
        None => mount::resolve(&options.mountpoint).map_err(|error| MountError::System {
            doing: format!("opening {}", options.mountpoint.display()),
            error,
        })?,
    };
    let options = MountOptions { mountpoint: mountpoint.clone(), ..options };
    let options = MountOptions { read_only: options.read_only || !tree.is_writable(), ..options };
    let handler = Handler::new(
        tree,
        HandlerOptions {
            validity: options.validity,
            posix_acl: options.posix_acl,
            read_only: options.read_only,
            write_back: options.write_back,
        },
    );
    options.covered.iter().for_each(|place| handler.cover(place));
    let device = mount::mount(&options)?;
    let session_options = SessionOptions {
        threads: options.threads.max(1),
        max_threads: options.max_threads.max(options.threads).max(1),
        spin: options.spin,
    };
    let session = match Session::start(device, handler, session_options) {
        Ok(session) => session,
        Err(error) => {
            mount::detach(&mountpoint);
            return Err(MountError::System { doing: "starting a thread".into(), error });
        }
    };
    let mounted = Mounted { mountpoint, session, has_left: AtomicBool::new(false) };
    if !mounted.session.wait_ready(INIT_TIME) {
        return Err(MountError::NoStart);
    }
    if options.read_ahead > 0 {
        mount::set_read_ahead(&mounted.mountpoint, options.read_ahead);
    }
    Ok(mounted)
}

impl Mounted {
    /// Where it is mounted.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// For saying which directories other mounts cover.
    pub fn covers(&self) -> Covers {
        Covers(self.session.clone())
    }

    /// Unmounts. [`MountError::Busy`] if files are in use; then everything stays as it was.
    /// [`MountError::Elsewhere`] if it is mounted at another place too: it is served until it is unmounted there.
    pub fn unmount(&self) -> Result<(), MountError> {
        if !self.is_alive() {
            return Ok(());
        }
        if self.is_mounted_here() {
            mount::unmount(&self.mountpoint)?;
        }
        if self.ends(END_TIME) { Ok(()) } else { Err(MountError::Elsewhere) }
    }

    /// Unmounts even if files are in use: those who use them get ENOTCONN, also where it stays mounted.
    pub fn unmount_forced(&self) -> Result<(), MountError> {
        if !self.is_alive() {
            return Ok(());
        }
        let handler = self.session.handler();
        handler.cut_off(true);
        if self.is_mounted_here()
            && let Err(error) = mount::unmount_forced(&self.mountpoint)
        {
            handler.cut_off(false);
            return Err(error);
        }
        self.ends(CUT_OFF_TIME);
        Ok(())
    }

    /// Nobody has taken the mount away: what is at its place may be another one, then.
    fn is_mounted_here(&self) -> bool {
        !self.has_left() && !self.session.is_let_go()
    }

    /// It was unmounted here: whether that was the only place. Who has left before is not waited for.
    fn ends(&self, patience: Duration) -> bool {
        let patience = if self.has_left() { Duration::ZERO } else { patience };
        let ends = self.session.wait_end(Some(patience)) || self.session.is_let_go();
        self.has_left.store(!ends, Relaxed);
        ends
    }

    /// Somebody has unmounted it where it was mounted, and it is still served.
    pub fn leave(&self) {
        self.has_left.store(self.is_alive(), Relaxed);
    }

    /// Whether it was unmounted where it was mounted, and is served at other places only.
    pub fn has_left(&self) -> bool {
        self.has_left.load(Relaxed)
    }

    /// Changes the flags of the mount while it is in use (only root can).
    ///
    /// # Errors
    /// [`MountError::Busy`] if nothing may be changed any more but files are open for writing; a
    /// tree that is not writable stays read-only.
    pub fn remount(&self, flags: MountFlagOptions) -> Result<(), MountError> {
        let handler = self.session.handler();
        let flags =
            MountFlagOptions { read_only: flags.read_only || !handler.is_writable(), ..flags };
        if !flags.read_only {
            handler.refuse_changes(false);
        }
        mount::remount(&self.mountpoint, &flags)?;
        handler.refuse_changes(flags.read_only);
        Ok(())
    }

    /// Tells the kernel that attributes, data and listing of `node` changed without its doing.
    /// Waits for users of the data; never call it from within the tree.
    pub fn invalidate_node(&self, node: NodeId) -> std::io::Result<()> {
        self.session.forget_node(self.session.handler().kernel_node(node)).map(drop)
    }

    /// Tells the kernel that `name` in `parent` came, went or means another node now. Waits for
    /// those who are changing the directory; never call it from within the tree.
    pub fn invalidate_name(&self, parent: NodeId, name: &[u8]) -> std::io::Result<()> {
        self.session.forget_name(self.session.handler().kernel_node(parent), name).map(drop)
    }

    /// Puts what `make` gives in the place of the tree: the mount stays, with what is mounted on it. The tree is let go
    /// before, and requests wait meanwhile. What is open and still there goes on, the rest is stale. Never call it
    /// from within the tree.
    pub fn exchange(&self, make: impl FnOnce() -> Next) -> Exchanged {
        let place = (!self.has_left()).then_some(&*self.mountpoint);
        exchange::exchange(&self.session, place, make)
    }

    /// Tells the kernel that changes are on the disks: what they take there is known now. Waits for
    /// nobody.
    pub fn changes_are_written(&self) -> std::io::Result<()> {
        for node in self.session.handler().settling_nodes() {
            // A negative offset stands for attributes alone.
            let out = abi::InvalInodeOut { node, offset: -1, len: 0 };
            self.session.notify(abi::notify::INVAL_INODE, &[out.as_bytes()])?;
        }
        Ok(())
    }

    /// Waits until the mount is gone, whoever unmounts it.
    pub fn wait(&self) {
        self.session.wait_end(None);
    }

    /// Whether the mount is still being served.
    pub fn is_alive(&self) -> bool {
        self.session.is_alive()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // What a session that ends still waits for keeps itself.
        if self.session.is_let_go() {
            return;
        }
        if self.has_left() {
            self.session.handler().cut_off(true);
        } else if self.unmount().is_err()
            && let Err(error) = self.unmount_forced()
        {
            tracing::warn!(mountpoint = %self.mountpoint.display(), %error, "not unmounted");
        }
    }
}
