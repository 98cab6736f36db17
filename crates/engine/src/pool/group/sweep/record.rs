//! Orders about initialize and trim, and what the tables of leaves tell of them.
//!
//! Chapter 03, section 12; chapter 08, sections 12 and 13. Invariant: the state of a run and what the history says
//! of it are written in the same group.

use cenote_format::config::VdevConfig;
use cenote_format::zap::Value;
use cenote_format::{Guid, ObjectId};

use super::run::{Run, State, UNDONE};
use super::{Key, LivePool, SweepKind, SweepOrder};
use crate::alloc::SpaceSource;
use crate::dataset::change::MosChange;
use crate::events::Members;
use crate::object::Object;
use crate::pool::group::MosSource;
use crate::vdev::VdevTree;
use crate::{Error, ErrorKind, Result, zap};

/// The names of what is kept of a run.
struct Names {
    state: &'static str,
    offset: &'static str,
    time: &'static str,
    /// Bytes a second, and two switches that are always off here.
    more: Option<[&'static str; 3]>,
}

impl SweepKind {
    const fn names(self) -> Names {
        match self {
            Self::Initialize => Names {
                state: "com.delphix:vdev_initialize_state",
                offset: "com.delphix:next_offset_to_initialize",
                time: "com.delphix:vdev_initialize_action_time",
                more: None,
            },
            Self::Trim => Names {
                state: "org.zfsonlinux:vdev_trim_state",
                offset: "org.zfsonlinux:next_offset_to_trim",
                time: "org.zfsonlinux:vdev_trim_action_time",
                more: Some([
                    "org.zfsonlinux:vdev_trim_rate",
                    "org.zfsonlinux:vdev_trim_partial",
                    "org.zfsonlinux:vdev_trim_secure",
                ]),
            },
        }
    }

    /// What the history calls it.
    const fn word(self) -> &'static str {
        match self {
            Self::Initialize => "initialize",
            Self::Trim => "trim",
        }
    }

    /// The event of what the history says so; none tells of initialising.
    fn event(self, word: &str, goes_on: bool) -> Option<&'static str> {
        match word {
            _ if self == Self::Initialize => None,
            "activated" if goes_on => Some("trim_resume"),
            "activated" => Some("trim_start"),
            "suspended" => Some("trim_suspend"),
            "canceled" => Some("trim_cancel"),
            "complete" => Some("trim_finish"),
            _ => None,
        }
    }
}

/// The table of a leaf.
fn table(vdevs: &VdevTree, leaf: Guid) -> Option<(ObjectId, VdevConfig)> {
    let node = vdevs.topology().find(leaf)?;
    Some((node.leaf_zap.filter(|id| id.0 != 0)?, VdevConfig { children: None, ..node.clone() }))
}

/// Takes out an entry that may not be there.
fn forget(change: &MosChange<'_>, object: &Object, name: &str) -> Result<()> {
    match zap::remove(object, change.tx, name.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

impl LivePool {
    /// What an earlier life of the pool, or OpenZFS, has left to do.
    pub(in crate::pool) fn load_sweeps(&self) {
        self.load_autotrim();
        let source = MosSource::new(self.mos.clone());
        let vdevs = self.vdevs();
        for leaf in vdevs.topology().root().devices() {
            let Some((zap, _)) = table(&vdevs, leaf.guid) else { continue };
            for kind in [SweepKind::Initialize, SweepKind::Trim] {
                let names = kind.names();
                let number = |name| source.zap_number(zap, name).ok().flatten().unwrap_or(0);
                let state = State::from_number(number(names.state));
                if state == State::None {
                    continue;
                }
                let (done, time) = (number(names.offset), number(names.time));
                let rate = names.more.map_or(0, |[rate, ..]| number(rate));
                let run = Run { state, done, time, rate, ..Run::default() };
                self.sweeps.runs.lock().insert((leaf.guid, kind), run);
            }
        }
    }

    pub(super) fn order_sweep(
        &self,
        change: &MosChange<'_>,
        key: Key,
        order: SweepOrder,
    ) -> Result<()> {
        let (leaf, kind) = key;
        let vdevs = self.vdevs();
        let missing = || Error::not_found("no such device in pool");
        let node = vdevs.topology().find(leaf).ok_or_else(missing)?;
        let top = vdevs.topology().top_of(leaf).ok_or_else(missing)?;
        if !node.kind.has_device() || !vdevs.is_written_to(leaf) {
            return Err(Error::invalid("invalid device"));
        }
        if table(&vdevs, leaf).is_none() {
            return Err(Error::unsupported("operation not supported on this type of pool"));
        }
        if matches!(order, SweepOrder::Begin { .. }) {
            let facts = vdevs.topology().top(top).and_then(|top| top.top.as_ref());
            if facts.is_some_and(|facts| facts.removing == Some(1)) {
                return Err(Error::new(ErrorKind::Busy, "the device is being removed"));
            }
            if kind == SweepKind::Trim && !vdevs.device_of(leaf).is_some_and(|one| one.can_trim()) {
                let words = "trim operations are not supported by this device";
                return Err(Error::unsupported(words));
            }
            let slabs = self.allocator.metaslabs(top);
            let is_laid_out = slabs.first().is_none_or(|slab| vdevs.on_leaf(leaf, *slab).is_some());
            if !is_laid_out {
                let words =
                    "this is not supported yet for devices of a dRAID vdev, or one that expands";
                return Err(Error::unsupported(words));
            }
        }
        let before = self.sweeps.runs.lock().get(&key).copied().unwrap_or_default();
        let next = before.after(kind, order)?;
        self.write_run(change, key, &next, before.state == State::Suspended)?;
        let run = Run { dirty: false, news: None, ..next };
        self.when_done(move |live| {
            live.sweeps.runs.lock().insert(key, run);
            live.sweeps.worker.wake();
        });
        Ok(())
    }

    /// Writes what is new.
    pub(super) fn record_sweeps(&self, change: &MosChange<'_>) -> Result<()> {
        let dirty: Vec<(Key, Run)> = {
            let mut runs = self.sweeps.runs.lock();
            let all = runs.iter_mut().filter(|(_, run)| run.dirty);
            all.map(|(key, run)| {
                let before = *run;
                (run.dirty, run.news) = (false, None);
                (*key, before)
            })
            .collect()
        };
        for (key, run) in dirty {
            self.write_run(change, key, &run, false)?;
        }
        Ok(())
    }

    fn write_run(
        &self,
        change: &MosChange<'_>,
        (leaf, kind): Key,
        run: &Run,
        goes_on: bool,
    ) -> Result<()> {
        let vdevs = self.vdevs();
        let Some((id, node)) = table(&vdevs, leaf) else { return Ok(()) };
        let (object, names) = (change.mos.object(id)?, kind.names());
        let more = names.more.into_iter().flatten().zip([run.rate, 0, 0]);
        let own = [(names.offset, run.done), (names.time, run.time)];
        for (name, value) in own.into_iter().chain(more) {
            match run.state {
                State::None => forget(change, &object, name)?,
                _ => zap::update(&object, change.tx, name, &Value::of_u64(value))?,
            }
        }
        match run.state {
            State::None => forget(change, &object, names.state)?,
            state => zap::update(&object, change.tx, names.state, &Value::of_u64(state as u64))?,
        }
        if let Some(word) = run.news {
            let path = node.path.as_deref().unwrap_or("-");
            match word {
                UNDONE => change.log_event(UNDONE, None, &format!("vdev={path}"))?,
                _ => change.log_event(kind.word(), None, &format!("vdev={path} {word}"))?,
            }
            if let Some(event) = kind.event(word, goes_on) {
                let members: Members = vdevs.named_in_event(leaf);
                self.tell(event, members);
            }
        }
        Ok(())
    }
}
