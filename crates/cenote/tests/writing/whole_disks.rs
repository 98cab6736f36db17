//! Pools on whole disks: partitioned loop devices stand in for disks. Skipped with the reason where
//! there are none.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{Bench, may_not_run, noise};

/// Bytes of a disk.
const SIZE: u64 = 160 << 20;

/// A loop device whose partitions the kernel shows; detached at the end.
struct Disk {
    path: String,
    _image: tempfile::TempDir,
}

impl Disk {
    fn new() -> Result<Disk, String> {
        let image = tempfile::tempdir().unwrap();
        let file = image.path().join("image");
        std::fs::File::create(&file).unwrap().set_len(SIZE).unwrap();
        let output = Command::new("losetup")
            .args(["--partscan", "--find", "--show"])
            .arg(&file)
            .output()
            .map_err(|error| format!("skipped: losetup: {error}"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(format!("skipped: no loop device: {said}"));
        }
        let path = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Ok(Disk { path, _image: image })
    }

    fn name(&self) -> &str {
        self.path.trim_start_matches("/dev/")
    }

    fn part(&self, number: u32) -> String {
        format!("{}p{number}", self.path)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.path]).status();
    }
}

/// Two disks and a place to work; none, with a word on why, where there are no loop devices.
fn prepared() -> Option<(Disk, Disk, Bench)> {
    if may_not_run() {
        return None;
    }
    let disks = Disk::new().and_then(|disk| Ok((disk, Disk::new()?)));
    let (disk, other) = disks.inspect_err(|reason| eprintln!("{reason}")).ok()?;
    Some((disk, other, Bench::new(0)))
}

impl Bench {
    /// Runs a command that takes loop devices for whole disks; success and what it said.
    fn whole(&self, arguments: &[&str]) -> (bool, String) {
        let mut command = self.command(arguments);
        command.env("CENOTE_WHOLE_DISKS", "loop");
        let ended = AtomicBool::new(false);
        let output = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    show_partitions(arguments);
                    std::thread::sleep(Duration::from_millis(50));
                }
            });
            let output = command.output().unwrap();
            ended.store(true, Ordering::Relaxed);
            output
        });
        show_partitions(arguments);
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        (output.status.success(), text)
    }

    fn done(&self, arguments: &[&str]) -> String {
        let (well, text) = self.whole(arguments);
        assert!(well, "{arguments:?}: {text}");
        text
    }

    fn not_done(&self, arguments: &[&str]) -> String {
        let (well, text) = self.whole(arguments);
        assert!(!well, "{arguments:?} was done: {text}");
        text
    }
}

/// Tells the kernel of the partitions of the loop devices among `arguments`: some kernels do not
/// read GPT by themselves. Changes nothing where they do.
fn show_partitions(arguments: &[&str]) {
    let disks = arguments.iter().map(|word| word.trim_start_matches("/dev/"));
    let is_disk =
        |word: &&str| word.strip_prefix("loop").is_some_and(|number| number.parse::<u32>().is_ok());
    for disk in disks.filter(is_disk) {
        let _ = Command::new("partx").args(["--add", &format!("/dev/{disk}")]).output();
    }
}

/// What the kernel says of a partition: its first sector and number of sectors.
fn extent(disk: &Disk, number: u32) -> (u64, u64) {
    let place = PathBuf::from("/sys/class/block").join(format!("{}p{number}", disk.name()));
    let value = |name| std::fs::read_to_string(place.join(name)).unwrap().trim().parse().unwrap();
    (value("start"), value("size"))
}

#[test]
fn whole_disks_are_partitioned_and_named_without_the_partition() {
    let Some((disk, other, bench)) = prepared() else { return };
    let mnt = bench.at("mnt").display().to_string();
    let (name, other_name) = (disk.name(), other.name());
    let layout = bench.done(&["zpool", "create", "-n", "whole", &disk.path]);
    assert!(layout.ends_with(&format!("\twhole\n\t  {name}\n")), "{layout}");
    assert!(!std::path::Path::new(&disk.part(1)).exists());
    bench.done(&["zpool", "create", "-R", &mnt, "whole", &disk.path]);
    // 160 MiB: what is left between 2048 sectors and the reserved 8 MiB, in whole MiB.
    assert_eq!(extent(&disk, 1), (2048, 150 * 2048));
    assert_eq!(extent(&disk, 9), (151 * 2048, 16_384));
    let files: Vec<Vec<u8>> = (0..6).map(|seed| noise(700_000, seed)).collect();
    let at = |number: usize| bench.at("mnt/whole").join(format!("f{number}"));
    for (number, bytes) in files.iter().enumerate().take(3) {
        std::fs::write(at(number), bytes).unwrap();
    }
    bench.done(&["zpool", "add", "whole", other_name]);
    for (number, bytes) in files.iter().enumerate().skip(3) {
        std::fs::write(at(number), bytes).unwrap();
    }
    let status = bench.done(&["zpool", "status", "whole"]);
    assert!(status.contains(&format!("\t  {name}   ")), "{status}");
    assert!(status.contains(&format!("\t  {other_name}   ")), "{status}");
    let status = bench.done(&["zpool", "status", "-P", "whole"]);
    assert!(status.contains(&format!("\t  {}  ", disk.part(1))), "{status}");
    let list = bench.done(&["zpool", "list", "-v", "whole"]);
    assert!(list.contains(&format!("  {name}   ")), "{list}");
    let held = format!("{} is in use and contains a unknown filesystem.", disk.path);
    for force in ["-n", "-fn"] {
        let said = bench.not_done(&["zpool", "create", force, "again", &disk.path]);
        assert!(said.contains(&held), "{said}");
    }
    let said = bench.not_done(&["zpool", "labelclear", name]);
    assert!(said.contains(&format!("{} is a member (ACTIVE)", disk.part(1))), "{said}");
    bench.done(&["zpool", "clear", "whole", name]);
    bench.done(&["zpool", "export", "whole"]);
    let labels = bench.done(&["zdb", "-l", name]);
    let facts = [format!("path: '{}'", disk.part(1)), "whole_disk: 1".to_owned()];
    assert!(facts.iter().all(|fact| labels.contains(fact)), "{labels}");
    bench.not_done(&["zdb", "-l", &disk.path]);
    let said = bench.not_done(&["zpool", "create", "-n", "again", &disk.path]);
    assert!(said.contains(&format!("{} is part of exported pool 'whole'", disk.part(1))), "{said}");
    show_partitions(&[name, other_name]);
    if let Ok(zdb) = Command::new("zdb").args(["-e", "-bcc", "-p", "/dev", "whole"]).output() {
        let text = String::from_utf8_lossy(&zdb.stdout).into_owned()
            + &String::from_utf8_lossy(&zdb.stderr);
        assert!(zdb.status.success() && text.contains("No leaks"), "{text}");
    }
    bench.done(&["zpool", "import", "-d", "/dev", "-R", &mnt, "whole"]);
    for (number, bytes) in files.iter().enumerate() {
        assert!(std::fs::read(at(number)).unwrap() == *bytes, "f{number} differs");
    }
    let status = bench.done(&["zpool", "status", "whole"]);
    assert!(status.contains(&format!("\t  {name}   ")), "{status}");
    // What was destroyed is free again.
    bench.done(&["zpool", "destroy", "whole"]);
    bench.done(&["zpool", "create", "-R", &mnt, "whole", "mirror", name, &other.path]);
    bench.done(&["zpool", "destroy", "whole"]);
}

#[test]
fn what_is_on_a_disk_is_refused() {
    let Some((disk, other, bench)) = prepared() else { return };
    let mnt = bench.at("mnt").display().to_string();
    let create = ["zpool", "create", "-R", mnt.as_str(), "divided", disk.path.as_str()];
    let forced = ["zpool", "create", "-f", "-R", mnt.as_str(), "divided", disk.path.as_str()];
    // A filesystem on the disk itself.
    let mut image = vec![0; 2 << 20];
    image[1080..1082].copy_from_slice(&[0x53, 0xef]);
    let put = |bytes: &[u8]| {
        use std::os::unix::fs::FileExt;
        let file = std::fs::File::options().write(true).open(&disk.path).unwrap();
        file.write_all_at(bytes, 0).unwrap();
        file.sync_all().unwrap();
    };
    put(&image);
    let advice = "use '-f' to override the following errors:";
    let said = bench.not_done(&create);
    let words = format!("{} contains a filesystem of type 'ext2'", disk.path);
    assert!(said.contains(advice) && said.contains(&words), "{said}");
    bench.done(&forced);
    bench.done(&["zpool", "destroy", "divided"]);
    // A table whose first copy was lost.
    put(&[0; 4096]);
    let said = bench.not_done(&create);
    let words = format!("{} contains a corrupt primary EFI label.", disk.path);
    assert!(said.contains(advice) && said.contains(&words), "{said}");
    // Taken as it is, as OpenZFS takes loop devices: labels lie on the device.
    let output = bench.output(&["zpool", "create", "-f", "-R", &mnt, "plain", &disk.path]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let status = bench.cenote(&["zpool", "status", "-P", "plain"]);
    assert!(status.contains(&format!("\t  {}  ", disk.path)), "{status}");
    bench.cenote(&["zpool", "export", "plain"]);
    assert!(bench.cenote(&["zdb", "-l", &disk.path]).contains("whole_disk: 0"));
    // Those labels are gone when the disk is divided.
    bench.not_done(&create);
    bench.done(&forced);
    bench.done(&["zpool", "export", "divided"]);
    bench.not_done(&["zdb", "-l", &disk.path]);
    let found = bench.done(&["zpool", "import", "-d", "/dev"]);
    assert!(found.contains("pool: divided\n") && !found.contains("pool: plain\n"), "{found}");
    // A partition is no whole disk.
    bench.done(&["zpool", "create", "-f", "-R", &mnt, "part", &disk.part(1)]);
    let status = bench.done(&["zpool", "status", "part"]);
    assert!(status.contains(&format!("\t  {}p1  ", disk.name())), "{status}");
    bench.done(&["zpool", "destroy", "part"]);
    assert!(bench.done(&["zdb", "-l", &disk.part(1)]).contains("whole_disk: 0"));
    bench.done(&["zpool", "labelclear", "-f", disk.name()]);
    bench.not_done(&["zdb", "-l", disk.name()]);
    // A disk and a partition of it are not two devices.
    let said = bench.not_done(&["zpool", "create", "divided", &disk.path, &disk.part(1)]);
    assert!(said.contains("refer to the same device"), "{said}");
    drop(other);
}
