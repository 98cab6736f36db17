//! Keys: from what the user knows to the key of one block.
//!
//! Passphrase or key file -> wrapping key -> master keys of a dataset -> block key by salt.
//!
//! Invariant: key bytes live only in [`SecretKey`] or in buffers wiped before they are freed.

use hkdf::Hkdf;
use hmac::{Hmac, KeyInit, Mac};
use ring::rand::{SecureRandom, SystemRandom};
use sha2::{Digest, Sha512};
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, ZeroizeOnDrop};

use super::{CipherError, NONCE, Suite, TAG, decrypt, encrypt};

/// Key material; wiped when dropped.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct SecretKey(Vec<u8>);

/// Takes the same time wherever the keys differ.
impl PartialEq for SecretKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for SecretKey {}

/// The key of the blocks that share a salt.
pub type BlockKey = SecretKey;

impl SecretKey {
    /// Takes over `bytes`.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// The key's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SecretKey({} bytes)", self.0.len())
    }
}

/// The keys a dataset's blocks are encrypted and authenticated with.
#[derive(Clone, Debug)]
pub struct MasterKeys {
    /// Master key: block keys derive from it.
    pub master: SecretKey,
    /// 64-byte key of every HMAC.
    pub hmac: SecretKey,
}

/// Master keys as they stand in a key object (chapter 02, section 8.2).
#[derive(Clone, Debug)]
pub struct WrappedKeys {
    /// The dataset's suite.
    pub suite: Suite,
    /// Guid of the key.
    pub guid: u64,
    /// Version of the key object, 0 or 1.
    pub version: u64,
    /// Initialisation vector of the wrapping.
    pub iv: [u8; NONCE],
    /// Tag of the wrapping.
    pub mac: [u8; TAG],
    /// Wrapped master key; bytes beyond the suite's key length mean nothing.
    pub master: [u8; 32],
    /// Wrapped HMAC key.
    pub hmac: [u8; 64],
}

impl WrappedKeys {
    fn aad(&self) -> Vec<u8> {
        let mut aad = self.guid.to_le_bytes().to_vec();
        if self.version != 0 {
            aad.extend_from_slice(&self.suite.id().to_le_bytes());
            aad.extend_from_slice(&self.version.to_le_bytes());
        }
        aad
    }
}

/// The 32-byte wrapping key made of a passphrase: PBKDF2-HMAC-SHA1 over the 8-byte salt.
pub fn key_from_passphrase(passphrase: &[u8], salt: u64, iterations: u32) -> SecretKey {
    let mut key = vec![0; 32];
    pbkdf2::pbkdf2_hmac::<sha1::Sha1>(passphrase, &salt.to_le_bytes(), iterations, &mut key);
    SecretKey(key)
}

/// Opens a key object's master keys with the 32-byte wrapping key.
///
/// [`CipherError::Authentication`] means it is the wrong key.
pub fn unwrap(wrapped: &WrappedKeys, wrapping: &SecretKey) -> Result<MasterKeys, CipherError> {
    let key_len = wrapped.suite.key_len();
    let mut message = wrapped.master.iter().take(key_len).copied().collect::<Vec<u8>>();
    message.extend_from_slice(&wrapped.hmac);
    let (suite, aad) = (wrapped.suite.wrapping(), wrapped.aad());
    let opened = decrypt(suite, wrapping.bytes(), &wrapped.iv, &aad, &mut message, &wrapped.mac);
    if let Err(error) = opened {
        message.zeroize();
        return Err(error);
    }
    let hmac = SecretKey(message.split_off(key_len));
    Ok(MasterKeys { master: SecretKey(message), hmac })
}

/// Seals `keys` again with `wrapping` and a fresh `iv`, keeping guid, suite and version.
pub fn wrap(
    keys: &MasterKeys,
    like: &WrappedKeys,
    iv: [u8; NONCE],
    wrapping: &SecretKey,
) -> Result<WrappedKeys, CipherError> {
    let key_len = like.suite.key_len();
    let mut message = keys.master.bytes().to_vec();
    message.extend_from_slice(keys.hmac.bytes());
    if message.len() != key_len + 64 {
        return Err(CipherError::KeyLength);
    }
    let mut out = WrappedKeys { iv, master: [0; 32], ..like.clone() };
    let suite = like.suite.wrapping();
    out.mac = encrypt(suite, wrapping.bytes(), &iv, &out.aad(), &mut message)?;
    for (to, from) in out.master.iter_mut().zip(message.iter().take(key_len)) {
        *to = *from;
    }
    for (to, from) in out.hmac.iter_mut().zip(message.iter().skip(key_len)) {
        *to = *from;
    }
    Ok(out)
}

/// Fills `bytes` from the operating system's randomness.
pub fn fill_random(bytes: &mut [u8]) -> Result<(), CipherError> {
    SystemRandom::new().fill(bytes).map_err(|_| CipherError::Randomness)
}

/// The key of blocks with `salt`: HKDF-SHA512 of the master key.
pub fn block_key(
    suite: Suite,
    master: &SecretKey,
    salt: &[u8; 8],
) -> Result<BlockKey, CipherError> {
    let mut key = vec![0; suite.key_len()];
    Hkdf::<Sha512>::new(None, master.bytes())
        .expand(salt, &mut key)
        .map_err(|_| CipherError::KeyLength)?;
    Ok(SecretKey(key))
}

/// HMAC-SHA512 over the concatenation of `parts`.
pub fn hmac_sha512(key: &SecretKey, parts: &[&[u8]]) -> Result<[u8; 64], CipherError> {
    let mut mac = <Hmac<Sha512> as KeyInit>::new_from_slice(key.bytes())
        .map_err(|_| CipherError::KeyLength)?;
    for part in parts {
        mac.update(part);
    }
    Ok(mac.finalize().into_bytes().into())
}

/// The salt and nonce of a block that may be deduplicated, from its plaintext: equal blocks of
/// datasets that share keys become equal ciphertexts (chapter 02, section 8.3).
pub fn dedup_salt_and_nonce(
    hmac: &SecretKey,
    plaintext: &[u8],
) -> Result<([u8; 8], [u8; NONCE]), CipherError> {
    let mac = hmac_sha512(hmac, &[plaintext])?;
    let mut salt = [0; 8];
    let mut nonce = [0; NONCE];
    for (to, from) in salt.iter_mut().chain(&mut nonce).zip(mac) {
        *to = from;
    }
    Ok((salt, nonce))
}

/// Whether a computed MAC begins with the stored one, in time that does not depend on where they
/// differ.
pub fn mac_matches(computed: &[u8], stored: &[u8]) -> bool {
    computed.get(..stored.len()).is_some_and(|computed| computed.ct_eq(stored).into())
}

/// The first 16 bytes of SHA-512: the MAC of an indirect block over its pointers' MACs.
pub fn sha512_mac(data: &[u8]) -> [u8; TAG] {
    let mut mac = [0; TAG];
    for (to, from) in mac.iter_mut().zip(Sha512::digest(data)) {
        *to = from;
    }
    mac
}
