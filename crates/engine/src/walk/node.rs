//! A block of a tree, and the blocks its content leads to.
//!
//! Chapter 04. Invariant: levels fall on the way down and only the array of dnodes leads to other
//! objects, so that no tree is deeper than its levels, those of an object's tree added.

use cenote_format::bptree::BlockBookmark;
use cenote_format::dnode::{self, Dnode, SLOTS_PER_BLOCK};
use cenote_format::{BlockPointer, ObjectType, Objset, blkptr};

use crate::{Error, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// The root of an object set.
    Root,
    /// A block of an object's tree; `dnodes`: of the array of dnodes; `shift`: pointers in an indirect
    /// block, as an exponent of 2.
    Tree { dnodes: bool, shift: u32 },
    /// Attributes that did not fit the dnode.
    Spill,
}

/// A block of an object set, and where it stands in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    role: Role,
    /// Number of the object; 0 for the array of dnodes and the root.
    pub object: u64,
    /// Height in the tree of the object.
    pub level: u8,
    /// Number among the blocks of this level.
    pub block: u64,
    /// Where it lies.
    pub pointer: BlockPointer,
}

/// What a block leads to, and dnodes in it that make no sense.
#[derive(Debug, Default)]
pub(super) struct Children {
    pub(super) nodes: Vec<Node>,
    pub(super) bad: Vec<(u64, Error)>,
}

/// Who wants to know what is on the way.
pub(super) trait Told {
    /// The root was read.
    fn objset(&mut self, _objset: &Objset) -> Result<()> {
        Ok(())
    }
    /// A dnode in use was read.
    fn dnode(&mut self, _object: u64, _dnode: &Dnode) {}
}

/// Nobody.
pub(super) struct NotTold;

impl Told for NotTold {}

impl Node {
    /// The root of an object set.
    pub(super) fn root(pointer: BlockPointer) -> Self {
        Self { role: Role::Root, object: 0, level: 0, block: 0, pointer }
    }

    /// It is the root of an object set.
    pub fn is_root(&self) -> bool {
        self.role == Role::Root
    }

    /// It holds the attributes of an object that did not fit its dnode.
    pub fn is_spill(&self) -> bool {
        self.role == Role::Spill
    }

    /// The blocks of level 0 below it, itself if it is one: the first, and how many. `None`: more than can be
    /// numbered.
    pub fn data_blocks(&self) -> Option<(u64, u64)> {
        let bits = self.shift().checked_mul(u32::from(self.level)).filter(|bits| *bits < 64)?;
        let count = 1_u64.checked_shl(bits)?;
        Some((self.block.checked_mul(count)?, count))
    }

    /// The content of the block leads to other blocks.
    pub fn leads_on(&self) -> bool {
        let has_pointers = match self.role {
            Role::Root => true,
            Role::Tree { dnodes, .. } => self.level > 0 || dnodes,
            Role::Spill => false,
        };
        has_pointers && !self.pointer.is_hole()
    }

    /// Where it stands.
    pub fn bookmark(&self, objset: u64) -> BlockBookmark {
        let (level, block) = match self.role {
            Role::Root => (BlockBookmark::ROOT_LEVEL, 0),
            Role::Spill => (0, BlockBookmark::SPILL_BLOCK),
            Role::Tree { .. } => (i64::from(self.level), self.block),
        };
        BlockBookmark { objset, object: self.object, level, block }
    }

    /// Where a walk that visits children first goes on to come to this block anew, and to all below
    /// it. `None`: only a walk from the beginning does.
    pub fn first_below(&self, objset: u64) -> Option<BlockBookmark> {
        let Role::Tree { dnodes, shift } = self.role else {
            return (self.role == Role::Spill).then(|| self.bookmark(objset));
        };
        let bits = shift.saturating_mul(u32::from(self.level));
        let first = self.block.saturating_mul(1_u64.checked_shl(bits).unwrap_or(u64::MAX));
        let (object, block) = match dnodes {
            // The bookmark of a block of dnodes would say that all below it is done. No object has
            // the number 0.
            true => (first.saturating_mul(SLOTS_PER_BLOCK).max(1), 0),
            false => (self.object, first),
        };
        Some(BlockBookmark { objset, object, level: 0, block })
    }

    /// Pointers in an indirect block of the object, as an exponent of 2.
    pub(super) fn shift(&self) -> u32 {
        match self.role {
            Role::Tree { shift, .. } => shift,
            Role::Root | Role::Spill => 0,
        }
    }

    /// The pointer is one that can stand here.
    pub(super) fn check(&self) -> Result<()> {
        self.pointer.validate()?;
        let level = self.pointer.level();
        if level.0 != self.level && !self.pointer.is_hole() {
            let reason = format!("pointer of level {level} where {} belongs", self.level);
            return Err(Error::corrupt(reason));
        }
        Ok(())
    }

    /// What the block leads to, in the order of objects and blocks.
    pub(super) fn children(&self, content: &[u8], told: &mut dyn Told) -> Result<Children> {
        let mut found = Children::default();
        match self.role {
            Role::Root => {
                if self.pointer.object_type() != ObjectType::OBJSET {
                    let reason = "the root of an object set is a block of another type";
                    return Err(Error::corrupt(reason));
                }
                let objset = Objset::decode(content)?;
                told.objset(&objset)?;
                found.add_dnode(&objset.meta_dnode, 0, true);
                let accounting = [&objset.project_used, &objset.group_used, &objset.user_used];
                for (dnode, number) in accounting.into_iter().zip([2, 1, 0]) {
                    if let Some(dnode) = dnode {
                        found.add_dnode(dnode, u64::MAX - number, false);
                    }
                }
            }
            Role::Tree { .. } if self.level > 0 => {
                let count = content.len() / blkptr::SIZE;
                // A tree that is too deep has more blocks than can be numbered.
                let first = self.block.saturating_mul(count as u64);
                found.nodes.reserve_exact(count);
                for (place, pointer) in (0..).zip(BlockPointer::decode_all(content)) {
                    let (level, block) = (self.level - 1, first.saturating_add(place));
                    found.nodes.push(Self { level, block, pointer, ..*self });
                }
            }
            Role::Tree { dnodes: true, .. } => {
                for (slot, dnode) in dnode::dnodes_in_block(content) {
                    let object = self.block.saturating_mul(SLOTS_PER_BLOCK).saturating_add(slot);
                    match dnode {
                        Ok(dnode) => {
                            told.dnode(object, &dnode);
                            found.add_dnode(&dnode, object, false);
                        }
                        Err(error) => found.bad.push((object, error.into())),
                    }
                }
            }
            Role::Tree { .. } | Role::Spill => {}
        }
        Ok(found)
    }
}

impl Children {
    fn add_dnode(&mut self, dnode: &Dnode, object: u64, dnodes: bool) {
        let role = Role::Tree { dnodes, shift: dnode.pointers_shift() };
        let level = dnode.levels.saturating_sub(1);
        for (block, pointer) in (0..).zip(&dnode.pointers) {
            self.nodes.push(Node { role, object, level, block, pointer: *pointer });
        }
        if let Some(pointer) = dnode.spill {
            self.nodes.push(Node { role: Role::Spill, object, level: 0, block: 0, pointer });
        }
    }
}
