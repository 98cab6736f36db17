//! Mounts a tree held in memory, for measuring the FUSE door alone:
//! `memory_mount DIRECTORY [MEBIBYTES [FILES [THREADS [SPIN_MICROSECONDS [WRITE]]]]]`.
//! WRITE: 1 lets it be changed, 2 lets the kernel collect writes, too.
//! Ends when the directory is unmounted.

#[path = "../tests/memory/mod.rs"]
mod memory;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cenote_serve::fuse::{MountOptions, mount};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or("name a directory to mount on")?;
    let mut number = |default: usize| arguments.next().map_or(Ok(default), |word| word.parse());
    let (mebibytes, files, threads, spin, write) =
        (number(1024)?, number(100_000)?, number(2)?, number(20)?, number(0)?);
    let mut tree = memory::MemoryTree::new();
    let mut data = vec![0u8; mebibytes << 20];
    let mut state = 1u64;
    for word in data.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    tree.file(memory::ROOT_INO, "big", data);
    let many = tree.directory(memory::ROOT_INO, "many");
    for number in 0..files {
        tree.file(many, &format!("file-{number:06}"), format!("{number}\n"));
    }
    let mut options = MountOptions::new(directory, "memory");
    options.threads = threads;
    options.spin = Duration::from_micros(spin as u64);
    tree.writable = write > 0;
    options.write_back = write > 1;
    let tree = Arc::new(tree);
    let mounted = mount(tree.clone(), options)?;
    println!("mounted at {}", mounted.mountpoint().display());
    mounted.wait();
    let count = |counter: &AtomicUsize| counter.load(Ordering::Relaxed);
    println!(
        "{} lookups, {} attributes, {} reads, {} writes, {} set, {} xattrs, {} syncs, {} forgotten",
        count(&tree.lookups),
        count(&tree.stats),
        count(&tree.reads),
        count(&tree.writes),
        count(&tree.sets),
        count(&tree.xattr_reads),
        count(&tree.syncs),
        count(&tree.forgets),
    );
    Ok(())
}
