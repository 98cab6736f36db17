//! dRAID permutation maps: which child stands at which position in which slice.
//!
//! Chapter 03, sections 5.2 and 5.5. Invariant: a map handed out has the checksum its seed promises,
//! and every row of it is a permutation, so that positions and children correspond one to one.

use super::draid_table::SEEDS;
use super::error::VdevError;
use std::sync::{Arc, OnceLock};

/// First word of the generator's state, the same for every map.
const GENERATOR_SEED: u64 = 0xd_7a1d_5eed;

/// xoroshiro128++.
struct Generator(u64, u64);

impl Generator {
    fn new(seed: u64) -> Self {
        Self(GENERATOR_SEED, seed)
    }

    fn next(&mut self) -> u64 {
        let output = self.0.wrapping_add(self.1).rotate_left(17).wrapping_add(self.0);
        let mixed = self.1 ^ self.0;
        self.0 = self.0.rotate_left(49) ^ mixed ^ (mixed << 21);
        self.1 = mixed.rotate_left(28);
        output
    }

    /// A number below `bound`, which is not 0.
    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

fn seed_of(children: usize) -> Result<(u64, u64), VdevError> {
    children
        .checked_sub(2)
        .and_then(|index| SEEDS.get(index))
        .copied()
        .ok_or_else(|| VdevError::Config(format!("dRAID with {children} children")))
}

/// Rows in the map for this many children.
fn row_count(children: usize) -> usize {
    if children <= 31 { 256 } else { 512 }
}

/// The base rows for `children` children, made once and checked.
fn base(children: usize) -> Result<Arc<[u8]>, VdevError> {
    static MADE: [OnceLock<Option<Arc<[u8]>>>; 256] = [const { OnceLock::new() }; 256];
    let (seed, checksum) = seed_of(children)?;
    let cell = MADE.get(children).ok_or_else(|| VdevError::config("dRAID is too wide"))?;
    cell.get_or_init(|| {
        let mut generator = Generator::new(seed);
        let mut row: Vec<u8> = (0..=255).take(children).collect();
        let mut rows = Vec::with_capacity(row_count(children) * children);
        for _ in 0..row_count(children) {
            for last in (1..children).rev() {
                row.swap(last, generator.below(last + 1));
            }
            rows.extend_from_slice(&row);
        }
        let sum: u64 = rows
            .chunks_exact(4)
            .map(|word| u64::from(u32::from_le_bytes([word[0], word[1], word[2], word[3]])))
            .sum();
        (sum == checksum).then(|| rows.into())
    })
    .clone()
    .ok_or_else(|| VdevError::config("a dRAID permutation map does not have its checksum"))
}

/// The permutations of one dRAID vdev.
#[derive(Debug, Clone)]
pub(super) struct Permutations {
    rows: Arc<[u8]>,
    /// Children of one failure domain set: positions in one permutation.
    children: usize,
    /// Failure groups; 1 without failure domains.
    domains: usize,
}

impl Permutations {
    /// The map for `domains` groups of `children` children each (1 group without the feature).
    pub(super) fn new(children: usize, domains: usize) -> Result<Self, VdevError> {
        let mut rows = base(children)?;
        if domains == 0 || children * domains > 255 || domains > row_count(children) {
            return Err(VdevError::config(format!("{domains} dRAID failure groups")));
        }
        if domains > 1 {
            rows = spread(&rows, children, domains)?.into();
        }
        Ok(Self { rows, children, domains })
    }

    /// The child at `position` in permutation number `number`.
    pub(super) fn child(&self, number: u64, position: usize) -> u32 {
        let count = self.rows.len() as u64;
        let x = (number % count) as usize;
        let (index, shift) = if self.domains == 1 {
            let row = x / self.children;
            (row * self.children + position % self.children, x % self.children)
        } else {
            let run = x / (self.children * self.domains) * self.domains;
            let row = run + (number % self.domains as u64) as usize;
            let turned = (position + x % self.children) % self.children;
            (row * self.children + turned, 0)
        };
        let value = self.rows.get(index).copied().map_or(0, usize::from);
        if self.domains == 1 { ((value + shift) % self.children) as u32 } else { value as u32 }
    }
}

/// Section 5.5: runs of `domains` rows, each value renamed per row and exchanged between them so
/// that a row takes one child of every failure domain.
fn spread(base: &[u8], children: usize, domains: usize) -> Result<Vec<u8>, VdevError> {
    let (seed, _) = seed_of(children)?;
    let mut generator = Generator::new(seed);
    let runs = base.len() / children / domains;
    let mut rows = base.get(..runs * domains * children).unwrap_or_default().to_vec();
    for run in rows.chunks_exact_mut(domains * children) {
        for position in 0..children {
            let value = run.get(position).copied().unwrap_or_default();
            let mut places = vec![position; domains];
            for row in (1..domains).rev() {
                let start = row * children;
                let found = base_position(run, start, children, value);
                let Some(found) = found else {
                    return Err(VdevError::config("a dRAID permutation row misses a child"));
                };
                places[row] = found;
                run[found] += (row * children) as u8;
            }
            for row in (1..domains).rev() {
                let other = generator.below(row + 1);
                run.swap(places[row], places[other]);
            }
        }
    }
    Ok(rows)
}

/// Where the row starting at `start` still holds `value` under its own name.
fn base_position(run: &[u8], start: usize, children: usize, value: u8) -> Option<usize> {
    let row = run.get(start..start + children)?;
    row.iter().position(|&entry| entry == value).map(|at| start + at)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chapter 03, section 5.2.
    #[test]
    fn generator_of_the_reference() {
        let mut generator = Generator::new(seed_of(11).unwrap().0);
        let first: Vec<u64> = (0..4).map(|_| generator.next()).collect();
        assert_eq!(
            first,
            [0xd7feae2f94f84886, 0x00d53b6451810639, 0xd89be1922102cd5b, 0x5879c88aece77fa3]
        );
    }

    /// Every map of the table has its checksum, and its rows are permutations.
    #[test]
    fn all_maps_have_their_checksums() {
        for children in 2..=255 {
            let rows = base(children).unwrap();
            assert_eq!(rows.len(), row_count(children) * children);
            for row in rows.chunks_exact(children) {
                let mut sorted = row.to_vec();
                sorted.sort_unstable();
                assert!(sorted.iter().enumerate().all(|(i, &v)| i == usize::from(v)));
            }
        }
        assert!(base(1).is_err());
        assert!(base(256).is_err());
    }

    /// Chapter 03, section 5.2: first, second and last rows.
    #[test]
    fn rows_of_the_reference() {
        let check = |children: usize, row: usize, expected: &[u8]| {
            let rows = base(children).unwrap();
            assert_eq!(rows.chunks_exact(children).nth(row).unwrap(), expected);
        };
        check(4, 0, &[0, 1, 3, 2]);
        check(4, 1, &[1, 3, 0, 2]);
        check(4, 255, &[1, 2, 0, 3]);
        check(5, 0, &[2, 3, 1, 4, 0]);
        check(5, 255, &[1, 0, 2, 3, 4]);
        check(11, 0, &[7, 8, 10, 6, 0, 2, 4, 3, 9, 5, 1]);
        check(11, 1, &[3, 8, 2, 9, 0, 5, 6, 10, 1, 7, 4]);
        check(11, 255, &[0, 1, 10, 5, 7, 3, 6, 2, 9, 8, 4]);
        check(14, 0, &[1, 7, 3, 13, 9, 0, 12, 5, 6, 10, 4, 11, 8, 2]);
        check(14, 255, &[12, 13, 3, 1, 0, 7, 10, 4, 11, 8, 6, 9, 2, 5]);
    }

    /// With failure domains each run still names every child exactly once, and the entries of one
    /// original value stay one per domain.
    #[test]
    fn spread_rows_name_every_child_once() {
        for (children, domains) in [(4, 2), (5, 3), (10, 4), (32, 7)] {
            let map = Permutations::new(children, domains).unwrap();
            for run in map.rows.chunks_exact(children * domains) {
                let mut sorted = run.to_vec();
                sorted.sort_unstable();
                assert!(sorted.iter().enumerate().all(|(i, &v)| i == usize::from(v)));
            }
            for number in 0..2000u64 {
                let mut seen = vec![0; children];
                for position in 0..children {
                    seen[map.child(number, position) as usize % children] += 1;
                }
                assert!(seen.iter().all(|&count| count == 1));
            }
        }
        assert!(Permutations::new(128, 2).is_err());
        assert!(Permutations::new(5, 0).is_err());
    }
}
