//! One host opens a pool once: a lock by the pool's guid.
//!
//! It is a listening socket with an abstract name. Nothing but the end of its process gives such a
//! name back; it needs no directory that users or run directories might not share, leaves nothing
//! behind, and tells by the kernel's word who has it. It is seen in one network namespace; processes
//! of others are kept apart by the claims on the devices (`claim`), and by what these hold.
//!
//! Invariant: a lock is never taken from a living process, and held as long as its owner lives.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

use crate::threads::call;

/// Longest wait for a word about the holder.
const PATIENCE: Duration = Duration::from_secs(1);
/// Tells machines apart that are only played on this one, in tests: a part of the name.
const PLAYED: &str = "CENOTE_PLAYED_HOST";

/// The lock; dropping it gives it back.
#[derive(Debug)]
pub struct HostLock(#[expect(dead_code, reason = "being open is all it does")] UnixListener);

/// Why there is no lock.
#[derive(Clone, Debug, thiserror::Error)]
pub enum HostLockError {
    /// Another process has it.
    #[error("it is imported on this host already, by {}", holder(*.0))]
    Held(Option<u32>),
    /// The operating system has no such names, or none to spare.
    #[error("no lock for the pool: {0}")]
    Failed(std::sync::Arc<std::io::Error>),
}

fn holder(process: Option<u32>) -> String {
    process.map_or_else(|| "another process".to_owned(), |id| format!("process {id}"))
}

impl HostLock {
    /// Takes the lock of the pool with this guid, without waiting.
    pub fn take(pool: u64) -> Result<Self, HostLockError> {
        let failed = |error: std::io::Error| HostLockError::Failed(error.into());
        let address = address_of(pool).map_err(failed)?;
        match UnixListener::bind_addr(&address) {
            Ok(listener) => Ok(Self(listener)),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                let process = who(address).map(|(process, _)| process);
                Err(HostLockError::Held(process.filter(|process| *process != 0)))
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// The user who took the lock of this pool, as he was then; none if nobody has it, or that cannot be told.
    pub fn user(pool: u64) -> Option<u32> {
        address_of(pool).ok().and_then(who).map(|(_, user)| user)
    }
}

fn address_of(pool: u64) -> std::io::Result<SocketAddr> {
    let played = std::env::var(PLAYED).map(|host| format!("/{host}")).unwrap_or_default();
    SocketAddr::from_abstract_name(format!("cenote/pool/{pool}{played}"))
}

/// The process that listens at `address`, 0 if it is not to be seen from here, and its user when it began to; none if
/// it does not say within a moment.
fn who(address: SocketAddr) -> Option<(u32, u32)> {
    let ask = move || {
        let stream = UnixStream::connect_addr(&address)?;
        let peer = rustix::net::sockopt::socket_peercred(&stream).map_err(std::io::Error::from)?;
        let process = u32::try_from(peer.pid.as_raw_nonzero().get()).unwrap_or(0);
        Ok((process, peer.uid.as_raw()))
    };
    call(PATIENCE, ask).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_is_locked_once_and_its_holder_named() {
        // No other test uses this number; another process with this test would.
        let guid = 0x7e57_0000_0000_0000 | u64::from(std::process::id());
        let held = HostLock::take(guid).unwrap();
        let error = HostLock::take(guid).unwrap_err();
        let own = std::process::id();
        assert!(matches!(error, HostLockError::Held(Some(id)) if id == own), "{error}");
        assert_eq!(
            error.to_string(),
            format!("it is imported on this host already, by process {own}")
        );
        let other = HostLock::take(guid + (1 << 40)).unwrap();
        drop((held, other));
        HostLock::take(guid).unwrap();
    }
}
