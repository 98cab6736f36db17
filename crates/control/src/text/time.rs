//! Dates in the zone of the user, as the commands print them.
//!
//! Invariant: every function is total. Without a usable zone, times are shown in UTC.

use std::sync::OnceLock;

use tz::{DateTime, TimeZone, UtcDateTime};

const DAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// One moment, taken apart.
struct Parts {
    year: i32,
    month: u8,
    day: u8,
    hour: u8,
    minute: u8,
    second: u8,
    weekday: u8,
    zone: String,
    /// Seconds that the zone is before UTC.
    offset: i32,
}

fn zone() -> Option<&'static TimeZone> {
    static ZONE: OnceLock<Option<TimeZone>> = OnceLock::new();
    ZONE.get_or_init(|| match std::env::var("TZ") {
        Ok(name) if !name.is_empty() => TimeZone::from_posix_tz(&name).ok(),
        _ => TimeZone::local().ok(),
    })
    .as_ref()
}

fn parts(seconds: i64) -> Option<Parts> {
    if let Some(zone) = zone()
        && let Ok(t) = DateTime::from_timespec(seconds, 0, zone.as_ref())
    {
        let name = t.local_time_type().time_zone_designation();
        return Some(Parts {
            year: t.year(),
            month: t.month(),
            day: t.month_day(),
            hour: t.hour(),
            minute: t.minute(),
            second: t.second(),
            weekday: t.week_day(),
            offset: t.local_time_type().ut_offset(),
            zone: if name.is_empty() { "UTC".to_owned() } else { name.to_owned() },
        });
    }
    let t = UtcDateTime::from_timespec(seconds, 0).ok()?;
    Some(Parts {
        year: t.year(),
        month: t.month(),
        day: t.month_day(),
        hour: t.hour(),
        minute: t.minute(),
        second: t.second(),
        weekday: t.week_day(),
        zone: "UTC".to_owned(),
        offset: 0,
    })
}

impl Parts {
    fn day_name(&self) -> &'static str {
        DAYS.get(usize::from(self.weekday)).copied().unwrap_or("???")
    }

    fn month_name(&self) -> &'static str {
        MONTHS.get(usize::from(self.month.wrapping_sub(1))).copied().unwrap_or("???")
    }
}

fn with(seconds: i64, form: impl Fn(&Parts) -> String) -> String {
    parts(seconds).map_or_else(|| seconds.to_string(), |parts| form(&parts))
}

/// A moment in the zone of the user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Year.
    pub year: i32,
    /// Month, from 1.
    pub month: u8,
    /// Day of the month, from 1.
    pub day: u8,
    /// Hour.
    pub hour: u8,
    /// Minute.
    pub minute: u8,
    /// Second.
    pub second: u8,
    /// Day of the week, Sunday is 0.
    pub weekday: u8,
}

/// Which moment it is so many seconds after 1970.
pub fn moment(seconds: u64) -> Moment {
    let Some(p) = i64::try_from(seconds).ok().and_then(parts) else { return Moment::default() };
    let Parts { year, month, day, hour, minute, second, weekday, .. } = p;
    Moment { year, month, day, hour, minute, second, weekday }
}

/// The seconds from 1970 to a moment; of the two an hour apart that a clock shows twice, one.
pub fn seconds_of(moment: &Moment) -> u64 {
    let (year, month) = (i64::from(moment.year), i64::from(moment.month));
    // Years begin in March here: the day that some lack is the last.
    let (year, month) = if month < 3 { (year - 1, month + 9) } else { (year, month - 3) };
    let days = 365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    let days = days + (153 * month + 2) / 5 + i64::from(moment.day) - 719_469;
    let clock = 3600 * i64::from(moment.hour) + 60 * i64::from(moment.minute);
    let shown = days * 86_400 + clock + i64::from(moment.second);
    let offset = |at: i64| parts(at).map_or(0, |parts| i64::from(parts.offset));
    let near = shown - offset(shown);
    u64::try_from(shown - offset(near)).unwrap_or(0)
}

/// A time as mails have it: `2026-11-04 03:14:15+0100`.
pub fn with_offset(seconds: i64) -> String {
    with(seconds, |p| {
        let (sign, minutes) = (if p.offset < 0 { '-' } else { '+' }, p.offset.unsigned_abs() / 60);
        let date = format!("{:04}-{:02}-{:02}", p.year, p.month, p.day);
        let time = format!("{:02}:{:02}:{:02}", p.hour, p.minute, p.second);
        format!("{date} {time}{sign}{:02}{:02}", minutes / 60, minutes % 60)
    })
}

/// The time of an event, without the fraction of the second: `Nov  4 2026 03:14:15`.
pub fn event(seconds: i64) -> String {
    with(seconds, |p| {
        let (month, day, year) = (p.month_name(), p.day, p.year);
        format!("{month} {day:2} {year} {:02}:{:02}:{:02}", p.hour, p.minute, p.second)
    })
}

/// A date with the time, and what else stands before the year.
fn dated(seconds: i64, time: impl Fn(&Parts) -> String) -> String {
    with(seconds, |p| {
        format!("{} {} {:2} {} {}", p.day_name(), p.month_name(), p.day, time(p), p.year)
    })
}

/// `Fri Nov 20 18:34:41 2026`, as in status lines.
pub fn long(seconds: i64) -> String {
    dated(seconds, |p| format!("{:02}:{:02}:{:02}", p.hour, p.minute, p.second))
}

/// `Fri Nov 20 18:34 2026`, the `creation` property.
pub fn creation(seconds: i64) -> String {
    dated(seconds, |p| format!("{:>2}:{:02}", p.hour, p.minute))
}

/// `Fri Nov 20 18:34:41 2026`, the `snapshots_changed` property.
pub fn changed(seconds: i64) -> String {
    dated(seconds, |p| format!("{:>2}:{:02}:{:02}", p.hour, p.minute, p.second))
}

/// `Fri Nov 20 18:34:41 UTC 2026`, as `-T d` and JSON print it.
pub fn stamp(seconds: i64) -> String {
    dated(seconds, |p| format!("{:>2}:{:02}:{:02} {}", p.hour, p.minute, p.second, p.zone))
}

/// `18:19:28`, as progress is told.
pub fn of_day(seconds: i64) -> String {
    with(seconds, |p| format!("{:02}:{:02}:{:02}", p.hour, p.minute, p.second))
}

/// `2026-11-20.18:19:28`, as the history prints it.
pub fn history(seconds: i64) -> String {
    with(seconds, |p| {
        format!(
            "{}-{:02}-{:02}.{:02}:{:02}:{:02}",
            p.year, p.month, p.day, p.hour, p.minute, p.second
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_and_seconds_are_the_same() {
        for seconds in [0, 86_399, 951_782_400, 1_709_164_800, 1_782_000_000, 4_102_444_799] {
            assert_eq!(seconds_of(&moment(seconds)), seconds);
        }
    }

    #[test]
    fn a_moment_has_all_its_forms() {
        let t = UtcDateTime::from_timespec(1_795_199_681, 0).unwrap();
        assert_eq!((t.year(), t.month(), t.month_day(), t.hour()), (2026, 11, 20, 18));
        // the zone of the machine is not known here; the shapes are
        assert_eq!(long(1_795_199_681).len(), 24);
        assert_eq!(changed(1_795_199_681).len(), 24);
        assert_eq!(creation(1_795_199_681).len(), 21);
        assert_eq!(history(1_795_199_681).len(), 19);
        assert!(long(i64::MAX).parse::<i64>().is_ok());
    }
}
