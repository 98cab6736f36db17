//! A pool process that others keep busy, or that has no room for its log.
//!
//! Invariant: it lives, answers those who own it, and exports when it is told to end.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{Bench, noise, write_synced};

/// Connects so many times, says so, and is silent.
const SILENT: &str = "
import socket, sys, time
all = []
for _ in range(int(sys.argv[2])):
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    one.connect(sys.argv[1])
    all.append(one)
print('there', flush=True)
time.sleep(60)
";

impl Bench {
    fn pid(&self) -> String {
        let pid = std::fs::read_to_string(self.at("run/tank.pid")).unwrap();
        pid.split_whitespace().next().unwrap().to_owned()
    }
}

#[test]
fn a_pool_whose_log_has_no_room_lives_on() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    let run = bench.at("run");
    std::fs::create_dir(&run).unwrap();
    let small = ["-t", "tmpfs", "-o", "size=512k,mode=755", "tmpfs"];
    if !Command::new("mount").args(small).arg(&run).status().is_ok_and(|done| done.success()) {
        eprintln!("not tested: no small filesystem can be mounted");
        return;
    }
    bench.create(&[&devices[0]]);
    let pid = bench.pid();
    for name in ["rest", "tank.log"] {
        let file = std::fs::File::options().append(true).create(true).open(run.join(name));
        let mut file = file.unwrap();
        while file.write_all(b"\n").is_ok() {}
    }
    for number in 0..20 {
        bench.cenote(&["zfs", "create", &format!("tank/f{number}")]);
        let place = bench.at("mnt/tank").join(format!("f{number}/file"));
        write_synced(&place, &noise(50_000, number));
        assert_eq!(std::fs::read(place).unwrap(), noise(50_000, number));
    }
    assert!(bench.cenote(&["zpool", "status", "tank"]).contains("state: ONLINE"));
    assert_eq!(bench.pid(), pid);
    // It says "exporting" there, too.
    assert!(Command::new("kill").arg(&pid).status().unwrap().success());
    let start = Instant::now();
    while run.join("tank.pid").exists() {
        assert!(start.elapsed() < Duration::from_secs(20), "it does not end");
        std::thread::sleep(Duration::from_millis(50));
    }
    std::fs::remove_file(run.join("rest")).unwrap();
    bench.zdb();
}

#[test]
fn who_connects_and_says_nothing_is_in_nobodys_way() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    let open = |path| std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755));
    open(bench.at("")).unwrap();
    let socket = bench.at("run/tank.sock");
    let mut silent = Command::new("python3");
    silent.args(["-c", SILENT]).arg(&socket).arg("200").stdout(Stdio::piped());
    let Ok(mut silent) = silent.uid(65534).spawn() else {
        eprintln!("not tested: no program can be run as somebody else");
        return;
    };
    let mut said = std::io::BufReader::new(silent.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut said, &mut line).unwrap();
    assert_eq!(line.trim(), "there");
    let start = Instant::now();
    assert!(bench.cenote(&["zpool", "status", "tank"]).contains("state: ONLINE"));
    bench.cenote(&["zfs", "create", "tank/new"]);
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    silent.kill().unwrap();
    silent.wait().unwrap();

    // Who owns it may shut himself out, but it ends when it is told to.
    write_synced(&bench.at("mnt/tank/file"), b"content");
    let own: Vec<UnixStream> = (0..300).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    let start = Instant::now();
    assert!(Command::new("kill").arg(bench.pid()).status().unwrap().success());
    while bench.at("run/tank.pid").exists() {
        assert!(start.elapsed() < Duration::from_secs(4), "it does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(own);
    let log = std::fs::read_to_string(bench.at("run/tank.log")).unwrap();
    assert!(log.contains("Exported") && !log.contains("without exporting"), "{log}");
    bench.zdb();
}
