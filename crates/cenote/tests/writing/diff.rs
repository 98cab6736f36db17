//! `zfs diff`: what it tells of files that were made, changed, moved, linked and removed.

use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::process::Command;

use super::{Bench, noise};

fn filled() -> Option<Bench> {
    let (bench, devices) = Bench::mounting(1)?;
    bench.create(&[&devices[0]]);
    bench.cenote(&["zfs", "create", "tank/a"]);
    let at = |name: &str| bench.at("mnt/tank/a").join(name);
    for directory in ["d", "d/e", "moved", "gone"] {
        fs::create_dir(at(directory)).unwrap();
    }
    for file in ["same", "changed", "d/e/deep", "moved/in", "gone/file", "link", "odd name\u{e9}"] {
        fs::write(at(file), noise(20_000, 1)).unwrap();
    }
    for number in 0..600 {
        fs::write(at(&format!("d/many{number}")), "x").unwrap();
    }
    bench.cenote(&["zfs", "snapshot", "tank/a@one"]);
    Some(bench)
}

impl Bench {
    /// What is told, its lines sorted, without the place.
    fn told(&self, arguments: &[&str]) -> Vec<String> {
        let said = self.cenote(&[&["zfs", "diff"], arguments].concat());
        let place = self.at("mnt/tank/a").display().to_string();
        let mut lines: Vec<String> = said.lines().map(|line| line.replace(&place, "")).collect();
        lines.sort();
        lines
    }
}

#[test]
fn what_was_made_changed_moved_linked_and_removed() {
    let Some(bench) = filled() else { return };
    let at = |name: &str| bench.at("mnt/tank/a").join(name);
    assert!(bench.told(&["tank/a@one"]).is_empty());
    fs::write(at("changed"), noise(30_000, 2)).unwrap();
    fs::write(at("new"), "new").unwrap();
    fs::create_dir(at("newdir")).unwrap();
    fs::rename(at("d/e/deep"), at("newdir/deep")).unwrap();
    fs::rename(at("moved"), at("d/moved")).unwrap();
    fs::remove_dir_all(at("gone")).unwrap();
    fs::hard_link(at("link"), at("second")).unwrap();
    symlink("same", at("newdir/symlink")).unwrap();
    assert!(Command::new("mkfifo").arg(at("newdir/fifo")).status().unwrap().success());
    assert!(fs::metadata(at("newdir/fifo")).unwrap().file_type().is_fifo());
    fs::rename(at("odd name\u{e9}"), at("od\\d")).unwrap();
    let expected = [
        "+\t/new",
        "+\t/newdir",
        "+\t/newdir/fifo",
        "+\t/newdir/symlink",
        "-\t/gone",
        "-\t/gone/file",
        "M\t/",
        "M\t/changed",
        "M\t/d",
        "M\t/d/e",
        "M\t/link\t(+1)",
        "R\t/d/e/deep -> /newdir/deep",
        "R\t/moved -> /d/moved",
        "R\t/odd\\0040name\\0303\\0251 -> /od\\0134d",
    ];
    assert_eq!(bench.told(&["tank/a@one"]), expected);
    // What is there now was kept for as long only.
    let left = bench.cenote(&["zfs", "list", "-H", "-o", "name", "-t", "snapshot", "-r", "tank/a"]);
    assert_eq!(left, "tank/a@one\n");
    bench.cenote(&["zfs", "snapshot", "tank/a@two"]);
    fs::remove_file(at("same")).unwrap();
    assert_eq!(bench.told(&["tank/a@one", "tank/a@two"]), expected);
    assert_eq!(bench.told(&["@one", "tank/a@two"]), expected);
    assert_eq!(bench.told(&["tank/a@two"]), ["-\t/same", "M\t/"]);
    let marked = bench.told(&["-FHh", "tank/a@one", "@two"]);
    for line in [
        "+\tF\t/new",
        "+\t/\t/newdir",
        "+\t|\t/newdir/fifo",
        "+\t@\t/newdir/symlink",
        "M\t/\t/",
        "M\tF\t/link\t(+1)",
        "R\tF\t/d/e/deep\t/newdir/deep",
        "R\tF\t/odd name\u{e9}\t/od\\d",
    ] {
        assert!(marked.iter().any(|one| one == line), "{line}: {marked:?}");
    }
    let timed = bench.told(&["-tH", "tank/a@one", "@two"]);
    let first = timed[0].split('\t').next().unwrap();
    let (seconds, nanoseconds) = first.trim().split_once('.').unwrap();
    assert!(seconds.parse::<u64>().unwrap() > 1_700_000_000 && nanoseconds.len() == 9, "{first}");
    // A clone of an earlier snapshot.
    bench.cenote(&["zfs", "clone", "tank/a@one", "tank/clone"]);
    fs::write(bench.at("mnt/tank/clone/own"), "own").unwrap();
    let said = bench.cenote(&["zfs", "diff", "tank/a@one", "tank/clone"]);
    let place = bench.at("mnt/tank/clone").display().to_string();
    assert_eq!(said, format!("M\t{place}/\n+\t{place}/own\n"));
}

#[test]
fn what_cannot_be_compared() {
    let Some(bench) = filled() else { return };
    bench.cenote(&["zfs", "snapshot", "tank/a@two"]);
    bench.cenote(&["zfs", "create", "tank/other"]);
    let other = "Unable to obtain diffs: \n   Not an earlier snapshot from the same fs\n";
    assert_eq!(bench.refused(&["zfs", "diff", "tank/a@two", "tank/a@one"]), other);
    let strange = "Not an earlier snapshot from the same fs: invalid name\n";
    assert_eq!(bench.refused(&["zfs", "diff", "tank/a@two", "tank/other"]), strange);
    let said = bench.refused(&["zfs", "diff", "tank/a@no"]);
    assert_eq!(said, "Unable to obtain diffs: No such file or directory\n");
    let said = bench.refused(&["zfs", "diff", "tank/no@no"]);
    assert_eq!(said, "cannot open 'tank/no': dataset does not exist\n");
    let said = bench.refused(&["zfs", "diff", "tank/a"]);
    let words = "Badly formed snapshot name tank/a: missing '@' delimiter in snapshot name\n";
    assert_eq!(said, words);
    bench.cenote(&["zfs", "set", "mountpoint=none", "tank/a"]);
    let said = bench.refused(&["zfs", "diff", "tank/a@one"]);
    assert_eq!(said, "Unable to obtain diffs: Cannot diff an unmounted snapshot\n");
}
