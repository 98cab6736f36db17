//! Numbers as the commands print them: at most five characters, units of 1024 (1000 for times).
//!
//! Invariant: every function is total; the exact form is the plain decimal number.

const UNITS: [&str; 7] = ["", "K", "M", "G", "T", "P", "E"];

/// Bytes with a unit: `0B`, `512B`, `1.50K`, `12.0M`, `1023T`.
pub fn bytes(value: u64) -> String {
    if value < 1024 { format!("{value}B") } else { plain(value) }
}

/// A number with a unit: `0`, `512`, `1.50K`. Whole multiples have no decimals (`4K`).
pub fn plain(value: u64) -> String {
    let mut index = 0;
    let mut whole = value;
    while whole >= 1024 && index < UNITS.len() - 1 {
        whole /= 1024;
        index += 1;
    }
    let unit = UNITS[index];
    let divisor = 1_u64 << (10 * index);
    if value.is_multiple_of(divisor) {
        return format!("{whole}{unit}");
    }
    let scaled = value as f64 / divisor as f64;
    let mut text = String::new();
    for decimals in (0..=2).rev() {
        text = format!("{scaled:.decimals$}{unit}");
        if text.len() <= 5 {
            break;
        }
    }
    text
}

/// A duration of `nanoseconds` with a unit: `653us`, `2ms`, `17s`. Rounded down.
pub fn duration(nanoseconds: u64) -> String {
    let units = ["ns", "us", "ms", "s"];
    let mut index = 0;
    let mut value = nanoseconds;
    while value >= 1000 && index < units.len() - 1 {
        value /= 1000;
        index += 1;
    }
    format!("{value}{}", units[index])
}

/// Seconds as `HH:MM:SS`, with `N days ` before it from one day on.
pub fn clock(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (hours, minutes, seconds) = (rest / 3600, rest / 60 % 60, rest % 60);
    if days > 0 {
        format!("{days} days {hours:02}:{minutes:02}:{seconds:02}")
    } else {
        format!("{hours:02}:{minutes:02}:{seconds:02}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_match_openzfs() {
        // values and texts that OpenZFS itself printed
        for (value, text) in [
            (0, "0"),
            (251_658_240, "240M"),
            (754_974_720, "720M"),
            (10_290_688, "9.81M"),
            (744_684_032, "710M"),
            (10_752, "10.5K"),
            (973_824, "951K"),
            (903_168, "882K"),
            (1_470_976, "1.40M"),
            (1_036_288, "1012K"),
            (2_097_152, "2M"),
            (33_554_432, "32M"),
            (1_028_608, "1004K"),
            (1_207_959_552, "1.12G"),
            (u64::MAX, "16.0E"),
        ] {
            assert_eq!(plain(value), text, "{value}");
        }
        assert_eq!(bytes(0), "0B");
        assert_eq!(bytes(192), "192B");
        assert_eq!(bytes(18_944), "18.5K");
    }

    #[test]
    fn times_match_openzfs() {
        assert_eq!(duration(653_556), "653us");
        assert_eq!(duration(2_857_175), "2ms");
        assert_eq!(duration(1023), "1us");
        assert_eq!(duration(137_438_953_471), "137s");
        assert_eq!(clock(1), "00:00:01");
        assert_eq!(clock(90_061), "1 days 01:01:01");
    }
}
