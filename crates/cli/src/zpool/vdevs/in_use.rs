//! Whether the devices of a plan are free to be taken.
//!
//! Invariant: devices are only read; what cannot be looked at is refused, not called free.

use std::path::Path;

use cenote_control::plan::{VdevPlan, VdevPlanKind};
use cenote_control::report::VdevClass;
use cenote_engine::pool::in_use::{InUse, device_in_use};

/// What stands against taking the leaves of a plan: what `-f` overrides, and what it does not.
pub fn uses_of_all(plan: &[VdevPlan]) -> (Vec<String>, Vec<String>) {
    let (mut forcible, mut firm) = (Vec::new(), Vec::new());
    for leaf in plan.iter().flat_map(VdevPlan::leaves) {
        let Some(path) = leaf.path.as_deref().map(Path::new) else { continue };
        match device_in_use(path) {
            Ok(mut found) => {
                if leaf.kind == VdevPlanKind::File {
                    // OpenZFS looks at files for pools only
                    (found.filesystem, found.partitions) = (None, None);
                }
                sort(&found, path, leaf.class, &mut forcible, &mut firm);
            }
            Err(error) => firm.push(format!("cannot open {error}")),
        }
    }
    (forcible, firm)
}

fn sort(
    found: &InUse,
    path: &Path,
    class: VdevClass,
    forcible: &mut Vec<String>,
    firm: &mut Vec<String>,
) {
    let spare = class == VdevClass::Spare;
    if let Some(words) = found.problem(path, true, spare) {
        firm.push(words);
    } else if let Some(words) = found.problem(path, false, spare) {
        forcible.push(words);
    }
}

#[cfg(test)]
mod tests {
    use cenote_engine::pool::in_use::PoolUse;
    use cenote_format::config::PoolState;

    use super::*;

    /// Recorded from OpenZFS 2.1.11.
    #[test]
    fn old_pools_can_be_overridden() {
        let found = |state| InUse {
            pool: Some(PoolUse { name: "ex".into(), guid: None, state, hostid: 0 }),
            ..InUse::default()
        };
        let sorted = |state| {
            let (mut forcible, mut firm) = (Vec::new(), Vec::new());
            let path = Path::new("/d/3");
            sort(&found(state), path, VdevClass::Normal, &mut forcible, &mut firm);
            (forcible, firm)
        };
        let exported = "/d/3 is part of exported pool 'ex'".to_owned();
        assert_eq!(sorted(PoolState::Exported), (vec![exported], vec![]));
        let active = "/d/3 is part of potentially active pool 'ex'".to_owned();
        assert_eq!(sorted(PoolState::Active), (vec![active], vec![]));
        assert_eq!(sorted(PoolState::Destroyed), (vec![], vec![]));
    }
}
