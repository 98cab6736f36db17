//! The command lines of znapzend, zrepl, httm, pyznap and Ansible's modules, which are not all to be had here: what they
//! take out of the answers.
//!
//! Invariant: each answer is taken apart as the tool does it, by its columns, its words or its exit code.

use std::fs;
use std::process::{Output, Stdio};

use super::{Bench, noise};

/// `tank/a` with `b` below it, and two snapshots of both.
fn bench() -> Option<Bench> {
    let (bench, devices) = Bench::mounting(2)?;
    bench.create(&[&devices[0]]);
    bench.cenote(&["zfs", "create", "tank/a"]);
    bench.cenote(&["zfs", "create", "tank/a/b"]);
    for (name, seed) in [("one", 1), ("two", 2)] {
        fs::write(bench.at("mnt/tank/a").join(name), noise(200_000, seed)).unwrap();
        bench.cenote(&["zfs", "snapshot", "-r", &format!("tank/a@{name}")]);
    }
    Some(bench)
}

impl Bench {
    /// A command as it is typed, without quotes.
    fn probed(&self, line: &str) -> Output {
        let words: Vec<&str> = line.split_whitespace().collect();
        self.command(&words).stdin(Stdio::null()).output().unwrap()
    }

    /// The fields of the lines of its answer, which must go well and have so many in each line.
    #[track_caller]
    fn fields(&self, line: &str, count: usize) -> Vec<Vec<String>> {
        let output = self.probed(line);
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        let said = String::from_utf8(output.stdout).unwrap();
        let fields = |line: &str| line.split('\t').map(str::to_owned).collect::<Vec<_>>();
        let all: Vec<Vec<String>> = said.lines().map(fields).collect();
        assert!(all.iter().all(|fields| fields.len() == count), "{line}: {said}");
        all
    }

    /// What it complains of, and its exit code.
    fn complaint(&self, line: &str) -> (String, i32) {
        let output = self.probed(line);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (said, output.status.code().unwrap())
    }

    #[track_caller]
    fn does(&self, lines: &[&str]) {
        for line in lines {
            let output = self.probed(line);
            assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }

    fn first_column(&self, line: &str) -> Vec<String> {
        self.fields(line, 1).into_iter().flatten().collect()
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[test]
fn znapzend() {
    let Some(bench) = bench() else { return };
    assert_eq!(bench.first_column("zpool list -H -o name"), ["tank"]);
    bench.does(&["zfs set org.znapzend:enabled=on org.znapzend:src_plan=1h=>10min tank/a"]);
    let all = bench.first_column("zfs list -H -r -o name -t filesystem,volume tank/a");
    assert_eq!(all, ["tank/a", "tank/a/b"]);
    // Who has a plan of its own, and who inherits one.
    let of = |from: &str, of: &str| {
        let get = "-t filesystem,volume -o name,property,value,source all";
        bench.fields(&format!("zfs get -H -r -s {from} {get} {of}"), 4)
    };
    for (from, source) in [("local", "local"), ("local,inherited", "inherited from tank/a")] {
        let name = if from == "local" { "tank/a" } else { "tank/a/b" };
        let found = of(from, name);
        let plan = found.iter().find(|line| line[1] == "org.znapzend:src_plan").unwrap();
        assert_eq!(plan[..], [name, "org.znapzend:src_plan", "1h=>10min", source]);
    }
    let oldest_first = "zfs list -H -o name -t snapshot -s creation -d 1 tank/a";
    bench.does(&["zfs snapshot -r tank/a@2026-11-28-000000"]);
    let snapshots = bench.first_column(oldest_first);
    assert_eq!(snapshots, ["tank/a@one", "tank/a@two", "tank/a@2026-11-28-000000"]);
    assert_eq!(bench.first_column("zfs list -H -o name -t snapshot tank/a@one"), ["tank/a@one"]);
    assert_eq!(bench.complaint("zfs list -H -o name -t snapshot tank/a@no").1, 1);
    let used = bench.first_column("zfs get -H -o value usedbysnapshots tank/a");
    assert!(used[0].starts_with(|c: char| c.is_ascii_digit()), "{used:?}");
    bench.does(&[
        "zfs create -p tank/deep/er",
        "zfs destroy -r tank/a@one,two",
        "zfs inherit org.znapzend:src_plan tank/a",
    ]);
    assert_eq!(bench.first_column(oldest_first), ["tank/a@2026-11-28-000000"]);
    // A scrub keeps it from working.
    bench.does(&["zpool scrub tank"]);
    let status = bench.probed("zpool status -v tank");
    assert!(status.status.success());
    bench.probed("zpool scrub -s tank");
}

#[test]
fn zrepl() {
    let Some(bench) = bench() else { return };
    for (line, words) in [
        ("zfs send", "receive_resume_token"),
        ("zfs receive", "-A <filesystem|volume>"),
        ("zfs load-key", "keylocation"),
        ("zfs destroy", "<filesystem|volume>@<snap>[%<snap>][,...]"),
    ] {
        let (said, code) = bench.complaint(line);
        assert!(code == 2 && said.contains(words), "{line}: {said}");
    }
    let feature = bench.first_column("zpool get -H -p -o value feature@extensible_dataset tank");
    assert!(["active", "enabled"].contains(&feature[0].as_str()));
    bench.does(&["zfs bookmark tank/a@one tank/a#mark", "zfs hold zrepl_CURSOR tank/a@two"]);
    let versions = "zfs list -H -p -o name,guid,createtxg,creation,userrefs -r -d 1 -t snapshot,bookmark -s createtxg tank/a";
    let found = bench.fields(versions, 5);
    let names: Vec<&str> = found.iter().map(|line| line[0].as_str()).collect();
    assert!(names.last() == Some(&"tank/a@two") && names.contains(&"tank/a#mark"), "{names:?}");
    for line in &found {
        assert!(line[1..4].iter().all(|field| is_number(field)), "{line:?}");
        let held = if line[0] == "tank/a#mark" { "-" } else { line[4].as_str() };
        assert!(line[4] == held && (held == "-" || is_number(held)), "{line:?}");
    }
    let get = "zfs get -Hp -o name,property,value,source -r -d 1 -t filesystem zrepl:placeholder,encryption tank";
    let asked = bench.fields(get, 4);
    assert_eq!(asked[0][..], ["tank", "zrepl:placeholder", "-", "-"]);
    assert_eq!(asked[1][..], ["tank", "encryption", "off", "default"]);
    // Sizes: the first line that fits, of all or of what came since.
    let said = String::from_utf8(bench.probed("zfs send -n -v -P tank/a@one").stdout).unwrap();
    let first: Vec<&str> = said.lines().next().unwrap().split('\t').collect();
    assert!(first[..2] == ["full", "tank/a@one"] && is_number(first[2]), "{said}");
    for from in ["tank/a@one", "tank/a#mark"] {
        let said = bench.probed(&format!("zfs send -n -v -P -i {from} tank/a@two"));
        let said = String::from_utf8(said.stdout).unwrap();
        let first: Vec<&str> = said.lines().next().unwrap().split('\t').collect();
        assert_eq!(first[..3], ["incremental", from, "tank/a@two"]);
        assert!(first.len() == 4 && is_number(first[3]), "{said}");
    }
    assert!(bench.complaint("zfs send -nvt 1-bad").0.contains("resume token is corrupt"));
    let none = "does not have any resumable receive state to abort";
    assert!(bench.complaint("zfs recv -A tank/a").0.contains(none));
    // Holds are placed twice and released where they are not.
    let again = bench.complaint("zfs hold zrepl_CURSOR tank/a@two").0;
    assert!(again.contains("tag already exists on this dataset"), "{again}");
    let holds = bench.fields("zfs holds -H tank/a@two", 3);
    assert_eq!(holds[0][..2], ["tank/a@two", "zrepl_CURSOR"]);
    let (said, _) = bench.complaint("zfs release zrepl_CURSOR tank/a@one tank/a@two");
    assert!(said.lines().all(|line| line.ends_with("no such tag on this dataset")), "{said}");
    assert!(bench.fields("zfs holds -H tank/a@two", 3).is_empty());
    bench.does(&["zfs hold x tank/a@two"]);
    let (said, _) = bench.complaint("zfs destroy tank/a@two");
    let reason = said.trim().strip_prefix("cannot destroy snapshot tank/a@two: ").unwrap();
    assert!(reason == "dataset is busy" || reason.starts_with("it's being held."), "{said}");
    for (line, words) in [
        (
            "zfs destroy tank/a@nope",
            "could not find any snapshots to destroy; check snapshot names.",
        ),
        ("zfs destroy tank/a#nope", "bookmark 'tank/a#nope' does not exist"),
        (
            "zfs bookmark tank/a@two tank/a#mark",
            "cannot create bookmark 'tank/a#mark': bookmark exists",
        ),
        ("zfs get -Hp -o value guid tank/no", "cannot open 'tank/no': dataset does not exist"),
        ("zfs get -Hp -o value guid none/no", "cannot open 'none/no': dataset does not exist"),
    ] {
        let (said, code) = bench.complaint(line);
        assert!(code == 1 && said.starts_with(words), "{line}: {said}");
    }
    let placeholder =
        "zfs create -o zrepl:placeholder=on -o mountpoint=none -o encryption=off tank/copy";
    bench.does(&[placeholder, "zfs release x tank/a@two", "zfs rollback -r tank/a@one"]);
    // What it sends goes into the placeholder, and what is cut off says how to go on.
    let stream = bench.stream(&["-L", "-c", "-e", "-p", "tank/a@one"]);
    let cut =
        bench.receive(&["-s", "-F", "-x", "mountpoint", "tank/copy"], &stream[..stream.len() / 2]);
    let said = String::from_utf8_lossy(&cut.stderr).into_owned();
    let (_, rest) = said
        .split_once("A resuming stream can be generated on the sending system by running:")
        .unwrap_or_else(|| panic!("{said}"));
    let token = rest.trim().strip_prefix("zfs send -t ").unwrap();
    let contents = bench.probed(&format!("zfs send -nvt {token}"));
    let contents = String::from_utf8(contents.stdout).unwrap();
    assert!(contents.starts_with("resume token contents:\nnvlist version: 0\n"), "{contents}");
    for key in ["toguid", "toname", "compressok"] {
        let has = contents.lines().any(|line| line.starts_with(&format!("\t{key} = ")));
        assert!(has, "{key}: {contents}");
    }
    bench.received(&["-s", "tank/copy"], &bench.stream(&["-t", token]));
}

#[test]
fn httm() {
    let Some(bench) = bench() else { return };
    assert!(bench.probed("zfs -V").status.success());
    // It reads the table of mounts: the source is the dataset. (The type is fuse.cenote, see SHORTCOMINGS.md.)
    let table = fs::read_to_string("/proc/mounts").unwrap();
    let at = bench.at("mnt/tank/a").display().to_string();
    let mount = table.lines().find(|line| line.split(' ').nth(1) == Some(&at)).unwrap();
    assert_eq!(mount.split(' ').next(), Some("tank/a"));
    // Where the type says nothing, a directory is one of ZFS if it has these.
    let snapshots = fs::read_dir(bench.at("mnt/tank/a/.zfs/snapshot")).unwrap();
    let mut names: Vec<_> =
        snapshots.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["one", "two"]);
    let (then, now) = ("mnt/tank/a/.zfs/snapshot/one/one", "mnt/tank/a/one");
    let times = [then, now].map(|name| fs::metadata(bench.at(name)).unwrap().modified().unwrap());
    assert_eq!(times[0], times[1]);
    // Anything on standard error is a failure.
    for line in [
        "zfs snapshot tank/a@snap_httm tank/a/b@snap_httm",
        "zfs rollback -r tank/a@snap_httm",
        "zfs destroy -r tank/a@snap_httm",
    ] {
        assert_eq!(bench.complaint(line), (String::new(), 0), "{line}");
    }
    bench.does(&["zfs allow -u 1 snapshot,mount tank/a"]);
    let said = String::from_utf8(bench.probed("zfs allow tank/a").stdout).unwrap();
    assert!(said.contains("mount,snapshot"), "{said}");
    fs::write(bench.at("mnt/tank/a/three"), "new").unwrap();
    fs::remove_file(bench.at("mnt/tank/a/one")).unwrap();
    fs::rename(bench.at("mnt/tank/a/two"), bench.at("mnt/tank/a/moved")).unwrap();
    let said = String::from_utf8(bench.probed("zfs diff -H -t -h tank/a@two").stdout).unwrap();
    let at = bench.at("mnt/tank/a").display().to_string();
    for (kind, paths) in [
        ("+", vec![format!("{at}/three")]),
        ("-", vec![format!("{at}/one")]),
        ("R", vec![format!("{at}/two"), format!("{at}/moved")]),
    ] {
        let mut found = said.lines().map(|line| line.split('\t').collect::<Vec<_>>());
        let line = found.find(|fields| fields[1] == kind).unwrap_or_else(|| panic!("{said}"));
        let (seconds, nanoseconds) = line[0].split_once('.').unwrap();
        assert!(is_number(seconds) && is_number(nanoseconds), "{said}");
        assert_eq!(line[2..], paths.iter().map(String::as_str).collect::<Vec<_>>()[..]);
    }
}

#[test]
fn pyznap() {
    let Some(bench) = bench() else { return };
    let listed = bench.fields("zfs list -H -r -d 1 -t filesystem,volume -o name,type tank", 2);
    assert_eq!(listed[1][..], ["tank/a", "filesystem"]);
    bench.does(&["zfs set pyznap:snap=yes tank/a"]);
    let get = "zfs get -H -p -r -t filesystem,volume -s local,received,inherited pyznap:snap,pyznap:clean tank";
    let set: Vec<Vec<String>> = bench.fields(get, 4);
    assert_eq!(set[0][..], ["tank/a", "pyznap:snap", "yes", "local"]);
    assert_eq!(set[1][..], ["tank/a/b", "pyznap:snap", "yes", "inherited from tank/a"]);
    let snapshots = bench.fields("zfs get -H -p -r -d 1 -t snapshot name,creation tank/a", 4);
    assert!(snapshots.len() == 4 && is_number(&snapshots[1][2]), "{snapshots:?}");
    for line in ["zfs send -nvP tank/a@one", "zfs send -nvP -I tank/a@one tank/a@two"] {
        let said = String::from_utf8(bench.probed(line).stdout).unwrap();
        let last = said.lines().last().unwrap();
        assert!(is_number(last.rsplit('\t').next().unwrap()), "{said}");
    }
    bench.does(&[
        "zfs snapshot -r -o pyznap:type=hourly tank/a@pyznap_2026-11-28_00:00:00_hourly",
        "zfs hold pyznap tank/a@one",
        "zfs inherit -r pyznap:snap tank/a",
    ]);
    // `cannot` what `of whom`: the reason.
    for (line, what, whom, reason) in [
        ("zfs snapshot tank/a@one", "create snapshot", "'tank/a@one'", "dataset already exists"),
        ("zfs create tank/a", "create", "'tank/a'", "dataset already exists"),
        ("zfs destroy -v -f -R tank/no", "open", "'tank/no'", "dataset does not exist"),
        (
            "zfs hold pyznap tank/a@one",
            "hold snapshot",
            "'tank/a@one'",
            "tag already exists on this dataset",
        ),
        ("zfs destroy tank/a@one", "destroy snapshot", "tank/a@one", "dataset is busy"),
    ] {
        let (said, code) = bench.complaint(line);
        let first = said.lines().next().unwrap_or_default();
        assert_eq!(
            (first, code),
            (format!("cannot {what} {whom}: {reason}").as_str(), 1),
            "{line}"
        );
    }
    let (said, code) = bench.complaint("zfs release no tank/a@one");
    assert!(code == 1 && said.ends_with(": no such tag on this dataset\n"), "{said}");
    let stream = bench.stream(&["-p", "tank/a@one"]);
    bench.received(&["-e", "-F", "-u", "-s", "tank/a/b"], &stream);
    bench.does(&["zfs destroy -v -d tank/a@two", "zfs release pyznap tank/a@one"]);
}

#[test]
fn modules_of_ansible() {
    let Some(bench) = bench() else { return };
    // zfs: the version, what is there, what is set.
    let version = String::from_utf8(bench.probed("zpool get version tank").stdout).unwrap();
    let third = version.lines().last().unwrap().split_whitespace().nth(2);
    assert!(["-", "5000"].contains(&third.unwrap()), "{version}");
    assert!(bench.probed("zfs list -t all tank/a").status.success());
    assert_eq!(bench.complaint("zfs list -t all tank/no").1, 1);
    bench.does(&[
        "zfs create -p -o compression=lz4 tank/x/y",
        "zfs create -p -V 1M -b 8k tank/x/volume",
        "zfs snapshot tank/x/y@s",
        "zfs clone -p -o atime=off tank/x/y@s tank/z/clone",
        "zfs set quota=50M tank/x/y",
    ]);
    let sources = bench.fields("zfs get -H -p -o property,source all tank/x/y", 2);
    let own: Vec<&str> =
        sources.iter().filter(|line| line[1] == "local").map(|line| line[0].as_str()).collect();
    assert_eq!(own, ["quota", "compression"]);
    assert_eq!(
        bench.first_column("zfs get -H -p -o value quota tank/x/y"),
        [(50 << 20).to_string()]
    );
    // zfs_facts and zpool_facts: three fields a line, whatever is in them.
    for line in [
        "zfs get -H -o name,property,value all tank/x/y",
        "zfs get -H -p -r -d 2 -t all -o name,property,value all tank",
        "zfs get -H -p -r -t snapshot -o name,property,value used,creation tank",
        "zpool get -H -p -o name,property,value all tank",
        "zpool get -H -o name,property,value all",
    ] {
        assert!(!bench.fields(line, 3).is_empty());
    }
    bench.does(&["zfs destroy -R tank/x/y"]);
    assert_eq!(bench.complaint("zfs list tank/z/clone").1, 1);
    // zfs_delegate_admin: headings, and rows below them.
    bench.does(&[
        "zfs allow -l -u 1 destroy tank/a",
        "zfs allow -d -g 1 send tank/a",
        "zfs allow -ld -e mount,create tank/a",
    ]);
    let said = String::from_utf8(bench.probed("zfs allow tank/a").stdout).unwrap();
    let mut heading = "";
    let mut found = Vec::new();
    for line in said.lines().skip(1) {
        match line.strip_prefix('\t') {
            Some(row) => {
                let words: Vec<&str> = row.split(' ').collect();
                found.push((heading, words[0], *words.last().unwrap()));
            }
            None => heading = line,
        }
    }
    assert_eq!(
        found,
        [
            ("Local permissions:", "user", "destroy"),
            ("Descendent permissions:", "group", "send"),
            ("Local+Descendent permissions:", "everyone", "create,mount"),
        ]
    );
    bench.does(&[
        "zfs unallow -r -l -u 1 tank/a",
        "zfs unallow -ld -e tank/a",
        "zfs unallow -d -g 1 tank/a",
    ]);
    assert_eq!(String::from_utf8(bench.probed("zfs allow tank/a").stdout).unwrap(), "");
    // zpool: what it consists of.
    let other = &bench.devices(2)[1];
    bench.does(&[&format!("zpool add -n -o ashift=12 tank {other}")]);
    let status = String::from_utf8(bench.probed("zpool status -P -L tank").stdout).unwrap();
    let (_, config) = status.split_once("config:").unwrap();
    let devices: Vec<&str> = config
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|word| word.starts_with('/'))
        .collect();
    assert_eq!(devices, [bench.devices(1)[0].as_str()]);
    let set = bench.fields("zpool get -H -o property,value all tank", 2);
    assert!(set.iter().any(|line| line[0] == "health" && line[1] == "ONLINE"));
    assert!(bench.probed("zpool list tank").status.success());
    assert_eq!(bench.complaint("zpool list none").1, 1);
}

/// The snapshots of a pool are listed if that pool says so.
#[test]
fn snapshots_are_listed_by_the_pool() {
    let Some(bench) = bench() else { return };
    let root = bench.at("mnt").display().to_string();
    bench.cenote(&["zpool", "create", "-R", &root, "back", &bench.devices(2)[1]]);
    bench.does(&["zfs snapshot back@x", "zpool set listsnapshots=on back"]);
    let list = |operands: &str| bench.first_column(&format!("zfs list -H -o name {operands}"));
    assert_eq!(list(""), ["back", "back@x", "tank", "tank/a", "tank/a/b"]);
    assert_eq!(list("-r back tank"), ["back", "back@x", "tank", "tank/a", "tank/a/b"]);
    assert_eq!(list("tank back"), ["back", "tank"]);
    assert_eq!(list("-r tank"), ["tank", "tank/a", "tank/a/b"]);
    assert_eq!(list("-t filesystem"), ["back", "tank", "tank/a", "tank/a/b"]);
    assert_eq!(list("tank/a@one"), ["tank/a@one"]);
    bench.does(&["zpool set listsnapshots=off back", "zpool export back"]);
}
