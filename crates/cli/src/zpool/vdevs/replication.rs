//! Whether the devices of a pool are of one redundancy.
//!
//! Invariant: log devices, caches and spares do not count; the words are those of OpenZFS.

use cenote_control::plan::{VdevPlan, VdevPlanKind};
use cenote_control::report::{VdevClass, VdevReport};

/// How much sizes within a group may differ, in bytes.
const FUZZ: u64 = 16 << 20;

/// Redundancy of a top-level device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    kind: String,
    parity: u64,
    children: u64,
}

impl Level {
    fn of(vdev: &VdevPlan) -> Level {
        let children = vdev.children.len() as u64;
        let (kind, parity, children) = match vdev.kind {
            VdevPlanKind::File => ("file", 0, 1),
            VdevPlanKind::Disk => ("disk", 0, 1),
            VdevPlanKind::Mirror => ("mirror", 0, children),
            VdevPlanKind::Raidz { parity } => ("raidz", u64::from(parity), children),
            VdevPlanKind::Draid { parity, .. } => ("draid", u64::from(parity), children),
        };
        Level { kind: kind.to_owned(), parity, children }
    }

    fn has_parity(&self) -> bool {
        matches!(self.kind.as_str(), "raidz" | "draid")
    }

    /// Devices that may fail.
    fn may_lose(&self) -> u64 {
        if self.has_parity() { self.parity } else { self.children.saturating_sub(1) }
    }
}

/// How two levels differ.
enum Difference<'a> {
    /// Parity against parity, or against copies (the second is a mirror).
    Redundancy(&'a Level, &'a Level),
    Kind,
    Ways,
}

fn difference<'a>(one: &'a Level, other: &'a Level) -> Option<Difference<'a>> {
    let mirror = |level: &Level| level.kind == "mirror";
    if one.has_parity() && (other.has_parity() || mirror(other)) {
        return (one.may_lose() != other.may_lose()).then_some(Difference::Redundancy(one, other));
    }
    if mirror(one) && other.has_parity() {
        return (one.may_lose() != other.may_lose()).then_some(Difference::Redundancy(other, one));
    }
    if one.kind != other.kind {
        return Some(Difference::Kind);
    }
    (one.children != other.children).then_some(Difference::Ways)
}

fn counts(vdev: &VdevPlan) -> bool {
    matches!(vdev.class, VdevClass::Normal | VdevClass::Special | VdevClass::Dedup)
}

/// The redundancy all devices of a plan have; `None` if none counts.
///
/// # Errors
/// The line to print if they differ, or a group is mixed.
pub fn of_plan(plan: &[VdevPlan]) -> Result<Option<Level>, String> {
    let mut last: Option<Level> = None;
    for vdev in plan.iter().filter(|vdev| counts(vdev)) {
        let level = Level::of(vdev);
        let kind = &level.kind;
        let all = |wanted| vdev.children.iter().all(|child| child.kind == wanted);
        if !vdev.is_leaf() && !all(VdevPlanKind::File) && !all(VdevPlanKind::Disk) {
            return Err(format!(
                "mismatched replication level: {kind} contains both files and devices"
            ));
        }
        if let Some(first) = vdev.children.first()
            && vdev.children.iter().any(|child| child.size.abs_diff(first.size) > FUZZ)
        {
            return Err(format!("{kind} contains devices of different sizes"));
        }
        if let Some(last) = &last
            && let Some(difference) = difference(last, &level)
        {
            let start = "mismatched replication level:";
            return Err(match difference {
                Difference::Redundancy(one, other) => {
                    let (a, b) = (one.may_lose(), other.may_lose());
                    let ways = if other.has_parity() {
                        String::new()
                    } else {
                        format!(" ({}-way)", other.children)
                    };
                    format!(
                        "{start} {} and {} vdevs with different redundancy, {a} vs. {b}{ways} are \
                         present",
                        one.kind, other.kind
                    )
                }
                Difference::Kind => {
                    format!("{start} both {} and {} vdevs are present", last.kind, level.kind)
                }
                Difference::Ways => format!(
                    "{start} both {}-way and {}-way {} vdevs are present",
                    last.children, level.children, level.kind
                ),
            });
        }
        last = Some(level);
    }
    Ok(last)
}

/// The redundancy of a pool that is there; `None` if its own devices differ.
pub fn of_pool(root: &VdevReport) -> Option<Level> {
    let mut last: Option<Level> = None;
    let counts = |vdev: &&VdevReport| {
        matches!(vdev.class, VdevClass::Normal | VdevClass::Special | VdevClass::Dedup)
            && !matches!(vdev.kind.as_str(), "indirect" | "hole" | "missing")
    };
    for vdev in root.children.iter().filter(counts) {
        let parity = vdev.name.strip_prefix(vdev.kind.as_str());
        let parity = parity.and_then(|rest| rest.get(..1)?.parse().ok()).unwrap_or(0);
        let kind = match vdev.kind.as_str() {
            "replacing" | "spare" => "disk",
            kind => kind,
        };
        let children = if kind == "disk" { 1 } else { vdev.children.len().max(1) as u64 };
        let level = Level { kind: kind.to_owned(), parity, children };
        if let Some(last) = &last
            && difference(last, &level).is_some()
        {
            return None;
        }
        last = Some(level);
    }
    last
}

/// Whether new devices fit those of a pool.
///
/// # Errors
/// The line to print.
pub fn fits(pool: &Level, new: &Level) -> Result<(), String> {
    let start = "mismatched replication level:";
    match difference(pool, new) {
        None => Ok(()),
        Some(Difference::Redundancy(one, other)) => {
            let (a, b) = (one.may_lose(), other.may_lose());
            let ways = match other.has_parity() {
                true => String::new(),
                false => format!(" ({}-way)", other.children),
            };
            Err(format!(
                "{start} pool and new vdev with different redundancy, {} and {} vdevs, {a} vs. \
                 {b}{ways}",
                one.kind, other.kind
            ))
        }
        Some(Difference::Kind) => {
            Err(format!("{start} pool uses {} and new vdev is {}", pool.kind, new.kind))
        }
        Some(Difference::Ways) => Err(format!(
            "{start} pool uses {}-way {} and new vdev uses {}-way {}",
            pool.children, pool.kind, new.children, new.kind
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(size: u64) -> VdevPlan {
        VdevPlan { size, ..VdevPlan::default() }
    }

    fn group(kind: VdevPlanKind, children: usize) -> VdevPlan {
        VdevPlan { kind, children: vec![leaf(128 << 20); children], ..VdevPlan::default() }
    }

    fn mirror(children: usize) -> VdevPlan {
        group(VdevPlanKind::Mirror, children)
    }

    fn raidz(parity: u8, children: usize) -> VdevPlan {
        group(VdevPlanKind::Raidz { parity }, children)
    }

    /// Recorded from OpenZFS 2.1.11 in a virtual machine.
    #[test]
    fn mismatches_have_the_words_of_openzfs() {
        let start = "mismatched replication level:";
        for (plan, words) in [
            (
                vec![leaf(128 << 20), mirror(2)],
                format!("{start} both file and mirror vdevs are present"),
            ),
            (
                vec![mirror(2), mirror(3)],
                format!("{start} both 2-way and 3-way mirror vdevs are present"),
            ),
            (
                vec![raidz(1, 2), raidz(2, 3)],
                format!(
                    "{start} raidz and raidz vdevs with different redundancy, 1 vs. 2 are present"
                ),
            ),
            (
                vec![mirror(2), VdevPlan { class: VdevClass::Special, ..leaf(1) }],
                format!("{start} both mirror and file vdevs are present"),
            ),
        ] {
            assert_eq!(of_plan(&plan), Err(words));
        }
        assert!(of_plan(&[mirror(2), raidz(1, 3)]).is_ok());
        assert!(of_plan(&[raidz(1, 3), raidz(1, 4)]).is_ok());
        assert!(of_plan(&[mirror(2), VdevPlan { class: VdevClass::Log, ..leaf(1) }]).is_ok());
        let mut uneven = mirror(2);
        uneven.children[1].size = 256 << 20;
        let words = "mirror contains devices of different sizes";
        assert_eq!(of_plan(&[uneven]), Err(words.to_owned()));
        let mut uneven = raidz(1, 3);
        uneven.children[2].size = 256 << 20;
        assert_eq!(of_plan(&[uneven]), Err("raidz contains devices of different sizes".into()));
    }

    #[test]
    fn new_devices_are_held_against_the_pool() {
        let pool = Level::of(&mirror(2));
        assert_eq!(fits(&pool, &Level::of(&mirror(2))), Ok(()));
        let words = "mismatched replication level: pool uses mirror and new vdev is file";
        assert_eq!(fits(&pool, &Level::of(&leaf(1))), Err(words.to_owned()));
        let words = "mismatched replication level: pool uses 2-way mirror and new vdev uses 3-way \
                     mirror";
        assert_eq!(fits(&pool, &Level::of(&mirror(3))), Err(words.to_owned()));
    }
}
