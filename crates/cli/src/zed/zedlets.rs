//! The scripts of a directory, and running those that an event is for.
//!
//! Chapter 08, section 29. Invariant: only what its owner alone can change is run; never more at once than
//! was said, and one with `-sync-` in its name alone.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use cenote_control::events::EventRecord;
use cenote_control::{run_directory, terminal};

use super::variables::{self, TOOLS, Variable};

/// Where programs are looked for, after this program's own names.
const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// How often it is looked whether a script has ended, while one is waited for.
const GLANCE: Duration = Duration::from_millis(10);

/// How scripts are run.
pub struct Options {
    /// Where they are.
    pub directory: PathBuf,
    /// Their `PATH`.
    pub path: Option<String>,
    /// Most at once.
    pub jobs: usize,
    /// Whoever owns them.
    pub force: bool,
    /// Tell what is run, and how it ended.
    pub verbose: bool,
}

/// See the module.
pub struct Zedlets {
    options: Options,
    constant: Vec<Variable>,
    running: Vec<(String, u64, Child)>,
    /// What was complained of.
    refused: Vec<String>,
}

impl Zedlets {
    /// The scripts of a directory, which need not be there.
    ///
    /// # Errors
    /// If the names by which scripts call this program cannot be made.
    pub fn new(options: Options) -> Result<Self, String> {
        let tools = run_directory::path().join("zed.bin");
        make_names(&tools).map_err(|error| format!("{}: {error}", tools.display()))?;
        let default = || format!("{}:{SYSTEM_PATH}", tools.display());
        let path = options.path.clone().unwrap_or_else(default);
        let constant = variables::constant(&tools, &options.directory, &path);
        Ok(Self { options, constant, running: Vec::new(), refused: Vec::new() })
    }

    /// Runs those that an event is for.
    pub fn run(&mut self, event: &EventRecord) {
        for name in self.names_for(event) {
            let is_alone = name.contains("-sync-");
            self.wait_until(if is_alone { 0 } else { self.options.jobs.saturating_sub(1) });
            self.start(&name, event);
            if is_alone {
                self.wait_until(0);
            }
        }
    }

    fn names_for(&mut self, event: &EventRecord) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(&self.options.directory) else { return Vec::new() };
        let mut names: Vec<String> = entries
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| is_for(name, event))
            .collect();
        names.sort();
        names.retain(|name| match self.problem(name) {
            None => true,
            Some(problem) => {
                let line = format!("zed: {} is not run: {problem}", self.path_of(name).display());
                if !self.refused.contains(&line) {
                    terminal::complain(&line);
                    self.refused.push(line);
                }
                false
            }
        });
        names
    }

    fn path_of(&self, name: &str) -> PathBuf {
        self.options.directory.join(name)
    }

    /// Why a file is not run.
    fn problem(&self, name: &str) -> Option<String> {
        let found = match std::fs::metadata(self.path_of(name)) {
            Ok(found) => found,
            Err(error) => return Some(error.to_string()),
        };
        let mode = found.permissions().mode();
        let own = rustix::process::geteuid().as_raw();
        if !found.is_file() {
            return Some("it is no file".to_owned());
        }
        if mode & 0o100 == 0 {
            return Some("its owner may not execute it".to_owned());
        }
        if !self.options.force && found.uid() != 0 && found.uid() != own {
            return Some("it belongs to somebody else (zed -f runs it all the same)".to_owned());
        }
        (!self.options.force && mode & 0o022 != 0)
            .then(|| "others may write it; take that away with 'chmod go-w'".to_owned())
    }

    fn start(&mut self, name: &str, event: &EventRecord) {
        let started = Command::new(self.path_of(name))
            .env_clear()
            .envs(self.constant.iter().cloned())
            .envs(variables::of(event))
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        match started {
            Ok(child) => {
                if self.options.verbose {
                    let (eid, pid) = (event.number, child.id());
                    terminal::complain(&format!("Invoking \"{name}\" eid={eid} pid={pid}"));
                }
                self.running.push((name.to_owned(), event.number, child));
            }
            Err(error) => terminal::complain(&format!("zed: {name}: {error}")),
        }
    }

    /// Takes note of scripts that have ended.
    pub fn reap(&mut self) {
        let verbose = self.options.verbose;
        self.running.retain_mut(|(name, eid, child)| match child.try_wait() {
            Ok(None) => true,
            ended => {
                if verbose {
                    let how = match ended {
                        Ok(Some(status)) => status.to_string(),
                        _ => "nobody knows how".to_owned(),
                    };
                    terminal::complain(&format!("Finished \"{name}\" eid={eid} {how}"));
                }
                false
            }
        });
    }

    /// Waits until no more than so many run.
    fn wait_until(&mut self, most: usize) {
        self.reap();
        while self.running.len() > most {
            std::thread::sleep(GLANCE);
            self.reap();
        }
    }
}

/// Whether a file of this name is for an event: the name begins with its class, the end of that, or `all`,
/// and no letter follows.
fn is_for(name: &str, event: &EventRecord) -> bool {
    let begins = |word: &str| {
        let after = name.strip_prefix(word);
        after.is_some_and(|after| !after.starts_with(|c: char| c.is_ascii_alphabetic()))
    };
    [event.class.as_str(), event.subclass(), "all"].into_iter().any(begins)
}

/// Lets this program be called by the names of its tools.
fn make_names(directory: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)?;
    let program = std::env::current_exe()?;
    for (_, tool) in TOOLS {
        let link = directory.join(tool);
        if std::fs::read_link(&link).is_ok_and(|to| to == program) {
            continue;
        }
        match std::fs::remove_file(&link) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => std::os::unix::fs::symlink(&program, &link)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_choose_what_is_run() {
        let class = "sysevent.fs.zfs.scrub_finish".to_owned();
        let event = EventRecord { class, ..EventRecord::default() };
        for name in ["all-syslog.sh", "all", "scrub_finish-notify.sh", "scrub_finish_2"] {
            assert!(is_for(name, &event), "{name}");
        }
        for name in ["allow.sh", "scrub_finished", "scrub_start-x", ".all-x", "README"] {
            assert!(!is_for(name, &event), "{name}");
        }
        assert!(is_for("sysevent.fs.zfs.scrub_finish-x", &event));
    }
}
