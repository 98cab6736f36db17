//! Keys on their way to a pool process.
//!
//! Invariant: what held a key is wiped when it is given up. A key is no part of a message on the control
//! socket: it lies in a pipe of which the message brings the end to read from.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// Most bytes of a key; a pipe holds them.
pub const SECRET_MAX: usize = 4096;

/// A key as the user gave it: a passphrase, hexadecimal digits, or raw bytes. Wiped when dropped.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
#[serde(transparent)]
pub struct Secret(pub Vec<u8>);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Secret({} bytes)", self.0.len())
    }
}

impl Secret {
    /// A pipe that holds the key, to be read once.
    ///
    /// # Errors
    /// If it is too long, or there is no pipe to be had.
    pub fn in_pipe(&self) -> io::Result<OwnedFd> {
        if self.0.len() > SECRET_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the key is too long"));
        }
        let (read, mut write) = io::pipe()?;
        write.write_all(&self.0)?;
        Ok(read.into())
    }

    /// The key that the pipe `from` holds, to its end.
    ///
    /// # Errors
    /// If it is too long, cannot be read, or its end does not come in time; if it is no pipe: reading a file may
    /// take for ever.
    pub fn read(from: OwnedFd, patience: Duration) -> io::Result<Secret> {
        if FileType::from_raw_mode(fstat(&from)?.st_mode) != FileType::Fifo {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the key is not in a pipe"));
        }
        let end = Instant::now() + patience;
        // Never grown: what was given up on the way would not be wiped.
        let mut bytes = Zeroizing::new([0; SECRET_MAX + 1]);
        let (mut file, mut length) = (std::fs::File::from(from), 0);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let wait = Timespec::try_from(left).map_err(io::Error::other)?;
            let ready = poll(&mut [PollFd::new(&file, PollFlags::IN)], Some(&wait));
            match ready {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Err(rustix::io::Errno::INTR) => continue,
                ready => ready?,
            };
            match file.read(bytes.get_mut(length..).unwrap_or(&mut [])) {
                Ok(0) if length > SECRET_MAX => {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "the key is too long"));
                }
                Ok(0) => break,
                Ok(count) => length += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Secret(bytes.get(..length).unwrap_or_default().to_vec()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_goes_through_a_pipe() {
        let patience = Duration::from_secs(5);
        for length in [0, 32, SECRET_MAX] {
            let secret = Secret(vec![7; length]);
            assert!(Secret::read(secret.in_pipe().unwrap(), patience).unwrap() == secret);
        }
        assert!(Secret(vec![7; SECRET_MAX + 1]).in_pipe().is_err());
        let (read, mut write) = io::pipe().unwrap();
        write.write_all(&[7; SECRET_MAX + 1]).unwrap();
        drop(write);
        let error = Secret::read(read.into(), patience).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        // somebody keeps the other end and writes nothing
        let (read, _write) = io::pipe().unwrap();
        let error = Secret::read(read.into(), Duration::from_millis(20)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let zeros = std::fs::File::open("/dev/zero").unwrap();
        let error = Secret::read(zeros.into(), patience).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
