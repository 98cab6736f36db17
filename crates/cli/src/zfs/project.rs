//! `zfs project`: what files belong to which project.
//!
//! Invariant: works on any filesystem that knows projects; a file that goes away meanwhile is passed
//! over inside a directory, and named when it was asked for.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::fs::OFlags;

use super::file_project::{self, FileProject};
use crate::getopt::{Parsed, Spec};
use crate::usage::Tool;
use cenote_control::terminal;

const SPEC: Spec = Spec { letters: "0Ccdkp:rs", long: &[] };
/// No project has this number.
const NO_PROJECT: u32 = u32::MAX;

/// What is done with each file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    List,
    Check,
    Clear,
    Set,
}

#[derive(Clone, Copy, Debug)]
struct Options {
    work: Work,
    /// The project to be set or to be found; `None`: that of the directory named.
    project: Option<u32>,
    directory_only: bool,
    recursive: bool,
    keep_project: bool,
    set_flag: bool,
    /// Names end with a zero byte.
    zeros: bool,
}

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zfs.wrong("project", message);
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    let options = match options(&parsed) {
        Ok(options) => options,
        Err(message) => return wrong(&message),
    };
    if parsed.operands.is_empty() {
        return wrong("missing file or directory target(s)");
    }
    let mut well = true;
    for name in &parsed.operands {
        if let Err(message) = handle(Path::new(name), options) {
            terminal::complain(&message);
            well = false;
        }
    }
    ExitCode::from(u8::from(!well))
}

fn options(parsed: &Parsed) -> Result<Options, String> {
    let has = |letter| parsed.has(letter);
    let refuse = |words: &str| Err(words.to_owned());
    let project = match parsed.argument('p') {
        None => None,
        Some(text) => match text.parse::<u64>() {
            Err(_) => return refuse("invalid project ID"),
            Ok(id) if id >= u64::from(NO_PROJECT) => {
                return Err(format!("project ID must be less than {NO_PROJECT}"));
            }
            Ok(id) => u32::try_from(id).ok(),
        },
    };
    let sets = has('s') || (project.is_some() && !has('c'));
    let work = match (has('C'), has('c'), sets) {
        (true, true, _) | (_, true, true) | (true, _, true) => {
            return refuse("cannot specify '-C' '-c' '-s' together");
        }
        (true, ..) => Work::Clear,
        (_, true, _) => Work::Check,
        (.., true) => Work::Set,
        _ => Work::List,
    };
    // Of these two the last counts.
    let last = parsed.options.iter().rev().map(|(letter, _)| *letter);
    let depth = last.into_iter().find(|letter| matches!(letter, 'd' | 'r'));
    match work {
        Work::Clear if depth == Some('d') => refuse("'-d' is useless together with '-C'"),
        Work::Set if depth == Some('d') => {
            refuse("'-d' is useless for set project ID and/or inherit flag")
        }
        _ if has('k') && work != Work::Clear => refuse("'-k' is only valid together with '-C'"),
        _ if has('0') && work != Work::Check => refuse("'-0' is only valid together with '-c'"),
        Work::Clear if project.is_some() => refuse("'-p' is useless together with '-C'"),
        _ => Ok(Options {
            work,
            project,
            directory_only: depth == Some('d'),
            recursive: depth == Some('r'),
            keep_project: has('k'),
            set_flag: has('s'),
            zeros: has('0'),
        }),
    }
}

fn open(path: &Path) -> io::Result<File> {
    let flags = (OFlags::NOCTTY | OFlags::NONBLOCK).bits().cast_signed();
    File::options().read(true).custom_flags(flags).open(path)
}

fn project_of(path: &Path) -> Result<(File, FileProject), (io::Error, String)> {
    let name = path.display();
    let file = open(path).map_err(|error| {
        let words = format!("failed to open {name}: {}", terminal::words_of(&error));
        (error, words)
    })?;
    let project = file_project::project(&file).map_err(|error| {
        let words = format!("failed to get xattr for {name}: {}", terminal::words_of(&error));
        (error, words)
    })?;
    Ok((file, project))
}

fn handle(path: &Path, mut options: Options) -> Result<(), String> {
    let name = path.display();
    let meta = fs::metadata(path)
        .map_err(|error| format!("failed to stat {name}: {}", terminal::words_of(&error)))?;
    if !meta.is_file() && !meta.is_dir() {
        let words = "only support project quota on regular file or directory";
        return Err(words.to_owned());
    }
    if !meta.is_dir() {
        let refused = match options {
            Options { directory_only: true, .. } => Some("-d"),
            Options { recursive: true, .. } => Some("-r"),
            _ => None,
        };
        if let Some(option) = refused {
            return Err(format!("'{option}' option on non-dir target {name}"));
        }
    }
    if options.project.is_none() && matches!(options.work, Work::Check | Work::Set) {
        let (_, project) = project_of(path).map_err(|(_, words)| words)?;
        options.project = Some(project.id());
    }
    one(path, options).map_err(|(_, words)| words)?;
    let looks = matches!(options.work, Work::List | Work::Check);
    if !meta.is_dir() || options.directory_only || (!options.recursive && !looks) {
        return Ok(());
    }
    let mut directories = VecDeque::from([path.to_path_buf()]);
    while let Some(directory) = directories.pop_front() {
        inside(&directory, options, &mut directories)?;
    }
    Ok(())
}

fn inside(
    directory: &Path,
    options: Options,
    directories: &mut VecDeque<PathBuf>,
) -> Result<(), String> {
    let shown = directory.display();
    let gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let entries = match fs::read_dir(directory) {
        Err(error) if gone(&error) => return Ok(()),
        Err(error) => {
            return Err(format!("failed to opendir {shown}: {}", terminal::words_of(&error)));
        }
        Ok(entries) => entries,
    };
    for entry in entries {
        let failed =
            |error: io::Error| format!("failed to readdir {shown}: {}", terminal::words_of(&error));
        let entry = entry.map_err(failed)?;
        let kind = entry.file_type().map_err(failed)?;
        if !kind.is_dir() && !kind.is_file() {
            continue;
        }
        let path = entry.path();
        match one(&path, options) {
            Err((error, _)) if gone(&error) => continue,
            done => done.map_err(|(_, words)| words)?,
        }
        if kind.is_dir() && options.recursive {
            directories.push_back(path);
        }
    }
    Ok(())
}

fn one(path: &Path, options: Options) -> Result<(), (io::Error, String)> {
    let (file, project) = project_of(path)?;
    let name = path.display();
    let (id, inherited) = (project.id(), project.is_inherited());
    let expected = options.project.unwrap_or(0);
    let changed = match options.work {
        Work::List => {
            let flag = if inherited { 'P' } else { '-' };
            terminal::out(&format!("{id:5} {flag} {name}\n"));
            return Ok(());
        }
        Work::Check if id == expected && inherited => return Ok(()),
        Work::Check if options.zeros => {
            let mut bytes = path.as_os_str().as_bytes().to_vec();
            bytes.push(0);
            // Nobody reads any more if this fails.
            drop(io::stdout().lock().write_all(&bytes));
            return Ok(());
        }
        Work::Check => {
            if id != expected {
                let words = "project ID is not set properly";
                terminal::out(&format!("{name} - {words} ({id}/{expected})\n"));
            }
            if !inherited {
                terminal::out(&format!("{name} - project inherit flag is not set\n"));
            }
            return Ok(());
        }
        Work::Clear if !inherited && (options.keep_project || id == 0) => return Ok(()),
        Work::Clear => project.with(if options.keep_project { id } else { 0 }, false),
        Work::Set if id == expected && (!options.set_flag || inherited) => return Ok(()),
        Work::Set => project.with(expected, inherited || options.set_flag),
    };
    file_project::set_project(&file, &changed).map_err(|error| {
        let words = format!("failed to set xattr for {name}: {}", terminal::words_of(&error));
        (error, words)
    })
}
