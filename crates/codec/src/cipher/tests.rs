//! The vectors of chapter 02, section 8.8 and chapter 06, T7.

use std::ops::Range;
use std::slice::from_ref;

use super::*;

fn array<const N: usize>(text: &str) -> [u8; N] {
    hex::decode(text).unwrap().try_into().unwrap()
}

fn real_key() -> WrappedKeys {
    WrappedKeys {
        suite: Suite::Aes256Gcm,
        guid: 0x9ded_1353_aa90_7037,
        version: 1,
        iv: array("18f7f09b14fd2d539fc972ad"),
        mac: array("4a95ed5a5120ecf9b05942d9cca09a3b"),
        master: array("10090de0c249f05eda172999c2ac11ad8c600ae72d1df8d27f70111a54ba81b7"),
        hmac: array(
            "518f1fa41835a32ad62c086b66dfe7530f5faee816ef2c53f34121953173568c\
             9ccc670aa0a120b67f784cdd44003de73052649e879976f2f1654107f31d09a9",
        ),
    }
}

const MASTER: &str = "75d35deeb2990c36ba3c0e70b286c3b524f9748a3ac8b30e3f405a75ffdc27a9";

const HMAC: &str = "c3f27486056ce371b3287504b68214728956e1f0f2afd43b5f1eea358cf3c498\
                    856c19f45aa751f5b237170ab3dc58b87432c17cf600df7751038352253666a5";

#[test]
fn real_key_object_opens_and_only_with_its_key() {
    let wrapping = SecretKey::new(b"abcdefghijklmnopqrstuvwxyz012345".to_vec());
    let keys = unwrap(&real_key(), &wrapping).unwrap();
    assert_eq!(hex::encode(keys.master.bytes()), MASTER);
    assert_eq!(hex::encode(keys.hmac.bytes()), HMAC);
    let wrong = SecretKey::new(vec![7; 32]);
    assert_eq!(unwrap(&real_key(), &wrong).unwrap_err(), CipherError::Authentication);
    let again = wrap(&keys, &real_key(), [9; 12], &wrapping).unwrap();
    assert_eq!(unwrap(&again, &wrapping).unwrap().master, keys.master);
    assert_eq!(format!("{:?}", keys.master), "SecretKey(32 bytes)");
}

#[test]
fn ccm_key_object_of_chapter_06_opens() {
    let wrapping = SecretKey::new((0..32).collect());
    let mut master = [0; 32];
    master[..16].copy_from_slice(&hex::decode("72ad816b8702cb8249d9a26781dbf295").unwrap());
    let wrapped = WrappedKeys {
        suite: Suite::Aes128Ccm,
        guid: 12_691_905_618_607_966_835,
        version: 1,
        iv: array("ab327c5ffb111240aaa570d5"),
        mac: array("8b93f8a9d232702a90c93f74bd4ec349"),
        master,
        hmac: array(
            "f6d094bbc93f71ea5ae24529e12a4a884efc439f9149ccbc8c29c790ed669b6b\
             020bd37f1dba871520e3897f084c38f2dfa23bb1d473374e034d64a21f3a5698",
        ),
    };
    let keys = unwrap(&wrapped, &wrapping).unwrap();
    assert_eq!(hex::encode(keys.master.bytes()), "12fd7cb77fba7e6154b36655e62753b9");
    assert!(hex::encode(keys.hmac.bytes()).starts_with("00a4f69c5b814759cabb16f3ef544eb0"));
}

#[test]
fn block_keys_and_both_modes() {
    let master = SecretKey::new(hex::decode(MASTER).unwrap());
    let key = block_key(Suite::Aes256Gcm, &master, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    assert_eq!(
        hex::encode(key.bytes()),
        "4e0c563eaf7ce08ced0d7b8f49d5ef1ed0fd7c20e26cdf9d8231cdfab9d6a95c"
    );
    let iv: [u8; 12] = array("101112131415161718191a1b");
    let plain = b"0123456789abcdef0123456789abcdef";
    let expected = [
        (
            Suite::Aes256Gcm,
            "e3d66afc62cb0a2f56d5ad3c95ba8cc03d92bdf133f53fdb66910b629f5e574e",
            "00f801a868f732be4b0f08c290d7696b",
        ),
        (
            Suite::Aes256Ccm,
            "081755e1862231812f17588412383453797f23bc86ba8b5befbb081e4c851d11",
            "e43ede8d44ce8cac676438851c6cd3b7",
        ),
    ];
    for (suite, text, tag) in expected {
        let mut message = plain.to_vec();
        let sealed = encrypt(suite, key.bytes(), &iv, b"", &mut message).unwrap();
        assert_eq!((hex::encode(&message).as_str(), hex::encode(sealed).as_str()), (text, tag));
        decrypt(suite, key.bytes(), &iv, b"", &mut message, &sealed).unwrap();
        assert_eq!(message, plain);
        message[3] ^= 1;
        let damaged = decrypt(suite, key.bytes(), &iv, b"", &mut message, &sealed);
        assert_eq!(damaged, Err(CipherError::Authentication));
    }
}

#[test]
fn every_suite_round_trips_in_segments() {
    for id in 3..=8 {
        let suite = Suite::from_id(id).unwrap();
        assert_eq!(suite.id(), id);
        let key = vec![id as u8; suite.key_len()];
        let mut message: Vec<u8> = (0..200).collect();
        let tag = encrypt(suite, &key, &[3; 12], b"aad", &mut message).unwrap();
        let mut data = vec![0xee; 300];
        data[10..110].copy_from_slice(&message[..100]);
        data[150..250].copy_from_slice(&message[100..]);
        let segments = [10..110, 150..250];
        decrypt_segments(suite, &key, &[3; 12], b"aad", &mut data, &segments, &tag).unwrap();
        assert_eq!((data[10], data[109], data[150], data[249]), (0, 99, 100, 199));
        assert_eq!((data[9], data[110]), (0xee, 0xee));
        let back = Cipher::new(suite, &key).unwrap();
        let again = back.seal_segments(&[3; 12], b"aad", &mut data, &segments).unwrap();
        assert_eq!(again, tag);
        assert_eq!((&data[10..110], &data[150..250]), (&message[..100], &message[100..]));
        let outside = [0..100, 250..350];
        assert!(decrypt_segments(suite, &key, &[3; 12], b"", &mut data, &outside, &tag).is_err());
        assert!(encrypt(suite, &[0; 5], &[3; 12], b"", &mut data).is_err());
    }
    assert!(Suite::from_id(2).is_none());
}

#[test]
fn failed_messages_of_every_suite_change_nothing_in_segments() {
    for id in 3..=8 {
        let suite = Suite::from_id(id).unwrap();
        let cipher = Cipher::new(suite, &vec![1; suite.key_len()]).unwrap();
        let mut data = vec![5; 64];
        let tag = cipher.seal_segments(&[0; 12], b"aad", &mut data, from_ref(&(8..40))).unwrap();
        let sealed = data.clone();
        let mut open = |nonce: u8, aad: &[u8], range: Range<usize>, tag: &[u8; 16]| {
            cipher.open_segments(&[nonce; 12], aad, &mut data, &[range], tag)
        };
        for wrong in [
            open(1, b"aad", 8..40, &tag),
            open(0, b"axd", 8..40, &tag),
            open(0, b"aad", 9..41, &tag),
            open(0, b"aad", 8..41, &tag),
            open(0, b"aad", 8..40, &[0; 16]),
        ] {
            assert_eq!(wrong, Err(CipherError::Authentication));
        }
        let overlap = cipher.seal_segments(&[0; 12], b"", &mut data, &[0..9, 8..10]);
        assert_eq!(overlap, Err(CipherError::Message));
        assert_eq!(data, sealed);
        assert_eq!(format!("{cipher:?}"), format!("Cipher {{ suite: {suite:?}, .. }}"));
    }
}

#[test]
fn a_message_may_be_empty() {
    // As for a dnode block without encrypted bonus areas.
    for id in 3..=8 {
        let suite = Suite::from_id(id).unwrap();
        let cipher = Cipher::new(suite, &vec![1; suite.key_len()]).unwrap();
        let tag = cipher.seal(&[0; 12], b"header", &mut []).unwrap();
        assert_eq!(cipher.open(&[0; 12], b"header", &mut [], &tag), Ok(()));
        cipher.open(&[0; 12], b"other", &mut [], &tag).unwrap_err();
    }
}

#[test]
fn dedup_salt_and_macs() {
    let hmac = SecretKey::new(hex::decode(HMAC).unwrap());
    let plain = b"0123456789abcdef0123456789abcdef";
    let (salt, nonce) = dedup_salt_and_nonce(&hmac, plain).unwrap();
    assert_eq!(hex::encode(salt), "766d98eda7d6fb7e");
    assert_eq!(hex::encode(nonce), "65598887bfbf39cf07b7c79d");
    let mac = hmac_sha512(&hmac, &[&plain[..7], &plain[7..]]).unwrap();
    assert!(mac_matches(&mac, &mac[..16]));
    assert!(mac_matches(&mac, &mac[..32]));
    let mut other = mac;
    other[15] ^= 1;
    assert!(!mac_matches(&mac, &other[..16]));
    assert!(!mac_matches(&mac, &[0; 65]));
    let empty = "cf83e1357eefb8bdf1542850d66d8007";
    assert_eq!(hex::encode(sha512_mac(b"")), empty);
}

#[test]
fn passphrases_stretch() {
    // Made with Python's hashlib.pbkdf2_hmac.
    let key = key_from_passphrase(b"password", 0x1122_3344_5566_7788, 1000);
    assert_eq!(
        hex::encode(key.bytes()),
        "45e1d5f0f3370130cd782161b5a2b066b8f8a6e7068deda7236b044f40a68df8"
    );
}
