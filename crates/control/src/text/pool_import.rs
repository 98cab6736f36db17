//! `zpool import` without a pool name: what could be imported.
//!
//! Invariant: what this prints for real pools equals what OpenZFS printed for them.

use super::table::pad;
use super::{advice, time};
use crate::report::{GoneBack, ImportReport, ImportVdev};

/// One importable pool.
pub fn render(pool: &ImportReport) -> String {
    let mut out =
        format!("   pool: {}\n     id: {}\n  state: {}", pool.name, pool.guid, pool.state);
    if pool.destroyed {
        out.push_str(" (DESTROYED)");
    }
    out.push('\n');
    if let Some(status) = &pool.status {
        out.push_str(&format!("status: {}\n", continued(status)));
    }
    out.push_str(&format!(" action: {}\n", continued(&pool.action)));
    if let Some(comment) = &pool.comment {
        out.push_str(&format!("comment: {comment}\n"));
    }
    if let Some(note) = &pool.note {
        out.push_str(&format!("\t{}\n", continued(note)));
    }
    if let Some(article) = &pool.article {
        out.push_str(&format!("   see: {}\n", advice::article_address(article)));
    }
    out.push_str(" config:\n\n");
    out.push_str(&config(pool));
    if pool.incomplete {
        out.push_str(
            "\n\tAdditional devices are known to be part of this pool, though their\n\texact \
             configuration cannot be determined.\n",
        );
    }
    out
}

/// Puts a tab before every line but the first, unless it has one.
fn continued(text: &str) -> String {
    let mut lines = text.lines();
    let mut out = lines.next().unwrap_or("").to_owned();
    for line in lines {
        out.push_str("\n\t");
        out.push_str(line.trim_start_matches('\t'));
    }
    out
}

fn widest(vdev: &ImportVdev, depth: usize) -> usize {
    let below = vdev.children.iter().map(|child| widest(child, depth + 2)).max();
    (vdev.name.len() + depth).max(below.unwrap_or(0))
}

fn config(pool: &ImportReport) -> String {
    let sections = [("dedup", &pool.dedup), ("special", &pool.special), ("logs", &pool.logs)];
    let classed = sections.iter().flat_map(|(_, devices)| devices.iter());
    let named = pool.caches.iter().chain(&pool.spares).map(|name| name.len() + 2);
    let width = classed
        .map(|vdev| widest(vdev, 2))
        .chain(named)
        .fold(widest(&pool.root, 0).max(10), usize::max);
    let mut out = String::new();
    device(&mut out, &pool.root, 0, width);
    for (heading, names) in [("cache", &pool.caches), ("spares", &pool.spares)] {
        if !names.is_empty() {
            out.push_str(&format!("\t{heading}\n"));
            names.iter().for_each(|name| out.push_str(&format!("\t  {name}\n")));
        }
    }
    for (heading, devices) in sections {
        if !devices.is_empty() {
            out.push_str(&format!("\t{heading}\t\n"));
            devices.iter().for_each(|vdev| device(&mut out, vdev, 2, width));
        }
    }
    out
}

fn device(out: &mut String, vdev: &ImportVdev, depth: usize, width: usize) {
    let name = pad(&vdev.name, width.saturating_sub(depth), false);
    out.push_str(&format!("\t{}{name}  {}", " ".repeat(depth), vdev.state));
    if let Some(reason) = &vdev.reason {
        out.push_str(&format!("  {reason}"));
    }
    out.push('\n');
    vdev.children.iter().for_each(|child| device(out, child, depth + 2, width));
}

/// What `zpool import -F` says of a pool that went back.
pub fn gone_back(name: &str, back: GoneBack) -> String {
    let when = format!("Pool {name} returned to its state as of {}.", time::long(back.as_of));
    let (count, unit) = match back.lost {
        0 => return when,
        lost @ 1..=120 => (lost, "seconds"),
        lost => (lost.saturating_add(30) / 60, "minutes"),
    };
    format!("{when}\nDiscarded approximately {count} {unit} of transactions.")
}

/// What `zpool import NAME` says when another host used the pool last.
pub fn used_elsewhere(name: &str, host: &str, id: u64, seconds: i64) -> String {
    format!(
        "cannot import '{name}': pool was previously in use from another system.\nLast accessed \
         by {host} (hostid={id:x}) at {}\nThe pool can be imported, use 'zpool import -f' to \
         import the pool.",
        time::long(seconds)
    )
}
