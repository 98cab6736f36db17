//! `zfs send`: what it writes, says and refuses; what comes out is judged by OpenZFS's `zstream`.
//!
//! Invariant: a stream counts as good only if `zstream` finds all of its checksums right.

use std::fs::{self, File};
use std::process::{Command, Stdio};

use super::{Bench, noise};

impl Bench {
    /// Sends into a file; standard error.
    fn send(&self, arguments: &[&str], into: &str) -> (bool, String) {
        let file = File::create(self.at(into)).unwrap();
        let arguments = [&["zfs", "send"], arguments].concat();
        let mut command = self.command(&arguments);
        let output = command.stdout(file).stderr(Stdio::piped()).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    fn sent(&self, arguments: &[&str], into: &str) -> String {
        let (well, said) = self.send(arguments, into);
        let log = fs::read_to_string(self.at("run/tank.log")).unwrap_or_default();
        assert!(well, "{arguments:?}: {said}\n{log}");
        self.judge_stream(into);
        said
    }

    /// What `zstream dump` says of it, if there is one.
    fn judge_stream(&self, name: &str) -> String {
        let found = Command::new("zstream").args(["dump", "-v"]).arg(self.at(name)).output();
        let Ok(output) = found else {
            eprintln!("zstream is not installed: not asked");
            return String::new();
        };
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let complaints = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && complaints.is_empty(), "{name}: {complaints}");
        said
    }

    fn size(&self, name: &str) -> u64 {
        fs::metadata(self.at(name)).unwrap().len()
    }
}

fn filled() -> Option<Bench> {
    let (bench, devices) = Bench::mounting(1)?;
    bench.create_with(&["-O", "compression=lz4", "-O", "recordsize=1M"], &[&devices[0]]);
    bench.cenote(&["zfs", "create", "-o", "com.example:note=hello", "tank/a"]);
    bench.cenote(&["zfs", "create", "tank/a/below"]);
    fs::write(bench.at("mnt/tank/a/small"), "a few bytes").unwrap();
    fs::write(bench.at("mnt/tank/a/large"), vec![7; 5 << 20]).unwrap();
    bench.cenote(&["zfs", "snapshot", "-r", "tank@one"]);
    fs::write(bench.at("mnt/tank/a/more"), vec![8; 1 << 20]).unwrap();
    fs::remove_file(bench.at("mnt/tank/a/small")).unwrap();
    bench.cenote(&["zfs", "snapshot", "-r", "tank@two"]);
    bench.cenote(&["zfs", "snapshot", "-r", "tank@three"]);
    bench.cenote(&["zfs", "bookmark", "tank/a@one", "tank/a#mark"]);
    Some(bench)
}

#[test]
fn streams_are_good_and_lines_are_openzfs_lines() {
    let Some(bench) = filled() else { return };
    bench.sent(&["tank/a@one"], "full");
    bench.sent(&["-Lec", "tank/a@one"], "packed");
    assert!(bench.size("full") > 5 << 20 && bench.size("packed") < 1 << 20);
    bench.sent(&["-i", "@one", "tank/a@two"], "since");
    bench.sent(&["-i", "tank/a#mark", "tank/a@two"], "marked");
    assert_eq!(fs::read(bench.at("since")).unwrap(), fs::read(bench.at("marked")).unwrap());
    bench.sent(&["-I", "one", "tank/a@three"], "all");
    bench.sent(&["-p", "tank/a@three"], "with");
    bench.sent(&["-R", "tank@three"], "tree");
    let told = bench.judge_stream("tree");
    if !told.is_empty() {
        let streams = told.matches("hdrtype = 1").count();
        assert_eq!((streams, told.matches("hdrtype = 2").count()), (9, 1), "{told}");
        assert!(told.contains("com.example:note = hello"), "{told}");
    }

    let size = |line: &str| -> u64 {
        let number = line.rsplit('\t').next().unwrap();
        number.trim().parse().unwrap_or_else(|_| panic!("{line}"))
    };
    let said = bench.cenote(&["zfs", "send", "-nvP", "tank/a@one"]);
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with("full\ttank/a@one\t") && lines[1].starts_with("size\t"), "{said}");
    assert!(size(lines[0]) > 5 << 20 && size(lines[0]) == size(lines[1]), "{said}");
    let said = bench.cenote(&["zfs", "send", "-nP", "-i", "@one", "tank/a@two"]);
    assert!(said.starts_with("incremental\tone\ttank/a@two\t"), "{said}");
    let said = bench.cenote(&["zfs", "send", "-nv", "-i", "#mark", "tank/a@two"]);
    assert!(said.starts_with("send from tank/a#mark to tank/a@two"), "{said}");
    assert!(said.lines().last().unwrap().starts_with("total estimated size is "), "{said}");
    let said = bench.sent(&["-v", "tank/a@one"], "told");
    assert!(said.starts_with("full send of tank/a@one estimated size is 5."), "{said}");
    assert!(said.contains("TIME        SENT   SNAPSHOT tank/a@one"), "{said}");
}

#[test]
fn what_is_sent_raw_is_sealed_whoever_has_it_open() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    fs::write(bench.at("key"), [7; 32]).unwrap();
    let location = format!("keylocation=file://{}", bench.at("key").display());
    let options = ["-o", "encryption=on", "-o", "keyformat=raw", "-o", &location];
    bench.cenote(&[&["zfs", "create"], &options[..], &["tank/e"]].concat());
    for number in 0..50 {
        fs::write(bench.at(&format!("mnt/tank/e/file{number}")), vec![number; 9000]).unwrap();
    }
    bench.cenote(&["zfs", "snapshot", "tank/e@one"]);
    // All of it is in the cache, decrypted.
    bench.manifest();
    bench.sent(&["-w", "tank/e@one"], "open");
    bench.sent(&["tank/e@one"], "plain");
    bench.cenote(&["zpool", "export", "tank"]);
    bench.import();
    let (well, said) = bench.send(&["tank/e@one"], "nothing");
    let words = "warning: cannot send 'tank/e@one': dataset key must be loaded\n";
    assert_eq!((well, said.as_str()), (false, words));
    bench.sent(&["-w", "tank/e@one"], "closed");
    let (open, closed) =
        (fs::read(bench.at("open")).unwrap(), fs::read(bench.at("closed")).unwrap());
    assert!(open == closed, "what is sent raw depends on who has it open");
}

#[test]
fn what_cannot_be_sent_is_refused_in_openzfs_words() {
    let Some(bench) = filled() else { return };
    for (arguments, words) in [
        (&["tank/a@no"][..], "WARNING: could not send tank/a@no: does not exist\n"),
        (
            &["-i", "@no", "tank/a@two"],
            "WARNING: could not send tank/a@two:\nincremental source (tank/a@no) does not exist\n",
        ),
        (
            &["-i", "@three", "tank/a@two"],
            "WARNING: could not send tank/a@two:\nincremental source (tank/a@three) is not earlier \
             than it\n",
        ),
        (&["tank/no@x"], "cannot open 'tank/no': dataset does not exist\n"),
        (
            &["-X", "tank/a", "tank@two"],
            "Cannot specify dataset exclusion (-X) on a non-recursive send.\n",
        ),
        (&["-t", "1-0-0-"], "cannot resume send: resume token is corrupt"),
    ] {
        let (well, said) = bench.send(arguments, "nothing");
        assert!(!well && said.starts_with(words), "{arguments:?}: {said}");
        assert_eq!(bench.size("nothing"), 0, "{arguments:?}");
    }
}

#[test]
fn what_is_sent_stays_and_who_stops_reading_ends_it() {
    let Some(bench) = filled() else { return };
    fs::write(bench.at("mnt/tank/a/huge"), vec![9; 40 << 20]).unwrap();
    bench.cenote(&["zfs", "snapshot", "tank/a@huge"]);
    let mut command = bench.command(&["zfs", "send", "tank/a@huge"]);
    let mut sending = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The pipe is full before the stream ends.
    let mut first = [0; 312];
    let mut stdout = sending.stdout.take().unwrap();
    std::io::Read::read_exact(&mut stdout, &mut first).unwrap();
    for options in [&["zfs", "destroy"][..], &["zfs", "destroy", "-d"]] {
        let said = bench.refused(&[options, &["tank/a@huge"]].concat());
        assert!(said.contains("dataset is busy"), "{said}");
    }
    assert_eq!(bench.value("defer_destroy", "tank/a@huge"), "off");
    let export = bench.output(&["zpool", "export", "tank"]);
    assert!(String::from_utf8_lossy(&export.stderr).contains("pool is busy"));
    drop(stdout);
    let output = sending.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("Broken pipe"), "{said}");
    bench.cenote(&["zfs", "destroy", "tank/a@huge"]);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn what_was_cloned_in_between_goes_along() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    bench.cenote(&["zfs", "create", "-p", "tank/t/a"]);
    let file = |dataset: &str| bench.at("mnt/tank").join(dataset).join("file");
    fs::write(file("t/a"), noise(200_000, 1)).unwrap();
    bench.cenote(&["zfs", "snapshot", "-r", "tank/t@one"]);
    bench.received(&["-u", "tank/copy"], &bench.stream(&["-R", "tank/t@one"]));
    for (seed, name) in [(2, "passed-over"), (3, "cloned"), (4, "later")] {
        fs::write(file("t/a"), noise(200_000, seed)).unwrap();
        bench.cenote(&["zfs", "snapshot", &format!("tank/t/a@{name}")]);
    }
    bench.cenote(&["zfs", "clone", "tank/t/a@cloned", "tank/t/clone"]);
    bench.cenote(&["zfs", "snapshot", "-r", "tank/t@two"]);
    let stream = bench.stream(&["-R", "-i", "@one", "tank/t@two"]);
    bench.received(&["-u", "tank/copy"], &stream);
    let names = bench.cenote(&["zfs", "list", "-Hr", "-t", "snapshot", "-o", "name", "tank/copy"]);
    let wanted = ["@one", "@two", "/a@one", "/a@cloned", "/a@two", "/clone@two"];
    let wanted: Vec<String> = wanted.iter().map(|name| format!("tank/copy{name}")).collect();
    assert_eq!(names.lines().collect::<Vec<_>>(), wanted);
    assert_eq!(bench.value("origin", "tank/copy/clone"), "tank/copy/a@cloned");
    bench.cenote(&["zfs", "mount", "-a"]);
    assert!(fs::read(file("copy/a")).unwrap() == noise(200_000, 4));
    assert!(fs::read(file("copy/clone")).unwrap() == noise(200_000, 3));
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}
