//! Block pointers as `zdb` writes them, short and long.
//!
//! Invariant: any 128 bytes can be shown.

use cenote_control::text::number;
use cenote_format::{BlockPointer, ObjectType};
use serde_json::{Value, json};

const CHECKSUMS: [&str; 15] = [
    "inherit",
    "on",
    "off",
    "label",
    "gang_header",
    "zilog",
    "fletcher2",
    "fletcher4",
    "sha256",
    "zilog2",
    "noparity",
    "sha512",
    "skein",
    "edonr",
    "blake3",
];
const COMPRESSIONS: [&str; 17] = [
    "inherit",
    "on",
    "uncompressed",
    "lzjb",
    "empty",
    "gzip-1",
    "gzip-2",
    "gzip-3",
    "gzip-4",
    "gzip-5",
    "gzip-6",
    "gzip-7",
    "gzip-8",
    "gzip-9",
    "zle",
    "lz4",
    "zstd",
];

/// Name of checksum algorithm `id`.
pub fn checksum_name(id: u8) -> String {
    named(&CHECKSUMS, id)
}

/// Name of compression algorithm `id`.
pub fn compression_name(id: u8) -> String {
    named(&COMPRESSIONS, id)
}

fn named(names: &[&str], id: u8) -> String {
    names.get(usize::from(id)).map_or_else(|| format!("#{id}"), |name| (*name).to_owned())
}

fn checksum(pointer: &BlockPointer) -> String {
    let words = pointer.checksum().map(|word| format!("{word:016x}"));
    words.join(":")
}

/// `0:403d400:200 600L/200P F=1 B=10/10 cksum=...`, as in lists of indirect blocks.
pub fn short(pointer: &BlockPointer) -> String {
    let birth = pointer.logical_birth();
    if pointer.is_hole() {
        return format!("HOLE {:x}L B={birth}", pointer.lsize());
    }
    if pointer.is_embedded() {
        let kind = pointer.prop() >> 40 & 0xff;
        let (lsize, psize) = (pointer.lsize(), pointer.psize());
        return format!("EMBEDDED et={kind} {lsize:x}L/{psize:x}P B={birth}");
    }
    if pointer.is_redacted() {
        return format!("REDACTED {:x}L B={birth}", pointer.lsize());
    }
    let mut out = String::new();
    for dva in pointer.dvas() {
        let gang = if dva.gang { "G" } else { "" };
        out += &format!("{}:{:x}:{:x}{gang} ", dva.vdev, dva.offset, dva.asize);
    }
    let physical = pointer.physical_birth();
    out += &format!("{:x}L/{:x}P F={} ", pointer.lsize(), pointer.psize(), pointer.fill());
    out + &format!("B={birth}/{physical} cksum={}", checksum(pointer))
}

/// `DVA[0]=<0:94a00:200> [L0 DMU objset] fletcher4 lz4 ...`, everything a pointer says.
pub fn long(pointer: &BlockPointer) -> String {
    if pointer.is_hole() || pointer.is_embedded() || pointer.is_redacted() {
        let name = pointer.object_type().name();
        return format!("{} [L{} {name}]", short(pointer), pointer.level());
    }
    let mut out = String::new();
    let mut copies = 0;
    for (index, dva) in pointer.dvas().enumerate() {
        out += &format!("DVA[{index}]=<{}:{:x}:{:x}> ", dva.vdev, dva.offset, dva.asize);
        copies += 1;
    }
    let copies = match copies {
        1 => "single",
        2 => "double",
        3 => "triple",
        _ => "no",
    };
    let crypt = match pointer {
        p if p.is_encrypted() => "encrypted",
        p if p.is_authenticated() => "authenticated",
        p if p.is_crypt() => "indirect-MAC",
        _ => "unencrypted",
    };
    let words = [
        checksum_name(pointer.checksum_id()),
        compression_name(pointer.compression()),
        crypt.to_owned(),
        if pointer.is_little_endian() { "LE" } else { "BE" }.to_owned(),
        if pointer.is_gang() { "gang" } else { "contiguous" }.to_owned(),
        if pointer.is_dedup() { "dedup" } else { "unique" }.to_owned(),
        copies.to_owned(),
    ];
    let (birth, physical) = (pointer.logical_birth(), pointer.physical_birth());
    let (lsize, psize) = (pointer.lsize(), pointer.psize());
    out += &format!("[L{} {}] {} ", pointer.level(), pointer.object_type().name(), words.join(" "));
    out += &format!("size={lsize:x}L/{psize:x}P birth={birth}L/{physical}P ");
    out + &format!("fill={} cksum={}", pointer.fill(), checksum(pointer))
}

/// A pointer for JSON.
pub fn value(pointer: &BlockPointer) -> Value {
    let copies: Vec<String> = pointer
        .dvas()
        .map(|dva| format!("{}:{:x}:{:x}", dva.vdev, dva.offset, dva.asize))
        .collect();
    json!({
        "level": pointer.level().0,
        "type": type_name(pointer.object_type()),
        "addresses": copies,
        "logical_size": pointer.lsize(),
        "physical_size": pointer.psize(),
        "birth": pointer.logical_birth().0,
        "physical_birth": pointer.physical_birth().0,
        "fill": pointer.fill(),
        "checksum_algorithm": checksum_name(pointer.checksum_id()),
        "compression": compression_name(pointer.compression()),
        "checksum": checksum(pointer),
        "hole": pointer.is_hole(),
        "embedded": pointer.is_embedded(),
        "gang": pointer.is_gang(),
        "dedup": pointer.is_dedup(),
        "encrypted": pointer.is_encrypted(),
    })
}

/// Name of an object type.
pub fn type_name(kind: ObjectType) -> String {
    kind.name()
}

/// A size with a unit, as `zdb` rounds it.
pub fn size(bytes: u64) -> String {
    number::plain(bytes)
}
