//! `zpool scrub` and `zpool resilver`: beginning, pausing, going on, giving up.
//!
//! Invariant: as in [`super`].

use cenote_control::changes::ScanRequest;
use cenote_control::protocol::Failure;
use cenote_engine::pool::group::{ScanKind, ScanOrder};
use cenote_engine::{Error, ErrorKind};

use super::{Doing, Order, Warnings};

pub(super) struct Scan(pub(super) ScanRequest);

impl Scan {
    fn asked(&self) -> ScanOrder {
        match self.0 {
            ScanRequest::Scrub => ScanOrder::Begin(ScanKind::Scrub),
            ScanRequest::ScrubNew => ScanOrder::Begin(ScanKind::ScrubNew),
            ScanRequest::ErrorScrub => ScanOrder::ScrubErrors,
            ScanRequest::Resilver => ScanOrder::Restart,
            ScanRequest::Pause => ScanOrder::Pause,
            ScanRequest::Stop => ScanOrder::Stop,
        }
    }
}

impl Order for Scan {
    fn cannot(&self, pool: &str) -> String {
        match self.0 {
            ScanRequest::Scrub | ScanRequest::ScrubNew | ScanRequest::ErrorScrub => {
                format!("cannot scrub {pool}")
            }
            ScanRequest::Resilver => format!("cannot restart resilver on {pool}"),
            ScanRequest::Pause => format!("cannot pause scrubbing {pool}"),
            ScanRequest::Stop => format!("cannot cancel scrubbing {pool}"),
        }
    }

    fn words(&self, error: &Error) -> Option<String> {
        match error.kind() {
            ErrorKind::Busy | ErrorKind::Exists | ErrorKind::NotFound | ErrorKind::Unsupported => {
                Some(error.reason().to_owned())
            }
            ErrorKind::ReadOnly => Some("pool is read-only".to_owned()),
            _ => None,
        }
    }

    fn moves_mounts(&self) -> bool {
        false
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let asked = self.asked();
        doing.simply(doing.engine(|live| live.scan(asked)))
    }
}
