//! Reads every block a pool references and reports the ones that do not verify.
//!
//! `verify [--facts] POOL PLACE...`: PLACE is a device or a directory of devices. Blocks of
//! encrypted datasets are verified as stored. With `--facts` every object and block pointer is
//! printed, one a line, for comparison with what `zdb -ddddd` prints. Invariant: reads only; each
//! block is read once a dataset that references it.

use std::collections::HashSet;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use cenote_device::Mode;
use cenote_engine::dataset::Dataset;
use cenote_engine::object::{Object, ObjectSet};
use cenote_engine::pool::assemble::assemble;
use cenote_engine::pool::discover::{FileOpener, Opener, ScanOptions, scan};
use cenote_engine::pool::{OpenOptions, Pool};
use cenote_engine::{Error, Result};
use cenote_format::{BlockPointer, blkptr};

/// Level-0 blocks read at once.
const BATCH: usize = 64;

/// What was seen.
#[derive(Default)]
struct Census {
    facts: bool,
    sets: u64,
    objects: u64,
    blocks: u64,
    bytes: u64,
    problems: u64,
    /// Stored blocks that verified already: first address and birth.
    seen: HashSet<(u32, u64, u64)>,
}

impl Census {
    fn problem(&mut self, place: &str, error: &Error) {
        self.problems += 1;
        if self.problems <= 20 {
            eprintln!("{place}: {error}");
        }
    }

    fn fact(&self, line: std::fmt::Arguments<'_>) {
        if self.facts {
            // A closed pipe ends the comparison, not the verification.
            let _ = writeln!(std::io::stdout(), "{line}");
        }
    }

    fn set(&mut self, name: &str, set: &ObjectSet) {
        self.sets += 1;
        self.object(name, &set.meta_object());
        let mut after = 0;
        loop {
            match set.next_object(after) {
                Ok(Some(id)) => {
                    after = id.0;
                    match set.object(id) {
                        Ok(object) => self.object(name, &object),
                        Err(error) => self.problem(&format!("{name} object {id}"), &error),
                    }
                }
                Ok(None) => return,
                Err(error) => return self.problem(&format!("{name} after object {after}"), &error),
            }
        }
    }

    fn object(&mut self, name: &str, object: &Object) {
        self.objects += 1;
        let (id, dnode) = (object.id(), object.dnode());
        self.fact(format_args!(
            "O {name} {id} {} {} {} {} {}",
            dnode.levels,
            1_u64 << dnode.indirect_shift.min(63),
            dnode.block_size(),
            (u64::from(dnode.extra_slots) + 1) * 512,
            dnode.max_block_id,
        ));
        let top = dnode.levels.saturating_sub(1);
        let pointers: Vec<(u64, BlockPointer)> = (0..).zip(dnode.pointers.to_vec()).collect();
        let place = format!("{name} object {id}");
        self.level(&place, object, top, &pointers);
        if let Some(spill) = dnode.spill {
            self.blocks(&place, object, 0, &[(0, spill)], true);
        }
    }

    /// Verifies blocks of `level` and what is below them.
    fn level(&mut self, place: &str, object: &Object, level: u8, pointers: &[(u64, BlockPointer)]) {
        for part in pointers.chunks(BATCH) {
            self.blocks(place, object, level, part, false);
        }
        if level == 0 {
            return;
        }
        for (id, bp) in pointers.iter().filter(|(_, bp)| !bp.is_hole()) {
            match object.set().io().pipe.read(bp, object.set().context()) {
                Ok(block) => {
                    let first = id * (block.len() / blkptr::SIZE) as u64;
                    let below: Vec<_> = (first..).zip(BlockPointer::decode_all(&block)).collect();
                    self.level(place, object, level - 1, &below);
                }
                Err(error) => self.problem(&format!("{place} level {level} block {id}"), &error),
            }
        }
    }

    fn blocks(
        &mut self,
        place: &str,
        object: &Object,
        level: u8,
        pointers: &[(u64, BlockPointer)],
        spill: bool,
    ) {
        let span = object.pointers_per_block().pow(u32::from(level));
        for (id, bp) in pointers.iter().filter(|(_, bp)| !bp.is_hole()) {
            let offset = id.saturating_mul(span).saturating_mul(object.block_size());
            let dvas: Vec<String> =
                bp.dvas().map(|d| format!("{}:{:x}:{:x}", d.vdev, d.offset, d.asize)).collect();
            let what = if spill { "S".into() } else { format!("{offset:x} L{level}") };
            self.fact(format_args!(
                "B {} {what} {} {:x}L/{:x}P",
                place.replace(" object", ""),
                if bp.is_embedded() { "EMBEDDED".into() } else { dvas.join(" ") },
                bp.lsize(),
                if bp.is_embedded() { 0 } else { bp.psize() },
            ));
        }
        let key = |bp: &BlockPointer| {
            bp.first_dva().map(|dva| (dva.vdev, dva.offset, bp.physical_birth().0))
        };
        let fresh: Vec<(u64, BlockPointer)> = pointers
            .iter()
            .filter(|(_, bp)| !bp.is_hole() && !bp.is_redacted())
            .filter(|(_, bp)| key(bp).is_none_or(|key| !self.seen.contains(&key)))
            .copied()
            .collect();
        let bps: Vec<BlockPointer> = fresh.iter().map(|(_, bp)| *bp).collect();
        let pipe = &object.set().io().pipe;
        let sealed = |bp: &BlockPointer| bp.is_encrypted() && level == 0;
        let answers = if bps.iter().any(sealed) {
            pipe.read_stored_many(&bps)
        } else {
            let context = object.set().context().clone();
            pipe.read_many(&bps, &cenote_engine::pipe::ReadContext { transient: true, ..context })
        };
        for ((id, bp), answer) in fresh.iter().zip(answers) {
            self.blocks += 1;
            self.bytes += if bp.is_embedded() { 0 } else { bp.psize() };
            match answer {
                Ok(_) => self.seen.extend(key(bp)),
                Err(error) => self.problem(&format!("{place} level {level} block {id}"), &error),
            }
        }
    }
}

fn datasets(pool: &Pool) -> Result<Vec<Dataset>> {
    let catalog = pool.catalog();
    let mut all = Vec::new();
    let root = catalog.root()?;
    let mut pending = vec![root];
    while let Some(directory) = pending.pop() {
        pending.extend(catalog.all_children(&directory)?);
        if let Ok(head) = catalog.head(&directory) {
            all.extend(catalog.snapshots(&head)?);
            all.push(head);
        }
    }
    Ok(all)
}

fn run(census: &mut Census, name: &str, places: Vec<PathBuf>) -> Result<()> {
    let opener: Arc<dyn Opener> = Arc::new(FileOpener { mode: Mode::ReadOnly });
    let pools = assemble(&scan(&opener, &ScanOptions::new(places)));
    let candidate = pools.iter().find(|pool| pool.name == name);
    let candidate = candidate.ok_or_else(|| Error::not_found(format!("no pool '{name}'")))?;
    let pool = Pool::open(candidate, &OpenOptions { missing_log: true, ..OpenOptions::default() })?;
    census.set("mos", &pool.mos());
    if let Err(error) = pool.space() {
        census.problem("space maps", &error);
    }
    for dataset in datasets(&pool)? {
        let name = dataset.name.to_string();
        match pool.catalog().sealed_object_set(&dataset) {
            Ok(set) => census.set(&name, &set),
            Err(error) => census.problem(&name, &error),
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    let mut census = Census::default();
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    words.retain(|word| {
        census.facts |= word == "--facts";
        word != "--facts"
    });
    if words.len() < 2 {
        eprintln!("usage: verify [--facts] POOL PLACE...");
        return ExitCode::from(2);
    }
    let places = words.split_off(1).into_iter().map(PathBuf::from).collect();
    if let Err(error) = run(&mut census, &words.concat(), places) {
        census.problem("pool", &error);
    }
    eprintln!(
        "{} object sets, {} objects, {} blocks, {} bytes, {} problems",
        census.sets, census.objects, census.blocks, census.bytes, census.problems
    );
    ExitCode::from(u8::from(census.problems > 0))
}
