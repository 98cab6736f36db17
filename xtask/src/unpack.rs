//! Unpacking fixture pools: zstd here, the sparse tar by the system's `tar`.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

/// Unpacks the devices of fixture `name` into `to`, which is made.
pub fn unpack(root: &Path, name: &str, to: &Path) -> io::Result<()> {
    let packed = root.join("tests/fixtures").join(name).join("images.tar.zst");
    let mut images = zstd::Decoder::new(fs::File::open(packed)?)?;
    fs::create_dir_all(to)?;
    let mut tar =
        Command::new("tar").args(["-S", "-xf", "-", "-C"]).arg(to).stdin(Stdio::piped()).spawn()?;
    if let Some(mut pipe) = tar.stdin.take() {
        io::copy(&mut images, &mut pipe)?;
    }
    if tar.wait()?.success() { Ok(()) } else { Err(io::Error::other("tar failed")) }
}
