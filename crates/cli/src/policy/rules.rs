//! Which snapshots a policy wants taken and destroyed, and what it complains of.
//!
//! Invariant: only snapshots named as sanoid names them are ever destroyed; of each kind as many are kept as the
//! policy says, and none that is younger than it says.

use cenote_control::text::time::{self, Moment};

use super::conf::Rules;

/// How often a snapshot of a kind is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    /// What it is called.
    pub(super) name: &'static str,
    /// For how long one of them stands, in seconds; zero: as the policy says.
    span: u64,
    /// What a bare number of an age stands for, in seconds.
    unit: u64,
}

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;
/// All of them.
pub(super) const KINDS: [Kind; 6] = [
    Kind { name: "frequently", span: 0, unit: 60 },
    Kind { name: "hourly", span: HOUR, unit: 60 },
    Kind { name: "daily", span: DAY, unit: HOUR },
    Kind { name: "weekly", span: 7 * DAY, unit: DAY },
    Kind { name: "monthly", span: 31 * DAY, unit: DAY },
    Kind { name: "yearly", span: 365 * DAY + DAY / 4, unit: DAY },
];

/// A snapshot that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    /// What comes after the `@`.
    pub(super) name: String,
    /// When, in seconds since 1970.
    pub(super) at: u64,
}

impl Taken {
    fn is(&self, kind: Kind) -> bool {
        let rest = self.name.strip_prefix("autosnap_");
        rest.and_then(|rest| rest.rsplit_once('_')).is_some_and(|(_, last)| last == kind.name)
    }
}

/// What a new snapshot is called.
pub(super) fn name(kind: Kind, now: u64) -> String {
    let Moment { year, month, day, hour, minute, second, .. } = time::moment(now);
    format!(
        "autosnap_{year:04}-{month:02}-{day:02}_{hour:02}:{minute:02}:{second:02}_{}",
        kind.name
    )
}

impl Kind {
    fn span(self, rules: &Rules) -> u64 {
        match self.span {
            0 => rules.number("frequent_period").clamp(1, 60) * 60,
            span => span,
        }
    }

    /// When one was due last, at `now` or before.
    fn due(self, rules: &Rules, now: u64) -> u64 {
        let at = time::moment(now);
        let number = |name: &str| u8::try_from(rules.number(name)).unwrap_or(0);
        let mut due = Moment { second: 0, ..at };
        match self.name {
            "frequently" => {
                let period = self.span(rules) / 60;
                due.minute = (u64::from(at.minute) / period * period) as u8;
            }
            "hourly" => due.minute = number("hourly_min"),
            "daily" => (due.hour, due.minute) = (number("daily_hour"), number("daily_min")),
            "weekly" => {
                (due.hour, due.minute) = (number("weekly_hour"), number("weekly_min"));
                let back = (7 + at.weekday - number("weekly_wday") % 7) % 7;
                return back_from(
                    time::seconds_of(&due).saturating_sub(u64::from(back) * DAY),
                    now,
                    7 * DAY,
                );
            }
            "monthly" => {
                (due.day, due.hour, due.minute) =
                    (number("monthly_mday"), number("monthly_hour"), number("monthly_min"));
                if time::seconds_of(&due) > now {
                    (due.year, due.month) =
                        if due.month == 1 { (due.year - 1, 12) } else { (due.year, due.month - 1) };
                }
                return time::seconds_of(&due).min(now);
            }
            _ => {
                (due.month, due.day) = (number("yearly_mon").max(1), number("yearly_mday").max(1));
                (due.hour, due.minute) = (number("yearly_hour"), number("yearly_min"));
                if time::seconds_of(&due) > now {
                    due.year -= 1;
                }
                return time::seconds_of(&due).min(now);
            }
        }
        back_from(time::seconds_of(&due), now, self.span(rules))
    }
}

/// The last such moment at `now` or before.
fn back_from(due: u64, now: u64, span: u64) -> u64 {
    if due > now { due.saturating_sub(span).min(now) } else { due }
}

/// The kinds of which one is to be taken now.
pub(super) fn due(rules: &Rules, taken: &[Taken], now: u64) -> Vec<Kind> {
    let is_due = |kind: &Kind| {
        let newest = taken.iter().filter(|one| one.is(*kind)).map(|one| one.at).max();
        rules.number(kind.name) > 0 && newest.is_none_or(|newest| newest < kind.due(rules, now))
    };
    if !rules.is_on("autosnap") {
        return Vec::new();
    }
    KINDS.into_iter().filter(is_due).collect()
}

/// The names of those that are to be destroyed, oldest first.
pub(super) fn outdated(rules: &Rules, taken: &[Taken], now: u64) -> Vec<String> {
    if !rules.is_on("autoprune") {
        return Vec::new();
    }
    let mut gone = Vec::new();
    for kind in KINDS {
        let kept = rules.number(kind.name);
        let oldest = now.saturating_sub(kept.saturating_mul(kind.span(rules)));
        let mut of: Vec<&Taken> = taken.iter().filter(|one| one.is(kind)).collect();
        of.sort_by_key(|one| one.at);
        let spare = (of.len() as u64).saturating_sub(kept);
        let old = of.into_iter().take_while(|one| one.at < oldest);
        gone.extend(
            old.take(usize::try_from(spare).unwrap_or(usize::MAX)).map(|one| one.name.clone()),
        );
    }
    gone
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Alarm {
    Warning,
    Critical,
}

/// What is missing of `dataset`: how bad, and the words.
pub(super) fn missing(
    dataset: &str,
    rules: &Rules,
    taken: &[Taken],
    now: u64,
) -> Vec<(Alarm, String)> {
    let mut all = Vec::new();
    for kind in KINDS.into_iter().filter(|kind| rules.number(kind.name) > 0) {
        let limit = |what: &str| rules.age(&format!("{}_{what}", kind.name), kind.unit);
        let warn = limit("warn").filter(|_| !rules.is_on("monitor_dont_warn"));
        let crit = limit("crit").filter(|_| !rules.is_on("monitor_dont_crit"));
        let newest = taken.iter().filter(|one| one.is(kind)).map(|one| one.at).max();
        let Some(newest) = newest else {
            let worst = crit.map(|_| Alarm::Critical).or(warn.map(|_| Alarm::Warning));
            let words = format!("{dataset} has no {} snapshots at all!", kind.name);
            all.extend(worst.map(|alarm| (alarm, words)));
            continue;
        };
        let age = now.saturating_sub(newest);
        let is_over = |limit: Option<u64>| limit.filter(|limit| age > *limit);
        let over = is_over(crit).map(|limit| (Alarm::Critical, limit));
        let over = over.or(is_over(warn).map(|limit| (Alarm::Warning, limit)));
        if let Some((alarm, limit)) = over {
            let (age, limit) = (spoken(age), spoken(limit));
            let words = format!(
                "{dataset} newest {} snapshot is {age} old (should be < {limit})",
                kind.name
            );
            all.push((alarm, words));
        }
    }
    all
}

fn spoken(seconds: u64) -> String {
    let (days, hours) = (seconds / DAY, seconds % DAY / HOUR);
    let (minutes, seconds) = (seconds % HOUR / 60, seconds % 60);
    let parts = [(days, "d"), (hours, "h"), (minutes, "m"), (seconds, "s")];
    let from = parts.iter().position(|(number, _)| *number > 0).unwrap_or(3);
    let shown = parts.iter().skip(from).map(|(number, unit)| format!("{number}{unit}"));
    shown.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::super::conf;
    use super::*;

    fn rules(text: &str) -> Rules {
        conf::read(&format!("[tank]\n{text}")).unwrap().remove(0).rules
    }

    /// Of a day in the middle of a month, whatever the zone.
    fn at(day: u8, hour: u8, minute: u8) -> u64 {
        let moment =
            Moment { year: 2026, month: 6, day, hour, minute, second: 0, ..Moment::default() };
        time::seconds_of(&moment)
    }

    fn taken(kind: &str, at: u64) -> Taken {
        Taken { name: format!("autosnap_2026-06-01_00:00:00_{kind}"), at }
    }

    fn due_at(text: &str, all: &[Taken], now: u64) -> Vec<&'static str> {
        due(&rules(text), all, now).into_iter().map(|kind| kind.name).collect()
    }

    #[test]
    fn one_is_due_when_its_time_has_passed_since_the_last() {
        let now = at(15, 12, 30);
        assert_eq!(due_at("", &[], now), ["hourly", "daily", "monthly"]);
        assert!(due_at("autosnap = no", &[], now).is_empty());
        let all = [
            taken("hourly", at(15, 12, 1)),
            taken("daily", at(14, 23, 59)),
            taken("monthly", at(1, 0, 0)),
        ];
        assert!(due_at("", &all, now).is_empty());
        assert_eq!(due_at("", &all, at(15, 13, 0)), ["hourly"]);
        assert_eq!(due_at("", &all, at(15, 23, 59)), ["hourly", "daily"]);
        let only = "hourly = 0\ndaily = 0\nmonthly = 0\n";
        let frequent = [taken("frequently", at(15, 12, 16))];
        let text = format!("{only}frequently = 2");
        assert!(due_at(&text, &frequent, at(15, 12, 29)).is_empty());
        assert_eq!(due_at(&text, &frequent, at(15, 12, 30)), ["frequently"]);
        // The 15th of June 2026 is a Monday.
        let text = format!("{only}weekly = 2");
        let weekly = [taken("weekly", at(10, 0, 0))];
        assert!(due_at(&text, &weekly, at(15, 23, 29)).is_empty());
        assert_eq!(due_at(&text, &weekly, at(15, 23, 30)), ["weekly"]);
        let text = format!("{only}yearly = 1\nyearly_mon = 7");
        assert_eq!(due_at(&text, &[taken("yearly", at(1, 0, 0) - 400 * DAY)], now), ["yearly"]);
        assert!(due_at(&text, &[taken("yearly", at(1, 0, 0) - 300 * DAY)], now).is_empty());
    }

    #[test]
    fn what_is_too_old_and_too_many_goes() {
        let now = at(15, 12, 30);
        let of = |text: &str, all: &[Taken]| outdated(&rules(text), all, now);
        let hours: Vec<Taken> = (0..10)
            .map(|back| Taken {
                name: format!("autosnap_{back}_hourly"),
                at: now - back * HOUR - 1,
            })
            .collect();
        assert_eq!(
            of("hourly = 4", &hours),
            [
                "autosnap_9_hourly",
                "autosnap_8_hourly",
                "autosnap_7_hourly",
                "autosnap_6_hourly",
                "autosnap_5_hourly",
                "autosnap_4_hourly"
            ]
        );
        assert!(of("hourly = 4\nautoprune = no", &hours).is_empty());
        // Not too many, though old; too many, though not old; and what is somebody else's.
        let old: Vec<Taken> =
            hours.iter().map(|one| Taken { at: one.at - 90 * DAY, ..one.clone() }).collect();
        assert!(of("hourly = 10", &old).is_empty());
        assert_eq!(of("hourly = 9", &old), ["autosnap_9_hourly"]);
        let young: Vec<Taken> = hours.iter().map(|one| Taken { at: now, ..one.clone() }).collect();
        assert!(of("hourly = 4", &young).is_empty());
        let others = ["manual", "hourly", "autosnap_hourly_manual", "zfs-auto-snap_hourly"];
        let others: Vec<Taken> =
            others.iter().map(|name| Taken { name: (*name).into(), at: 5 }).collect();
        assert!(of("hourly = 0", &others).is_empty());
    }

    #[test]
    fn what_is_missing_is_told() {
        let now = at(15, 12, 30);
        let all = [
            taken("hourly", now - 2 * HOUR),
            taken("daily", now - 33 * HOUR),
            taken("monthly", now),
        ];
        let said = missing("tank/a", &rules(""), &all, now);
        assert_eq!(
            said[0],
            (
                Alarm::Warning,
                "tank/a newest hourly snapshot is 2h 0m 0s old (should be < 1h 30m 0s)".into()
            )
        );
        assert_eq!(
            said[1],
            (
                Alarm::Critical,
                "tank/a newest daily snapshot is 1d 9h 0m 0s old (should be < 1d 8h 0m 0s)".into()
            )
        );
        assert_eq!(said.len(), 2);
        assert_eq!(
            missing("tank", &rules("hourly = 0\nmonthly = 0"), &[], now),
            [(Alarm::Critical, "tank has no daily snapshots at all!".into())]
        );
        assert!(missing("tank", &rules("hourly = 0\ndaily = 0\nmonthly = 0"), &[], now).is_empty());
    }
}
