//! What devices do, told as events: errors, wrong bytes, slow answers, states.
//!
//! Chapter 08, sections 27 and 28. Invariant: nothing is told that was not counted or shown as well, and
//! nothing of a device from a closed state to its first one.

use super::state::{Aux, Condition, VdevState};
use super::topology::Topology;
use super::tree::{LeafId, Node, NodeId, Shape, VdevTree};
use crate::events::{Events, Limited, Members, string};
use cenote_device::DeviceError;
use cenote_format::Guid;
use cenote_format::config::VdevConfig;
use cenote_format::nvlist::Value;
use std::sync::Arc;
use std::time::Duration;

/// A device that takes so long for an answer is slow.
pub const SLOW: Duration = Duration::from_secs(30);
/// What reading wrong bytes is called: EBADE.
const CHECKSUM: i32 = 52;

/// What a device was asked to do, as OpenZFS numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Read = 1,
    Write = 2,
    Flush = 5,
}

/// Something that a device was asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    pub(super) what: Asked,
    /// First byte on the device.
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// The number that the C library has for an error of a device.
fn number(error: &DeviceError) -> i32 {
    match error {
        DeviceError::Gone => 6,
        DeviceError::TimedOut(_) | DeviceError::Stuck(_) => 110,
        DeviceError::Io(error) => error.raw_os_error().unwrap_or(5),
        DeviceError::ReadOnly => 30,
        DeviceError::OutOfRange { .. } | DeviceError::Busy(_) => 5,
    }
}

fn optional(members: &mut Members, name: &'static str, value: Option<&String>) {
    members.extend(value.map(|value| (name, string(value))));
}

/// The state that is told: OpenZFS calls a device that missed something ONLINE.
fn told(node: &Node, condition: Condition) -> VdevState {
    let only_missed = condition == Condition::new(VdevState::Degraded, Aux::None);
    match node.shape {
        Shape::Leaf(_) if only_missed => VdevState::Online,
        _ => condition.state,
    }
}

/// What tells which vdev an event of the system is about.
fn named(config: &VdevConfig, state: VdevState) -> Members {
    let mut members = vec![
        ("vdev_guid", Value::from(config.guid.0)),
        ("vdev_state", Value::from(u64::from(state as u8))),
    ];
    optional(&mut members, "vdev_path", config.path.as_ref());
    optional(&mut members, "vdev_devid", config.devid.as_ref());
    optional(&mut members, "vdev_fru", config.fru.as_ref());
    optional(&mut members, "vdev_enc_sysfs_path", config.enclosure_path.as_ref());
    members
}

impl VdevTree {
    /// Where events of the pool are told.
    pub fn events(&self) -> &Arc<Events> {
        &self.events
    }

    /// Members that tell which vdev an event is about.
    pub fn named_in_event(&self, guid: Guid) -> Members {
        let node = self.nodes.iter().find(|node| node.config.guid == guid);
        node.map(|node| named(&node.config, told(node, node.condition()))).unwrap_or_default()
    }

    /// A device failed to do what it was asked; `given_up`: and is given up for it.
    pub(super) fn report_failure(
        &self,
        id: LeafId,
        error: &DeviceError,
        asked: Question,
        given_up: bool,
    ) {
        let Some((node, leaf)) = self.node_of(id).zip(self.leaves.get(id)) else { return };
        if !self.events.is_on() {
            return;
        }
        let Question { what, offset, len } = asked;
        let vdev = leaf.config.guid;
        let kind = u64::from(what as u8) << 32;
        let number = number(error);
        let key = kind | u64::try_from(number).unwrap_or_default();
        let io = Limited { class: "io", vdev, place: Some((offset, len)), number: key };
        let was_dead = leaf.health.lock().is_given_up() && !given_up;
        let mut of_zio = vec![
            ("zio_err", Value::Int32(number)),
            ("zio_type", Value::Uint32(what as u32)),
            ("zio_offset", Value::from(offset)),
            ("zio_size", Value::from(len)),
        ];
        if let DeviceError::TimedOut(waited) = error
            && self.events.admits(&Limited { class: "delay", ..io })
        {
            of_zio.insert(1, ("zio_delta", nanoseconds(*waited)));
            self.report(node, "delay", of_zio.clone());
        }
        if !was_dead && self.events.admits(&io) {
            self.report(node, "io", of_zio);
        }
        if given_up && self.events.admits(&Limited { class: "probe_failure", place: None, ..io }) {
            let state = Value::from(u64::from(node.condition().state as u8));
            self.report(node, "probe_failure", vec![("prev_state", state)]);
        }
    }

    /// A device took too long for what it was asked, or nobody waited any longer.
    pub(super) fn note_slow(&self, id: LeafId, what: Asked, took: Duration) {
        if let Some(leaf) = self.leaves.get(id) {
            leaf.stats.add_slow();
            self.report_slow(id, what, took);
        }
    }

    fn report_slow(&self, id: LeafId, what: Asked, wait: Duration) {
        let Some((node, leaf)) = self.node_of(id).zip(self.leaves.get(id)) else { return };
        let delay = Limited { class: "delay", vdev: leaf.config.guid, place: None, number: 0 };
        if self.events.admits(&delay) {
            let members = vec![
                ("zio_err", Value::Int32(0)),
                ("zio_delta", nanoseconds(wait)),
                ("zio_type", Value::Uint32(what as u32)),
            ];
            self.report(node, "delay", members);
        }
    }

    /// A device gave wrong bytes from here; `how` tells in what they differ from the right ones.
    pub(super) fn report_lie(&self, id: LeafId, place: (u64, u64), how: impl FnOnce() -> Members) {
        if let Some(node) = self.node_of(id) {
            self.report_wrong(node, place, how);
        }
    }

    /// Nobody can tell which of the devices below top-level vdev `vdev` gave wrong bytes for this.
    pub(super) fn report_wrong_below(&self, vdev: u32, place: (u64, u64)) {
        if let Some(node) = self.top_node(vdev) {
            self.report_wrong(node, place, Members::new);
        }
    }

    fn report_wrong(&self, node: &Node, place: (u64, u64), how: impl FnOnce() -> Members) {
        let vdev = node.config.guid;
        let what = Limited { class: "checksum", vdev, place: Some(place), number: CHECKSUM as u64 };
        if !self.events.admits(&what) {
            return;
        }
        let mut members = vec![
            ("zio_err", Value::Int32(CHECKSUM)),
            ("zio_type", Value::Uint32(Asked::Read as u32)),
            ("zio_offset", Value::from(place.0)),
            ("zio_size", Value::from(place.1)),
        ];
        members.extend(how());
        self.report(node, "checksum", members);
    }

    fn node_of(&self, leaf: LeafId) -> Option<&Node> {
        self.nodes.iter().find(|node| matches!(node.shape, Shape::Leaf(id) if id == leaf))
    }

    /// Tells a report about a vdev: which it is, how it stands, and what is above it.
    fn report(&self, node: &Node, class: &str, more: Members) {
        let config = &node.config;
        let mut members = vec![
            ("vdev_guid", Value::from(config.guid.0)),
            ("vdev_type", Value::from(config.kind.name())),
        ];
        optional(&mut members, "vdev_path", config.path.as_ref());
        optional(&mut members, "vdev_devid", config.devid.as_ref());
        optional(&mut members, "vdev_fru", config.fru.as_ref());
        optional(&mut members, "vdev_enc_sysfs_path", config.enclosure_path.as_ref());
        let mut stats = node.stats.snapshot();
        if let Shape::Leaf(id) = node.shape
            && let Some(leaf) = self.leaves.get(id)
        {
            stats = leaf.stats.snapshot();
            let shift = self.ashift(leaf.top).unwrap_or_default();
            members.push(("vdev_ashift", Value::from(u64::from(shift))));
        }
        members.push(("vdev_read_errors", Value::from(stats.read_errors)));
        members.push(("vdev_write_errors", Value::from(stats.write_errors)));
        members.push(("vdev_cksum_errors", Value::from(stats.checksum_errors)));
        members.push(("vdev_delays", Value::from(stats.slow)));
        if let Some(parent) = parent(self.topology(), config.guid) {
            members.push(("parent_guid", Value::from(parent.guid.0)));
            members.push(("parent_type", Value::from(parent.kind.name())));
            optional(&mut members, "parent_path", parent.path.as_ref());
            optional(&mut members, "parent_devid", parent.devid.as_ref());
        }
        members.extend(more);
        self.events.report(class, Some(config.guid), members);
    }

    /// The condition of a vdev has become another one.
    pub(super) fn report_condition(&self, id: NodeId, before: Condition, now: Condition) {
        let Some(node) = self.nodes.get(id) else { return };
        let (last, state) = (told(node, before), told(node, now));
        if last == state || last == VdevState::Closed || !self.events.is_on() {
            return;
        }
        let is_leaf = matches!(node.shape, Shape::Leaf(_));
        let class = match now.aux {
            _ if now.state != VdevState::Unavailable => None,
            Aux::OpenFailed => Some("vdev.open_failed"),
            Aux::CorruptData => Some("vdev.corrupt_data"),
            Aux::NoReplicas => Some("vdev.no_replicas"),
            Aux::BadGuidSum => Some("vdev.bad_guid_sum"),
            Aux::TooSmall => Some("vdev.too_small"),
            Aux::BadLabel => Some("vdev.bad_label"),
            Aux::BadAshift => Some("vdev.bad_ashift"),
            _ => Some("vdev.unknown"),
        };
        let last = Value::from(u64::from(last as u8));
        if let Some(class) = class.filter(|_| now.aux != Aux::IoFailure) {
            self.report(node, class, vec![("prev_state", last.clone())]);
        }
        if !is_leaf {
            return;
        }
        if now.state == VdevState::Removed {
            self.events.resource("removed", named(&node.config, state));
        }
        let mut members = named(&node.config, state);
        optional(&mut members, "vdev_physpath", node.config.phys_path.as_ref());
        members.push(("vdev_laststate", last));
        self.events.resource("statechange", members);
    }
}

/// The vdev above this one.
fn parent(topology: &Topology, guid: Guid) -> Option<&VdevConfig> {
    let is_above = |node: &&VdevConfig| node.children().iter().any(|child| child.guid == guid);
    topology.root().walk().find(is_above)
}

fn nanoseconds(time: Duration) -> Value {
    Value::from(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}
