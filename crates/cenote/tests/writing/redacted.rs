//! `zfs redact`, redacted streams, and what is received of them.
//!
//! Invariant: what a redaction snapshot does not have is in no byte of the stream.

use std::fs;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

use super::{Bench, noise};

const BLOCK: usize = 4096;

impl Bench {
    /// Sends into a file, and receives that.
    fn through_file(&self, send: &[&str], receive: &[&str]) -> (Vec<u8>, Result<(), String>) {
        let sent = self.output(&[&["zfs", "send"], send].concat());
        assert!(sent.status.success(), "{send:?}: {}", String::from_utf8_lossy(&sent.stderr));
        let file = self.at("stream");
        fs::write(&file, &sent.stdout).unwrap();
        let received = self
            .command(&[&["zfs", "receive"], receive].concat())
            .stdin(Stdio::from(fs::File::open(&file).unwrap()))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&received.stderr).into_owned();
        (sent.stdout, if received.status.success() { Ok(()) } else { Err(said) })
    }
}

#[test]
fn what_is_redacted_is_not_sent() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    bench.cenote(&["zfs", "create", "-o", "recordsize=4k", "-o", "compression=off", "tank/a"]);
    let root = bench.at("mnt/tank/a");
    let (secret, open) = (noise(16 * BLOCK, 1), noise(10 * BLOCK, 2));
    fs::write(root.join("secret"), &secret).unwrap();
    fs::write(root.join("open"), &open).unwrap();
    fs::write(root.join("gone"), noise(3 * BLOCK, 3)).unwrap();
    bench.cenote(&["zfs", "snapshot", "tank/a@one"]);
    for (clone, blocks) in [("x", [4_u64, 5, 9]), ("y", [5, 9, 12])] {
        let name = format!("tank/{clone}");
        bench.cenote(&["zfs", "clone", "tank/a@one", &name]);
        let place = bench.at("mnt/tank").join(clone);
        let file = fs::File::options().write(true).open(place.join("secret")).unwrap();
        for block in blocks {
            file.write_all_at(&noise(BLOCK, 77), block * BLOCK as u64).unwrap();
        }
        fs::remove_file(place.join("gone")).unwrap();
        drop(file);
        bench.cenote(&["zfs", "snapshot", &format!("{name}@r")]);
    }
    let said = bench.refused(&["zfs", "redact", "tank/a@one", "a#b", "tank/x@r"]);
    assert_eq!(said, "redaction bookmark name must not contain '#'\n");
    let said = bench.refused(&["zfs", "redact", "tank/a@no", "book", "tank/x@r"]);
    assert_eq!(said, "provided snapshot tank/a@no does not exist\n");
    bench.cenote(&["zfs", "create", "tank/other"]);
    bench.cenote(&["zfs", "snapshot", "tank/other@r"]);
    let said = bench.refused(&["zfs", "redact", "tank/a@one", "book", "tank/other@r"]);
    assert_eq!(said, "redaction snapshot must be descendent of snapshot being redacted\n");
    bench.cenote(&["zfs", "redact", "tank/a@one", "book", "tank/x@r", "tank/y@r"]);
    let said = bench.refused(&["zfs", "redact", "tank/a@one", "book", "tank/x@r", "tank/y@r"]);
    assert_eq!(said, "specified redaction bookmark (book) provided already exists\n");
    let (stream, received) = bench.through_file(&["--redact", "book", "tank/a@one"], &["tank/b"]);
    received.unwrap();
    // How much that would be is told to the byte; and about, while it is sent.
    let told = |options: &[&str]| {
        let output = bench.output(&[&["zfs", "send", "-P"], options, &["tank/a@one"]].concat());
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        let size = said.lines().find_map(|line| line.split_once("size\t"));
        size.unwrap().1.parse::<usize>().unwrap()
    };
    assert_eq!(told(&["-n", "--redact", "book"]), stream.len());
    let about = told(&["-n"]) - told(&["--redact", "book"]);
    assert_eq!(about, 5 * (BLOCK + 312 - 128));
    let said = bench.refused(&["zfs", "send", "-n", "--redact", "none", "tank/a@one"]);
    assert!(said.ends_with("nonexistent redaction bookmark provided\n"), "{said}");
    // Blocks that neither has any more are in no place of it; one that one of them has is.
    let block = |number: usize| &secret[number * BLOCK..][..BLOCK];
    let holds = |wanted: &[u8]| stream.windows(BLOCK).any(|part| part == wanted);
    assert!(!holds(block(5)) && !holds(block(9)) && holds(block(4)) && holds(block(12)));
    assert!(!holds(&noise(3 * BLOCK, 3)[..BLOCK]) && holds(&open[..BLOCK]));
    if let Ok(dump) = Command::new("zstream").args(["dump", "-v"]).arg(bench.at("stream")).output()
    {
        let text = String::from_utf8_lossy(&dump.stdout);
        let at = text.lines().filter(|line| line.starts_with("REDACT ")).count();
        assert_eq!(at, 3, "{text}");
    }
    let x = bench.value("guid", "tank/x@r");
    assert!(bench.value("redact_snaps", "tank/b").contains(&x));
    assert_eq!(bench.value("mounted", "tank/b"), "no");
    let said = bench.refused(&["zfs", "mount", "tank/b"]);
    let words = "Dataset is not complete, was created by receiving a redacted zfs send stream.";
    assert_eq!(said, format!("cannot mount 'tank/b': {words}\n"));
    bench.cenote(&["zfs", "mount", "-f", "tank/b"]);
    let found = fs::read(bench.at("mnt/tank/b/secret")).unwrap();
    for number in 0..16 {
        let zeros = vec![0; BLOCK];
        let wanted = if [5, 9].contains(&number) { &zeros[..] } else { block(number) };
        assert!(&found[number * BLOCK..][..BLOCK] == wanted, "block {number}");
    }
    assert!(fs::read(bench.at("mnt/tank/b/open")).unwrap() == open);
    bench.cenote(&["zfs", "unmount", "tank/b"]);
    // A stream that counts on what is not there is refused; the redaction snapshot itself fits.
    fs::write(root.join("open"), noise(BLOCK, 9)).unwrap();
    bench.cenote(&["zfs", "snapshot", "tank/a@two"]);
    let (_, refused) = bench.through_file(&["-i", "@one", "tank/a@two"], &["-F", "tank/b"]);
    assert!(refused.unwrap_err().contains("was received redacted"));
    let (_, received) = bench.through_file(&["-i", "tank/a@one", "tank/x@r"], &["tank/c"]);
    received.unwrap();
    assert_eq!(bench.value("redact_snaps", "tank/c"), "-");
    let clone = fs::read(bench.at("mnt/tank/x/secret")).unwrap();
    assert!(fs::read(bench.at("mnt/tank/c/secret")).unwrap() == clone);
    bench.cenote(&["zfs", "destroy", "tank/a#book"]);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

/// A filesystem with a snapshot, two clones that hide parts of its file, and a redaction bookmark; what the file
/// holds.
fn with_secrets() -> Option<(Bench, Vec<u8>)> {
    let (bench, devices) = Bench::mounting(1)?;
    bench.create(&[&devices[0]]);
    bench.cenote(&["zfs", "create", "-o", "recordsize=4k", "-o", "compression=off", "tank/a"]);
    let secret = noise(400 * BLOCK, 1);
    fs::write(bench.at("mnt/tank/a/secret"), &secret).unwrap();
    fs::write(bench.at("mnt/tank/a/open"), noise(40 * BLOCK, 2)).unwrap();
    bench.cenote(&["zfs", "snapshot", "tank/a@one"]);
    for (clone, hidden) in [("x", 20..120), ("y", 100..400)] {
        let name = format!("tank/{clone}");
        bench.cenote(&["zfs", "clone", "tank/a@one", &name]);
        let place = bench.at("mnt/tank").join(clone).join("secret");
        let file = fs::File::options().write(true).open(place).unwrap();
        for block in hidden {
            file.write_all_at(&noise(BLOCK, 77), block * BLOCK as u64).unwrap();
        }
        drop(file);
        bench.cenote(&["zfs", "snapshot", &format!("{name}@r")]);
    }
    bench.cenote(&["zfs", "redact", "tank/a@one", "both", "tank/x@r", "tank/y@r"]);
    bench.cenote(&["zfs", "redact", "tank/a@one", "only", "tank/y@r"]);
    Some((bench, secret))
}

#[test]
fn what_was_cut_off_while_it_was_redacted_goes_on() {
    let Some((bench, secret)) = with_secrets() else { return };
    let whole = bench.stream(&["--redact", "only", "tank/a@one"]);
    let cut = &whole[..whole.len() / 2];
    let output = bench.receive(&["-s", "tank/b"], cut);
    assert!(!output.status.success());
    let token = bench.value("receive_resume_token", "tank/b");
    let said = bench.cenote(&["zfs", "send", "-nv", "-t", &token]);
    let guid = |name: &str| format!("{:#x}", bench.value("guid", name).parse::<u64>().unwrap());
    assert!(said.contains(&format!("\tredact_snaps = {}\n", guid("tank/y@r"))), "{said}");
    // Which bookmark it was is found by its redaction snapshots; the rest of another one is refused.
    let rest = bench.stream(&["-t", &token]);
    assert!(rest.len() < whole.len());
    let block = |number: usize| &secret[number * BLOCK..][..BLOCK];
    let holds = |stream: &[u8], number| stream.windows(BLOCK).any(|part| part == block(number));
    assert!(!(100..400).step_by(30).any(|number| holds(&rest, number)));
    bench.cenote(&["zfs", "destroy", "tank/a#only"]);
    let said = bench.refused(&["zfs", "send", "-t", &token]);
    assert_eq!(said, "cannot resume send: no appropriate redaction bookmark exists\n");
    bench.received(&["-s", "tank/b"], &rest);
    assert_eq!(bench.value("redact_snaps", "tank/b"), bench.value("guid", "tank/y@r"));
    bench.cenote(&["zfs", "mount", "-f", "tank/b"]);
    let found = fs::read(bench.at("mnt/tank/b/secret")).unwrap();
    assert!(found[..100 * BLOCK] == secret[..100 * BLOCK]);
    assert!(found[100 * BLOCK..].iter().all(|byte| *byte == 0));
    assert_eq!(fs::read(bench.at("mnt/tank/b/open")).unwrap(), noise(40 * BLOCK, 2));
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn what_was_redacted_is_sent_later() {
    let Some((bench, mut secret)) = with_secrets() else { return };
    bench.received(&["tank/b"], &bench.stream(&["--redact", "both", "tank/a@one"]));
    bench.received(&["tank/c"], &bench.stream(&["--redact", "only", "tank/a@one"]));
    let file = bench.at("mnt/tank/a/secret");
    let changed = fs::File::options().write(true).open(&file).unwrap();
    for number in [3, 105, 110, 399] {
        let new = noise(BLOCK, 1000 + number as u32);
        changed.write_all_at(&new, (number * BLOCK) as u64).unwrap();
        secret[number * BLOCK..][..BLOCK].copy_from_slice(&new);
    }
    drop(changed);
    fs::write(bench.at("mnt/tank/a/late"), noise(9 * BLOCK, 5)).unwrap();
    bench.cenote(&["zfs", "snapshot", "tank/a@two"]);
    let (stream, received) = bench.through_file(&["-i", "#both", "tank/a@two"], &["tank/b"]);
    received.unwrap();
    assert_eq!(bench.value("redact_snaps", "tank/b"), "-");
    bench.cenote(&["zfs", "mount", "tank/b"]);
    let read = |name: &str| fs::read(bench.at("mnt/tank").join(name)).unwrap();
    assert!(read("b/secret") == secret && read("b/late") == noise(9 * BLOCK, 5));
    assert!(read("b/open") == noise(40 * BLOCK, 2));
    // What both have had is not sent again.
    let block = |number: usize| &secret[number * BLOCK..][..BLOCK];
    let times = |number: usize| stream.windows(BLOCK).filter(|part| *part == block(number)).count();
    for (number, count) in
        [(2, 0), (3, 1), (99, 0), (100, 1), (105, 1), (119, 1), (120, 0), (399, 1)]
    {
        assert_eq!(times(number), count, "block {number}");
    }
    if let Ok(dump) = Command::new("zstream").args(["dump", "-v"]).arg(bench.at("stream")).output()
    {
        let text = String::from_utf8_lossy(&dump.stdout);
        assert!(dump.status.success() && text.contains("redact_from_snaps"), "{text}");
        assert!(!text.contains("REDACT object"), "{text}");
    }
    // A stream that lacks part of what a receiver lacks is refused; so is one that goes on from what is whole.
    let (_, refused) = bench.through_file(&["-i", "#both", "tank/a@two"], &["tank/c"]);
    assert!(refused.unwrap_err().contains("was received redacted"));
    let (stream, received) = bench.through_file(&["-i", "#only", "tank/a@two"], &["tank/c"]);
    received.unwrap();
    bench.cenote(&["zfs", "mount", "tank/c"]);
    assert!(read("c/secret") == secret);
    // It goes on from where it was cut off like any other.
    bench.cenote(&["zfs", "unmount", "tank/c"]);
    bench.cenote(&["zfs", "rollback", "-r", "tank/c@one"]);
    assert!(!bench.receive(&["-s", "tank/c"], &stream[..stream.len() / 2]).status.success());
    let token = bench.value("receive_resume_token", "tank/c");
    bench.received(&["-s", "tank/c"], &bench.stream(&["-t", &token]));
    bench.cenote(&["zfs", "mount", "tank/c"]);
    assert!(read("c/secret") == secret && read("c/late") == noise(9 * BLOCK, 5));
    // A whole stream counts on nothing that may be lacking; clones of what lacks something are not mounted either.
    bench.received(&["-o", "origin=tank/c@one", "tank/g"], &bench.stream(&["tank/a@two"]));
    assert!(read("g/secret") == secret && read("g/late") == noise(9 * BLOCK, 5));
    bench.cenote(&["zfs", "clone", "tank/c@one", "tank/h"]);
    assert_eq!(bench.value("mounted", "tank/h"), "no");
    // Redacted once more: what is hidden now goes, wherever it had come.
    bench.cenote(&["zfs", "clone", "tank/a@two", "tank/z"]);
    let file = fs::File::options().write(true).open(bench.at("mnt/tank/z/secret")).unwrap();
    file.write_all_at(&noise(20 * BLOCK, 78), 110 * BLOCK as u64).unwrap();
    drop(file);
    bench.cenote(&["zfs", "snapshot", "tank/z@r"]);
    bench.cenote(&["zfs", "redact", "tank/a@two", "now", "tank/z@r"]);
    bench.received(&["tank/d"], &bench.stream(&["--redact", "both", "tank/a@one"]));
    bench.received(&["tank/e"], &bench.stream(&["tank/a@one"]));
    let send = ["--redact", "now", "-i", "#both", "tank/a@two"];
    for target in ["tank/d", "tank/e"] {
        let (_, received) = bench.through_file(&send, &[target]);
        received.unwrap();
        bench.cenote(&["zfs", "mount", "-f", target]);
        let found = read(&format!("{}/secret", &target[5..]));
        for number in 0..400 {
            let zeros = vec![0; BLOCK];
            let wanted = if (110..130).contains(&number) { &zeros[..] } else { block(number) };
            assert!(&found[number * BLOCK..][..BLOCK] == wanted, "{target}: block {number}");
        }
    }
    if let Ok(dump) = Command::new("zstream").args(["dump", "-v"]).arg(bench.at("stream")).output()
    {
        let text = String::from_utf8_lossy(&dump.stdout);
        let told: Vec<&str> = text.lines().filter(|line| line.starts_with("REDACT ")).collect();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].ends_with("offset = 450560 length = 81920"), "{told:?}");
    }
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn what_is_redacted_now_is_taken_from_who_had_it() {
    let Some((bench, secret)) = with_secrets() else { return };
    bench.received(&["tank/b"], &bench.stream(&["tank/a@one"]));
    fs::write(bench.at("mnt/tank/a/late"), "later").unwrap();
    bench.cenote(&["zfs", "snapshot", "tank/a@two"]);
    bench.cenote(&["zfs", "clone", "tank/a@two", "tank/z"]);
    let file = fs::File::options().write(true).open(bench.at("mnt/tank/z/secret")).unwrap();
    file.write_all_at(&noise(2 * BLOCK, 9), 7 * BLOCK as u64).unwrap();
    drop(file);
    bench.cenote(&["zfs", "snapshot", "tank/z@r"]);
    bench.cenote(&["zfs", "redact", "tank/a@two", "now", "tank/z@r"]);
    let (_, received) =
        bench.through_file(&["--redact", "now", "-i", "@one", "tank/a@two"], &["tank/b"]);
    received.unwrap();
    bench.cenote(&["zfs", "mount", "-f", "tank/b"]);
    let found = fs::read(bench.at("mnt/tank/b/secret")).unwrap();
    assert!(found[..7 * BLOCK] == secret[..7 * BLOCK] && found[9 * BLOCK..] == secret[9 * BLOCK..]);
    assert!(found[7 * BLOCK..9 * BLOCK].iter().all(|byte| *byte == 0));
}
