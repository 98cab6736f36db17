//! Reading objects of a live set: changes that are not on the disks yet lie over what is.
//!
//! Invariant: a reader sees every change made before it asked. The committed pointers are fetched
//! anew for each read, so that no read follows pointers of a group long gone.

use std::sync::Arc;

use bytes::Bytes;
use cenote_format::Dnode;

use super::live::{Content, Dirt, ObjectState};
use super::{Object, Pieces};
use crate::pipe::zeros;
use crate::{Error, Result};

/// Searches of an object that groups change meanwhile.
const SEARCHES: u32 = 16;

impl ObjectState {
    /// What a change that has taken `dirt`, which has no block `id`, out of the state lays its bytes over
    /// (`None`: a hole): `known`, what the block held before the change began, if that is still so.
    pub(super) fn laid_under(&self, dirt: &Dirt, id: u64, known: Option<Bytes>) -> Option<Bytes> {
        let is_freed = !dirt.cloned.contains_key(&id) && (dirt.reset || dirt.freed.contains(id));
        known.filter(|_| !is_freed)
    }

    /// The first block at or after `from` that a change made data.
    fn next_dirty(&self, from: u64) -> Option<u64> {
        let firsts = self.dirt.iter().filter_map(|dirt| {
            // Of an older group's blocks those count that a later one did not free.
            let is_data =
                |&id: &u64| matches!(self.content(id), Content::Dirty(_) | Content::Cloned(_));
            let written = dirt.blocks.range(from..).map(|(&id, _)| id).find(is_data);
            let cloned = dirt.cloned.range(from..).map(|(&id, _)| id).find(is_data);
            written.into_iter().chain(cloned).min()
        });
        firsts.min()
    }

    /// The first block at or after `from` that a change freed.
    fn next_freed(&self, from: u64) -> Option<u64> {
        let mut at = from;
        loop {
            let firsts = self
                .dirt
                .iter()
                .filter_map(|dirt| if dirt.reset { Some(at) } else { dirt.freed.first_from(at) });
            let candidate = firsts.min()?;
            if matches!(self.content(candidate), Content::Hole) {
                return Some(candidate);
            }
            at = candidate.checked_add(1)?;
        }
    }
}

impl Object {
    /// The newest dnode; that of when the object was opened if its set is not live or it is gone.
    pub fn current_dnode(&self) -> Option<Arc<Dnode>> {
        match &self.live {
            Some(live) => live.state.read().current.clone(),
            None => Some(self.dnode.clone()),
        }
    }

    /// Where the newest content of block `id` is.
    pub(super) fn content(&self, id: u64) -> Content {
        match &self.live {
            Some(live) => live.state.read().content(id),
            None => Content::Committed,
        }
    }

    /// The object as the last group on the disks left it.
    pub(super) fn committed_object(&self) -> Self {
        let dnode = self.live.as_ref().and_then(|live| live.state.read().committed.clone());
        let dnode = dnode.unwrap_or_else(|| self.dnode.clone());
        Self { set: self.set.clone(), id: self.id, dnode, live: None }
    }

    /// Block `id` of a live object.
    pub(super) fn read_live_block(&self, id: u64) -> Result<Bytes> {
        match self.content(id) {
            Content::Dirty(block) => Ok(block),
            Content::Cloned(pointer) => self.read_cloned(&pointer),
            Content::Hole => Ok(zeros(self.block_size())),
            Content::Committed => self.read_committed(id, id)?.pop().ok_or_else(nothing),
        }
    }

    /// Blocks `first..=last` as committed. A block that moved while it was read is read again.
    fn read_committed(&self, first: u64, last: u64) -> Result<Vec<Bytes>> {
        let mut committed = self.committed_object();
        for _ in 0..3 {
            match committed.read_blocks(first, last) {
                Ok(blocks) => return Ok(blocks),
                Err(error) => {
                    let now = self.committed_object();
                    if Arc::ptr_eq(&now.dnode, &committed.dnode) {
                        return Err(error);
                    }
                    committed = now;
                }
            }
        }
        committed.read_blocks(first, last)
    }

    /// Bytes of a live object.
    pub(super) fn read_live(&self, offset: u64, len: usize) -> Result<Pieces> {
        let mut pieces = Pieces::new();
        let size = self.block_size();
        let end = offset.saturating_add(len as u64);
        if len == 0 {
            return Ok(pieces);
        }
        let (first, last) = (offset / size, (end - 1) / size);
        let contents: Vec<Content> = match &self.live {
            Some(live) => {
                let state = live.state.read();
                (first..=last).map(|id| state.content(id)).collect()
            }
            None => return self.read(offset, len),
        };
        // Runs of committed blocks are read together.
        let mut blocks: Vec<Option<Bytes>> = vec![None; contents.len()];
        let mut run = None;
        for (index, content) in contents.iter().enumerate() {
            let id = first + index as u64;
            match content {
                Content::Committed => {
                    run.get_or_insert(id);
                    continue;
                }
                Content::Dirty(block) => set(&mut blocks, index, block.clone()),
                Content::Cloned(pointer) => {
                    set(&mut blocks, index, self.read_cloned(pointer)?);
                }
                Content::Hole => set(&mut blocks, index, zeros(size)),
            }
            if let Some(from) = run.take() {
                self.fill(&mut blocks, first, from, id - 1)?;
            }
        }
        if let Some(from) = run {
            self.fill(&mut blocks, first, from, last)?;
        }
        for (id, block) in (first..).zip(blocks) {
            let block = block.ok_or_else(nothing)?;
            pieces.push(super::part_of(&block, id.saturating_mul(size), offset, end));
        }
        Ok(pieces)
    }

    fn fill(&self, out: &mut [Option<Bytes>], first: u64, from: u64, to: u64) -> Result<()> {
        for (id, block) in (from..).zip(self.read_committed(from, to)?) {
            set(out, (id - first) as usize, block);
        }
        Ok(())
    }

    /// Searches what is on the disks and what lies over it; anew if a group is shown meanwhile, for then the two do
    /// not belong together. `otherwise`, which has to be right at any time, if that happens again and again.
    fn search<T>(&self, look: impl Fn(&Self) -> Result<T>, otherwise: T) -> Result<T> {
        for _ in 0..SEARCHES {
            let committed = self.committed_object();
            let looked = look(&committed);
            if Arc::ptr_eq(&self.committed_object().dnode, &committed.dnode) {
                return looked;
            }
        }
        Ok(otherwise)
    }

    /// The first block at or after `from` that has data, for all that is known.
    pub(super) fn next_live_data(&self, from: u64) -> Result<Option<u64>> {
        self.search(|committed| self.next_data_over(committed, from), Some(from))
    }

    fn next_data_over(&self, committed: &Self, from: u64) -> Result<Option<u64>> {
        let Some(live) = &self.live else { return Ok(None) };
        let dirty = live.state.read().next_dirty(from);
        let mut at = from;
        let stored = loop {
            if live.state.read().committed.is_none() {
                break None;
            }
            let Some(found) = committed.next_data_block(at)? else { break None };
            if dirty.is_some_and(|dirty| dirty <= found) {
                break None;
            }
            let state = live.state.read();
            if !matches!(state.content(found), Content::Hole) {
                break Some(found);
            }
            // Go on behind the freed range.
            let ends = state.dirt.iter().filter_map(|dirt| match dirt.reset {
                true => Some(u64::MAX),
                false => dirt.freed.range_of(found).map(|(_, last)| last),
            });
            match ends.max().unwrap_or(found).checked_add(1) {
                Some(next) => at = next,
                None => break None,
            }
        };
        Ok(match (dirty, stored) {
            (Some(dirty), Some(stored)) => Some(dirty.min(stored)),
            (dirty, stored) => dirty.or(stored),
        })
    }

    /// The first hole at or after `from` that is one for sure.
    pub(super) fn next_live_hole(&self, from: u64) -> Result<Option<u64>> {
        self.search(|committed| self.next_hole_over(committed, from), None)
    }

    fn next_hole_over(&self, committed: &Self, from: u64) -> Result<Option<u64>> {
        let Some(live) = &self.live else { return Ok(None) };
        let is_stored = live.state.read().committed.is_some();
        let end = self.current_dnode().map_or(0, |dnode| dnode.max_block_id);
        let mut at = from;
        while at <= end {
            let content = live.state.read().content(at);
            match content {
                Content::Dirty(_) | Content::Cloned(_) => {}
                Content::Hole => return Ok(Some(at)),
                Content::Committed if !is_stored || at > committed.dnode.max_block_id => {
                    return Ok(Some(at));
                }
                Content::Committed => {
                    let stored = committed.next_hole_block(at)?;
                    let stored = stored.unwrap_or(committed.dnode.max_block_id.saturating_add(1));
                    if stored == at {
                        return Ok(Some(at));
                    }
                    let state = live.state.read();
                    let freed = state.next_freed(at).filter(|&freed| freed < stored);
                    if let Some(freed) = freed {
                        return Ok(Some(freed));
                    }
                    at = stored;
                    continue;
                }
            }
            at = at.saturating_add(1);
        }
        Ok(None)
    }

    /// The spill block of a live object.
    pub(super) fn live_spill(&self) -> Result<Option<Bytes>> {
        let dirty = self.live.as_ref().and_then(|live| live.state.read().dirty_spill());
        match dirty {
            Some(spill) => Ok(spill),
            None => self.committed_object().spill(),
        }
    }
}

fn set(blocks: &mut [Option<Bytes>], index: usize, block: Bytes) {
    if let Some(slot) = blocks.get_mut(index) {
        *slot = Some(block);
    }
}

fn nothing() -> Error {
    Error::bug("no block was read")
}
