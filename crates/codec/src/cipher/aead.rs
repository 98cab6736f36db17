//! Authenticated encryption: the six suites behind one type.
//!
//! Invariant: after a failed [`Cipher::open`] the message is not plaintext of anything; expanded
//! keys are wiped when dropped.

use std::fmt;
use std::mem::{MaybeUninit, needs_drop};
use std::ops::Range;

use aes::cipher::consts::{U12, U16};
use aes::cipher::{BlockCipherEncrypt, KeyInit};
use aes::{Aes128, Aes192, Aes256};
use aes_gcm::AesGcm;
use aes_gcm::aead::AeadInOut;
use ring::aead as fast;
use zeroize::{Zeroize, Zeroizing};

use super::ccm::Ccm;
use super::{CipherError, NONCE, Suite, TAG};

/// A suite with an expanded key: makes and opens any number of messages.
///
/// Expanding costs about as much as a kilobyte of message; keep the cipher as long as its key.
pub struct Cipher {
    suite: Suite,
    key: Key,
}

enum Key {
    Fast(FastKey),
    Portable(Box<dyn Portable>),
}

impl Cipher {
    /// Expands `key`, which must have the suite's length.
    pub fn new(suite: Suite, key: &[u8]) -> Result<Self, CipherError> {
        let key = match suite {
            Suite::Aes128Ccm => portable(Ccm(expand::<Aes128>(key)?)),
            Suite::Aes192Ccm => portable(Ccm(expand::<Aes192>(key)?)),
            Suite::Aes256Ccm => portable(Ccm(expand::<Aes256>(key)?)),
            Suite::Aes192Gcm => portable(expand::<AesGcm<Aes192, U12>>(key)?),
            Suite::Aes128Gcm => Key::Fast(FastKey::new(&fast::AES_128_GCM, key)?),
            Suite::Aes256Gcm => Key::Fast(FastKey::new(&fast::AES_256_GCM, key)?),
        };
        Ok(Self { suite, key })
    }

    /// Decrypts `message` in place, after which its content is the plaintext; an error leaves it
    /// undefined. `aad` is authenticated only.
    pub fn open(
        &self,
        nonce: &[u8; NONCE],
        aad: &[u8],
        message: &mut [u8],
        tag: &[u8; TAG],
    ) -> Result<(), CipherError> {
        match &self.key {
            Key::Fast(key) => key.open(nonce, aad, message, tag),
            Key::Portable(key) => key.open(nonce, aad, message, tag),
        }
    }

    /// Encrypts `message` in place and returns its tag. A nonce must not serve twice.
    pub fn seal(
        &self,
        nonce: &[u8; NONCE],
        aad: &[u8],
        message: &mut [u8],
    ) -> Result<[u8; TAG], CipherError> {
        match &self.key {
            Key::Fast(key) => key.seal(nonce, aad, message),
            Key::Portable(key) => key.seal(nonce, aad, message),
        }
    }

    /// Like [`Self::open`] for a message that is the concatenation of ranges of `data`.
    ///
    /// An error leaves `data` as it was.
    pub fn open_segments(
        &self,
        nonce: &[u8; NONCE],
        aad: &[u8],
        data: &mut [u8],
        segments: &[Range<usize>],
        tag: &[u8; TAG],
    ) -> Result<(), CipherError> {
        let mut message = gather(data, segments)?;
        self.open(nonce, aad, &mut message, tag)?;
        scatter(data, segments, &message)
    }

    /// Like [`Self::seal`] for a message that is the concatenation of ranges of `data`.
    pub fn seal_segments(
        &self,
        nonce: &[u8; NONCE],
        aad: &[u8],
        data: &mut [u8],
        segments: &[Range<usize>],
    ) -> Result<[u8; TAG], CipherError> {
        let mut message = gather(data, segments)?;
        let tag = self.seal(nonce, aad, &mut message)?;
        scatter(data, segments, &message)?;
        Ok(tag)
    }
}

impl fmt::Debug for Cipher {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Cipher").field("suite", &self.suite).finish_non_exhaustive()
    }
}

/// The bytes of `segments`, which must follow one another without overlap inside `data`.
fn gather(data: &[u8], segments: &[Range<usize>]) -> Result<Zeroizing<Vec<u8>>, CipherError> {
    let mut message = Zeroizing::new(Vec::with_capacity(data.len()));
    let mut end = 0;
    for segment in segments {
        if segment.start < end {
            return Err(CipherError::Message);
        }
        end = segment.end;
        message.extend_from_slice(data.get(segment.clone()).ok_or(CipherError::Message)?);
    }
    Ok(message)
}

fn scatter(
    data: &mut [u8],
    segments: &[Range<usize>],
    mut message: &[u8],
) -> Result<(), CipherError> {
    for segment in segments {
        let target = data.get_mut(segment.clone()).ok_or(CipherError::Message)?;
        let (piece, rest) = message.split_at_checked(target.len()).ok_or(CipherError::Message)?;
        target.copy_from_slice(piece);
        message = rest;
    }
    Ok(())
}

/// [`Cipher::open`] with a key used once.
pub fn decrypt(
    suite: Suite,
    key: &[u8],
    nonce: &[u8; NONCE],
    aad: &[u8],
    message: &mut [u8],
    tag: &[u8; TAG],
) -> Result<(), CipherError> {
    Cipher::new(suite, key)?.open(nonce, aad, message, tag)
}

/// [`Cipher::seal`] with a key used once.
pub fn encrypt(
    suite: Suite,
    key: &[u8],
    nonce: &[u8; NONCE],
    aad: &[u8],
    message: &mut [u8],
) -> Result<[u8; TAG], CipherError> {
    Cipher::new(suite, key)?.seal(nonce, aad, message)
}

/// [`Cipher::open_segments`] with a key used once.
pub fn decrypt_segments(
    suite: Suite,
    key: &[u8],
    nonce: &[u8; NONCE],
    aad: &[u8],
    data: &mut [u8],
    segments: &[Range<usize>],
    tag: &[u8; TAG],
) -> Result<(), CipherError> {
    Cipher::new(suite, key)?.open_segments(nonce, aad, data, segments, tag)
}

/// The suites `ring` does not have. Their own crates wipe them.
trait Portable: Send + Sync {
    fn open(
        &self,
        nonce: &[u8; NONCE],
        aad: &[u8],
        message: &mut [u8],
        tag: &[u8; TAG],
    ) -> Result<(), CipherError>;

    fn seal(
        &self,
        nonce: &[u8; NONCE],
        aad: &[u8],
        message: &mut [u8],
    ) -> Result<[u8; TAG], CipherError>;
}

impl<C: BlockCipherEncrypt<BlockSize = U16> + Send + Sync> Portable for Ccm<C> {
    fn open(
        &self,
        nonce: &[u8; NONCE],
        aad: &[u8],
        message: &mut [u8],
        tag: &[u8; TAG],
    ) -> Result<(), CipherError> {
        self.open(nonce, aad, message, tag)
    }

    fn seal(
        &self,
        nonce: &[u8; NONCE],
        aad: &[u8],
        message: &mut [u8],
    ) -> Result<[u8; TAG], CipherError> {
        self.seal(nonce, aad, message)
    }
}

impl Portable for AesGcm<Aes192, U12> {
    fn open(
        &self,
        nonce: &[u8; NONCE],
        aad: &[u8],
        message: &mut [u8],
        tag: &[u8; TAG],
    ) -> Result<(), CipherError> {
        self.decrypt_inout_detached(&(*nonce).into(), aad, message.into(), &(*tag).into())
            .map_err(|_| CipherError::Authentication)
    }

    fn seal(
        &self,
        nonce: &[u8; NONCE],
        aad: &[u8],
        message: &mut [u8],
    ) -> Result<[u8; TAG], CipherError> {
        self.encrypt_inout_detached(&(*nonce).into(), aad, message.into())
            .map(Into::into)
            .map_err(|_| CipherError::Message)
    }
}

fn expand<C: KeyInit>(key: &[u8]) -> Result<C, CipherError> {
    C::new_from_slice(key).map_err(|_| CipherError::KeyLength)
}

fn portable(cipher: impl Portable + 'static) -> Key {
    Key::Portable(Box::new(cipher))
}

/// An expanded key of `ring`, which does not wipe its keys itself.
struct FastKey(Box<MaybeUninit<fast::LessSafeKey>>);

impl FastKey {
    fn new(algorithm: &'static fast::Algorithm, key: &[u8]) -> Result<Self, CipherError> {
        let key = fast::UnboundKey::new(algorithm, key).map_err(|_| CipherError::KeyLength)?;
        Ok(Self(Box::new(MaybeUninit::new(fast::LessSafeKey::new(key)))))
    }

    fn key(&self) -> &fast::LessSafeKey {
        // SAFETY: `new` made it initialised, and nothing but `drop` writes to it.
        unsafe { self.0.assume_init_ref() }
    }

    fn open(
        &self,
        nonce: &[u8; NONCE],
        aad: &[u8],
        message: &mut [u8],
        tag: &[u8; TAG],
    ) -> Result<(), CipherError> {
        let nonce = fast::Nonce::assume_unique_for_key(*nonce);
        self.key()
            .open_in_place_separate_tag(nonce, fast::Aad::from(aad), (*tag).into(), message, 0..)
            .map(|_| ())
            .map_err(|_| CipherError::Authentication)
    }

    fn seal(
        &self,
        nonce: &[u8; NONCE],
        aad: &[u8],
        message: &mut [u8],
    ) -> Result<[u8; TAG], CipherError> {
        let nonce = fast::Nonce::assume_unique_for_key(*nonce);
        let tag = self
            .key()
            .seal_in_place_separate_tag(nonce, fast::Aad::from(aad), message)
            .map_err(|_| CipherError::Message)?;
        tag.as_ref().try_into().map_err(|_| CipherError::Message)
    }
}

impl Drop for FastKey {
    fn drop(&mut self) {
        // Overwriting it instead of dropping it loses nothing.
        const { assert!(!needs_drop::<fast::LessSafeKey>()) };
        self.0.zeroize();
    }
}
