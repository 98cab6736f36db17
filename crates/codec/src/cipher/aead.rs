//! Authenticated encryption: the six suites behind one function each way.

use std::ops::Range;

use aes::{Aes128, Aes192, Aes256};
use aes_gcm::AesGcm;
use ccm::Ccm;
use ccm::aead::{AeadInOut, KeyInit, Nonce, Tag};
use ccm::consts::{U12, U16};
use ring::aead as fast;

use super::{CipherError, NONCE, Suite, TAG};

/// Decrypts `message` in place; an error leaves its content undefined.
///
/// `aad` is authenticated only. The tag is checked before this returns.
pub fn decrypt(
    suite: Suite,
    key: &[u8],
    nonce: &[u8; NONCE],
    aad: &[u8],
    message: &mut [u8],
    tag: &[u8; TAG],
) -> Result<(), CipherError> {
    match suite {
        Suite::Aes128Ccm => portable_open::<Ccm<Aes128, U16, U12>>(key, nonce, aad, message, tag),
        Suite::Aes192Ccm => portable_open::<Ccm<Aes192, U16, U12>>(key, nonce, aad, message, tag),
        Suite::Aes256Ccm => portable_open::<Ccm<Aes256, U16, U12>>(key, nonce, aad, message, tag),
        Suite::Aes192Gcm => portable_open::<AesGcm<Aes192, U12>>(key, nonce, aad, message, tag),
        Suite::Aes128Gcm | Suite::Aes256Gcm => fast_open(suite, key, nonce, aad, message, tag),
    }
}

/// Encrypts `message` in place and returns its tag.
pub fn encrypt(
    suite: Suite,
    key: &[u8],
    nonce: &[u8; NONCE],
    aad: &[u8],
    message: &mut [u8],
) -> Result<[u8; TAG], CipherError> {
    match suite {
        Suite::Aes128Ccm => portable_seal::<Ccm<Aes128, U16, U12>>(key, nonce, aad, message),
        Suite::Aes192Ccm => portable_seal::<Ccm<Aes192, U16, U12>>(key, nonce, aad, message),
        Suite::Aes256Ccm => portable_seal::<Ccm<Aes256, U16, U12>>(key, nonce, aad, message),
        Suite::Aes192Gcm => portable_seal::<AesGcm<Aes192, U12>>(key, nonce, aad, message),
        Suite::Aes128Gcm | Suite::Aes256Gcm => fast_seal(suite, key, nonce, aad, message),
    }
}

/// Decrypts several ranges of `data` that are one message, in place.
pub fn decrypt_segments(
    suite: Suite,
    key: &[u8],
    nonce: &[u8; NONCE],
    aad: &[u8],
    data: &mut [u8],
    segments: &[Range<usize>],
    tag: &[u8; TAG],
) -> Result<(), CipherError> {
    let mut message = Vec::with_capacity(segments.iter().map(ExactSizeIterator::len).sum());
    for segment in segments {
        message.extend_from_slice(data.get(segment.clone()).ok_or(CipherError::Message)?);
    }
    decrypt(suite, key, nonce, aad, &mut message, tag)?;
    let mut rest = message.as_slice();
    for segment in segments {
        let target = data.get_mut(segment.clone()).ok_or(CipherError::Message)?;
        let (piece, tail) = rest.split_at_checked(target.len()).ok_or(CipherError::Message)?;
        target.copy_from_slice(piece);
        rest = tail;
    }
    Ok(())
}

fn portable_open<A>(
    key: &[u8],
    nonce: &[u8; NONCE],
    aad: &[u8],
    message: &mut [u8],
    tag: &[u8; TAG],
) -> Result<(), CipherError>
where
    A: AeadInOut<NonceSize = U12, TagSize = U16> + KeyInit,
{
    let cipher = A::new_from_slice(key).map_err(|_| CipherError::KeyLength)?;
    let (nonce, tag) = (Nonce::<A>::from(*nonce), Tag::<A>::from(*tag));
    cipher
        .decrypt_inout_detached(&nonce, aad, message.into(), &tag)
        .map_err(|_| CipherError::Authentication)
}

fn portable_seal<A>(
    key: &[u8],
    nonce: &[u8; NONCE],
    aad: &[u8],
    message: &mut [u8],
) -> Result<[u8; TAG], CipherError>
where
    A: AeadInOut<NonceSize = U12, TagSize = U16> + KeyInit,
{
    let cipher = A::new_from_slice(key).map_err(|_| CipherError::KeyLength)?;
    let nonce = Nonce::<A>::from(*nonce);
    let tag = cipher
        .encrypt_inout_detached(&nonce, aad, message.into())
        .map_err(|_| CipherError::Message)?;
    Ok(tag.into())
}

fn fast_key(suite: Suite, key: &[u8]) -> Result<fast::LessSafeKey, CipherError> {
    let algorithm = if suite == Suite::Aes128Gcm { &fast::AES_128_GCM } else { &fast::AES_256_GCM };
    let key = fast::UnboundKey::new(algorithm, key).map_err(|_| CipherError::KeyLength)?;
    Ok(fast::LessSafeKey::new(key))
}

fn fast_open(
    suite: Suite,
    key: &[u8],
    nonce: &[u8; NONCE],
    aad: &[u8],
    message: &mut [u8],
    tag: &[u8; TAG],
) -> Result<(), CipherError> {
    let nonce = fast::Nonce::assume_unique_for_key(*nonce);
    fast_key(suite, key)?
        .open_in_place_separate_tag(nonce, fast::Aad::from(aad), (*tag).into(), message, 0..)
        .map(|_| ())
        .map_err(|_| CipherError::Authentication)
}

fn fast_seal(
    suite: Suite,
    key: &[u8],
    nonce: &[u8; NONCE],
    aad: &[u8],
    message: &mut [u8],
) -> Result<[u8; TAG], CipherError> {
    let nonce = fast::Nonce::assume_unique_for_key(*nonce);
    let tag = fast_key(suite, key)?
        .seal_in_place_separate_tag(nonce, fast::Aad::from(aad), message)
        .map_err(|_| CipherError::Message)?;
    tag.as_ref().try_into().map_err(|_| CipherError::Message)
}
