//! Normal forms as OpenZFS makes them.
//!
//! They are those of Unicode but for three habits, which hashes on disks depend on (all found by
//! comparing a million texts with `u8_textprep_str` of libzpool):
//! * once a mark has joined a base, marks in between no longer keep later ones from joining;
//!   and a base inside what one character decomposed to is joined by nothing behind a mark that
//!   did not join;
//! * the combining class of a mark is that of its lower-case form, even when it is upper-cased;
//! * a run of more than 30 decomposed characters is cut by a COMBINING GRAPHEME JOINER.
//!
//! Invariant: at most 30 characters and one name are held.

use smallvec::SmallVec;
use unicode_normalization::char as unicode;

use super::normalize::{Normalization, upper};

/// Most characters of a base and its marks.
const LONGEST: usize = 30;
const JOINER: char = '\u{34f}';

type Pieces = SmallVec<[(char, u8); 32]>;

/// Takes characters, gives their normal form.
pub(super) struct NormalForm {
    normalization: Normalization,
    /// A base and its marks, decomposed, with their combining classes.
    sequence: Pieces,
    /// The sequence follows bytes that are left as they are, and they are its base.
    on_stranger: bool,
    /// A composed base without marks that a following base may still join.
    waiting: Option<char>,
    out: Vec<u8>,
}

impl NormalForm {
    pub(super) fn new(normalization: Normalization, len: usize) -> Self {
        let out = Vec::with_capacity(len + 16);
        Self { normalization, sequence: Pieces::new(), on_stranger: false, waiting: None, out }
    }

    /// Adds a character assigned in Unicode 5.0.
    pub(super) fn push(&mut self, original: char) {
        let cased = match self.normalization.has(Normalization::UPPER) {
            true => upper(original),
            false => original,
        };
        if !self.normalization.decomposes() {
            return put(&mut self.out, cased);
        }
        // A sequence's first character counts as cased; Hangul is a sequence of its own.
        let first = match self.sequence.last() {
            Some((last, _)) => is_hangul(*last),
            None => !self.on_stranger,
        };
        let class = unicode::canonical_combining_class(if first { cased } else { original });
        let mut pieces = Pieces::new();
        let piece = |c| pieces.push((c, unicode::canonical_combining_class(c)));
        match self.normalization.has(Normalization::COMPATIBILITY) {
            true => unicode::decompose_compatible(cased, piece),
            false => unicode::decompose_canonical(cased, piece),
        }
        if let [(only, own)] = pieces.as_mut_slice()
            && *only == cased
        {
            *own = class;
        }
        if class == 0 {
            self.end_sequence();
        } else if self.sequence.len() + usize::from(self.on_stranger) + pieces.len() > LONGEST {
            self.end_sequence();
            self.flush();
            put(&mut self.out, JOINER);
            if let [(only, own)] = pieces.as_mut_slice() {
                *own = unicode::canonical_combining_class(*only);
            }
        }
        self.sequence.extend(pieces);
    }

    /// Adds bytes that are left as they are: nothing joins them or passes them.
    pub(super) fn push_stranger(&mut self, bytes: &[u8]) {
        self.end_sequence();
        self.flush();
        self.on_stranger = true;
        self.out.extend_from_slice(bytes);
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.end_sequence();
        self.flush();
        self.out
    }

    fn flush(&mut self) {
        if let Some(c) = self.waiting.take() {
            put(&mut self.out, c);
        }
    }

    fn end_sequence(&mut self) {
        let mut sequence = std::mem::take(&mut self.sequence);
        self.on_stranger = false;
        if sequence.is_empty() {
            return;
        }
        for run in sequence.split_mut(|(_, class)| *class == 0) {
            run.sort_by_key(|(_, class)| *class);
        }
        if !self.normalization.has(Normalization::COMPOSE) {
            sequence.iter().for_each(|(c, _)| put(&mut self.out, *c));
            return;
        }
        if let (Some(before), Some((first, 0))) = (self.waiting, sequence.first_mut())
            && let Some(joined) = unicode::compose(before, *first)
        {
            *first = joined;
            self.waiting = None;
        }
        self.flush();
        compose(&mut sequence);
        match sequence.as_slice() {
            [(only, _)] => self.waiting = Some(*only),
            several => several.iter().for_each(|(c, _)| put(&mut self.out, *c)),
        }
    }
}

fn is_hangul(c: char) -> bool {
    matches!(c, '\u{1100}'..='\u{11ff}' | '\u{ac00}'..='\u{d7a3}')
}

fn put(out: &mut Vec<u8>, c: char) {
    out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
}

/// Joins marks to their bases.
fn compose(sequence: &mut Pieces) {
    let mut joined = Pieces::new();
    // Index in `joined` of the base; whether a mark has joined it; the last that did not.
    let (mut base, mut any, mut failed) = (None, false, None);
    for (c, class) in sequence.iter().copied() {
        let blocked = match failed {
            Some(failed) if !any => base != Some(0) || failed >= class,
            _ => false,
        };
        let onto = base.and_then(|base: usize| joined.get_mut(base));
        if let Some((onto, _)) = onto
            && !blocked
            && let Some(both) = unicode::compose(*onto, c)
        {
            *onto = both;
            any = true;
            continue;
        }
        if class == 0 {
            (base, any, failed) = (Some(joined.len()), false, None);
        } else {
            failed = Some(class);
        }
        joined.push((c, class));
    }
    *sequence = joined;
}
