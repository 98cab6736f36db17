//! Tables: an array from 1 on and whatever else, in the order it came.
//!
//! Invariant: the array ends with a value, and the key after it is not among the rest; an entry whose value is nil
//! is not there, but keeps its place, so that a traversal can go on from it, until a new key makes room.

use std::collections::HashMap;

use crate::value::{TableId, Value};

/// Bytes of a table without entries.
pub const TABLE_COST: usize = 64;
/// Bytes of a value.
pub const VALUE_COST: usize = 16;
/// Bytes of an entry that is not in the array.
const ENTRY_COST: usize = 40;
/// Entries without value that are never cleared away for a new key.
const SPARE: usize = 16;

/// See the module.
#[derive(Default)]
pub struct Table {
    array: Vec<Value>,
    places: HashMap<Value, usize>,
    entries: Vec<(Value, Value)>,
    /// Entries with a value.
    live: usize,
    /// Its metatable.
    pub meta: Option<TableId>,
}

impl Table {
    /// Bytes it is counted for.
    pub fn cost(&self) -> usize {
        TABLE_COST + self.array.len() * VALUE_COST + self.entries.len() * ENTRY_COST
    }

    fn array_place(&self, key: &Value) -> Option<usize> {
        let Value::Int(number) = key else { return None };
        let place = usize::try_from(number.checked_sub(1)?).ok()?;
        (place < self.array.len()).then_some(place)
    }

    /// The value of a key, without metamethods.
    pub fn get(&self, key: &Value) -> Value {
        let found = match self.array_place(key) {
            Some(place) => self.array.get(place),
            None => {
                let place = self.places.get(key);
                place.and_then(|place| self.entries.get(*place)).map(|(_, value)| value)
            }
        };
        found.cloned().unwrap_or(Value::Nil)
    }

    /// Sets the value of a key that is not nil, without metamethods.
    pub fn set(&mut self, key: Value, value: Value) {
        if let Some(place) = self.array_place(&key) {
            if let Some(old) = self.array.get_mut(place) {
                *old = value;
            }
            while self.array.last().is_some_and(Value::is_nil) {
                self.array.pop();
            }
            return;
        }
        if let Some((_, old)) = self.places.get(&key).and_then(|place| self.entries.get_mut(*place))
        {
            let (before, after) = (!old.is_nil(), !value.is_nil());
            *old = value;
            self.live =
                self.live.saturating_add(usize::from(after)).saturating_sub(usize::from(before));
            if !after || key != Value::Int(self.length().saturating_add(1)) {
                return;
            }
            self.grow_array();
            return;
        }
        if value.is_nil() {
            return;
        }
        if key == Value::Int(self.length().saturating_add(1)) {
            self.array.push(value);
            self.grow_array();
            return;
        }
        if self.entries.len() > self.live.saturating_mul(2).saturating_add(SPARE) {
            self.make_room();
        }
        self.places.insert(key.clone(), self.entries.len());
        self.entries.push((key, value));
        self.live = self.live.saturating_add(1);
    }

    /// Takes into the array what comes after it.
    fn grow_array(&mut self) {
        loop {
            if self.live == 0 {
                return;
            }
            let next = Value::Int(self.length().saturating_add(1));
            let Some(place) = self.places.get(&next).copied() else { return };
            let Some((_, value)) = self.entries.get_mut(place) else { return };
            if value.is_nil() {
                return;
            }
            self.array.push(std::mem::replace(value, Value::Nil));
            self.places.remove(&next);
            self.live = self.live.saturating_sub(1);
        }
    }

    fn make_room(&mut self) {
        self.entries.retain(|(_, value)| !value.is_nil());
        self.places =
            (0..).zip(&self.entries).map(|(place, (key, _))| (key.clone(), place)).collect();
    }

    /// A border: a value is there, and none after it.
    pub fn length(&self) -> i64 {
        i64::try_from(self.array.len()).unwrap_or(i64::MAX)
    }

    /// What comes after `key` (nil: the first); `None` if the table has no such key.
    pub fn next(&self, key: &Value) -> Option<Option<(Value, Value)>> {
        let (mut at, mut entry) = (0, 0);
        if let Some(place) = self.array_place(key) {
            at = place + 1;
        } else if let Some(place) = self.places.get(key) {
            (at, entry) = (self.array.len(), place + 1);
        } else if matches!(key, Value::Int(number) if *number > 0) {
            // It was the end of the array until it lost its value.
            at = self.array.len();
        } else if !key.is_nil() {
            return None;
        }
        let rest = self.array.iter().enumerate().skip(at);
        if let Some((place, value)) = rest.into_iter().find(|(_, value)| !value.is_nil()) {
            let key = i64::try_from(place).unwrap_or(i64::MAX).saturating_add(1);
            return Some(Some((Value::Int(key), value.clone())));
        }
        let found = self.entries.iter().skip(entry).find(|(_, value)| !value.is_nil());
        Some(found.cloned())
    }

    /// Everything in it.
    pub fn values(&self) -> impl Iterator<Item = (Option<&Value>, &Value)> {
        let array = self.array.iter().map(|value| (None, value));
        array.chain(self.entries.iter().map(|(key, value)| (Some(key), value)))
    }

    /// Removes entries of which a key or value does not live.
    pub fn retain(&mut self, lives: impl Fn(&Value) -> bool) {
        for value in &mut self.array {
            if !lives(value) {
                *value = Value::Nil;
            }
        }
        while self.array.last().is_some_and(Value::is_nil) {
            self.array.pop();
        }
        let mut gone = 0;
        for (key, value) in &mut self.entries {
            if !value.is_nil() && (!lives(value) || !lives(key)) {
                *value = Value::Nil;
                gone += 1;
            }
        }
        self.live = self.live.saturating_sub(gone);
        // Keys that are gone may not be found under a number given anew.
        self.places.retain(|key, _| lives(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_grow_and_shrink_at_their_end_and_traversals_go_on() {
        let mut table = Table::default();
        for key in [3, 2, 1] {
            table.set(Value::Int(key), Value::Int(key * 10));
        }
        assert_eq!(table.length(), 3);
        table.set(Value::Bool(true), Value::Int(7));
        let mut key = Value::Nil;
        let mut seen = Vec::new();
        while let Some(Some((next, value))) = table.next(&key) {
            table.set(next.clone(), Value::Nil);
            seen.push(value);
            key = next;
        }
        assert_eq!(seen, [10, 20, 30, 7].map(Value::Int));
        assert_eq!(table.length(), 0);
        assert_eq!(table.next(&Value::Bool(false)), None);
    }
}
