//! Devices as a command line plans them, and as the engine has them.
//!
//! Invariant: only sizes of sectors are asked of devices here; nothing is written.

use cenote_control::plan::{VdevPlan, VdevPlanKind};
use cenote_control::report::VdevClass;
use cenote_device::{Device, FileDevice, Mode};
use cenote_engine::pool::change::Additions;
use cenote_engine::vdev::AllocationClass;
use cenote_format::config::{Draid, TopLevel, VdevConfig, VdevKind};

/// A device of a plan as the engine has it.
fn vdev(plan: &VdevPlan, is_top: bool) -> VdevConfig {
    let (kind, nparity, draid) = match plan.kind {
        VdevPlanKind::File => (VdevKind::File, None, None),
        VdevPlanKind::Disk => (VdevKind::Disk, None, None),
        VdevPlanKind::Mirror => (VdevKind::Mirror, None, None),
        VdevPlanKind::Raidz { parity } => (VdevKind::Raidz, Some(parity.into()), None),
        VdevPlanKind::Draid { parity, data, spares, groups, .. } => {
            let shape = Draid {
                data: data.into(),
                spares: spares.into(),
                groups: groups.into(),
                children: None,
            };
            (VdevKind::Draid, Some(parity.into()), Some(shape))
        }
    };
    let top = is_top.then(|| TopLevel {
        ashift: u64::from(plan.ashift.unwrap_or(0)).max(ashift_of(plan)),
        is_log: plan.class == VdevClass::Log,
        ..TopLevel::default()
    });
    let children = plan.children.iter().map(|child| vdev(child, false)).collect();
    VdevConfig {
        kind,
        nparity,
        draid,
        top,
        path: plan.path.clone(),
        devid: plan.devid.clone(),
        whole_disk: (plan.kind == VdevPlanKind::Disk).then_some(plan.whole_disk),
        children: (!plan.is_leaf()).then_some(children),
        ..VdevConfig::default()
    }
}

/// A single device of a plan, to come below a vdev that is there.
pub fn member(plan: &VdevPlan) -> VdevConfig {
    vdev(plan, false)
}

/// The devices of a plan as the engine has them, by what they are for.
pub fn sorted(plan: &[VdevPlan]) -> Additions {
    let mut all = Additions::default();
    for device in plan {
        let class = match device.class {
            VdevClass::Spare => {
                all.spares.push(vdev(device, false));
                continue;
            }
            VdevClass::Cache => {
                all.caches.push(vdev(device, false));
                continue;
            }
            VdevClass::Normal => AllocationClass::Normal,
            VdevClass::Special => AllocationClass::Special,
            VdevClass::Dedup => AllocationClass::Dedup,
            VdevClass::Log => AllocationClass::Log,
        };
        all.tops.push((vdev(device, true), class));
    }
    all
}

/// log2 of the largest sector of a plan's devices; at least 9.
fn ashift_of(plan: &VdevPlan) -> u64 {
    let sectors = plan.leaves().into_iter().filter_map(|leaf| {
        let device = FileDevice::open(leaf.path.as_deref()?, Mode::ReadOnly).ok()?;
        Some(u64::from(device.sector_size().max(512).ilog2()))
    });
    sectors.max().unwrap_or(9)
}
