//! The whole stack on simulated disks, everything from one seed.
//!
//! A seed becomes a plan ([`draw`]): a pool and steps. The steps are carried out through the same doors
//! as the pool process uses ([`run`], [`files`], [`orders`], [`lives`]), and what they come to is kept in
//! a model ([`model`]). Power cuts, deaths and damage are judged by it ([`judge`]).
//! Invariant: the same plan gives the same bytes on the disks; a plan that fails is made shorter by
//! taking steps out ([`minimise`]).
#![allow(clippy::indexing_slicing, clippy::arithmetic_side_effects, reason = "for us only")]

mod blink;
mod dark;
pub mod disks;
pub mod draw;
mod files;
pub mod judge;
mod lives;
mod looks;
mod members;
pub mod minimise;
pub mod model;
mod orders;
mod parts;
pub mod plan;
pub mod random;
pub mod run;
mod scans;
mod spares;
mod tops;
mod travel;

use std::panic::AssertUnwindSafe;
use std::time::Instant;

pub use plan::Plan;
pub use run::{Tally, Verdict};

/// What became of a plan.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What is wrong, or nothing.
    pub verdict: Verdict,
    /// What was done.
    pub tally: Tally,
    /// The disks in the end, if it came to one.
    left: Option<disks::Disks>,
    /// How long it took.
    pub milliseconds: u128,
}

impl Outcome {
    /// A number for all bytes of all disks in the end.
    pub fn digest(&self) -> String {
        self.left.as_ref().map(disks::Disks::digest).unwrap_or_default()
    }
}

/// Carries out a plan. One at a time in a process: clock and random numbers are the process's.
pub fn carry_out(plan: &Plan) -> Outcome {
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let start = Instant::now();
    drop(cenote_engine::error::take_bug());
    let done = std::panic::catch_unwind(AssertUnwindSafe(|| run::run(plan)));
    let (mut verdict, tally, left) = done.unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().cloned();
        let words = words.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        (Err(format!("panic: {}", words.unwrap_or_default())), Tally::default(), None)
    });
    // Also one whose error was taken for what the faults of the plan bring about.
    if let (Ok(()), Some(bug)) = (&verdict, cenote_engine::error::take_bug()) {
        verdict = Err(format!("a bug: {bug}"));
    }
    Outcome { verdict, tally, left, milliseconds: start.elapsed().as_millis() }
}

/// One line on what became of a plan.
pub fn line(plan: &Plan, outcome: &Outcome) -> String {
    let Tally { cuts, faults, refused, declined, received, .. } = outcome.tally;
    let verdict = match &outcome.verdict {
        Ok(()) => "ok".to_owned(),
        Err(reason) => format!("FAILED {}", reason.replace('\n', " ")),
    };
    format!(
        "seed {} {} steps {} cuts {cuts} faults {faults} refused {refused} declined {declined} received {received} {} ms {}",
        plan.seed,
        plan.setup.layout,
        plan.steps.len(),
        outcome.milliseconds,
        verdict
    )
}
