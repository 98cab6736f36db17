//! An ordered map of which many versions are kept: a new one shares all but what it changes.
//!
//! Invariant: entries lie in ascending chunks, none of which is empty or holds more than [`CHUNK`]
//! entries; a copy of a map costs as much as it has chunks, a change as much as one chunk has entries.

use std::borrow::Borrow;
use std::sync::Arc;

/// Most entries of a chunk.
const CHUNK: usize = 128;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct SharedMap<K, V> {
    chunks: Vec<Arc<Vec<(K, V)>>>,
    len: usize,
}

impl<K, V> Default for SharedMap<K, V> {
    fn default() -> Self {
        Self { chunks: Vec::new(), len: 0 }
    }
}

impl<K: Ord + Clone, V: Clone> SharedMap<K, V> {
    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The chunk that has `key` if any has, and where it is in it, or would be.
    fn place<Q: Ord + ?Sized>(&self, key: &Q) -> (usize, Result<usize, usize>)
    where
        K: Borrow<Q>,
    {
        let after = self
            .chunks
            .partition_point(|chunk| chunk.first().is_some_and(|(first, _)| first.borrow() <= key));
        let at = after.saturating_sub(1);
        let found = self
            .chunks
            .get(at)
            .map_or(Err(0), |chunk| chunk.binary_search_by(|(known, _)| known.borrow().cmp(key)));
        (at, found)
    }

    /// What is kept under `key`.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let (at, Ok(index)) = self.place(key) else { return None };
        self.chunks.get(at)?.get(index).map(|(_, value)| value)
    }

    /// The same, to be changed in this version only.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let (at, Ok(index)) = self.place(key) else { return None };
        Arc::make_mut(self.chunks.get_mut(at)?).get_mut(index).map(|(_, value)| value)
    }

    /// Keeps `value` under `key`, instead of what was kept there.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let (at, found) = self.place(&key);
        let is_last = at + 1 >= self.chunks.len();
        let Some(chunk) = self.chunks.get_mut(at) else {
            self.chunks.push(Arc::new(vec![(key, value)]));
            self.len += 1;
            return None;
        };
        let entries = Arc::make_mut(chunk);
        match found {
            Ok(index) => {
                return entries.get_mut(index).map(|(_, old)| std::mem::replace(old, value));
            }
            // What comes in order fills one chunk after another.
            Err(index) if index == CHUNK && is_last => {
                self.chunks.insert(at + 1, Arc::new(vec![(key, value)]));
            }
            Err(index) => {
                entries.insert(index, (key, value));
                if entries.len() > CHUNK {
                    let rest = entries.split_off(CHUNK / 2);
                    self.chunks.insert(at + 1, Arc::new(rest));
                }
            }
        }
        self.len += 1;
        None
    }

    /// Takes out what is kept under `key`.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        let (at, Ok(index)) = self.place(key) else { return None };
        let entries = Arc::make_mut(self.chunks.get_mut(at)?);
        let (_, value) = entries.remove(index);
        if entries.is_empty() {
            self.chunks.remove(at);
        }
        self.len -= 1;
        Some(value)
    }

    /// All entries in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> + Clone {
        self.chunks.iter().flat_map(|chunk| chunk.iter()).map(|(key, value)| (key, value))
    }

    /// All values in the order of their keys.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> + Clone {
        self.iter().map(|(_, value)| value)
    }

    /// The entries at and after `from`, in order.
    pub fn from<Q: Ord + ?Sized>(
        &self,
        from: &Q,
    ) -> impl Iterator<Item = (&K, &V)> + use<'_, K, V, Q>
    where
        K: Borrow<Q>,
    {
        let (at, found) = self.place(from);
        let (Ok(index) | Err(index)) = found;
        let first = self.chunks.get(at).and_then(|chunk| chunk.get(index..)).unwrap_or_default();
        let rest = self.chunks.get(at + 1..).unwrap_or_default();
        let rest = rest.iter().flat_map(|chunk| chunk.iter());
        first.iter().chain(rest).map(|(key, value)| (key, value))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn every_version_is_as_it_was() {
        let mut map: SharedMap<u64, u64> = SharedMap::default();
        let mut model = BTreeMap::new();
        let mut versions = Vec::new();
        let mut state = 1u64;
        for step in 0..6000u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            // Grows at first, in order at the end, and shrinks in between.
            let key = if step < 5000 { state >> 33 & 0x7ff } else { step };
            let removes = if (2000..4000).contains(&step) { 3 } else { 1 };
            if state >> 20 & 3 < removes && step < 5000 {
                assert_eq!(map.remove(&key), model.remove(&key));
            } else if let Some(value) = map.get_mut(&key).filter(|_| state & 1 << 40 != 0) {
                *value += 1;
                *model.get_mut(&key).unwrap() += 1;
            } else {
                assert_eq!(map.insert(key, step), model.insert(key, step));
            }
            assert!(map.chunks.iter().all(|chunk| (1..=CHUNK).contains(&chunk.len())));
            if step % 500 == 0 {
                versions.push((map.clone(), model.clone()));
            }
        }
        versions.push((map, model));
        for (map, model) in &versions {
            assert!(map.iter().eq(model) && map.values().rev().eq(model.values().rev()));
            assert_eq!((map.len(), map.is_empty()), (model.len(), model.is_empty()));
            for from in [0, 7, 500, 2047, 4999, 5500, 7000] {
                assert!(map.from(&from).eq(model.range(from..)));
                assert_eq!(map.get(&from), model.get(&from));
            }
        }
    }

    #[test]
    fn a_new_version_shares_what_it_does_not_change() {
        let mut map = SharedMap::default();
        for key in 0..10_000 {
            map.insert(key, key);
        }
        assert!(map.chunks.len() < 80);
        let mut next = map.clone();
        next.insert(5000, 0);
        next.remove(&77);
        let pairs = map.chunks.iter().zip(&next.chunks);
        assert_eq!(pairs.filter(|(old, new)| !Arc::ptr_eq(old, new)).count(), 2);
    }
}
