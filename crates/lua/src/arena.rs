//! Where things of one kind lie that programs refer to, and which of them are still referred to.
//!
//! Invariant: a number stands for the same thing until a sweep finds it unmarked; a number that stands for nothing
//! finds nothing.

struct Slot<T> {
    thing: T,
    marked: bool,
}

/// See the module.
pub struct Arena<T> {
    slots: Vec<Option<Slot<T>>>,
    free: Vec<u32>,
}

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Arena<T> {
    /// Puts something in; its number.
    pub fn insert(&mut self, thing: T) -> u32 {
        let slot = Some(Slot { thing, marked: false });
        if let Some(id) = self.free.pop()
            && let Some(place) = self.slots.get_mut(id as usize)
        {
            *place = slot;
            return id;
        }
        self.slots.push(slot);
        // The limit of memory is far below so many things.
        u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
    }

    /// What the number stands for.
    pub fn get(&self, id: u32) -> Option<&T> {
        self.slots.get(id as usize)?.as_ref().map(|slot| &slot.thing)
    }

    /// What the number stands for, to be changed.
    pub fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        self.slots.get_mut(id as usize)?.as_mut().map(|slot| &mut slot.thing)
    }

    /// Marks it; whether it was not.
    pub fn mark(&mut self, id: u32) -> bool {
        match self.slots.get_mut(id as usize) {
            Some(Some(slot)) => !std::mem::replace(&mut slot.marked, true),
            _ => false,
        }
    }

    /// Whether it is marked.
    pub fn is_marked(&self, id: u32) -> bool {
        matches!(self.slots.get(id as usize), Some(Some(Slot { marked: true, .. })))
    }

    /// Removes what is not marked, after `gone` was told, and unmarks the rest.
    pub fn sweep(&mut self, mut gone: impl FnMut(&T)) {
        for (id, place) in (0_u32..).zip(&mut self.slots) {
            match place {
                Some(slot) if slot.marked => slot.marked = false,
                Some(slot) => {
                    gone(&slot.thing);
                    *place = None;
                    self.free.push(id);
                }
                None => {}
            }
        }
    }
}
