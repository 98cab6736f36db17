//! Answers decoded requests from a [`Tree`]; knows no transport.
//!
//! Invariant: every request that wants a reply gets exactly one. Where the tree is read-only,
//! requests that would change something are answered EROFS; the others are answered in
//! [`change_handler`](super::change_handler).
//!
//! Permissions are the kernel's business: mounts carry `default_permissions`, and where the tree
//! has POSIX ACLs the kernel is told to enforce them (it reads them as the extended attributes
//! `system.posix_acl_access` and `system.posix_acl_default` and caches them).
//!
//! Nothing is kept for an open file or directory, so opening needs no request: OPEN and OPENDIR
//! are answered ENOSYS once, after which the kernel opens by itself and keeps what it has cached
//! (and truncates by SETATTR, so nothing is lost by not asking). An open file without names lives
//! by the kernel's reference to its node.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cenote_posix::tree::{Attributes, Caller, DirectoryEntry, Errno, NodeId, ROOT, Seek, Tree};

use super::abi::{self, InHeader, feature};
use super::change_request::ChangeRequest;
use super::covered::Covered;
use super::listing_policy::ListingPolicy;
use super::nodes::{Identity, Nodes};
use super::reply::{self, Body, Listing, Reply, Validity};
use super::request::{Operation, Request};
use super::slot::{Held, Slot};

/// Largest read or write, in bytes: what the kernel allows by default.
pub const MAX_IO: u32 = 1 << 20;
/// Requests the kernel may have out in the background (readahead).
const MAX_BACKGROUND: u16 = 64;
/// How long the kernel may keep attributes of what was changed lately: its allocated size changes
/// once more when the change reaches the disk.
const SETTLING_VALIDITY: Duration = Duration::from_secs(1);
/// Longest name the kernel accepts in a listing, in bytes.
const NAME_MAX: usize = 1024;
/// Longest target of a symbolic link the kernel accepts, in bytes.
const LINK_MAX: usize = 4095;

/// What names of extended attributes for root begin with.
const TRUSTED: &[u8] = b"trusted.";

/// The set-user-id and set-group-id bits.
const SET_ID: u32 = 0o6000;

/// What a handler is told about its mount.
#[derive(Debug, Clone, Copy)]
pub struct HandlerOptions {
    /// How long the kernel may keep names and attributes. Long: nothing changes behind its back.
    pub validity: Duration,
    /// Whether the tree may have POSIX ACLs.
    pub posix_acl: bool,
    /// Nothing may be changed for now, even if the tree could be.
    pub read_only: bool,
    /// Whether the kernel collects writes.
    pub write_back: bool,
}

/// Answers requests from a tree.
pub struct Handler {
    pub(super) slot: Slot,
    options: HandlerOptions,
    /// What `attributes(ROOT)` gives as the root's identity, so that it is never handed to the
    /// kernel as another node. 0 until INIT.
    root: AtomicU64,
    /// Features agreed on.
    features: AtomicU64,
    listings: ListingPolicy,
    is_writable: bool,
    /// How long the kernel may keep names.
    names: Duration,
    /// Nothing may be changed for now.
    refuses: AtomicBool,
    is_cut_off: AtomicBool,
    /// What the kernel still writes from its cache is of the tree before.
    drops_cached: AtomicBool,
    /// What the kernel knows; empty where nothing can be changed.
    pub(super) nodes: Nodes,
    covered: Covered,
}

/// A handler with its tree, which is not exchanged as long as this is there.
pub struct Answering<'a> {
    handler: &'a Handler,
    tree: Held<'a>,
    /// What was written is not where the kernel keeps it.
    is_elsewhere: Cell<bool>,
}

impl std::ops::Deref for Answering<'_> {
    type Target = Handler;

    fn deref(&self) -> &Handler {
        self.handler
    }
}

impl std::fmt::Debug for Handler {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Handler").field("options", &self.options).finish_non_exhaustive()
    }
}

/// What became of a request.
#[derive(Debug)]
pub enum Outcome {
    /// Send this.
    Reply(Reply),
    /// Send this, and then have the kernel forget what it keeps of the data of its node: some of it was
    /// refused, or went to another place.
    Refused(Reply, u64),
    /// The request wants no reply.
    Silent,
    /// INIT is answered: send this, the mount is up.
    Ready(Reply),
}

impl Handler {
    /// A handler for `tree`.
    pub fn new(tree: Arc<dyn Tree>, options: HandlerOptions) -> Self {
        Self {
            names: validity_of_names(&*tree, &options),
            is_writable: tree.is_writable(),
            refuses: AtomicBool::new(options.read_only),
            is_cut_off: AtomicBool::new(false),
            drops_cached: AtomicBool::new(false),
            nodes: Nodes::default(),
            covered: Covered::default(),
            slot: Slot::new(tree),
            options,
            root: AtomicU64::new(0),
            features: AtomicU64::new(0),
            listings: ListingPolicy::default(),
        }
    }

    /// Whether anything can be changed, now or after a remount.
    pub fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// Whether nothing can be changed now.
    pub fn refuses_changes(&self) -> bool {
        !self.is_writable || self.refuses.load(Ordering::Acquire)
    }

    /// From now on changes are refused, or are not.
    pub fn refuse_changes(&self, refuse: bool) {
        self.refuses.store(refuse, Ordering::Release);
    }

    /// From now on nothing is answered but ENOTCONN, or all is as ever: what is served may belong to others.
    pub fn cut_off(&self, on: bool) {
        self.is_cut_off.store(on, Ordering::Release);
    }

    /// Whether changes wait, or are refused, because devices fail; or all waits for another tree.
    pub fn is_suspended(&self) -> bool {
        self.slot.hold_at_once().is_none_or(|tree| tree.is_suspended())
    }

    /// With the tree, to answer a request. Waits while the tree is exchanged; none if the mount is given up.
    pub fn begin(&self) -> Option<Answering<'_>> {
        let tree = self.slot.hold(|| self.is_cut_off.load(Ordering::Acquire))?;
        Some(Answering { handler: self, tree, is_elsewhere: Cell::new(false) })
    }

    /// Answers what one read of the device gave.
    pub fn handle(&self, bytes: &[u8]) -> Outcome {
        match self.begin() {
            Some(answering) => answering.handle(bytes),
            None => without_tree(bytes),
        }
    }

    /// Another tree is there, which is `tree`: what the kernel knows is looked at before it is used, and nothing that
    /// it kept of what was to be written gets into it until [`Self::take_cached`]. False if the mount was not made
    /// for such a tree.
    pub(super) fn exchanged(&self, tree: &dyn Tree) -> bool {
        let fits = tree.is_writable() == self.is_writable
            && validity_of_names(tree, &self.options) == self.names;
        if fits {
            self.drops_cached.store(true, Ordering::Release);
            self.note_root(tree);
            self.nodes.exchanged();
            self.covered.exchanged(tree);
        }
        fits
    }

    /// The kernel keeps nothing of before any more.
    pub(super) fn take_cached(&self) {
        self.drops_cached.store(false, Ordering::Release);
    }

    fn note_root(&self, tree: &dyn Tree) {
        if let Ok(attributes) = tree.attributes(ROOT) {
            self.root.store(attributes.node, Ordering::Release);
        }
    }

    /// The directory at `path`, seen from the root, is covered by another mount or will be: nothing
    /// gets a name in it until [`Handler::uncover_soon`] and a moment more.
    pub fn cover(&self, path: &std::path::Path) {
        if let Some(answering) = self.begin() {
            self.covered.cover(&*answering.tree, path);
        }
    }

    /// The directory at `path` is not covered, nor will be.
    pub fn uncover(&self, path: &std::path::Path) {
        if let Some(answering) = self.begin() {
            self.covered.uncover(&*answering.tree, path);
        }
    }

    /// What is to be mounted inside is mounted.
    pub fn uncover_soon(&self) {
        self.covered.end_soon();
    }

    /// The mount is gone: nothing that was handed out is held any more.
    pub fn end(&self) {
        let Some(answering) = self.begin() else { return };
        self.nodes.release_all(|node, unseen| answering.forget(node, unseen));
    }

    /// The kernel's numbers of all nodes it knows, the root first. Only the root where nothing
    /// can be changed.
    pub fn known_nodes(&self) -> Vec<u64> {
        let mut nodes = vec![abi::ROOT_ID];
        nodes.extend(self.nodes.held());
        nodes
    }

    /// The kernel's numbers of what was changed a short time ago, the root first.
    pub fn settling_nodes(&self) -> Vec<u64> {
        let mut nodes = vec![abi::ROOT_ID];
        nodes.extend(self.nodes.settling());
        nodes
    }

    pub(super) fn agreed(&self, feature: u64) -> bool {
        self.features.load(Ordering::Acquire) & feature != 0
    }

    fn is_root(&self, node: NodeId) -> bool {
        node == ROOT || node == self.root.load(Ordering::Acquire)
    }

    /// The kernel's number for a node of the tree.
    pub(super) fn kernel_node(&self, node: NodeId) -> u64 {
        if self.is_root(node) { abi::ROOT_ID } else { self.nodes.number_of(node) }
    }

    /// `node` was changed in a way that shows in its attributes only later.
    pub(super) fn changed(&self, node: NodeId) {
        self.nodes.changed(node);
    }
}

impl Answering<'_> {
    /// A reply did not leave: the kernel was not given the nodes in it.
    pub(super) fn not_sent(&self, code: u32, reply: &Reply) {
        let Body::Fixed(bytes) = &reply.body else { return };
        match code {
            abi::opcode::LOOKUP => {
                reply::nodes_in_entry(bytes).into_iter().for_each(|node| self.release(node, 1));
            }
            abi::opcode::READDIRPLUS => {
                reply::nodes_in_listing(bytes).into_iter().for_each(|node| self.release(node, 1));
            }
            _ => {}
        }
    }

    /// ESTALE if a new name in `directory` would be hidden by another mount.
    pub(super) fn check_covered(&self, directory: NodeId) -> Result<(), Errno> {
        let above = |node| self.parent_of(node).map(|parent| parent.node);
        match self.covered.hides(directory, above) {
            true => Err(Errno { code: libc::ESTALE, reason: "about to be covered".into() }),
            false => Ok(()),
        }
    }

    /// Answers what one read of the device gave.
    pub fn handle(&self, bytes: &[u8]) -> Outcome {
        match Request::decode(bytes) {
            Ok(request) => self.answer(&request),
            Err(error) => {
                tracing::warn!(%error, "malformed FUSE request");
                match Request::header(bytes) {
                    Some(header) => Outcome::Reply(Reply::status(header.unique, libc::EINVAL)),
                    None => Outcome::Silent,
                }
            }
        }
    }

    fn answer(&self, request: &Request<'_>) -> Outcome {
        let header = &request.header;
        let body = match request.operation {
            Operation::Init(init) => {
                let body = self.init(&init);
                return Outcome::Ready(Reply { unique: header.unique, body });
            }
            Operation::Interrupt { .. } => return Outcome::Silent,
            Operation::Forget { lookups } => {
                self.release(header.node, lookups);
                return Outcome::Silent;
            }
            Operation::ForgetMany(forgets) => {
                forgets.iter().for_each(|(node, lookups)| self.release(node, lookups));
                return Outcome::Silent;
            }
            Operation::Destroy | Operation::Release => Ok(Body::Status(0)),
            _ if self.is_cut_off.load(Ordering::Acquire) => {
                Err(Errno { code: libc::ENOTCONN, reason: "unmounted by force".into() })
            }
            // What was changed before the tree was exchanged, and went with it.
            ref operation
                if is_from_cache(operation) && self.drops_cached.load(Ordering::Acquire) =>
            {
                Err(Errno { code: libc::ESTALE, reason: "of before a rollback".into() })
            }
            ref operation => self.carry_out(header, operation),
        };
        let body = body.unwrap_or_else(|error: Errno| {
            let code = match error.code {
                // To the kernel this means: never ask again.
                libc::ENOSYS => libc::EOPNOTSUPP,
                code @ 1..512 => code,
                // What is no errno would be refused by the kernel and the caller would hang.
                _ => libc::EIO,
            };
            if matches!(code, libc::EIO | libc::EUCLEAN | libc::EBADE) {
                tracing::warn!(node = header.node, reason = error.reason, "request failed");
            }
            Body::Status(code)
        });
        // The kernel keeps data that nobody may write.
        let is_refused = is_from_cache(&request.operation)
            && matches!(body, Body::Status(libc::EROFS | libc::EPERM | libc::ESTALE))
            || self.is_elsewhere.get();
        let reply = Reply { unique: header.unique, body };
        if is_refused { Outcome::Refused(reply, header.node) } else { Outcome::Reply(reply) }
    }

    fn carry_out(&self, header: &InHeader, operation: &Operation<'_>) -> Result<Body, Errno> {
        let node = self.tree_node(header.node)?;
        let tree = &*self.tree;
        match *operation {
            Operation::Lookup { name } => self.lookup(node, name),
            Operation::GetAttributes => Ok(self.attributes_reply(&tree.attributes(node)?)),
            Operation::Statx => {
                let attributes = tree.attributes(node)?;
                Ok(reply::fixed(&reply::statx_out(&attributes, self.validity(&attributes))))
            }
            Operation::ReadLink => self.read_link(node),
            Operation::Open { flags } => self.open(flags),
            Operation::OpenDirectory => Ok(self.open_directory()),
            Operation::Read { offset, size } => self.read(node, offset, size),
            Operation::ReadDirectory { offset, size, plus } => {
                self.read_directory(node, offset, size, plus)
            }
            Operation::StatFs => Ok(reply::fixed(&reply::statfs_out(&tree.space()?))),
            Operation::GetXattr { name, size } => {
                let value = tree.get_xattr(node, name).map_err(|error| no_acl(name, error))?;
                Ok(sized(value, size))
            }
            Operation::ListXattr { size } => self.list_xattr(node, size, caller(header)),
            Operation::Access { mask } => {
                tree.access(node, caller(header), mask)?;
                Ok(Body::Status(0))
            }
            Operation::Seek { offset, whence } => self.seek(node, offset, whence),
            Operation::Change(ref change) => self.change(header, node, change),
            Operation::Sync { data_only } if self.is_writable => {
                tree.sync(node, data_only)?;
                Ok(Body::Status(0))
            }
            Operation::SyncAll if self.is_writable => {
                tree.sync_all()?;
                Ok(Body::Status(0))
            }
            Operation::IoControl { command, argument, out_size } => {
                self.io_control(header, node, command, argument, out_size)
            }
            // ENOSYS makes the kernel do without FLUSH, POLL and the like from now on.
            _ => Ok(Body::Status(libc::ENOSYS)),
        }
    }

    fn init(&self, init: &abi::InitIn) -> Body {
        if init.major < abi::MAJOR || (init.major == abi::MAJOR && init.minor < 23) {
            tracing::error!(init.major, init.minor, "the kernel's FUSE is too old (before 3.15)");
            return Body::Status(libc::EPROTO);
        }
        if init.major > abi::MAJOR {
            // The kernel asks again with our version.
            let out = abi::InitOut { major: abi::MAJOR, minor: abi::MINOR, ..Default::default() };
            return reply::fixed(&out);
        }
        self.note_root(&*self.tree);
        let mut wanted = feature::ASYNC_READ
            | feature::EXPORT_SUPPORT
            | feature::BIG_WRITES
            | feature::DO_READDIRPLUS
            | feature::ASYNC_DIO
            | feature::NO_OPEN_SUPPORT
            | feature::PARALLEL_DIROPS
            | feature::MAX_PAGES
            | feature::CACHE_SYMLINKS
            | feature::NO_OPENDIR_SUPPORT
            | feature::HANDLE_KILLPRIV_V2
            | feature::INIT_EXT
            | feature::DIRECT_IO_ALLOW_MMAP
            | feature::ALLOW_IDMAP;
        if self.options.posix_acl {
            wanted |= feature::POSIX_ACL | feature::DONT_MASK;
        }
        if self.is_writable {
            wanted |= feature::DONT_MASK | feature::SETXATTR_EXT;
            if self.options.write_back {
                wanted |= feature::WRITEBACK_CACHE;
            }
        } else {
            wanted |= feature::ATOMIC_O_TRUNC;
        }
        let mut offered = u64::from(init.flags);
        if offered & feature::INIT_EXT != 0 {
            offered |= u64::from(init.flags2) << 32;
        }
        let agreed = wanted & offered;
        self.features.store(agreed, Ordering::Release);
        reply::fixed(&abi::InitOut {
            major: abi::MAJOR,
            minor: abi::MINOR.min(init.minor),
            max_readahead: init.max_readahead,
            flags: agreed as u32,
            flags2: (agreed >> 32) as u32,
            max_background: MAX_BACKGROUND,
            congestion_threshold: MAX_BACKGROUND / 4 * 3,
            max_write: MAX_IO,
            time_granularity: 1,
            max_pages: (MAX_IO / 4096) as u16,
            ..abi::InitOut::default()
        })
    }

    fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Body, Errno> {
        // "." and ".." come from NFS file handles whose directory the kernel has forgotten.
        let found = match name {
            b"." => self.tree.attributes(parent),
            b".." => self.parent_of(parent),
            _ => self.tree.lookup(parent, name),
        };
        match found {
            Ok(attributes) => {
                if attributes.mode & libc::S_IFMT != libc::S_IFDIR {
                    self.listings.looked_up(parent, name);
                }
                Ok(reply::fixed(&self.handed_out(&attributes)))
            }
            Err(error) if error.code == libc::ENOENT => {
                Ok(reply::fixed(&reply::no_entry(self.names)))
            }
            Err(error) => Err(error),
        }
    }

    /// The directory that holds directory `node`: its ".." entry.
    fn parent_of(&self, node: NodeId) -> Result<Attributes, Errno> {
        let mut parent = None;
        self.tree.read_directory(node, 0, &mut |entry: DirectoryEntry| {
            if entry.name == b".." {
                parent = Some(entry.node);
            }
            parent.is_none() && entry.name == b"."
        })?;
        match parent {
            Some(parent) => self.tree.attributes(parent),
            None => Err(Errno { code: libc::ENOENT, reason: "no parent entry".into() }),
        }
    }

    fn open(&self, flags: u32) -> Result<Body, Errno> {
        let keeps = self.tree.keeps_data();
        if keeps && self.agreed(feature::NO_OPEN_SUPPORT) {
            return Ok(Body::Status(libc::ENOSYS));
        }
        let writes = (libc::O_WRONLY | libc::O_RDWR | libc::O_TRUNC).cast_unsigned();
        if flags & writes != 0 && self.refuses_changes() {
            return Ok(Body::Status(libc::EROFS));
        }
        // Without, the kernel forgets what the file holds whenever it is opened.
        let kept = if keeps { abi::FOPEN_KEEP_CACHE } else { 0 };
        let open_flags = kept | abi::FOPEN_NOFLUSH;
        Ok(reply::fixed(&abi::OpenOut { open_flags, ..abi::OpenOut::default() }))
    }

    fn open_directory(&self) -> Body {
        if self.agreed(feature::NO_OPENDIR_SUPPORT) {
            return Body::Status(libc::ENOSYS);
        }
        let open_flags = abi::FOPEN_KEEP_CACHE | abi::FOPEN_CACHE_DIR;
        reply::fixed(&abi::OpenOut { open_flags, ..abi::OpenOut::default() })
    }

    fn read_link(&self, node: NodeId) -> Result<Body, Errno> {
        let target = Bytes::from(self.tree.read_link(node)?);
        if target.len() > LINK_MAX {
            return Ok(Body::Status(libc::ENAMETOOLONG));
        }
        Ok(Body::Data([target].into_iter().collect()))
    }

    fn read(&self, node: NodeId, offset: u64, size: u32) -> Result<Body, Errno> {
        let size = size.min(MAX_IO) as usize;
        let mut pieces = self.tree.read(node, offset, size)?;
        reply::truncate(&mut pieces, size);
        Ok(Body::Data(pieces))
    }

    fn seek(&self, node: NodeId, offset: u64, whence: u32) -> Result<Body, Errno> {
        let what = match i32::try_from(whence) {
            Ok(libc::SEEK_DATA) => Seek::Data,
            Ok(libc::SEEK_HOLE) => Seek::Hole,
            _ => return Ok(Body::Status(libc::EINVAL)),
        };
        let offset = self.tree.seek(node, offset, what)?;
        Ok(reply::fixed(&abi::SeekOut { offset }))
    }

    /// The names of all extended attributes that `caller` may see, each with a zero byte behind it. The
    /// kernel lets root only ask for the values of the others, and does not look at a list.
    fn list_xattr(&self, node: NodeId, size: u32, caller: Caller) -> Result<Body, Errno> {
        let mut names = Vec::new();
        let is_root = std::cell::LazyCell::new(|| caller.is_root());
        let is_seen = |name: &Vec<u8>| !name.starts_with(TRUSTED) || *is_root;
        for name in self.tree.list_xattr(node)?.into_iter().filter(is_seen) {
            names.extend_from_slice(&name);
            names.push(0);
        }
        Ok(sized(names, size))
    }

    fn read_directory(
        &self,
        node: NodeId,
        cursor: u64,
        size: u32,
        plus: bool,
    ) -> Result<Body, Errno> {
        let mut listing = Listing::new(size.min(MAX_IO) as usize);
        let rich = plus
            && if cursor == 0 {
                self.listings.begin(node)
            } else {
                self.listings.attributes_wanted()
            };
        let mut files = 0;
        self.tree.read_directory(node, cursor, &mut |entry: DirectoryEntry| {
            let name = entry.name.as_slice();
            // The kernel fails the whole listing for a name it does not like.
            if name.is_empty() || name.len() > NAME_MAX || name.contains(&b'/') {
                tracing::warn!(node, "directory entry with an impossible name left out");
                return true;
            }
            if !listing.fits(name, plus) {
                return false;
            }
            let is_file = entry.kind != libc::DT_DIR;
            files += usize::from(is_file);
            // Node 0 means: look it up if you need it.
            let found = plus.then(|| {
                if !rich || (is_file && self.listings.is_probe(node, name, files)) {
                    return abi::EntryOut::default();
                }
                self.entry(&entry)
            });
            listing.push(found.as_ref(), entry.node, entry.next, entry.kind, name);
            true
        })?;
        Ok(listing.finish())
    }

    /// What READDIRPLUS says of an entry.
    fn entry(&self, entry: &DirectoryEntry) -> abi::EntryOut {
        if entry.name == b"." || entry.name == b".." {
            return abi::EntryOut::default();
        }
        match self.tree.attributes(entry.node) {
            Ok(attributes) => self.handed_out(&attributes),
            Err(_) => abi::EntryOut::default(),
        }
    }

    /// An entry for `attributes`, counted as given to the kernel.
    fn handed_out(&self, attributes: &Attributes) -> abi::EntryOut {
        let number = self.hold(attributes);
        reply::entry_out(number, attributes, self.validity(attributes))
    }

    pub(super) fn attributes_reply(&self, attributes: &Attributes) -> Body {
        reply::fixed(&reply::attr_out(attributes, self.validity(attributes)))
    }

    /// How long the kernel may keep what it is told of a node. A file may lose its set-id bits by a
    /// write, whose reply does not say so: of such a file the kernel keeps nothing.
    pub(super) fn validity(&self, attributes: &Attributes) -> Validity {
        let (most, node) = (self.options.validity, attributes.node);
        let is_file = attributes.mode & libc::S_IFMT == libc::S_IFREG;
        let longest = match () {
            _ if !self.is_writable => most,
            _ if is_file && attributes.mode & SET_ID != 0 => Duration::ZERO,
            _ if self.is_root(node) || self.nodes.is_settling(node) => SETTLING_VALIDITY,
            _ => most,
        };
        Validity { names: self.names, attributes: most.min(longest) }
    }

    /// A file is given to the kernel once more, by the number that is given back. The root is the mount's own and
    /// not counted.
    pub(super) fn hold(&self, attributes: &Attributes) -> u64 {
        let node = attributes.node;
        match () {
            _ if self.is_root(node) => abi::ROOT_ID,
            _ if self.is_writable => self.nodes.hold(node, Identity::of(attributes)),
            _ => node,
        }
    }

    /// The kernel gives back what it was given so many times.
    fn release(&self, node: u64, lookups: u64) {
        if self.is_writable && node != abi::ROOT_ID {
            self.nodes.release(node, lookups, |node, unseen| self.forget(node, unseen));
        }
    }

    pub(super) fn tree(&self) -> &dyn Tree {
        &*self.tree
    }

    /// The tree's number for a node of the kernel; ESTALE if its file went when the tree was exchanged.
    pub(super) fn tree_node(&self, node: u64) -> Result<NodeId, Errno> {
        if node == abi::ROOT_ID {
            return Ok(ROOT);
        }
        let stale = || Errno { code: libc::ESTALE, reason: "gone with a rollback".into() };
        self.nodes.file_of(node, |node| self.identity(node))?.ok_or_else(stale)
    }

    /// Whether the kernel's `node` is what it was before the tree was exchanged.
    pub(super) fn is_there(&self, node: u64) -> bool {
        self.tree_node(node).is_ok()
    }

    /// Where what is appended to `node` goes, which the kernel believes to end at `offset`: it asks for sizes when
    /// somebody reads, not when somebody appends, and another tree may have come since.
    pub(super) fn end_of(&self, node: NodeId, offset: u64) -> Result<u64, Errno> {
        if !self.nodes.were_exchanged() {
            return Ok(offset);
        }
        let size = self.tree.attributes(node)?.size;
        self.is_elsewhere.set(size != offset);
        Ok(size)
    }

    /// Which file is at `node`.
    fn identity(&self, node: NodeId) -> Result<Option<Identity>, Errno> {
        match self.tree.attributes(node) {
            Ok(attributes) => Ok(Some(Identity::of(&attributes))),
            Err(error) if matches!(error.code, libc::ESTALE | libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The kernel does not hold `node` any more; `unseen`: if that is still this file.
    fn forget(&self, node: NodeId, unseen: Option<Identity>) {
        let is_it = |file| self.identity(node).is_ok_and(|found| found == Some(file));
        if unseen.is_none_or(is_it) {
            self.tree.forget(node);
        }
    }
}

/// What is answered where there is no tree any more.
pub(super) fn without_tree(bytes: &[u8]) -> Outcome {
    let status = |code| match Request::header(bytes) {
        Some(header) => Outcome::Reply(Reply::status(header.unique, code)),
        None => Outcome::Silent,
    };
    match Request::decode(bytes).map(|request| request.operation) {
        Ok(Operation::Interrupt { .. } | Operation::Forget { .. } | Operation::ForgetMany(_)) => {
            Outcome::Silent
        }
        Ok(Operation::Destroy | Operation::Release) => status(0),
        _ => status(libc::ENOTCONN),
    }
}

/// How long the kernel may keep names: not at all where one file is found by several spellings, for a name that is
/// removed is removed in all of them.
fn validity_of_names(tree: &dyn Tree, options: &HandlerOptions) -> Duration {
    match !tree.is_writable() || tree.names_are_exact() {
        true => options.validity,
        false => Duration::ZERO,
    }
}

/// Whether the kernel writes what it kept.
fn is_from_cache(operation: &Operation<'_>) -> bool {
    matches!(operation, Operation::Change(ChangeRequest::Write { from_cache: true, .. }))
}

/// Who asks.
pub(super) fn caller(header: &InHeader) -> Caller {
    Caller { uid: header.uid, gid: header.gid, pid: header.pid }
}

/// A value for a caller with room for `size` bytes; 0 asks for the size only.
fn sized(value: Vec<u8>, size: u32) -> Body {
    match u32::try_from(value.len()) {
        Ok(len) if size == 0 => reply::fixed(&abi::XattrOut { size: len, padding: 0 }),
        Ok(len) if len <= size => Body::Fixed(value),
        _ => Body::Status(libc::ERANGE),
    }
}

/// A tree without ACLs says "not supported", which the kernel would hand to whoever opens the
/// file; "absent" is what it wants to hear.
fn no_acl(name: &[u8], error: Errno) -> Errno {
    if error.code == libc::EOPNOTSUPP && name.starts_with(b"system.posix_acl_") {
        return Errno { code: libc::ENODATA, reason: error.reason };
    }
    error
}
