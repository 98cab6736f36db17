//! Text preparation of names: Unicode normal forms and one-to-one upper-casing.
//!
//! Chapter 04, section 14. Two hosts must agree on the hash of a name for ever, so this is frozen
//! at Unicode 5.0.0: a code point assigned later is a stranger that nothing changes or joins.
//! Invariant: bytes that are not UTF-8 come out as they went in, and nothing is ever refused.

use std::borrow::Cow;

use super::normal_form::NormalForm;
use super::unicode_5_0::{ASSIGNED, UPPER};

/// The transformation a ZAP applies to names: the bits stored in its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Normalization(pub u64);

impl Normalization {
    /// Names are bytes.
    pub const NONE: Self = Self(0);
    /// Upper-case every code point that has a one-to-one upper-case form.
    pub const UPPER: u64 = 0x02;
    /// Canonical decomposition.
    pub const CANONICAL: u64 = 0x10;
    /// Compatibility decomposition.
    pub const COMPATIBILITY: u64 = 0x20;
    /// Composition after decomposition.
    pub const COMPOSE: u64 = 0x40;
    /// Normal form D.
    pub const NFD: Self = Self(Self::CANONICAL);
    /// Normal form C.
    pub const NFC: Self = Self(Self::CANONICAL | Self::COMPOSE);
    /// Normal form KD.
    pub const NFKD: Self = Self(Self::COMPATIBILITY);
    /// Normal form KC.
    pub const NFKC: Self = Self(Self::COMPATIBILITY | Self::COMPOSE);

    /// Nothing is transformed.
    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    /// The same without upper-casing.
    pub fn keep_case(self) -> Self {
        Self(self.0 & !Self::UPPER)
    }

    /// A normal form is asked for.
    pub fn decomposes(self) -> bool {
        self.has(Self::CANONICAL | Self::COMPATIBILITY)
    }

    /// Any of `bits` is set.
    pub fn has(self, bits: u64) -> bool {
        self.0 & bits != 0
    }
}

/// When a stored name counts as the one that is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum MatchKind {
    /// The same bytes.
    #[default]
    Exact,
    /// The same after all transformations of the ZAP.
    Normalized,
    /// The same after all transformations of the ZAP but upper-casing.
    NormalizedKeepCase,
}

/// A name prepared for comparing with many stored ones.
#[derive(Clone, Debug)]
pub struct Matcher<'a> {
    wanted: Cow<'a, [u8]>,
    with: Normalization,
}

impl<'a> Matcher<'a> {
    /// Prepares `name` for a ZAP of `normalization`.
    pub fn new(name: &'a [u8], kind: MatchKind, normalization: Normalization) -> Self {
        let with = match kind {
            MatchKind::Exact => Normalization::NONE,
            MatchKind::Normalized => normalization,
            MatchKind::NormalizedKeepCase => normalization.keep_case(),
        };
        Self { wanted: prepare(name, with), with }
    }

    /// Only the same bytes match: [`Self::wanted`].
    pub fn is_exact(&self) -> bool {
        self.with.is_none()
    }

    /// The prepared name.
    pub fn wanted(&self) -> &[u8] {
        &self.wanted
    }

    /// Whether the name stored as `stored` is the one.
    pub fn matches(&self, stored: &[u8]) -> bool {
        if self.is_exact() {
            return stored == &*self.wanted;
        }
        prepare(stored, self.with) == self.wanted
    }
}

/// The text of `name` as a ZAP of `normalization` hashes and compares it.
pub fn prepare(name: &[u8], normalization: Normalization) -> Cow<'_, [u8]> {
    let upper = normalization.has(Normalization::UPPER);
    if name.is_ascii() {
        return match upper && name.iter().any(u8::is_ascii_lowercase) {
            true => Cow::Owned(name.to_ascii_uppercase()),
            false => Cow::Borrowed(name),
        };
    }
    if normalization.is_none() {
        return Cow::Borrowed(name);
    }
    let mut form = NormalForm::new(normalization, name.len());
    let mut rest = name;
    while let Some(lead) = rest.first() {
        let (sequence, tail) = rest.split_at(sequence_len(*lead).min(rest.len()));
        match character(sequence, normalization.decomposes()) {
            Some(c) if is_assigned(c) => form.push(c),
            _ => form.push_stranger(sequence),
        }
        rest = tail;
    }
    Cow::Owned(form.finish())
}

/// Bytes a character takes by its first byte alone: OpenZFS steps over them unseen.
fn sequence_len(lead: u8) -> usize {
    match lead {
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => 1,
    }
}

/// The character of one sequence; `None` if it is none.
fn character(sequence: &[u8], decomposes: bool) -> Option<char> {
    if let Ok(text) = std::str::from_utf8(sequence) {
        return text.chars().next();
    }
    if !decomposes {
        return None;
    }
    // Hangul syllables are taken apart by the low bits, whatever the high ones say.
    let [a, b, c] = sequence else { return None };
    let code = (u32::from(a & 15) << 12) | (u32::from(b & 63) << 6) | u32::from(c & 63);
    char::from_u32(code).filter(|c| ('\u{ac00}'..='\u{d7a3}').contains(c))
}

fn is_assigned(c: char) -> bool {
    let c = u32::from(c);
    let next = ASSIGNED.partition_point(|(first, _)| *first <= c);
    next.checked_sub(1).and_then(|i| ASSIGNED.get(i)).is_some_and(|(_, last)| c <= *last)
}

/// The one-to-one upper-case form of `c`, or `c`.
pub(super) fn upper(c: char) -> char {
    let code = u32::from(c);
    let next = UPPER.partition_point(|(first, ..)| *first <= code);
    // Ranges of every second code point may interleave with the one before.
    for back in 1..=2 {
        let row = next.checked_sub(back).and_then(|i| UPPER.get(i));
        if let Some((first, last, step, add)) = row
            && code <= *last
            && (code - first) % step == 0
        {
            return code.checked_add_signed(*add).and_then(char::from_u32).unwrap_or(c);
        }
    }
    c
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(name: &[u8], flags: u64) -> Vec<u8> {
        prepare(name, Normalization(flags)).into_owned()
    }

    #[test]
    fn vectors_of_chapter_04() {
        let cafe = "caf\u{e9}".as_bytes();
        assert_eq!(hex::encode(prepared(cafe, 0x10)), "63616665cc81");
        assert_eq!(hex::encode(prepared(cafe, 0x50)), "636166c3a9");
        assert_eq!(hex::encode(prepared(cafe, 0x12)), "43414645cc81");
        assert_eq!(hex::encode(prepared(cafe, 0x52)), "434146c389");
        let file = "\u{fb01}le".as_bytes();
        assert_eq!(prepared(file, 0x20), b"file");
        assert_eq!(prepared(file, 0x60), b"file");
        assert_eq!(prepared(file, 0x10), file);
        assert_eq!(prepared(file, 0x50), file);
        assert_eq!(hex::encode(prepared("stra\u{df}e".as_bytes(), 2)), "53545241c39f45");
    }

    /// A sample of a million and a half texts that `u8_textprep_str` of libzpool 2.1 prepared:
    /// flags, text, result, all in hexadecimal.
    #[test]
    fn the_same_as_openzfs() {
        let cases = include_str!("../../tests/fixtures/zap/text-preparation.txt");
        for case in cases.lines() {
            let mut parts = case.split(' ');
            let flags = u64::from_str_radix(parts.next().unwrap(), 16).unwrap();
            let [text, result] = [(); 2].map(|()| hex::decode(parts.next().unwrap()).unwrap());
            assert_eq!(hex::encode(prepared(&text, flags)), hex::encode(result), "{case}");
        }
        assert!(cases.lines().count() > 1000);
    }
}
