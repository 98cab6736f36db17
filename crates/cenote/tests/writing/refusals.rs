//! What orders that are refused leave behind, what others than root can do to its pools, and how a pool process
//! ends in the middle of something.
//!
//! Invariant: a refused order changes nothing.

use std::fs;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cenote_control::changes::{Change, ChangeRequest, LoadKeyRequest, SendRequest};
use cenote_control::frame::{Timed, framed};
use cenote_control::protocol::{Reply, Request};

use super::delegated::{ALICE, home};
use super::{Bench, noise};

impl Bench {
    fn process(&self) -> rustix::process::Pid {
        let text = fs::read_to_string(self.at("run/tank.pid")).unwrap();
        let number = text.split_whitespace().next().unwrap().parse().unwrap();
        rustix::process::Pid::from_raw(number).unwrap()
    }

    /// Tells the pool process to end, and waits until it has.
    fn terminate(&self) -> Duration {
        let (process, begun) = (self.process(), Instant::now());
        rustix::process::kill_process(process, rustix::process::Signal::TERM).unwrap();
        while fs::metadata(format!("/proc/{}/exe", process.as_raw_nonzero())).is_ok() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
        begun.elapsed()
    }

    /// What is mounted of the pool, by its place below `mnt`.
    fn mounted(&self) -> Vec<String> {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let top = self.at("mnt").display().to_string();
        let places = table.lines().filter_map(|line| line.split(' ').nth(4)?.strip_prefix(&top));
        let mut all: Vec<String> = places.map(str::to_owned).collect();
        all.sort();
        all
    }

    /// Gives an order as a program may that is not ours.
    fn ask(&self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> UnixStream {
        let stream = UnixStream::connect(self.at("run/tank.sock")).unwrap();
        Timed::new(&stream, Duration::from_secs(5)).send_with(request, descriptors).unwrap();
        stream
    }

    /// The same as Alice, with one descriptor; what is answered, as it comes.
    fn ask_as_alice(&self, request: &Request) -> Vec<u8> {
        fs::write(self.at("frame"), &*framed(request).unwrap()).unwrap();
        let script = "import array, os, socket, sys
os.setgroups([]); os.setresgid(*[int(sys.argv[3])] * 3); os.setresuid(*[int(sys.argv[3])] * 3)
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
d = array.array('i', [os.open('/dev/null', os.O_WRONLY)])
s.sendmsg([open(sys.argv[2], 'rb').read()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, d)])
while True:
    got = s.recv(65536)
    if not got: break
    os.write(1, got)
";
        // Python itself may lie where she cannot read it.
        let mut command = Command::new("python3");
        command.args(["-c", script]).args([self.at("run/tank.sock"), self.at("frame")]);
        command.arg(ALICE.to_string());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }
}

fn end(mut child: Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// A process that is told to end while a stream goes out or comes in writes what it has, and leaves no mount.
#[test]
fn a_signal_in_the_middle_of_streams_exports() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    bench.cenote(&["zfs", "create", "tank/a"]);
    fs::write(bench.at("mnt/tank/a/large"), noise(24 << 20, 1)).unwrap();
    bench.cenote(&["zfs", "snapshot", "tank/a@one"]);
    let file = fs::File::create(bench.at("stream")).unwrap();
    assert!(bench.command(&["zfs", "send", "tank/a@one"]).stdout(file).status().unwrap().success());
    let stream = fs::read(bench.at("stream")).unwrap();
    for receives in [false, true] {
        let arguments: &[&str] = match receives {
            true => &["zfs", "receive", "tank/b"],
            false => &["zfs", "send", "tank/a@one"],
        };
        let mut command = bench.command(arguments);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        if receives {
            // The half of it, and no more.
            let half = stream.get(..stream.len() / 2).unwrap();
            child.stdin.as_mut().unwrap().write_all(half).unwrap();
        }
        std::thread::sleep(Duration::from_millis(500));
        let name = format!("mnt/tank/a/late{receives}");
        fs::write(bench.at(&name), "the last that was written").unwrap();
        let took = bench.terminate();
        end(child);
        assert!(took < Duration::from_secs(15), "{took:?}");
        assert_eq!(bench.mounted(), Vec::<String>::new());
        bench.zdb();
        bench.import();
        assert_eq!(fs::read(bench.at(&name)).unwrap(), b"the last that was written");
        assert!(!bench.cenote(&["zfs", "list", "-H", "-o", "name"]).contains("tank/b"));
    }
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn what_a_refused_order_took_down_is_mounted_again() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    for name in ["tank/p", "tank/p/a", "tank/p/b", "tank/p/c"] {
        bench.cenote(&["zfs", "create", name]);
    }
    fs::write(bench.at("mnt/tank/p/b/file"), "x").unwrap();
    let before = bench.mounted();
    assert_eq!(before.len(), 5, "{before:?}");
    let open = fs::File::open(bench.at("mnt/tank/p/b/file")).unwrap();
    let elsewhere = format!("mountpoint={}", bench.at("mnt/elsewhere").display());
    let orders: [&[&str]; 6] = [
        &["zfs", "set", &elsewhere, "tank/p"],
        &["zfs", "inherit", "mountpoint", "tank/p"],
        &["zfs", "rename", "tank/p", "tank/q"],
        &["zfs", "destroy", "-r", "tank/p"],
        &["zfs", "set", "canmount=off", "tank/p"],
        &["zpool", "destroy", "tank"],
    ];
    for order in orders {
        let said = bench.refused(order);
        assert!(said.contains("busy"), "{order:?}: {said}");
        assert_eq!(bench.mounted(), before, "{order:?}");
    }
    drop(open);
    bench.cenote(&["zfs", "destroy", "-r", "tank/p"]);
    assert_eq!(bench.mounted(), ["/tank"]);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn a_corrective_receive_that_only_looks_corrects_nothing() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    fs::write(bench.at("mnt/tank/file"), noise(1 << 20, 3)).unwrap();
    bench.cenote(&["zfs", "snapshot", "tank@one"]);
    let file = fs::File::create(bench.at("stream")).unwrap();
    assert!(bench.command(&["zfs", "send", "tank@one"]).stdout(file).status().unwrap().success());
    let receive = |arguments: &[&str]| {
        let all = [&["zfs", "receive"], arguments, &["tank@one"]].concat();
        let stream = fs::File::open(bench.at("stream")).unwrap();
        let output = bench.command(&all).stdin(stream).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let log = fs::read_to_string(bench.at("run/tank.log")).unwrap();
        (said, log.matches("damaged blocks were made right by a stream").count())
    };
    let (said, corrected) = receive(&["-c", "-n", "-v"]);
    assert!(
        said.contains("would receive corrective full stream of tank@one into tank@one"),
        "{said}"
    );
    assert_eq!(corrected, 0);
    assert_eq!(receive(&["-c"]).1, 1);
    bench.cenote(&["zpool", "export", "tank"]);
}

#[test]
fn keys_are_unloaded_by_who_may_load_them() {
    let Some(bench) = home() else { return };
    let (user, fs_name) = (ALICE.to_string(), "tank/home/alice/sealed");
    fs::write(bench.at("key"), "a passphrase\n").unwrap();
    let location = format!("keylocation=file://{}", bench.at("key").display());
    let create = ["zfs", "create", "-o", "encryption=on", "-o", "keyformat=passphrase", "-o"];
    bench.cenote(&[&create[..], &[&location, fs_name]].concat());
    bench.cenote(&["zfs", "allow", "-u", &user, "mount", "tank/home/alice"]);
    let said = bench.denied_to(ALICE, &["zfs", "unmount", "-u", fs_name]);
    assert!(said.contains("permission denied"), "{said}");
    assert_eq!(bench.value("mounted", fs_name), "yes");
    assert_eq!(bench.value("keystatus", fs_name), "available");
    bench.cenote(&["zfs", "allow", "-u", &user, "load-key", "tank/home/alice"]);
    bench.as_alice(&["zfs", "unmount", "-u", fs_name]);
    assert_eq!(bench.value("keystatus", fs_name), "unavailable");
    bench.cenote(&["zpool", "export", "tank"]);
}

#[test]
fn the_history_tells_of_who_was_allowed_something() {
    let Some(bench) = home() else { return };
    bench.cenote(&["zfs", "snapshot", "tank/home/alice@one"]);
    let user = ALICE.to_string();
    let request = |command: &str, dry_run| {
        let snapshot = "tank/home/alice@one".to_owned();
        let send = SendRequest { snapshot, dry_run, ..SendRequest::default() };
        let (command, change) = (Some(command.to_owned()), Change::Send(Box::new(send)));
        Request::Change(Box::new(ChangeRequest { command, change }))
    };
    let answer = bench.ask_as_alice(&request("zfs destroy -r tank", true));
    assert!(String::from_utf8_lossy(&answer).contains("Done"), "{answer:?}");
    let history = bench.cenote(&["zpool", "history", "tank"]);
    assert!(!history.contains("destroy -r"), "{history}");
    // Who may send is told of, at no greater length than commands have.
    bench.cenote(&["zfs", "allow", "-u", &user, "send", "tank/home/alice"]);
    bench.ask_as_alice(&request(&format!("zfs send {}", "x".repeat(200_000)), false));
    let history = bench.cenote(&["zpool", "history", "tank"]);
    let line = history.lines().find(|line| line.contains("zfs send x")).unwrap();
    assert!(line.len() < 5000, "{}", line.len());
    bench.cenote(&["zpool", "export", "tank"]);
}

#[test]
fn a_key_that_does_not_come_holds_up_nobody() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    fs::write(bench.at("key"), "a passphrase\n").unwrap();
    let location = format!("keylocation=file://{}", bench.at("key").display());
    let create = ["zfs", "create", "-o", "encryption=on", "-o", "keyformat=passphrase", "-o"];
    bench.cenote(&[&create[..], &[&location, "tank/sealed"]].concat());
    bench.cenote(&["zfs", "unmount", "-u", "tank/sealed"]);
    let load = LoadKeyRequest { dataset: "tank/sealed".into(), check_only: false };
    let request = Change::LoadKey(load).into();
    // Somebody keeps the other end and writes nothing.
    let (pipe, _kept) = std::io::pipe().unwrap();
    let waiting = bench.ask(&request, &[pipe.as_fd()]);
    std::thread::sleep(Duration::from_millis(300));
    let begun = Instant::now();
    bench.cenote(&["zfs", "snapshot", "tank@one"]);
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(3), "{took:?}");
    // What may never answer is not read at all.
    let file = fs::File::open(bench.at("key")).unwrap();
    let refused = bench.ask(&request, &[file.as_fd()]);
    for stream in [waiting, refused] {
        let reply: Reply = Timed::new(&stream, Duration::from_secs(20)).receive().unwrap();
        let Reply::Failed(failure) = reply else { panic!("{reply:?}") };
        assert!(failure.message.contains("Failed to read key material"), "{failure}");
    }
    bench.cenote(&["zfs", "load-key", "tank/sealed"]);
    bench.cenote(&["zpool", "export", "tank"]);
}

#[test]
fn labels_of_spares_and_cache_devices_in_use_stay() {
    let Some((bench, devices)) = Bench::mounting(4) else { return };
    bench.create(&[&devices[0], "spare", &devices[1], "cache", &devices[2]]);
    for (device, kind) in [(&devices[1], "SPARE"), (&devices[2], "L2CACHE")] {
        let before = fs::read(device).unwrap();
        let words = format!("{device} is a member ({kind}) of pool \"tank\"");
        assert_eq!(bench.refused(&["zpool", "labelclear", device]), format!("{words}\n"));
        let said = bench.refused(&["zpool", "labelclear", "-f", device]);
        assert!(said.starts_with(&words), "{said}");
        assert!(fs::read(device).unwrap().starts_with(&before[..256 << 10]), "{kind}");
    }
    bench.cenote(&["zpool", "export", "tank"]);
    bench.cenote(&["zpool", "labelclear", &devices[1]]);
}

#[test]
fn root_imports_a_pool_whose_lock_another_user_took() {
    let Some(bench) = home() else { return };
    let guid = bench.cenote(&["zpool", "get", "-H", "-o", "value", "guid", "tank"]);
    bench.cenote(&["zpool", "export", "tank"]);
    let script = "import os, socket, sys, time
os.setgroups([]); os.setresgid(*[int(sys.argv[2])] * 3); os.setresuid(*[int(sys.argv[2])] * 3)
name = '\\0cenote/pool/' + sys.argv[1]
lock = socket.socket(socket.AF_UNIX)
lock.bind(name)
lock.listen(0)
asked = []
try:
    while True:
        asked.append(socket.socket(socket.AF_UNIX))
        asked[-1].setblocking(False)
        asked[-1].connect(name)
except BlockingIOError:
    print('ready', flush=True)
time.sleep(600)
";
    let mut command = Command::new("python3");
    command.args(["-c", script, guid.trim(), &ALICE.to_string()]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut ready = [0; 6];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut ready).unwrap();
    bench.import();
    end(child);
    bench.cenote(&["zpool", "export", "tank"]);
}
