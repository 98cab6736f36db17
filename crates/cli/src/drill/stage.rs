//! Where a scenario is played: its story is told, commands are typed, or run as they should be, and what came
//! of it is checked.
//!
//! Invariant: a scenario ends well only if every check was true, whoever typed what.

use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::path::PathBuf;

use cenote_control::report::{PoolReport, VdevReport, VdevState};
use cenote_control::terminal;

use super::bench::Bench;
use super::breaking::Numbers;

/// Bytes of a file.
const FILE: usize = 512 << 10;

/// A story to be played.
pub struct Scenario {
    /// By which it is called.
    pub name: &'static str,
    /// One line.
    pub title: &'static str,
    /// How many disks it needs.
    pub disks: usize,
    /// Bytes of each.
    pub size: u64,
    /// What happens.
    pub play: fn(&mut Stage) -> Result<(), String>,
}

/// See the module.
pub struct Stage {
    bench: Bench,
    auto: bool,
    /// The seeds of files, by their names below the mounts.
    files: BTreeMap<String, u64>,
    failed: bool,
}

impl Stage {
    /// A stage; `auto`: nobody is asked.
    pub fn new(bench: Bench, auto: bool) -> Self {
        Self { bench, auto, files: BTreeMap::new(), failed: false }
    }

    /// The directory.
    pub fn bench(&self) -> &Bench {
        &self.bench
    }

    /// Plays a scenario; whether it ended well.
    ///
    /// # Errors
    /// If it could not go on, or somebody wanted no more.
    pub fn play(&mut self, scenario: &Scenario) -> Result<bool, String> {
        let line = "=".repeat(scenario.title.chars().count());
        terminal::out(&format!("\n{}\n{line}\n", scenario.title));
        if !self.auto {
            self.tell(
                "Type the commands that are shown, or others; an empty line runs the next one as it \
                 is shown, 'quit' ends. $D are the disks.",
            );
            let at = self.bench.directory().display();
            terminal::out(&format!(
                "If this is interrupted, 'cenote drill -C {at} clean' takes away what is left.\n"
            ));
        }
        (scenario.play)(self)?;
        let how = if self.failed { "did not end as it should" } else { "ended well" };
        terminal::out(&format!("\n'{}' {how}.\n", scenario.name));
        Ok(!self.failed)
    }

    /// Tells of the story.
    pub fn tell(&self, text: &str) {
        let mut line = String::new();
        let mut out = "\n".to_owned();
        for word in text.split_whitespace() {
            if line.len() + word.len() > 90 {
                out.push_str(line.trim_end());
                out.push('\n');
                line.clear();
            }
            line.push_str(word);
            line.push(' ');
        }
        out.push_str(line.trim_end());
        terminal::out(&(out + "\n"));
    }

    /// Has this typed; what it said.
    ///
    /// # Errors
    /// If somebody wants no more, or it cannot be run.
    pub fn types(&mut self, line: &str) -> Result<String, String> {
        terminal::out(&format!("\n  $ {line}\n"));
        let mut said = String::new();
        if self.auto {
            said = self.run(line)?;
        } else {
            loop {
                terminal::out("drill> ");
                let mut typed = String::new();
                let read = std::io::stdin().lock().read_line(&mut typed);
                let count = read.map_err(|error| format!("standard input: {error}"))?;
                match typed.trim() {
                    _ if count == 0 => return Err("ended early".to_owned()),
                    "quit" | "exit" => return Err("ended early".to_owned()),
                    "" => {
                        said.push_str(&self.run(line)?);
                        break;
                    }
                    own => {
                        said.push_str(&self.run(own)?);
                        // Who types another form of it has done it, too.
                        if own.split_whitespace().take(2).eq(line.split_whitespace().take(2)) {
                            break;
                        }
                    }
                }
            }
        }
        Ok(said)
    }

    fn run(&self, line: &str) -> Result<String, String> {
        let output = self.bench.output(line)?;
        let mut said = String::from_utf8_lossy(&output.stdout).into_owned();
        said.push_str(&String::from_utf8_lossy(&output.stderr));
        let disks = format!("{}/disks", self.bench.directory().display());
        for line in said.lines() {
            terminal::out(&format!("    {}\n", as_typed(line, &disks)));
        }
        if !output.status.success() {
            terminal::out(&format!("    ({})\n", output.status));
        }
        Ok(said)
    }

    /// Something happens that nobody types.
    ///
    /// # Errors
    /// If it does not.
    pub fn happens(
        &self,
        what: &str,
        done: impl FnOnce(&Bench) -> Result<(), String>,
    ) -> Result<(), String> {
        terminal::out(&format!("\n  *** {what}\n"));
        done(&self.bench)
    }

    /// Checks something.
    pub fn check(&mut self, what: &str, is: bool) {
        self.failed |= !is;
        terminal::out(&format!("  [{}] {what}\n", if is { "ok" } else { "NOT SO" }));
    }

    /// Waits until the pool is like that, and checks that it became so.
    pub fn becomes(&mut self, what: &str, is: impl Fn(&PoolReport) -> bool) {
        let is = self.bench.wait("test", is);
        self.check(what, is);
    }

    /// Writes so many files below a filesystem.
    ///
    /// # Errors
    /// What the filesystem says.
    pub fn fill(&mut self, filesystem: &str, count: usize) -> Result<(), String> {
        for _ in 0..count {
            self.write(filesystem, FILE, false)?;
        }
        Ok(())
    }

    /// Writes one file; `sync`: what is written is to be on the disks when this returns.
    ///
    /// # Errors
    /// What the filesystem says.
    pub fn write(&mut self, filesystem: &str, size: usize, sync: bool) -> Result<(), String> {
        let seed = self.files.len() as u64 + 1;
        let name = format!("{filesystem}/file{seed:03}");
        let path = self.bench.file(&name);
        let failed = |error: std::io::Error| {
            format!("{}: {error} (drills mount their pools, which needs /dev/fuse)", path.display())
        };
        let mut file = std::fs::File::create(&path).map_err(failed)?;
        file.write_all(&Numbers(seed).bytes(size)).map_err(failed)?;
        if sync {
            file.sync_all().map_err(failed)?;
        }
        self.files.insert(name, seed);
        Ok(())
    }

    /// Reads the files below a filesystem again: how many there are, and how many are not what they were.
    pub fn lost(&self, filesystem: &str) -> (usize, usize) {
        let below = format!("{filesystem}/");
        let own = self.files.iter().filter(|(name, _)| name.starts_with(&below));
        let is_lost = |(name, seed): &(&String, &u64)| {
            let path: PathBuf = self.bench.file(name);
            match std::fs::read(path) {
                Ok(bytes) => bytes.is_empty() || bytes != Numbers(**seed).bytes(bytes.len()),
                Err(_) => true,
            }
        };
        (own.clone().count(), own.filter(is_lost).count())
    }

    /// Checks that every file below a filesystem is what it was.
    pub fn all_there(&mut self, filesystem: &str) {
        let (count, lost) = self.lost(filesystem);
        self.check(&format!("all {count} files are what they were"), lost == 0 && count > 0);
    }
}

/// A line with paths as they were typed, its columns where they were.
fn as_typed(line: &str, disks: &str) -> String {
    let Some((before, after)) = line.split_once(disks) else { return line.to_owned() };
    let name = after.find(char::is_whitespace).unwrap_or(after.len());
    let (name, rest) = after.split_at(name);
    let is_column = rest.starts_with("  ");
    let gap = if is_column { disks.len().saturating_sub(2) } else { 0 };
    format!("{before}$D{name}{:gap$}{}", "", as_typed(rest, disks))
}

/// A device of a report, by its path or name.
pub fn device<'a>(report: &'a PoolReport, name: &str) -> Option<&'a VdevReport> {
    let mut rest = vec![&report.root];
    rest.extend(&report.spares);
    while let Some(node) = rest.pop() {
        let path = node.path.as_deref().unwrap_or_default();
        if path.ends_with(&format!("/{name}")) || node.name == name {
            return Some(node);
        }
        rest.extend(&node.children);
    }
    None
}

/// Whether the pool and all in it are well.
pub fn is_well(report: &PoolReport) -> bool {
    let mut rest = vec![&report.root];
    while let Some(node) = rest.pop() {
        if node.state != VdevState::Online {
            return false;
        }
        rest.extend(&node.children);
    }
    !report.suspended
}
