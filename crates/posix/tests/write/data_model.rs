//! Random changes of file data against a vector of bytes.

use cenote_posix::WriteProperties;
use cenote_posix::tree::{Allocate, ROOT, Seek, SetAttributes, Tree};
use proptest::prelude::*;

use crate::consistent::check;
use crate::rig::{Rig, SUPERUSER, Setup};

/// Files stay below this length.
const END: u64 = 200_000;

#[derive(Clone, Debug)]
enum Step {
    Write(u64, usize, u8),
    Truncate(u64),
    Punch(u64, u64),
    Zero(u64, u64, bool),
    Reserve(u64, u64),
    Copy(u64, u64, u64),
    NextGroup,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let at = || prop_oneof![0..END, (0..END / 512).prop_map(|sector| sector * 512)];
    let len = || prop_oneof![1..600_u64, 1..40_000_u64];
    let step = prop_oneof![
        6 => (at(), len(), any::<u8>()).prop_map(|(at, len, byte)| Step::Write(at, len as usize, byte)),
        2 => at().prop_map(Step::Truncate),
        2 => (at(), len()).prop_map(|(at, len)| Step::Punch(at, len)),
        1 => (at(), len(), any::<bool>()).prop_map(|(at, len, keep)| Step::Zero(at, len, keep)),
        1 => (at(), len()).prop_map(|(at, len)| Step::Reserve(at, len)),
        1 => (at(), at(), len()).prop_map(|(from, to, len)| Step::Copy(from, to, len)),
        1 => Just(Step::NextGroup),
    ];
    prop::collection::vec(step, 1..40)
}

fn grow(model: &mut Vec<u8>, end: u64) {
    if model.len() < end as usize {
        model.resize(end as usize, 0);
    }
}

fn apply(rig: &Rig, node: u64, model: &mut Vec<u8>, step: &Step, groups: &mut u32) {
    let allocate = |at, len, what| rig.tree.allocate(SUPERUSER, node, at, len, what).unwrap();
    match *step {
        Step::Write(at, len, byte) => {
            let data: Vec<u8> = (0..len).map(|index| byte.wrapping_add(index as u8)).collect();
            rig.write(node, at, &data);
            grow(model, at + len as u64);
            model[at as usize..at as usize + len].copy_from_slice(&data);
        }
        Step::Truncate(size) => {
            let change = SetAttributes { size: Some(size), ..SetAttributes::default() };
            rig.tree.set_attributes(SUPERUSER, node, &change).unwrap();
            model.resize(size as usize, 0);
        }
        Step::Punch(at, len) => {
            allocate(at, len, Allocate::PunchHole);
            let end = (at + len).min(model.len() as u64);
            if at < end {
                model[at as usize..end as usize].fill(0);
            }
        }
        Step::Zero(at, len, keep_size) => {
            allocate(at, len, Allocate::ZeroRange { keep_size });
            if !keep_size {
                grow(model, at + len);
            }
            let end = (at + len).min(model.len() as u64);
            if at < end {
                model[at as usize..end as usize].fill(0);
            }
        }
        Step::Reserve(at, len) => {
            allocate(at, len, Allocate::Reserve { keep_size: false });
            grow(model, at + len);
        }
        Step::Copy(from, to, len) => {
            let copied = rig.tree.copy_range(SUPERUSER, (node, from), (node, to), len);
            if from.abs_diff(to) < len {
                assert_eq!(copied.unwrap_err().code, 22);
                return;
            }
            let available = (model.len() as u64).saturating_sub(from).min(len);
            assert_eq!(copied.unwrap(), available);
            if available > 0 {
                grow(model, to + available);
                let range = from as usize..(from + available) as usize;
                model.copy_within(range, to as usize);
            }
        }
        // Two groups are dirty at most while nothing is written.
        Step::NextGroup if *groups == 0 => {
            *groups = 1;
            rig.gate.close();
        }
        Step::NextGroup => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn data_is_what_was_written(
        steps in steps(),
        record in prop::sample::select(vec![512_u64, 4096, 131_072]),
    ) {
        let properties = WriteProperties { record_size: record, ..WriteProperties::default() };
        let rig = Setup { properties, ..Setup::default() }.make();
        let node = rig.file(ROOT, "f");
        let mut model = Vec::new();
        let mut groups = 0;
        for step in &steps {
            apply(&rig, node, &mut model, step, &mut groups);
            let stat = rig.tree.attributes(node).unwrap();
            prop_assert_eq!(stat.size, model.len() as u64, "{:?}", step);
        }
        prop_assert!(rig.read(node, 0, 1 << 20) == model, "{steps:?}");
        // Holes and data take turns, and holes are zeros.
        let mut at = 0;
        while let Ok(hole) = rig.tree.seek(node, at, Seek::Hole) {
            let Ok(data) = rig.tree.seek(node, hole, Seek::Data) else { break };
            prop_assert!(data > hole && model[hole as usize..data as usize].iter().all(|b| *b == 0));
            at = data;
        }
        check(&rig.objects);
    }
}
