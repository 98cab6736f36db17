//! How far an initialize or a trim of each leaf is, as its table in the pool says.
//!
//! Invariant: what cannot be read counts as never begun; it is for looking only.

use std::collections::BTreeMap;

use cenote_control::report::{Activity, ActivityState, VdevReport};
use cenote_engine::pool::Pool;
use cenote_engine::zap::Zap;
use cenote_format::config::VdevConfig;

/// Initialize and trim of the leaves where one ever ran, by guid.
#[derive(Default)]
pub struct Activities(BTreeMap<u64, [Option<Activity>; 2]>);

impl Activities {
    /// Reads those of `tree` and all below it.
    pub fn read(pool: &Pool, tree: Option<&VdevConfig>) -> Self {
        let mut found = Self::default();
        if let Some(tree) = tree {
            found.add(pool, tree);
        }
        found
    }

    fn add(&mut self, pool: &Pool, vdev: &VdevConfig) {
        vdev.children().iter().for_each(|child| self.add(pool, child));
        let table = vdev.leaf_zap.and_then(|id| pool.mos().object(id).ok());
        let Some(table) = table.and_then(|object| Zap::open(object).ok()) else { return };
        let number = |key: String| table.lookup_u64(&key).ok().flatten();
        let of = |owner: &str, kind: &str, short: &str| {
            let state = number(format!("{owner}:vdev_{kind}_state"))?;
            let at = number(format!("{owner}:next_offset_to_{short}")).unwrap_or(0);
            let time = number(format!("{owner}:vdev_{kind}_action_time")).unwrap_or(0);
            activity(state, at, i64::try_from(time).unwrap_or(0))
        };
        let both =
            [of("com.delphix", "initialize", "initialize"), of("org.zfsonlinux", "trim", "trim")];
        if both.iter().any(Option::is_some) {
            self.0.insert(vdev.guid.0, both);
        }
    }

    /// Puts them into the report of a vdev and all below it, whose sizes are known as far as they are open.
    pub fn put(&self, vdev: &mut VdevReport) {
        self.put_with(vdev, 0);
    }

    /// The same; `least`: bytes that the vdev has at least.
    fn put_with(&self, vdev: &mut VdevReport, least: u64) {
        let least = if vdev.allocatable > 0 { vdev.allocatable } else { least };
        let sharing = match vdev.kind.as_str() {
            "raidz" => vdev.children.len() as u64,
            "root" | "draid" => 0,
            _ => 1,
        };
        let of_each = least.checked_div(sharing).unwrap_or(0);
        vdev.children.iter_mut().for_each(|child| self.put_with(child, of_each));
        let Some([initialize, trim]) = self.0.get(&vdev.guid) else { return };
        // One that is offline has no size, and is as far as it was.
        let total = least;
        let whole = |activity: Activity| match activity.state {
            ActivityState::Complete => Activity { done: total, total, ..activity },
            _ => Activity { done: activity.done.min(total), total, ..activity },
        };
        (vdev.initialize, vdev.trim) = (initialize.map(whole), trim.map(whole));
    }
}

fn activity(state: u64, done: u64, time: i64) -> Option<Activity> {
    let state = match state {
        1 => ActivityState::Active,
        2 => ActivityState::Canceled,
        3 => ActivityState::Suspended,
        4 => ActivityState::Complete,
        _ => return None,
    };
    Some(Activity { state, done, total: 0, time })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_complete_is_whole() {
        let mut activities = Activities::default();
        let begun = activity(1, 30, 7);
        activities.0.insert(5, [activity(4, 0, 9), begun]);
        let mut leaf = VdevReport { guid: 5, allocatable: 100, ..VdevReport::default() };
        activities.put(&mut leaf);
        assert_eq!(
            leaf.initialize.map(|activity| (activity.done, activity.total)),
            Some((100, 100))
        );
        assert_eq!(leaf.trim.map(|activity| (activity.done, activity.total)), Some((30, 100)));
        assert_eq!(activity(0, 1, 2), None);
    }
}
