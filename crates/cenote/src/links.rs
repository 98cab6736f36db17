//! `cenote install-links`: this program under the names of the tools it stands for, and of those
//! that mount(8) runs (which looks for them in /sbin).
//!
//! Invariant: nothing that is there already is replaced, unless it is such a link.

use std::path::PathBuf;
use std::process::ExitCode;

use cenote_cli::mount_helper;
use cenote_control::terminal;

/// Tools this program stands for.
const TOOLS: [&str; 5] = ["zpool", "zfs", "zdb", "zed", "zinject"];

/// Names this program answers to.
pub fn names() -> impl Iterator<Item = &'static str> {
    TOOLS.into_iter().chain(mount_helper::NAMES)
}

/// Arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// Directory for the links, as /usr/local/sbin; it is made if it is not there
    directory: PathBuf,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> ExitCode {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => {
            terminal::complain(&format!("cannot tell where this program lies: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let directory = &arguments.directory;
    if let Err(error) = std::fs::create_dir_all(directory) {
        let shown = directory.display();
        terminal::complain(&format!("cannot make directory '{shown}': {error}"));
        return ExitCode::FAILURE;
    }
    let mut failed = false;
    for tool in names() {
        let link = directory.join(tool);
        let shown = link.display();
        if std::fs::read_link(&link).is_ok_and(|target| target == program) {
            terminal::out(&format!("{shown} is there already\n"));
            continue;
        }
        match std::os::unix::fs::symlink(&program, &link) {
            Ok(()) => terminal::out(&format!("{shown} -> {}\n", program.display())),
            Err(error) => {
                terminal::complain(&format!("{shown}: {error}"));
                failed = true;
            }
        }
    }
    ExitCode::from(u8::from(failed))
}
