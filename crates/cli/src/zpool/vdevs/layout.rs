//! The layout a pool would have: what `zpool create -n` and `zpool add -n` print.
//!
//! Invariant: classes come in the order of OpenZFS: data, dedup, special, logs, cache, spares.

use cenote_control::plan::{VdevPlan, VdevPlanKind};
use cenote_control::report::{VdevClass, VdevReport};
use cenote_control::text::vdev_name::{self, Naming};

const CLASSES: [(VdevClass, &str); 5] = [
    (VdevClass::Dedup, "dedup"),
    (VdevClass::Special, "special"),
    (VdevClass::Log, "logs"),
    (VdevClass::Cache, "cache"),
    (VdevClass::Spare, "spares"),
];

/// One device with what is below it, as it is shown.
struct Row {
    class: VdevClass,
    name: String,
    children: Vec<Row>,
}

fn row(vdev: &VdevPlan, naming: Naming) -> Row {
    let mut name = vdev.label();
    if vdev.kind == VdevPlanKind::Disk && !naming.paths {
        name = vdev_name::without_directory(&name).to_owned();
    }
    let children = vdev.children.iter().map(|child| row(child, naming)).collect();
    Row { class: vdev.class, name, children }
}

fn present(vdev: &VdevReport, class: VdevClass, naming: Naming) -> Row {
    let children = vdev.children.iter().map(|child| present(child, class, naming)).collect();
    Row { class, name: vdev_name::name(vdev, naming), children }
}

fn print(rows: &[Row], class: VdevClass, out: &mut String) {
    fn one(row: &Row, depth: usize, out: &mut String) {
        out.push_str(&format!("\t{}{}\n", " ".repeat(depth), row.name));
        row.children.iter().for_each(|child| one(child, depth + 2, out));
    }
    rows.iter().filter(|row| row.class == class).for_each(|row| one(row, 2, out));
}

fn all(pool: &str, rows: &[Row]) -> String {
    let mut out = format!("\n\t{pool}\n");
    print(rows, VdevClass::Normal, &mut out);
    for (class, heading) in CLASSES {
        if rows.iter().any(|row| row.class == class) {
            out.push_str(&format!("\t{heading}\n"));
            print(rows, class, &mut out);
        }
    }
    out
}

/// What `zpool create -n` prints.
pub fn created(pool: &str, plan: &[VdevPlan]) -> String {
    let rows: Vec<Row> = plan.iter().map(|vdev| row(vdev, Naming::default())).collect();
    format!("would create '{pool}' with the following layout:\n{}", all(pool, &rows))
}

/// What `zpool add -n` prints.
pub fn updated(
    pool: &str,
    root: &VdevReport,
    caches: &[VdevReport],
    spares: &[VdevReport],
    plan: &[VdevPlan],
    naming: Naming,
) -> String {
    let tops = root.children.iter().filter(|vdev| vdev_name::is_shown(vdev));
    let mut rows: Vec<Row> = tops.map(|vdev| present(vdev, vdev.class, naming)).collect();
    rows.extend(caches.iter().map(|vdev| present(vdev, VdevClass::Cache, naming)));
    rows.extend(spares.iter().map(|vdev| present(vdev, VdevClass::Spare, naming)));
    rows.extend(plan.iter().map(|vdev| row(vdev, naming)));
    format!("would update '{pool}' to the following configuration:\n{}", all(pool, &rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded from OpenZFS 2.1.11 in a virtual machine.
    #[test]
    fn layouts_look_like_those_of_openzfs() {
        let leaf = |path: &str, class| VdevPlan {
            path: Some(path.to_owned()),
            class,
            ..VdevPlan::default()
        };
        let mirror = |paths: [&str; 2], class| VdevPlan {
            kind: VdevPlanKind::Mirror,
            class,
            children: paths.iter().map(|path| leaf(path, class)).collect(),
            ..VdevPlan::default()
        };
        let plan = [
            mirror(["/d/0", "/d/1"], VdevClass::Normal),
            mirror(["/d/2", "/d/3"], VdevClass::Special),
            leaf("/d/4", VdevClass::Log),
            leaf("/d/5", VdevClass::Cache),
            leaf("/d/6", VdevClass::Spare),
            mirror(["/d/7", "/d/8"], VdevClass::Dedup),
        ];
        let expected = "would create 'tank' with the following layout:\n\n\ttank\n\t  mirror\n\t    \
                        /d/0\n\t    /d/1\n\tdedup\n\t  mirror\n\t    /d/7\n\t    \
                        /d/8\n\tspecial\n\t  mirror\n\t    /d/2\n\t    /d/3\n\tlogs\n\t  \
                        /d/4\n\tcache\n\t  /d/5\n\tspares\n\t  /d/6\n";
        assert_eq!(created("tank", &plan), expected);
    }
}
