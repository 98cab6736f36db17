//! What a pool process that died leaves behind: its socket, its pid file, its mounts.
//!
//! Invariant: nothing of a process that lives is touched, nor anything of another pool of the same
//! name with a run directory of its own: only what the dead process noted is cleared.

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use cenote_control::client::Client;
use cenote_control::{mounted_places, run_directory};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

/// Type of our mounts in the table of mounts.
const MOUNT_TYPE: &str = "fuse.cenote";
/// Longest wait for a mount to say whether somebody serves it.
const PATIENCE: Duration = Duration::from_secs(3);

/// Clears what the dead process of a pool left; false if the process lives.
pub fn clear(client: &Client, pool: &str) -> bool {
    let files = run_directory::files(client.directory(), pool);
    run_directory::sweep(&files, || {
        clear_mounts(client, pool);
        // It may be gone already.
        drop(std::fs::remove_file(&files.mounts));
    })
}

/// Clears the mounts of a pool that nobody serves.
pub fn clear_mounts(client: &Client, pool: &str) {
    let noted = mounted_places::noted(&run_directory::files(client.directory(), pool).mounts);
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mut places = mounts_of(&table, pool);
    // what was mounted last, over or below the others, goes first
    places.reverse();
    places.retain(|place| noted.iter().any(|noted| noted == Path::new(place)));
    for place in places.into_iter().filter(|place| is_dead(place)) {
        if unmount(place.as_str(), UnmountFlags::DETACH).is_err() {
            let mut helper = std::process::Command::new("fusermount3");
            // without the right to unmount it stays, and says so when it is looked at
            drop(helper.args(["-u", "-z", &place]).output());
        }
    }
}

/// Whether nobody serves the mount at `place` any more. One that does not answer may live.
fn is_dead(place: &str) -> bool {
    let (sender, answer) = mpsc::channel();
    let place = place.to_owned();
    let ask = move || {
        // The kernel always asks this of the server of the mount; nobody waits any more if sending fails.
        let _ = sender.send(rustix::fs::statfs(place.as_str()).err());
    };
    // Who cannot ask does not know it to be dead.
    drop(std::thread::Builder::new().spawn(ask));
    answer.recv_timeout(PATIENCE) == Ok(Some(Errno::NOTCONN))
}

/// Mountpoints of a pool in a table of mounts.
fn mounts_of(table: &str, pool: &str) -> Vec<String> {
    let below = format!("{pool}/");
    let mut places = Vec::new();
    for line in table.lines() {
        let mut fields = line.split(' ');
        let (source, place, kind) = (fields.next(), fields.next(), fields.next());
        let (Some(source), Some(place), Some(MOUNT_TYPE)) = (source, place, kind) else {
            continue;
        };
        let source = unescape(source);
        if source == pool || source.starts_with(&below) {
            places.push(unescape(place));
        }
    }
    places
}

/// Undoes `\040` and the like.
fn unescape(field: &str) -> String {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let [first, others @ ..] = rest {
        let code = others.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) if *first == b'\\' => {
                bytes.push(byte);
                rest = others.get(3..).unwrap_or(&[]);
            }
            _ => {
                bytes.push(*first);
                rest = others;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_mounts_of_the_pool_are_found() {
        let table = "tank /a fuse.cenote ro 0 0\ntank/x /a\\040b fuse.cenote ro 0 0\n\
                     tanker /c fuse.cenote ro 0 0\ntank /d zfs rw 0 0\n";
        assert_eq!(mounts_of(table, "tank"), ["/a", "/a b"]);
    }
}
