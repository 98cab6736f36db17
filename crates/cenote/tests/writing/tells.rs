//! What commands tell of a pool: reasons of `status` and `import`, JSON, words of refusals.
//!
//! Invariant: words that OpenZFS has are its words; an order that is refused changes nothing.

use super::members::state;
use super::{Bench, SIZE, noise};

impl Bench {
    /// What `zpool import` lists.
    fn listed(&self) -> String {
        let place = self.at("d").display().to_string();
        self.cenote(&["zpool", "import", "-d", &place])
    }

    fn json(&self, arguments: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.cenote(arguments)).unwrap()
    }
}

#[test]
fn status_and_import_heed_features_and_compatibility() {
    let Some((bench, d)) = Bench::mounting(1) else { return };
    let compatible = |value: &str| {
        bench.cenote(&["zpool", "set", &format!("compatibility={value}"), "tank"]);
    };
    let tells = |text: &str, words: &str| {
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains(words), "{text}");
    };
    bench.create(&[&d[0]]);
    let status = bench.status();
    tells(&status, "status: Some supported and requested features are not enabled on the pool.");
    tells(&status, "action: Enable all features using 'zpool upgrade'.");
    assert_eq!(bench.cenote(&["zpool", "status", "-x"]), "all pools are healthy\n");
    let json = bench.json(&["zpool", "status", "-j", "tank"]);
    tells(&json["pools"]["tank"]["status"].to_string(), "requested features are not enabled");
    compatible("openzfs-2.1-linux");
    assert!(!bench.status().contains("status:"), "{}", bench.status());
    bench.cenote(&["zpool", "export", "tank"]);
    let listed = bench.listed();
    assert!(!listed.contains("status:"), "{listed}");
    tells(
        &listed,
        "action: The pool can be imported using its name or numeric identifier. config:",
    );
    bench.import();
    compatible("grub2");
    let words = "One or more features are enabled on the pool despite not being requested by the \
                 'compatibility' property.";
    tells(&bench.status(), words);
    bench.cenote(&["zpool", "export", "tank"]);
    tells(&bench.listed(), words);
    bench.import();
    let own = bench.at("own");
    std::fs::write(&own, "async_destroy").unwrap();
    compatible(own.to_str().unwrap());
    std::fs::remove_file(&own).unwrap();
    tells(&bench.status(), "compatibility list specified, but it could not be read/parsed");
    bench.cenote(&["zpool", "export", "tank"]);
    let words = "Error reading or parsing the file(s) indicated by the 'compatibility' property.";
    tells(&bench.listed(), words);
    bench.import();
    compatible("off");
    bench.cenote(&["zpool", "export", "tank"]);
    let listed = bench.listed();
    tells(&listed, "status: Some supported features are not enabled on the pool. (Note that they");
    tells(&listed, "some features will not be available without an explicit 'zpool upgrade'.");
}

#[test]
fn status_tells_of_another_host_and_of_late_activity_writes() {
    let Some((bench, d)) = Bench::mounting(1) else { return };
    let as_host = |host: &str, arguments: &[&str]| {
        let output = bench.command(arguments).env("ZFS_HOSTID", host).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let root = bench.at("mnt").display().to_string();
    let place = bench.at("d").display().to_string();
    as_host("a1", &["zpool", "create", "-R", &root, "-o", "multihost=on", "tank", &d[0]]);
    bench.cenote(&["zinject", "-d", &d[0], "-e", "io", "-T", "write", "-f", "100", "tank"]);
    let status = bench.shows(|status| status.contains("state: SUSPENDED"));
    assert!(status.contains("see: https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-"));
    let status = bench.shows(|status| status.contains("ZFS-8000-MM"));
    assert!(status.contains("The pool is suspended because multihost writes failed"), "{status}");
    bench.cenote(&["zinject", "-c", "all"]);
    bench.shows(|status| !status.contains("state: SUSPENDED"));
    bench.cenote(&["zpool", "clear", "tank"]);
    bench.shows(|status| status.contains("state: ONLINE"));
    bench.cenote(&["zpool", "set", "multihost=off", "tank"]);
    bench.kill();
    let import = ["zpool", "import", "-f", "-N", "-o", "readonly=on", "-d", &place, "tank"];
    as_host("b2", &import);
    let status = bench.status();
    assert!(status.contains("Mismatch between pool hostid and system hostid"), "{status}");
    assert!(status.contains("msg/ZFS-8000-EY"), "{status}");
    bench.cenote(&["zpool", "export", "tank"]);
    // Who writes it has it.
    as_host("b2", &["zpool", "import", "-f", "-N", "-d", &place, "tank"]);
    assert!(!bench.status().contains("hostid"), "{}", bench.status());
}

#[test]
fn traffic_and_events_are_told_in_json() {
    let Some((bench, d)) = Bench::mounting(4) else { return };
    bench.create(&["mirror", &d[0], &d[1], "log", &d[2], "cache", &d[3]]);
    std::fs::write(bench.at("mnt/tank/file"), noise(1 << 20, 3)).unwrap();
    bench.cenote(&["zpool", "sync", "tank"]);
    let told = bench.json(&["zpool", "iostat", "-j", "tank"]);
    assert_eq!(told["output_version"]["command"], "zpool iostat");
    let pool = &told["pools"]["tank"]["vdevs"]["tank"];
    assert!(pool["write_ops"].is_string() && pool["vdevs"].is_null(), "{told}");
    let told = bench.json(&["zpool", "iostat", "-j", "--json-int", "-v", "-l", "-q", "tank"]);
    let pool = &told["pools"]["tank"]["vdevs"]["tank"];
    assert!(pool["write_ops"].is_u64() && pool["alloc_space"].is_u64(), "{told}");
    assert!(pool["total_wait_write"].is_u64() && pool["async_write_active"].is_u64(), "{told}");
    let leaf = &pool["vdevs"]["mirror-0"]["vdevs"][&d[0]];
    assert_eq!(leaf["vdev_type"], "file", "{told}");
    assert!(leaf["write_bytes"].as_u64().unwrap() > 0, "{told}");
    let pool = &told["pools"]["tank"];
    assert!(pool["logs"][&d[2]]["read_ops"].is_u64(), "{told}");
    assert!(pool["l2cache"][&d[3]]["read_ops"].is_u64(), "{told}");
    let text = bench.cenote(&["zpool", "iostat", "-j", "tank", "0.1", "3"]);
    let rounds: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rounds.len(), 3, "{text}");
    let told = bench.json(&["zpool", "iostat", "-w", "-j", "--json-int", "tank"]);
    let histogram = &told["pools"]["tank"]["vdevs"]["tank"]["total_wait_write_histogram"];
    assert!(histogram.as_object().is_some_and(|rows| !rows.is_empty()), "{told}");

    let told =
        bench.json(&["zpool", "get", "-j", "--json-int", "ashift,state", "tank", "all-vdevs"]);
    let mirror = &told["pools"]["tank"]["vdevs"]["mirror-0"];
    assert_eq!(mirror["properties"]["state"]["value"], "ONLINE", "{told}");
    assert!(mirror["properties"]["ashift"]["value"].is_u64(), "{told}");

    let told = bench.json(&["zpool", "events", "-j"]);
    assert_eq!(told["output_version"]["command"], "zpool events");
    let events = told["events"].as_array().unwrap();
    let created = events.iter().find(|event| event["class"] == "sysevent.fs.zfs.pool_create");
    let created = created.unwrap();
    assert!(created["time"].is_string() && created["eid"].is_string(), "{created}");
    assert!(created["pool"] == "tank" && created["members"].is_null(), "{created}");
    let told = bench.json(&["zpool", "events", "-vj", "--json-int", "tank"]);
    let events = told["events"].as_array().unwrap();
    let created = events.iter().find(|event| event["class"] == "sysevent.fs.zfs.pool_create");
    assert_eq!(created.unwrap()["members"]["pool"], "tank");
    assert!(created.unwrap()["time"].is_u64(), "{told}");
    let said = bench.refused(&["zpool", "events", "-c", "-j"]);
    assert!(said.starts_with("invalid options combined with -c"), "{said}");
    let said = bench.refused(&["zpool", "iostat", "--json-int"]);
    assert!(said.starts_with("'--json-int' only works with '-j' option"), "{said}");
}

#[test]
fn a_device_that_is_too_small_is_refused_with_both_sizes() {
    let Some((bench, d)) = Bench::mounting(3) else { return };
    let small = bench.at("d/small").display().to_string();
    std::fs::File::create(&small).unwrap().set_len(SIZE / 2).unwrap();
    bench.create(&["mirror", &d[0], &d[1]]);
    let sizes = format!("device is too small: {small} has 96M, at least ");
    for order in ["attach", "replace"] {
        let said = bench.refused(&["zpool", order, "tank", &d[0], &small]);
        assert!(said.contains(&sizes) && said.contains("M are needed"), "{said}");
    }
    bench.cenote(&["zpool", "add", "tank", "spare", &d[2]]);
    let tiny = bench.at("d/tiny").display().to_string();
    std::fs::File::create(&tiny).unwrap().set_len(40 << 20).unwrap();
    for class in ["log", "spare", "cache"] {
        let said = bench.refused(&["zpool", "add", "-f", "tank", class, &tiny]);
        assert!(said.contains(&format!("minimum size (64M): {tiny} has 40M")), "{said}");
    }
    assert!(!bench.status().contains("tiny") && !bench.status().contains("small"));
}

#[test]
fn spares_and_cache_devices_are_refused_as_what_they_are() {
    let Some((bench, d)) = Bench::mounting(5) else { return };
    bench.create(&["mirror", &d[0], &d[1], "spare", &d[2], "cache", &d[3]]);
    let before = bench.status();
    for (device, words) in
        [(&d[2], "device is reserved as a hot spare"), (&d[3], "device is in use as a cache")]
    {
        for order in ["offline", "detach"] {
            let said = bench.refused(&["zpool", order, "tank", device]);
            assert_eq!(said, format!("cannot {order} {device}: {words}\n"));
        }
        let said = bench.refused(&["zpool", "offline", "-f", "tank", device]);
        assert_eq!(said, format!("cannot offline {device}: {words}\n"));
        let said = bench.refused(&["zpool", "replace", "tank", device, &d[4]]);
        assert_eq!(said, format!("cannot replace {device} with {}: {words}\n", d[4]));
        let said = bench.refused(&["zpool", "attach", "tank", device, &d[4]]);
        assert_eq!(said, format!("cannot attach {} to {device}: {words}\n", d[4]));
        for kind in ["initialize", "trim"] {
            let said = bench.refused(&["zpool", kind, "tank", device]);
            assert_eq!(said, format!("cannot {kind} '{device}': {words}\n"));
        }
    }
    let said = bench.refused(&["zpool", "online", "tank", &d[2]]);
    assert_eq!(said, format!("cannot online {}: device is reserved as a hot spare\n", d[2]));
    let said = bench.refused(&["zpool", "online", "-e", "tank", &d[3]]);
    assert_eq!(said, format!("cannot expand {}: cannot expand cache devices\n", d[3]));
    assert_eq!(bench.status(), before);
}

#[test]
fn a_lone_log_device_rests_and_comes_back() {
    let Some((bench, d)) = Bench::mounting(2) else { return };
    bench.create(&["-O", "sync=always", &d[0], "log", &d[1]]);
    let write = |name: &str| {
        std::fs::write(bench.at("mnt/tank").join(name), noise(50_000, 1)).unwrap();
    };
    write("before");
    bench.cenote(&["zpool", "offline", "tank", &d[1]]);
    let status = bench.status();
    assert_eq!(
        (state(&status, "tank"), state(&status, &d[1])),
        ("DEGRADED", "OFFLINE"),
        "{status}"
    );
    write("meanwhile");
    // What was acknowledged meanwhile is on the other device.
    bench.kill();
    bench.import();
    assert!(std::fs::read(bench.at("mnt/tank/meanwhile")).unwrap() == noise(50_000, 1));
    assert_eq!(state(&bench.status(), &d[1]), "OFFLINE");
    bench.cenote(&["zpool", "online", "tank", &d[1]]);
    let status = bench.shows(|status| state(status, "tank") == "ONLINE");
    assert_eq!(state(&status, &d[1]), "ONLINE", "{status}");
    write("after");
    bench.kill();
    bench.import();
    for name in ["before", "meanwhile", "after"] {
        assert!(std::fs::read(bench.at("mnt/tank").join(name)).unwrap() == noise(50_000, 1));
    }
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn all_pools_are_initialized_and_trimmed() {
    let Some((bench, d)) = Bench::mounting(2) else { return };
    let root = bench.at("mnt").display().to_string();
    for (name, device) in [("tank", &d[0]), ("other", &d[1])] {
        bench.cenote(&["zpool", "create", "-R", &root, name, device]);
    }
    bench.cenote(&["zpool", "initialize", "-a", "-w"]);
    bench.cenote(&["zpool", "trim", "-a", "-w"]);
    let status = bench.cenote(&["zpool", "status", "-i", "-t"]);
    assert_eq!(status.matches("(100% initialized, completed at").count(), 2, "{status}");
    assert_eq!(status.matches("(100% trimmed, completed at").count(), 2, "{status}");
    let output = bench.output(&["zpool", "trim", "-a", "tank"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.starts_with("-a cannot be combined with individual zpools or vdevs\n"), "{said}");
    assert_eq!(output.status.code(), Some(2));
    let said = bench.refused(&["zpool", "initialize", "--all", "tank", &d[0]]);
    assert!(said.starts_with("-a cannot be combined with individual pools or vdevs\n"), "{said}");
    // What is wrong with one does not keep the others from it.
    bench.cenote(&["zpool", "initialize", "-u", "tank"]);
    let output = bench.output(&["zpool", "initialize", "-c", "-a"]);
    assert_eq!(output.status.code(), Some(1));
    bench.cenote(&["zpool", "destroy", "other"]);
}
