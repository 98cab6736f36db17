//! Partition tables for the whole disks of a plan.
//!
//! Invariant: a disk is partitioned only after every device was checked; from then on the plan
//! names its first partition, which nothing but the pool uses.

use std::path::{Path, PathBuf};

use cenote_control::plan::VdevPlan;
use cenote_control::report::VdevClass;
use cenote_device::{
    DeviceError, DiskError, PoolPartition, partition_disk, partition_path, stable_name,
};
use cenote_engine::pool::in_use::device_in_use;
use cenote_format::config::PoolState;

/// Gives every whole disk of `plan` a partition table, and puts its first partition in its place.
/// What is returned keeps the partitions where they are until the pool holds them.
///
/// # Errors
/// The lines of OpenZFS. Disks before the one that failed stay partitioned.
pub fn partition(plan: &mut [VdevPlan]) -> Result<Vec<PoolPartition>, String> {
    let mut all = Vec::new();
    for vdev in plan {
        all.extend(partition(&mut vdev.children)?);
        if !vdev.whole_disk {
            continue;
        }
        let path = vdev.path.clone().unwrap_or_default();
        let node = match shared_spare(vdev.class, Path::new(&path)) {
            Some(node) => node,
            None => {
                let made = partition_disk(Path::new(&path));
                let made = made.map_err(|error| words(&path, &error))?;
                let node = made.path.clone();
                all.push(made);
                node
            }
        };
        vdev.devid = stable_name(&node);
        vdev.path = Some(node.display().to_string());
    }
    Ok(all)
}

/// The partition of a spare of another pool: it is left as it is, both may use it.
fn shared_spare(class: VdevClass, disk: &Path) -> Option<PathBuf> {
    let path = partition_path(disk, 1);
    let found = device_in_use(&path).ok().filter(|_| class == VdevClass::Spare)?;
    found.pool.is_some_and(|pool| pool.state == PoolState::Spare).then_some(path)
}

fn words(path: &str, error: &DiskError) -> String {
    let name = path.rsplit('/').next().unwrap_or(path);
    match error {
        DiskError::Device(error @ DeviceError::Busy(_)) => {
            format!("cannot label '{name}': unable to open device: {error}")
        }
        error => format!("cannot label '{name}': {error}"),
    }
}
