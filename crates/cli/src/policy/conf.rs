//! `sanoid.conf`, as sanoid reads it.
//!
//! Invariant: what a section leaves open comes from its templates, the last one named first, then from the template
//! `default` of the file, then from what sanoid itself supposes.

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
/// Scripts that sanoid would run.
const SCRIPTS: [&str; 4] =
    ["pre_snapshot_script", "post_snapshot_script", "pruning_script", "pre_pruning_script"];

type Values = BTreeMap<String, String>;

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
        matches!(self.text(name).to_ascii_lowercase().as_str(), "1" | "yes" | "true" | "on")
    }

    pub(super) fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or(0)
    }

    /// A time in seconds; a bare number stands for `unit` seconds. None: nothing is said, or nothing is wanted.
    pub(super) fn age(&self, name: &str, unit: u64) -> Option<u64> {
        let text = self.text(name).to_ascii_lowercase();
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
        number.parse::<u64>().ok()?.checked_mul(unit).filter(|age| *age > 0)
    }

    /// Scripts that are named and not run.
    pub(super) fn scripts(&self) -> Vec<&'static str> {
        SCRIPTS.into_iter().filter(|name| !self.text(name).is_empty()).collect()
    }
}

/// Reads a file.
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
        let section = order.last().and_then(|name| all.get_mut(name));
        let section = section.ok_or(format!("line {number}: it belongs to no [section]"))?;
        let is_known =
            OTHERS.contains(&key.as_str()) || SUPPOSED.iter().any(|(name, _)| *name == key);
        if !is_known && order.last().is_some_and(|name| name != "version") {
            return Err(format!("line {number}: '{key}' is not known"));
        }
        section.insert(key, value);
    }
    let is_dataset = |name: &&String| !name.starts_with("template_") && name.as_str() != "version";
    order.iter().filter(is_dataset).map(|name| section(name, &all)).collect()
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
    fn what_is_wrong_is_told_with_its_place() {
        for (text, words) in [
            ("hourly = 1", "line 1: it belongs to no [section]"),
            ("[a]\nhourly", "line 2: no 'name = value'"),
            ("[a]\n[a]", "line 2: [a] stands here a second time"),
            ("[a]\nhuorly = 1", "line 2: 'huorly' is not known"),
            ("[a]\nuse_template = x", "[a]: there is no template 'x'"),
        ] {
            assert_eq!(read(text).unwrap_err(), words);
        }
    }
}
