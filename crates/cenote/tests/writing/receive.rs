//! `zfs receive`: streams that OpenZFS made, through the whole program; what is left when one of both sides
//! dies in the middle.
//!
//! Invariant: what was there before a receive that fails is there after it.

use std::io::Write;
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use super::{Bench, noise};

fn recorded(name: &str) -> Vec<u8> {
    let streams = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/streams");
    zstd::decode_all(std::fs::File::open(streams.join(name)).unwrap()).unwrap()
}

impl Bench {
    fn receiving(&self, arguments: &[&str]) -> Child {
        let mut command = self.command(&[&["zfs", "receive"], arguments].concat());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    pub(super) fn receive(&self, arguments: &[&str], stream: &[u8]) -> Output {
        let mut child = self.receiving(arguments);
        // who refuses a stream does not read it
        drop(child.stdin.take().unwrap().write_all(stream));
        child.wait_with_output().unwrap()
    }

    #[track_caller]
    pub(super) fn received(&self, arguments: &[&str], stream: &[u8]) -> String {
        let output = self.receive(arguments, stream);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[track_caller]
    fn turned_away(&self, arguments: &[&str], stream: &[u8], words: &str) {
        let output = self.receive(arguments, stream);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(said.trim_end(), words, "{arguments:?}");
        assert_eq!(output.status.code(), Some(1));
    }

    #[track_caller]
    pub(super) fn stream(&self, arguments: &[&str]) -> Vec<u8> {
        let output = self.output(&[&["zfs", "send"], arguments].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}");
        output.stdout
    }

    /// Makes `tank/a` with the snapshots `one` and `two`; streams of the first, and from it to the second.
    pub(super) fn two_streams(&self) -> [Vec<u8>; 2] {
        self.cenote(&["zfs", "create", "tank/a"]);
        std::fs::write(self.at("mnt/tank/a/file"), noise(300_000, 1)).unwrap();
        self.cenote(&["zfs", "snapshot", "tank/a@one"]);
        std::fs::write(self.at("mnt/tank/a/file"), noise(500_000, 2)).unwrap();
        self.cenote(&["zfs", "snapshot", "tank/a@two"]);
        [self.stream(&["tank/a@one"]), self.stream(&["-i", "@one", "tank/a@two"])]
    }

    pub(super) fn names(&self) -> String {
        self.cenote(&["zfs", "list", "-H", "-r", "-t", "all", "-o", "name", "tank"])
    }
}

/// In `sizes` every file has the length that its name says.
#[track_caller]
fn check_sizes(root: &Path) {
    let mut count = 0;
    for entry in std::fs::read_dir(root.join("sizes")).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let length: u64 = name.trim_start_matches('f').parse().unwrap();
        assert_eq!(std::fs::read(entry.path()).unwrap().len() as u64, length, "{name}");
        count += 1;
    }
    assert!(count > 10, "{count}");
}

#[test]
fn streams_are_received_in_the_words_of_openzfs() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    let full = recorded("full-one.zst");
    let said = bench.received(&["-v", "tank/one"], &full);
    assert!(
        said.starts_with("receiving full stream of g101/a@one into tank/one@one\nreceived 659K")
    );
    check_sizes(&bench.at("mnt/tank/one"));
    let start = "cannot receive new filesystem stream";
    let exists = "exists\nmust specify -F to overwrite it";
    bench.turned_away(&["tank/one"], &full, &format!("{start}: destination 'tank/one' {exists}"));
    let snapshots =
        "destination has snapshots (eg. tank/one@one)\nmust destroy them to overwrite it";
    bench.turned_away(&["-F", "tank/one"], &full, &format!("{start}: {snapshots}"));
    let nowhere = "cannot open 'tank/no': dataset does not exist";
    let nowhere = format!("{nowhere}\n{start}: unable to restore to destination");
    bench.turned_away(&["tank/no/where"], &full, &nowhere);
    bench.turned_away(&["tank/cut"], &full[..100_000], &format!("{start}: incomplete stream"));
    let mut damaged = full.clone();
    damaged[full.len() / 2] ^= 1;
    bench.turned_away(&["tank/cut"], &damaged, &format!("{start}: checksum mismatch"));
    bench.turned_away(&["tank/cut"], b"", "cannot receive: failed to read from stream");
    bench.turned_away(
        &["tank/cut"],
        &[0; 312],
        "cannot receive: invalid stream (bad magic number)",
    );
    let mut deduplicated = full.clone();
    // The feature bit 0 stands above the two bits of the kind of the stream.
    deduplicated[16] |= 4;
    let words = "ERROR: \"zfs receive\" no longer supports deduplicated send streams.  Use\nthe \
                 \"zstream redup\" command to convert this stream to a regular,\nnon-deduplicated \
                 stream.\ncannot receive: operation not supported on this dataset";
    bench.turned_away(&["tank/cut"], &deduplicated, words);
    let none = "'tank/one' does not have any resumable receive state to abort";
    bench.turned_away(&["-A", "tank/one"], b"", none);
    assert_eq!(bench.names(), "tank\ntank/one\ntank/one@one\n");

    bench.received(&["-F", "tank/all"], &recorded("R-cel-two.zst"));
    // What is there is not passed over: what was to be set with it would not be.
    let again = format!("{start}: destination 'tank/all' {exists}");
    bench.turned_away(&["-o", "atime=off", "tank/all"], &recorded("R-cel-two.zst"), &again);
    bench.received(&["-d", "tank"], &recorded("vol.zst"));
    bench.received(&["-o", "compression=gzip", "-e", "-u", "tank/one"], &full);
    let names = bench.names();
    for name in
        ["tank/all@two", "tank/all/a@one", "tank/all/a@two", "tank/vol@v1", "tank/one/a@one"]
    {
        assert!(names.lines().any(|line| line == name), "{names}");
    }
    let get = ["zfs", "get", "-H", "-o", "value,source", "quota,com.example:note", "tank/all/a"];
    assert_eq!(bench.cenote(&get), "100M\treceived\nhéllo wörld\treceived\n");
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn a_volume_and_a_filesystem_take_each_others_place() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    bench.received(&["-d", "tank"], &recorded("vol.zst"));
    let (volume, full) = (bench.stream(&["tank/vol@v1"]), recorded("full-one.zst"));
    bench.cenote(&["zfs", "create", "-p", "tank/a/below"]);
    std::fs::write(bench.at("mnt/tank/a/below/file"), "one").unwrap();
    let start = "cannot receive new filesystem stream";
    let no = |why: &str| format!("{start}: destination {why}\ncannot overwrite with a ZVOL");
    let children = no("has children (eg. tank/a/below)");
    bench.turned_away(&["-F", "tank/a"], &volume, &children);
    bench.turned_away(&["-F", "tank"], &volume, &no("tank is the root dataset"));
    let below = "tank/a/below";
    bench.received(&["-F", below], &volume);
    assert_eq!(bench.value("type", below), "volume");
    assert!(!bench.at("mnt/tank/a/below/file").exists());
    let sizes = "volsize,volblocksize,referenced";
    let get = |name| bench.cenote(&["zfs", "get", "-Hp", "-o", "value", sizes, name]);
    assert_eq!(get(below), get("tank/vol"));
    bench.cenote(&["zfs", "destroy", "tank/a/below@v1"]);
    bench.received(&["-F", below], &full);
    assert_eq!(bench.value("type", below), "filesystem");
    // As nothing was mounted of what was there.
    assert_eq!(bench.value("mounted", below), "no");
    bench.cenote(&["zfs", "mount", below]);
    check_sizes(&bench.at("mnt/tank/a/below"));
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn what_the_sender_destroyed_with_its_clones_is_destroyed() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    bench.cenote(&["zfs", "create", "-p", "tank/src/origin"]);
    bench.cenote(&["zfs", "snapshot", "tank/src/origin@x"]);
    bench.cenote(&["zfs", "clone", "tank/src/origin@x", "tank/src/clone"]);
    bench.cenote(&["zfs", "snapshot", "-r", "tank/src@1"]);
    bench.received(&["tank/dst"], &bench.stream(&["-R", "tank/src@1"]));
    assert!(bench.names().contains("tank/dst/clone@1"));
    bench.cenote(&["zfs", "destroy", "-R", "tank/src/origin"]);
    bench.cenote(&["zfs", "snapshot", "-r", "tank/src@2"]);
    bench.received(&["-F", "tank/dst"], &bench.stream(&["-R", "-I", "@1", "tank/src@2"]));
    let names = bench.cenote(&["zfs", "list", "-H", "-o", "name", "-t", "all", "-r", "tank/dst"]);
    assert_eq!(names, "tank/dst\ntank/dst@1\ntank/dst@2\n");
}

#[test]
fn what_the_sender_promoted_is_promoted() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    bench.cenote(&["zfs", "create", "-p", "tank/src/a"]);
    bench.cenote(&["zfs", "snapshot", "tank/src/a@x"]);
    bench.cenote(&["zfs", "clone", "tank/src/a@x", "tank/src/b"]);
    bench.cenote(&["zfs", "create", "tank/src/a/below"]);
    bench.cenote(&["zfs", "snapshot", "-r", "tank/src@1"]);
    bench.received(&["tank/dst"], &bench.stream(&["-R", "tank/src@1"]));
    assert_eq!(bench.value("origin", "tank/dst/b"), "tank/dst/a@x");
    bench.cenote(&["zfs", "promote", "tank/src/b"]);
    bench.cenote(&["zfs", "snapshot", "-r", "tank/src@2"]);
    bench.received(&["-F", "tank/dst"], &bench.stream(&["-R", "-i", "@1", "tank/src@2"]));
    let list = |of: &str| {
        let columns = ["-H", "-o", "name,origin", "-t", "all", "-r", of];
        bench.cenote(&[&["zfs", "list"], &columns[..]].concat()).replace(of, "")
    };
    assert_eq!(list("tank/dst"), list("tank/src"));
    assert_eq!(bench.value("origin", "tank/dst/a"), "tank/dst/b@x");
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

/// A package of one snapshot may be given another name; what a refquota let in is let in.
#[test]
fn what_one_snapshot_brings_with_it_goes_where_it_is_told() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    bench.cenote(&["zfs", "create", "-o", "refquota=2M", "tank/a"]);
    bench.cenote(&["zfs", "snapshot", "tank/a@one"]);
    bench.cenote(&["zfs", "hold", "keep", "tank/a@one"]);
    bench.received(&["tank/b@other"], &bench.stream(&["-h", "-p", "tank/a@one"]));
    assert!(bench.cenote(&["zfs", "holds", "-H", "tank/b@other"]).contains("\tkeep\t"));
    assert_eq!(bench.value("refquota", "tank/b"), (2 << 20).to_string());
    let fill = std::fs::write(bench.at("mnt/tank/a/file"), noise(8 << 20, 1));
    assert!(fill.is_err());
    bench.cenote(&["zfs", "snapshot", "tank/a@two"]);
    bench.cenote(&["zfs", "set", "refquota=1M", "tank/b"]);
    bench.received(&["tank/b"], &bench.stream(&["-i", "@one", "tank/a@two"]));
    assert!(bench.value("referenced", "tank/b").parse::<u64>().unwrap() > 1 << 20);
}

/// It is received all the same, the rest of the package too.
#[test]
fn what_is_received_and_cannot_be_mounted_is_told() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    bench.cenote(&["zfs", "create", "-p", "tank/src/below"]);
    bench.cenote(&["zfs", "snapshot", "-r", "tank/src@1"]);
    bench.cenote(&["zfs", "create", "-o", "overlay=off", "tank/to"]);
    std::fs::create_dir(bench.at("mnt/tank/to/src")).unwrap();
    std::fs::write(bench.at("mnt/tank/to/src/file"), "1").unwrap();
    let stream = bench.stream(&["-R", "tank/src@1"]);
    let said = bench.receive(&["-e", "tank/to"], &stream);
    let lines = String::from_utf8(said.stderr).unwrap();
    let place = bench.at("mnt/tank/to/src").display().to_string();
    assert_eq!(lines, format!("cannot mount '{place}': directory is not empty\n"));
    assert_eq!(said.status.code(), Some(1));
    assert_eq!(bench.value("mounted", "tank/to/src"), "no");
    assert!(bench.names().contains("tank/to/src/below@1"));
    bench.received(&["-u", "tank/to/src/more"], &stream);
}

#[test]
fn what_does_not_apply_to_what_comes_is_refused_or_warned_of() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    bench.cenote(&["zfs", "create", "tank/src"]);
    bench.cenote(&["zfs", "create", "-s", "-V", "8M", "tank/src/v"]);
    bench.cenote(&["zfs", "snapshot", "-r", "tank/src@1"]);
    bench.cenote(&["zfs", "snapshot", "tank/src/v@2"]);
    let full = bench.stream(&["tank/src/v@1"]);
    let more = bench.stream(&["-i", "@1", "tank/src/v@2"]);
    let words = "property 'atime' does not apply to datasets of this type";
    for dry in [&["-n"][..], &[]] {
        let refused = format!("cannot receive new filesystem stream: {words}");
        bench.turned_away(&[dry, &["-o", "atime=off", "tank/w"]].concat(), &full, &refused);
    }
    assert!(!bench.names().contains("tank/w"));
    let said = |arguments: &[&str], stream| {
        let output = bench.receive(arguments, stream);
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let excluded = ["-x", "atime", "-x", "sync", "-x", "devices", "tank/w"];
    let other = words.replace("atime", "devices");
    let warned = format!("Warning: tank/w: {words}\nWarning: tank/w: {other}\n");
    assert_eq!(said(&excluded, &full), warned);
    let refused = format!("cannot receive incremental stream: {words}");
    bench.turned_away(&["-o", "atime=off", "tank/w"], &more, &refused);
    assert_eq!(said(&excluded, &more), warned);
    // Of several it holds for those it applies to.
    let several = bench.stream(&["-R", "tank/src@1"]);
    let given = ["-o", "atime=off", "-x", "relatime", "tank/all"];
    assert_eq!(said(&given, &several), "");
    assert_eq!(bench.value("atime", "tank/all"), "off");
    assert_eq!(bench.value("atime", "tank/all/v"), "-");
}

#[test]
fn keys_are_only_of_what_is_encrypted() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    bench.cenote(&["zfs", "create", "tank/plain"]);
    let full = recorded("full-one.zst");
    let location = format!("keylocation=file://{}", bench.at("key").display());
    std::fs::write(bench.at("key"), "a passphrase").unwrap();
    bench.turned_away(
        &["-o", &location, "tank/one"],
        &full,
        "cannot receive new filesystem stream: Encryption must be turned on to set encryption \
         properties.",
    );
    let encrypted = ["zfs", "create", "-o", "encryption=on", "-o", "keyformat=passphrase"];
    bench.cenote(&[&encrypted[..], &["-o", &location, "tank/secret"]].concat());
    bench.turned_away(
        &["-o", &location, "tank/secret/one"],
        &full,
        "cannot receive new filesystem stream: Keyformat required for new encryption root.",
    );
    // What is raw does not go on where nothing is encrypted.
    bench.cenote(&["zfs", "snapshot", "tank/secret@one"]);
    bench.cenote(&["zfs", "snapshot", "tank/secret@two"]);
    bench.received(&["tank/copy"], &bench.stream(&["tank/secret@one"]));
    bench.turned_away(
        &["tank/copy"],
        &bench.stream(&["-w", "-i", "@one", "tank/secret@two"]),
        "cannot receive incremental stream: cannot perform raw receive on top of existing \
         unencrypted dataset",
    );
    assert!(!bench.names().contains("one/"));
    assert!(!bench.names().contains("tank/secret/one"));
}

#[test]
fn a_receive_that_is_cut_off_can_go_on_or_be_given_up() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    let full = recorded("full-one.zst");
    let output = bench.receive(&["-s", "tank/one"], &full[..300_000]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let saved = "checksum mismatch or incomplete stream.\nPartially received snapshot is saved.\nA \
                 resuming stream can be generated on the sending system by running:\n    zfs send -t ";
    let token = said.split_once(saved).map(|(_, token)| token.trim().to_owned());
    let token = token.unwrap_or_else(|| panic!("{said}"));
    let get = ["zfs", "get", "-H", "-o", "value", "receive_resume_token", "tank/one"];
    assert_eq!(bench.cenote(&get).trim(), token);
    // It outlives the process, too.
    bench.kill();
    bench.import();
    assert_eq!(bench.cenote(&get).trim(), token);
    bench.cenote(&["zfs", "receive", "-A", "tank/one"]);
    assert_eq!(bench.names(), "tank\n");
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn what_dies_in_the_middle_leaves_what_was_there() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    let full = recorded("full-one.zst");
    bench.received(&["tank/one"], &full);
    let before = bench.names();
    let mut child = bench.receiving(&["tank/two"]);
    let mut pipe = child.stdin.take().unwrap();
    pipe.write_all(&full[..full.len() / 2]).unwrap();
    wait_for(|| bench.names().contains("tank/two"));
    let busy = bench.output(&["zpool", "export", "tank"]);
    assert_eq!(String::from_utf8_lossy(&busy.stderr), "cannot export 'tank': pool is busy\n");
    // Who gave the order dies.
    child.kill().unwrap();
    child.wait().unwrap();
    wait_for(|| bench.names() == before);
    drop(pipe);
    // The pool process dies.
    let mut child = bench.receiving(&["tank/two"]);
    let mut pipe = child.stdin.take().unwrap();
    pipe.write_all(&full[..full.len() / 2]).unwrap();
    wait_for(|| bench.names().contains("tank/two"));
    bench.cenote(&["zpool", "sync", "tank"]);
    bench.kill();
    assert!(!child.wait().unwrap().success());
    bench.import();
    assert_eq!(bench.names(), before);
    check_sizes(&bench.at("mnt/tank/one"));
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn what_is_being_received_is_not_closed_by_who_sets_what_is_kept_inside() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    let full = recorded("full-one.zst");
    let mut child = bench.receiving(&["tank/two"]);
    let mut pipe = child.stdin.take().unwrap();
    let (half, rest) = full.split_at(full.len() / 2);
    pipe.write_all(half).unwrap();
    wait_for(|| bench.names().contains("tank/two"));
    for property in ["userquota@0=1G", "groupobjquota@0=1G"] {
        let busy = bench.output(&["zfs", "set", property, "tank/two"]);
        let said = String::from_utf8_lossy(&busy.stderr);
        assert!(!busy.status.success() && said.contains("dataset is busy"), "{said}");
    }
    // Snapshots of all leave it out; one of it is refused.
    bench.cenote(&["zfs", "snapshot", "-r", "tank@all"]);
    let said = bench.refused(&["zfs", "snapshot", "tank/two@own"]);
    assert_eq!(said, "cannot create snapshot 'tank/two@own': dataset is busy\n");
    pipe.write_all(rest).unwrap();
    drop(pipe);
    assert!(child.wait().unwrap().success());
    assert_eq!(bench.names(), "tank\ntank@all\ntank/two\ntank/two@one\n");
    check_sizes(&bench.at("mnt/tank/two"));
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[track_caller]
fn wait_for(is_so: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < end, "it did not come to be");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Overwrites `wanted` wherever a device has it; how many places there were.
fn spoil(device: &str, wanted: &[u8]) -> usize {
    use std::os::unix::fs::FileExt;
    let data = std::fs::read(device).unwrap();
    let file = std::fs::File::options().write(true).open(device).unwrap();
    let places = (0..data.len()).step_by(4096).filter(|at| data[*at..].starts_with(wanted));
    places.map(|at| file.write_all_at(&[7; 4096], at as u64).unwrap()).count()
}

#[test]
fn damaged_blocks_are_made_right_with_a_stream() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create_with(&["-o", "ashift=12"], &[&devices[0]]);
    bench.cenote(&["zfs", "create", "-o", "compression=off", "tank/a"]);
    bench.cenote(&["zfs", "create", "-o", "compression=gzip-3", "tank/packed"]);
    let content = super::noise(500_000, 5);
    let path = bench.at("mnt/tank/a/file");
    std::fs::write(&path, &content).unwrap();
    let text = b"a line that repeats and packs well\n".repeat(9_000);
    std::fs::write(bench.at("mnt/tank/packed/file"), &text).unwrap();
    bench.cenote(&["zfs", "snapshot", "-r", "tank@one"]);
    let sent = |name: &str| bench.output(&["zfs", "send", name]).stdout;
    let (stream, packed) = (sent("tank/a@one"), sent("tank/packed@one"));
    bench.cenote(&["zpool", "export", "tank"]);
    assert_eq!(spoil(&devices[0], &content[131_072..][..4096]), 1);
    bench.import();
    assert!(std::fs::read(&path).is_err());
    let start = "cannot receive";
    let words = "corrective recv can not be used when combined with this flag";
    bench.turned_away(&["-c", "-F", "tank/a@one"], &stream, &format!("{start}: {words}"));
    let words = "corrective recv must specify an existing snapshot to heal";
    let start = "cannot receive new filesystem stream";
    bench.turned_away(&["-c", "tank/a@two"], &stream, &format!("{start}: {words}"));
    // The stream of another snapshot does not fit.
    let other = bench.receive(&["-c", "tank/a@one"], &packed);
    assert!(!other.status.success());
    assert!(std::fs::read(&path).is_err());
    let said = bench.received(&["-c", "-v", "tank/a@one"], &stream);
    assert!(said.starts_with("receiving corrective full stream of tank/a@one into tank/a@one\n"));
    assert!(std::fs::read(&path).unwrap() == content);
    // What was packed is packed again to the same bytes; nothing that is right is written.
    bench.received(&["-c", "tank/packed@one"], &packed);
    assert!(std::fs::read(bench.at("mnt/tank/packed/file")).unwrap() == text);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn what_is_renamed_meanwhile_is_not_received_into() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    let [full, since] = bench.two_streams();
    bench.received(&["tank/b"], &full);
    let begun = || bench.cenote(&["zpool", "history", "-i", "tank"]).matches("] receive ").count();
    let before = begun();
    let mut child = bench.receiving(&["tank/b"]);
    let mut pipe = child.stdin.take().unwrap();
    pipe.write_all(&since[..since.len() / 2]).unwrap();
    wait_for(|| begun() > before);
    bench.cenote(&["zfs", "rename", "tank/b", "tank/c"]);
    pipe.write_all(&since[since.len() / 2..]).unwrap();
    drop(pipe);
    let output = child.wait_with_output().unwrap();
    let words = "cannot receive incremental stream: dataset does not exist\n";
    assert_eq!(String::from_utf8_lossy(&output.stderr), words);
    assert_eq!(output.status.code(), Some(1));
    let left = "tank\ntank/a\ntank/a@one\ntank/a@two\ntank/c\ntank/c@one\n";
    assert_eq!(bench.names(), left);
    // What is written there is not lost.
    std::fs::write(bench.at("mnt/tank/c/later"), "later").unwrap();
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
    bench.import();
    assert_eq!(std::fs::read(bench.at("mnt/tank/c/later")).unwrap(), b"later");
}

#[test]
fn what_is_excluded_keeps_its_local_value() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    let [full, _] = bench.two_streams();
    bench.received(&["tank/b"], &full);
    bench.cenote(&["zfs", "set", "compression=lz4", "atime=off", "tank/a"]);
    bench.cenote(&["zfs", "set", "compression=gzip", "tank/b"]);
    let since = bench.stream(&["-p", "-i", "@one", "tank/a@two"]);
    bench.received(&["-x", "compression", "-x", "atime", "tank/b"], &since);
    let get = ["zfs", "get", "-H", "-o", "value,source", "compression,atime", "tank/b"];
    assert_eq!(bench.cenote(&get), "gzip\tlocal\non\tdefault\n");
}

#[test]
fn snapshots_taken_of_what_did_not_change_keep_no_stream_out() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    let [full, since] = bench.two_streams();
    bench.received(&["tank/b"], &full);
    bench.received(&["tank/changed"], &full);
    bench.cenote(&["zfs", "snapshot", "tank/b@own"]);
    std::fs::write(bench.at("mnt/tank/changed/more"), "more").unwrap();
    bench.cenote(&["zfs", "snapshot", "tank/changed@own"]);
    let words = "cannot receive incremental stream: destination tank/changed has been modified\n\
                 since most recent snapshot";
    bench.turned_away(&["tank/changed"], &since, words);
    bench.received(&["tank/b"], &since);
    // It can be sent on, from either.
    bench.received(&["tank/c"], &bench.stream(&["tank/b@own"]));
    bench.received(&["tank/c"], &bench.stream(&["-i", "@own", "tank/b@two"]));
    bench.received(&["tank/d"], &full);
    bench.received(&["tank/d"], &bench.stream(&["-i", "@one", "tank/b@two"]));
    for name in ["a", "b", "c", "d"] {
        let found = std::fs::read(bench.at(&format!("mnt/tank/{name}/file"))).unwrap();
        assert!(found == noise(500_000, 2), "{name}");
    }
    bench.cenote(&["zfs", "destroy", "tank/b@own"]);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn mounting_what_lies_below_changes_nothing() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    bench.cenote(&["zfs", "create", "tank/a"]);
    bench.cenote(&["zfs", "create", "tank/a/below"]);
    bench.cenote(&["zfs", "snapshot", "-r", "tank/a@one"]);
    bench.cenote(&["zfs", "snapshot", "-r", "tank/a@two"]);
    // Below a directory that was never read, as far as its times say.
    bench.received(&["tank/b"], &bench.stream(&["-R", "tank/a@one"]));
    bench.received(&["tank/b"], &bench.stream(&["-R", "-I", "@one", "tank/a@two"]));
    assert!(bench.at("mnt/tank/b/below").is_dir());
}

impl Bench {
    /// What datasets below `tank/copy` have of these properties.
    fn copied(&self, properties: &str) -> String {
        let get = ["zfs", "get", "-H", "-r", "-o", "name,property,value,source", properties];
        let datasets = ["-t", "filesystem", "tank/copy"];
        self.cenote(&[&get[..], &datasets].concat()).replace("tank/copy", "")
    }
}

/// Each package or stream with properties says all that was received of a dataset.
#[test]
fn received_properties_are_replaced_by_what_comes_later() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    let set = |values: &[&str], name| bench.cenote(&[&["zfs", "set"], values, &[name]].concat());
    let snapshot = |name| bench.cenote(&["zfs", "snapshot", "-r", name]);
    bench.cenote(&["zfs", "create", "tank/a"]);
    bench.cenote(&["zfs", "create", "tank/a/b"]);
    set(&["user:a=1", "user:gone=1", "compression=gzip", "quota=64M", "atime=off"], "tank/a");
    set(&["user:b=1", "reservation=8M", "snapdir=visible"], "tank/a/b");
    snapshot("tank/a@one");
    bench.received(&["tank/copy"], &bench.stream(&["-R", "tank/a@one"]));
    set(&["snapdir=hidden"], "tank/copy/b");
    let properties = "user:a,user:gone,compression,quota,atime,readonly";
    let of_child = "user:b,reservation,snapdir";
    bench.cenote(&["zfs", "inherit", "user:gone", "tank/a"]);
    bench.cenote(&["zfs", "inherit", "atime", "tank/a"]);
    set(&["user:a=2", "compression=lz4", "quota=none", "readonly=on"], "tank/a");
    set(&["user:b=2", "reservation=none"], "tank/a/b");
    bench.cenote(&["zfs", "inherit", "snapdir", "tank/a/b"]);
    snapshot("tank/a@two");
    snapshot("tank/a@three");
    bench.received(&["tank/copy"], &bench.stream(&["-R", "-I", "@one", "tank/a@three"]));
    let top = "\tuser:a\t2\treceived\n\tcompression\tlz4\treceived\n\tquota\tnone\treceived\n\
               \tatime\ton\tdefault\n\treadonly\ton\treceived\n";
    let copied = bench.copied(properties);
    assert!(top.lines().all(|line| copied.lines().any(|found| found == line)), "{copied}");
    assert!(!copied.contains("user:gone\t1"), "{copied}");
    let copied = bench.copied(of_child);
    let child = "/b\tuser:b\t2\treceived\n/b\treservation\tnone\treceived\n\
                 /b\tsnapdir\thidden\tlocal\n";
    assert!(child.lines().all(|line| copied.lines().any(|found| found == line)), "{copied}");
    bench.cenote(&["zfs", "inherit", "-S", "snapdir", "tank/copy/b"]);
    assert!(bench.copied("snapdir").contains("/b\tsnapdir\thidden\tdefault\n"));
    // A stream without properties says nothing of them; one with them of its dataset only.
    bench.cenote(&["zfs", "inherit", "user:a", "tank/a"]);
    bench.cenote(&["zfs", "inherit", "-S", "quota", "tank/a"]);
    snapshot("tank/a@four");
    bench.received(&["tank/copy"], &bench.stream(&["-i", "@three", "tank/a@four"]));
    assert!(bench.copied("user:a").contains("\tuser:a\t2\treceived\n"));
    set(&["quota=32M"], "tank/copy");
    snapshot("tank/a@five");
    let since = bench.stream(&["-p", "-i", "@four", "tank/a@five"]);
    bench.received(&["-x", "compression", "tank/copy"], &since);
    let copied = bench.copied("user:a,quota,compression,user:b");
    assert!(!copied.contains("user:a\t2"), "{copied}");
    assert!(copied.contains("\tquota\t32M\tlocal\n"), "{copied}");
    assert!(copied.contains("\tcompression\ton\tdefault\n"), "{copied}");
    assert!(copied.contains("/b\tuser:b\t2\treceived\n"), "{copied}");
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

/// The words are those of OpenZFS 2.1.11, as it said them.
#[test]
fn properties_that_cannot_be_set_are_refused_in_the_words_of_openzfs() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    let [full, more] = bench.two_streams();
    for property in [
        "used=1",
        "type=x",
        "nosuch=1",
        "volsize=1G",
        "version=5",
        "casesensitivity=mixed",
        "createtxg=4",
        "name=x",
        "volblocksize=8k",
        "normalization=formC",
        "utf8only=on",
        "userquota@root=1G",
        "userused@root=1",
        "written@x=1",
        "redact_snaps=x",
        "guid=5",
        "receive_resume_token=x",
    ] {
        let (name, _) = property.split_once('=').unwrap();
        let words = format!("cannot receive: invalid property '{name}'");
        bench.turned_away(&["-o", property, "tank/o"], &full, &words);
        bench.turned_away(&["-x", name, "tank/o"], &full, &words);
        bench.turned_away(&["-o", property, "tank/a"], &more, &words);
    }
    let new = "cannot receive new filesystem stream";
    for (property, words) in [
        ("recordsize=3", "'recordsize' must be power of 2 from 512B to 16M"),
        ("mountpoint=xx", "'mountpoint' must be an absolute path, 'none', or 'legacy'"),
        ("quota=abc", "bad numeric value 'abc'"),
        ("canmount=maybe", "'canmount' must be one of 'on | off | noauto'"),
        ("readonly=foo", "'readonly' must be one of 'on | off'"),
    ] {
        let words = format!("{new}: {words}\n{new}: invalid property value");
        bench.turned_away(&["-o", property, "tank/o"], &full, &words);
    }
    let more_words = "cannot receive incremental stream";
    let words = format!(
        "{more_words}: 'readonly' must be one of 'on | off'\n{more_words}: invalid property value"
    );
    bench.turned_away(&["-o", "readonly=foo", "tank/a"], &more, &words);
    for origin in ["tank/a@no", "tank/nope"] {
        let words = format!("cannot receive: specified origin fs ({origin}) does not exist");
        bench.turned_away(&["-o", &format!("origin={origin}"), "tank/o"], &full, &words);
    }
    for (options, words) in [
        (&["-o", "com:x"][..], "missing '=' for property=value argument"),
        (&["-o", "quota=1G", "-x", "quota"], "property 'quota' specified multiple times"),
        (&["-o", "quota=1G", "-o", "quota=2G"], "property 'quota' specified multiple times"),
        (&["-x", "quota", "-x", "quota"], "property 'quota' specified multiple times"),
    ] {
        let output = bench.receive(&[options, &["tank/o"]].concat(), &full);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.starts_with(&format!("{words}\nusage:\n\treceive ")), "{options:?}: {said}");
        assert_eq!(output.status.code(), Some(2));
    }
    assert!(!bench.output(&["zfs", "list", "tank/o"]).status.success());
    for options in
        [&["-o", "quota=none"][..], &["-o", "com.x:y=z"], &["-x", "origin"], &["-x", "com.x:y"]]
    {
        bench.received(&[options, &["tank/o"]].concat(), &full);
        bench.cenote(&["zfs", "destroy", "-r", "tank/o"]);
    }
}
