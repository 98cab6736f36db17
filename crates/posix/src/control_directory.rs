//! `.zfs`: a synthetic directory at the root, through which the snapshots are reached.
//!
//! Chapter 05, section 14. Invariant: the number of a snapshot's view stays the same as long as the
//! filesystem is mounted, also when its files are opened anew under the mount, and is never given to
//! another, though the object of a snapshot that is gone is used again; few snapshots are open at a time, none longer than it is there.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use cenote_engine::object::ObjectSet;
use cenote_format::Guid;
use parking_lot::Mutex;
use quick_cache::sync::Cache;

use crate::attributes::DIRECTORY;
use crate::error::{EILSEQ, ENFILE, ENOENT, EROFS, ESTALE};
use crate::tree::{Attributes, Caller, DirectoryEntry, Errno, NodeId, Result, Timestamp};
use crate::view::{OBJECT_BITS, View};

/// Snapshots kept open.
const OPEN_SNAPSHOTS: usize = 16;
/// Directory type in listings.
const DIRECTORY_KIND: u8 = 4;

/// Node of `.zfs`.
pub const CONTROL: NodeId = (1 << OBJECT_BITS) - 1;
/// Node of `.zfs/shares`.
pub const SHARES: NodeId = CONTROL - 1;
/// Node of `.zfs/snapshot`.
pub const SNAPSHOTS: NodeId = CONTROL - 2;
/// What is listed for the root of a snapshot that nobody has looked up yet: nothing has this node.
const UNVISITED: NodeId = CONTROL - 3;

/// Property `snapdir`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SnapshotDirectory {
    /// `.zfs` can be entered but is not listed.
    #[default]
    Hidden,
    /// `.zfs` is listed.
    Visible,
    /// There is no `.zfs`.
    Disabled,
}

/// Which snapshot one is, whatever it is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SnapshotIdentity {
    /// Object number of its dataset, which another has when this is gone.
    pub id: u64,
    /// No other has this.
    pub guid: Guid,
}

/// A snapshot of the filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Name after the `@`.
    pub name: Vec<u8>,
    /// Which it is.
    pub identity: SnapshotIdentity,
}

/// Where the snapshots of a filesystem come from.
pub trait SnapshotSource: Send + Sync {
    /// All snapshots, in any order.
    fn list(&self) -> cenote_engine::Result<Vec<Snapshot>>;

    /// The snapshot called `name`.
    fn find(&self, name: &[u8]) -> cenote_engine::Result<Option<Snapshot>> {
        Ok(self.list()?.into_iter().find(|snapshot| snapshot.name == name))
    }

    /// The object set of a snapshot; `NotFound` where it is gone.
    fn open(&self, snapshot: SnapshotIdentity) -> cenote_engine::Result<ObjectSet>;

    /// Whether a snapshot is there.
    fn is_there(&self, snapshot: SnapshotIdentity) -> cenote_engine::Result<bool>;

    /// Which state of the pool that is told of: in the same one nothing comes or goes.
    fn state(&self) -> u64;

    /// The full name of the filesystem now.
    fn head_name(&self) -> cenote_engine::Result<String> {
        Err(cenote_engine::Error::not_found("the filesystem has no name here"))
    }
}

/// Who takes, destroys and renames snapshots by their full names for `caller`, if he may do that.
pub trait SnapshotAdmin: Send + Sync {
    /// Takes a snapshot.
    fn make(&self, caller: Caller, snapshot: String) -> Result<()>;

    /// Destroys one.
    fn remove(&self, caller: Caller, snapshot: String) -> Result<()>;

    /// Gives one another name.
    fn rename(&self, caller: Caller, from: String, to: String) -> Result<()>;
}

/// What a mount shows of `.zfs` as long as it lasts: when it was made, and the numbers of the snapshots that were visited.
#[derive(Clone, Default)]
pub struct Numbers {
    by_snapshot: HashMap<SnapshotIdentity, u16>,
    /// Snapshot of view `index + 1`.
    snapshots: Vec<SnapshotIdentity>,
    mounted: Timestamp,
}

impl Numbers {
    fn of(&mut self, snapshot: SnapshotIdentity) -> Result<u16> {
        if let Some(number) = self.by_snapshot.get(&snapshot) {
            return Ok(*number);
        }
        let number = u16::try_from(self.snapshots.len() + 1)
            .map_err(|_| Errno::new(ENFILE, "65535 snapshots were visited: mount again"))?;
        self.snapshots.push(snapshot);
        self.by_snapshot.insert(snapshot, number);
        Ok(number)
    }

    fn known(&self, snapshot: SnapshotIdentity) -> Option<u16> {
        self.by_snapshot.get(&snapshot).copied()
    }

    fn snapshot(&self, number: u16) -> Option<SnapshotIdentity> {
        self.snapshots.get(usize::from(number).checked_sub(1)?).copied()
    }
}

/// A snapshot that is kept open.
#[derive(Clone)]
struct OpenSnapshot {
    view: Arc<View>,
    /// The state of the pool in which it was last seen to be there.
    seen: u64,
}

/// The control directory of one mounted filesystem.
pub struct ControlDirectory {
    source: Option<Box<dyn SnapshotSource>>,
    numbers: Mutex<Numbers>,
    open: Cache<u16, OpenSnapshot>,
    admin: OnceLock<Arc<dyn SnapshotAdmin>>,
}

impl ControlDirectory {
    /// A control directory over `source`; `mounted` is what its directories show as times.
    pub fn new(source: Option<Box<dyn SnapshotSource>>, mounted: Timestamp) -> Self {
        let numbers = Mutex::new(Numbers { mounted, ..Numbers::default() });
        let open = Cache::new(OPEN_SNAPSHOTS);
        Self { source, numbers, open, admin: OnceLock::new() }
    }

    /// What stays as long as the mount does.
    pub fn numbers(&self) -> Numbers {
        self.numbers.lock().clone()
    }

    /// The mount is that of other files before.
    pub fn go_on_with(&self, numbers: Numbers) {
        *self.numbers.lock() = numbers;
        self.open.clear();
    }

    /// Snapshots can be made, removed and renamed here from now on, by `admin`.
    pub fn administer(&self, admin: Arc<dyn SnapshotAdmin>) {
        // Who came first stays.
        let _ = self.admin.set(admin);
    }

    /// Who does that, and the full name of the snapshot `name`.
    fn administered(&self, name: &[u8]) -> Result<(&dyn SnapshotAdmin, String)> {
        let (Some(admin), Some(source)) = (self.admin.get(), self.source.as_deref()) else {
            return Err(Errno::new(EROFS, "the snapshots cannot be changed here"));
        };
        let no_name = || Errno::new(EILSEQ, "no snapshot can have this name");
        let name = std::str::from_utf8(name).map_err(|_| no_name())?;
        if name.contains(['@', '/', '#']) {
            return Err(no_name());
        }
        let full = format!("{}@{name}", source.head_name()?);
        cenote_engine::dataset::DatasetName::parse(&full).map_err(|_| no_name())?;
        Ok((admin.as_ref(), full))
    }

    /// The same of one that is to be: names with '%' are the programs' own.
    fn administered_new(&self, name: &[u8]) -> Result<(&dyn SnapshotAdmin, String)> {
        let (admin, full) = self.administered(name)?;
        if name.contains(&b'%') || cenote_engine::dataset::check_new_name(&full).is_err() {
            return Err(Errno::new(EILSEQ, "no snapshot can have this name"));
        }
        Ok((admin, full))
    }

    /// Takes the snapshot `name`.
    pub fn make(&self, caller: Caller, name: &[u8]) -> Result<()> {
        let (admin, name) = self.administered_new(name)?;
        admin.make(caller, name)
    }

    /// Destroys the snapshot `name`.
    pub fn remove(&self, caller: Caller, name: &[u8]) -> Result<()> {
        let (admin, name) = self.administered(name)?;
        admin.remove(caller, name)
    }

    /// The snapshot `from` is called `to`.
    pub fn rename(&self, caller: Caller, from: &[u8], to: &[u8]) -> Result<()> {
        let ((admin, from), (_, to)) = (self.administered(from)?, self.administered_new(to)?);
        if from == to { Ok(()) } else { admin.rename(caller, from, to) }
    }

    /// Snapshots came or went: none is kept open.
    pub fn snapshots_changed(&self) {
        self.open.clear();
    }

    /// The view with `number`; ESTALE when its snapshot is gone.
    pub fn view(&self, number: u16) -> Result<Arc<View>> {
        let none = || Errno::new(ESTALE, format!("no snapshot has number {number}"));
        let source = self.source.as_deref().ok_or_else(none)?;
        // Asked before anything is looked at: what goes meanwhile is looked for again the next time.
        let seen = source.state();
        let open = match self.open.get(&number) {
            Some(open) if open.seen == seen => return Ok(open.view),
            open => open,
        };
        let snapshot = self.numbers.lock().snapshot(number).ok_or_else(none)?;
        let view = match open {
            Some(open) if source.is_there(snapshot)? => open.view,
            Some(_) => {
                self.open.remove(&number);
                return Err(Errno::new(ESTALE, "the snapshot is gone"));
            }
            None => {
                let objects = source.open(snapshot).map_err(|error| match error.kind() {
                    cenote_engine::ErrorKind::NotFound => Errno::new(ESTALE, error.to_string()),
                    _ => error.into(),
                })?;
                Arc::new(View::open(objects, number)?)
            }
        };
        self.open.insert(number, OpenSnapshot { view: view.clone(), seen });
        Ok(view)
    }

    /// The view of the snapshot called `name`.
    pub fn snapshot(&self, name: &[u8]) -> Result<Arc<View>> {
        let found = match self.source.as_deref() {
            Some(source) => source.find(name)?,
            None => None,
        };
        let snapshot = found.ok_or_else(|| Errno::new(ENOENT, "no such snapshot"))?;
        let number = self.numbers.lock().of(snapshot.identity)?;
        self.view(number)
    }

    /// Node of what `name` is in the synthetic directory `node`; snapshots go through
    /// [`Self::snapshot`].
    pub fn find(&self, node: NodeId, name: &[u8]) -> Result<NodeId> {
        match (node, name) {
            (CONTROL, b"snapshot") => Ok(SNAPSHOTS),
            (CONTROL, b"shares") => Ok(SHARES),
            _ => Err(Errno::new(ENOENT, "no such name")),
        }
    }

    /// `stat` of a synthetic directory, with the numbers OpenZFS on Linux shows.
    pub fn attributes(&self, node: NodeId) -> Result<Attributes> {
        let (links, size) = match (node, self.source.as_deref()) {
            (CONTROL, _) => (1, 0),
            (SNAPSHOTS, Some(source)) => (source.list()?.len().saturating_add(2), 2),
            _ => (2, 2),
        };
        let mounted = self.numbers.lock().mounted;
        Ok(Attributes {
            node,
            generation: 0,
            mode: DIRECTORY | 0o777,
            links: u32::try_from(links).unwrap_or(u32::MAX),
            uid: 0,
            gid: 0,
            rdev: 0,
            size,
            sectors: 0,
            block_size: 512,
            accessed: mounted,
            modified: mounted,
            changed: mounted,
            created: mounted,
        })
    }

    /// Lists a synthetic directory; `root` is the node of the filesystem's root.
    pub fn list(
        &self,
        node: NodeId,
        root: NodeId,
        position: u64,
        each: &mut dyn FnMut(DirectoryEntry) -> bool,
    ) -> Result<()> {
        let parent = if node == CONTROL { root } else { CONTROL };
        let mut entries = vec![(b".".to_vec(), node, 1), (b"..".to_vec(), parent, 2)];
        if node == CONTROL {
            entries.push((b"shares".to_vec(), SHARES, 3));
            entries.push((b"snapshot".to_vec(), SNAPSHOTS, 4));
        }
        for (name, node, next) in entries {
            let entry = DirectoryEntry { name, node, kind: DIRECTORY_KIND, next };
            if position < next && !each(entry) {
                return Ok(());
            }
        }
        match self.source.as_deref() {
            Some(source) if node == SNAPSHOTS => self.list_snapshots(source, position, each),
            _ => Ok(()),
        }
    }

    /// Positions of snapshots follow their object numbers, which stay when others come and go.
    fn list_snapshots(
        &self,
        source: &dyn SnapshotSource,
        position: u64,
        each: &mut dyn FnMut(DirectoryEntry) -> bool,
    ) -> Result<()> {
        let mut snapshots = source.list()?;
        snapshots.sort_by_key(|snapshot| snapshot.identity.id);
        for Snapshot { name, identity } in snapshots {
            let next = identity.id.saturating_add(3);
            if position >= next {
                continue;
            }
            // Who only lists gives no numbers away: there are not many.
            let number = self.numbers.lock().known(identity);
            // The root's object is known only once the snapshot is open: its view's number with
            // object 0 stands for it.
            let node = number.map_or(UNVISITED, snapshot_root);
            if !each(DirectoryEntry { name, node, kind: DIRECTORY_KIND, next }) {
                break;
            }
        }
        Ok(())
    }
}

/// The node that stands for the root of the view with `number`, whatever its object.
pub fn snapshot_root(number: u16) -> NodeId {
    u64::from(number) << OBJECT_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Two;

    /// The first snapshot that has object `id`.
    fn first(id: u64) -> SnapshotIdentity {
        SnapshotIdentity { id, guid: Guid(id + 1000) }
    }

    impl SnapshotSource for Two {
        fn list(&self) -> cenote_engine::Result<Vec<Snapshot>> {
            let snapshot = |name: &str, id| Snapshot { name: name.into(), identity: first(id) };
            Ok(vec![snapshot("later", 90), snapshot("sooner", 40)])
        }

        fn open(&self, snapshot: SnapshotIdentity) -> cenote_engine::Result<ObjectSet> {
            Err(cenote_engine::Error::not_found(format!("dataset {}", snapshot.id)))
        }

        fn is_there(&self, _: SnapshotIdentity) -> cenote_engine::Result<bool> {
            Ok(false)
        }

        fn state(&self) -> u64 {
            0
        }

        fn head_name(&self) -> cenote_engine::Result<String> {
            Ok("p/f".to_owned())
        }
    }

    #[derive(Default)]
    struct Notes(Mutex<Vec<String>>);

    impl SnapshotAdmin for Notes {
        fn make(&self, _: Caller, snapshot: String) -> Result<()> {
            self.0.lock().push(format!("make {snapshot}"));
            Ok(())
        }

        fn remove(&self, _: Caller, snapshot: String) -> Result<()> {
            self.0.lock().push(format!("remove {snapshot}"));
            Ok(())
        }

        fn rename(&self, _: Caller, from: String, to: String) -> Result<()> {
            self.0.lock().push(format!("rename {from} {to}"));
            Ok(())
        }
    }

    #[test]
    fn snapshots_are_made_by_their_full_names_if_somebody_makes_them() {
        let control = ControlDirectory::new(Some(Box::new(Two)), Timestamp::default());
        let caller = Caller { uid: 7, gid: 7, pid: 0 };
        assert_eq!(control.make(caller, b"x").unwrap_err().code, EROFS);
        let notes = Arc::new(Notes::default());
        control.administer(notes.clone());
        control.make(caller, b"x").unwrap();
        control.rename(caller, b"x", b"y").unwrap();
        control.rename(caller, b"y", b"y").unwrap();
        control.remove(caller, b"y").unwrap();
        assert_eq!(*notes.0.lock(), ["make p/f@x", "rename p/f@x p/f@y", "remove p/f@y"]);
        for name in [&b"a@b"[..], b"a#b", b"\xff", b"a/b", b"", b"a\nb"] {
            assert_eq!(control.make(caller, name).unwrap_err().code, EILSEQ, "{name:?}");
        }
    }

    fn listed(control: &ControlDirectory, node: NodeId, from: u64) -> Vec<(String, NodeId, u64)> {
        let mut found = Vec::new();
        let mut each = |entry: DirectoryEntry| {
            found.push((String::from_utf8(entry.name).unwrap(), entry.node, entry.next));
            true
        };
        control.list(node, 34, from, &mut each).unwrap();
        found
    }

    #[test]
    fn listings_resume_at_every_entry() {
        let control = ControlDirectory::new(Some(Box::new(Two)), Timestamp::default());
        let names = |node| {
            let all = listed(&control, node, 0);
            for (index, (_, _, next)) in all.iter().enumerate() {
                assert_eq!(listed(&control, node, *next), all[index + 1..]);
            }
            all.into_iter().map(|entry| entry.0).collect::<Vec<_>>()
        };
        assert_eq!(names(CONTROL), [".", "..", "shares", "snapshot"]);
        assert_eq!(names(SHARES), [".", ".."]);
        assert_eq!(names(SNAPSHOTS), [".", "..", "sooner", "later"]);
        assert_eq!(listed(&control, CONTROL, 0)[1].1, 34);
        assert_eq!(listed(&control, SNAPSHOTS, 0)[1].1, CONTROL);
        assert_eq!(control.attributes(SNAPSHOTS).unwrap().links, 4);
        assert_eq!(control.attributes(CONTROL).unwrap().size, 0);
    }

    #[test]
    fn numbers_stay_and_unknown_ones_are_stale() {
        let control = ControlDirectory::new(Some(Box::new(Two)), Timestamp::default());
        let nodes = || -> Vec<NodeId> {
            listed(&control, SNAPSHOTS, 2).into_iter().map(|entry| entry.1).collect()
        };
        assert_eq!(nodes(), [UNVISITED; 2]);
        let mut all = Two.list().unwrap();
        all.sort_by_key(|snapshot| snapshot.identity.id);
        for snapshot in all {
            control.numbers.lock().of(snapshot.identity).unwrap();
        }
        assert_eq!(nodes(), [1 << 48, 2 << 48]);
        assert_eq!(control.view(1).err().unwrap().code, ESTALE, "destroyed meanwhile");
        assert_eq!(control.view(9).err().unwrap().code, ESTALE);
        assert_eq!(control.view(0).err().unwrap().code, ESTALE);
        assert_eq!(control.snapshot(b"absent").err().unwrap().code, ENOENT);
        assert_eq!(control.find(CONTROL, b"snapshot").unwrap(), SNAPSHOTS);
        assert_eq!(control.find(SHARES, b"x").unwrap_err().code, ENOENT);
    }

    #[test]
    fn numbers_go_on_where_other_files_are_mounted() {
        let made = |seconds| {
            let mounted = Timestamp { seconds, nanoseconds: 0 };
            ControlDirectory::new(Some(Box::new(Two)), mounted)
        };
        let (before, after) = (made(5), made(9));
        assert_eq!(before.numbers.lock().of(first(90)).unwrap(), 1);
        after.go_on_with(before.numbers());
        assert_eq!(after.numbers.lock().of(first(40)).unwrap(), 2);
        assert_eq!(after.numbers.lock().of(first(90)).unwrap(), 1);
        assert_eq!(after.attributes(SNAPSHOTS).unwrap().created.seconds, 5);
    }

    #[test]
    fn numbers_run_out_with_an_error() {
        let mut numbers = Numbers::default();
        for id in 0..65535 {
            assert_eq!(u64::from(numbers.of(first(id)).unwrap()), id + 1);
        }
        assert_eq!(numbers.of(first(99_999)).unwrap_err().code, ENFILE);
        assert_eq!(numbers.of(first(5)).unwrap(), 6);
        assert_eq!(numbers.snapshot(6), Some(first(5)));
    }

    #[test]
    fn a_number_is_of_one_snapshot_though_another_has_its_object() {
        let mut numbers = Numbers::default();
        assert_eq!(numbers.of(first(5)).unwrap(), 1);
        assert_eq!(numbers.of(SnapshotIdentity { id: 5, guid: Guid(7) }).unwrap(), 2);
        assert_eq!(numbers.of(first(5)).unwrap(), 1);
    }
}
