//! Tests of files, simulated disks and batches, silent devices included.

use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::batch::{Transport, read_batch_with};
use crate::patience::{Patience, Took};
use crate::*;

const LONG: Duration = Duration::from_secs(20);

/// The byte at `offset` of every test file.
fn pattern(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8
}

fn expected(offset: u64, len: usize) -> Vec<u8> {
    (offset..offset + len as u64).map(pattern).collect()
}

fn file_of(dir: &std::path::Path, size: u64) -> PathBuf {
    let path = dir.join(format!("disk{size}"));
    std::fs::write(&path, expected(0, size as usize)).unwrap();
    path
}

fn op(device: &Arc<dyn Device>, offset: u64, len: usize) -> ReadOp {
    ReadOp { device: device.clone(), offset, len }
}

/// A device whose descriptor is the reading end of a pipe: it answers when fed.
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
        Err(DeviceError::ReadOnly)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }
    fn raw(&self) -> Option<RawDevice> {
        Some(RawDevice { descriptor: self.end.as_raw_fd(), alignment: 1 })
    }
    fn stall(&self) -> Option<&Stall> {
        Some(&self.stall)
    }
}

fn pipe() -> (Arc<dyn Device>, std::fs::File) {
    let (end, feed) = rustix::pipe::pipe().unwrap();
    (Arc::new(Pipe { end, stall: Stall::default() }), feed.into())
}

#[test]
fn reads_files_at_any_alignment() {
    for dir in
        [tempfile::tempdir_in("/var/tmp").unwrap(), tempfile::tempdir_in("/dev/shm").unwrap()]
    {
        for size in [1 << 20, 1_000_001u64] {
            let path = file_of(dir.path(), size);
            let device: Arc<dyn Device> =
                Arc::new(FileDevice::open(&path, Mode::ReadOnly).unwrap());
            assert_eq!(device.size(), size);
            assert_eq!(device.path(), path);
            let mut ranges = vec![(0, 4096), (1, 1), (511, 2), (4095, 8194), (size - 1, 1), (0, 0)];
            ranges.extend([(size - 5000, 5000), (0, size as usize), (size, 0), (777, 70_000)]);
            ranges.extend((0..32).map(|i| (i * 8192, 8192)));
            ranges.extend((0..300).map(|i| ((i * 3331) % (size - 700), 700)));
            for transport in [Transport::Best, Transport::Threads] {
                let ops = ranges.iter().map(|&(offset, len)| op(&device, offset, len)).collect();
                let answers = read_batch_with(ops, LONG.into(), transport);
                for (&(offset, len), answer) in ranges.iter().zip(answers) {
                    assert_eq!(answer.unwrap(), expected(offset, len), "{offset}+{len}");
                }
            }
        }
    }
}

#[test]
fn joined_reads_answer_each_with_a_buffer_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let path = file_of(dir.path(), 1 << 20);
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(&path, Mode::ReadOnly).unwrap());
    let ops: Vec<_> = (0..16).rev().map(|i| op(&device, i * 4096, 4096)).collect();
    let reads = ops.iter().enumerate().map(|(i, op)| (i, device.raw().unwrap(), op.clone()));
    let mut results = plan::Results::new(16);
    let runs = plan::plan(reads.collect(), &mut results);
    assert_eq!(runs.len(), 1);
    assert_eq!(runs[0].parts.len(), 16);
    let answers = read_batch(ops, LONG);
    let first = answers[0].clone().unwrap();
    drop(answers);
    assert_eq!(first, expected(15 * 4096, 4096));
}

/// Sending and waiting is one call of the kernel (none where there is no io_uring).
#[test]
fn a_read_is_sent_and_waited_for_in_one_call() {
    let dir = tempfile::tempdir().unwrap();
    let path = file_of(dir.path(), 1 << 20);
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(&path, Mode::ReadOnly).unwrap());
    let before = crate::ring::tests::calls();
    for index in 0..8 {
        let answers = read_batch(vec![op(&device, index * 4096, 4096)], LONG);
        assert_eq!(answers[0].clone().unwrap(), expected(index * 4096, 4096));
    }
    assert!(crate::ring::tests::calls() - before <= 8);
}

#[test]
fn ranges_beyond_the_end_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = file_of(dir.path(), 10_000);
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(&path, Mode::ReadOnly).unwrap());
    let ops = vec![
        op(&device, 9_999, 2),
        op(&device, u64::MAX, 2),
        op(&device, 9_999, 1),
        op(&device, 0, usize::MAX),
    ];
    let answers = read_batch(ops, LONG);
    assert!(matches!(answers[0], Err(DeviceError::OutOfRange { size: 10_000, .. })));
    assert!(matches!(answers[1], Err(DeviceError::OutOfRange { .. })));
    assert_eq!(answers[2].clone().unwrap(), expected(9_999, 1));
    assert!(matches!(answers[3], Err(DeviceError::OutOfRange { .. })));
}

#[test]
fn a_file_that_shrank_gives_errors_not_zeros() {
    let dir = tempfile::tempdir().unwrap();
    let path = file_of(dir.path(), 100_000);
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(&path, Mode::ReadOnly).unwrap());
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(50_000).unwrap();
    for transport in [Transport::Best, Transport::Threads] {
        let ops =
            vec![op(&device, 40_960, 4096), op(&device, 45_056, 8192), op(&device, 90_000, 9)];
        let answers = read_batch_with(ops, LONG.into(), transport);
        assert_eq!(answers[0].clone().unwrap(), expected(40_960, 4096));
        assert!(matches!(answers[1], Err(DeviceError::Io(_))));
        assert!(matches!(answers[2], Err(DeviceError::Io(_))));
    }
}

#[test]
fn a_silent_device_does_not_hold_up_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let path = file_of(dir.path(), 1 << 20);
    let good: Arc<dyn Device> = Arc::new(FileDevice::open(&path, Mode::ReadOnly).unwrap());
    let sim: Arc<dyn Device> = Arc::new(SimDevice::from_bytes("sim", expected(0, 4096)));
    for transport in [Transport::Best, Transport::Threads] {
        let (silent, mut feed) = pipe();
        let start = Instant::now();
        let deadline = Duration::from_millis(100);
        let ops =
            vec![op(&good, 3, 5000), op(&silent, 0, 10), op(&sim, 1, 100), op(&good, 9000, 1)];
        let answers = read_batch_with(ops, deadline.into(), transport);
        assert!(start.elapsed() >= deadline && start.elapsed() < Duration::from_secs(5));
        assert_eq!(answers[0].clone().unwrap(), expected(3, 5000));
        assert!(matches!(answers[1], Err(DeviceError::TimedOut(_))), "{:?}", answers[1]);
        assert_eq!(answers[2].clone().unwrap(), expected(1, 100));
        assert_eq!(answers[3].clone().unwrap(), expected(9000, 1));
        if transport == Transport::Threads {
            // The thread is still in the kernel: fail fast, then recover once it is back.
            assert_eq!(silent.stall().unwrap().count(), 1);
            let start = Instant::now();
            let answers = read_batch_with(vec![op(&silent, 0, 10)], LONG.into(), transport);
            assert!(matches!(answers[0], Err(DeviceError::Stuck(1))));
            assert!(start.elapsed() < Duration::from_secs(5));
            feed.write_all(b"late bytes").unwrap();
            while silent.stall().unwrap().count() > 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        assert_eq!(silent.stall().unwrap().count(), 0, "taken back");
        feed.write_all(b"new bytes!").unwrap();
        let answers = read_batch_with(vec![op(&silent, 0, 10)], LONG.into(), transport);
        assert_eq!(answers[0].clone().unwrap(), b"new bytes!".as_ref());
    }
}

#[test]
fn what_the_kernel_has_no_thread_for_does_not_wait_for_a_silent_device() {
    let dir = tempfile::tempdir().unwrap();
    let path = file_of(dir.path(), 1 << 20);
    let open = || -> Arc<dyn Device> { Arc::new(FileDevice::open(&path, Mode::ReadOnly).unwrap()) };
    let (good, refused) = (open(), open());
    let (silent, _feed) = pipe();
    crate::ring::tests::refuse(Some(&*refused));
    let deadline = Duration::from_millis(300);
    let ops = vec![op(&refused, 3, 5000), op(&silent, 0, 10), op(&good, 9000, 1)];
    let answers = read_batch_with(ops, deadline.into(), Transport::Best);
    crate::ring::tests::refuse(None);
    assert_eq!(answers[0].clone().unwrap(), expected(3, 5000));
    assert!(matches!(answers[1], Err(DeviceError::TimedOut(_))), "{:?}", answers[1]);
    assert_eq!(answers[2].clone().unwrap(), expected(9000, 1));
    assert_eq!(silent.stall().unwrap().count(), 0, "taken back");
}

#[test]
fn who_sends_is_not_held_up_by_a_filesystem() {
    let dir = tempfile::tempdir().unwrap();
    let open = |size| FileDevice::open(file_of(dir.path(), size), Mode::ReadWrite).unwrap();
    let served: Arc<dyn Device> = Arc::new(open(1 << 20).served());
    assert!(served.holds_up_senders());
    let other: Arc<dyn Device> = Arc::new(open(1 << 21));
    let both = [served.clone(), other.clone()];
    let write = |device: &Arc<dyn Device>, offset| {
        let data = Bytes::from(vec![7; 8192]);
        WriteOp { device: device.clone(), offset, data }
    };
    let writes = || both.iter().flat_map(|device| [write(device, 0), write(device, 65_536)]);
    let written = write_batch(writes().collect(), LONG);
    let durable = write_durable(writes().collect(), LONG);
    let flushed = flush_batch(&both, LONG);
    assert!(written.iter().chain(&durable).chain(&flushed).all(Result::is_ok));
    let reads = both.iter().flat_map(|device| [op(device, 0, 9000), op(device, 65_536, 9000)]);
    for (read, from) in read_batch(reads.collect(), LONG).into_iter().zip([0, 65_536, 0, 65_536]) {
        let wanted = [vec![7; 8192], expected(from + 8192, 808)].concat();
        assert_eq!(read.unwrap(), wanted);
    }
    let (sent, held_up) = crate::ring::tests::sent();
    assert_eq!(held_up, 0);
    assert!(sent >= 7 || sent == 0, "{sent}: io_uring, where there is one");
}

#[test]
fn who_can_do_without_a_silent_device_does_not_wait_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = file_of(dir.path(), 1 << 20);
    let good: Arc<dyn Device> = Arc::new(FileDevice::open(&path, Mode::ReadOnly).unwrap());
    for transport in [Transport::Best, Transport::Threads] {
        let (silent, mut feed) = pipe();
        let first = Duration::from_millis(50);
        let ops = vec![op(&good, 3, 5000), op(&silent, 0, 10)];
        let start = Instant::now();
        let enough =
            |done: &dyn Fn(usize) -> bool| done(0).then(|| first.saturating_sub(start.elapsed()));
        let took = Took::default();
        let patience = Patience { deadline: LONG, early: Some(&enough), took: Some(&took) };
        let answers = read_batch_with(ops.clone(), patience, transport);
        assert!(start.elapsed() >= first && start.elapsed() < Duration::from_secs(5));
        assert_eq!(answers[0].clone().unwrap(), expected(3, 5000));
        let in_time = first..Duration::from_secs(5);
        assert!(matches!(&answers[1], Err(DeviceError::TimedOut(time)) if in_time.contains(time)));
        assert!(took.borrow()[0] <= took.borrow()[1] && took.borrow()[1] >= first, "{took:?}");
        if transport == Transport::Threads {
            // It is not asked again by those who can do without it; by others it is.
            let answers = read_batch_with(ops.clone(), patience, transport);
            assert!(matches!(answers[1], Err(DeviceError::Stuck(1))));
            feed.write_all(b"late bytes").unwrap();
        }
        feed.write_all(b"new bytes!").unwrap();
        let answers = read_batch_with(ops, LONG.into(), transport);
        assert_eq!(answers[1].clone().unwrap().len(), 10);
        while silent.stall().unwrap().count() > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        // Where nothing else will do, everybody waits.
        let (silent, mut feed) = pipe();
        let never = |done: &dyn Fn(usize) -> bool| done(0).then_some(Duration::ZERO);
        let patience = Patience { deadline: LONG, early: Some(&never), took: None };
        let late = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            feed.write_all(b"late bytes").unwrap();
        });
        let answers = read_batch_with(vec![op(&silent, 0, 10)], patience, transport);
        assert_eq!(answers[0].clone().unwrap(), b"late bytes".as_ref());
        late.join().unwrap();
    }
}

#[test]
fn many_silent_reads_do_not_use_up_the_threads() {
    let (silent, feed) = pipe();
    let ops: Vec<_> = (0..64).map(|i| op(&silent, i * 1_000_000, 10)).collect();
    let answers = read_batch_with(ops, Duration::from_millis(50).into(), Transport::Threads);
    assert!(answers.iter().all(|answer| matches!(answer, Err(DeviceError::TimedOut(_)))));
    let dir = tempfile::tempdir().unwrap();
    let path = file_of(dir.path(), 1 << 16);
    let good: Arc<dyn Device> = Arc::new(FileDevice::open(&path, Mode::ReadOnly).unwrap());
    let answers = read_batch_with(vec![op(&good, 0, 10)], LONG.into(), Transport::Threads);
    assert_eq!(answers[0].clone().unwrap(), expected(0, 10));
    drop(feed);
    while silent.stall().unwrap().count() > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn more_reads_than_the_ring_holds() {
    let dir = tempfile::tempdir().unwrap();
    let path = file_of(dir.path(), 1 << 20);
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(&path, Mode::ReadOnly).unwrap());
    let ops: Vec<_> = (0..2000).map(|i| op(&device, (i * 7919) % 1_000_000, 600)).collect();
    let answers = read_batch(ops.clone(), LONG);
    for (op, answer) in ops.iter().zip(answers) {
        assert_eq!(answer.unwrap(), expected(op.offset, 600));
    }
}

#[test]
fn odd_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    assert!(matches!(FileDevice::open(&fifo, Mode::ReadOnly), Err(DeviceError::Io(_))));
    assert!(matches!(FileDevice::open(dir.path(), Mode::ReadOnly), Err(DeviceError::Io(_))));
    assert!(FileDevice::open(dir.path().join("none"), Mode::ReadOnly).is_err());
}

#[test]
fn writes_are_seen_and_read_only_refuses() {
    let dir = tempfile::tempdir().unwrap();
    let path = file_of(dir.path(), 10_000);
    let device = FileDevice::open(&path, Mode::ReadWrite).unwrap();
    device.write(5, b"hello").unwrap();
    assert_eq!(device.read(4, 7).unwrap()[1..6], *b"hello");
    device.flush().unwrap();
    assert!(matches!(device.write(9_999, b"ab"), Err(DeviceError::OutOfRange { .. })));
    let other = FileDevice::open(&path, Mode::ReadOnly).unwrap();
    assert!(matches!(other.write(0, b"x"), Err(DeviceError::ReadOnly)));
    device.lock().unwrap();
    assert!(other.lock().is_err());
    drop(device);
    other.lock().unwrap();
}

#[test]
fn simulated_faults() {
    let sim = SimDevice::from_bytes("sim", expected(0, 8192));
    sim.corrupt_range(100..110, 0xff);
    let bytes = sim.read(90, 30).unwrap();
    assert_eq!(bytes[..10], expected(90, 10));
    assert_eq!(bytes[10], !pattern(100));
    assert_eq!(bytes[20..], expected(110, 10));
    sim.fail_range(4096..4097);
    assert!(matches!(sim.read(4000, 97), Err(DeviceError::Io(_))));
    assert!(sim.read(4000, 96).is_ok());
    sim.write(4096, &[1, 2]).unwrap();
    assert_eq!(sim.read(4096, 2).unwrap().as_ref(), [1, 2]);
    sim.crash();
    assert_eq!(sim.read(4096, 2).unwrap(), expected(4096, 2));
    sim.write(0, &[9; 4]).unwrap();
    sim.flush().unwrap();
    sim.tear_next_write(2);
    sim.write(0, &[7; 4]).unwrap();
    assert_eq!(sim.read(0, 4).unwrap().as_ref(), [7, 7, 9, 9]);
    sim.crash();
    assert_eq!(sim.read(0, 4).unwrap().as_ref(), [9; 4]);
    sim.lose_writes(true);
    sim.write(0, &[1; 4]).unwrap();
    assert_eq!(sim.read(0, 4).unwrap().as_ref(), [9; 4]);
    sim.set_health(Health::Hangs);
    assert!(matches!(sim.read(0, 4), Err(DeviceError::TimedOut(_))));
    sim.set_health(Health::Gone);
    assert!(matches!(sim.read(0, 4), Err(DeviceError::Gone)));
    sim.set_health(Health::FailsReads);
    assert!(matches!(sim.read(0, 4), Err(DeviceError::Io(_))));
    sim.heal();
    assert_eq!(sim.read(0, 4).unwrap().as_ref(), [9; 4]);
}

#[test]
fn a_file_that_grew_is_measured_and_lets_go_of_what_it_held() {
    use std::os::unix::fs::MetadataExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("d");
    std::fs::write(&path, vec![7; 1 << 20]).unwrap();
    let device = FileDevice::open(&path, Mode::Exclusive).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(2 << 20).unwrap();
    assert_eq!((device.size(), device.measure(), device.size()), (1 << 20, 2 << 20, 2 << 20));
    let before = std::fs::metadata(&path).unwrap().blocks();
    match device.trim(0, 512 << 10) {
        Ok(()) => {
            assert!(device.read(0, 4096).unwrap().iter().all(|byte| *byte == 0));
            assert!(std::fs::metadata(&path).unwrap().blocks() < before);
        }
        // Not every filesystem makes holes.
        Err(error) => eprintln!("no holes here: {error}"),
    }
    assert_eq!(device.read(512 << 10, 1).unwrap()[0], 7);
    assert!(matches!(device.trim(2 << 20, 1), Err(DeviceError::OutOfRange { .. })));
    let reader = FileDevice::open(&path, Mode::ReadOnly).unwrap();
    assert!(matches!(reader.trim(0, 4096), Err(DeviceError::ReadOnly)));
}
