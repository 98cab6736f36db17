//! Encrypted datasets through the program: keys given, changed, refused; a kill after fsync.
//!
//! Invariant: what needs a key is not shown without it, and all of it is there with it.

use std::io::Write;

use super::{Bench, fill, noise};

#[test]
fn encrypted_datasets_keep_their_secrets_and_survive_a_kill() {
    let Some((bench, devices)) = Bench::mounting(2) else { return };
    let key = |name: &str, material: &[u8]| {
        std::fs::write(bench.at(name), material).unwrap();
        format!("keylocation=file://{}", bench.at(name).display())
    };
    let passphrase = key("passphrase", b"a passphrase for tests\n");
    let raw = key("raw", &noise(32, 3));
    bench.create(&["mirror", &devices[0], &devices[1]]);
    bench.cenote(&[
        "zfs",
        "create",
        "-o",
        "encryption=on",
        "-o",
        "keyformat=passphrase",
        "-o",
        "pbkdf2iters=100000",
        "-o",
        &passphrase,
        "tank/secret",
    ]);
    bench.cenote(&["zfs", "create", "-o", "encryption=aes-192-ccm", "tank/secret/below"]);
    let (top, below) = (bench.at("mnt/tank/secret"), bench.at("mnt/tank/secret/below"));
    fill(&top);
    fill(&below);
    bench.cenote(&["zfs", "snapshot", "-r", "tank/secret@one"]);
    let refused = bench.output(&["zfs", "unload-key", "tank/secret"]);
    let words = "Key unload error: 'tank/secret' is busy.\n";
    assert_eq!(String::from_utf8_lossy(&refused.stderr), words);
    bench.cenote(&["zfs", "change-key", "-o", "keyformat=raw", "-o", &raw, "tank/secret"]);
    let refused = bench.output(&["zfs", "rename", "tank/secret/below", "tank/below"]);
    let words = "cannot rename 'tank/secret/below': cannot move encrypted child outside of its \
                 encryption root\n";
    assert_eq!(String::from_utf8_lossy(&refused.stderr), words);
    bench.cenote(&["zpool", "sync", "tank"]);
    let before = bench.manifest();
    for (number, directory) in (0..20u32).flat_map(|n| [(n, &top), (n, &below)]) {
        let file = std::fs::File::create(directory.join(format!("late{number}"))).unwrap();
        (&file).write_all(&noise(5000 * number as usize, number)).unwrap();
        file.sync_all().unwrap();
    }
    bench.kill();
    bench.import();
    assert_eq!(std::fs::read_dir(&top).map_or(0, Iterator::count), 0, "mounted without its key");
    let refused = bench.output(&["zfs", "create", "tank/secret/more"]);
    assert!(!refused.status.success());
    bench.cenote(&["zfs", "load-key", "tank/secret"]);
    bench.cenote(&["zfs", "mount", "-a"]);
    for (number, directory) in (0..20u32).flat_map(|n| [(n, &top), (n, &below)]) {
        let path = directory.join(format!("late{number}"));
        let found = std::fs::read(&path).unwrap();
        assert!(found == noise(5000 * number as usize, number), "{} differs", path.display());
        std::fs::remove_file(path).unwrap();
    }
    // The two roots, which come first, were changed since.
    let after = bench.manifest();
    for (now, then) in after.lines().zip(before.lines()).skip(2) {
        assert_eq!(now, then);
    }
    assert_eq!(after.lines().count(), before.lines().count());
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}
