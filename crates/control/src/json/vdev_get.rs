//! `zpool get -j` of device properties, in the shape OpenZFS 2.3 gives.
//!
//! Invariant: the values are those of the text.

use serde_json::{Map, Value, json};

use super::pool::{device_head, document_of, head};
use super::{Options, line};
use crate::report::PoolReport;
use crate::text::vdev_get::{self, Device};
use crate::text::vdev_name::Naming;
use crate::text::words;

/// These properties (`None`: all) of these devices of `pool`.
pub fn render(
    pool: &PoolReport,
    devices: &[Device<'_>],
    wanted: Option<&[String]>,
    options: &Options,
) -> String {
    let all = || vdev_get::NAMES.map(str::to_owned).to_vec();
    let wanted = wanted.map_or_else(all, <[String]>::to_vec);
    let object = |device: &Device<'_>| {
        let mut map = device_head(device.vdev, Naming::default(), options);
        let called = vdev_get::name(device.vdev);
        map.insert("name".into(), json!(called));
        let state = words::state(device.vdev.state, device.vdev.reason);
        map.insert("state".into(), json!(state));
        let properties: Map<String, Value> = wanted
            .iter()
            .filter_map(|name| Some((name.clone(), property(device, name, options)?)))
            .collect();
        map.insert("properties".into(), Value::Object(properties));
        (called, Value::Object(map))
    };
    let mut map = head(pool, options, true);
    map.insert("vdevs".into(), Value::Object(devices.iter().map(object).collect()));
    line(document_of("zpool get", vec![(pool, map)], options))
}

fn property(device: &Device<'_>, name: &str, options: &Options) -> Option<Value> {
    let (exact, source) = vdev_get::value(device, name, true)?;
    let (human, _) = vdev_get::value(device, name, false)?;
    let kind = match source {
        "local" => "LOCAL",
        "default" => "DEFAULT",
        _ => "NONE",
    };
    let value = options.property_value(&exact, human);
    Some(json!({ "value": value, "source": { "type": kind, "data": "-" } }))
}
