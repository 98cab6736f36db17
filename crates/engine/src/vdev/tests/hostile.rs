//! Configurations and addresses that make no sense are errors.

use super::rig::*;
use crate::vdev::*;
use cenote_format::Guid;
use cenote_format::config::{VdevConfig, VdevKind};
use std::sync::Arc;

fn refused(config: &VdevConfig) -> String {
    let opener = |_: &VdevConfig| Err(LeafUnavailable::open_failed("nothing to open"));
    VdevTree::build(config, Arc::new(opener)).unwrap_err().to_string()
}

#[test]
fn configurations() {
    assert!(refused(&leaf(1)).contains("root"));
    for ashift in [0, 8, 17, u64::MAX] {
        assert!(refused(&root(ashift, vec![leaf(1)])).contains("sector shift"));
    }
    assert!(refused(&root(12, vec![leaf(1), leaf(1)])).contains("twice"));
    let cases = [
        group(VdevKind::Mirror, 2, Vec::new()),
        group(VdevKind::Spare, 2, Vec::new()),
        raidz(2, 0, leaves(3..6)),
        raidz(2, 9, leaves(3..6)),
        raidz(2, u64::MAX, leaves(3..6)),
        raidz(2, 3, leaves(3..6)),
        raidz(2, 1, Vec::new()),
        raidz(2, 1, leaves(3..300)),
        group(VdevKind::Draid, 2, leaves(3..6)),
        group(VdevKind::Mirror, 2, vec![leaf(3), draid(4, 1, 1, 0, leaves(5..7))]),
        group(VdevKind::Mirror, 2, vec![VdevConfig::placeholder(VdevKind::Hole, 0)]),
        group(VdevKind::Mirror, 2, vec![group(VdevKind::Root, 3, Vec::new())]),
        group(VdevKind::DistributedSpare, 2, Vec::new()),
        group(VdevKind::Root, 2, Vec::new()),
    ];
    for case in cases {
        assert!(refused(&root(12, vec![case])).contains("bad vdev configuration"));
    }
    let mut wrong = draid(2, 1, 2, 1, leaves(3..9));
    wrong.draid.as_mut().unwrap().groups = 77;
    refused(&root(12, vec![wrong]));
    let misplaced = VdevConfig { id: Some(5), ..leaf(1) };
    assert!(refused(&root(12, vec![misplaced])).contains("id 5"));
    let mut deep = leaf(1);
    for guid in 2..30 {
        deep = group(VdevKind::Mirror, guid, vec![deep]);
    }
    assert!(refused(&root(12, vec![deep])).contains("deep"));
    let grown = VdevConfig {
        raidz_expand_txgs: Some(vec![1; 200]),
        raidz_expanding: true,
        ..raidz(2, 1, leaves(3..9))
    };
    refused(&root(12, vec![grown]));
    refused(&root(12, leaves(1..70_000)));
}

#[test]
fn addresses() {
    let tops = vec![
        leaf(1),
        raidz(10, 1, leaves(2..5)),
        draid(20, 1, 2, 1, leaves(25..31)),
        VdevConfig::placeholder(VdevKind::Hole, 3),
        VdevConfig::placeholder(VdevKind::Missing, 4),
    ];
    let rig = Rig::new(root(12, tops));
    let asize = |vdev| rig.tree.top_asize(vdev).unwrap_or(0);
    for vdev in [0, 1, 2, 3, 4, 5, u32::MAX] {
        for (offset, size) in [
            (0, 0),
            (0, u64::MAX),
            (0, 64 << 20),
            (u64::MAX, 512),
            (u64::MAX - 4095, 4096),
            (asize(vdev), 4096),
            (asize(vdev).saturating_sub(4096), 1 << 20),
            (1 << 62, 4096),
        ] {
            let read = block(vdev, offset, size, 1);
            assert!(rig.read(&read).is_err(), "{read:?}");
            assert!(rig.recover(&read, &[]).is_err(), "{read:?}");
        }
    }
    for read in [block(1, 512, 4096, 1), block(2, 4096, 4096, 1)] {
        assert!(rig.read(&read).is_err());
    }
    assert!(!rig.tree.is_readable(3) && !rig.tree.is_readable(4) && !rig.tree.is_readable(9));
    assert_eq!(rig.tree.condition().state, VdevState::Unavailable);
    assert_eq!(rig.tree.topology().top(3).unwrap().guid, Guid(0));
    // Labels and the boot area of a device cannot be reached through block addresses.
    let disk = rig.disk(1);
    disk.fail_range(0..DATA_START);
    let end = DATA_START + asize(0);
    disk.fail_range(end..DISK as u64);
    assert!(rig.read(&block(0, 0, 4096, 1)).is_ok());
    assert!(rig.read(&block(0, asize(0) - 4096, 4096, 1)).is_ok());
}

#[test]
fn random_shapes_and_addresses_never_panic() {
    let mut random = Random(77);
    let mut built = 0;
    for _ in 0..200 {
        let mut pick = |choices: &[u64]| {
            let wild = random.below(12) == 0;
            if wild { random.next() } else { choices[random.below(choices.len() as u64) as usize] }
        };
        let width = pick(&[2, 3, 4, 5, 7, 11, 12]) % 20;
        let ashift = pick(&[9, 9, 12, 12, 13, 16]);
        let mut top = match pick(&[0, 1]) % 2 {
            0 => raidz(100, pick(&[1, 2, 3]), leaves(1..width + 1)),
            _ => group(VdevKind::Draid, 100, leaves(1..width + 1)),
        };
        top.nparity = Some(pick(&[1, 1, 2, 3]));
        top.raidz_expanding = pick(&[0, 0, 1]) == 1;
        top.raidz_expand_txgs = Some((0..pick(&[0, 0, 1, 2]) % 5).map(|i| i * 50).collect());
        top.draid = Some(cenote_format::config::Draid {
            data: pick(&[1, 2, 3, 4]),
            spares: pick(&[0, 1, 2]),
            groups: pick(&[1, 2, 3, 4, 5, 7, 10]),
            children: None,
        });
        let opener = |leaf: &VdevConfig| {
            let disk = cenote_device::SimDevice::new(leaf.guid.to_string(), DISK);
            Ok(Arc::new(disk) as Arc<dyn cenote_device::Device>)
        };
        let Ok(tree) = VdevTree::build(&root(ashift, vec![top]), Arc::new(opener)) else {
            continue;
        };
        built += 1;
        tree.set_reflow_word(pick(&[0, 1 << 55, (4 << 55) | 4096, (1 << 55) | 70_000]));
        let space = tree.top_asize(0).unwrap().max(1);
        for _ in 0..20 {
            let unit = pick(&[512, 4096, 1 << 16]).max(1);
            let offset = pick(&[0, 1, 7, 100, 1000]).wrapping_mul(unit) % (space.saturating_mul(2));
            let read = block(0, offset, pick(&[512, 4096, 100_000, 1 << 20]), pick(&[1, 60, 200]));
            if let Ok(bytes) = tree.read_batch(&[read]).pop().unwrap() {
                assert_eq!(bytes.len() as u64, read.size);
                // All zeros: so is their parity.
                assert!(tree.read_all_copies(&read, &mut |_| true).unwrap().repairs.is_empty());
            }
        }
    }
    assert!(built > 40, "{built}");
}
