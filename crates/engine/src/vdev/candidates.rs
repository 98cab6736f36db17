//! All blocks that can be made of what was read, most likely first.
//!
//! A mirror offers each of its distinct copies; columns with parity offer what was read, then every
//! block made by distrusting sets of one, two, ... parity many devices; joined pieces offer every
//! combination. Invariant: the search ends after [`MAX_CANDIDATES`] candidates or
//! [`MAX_CANDIDATE_BYTES`] bytes, whatever the devices hold.

use super::layout::Map;
use super::plan::{Answers, complete};
use super::source::Source;
use bytes::{Bytes, BytesMut};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::ControlFlow::{self, Break, Continue};

/// Most candidates made for one block. Enough for every set of three among 29 devices.
pub const MAX_CANDIDATES: u32 = 4096;
/// Most bytes of candidates made for one block.
pub const MAX_CANDIDATE_BYTES: u64 = 8 << 30;
/// Most different copies of one column that are considered.
const MAX_VERSIONS: usize = 4;
/// Most choices among copies of columns.
const MAX_CHOICES: usize = 64;

/// Why a search stops.
pub(super) enum End {
    Accepted,
    Exhausted,
}

type Flow = ControlFlow<End>;
type Accept<'a> = &'a mut dyn FnMut(Bytes) -> Flow;

/// One search over the answers of a batch.
pub(super) struct Search<'a> {
    answers: &'a Answers,
    tried: Cell<u32>,
    bytes: Cell<u64>,
}

impl<'a> Search<'a> {
    pub(super) fn new(answers: &'a Answers) -> Self {
        Self { answers, tried: Cell::new(0), bytes: Cell::new(0) }
    }

    /// Offers candidates of `source` until `accept` says yes.
    pub(super) fn run(&self, source: &Source, accept: &mut dyn FnMut(Bytes) -> bool) {
        let _ = self.each(source, &mut |bytes| {
            self.charge(&bytes)?;
            if accept(bytes) { Break(End::Accepted) } else { Continue(()) }
        });
    }

    /// Candidates made so far.
    pub(super) fn tried(&self) -> u32 {
        self.tried.get()
    }

    fn charge(&self, bytes: &Bytes) -> Flow {
        self.tried.set(self.tried.get() + 1);
        self.bytes.set(self.bytes.get() + bytes.len() as u64);
        if self.tried.get() > MAX_CANDIDATES || self.bytes.get() > MAX_CANDIDATE_BYTES {
            return Break(End::Exhausted);
        }
        Continue(())
    }

    fn each(&self, source: &Source, accept: Accept<'_>) -> Flow {
        match source {
            Source::Nothing => Continue(()),
            Source::Leaf(piece) => match piece.bytes(self.answers) {
                Some(bytes) => accept(bytes),
                None => Continue(()),
            },
            Source::Any(copies) => {
                let mut seen: Vec<Bytes> = Vec::new();
                for copy in copies {
                    self.each(copy, &mut |bytes| {
                        if seen.contains(&bytes) {
                            return Continue(());
                        }
                        if seen.len() < MAX_VERSIONS {
                            seen.push(bytes.clone());
                        }
                        accept(bytes)
                    })?;
                }
                Continue(())
            }
            Source::Join(parts) => self.join(parts, &mut Vec::new(), accept),
            Source::Rows { map, cells, widths, .. } => self.rows(map, cells, widths, accept),
        }
    }

    /// Every combination of the candidates of `parts`, after those in `chosen`.
    fn join(&self, parts: &[(Source, usize)], chosen: &mut Vec<Bytes>, accept: Accept<'_>) -> Flow {
        let Some(((first, len), rest)) = parts.split_first() else {
            let mut joined = BytesMut::with_capacity(chosen.iter().map(Bytes::len).sum());
            chosen.iter().for_each(|part| joined.extend_from_slice(part));
            return accept(joined.freeze());
        };
        self.each(first, &mut |bytes| {
            // Backtracking must end too, not only what reaches the top.
            self.charge(&bytes)?;
            chosen.push(bytes.slice(..bytes.len().min(*len)));
            let flow = self.join(rest, chosen, accept);
            chosen.pop();
            flow
        })
    }

    fn rows(&self, map: &Map, cells: &[Source], widths: &[u32], accept: Accept<'_>) -> Flow {
        let mut versions: Vec<Vec<Bytes>> = Vec::with_capacity(cells.len());
        for (cell, column) in cells.iter().zip(map.columns()) {
            let mut found: Vec<Bytes> = Vec::new();
            if column.size > 0 {
                let len = column.size as usize;
                let _ = self.each(cell, &mut |bytes| {
                    if bytes.len() >= len {
                        found.push(bytes.slice(..len));
                    }
                    if found.len() < MAX_VERSIONS { Continue(()) } else { Break(End::Exhausted) }
                });
            }
            versions.push(found);
        }
        let families = families(map, widths);
        let choices = choices(&versions);
        for size in 0..=map.parity {
            for choice in &choices {
                let known: Vec<Option<Bytes>> = versions
                    .iter()
                    .zip(choice)
                    .map(|(versions, &version)| versions.get(version).cloned())
                    .collect();
                for suspects in &families {
                    if size == 0 {
                        self.offer(map, known.clone(), accept)?;
                        break;
                    }
                    let mut sets = Combinations::new(suspects.len(), size);
                    while let Some(set) = sets.next() {
                        let distrusted = set.iter().filter_map(|&index| suspects.get(index));
                        let Some(columns) = without(map, &known, distrusted) else { continue };
                        self.offer(map, columns, accept)?;
                    }
                }
            }
        }
        Continue(())
    }

    fn offer(&self, map: &Map, columns: Vec<Option<Bytes>>, accept: Accept<'_>) -> Flow {
        match complete(map, columns) {
            Some(block) => {
                self.charge(&block)?;
                accept(block)
            }
            None => Continue(()),
        }
    }
}

/// `known` without the columns of the `distrusted` devices; `None` if that is no new candidate:
/// some device of the set holds nothing that is known, or all of them hold only parity that was
/// not used.
fn without<'a>(
    map: &Map,
    known: &[Option<Bytes>],
    distrusted: impl Iterator<Item = &'a Vec<usize>>,
) -> Option<Vec<Option<Bytes>>> {
    let mut columns = known.to_vec();
    for device in distrusted {
        let mut useful = false;
        for &index in device {
            useful |= columns.get_mut(index)?.take().is_some();
        }
        if !useful {
            return None;
        }
    }
    let rebuilds =
        map.data_columns().any(|(index, _)| columns.get(index).is_some_and(Option::is_none));
    rebuilds.then_some(columns)
}

/// The sets of columns that fall together when one device is wrong: for the present layout, and
/// for each layout the sectors had before an expansion copied them.
fn families(map: &Map, widths: &[u32]) -> Vec<Vec<Vec<usize>>> {
    let group = |key: &dyn Fn(&super::layout::Column) -> u64| {
        let mut groups: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for (index, column) in map.columns().iter().enumerate() {
            if column.size > 0 {
                groups.entry(key(column)).or_default().push(index);
            }
        }
        groups.into_values().collect::<Vec<_>>()
    };
    let mut families = vec![group(&|column| u64::from(column.child))];
    for &width in widths.iter().skip(1).filter(|&&width| width > 0) {
        families.push(group(&|column| column.sector % u64::from(width)));
    }
    families
}

/// Which version to take of each column: the first of all, then each combination.
fn choices(versions: &[Vec<Bytes>]) -> Vec<Vec<usize>> {
    let mut choices = vec![vec![0; versions.len()]];
    for (column, versions) in versions.iter().enumerate() {
        for version in 1..versions.len() {
            for base in 0..choices.len() {
                let Some(mut choice) = choices.get(base).cloned() else { continue };
                let Some(slot) = choice.get_mut(column).filter(|slot| **slot == 0) else {
                    continue;
                };
                *slot = version;
                if choices.len() >= MAX_CHOICES {
                    return choices;
                }
                choices.push(choice);
            }
        }
    }
    choices
}

/// Every set of `size` numbers below `count`, ascending.
struct Combinations {
    count: usize,
    current: Vec<usize>,
    started: bool,
}

impl Combinations {
    fn new(count: usize, size: usize) -> Self {
        Self { count, current: (0..size).collect(), started: false }
    }

    fn next(&mut self) -> Option<&[usize]> {
        let size = self.current.len();
        if !self.started {
            self.started = true;
            return (size <= self.count).then_some(self.current.as_slice());
        }
        let movable = (0..size).rev().find(|&place| {
            self.current.get(place).is_some_and(|&value| value + (size - place) < self.count)
        })?;
        let first = self.current.get(movable).copied()? + 1;
        for (place, value) in self.current.iter_mut().skip(movable).zip(first..) {
            *place = value;
        }
        Some(&self.current)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combinations_are_complete() {
        let count = |n, k| {
            let mut sets = Combinations::new(n, k);
            let mut seen = std::collections::HashSet::new();
            while let Some(set) = sets.next() {
                assert!(set.windows(2).all(|w| w[0] < w[1]) && set.iter().all(|&v| v < n));
                assert!(seen.insert(set.to_vec()));
            }
            seen.len()
        };
        assert_eq!(
            [count(5, 1), count(5, 2), count(5, 5), count(5, 6), count(12, 3)],
            [5, 10, 1, 0, 220]
        );
    }

    #[test]
    fn choices_cover_every_combination() {
        let v = |n: usize| (0..n).map(|i| Bytes::from(vec![i as u8])).collect::<Vec<_>>();
        let all = choices(&[v(1), v(2), v(0), v(3)]);
        assert_eq!(all.len(), 6);
        assert_eq!(all[0], [0, 0, 0, 0]);
        assert_eq!(all.iter().collect::<std::collections::HashSet<_>>().len(), 6);
        assert_eq!(choices(&vec![v(4); 40]).len(), MAX_CHOICES);
    }
}
