//! `zfs send`: what it writes, says and refuses; what comes out is judged by OpenZFS's `zstream`.
//!
//! Invariant: a stream counts as good only if `zstream` finds all of its checksums right.

use std::fs::{self, File};
use std::io::Read;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal};

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
    assert!(said.starts_with("incremental\ttank/a@one\ttank/a@two\t"), "{said}");
    let said = bench.cenote(&["zfs", "send", "-nP", "-I", "@one", "tank/a@three"]);
    assert!(said.starts_with("incremental\tone\ttank/a@two\t"), "{said}");
    let said = bench.cenote(&["zfs", "send", "-nv", "-i", "#mark", "tank/a@two"]);
    assert!(said.starts_with("send from tank/a#mark to tank/a@two"), "{said}");
    assert!(said.lines().last().unwrap().starts_with("total estimated size is "), "{said}");
    let said = bench.sent(&["-v", "tank/a@one"], "told");
    assert!(said.starts_with("full send of tank/a@one estimated size is 5."), "{said}");
    assert!(said.contains("TIME        SENT   SNAPSHOT tank/a@one"), "{said}");
}

#[test]
fn who_asks_how_far_it_is_does_not_end_it() {
    let Some(bench) = filled() else { return };
    bench.sent(&["tank/a@one"], "whole");
    let mut command = bench.command(&["zfs", "send", "tank/a@one"]);
    let mut sends = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stream = sends.stdout.take().unwrap();
    let mut sent = vec![0; 1 << 20];
    // It has begun, and waits for who reads.
    stream.read_exact(&mut sent).unwrap();
    let pid = Pid::from_child(&sends);
    rustix::process::kill_process(pid, Signal::USR1).unwrap();
    stream.read_to_end(&mut sent).unwrap();
    assert!(sends.wait().unwrap().success());
    assert!(sent == fs::read(bench.at("whole")).unwrap());
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

/// The words are those of OpenZFS 2.1.11, as it said them.
#[test]
fn what_cannot_be_sent_is_refused_in_openzfs_words() {
    let Some(bench) = filled() else { return };
    bench.cenote(&["zfs", "create", "tank/b"]);
    bench.cenote(&["zfs", "snapshot", "tank/b@x", "tank/a@only"]);
    let unopened = |name: &str| format!("cannot open '{name}': dataset does not exist\n");
    let warned = |why: &str| format!("warning: cannot send 'tank/a@two': {why}\n");
    let of_several = |why: &str| format!("WARNING: could not send tank/a@two:\n{why}\n");
    let later = "not an earlier snapshot from the same fs";
    let assumed = "Warning: incremental source didn't specify type, assuming snapshot. Use '@' or '#' prefix \
                   to avoid ambiguity.\n";
    for (arguments, words) in [
        (&["tank/a@no"][..], unopened("tank/a@no")),
        (&["tank/no@x"], unopened("tank/no@x")),
        (&["-p", "tank/a@no"], unopened("tank/a@no")),
        (&["-nv", "tank/a@no"], unopened("tank/a@no")),
        (&["-i", "@no", "tank/a@two"], unopened("tank/a@no")),
        (&["-i", "tank/no@x", "tank/a@two"], unopened("tank/no@x")),
        (&["-i", "#no", "tank/a@two"], warned("incremental source (tank/a#no) does not exist")),
        (&["-i", "@three", "tank/a@two"], warned(later)),
        (&["-i", "@two", "tank/a@two"], warned(later)),
        (&["-i", "tank/b@x", "tank/a@two"], warned(later)),
        (&["-i", "no", "tank/a@two"], format!("{assumed}{}", unopened("tank/a@no"))),
        (
            &["-i", "", "tank/a@two"],
            format!("{assumed}cannot open 'tank/a@': empty component or misplaced '@' or '#' delimiter in name\n"),
        ),
        (&["-I", "@no", "tank/a@two"], unopened("tank/a@no")),
        (&["-I", "no", "tank/a@two"], unopened("tank/a@no")),
        (&["-I", "@one", "tank/a@no"], unopened("tank/a@no")),
        (&["-I", "", "tank/a@two"], "cannot send 'tank/a': zero-length incremental source\n".into()),
        (&["-I", "@three", "tank/a@two"], of_several("incremental source (tank/a@three) does not exist")),
        (
            &["-I", "@two", "tank/a@two"],
            of_several("incremental source (tank/a@two) is not earlier than it"),
        ),
        (
            &["-I", "#mark", "tank/a@two"],
            "Error: multiple snapshots cannot be sent from a bookmark.\n".into(),
        ),
        (&["-R", "tank/a@no"], unopened("tank/a@no")),
        (&["-R", "tank/no@x"], unopened("tank/no")),
        (&["-R", "-i", "@no", "tank/a@two"], unopened("tank/a@no")),
        (
            &["-R", "tank/a"],
            "Error: Unsupported flag with filesystem or bookmark.\n".into(),
        ),
        (
            &["-R", "tank/a@only"],
            "cannot send tank/a@only recursively: snapshot tank/a/below@only does not exist\nwarning: cannot send \
             'tank/a@only': backup failed\n"
                .into(),
        ),
        (
            &["-X", "tank/a", "tank@two"],
            "Cannot specify dataset exclusion (-X) on a non-recursive send.\n".into(),
        ),
    ] {
        let (well, said) = bench.send(arguments, "nothing");
        assert_eq!((well, said), (false, words), "{arguments:?}");
        assert_eq!(bench.size("nothing"), 0, "{arguments:?}");
    }
    for (arguments, words) in [
        (&["-t", "1-0-0-"][..], "cannot resume send: resume token is corrupt"),
        (
            &["-s", "tank/a@two"],
            "skip-missing flag can only be used in conjunction with replicate\nusage:",
        ),
        (
            &["-I", "tank/b@x", "tank/a@two"],
            "incremental source must be in same filesystem\nusage:",
        ),
    ] {
        let (well, said) = bench.send(arguments, "nothing");
        assert!(!well && said.starts_with(words), "{arguments:?}: {said}");
    }
    assert_eq!(bench.sent(&["-i", "one", "tank/a@two"], "since"), assumed);
}

/// Properties and holds go with any one stream: since a bookmark, and since what a clone comes from.
#[test]
fn properties_and_holds_go_with_streams_since_bookmarks_and_origins() {
    let Some(bench) = filled() else { return };
    bench.cenote(&["zfs", "hold", "keep", "tank/a@two"]);
    bench.cenote(&["zfs", "clone", "tank/a@two", "tank/c"]);
    fs::write(bench.at("mnt/tank/c/own"), "of the clone").unwrap();
    fs::remove_file(bench.at("mnt/tank/c/large")).unwrap();
    bench.cenote(&["zfs", "set", "com.example:note=clone", "tank/c"]);
    bench.cenote(&["zfs", "snapshot", "tank/c@c"]);
    bench.received(&["tank/copy"], &bench.stream(&["tank/a@one"]));
    let said = bench.cenote(&["zfs", "send", "-nvp", "-i", "#mark", "tank/a@two"]);
    assert!(said.starts_with("send from tank/a#mark to tank/a@two"), "{said}");
    bench.sent(&["-p", "-i", "#mark", "tank/a@two"], "marked");
    let marked = fs::read(bench.at("marked")).unwrap();
    bench.received(&["tank/copy"], &marked);
    let note = |of: &str| bench.value("com.example:note", of);
    assert_eq!(note("tank/copy"), "hello");
    // With holds and what was received only.
    bench.cenote(&["zfs", "rollback", "-r", "tank/copy@one"]);
    bench.received(&["tank/copy"], &bench.stream(&["-h", "-i", "#mark", "tank/a@two"]));
    let held = bench.cenote(&["zfs", "holds", "-H", "tank/copy@two"]);
    assert!(held.starts_with("tank/copy@two\tkeep\t"), "{held}");
    bench.cenote(&["zfs", "bookmark", "tank/copy@one", "tank/copy#mark"]);
    bench.received(&["tank/again"], &bench.stream(&["-b", "tank/copy@one"]));
    bench.received(&["tank/again"], &bench.stream(&["-b", "-i", "#mark", "tank/copy@two"]));
    assert_eq!(note("tank/again"), "hello");
    // The clone since a snapshot that is older than what it was cloned from, by both names.
    for from in ["tank/a@one", "tank/a#mark"] {
        for options in [&[][..], &["-p"]] {
            bench.sent(&[options, &["-i", from, "tank/c@c"]].concat(), "clone");
            let stream = fs::read(bench.at("clone")).unwrap();
            assert!(stream.len() > 1 << 20 && stream.len() < 3 << 20, "{}", stream.len());
            bench.received(&["tank/d"], &stream);
            assert!(
                ["tank/copy@one", "tank/again@one", "tank/a@one"]
                    .contains(&&*bench.value("origin", "tank/d"))
            );
            assert_eq!(note("tank/d"), if options.is_empty() { "-" } else { "clone" });
            let equal = Command::new("diff")
                .arg("-r")
                .args([bench.at("mnt/tank/c"), bench.at("mnt/tank/d")])
                .status();
            assert!(equal.unwrap().success());
            bench.cenote(&["zfs", "destroy", "-r", "tank/d"]);
        }
    }
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
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

/// What a filesystem holds now is sent without a snapshot of it, also on from where a receive was cut off.
#[test]
fn a_filesystem_itself_is_sent() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    bench.two_streams();
    let root = bench.at("mnt/tank/a");
    fs::write(root.join("later"), noise(400_000, 3)).unwrap();
    let said = bench.refused(&["zfs", "send", "tank/a"]);
    let busy = "target is busy; if a filesystem, it must not be mounted";
    assert_eq!(said, format!("warning: cannot send 'tank/a': {busy}\n"));
    let said = bench.refused(&["zfs", "send", "-p", "tank/a"]);
    assert_eq!(said, "Error: Unsupported flag with filesystem or bookmark.\n");
    bench.cenote(&["zfs", "unmount", "tank/a"]);
    let names = bench.names();
    let said = bench.sent(&["-v", "tank/a"], "whole");
    assert!(said.starts_with("full send of tank/a estimated size is "), "{said}");
    bench.sent(&["-i", "@two", "tank/a"], "more");
    assert!(bench.judge_stream("more").contains("toname = tank/a@--head--"));
    assert_eq!(bench.names(), names);
    let whole = fs::read(bench.at("whole")).unwrap();
    bench.received(&["tank/b"], &whole);
    bench.received(&["tank/c"], &bench.stream(&["-R", "tank/a@two"]));
    bench.received(&["tank/c"], &fs::read(bench.at("more")).unwrap());
    let output = bench.receive(&["-s", "tank/d"], &whole[..500_000]);
    assert!(!output.status.success());
    let token = bench.value("receive_resume_token", "tank/d");
    bench.received(&["-s", "tank/d"], &bench.stream(&["-t", &token]));
    // What an order has left whose process died goes when the pool is opened the next time.
    let mut left = bench.command(&["zfs", "send", "tank/a"]);
    let mut left = left.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    while !bench.names().contains("tank/a@zfs-send-") {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    bench.kill();
    left.kill().unwrap();
    left.wait().unwrap();
    bench.import();
    assert!(!bench.names().contains("zfs-send"), "{}", bench.names());
    // Where nothing can be changed, it is read itself.
    bench.cenote(&["zpool", "export", "tank"]);
    let (place, mnt) = (bench.at("d"), bench.at("mnt"));
    let (place, mnt) = (place.display().to_string(), mnt.display().to_string());
    let options = ["-N", "-o", "readonly=on", "-d", &place, "-R", &mnt];
    bench.cenote(&[&["zpool", "import"], &options[..], &["tank"]].concat());
    let still = bench.stream(&["tank/a"]);
    assert_eq!(still.len(), whole.len());
    bench.sent(&["-i", "@two", "tank/a"], "more still");
    assert!(bench.judge_stream("more still").contains("toname = tank/a@--head--"));
    let said = bench.cenote(&["zfs", "diff", "-H", "tank/a@two", "tank/a"]);
    assert!(said.contains("+\t") && said.contains("/later\n"), "{said}");
    bench.cenote(&["zpool", "export", "tank"]);
    bench.import();
    bench.received(&["tank/e"], &still);
    bench.received(&["tank/f"], &bench.stream(&["-R", "tank/a@two"]));
    bench.received(&["tank/f"], &fs::read(bench.at("more still")).unwrap());
    for copy in ["b", "c", "d", "e", "f"] {
        let place = bench.at("mnt/tank").join(copy);
        assert!(fs::read(place.join("file")).unwrap() == noise(500_000, 2), "{copy}");
        assert!(fs::read(place.join("later")).unwrap() == noise(400_000, 3), "{copy}");
        assert_eq!(
            bench.value("guid", &format!("tank/{copy}@--head--")),
            bench.value("guid", "tank/a")
        );
    }
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}
