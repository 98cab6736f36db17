//! The vectors of chapter 02, section 6.7, real bytes, and the laws the fast paths must keep.

use proptest::prelude::*;

use super::edonr::Edonr;
use super::skein::Skein;
use super::*;

fn input() -> Vec<u8> {
    (0..512).map(|i| i as u8).collect()
}

fn salt() -> Salt {
    Salt::new(std::array::from_fn(|i| i as u8))
}

fn digest(algorithm: Algorithm) -> String {
    let little = compute(algorithm, &input(), WordOrder::Little, &salt());
    let big = compute(algorithm, &input(), WordOrder::Big, &salt());
    assert_eq!(WordOrder::Little.word_bytes(&little), WordOrder::Big.word_bytes(&big));
    hex::encode(WordOrder::Little.word_bytes(&little))
}

#[test]
fn fletcher_vectors() {
    assert_eq!(
        fletcher2(&input(), WordOrder::Little),
        [0xefcfaf8f6f4f2f00, 0xf0d0b09070503000, 0x4a38261401efdd00, 0xdac8b6a492806d80]
    );
    assert_eq!(
        fletcher2(&input(), WordOrder::Big),
        [0x0f2f4f6f8fafcfe0, 0x1030507090b0d0e0, 0xcfe1f406182a3b70, 0x60728496a8bacbf0]
    );
    assert_eq!(
        fletcher4(&input(), WordOrder::Little),
        [0x00000040c03fbf00, 0x00000da342e27500, 0x000214fa7f828a80, 0x003d9765c9f3c980]
    );
    assert_eq!(
        fletcher4(&input(), WordOrder::Big),
        [0x0000003f3fc04080, 0x00000d4262c315c0, 0x000204948f886b00, 0x003b7e5b56b441e0]
    );
}

#[test]
fn hash_vectors() {
    let sha256 = [0x110009dcee21620b, 0x166f3abfecb5eff7, 0xa873be729d1c2d53, 0x822e7acc5f34eb9b];
    for order in [WordOrder::Little, WordOrder::Big] {
        assert_eq!(compute(Algorithm::Sha256, &input(), order, &salt()), sha256);
    }
    assert_eq!(
        digest(Algorithm::Sha512),
        "1d14911d41b1f56cf027a66fb8dda80ed7a90d9c77961899edfaf3e9f708dc3b"
    );
    assert_eq!(
        compute(Algorithm::Sha512, &input(), WordOrder::Little, &salt()),
        [0x6cf5b1411d91141d, 0x0ea8ddb86fa627f0, 0x991896779c0da9d7, 0x3bdc08f7e9f3faed]
    );
    assert_eq!(
        digest(Algorithm::Skein),
        "845251ad7bb106df5703f8806c4e07c18fe231f29c94640506a44851a6ef303b"
    );
    assert_eq!(
        digest(Algorithm::Edonr),
        "06348293c209f08652f36e1135f38717e1b15e95d3e26d611fa14f4939300e0f"
    );
    assert_eq!(
        digest(Algorithm::Blake3),
        "732dd3153af0e5681fd9e2a9528e2d2e682d6e176806ebb6226c9b25e29bbf95"
    );
    assert_eq!(
        hex::encode(Edonr::digest_512(b"abc")),
        "1b14db155f1d406594b8cef70a4362ec6b5de6a5daf50ec999e987c19d3049e2\
         de5977bb05b1bb220050a1ea5b46a9f1740acafbf6b45032adc90c628372c22b"
    );
}

#[test]
fn ids_names_and_flags() {
    for id in 0..=255 {
        match Algorithm::from_id(id) {
            Some(algorithm) => assert_eq!(algorithm.id(), id),
            None => assert!(!(2..=14).contains(&id)),
        }
    }
    let marked = |flag: fn(Algorithm) -> bool| -> Vec<&str> {
        Algorithm::ALL.into_iter().filter(|a| flag(*a)).map(Algorithm::name).collect()
    };
    assert_eq!(
        marked(Algorithm::metadata_ok),
        ["label", "gang_header", "fletcher4", "sha256", "zilog2", "sha512", "skein", "blake3"]
    );
    assert_eq!(marked(Algorithm::dedup_without_verify), ["sha256", "sha512", "skein", "blake3"]);
    assert_eq!(marked(Algorithm::nop_write), ["sha256", "sha512", "skein", "edonr", "blake3"]);
    assert_eq!(marked(Algorithm::salted), ["skein", "edonr", "blake3"]);
    assert_eq!(marked(Algorithm::embedded), ["label", "gang_header", "zilog", "zilog2"]);
}

#[test]
fn truncation_folds_only_the_weak() {
    let words = [1, 2, 4, 8];
    for algorithm in Algorithm::ALL {
        let folded = truncate(algorithm, words) == [5, 10];
        let strong = ["label", "sha256", "sha512", "skein", "blake3"];
        assert_eq!(folded, !strong.contains(&algorithm.name()) || algorithm.name() == "label");
    }
    let data = input();
    let whole = compute(Algorithm::Fletcher4, &data, WordOrder::Little, &salt());
    let stored = [whole[0] ^ whole[2], whole[1] ^ whole[3], 77, 88];
    let check = |stored: &Words, truncated| {
        matches(Algorithm::Fletcher4, &data, WordOrder::Little, &salt(), stored, truncated)
    };
    assert!(check(&stored, true));
    assert!(!check(&stored, false));
    assert!(check(&whole, false));
    assert!(!check(&whole, true));
}

/// The slot of transaction group 96 in the first label of a pool OpenZFS 2.1 made.
fn uberblock_slot() -> Vec<u8> {
    let head = "0cb1ba0000000000881300000000000060000000000000001042236640f316fa\
         ad8b006b000000000100000000000000c52d0600000000000100000000000000\
         7f0a07000000000001000000000000001f0c080000000000070000000f070b80\
         0000000000000000000000000000000000000000000000006000000000000000\
         c5000000000000000fc21c0d090000009cc8d31ea2030000a93db460fdbd0000\
         df799bc597571a00881300000000000011ea1ca1";
    let trailer = "117a0cb17ada100262aad96211e1163bc1502381769a3228777ed3a691b54c66\
         c86229794cd7c034";
    let mut slot = hex::decode(head).unwrap();
    slot.resize(1024 - TRAILER_SIZE, 0);
    slot.extend(hex::decode(trailer).unwrap());
    slot
}

#[test]
fn real_uberblock_slot() {
    let slot = uberblock_slot();
    let verify = |slot: &[u8], offset| {
        verify_embedded(slot, Algorithm::Label, &[offset, 0, 0, 0], Width::Full)
    };
    assert_eq!(verify(&slot, 0x38000), Ok(WordOrder::Little));
    assert!(matches!(verify(&slot, 0x38400), Err(EmbeddedError::Mismatch { .. })));
    for byte in [0, 500, 983, 992, 1023] {
        let mut damaged = slot.clone();
        damaged[byte] ^= 1;
        assert!(matches!(verify(&damaged, 0x38000), Err(EmbeddedError::Mismatch { .. })));
    }
    let mut resealed = slot.clone();
    resealed[992..].fill(0);
    let verifier = [0x38000, 0, 0, 0];
    let order = WordOrder::Little;
    seal_embedded(&mut resealed, Algorithm::Label, &verifier, order, Width::Full).unwrap();
    assert_eq!(resealed, slot);
    assert_eq!(verify(&vec![0; 1024], 0), Err(EmbeddedError::Magic(0)));
}

#[test]
fn trailers_round_trip() {
    let verifier = [11, 22, 33, 44];
    for algorithm in Algorithm::ALL.into_iter().filter(|a| a.embedded()) {
        for order in [WordOrder::Little, WordOrder::Big] {
            for width in [Width::Full, Width::Truncated] {
                let mut block: Vec<u8> = (0..16384).map(|i| (i * 7) as u8).collect();
                let (trailer, covered) = match algorithm {
                    Algorithm::Zilog2 => {
                        block[136..144].copy_from_slice(&order.bytes(5000));
                        (144, 8192)
                    }
                    _ => (16384 - TRAILER_SIZE, 16384),
                };
                let mac: Vec<u8> = block[trailer + 24..trailer + 40].to_vec();
                seal_embedded(&mut block, algorithm, &verifier, order, width).unwrap();
                let kept = block[trailer + 24..trailer + 40] == mac;
                assert_eq!(kept, width == Width::Truncated);
                assert_eq!(verify_embedded(&block, algorithm, &verifier, width), Ok(order));
                let mut other = verifier;
                other[0] += 1;
                verify_embedded(&block, algorithm, &other, width).unwrap_err();
                for byte in [0, 200, covered - TRAILER_SIZE - 1] {
                    block[byte] ^= 0x40;
                    verify_embedded(&block, algorithm, &verifier, width).unwrap_err();
                    block[byte] ^= 0x40;
                }
                if covered < block.len() {
                    block[covered] ^= 1;
                    assert_eq!(verify_embedded(&block, algorithm, &verifier, width), Ok(order));
                }
            }
        }
    }
}

#[test]
fn trailers_of_hostile_blocks() {
    for algorithm in Algorithm::ALL {
        for length in [0, 1, 39, 40, 48, 143, 184, 192, 4096] {
            let error = verify_embedded(&vec![0; length], algorithm, &[0; 4], Width::Full);
            assert!(error.is_err());
        }
    }
    for used in [0, 4097, 8192, u64::MAX - 1, u64::MAX] {
        let mut block = vec![0; 4096];
        block[136..144].copy_from_slice(&used.to_le_bytes());
        let order = WordOrder::Little;
        let sealed = seal_embedded(&mut block, Algorithm::Zilog2, &[0; 4], order, Width::Full);
        assert_eq!(sealed, Err(EmbeddedError::Used { used, length: 4096 }));
        let error = verify_embedded(&block, Algorithm::Zilog2, &[0; 4], Width::Full);
        assert_eq!(error, Err(EmbeddedError::Used { used, length: 4096 }));
    }
}

/// Fletcher-4 as the definition reads.
fn slow_fletcher4(data: &[u8], order: WordOrder) -> Words {
    let mut sums = [0u64; 4];
    for bytes in data.as_chunks::<4>().0 {
        let word = match order {
            WordOrder::Little => u32::from_le_bytes(*bytes),
            WordOrder::Big => u32::from_be_bytes(*bytes),
        };
        sums[0] = sums[0].wrapping_add(u64::from(word));
        for i in 1..4 {
            sums[i] = sums[i].wrapping_add(sums[i - 1]);
        }
    }
    sums
}

proptest! {
    #[test]
    fn fletcher4_equals_its_definition(data: Vec<u8>, cut: usize) {
        for order in [WordOrder::Little, WordOrder::Big] {
            let expected = slow_fletcher4(&data, order);
            prop_assert_eq!(fletcher4(&data, order), expected);
            let (head, tail) = data.split_at((cut % (data.len() + 1)) / 4 * 4);
            let mut state = Fletcher4::new(order);
            state.update(head);
            state.update(tail);
            prop_assert_eq!(state.words(), expected);
        }
    }

    #[test]
    fn plain_skein_equals_another_implementation(data: Vec<u8>) {
        use ::skein::{Digest, Skein512_256};
        prop_assert_eq!(&Skein::plain().digest(&data)[..], &Skein512_256::digest(&data)[..]);
    }

    #[test]
    fn edonr_in_pieces(data: Vec<u8>, cut: usize) {
        let (head, tail) = data.split_at(cut % (data.len() + 1));
        let mut pieces = Edonr::new();
        pieces.update(head);
        pieces.update(tail);
        let mut once = Edonr::new();
        once.update(&data);
        prop_assert_eq!(pieces.finish_256(), once.finish_256());
    }
}

#[test]
fn fletcher4_of_a_large_block() {
    let data = vec![0xff; 1 << 20];
    assert_eq!(fletcher4(&data, WordOrder::Little), slow_fletcher4(&data, WordOrder::Little));
    let mut state = Fletcher4::new(WordOrder::Little);
    data.chunks(4096).for_each(|part| state.update(part));
    assert_eq!(state.words(), slow_fletcher4(&data, WordOrder::Little));
}
