//! A pool that OpenZFS 2.3 made, with cloned blocks and a table of fast dedup, is changed here.
//!
//! Invariant: after every step the tables say how many references there are, nothing has leaked, and
//! what is left reads back. The judge is our own check, and `zdb` of OpenZFS 2.3 where it is unpacked
//! under /opt/openzfs-2.3.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Bench, may_not_run, noise};

/// Runs a tool of OpenZFS 2.3.
const TOOL: &str = "/opt/openzfs-2.3/run";

/// Cloned bytes stored, and what cloning saves.
type Cloned = [u64; 2];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name)
}

impl Bench {
    fn unpack(archive: &str) -> Self {
        let bench = Self::new(0);
        let images = std::fs::File::open(fixture(archive)).unwrap();
        let mut tar = Command::new("tar")
            .args(["-S", "-xf", "-", "-C"])
            .arg(bench.at("d"))
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut pipe = tar.stdin.take().unwrap();
        std::io::copy(&mut zstd::Decoder::new(images).unwrap(), &mut pipe).unwrap();
        drop(pipe);
        assert!(tar.wait().unwrap().success());
        bench
    }

    pub(super) fn zdb_of_2_3(&self) {
        let mut zdb = Command::new(TOOL);
        // It ends when it is done (`tests/oracles`).
        zdb.arg("zdb").envs(std::env::var_os("ZDB_PRELOAD").map(|it| ("LD_PRELOAD", it)));
        self.judged_by(&mut zdb);
    }

    fn number(&self, property: &str) -> u64 {
        let text = self.cenote(&["zpool", "get", "-Hp", "-o", "value", property, "tank"]);
        text.trim().parse().unwrap()
    }

    /// Ends a step: the pool is exported, judged and imported again.
    fn judge(&self, step: &str, cloned: Cloned) {
        self.cenote(&["zpool", "sync", "tank"]);
        let before = self.manifest();
        self.cenote(&["zpool", "export", "tank"]);
        let place = self.at("d").display().to_string();
        self.cenote(&["zdb", "-e", "-bcc", "-p", &place, "tank"]);
        self.zdb_of_2_3();
        self.import();
        assert_eq!([self.number("bcloneused"), self.number("bclonesaved")], cloned, "{step}");
        assert!(self.manifest() == before, "{step}: the files differ");
    }
}

#[test]
fn clones_and_fast_dedup_of_openzfs_are_kept_up() {
    if may_not_run() {
        return;
    }
    let bench = Bench::unpack("modern/images.tar.zst");
    let mountpoint = bench.at("mnt").display().to_string();
    let place = bench.at("d").display().to_string();
    bench.cenote(&["zpool", "import", "-f", "-d", &place, "-R", &mountpoint, "g101", "tank"]);
    let root = bench.at("mnt/tank");
    let clone = |name: &str| root.join("clone").join(name);
    bench.judge("nothing but a new name", [160 << 10, 320 << 10]);
    std::fs::remove_file(clone("text1")).unwrap();
    bench.judge("a snapshot has what was removed", [160 << 10, 320 << 10]);
    bench.cenote(&["zfs", "destroy", "tank/clone@a"]);
    bench.judge("the snapshot went", [160 << 10, 160 << 10]);
    // The last block of one and the first of another are written, the rest of that is cut off.
    let open = |name| std::fs::File::options().write(true).open(clone(name)).unwrap();
    open("text").set_len(524_290).unwrap();
    open("text3").set_len(200_000).unwrap();
    bench.judge("cut and lengthened", [40 << 10, 40 << 10]);
    std::fs::remove_file(clone("text3")).unwrap();
    bench.judge("one reference of each is left", [0, 0]);
    let unused =
        bench.cenote(&["zpool", "get", "-H", "-o", "value", "feature@block_cloning", "tank"]);
    assert_eq!(unused.trim(), "enabled");

    let fast = || bench.cenote(&["zpool", "list", "-Hp", "-o", "dedupratio", "tank"]);
    assert_eq!(fast().trim(), "2.77");
    let data: Vec<u8> = (0..20).flat_map(|seed| noise(128 << 10, seed)).collect();
    for name in ["new1", "new2"] {
        std::fs::write(root.join(name), &data).unwrap();
    }
    bench.judge("new blocks, each twice", [0, 0]);
    let entries = |class: &str| {
        let status = bench.cenote(&["zpool", "status", "-D", "tank"]);
        assert!(status.contains("DDT entries"), "{class}: {status}");
        status
    };
    let full = entries("with what is new");
    std::fs::remove_file(root.join("new1")).unwrap();
    std::fs::remove_dir_all(root.join("data")).unwrap();
    bench.judge("half of the references went", [0, 0]);
    assert_ne!(entries("without"), full);
    for round in 0..3u32 {
        std::fs::write(root.join("late"), &data[usize::try_from(round).unwrap() << 17..]).unwrap();
    }
    bench.kill();
    bench.import();
    bench.judge("after a kill", [0, 0]);
    assert!(std::fs::read(root.join("new2")).unwrap() == data);
}

/// The pool lost its power with all that its dedup table had to say in a log.
#[test]
fn what_is_in_a_dedup_log_goes_into_the_table() {
    if may_not_run() {
        return;
    }
    let bench = Bench::unpack("dedup-log/devices.tar.zst");
    let mountpoint = bench.at("mnt").display().to_string();
    let place = bench.at("d").display().to_string();
    let import = ["zpool", "import", "-f", "-d", &place, "-R", &mountpoint];
    let ratio = || bench.cenote(&["zpool", "list", "-Hp", "-o", "dedupratio", "tank"]);
    let dedup = || {
        let status = bench.cenote(&["zpool", "status", "-D", "tank"]);
        status.lines().find(|line| line.contains("DDT entries")).unwrap().to_owned()
    };
    bench.cenote(&[&import[..], &["-o", "readonly=on", "dlog", "tank"]].concat());
    assert_eq!(ratio().trim(), "2.27");
    // 25 in the table, 40 in the log: counted like this by OpenZFS, too.
    assert!(dedup().contains("DDT entries 65"), "{}", dedup());
    bench.cenote(&["zpool", "export", "tank"]);

    bench.cenote(&[&import[..], &["dlog", "tank"]].concat());
    let written = std::fs::read_to_string(fixture("dedup-log/manifest.jsonl")).unwrap();
    assert!(bench.manifest() == written, "{}", bench.manifest());
    bench.judge("as it was", [0, 0]);
    assert_eq!(ratio().trim(), "2.27");
    assert!(dedup().contains("DDT entries 40"), "{}", dedup());
    let root = bench.at("mnt/tank");
    std::fs::copy(root.join("u1"), root.join("w1")).unwrap();
    std::fs::remove_file(root.join("v2")).unwrap();
    bench.judge("seven references more, seven less", [0, 0]);
    assert!(dedup().contains("DDT entries 40"), "{}", dedup());
    for name in ["base", "more", "more2", "u1", "u2", "v1", "w1"] {
        std::fs::remove_file(root.join(name)).unwrap();
    }
    bench.judge("nothing left", [0, 0]);
    assert_eq!(ratio().trim(), "1.00");
}

/// The pool lost its power when clones were only in intent logs; the source of one was gone.
#[test]
fn what_a_log_clones_is_there_after_the_replay() {
    if may_not_run() {
        return;
    }
    let bench = Bench::unpack("clone-log/devices.tar.zst");
    let mountpoint = bench.at("mnt").display().to_string();
    let place = bench.at("d").display().to_string();
    let import = ["zpool", "import", "-N", "-f", "-d", &place, "-R", &mountpoint, "clog", "tank"];
    bench.cenote(&import);
    bench.cenote(&["zpool", "sync", "tank"]);
    // The claimed logs hold references, until they are replayed and freed.
    assert_eq!(bench.number("bcloneused"), 45 << 14);
    assert_eq!(bench.number("bclonesaved"), 70 << 14);
    bench.kill();
    bench.zdb_of_2_3();
    bench.import();
    let root = bench.at("mnt/tank");
    let read = |name: &str| std::fs::read(root.join(name)).unwrap();
    assert_eq!(read("src").len(), 25 << 14);
    assert!(read("dst1") == read("src") && read("dst2") == read("src"));
    assert!(read("kept").starts_with(b"block 00000100 ") && read("kept").len() == 20 << 14);
    assert!(read("dd/dst") == read("dd/src") && read("dd/src").len() == 10 << 14);
    assert_eq!(read("last"), b"hello\n");
    assert!(!root.join("gone").exists());
    // What is left of it after the log is what the files share.
    bench.judge("replayed", [25 << 14, 50 << 14]);
    std::fs::remove_file(root.join("src")).unwrap();
    std::fs::remove_file(root.join("dst2")).unwrap();
    bench.judge("one file is left", [0, 0]);
}

#[test]
fn a_pool_of_today_has_long_names_where_they_are_wanted() {
    let Some((bench, devices)) = Bench::mounting(3) else { return };
    let [one, two, three] = &devices[..] else { panic!() };
    let options = ["-o", "compatibility=openzfs-2.3", "-O", "checksum=blake3"];
    bench.create_with(&options, &["raidz1", one, two, three]);
    bench.cenote(&["zfs", "create", "-o", "longname=on", "tank/long"]);
    let active = || {
        let value = ["zpool", "get", "-H", "-o", "value", "feature@longname", "tank"];
        bench.cenote(&value).trim().to_owned()
    };
    let name = |length: usize| format!("long/{}", "n".repeat(length));
    let root = bench.at("mnt/tank");
    std::fs::write(root.join(name(255)), "255").unwrap();
    bench.cenote(&["zpool", "sync", "tank"]);
    assert_eq!(active(), "enabled");
    for length in [256, 900, 1023] {
        std::fs::write(root.join(name(length)), length.to_string()).unwrap();
    }
    std::fs::rename(root.join(name(900)), root.join(name(901))).unwrap();
    bench.cenote(&["zpool", "sync", "tank"]);
    assert_eq!(active(), "active");
    let short = std::fs::write(root.join("n".repeat(256)), "").unwrap_err();
    assert_eq!(short.raw_os_error(), Some(36), "ENAMETOOLONG without the property");
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb_of_2_3();
    bench.import();
    for length in [255, 256, 901, 1023] {
        std::fs::remove_file(root.join(name(length))).unwrap();
    }
}

#[test]
fn copies_share_blocks_where_the_pool_allows_it() {
    let Some((bench, devices)) = Bench::mounting(3) else { return };
    let [one, two, three] = &devices[..] else { panic!() };
    bench.create_with(&["-o", "feature@block_cloning=disabled"], &["raidz1", one, two, three]);
    let root = bench.at("mnt/tank");
    let sync = || bench.cenote(&["zpool", "sync", "tank"]);
    let data: Vec<u8> = (0..5).flat_map(|seed| noise(200_000, seed)).collect();
    std::fs::write(root.join("file"), &data).unwrap();
    std::fs::write(root.join("small"), &data[..1000]).unwrap();
    sync();
    std::fs::copy(root.join("file"), root.join("before")).unwrap();
    bench.judge("without the feature", [0, 0]);

    bench.cenote(&["zpool", "set", "feature@block_cloning=enabled", "tank"]);
    let block = bench.number("allocated");
    std::fs::copy(root.join("file"), root.join("copy")).unwrap();
    std::fs::copy(root.join("small"), root.join("small.copy")).unwrap();
    assert!(std::fs::read(root.join("copy")).unwrap() == data, "before its group is written");
    sync();
    assert!(bench.number("allocated") < block + data.len() as u64 / 2, "nothing was copied");
    // What was copied takes no space again.
    let used = bench.number("bcloneused");
    assert!(used > 1_001_000 && used < 1_050_000, "{used}");
    bench.judge("two files have each block", [used, used]);

    // In one group: a third copy, of which a part is written, one is cut and one removed.
    let open = |name| std::fs::File::options().write(true).open(root.join(name)).unwrap();
    for name in ["written", "cut", "removed", "longer"] {
        std::fs::copy(root.join("copy"), root.join(name)).unwrap();
    }
    let mut written = data.clone();
    written[300_000..300_010].copy_from_slice(b"0123456789");
    std::os::unix::fs::FileExt::write_all_at(&open("written"), b"0123456789", 300_000).unwrap();
    open("cut").set_len(400_000).unwrap();
    std::fs::remove_file(root.join("removed")).unwrap();
    open("longer").set_len(1_500_000).unwrap();
    let check = |step: &str| {
        let read = |name: &str| std::fs::read(root.join(name)).unwrap();
        assert!(read("copy") == data && read("written") == written, "{step}");
        assert!(read("cut") == data[..400_000], "{step}");
        let (head, tail) = (&read("longer")[..data.len()], &read("longer")[data.len()..]);
        assert!(head == data && tail.iter().all(|byte| *byte == 0), "{step}");
        assert!(read("small.copy") == data[..1000], "{step}");
    };
    check("before their group is written");
    sync();
    let saved = bench.number("bclonesaved");
    assert!(saved > 3 * used - (512 << 10) && saved < 4 * used, "{saved}");
    bench.judge("changed copies", [used, saved]);
    check("after it");

    // What is synced is there after the end of the process, wherever it came from.
    std::fs::copy(root.join("written"), root.join("synced")).unwrap();
    open("synced").sync_all().unwrap();
    std::fs::remove_file(root.join("file")).unwrap();
    std::fs::remove_file(root.join("copy")).unwrap();
    bench.kill();
    bench.import();
    assert!(std::fs::read(root.join("synced")).unwrap() == written);
    // What is shared counts against a quota, also before its group is written.
    bench.cenote(&["zfs", "create", "-o", "quota=3M", "tank/q"]);
    std::fs::write(root.join("q/file"), &data).unwrap();
    sync();
    let copied = (0..6).map_while(|number| {
        std::fs::copy(root.join("q/file"), root.join(format!("q/copy{number}"))).ok()
    });
    let copied = copied.count();
    assert!(copied < 3, "{copied} copies of a file of 1 MB in a quota of 3 MiB");
    bench.cenote(&["zfs", "destroy", "-r", "tank/q"]);
    for name in ["file", "copy", "written", "cut", "longer", "synced", "small", "small.copy"] {
        let _ = std::fs::remove_file(root.join(name));
    }
    bench.judge("nothing is shared any more", [0, 0]);
}

#[test]
fn new_dedup_tables_are_of_fast_dedup_where_the_pool_has_it() {
    let Some((bench, devices)) = Bench::mounting(4) else { return };
    let [one, two, three, four] = &devices[..] else { panic!() };
    let options = ["-f", "-o", "compatibility=openzfs-2.3", "-O", "recordsize=16K"];
    let options = [&options[..], &["-o", "feature@fast_dedup=disabled"]].concat();
    bench.create_with(&options, &[one, two, three, "dedup", four]);
    let feature = || {
        let value = ["zpool", "get", "-H", "-o", "value", "feature@fast_dedup", "tank"];
        bench.cenote(&value).trim().to_owned()
    };
    let root = bench.at("mnt/tank");
    let records = |name: &str, seeds: std::ops::Range<u32>| {
        let data: Vec<u8> = seeds.flat_map(|seed| noise(16 << 10, seed)).collect();
        std::fs::write(root.join(name), data).unwrap();
    };
    bench.cenote(&["zfs", "set", "dedup=sha512", "tank"]);
    records("classic", 0..40);
    records("again", 20..60);
    bench.judge("without the feature", [0, 0]);
    bench.cenote(&["zpool", "set", "feature@fast_dedup=enabled", "tank"]);
    records("more", 30..70);
    bench.judge("a table there was stays as it is", [0, 0]);
    assert_eq!(feature(), "enabled");

    for (number, value) in ["on", "blake3", "skein,verify", "edonr,verify"].iter().enumerate() {
        let property = format!("dedup={value}");
        bench.cenote(&["zfs", "set", &property, "tank"]);
        records(&format!("fast{number}"), 0..40);
        bench.cenote(&["zpool", "sync", "tank"]);
        assert_eq!(feature(), "active");
    }
    bench.cenote(&["zfs", "set", "dedup=on", "tank"]);
    records("single", 20..60);
    bench.judge("tables of five checksums", [0, 0]);
    bench.cenote(&["zfs", "set", "copies=2", "tank"]);
    records("double", 10..50);
    bench.judge("second copies", [0, 0]);
    bench.cenote(&["zfs", "snapshot", "tank@one"]);
    std::fs::remove_file(root.join("double")).unwrap();
    records("fast0", 80..100);
    bench.kill();
    bench.import();
    bench.judge("after a kill", [0, 0]);
    bench.cenote(&["zfs", "destroy", "tank@one"]);
    bench.judge("the copies stay", [0, 0]);
    // The removal of "double" may have been lost with the process.
    let fast = ["fast0", "fast1", "fast2", "fast3", "single", "double"];
    for name in ["classic", "again", "more"].iter().chain(&fast) {
        let _ = std::fs::remove_file(root.join(name));
    }
    bench.judge("nothing left", [0, 0]);
    assert_eq!(feature(), "enabled");
    // The next table of the checksum that had a classic one is new as well.
    bench.cenote(&["zfs", "set", "dedup=sha512", "tank"]);
    records("late", 0..10);
    bench.judge("new again", [0, 0]);
    assert_eq!(feature(), "active");
}
