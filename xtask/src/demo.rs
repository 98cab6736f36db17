//! The README's first command: builds the program and makes, mounts, fills and exports a pool on
//! files, as any user.
//!
//! Invariant: everything it makes lies below the directory it is given; it stops at the first
//! command that fails.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cargo;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Bytes of each of the three devices.
const SIZE: u64 = 256 << 20;

struct Session {
    program: PathBuf,
    run: PathBuf,
}

impl Session {
    fn cenote(&self, arguments: &[&str]) -> Outcome {
        println!("\n$ cenote {}", arguments.join(" "));
        let status = Command::new(&self.program)
            .args(arguments)
            .env("CENOTE_RUN_DIR", &self.run)
            .status()?;
        if status.success() { Ok(()) } else { Err(format!("cenote ended with {status}").into()) }
    }
}

/// Runs the session below `directory`.
pub fn run(root: &Path, directory: &Path) -> Outcome {
    let build = cargo::command()
        .args(["build", "--release", "--quiet", "--package", "cenote"])
        .current_dir(root)
        .status()?;
    if !build.success() {
        return Err("the build failed".into());
    }
    std::fs::create_dir_all(directory)?;
    let directory = directory.canonicalize()?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    let session = Session { program: target.join("release/cenote"), run: directory.join("run") };
    let disks = directory.join("disks");
    std::fs::create_dir_all(&disks)?;
    let mut create = vec!["zpool", "create", "-R"];
    let mountpoint = directory.join("mnt");
    let text = |path: &Path| path.display().to_string();
    let at = text(&mountpoint);
    let files: Vec<String> =
        (1..=3).map(|number| text(&disks.join(format!("d{number}")))).collect();
    for file in &files {
        std::fs::File::create(file)?.set_len(SIZE)?;
    }
    create.extend([at.as_str(), "demo", "raidz1"]);
    create.extend(files.iter().map(String::as_str));
    session.cenote(&create)?;
    let done = session.cenote(&["zpool", "status", "demo"]).and_then(|()| {
        let inside = mountpoint.join("demo");
        if is_mounted(&inside) {
            println!("\n$ echo 'hello, pool' > {}/hello", inside.display());
            std::fs::write(inside.join("hello"), "hello, pool\n")?;
            let noise: Vec<u8> =
                (0..8_u32 << 20).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
            std::fs::write(inside.join("eight megabytes"), noise)?;
        } else {
            println!("(no usable /dev/fuse here: nothing is mounted, nothing written to files)");
        }
        session.cenote(&["zpool", "sync", "demo"])?;
        session.cenote(&["zfs", "list", "demo"])
    });
    let exported = session.cenote(&["zpool", "export", "demo"]);
    done.and(exported)?;
    let place = text(&disks);
    session.cenote(&["ls", "-l", "-d", &place, "demo:/"])?;
    match Command::new("zdb").args(["-e", "-bcc", "-p", &place, "demo"]).output() {
        Ok(output) => {
            println!("\n$ zdb -e -bcc -p {place} demo");
            let text = String::from_utf8_lossy(&output.stdout);
            let verdict =
                text.lines().find(|line| line.contains("leak") && line.contains("block sum"));
            println!("{}", verdict.unwrap_or(text.as_ref()).trim());
            if !output.status.success() {
                return Err("zdb does not agree".into());
            }
        }
        Err(_) => println!("\n(OpenZFS's zdb is not installed: not asked)"),
    }
    Ok(())
}

fn is_mounted(path: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let path = path.display().to_string();
    mounts.lines().any(|line| line.split(' ').nth(1) == Some(path.as_str()))
}
