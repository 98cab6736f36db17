//! `zfs send --saved`: what was received in part goes on to somewhere else.
//!
//! Invariant: what arrives is a part of the snapshot that can be completed from its source.

use super::{Bench, noise};

impl Bench {
    /// Receives a part of a stream into `target`.
    #[track_caller]
    fn received_in_part(&self, target: &str, stream: &[u8]) -> String {
        assert!(!self.receive(&["-s", target], stream).status.success());
        self.value("receive_resume_token", target)
    }
}

#[test]
fn what_was_received_in_part_is_sent() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create_with(&["-O", "recordsize=16k"], &[&devices[0]]);
    bench.cenote(&["zfs", "create", "tank/a"]);
    for (name, seed) in [("first", 1), ("second", 2)] {
        std::fs::write(bench.at("mnt/tank/a").join(name), noise(2 << 20, seed)).unwrap();
    }
    bench.cenote(&["zfs", "snapshot", "tank/a@one"]);
    std::fs::write(bench.at("mnt/tank/a/first"), noise(1 << 20, 3)).unwrap();
    std::fs::write(bench.at("mnt/tank/a/second"), noise(2 << 20, 5)).unwrap();
    std::fs::write(bench.at("mnt/tank/a/third"), noise(2 << 20, 4)).unwrap();
    bench.cenote(&["zfs", "snapshot", "tank/a@two"]);
    let full = bench.stream(&["-c", "tank/a@one"]);
    let more = bench.stream(&["-i", "@one", "tank/a@two"]);
    // Of a new filesystem.
    let first = bench.received_in_part("tank/b", &full[..full.len() / 2]);
    let said = bench.cenote(&["zfs", "send", "-nv", "-S", "tank/b"]);
    assert!(said.starts_with("resume token contents:\nnvlist version: 0\n"), "{said}");
    assert!(said.contains("\nfull send of tank/b estimated size is "), "{said}");
    let saved = bench.stream(&["--saved", "tank/b"]);
    assert!(saved.len() > full.len() / 4 && saved.len() < full.len() * 3 / 4, "{}", saved.len());
    let said = bench.receive(&["tank/no"], &saved);
    assert!(String::from_utf8_lossy(&said.stderr).contains("incomplete stream"));
    let second = bench.received_in_part("tank/c", &saved);
    let place = |token: &str, snapshot: &str| {
        let said = bench.cenote(&["zfs", "send", "-nv", "-t", token]);
        let of = |name: &str| {
            let line = said.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
            line.split(" = ").nth(1).unwrap().to_owned()
        };
        assert!(said.contains(&format!("\ttoname = tank/a@{snapshot}\n")), "{said}");
        assert_eq!(said.contains("\tcompressok"), snapshot == "one", "{said}");
        (of("object"), of("offset"), of("toguid"))
    };
    assert_eq!(place(&first, "one"), place(&second, "one"));
    bench.received(&["-s", "tank/c"], &bench.stream(&["-t", &second]));
    bench.received(&["-s", "tank/b"], &bench.stream(&["-t", &first]));
    // Of what comes to what is there; files behind the place where it was cut off are as they were.
    let first = bench.received_in_part("tank/b", &more[..more.len() / 10]);
    let said = bench.cenote(&["zfs", "send", "-nv", "-S", "tank/b"]);
    assert!(said.contains("\nsend from tank/b@one to tank/b"), "{said}");
    let second = bench.received_in_part("tank/c", &bench.stream(&["-S", "tank/b"]));
    assert_eq!(place(&first, "two"), place(&second, "two"));
    bench.received(&["-s", "tank/c"], &bench.stream(&["-t", &second]));
    for (name, content) in
        [("first", noise(1 << 20, 3)), ("second", noise(2 << 20, 5)), ("third", noise(2 << 20, 4))]
    {
        assert!(std::fs::read(bench.at("mnt/tank/c").join(name)).unwrap() == content, "{name}");
    }
    assert_eq!(bench.value("guid", "tank/c@two"), bench.value("guid", "tank/a@two"));
    bench.cenote(&["zfs", "receive", "-A", "tank/b"]);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn what_cannot_be_sent_so_is_refused_in_openzfs_words() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    bench.two_streams();
    for (arguments, words) in [
        (
            &["-S", "tank/a@one"][..],
            "saved send must specify the dataset with partially-received state\n",
        ),
        (&["-S", "-w", "tank/a"], "incompatible flags combined with saved send flag\n"),
        (&["-S", "-i", "@one", "tank/a"], "incompatible flags combined with saved send flag\n"),
        (&["-S", "-t", "1-2-3-4"], "invalid flags combined with -t\n"),
        (&["-S", "tank/no"], "cannot open 'tank/no': dataset does not exist\n"),
        (&["-S", "tank/a"], "saved send failed: 'tank/a' has no partially received state\n"),
    ] {
        let said = bench.refused(&[&["zfs", "send"], arguments].concat());
        assert!(said.starts_with(words), "{arguments:?}: {said}");
    }
}

/// The words are those of OpenZFS 2.1.11, as it said them.
#[test]
fn a_snapshot_goes_with_the_partial_receive_that_hangs_on_it() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    let [one, two] = bench.two_streams();
    let begun = || {
        bench.received(&["-u", "tank/b"], &one);
        bench.received_in_part("tank/b", &two[..two.len() / 2])
    };
    let names = || bench.cenote(&["zfs", "list", "-H", "-r", "-t", "all", "-o", "name", "tank/b"]);
    let token = begun();
    assert_eq!(bench.value("clones", "tank/b@one"), "tank/b/%recv");
    let clones = "cannot destroy 'tank/b@one': snapshot has dependent clones\nuse '-R' to destroy the following \
                  datasets:\ntank/b/%recv\n";
    for options in [&[][..], &["-r"], &["-n"]] {
        assert_eq!(
            bench.refused(&[&["zfs", "destroy"], options, &["tank/b@one"]].concat()),
            clones
        );
    }
    assert_eq!(bench.refused(&["zfs", "destroy", "tank/b@%"]), clones);
    bench.cenote(&["zfs", "create", "tank/b/kid"]);
    let children = "cannot destroy 'tank/b': filesystem has children\nuse '-r' to destroy the following \
                    datasets:\ntank/b/kid\ntank/b/%recv\ntank/b@one\n";
    assert_eq!(bench.refused(&["zfs", "destroy", "tank/b"]), children);
    let said = bench.cenote(&["zfs", "destroy", "-rnv", "tank/b"]);
    let all = ["tank/b/kid", "tank/b/%recv", "tank/b@one", "tank/b"];
    assert_eq!(said, all.map(|name| format!("would destroy {name}\n")).concat());
    // What is marked goes when it can.
    bench.cenote(&["zfs", "destroy", "-d", "tank/b@one"]);
    assert_eq!(bench.value("receive_resume_token", "tank/b"), token);
    bench.cenote(&["zfs", "destroy", "-r", "tank/b"]);
    assert!(!bench.output(&["zfs", "list", "tank/b"]).status.success());
    // With the snapshot alone goes what was received in part, and the filesystem stays.
    begun();
    bench.cenote(&["zfs", "destroy", "-R", "tank/b@one"]);
    assert_eq!(names(), "tank/b\n");
    assert_eq!(bench.value("receive_resume_token", "tank/b"), "-");
    bench.cenote(&["zfs", "destroy", "tank/b"]);
    // Whoever goes on with it is told that it is gone, and the snapshot can go by itself.
    begun();
    bench.cenote(&["zfs", "receive", "-A", "tank/b"]);
    assert_eq!(bench.value("clones", "tank/b@one"), "-");
    bench.cenote(&["zfs", "destroy", "tank/b@one"]);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}
