//! `sanoid.conf`, as sanoid reads it.
//!
//! Invariant: what a section leaves open comes from its templates, the last one named first, then from the template
//! `default` of the file, then from what sanoid itself supposes. A value that is not understood is refused with its
//! line: taken for something else, it could cost snapshots.

use std::collections::BTreeMap;

/// What sanoid supposes where nothing is said.
const SUPPOSED: [(&str, &str); 33] = [
    ("frequent_period", "15"),
    ("autoprune", "yes"),
    ("frequently", "0"),
    ("hourly", "48"),
    ("daily", "90"),
    ("weekly", "0"),
    ("monthly", "6"),
    ("yearly", "0"),
    ("prune_defer", "0"),
    ("autosnap", "1"),
    ("hourly_min", "0"),
    ("daily_hour", "23"),
    ("daily_min", "59"),
    ("weekly_wday", "1"),
    ("weekly_hour", "23"),
    ("weekly_min", "30"),
    ("monthly_mday", "1"),
    ("monthly_hour", "0"),
    ("monthly_min", "0"),
    ("yearly_mon", "1"),
    ("yearly_mday", "1"),
    ("yearly_hour", "0"),
    ("yearly_min", "0"),
    ("monitor", "yes"),
    ("monitor_dont_warn", "no"),
    ("monitor_dont_crit", "no"),
    ("hourly_warn", "90m"),
    ("hourly_crit", "360m"),
    ("daily_warn", "28h"),
    ("daily_crit", "32h"),
    ("monthly_warn", "32d"),
    ("monthly_crit", "40d"),
    ("capacity_warn", "80"),
];
/// What may be said beside that; the scripts are not run here.
const OTHERS: [&str; 20] = [
    "use_template",
    "recursive",
    "process_children_only",
    "skip_children",
    "path",
    "frequently_warn",
    "frequently_crit",
    "weekly_warn",
    "weekly_crit",
    "yearly_warn",
    "yearly_crit",
    "capacity_crit",
    "script_timeout",
    "no_inconsistent_snapshot",
    "force_post_snapshot_script",
    "pre_snapshot_script",
    "post_snapshot_script",
    "pruning_script",
    "pre_pruning_script",
    "force_prune",
];
/// What is said with yes or no.
const SWITCHES: [&str; 11] = [
    "recursive",
    "process_children_only",
    "skip_children",
    "autosnap",
    "autoprune",
    "monitor",
    "monitor_dont_warn",
    "monitor_dont_crit",
    "no_inconsistent_snapshot",
    "force_post_snapshot_script",
    "force_prune",
];
/// Scripts that sanoid would run.
const SCRIPTS: [&str; 4] =
    ["pre_snapshot_script", "post_snapshot_script", "pruning_script", "pre_pruning_script"];

type Values = BTreeMap<String, String>;

/// The value of `key` as it is kept: what stands behind a number as a remark is left out, for sanoid reads the digits
/// at its beginning, too.
fn understood(key: &str, value: &str) -> Result<String, &'static str> {
    let is_limit = key.ends_with("_warn") || key.ends_with("_crit");
    match key {
        // Sanoid's own policy has such lines: nothing is said. A number that is nothing would keep nothing.
        _ if value.is_empty() && (SWITCHES.contains(&key) || is_limit) => Ok(String::new()),
        "use_template" | "path" => Ok(value.to_owned()),
        _ if SCRIPTS.contains(&key) => Ok(value.to_owned()),
        "recursive" if value.eq_ignore_ascii_case("zfs") => Ok(value.to_owned()),
        _ if SWITCHES.contains(&key) => match yes_or_no(value) {
            Some(_) => Ok(value.to_owned()),
            None => Err("neither yes nor no"),
        },
        _ if is_limit && !key.starts_with("capacity_") => match seconds(value, 1) {
            Some(_) => Ok(value.to_owned()),
            None => Err("not a time"),
        },
        _ => number(value, key.starts_with("capacity_")).ok_or("not a number"),
    }
}

fn yes_or_no(value: &str) -> Option<bool> {
    match value.to_ascii_lowercase().as_str() {
        "1" | "yes" | "true" | "on" => Some(true),
        "0" | "no" | "false" | "off" => Some(false),
        _ => None,
    }
}

fn number(value: &str, percent: bool) -> Option<String> {
    let remark = value.find(['#', ';']).filter(|&at| value[..at].ends_with(char::is_whitespace));
    let digits = remark.map_or(value, |at| &value[..at]).trim();
    let digits = if percent { digits.strip_suffix('%').unwrap_or(digits) } else { digits };
    let is_number = digits.bytes().all(|one| one.is_ascii_digit()) && digits.parse::<u64>().is_ok();
    is_number.then(|| digits.to_owned())
}

/// A time in seconds; a bare number stands for `unit` seconds.
fn seconds(text: &str, unit: u64) -> Option<u64> {
    let text = text.to_ascii_lowercase();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let unit = match suffix.trim() {
        "" => unit,
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        "w" => 7 * 86_400,
        "y" => 31_557_600,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

/// How what is below a dataset is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Below {
    /// It is left alone.
    Nothing,
    /// Each as a dataset of its own, but for those that have a section.
    Each,
    /// Snapshots are taken of all together.
    Together,
}

/// What is said of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) dataset: String,
    pub(super) below: Below,
    /// The dataset itself is left alone.
    pub(super) only_below: bool,
    pub(super) rules: Rules,
}

/// The rules of a dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rules(Values);

impl Rules {
    fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    pub(super) fn is_on(&self, name: &str) -> bool {
        yes_or_no(self.text(name)).unwrap_or(false)
    }

    pub(super) fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or(0)
    }

    /// A time in seconds; a bare number stands for `unit` seconds. None: nothing is said, or nothing is wanted.
    pub(super) fn age(&self, name: &str, unit: u64) -> Option<u64> {
        seconds(self.text(name), unit).filter(|age| *age > 0)
    }

    /// Scripts that are named and not run.
    pub(super) fn scripts(&self) -> Vec<&'static str> {
        SCRIPTS.into_iter().filter(|name| !self.text(name).is_empty()).collect()
    }
}

/// Reads a file: its sections, those of datasets before those of what lies below them.
///
/// # Errors
/// What is wrong, with its line.
pub(super) fn read(text: &str) -> Result<Vec<Section>, String> {
    let (mut order, mut all): (Vec<String>, BTreeMap<String, Values>) = Default::default();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let name = name.trim().to_owned();
            if all.insert(name.clone(), Values::new()).is_some() {
                return Err(format!("line {number}: [{name}] stands here a second time"));
            }
            order.push(name);
            continue;
        }
        let (key, value) =
            line.split_once('=').ok_or(format!("line {number}: no 'name = value'"))?;
        let (key, value) = (key.trim().to_owned(), value.trim().to_owned());
        let name = order.last().map(String::as_str).unwrap_or_default();
        let section = all.get_mut(name);
        let section = section.ok_or(format!("line {number}: it belongs to no [section]"))?;
        if name == "version" {
            section.insert(key, value);
            continue;
        }
        let is_known =
            OTHERS.contains(&key.as_str()) || SUPPOSED.iter().any(|(name, _)| *name == key);
        if !is_known {
            return Err(format!("line {number}: '{key}' is not known"));
        }
        let kept = understood(&key, &value);
        let kept = kept.map_err(|why| format!("line {number}: {key} = {value}: {why}"))?;
        if !kept.is_empty() {
            section.insert(key, kept);
        }
    }
    let is_dataset = |name: &&String| !name.starts_with("template_") && name.as_str() != "version";
    let sections = order.iter().filter(is_dataset).map(|name| section(name, &all));
    let mut sections = sections.collect::<Result<Vec<_>, _>>()?;
    sections.sort_by_key(|one| one.dataset.matches('/').count());
    Ok(sections)
}

fn section(name: &str, all: &BTreeMap<String, Values>) -> Result<Section, String> {
    let own = all.get(name).cloned().unwrap_or_default();
    let supposed = SUPPOSED.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let mut values: Values = supposed.collect();
    let templates = own.get("use_template").map_or("", String::as_str).split(',').map(str::trim);
    let named = templates.filter(|template| !template.is_empty() && *template != "default");
    for template in std::iter::once("default").chain(named) {
        match all.get(&format!("template_{template}")) {
            Some(more) => values.extend(more.clone()),
            None if template == "default" => {}
            None => return Err(format!("[{name}]: there is no template '{template}'")),
        }
    }
    values.extend(own);
    let rules = Rules(values);
    let below = match rules.text("recursive").to_ascii_lowercase().as_str() {
        "zfs" => Below::Together,
        _ if rules.is_on("recursive") && !rules.is_on("skip_children") => Below::Each,
        _ => Below::Nothing,
    };
    let dataset = match rules.text("path") {
        "" => name,
        path => path,
    };
    let only_below = rules.is_on("process_children_only");
    Ok(Section { dataset: dataset.to_owned(), below, only_below, rules })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
# a comment
[tank/home]
    use_template = production,hot
    recursive = yes
    daily = 7
[tank/all]
    use_template = production
    recursive = zfs
    process_children_only = yes
[template_production]
    hourly = 36
    daily = 30
    monthly = 3
    autosnap = yes
[template_hot]
    hourly = 100
    hourly_warn = 2h
[template_default]
    monthly = 12
    yearly = 1
";

    #[test]
    fn what_is_nearest_counts() {
        let all = read(TEXT).unwrap();
        let home = &all[0];
        assert_eq!(
            (home.dataset.as_str(), home.below, home.only_below),
            ("tank/home", Below::Each, false)
        );
        let of = |name: &str| home.rules.number(name);
        assert_eq!(
            [of("hourly"), of("daily"), of("monthly"), of("yearly"), of("weekly")],
            [100, 7, 3, 1, 0]
        );
        assert_eq!(home.rules.age("hourly_warn", 60), Some(7200));
        assert_eq!(home.rules.age("daily_crit", 3600), Some(32 * 3600));
        assert_eq!(home.rules.age("yearly_warn", 1), None);
        assert!(home.rules.is_on("autosnap") && home.rules.is_on("autoprune"));
        assert_eq!((all[1].below, all[1].only_below), (Below::Together, true));
    }

    #[test]
    fn a_remark_behind_a_number_is_left_out() {
        let rules = &read("[a]\ndaily = 7 # a week\nhourly = 3\t; few\ncapacity_warn = 80%")
            .unwrap()[0]
            .rules;
        assert_eq!([rules.number("daily"), rules.number("hourly")], [7, 3]);
    }

    #[test]
    fn what_is_above_comes_first() {
        let all = read("[a/b/c]\n[b]\n[a/b]\n[a]\n").unwrap();
        let names: Vec<&str> = all.iter().map(|one| one.dataset.as_str()).collect();
        assert_eq!(names, ["b", "a", "a/b", "a/b/c"]);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        for (text, words) in [
            ("hourly = 1", "line 1: it belongs to no [section]"),
            ("[a]\nhourly", "line 2: no 'name = value'"),
            ("[a]\n[a]", "line 2: [a] stands here a second time"),
            ("[a]\nhuorly = 1", "line 2: 'huorly' is not known"),
            ("[a]\nuse_template = x", "[a]: there is no template 'x'"),
            // Taken for none, all but the newest snapshot would go.
            ("[a]\ndaily = 9O", "line 2: daily = 9O: not a number"),
            ("[a]\ndaily =", "line 2: daily = : not a number"),
            ("[a]\n\ndaily = -1", "line 3: daily = -1: not a number"),
            ("[a]\ndaily = 90 days", "line 2: daily = 90 days: not a number"),
            (
                "[a]\ndaily = 99999999999999999999",
                "line 2: daily = 99999999999999999999: not a number",
            ),
            ("[a]\nautoprune = no # never", "line 2: autoprune = no # never: neither yes nor no"),
            ("[a]\nrecursive = maybe", "line 2: recursive = maybe: neither yes nor no"),
            ("[a]\nhourly_warn = 5 parsecs", "line 2: hourly_warn = 5 parsecs: not a time"),
        ] {
            assert_eq!(read(text).unwrap_err(), words);
        }
    }
}
