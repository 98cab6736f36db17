//! From what the user gives (a file's bytes or a typed line) to the wrapping key.
//!
//! Chapter 06, section 19. Invariant: a wrapping key is 32 bytes; every copy of it is wiped.

use cenote_codec::cipher::{SecretKey, key_from_passphrase};
use cenote_format::crypto_key::{KeyFormat, WRAPPING_KEY};
use zeroize::Zeroizing;

use crate::dataset::KeyObject;
use crate::{Error, ErrorKind, Result};

/// Shortest passphrase in bytes.
pub const PASSPHRASE_MIN: usize = 8;
/// Longest passphrase in bytes.
pub const PASSPHRASE_MAX: usize = 512;
/// Most iterations tried: beyond, a pool image could keep us busy for ever.
const ITERATIONS_MAX: u64 = 200_000_000;

/// Most bytes of key material worth reading.
pub const MATERIAL_MAX: usize = PASSPHRASE_MAX + 2;

fn refused(reason: impl Into<String>) -> Error {
    Error::new(ErrorKind::WrongKey, reason)
}

fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

fn without_newline(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\n").unwrap_or(line)
}

/// The wrapping key that `material` stands for.
pub fn wrapping_key(
    format: KeyFormat,
    material: &[u8],
    salt: u64,
    iterations: u64,
) -> Result<SecretKey> {
    match format {
        KeyFormat::None => Err(Error::invalid("the dataset has no key of its own")),
        KeyFormat::Raw if material.len() == WRAPPING_KEY => Ok(SecretKey::new(material.to_vec())),
        KeyFormat::Raw => {
            Err(refused(format!("a raw key has {WRAPPING_KEY} bytes, not {}", material.len())))
        }
        KeyFormat::Hex => hex_key(without_newline(material)),
        KeyFormat::Passphrase => passphrase_key(material, salt, iterations),
    }
}

fn hex_key(digits: &[u8]) -> Result<SecretKey> {
    if digits.len() != 2 * WRAPPING_KEY {
        let wanted = 2 * WRAPPING_KEY;
        return Err(refused(format!("a hex key has {wanted} digits, not {}", digits.len())));
    }
    let mut key = Zeroizing::new(Vec::with_capacity(WRAPPING_KEY));
    for pair in digits.chunks_exact(2) {
        let digit = |index: usize| pair.get(index).copied().and_then(hex_digit);
        let (Some(high), Some(low)) = (digit(0), digit(1)) else {
            return Err(refused("a hex key has only hexadecimal digits"));
        };
        key.push(high << 4 | low);
    }
    Ok(SecretKey::new(std::mem::take(&mut *key)))
}

fn passphrase_key(material: &[u8], salt: u64, iterations: u64) -> Result<SecretKey> {
    let line = material.split(|byte| *byte == b'\n').next().unwrap_or(&[]);
    if !(PASSPHRASE_MIN..=PASSPHRASE_MAX).contains(&line.len()) {
        let (min, max, len) = (PASSPHRASE_MIN, PASSPHRASE_MAX, line.len());
        return Err(refused(format!("a passphrase has {min} to {max} bytes, not {len}")));
    }
    if iterations == 0 || iterations > ITERATIONS_MAX {
        return Err(Error::unsupported(format!("a passphrase with {iterations} iterations")));
    }
    let iterations = u32::try_from(iterations).unwrap_or(u32::MAX);
    Ok(key_from_passphrase(line, salt, iterations))
}

impl KeyObject {
    /// The wrapping key that `material` stands for, by this object's format, salt and iterations.
    pub fn wrapping_key(&self, material: &[u8]) -> Result<SecretKey> {
        wrapping_key(self.format, material, self.salt, self.iterations)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_and_hex() {
        let raw = [7; 32];
        assert_eq!(wrapping_key(KeyFormat::Raw, &raw, 0, 0).unwrap().bytes(), raw);
        for len in [0, 31, 33] {
            assert!(wrapping_key(KeyFormat::Raw, &vec![7; len], 0, 0).is_err());
        }
        let hex = "0aFf".repeat(16);
        let key = wrapping_key(KeyFormat::Hex, format!("{hex}\n").as_bytes(), 0, 0).unwrap();
        assert_eq!(key.bytes(), [0x0a, 0xff].repeat(16));
        let spoilt = hex.replacen('0', "+", 1);
        for bad in [&hex[..63], &format!("{hex}0"), &spoilt, &format!("{hex}\n\n")] {
            let error = wrapping_key(KeyFormat::Hex, bad.as_bytes(), 0, 0).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WrongKey, "{bad}");
        }
    }

    #[test]
    fn passphrases() {
        let key = |text: &[u8]| wrapping_key(KeyFormat::Passphrase, text, 1, 10);
        let plain = key(b"passphrase").unwrap();
        assert_eq!(plain.bytes().len(), 32);
        assert_eq!(key(b"passphrase\nsecond line").unwrap(), plain);
        assert_ne!(key(b"passphrasf").unwrap(), plain);
        assert!(key(b"short").is_err() && key(&[b'a'; 513]).is_err() && key(b"\n").is_err());
        assert!(wrapping_key(KeyFormat::Passphrase, b"passphrase", 1, u64::MAX).is_err());
        assert!(wrapping_key(KeyFormat::None, b"passphrase", 1, 10).is_err());
    }
}
