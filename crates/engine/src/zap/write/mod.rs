//! Changing ZAP objects: creating, inserting, updating, removing.
//!
//! Chapter 04, sections 11-15. Invariant: a change reads and writes one leaf (or the one micro
//! block) and the header, more only when a leaf splits, the pointer table grows or a micro ZAP
//! becomes a fat one; everything that can be refused is refused before the first write.
//! The caller sees to it that one ZAP is changed by one thread at a time.

mod fat;
mod filled;
mod micro;
pub(super) mod recent;
mod table;

use cenote_format::zap::leaf_build::StoredKey;
use cenote_format::zap::{KeySettings, Kind, MAX_NAME_BYTES, MatchKind, MicroBuilder};
use cenote_format::zap::{Normalization, Value};

pub use filled::{create_filled, filled_block_size};

use super::{BlockSink, Body, open_body};
use crate::txg::Tx;
use crate::{Error, ErrorKind, Result};

/// log2 of the block size of a micro ZAP that became a fat one.
const FAT_BLOCK_SHIFT: u32 = 14;

/// What becomes of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryChange {
    /// Nothing.
    Keep,
    /// It gets this value; if there is none, it is made.
    Set(Value),
    /// It is taken out, if it is there.
    Remove,
}

/// A fat ZAP to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewFat {
    /// Salt (not 0), normalization of names, `FLAG_*` bits.
    pub settings: KeySettings,
    /// log2 of the size of its blocks: 9 to 17; 14 where nothing else is asked for.
    pub block_shift: u32,
}

impl NewFat {
    /// The usual one: 16 KiB blocks.
    pub fn new(settings: KeySettings) -> Self {
        Self { settings, block_shift: FAT_BLOCK_SHIFT }
    }
}

/// Makes the empty object in `sink`, whose block size is a multiple of 512 up to 128 KiB, a micro
/// ZAP. `salt` should be random; its lowest bit is set, as OpenZFS does.
pub fn create<S: BlockSink>(
    sink: &S,
    tx: &Tx,
    salt: u64,
    normalization: Normalization,
) -> Result<()> {
    let make = || {
        let size = usize::try_from(sink.block_size()).unwrap_or(usize::MAX);
        let block = MicroBuilder::new(size, salt | 1, normalization)
            .map_err(|error| Error::invalid(error.to_string()))?;
        sink.write_block(tx, 0, block.into_bytes().into())
    };
    make().map_err(|error| sink.named(error))
}

/// Makes the empty object in `sink` a fat ZAP, giving it the block size asked for. The lowest bit of
/// the salt is set, as OpenZFS does.
pub fn create_fat<S: BlockSink>(sink: &S, tx: &Tx, new: &NewFat) -> Result<()> {
    let settings = KeySettings { salt: new.settings.salt | 1, ..new.settings };
    fat::create(sink, tx, new.block_shift, settings).map_err(|error| sink.named(error))
}

/// Adds an entry; [`ErrorKind::Exists`] if there is one of exactly this key.
pub fn insert<'a, S: BlockSink>(
    sink: &S,
    tx: &Tx,
    key: impl Into<StoredKey<'a>>,
    value: &Value,
) -> Result<()> {
    modify(sink, tx, key, MatchKind::Exact, |old| match old {
        Some(_) => Err(Error::new(ErrorKind::Exists, "the ZAP has an entry of that name already")),
        None => Ok(EntryChange::Set(value.clone())),
    })
}

/// Adds an entry whose value is one integer; [`ErrorKind::Exists`] if there is one of the key.
pub fn insert_u64<'a, S: BlockSink>(
    sink: &S,
    tx: &Tx,
    key: impl Into<StoredKey<'a>>,
    value: u64,
) -> Result<()> {
    insert(sink, tx, key, &Value::of_u64(value))
}

/// Gives the entry of exactly this key a value, adding it if it is not there.
pub fn update<'a, S: BlockSink>(
    sink: &S,
    tx: &Tx,
    key: impl Into<StoredKey<'a>>,
    value: &Value,
) -> Result<()> {
    modify(sink, tx, key, MatchKind::Exact, |_| Ok(EntryChange::Set(value.clone())))
}

/// Gives the entry of exactly this key one integer as its value, adding it if it is not there.
pub fn update_u64<'a, S: BlockSink>(
    sink: &S,
    tx: &Tx,
    key: impl Into<StoredKey<'a>>,
    value: u64,
) -> Result<()> {
    update(sink, tx, key, &Value::of_u64(value))
}

/// Takes out the entry of exactly this key; [`ErrorKind::NotFound`] if there is none.
pub fn remove<'a, S: BlockSink>(sink: &S, tx: &Tx, key: impl Into<StoredKey<'a>>) -> Result<()> {
    modify(sink, tx, key, MatchKind::Exact, removed)
}

/// Takes out the entry that matches `name` as `kind` says (of several the one a lookup finds);
/// [`ErrorKind::NotFound`] if there is none.
pub fn remove_normalized<S: BlockSink>(
    sink: &S,
    tx: &Tx,
    name: &[u8],
    kind: MatchKind,
) -> Result<()> {
    modify(sink, tx, name, kind, removed)
}

fn removed(old: Option<&Value>) -> Result<EntryChange> {
    match old {
        Some(_) => Ok(EntryChange::Remove),
        None => Err(Error::not_found("the ZAP has no entry of that name")),
    }
}

/// Adds `delta` to the integer of `key` (0 if there is no entry) and returns the sum; an entry that
/// comes to 0 is taken out. Sums wrap, as those of space accounting do.
pub fn add<'a, S: BlockSink>(
    sink: &S,
    tx: &Tx,
    key: impl Into<StoredKey<'a>>,
    delta: i64,
) -> Result<u64> {
    let mut sum = 0;
    modify(sink, tx, key, MatchKind::Exact, |old| {
        let now = match old.map(Value::as_u64) {
            None => 0,
            Some(Some(now)) => now,
            Some(None) => return Err(Error::corrupt("a sum in a ZAP is not one integer")),
        };
        sum = now.wrapping_add_signed(delta);
        Ok(match sum {
            _ if delta == 0 => EntryChange::Keep,
            0 => EntryChange::Remove,
            sum => EntryChange::Set(Value::of_u64(sum)),
        })
    })?;
    Ok(sum)
}

/// The name that stands for `number` in sets of integers.
pub fn int_name(number: u64) -> String {
    format!("{number:x}")
}

/// Takes out all entries. A fat ZAP stays one.
pub fn clear<S: BlockSink>(sink: &S, tx: &Tx) -> Result<()> {
    let clear = || match open_body(sink)? {
        Body::Micro(micro) => {
            let settings = micro.view()?.settings();
            let block =
                MicroBuilder::new(micro.block.len(), settings.salt, settings.normalization)?;
            sink.write_block(tx, 0, block.into_bytes().into())
        }
        Body::Fat(body) => fat::clear(sink, tx, &body.header),
    };
    clear().map_err(|error| sink.named(error))
}

/// The change all others are made of: finds the entry that matches `key` as `kind` says, asks
/// `decide` with its value what is to become of it, and does that. An entry that is added gets
/// `key` as its name.
pub fn modify<'a, S: BlockSink>(
    sink: &S,
    tx: &Tx,
    key: impl Into<StoredKey<'a>>,
    kind: MatchKind,
    decide: impl FnOnce(Option<&Value>) -> Result<EntryChange>,
) -> Result<()> {
    let key = key.into();
    let change = || {
        check_key(&key)?;
        let block = sink.read_block(0)?;
        if Kind::of(&block) != Some(Kind::Micro) {
            return fat::FatWriter::open(sink, tx)?.modify(key, kind, decide);
        }
        let StoredKey::Name(name) = key else {
            return Err(Error::invalid("the keys of a micro ZAP are names, not words"));
        };
        match micro::modify(sink, tx, block, name, kind, decide)? {
            micro::Outcome::Done => Ok(()),
            micro::Outcome::NeedsFat(micro, value) => {
                fat::check_room(&key, &value, FAT_BLOCK_SHIFT)?;
                let mut fat = micro::upgrade(sink, tx, &micro)?;
                fat.modify(key, kind, |_| Ok(EntryChange::Set(value)))
            }
        }
    };
    change().map_err(|error| sink.named(error))
}

/// Reads what a change of the entry of `key` will read, past all ZAPs that are open: who could not go on in a
/// transaction would leave what was changed before it alone. No transaction may be held.
///
/// # Errors
/// It cannot be read, or is no ZAP with such keys.
pub fn ready_to_change<'a, S: BlockSink>(sink: &S, key: impl Into<StoredKey<'a>>) -> Result<()> {
    let ready = || {
        sink.ready_to_write(0)?;
        match open_body(sink)? {
            Body::Micro(_) => Ok(()),
            Body::Fat(body) => {
                let (id, _) = body.leaf(sink, fat::hash(&body, &key.into())?)?;
                sink.ready_to_write(id)
            }
        }
    };
    ready().map_err(|error| sink.named(error))
}

fn check_key(key: &StoredKey<'_>) -> Result<()> {
    match key {
        StoredKey::Name([]) => Err(Error::invalid("an empty name")),
        StoredKey::Name(name) if name.contains(&0) => Err(Error::invalid("a name with a NUL")),
        StoredKey::Name(name) if name.len() > MAX_NAME_BYTES => {
            Err(Error::invalid(format!("a name of {} bytes", name.len())))
        }
        StoredKey::Words([]) => Err(Error::invalid("a key of no words")),
        StoredKey::Words(words) if words.len() * 8 > MAX_NAME_BYTES => {
            Err(Error::invalid(format!("a key of {} words", words.len())))
        }
        _ => Ok(()),
    }
}
