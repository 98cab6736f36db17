//! `cenote ls | cat | cp | tree`: files straight from devices, without mounting and without root.
//!
//! Invariant: what could not be read is said on standard error and in the exit code (1).

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use cenote_engine::dataset::{DatasetKind, Listed, PropertyReader, Value};
use cenote_engine::pool::Pool;
use cenote_engine::{Error, ErrorKind};
use cenote_posix::tree::{Attributes, Tree};
use cenote_posix::{Filesystem, Volume};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use super::below::{Below, inside};
use super::copy::{CopyOptions, CopyReport, copy, copy_below};
use super::target::{SourceOptions, Target};
use super::walk::{self, Step};

/// Bytes of a file or volume read at a time.
const CHUNK: usize = 1 << 20;

/// `cenote ls`
#[derive(Args, Debug)]
pub struct ListArguments {
    #[command(flatten)]
    source: SourceOptions,
    /// Show modes, owners, sizes and times
    #[arg(short = 'l', long)]
    long: bool,
    /// What to list: POOL/DATASET[@SNAPSHOT]:/PATH
    target: Target,
}

/// `cenote tree`
#[derive(Args, Debug)]
pub struct TreeArguments {
    #[command(flatten)]
    source: SourceOptions,
    /// Where to start: POOL/DATASET[@SNAPSHOT]:/PATH
    target: Target,
}

/// `cenote cat`
#[derive(Args, Debug)]
pub struct CatArguments {
    #[command(flatten)]
    source: SourceOptions,
    /// Files (POOL/DATASET[@SNAPSHOT]:/PATH) or volumes (POOL/VOLUME)
    #[arg(required = true)]
    targets: Vec<Target>,
}

/// `cenote cp`
#[derive(Args, Debug)]
pub struct CopyArguments {
    #[command(flatten)]
    source: SourceOptions,
    /// Copy the datasets below too, where they would be mounted
    #[arg(short = 'r', long)]
    recursive: bool,
    /// Salvage: keep what verifies of damaged files, list what does not, go on
    #[arg(long)]
    skip_errors: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// Show no progress
    #[arg(short = 'q', long)]
    quiet: bool,
    /// What to copy: POOL/DATASET[@SNAPSHOT]:/PATH
    target: Target,
    /// Where to copy it
    to: PathBuf,
}

fn finish(result: Result<bool, Error>) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cenote: {error}");
            ExitCode::FAILURE
        }
    }
}

fn output(error: io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("output: {error}"))
}

fn file_error(path: &str) -> impl Fn(cenote_posix::tree::Errno) -> Error {
    move |error| Error::new(ErrorKind::Io, format!("{path}: {}", error.reason))
}

/// Runs `cenote ls`.
pub fn list(arguments: &ListArguments) -> ExitCode {
    finish(try_list(arguments))
}

fn try_list(arguments: &ListArguments) -> Result<bool, Error> {
    let target = &arguments.target;
    let pool = arguments.source.open(target.pool())?;
    let files = target.filesystem(&pool)?;
    let node = walk::resolve(&files, &target.path).map_err(file_error(&target.path))?;
    let attributes = files.attributes(node).map_err(file_error(&target.path))?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    if !walk::is_directory(&attributes) {
        print(&mut out, &files, &attributes, target.path.as_bytes(), arguments.long)
            .map_err(output)?;
        return Ok(true);
    }
    let mut fine = true;
    for (name, _) in walk::list(&files, node).map_err(file_error(&target.path))? {
        match files.lookup(node, &name) {
            Ok(attributes) => {
                print(&mut out, &files, &attributes, &name, arguments.long).map_err(output)?;
            }
            Err(error) => {
                eprintln!("cenote: {}: {}", String::from_utf8_lossy(&name), error.reason);
                fine = false;
            }
        }
    }
    out.flush().map_err(output)?;
    Ok(fine)
}

/// One line of a listing, as `ls` or `ls -l` prints it (times in seconds since 1970).
fn print(
    out: &mut impl Write,
    files: &Filesystem,
    attributes: &Attributes,
    name: &[u8],
    long: bool,
) -> io::Result<()> {
    if long {
        let kind = match attributes.mode >> 12 & 0xf {
            1 => 'p',
            2 => 'c',
            4 => 'd',
            6 => 'b',
            10 => 'l',
            12 => 's',
            _ => '-',
        };
        let bits: String = (0..9)
            .map(|bit| {
                let set = attributes.mode >> (8 - bit) & 1 == 1;
                if set { ['r', 'w', 'x'][bit % 3] } else { '-' }
            })
            .collect();
        write!(
            out,
            "{kind}{bits} {:>3} {:>5} {:>5} {:>12} {}.{:09} ",
            attributes.links,
            attributes.uid,
            attributes.gid,
            attributes.size,
            attributes.modified.seconds,
            attributes.modified.nanoseconds
        )?;
    }
    out.write_all(name)?;
    if let (true, Ok(link)) = (long, files.read_link(attributes.node)) {
        out.write_all(b" -> ")?;
        out.write_all(&link)?;
    }
    out.write_all(b"\n")
}

/// Runs `cenote tree`.
pub fn tree(arguments: &TreeArguments) -> ExitCode {
    finish(try_tree(arguments))
}

fn try_tree(arguments: &TreeArguments) -> Result<bool, Error> {
    let target = &arguments.target;
    let pool = arguments.source.open(target.pool())?;
    let files = target.filesystem(&pool)?;
    let node = walk::resolve(&files, &target.path).map_err(file_error(&target.path))?;
    let mut out = io::BufWriter::new(io::stdout().lock());
    let mut fine = true;
    let mut count = 0_u64;
    walk::walk(&files, node, &mut |step| match step {
        Step::Entry { path, attributes } => {
            count += 1;
            let depth = path.components().count().saturating_sub(1);
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let mark = if walk::is_directory(attributes) { "/" } else { "" };
            writeln!(out, "{}{name}{mark}", "  ".repeat(depth)).map(|()| true)
        }
        Step::Unreadable { path, error } => {
            fine = false;
            eprintln!("cenote: {}: {}", path.display(), error.reason);
            Ok(true)
        }
    })
    .map_err(output)?;
    writeln!(out, "{count} entries").map_err(output)?;
    out.flush().map_err(output)?;
    Ok(fine)
}

/// Runs `cenote cat`.
pub fn cat(arguments: &CatArguments) -> ExitCode {
    finish(try_cat(arguments))
}

fn try_cat(arguments: &CatArguments) -> Result<bool, Error> {
    let mut out = io::stdout().lock();
    for target in &arguments.targets {
        let pool = arguments.source.open(target.pool())?;
        let dataset = target.dataset(&pool)?;
        if pool.catalog().kind(&dataset)? == DatasetKind::Volume {
            let objects = pool.catalog().object_set(&dataset, &**pool.keys())?;
            let volume = Volume::open(&objects).map_err(file_error(&target.dataset))?;
            let read = |at: u64, len: usize| volume.read_at(at, len);
            pour(&mut out, volume.size(), read, &target.dataset)?;
            continue;
        }
        let files = target.filesystem(&pool)?;
        let node = walk::resolve(&files, &target.path).map_err(file_error(&target.path))?;
        let size = files.attributes(node).map_err(file_error(&target.path))?.size;
        pour(&mut out, size, |at, len| files.read(node, at, len), &target.path)?;
    }
    out.flush().map_err(output)?;
    Ok(true)
}

fn pour(
    out: &mut impl Write,
    size: u64,
    read: impl Fn(u64, usize) -> cenote_posix::tree::Result<cenote_posix::tree::Pieces>,
    name: &str,
) -> Result<(), Error> {
    let mut at = 0;
    while at < size {
        let len = usize::try_from(size - at).unwrap_or(CHUNK).min(CHUNK);
        for piece in read(at, len).map_err(file_error(name))? {
            out.write_all(&piece).map_err(output)?;
        }
        at += len as u64;
    }
    Ok(())
}

/// Runs `cenote cp`.
pub fn copy_out(arguments: &CopyArguments) -> ExitCode {
    finish(try_copy(arguments))
}

fn try_copy(arguments: &CopyArguments) -> Result<bool, Error> {
    let target = &arguments.target;
    let pool = arguments.source.open(target.pool())?;
    let options = CopyOptions { skip_errors: arguments.skip_errors };
    let mut jobs = vec![(target.clone(), PathBuf::new())];
    if arguments.recursive {
        jobs.extend(below(&pool, target)?);
    }
    let bar = if arguments.quiet || arguments.json { ProgressBar::hidden() } else { bar(&pool) };
    let mut total = CopyReport::default();
    // A dataset's root replaces the directory it is mounted on, so those above come first.
    for (job, inside) in &jobs {
        let one = copy_one(&pool, job, (&arguments.to, inside), options, &bar, &total)?;
        total.entries += one.entries;
        total.bytes += one.bytes;
        total.losses.extend(one.losses.into_iter().map(|mut loss| {
            loss.path = inside.join(&loss.path).display().to_string();
            loss
        }));
    }
    bar.finish_and_clear();
    if arguments.json {
        let text = serde_json::to_string_pretty(&total).unwrap_or_default();
        println!("{text}");
    } else {
        for loss in &total.losses {
            match loss.range {
                Some((from, to)) => {
                    eprintln!("cenote: {}: bytes {from} to {to}: {}", loss.path, loss.reason);
                }
                None => eprintln!("cenote: {}: {}", loss.path, loss.reason),
            }
        }
        let lost = total.losses.len();
        eprintln!("{} entries, {} bytes copied, {lost} problems", total.entries, total.bytes);
    }
    Ok(total.losses.is_empty())
}

fn copy_one(
    pool: &Arc<Pool>,
    target: &Target,
    (to, inside): (&Path, &Path),
    options: CopyOptions,
    bar: &ProgressBar,
    before: &CopyReport,
) -> Result<CopyReport, Error> {
    let files = target.filesystem(pool)?;
    let node = walk::resolve(&files, &target.path).map_err(file_error(&target.path))?;
    let mut progress = |_, bytes| bar.set_position(before.bytes + bytes);
    let copied = match inside.as_os_str().is_empty() {
        true => copy(&files, node, to, options, &mut progress),
        false => Below::make(to).and_then(|mut below| {
            copy_below(&files, node, (&mut below, inside), options, &mut progress)
        }),
    };
    copied.map_err(|error| {
        Error::new(ErrorKind::Io, format!("{}: {error}", to.join(inside).display()))
    })
}

fn bar(pool: &Arc<Pool>) -> ProgressBar {
    let length = pool.space().map(|space| space.allocated()).unwrap_or(0);
    let bar = ProgressBar::new(length);
    let style = ProgressStyle::with_template("{bytes} copied, {bytes_per_sec} {elapsed_precise}");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// The filesystems below `target` with the directories they would be mounted on inside its own.
fn below(pool: &Arc<Pool>, target: &Target) -> Result<Vec<(Target, PathBuf)>, Error> {
    let catalog = pool.catalog();
    let top = target.dataset(pool)?;
    let capacity = pool.capacity();
    let reader = PropertyReader::new(&catalog, capacity, &**pool.keys(), "");
    let mountpoint = |dataset: &cenote_engine::dataset::Dataset| -> Result<Option<String>, Error> {
        let listed = Listed::Dataset(dataset.clone());
        Ok(match reader.get(&listed, "mountpoint")?.map(|property| property.value) {
            Some(Value::Text(path)) if path.starts_with('/') => Some(path),
            _ => None,
        })
    };
    let base = mountpoint(&top)?.unwrap_or_else(|| format!("/{}", top.name));
    let mut jobs = Vec::new();
    for directory in catalog.walk(&top.directory)? {
        if directory.id == top.directory.id || directory.phys.head_dataset.0 == 0 {
            continue;
        }
        let head = catalog.head(&directory)?;
        if catalog.is_foreign(&head)? || catalog.kind(&head)? != DatasetKind::Filesystem {
            continue;
        }
        let listed = Listed::Dataset(head.clone());
        let value = |name: &str| -> Result<String, Error> {
            Ok(reader.get(&listed, name)?.map(|value| value.parsable()).unwrap_or_default())
        };
        if value("redacted")? == "1" || value("canmount")? != "on" {
            eprintln!("cenote: {} is not mounted by itself: name it to copy it", head.name);
            continue;
        }
        let Some(path) = mountpoint(&head)? else { continue };
        let Some(inside) = inside(&base, &path) else {
            eprintln!("cenote: {} is mounted on {path}, outside {base}: not copied", head.name);
            continue;
        };
        let dataset = head.name.to_string();
        jobs.push((Target { dataset, path: "/".into() }, inside.to_owned()));
    }
    Ok(jobs)
}
