//! Decides whether listings carry attributes.
//!
//! The kernel can ask for a listing with the attributes of every entry (READDIRPLUS), which saves
//! a request for each file that is looked at afterwards (`ls -l`, `find -size`: a factor of five)
//! and costs the server the attributes. The kernel's own guess fails for programs that read a
//! whole directory before they look at the first file, so it is told to ask always, and the choice
//! is made here: an entry may be sent without attributes, at the price of a plain listing.
//!
//! Method: listings carry attributes, except for one file of each larger directory. If that file
//! is looked up later, somebody wants attributes; if several directories pass without, nobody
//! does, and listings become plain until files of a listed directory are looked up again.
//!
//! Invariant: only speed depends on what is decided here.

use cenote_posix::tree::NodeId;
use parking_lot::Mutex;

/// Which file of a directory is left out as a probe: the one after so many others.
const PROBE_AFTER: usize = 16;
/// Directories whose probe was not looked up, after which listings become plain.
const MISSES: u32 = 2;
/// Lookups of files of a plainly listed directory that bring attributes back.
const LOOKUPS: u32 = 4;

/// Decides, by what became of recent listings.
#[derive(Debug, Default)]
pub(super) struct ListingPolicy {
    recent: Mutex<RecentListings>,
}

/// What became of the listings before.
#[derive(Debug, Default)]
struct RecentListings {
    plain: bool,
    /// The directory listed last.
    directory: NodeId,
    /// The file left out, and its directory.
    probe: Option<(NodeId, Vec<u8>)>,
    misses: u32,
    lookups: u32,
}

impl ListingPolicy {
    /// A listing starts, from the beginning of `directory`. Whether entries get attributes.
    pub(super) fn begin(&self, directory: NodeId) -> bool {
        let recent = &mut *self.recent.lock();
        if recent.probe.as_ref().is_some_and(|(parent, _)| *parent != directory) {
            recent.probe = None;
            recent.misses += 1;
            recent.plain |= recent.misses >= MISSES;
        }
        if recent.directory != directory {
            recent.directory = directory;
            recent.lookups = 0;
        }
        !recent.plain
    }

    /// A listing goes on. Whether entries get attributes.
    pub(super) fn attributes_wanted(&self) -> bool {
        !self.recent.lock().plain
    }

    /// Whether the file `name`, the one after `before` others in this answer, is left out.
    pub(super) fn is_probe(&self, directory: NodeId, name: &[u8], before: usize) -> bool {
        if before != PROBE_AFTER {
            return false;
        }
        let recent = &mut *self.recent.lock();
        if recent.probe.is_none() {
            recent.probe = Some((directory, name.to_vec()));
            return true;
        }
        false
    }

    /// `name` was looked up and is no directory.
    pub(super) fn looked_up(&self, parent: NodeId, name: &[u8]) {
        let recent = &mut *self.recent.lock();
        if recent.probe.as_ref().is_some_and(|(p, n)| *p == parent && n == name) {
            recent.probe = None;
            recent.misses = 0;
        }
        if recent.plain && parent == recent.directory {
            recent.lookups += 1;
            if recent.lookups >= LOOKUPS {
                recent.plain = false;
                recent.misses = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listings_become_plain_when_nobody_looks_and_rich_again_when_somebody_does() {
        let policy = ListingPolicy::default();
        for directory in 1..=3 {
            assert!(policy.begin(directory));
            assert!(!policy.is_probe(directory, b"a", 3));
            assert!(policy.is_probe(directory, b"b", PROBE_AFTER));
            assert!(policy.attributes_wanted());
            policy.looked_up(directory, b"b");
        }
        for directory in 4..=5 {
            assert!(policy.begin(directory));
            assert!(policy.is_probe(directory, b"b", PROBE_AFTER));
        }
        assert!(!policy.begin(6));
        for _ in 0..LOOKUPS {
            assert!(!policy.attributes_wanted());
            policy.looked_up(1, b"elsewhere");
            policy.looked_up(6, b"here");
        }
        assert!(policy.attributes_wanted());
    }

    #[test]
    fn one_long_listing_keeps_its_attributes() {
        let policy = ListingPolicy::default();
        assert!(policy.begin(1));
        for _ in 0..500 {
            policy.is_probe(1, b"x", PROBE_AFTER);
            assert!(policy.attributes_wanted());
        }
        assert!(policy.begin(1));
    }
}
