//! The whole way from a command line over the socket to a service and back, with a fake service.
//!
//! Invariant: each test has a run directory of its own.

#![allow(clippy::unwrap_used)]

mod fake;

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cenote_control::run_directory;
use cenote_control::server::{self, Ending};
use fake::Fake;

/// What a command printed and how it ended.
struct Ran {
    out: String,
    err: String,
    code: i32,
}

fn run_with(directory: &Path, line: &str, input: &str) -> Ran {
    let mut child = Command::new(env!("CARGO_BIN_EXE_cenote"))
        .args(line.split(' '))
        .env("CENOTE_RUN_DIR", directory)
        .env("TZ", "UTC")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // a command that reads nothing may be gone before it is written to
    drop(child.stdin.take().unwrap().write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    Ran {
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
        code: output.status.code().unwrap(),
    }
}

fn run(directory: &Path, line: &str) -> Ran {
    run_with(directory, line, "")
}

#[track_caller]
fn check(directory: &Path, line: &str, out: &str, err: &str, code: i32) {
    let ran = run(directory, line);
    assert_eq!(ran.out, out, "{line}: {}", ran.err);
    assert_eq!(ran.err, err, "{line}");
    assert_eq!(ran.code, code, "{line}");
}

/// Serves a fake pool as its process would.
fn serve(directory: &Path, name: &str) -> JoinHandle<Ending> {
    serve_fake(directory, name, Arc::new(Fake::new(name)))
}

fn serve_fake(directory: &Path, name: &str, fake: Arc<Fake>) -> JoinHandle<Ending> {
    let files = run_directory::files(directory, name);
    let claim = run_directory::claim(&files, name).unwrap();
    let listener = server::bind(&files.socket).unwrap();
    let server = server::Server::default();
    server.begin(listener, fake).unwrap();
    std::thread::spawn(move || {
        let ending = server.ending();
        std::fs::remove_file(&files.socket).unwrap();
        drop(claim);
        ending
    })
}

#[test]
fn no_pools() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    check(at, "zpool list", "", "no pools available\n", 0);
    check(at, "zpool list -H", "", "", 0);
    check(at, "zpool status", "", "no pools available\n", 0);
    check(at, "zpool status -x", "", "no pools available\n", 0);
    check(at, "zpool iostat", "", "no pools available\n", 1);
    check(at, "zpool history", "", "no pools available\n", 0);
    check(at, "zpool get all", "", "", 0);
    check(at, "zpool status nope", "", "cannot open 'nope': no such pool\n", 1);
    check(at, "zpool list nope", "", "cannot open 'nope': no such pool\n", 1);
    check(at, "zpool export nope", "", "cannot open 'nope': no such pool\n", 1);
    check(at, "zpool history nope", "", "cannot open 'nope': no such pool\n", 1);
    check(at, "zpool list 7x", "", "cannot open '7x': name must begin with a letter\n", 1);
    let none = "Cannot get properties of nope: no such pool available.\n";
    check(at, "zpool get all nope", "", none, 1);
    check(at, "zpool iostat nope", "", "Unable to parse pools/vdevs list.\n\n", 1);
    check(at, "zfs list", "", "no datasets available\n", 0);
    check(at, "zfs list -H", "", "", 0);
    check(at, "zfs get all", "", "", 0);
    check(at, "zfs mount", "", "", 0);
    check(at, "zfs mount -a", "", "", 0);
    check(at, "zfs list nope", "", "cannot open 'nope': dataset does not exist\n", 1);
    check(at, "zfs mount nope", "", "cannot open 'nope': dataset does not exist\n", 1);
    check(at, "zfs load-key nope", "", "cannot open 'nope': dataset does not exist\n", 1);
    let slash = "cannot open 'nope/': trailing slash in name\n";
    check(at, "zfs list nope/", "", slash, 1);
    let empty =
        r#"{"output_version":{"command":"zpool status","vers_major":0,"vers_minor":1},"pools":{}}"#;
    check(at, "zpool status -j", &format!("{empty}\n"), "", 0);
}

#[test]
fn wrong_command_lines() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    for (line, start) in [
        ("zpool list -Z", "invalid option 'Z'\nusage:\n\tlist [-gHLpPv] "),
        ("zpool list -o bogus", "bad property list: invalid property 'bogus'\nusage:\n\tlist "),
        ("zpool get", "missing property argument\nusage:\n\tget [-Hp] "),
        ("zpool export", "missing pool argument\nusage:\n\texport [-af] <pool> ...\n"),
        ("zpool status --json-int", "'--json-int' only works with '-j' option\nusage:\n"),
        ("zpool iostat 0", "interval cannot be zero\nusage:\n\tiostat "),
        ("zpool import -T", "missing argument for 'T' option\nusage:\n\timport [-d dir] [-D]\n"),
        ("zpool import a b c", "too many arguments\nusage:\n\timport "),
        ("zpool bogus", "unrecognized command 'bogus'\nusage: zpool command args ...\n"),
        ("zfs list -o", "invalid option 'o'\nusage:\n\tlist [-Hp] "),
        ("zfs list -d -1", "Depth can not be negative.\nusage:\n"),
        ("zfs list -t bogus", "invalid type 'bogus'\nusage:\n"),
        ("zfs list -s bogus", "invalid property 'bogus'\nusage:\n"),
        ("zfs get -s bogus used", "invalid source 'bogus'\nusage:\n"),
        ("zfs load-key", "Missing dataset argument or -a option\nusage:\n\tload-key [-rn] "),
        ("zfs mount a b", "too many arguments\nusage:\n\tmount [-j]\n"),
        ("zfs bogus", "unrecognized command 'bogus'\nusage: zfs command args ...\n"),
    ] {
        let ran = run(at, line);
        assert!(ran.err.starts_with(start), "{line}: {}", ran.err);
        assert_eq!((ran.out.as_str(), ran.code), ("", 2), "{line}");
    }
    check(at, "zpool trim tank", "", "cannot open 'tank': no such pool\n", 255);
    check(at, "zpool scrub tank", "", "cannot open 'tank': no such pool\n", 1);
    for line in ["zpool import -n tank", "zpool import -X tank"] {
        let ran = run(at, line);
        let start = "-n or -X only meaningful with -F\nusage:\n\timport [-d dir] [-D]\n";
        assert!(ran.err.starts_with(start) && ran.code == 2, "{line}: {}", ran.err);
    }
    std::fs::write(at.join("file"), "").unwrap();
    let said = format!(
        "cannot make directory '{}/file/bin': Not a directory (os error 20)\n",
        at.display()
    );
    check(at, &format!("install-links {}/file/bin", at.display()), "", &said, 1);
    check(at, "zfs program x y", "", "cannot open 'y': No such file or directory\n", 1);
    let help = run(at, "zpool help");
    assert!(help.out.starts_with("usage: zpool command args ...\n") && help.code == 0);
    assert!(run(at, "zfs version").out.starts_with("zfs-2.3"));
}

/// It would be waited for without end.
#[test]
fn a_scrub_that_was_refused_is_not_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let server = serve_fake(at, "tank", Arc::new(Fake::scrubbing("tank")));
    check(at, "zpool scrub -w tank", "", "cannot scrub tank: currently scrubbing\n", 1);
    check(at, "zpool export -f tank", "", "", 0);
    server.join().unwrap();
}

#[test]
fn a_pool_is_listed_and_exported() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let server = serve(at, "tank");
    check(at, "zpool list -Ho name,size,alloc,health", "tank\t1G\t1M\tONLINE\n", "", 0);
    check(at, "zpool list -Hpo size,free tank", "1073741824\t1072693248\n", "", 0);
    let list = "NAME   SIZE  ALLOC   FREE  CKPOINT  EXPANDSZ   FRAG    CAP  DEDUP    HEALTH  ALTROOT\n\
                tank     1G     1M  1023M        -         -     0%     0%  1.00x    ONLINE  -\n";
    check(at, "zpool list", list, "", 0);
    let error = "cannot open 'nope': no such pool\n";
    check(at, "zpool list tank nope", list, error, 0);
    check(at, "zpool status -x", "all pools are healthy\n", "", 0);
    check(at, "zpool status -x tank", "pool 'tank' is healthy\n", "", 0);
    let status = run(at, "zpool status -P tank nope");
    let start =
        "  pool: tank\n state: ONLINE\nstatus: Some supported and requested features are not";
    assert!(status.out.starts_with(start), "{}", status.out);
    assert!(status.out.contains("\nconfig:\n\n\tNAME        STATE"), "{}", status.out);
    assert_eq!((status.err.as_str(), status.code), (error, 1));
    check(at, "zpool get -Ho value feature@lz4_compress tank", "active\n", "", 0);
    check(at, "zpool get -Ho value feature@nope tank", "", "", 0);
    let twice = run(at, "zpool list -Ho name 0.05 3");
    assert_eq!((twice.out.as_str(), twice.code), ("tank\ntank\ntank\n", 0));
    let history = run(at, "zpool history tank");
    assert_eq!(history.out.lines().count(), 1202);
    assert!(history.out.ends_with("2026-11-20.18:19:29 zfs snapshot tank@1199\n\n"));

    check(at, "zpool export tank", "", "cannot unmount '/tank': pool or dataset is busy\n", 1);
    check(at, "zpool export -f tank", "", "", 0);
    assert_eq!(server.join().unwrap(), Ending::Exported);
    check(at, "zpool list", "", "no pools available\n", 0);
}

#[test]
fn datasets_are_listed() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let _server = serve(at, "tank");
    let names = "tank\ntank/locked\ntank/vol\n";
    check(at, "zfs list -Ho name", names, "", 0);
    check(at, "zfs list -H -o name -r tank", names, "", 0);
    check(at, "zfs list -Ho name -d 0 tank", "tank\n", "", 0);
    let all = "tank\ntank@top\ntank/locked\ntank/locked@s1\ntank/locked@s2\ntank/vol\n";
    check(at, "zfs list -t all -Ho name", all, "", 0);
    check(at, "zfs list -t snap -Ho name tank/locked", "tank/locked@s1\ntank/locked@s2\n", "", 0);
    check(at, "zfs list -Ho name -t volume", "tank/vol\n", "", 0);
    check(at, "zfs list -Ho name -S used", "tank/vol\ntank/locked\ntank\n", "", 0);
    check(at, "zfs list -Hpo used,volsize tank/vol", "7168\t33554432\n", "", 0);
    check(at, "zfs list -Ho name tank/locked@s1", "tank/locked@s1\n", "", 0);
    let type_error = "cannot open 'tank/vol': operation not applicable to datasets of this type\n";
    check(at, "zfs list -t filesystem tank/vol", "", type_error, 1);
    let none = "cannot open 'tank/nope': dataset does not exist\n";
    check(at, "zfs list -Ho name tank/nope tank", "tank\n", none, 1);
    let list = "NAME          USED  AVAIL  REFER  MOUNTPOINT\n\
                tank            1K   977K    24K  /tank\n\
                tank/locked     5K   977K    24K  /tank/locked\n\
                tank/vol        7K   977K    24K  -\n";
    check(at, "zfs list", list, "", 0);
    let get = "NAME  PROPERTY          VALUE             SOURCE\n\
               tank  com.example:note  héllo            local\n\
               tank  quota             none              default\n";
    check(at, "zfs get com.example:note,quota tank", get, "", 0);
    check(at, "zfs get -Hp -o value,source quota tank", "0\tdefault\n", "", 0);
    check(at, "zfs get -s received all", "", "", 0);
    let values = run(at, "zfs get -H -o name,value -r -t snapshot used tank");
    assert_eq!(values.out, "tank@top\t8K\ntank/locked@s1\t6K\ntank/locked@s2\t9K\n");
    let json = run(at, "zfs list -j --json-int -o used tank");
    assert!(json.out.contains(r#""used":{"value":1024,"#), "{}", json.out);
}

#[test]
fn keys_and_mounts() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let fake = Arc::new(Fake::new("tank"));
    let changes = fake.changes.clone();
    let _server = serve_fake(at, "tank", fake);
    let create = "zfs create -o encryption=on -o keyformat=passphrase tank/secret";
    let created = run_with(at, create, "right passphrase\n");
    assert_eq!((created.err.as_str(), created.code), ("", 0));
    let told = changes.lock().unwrap().join("\n");
    assert!(told.contains("Secret(16 bytes)"), "{told}");
    let locked = "cannot mount 'tank/locked': encryption key not loaded\n";
    check(at, "zfs mount tank/locked", "", locked, 1);
    let wrong = run_with(at, "zfs load-key tank/locked", "wrong passphrase\n");
    assert_eq!(wrong.err, "Key load error: Incorrect key provided for 'tank/locked'.\n");
    assert_eq!(wrong.code, 255);
    let short = run_with(at, "zfs load-key tank/locked", "short\n");
    assert_eq!(short.err, "Key load error: Passphrase too short (min 8).\n");
    let error = "Key load error: 'tank' is not encrypted.\n";
    check(at, "zfs load-key tank", "", error, 255);
    let right = run_with(at, "zfs load-key -r tank", "right passphrase\n");
    assert_eq!(right.out, "1 / 1 key(s) successfully loaded\n", "{}", right.err);
    check(at, "zfs get -Ho value keystatus tank/locked", "available\n", "", 0);
    let already = "Key load error: Key already loaded for 'tank/locked'.\n";
    check(at, "zfs load-key tank/locked", "", already, 255);
    check(at, "zfs mount tank/locked", "", "", 0);
    check(at, "zfs mount", &format!("{:30}  /tank/locked\n", "tank/locked"), "", 0);
    check(at, "zfs unmount tank/locked", "", "", 0);
    let again = "cannot unmount 'tank/locked': not currently mounted\n";
    check(at, "zfs unmount tank/locked", "", again, 1);
    check(at, "zfs unload-key -a", "1 / 1 key(s) successfully unloaded\n", "", 0);
    let error = "cannot mount 'tank/x': directory is not empty\n";
    check(at, "zfs mount -a", "", error, 1);
    check(at, "zfs mount -av", "Mounting ZFS filesystems: (3/3)\n", error, 1);
}

#[test]
fn a_dead_or_silent_process_hides_no_other_pool() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let _server = serve(at, "tank");
    // dead: a socket nobody listens to, a pid file nobody holds
    let dead = run_directory::files(at, "dead");
    drop(run_directory::claim(&dead, "dead").unwrap());
    drop(UnixListener::bind(&dead.socket).unwrap());
    // silent: it lives and accepts, but never answers
    let silent = run_directory::files(at, "silent");
    let _claim = run_directory::claim(&silent, "silent").unwrap();
    let _listener = UnixListener::bind(&silent.socket).unwrap();

    let start = Instant::now();
    let ran = run(at, "zpool list -Ho name");
    assert!(start.elapsed() < Duration::from_secs(12), "{:?}", start.elapsed());
    assert_eq!((ran.out.as_str(), ran.code), ("tank\n", 1));
    assert!(ran.err.contains("cannot open 'dead': its process"), "{}", ran.err);
    assert!(ran.err.contains("has died"), "{}", ran.err);
    assert!(ran.err.contains("did not answer in 5 seconds"), "{}", ran.err);
    assert!(!run(at, "zpool status -x tank dead").out.contains("all pools are healthy"));

    let cleared = "the process of 'dead' had died; cleared what it left\n";
    check(at, "zpool export dead", "", cleared, 0);
    check(at, "zpool list dead", "", "cannot open 'dead': no such pool\n", 1);
}

/// The program was replaced while the pool was imported.
#[test]
fn a_process_of_another_version_is_named_with_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let files = run_directory::files(at, "old");
    let _claim = run_directory::claim(&files, "old").unwrap();
    let listener = UnixListener::bind(&files.socket).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let answer = br#"{"version":3,"message":{"Done":{"warnings":[]}}}"#;
            let length = u32::try_from(answer.len()).unwrap().to_le_bytes();
            let (mut stream, mut head) = (stream.unwrap(), [0; 4]);
            stream.read_exact(&mut head).unwrap();
            let mut question = vec![0; u32::from_le_bytes(head) as usize];
            stream.read_exact(&mut question).unwrap();
            stream.write_all(&[&length[..], answer].concat()).unwrap();
        }
    });
    let own = std::process::id();
    let program = std::env::current_exe().unwrap().display().to_string();
    for line in ["zpool list old", "zpool export old", "zfs create old/x", "zpool history old"] {
        let ran = run(at, line);
        assert_eq!((ran.out.as_str(), ran.code), ("", 1), "{line}: {}", ran.err);
        for part in [
            format!("cannot open 'old': its process {own} ({program}) speaks version 3 of the"),
            format!("this program ({}) version", env!("CARGO_BIN_EXE_cenote")),
            format!("'kill {own}', which exports it too"),
        ] {
            assert!(ran.err.contains(&part), "{line}: {}", ran.err);
        }
    }
}

/// Commands that change a pool, with what they ask the pool process to do.
#[test]
fn changes_reach_the_pool_process() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let fake = Arc::new(Fake::new("tank"));
    let changes = fake.changes.clone();
    let ending = serve_fake(at, "tank", fake);
    for line in [
        "zfs create tank/new",
        "zfs create -u -o quota=1G -o compression=zstd -o com.x:y=z tank/new",
        "zfs create -s -V 10M -b 16k tank/vol2",
        "zfs create -p tank/a/b/c",
        "zfs destroy tank/vol",
        "zfs destroy -r tank/locked",
        "zfs destroy tank/locked@s1%s2",
        "zfs destroy -d tank@top",
        "zfs rename tank/locked tank/open",
        "zfs rename tank/locked@s1 @first",
        "zfs set atime=off recordsize=1M tank tank/locked",
        "zfs set userquota@root=1G tank",
        "zfs set com.x:y=z tank@top",
        "zfs inherit -r atime tank",
        "zfs snapshot -r -o com.x:y=z tank@now",
        "zfs change-key -i tank/locked",
        "zpool set comment=hello tank",
        "zpool set feature@zstd_compress=enabled tank",
        "zpool sync tank",
        "zpool reguid tank",
    ] {
        let ran = run(at, line);
        changes.lock().unwrap().push(format!("{}{}[{line}: {}]", ran.out, ran.err, ran.code));
    }
    let all: Vec<String> = changes.lock().unwrap().clone();
    insta::assert_snapshot!(all.join("\n"));
    check(at, "zpool destroy tank", "", "", 0);
    assert_eq!(ending.join().unwrap(), Ending::Exported);
}

/// Recorded from OpenZFS 2.1.11 in a virtual machine, on a pool like the fake one.
#[test]
fn changes_are_refused_in_the_words_of_openzfs() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    serve(at, "tank");
    let mut differ = String::new();
    let long = format!("tank/{}", "0".repeat(260));
    for (line, words, code) in [
        ("zfs create tank", "cannot create 'tank': missing dataset name", 1),
        ("zfs create tank/", "cannot create 'tank/': trailing slash in name", 1),
        ("zfs create nope/x", "cannot create 'nope/x': no such pool 'nope'", 1),
        ("zfs create tank/a%b", "cannot create 'tank/a%b': invalid character % in name", 1),
        (
            "zfs create tank/x@y",
            "cannot create 'tank/x@y': snapshot delimiter '@' is not expected here",
            1,
        ),
        ("zfs create -V 0 tank/vv", "cannot create 'tank/vv': volume size cannot be zero", 1),
        (
            "zfs create -n -o utf8only=off -o normalization=formD tank/x",
            "cannot verify 'tank/x': 'utf8only' must be set 'on' if normalization chosen",
            1,
        ),
        (
            "zfs create -o encryption=on tank/x",
            "cannot create 'tank/x': Keyformat required for new encryption root.",
            1,
        ),
        (
            "zfs create -o keyformat=raw tank/x",
            "cannot create 'tank/x': Encryption must be turned on to set encryption properties.",
            1,
        ),
        (
            "zfs create -o encryption=on -o keyformat=passphrase -o keylocation=file:///nope \
             tank/x",
            "cannot create 'tank/x': Failed to open key material file: No such file or directory",
            1,
        ),
        (&format!("zfs create {long}"), &format!("cannot create '{long}': name is too long"), 1),
        ("zfs set atime tank", "cannot open 'atime': dataset does not exist", 1),
        (
            "zfs set atime=maybe tank",
            "cannot set property for 'tank': 'atime' must be one of 'on | off'",
            1,
        ),
        ("zfs set atime=off nope", "cannot open 'nope': dataset does not exist", 1),
        (
            "zfs set volsize=20M tank",
            "cannot set property for 'tank': 'volsize' does not apply to datasets of this type",
            1,
        ),
        (
            "zfs set atime=off tank@top",
            "cannot set property for 'tank@top': this property can not be modified for snapshots",
            1,
        ),
        ("zfs set atime=on atime=off tank", "property 'atime' specified multiple times", 255),
        (
            "zfs set atime=on tank#b",
            "cannot open 'tank#b': bookmark delimiter '#' is not expected here",
            1,
        ),
        ("zfs inherit used tank", "used property is read-only", 1),
        (
            "zfs inherit recordsize tank/vol",
            "cannot inherit recordsize for 'tank/vol': property doesn't apply to datasets of this \
             type",
            1,
        ),
        (
            "zfs snapshot tank@",
            "cannot create snapshot 'tank@': empty component or misplaced '@' or '#' delimiter in \
             name",
            1,
        ),
        (
            "zfs snapshot tank@q3 tank@q",
            "cannot create snapshots : multiple snapshots of same fs not allowed\nno snapshots \
             were created",
            1,
        ),
        (
            "zfs snapshot -o atime=off tank@q",
            "cannot create snapshots : this property can not be modified for snapshots",
            1,
        ),
        (
            "zfs destroy tank",
            "cannot destroy 'tank': operation does not apply to pools\nuse 'zfs destroy -r tank' \
             to destroy all datasets in the pool\nuse 'zpool destroy tank' to destroy the pool \
             itself",
            1,
        ),
        ("zfs destroy nope", "cannot open 'nope': dataset does not exist", 1),
        (
            "zfs destroy tank/locked",
            "cannot destroy 'tank/locked': filesystem has children\nuse '-r' to destroy the \
             following datasets:\ntank/locked@s2\ntank/locked@s1",
            1,
        ),
        (
            "zfs destroy tank@nope",
            "could not find any snapshots to destroy; check snapshot names.",
            1,
        ),
        ("zfs destroy tank#b", "bookmark 'tank#b' does not exist.", 1),
        (
            "zfs destroy -d tank/locked",
            "cannot open 'tank/locked': missing '@' delimiter in snapshot name",
            1,
        ),
        ("zfs rename tank/locked tank", "cannot create 'tank': missing dataset name", 1),
        ("zfs rename tank/locked nope/x", "cannot create 'nope/x': no such pool 'nope'", 1),
        (
            "zfs rename tank tank/x",
            "cannot rename to 'tank/x': datasets must be within same pool",
            1,
        ),
        (
            "zfs rename tank/locked@s1 tank/vol@s1",
            "cannot rename to 'tank/vol@s1': snapshots must be part of same dataset",
            1,
        ),
        ("zfs change-key tank", "Key change error: Dataset not encrypted.", 255),
        ("zfs change-key -o atime=on tank/locked", "Key change error: Key must be loaded.", 255),
        ("zpool set a=b tank", "cannot set property for 'tank': invalid property 'a'", 1),
        ("zpool set size=1 tank", "cannot set property for 'tank': 'size' is readonly", 1),
        ("zpool set comment=hi nope", "cannot open 'nope': no such pool", 1),
        (
            "zpool set bootfs=other/x tank",
            "cannot set property for 'tank': 'other/x' is an invalid name",
            1,
        ),
        (
            "zpool set compatibility=bogus tank",
            "Error: could not read/parse feature file(s): bogus ",
            1,
        ),
        ("zpool sync nope", "cannot open 'nope': no such pool", 1),
        ("zpool destroy 7x", "cannot open '7x': name must begin with a letter", 1),
        ("zpool labelclear /nope", "failed to open /nope: No such file or directory", 1),
        ("zpool wait nope", "cannot open 'nope': no such pool", 1),
    ] {
        let ran = run(at, line);
        if (ran.out.as_str(), ran.err.trim_end_matches('\n'), ran.code) != ("", words, code) {
            differ.push_str(&format!("{line}: {} {}{}", ran.code, ran.out, ran.err));
        }
    }
    for (line, start) in [
        ("zfs create", "missing filesystem argument\nusage:\n"),
        ("zfs create -V 10M", "missing volume argument\nusage:\n"),
        ("zfs create -b 16k tank/v", "'-s' and '-b' can only be used when creating a volume\nus"),
        ("zfs create -V 1M -u tank/v", "'-u' can only be used when creating a filesystem\nusage"),
        ("zfs create -o", "missing size argument\nusage:\n"),
        ("zfs set", "missing arguments\nusage:\n"),
        ("zfs set atime=off", "missing dataset name(s)\nusage:\n"),
        ("zfs set tank", "missing property=value argument(s)\nusage:\n"),
        ("zfs inherit", "missing property argument\nusage:\n"),
        ("zfs inherit bogus tank", "invalid property 'bogus'\nusage:\n"),
        ("zfs snapshot", "missing snapshot argument\nusage:\n"),
        ("zfs snapshot tank", "usage:\n"),
        ("zfs snapshot nope@x", "cannot open 'nope': dataset does not exist\nusage:\n"),
        ("zfs destroy", "missing dataset argument\nusage:\n"),
        ("zfs rename tank", "missing target dataset argument\nusage:\n"),
        ("zfs rename -r tank tank/b", "source dataset for recursive rename must be a snapshot\n"),
        ("zfs rename -pu tank/a tank/b", "-u and -p options are mutually exclusive\nusage:\n"),
        ("zfs userspace", "usage:\n"),
        ("zfs change-key", "Missing dataset argument\nusage:\n"),
        ("zfs change-key -i -o keyformat=raw tank", "Properties not allowed for inheriting\nus"),
        ("zpool create", "missing pool name argument\nusage:\n"),
        ("zpool create tank", "missing vdev specification\nusage:\n"),
        ("zpool add -o bogus=1 -n tank mirror a b", "usage:\n"),
        ("zpool destroy", "missing pool argument\nusage:\n"),
        ("zpool set bogus tank", "missing value in property=value argument\nusage:\n"),
        ("zpool set a=b tank tank", "too many pool names\nusage:\n"),
        ("zpool reguid", "missing pool name\nusage:\n"),
        ("zpool upgrade -V 99 tank", "invalid version '99'\nusage:\n"),
        ("zpool upgrade -a tank", "-a option should not be used along with a pool name\nusage:\n"),
        ("zpool wait", "missing 'pool' argument\nusage:\n"),
        ("zpool wait -t bogus tank", "invalid activity 'bogus'\nusage:\n"),
        ("zpool labelclear", "missing vdev name\nusage:\n"),
    ] {
        let ran = run(at, line);
        if !ran.err.starts_with(start) || (ran.out.as_str(), ran.code) != ("", 2) {
            let err: String = ran.err.chars().take(200).collect();
            differ.push_str(&format!("{line}: {} {}{err}\n", ran.code, ran.out));
        }
    }
    assert_eq!(differ, "");
    let shown = |line: &str| run(at, line).out;
    assert_eq!(shown("zfs userspace -Hp -o name,used,objused tank"), "root\t1536\t-\n");
    assert_eq!(shown("zfs create -nvP tank/x"), "create\ttank/x\n");
    assert_eq!(
        shown("zfs create -nvp tank/a/b/c"),
        "would create ancestors of tank/a/b/c\nwould create tank/a/b/c\n"
    );
    assert_eq!(
        shown("zfs create -nvPp -o atime=off tank/a/b"),
        "create_ancestors\ttank/a/b\ncreate\ttank/a/b\nproperty\tatime\toff\n"
    );
    assert_eq!(
        shown("zfs create -V 10M -b 8k -n -v tank/vv"),
        "would create tank/vv\n\tvolsize=10485760\n\tvolblocksize=8192\n\t\
         refreservation=13107200\n"
    );
    assert_eq!(
        shown("zfs destroy -nvr tank/locked"),
        "would destroy tank/locked@s2\nwould destroy tank/locked@s1\nwould destroy tank/locked\n"
    );
    assert_eq!(
        shown("zfs destroy -nvp tank/locked@s1"),
        "destroy\ttank/locked@s1\nreclaim\t6144\n"
    );
}
