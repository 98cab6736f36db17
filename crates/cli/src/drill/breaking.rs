//! Breaking disks on purpose.
//!
//! Invariant: what is random follows from a seed; only files of the drill's directory are written.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use cenote_control::faults::{ALWAYS, FaultAt, FaultKind};
use cenote_control::terminal;
use rustix::fs::{FallocateFlags, fallocate};

use super::bench::Bench;
use crate::getopt::Parsed;

/// Bytes that rot together.
pub const ROT: u64 = 8 << 10;
/// Labels and what lies before data, and the labels behind it.
const HEAD: u64 = 4 << 20;
const TAIL: u64 = 512 << 10;
/// Smallest disk, and the size if none is named.
const SMALLEST: u64 = 64 << 20;
const SIZE: u64 = 128 << 20;
/// Directory if none is named.
const DIRECTORY: &str = "drill";

/// Numbers that follow from a seed (splitmix64).
pub struct Numbers(pub u64);

impl Numbers {
    /// The next one.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// So many bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count + 8);
        while bytes.len() < count {
            bytes.extend(self.next().to_le_bytes());
        }
        bytes.truncate(count);
        bytes
    }
}

/// Does one of the words that stand for themselves; `None` if it is none of them.
pub fn do_word(parsed: &Parsed, word: &str, rest: &[String]) -> Option<Result<(), String>> {
    let words = ["disks", "zero", "rot", "unplug", "plug", "slow", "flip", "tear", "cache", "well"];
    if !words.contains(&word) && !["power", "clean"].contains(&word) {
        return None;
    }
    let directory = Path::new(parsed.argument('C').unwrap_or(DIRECTORY));
    Some(match word {
        "disks" => make(directory, rest),
        _ => Bench::open(directory).and_then(|bench| do_to(&bench, parsed, word, rest)),
    })
}

fn make(directory: &Path, rest: &[String]) -> Result<(), String> {
    let count = rest.first().and_then(|count| count.parse().ok());
    let count: usize = count
        .filter(|count| (1..=64).contains(count))
        .ok_or("disks: how many is to be a number from 1 to 64")?;
    let size = match rest.get(1) {
        None => SIZE,
        Some(text) => size_of(text)?,
    };
    let bench = Bench::make(directory, count, size)?;
    let at = bench.directory().display();
    terminal::out(&format!(
        "{count} disks are in {at}/disks. To use them here:\n  export CENOTE_RUN_DIR={at}/run \
         PATH={at}/bin:$PATH D={at}/disks R={at}/mnt\n  zpool create -R $R test mirror $D/disk0 \
         $D/disk1\n"
    ));
    Ok(())
}

fn size_of(text: &str) -> Result<u64, String> {
    let odd = || format!("{text}: is to be a size of at least 64M, as 128M or 1G");
    let (digits, shift) = match text.strip_suffix(['M', 'm']) {
        Some(digits) => (digits, 20),
        None => (text.strip_suffix(['G', 'g']).ok_or_else(odd)?, 30),
    };
    let number: u64 = digits.parse().map_err(|_| odd())?;
    let size = number.checked_mul(1 << shift).filter(|size| (SMALLEST..1 << 44).contains(size));
    size.ok_or_else(odd)
}

fn do_to(bench: &Bench, parsed: &Parsed, word: &str, rest: &[String]) -> Result<(), String> {
    match word {
        "power" => return bench.power_off(),
        "clean" => return bench.clean(),
        _ => {}
    }
    let disk = rest.first().ok_or("missing name of a disk")?;
    if disk.contains('/') || !(bench.disk(disk).exists() || bench.unplugged(disk).exists()) {
        return Err(format!("there is no disk '{disk}' in {}", bench.directory().display()));
    }
    let number = || -> Result<f64, String> {
        let text = rest.get(1).ok_or("missing number")?;
        let number: Option<f64> = text.trim_end_matches('%').parse().ok();
        number.filter(|number| *number >= 0.0).ok_or_else(|| format!("{text}: is to be a number"))
    };
    let of_writes = |kind| {
        let chance = chance(number()?)?;
        had(disk, bench.inject(disk, FaultAt::Write, kind, chance)?)
    };
    match word {
        "zero" => zero(bench, disk),
        "rot" => {
            let seed = parsed.argument('s').map_or(Ok(1), str::parse);
            let seed = seed.map_err(|_| "-s: is to be a number".to_owned())?;
            let count = rot(bench, disk, chance(number()?)?, seed)?;
            terminal::out(&format!("{count} blocks of {disk} are noise now\n"));
            Ok(())
        }
        "unplug" => unplug(bench, disk),
        "plug" => plug(bench, disk),
        "slow" => {
            let kind = FaultKind::Slow { microseconds: (number()? * 1000.0) as u64, lanes: 1 };
            had(disk, bench.inject(disk, FaultAt::Any, kind, ALWAYS)?)
        }
        "flip" => of_writes(FaultKind::BitWritten),
        "tear" => of_writes(FaultKind::Torn),
        "cache" => had(disk, bench.inject(disk, FaultAt::Write, FaultKind::Held, ALWAYS)?),
        _ => bench.make_well(disk),
    }
}

fn had(disk: &str, is_had: bool) -> Result<(), String> {
    is_had.then_some(()).ok_or_else(|| format!("no imported pool has '{disk}'"))
}

/// A part of all in percent, in millionths.
fn chance(percent: f64) -> Result<u32, String> {
    match (0.0..=100.0).contains(&percent) {
        true => Ok((percent * f64::from(ALWAYS) / 100.0).round() as u32),
        false => Err(format!("{percent} %: is to be from 0 to 100")),
    }
}

/// Writes zeros over a whole disk, labels included, whoever uses it.
///
/// # Errors
/// What the filesystem says.
pub fn zero(bench: &Bench, disk: &str) -> Result<(), String> {
    let path = bench.disk(disk);
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let file = File::options().write(true).open(&path).map_err(failed)?;
    let size = file.metadata().map_err(failed)?.len();
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    if fallocate(&file, hole, 0, size).is_ok() {
        return Ok(());
    }
    // A filesystem without holes.
    let mut file = file;
    let zeros = vec![0; 1 << 20];
    let mut left = size;
    while left > 0 {
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(zeros.len());
        file.write_all(zeros.get(..count).unwrap_or_default()).map_err(failed)?;
        left = left.saturating_sub(count as u64);
    }
    Ok(())
}

/// Writes noise over a part of a disk's blocks, in millionths of all; labels stay. How many there were.
///
/// # Errors
/// What the filesystem says.
pub fn rot(bench: &Bench, disk: &str, chance: u32, seed: u64) -> Result<u64, String> {
    let path = bench.disk(disk);
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut file = File::options().write(true).open(&path).map_err(failed)?;
    let end = file.metadata().map_err(failed)?.len().saturating_sub(TAIL);
    let (mut numbers, mut count, mut at) = (Numbers(seed), 0, HEAD);
    while at.saturating_add(ROT) <= end {
        if numbers.next() % u64::from(ALWAYS) < u64::from(chance) {
            let noise = numbers.bytes(usize::try_from(ROT).unwrap_or_default());
            file.seek(SeekFrom::Start(at)).map_err(failed)?;
            file.write_all(&noise).map_err(failed)?;
            count += 1;
        }
        at = at.saturating_add(ROT);
    }
    file.sync_all().map_err(failed)?;
    Ok(count)
}

/// Takes a disk away.
///
/// # Errors
/// If it is away.
pub fn unplug(bench: &Bench, disk: &str) -> Result<(), String> {
    bench.cut_off(disk)?;
    let moved = std::fs::rename(bench.disk(disk), bench.unplugged(disk));
    moved.map_err(|error| format!("{disk} cannot be unplugged: {error}"))
}

/// Puts a disk back.
///
/// # Errors
/// If it is not away.
pub fn plug(bench: &Bench, disk: &str) -> Result<(), String> {
    let moved = std::fs::rename(bench.unplugged(disk), bench.disk(disk));
    moved.map_err(|error| format!("{disk} cannot be plugged in: {error}"))?;
    bench.make_well(disk)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rot_follows_from_its_seed_and_leaves_labels() {
        let directory = tempfile::tempdir().unwrap();
        let bench = Bench::make(&directory.path().join("d"), 2, SMALLEST).unwrap();
        let all = (SMALLEST - HEAD - TAIL) / ROT;
        let count = rot(&bench, "disk0", ALWAYS / 10, 7).unwrap();
        assert!((all / 12..all / 8).contains(&count), "{count} of {all}");
        assert_eq!(rot(&bench, "disk1", ALWAYS / 10, 7).unwrap(), count);
        let read = |disk| std::fs::read(bench.disk(disk)).unwrap();
        let bytes = read("disk0");
        assert!(bytes == read("disk1"));
        let labels = usize::try_from(HEAD).unwrap();
        assert!(bytes[..labels].iter().all(|byte| *byte == 0));
        zero(&bench, "disk0").unwrap();
        let bytes = read("disk0");
        assert!(bytes.len() as u64 == SMALLEST && bytes.iter().all(|byte| *byte == 0));
        unplug(&bench, "disk1").unwrap();
        assert!(!bench.disk("disk1").exists() && unplug(&bench, "disk1").is_err());
        plug(&bench, "disk1").unwrap();
        assert!(Bench::make(bench.directory(), 1, SMALLEST).is_err());
        assert!(Bench::open(directory.path()).is_err());
        bench.clean().unwrap();
        assert!(!directory.path().join("d").exists());
    }

    #[test]
    fn sizes_and_parts() {
        assert_eq!(size_of("128M"), Ok(128 << 20));
        assert!(
            size_of("1M").is_err() && size_of("7").is_err() && size_of("99999999999G").is_err()
        );
        assert_eq!(chance(0.1), Ok(1000));
        assert!(chance(101.0).is_err() && chance(f64::NAN).is_err());
    }
}
