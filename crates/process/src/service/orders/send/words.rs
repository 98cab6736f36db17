//! What `zfs send` says: how much there is to send, and why something is not sent.
//!
//! Invariant: programs read these lines: they are OpenZFS's.

use cenote_control::text::number;
use cenote_engine::{Error, ErrorKind};

/// The line about one stream. `size`: how large it will be, if that is known.
pub(super) fn estimate(parsable: bool, from: Option<&str>, to: &str, size: Option<u64>) -> String {
    let size = size.map_or_else(String::new, |size| match parsable {
        true => format!("\t{size}"),
        false => format!(" estimated size is {}", number::bytes(size)),
    });
    match (parsable, from) {
        (true, None) => format!("full\t{to}{size}"),
        (true, Some(from)) => format!("incremental\t{from}\t{to}{size}"),
        (false, None) => format!("full send of {to}{size}"),
        (false, Some(from)) => {
            let at = if from.contains(['@', '#']) { "" } else { "@" };
            format!("send from {at}{from} to {to}{size}")
        }
    }
}

/// The line about all of them.
pub(super) fn total(parsable: bool, size: u64) -> String {
    match parsable {
        true => format!("size\t{size}"),
        false => format!("total estimated size is {}", number::bytes(size)),
    }
}

/// What an error of the engine is called.
pub(super) fn words(error: &Error) -> String {
    match error.kind() {
        ErrorKind::InvalidArgument => "not an earlier snapshot from the same fs".to_owned(),
        ErrorKind::KeyNotLoaded => "dataset key must be loaded".to_owned(),
        ErrorKind::NotFound => "dataset does not exist".to_owned(),
        ErrorKind::Interrupted => "Broken pipe".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_openzfs_lines() {
        let line = |parsable, from, size| estimate(parsable, from, "tank/a@two", size);
        assert_eq!(line(true, None, Some(12)), "full\ttank/a@two\t12");
        assert_eq!(line(true, Some("one"), Some(1)), "incremental\tone\ttank/a@two\t1");
        assert_eq!(
            line(false, None, Some(1 << 20)),
            "full send of tank/a@two estimated size is 1M"
        );
        let since = "send from @one to tank/a@two estimated size is 624B";
        assert_eq!(line(false, Some("one"), Some(624)), since);
        assert_eq!(line(false, Some("tank/a#b"), None), "send from tank/a#b to tank/a@two");
        assert_eq!(total(true, 7), "size\t7");
        assert_eq!(total(false, 1536), "total estimated size is 1.50K");
    }
}
