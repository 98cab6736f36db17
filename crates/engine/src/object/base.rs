//! What changes of parts of blocks are laid over: it is read before their transaction begins, so that no
//! slow read holds a transaction group open.
//!
//! Invariant: between the reading and the change nobody else changes the object (its callers serialise
//! changes). A group that gets to the disks meanwhile moves what the object holds, but does not change
//! it; so what a base holds is true wherever the blocks lie by then, and whatever left the cache.

use bytes::Bytes;
use smallvec::SmallVec;

use super::Object;
use super::live::Content;
use crate::Result;

/// What one change needs of an object: the indirect blocks above it were read, and so were the blocks it
/// changes in parts. Good for the next change of the object, and for no other after it.
#[derive(Default)]
pub struct Base {
    /// Blocks by number; `None`: a hole.
    blocks: SmallVec<[(u64, Option<Bytes>); 2]>,
    /// The indirect blocks were read.
    is_checked: bool,
}

impl Base {
    /// Takes what it knows of block `id`.
    pub(super) fn take(&mut self, id: u64) -> Option<Option<Bytes>> {
        let at = self.blocks.iter().position(|(known, _)| *known == id)?;
        Some(self.blocks.swap_remove(at).1)
    }

    /// Knows of block `id` from now on.
    pub(super) fn put(&mut self, id: u64, block: Bytes) {
        self.blocks.push((id, Some(block)));
    }

    /// Whether the indirect blocks above the change can be read, as far as somebody looked.
    pub(super) fn is_checked(&self) -> bool {
        self.is_checked
    }
}

impl Object {
    /// Reads what [`Object::write_over`] needs for `len` bytes at `offset`.
    pub fn base_to_write(&self, offset: u64, len: u64) -> Result<Base> {
        let (size, end) = (self.block_size(), offset.saturating_add(len));
        let mut base = Base { is_checked: true, ..Base::default() };
        if len == 0 {
            return Ok(base);
        }
        let (first, last) = (offset / size, (end - 1) / size);
        self.need_to_write(first, last)?;
        let starts_inside = !offset.is_multiple_of(size);
        if starts_inside || first == last && !end.is_multiple_of(size) {
            base.blocks.push((first, self.content_now(first)?));
        }
        if first != last && !end.is_multiple_of(size) {
            base.blocks.push((last, self.content_now(last)?));
        }
        Ok(base)
    }

    /// Reads what [`Object::free_over`] needs for `len` bytes at `offset`.
    pub fn base_to_free(&self, offset: u64, len: u64) -> Result<Base> {
        let (size, end) = (self.block_size(), offset.saturating_add(len));
        let last = if end == u64::MAX { u64::MAX } else { end / size };
        self.need_to_free(offset / size, last)?;
        let mut base = Base { is_checked: true, ..Base::default() };
        let [head, tail] = [offset, end].map(|at| at / size);
        if !offset.is_multiple_of(size) {
            base.blocks.push((head, self.content_now(head)?));
        }
        let is_apart = offset.is_multiple_of(size) || head != tail;
        if end != u64::MAX && !end.is_multiple_of(size) && is_apart {
            base.blocks.push((tail, self.content_now(tail)?));
        }
        Ok(base)
    }

    /// Reads what [`Object::resize_over`] needs, and then [`Object::write_over`] as well.
    pub fn base_to_resize(&self) -> Result<Base> {
        self.need_to_write(0, 0)?;
        let block = (0, self.content_now(0)?);
        Ok(Base { blocks: SmallVec::from_iter([block]), is_checked: true })
    }

    /// Reads what [`Object::clone_over`] needs for `count` blocks from `first` on.
    pub fn base_to_clone(&self, first: u64, count: u64) -> Result<Base> {
        if let Some(more) = count.checked_sub(1) {
            self.need_to_free(first, first.saturating_add(more))?;
        }
        Ok(Base { is_checked: true, ..Base::default() })
    }

    /// What level-0 block `id` holds; `None`: it is a hole.
    pub(super) fn content_now(&self, id: u64) -> Result<Option<Bytes>> {
        match self.content(id) {
            Content::Hole => Ok(None),
            Content::Dirty(block) => Ok(Some(block)),
            Content::Cloned(pointer) => self.read_cloned(&pointer).map(Some),
            Content::Committed => {
                let read = self.as_committed(|object| object.stored_block(id));
                let block = read.map_err(|error| self.unread(error, id))?;
                self.was_read(id);
                Ok(block)
            }
        }
    }

    /// Block `id` of an object that is not live; `None`: it is a hole.
    fn stored_block(&self, id: u64) -> Result<Option<Bytes>> {
        let pointer = self.pointer(0, id)?;
        if pointer.is_hole() {
            return Ok(None);
        }
        let block = self.set.0.io.pipe.read(&pointer, &self.set.0.context)?;
        self.sized(&pointer, block).map(Some)
    }
}
