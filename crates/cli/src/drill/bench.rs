//! The directory of a drill: disks, the processes of pools, mounts.
//!
//! Invariant: a directory is only taken that is empty or was made here, and only what was made here is taken
//! away.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use cenote_control::changes::Change;
use cenote_control::client::Client;
use cenote_control::faults::{ALWAYS, DeviceFault, FaultAt, FaultKind, FaultOrder};
use cenote_control::report::PoolReport;

/// Tells that a directory was made here.
const MARK: &str = ".cenote-drill";
/// Names of this program that can be typed.
const NAMES: [&str; 5] = ["cenote", "zpool", "zfs", "zdb", "zinject"];
/// How long something that is to happen may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// See the module.
pub struct Bench {
    directory: PathBuf,
}

impl Bench {
    /// Makes a directory with so many disks of so many bytes.
    ///
    /// # Errors
    /// If it is there and holds something else, or cannot be made.
    pub fn make(directory: &Path, disks: usize, size: u64) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("{}: {error}", directory.display());
        std::fs::create_dir_all(directory).map_err(failed)?;
        let is_empty = std::fs::read_dir(directory).map_err(failed)?.next().is_none();
        if !is_empty {
            return Err(format!("{} is not empty; name another with -C", directory.display()));
        }
        let directory = &directory.canonicalize().map_err(failed)?;
        std::fs::write(directory.join(MARK), "").map_err(failed)?;
        let program = std::env::current_exe().map_err(failed)?;
        for part in ["disks", "unplugged", "run", "mnt", "bin"] {
            std::fs::create_dir(directory.join(part)).map_err(failed)?;
        }
        for name in NAMES {
            symlink(&program, directory.join("bin").join(name)).map_err(failed)?;
        }
        let bench = Self { directory: directory.clone() };
        for number in 0..disks {
            bench.make_disk(&format!("disk{number}"), size)?;
        }
        Ok(bench)
    }

    /// One that was made before.
    ///
    /// # Errors
    /// If it was not made here.
    pub fn open(directory: &Path) -> Result<Self, String> {
        let found = directory.canonicalize();
        let directory = found.map_err(|error| format!("{}: {error}", directory.display()))?;
        if !directory.join(MARK).exists() {
            let shown = directory.display();
            return Err(format!("{shown} was not made by 'cenote drill disks' or a scenario"));
        }
        Ok(Self { directory })
    }

    /// Makes one more disk.
    ///
    /// # Errors
    /// If there is one of that name.
    pub fn make_disk(&self, name: &str, size: u64) -> Result<(), String> {
        let path = self.disk(name);
        let file = std::fs::File::create_new(&path).and_then(|file| file.set_len(size));
        file.map_err(|error| format!("{}: {error}", path.display()))
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Where a disk is when it is plugged in.
    pub fn disk(&self, name: &str) -> PathBuf {
        self.directory.join("disks").join(name)
    }

    /// Where a disk is when it is not.
    pub fn unplugged(&self, name: &str) -> PathBuf {
        self.directory.join("unplugged").join(name)
    }

    /// Where a file of a filesystem is.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.join("mnt").join(name)
    }

    fn run(&self) -> PathBuf {
        self.directory.join("run")
    }

    /// Asks the pools of this directory.
    pub fn client(&self) -> Client {
        Client::new(self.run())
    }

    /// A line as a person types it: `$D` are the disks, `$R` the directory that mounts are in.
    pub fn shell(&self, line: &str) -> Command {
        let mut command = Command::new("sh");
        let system = std::env::var("PATH").unwrap_or_default();
        command
            .args(["-c", line])
            .current_dir(&self.directory)
            .env("PATH", format!("{}:{system}", self.directory.join("bin").display()))
            .env("CENOTE_RUN_DIR", self.run())
            .env("D", self.directory.join("disks"))
            .env("R", self.directory.join("mnt"));
        command
    }

    /// Runs a line; what it printed, errors after the rest.
    ///
    /// # Errors
    /// If it cannot be run.
    pub fn output(&self, line: &str) -> Result<Output, String> {
        let run = self.shell(line).stdin(Stdio::null()).output();
        run.map_err(|error| format!("sh: {error}"))
    }

    /// What the pool says of itself; `None` if it says nothing.
    pub fn report(&self, pool: &str) -> Option<PoolReport> {
        self.client().pool_report(pool).ok()
    }

    /// Waits until this is so; false if it does not become so.
    pub fn wait(&self, pool: &str, is: impl Fn(&PoolReport) -> bool) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if self.report(pool).is_some_and(|report| is(&report)) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        false
    }

    /// Lets this happen to a disk, whichever pool has it. False if none has.
    ///
    /// # Errors
    /// If the pool refuses.
    pub fn inject(
        &self,
        disk: &str,
        at: FaultAt,
        kind: FaultKind,
        chance: u32,
    ) -> Result<bool, String> {
        let path = self.disk(disk).display().to_string();
        let client = self.client();
        let mut is_had = false;
        for pool in client.pools() {
            let Some(report) = self.report(&pool) else { continue };
            if !has(&report, &path) {
                continue;
            }
            let fault = DeviceFault { device: path.clone(), at, kind, chance, range: None };
            let change = Change::Inject(FaultOrder::Device(fault));
            client.order(&pool, &change.into()).map_err(|failure| failure.message)?;
            is_had = true;
        }
        Ok(is_had)
    }

    /// The disk is gone for the pool that has it.
    ///
    /// # Errors
    /// As [`Self::inject`].
    pub fn cut_off(&self, disk: &str) -> Result<bool, String> {
        self.inject(disk, FaultAt::Any, FaultKind::Gone, ALWAYS)
    }

    /// No faults happen to a disk any more.
    ///
    /// # Errors
    /// If a pool refuses.
    pub fn make_well(&self, disk: &str) -> Result<(), String> {
        let path = self.disk(disk).display().to_string();
        let client = self.client();
        for pool in client.pools() {
            for fault in client.faults(&pool).unwrap_or_default() {
                if matches!(&fault.order, FaultOrder::Device(own) if own.device == path) {
                    let forget = Change::ForgetFaults(Some(fault.id));
                    client.order(&pool, &forget.into()).map_err(|failure| failure.message)?;
                }
            }
        }
        Ok(())
    }

    /// Ends the processes of pools as a power loss would.
    ///
    /// # Errors
    /// If one cannot be ended.
    pub fn power_off(&self) -> Result<(), String> {
        let client = self.client();
        for pool in client.pools() {
            let Some(process) = client.process(&pool) else { continue };
            let number = i32::try_from(process).ok().and_then(rustix::process::Pid::from_raw);
            let Some(number) = number else { continue };
            rustix::process::kill_process(number, rustix::process::Signal::KILL)
                .map_err(|error| format!("process {process} of {pool}: {error}"))?;
            let begun = Instant::now();
            while client.lives(&pool) && begun.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        // What a power loss leaves of mounts: nothing. The shell's own words about that are no news.
        self.unmount()
    }

    /// Takes mounts away that a process left which has ended.
    fn unmount(&self) -> Result<(), String> {
        for pool in self.client().pools() {
            self.output(&format!("zpool export -f {pool} 2>/dev/null"))?;
        }
        Ok(())
    }

    /// Ends the pools and takes all of it away.
    ///
    /// # Errors
    /// If something cannot be taken away.
    pub fn clean(&self) -> Result<(), String> {
        let client = self.client();
        for pool in client.pools() {
            // Whatever was done to its disks: it is to end.
            drop(client.order(&pool, &Change::ForgetFaults(None).into()));
            drop(client.order(&pool, &Change::Export { force: true }.into()));
        }
        self.power_off()?;
        let shown = self.directory.display();
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let own = self.directory.join("mnt").display().to_string();
        if mounts.lines().any(|line| line.split(' ').nth(1).is_some_and(|at| at.starts_with(&own)))
        {
            return Err(format!("{shown}: something is mounted there still; unmount it first"));
        }
        std::fs::remove_dir_all(&self.directory).map_err(|error| format!("{shown}: {error}"))
    }
}

/// Whether a pool has the device of this path.
fn has(report: &PoolReport, path: &str) -> bool {
    let mut rest = vec![&report.root];
    rest.extend(&report.spares);
    while let Some(node) = rest.pop() {
        if node.path.as_deref() == Some(path) {
            return true;
        }
        rest.extend(&node.children);
    }
    false
}
