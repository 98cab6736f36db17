//! AES-CCM (NIST SP 800-38C) with a 12-byte nonce and a 16-byte tag, so messages under 16 MiB.
//!
//! The CBC-MAC is a chain of single AES blocks, the key stream is not: both run inside one call of
//! the AES backend, where the processor overlaps them.
//!
//! Invariant: a message whose tag does not match is wiped, never returned.

use aes::cipher::consts::U16;
use aes::cipher::typenum::Unsigned;
use aes::cipher::{
    Block, BlockCipherEncBackend, BlockCipherEncClosure, BlockCipherEncrypt, BlockSizeUser,
    ParBlocks, ParBlocksSizeUser,
};
use subtle::ConstantTimeEq;
use zeroize::Zeroize;

use super::{CipherError, NONCE, TAG};

/// Bytes of an AES block.
const BLOCK: usize = 16;
/// Bytes of the length and counter fields: what a 12-byte nonce leaves.
const COUNTER: usize = 3;

/// AES in CCM mode over an expanded key.
pub(super) struct Ccm<C>(pub(super) C);

impl<C: BlockCipherEncrypt<BlockSize = U16>> Ccm<C> {
    pub(super) fn open(
        &self,
        nonce: &[u8; NONCE],
        aad: &[u8],
        message: &mut [u8],
        tag: &[u8; TAG],
    ) -> Result<(), CipherError> {
        let computed = self.run(nonce, aad, message, Direction::Open)?;
        if computed.ct_eq(tag).into() {
            Ok(())
        } else {
            message.zeroize();
            Err(CipherError::Authentication)
        }
    }

    pub(super) fn seal(
        &self,
        nonce: &[u8; NONCE],
        aad: &[u8],
        message: &mut [u8],
    ) -> Result<[u8; TAG], CipherError> {
        self.run(nonce, aad, message, Direction::Seal)
    }

    fn run(
        &self,
        nonce: &[u8; NONCE],
        aad: &[u8],
        message: &mut [u8],
        direction: Direction,
    ) -> Result<[u8; TAG], CipherError> {
        if message.len() >> (8 * COUNTER) != 0 {
            return Err(CipherError::Message);
        }
        let mut first = [0; BLOCK];
        first[0] = (if aad.is_empty() { 0 } else { 0x40 }) | 0x38 | (COUNTER as u8 - 1);
        first[1..1 + NONCE].copy_from_slice(nonce);
        first[1 + NONCE..].copy_from_slice(&low_bytes(message.len()));
        let mut counter = [0; BLOCK];
        counter[0] = COUNTER as u8 - 1;
        counter[1..1 + NONCE].copy_from_slice(nonce);
        let header = header(aad)?;
        let mut tag = [0; TAG];
        self.0.encrypt_with_backend(Pass {
            first,
            counter,
            header: &header,
            message,
            direction,
            tag: &mut tag,
        });
        Ok(tag)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Open,
    Seal,
}

/// The low three bytes of a number, big-endian.
fn low_bytes(number: usize) -> [u8; COUNTER] {
    [(number >> 16) as u8, (number >> 8) as u8, number as u8]
}

/// The authenticated data with its length before it.
fn header(aad: &[u8]) -> Result<Vec<u8>, CipherError> {
    let mut header = Vec::with_capacity(aad.len() + 6);
    match u16::try_from(aad.len()) {
        Ok(0) => {}
        Ok(length @ ..0xff00) => header.extend_from_slice(&length.to_be_bytes()),
        _ => {
            let length = u32::try_from(aad.len()).map_err(|_| CipherError::Message)?;
            header.extend_from_slice(&[0xff, 0xfe]);
            header.extend_from_slice(&length.to_be_bytes());
        }
    }
    header.extend_from_slice(aad);
    Ok(header)
}

/// The work on one message, to be done inside the AES backend.
struct Pass<'a> {
    first: [u8; BLOCK],
    counter: [u8; BLOCK],
    header: &'a [u8],
    message: &'a mut [u8],
    direction: Direction,
    tag: &'a mut [u8; TAG],
}

impl BlockSizeUser for Pass<'_> {
    type BlockSize = U16;
}

impl BlockCipherEncClosure for Pass<'_> {
    #[inline(always)]
    fn call<B: BlockCipherEncBackend<BlockSize = U16>>(self, backend: &B) {
        let group = <B as ParBlocksSizeUser>::ParBlocksSize::USIZE;
        let mut mac = Block::<B>::from(self.first);
        backend.encrypt_block_inplace(&mut mac);
        absorb(backend, &mut mac, self.header);

        let counter_at = |number: usize| {
            let mut counter = self.counter;
            counter[BLOCK - COUNTER..].copy_from_slice(&low_bytes(number));
            Block::<B>::from(counter)
        };
        let mut number = 1;
        for part in self.message.chunks_mut(group * BLOCK) {
            let mut stream = ParBlocks::<B>::default();
            for block in &mut stream {
                *block = counter_at(number);
                number += 1;
            }
            backend.encrypt_par_blocks_inplace(&mut stream);
            if self.direction == Direction::Seal {
                absorb(backend, &mut mac, part);
            }
            for (bytes, stream) in part.chunks_mut(BLOCK).zip(&stream) {
                add(bytes, stream);
            }
            if self.direction == Direction::Open {
                absorb(backend, &mut mac, part);
            }
        }

        let mut last = counter_at(0);
        backend.encrypt_block_inplace(&mut last);
        add(&mut last, &mac);
        self.tag.copy_from_slice(&last);
    }
}

/// Goes on with the CBC-MAC over `bytes`, the last block filled with zeros.
#[inline(always)]
fn absorb<B: BlockCipherEncBackend<BlockSize = U16>>(
    backend: &B,
    mac: &mut Block<B>,
    bytes: &[u8],
) {
    let (blocks, rest) = bytes.as_chunks::<BLOCK>();
    for block in blocks {
        add(mac, block);
        backend.encrypt_block_inplace(mac);
    }
    if !rest.is_empty() {
        add(mac, rest);
        backend.encrypt_block_inplace(mac);
    }
}

#[inline(always)]
fn add(to: &mut [u8], from: &[u8]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to ^= from;
    }
}

#[cfg(test)]
mod tests {
    use aes::{Aes128, Aes192, Aes256};
    use ccm::Ccm as Other;
    use ccm::KeyInit;
    use ccm::aead::AeadInOut;
    use ccm::consts::{U12, U16};

    use super::*;

    fn agree<C>(key: &[u8])
    where
        C: BlockCipherEncrypt<BlockSize = U16> + KeyInit,
        Other<C, U16, U12>: AeadInOut<NonceSize = U12, TagSize = U16> + KeyInit,
    {
        let ours = Ccm(C::new_from_slice(key).unwrap());
        let other = Other::<C, U16, U12>::new_from_slice(key).unwrap();
        let bytes: Vec<u8> = (0..70_000u32).map(|i| (i.wrapping_mul(i) >> 5) as u8).collect();
        for length in [0, 1, 15, 16, 17, 127, 128, 129, 1023, 1024, 1025, 5000, 66_000] {
            for aad in [0, 1, 13, 14, 15, 200, 0xfeff, 0xff00, 0xff01] {
                let mut sealed = bytes[..length].to_vec();
                let mut expected = sealed.clone();
                let tag = ours.seal(&[9; 12], &bytes[..aad], &mut sealed).unwrap();
                let other_tag: [u8; 16] = other
                    .encrypt_inout_detached(
                        &[9; 12].into(),
                        &bytes[..aad],
                        expected.as_mut_slice().into(),
                    )
                    .unwrap()
                    .into();
                assert_eq!((tag, &sealed), (other_tag, &expected), "{length} {aad}");
                ours.open(&[9; 12], &bytes[..aad], &mut sealed, &tag).unwrap();
                assert_eq!(sealed, bytes[..length]);
            }
        }
    }

    #[test]
    fn equals_another_implementation() {
        agree::<Aes128>(&[1; 16]);
        agree::<Aes192>(&[2; 24]);
        agree::<Aes256>(&[3; 32]);
    }

    #[test]
    fn a_message_of_16_mib_is_too_long() {
        let ccm = Ccm(<Aes128 as KeyInit>::new_from_slice(&[0; 16]).unwrap());
        let mut message = vec![0; 1 << 24];
        assert_eq!(ccm.seal(&[0; 12], &[], &mut message), Err(CipherError::Message));
        assert!(ccm.seal(&[0; 12], &[], &mut message[1..]).is_ok());
    }

    #[test]
    fn what_does_not_open_is_wiped() {
        let ccm = Ccm(<Aes128 as KeyInit>::new_from_slice(&[0; 16]).unwrap());
        let mut message = *b"attack at dawn";
        let mut tag = ccm.seal(&[0; 12], &[], &mut message).unwrap();
        tag[0] ^= 1;
        let opened = ccm.open(&[0; 12], &[], &mut message, &tag);
        assert_eq!((opened, message), (Err(CipherError::Authentication), [0; 14]));
    }
}
