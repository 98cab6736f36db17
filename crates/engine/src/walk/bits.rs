//! A set of units of a large address space: one bit each, in pages that exist where bits are set.
//!
//! Invariant: memory is bounded by one page for every 65536 units touched, and a page filled at
//! once takes none.

use std::collections::HashMap;

const WORDS: usize = 1024;
const UNITS: u64 = WORDS as u64 * 64;

#[derive(Clone)]
enum Page {
    Full,
    Bits(Box<[u64; WORDS]>),
}

/// A set of numbers.
#[derive(Clone, Default)]
pub(crate) struct SparseBits {
    pages: HashMap<u64, Page>,
    len: u64,
}

impl SparseBits {
    /// Numbers in the set.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Adds `start..start + count`; returns how many were there already.
    pub(crate) fn insert(&mut self, start: u64, count: u64) -> u64 {
        let mut there = 0;
        for (page, from, to) in pieces(start, count) {
            let whole = to - from == UNITS;
            match self.pages.get_mut(&page) {
                Some(Page::Full) => there += to - from,
                Some(Page::Bits(words)) => {
                    there += count_in(words, from, to);
                    fill(words, from, to, true);
                    if whole {
                        self.pages.insert(page, Page::Full);
                    }
                }
                None if whole => {
                    self.pages.insert(page, Page::Full);
                }
                None => {
                    let mut words = Box::new([0; WORDS]);
                    fill(&mut words, from, to, true);
                    self.pages.insert(page, Page::Bits(words));
                }
            }
        }
        self.len += count - there;
        there
    }

    /// Removes `start..start + count`; returns how many were not there.
    pub(crate) fn remove(&mut self, start: u64, count: u64) -> u64 {
        let mut gone = 0;
        for (page, from, to) in pieces(start, count) {
            match self.pages.get_mut(&page) {
                None => gone += to - from,
                Some(_) if to - from == UNITS => {
                    gone += UNITS - self.pages.remove(&page).map_or(0, |page| page.count());
                }
                Some(page) => {
                    let words = page.bits();
                    gone += (to - from) - count_in(words, from, to);
                    fill(words, from, to, false);
                }
            }
        }
        self.len -= count - gone;
        gone
    }

    /// Calls `run` with (start, count) of every run of numbers that are in this set and not in
    /// `other`, in ascending order.
    pub(crate) fn difference(&self, other: &Self, mut run: impl FnMut(u64, u64)) {
        let mut pages: Vec<&u64> = self.pages.keys().collect();
        pages.sort_unstable();
        let mut open: Option<(u64, u64)> = None;
        let mut give = |from: u64, to: u64, open: &mut Option<(u64, u64)>| match open {
            Some((_, end)) if *end == from => *end = to,
            _ => {
                if let Some((start, end)) = open.replace((from, to)) {
                    run(start, end - start);
                }
            }
        };
        for page in pages {
            let (mine, theirs) = (self.pages.get(page), other.pages.get(page));
            if matches!(theirs, Some(Page::Full)) {
                continue;
            }
            for word in 0..WORDS {
                let value = word_of(mine, word) & !word_of(theirs, word);
                let base = page * UNITS + word as u64 * 64;
                let mut bit = 0;
                while bit < 64 {
                    let rest = value >> bit;
                    if rest == 0 {
                        break;
                    }
                    let start = bit + rest.trailing_zeros();
                    let ones = (!(value >> start)).trailing_zeros().min(64 - start);
                    give(base + u64::from(start), base + u64::from(start + ones), &mut open);
                    bit = start + ones;
                }
            }
        }
        if let Some((start, end)) = open {
            run(start, end - start);
        }
    }
}

impl Page {
    fn count(&self) -> u64 {
        match self {
            Self::Full => UNITS,
            Self::Bits(words) => words.iter().map(|word| u64::from(word.count_ones())).sum(),
        }
    }

    fn bits(&mut self) -> &mut [u64; WORDS] {
        if matches!(self, Self::Full) {
            *self = Self::Bits(Box::new([u64::MAX; WORDS]));
        }
        match self {
            Self::Bits(words) => words,
            Self::Full => unreachable!("made into bits above"),
        }
    }
}

fn word_of(page: Option<&Page>, word: usize) -> u64 {
    match page {
        None => 0,
        Some(Page::Full) => u64::MAX,
        Some(Page::Bits(words)) => words.get(word).copied().unwrap_or(0),
    }
}

/// (page, from, to) of every page the range touches; `from..to` inside the page.
fn pieces(start: u64, count: u64) -> impl Iterator<Item = (u64, u64, u64)> {
    let end = start.saturating_add(count);
    let mut at = start;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let (page, from) = (at / UNITS, at % UNITS);
        let to = UNITS.min(from + (end - at));
        at += to - from;
        Some((page, from, to))
    })
}

/// (index of word, mask) of the words `from..to` touches.
fn masks(from: u64, to: u64) -> impl Iterator<Item = (usize, u64)> {
    let mut at = from;
    std::iter::from_fn(move || {
        if at >= to {
            return None;
        }
        let (word, bit) = (at / 64, at % 64);
        let len = (64 - bit).min(to - at);
        at += len;
        let ones = if len == 64 { u64::MAX } else { (1 << len) - 1 };
        Some((word as usize, ones << bit))
    })
}

fn count_in(words: &[u64; WORDS], from: u64, to: u64) -> u64 {
    masks(from, to)
        .map(|(word, mask)| u64::from((words.get(word).copied().unwrap_or(0) & mask).count_ones()))
        .sum()
}

fn fill(words: &mut [u64; WORDS], from: u64, to: u64, ones: bool) {
    for (word, mask) in masks(from, to) {
        if let Some(word) = words.get_mut(word) {
            *word = if ones { *word | mask } else { *word & !mask };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn behaves_like_a_plain_set() {
        let (mut bits, mut plain) = (SparseBits::default(), BTreeSet::new());
        let mut state = 7_u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
            (state >> 33) % below
        };
        for _ in 0..400 {
            let start = random(400_000);
            let count = if random(5) == 0 { random(200_000) } else { random(300) };
            let range = start..start + count;
            let there = range.clone().filter(|n| plain.contains(n)).count() as u64;
            if random(3) == 0 {
                assert_eq!(bits.remove(start, count), count - there);
                range.for_each(|n| _ = plain.remove(&n));
            } else {
                assert_eq!(bits.insert(start, count), there);
                plain.extend(range);
            }
            assert_eq!(bits.len(), plain.len() as u64);
        }
        let mut other = SparseBits::default();
        other.insert(1000, 150_000);
        let mut found = BTreeSet::new();
        let mut last = 0;
        bits.difference(&other, |start, count| {
            assert!(start > last || last == 0);
            last = start + count;
            found.extend(start..start + count);
        });
        plain.retain(|n| !(1000..151_000).contains(n));
        assert_eq!(found, plain);
    }
}
