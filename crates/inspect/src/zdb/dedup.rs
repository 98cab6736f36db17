//! `zdb -D`: what deduplication and cloning save.
//!
//! Chapter 07. Invariant: sums come from the statistics of the tables, not from walking the pool.

use std::sync::Arc;

use cenote_control::text::number;
use cenote_engine::Error;
use cenote_engine::pool::Pool;
use serde_json::json;

use super::sink::Sink;

/// Totals of all dedup tables, and of cloned blocks.
pub fn show(pool: &Arc<Pool>, sink: &mut Sink) -> Result<(), Error> {
    let space = pool.space()?;
    let dedup = &space.dedup;
    if dedup.blocks == 0 {
        sink.line("All DDTs are empty");
    } else {
        sink.line(format_args!(
            "\n{:<12}{:>10}{:>10}{:>10}{:>10}",
            "", "blocks", "LSIZE", "PSIZE", "DSIZE"
        ));
        let mut row = |name: &str, blocks: u64, sizes: [u64; 3]| {
            let [logical, physical, allocated] = sizes.map(number::plain);
            sink.line(format_args!(
                "{name:<12}{blocks:>10}{logical:>10}{physical:>10}{allocated:>10}"
            ));
        };
        row("allocated", dedup.blocks, [dedup.lsize, dedup.psize, dedup.dsize]);
        let referenced = [dedup.referenced_lsize, dedup.referenced_psize, dedup.referenced_dsize];
        row("referenced", dedup.referenced_blocks, referenced);
        let ratio = |whole: u64, part: u64| whole as f64 / part.max(1) as f64;
        sink.line(format_args!(
            "\ndedup = {:.2}, compress = {:.2}, table = {} on disk",
            ratio(dedup.referenced_dsize, dedup.dsize),
            ratio(dedup.referenced_lsize, dedup.referenced_psize),
            number::plain(space.dedup_tables.disk_bytes)
        ));
    }
    if space.clone_used > 0 {
        let (used, saved) = (number::plain(space.clone_used), number::plain(space.clone_saved));
        sink.line(format_args!("cloned blocks: {used} stored, {saved} saved"));
    }
    sink.json(
        "dedup",
        json!({
            "blocks": dedup.blocks,
            "logical": dedup.lsize,
            "physical": dedup.psize,
            "allocated": dedup.dsize,
            "referenced_blocks": dedup.referenced_blocks,
            "referenced_logical": dedup.referenced_lsize,
            "referenced_physical": dedup.referenced_psize,
            "referenced_allocated": dedup.referenced_dsize,
            "table_bytes": space.dedup_tables.disk_bytes,
            "clone_used": space.clone_used,
            "clone_saved": space.clone_saved,
        }),
    );
    Ok(())
}
