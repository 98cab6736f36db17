//! The workload: appending, overwriting, moving and removing files with and without `fsync`,
//! snapshots, filesystems, and groups in between.

use std::sync::Arc;

use cenote_engine::dataset::change::NewDataset;
use cenote_engine::pool::live::LivePool;
use cenote_format::objset::ObjsetKind;
use cenote_posix::Filesystem;
use cenote_posix::create::{NewFilesystem, initialise};
use cenote_posix::tree::{Caller, NewNode, NodeId, ROOT, RenameFlags, Tree};

use super::model::{Fact, Facts, counter, stream};
use super::pool::{Disks, NAME};

/// Rounds of everything.
const ROUNDS: u64 = 20;
const SUPERUSER: Caller = Caller { uid: 0, gid: 0, pid: 0 };

/// A pool being worked on.
pub struct Work<'a> {
    disks: &'a Disks,
    live: Arc<LivePool>,
    files: Arc<Filesystem>,
    facts: Facts,
    /// Begun, not acknowledged: becomes durable with the next `fsync` of anything.
    names: Vec<Fact>,
    /// The same for the data of files: only with one of their own.
    data: Vec<(NodeId, Fact)>,
}

impl<'a> Work<'a> {
    /// Makes a pool on `disks` and works on it; what may and must be seen of that.
    pub fn run(disks: &'a Disks) -> Facts {
        let live = disks.create();
        let files = disks.files(&live, "new");
        let (facts, names, data) = (Facts::default(), Vec::new(), Vec::new());
        let mut work = Self { disks, live, files, facts, names, data };
        work.all();
        let Self { live, files, facts, .. } = work;
        drop(files);
        live.export().unwrap();
        facts
    }

    fn note(&mut self, fact: Fact) {
        self.facts.0.push((self.disks.now(), fact));
    }

    fn file(&self, name: &str) -> NodeId {
        if let Ok(found) = self.files.lookup(ROOT, name.as_bytes()) {
            return found.node;
        }
        let new = NewNode { mode: 0o100_644, umask: 0, rdev: 0, target: &[] };
        self.files.create(SUPERUSER, ROOT, name.as_bytes(), new).unwrap().node
    }

    fn sync(&mut self, node: NodeId) {
        self.files.sync(node, false).unwrap();
        let names = std::mem::take(&mut self.names);
        names.into_iter().for_each(|fact| self.note(fact));
        let (own, rest) = std::mem::take(&mut self.data).into_iter().partition(|(n, _)| *n == node);
        self.data = rest;
        for (_, fact) in Vec::<(NodeId, Fact)>::into_iter(own) {
            self.note(fact);
        }
    }

    /// Everything begun is on the disks.
    fn synced(&mut self) {
        let names = std::mem::take(&mut self.names);
        let data = std::mem::take(&mut self.data);
        names.into_iter().chain(data.into_iter().map(|(_, f)| f)).for_each(|fact| self.note(fact));
    }

    fn length(&self, name: &str) -> u64 {
        self.files.lookup(ROOT, name.as_bytes()).map_or(0, |found| found.size)
    }

    fn append(&mut self, name: &str, length: u64) -> NodeId {
        let from = self.length(name);
        self.note(Fact::Grows(name.into(), from + length));
        let node = self.file(name);
        // The name alone, of a file that may be empty still.
        self.names.push(Fact::Has(name.into(), 0));
        let data = stream(name, from, from + length);
        self.files.write(SUPERUSER, node, from, &data, false).unwrap();
        self.data.push((node, Fact::Has(name.into(), from + length)));
        node
    }

    fn all(&mut self) {
        for round in 0..ROUNDS {
            let name = format!("s{}", round % 3);
            let length = [700, 5_000, 40_000, 300_000][round as usize % 4];
            let node = self.append(&name, length);
            if round % 3 != 1 {
                self.sync(node);
            }
            self.note(Fact::Counts(round + 1));
            let node = self.file("counter");
            self.files.write(SUPERUSER, node, 0, &counter(round + 1), false).unwrap();
            self.data.push((node, Fact::Counted(round + 1)));
            if round.is_multiple_of(2) {
                self.sync(node);
            }
            self.passing(round);
            self.move_on(round);
            if round % 4 == 1 {
                self.snapshot(round);
            }
            if round % 4 == 3 {
                self.unsnapshot(round - 2);
            }
            if round % 6 == 2 {
                self.make(&format!("x{round}"));
            }
            if round % 6 == 5 {
                self.destroy(&format!("x{}", round - 3));
            }
            if round % 3 == 2 {
                self.live.sync().unwrap();
                self.synced();
            }
        }
    }

    /// A file that is made, and removed two rounds later.
    fn passing(&mut self, round: u64) {
        let node = self.append(&format!("t{round}"), 9_000);
        if round.is_multiple_of(4) {
            self.sync(node);
        }
        if let Some(old) = round.checked_sub(2) {
            let name = format!("t{old}");
            self.note(Fact::Goes(name.clone()));
            let node = self.file(&name);
            self.files.unlink(SUPERUSER, ROOT, name.as_bytes()).unwrap();
            self.files.forget(node);
            // What was to come of it does not count any more.
            self.data.retain(|(other, _)| *other != node);
            self.names.push(Fact::Gone(name));
        }
    }

    fn move_on(&mut self, round: u64) {
        self.note(Fact::Moves(round));
        if round == 0 {
            self.file("m0");
        } else {
            let (from, to) = (format!("m{}", round - 1), format!("m{round}"));
            let (from, to) = (from.as_bytes(), to.as_bytes());
            self.files.rename(SUPERUSER, ROOT, from, ROOT, to, RenameFlags::default()).unwrap();
        }
        if round > 0 {
            self.names.push(Fact::Moved(round));
        }
    }

    fn snapshot(&mut self, round: u64) {
        let name = format!("n{round}");
        let length = self.length("s0");
        self.note(Fact::Snaps(name.clone(), length));
        let new = name.clone();
        self.live
            .change(move |live, change| {
                let head = live.pool().catalog().dataset_named(NAME)?;
                change.create_snapshot(head.id, &new, &[]).map(drop)
            })
            .unwrap();
        self.synced();
        self.note(Fact::Snapped(name));
    }

    fn unsnapshot(&mut self, round: u64) {
        let name = format!("n{round}");
        self.note(Fact::Unsnaps(name.clone()));
        let full = format!("{NAME}@{name}");
        self.live
            .change(move |live, change| {
                let snapshot = live.pool().catalog().dataset_named(&full)?;
                change.destroy_snapshot(snapshot.id, false)?;
                live.wake_freeing();
                Ok(())
            })
            .unwrap();
        self.synced();
        self.note(Fact::Unsnapped(name));
    }

    fn make(&mut self, name: &str) {
        self.note(Fact::Makes(name.into()));
        let new = name.to_owned();
        self.live
            .change(move |live, change| {
                let parent = live.pool().catalog().directory(NAME)?.id;
                let dataset = NewDataset { parent, name: &new, ..NewDataset::default() };
                live.make_dataset(change, &dataset, ObjsetKind::Zfs, |set, tx| {
                    initialise(set, tx, &NewFilesystem::default()).unwrap();
                    Ok(())
                })
                .map(drop)
            })
            .unwrap();
        self.synced();
        self.note(Fact::Made(name.into()));
    }

    fn destroy(&mut self, name: &str) {
        self.note(Fact::Destroys(name.into()));
        let full = format!("{NAME}/{name}");
        let id = self.live.pool().catalog().dataset_named(&full).unwrap().id;
        self.live.close_dataset(id).unwrap();
        self.live
            .change(move |live, change| {
                change.check_destroy_head(id)?;
                change.destroy_head(id)?;
                live.wake_freeing();
                Ok(())
            })
            .unwrap();
        self.synced();
        self.note(Fact::Destroyed(name.into()));
    }
}
