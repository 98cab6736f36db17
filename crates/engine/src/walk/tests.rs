//! Walks over made-up object sets whose blocks lie in memory.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use cenote_format::dnode::{Dnode, SLOTS_PER_BLOCK};
use cenote_format::objset::ObjsetKind;
use cenote_format::{BlockPointer, Dva, ObjectType, Objset, Txg};
use parking_lot::Mutex;
use smallvec::SmallVec;

use super::{Ahead, Drained, Lost, Node, Order, Source, Step, Trouble, Walk, drain};
use crate::job::Budget;
use crate::pipe::ReadContext;
use crate::{Error, ErrorKind, Result};

type Tree = super::Tree<()>;

/// Pointers in an indirect block, as an exponent of 2.
const SHIFT: u32 = 2;
const ORDERS: [Order; 2] = [Order::ParentFirst, Order::ChildrenFirst];
/// Groups in which blocks are born.
const GROUPS: u64 = 9;

/// Blocks in memory, by address.
#[derive(Default)]
struct Disk {
    blocks: BTreeMap<(u32, u64), Bytes>,
    lost: BTreeSet<(u32, u64)>,
    /// Sizes of the batches that were read.
    reads: Mutex<Vec<usize>>,
    random: u64,
}

fn address(pointer: &BlockPointer) -> (u32, u64) {
    pointer.first_dva().map(|dva| (dva.vdev, dva.offset)).unwrap()
}

impl Source for Disk {
    fn read_many(&self, pointers: &[BlockPointer], _: &ReadContext) -> Vec<Result<Bytes>> {
        self.reads.lock().push(pointers.len());
        let read = |pointer: &BlockPointer| match self.blocks.get(&address(pointer)) {
            Some(block) if !self.lost.contains(&address(pointer)) => Ok(block.clone()),
            _ => Err(Error::new(ErrorKind::Checksum, "lost")),
        };
        pointers.iter().map(read).collect()
    }
}

impl Disk {
    fn below(&mut self, end: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) % end
    }

    /// Stores a block; it is not older than `birth`.
    fn store(&mut self, content: Vec<u8>, kind: ObjectType, level: u8, birth: u64) -> BlockPointer {
        let number = self.blocks.len() as u64;
        let place = (number as u32 % 3, (number * 7919 % 65_536) << 20);
        let sectors = (content.len() as u64).div_ceil(512);
        let dva = Dva { vdev: place.0, offset: place.1, asize: sectors * 512, gang: false };
        self.blocks.insert(place, content.into());
        let mut pointer = BlockPointer::HOLE;
        [pointer.words[0], pointer.words[1]] = dva.to_words();
        pointer.words[6] = 1 << 63
            | u64::from(level) << 56
            | u64::from(kind.0) << 48
            | 7 << 40
            | 2 << 32
            | (sectors - 1) << 16
            | (sectors - 1);
        pointer.words[10] = birth;
        pointer
    }

    /// A dnode over these blocks of level 0.
    fn dnode(&mut self, kind: ObjectType, mut blocks: Vec<BlockPointer>, tops: usize) -> Dnode {
        let mut levels = 1;
        while blocks.len() > tops {
            blocks = blocks
                .chunks(1 << SHIFT)
                .map(|part| {
                    let birth = part.iter().map(|one| one.logical_birth().0).max().unwrap();
                    if birth == 0 {
                        return BlockPointer::HOLE;
                    }
                    let mut content: Vec<u8> = part.iter().flat_map(|one| one.encode()).collect();
                    content.resize(128 << SHIFT, 0);
                    self.store(content, kind, levels, birth)
                })
                .collect();
            levels += 1;
        }
        blocks.resize(tops, BlockPointer::HOLE);
        Dnode {
            object_type: kind,
            indirect_shift: 7 + SHIFT as u8,
            levels,
            bonus_type: ObjectType(0),
            checksum: 0,
            compression: 0,
            flags: 0,
            data_block_sectors: 1,
            bonus_len: 0,
            extra_slots: 0,
            max_block_id: 100,
            used: 0,
            pointers: SmallVec::from_vec(blocks),
            bonus_area: vec![0; 448 - 128 * tops],
            spill: None,
        }
    }

    /// A dnode with some blocks, some of them holes, and maybe a spill block.
    fn object(&mut self) -> Dnode {
        let kind = ObjectType::PLAIN_FILE;
        let count = [1, 3, 7, 40][self.below(4) as usize];
        let blocks = (0..count)
            .map(|_| match self.below(4) {
                0 => BlockPointer::HOLE,
                _ => {
                    let birth = 1 + self.below(GROUPS);
                    self.store(vec![0; 512], kind, 0, birth)
                }
            })
            .collect();
        let mut dnode = self.dnode(kind, blocks, 1);
        if self.below(3) == 0 {
            let birth = 1 + self.below(GROUPS);
            dnode.spill = Some(self.store(vec![0; 512], ObjectType(44), 0, birth));
            dnode.flags = cenote_format::dnode::FLAG_SPILL;
            dnode.bonus_area.truncate(448 - 128 * 2);
        }
        dnode
    }

    /// An object set with objects in `blocks` blocks of dnodes; its root.
    fn object_set(&mut self, blocks: u64) -> BlockPointer {
        let mut of_dnodes = Vec::new();
        for block in 0..blocks {
            let mut content = Vec::new();
            let mut births = vec![1];
            for slot in 0..SLOTS_PER_BLOCK {
                if block + slot == 0 || self.below(3) == 0 {
                    content.resize(content.len() + 512, 0);
                    continue;
                }
                let dnode = self.object();
                births.extend(dnode.pointers.iter().map(|one| one.logical_birth().0));
                births.extend(dnode.spill.iter().map(|one| one.logical_birth().0));
                content.extend(dnode.encode().unwrap());
            }
            let birth = births.into_iter().max().unwrap();
            of_dnodes.push(self.store(content, ObjectType::DNODE, 0, birth));
        }
        let meta_dnode = self.dnode(ObjectType::DNODE, of_dnodes, 3);
        let [user_used, group_used, project_used] = [(); 3].map(|()| Some(self.object()));
        self.root(meta_dnode, [user_used, group_used, project_used])
    }

    fn root(&mut self, meta_dnode: Dnode, accounting: [Option<Dnode>; 3]) -> BlockPointer {
        let [user_used, group_used, project_used] = accounting.map(|dnode| {
            dnode.map(|dnode| Dnode { spill: None, flags: 0, bonus_area: vec![0; 320], ..dnode })
        });
        let objset = Objset {
            meta_dnode,
            zil_header: [0; 192],
            kind: ObjsetKind::Zfs,
            flags: 0,
            portable_mac: [0; 32],
            local_mac: [0; 32],
            user_used,
            group_used,
            project_used,
            size: 4096,
        };
        self.store(objset.encode().unwrap(), ObjectType::OBJSET, 0, GROUPS)
    }
}

fn tree() -> Tree {
    Tree::new(5, Txg(0), ())
}

fn made(seed: u64) -> (Disk, BlockPointer) {
    let mut disk = Disk { random: seed, ..Disk::default() };
    let root = disk.object_set(4);
    (disk, root)
}

fn split(steps: impl Iterator<Item = Step>) -> (Vec<Node>, Vec<Lost>) {
    let (mut blocks, mut lost) = (Vec::new(), Vec::new());
    for step in steps {
        match step {
            Step::Block(node) => blocks.push(node),
            Step::Lost(one) => lost.push(one),
        }
    }
    (blocks, lost)
}

/// The blocks of a walk that loses none.
fn blocks(disk: &Disk, tree: Tree, root: BlockPointer, order: Order) -> Vec<Node> {
    let (blocks, lost) = split(Walk::new(disk, tree, root, order));
    assert!(lost.is_empty(), "{lost:?}");
    blocks
}

#[test]
fn every_block_is_given_once_in_its_order() {
    for order in ORDERS {
        let (disk, root) = made(1);
        let all = blocks(&disk, tree(), root, order);
        let places: BTreeSet<(u32, u64)> = all.iter().map(|node| address(&node.pointer)).collect();
        // Spill blocks of accounting objects were made, but nothing leads to them.
        assert!(all.len() == places.len() && disk.blocks.len() - all.len() <= 3);
        // Leaves stand in the same order in both, those of an object ascend, accounting comes last.
        let leaves: Vec<(u64, u64)> = all
            .iter()
            .filter(|node| !node.leads_on())
            .map(|node| (node.object, node.bookmark(5).block))
            .collect();
        assert!(leaves.is_sorted() && leaves.last().unwrap().0 == u64::MAX);
        let ends = (all.first().unwrap().is_root(), all.last().unwrap().is_root());
        assert_eq!(ends, (order == Order::ParentFirst, order == Order::ChildrenFirst));
    }
}

#[test]
fn a_walk_goes_on_at_every_bookmark() {
    for (seed, order) in [(1, ORDERS[0]), (1, ORDERS[1]), (2, ORDERS[0]), (2, ORDERS[1])] {
        let (disk, root) = made(seed);
        let all = blocks(&disk, tree(), root, order);
        assert!(all.len() > 500);
        for (index, node) in all.iter().enumerate() {
            let tree = Tree { resume: Some(node.bookmark(5)), ..tree() };
            let rest = blocks(&disk, tree, root, order);
            assert!(rest == all[index..], "{order:?} from {:?}", node.bookmark(5));
        }
    }
}

#[test]
fn groups_of_birth_are_those_of_a_filter() {
    let (disk, root) = made(3);
    for order in ORDERS {
        let all = blocks(&disk, tree(), root, order);
        for (after, until) in (0..=GROUPS).flat_map(|a| (a..=GROUPS).map(move |u| (a, u))) {
            let wanted = |node: &&Node| (after + 1..=until).contains(&node.pointer.words[10]);
            let wanted: Vec<Node> = all.iter().filter(wanted).copied().collect();
            let mut some = Tree { after: Txg(after), until: Txg(until), ..tree() };
            assert_eq!(blocks(&disk, some.clone(), root, order), wanted);
            if let Some(middle) = wanted.get(wanted.len() / 2) {
                some.resume = Some(middle.bookmark(5));
                assert_eq!(blocks(&disk, some, root, order), wanted[wanted.len() / 2..]);
            }
        }
    }
}

#[test]
fn holes_are_given_to_who_wants_them() {
    let mut disk = Disk::default();
    let mut hole = BlockPointer::HOLE;
    hole.words[10] = 4;
    let data = disk.store(vec![0; 512], ObjectType::PLAIN_FILE, 0, 2);
    let pointers = vec![data, hole, BlockPointer::HOLE, data];
    let dnode = disk.dnode(ObjectType::PLAIN_FILE, pointers, 1);
    let mut content = vec![0; 512];
    content.extend(dnode.encode().unwrap());
    content.resize(16 << 10, 0);
    let block = disk.store(content, ObjectType::DNODE, 0, 5);
    let meta_dnode = disk.dnode(ObjectType::DNODE, vec![block], 1);
    let root = disk.root(meta_dnode, [None, None, None]);
    let wanted = Tree { holes: true, after: Txg(3), ..tree() };
    let found = blocks(&disk, wanted, root, Order::ParentFirst);
    let holes: Vec<&Node> = found.iter().filter(|node| node.pointer.is_hole()).collect();
    assert_eq!((holes.len(), holes[0].object, holes[0].block), (1, 1, 1));
    assert!(blocks(&disk, tree(), root, Order::ParentFirst).iter().all(|n| !n.pointer.is_hole()));
}

#[test]
fn what_is_lost_is_told_and_the_rest_goes_on() {
    let (mut disk, root) = made(5);
    for order in ORDERS {
        disk.lost.clear();
        let all = blocks(&disk, tree(), root, order);
        let inner: Vec<Node> = all.iter().filter(|node| node.leads_on()).copied().collect();
        for node in inner.iter().step_by(7).filter(|node| !node.is_root()) {
            disk.lost = BTreeSet::from([address(&node.pointer)]);
            let steps: Vec<Step> = Walk::new(&disk, tree(), root, order).collect();
            let before = steps.iter().take_while(|step| matches!(step, Step::Block(_))).count();
            let (given, lost) = split(steps.into_iter());
            assert_eq!(
                (lost.len(), lost[0].trouble, lost[0].node),
                (1, Trouble::Unreadable, *node)
            );
            let place = lost[0].error.place();
            assert_eq!((place.objset, place.object), (Some(5), Some(node.object)));
            assert_eq!(place.block, Some((node.level, node.block)));
            // What follows it is given, what is below it is not.
            assert_eq!(given[..before], all[..before]);
            let behind = all.len() - given.len();
            assert_eq!(given[before..], all[before + behind..]);
            // When it can be read again, a walk goes on there.
            disk.lost.clear();
            if order == Order::ChildrenFirst {
                let tree = Tree { resume: node.first_below(5), ..tree() };
                assert_eq!(blocks(&disk, tree, root, order), all[before..]);
            }
        }
    }
}

#[test]
fn what_is_below_several_blocks_is_followed_once() {
    let mut disk = Disk::default();
    let kind = ObjectType::PLAIN_FILE;
    let mut top = disk.store(vec![0; 512], kind, 0, 1);
    for level in 1..12 {
        let content: Vec<u8> = (0..4).flat_map(|_| top.encode()).collect();
        top = disk.store(content, kind, level, 1);
    }
    let mut dnode = disk.dnode(kind, vec![top], 1);
    dnode.levels = 12;
    let mut content = vec![0; 512];
    content.extend(dnode.encode().unwrap());
    content.resize(16 << 10, 0);
    let block = disk.store(content, ObjectType::DNODE, 0, 1);
    let meta_dnode = disk.dnode(ObjectType::DNODE, vec![block], 1);
    let root = disk.root(meta_dnode, [None, None, None]);
    for order in ORDERS {
        let (given, lost) = split(Walk::new(&disk, tree(), root, order));
        // Each of ten levels leads to the same block four times.
        assert_eq!((given.len(), lost.len()), (1 + 1 + 11 + 4, 10 * 3));
        assert!(lost.iter().all(|lost| lost.trouble == Trouble::Repeated));
        assert!(lost.iter().all(|lost| lost.error.place().object == Some(1)));
    }
}

#[test]
fn blocks_are_read_together_within_bounds() {
    let (disk, root) = made(6);
    let count = |ahead: Ahead| {
        disk.reads.lock().clear();
        let walk = Walk::new(&disk, tree(), root, Order::ParentFirst).reading_ahead(ahead);
        let blocks = split(walk).0;
        let reads = disk.reads.lock().clone();
        assert_eq!(reads.iter().sum::<usize>(), blocks.iter().filter(|b| b.leads_on()).count());
        (reads.len(), reads.into_iter().max().unwrap())
    };
    let (reads, most) = count(Ahead { blocks: 8, bytes: 1 << 20 });
    let (single, one) = count(Ahead { blocks: 1, bytes: 1 << 20 });
    assert!(reads * 2 < single && most == 8 && one == 1, "{reads} {single} {most} {one}");
    let (_, bounded) = count(Ahead { blocks: 100, bytes: 1 << 10 });
    assert_eq!(bounded, 2);
}

/// Gives one tree away in portions of `blocks`. When `ill` blocks were given, `damaged` cannot be read until
/// that was noticed.
fn drained(
    disk: &mut Disk,
    root: BlockPointer,
    blocks: u64,
    ill: usize,
    damaged: Node,
) -> Vec<Node> {
    let (mut given, mut resume, mut stops) = (Vec::new(), None, 0);
    loop {
        if given.len() >= ill && stops == 0 {
            disk.lost = BTreeSet::from([address(&damaged.pointer)]);
        }
        let tree = Tree { resume, ..tree() };
        let mut budget = Budget::blocks(blocks);
        let mut give = |node: &Node| {
            given.push(*node);
            Ok(())
        };
        match drain(disk, tree, root, &mut budget, &mut give).unwrap() {
            Drained::All => return given,
            Drained::Part(at) => {
                assert!(at.level == 0 && budget.is_spent());
                resume = Some(at);
            }
            Drained::Stopped { resume: at, lost } => {
                assert_eq!((lost.node, lost.trouble), (damaged, Trouble::Unreadable));
                assert!(at.is_none_or(|at| at.level == 0));
                disk.lost.clear();
                stops += 1;
                resume = at;
            }
        }
    }
}

#[test]
fn what_is_given_away_is_given_once_also_if_some_of_it_is_lost_for_a_while() {
    let (mut disk, root) = made(7);
    let all = blocks(&disk, tree(), root, Order::ChildrenFirst);
    let inner: Vec<Node> = all.iter().filter(|node| node.leads_on()).copied().collect();
    for (number, node) in inner.iter().enumerate().step_by(5) {
        for blocks in [2, 50] {
            for ill in [0, number * 31 % all.len()] {
                assert!(drained(&mut disk, root, blocks, ill, *node) == all);
            }
        }
    }
}
