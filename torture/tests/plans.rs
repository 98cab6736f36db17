//! Plans that failed once, and the promise that a plan is carried out the same each time.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::sync::atomic::{AtomicUsize, Ordering};

use cenote_torture::{Plan, carry_out, draw};

/// Tries each; several at once, for a plan has one thread.
fn for_each<T: Sync>(all: &[T], attempt: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    attempt(one);
                }
            });
        }
    });
}

/// Each file of `torture/plans` is a fault that was found and mended.
#[test]
fn plans_that_failed_once_do_not_fail() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/plans");
    let mut files: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|f| f.unwrap().path()).collect();
    files.sort();
    files.retain(|file| file.extension().is_some_and(|end| end == "plan"));
    for_each(&files, |file| {
        let plan = Plan::of_text(&std::fs::read_to_string(file).unwrap()).unwrap();
        let outcome = carry_out(&plan);
        assert!(outcome.verdict.is_ok(), "{}: {:?}", file.display(), outcome.verdict);
    });
}

/// The same seed, the same bytes on all disks.
#[test]
fn a_seed_is_the_same_each_time() {
    for_each(&[4, 5, 7, 14, 18, 27, 33], |&seed| {
        let plan = draw::plan(seed);
        let (first, again) = (carry_out(&plan), carry_out(&plan));
        assert_eq!(first.verdict, again.verdict, "seed {seed}");
        assert_eq!(first.digest(), again.digest(), "seed {seed}");
    });
}

/// A plan is the same after it was written down.
#[test]
fn plans_are_written_down_whole() {
    for seed in 0..200 {
        let plan = draw::plan(seed);
        assert_eq!(Plan::of_text(&plan.to_text()).unwrap(), plan);
    }
}
