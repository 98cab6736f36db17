//! `zdb -l` and `-u`: the labels and uberblocks of one device.
//!
//! Invariant: every label is shown, with whether its checksum is right.

use std::path::Path;

use cenote_device::{Device, FileDevice, Mode};
use cenote_engine::pool::{choose, found_labels};
use cenote_engine::{Error, ErrorKind};
use cenote_format::nvlist::NvList;
use cenote_format::uberblock::Uberblock;
use serde_json::{Map, Value, json};

use super::described::moment;
use super::sink::Sink;
use super::{pointer, render};
use crate::disks;

/// The labels of `devices`, and all their uberblocks if wanted. A device without a label does not
/// keep the others from being shown.
pub fn show(devices: &[String], with_uberblocks: bool, sink: &mut Sink) -> Result<(), Error> {
    let mut all = Map::new();
    for name in devices {
        if devices.len() > 1 {
            sink.line(format_args!("Device {name}"));
        }
        let path = disks::with_label(name).unwrap_or_else(|| name.into());
        match device(&path, with_uberblocks, sink) {
            Ok(value) => all.insert(name.clone(), value),
            Err(error) if devices.len() == 1 => return Err(error),
            Err(error) => {
                sink.complain();
                sink.line(format_args!("    {error}\n"));
                all.insert(name.clone(), json!({ "error": error.to_string() }))
            }
        };
    }
    sink.json("devices", Value::Object(all));
    Ok(())
}

fn device(path: &Path, with_uberblocks: bool, sink: &mut Sink) -> Result<Value, Error> {
    let failed = |error: cenote_device::DeviceError| {
        Error::new(ErrorKind::Io, format!("cannot read '{}': {error}", path.display()))
    };
    let device = FileDevice::open(path, Mode::ReadOnly).map_err(failed)?;
    let labels = found_labels::read_labels(&device).map_err(failed)?;
    if labels.is_empty() {
        let reason = format!("no label could be read on '{}'", path.display());
        let advice = "it is no ZFS device, or its labels are destroyed; whole disks keep ZFS on \
                      their first partition";
        return Err(Error::new(ErrorKind::NotFound, reason).with_advice(advice));
    }
    let mut out = Vec::new();
    let mut told: Vec<&NvList> = Vec::new();
    for index in 0..cenote_format::label::LABELS {
        let Some(label) = labels.iter().find(|label| label.index == index) else {
            sink.complain();
            sink.line(format_args!("failed to unpack label {index}"));
            out.push(json!({ "label": index, "error": "failed to unpack label" }));
            continue;
        };
        let config = render::nvlist(&label.config.raw);
        out.push(json!({ "label": index, "verified": label.verified, "config": config }));
        if !label.verified {
            sink.complain();
            sink.line(format_args!("label {index}: checksum does not match, it is not used"));
        }
        if told.contains(&&label.config.raw) {
            continue;
        }
        told.push(&label.config.raw);
        let same: Vec<String> = labels
            .iter()
            .filter(|other| other.config.raw == label.config.raw)
            .map(|other| other.index.to_string())
            .collect();
        let bar = "-".repeat(36);
        sink.line(format_args!("{bar}\nLABEL {index}\n{bar}"));
        sink.line(render::text(&config, 1).trim_end());
        sink.line(format_args!("    labels = {} ", same.join(" ")));
    }
    let mut value = json!({ "labels": out });
    if with_uberblocks {
        let mut all = choose::read_uberblocks(&device as &dyn Device, None).map_err(failed)?;
        all.sort_by(Uberblock::compare_recency);
        all.dedup();
        let shown: Vec<Value> = all.iter().map(uberblock).collect();
        for (index, one) in shown.iter().enumerate() {
            sink.line(format_args!("    Uberblock[{index}]"));
            sink.line(render::text(one, 2).trim_end());
        }
        if let Value::Object(map) = &mut value {
            map.insert("uberblocks".into(), Value::Array(shown));
        }
    }
    Ok(value)
}

/// One uberblock.
pub fn uberblock(uberblock: &Uberblock) -> Value {
    let mut map = Map::new();
    map.insert("magic".into(), json!(format!("{:016x}", cenote_format::uberblock::MAGIC)));
    map.insert("version".into(), json!(uberblock.version));
    map.insert("txg".into(), json!(uberblock.txg.0));
    map.insert("guid_sum".into(), json!(uberblock.guid_sum));
    map.insert("timestamp".into(), json!(uberblock.timestamp));
    map.insert("time".into(), json!(moment(uberblock.timestamp)));
    map.insert("software_version".into(), json!(uberblock.software_version));
    if uberblock.has_activity() {
        map.insert("mmp_delay".into(), json!(uberblock.activity_delay));
        map.insert("mmp_interval".into(), json!(uberblock.activity_interval()));
        map.insert("mmp_seq".into(), json!(uberblock.activity_sequence()));
    }
    if uberblock.checkpoint_txg != 0 {
        map.insert("checkpoint_txg".into(), json!(uberblock.checkpoint_txg));
    }
    if uberblock.reflow.0 != 0 {
        map.insert("raidz_reflow_offset".into(), json!(uberblock.reflow.offset()));
        let state = format!("{:?}", uberblock.reflow.scratch());
        map.insert("raidz_reflow_state".into(), json!(state));
    }
    map.insert("rootbp".into(), json!(pointer::long(&uberblock.root)));
    Value::Object(map)
}
