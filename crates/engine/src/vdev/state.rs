//! How a vdev is, why, and how that follows from its children.
//!
//! Chapter 01, sections 7 and 11.3. Invariant: states are ordered from useless to healthy, and an
//! interior vdev is readable exactly when its redundancy covers the children that are not.

/// State of a vdev, in the field's words; the numbers are OpenZFS's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum VdevState {
    /// Not opened.
    Closed = 1,
    /// Taken offline by the administrator.
    Offline = 2,
    /// The device is gone.
    Removed = 3,
    /// Cannot be opened or does not answer.
    Unavailable = 4,
    /// Given up because of errors, or by the administrator.
    Faulted = 5,
    /// Works, with errors or with less redundancy than it should have.
    Degraded = 6,
    /// Works.
    Online = 7,
}

impl VdevState {
    /// The word `zpool status` prints.
    pub fn name(self) -> &'static str {
        match self {
            Self::Closed => "CLOSED",
            Self::Offline => "OFFLINE",
            Self::Removed => "REMOVED",
            Self::Unavailable => "UNAVAIL",
            Self::Faulted => "FAULTED",
            Self::Degraded => "DEGRADED",
            Self::Online => "ONLINE",
        }
    }

    /// Data can be read from a vdev in this state.
    pub fn is_readable(self) -> bool {
        self >= Self::Degraded
    }

    pub(super) fn from_number(number: u8) -> Self {
        match number {
            2 => Self::Offline,
            3 => Self::Removed,
            4 => Self::Unavailable,
            5 => Self::Faulted,
            6 => Self::Degraded,
            7 => Self::Online,
            _ => Self::Closed,
        }
    }
}

/// Why a vdev is not online; the numbers are OpenZFS's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Aux {
    /// Nothing to explain.
    #[default]
    None = 0,
    /// The device could not be opened.
    OpenFailed = 1,
    /// The label or the data is not what it should be.
    CorruptData = 2,
    /// Too many children are unavailable.
    NoReplicas = 3,
    /// The guids of the devices do not add up.
    BadGuidSum = 4,
    /// The device is smaller than 64 MiB.
    TooSmall = 5,
    /// No usable label, or smaller than it was.
    BadLabel = 6,
    /// Its version is newer than supported.
    VersionNewer = 7,
    /// Its version is older than supported.
    VersionOlder = 8,
    /// Unsupported features.
    UnsupportedFeature = 9,
    /// A spare in use elsewhere.
    Spared = 10,
    /// Too many errors.
    ErrorsExceeded = 11,
    /// Does not answer, or fails.
    IoFailure = 12,
    /// The log device is damaged.
    BadLog = 13,
    /// Forced by the administrator or an external agent.
    External = 14,
    /// The device now belongs to a pool that was split off.
    SplitPool = 15,
    /// The device's sectors are larger than the vdev's.
    BadAshift = 16,
    /// Forced by the administrator, for good.
    ExternalPersistent = 17,
    /// In use by another host.
    Active = 18,
    /// All children are offline.
    ChildrenOffline = 19,
}

impl Aux {
    const ALL: [Self; 20] = [
        Self::None,
        Self::OpenFailed,
        Self::CorruptData,
        Self::NoReplicas,
        Self::BadGuidSum,
        Self::TooSmall,
        Self::BadLabel,
        Self::VersionNewer,
        Self::VersionOlder,
        Self::UnsupportedFeature,
        Self::Spared,
        Self::ErrorsExceeded,
        Self::IoFailure,
        Self::BadLog,
        Self::External,
        Self::SplitPool,
        Self::BadAshift,
        Self::ExternalPersistent,
        Self::Active,
        Self::ChildrenOffline,
    ];

    pub(super) fn from_number(number: u8) -> Self {
        Self::ALL.get(usize::from(number)).copied().unwrap_or_default()
    }
}

/// State and reason together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The state.
    pub state: VdevState,
    /// The reason, [`Aux::None`] when online.
    pub aux: Aux,
}

impl Condition {
    /// Online, nothing to explain.
    pub const ONLINE: Self = Self { state: VdevState::Online, aux: Aux::None };

    /// A state and its reason.
    pub const fn new(state: VdevState, aux: Aux) -> Self {
        Self { state, aux }
    }
}

/// What an interior vdev makes of its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Redundancy {
    /// The root: every top-level vdev is needed, except logs.
    Root,
    /// Any child will do.
    Mirror,
    /// All children but this many.
    Parity(usize),
    /// As parity, but children with the same index modulo `set` fail together.
    Domains {
        /// Domains that may fail.
        parity: usize,
        /// Number of domains.
        set: usize,
    },
}

/// The condition that follows from the children's; `logs` tells which of the root's are logs.
pub(super) fn roll_up(
    redundancy: Redundancy,
    children: &[Condition],
    logs: impl Fn(usize) -> bool,
) -> Condition {
    let unreadable = |index: &usize| children.get(*index).is_some_and(|c| !c.state.is_readable());
    let lost: Vec<usize> = (0..children.len()).filter(unreadable).collect();
    let beyond = match redundancy {
        Redundancy::Root => lost.iter().any(|&index| !logs(index)),
        Redundancy::Mirror => lost.len() == children.len(),
        Redundancy::Parity(parity) => lost.len() > parity,
        Redundancy::Domains { parity, set } => {
            let mut domains: Vec<usize> = lost.iter().map(|index| index % set.max(1)).collect();
            domains.sort_unstable();
            domains.dedup();
            domains.len() > parity
        }
    };
    if beyond {
        let all_offline = redundancy == Redundancy::Mirror
            && children.iter().all(|child| child.state == VdevState::Offline);
        let corrupt = redundancy == Redundancy::Root
            && children
                .iter()
                .any(|child| !child.state.is_readable() && child.aux == Aux::CorruptData);
        let aux = match (all_offline, corrupt) {
            (true, _) => Aux::ChildrenOffline,
            (_, true) => Aux::CorruptData,
            _ => Aux::NoReplicas,
        };
        return Condition::new(VdevState::Unavailable, aux);
    }
    if children.iter().any(|child| child.state <= VdevState::Degraded) {
        return Condition::new(VdevState::Degraded, Aux::None);
    }
    Condition::ONLINE
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Condition = Condition::ONLINE;
    const LOST: Condition = Condition::new(VdevState::Unavailable, Aux::OpenFailed);
    const OFFLINE: Condition = Condition::new(VdevState::Offline, Aux::None);
    const WORN: Condition = Condition::new(VdevState::Degraded, Aux::ErrorsExceeded);

    fn state(redundancy: Redundancy, children: &[Condition]) -> (VdevState, Aux) {
        let condition = roll_up(redundancy, children, |index| index == 2);
        (condition.state, condition.aux)
    }

    #[test]
    fn redundancy_decides() {
        let online = (VdevState::Online, Aux::None);
        let degraded = (VdevState::Degraded, Aux::None);
        let none_left = (VdevState::Unavailable, Aux::NoReplicas);
        let mirror = Redundancy::Mirror;
        assert_eq!(state(mirror, &[GOOD, GOOD]), online);
        assert_eq!(state(mirror, &[GOOD, LOST]), degraded);
        assert_eq!(state(mirror, &[WORN, GOOD]), degraded);
        assert_eq!(state(mirror, &[LOST, OFFLINE]), none_left);
        assert_eq!(state(mirror, &[OFFLINE; 2]), (VdevState::Unavailable, Aux::ChildrenOffline));
        let parity = Redundancy::Parity(1);
        assert_eq!(state(parity, &[GOOD; 3]), online);
        assert_eq!(state(parity, &[GOOD, OFFLINE, GOOD]), degraded);
        assert_eq!(state(parity, &[LOST, OFFLINE, GOOD]), none_left);
        let domains = Redundancy::Domains { parity: 1, set: 3 };
        assert_eq!(state(domains, &[LOST, GOOD, GOOD, LOST, GOOD, GOOD]), degraded);
        assert_eq!(state(domains, &[LOST, GOOD, GOOD, GOOD, LOST, GOOD]), none_left);
        let root = Redundancy::Root;
        assert_eq!(state(root, &[GOOD, WORN, GOOD]), degraded);
        assert_eq!(state(root, &[GOOD, GOOD, LOST]), degraded);
        assert_eq!(state(root, &[LOST, GOOD, GOOD]), none_left);
        let corrupt = Condition::new(VdevState::Unavailable, Aux::CorruptData);
        assert_eq!(state(root, &[corrupt, GOOD]), (VdevState::Unavailable, Aux::CorruptData));
    }

    #[test]
    fn numbers_go_there_and_back() {
        for number in 1..=7 {
            assert_eq!(VdevState::from_number(number) as u8, number);
        }
        for number in 0..=19 {
            assert_eq!(Aux::from_number(number) as u8, number);
        }
    }
}
