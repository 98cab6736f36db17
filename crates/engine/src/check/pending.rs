//! Blocks that are freed, but not given back yet.
//!
//! Chapter 06, section 10. Invariant: a list is read once, however lists refer to each other, and
//! none is read beyond the blocks of its object.

use std::collections::{HashMap, HashSet};

use cenote_format::bpobj::{BpobjHeader, is_freed_entry};
use cenote_format::bptree::{self, BlockBookmark, BptreeEntry, BptreeHeader};
use cenote_format::bytes::le64;
use cenote_format::{BlockPointer, ObjectId, Txg, blkptr};

use super::FindingKind;
use super::census::BlockKind;
use super::walk::{Checker, Set};
use crate::dataset::Table;
use crate::object::ObjectSet;
use crate::walk::{Spread, Tree};
use crate::zap::Zap;
use crate::{Error, Result};

/// Counts or queues everything that waits to be freed.
pub(super) fn start<'a>(
    checker: &Checker<'a>,
    walk: &Spread<'_, Checker<'a>>,
    mos: &ObjectSet,
    directory: &Table,
) {
    let lists = ["sync_bplist", "free_bpobj"].map(|key| deferred(checker, mos, directory, key));
    let rest = [destroyed(walk, mos, directory), livelists(checker, mos, directory)];
    for error in lists.into_iter().chain(rest).filter_map(Result::err) {
        checker.found(FindingKind::Accounting, error, None);
    }
}

fn deferred(checker: &Checker<'_>, mos: &ObjectSet, directory: &Table, key: &str) -> Result<()> {
    match directory.number(key)? {
        Some(id) if id != 0 => each_entry(mos, ObjectId(id), &mut |bp| {
            checker.count_apart(bp, BlockKind::Deferred);
        }),
        _ => Ok(()),
    }
}

/// Calls `each` for the pointers of a list and of the lists in it.
fn each_entry(mos: &ObjectSet, id: ObjectId, each: &mut dyn FnMut(&BlockPointer)) -> Result<()> {
    let mut seen = HashSet::from([id]);
    let mut rest = vec![id];
    while let Some(id) = rest.pop() {
        let named = |error: cenote_format::Error| Error::from(error).at_object(0, id.0);
        let object = mos.object(id)?;
        let header = BpobjHeader::decode(object.dnode().bonus()).map_err(named)?;
        for piece in object.appended(0, header.pointers.saturating_mul(blkptr::SIZE as u64)) {
            for bp in BlockPointer::decode_all(&piece?).filter(|bp| !bp.is_hole()) {
                bp.validate().map_err(named)?;
                each(&bp);
            }
        }
        if header.subobjects.0 == 0 {
            continue;
        }
        let object = mos.object(header.subobjects)?;
        for piece in object.appended(0, header.subobject_count.saturating_mul(8)) {
            for word in piece?.chunks_exact(8) {
                let child = ObjectId(le64(word, 0).unwrap_or(0));
                if !seen.insert(child) {
                    let reason = "a list of blocks that is part of itself, or of two lists";
                    return Err(Error::corrupt(reason).at_object(0, child.0));
                }
                rest.push(child);
            }
        }
    }
    Ok(())
}

/// Datasets that are being destroyed in the background.
fn destroyed<'a>(walk: &Spread<'_, Checker<'a>>, mos: &ObjectSet, directory: &Table) -> Result<()> {
    let Some(id) = directory.number("bptree_obj")?.filter(|id| *id != 0) else { return Ok(()) };
    let object = mos.object(ObjectId(id))?;
    let header = BptreeHeader::decode(object.dnode().bonus())?;
    let [begin, end] =
        [header.begin, header.end].map(|index| index.saturating_mul(bptree::ENTRY as u64));
    let mut rest = Vec::new();
    for piece in object.appended(begin, end) {
        rest.extend(piece?);
        let whole = rest.len() - rest.len() % bptree::ENTRY;
        for raw in rest.chunks_exact(bptree::ENTRY) {
            let entry = BptreeEntry::decode(raw)?;
            destroyed_tree(walk, &entry);
        }
        rest.drain(..whole);
    }
    Ok(())
}

fn destroyed_tree<'a>(walk: &Spread<'_, Checker<'a>>, entry: &BptreeEntry) {
    if entry.pointer.is_hole() || entry.pointer.logical_birth() <= entry.birth {
        return;
    }
    let own = Set { counts_as: Some(BlockKind::Deferred), ..Set::default() };
    let mut tree = Tree::new(u64::MAX, entry.birth, own);
    let begun = entry.resume != BlockBookmark::default();
    tree.resume = begun.then_some(entry.resume);
    walk.add(tree, entry.pointer);
}

/// Lists of blocks of destroyed clones.
fn livelists(checker: &Checker<'_>, mos: &ObjectSet, directory: &Table) -> Result<()> {
    let id = directory.number("com.delphix:deleted_clones")?.unwrap_or(0);
    let Some(deleted) = Table::open(mos, ObjectId(id))? else { return Ok(()) };
    for (_, livelist) in deleted.numbers()? {
        for sublist in Zap::open(mos.object(ObjectId(livelist))?)?.entries() {
            let Some(list) = sublist?.value.as_u64() else { continue };
            sublist_in_use(mos, ObjectId(list), &mut |bp| {
                checker.count_apart(bp, BlockKind::Deferred);
            })?;
        }
    }
    Ok(())
}

/// What a sublist says was born and not freed since.
fn sublist_in_use(
    mos: &ObjectSet,
    list: ObjectId,
    each: &mut dyn FnMut(&BlockPointer),
) -> Result<()> {
    let mut born: HashMap<(u32, u64, Txg), (i64, BlockPointer)> = HashMap::new();
    each_entry(mos, list, &mut |bp| {
        if let Some(dva) = bp.first_dva() {
            let key = (dva.vdev, dva.offset, bp.logical_birth());
            let step = if is_freed_entry(bp) { -1 } else { 1 };
            born.entry(key).or_insert((0, *bp)).0 += step;
        }
    })?;
    for (references, bp) in born.values() {
        (0..*references).for_each(|_| each(bp));
    }
    Ok(())
}
