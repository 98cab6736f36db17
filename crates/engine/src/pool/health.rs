//! States of vdevs, from the leaves up to the pool.
//!
//! Invariant: an interior vdev's state follows from its children's alone, by the redundancy of its kind.
//! The words are those `zpool` prints.

use cenote_format::config::{VdevConfig, VdevKind};

/// State of a vdev, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VdevState {
    /// Taken offline.
    Offline,
    /// Physically removed.
    Removed,
    /// Cannot be opened.
    CannotOpen,
    /// Failed, not to be used.
    Faulted,
    /// Works, with less redundancy than it should have.
    Degraded,
    /// Works.
    Healthy,
}

/// Why a vdev is in its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VdevAux {
    /// No particular reason.
    None,
    /// No device, or it does not open.
    OpenFailed,
    /// Its label or the pool's metadata makes no sense.
    CorruptData,
    /// Too few children.
    NoReplicas,
    /// Vdevs of the pool are not known.
    BadGuidSum,
    /// Label missing or damaged, or device too small.
    BadLabel,
    /// Pool version too new.
    VersionNewer,
    /// Features not known here.
    UnsupportedFeature,
    /// Too many errors.
    TooManyErrors,
    /// The intent log cannot be read.
    BadLog,
    /// Made to fail by the administrator.
    External,
    /// Split off into another pool.
    SplitPool,
    /// In use by another host.
    Active,
    /// All children are offline.
    ChildrenOffline,
}

/// State and reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Health {
    /// The state.
    pub state: VdevState,
    /// The reason.
    pub aux: VdevAux,
}

impl Health {
    /// Works.
    pub const ONLINE: Self = Self { state: VdevState::Healthy, aux: VdevAux::None };

    /// `state` because of `aux`.
    pub fn new(state: VdevState, aux: VdevAux) -> Self {
        Self { state, aux }
    }

    /// Can be read.
    pub fn is_readable(self) -> bool {
        self.state >= VdevState::Degraded
    }

    /// The word for the state.
    pub fn word(self) -> &'static str {
        match self.state {
            VdevState::Offline => "OFFLINE",
            VdevState::Removed => "REMOVED",
            VdevState::CannotOpen => match self.aux {
                VdevAux::CorruptData | VdevAux::BadLog => "FAULTED",
                VdevAux::SplitPool => "SPLIT",
                _ => "UNAVAIL",
            },
            VdevState::Faulted => "FAULTED",
            VdevState::Degraded => "DEGRADED",
            VdevState::Healthy => "ONLINE",
        }
    }

    /// The words for the reason in a listing of importable pools.
    pub fn import_words(self) -> Option<&'static str> {
        Some(match self.aux {
            VdevAux::None => return None,
            VdevAux::OpenFailed => "cannot open",
            VdevAux::BadGuidSum => "missing device",
            VdevAux::NoReplicas => "insufficient replicas",
            VdevAux::VersionNewer => "newer version",
            VdevAux::UnsupportedFeature => "unsupported feature(s)",
            VdevAux::TooManyErrors => "too many errors",
            VdevAux::Active => "currently in use",
            VdevAux::ChildrenOffline => "all children offline",
            VdevAux::BadLabel => "invalid label",
            VdevAux::CorruptData | VdevAux::BadLog | VdevAux::External | VdevAux::SplitPool => {
                "corrupted data"
            }
        })
    }
}

/// The health of a tree, in the shape of its config.
#[derive(Clone, Debug, PartialEq)]
pub struct HealthTree {
    /// Of this node.
    pub health: Health,
    /// Of its children, in their order.
    pub children: Vec<HealthTree>,
}

impl HealthTree {
    /// The health of every node of `root`, a pool's root vdev. `leaf` judges a leaf, given its
    /// top-level vdev.
    pub fn assess(
        root: &VdevConfig,
        leaf: &mut dyn FnMut(&VdevConfig, &VdevConfig) -> Health,
    ) -> Self {
        let tops = root.children();
        let children: Vec<_> = tops.iter().map(|top| Self::below(top, top, leaf)).collect();
        let health = root_health(tops, &children);
        Self { health, children }
    }

    fn below(
        node: &VdevConfig,
        top: &VdevConfig,
        leaf: &mut dyn FnMut(&VdevConfig, &VdevConfig) -> Health,
    ) -> Self {
        if node.children().is_empty() {
            let health = match node.kind {
                VdevKind::Disk | VdevKind::File => leaf(node, top),
                VdevKind::Root
                | VdevKind::DistributedSpare
                | VdevKind::Hole
                | VdevKind::Missing
                | VdevKind::Indirect => Health::ONLINE,
                // These have nothing but their children.
                _ => Health::new(VdevState::CannotOpen, VdevAux::NoReplicas),
            };
            return Self { health, children: Vec::new() };
        }
        let children: Vec<_> =
            node.children().iter().map(|child| Self::below(child, top, leaf)).collect();
        Self { health: interior_health(node, &children), children }
    }

    /// This node and all below it that have no children, with their configs.
    pub fn leaves<'a>(&'a self, config: &'a VdevConfig) -> Vec<(&'a VdevConfig, Health)> {
        let mut found = Vec::new();
        let mut pending = vec![(self, config)];
        while let Some((node, config)) = pending.pop() {
            if node.children.is_empty() {
                found.push((config, node.health));
            }
            pending.extend(node.children.iter().zip(config.children()).rev());
        }
        found
    }
}

fn tally(children: &[HealthTree]) -> (usize, usize) {
    let failed = children.iter().filter(|child| !child.health.is_readable()).count();
    let degraded = children.iter().filter(|c| c.health.state == VdevState::Degraded).count();
    (failed, degraded)
}

fn interior_health(node: &VdevConfig, children: &[HealthTree]) -> Health {
    let (failed, degraded) = tally(children);
    let spare = match node.kind {
        VdevKind::Raidz | VdevKind::Draid => node.nparity.unwrap_or(1) as usize,
        _ => children.len().saturating_sub(1),
    };
    let redundant = matches!(node.kind, VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare);
    if failed > spare {
        let offline = children.iter().all(|child| child.health.state == VdevState::Offline);
        if redundant && offline {
            return Health::new(VdevState::Offline, VdevAux::ChildrenOffline);
        }
        return Health::new(VdevState::CannotOpen, VdevAux::NoReplicas);
    }
    if failed + degraded > 0 {
        return Health::new(VdevState::Degraded, VdevAux::None);
    }
    Health::ONLINE
}

fn root_health(tops: &[VdevConfig], children: &[HealthTree]) -> Health {
    // A log that fails leaves the pool readable.
    fn is_log(top: &VdevConfig) -> bool {
        top.top.is_some_and(|keys| keys.is_log)
    }
    let failed = |log: bool| {
        let pairs = tops.iter().zip(children);
        pairs.filter(move |(top, child)| is_log(top) == log && !child.health.is_readable())
    };
    let corrupt = failed(false).any(|(_, child)| child.health.aux == VdevAux::CorruptData);
    let (any_failed, any_degraded) = tally(children);
    if failed(false).next().is_some() {
        let aux = if corrupt { VdevAux::CorruptData } else { VdevAux::NoReplicas };
        return Health::new(VdevState::CannotOpen, aux);
    }
    if any_failed + any_degraded > 0 {
        return Health::new(VdevState::Degraded, VdevAux::None);
    }
    Health::ONLINE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::testing::{leaf, top};

    fn root(tops: Vec<VdevConfig>) -> VdevConfig {
        VdevConfig { children: Some(tops), ..VdevConfig::default() }
    }

    /// Judges with the leaves of `bad` unopenable.
    fn judge(root: &VdevConfig, bad: &[u64]) -> HealthTree {
        HealthTree::assess(root, &mut |node, _| {
            if node.offline {
                Health::new(VdevState::Offline, VdevAux::None)
            } else if bad.contains(&node.guid.0) {
                Health::new(VdevState::CannotOpen, VdevAux::OpenFailed)
            } else {
                Health::ONLINE
            }
        })
    }

    fn words(tree: &HealthTree) -> (&'static str, Option<&'static str>) {
        (tree.health.word(), tree.health.import_words())
    }

    #[test]
    fn redundancy_decides() {
        let leaves = |n: u64| (0..n).map(|id| leaf(id, 11 + id, "/x")).collect::<Vec<_>>();
        for (kind, bad, top_words, root_words) in [
            (VdevKind::Mirror, &[][..], ("ONLINE", None), ("ONLINE", None)),
            (VdevKind::Mirror, &[11, 12], ("DEGRADED", None), ("DEGRADED", None)),
            (
                VdevKind::Mirror,
                &[11, 12, 13],
                ("UNAVAIL", Some("insufficient replicas")),
                ("UNAVAIL", Some("insufficient replicas")),
            ),
            (VdevKind::Raidz, &[11], ("DEGRADED", None), ("DEGRADED", None)),
            (
                VdevKind::Raidz,
                &[11, 12],
                ("UNAVAIL", Some("insufficient replicas")),
                ("UNAVAIL", Some("insufficient replicas")),
            ),
        ] {
            let tree = judge(&root(vec![top(kind, 0, 10, leaves(3))]), bad);
            assert_eq!((words(&tree.children[0]), words(&tree)), (top_words, root_words));
        }
    }

    #[test]
    fn a_lost_log_only_degrades() {
        let mut log = top(VdevKind::File, 1, 0, vec![leaf(1, 21, "/l")]);
        let mut keys = log.top.unwrap();
        keys.is_log = true;
        log.top = Some(keys);
        let data = top(VdevKind::File, 0, 0, vec![leaf(0, 11, "/d")]);
        let tree = root(vec![data, log]);
        assert_eq!(words(&judge(&tree, &[21])), ("DEGRADED", None));
        assert_eq!(words(&judge(&tree, &[11])), ("UNAVAIL", Some("insufficient replicas")));
    }

    #[test]
    fn placeholders_do_not_fail_and_offline_mirrors_say_so() {
        let hole = VdevConfig::placeholder(VdevKind::Hole, 0);
        let missing = VdevConfig::placeholder(VdevKind::Missing, 1);
        assert_eq!(words(&judge(&root(vec![hole, missing]), &[])), ("ONLINE", None));
        let mut children = vec![leaf(0, 11, "/a"), leaf(1, 12, "/b")];
        children.iter_mut().for_each(|child| child.offline = true);
        let tree = judge(&root(vec![top(VdevKind::Mirror, 0, 10, children)]), &[]);
        assert_eq!(words(&tree.children[0]), ("OFFLINE", Some("all children offline")));
        assert_eq!(tree.children[0].children[0].health.word(), "OFFLINE");
    }

    #[test]
    fn corruption_shows_at_the_root() {
        let tree = root(vec![top(VdevKind::File, 0, 0, vec![leaf(0, 11, "/d")])]);
        let judged = HealthTree::assess(&tree, &mut |_, _| {
            Health::new(VdevState::CannotOpen, VdevAux::CorruptData)
        });
        assert_eq!(words(&judged), ("FAULTED", Some("corrupted data")));
        assert_eq!(judged.leaves(&tree).len(), 1);
    }
}
