//! Changes that follow one another in one group, as channel programs make them.
//!
//! Invariant: one that fails leaves nothing of itself behind and takes nothing of those before; what is only
//! checked changes nothing.

use cenote_engine::dataset::change::PropertyInput;
use cenote_engine::pool::change::ProgramStep;
use cenote_engine::{ErrorKind, Result};

use super::World;
use super::orders::{differing, facts, fail_everywhere};

fn snapshot(name: &str) -> ProgramStep {
    ProgramStep::Snapshot(name.to_owned())
}

fn destroy(name: &str) -> ProgramStep {
    ProgramStep::Destroy { name: name.to_owned(), defer: false }
}

/// Makes a step alone.
fn make(world: &World, step: &ProgramStep) -> Result<()> {
    let step = step.clone();
    world.live.program(&mut || {}, move |group| group.make(&step))
}

/// What checking a step comes to, which changes nothing.
fn check(world: &World, step: &ProgramStep) -> Result<()> {
    world.settle();
    let before = facts(world);
    let checked = step.clone();
    let checked = world.live.program(&mut || {}, move |group| Ok(group.check(&checked)));
    let differ = differing(&facts(world), &before);
    assert!(differ.is_empty(), "{step:?}: {differ:#?}");
    checked.unwrap()
}

#[test]
fn a_step_that_fails_anywhere_leaves_nothing_behind() {
    let world = World::new(&[]);
    world.filesystem("a");
    world.write("p/a", 1, 200_000);
    world.close("p/a");
    let property = PropertyInput::text("test:x", "y");
    let rename =
        ProgramStep::RenameSnapshot { dataset: "p/a".into(), from: "one".into(), to: "two".into() };
    for step in [
        snapshot("p/a@one"),
        ProgramStep::Bookmark { from: "p/a@one".into(), to: "p/a#one".into() },
        ProgramStep::Bookmark { from: "p/a#one".into(), to: "p/a#two".into() },
        ProgramStep::SetProperty { dataset: "p/a".into(), input: property },
        ProgramStep::Inherit { dataset: "p/a".into(), property: "test:x".into() },
        ProgramStep::RenameSnapshot { from: "one".into(), to: "mid".into(), dataset: "p/a".into() },
        ProgramStep::RenameSnapshot { from: "mid".into(), to: "one".into(), dataset: "p/a".into() },
        rename,
        destroy("p/a#one"),
        destroy("p/a#two"),
        destroy("p/a@two"),
        snapshot("p/a@three"),
        ProgramStep::Rollback("p/a".into()),
        destroy("p/a@three"),
        destroy("p/a"),
    ] {
        check(&world, &step).unwrap_or_else(|error| panic!("{step:?}: {error}"));
        let what = format!("{step:?}");
        fail_everywhere(&world, &what, |live| {
            let step = step.clone();
            live.program(&mut || {}, move |group| group.make(&step))
        });
        let again = check(&world, &step);
        let may_be_again = matches!(
            step,
            ProgramStep::Rollback(_)
                | ProgramStep::SetProperty { .. }
                | ProgramStep::Inherit { .. }
        );
        assert_eq!(again.is_ok(), may_be_again, "{step:?}: {again:?}");
    }
    world.finish();
}

#[test]
fn steps_follow_one_another_in_one_group() {
    let world = World::new(&[]);
    world.filesystem("a");
    world.filesystem("b");
    let object = world.write("p/a", 1, 100_000);
    world.snapshot("p/a", "one");
    world.overwrite("p/a", object, 0, 2, 50_000);
    world.snapshot("p/a", "two");
    world.overwrite("p/a", object, 0, 3, 50_000);
    world.close("p/a");
    world.write("p/b", 4, 10_000);
    let before = world.live.pool().uberblock().txg;
    let told = world.live.program(&mut || {}, |group| {
        let kind = |step: ProgramStep| group.make(&step).map_err(|error| error.kind());
        let told = vec![
            // Somebody has it open.
            kind(destroy("p/b")),
            kind(ProgramStep::Rollback("p/b".into())),
            kind(snapshot("p/b@x")),
            kind(snapshot("p/b@y")),
            kind(destroy("p/b@x")),
            kind(snapshot("p/b@y")),
            kind(ProgramStep::Rollback("p/a".into())),
            kind(destroy("p/a@two")),
            kind(ProgramStep::Rollback("p/a".into())),
            kind(destroy("p/a@one")),
            kind(ProgramStep::Rollback("p/a".into())),
            kind(snapshot("p/a@a/b")),
        ];
        assert!(group.catalog()?.dataset_named("p/b@y").is_ok());
        Ok(told)
    });
    let (busy, early) = (Err(ErrorKind::Busy), Err(ErrorKind::TimedOut));
    let (gone, invalid) = (Err(ErrorKind::NotFound), Err(ErrorKind::InvalidArgument));
    let ok = Ok(());
    assert_eq!(told.unwrap(), [busy, busy, ok, early, ok, ok, ok, ok, ok, ok, gone, invalid]);
    assert!(world.live.pool().uberblock().txg.0 <= before.0 + 2);
    assert!(world.read("p/a", object, 100_000) == super::noise(100_000, 1));
    world.id("p/b@y");
    make(&world, &destroy("p/b@y")).unwrap();
    world.census();
    world.survey("a program");
    world.finish();
}

#[test]
fn what_was_made_stays_when_the_program_fails() {
    let world = World::new(&[]);
    world.filesystem("a");
    let failed: Result<()> = world.live.program(&mut || {}, |group| {
        group.make(&snapshot("p/a@kept"))?;
        group.make(&snapshot("p/none@x"))
    });
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::NotFound);
    world.live.sync().unwrap();
    world.id("p/a@kept");
    world.finish();
}

#[test]
fn no_program_goes_back_to_a_snapshot_it_has_taken_itself() {
    let world = World::new(&[]);
    world.filesystem("a");
    let object = world.write("p/a", 1, 100_000);
    world.close("p/a");
    let told = world.live.program(&mut || {}, |group| {
        let kind = |step: &ProgramStep| group.make(step).map_err(|error| error.kind());
        let back = ProgramStep::Rollback("p/a".into());
        let checked = |step| group.check(step).map_err(|error| error.kind());
        Ok([kind(&snapshot("p/a@x")), checked(&back), kind(&back)])
    });
    let early = Err(ErrorKind::TimedOut);
    assert_eq!(told.unwrap(), [Ok(()), early, early]);
    world.census();
    make(&world, &ProgramStep::Rollback("p/a".into())).unwrap();
    assert!(world.read("p/a", object, 100_000) == super::noise(100_000, 1));
    world.finish();
}
