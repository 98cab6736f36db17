//! A disk image that stops answering: a file on a FUSE mount whose server sleeps, read through the
//! device layer. Unlike a pipe, the kernel cannot take such reads back.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod memory;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cenote_device::{Device, DeviceError, FileDevice, Mode, ReadOp, read_batch};
use cenote_serve::fuse::{MountOptions, mount};
use memory::{MemoryTree, ROOT_INO};

#[test]
fn a_silent_disk_times_out_fails_fast_and_comes_back() {
    let can = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    assert!(can || std::env::var_os("CENOTE_NEED_FUSE").is_none(), "no right to mount");
    if !can {
        eprintln!("not tested: needs root and /dev/fuse");
        return;
    }
    let silence = Duration::from_millis(1500);
    let mut tree = MemoryTree::new();
    let node = tree.file(ROOT_INO, "disk", vec![7u8; 4 << 20]);
    tree.file(ROOT_INO, "other", vec![8u8; 4 << 20]);
    tree.slow = Some((node, silence));
    tree.slow_from = 1 << 20;
    let directory = tempfile::tempdir().unwrap();
    let mounted = mount(Arc::new(tree), MountOptions::new(directory.path(), "disks")).unwrap();
    let open = |name: &str| {
        let path = directory.path().join(name);
        Arc::new(FileDevice::open(path, Mode::ReadOnly).unwrap()) as Arc<dyn Device>
    };
    let (silent, other) = (open("disk"), open("other"));
    let op = |device: &Arc<dyn Device>, offset: u64| ReadOp {
        device: device.clone(),
        offset,
        len: 8192,
    };

    let start = Instant::now();
    let ops = vec![op(&other, 0), op(&silent, 2 << 20), op(&silent, 512), op(&other, 2 << 20)];
    let answers = read_batch(ops, Duration::from_millis(200));
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(200) && took < Duration::from_secs(1), "{took:?}");
    assert_eq!(answers[0].clone().unwrap(), vec![8; 8192]);
    assert!(matches!(answers[1], Err(DeviceError::TimedOut(_))), "{:?}", answers[1]);
    assert_eq!(answers[2].clone().unwrap(), vec![7; 8192]);
    assert_eq!(answers[3].clone().unwrap(), vec![8; 8192]);

    // While the read is out, new ones fail at once; other devices are not affected.
    let start = Instant::now();
    let answers = read_batch(vec![op(&silent, 0), op(&other, 0)], Duration::from_secs(20));
    assert!(matches!(answers[0], Err(DeviceError::Stuck(1))), "{:?}", answers[0]);
    assert!(answers[1].is_ok());
    assert!(start.elapsed() < Duration::from_secs(1));

    // Once it has come back, the device works again by itself.
    let start = Instant::now();
    loop {
        match silent.read(0, 8192) {
            Ok(bytes) => break assert_eq!(bytes, vec![7; 8192]),
            Err(DeviceError::Stuck(_)) => std::thread::sleep(Duration::from_millis(20)),
            Err(error) => panic!("{error}"),
        }
        assert!(start.elapsed() < Duration::from_secs(20), "never came back");
    }
    drop((silent, other));
    mounted.unmount().unwrap();
}
