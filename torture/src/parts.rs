//! Steps in which one device of every mirror becomes a pool of its own: `zpool split`.
//!
//! Invariant: what was split off holds what the pool holds, and the pool goes on without it; when such a step has
//! ended, or a cut went back into its middle, every mirror has all its devices again.

use cenote_device::SimDevice;
use cenote_engine::pool::change::SplitPlan;
use cenote_format::Guid;
use cenote_format::config::{VdevConfig, VdevKind};

use crate::disks::{HALF, open_options, write_options};
use crate::judge::Judge;
use crate::members::another_half;
use crate::model::{Model, PoolState, Sequence};
use crate::run::{Runner, Verdict};

/// Devices that each mirror of a layout has, if it is made of mirrors only.
fn width(layout: &str) -> Option<usize> {
    match layout {
        "mirror" | "pairs" | "log" => Some(2),
        "mirror3" => Some(3),
        _ => None,
    }
}

fn is_log(top: &VdevConfig) -> bool {
    top.top.is_some_and(|facts| facts.is_log)
}

impl Runner {
    /// A pool is split off, judged, and its devices come back; power may be lost in the middle.
    pub(crate) fn split(&mut self, cut: u16, manner: u8, seed: u32, fill: u32) -> Verdict {
        let may = width(&self.setup.layout).is_some() && self.are_well()? && !self.is_evacuating();
        if !may || !self.spare_leaves()? {
            return self.pass();
        }
        let before = self.paths();
        let begun = SimDevice::newest_order();
        let plan = SplitPlan { name: HALF.into(), ..SplitPlan::default() };
        if !self.ordered(|runner| runner.live.split(plan, &open_options(), write_options()))? {
            return Ok(());
        }
        let after = self.paths();
        let gone: Vec<String> = before.into_iter().filter(|path| !after.contains(path)).collect();
        self.judge_half(&gone).map_err(|reason| format!("of what was split off: {reason}"))?;
        self.touch(fill)?;
        self.mirrors_again(fill)?;
        self.note_whole();
        if cut == 0 {
            return Ok(());
        }
        let mut orders = self.disks.orders();
        orders.retain(|order| *order > begun);
        let at = orders.len() * usize::from(cut.min(1000)) / 1000;
        let order = orders.get(at).copied().unwrap_or(u64::MAX);
        let left = self.cut_disks(order, manner, seed, 0);
        self.rotten = true;
        self.end_life(left, order, 0)
    }

    /// Paths of all leaves.
    fn paths(&self) -> Vec<String> {
        let vdevs = self.live.vdevs();
        vdevs.topology().root().devices().filter_map(|leaf| leaf.path.clone()).collect()
    }

    /// What was split off holds what the pool holds, every copy of it.
    fn judge_half(&self, gone: &[String]) -> Verdict {
        let now = self.model.pool.newest();
        let data = now.tops.len() - self.logs();
        let state =
            PoolState { tops: now.tops.iter().take(data).cloned().collect(), ..now.clone() };
        let model = Model { pool: Sequence::new(state), ..self.model.clone() };
        let disks = self.disks.copy_of(gone);
        let judge =
            Judge { disks, order: u64::MAX, model: &model, setup: &self.setup, spared: false };
        judge.judge().map(drop)
    }

    fn logs(&self) -> usize {
        let vdevs = self.live.vdevs();
        vdevs.topology().tops().iter().filter(|top| is_log(top)).count()
    }

    /// A mirror that has less than all its devices: one of them, and whether there is one that does not ail.
    fn is_short(&self) -> Option<(Guid, bool)> {
        let width = width(&self.setup.layout)?;
        let vdevs = self.live.vdevs();
        let tops = vdevs.topology().tops().iter().filter(|top| !is_log(top));
        let mut short = tops.filter(|top| match top.kind {
            // One that was added by itself never had another half.
            VdevKind::File => {
                top.path.as_ref().is_some_and(|own| self.disks.leaves().contains(own))
            }
            VdevKind::Mirror => top.children().len() < width,
            _ => false,
        });
        let top = short.next()?;
        let is_well =
            |leaf: &VdevConfig| leaf.path.as_ref().is_none_or(|path| !self.spare.contains(path));
        Some((top.devices().next()?.guid, top.devices().any(is_well)))
    }

    /// Devices that were split off are taken in again; whether there were any.
    pub(crate) fn mirrors_again(&mut self, fill: u32) -> Verdict<bool> {
        let (mut came, mut waits) = (false, false);
        while let Some((beside, is_safe)) = self.is_short() {
            let used = self.paths();
            let mut free = self.disks.leaves();
            free.retain(|path| !used.contains(path));
            // Devices of a mirror that was removed are there, too: not two that ail may come together.
            let fit = free.iter().find(|path| self.spare.contains(path) == is_safe);
            let Some(free) = fit.or(free.first()).cloned() else { break };
            let newcomer = another_half(beside, &free, fill);
            let opener = self.disks.opener();
            let mut why = String::new();
            let order = |runner: &Self| {
                let answer = runner.live.take_in(newcomer, opener);
                answer.inspect_err(|error| why = error.to_string())
            };
            if !self.ordered(order)? {
                if waits {
                    return Err(format!("{free} was split off, and does not come back: {why}"));
                }
                // A resilver and a rebuild do not run at once.
                waits = true;
                self.made_whole()?;
                continue;
            }
            (came, waits) = (true, false);
            self.touch(fill)?;
        }
        if came {
            self.made_whole()?;
        }
        Ok(came)
    }
}
