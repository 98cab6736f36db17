//! Tests of the write pipeline: what it writes is read back by the reading half.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use cenote_codec::checksum::Salt;
use cenote_codec::compress::{Method, ZstdLevel};
use cenote_device::{Device, SimDevice};
use cenote_format::config::{TopLevel, VdevConfig, VdevKind};
use cenote_format::{BlockPointer, Dva, Guid, Level, ObjectId, ObjectType, Txg};
use parking_lot::Mutex;

use super::*;
use crate::alloc::{AllocRequest, Dvas};
use crate::vdev::{BlockWrite, VdevTree};

const DISKS: u32 = 3;
const UNIT: u64 = 4096;

/// Three disks, an allocator that never reuses anything, writes that are done at once.
pub(crate) struct Bench {
    pub(crate) pipe: Arc<Pipe>,
    pub(crate) writer: BlockWriter,
    pub(crate) space: Arc<Space>,
    sink: Arc<Sink>,
    disks: Vec<Arc<SimDevice>>,
}

pub(crate) struct Space {
    next: Mutex<[u64; DISKS as usize]>,
    /// Longest run that can be had.
    pub(crate) longest: AtomicU64,
    /// Bytes that can be had in all.
    pub(crate) left: AtomicU64,
    pub(crate) used: Mutex<BTreeMap<(u32, u64), u64>>,
}

impl Addresses for Space {
    fn allocate(&self, request: &AllocRequest) -> Result<Dvas> {
        let asize = request.psize.next_multiple_of(UNIT);
        let all = asize * u64::from(request.copies);
        if asize > self.longest.load(Relaxed) || all > self.left.load(Relaxed) {
            return Err(Error::new(ErrorKind::NoSpace, "no run of that size"));
        }
        self.left.fetch_sub(all, Relaxed);
        let mut next = self.next.lock();
        let mut dvas = Dvas::new();
        for vdev in 0..u32::from(request.copies) {
            let at = &mut next[vdev as usize];
            dvas.push(Dva { vdev, offset: *at, asize, gang: false });
            self.used.lock().insert((vdev, *at), asize);
            *at += asize;
        }
        Ok(dvas)
    }

    fn unallocate(&self, dva: &Dva, _txg: Txg) {
        self.left.fetch_add(dva.asize, Relaxed);
        assert_eq!(self.used.lock().remove(&(dva.vdev, dva.offset)), Some(dva.asize));
    }
}

struct Sink {
    disks: Vec<Arc<SimDevice>>,
    writes: AtomicU64,
    /// Writes are kept back while this is some.
    held: Mutex<Option<BTreeMap<(u32, u64), Bytes>>>,
}

impl Submit for Sink {
    fn submit(&self, write: BlockWrite) -> Result<()> {
        assert!(write.data.len().is_multiple_of(512));
        self.writes.fetch_add(1, Relaxed);
        if let Some(held) = &mut *self.held.lock() {
            held.insert((write.vdev, write.offset), write.data);
            return Ok(());
        }
        self.disks[write.vdev as usize].write((4 << 20) + write.offset, &write.data).unwrap();
        Ok(())
    }

    fn pending(&self, vdev: u32, offset: u64) -> Option<Bytes> {
        self.held.lock().as_ref()?.get(&(vdev, offset)).cloned()
    }
}

impl Bench {
    pub(crate) fn new() -> Self {
        let disks: Vec<Arc<SimDevice>> =
            (0..DISKS).map(|disk| Arc::new(SimDevice::new(disk.to_string(), 80 << 20))).collect();
        let top = TopLevel { ashift: 12, ..TopLevel::default() };
        let leaf = |id: u32| VdevConfig {
            kind: VdevKind::File,
            guid: Guid(u64::from(id)),
            top: Some(top),
            ..VdevConfig::default()
        };
        let root = VdevConfig {
            kind: VdevKind::Root,
            guid: Guid(99),
            children: Some((0..DISKS).map(leaf).collect()),
            ..VdevConfig::default()
        };
        let all = disks.clone();
        let opener =
            move |leaf: &VdevConfig| Ok(all[leaf.guid.0 as usize].clone() as Arc<dyn Device>);
        let tree = VdevTree::build(&root, Arc::new(opener)).unwrap();
        let pipe = Pipe::new(Arc::new(tree), 64 << 20);
        let space = Arc::new(Space {
            next: Mutex::new([0; DISKS as usize]),
            longest: AtomicU64::new(u64::MAX),
            left: AtomicU64::new(u64::MAX),
            used: Mutex::default(),
        });
        let sink = Arc::new(Sink {
            disks: disks.clone(),
            writes: AtomicU64::new(0),
            held: Mutex::default(),
        });
        let salt = Salt::new([7; 32]);
        pipe.set_salt(salt.clone());
        let rules =
            Rules { features: WriteFeatures::ALL, units: AllocationUnits::of([UNIT; 3]), salt };
        let writer = BlockWriter {
            addresses: space.clone(),
            submit: sink.clone(),
            workers: Workers::with_threads(2).unwrap(),
            rules: Arc::new(rules),
            dedup: None,
        };
        Self { pipe, writer, space, sink, disks }
    }

    fn writes(&self) -> u64 {
        self.sink.writes.load(Relaxed)
    }

    pub(crate) fn write(&self, txg: u64, pass: u32, request: BlockToWrite) -> Result<Written> {
        self.pipe.write_many(&self.writer, Txg(txg), pass, vec![request]).pop().unwrap()
    }

    /// What the disks hold, past the cache.
    pub(crate) fn read(&self, bp: &BlockPointer, context: &ReadContext) -> Result<Bytes> {
        self.pipe.forget(&[*bp]);
        self.pipe.read(bp, context)
    }

    fn holds(&self, bp: &BlockPointer, data: &[u8]) {
        assert_eq!(self.read(bp, &ReadContext::default()).unwrap(), data, "{bp:?}");
    }
}

/// Bytes that do not compress.
pub(crate) fn noise(seed: u64, len: usize) -> Bytes {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..len.div_ceil(8)).flat_map(|_| next().to_le_bytes()).take(len).collect()
}

/// Bytes that compress to about the part `num/16`.
pub(crate) fn text(seed: u64, len: usize, num: usize) -> Bytes {
    let mut data = noise(seed, len).to_vec();
    for chunk in data.chunks_mut(256) {
        let keep = (chunk.len() * num / 16).min(chunk.len());
        chunk[keep..].fill(b'x');
    }
    Bytes::from(data)
}

pub(crate) fn file(data: Bytes) -> BlockToWrite {
    block(ObjectType::PLAIN_FILE, 0, data)
}

pub(crate) fn block(object_type: ObjectType, level: u8, data: Bytes) -> BlockToWrite {
    let set = ObjsetPolicy { copies: 1, ..ObjsetPolicy::mos() };
    let kind = BlockKind::new(object_type, level);
    BlockToWrite {
        data,
        policy: set.block(&kind, &WriteFeatures::ALL).unwrap(),
        old: BlockPointer::HOLE,
        fill: 1,
        place: BlockPlace { objset: 21, object: ObjectId(5), block: 3 },
        keep: false,
    }
}

#[test]
fn every_compression_and_checksum_reads_back() {
    let bench = Bench::new();
    let fast = ZstdLevel::from_number(-5).unwrap();
    let methods = [
        Method::Lzjb,
        Method::Gzip(6),
        Method::Zle,
        Method::Lz4,
        Method::Zstd(ZstdLevel::DEFAULT),
        Method::Zstd(fast),
    ];
    let compressions: Vec<Compression> = [Compression::Off, Compression::Holes]
        .into_iter()
        .chain(methods.map(Compression::With))
        .collect();
    let mut requests = Vec::new();
    for compression in compressions {
        for checksum in [2, 6, 7, 8, 10, 11, 12, 13, 14] {
            for (seed, size) in [(1, 512), (2, 4096), (3, 12_800), (4, 128 << 10)] {
                let mut request = file(text(seed, size, 5));
                request.policy.compression = compression;
                request.policy.checksum = checksum_from_property(checksum).unwrap();
                request.policy.copies = 1 + (seed % 3) as u8;
                requests.push(request);
            }
        }
    }
    let written = bench.pipe.write_many(&bench.writer, Txg(7), 1, requests.clone());
    assert_eq!(written.len(), requests.len());
    let mut end = 0;
    for (request, written) in requests.iter().zip(written) {
        let Written { pointer: bp, replaced } = written.unwrap();
        assert_eq!(replaced, Replaced::Old);
        assert_eq!((bp.logical_birth(), bp.words[9]), (Txg(7), 0));
        assert_eq!(bp.lsize(), request.data.len() as u64);
        assert_eq!(bp.dvas().count(), usize::from(request.policy.copies));
        assert_eq!(bp.checksum_id(), request.policy.checksum.id());
        bench.holds(&bp, &request.data);
        // Addresses follow the order of the requests.
        let at = bp.first_dva().unwrap().offset;
        assert!(at >= end);
        end = at;
        if let (Compression::With(method), 131_072) = (request.policy.compression, bp.lsize())
            && method != Method::Zle
        {
            assert_eq!(bp.compression(), method.algorithm().id());
            assert!(bp.psize() < 64 << 10, "{bp:?}");
        }
        assert!(bp.psize() == bp.lsize() || bp.psize().is_multiple_of(UNIT));
    }
}

#[test]
fn a_large_batch_keeps_its_order() {
    let bench = Bench::new();
    let requests: Vec<BlockToWrite> = (0..150)
        .map(|seed| match seed % 10 {
            3 => file(Bytes::from(vec![0; 128 << 10])),
            5 => file(noise(seed, 1 << 20)),
            _ => file(text(seed, 128 << 10, 9)),
        })
        .collect();
    let written = bench.pipe.write_many(&bench.writer, Txg(9), 1, requests.clone());
    let mut end = 0;
    for (request, written) in requests.iter().zip(written) {
        let bp = written.unwrap().pointer;
        bench.holds(&if bp.is_hole() { sized_hole(request) } else { bp }, &request.data);
        if let Some(dva) = bp.first_dva() {
            assert_eq!(dva.offset, end);
            end += dva.asize;
        }
    }
}

fn sized_hole(request: &BlockToWrite) -> BlockPointer {
    let lsize = request.data.len() as u64;
    BlockPointer::hole_born(lsize, ObjectType::PLAIN_FILE, Level(0), Txg(1)).unwrap()
}

#[test]
fn zeros_become_holes_born_when_they_replace_something() {
    let bench = Bench::new();
    let zeros = file(Bytes::from(vec![0; 8192]));
    assert_eq!(bench.write(5, 1, zeros.clone()).unwrap().pointer, BlockPointer::HOLE);
    let old = bench.write(5, 1, file(noise(1, 8192))).unwrap().pointer;
    let over = BlockToWrite { old, ..zeros.clone() };
    let hole = bench.write(6, 1, over.clone()).unwrap();
    let born = BlockPointer::hole_born(8192, ObjectType::PLAIN_FILE, Level(0), Txg(6)).unwrap();
    assert_eq!(hole, Written { pointer: born, replaced: Replaced::Old });
    let again = BlockToWrite { old: born, ..zeros.clone() };
    assert_eq!(bench.write(8, 1, again).unwrap().pointer.logical_birth(), Txg(8));
    // Without compression zeros are data.
    let mut stored = zeros;
    stored.policy.compression = Compression::Off;
    let bp = bench.write(6, 1, stored).unwrap().pointer;
    assert!(!bp.is_hole());
    bench.holds(&bp, &[0; 8192]);
    // Without the feature holes have no birth.
    let mut rules = (*bench.writer.rules).clone();
    rules.features.hole_birth = false;
    let writer = BlockWriter { rules: Arc::new(rules), ..bench.writer.clone() };
    let written = bench.pipe.write_many(&writer, Txg(6), 1, vec![over]).pop().unwrap();
    assert_eq!(written.unwrap().pointer, BlockPointer::HOLE);
    // An indirect block with nothing but holes is one itself.
    let child = BlockPointer::hole_born(8192, ObjectType::PLAIN_FILE, Level(0), Txg(6)).unwrap();
    let mut holes = vec![0; 4096];
    holes[..128].copy_from_slice(&child.encode());
    let mut indirect = block(ObjectType::PLAIN_FILE, 1, Bytes::from(holes));
    indirect.old = old;
    let bp = bench.write(7, 1, indirect).unwrap().pointer;
    assert!(bp.is_hole());
    assert_eq!((bp.level(), bp.lsize(), bp.logical_birth()), (Level(1), 4096, Txg(7)));
}

#[test]
fn small_results_lie_in_the_pointer() {
    let bench = Bench::new();
    let mut data = vec![0; 16384];
    data[100] = 1;
    let small = Bytes::from(data);
    let zap = block(ObjectType(0xc4), 0, small.clone());
    let bp = bench.write(5, 1, zap.clone()).unwrap().pointer;
    assert!(bp.is_embedded() && bp.dvas().count() == 0, "{bp:?}");
    assert_eq!(
        (bp.lsize(), bp.object_type(), bp.logical_birth()),
        (16384, ObjectType(0xc4), Txg(5))
    );
    bench.holds(&bp, &small);
    assert_eq!(bench.writes(), 0);
    // Dnodes, object sets, indirect blocks and the blocks of pools without the feature never.
    let dnodes = block(ObjectType::DNODE, 0, small.clone());
    assert!(!bench.write(5, 1, dnodes).unwrap().pointer.is_embedded());
    let mut plain = zap;
    plain.policy.embed = false;
    assert!(!bench.write(5, 1, plain).unwrap().pointer.is_embedded());
    // A 512-byte block too small to save a whole unit can still be embedded.
    let tiny = Bytes::from([[1; 256], [0; 256]].concat());
    let bp = bench.write(5, 1, block(ObjectType(0xc4), 0, tiny.clone())).unwrap().pointer;
    assert!(bp.is_embedded());
    bench.holds(&bp, &tiny);
}

#[test]
fn later_passes_rewrite_in_place() {
    let bench = Bench::new();
    let zap = |seed, num| block(ObjectType(0xc4), 0, text(seed, 65536, num));
    let first = bench.write(5, 1, zap(1, 6)).unwrap().pointer;
    let rewrite = |txg, pass, old, seed, num| {
        let request = BlockToWrite { old, ..zap(seed, num) };
        (bench.write(txg, pass, request.clone()).unwrap(), request.data)
    };
    // Smaller: same addresses, same size.
    let (smaller, data) = rewrite(5, 2, first, 2, 2);
    assert_eq!(smaller.replaced, Replaced::InPlace);
    assert_eq!(smaller.pointer.words[..6], first.words[..6]);
    assert_eq!((smaller.pointer.psize(), smaller.pointer.lsize()), (first.psize(), 65536));
    assert_eq!(bench.pipe.cache().get(&BlockKey::of(&first).unwrap()).unwrap(), data);
    bench.holds(&smaller.pointer, &data);
    // Something that would fit into the pointer stays where it is.
    let mut nearly_empty = vec![0; 65536];
    nearly_empty[9] = 9;
    let request =
        BlockToWrite { old: smaller.pointer, ..block(ObjectType(0xc4), 0, nearly_empty.into()) };
    assert_eq!(bench.write(5, 3, request).unwrap().replaced, Replaced::InPlace);
    // Larger: new addresses; from pass 8 at its largest, and then it never moves again.
    let (larger, _) = rewrite(5, 3, first, 3, 10);
    assert_eq!(larger.replaced, Replaced::Old);
    assert_ne!(larger.pointer.first_dva(), first.first_dva());
    let (whole, data) = rewrite(5, 8, first, 4, 10);
    assert_eq!((whole.replaced, whole.pointer.psize()), (Replaced::Old, 65536));
    assert_eq!(whole.pointer.compression(), 2);
    bench.holds(&whole.pointer, &data);
    let (kept, data) = rewrite(5, 9, whole.pointer, 5, 3);
    assert_eq!((kept.replaced, kept.pointer.compression()), (Replaced::InPlace, 2));
    bench.holds(&kept.pointer, &data);
    // Not in the first pass, not in another group, not with other copies.
    assert_eq!(rewrite(5, 1, first, 2, 2).0.replaced, Replaced::Old);
    assert_eq!(rewrite(6, 2, first, 2, 2).0.replaced, Replaced::Old);
    let mut more = BlockToWrite { old: first, ..zap(2, 2) };
    more.policy.copies = 3;
    assert_eq!(bench.write(5, 2, more).unwrap().replaced, Replaced::Old);
}

#[test]
fn unchanged_data_keeps_its_pointer() {
    let bench = Bench::new();
    let mut request = file(text(1, 65536, 8));
    request.policy.checksum = checksum_from_property(8).unwrap();
    request.policy.nop_write = true;
    let old = bench.write(5, 1, request.clone()).unwrap().pointer;
    let writes = bench.writes();
    let again = BlockToWrite { old, ..request.clone() };
    let kept = bench.write(9, 1, again.clone()).unwrap();
    assert_eq!(kept, Written { pointer: old, replaced: Replaced::Nothing });
    assert_eq!(bench.writes(), writes);
    let other = BlockToWrite { data: text(2, 65536, 8), ..again.clone() };
    assert_eq!(bench.write(9, 1, other).unwrap().replaced, Replaced::Old);
    for change in 0..3 {
        let mut changed = again.clone();
        match change {
            0 => changed.policy.copies = 2,
            1 => changed.policy.compression = Compression::With(Method::Lzjb),
            _ => changed.policy.nop_write = false,
        }
        assert_eq!(bench.write(9, 1, changed).unwrap().replaced, Replaced::Old, "{change}");
    }
}

#[test]
fn what_does_not_save_enough_is_stored_as_it_is() {
    let bench = Bench::new();
    // 15/16 of noise: compresses, but not by an eighth.
    let data = text(1, 131_072, 15);
    for method in [Method::Lz4, Method::Zstd(ZstdLevel::from_number(7).unwrap())] {
        let mut request = file(data.clone());
        request.policy.compression = Compression::With(method);
        let bp = bench.write(5, 1, request).unwrap().pointer;
        assert_eq!((bp.compression(), bp.psize()), (2, 131_072));
        bench.holds(&bp, &data);
    }
    // Saves an eighth, but not a whole unit.
    let data = text(2, 4608, 12);
    let bp = bench.write(5, 1, file(data.clone())).unwrap().pointer;
    assert_eq!((bp.compression(), bp.psize()), (2, 4608));
    bench.holds(&bp, &data);
}

#[test]
fn nonsense_and_full_pools_are_errors_that_leave_nothing_behind() {
    let bench = Bench::new();
    for size in [0, 100, (16 << 20) + 512] {
        let error = bench.write(5, 1, file(Bytes::from(vec![1; size]))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{size}");
        assert_eq!((error.place().objset, error.place().object), (Some(21), Some(5)));
    }
    bench.space.left.store(0, Relaxed);
    let error = bench.write(5, 1, file(noise(1, 65536))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(bench.space.used.lock().is_empty());
    assert!(bench.disks.iter().all(|disk| disk.counts().1 == 0));
}

#[test]
fn where_no_run_is_long_enough_blocks_become_gangs() {
    let bench = Bench::new();
    for (longest, depth) in [(64 << 10, 1), (16 << 10, 2), (4 << 10, 4)] {
        bench.space.longest.store(longest, Relaxed);
        for (object_type, copies) in [(ObjectType::PLAIN_FILE, 1), (ObjectType(0xc4), 2)] {
            let mut request = block(object_type, 0, noise(longest, 128 << 10));
            request.policy.copies = copies;
            request.policy.checksum = checksum_from_property(8).unwrap();
            let bp = bench.write(5, 1, request.clone()).unwrap().pointer;
            assert!(bp.is_gang());
            // Headers have one copy more than the data.
            assert_eq!(bp.dvas().count(), usize::from(copies) + 1);
            bench.holds(&bp, &request.data);
            let copies_are_good = bench.pipe.verify_copies(&bp).unwrap().are_good();
            assert!(copies_are_good);
            assert!(levels(&bench, &bp) <= depth, "{}", levels(&bench, &bp));
        }
    }
}

#[test]
fn a_scrub_makes_every_copy_of_a_gangs_header_right() {
    let bench = Bench::new();
    bench.space.longest.store(16 << 10, Relaxed);
    let bp = bench.write(5, 1, file(noise(1, 100 << 10))).unwrap().pointer;
    assert!(bp.is_gang());
    for dva in bp.dvas() {
        let (vdev, offset, birth) = (dva.vdev, dva.offset, bp.physical_birth());
        let wrong = BlockWrite { sides: None, vdev, offset, data: noise(9, 512), birth };
        assert!(bench.pipe.vdevs().write_batch(&[wrong])[0].is_ok());
        assert!(!bench.pipe.verify_copies(&bp).unwrap().are_good());
        let done = bench.pipe.scrub(&bp, Scope::ALL);
        assert!(done.lost.is_none() && done.failed.is_empty() && done.repaired > 0, "{done:?}");
        assert!(bench.pipe.verify_copies(&bp).unwrap().are_good());
    }
}

#[test]
fn what_is_wrong_of_a_shared_block_is_one_fault() {
    let bench = Bench::new();
    let mut request = file(noise(1, 64 << 10));
    request.policy.copies = 2;
    let bp = bench.write(5, 1, request).unwrap().pointer;
    let other = bench.write(5, 1, file(noise(2, 64 << 10))).unwrap().pointer;
    let shared = bp;
    let spoil = |dva: Dva| {
        let (vdev, offset, birth) = (dva.vdev, dva.offset, bp.physical_birth());
        let wrong = BlockWrite { sides: None, vdev, offset, data: noise(9, 4096), birth };
        assert!(bench.pipe.vdevs().write_batch(&[wrong])[0].is_ok());
    };
    let scrub = || bench.pipe.scrub_many(&[&bp, &shared, &other], Scope::ALL);
    spoil(bp.first_dva().unwrap());
    let done = scrub();
    assert!(done.iter().all(|one| one.lost.is_none()));
    assert!(done[0].repaired > 0 && done[1].repaired == 0 && done[2].repaired == 0);
    assert!(bench.pipe.verify_copies(&bp).unwrap().are_good());
    bp.dvas().for_each(spoil);
    let lost: Vec<bool> = scrub().iter().map(|one| one.lost.is_some()).collect();
    assert_eq!(lost, [true, true, false]);
}

fn levels(bench: &Bench, bp: &BlockPointer) -> u32 {
    if !bp.is_gang() {
        return 0;
    }
    let (_, children) = bench.pipe.gang_children(bp).unwrap();
    1 + children.iter().map(|child| levels(bench, child)).max().unwrap_or(0)
}

#[test]
fn a_gangs_addresses_account_for_all_of_it() {
    let bench = Bench::new();
    bench.space.longest.store(8 << 10, Relaxed);
    let mut request = file(noise(1, 100 << 10));
    request.policy.copies = 2;
    let bp = bench.write(5, 1, request).unwrap().pointer;
    let taken: u64 = bench.space.used.lock().values().sum();
    assert_eq!(bp.asize(), taken);
    assert!(bench.writes() > 20);
}

#[test]
fn a_gang_that_fails_leaves_nothing() {
    let bench = Bench::new();
    bench.space.longest.store(8 << 10, Relaxed);
    bench.space.left.store(60 << 10, Relaxed);
    let error = bench.write(5, 1, file(noise(1, 100 << 10))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(bench.space.used.lock().is_empty());
    assert_eq!((bench.writes(), bench.space.left.load(Relaxed)), (0, 60 << 10));
}

#[test]
fn what_is_under_way_can_be_read() {
    let bench = Bench::new();
    let sink: Arc<dyn Submit> = bench.sink.clone();
    bench.pipe.set_submit(&sink);
    *bench.sink.held.lock() = Some(BTreeMap::new());
    let whole = file(noise(1, 64 << 10));
    let bp = bench.write(5, 1, whole.clone()).unwrap().pointer;
    bench.holds(&bp, &whole.data);
    bench.space.longest.store(16 << 10, Relaxed);
    let gang = file(noise(2, 100 << 10));
    let pieces = bench.write(5, 1, gang.clone()).unwrap().pointer;
    bench.holds(&pieces, &gang.data);
    assert!(bench.disks.iter().all(|disk| disk.counts() == (0, 0)));
    *bench.sink.held.lock() = None;
    assert!(bench.read(&bp, &ReadContext::default()).is_err());
}

#[test]
fn units_of_allocation() {
    assert_eq!(AllocationUnits::of([4096, 4096]), AllocationUnits { min: 4096, gcd: 4096 });
    assert_eq!(AllocationUnits::of([512, 4096]), AllocationUnits { min: 512, gcd: 512 });
    assert_eq!(AllocationUnits::of([16384, 12288]), AllocationUnits { min: 12288, gcd: 4096 });
    assert_eq!(AllocationUnits::of([]), AllocationUnits { min: 512, gcd: 512 });
}
