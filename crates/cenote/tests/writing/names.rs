//! Names that would be too long or too deep, also those of what lies below what is named.

use super::Bench;

#[test]
fn names_below_are_counted_too() {
    let bench = Bench::new(1);
    let devices = bench.devices(1);
    bench.create_with(&["-O", "mountpoint=none"], &[&devices[0]]);
    let inner = format!("tank/a/{}", "b".repeat(120));
    bench.cenote(&["zfs", "create", "-p", &inner]);
    let snapshot = format!("tank/a@{}", "s".repeat(150));
    let said = bench.refused(&["zfs", "snapshot", "-r", &snapshot]);
    let below = snapshot.replace("tank/a", &inner);
    assert_eq!(
        said,
        format!(
            "cannot create snapshot '{below}': dataset name is too long\nno snapshots were created\n"
        )
    );
    assert_eq!(bench.cenote(&["zfs", "list", "-H", "-t", "snapshot"]), "");
    // The longest of all is 255 bytes.
    let most = 255 - inner.len() - 1;
    bench.cenote(&["zfs", "snapshot", "-r", &format!("tank/a@{}", "s".repeat(most))]);

    let said = bench.refused(&["zfs", "rename", "tank/a", "tank/ab"]);
    assert_eq!(said, "cannot rename 'tank/a': dataset name is too long\n");
    bench.cenote(&["zfs", "rename", "tank/a", "tank/b"]);

    let deep = format!("tank{}", "/d".repeat(50));
    let said = bench.refused(&["zfs", "create", "-p", &deep]);
    assert_eq!(said, format!("cannot create '{deep}': maximum name nesting depth exceeded\n"));
    bench.cenote(&["zfs", "create", "-p", deep.strip_suffix("/d").unwrap()]);
    let said = bench.refused(&["zfs", "rename", "tank/d", "tank/b/d"]);
    assert_eq!(said, "cannot rename 'tank/d': maximum name nesting depth exceeded\n");
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}
