//! Tests of batched writes and flushes, and of recorded crash states.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::batch::Transport;
use crate::threads::call_on;
use crate::write::{flush_batch_with, send, write_batch_with};
use crate::*;

const LONG: Duration = Duration::from_secs(20);

fn bytes(seed: u64, len: usize) -> Bytes {
    (0..len as u64).map(|i| ((i + seed).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

fn blank(dir: &std::path::Path, size: u64) -> PathBuf {
    let path = dir.join(format!("disk{size}"));
    std::fs::File::create(&path).unwrap().set_len(size).unwrap();
    path
}

fn op(device: &Arc<dyn Device>, offset: u64, data: Bytes) -> WriteOp {
    WriteOp { device: device.clone(), offset, data }
}

#[test]
fn writes_of_any_alignment_are_read_back() {
    for dir in
        [tempfile::tempdir_in("/var/tmp").unwrap(), tempfile::tempdir_in("/dev/shm").unwrap()]
    {
        for transport in [Transport::Best, Transport::Threads] {
            let size = 4 << 20;
            let path = blank(dir.path(), size);
            let device = FileDevice::open(&path, Mode::ReadWrite).unwrap();
            let device: Arc<dyn Device> = Arc::new(device);
            let mut expected = vec![0; size as usize];
            let mut ranges = vec![(0, 4096), (4096, 512), (4608, 8192), (20_000, 3), (30_000, 0)];
            ranges.extend((0..700).map(|i| (65_536 + i * 512, 512)));
            ranges.extend([(1 << 20, 2 << 20), (3 << 20, 1), (size - 4096, 4096)]);
            let ops = ranges.iter().enumerate().map(|(seed, &(offset, len))| {
                // Odd starts in memory.
                let data = bytes(seed as u64, len + 1).slice(1..);
                expected[offset as usize..offset as usize + len].copy_from_slice(&data);
                op(&device, offset, data)
            });
            let ops: Vec<_> = ops.rev().collect();
            for answer in write_batch_with(ops, LONG.into(), transport) {
                answer.unwrap();
            }
            for answer in
                flush_batch_with(&[device.clone(), device.clone()], LONG.into(), transport)
            {
                answer.unwrap();
            }
            assert!(std::fs::read(&path).unwrap() == expected);
            assert!(device.read(0, size as usize).unwrap() == expected);
            std::fs::remove_file(&path).unwrap();
        }
    }
}

#[test]
fn a_durable_write_outlives_a_crash() {
    let sim = Arc::new(SimDevice::new("sim", 8192));
    let file = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = blank(file.path(), 1 << 20);
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(&path, Mode::ReadWrite).unwrap());
    for transport in [Transport::Best, Transport::Threads] {
        let simulated: Arc<dyn Device> = sim.clone();
        let ops = vec![
            op(&simulated, 512, bytes(1, 1024)),
            op(&device, 4096, bytes(2, 8192)),
            op(&device, 20_001, bytes(3, 5)),
        ];
        send(ops, true, LONG.into(), transport).into_iter().for_each(|answer| answer.unwrap());
        // Written later, and lost.
        sim.write(512, &[9; 512]).unwrap();
        sim.crash();
        assert_eq!(sim.read(512, 1024).unwrap(), bytes(1, 1024));
        assert_eq!(device.read(4096, 8192).unwrap(), bytes(2, 8192));
        assert_eq!(device.read(20_001, 5).unwrap(), bytes(3, 5));
    }
}

#[test]
fn each_write_has_its_own_answer() {
    let dir = tempfile::tempdir().unwrap();
    let path = blank(dir.path(), 1 << 20);
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(&path, Mode::ReadWrite).unwrap());
    let reader: Arc<dyn Device> = Arc::new(FileDevice::open(&path, Mode::ReadOnly).unwrap());
    let sim = Arc::new(SimDevice::new("sim", 8192));
    let broken = Arc::new(SimDevice::new("broken", 8192));
    broken.set_health(Health::FailsWrites);
    let (sim, broken): (Arc<dyn Device>, Arc<dyn Device>) = (sim, broken);
    for transport in [Transport::Best, Transport::Threads] {
        let ops = vec![
            op(&device, 4096, bytes(1, 512)),
            op(&device, (1 << 20) - 1, bytes(1, 2)),
            op(&reader, 0, bytes(1, 512)),
            op(&sim, 0, bytes(2, 100)),
            op(&broken, 0, bytes(2, 100)),
        ];
        let answers = write_batch_with(ops, LONG.into(), transport);
        assert!(answers[0].is_ok() && answers[3].is_ok());
        assert!(matches!(answers[1], Err(DeviceError::OutOfRange { .. })));
        assert!(matches!(answers[2], Err(DeviceError::ReadOnly)));
        assert!(matches!(answers[4], Err(DeviceError::Io(_))));
        assert_eq!(sim.read(0, 100).unwrap(), bytes(2, 100));
        let answers = flush_batch_with(
            &[device.clone(), reader.clone(), sim.clone(), broken.clone()],
            LONG.into(),
            transport,
        );
        assert!(answers[0].is_ok() && answers[2].is_ok());
        assert!(matches!(answers[1], Err(DeviceError::ReadOnly)));
        assert!(matches!(answers[3], Err(DeviceError::Io(_))));
    }
}

/// A device whose descriptor is the writing end of a pipe: it takes writes while it is emptied.
#[derive(Debug)]
struct Pipe {
    end: OwnedFd,
    stall: Stall,
}

impl Device for Pipe {
    fn path(&self) -> PathBuf {
        "pipe".into()
    }
    fn size(&self) -> u64 {
        1 << 30
    }
    fn sector_size(&self) -> u32 {
        512
    }
    fn read(&self, _: u64, _: usize) -> Result<Bytes, DeviceError> {
        Err(DeviceError::Gone)
    }
    fn write(&self, _: u64, _: &[u8]) -> Result<(), DeviceError> {
        Err(DeviceError::Gone)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }
    fn raw_writer(&self) -> Option<RawWriter> {
        let buffered = self.end.as_raw_fd();
        Some(RawWriter { direct: None, memory_alignment: 1, buffered })
    }
    fn stall(&self) -> Option<&Stall> {
        Some(&self.stall)
    }
}

#[test]
fn a_silent_device_does_not_hold_up_the_others() {
    let (drain, end) = rustix::pipe::pipe().unwrap();
    let silent: Arc<dyn Device> = Arc::new(Pipe { end, stall: Stall::default() });
    let sim: Arc<dyn Device> = Arc::new(SimDevice::new("sim", 8192));
    let start = Instant::now();
    let deadline = Duration::from_millis(100);
    let ops = vec![op(&silent, 0, bytes(1, 1 << 20)), op(&sim, 0, bytes(1, 100))];
    let mut answers = write_batch_with(ops, deadline.into(), Transport::Best);
    assert!(start.elapsed() >= deadline && start.elapsed() < Duration::from_secs(5));
    assert!(answers.pop().unwrap().is_ok());
    let error = answers.pop().unwrap().unwrap_err();
    // The kernel may give back a write it has done in part.
    assert!(matches!(error, DeviceError::TimedOut(_) | DeviceError::Io(_)), "{error:?}");
    let mut drain = std::fs::File::from(drain);
    let emptied = std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while std::io::Read::read(&mut drain, &mut buffer).unwrap_or(0) > 0 {}
    });
    while silent.stall().unwrap().count() > 0 && start.elapsed() < LONG {
        // Looks after what is overdue.
        write_batch(vec![op(&silent, 0, bytes(1, 1))], deadline);
        std::thread::sleep(Duration::from_millis(1));
    }
    let answers = write_batch(vec![op(&silent, 0, bytes(2, 10))], LONG);
    assert!(answers[0].is_ok(), "{:?}", answers[0]);
    drop(silent);
    emptied.join().unwrap();
}

#[test]
fn an_exclusive_device_is_held() {
    let dir = tempfile::tempdir().unwrap();
    let path = blank(dir.path(), 1 << 20);
    let held = FileDevice::open(&path, Mode::Exclusive).unwrap();
    let error = FileDevice::open(&path, Mode::Exclusive).unwrap_err();
    assert!(matches!(&error, DeviceError::Busy(busy) if *busy == path), "{error:?}");
    assert!(error.to_string().contains(path.to_str().unwrap()));
    FileDevice::open(&path, Mode::ReadOnly).unwrap();
    drop(held);
    FileDevice::open(&path, Mode::Exclusive).unwrap();
}

#[test]
fn a_full_filesystem_fails_the_write_that_does_not_fit() {
    // /dev/full is no device of ours; a limit on the file's size does as well.
    let dir = tempfile::tempdir().unwrap();
    let path = blank(dir.path(), 1 << 20);
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(&path, Mode::ReadWrite).unwrap());
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
    // The file grows again: a shrunk file is written like any other.
    let ops = vec![op(&device, 0, bytes(1, 4096)), op(&device, 8192, bytes(2, 4096))];
    assert!(write_batch(ops, LONG).iter().all(Result::is_ok));
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 12_288);
}

#[test]
fn crash_states_follow_the_record() {
    let sim = SimDevice::new("sim", 8192);
    sim.write(0, &[1; 16]).unwrap();
    sim.record();
    sim.write(0, &[2; 16]).unwrap();
    sim.flush().unwrap();
    sim.write(8, &[3; 16]).unwrap();
    sim.write(4, &[4; 4]).unwrap();
    let events = sim.recorded();
    assert_eq!(events.len(), 4);
    assert!(events.windows(2).all(|pair| pair[0].order < pair[1].order));
    assert!(events[3].order <= SimDevice::newest_order());
    let now = u64::MAX;
    let after = |order, keep: &mut dyn FnMut(&Recorded) -> Keep| {
        sim.after_crash(order, keep).read(0, 8192).unwrap()
    };
    assert_eq!(after(now, &mut |_| Keep::All), sim.read(0, 8192).unwrap());
    let flushed = after(now, &mut |_| Keep::Nothing);
    assert_eq!((&flushed[..16], &flushed[16..24]), ([2; 16].as_slice(), [0; 8].as_slice()));
    let before = after(events[1].order, &mut |_| Keep::Nothing);
    assert_eq!(before[..16], [1; 16]);
    let torn = after(now, &mut |recorded| match &recorded.event {
        SimEvent::Write { offset: 8, .. } => Keep::First(2),
        _ => Keep::AllBut(3),
    });
    assert_eq!(torn[..12], [2, 2, 2, 2, 2, 2, 2, 4, 3, 3, 2, 2]);
    sim.crash();
    assert_eq!(sim.read(0, 16).unwrap().as_ref(), [2; 16]);
}

#[test]
fn copies_of_a_simulated_disk_part_when_written() {
    let size = 200_000;
    let data = bytes(3, size);
    let one = SimDevice::new("one", size);
    one.record();
    one.write(30_000, &data[..100_000]).unwrap();
    let other = one.after_crash(u64::MAX, &mut |_| Keep::All);
    other.write(60_000, &[9; 10]).unwrap();
    one.write(size as u64 - 5, &data[..5]).unwrap();
    assert_eq!(one.read(30_000, 100_000).unwrap(), data.slice(..100_000));
    assert_eq!(other.read(59_999, 12).unwrap()[1..11], [9; 10]);
    assert_eq!(other.read(size as u64 - 5, 5).unwrap(), [0; 5].as_slice());
    assert!(other.read(size as u64 - 5, 6).is_err());
    let mut copy = vec![0; size];
    for (offset, data) in one.written() {
        copy[offset as usize..offset as usize + data.len()].copy_from_slice(&data);
    }
    assert_eq!(copy, one.read(0, size).unwrap());
    assert_eq!(SimDevice::from_bytes("three", copy.clone()).read(0, size).unwrap(), copy);
}

#[test]
fn sequential_writes_are_fast() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let size = 256u64 << 20;
    let path = blank(dir.path(), size);
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(&path, Mode::ReadWrite).unwrap());
    let data = bytes(7, 128 << 10);
    let start = std::time::Instant::now();
    let offsets: Vec<u64> = (0..size).step_by(128 << 10).collect();
    for chunk in offsets.chunks(64) {
        let ops = chunk.iter().map(|&offset| op(&device, offset, data.clone())).collect();
        assert!(write_batch(ops, LONG).iter().all(Result::is_ok));
    }
    device.flush().unwrap();
    let rate = size as f64 / (1 << 20) as f64 / start.elapsed().as_secs_f64();
    println!("{rate:.0} MiB/s written");
    assert_eq!(device.read(size - data.len() as u64, data.len()).unwrap(), data);
}

#[test]
fn nothing_is_written_beside_a_discard_that_is_overdue() {
    let (_drain, end) = rustix::pipe::pipe().unwrap();
    let device: Arc<dyn Device> = Arc::new(Pipe { end, stall: Stall::default() });
    let (ends, ended) = std::sync::mpsc::channel::<()>();
    let discards = move || {
        let _ = ended.recv();
        Ok(())
    };
    let late = call_on(device.clone(), Duration::from_millis(50), discards);
    assert!(matches!(late, Err(DeviceError::TimedOut(_))), "{late:?}");
    let answers = write_batch(vec![op(&device, 0, bytes(1, 10))], LONG);
    assert!(matches!(answers[0], Err(DeviceError::Stuck(1))), "{:?}", answers[0]);
    ends.send(()).unwrap();
    let start = Instant::now();
    while device.stall().unwrap().count() > 0 && start.elapsed() < LONG {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(write_batch(vec![op(&device, 0, bytes(1, 10))], LONG)[0].is_ok());
}
