//! Faults on purpose, between what crosses the socket and what the engine takes.
//!
//! Invariant: what is shown is what was asked for.

use std::time::Duration;

use cenote_control::faults::{
    BlockFault, DeviceFault, FaultAt, FaultKind, FaultOrder, FaultReport, ObjectFault,
};
use cenote_engine::pool::Pool;
use cenote_engine::{pipe, vdev};

/// The faults that may happen to a pool.
pub fn reports(pool: &Pool) -> Vec<FaultReport> {
    let vdevs = pool.vdevs();
    let status = vdevs.status();
    let of_device = |one: vdev::Injected| {
        let node = status.as_ref().and_then(|root| root.find(one.leaf));
        let path = node.and_then(|node| node.config.path.clone());
        let fault = DeviceFault {
            device: path.unwrap_or_else(|| one.leaf.to_string()),
            at: at_shown(one.fault.at),
            kind: kind_shown(one.fault.kind),
            chance: one.fault.chance,
            range: one.fault.range.map(|range| (range.start, range.end)),
        };
        let order = FaultOrder::Device(fault);
        FaultReport { id: one.id, guid: one.leaf.0, order, happened: one.happened }
    };
    let of_object = |one: pipe::InjectedObject| {
        let fault = ObjectFault {
            dataset: one.fault.objset.to_string(),
            object: one.fault.object,
            level: one.fault.level,
            blocks: one.fault.blocks,
            kind: match one.fault.kind {
                pipe::BlockFault::Io => BlockFault::Io,
                pipe::BlockFault::Checksum => BlockFault::Checksum,
                pipe::BlockFault::Decrypt => BlockFault::Decrypt,
                pipe::BlockFault::Decompress => BlockFault::Decompress,
            },
            copies: one.fault.copies,
            chance: one.fault.chance,
        };
        let order = FaultOrder::Object(fault);
        FaultReport { id: one.id, guid: 0, order, happened: one.happened }
    };
    let objects = pool.io().pipe.faulty().all().into_iter().map(of_object);
    vdevs.injected().into_iter().map(of_device).chain(objects).collect()
}

/// A fault of an object, as the engine takes it.
pub fn of_object(fault: &ObjectFault, objset: u64) -> pipe::ObjectFault {
    pipe::ObjectFault {
        objset,
        object: fault.object,
        level: fault.level,
        blocks: fault.blocks,
        kind: match fault.kind {
            BlockFault::Io => pipe::BlockFault::Io,
            BlockFault::Checksum => pipe::BlockFault::Checksum,
            BlockFault::Decrypt => pipe::BlockFault::Decrypt,
            BlockFault::Decompress => pipe::BlockFault::Decompress,
        },
        copies: fault.copies,
        chance: fault.chance.min(vdev::ALWAYS),
    }
}

/// A fault of a device as the engine takes it.
pub fn of_device(fault: &DeviceFault) -> vdev::DeviceFault {
    vdev::DeviceFault {
        at: match fault.at {
            FaultAt::Read => vdev::FaultAt::Read,
            FaultAt::Write => vdev::FaultAt::Write,
            FaultAt::Flush => vdev::FaultAt::Flush,
            FaultAt::Any => vdev::FaultAt::Any,
        },
        kind: match fault.kind {
            FaultKind::Io => vdev::FaultKind::Io,
            FaultKind::Gone => vdev::FaultKind::Gone,
            FaultKind::Garbage => vdev::FaultKind::Garbage,
            FaultKind::BitRead => vdev::FaultKind::BitRead,
            FaultKind::BitWritten => vdev::FaultKind::BitWritten,
            FaultKind::Torn => vdev::FaultKind::Torn,
            FaultKind::Lost => vdev::FaultKind::Lost,
            FaultKind::Held => vdev::FaultKind::Held,
            FaultKind::Slow { microseconds, lanes } => {
                vdev::FaultKind::Slow(Duration::from_micros(microseconds), lanes)
            }
        },
        chance: fault.chance.min(vdev::ALWAYS),
        range: fault.range.map(|(start, end)| start..end),
    }
}

fn at_shown(at: vdev::FaultAt) -> FaultAt {
    match at {
        vdev::FaultAt::Read => FaultAt::Read,
        vdev::FaultAt::Write => FaultAt::Write,
        vdev::FaultAt::Flush => FaultAt::Flush,
        vdev::FaultAt::Any => FaultAt::Any,
    }
}

fn kind_shown(kind: vdev::FaultKind) -> FaultKind {
    match kind {
        vdev::FaultKind::Io => FaultKind::Io,
        vdev::FaultKind::Gone => FaultKind::Gone,
        vdev::FaultKind::Garbage => FaultKind::Garbage,
        vdev::FaultKind::BitRead => FaultKind::BitRead,
        vdev::FaultKind::BitWritten => FaultKind::BitWritten,
        vdev::FaultKind::Torn => FaultKind::Torn,
        vdev::FaultKind::Lost => FaultKind::Lost,
        vdev::FaultKind::Held => FaultKind::Held,
        vdev::FaultKind::Slow(time, lanes) => {
            let microseconds = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
            FaultKind::Slow { microseconds, lanes }
        }
    }
}
