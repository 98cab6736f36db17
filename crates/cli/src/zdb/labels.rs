//! `zdb -l` and `-u`: the labels and uberblocks of one device.
//!
//! Invariant: every label is shown, with whether its checksum is right.

use std::path::Path;

use cenote_device::{Device, FileDevice, Mode};
use cenote_engine::pool::{choose, discover};
use cenote_engine::{Error, ErrorKind};
use cenote_format::uberblock::Uberblock;
use serde_json::{Map, Value, json};

use super::render;

/// The labels of the device at `path`, and all its uberblocks if wanted.
pub fn show(path: &Path, with_uberblocks: bool) -> Result<Value, Error> {
    let failed = |error: cenote_device::DeviceError| {
        Error::new(ErrorKind::Io, format!("cannot read '{}': {error}", path.display()))
    };
    let device = FileDevice::open(path, Mode::ReadOnly).map_err(failed)?;
    let labels = discover::read_labels(&device).map_err(failed)?;
    let mut out = Map::new();
    for index in 0..cenote_format::label::LABELS {
        let name = format!("LABEL {index}");
        let Some(label) = labels.iter().find(|label| label.index == index) else {
            out.insert(name, json!("failed to unpack label"));
            continue;
        };
        let mut shown = render::nvlist(&label.config.raw);
        if let (Value::Object(map), false) = (&mut shown, label.verified) {
            map.insert("checksum".into(), json!("does not match: the label is not used"));
        }
        out.insert(name, shown);
    }
    if labels.is_empty() {
        let reason = format!("no label could be read on '{}'", path.display());
        let advice = "it is no ZFS device, or its labels are destroyed";
        return Err(Error::new(ErrorKind::NotFound, reason).with_advice(advice));
    }
    if with_uberblocks {
        let mut all = choose::read_uberblocks(&device as &dyn Device, None).map_err(failed)?;
        all.sort_by(Uberblock::compare_recency);
        all.dedup();
        let shown: Vec<Value> = all.iter().map(uberblock).collect();
        out.insert("Uberblock".into(), Value::Array(shown));
    }
    Ok(Value::Object(out))
}

/// One uberblock.
pub fn uberblock(uberblock: &Uberblock) -> Value {
    let mut map = Map::new();
    map.insert("magic".into(), json!(format!("{:016x}", cenote_format::uberblock::MAGIC)));
    map.insert("version".into(), json!(uberblock.version));
    map.insert("txg".into(), json!(uberblock.txg.0));
    map.insert("guid_sum".into(), json!(uberblock.guid_sum));
    map.insert("timestamp".into(), json!(uberblock.timestamp));
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
    map.insert("rootbp".into(), json!(format!("{:?}", uberblock.root)));
    Value::Object(map)
}
