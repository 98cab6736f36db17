//! The vectors of chapter 02, section 7.8, round trips, and hostile input.

use proptest::prelude::*;

use super::*;

/// The input of all the vectors.
fn sample() -> Vec<u8> {
    let mut data = b"abcabcabcd".to_vec();
    data.extend([0; 6]);
    data.extend(b"ZFSZFS!!");
    data.resize(1024, 0);
    data
}

/// What the reference made of [`sample`].
const VECTORS: [(u8, &str); 6] = [
    (
        3,
        "486162630c03640008015ae4465300032121080dfc05fc42fffc42fc42fc42fc42fc42fc42fc42fc42\
         1ffc42fc42fc42fc42fc42000000000000",
    ),
    (
        14,
        "0961626361626361626364\
          45\
          075a46535a46532121\
          ffffffffff67",
    ),
    (
        15,
        "00000023\
         3261626303002164000100815a46535a465321210d000f0200ffffffce500000000000",
    ),
    (10, "789c4b4c4a4e04a314063088720b062245458651300a46c1b00700c32905ff"),
    (
        16,
        "0000001e030028a5\
         0000cd00007061626364005a46535a46532121000300e4411d5cc3626e08",
    ),
    (
        16,
        "00000025700028a5\
         0000050100c8616263616263616263640000000000005a46535a4653212100010091afc018",
    ),
];

fn all_algorithms() -> Vec<Algorithm> {
    (0..=255).filter_map(Algorithm::from_id).collect()
}

fn all_methods() -> Vec<Method> {
    let mut methods = vec![Method::Lzjb, Method::Zle, Method::Lz4];
    methods.extend((1..=9).map(Method::Gzip));
    methods.extend(
        [-1000, -500, -100, -20, -10, -1, 1, 3, 9]
            .map(|number| Method::Zstd(ZstdLevel::from_number(number).unwrap())),
    );
    methods
}

fn expand(algorithm: Algorithm, source: &[u8], length: usize) -> Result<Vec<u8>, DecompressError> {
    let mut block = vec![0xee; length];
    decompress(algorithm, source, &mut block).map(|()| block)
}

#[test]
fn vectors_decompress_with_and_without_padding() {
    for (id, vector) in VECTORS {
        let algorithm = Algorithm::from_id(id).unwrap();
        let mut stored = hex::decode(vector).unwrap();
        assert_eq!(expand(algorithm, &stored, 1024).unwrap(), sample());
        stored.resize(4096, 0);
        assert_eq!(expand(algorithm, &stored, 1024).unwrap(), sample());
        for cut in 0..stored.len() {
            // Never a panic; and without all of the input never the right block.
            let cut_short = expand(algorithm, &stored[..cut], 1024);
            assert!(cut_short.is_err() || cut >= vector.len() / 2);
        }
    }
}

#[test]
fn blocks_of_another_size_are_refused() {
    for (id, vector) in VECTORS {
        let algorithm = Algorithm::from_id(id).unwrap();
        let stored = hex::decode(vector).unwrap();
        expand(algorithm, &stored, 2048).unwrap_err();
        // LZJB and ZLE know no length: they stop when the block is full.
        if !matches!(algorithm, Algorithm::Lzjb | Algorithm::Zle) {
            expand(algorithm, &stored, 512).unwrap_err();
        }
    }
}

#[test]
fn lzjb_and_zle_compress_as_the_reference_does() {
    for (method, vector) in [(Method::Lzjb, VECTORS[0].1), (Method::Zle, VECTORS[1].1)] {
        let mut out = vec![0; savings_limit(1024)];
        let length = compress(method, &sample(), &mut out).unwrap();
        assert_eq!(hex::encode(&out[..length]), vector);
    }
}

#[test]
fn zstd_levels_and_header_variants() {
    assert_eq!((1..=255).filter_map(ZstdLevel::from_id).count(), 19 + 21);
    let number = |id| ZstdLevel::from_id(id).unwrap().number();
    assert_eq!([1, 19, 103, 112].map(number), [1, 19, -1, -10]);
    assert_eq!([113, 114, 121, 122, 123].map(number), [-20, -30, -100, -500, -1000]);
    assert_eq!(ZstdLevel::from_number(-15), None);
    assert_eq!(ZstdLevel::from_number(0), None);

    let stored = hex::decode(VECTORS[4].1).unwrap();
    assert_eq!(zstd_level(&stored), Some(ZstdLevel::DEFAULT));
    let with_word = |word: [u8; 4]| {
        let mut changed = stored.clone();
        changed[4..8].copy_from_slice(&word);
        changed
    };
    // As an old big-endian host packed it: version first, then level.
    let old = with_word([0x00, 0x28, 0xa5, 19]);
    assert_eq!(zstd_level(&old).map(ZstdLevel::number), Some(19));
    assert_eq!(expand(Algorithm::Zstd, &old, 1024).unwrap(), sample());
    for word in [[0, 0, 0x28, 0xa5], [20, 0, 0x28, 0xa5], [101, 0, 0, 0], [251, 0, 0, 0]] {
        expand(Algorithm::Zstd, &with_word(word), 1024).unwrap_err();
    }
    expand(Algorithm::Zstd, &with_word([3, 1, 0x28, 0xa5]), 1024).unwrap_err();
}

#[test]
fn ids_and_names() {
    for algorithm in all_algorithms() {
        assert_eq!(Algorithm::from_id(algorithm.id()), Some(algorithm));
    }
    let missing: Vec<u8> = (0..=20).filter(|id| Algorithm::from_id(*id).is_none()).collect();
    assert_eq!(missing, [0, 1, 4, 17, 18, 19, 20]);
    assert_eq!(Algorithm::Gzip(9).name(), "gzip-9");
}

#[test]
fn off_copies_the_front() {
    assert_eq!(expand(Algorithm::Off, b"abcdef", 4).unwrap(), b"abcd");
    expand(Algorithm::Off, b"abc", 4).unwrap_err();
}

#[test]
fn lzjb_refuses_copies_that_lead_nowhere() {
    // A copy before anything was written, from before the start, and from itself.
    for stream in [vec![0x01, 0x00, 0x01], vec![0x02, 0x61, 0x00, 0x02], vec![0x02, 0x61, 0, 0]] {
        expand(Algorithm::Lzjb, &stream, 64).unwrap_err();
    }
    // An overlapping copy repeats.
    let stream = [0x04, b'a', b'b', (6 - 3) << 2, 2];
    assert_eq!(expand(Algorithm::Lzjb, &stream, 8).unwrap(), b"abababab");
}

fn noise(length: usize) -> Vec<u8> {
    let mut state = 1u64;
    let next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

#[test]
fn a_limit_too_small_is_refused_by_all() {
    let noise = noise(4096);
    for method in all_methods() {
        for limit in [0, 1, 3, 4, 7, 8, 16, 17, 18, 100, 1000] {
            assert_eq!(compress(method, &noise, &mut vec![0; limit]), None, "{method:?} {limit}");
        }
    }
}

#[test]
fn a_result_needs_no_more_room_than_it_takes() {
    let data = [noise(1000), vec![0; 30_000]].concat();
    for method in all_methods() {
        let mut out = vec![0; savings_limit(data.len())];
        let size = compress(method, &data, &mut out).unwrap();
        // Some give up a little before the end of their destination.
        let spare = if matches!(method, Method::Lz4 | Method::Gzip(_)) { 0 } else { 64 };
        let mut tight = vec![0; size + spare];
        assert_eq!(compress(method, &data, &mut tight), Some(size), "{method:?}");
        assert!(compress(method, &data, &mut tight[..size - 1]).is_none(), "{method:?}");
    }
}

#[test]
fn large_blocks_round_trip() {
    let mut data: Vec<u8> = (0..1 << 20).map(|i: u32| ((i / 5) ^ (i >> 9)) as u8).collect();
    data[300_000..700_000].fill(0);
    for method in all_methods() {
        let mut out = vec![0; data.len() + data.len() / 8 + 100];
        let length = compress(method, &data, &mut out).unwrap();
        assert_eq!(expand(method.algorithm(), &out[..length], data.len()).unwrap(), data);
    }
}

/// Bytes with runs, repeats and noise in them.
fn compressible() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..80),
        (any::<u8>(), 0usize..300).prop_map(|(byte, count)| vec![byte; count]),
        (0usize..300).prop_map(|count| vec![0; count]),
        (proptest::collection::vec(any::<u8>(), 1..9), 1usize..40)
            .prop_map(|(word, times)| word.repeat(times)),
    ];
    proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn round_trips(data in compressible()) {
        for method in all_methods() {
            let mut out = vec![0; 2 * data.len() + 200];
            let length = compress(method, &data, &mut out).unwrap();
            let back = expand(method.algorithm(), &out[..length], data.len());
            prop_assert_eq!(back.as_ref(), Ok(&data), "{:?}", method);
        }
    }

    #[test]
    fn compressors_keep_to_any_limit(data in compressible(), limit in 0usize..600) {
        for method in all_methods() {
            let mut out = vec![0; limit];
            if let Some(length) = compress(method, &data, &mut out) {
                prop_assert!(length <= limit);
                let back = expand(method.algorithm(), &out[..length], data.len());
                prop_assert_eq!(back.as_ref(), Ok(&data));
            }
        }
    }

    #[test]
    fn noise_never_panics(noise: Vec<u8>, length in 0usize..2000) {
        for algorithm in all_algorithms() {
            let _ = expand(algorithm, &noise, length);
        }
    }

    #[test]
    fn damaged_streams_never_panic(
        data in compressible(), at: usize, flip in 1u8..=255, length in 0usize..4000,
    ) {
        for method in all_methods() {
            let mut out = vec![0; 2 * data.len() + 200];
            let size = compress(method, &data, &mut out).unwrap();
            let stored = &mut out[..size];
            if let Some(byte) = stored.len().checked_sub(1).map(|last| at % (last + 1)) {
                stored[byte] ^= flip;
            }
            let _ = expand(method.algorithm(), stored, data.len());
            let _ = expand(method.algorithm(), stored, length);
        }
    }
}
