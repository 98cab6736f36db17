//! How much memory the process of a pool takes: its share of the machine's, or of its control group's.
//!
//! Invariant: what is handed out here follows from one number, the smallest limit that holds for this
//! process (the machine, its control group and every group above it), divided by the pools that are
//! imported. Block cache, dirty data, idle buffers and the threads of mounts are all cut to it, so a
//! process in a small group gets slower instead of being killed.

use std::path::{Path, PathBuf};

use crate::run_directory;

/// Memory below which the caches take a smaller part, for what cannot be cut weighs more.
const SMALL: u64 = 1 << 30;
/// Percent of a control group's limit that its processes may take before the cache gives way.
const PRESSED: u64 = 75;
/// A limit as large as this is none.
const UNLIMITED: u64 = 1 << 60;

/// What a pool process may take, in bytes unless said otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Decoded blocks kept to be read again.
    pub cache: u64,
    /// Changes that wait to be written.
    pub dirty: u64,
    /// Writes handed to the devices at once.
    pub in_flight: u64,
    /// Idle buffers kept for reuse.
    pub buffers: u64,
    /// Most threads that serve one mount; each may hold a request of a MiB.
    pub threads: usize,
    /// Most threads that serve mounts, all together.
    pub all_threads: usize,
    /// Whether memory may come in huge pages, which disks are read into faster, and of which each thread takes one for
    /// the little it keeps.
    pub huge_pages: bool,
}

impl Budget {
    /// The share of one of `pools` pools in `total` bytes. A quarter for the cache and a tenth for dirty
    /// data (at most 4 GiB, as in OpenZFS); a sixth and a sixteenth of less than a GiB.
    pub fn of(total: u64, pools: u64) -> Self {
        let own = total / pools.max(1);
        let (cache, dirty) = if own < SMALL { (own / 6, own / 16) } else { (own / 4, own / 10) };
        let dirty = dirty.clamp(8 << 20, 4 << 30);
        Self {
            cache: cache.max(8 << 20),
            dirty,
            in_flight: (own / 32).clamp(4 << 20, 64 << 20),
            buffers: (dirty / 8).clamp(2 << 20, 256 << 20),
            threads: usize::try_from(own / (32 << 20)).unwrap_or(64).clamp(6, 64),
            all_threads: usize::try_from(own / (4 << 20)).unwrap_or(1024).clamp(64, 1024),
            huge_pages: own >= SMALL,
        }
    }

    /// A variable that the process of a pool with such a share is started with. What is free goes back to the
    /// system at once: threads that wait keep it otherwise, and those of many mounts keep a third of a small share.
    pub fn variable(&self) -> Option<(&'static str, &'static str)> {
        (!self.huge_pages).then_some(("MIMALLOC_PURGE_DELAY", "0"))
    }

    /// The share of this process as things are.
    pub fn now() -> Self {
        Self::of(
            machine().min(Group::own().and_then(|group| group.limit()).unwrap_or(UNLIMITED)),
            pools(),
        )
    }
}

/// The machine's memory in bytes.
fn machine() -> u64 {
    let info = rustix::system::sysinfo();
    (info.totalram as u64).saturating_mul(u64::from(info.mem_unit))
}

/// Pools that are imported by way of this run directory, this one included.
fn pools() -> u64 {
    let entries = std::fs::read_dir(run_directory::path());
    let sockets = entries.into_iter().flatten().flatten();
    let count = sockets.filter(|entry| entry.path().extension().is_some_and(|is| is == "sock"));
    (count.count() as u64).max(1)
}

/// A control group with a controller of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Its directory.
    directory: PathBuf,
    /// The directory of the hierarchy's uppermost group that can be seen.
    top: PathBuf,
    /// Of the unified hierarchy.
    unified: bool,
}

impl Group {
    /// That of this process; the older hierarchy's first, since it has the controller if it is there.
    pub fn own() -> Option<Self> {
        let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
        Self::find(&groups, &mounts, false).or_else(|| Self::find(&groups, &mounts, true))
    }

    fn find(groups: &str, mounts: &str, unified: bool) -> Option<Self> {
        let path = groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (number, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let wanted = match unified {
                true => number == "0" && controllers.is_empty(),
                false => controllers.split(',').any(|name| name == "memory"),
            };
            wanted.then_some(path)
        })?;
        mounts.lines().find_map(|line| {
            let (place, kind) = line.split_once(" - ")?;
            let mut place = place.split(' ').skip(3);
            let (root, top) = (place.next()?, PathBuf::from(place.next()?));
            let mut kind = kind.split(' ');
            let (name, options) = (kind.next()?, kind.nth(1)?);
            let wanted = match unified {
                true => name == "cgroup2",
                false => name == "cgroup" && options.split(',').any(|word| word == "memory"),
            };
            if !wanted {
                return None;
            }
            // What lies outside the part that is mounted here cannot be seen.
            let below = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
            Some(Self { directory: top.join(below), top, unified })
        })
    }

    /// It and those above it.
    fn with_parents(&self) -> impl Iterator<Item = &Path> {
        self.directory.ancestors().take_while(|path| path.starts_with(&self.top))
    }

    /// The smallest limit of it and those above it; none if nothing limits it.
    fn limit(&self) -> Option<u64> {
        self.with_parents().filter_map(|path| self.limit_at(path)).min()
    }

    fn limit_at(&self, path: &Path) -> Option<u64> {
        let files: &[&str] =
            if self.unified { &["memory.max", "memory.high"] } else { &["memory.limit_in_bytes"] };
        let read = |name: &&str| std::fs::read_to_string(path.join(name)).ok()?.trim().parse().ok();
        files.iter().filter_map(read).min().filter(|limit| *limit < UNLIMITED)
    }

    /// Whether it, or one above it, is near its limit, not counting what the kernel can drop.
    pub fn is_pressed(&self) -> bool {
        self.with_parents().any(|path| {
            let limit = self.limit_at(path);
            let used = self.used_at(path);
            limit.zip(used).is_some_and(|(limit, used)| used > limit / 100 * PRESSED)
        })
    }

    /// Bytes its processes hold.
    fn used_at(&self, path: &Path) -> Option<u64> {
        let name = if self.unified { "anon" } else { "total_rss" };
        let text = std::fs::read_to_string(path.join("memory.stat")).ok()?;
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_shrink_with_memory_and_pools() {
        let large = Budget::of(16 << 30, 1);
        assert_eq!((large.cache, large.threads, large.buffers), (4 << 30, 64, (16 << 30) / 80));
        assert_eq!((large.all_threads, large.huge_pages), (1024, true));
        assert_eq!(large.variable(), None);
        assert_eq!(Budget::of(1 << 40, 1).dirty, 4 << 30);
        assert_eq!(Budget::of(16 << 30, 4), Budget::of(4 << 30, 1));
        let small = Budget::of(300 << 20, 1);
        let threads = (small.threads as u64) << 20;
        assert_eq!((small.all_threads, small.huge_pages), (75, false));
        assert!(small.variable().is_some());
        let most = small.cache + 2 * small.dirty + small.in_flight + small.buffers + threads;
        assert!(most < 160 << 20, "half of a small group is left for what cannot be cut: {most}");
    }

    #[test]
    fn groups_are_found_in_both_hierarchies() {
        let groups = "4:cpu,memory:/a/b\n1:cpu:/\n0::/u/v\n";
        let mounts = "30 25 0:26 /a /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                      31 25 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        let old = Group::find(groups, mounts, false).unwrap();
        assert_eq!(old.directory, Path::new("/sys/fs/cgroup/memory/b"));
        let new = Group::find(groups, mounts, true).unwrap();
        assert_eq!(new.directory, Path::new("/sys/fs/cgroup/unified/u/v"));
        assert_eq!(Group::find("0::/u\n", "", true), None);
    }

    #[test]
    fn the_smallest_limit_above_counts() {
        let top = tempfile::tempdir().unwrap();
        let inner = top.path().join("a/b");
        std::fs::create_dir_all(&inner).unwrap();
        let group = Group { directory: inner.clone(), top: top.path().to_owned(), unified: true };
        assert_eq!(group.limit(), None);
        std::fs::write(inner.join("memory.max"), "max\n").unwrap();
        std::fs::write(inner.join("memory.high"), "900\n").unwrap();
        std::fs::write(top.path().join("a/memory.max"), "500\n").unwrap();
        assert_eq!(group.limit(), Some(500));
        std::fs::write(top.path().join("a/memory.stat"), "anon_thp 9\nanon 370\n").unwrap();
        assert!(!group.is_pressed());
        std::fs::write(top.path().join("a/memory.stat"), "anon_thp 9\nanon 380\n").unwrap();
        assert!(group.is_pressed());
    }
}
