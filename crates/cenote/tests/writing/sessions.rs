//! The shell sessions of people who wrote about their ZFS machines: what they typed, on files as
//! disks, and the lines that their articles show.
//!
//! Invariant: only the names of devices are other ones, and everything is mounted below a
//! directory of the test (`-R`).

use std::io::Write;
use std::process::{Command, Stdio};

use super::{Bench, noise};

impl Bench {
    /// A line as typed: `D3` is the fourth device, `DIR` the devices' directory, `MNT` what goes
    /// before all mountpoints.
    fn typed(&self, line: &str) -> String {
        let devices = self.devices(10);
        let word = |word: &str| match word.strip_prefix('D').and_then(|n| n.parse::<usize>().ok()) {
            Some(number) => devices[number].clone(),
            None => match word {
                "DIR" => self.at("d").display().to_string(),
                "MNT" => self.at("mnt").display().to_string(),
                other => other.to_owned(),
            },
        };
        line.split(' ').map(word).collect::<Vec<_>>().join(" ")
    }

    /// What a line prints, which must go well.
    fn run(&self, line: &str) -> String {
        let typed = self.typed(line);
        self.cenote(&typed.split(' ').collect::<Vec<_>>())
    }

    /// What a line that is refused says.
    fn run_refused(&self, line: &str) -> String {
        let typed = self.typed(line);
        self.refused(&typed.split(' ').collect::<Vec<_>>())
    }

    /// The same as [`Self::run`] with something to read.
    fn run_with(&self, line: &str, input: &str) {
        let typed = self.typed(line);
        let mut child = Command::new(env!("CARGO_BIN_EXE_cenote"))
            .args(typed.split(' '))
            .env("CENOTE_RUN_DIR", self.at("run"))
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {said}");
    }

    /// Runs the lines; the history then ends with them.
    fn run_all(&self, lines: &[&str]) {
        lines.iter().for_each(|line| drop(self.run(line)));
    }

    /// The command lines of a pool's history.
    fn history(&self, pool: &str) -> Vec<String> {
        let text = self.run(&format!("zpool history {pool}"));
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some(format!("History for '{pool}':").as_str()));
        let command = |line: &str| line.split_once(' ').map(|(_, line)| line.to_owned());
        lines.filter_map(command).collect()
    }

    fn expect_history(&self, pool: &str, lines: &[&str]) {
        let typed: Vec<String> = lines.iter().map(|line| self.typed(line)).collect();
        assert_eq!(self.history(pool), typed);
    }

    fn one_value(&self, property: &str, of: &str) -> String {
        let tool = if of.contains('/') { "zfs" } else { "zpool" };
        self.run(&format!("{tool} get -H -o value,source {property} {of}")).trim_end().to_owned()
    }
}

/// The first words of the lines of `text` between two headings, devices by their short names.
fn first_words(text: &str, from: &str, to: &str) -> Vec<String> {
    let rest = text.split_once(from).map_or("", |(_, rest)| rest);
    let part = rest.split_once(to).map_or(rest, |(part, _)| part);
    let short = |line: &str| {
        let word = line.split_whitespace().next()?;
        Some(word.rsplit('/').next().unwrap_or(word).to_owned())
    };
    part.lines().filter_map(short).collect()
}

/// The layouts that were compared for speed on eight disks.
#[test]
fn a_topology_benchmark() {
    let Some((bench, _)) = Bench::mounting(8) else { return };
    for (layout, top) in [("raidz", "raidz1-0"), ("raidz3", "raidz3-0"), ("mirror", "mirror-0")] {
        let disks = "D0 D1 D2 D3 D4 D5 D6 D7";
        let create = format!("zpool create -f -R MNT myzpool {layout} {disks}");
        bench.run_all(&[&create, "zfs create myzpool/data"]);
        std::fs::write(bench.at("mnt/myzpool/data/file"), noise(2 << 20, 5)).unwrap();
        let status = bench.run("zpool status -v");
        assert!(status.contains("\n state: ONLINE\n"), "{status}");
        assert!(status.contains(&format!("\n\t  {top}")), "{status}");
        assert!(status.contains("\nerrors: No known data errors\n"), "{status}");
        assert_eq!(bench.run("zpool status -x"), "all pools are healthy\n");
        let df = Command::new("df").arg(bench.at("mnt/myzpool/data")).output().unwrap();
        assert!(String::from_utf8_lossy(&df.stdout).contains("myzpool/data"));
        bench.expect_history("myzpool", &[&create, "zfs create myzpool/data"]);
        // "surprisingly, doesn't require any confirmation"
        bench.run("zpool destroy myzpool");
    }
    let listed = bench.run("zpool import -D -d DIR");
    assert!(listed.contains("  pool: myzpool\n") && listed.contains("(DESTROYED)"), "{listed}");
    bench.run("zpool import -D -f -N -d DIR -R MNT myzpool");
    assert!(bench.history("myzpool").contains(&"zpool destroy myzpool".to_owned()));
    bench.run("zpool export myzpool");
    bench.run("zpool labelclear -f D0");
}

/// A pool that gets faster parts, other settings, newer formats, and a new machine.
#[test]
fn a_file_server_is_set_up() {
    let Some((bench, _)) = Bench::mounting(6) else { return };
    let lines = [
        "zpool create -f -o ashift=12 -R MNT storage raidz D0 D1 D2",
        "zpool add storage cache D3",
        "zpool add storage log mirror D4 D5",
        "zpool set autoexpand=on storage",
        "zfs create storage/v",
        "zfs set compression=lz4 storage/v",
        "zfs set dedup=on storage/v",
        "zfs set dedup=off storage/v",
        "zfs set sync=disabled storage/v",
        "zfs set checksum=off storage/v",
        "zfs set atime=off storage/v",
        "zfs set recordsize=8k storage/v",
        "zfs set redundant_metadata=most storage/v",
        "zfs set xattr=sa storage/v",
        "zfs set compression=gzip-9 storage/v",
        "zfs set copies=2 storage/v",
    ];
    bench.run_all(&lines);
    for (property, value) in [
        ("compression", "gzip-9"),
        ("dedup", "off"),
        ("sync", "disabled"),
        ("checksum", "off"),
        ("atime", "off"),
        ("recordsize", "8K"),
        ("redundant_metadata", "most"),
        ("xattr", "on"),
        ("copies", "2"),
    ] {
        assert_eq!(bench.one_value(property, "storage/v"), format!("{value}\tlocal"));
    }
    assert_eq!(bench.one_value("ashift", "storage"), "12\tlocal");
    assert_eq!(bench.one_value("autoexpand", "storage"), "on\tlocal");
    std::fs::write(bench.at("mnt/storage/v/text"), "a line that compresses\n".repeat(50_000))
        .unwrap();
    bench.run("zpool sync storage");
    let ratio = bench.run("zfs get -H -o value compressratio storage/v");
    assert!(ratio.trim_end().ends_with('x') && ratio != "1.00x\n", "{ratio}");
    bench.run("zfs snapshot storage/v@20120417");
    assert_eq!(bench.run("zfs list -H -o name -t snapshot"), "storage/v@20120417\n");

    let list = bench.run("zpool list -v");
    let heading: Vec<&str> = list.lines().next().unwrap_or("").split_whitespace().collect();
    let columns = "NAME SIZE ALLOC FREE CKPOINT EXPANDSZ FRAG CAP DEDUP HEALTH ALTROOT";
    assert_eq!(heading.join(" "), columns);
    let rows = first_words(&list, "ALTROOT\n", "\n\n");
    let parts = ["logs", "mirror-1", "f4", "f5", "cache", "f3"];
    assert_eq!(rows, [&["storage", "raidz1-0", "f0", "f1", "f2"][..], &parts].concat());
    let iostat = bench.run("zpool iostat -v");
    let pool: Vec<&str> = ["capacity", "operations", "bandwidth"].to_vec();
    assert!(pool.iter().all(|word| iostat.contains(word)), "{iostat}");
    assert!(iostat.contains("\ncache ") && iostat.contains("\nlogs "), "{iostat}");

    let upgraded = bench.run("zpool upgrade storage");
    assert!(upgraded.starts_with("This system supports ZFS pool feature flags.\n"), "{upgraded}");
    let upgraded = bench.run("zfs upgrade storage");
    assert!(upgraded.ends_with("1 filesystems already at this version\n"), "{upgraded}");
    bench.run("zpool export storage");
    assert_eq!(bench.run("zpool import -d DIR").lines().next(), Some("   pool: storage"));
    bench.run("zpool import -d DIR -R MNT storage");
    let history = bench.history("storage");
    let typed: Vec<String> = lines.iter().map(|line| bench.typed(line)).collect();
    assert_eq!(history[..typed.len()], typed);
    let later = [
        "zfs snapshot storage/v@20120417",
        "zpool upgrade storage",
        "zpool export storage",
        "zpool import -d DIR -R MNT storage",
    ];
    for line in later {
        assert!(history.contains(&bench.typed(line)), "{line}: {history:?}");
    }
    let internal = bench.run("zpool history -i storage");
    for event in [
        " create pool version 5000; software version cenote-",
        " set ashift=12\n",
        " set feature@lz4_compress=enabled\n",
        " create storage/v (",
        " snapshot storage/v@20120417 (",
        " open pool version 5000; ",
        " import pool version 5000; ",
    ] {
        assert!(internal.contains(event), "{event}: {internal}");
    }
    let long = bench.run("zpool history -l storage");
    let origin = |line: &&str| line.contains(" [user ") && line.ends_with(":linux]");
    assert_eq!(long.lines().filter(origin).count(), history.len(), "{long}");
    bench.run("zpool export storage");
    let label = bench.run("zdb -e -p DIR -C storage");
    assert!(label.contains("ashift: 12\n") && !label.contains("ashift: 9\n"), "{label}");
}

/// Failure drills on two mirrors, and the pool that takes another one's name and place.
#[test]
fn mirrors_are_practised_with() {
    let Some((bench, _)) = Bench::mounting(6) else { return };
    bench.run_all(&["zpool create -oashift=12 -R MNT test mirror D0 D1"]);
    bench.run("zpool add -oashift=12 test mirror D2 D3");
    let tree = first_words(&bench.run("zpool status test"), "CKSUM\n", "\n\n");
    assert_eq!(tree, ["test", "mirror-0", "f0", "f1", "mirror-1", "f2", "f3"]);
    let refused = bench.run_refused("zpool add test D4");
    assert!(refused.contains("mismatched replication level"), "{refused}");
    let refused = bench.run_refused("zpool create -R MNT other D0");
    assert!(refused.contains("is part of active pool 'test'"), "{refused}");
    bench.run("zfs set copies=2 test");
    std::fs::write(bench.at("mnt/test/random"), noise(8 << 20, 9)).unwrap();
    let list = bench.run("zpool list -H test");
    let cells: Vec<&str> = list.trim_end().split('\t').collect();
    assert_eq!((cells[0], cells[8], cells[9]), ("test", "1.00x", "ONLINE"));
    bench.run("zpool export test");
    bench.run("zpool import -d DIR -R MNT test olddata");
    assert_eq!(std::fs::read(bench.at("mnt/test/random")).ok(), None);
    assert!(std::fs::read(bench.at("mnt/olddata/random")).unwrap() == noise(8 << 20, 9));
    bench.run_all(&["zpool create -o ashift=12 -R MNT data mirror D4 D5"]);
    bench.run("zfs create data/images");
    bench.run("zfs set mountpoint=/images data/images");
    std::fs::copy(bench.at("mnt/olddata/random"), bench.at("mnt/images/random")).unwrap();
    bench.run("zpool destroy olddata");
    assert_eq!(bench.run("zpool list -H -o name"), "data\n");
    bench.run("zpool export data");
    let output = bench.output(&["zpool", "status", "-x"]);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "no pools available\n");
}

/// A log on the fastest device there is.
#[test]
fn a_log_is_added_and_left_out() {
    let Some((bench, _)) = Bench::mounting(5) else { return };
    let lines = [
        "zpool create -R MNT carlespool raidz D0 D1 D2",
        "zpool add carlespool log D3",
        "zpool remove carlespool D3",
        "zpool add carlespool log mirror D3 D4",
        "zfs set sync=disabled carlespool",
        "zfs set sync=standard carlespool",
    ];
    bench.run_all(&lines);
    bench.expect_history("carlespool", &lines);
    let logs = first_words(&bench.run("zpool status carlespool"), "logs", "\n\n");
    assert_eq!(logs, ["mirror-2", "f3", "f4"]);
    bench.run("zpool export carlespool");
}

/// A workstation all of whose files lie on ZFS: a pool that GRUB can read, and an encrypted one.
#[test]
fn a_root_filesystem_is_converted() {
    let Some((bench, _)) = Bench::mounting(2) else { return };
    let enabled = [
        "async_destroy",
        "bookmarks",
        "embedded_data",
        "empty_bpobj",
        "enabled_txg",
        "extensible_dataset",
        "filesystem_limits",
        "hole_birth",
        "large_blocks",
        "lz4_compress",
        "spacemap_histogram",
        "zpool_checkpoint",
    ];
    let features: String =
        enabled.iter().map(|name| format!(" -o feature@{name}=enabled")).collect();
    let boot = format!(
        "zpool create -o cachefile=none -o ashift=12 -d{features} -O acltype=posixacl -O \
         canmount=off -O compression=lz4 -O devices=off -O normalization=formD -O relatime=on -O \
         xattr=sa -O mountpoint=/boot -R MNT bpool D0"
    );
    bench.run(&boot);
    let states = bench.run("zpool get -H -o property,value all bpool");
    for line in states.lines().filter(|line| line.starts_with("feature@")) {
        let (name, state) = line.trim_start_matches("feature@").split_once('\t').unwrap();
        assert_eq!(state != "disabled", enabled.contains(&name), "{line}");
    }
    let root = "zpool create -o ashift=12 -O encryption=on -O keylocation=prompt -O \
                keyformat=passphrase -O acltype=posixacl -O xattr=sa -O dnodesize=auto -O \
                compression=zstd -O normalization=formD -O relatime=on -O canmount=off -O \
                mountpoint=/ -R MNT rpool D1";
    bench.run_with(root, "a passphrase\na passphrase\n");
    bench.run_all(&[
        "zfs create -o canmount=off -o mountpoint=none rpool/ROOT",
        "zfs create -o canmount=noauto -o mountpoint=/ rpool/ROOT/debian",
        "zfs mount rpool/ROOT/debian",
        "zfs create rpool/home",
        "zfs create -o mountpoint=/root rpool/home/root",
        "zfs create -o canmount=off -o mountpoint=none bpool/BOOT",
        "zfs create -o mountpoint=/boot bpool/BOOT/debian",
    ]);
    std::fs::write(bench.at("mnt/etc"), "the root").unwrap();
    std::fs::write(bench.at("mnt/home/file"), "a home").unwrap();
    std::fs::write(bench.at("mnt/boot/vmlinuz"), "a kernel").unwrap();
    // A name that is not UTF-8 cannot be normalised.
    use std::os::unix::ffi::OsStrExt;
    let name = std::ffi::OsStr::from_bytes(b"mnt/home/caf\xe9");
    let error = std::fs::write(bench.directory.path().join(name), "x").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(84));
    for property in ["compression", "dnodesize", "encryption", "normalization"] {
        let value = bench.run(&format!("zfs get -H -o value {property} rpool/home"));
        let expected = ["zstd", "auto", "aes-256-gcm", "formD"];
        assert!(expected.contains(&value.trim_end()), "{property}: {value}");
    }
    bench.run("zfs snapshot bpool/BOOT/debian@install");
    bench.run("zpool export -a");

    bench.run("zpool import -N -o cachefile=none -d DIR -R MNT bpool");
    assert_eq!(bench.run("zfs get -H -o value mounted bpool/BOOT/debian"), "no\n");
    assert_eq!(bench.run("zfs list -H -o name -t snapshot"), "bpool/BOOT/debian@install\n");
    bench.run("zpool export bpool");
    bench.run_with("zpool import -l -a -d DIR -R MNT", "a passphrase\n");
    let read = |name: &str| std::fs::read_to_string(bench.at(name)).unwrap_or_default();
    assert_eq!(read("mnt/home/file"), "a home");
    assert_eq!(read("mnt/boot/vmlinuz"), "a kernel");
    bench.run("zfs mount rpool/ROOT/debian");
    bench.run("zfs mount -a");
    assert_eq!(bench.run("zfs get -H -o value mounted rpool/home"), "yes\n");
    assert_eq!(read("mnt/etc"), "the root");
    bench.run("zfs unmount rpool/ROOT/debian");
    bench.run("zpool export -a");
    assert_eq!(read("mnt/etc"), "");
}

/// Larger disks come in the places of the old ones, one after another.
#[test]
fn a_pool_grows_by_its_disks() {
    let Some((bench, devices)) = Bench::mounting(3) else { return };
    bench.run("zpool create -R MNT mypool raidz D0 D1 D2");
    // As much that what is available, which df tells in whole records, ends in the middle of one: replacing and
    // scrubbing take some 20 KiB of metadata.
    let content = noise((8 << 20) - (64 << 10), 3);
    std::fs::write(bench.at("mnt/mypool/file"), &content).unwrap();
    let number = |property: &str| -> u64 {
        let text = bench.run(&format!("zpool get -Hp -o value {property} mypool"));
        text.trim_end().parse().unwrap_or(0)
    };
    let df = || {
        let mut df = Command::new("df");
        let output = df.args(["--output=size", "-k"]).arg(bench.at("mnt/mypool")).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().nth(1).unwrap().trim().parse::<u64>().unwrap()
    };
    bench.run("zpool sync mypool");
    let (size, space) = (number("size"), df());
    for (position, device) in devices.iter().enumerate() {
        bench.run(&format!("zpool offline mypool D{position}"));
        std::fs::remove_file(device).unwrap();
        std::fs::File::create(device).unwrap().set_len(2 * super::SIZE).unwrap();
        bench.run(&format!("zpool replace -w mypool D{position}"));
        assert!(bench.run("zpool status mypool").contains("scan: resilvered "));
    }
    bench.run("zpool scrub -w mypool");
    assert_eq!((number("size"), df()), (size, space));
    assert!(number("expandsize") > 0, "{}", bench.run("zpool list -v"));
    for position in 0..3 {
        bench.run(&format!("zpool online -e mypool D{position}"));
    }
    assert!(number("size") > size * 19 / 10, "{}", bench.run("zpool list -v"));
    assert!(df() > space * 19 / 10, "{} {space}", df());
    assert!(std::fs::read(bench.at("mnt/mypool/file")).unwrap() == content);
    bench.run("zpool export mypool");
}

/// A disk is filled with zeros where the files are, and then loses its labels, too.
#[test]
fn a_zeroed_disk_is_healed_and_a_wiped_one_replaced() {
    let Some((bench, devices)) = Bench::mounting(2) else { return };
    bench.run("zpool create -oashift=12 -R MNT test mirror D0 D1");
    let content = noise(8 << 20, 4);
    std::fs::write(bench.at("mnt/test/random"), &content).unwrap();
    bench.run("zpool export test");
    let zero = |from: u64, to: u64| {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::options().write(true).open(&devices[1]).unwrap();
        for at in (from..to).step_by(1 << 20) {
            file.write_all_at(&vec![0; 1 << 20], at).unwrap();
        }
    };
    zero(8 << 20, super::SIZE - (8 << 20));
    bench.run("zpool import -d DIR -R MNT test");
    bench.run("zpool scrub -w test");
    let status = bench.run("zpool status test");
    let line = status.lines().find(|line| line.contains("/f1 ")).unwrap();
    let checksum = line.split_whitespace().nth(4);
    assert!(checksum.is_some_and(|count| count != "0"), "{status}");
    assert!(status.contains("scan: scrub repaired ") && status.contains("msg/ZFS-8000-9P"));
    assert!(status.contains(" with 0 errors on ") && !status.contains("repaired 0B"), "{status}");
    assert!(status.contains("errors: No known data errors"), "{status}");
    bench.run("zpool clear test");
    assert_eq!(bench.run("zpool status -x"), "all pools are healthy\n");

    bench.run("zpool export test");
    zero(0, super::SIZE);
    bench.run("zpool import -d DIR -R MNT test");
    let status = bench.run("zpool status test");
    assert!(status.contains(" state: DEGRADED") && status.contains("UNAVAIL"), "{status}");
    assert!(status.contains("msg/ZFS-8000-4J"), "{status}");
    let leaf = status.lines().find(|line| line.contains("was /")).unwrap_or_default();
    let gone = leaf.split_whitespace().next().map_or_else(|| bench.typed("D1"), str::to_owned);
    bench.run(&format!("zpool replace -w test {gone} D1"));
    let status = bench.run("zpool status test");
    assert!(status.contains(" state: ONLINE") && status.contains("scan: resilvered "), "{status}");
    assert!(std::fs::read(bench.at("mnt/test/random")).unwrap() == content);
    bench.run("zpool export test");
}

/// Two copies of everything on two disks, of which one is gone.
#[test]
fn copies_are_no_redundancy() {
    let Some((bench, devices)) = Bench::mounting(2) else { return };
    bench.run_all(&["zpool create -R MNT test D0 D1", "zfs set copies=2 test"]);
    std::fs::write(bench.at("mnt/test/file"), noise(1 << 20, 5)).unwrap();
    bench.run("zpool export test");
    let aside = bench.at("aside");
    std::fs::rename(&devices[1], &aside).unwrap();
    let listed = bench.run("zpool import -d DIR");
    assert!(listed.contains("  state: UNAVAIL\n") && listed.contains("ZFS-8000-3C"), "{listed}");
    // Copies of what the pool knows of itself are here, too: which disk is missing is known.
    assert!(listed.contains("/f1  UNAVAIL  cannot open\n"), "{listed}");
    let said = bench.run_refused("zpool import -d DIR -R MNT test");
    assert_eq!(said, "cannot import 'test': one or more devices is currently unavailable\n");
    std::fs::rename(&aside, &devices[1]).unwrap();
    bench.run("zpool import -d DIR -R MNT test");
    assert!(std::fs::read(bench.at("mnt/test/file")).unwrap() == noise(1 << 20, 5));
    bench.run("zpool export test");
}
