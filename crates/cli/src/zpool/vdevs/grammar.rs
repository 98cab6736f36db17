//! The grammar of vdev specifications: `mirror a b log mirror c d spare e`.
//!
//! Invariant: the words of a refusal are those of OpenZFS; devices are looked up by `resolve`, so
//! that the grammar itself touches nothing.

use cenote_control::plan::{VdevPlan, VdevPlanKind};
use cenote_control::report::VdevClass;

/// Most children of a raidz or draid.
const CHILDREN_MOST: usize = 255;
/// Data disks of a draid group if nothing is said.
const DRAID_DATA: u64 = 8;
/// Most distributed spares.
const DRAID_SPARES_MOST: u64 = 100;
/// Most parity.
const PARITY_MOST: u64 = 3;

/// A word that starts a group or changes the class.
enum Word {
    Group { kind: Kind, least: usize, most: usize },
    Class(VdevClass),
}

#[derive(Clone, Copy)]
enum Kind {
    Mirror,
    Raidz(u8),
    Draid(u8),
}

fn keyword(word: &str) -> Option<Word> {
    let class = |class| Some(Word::Class(class));
    match word {
        "mirror" => {
            return Some(Word::Group { kind: Kind::Mirror, least: 2, most: usize::MAX });
        }
        "spare" => return class(VdevClass::Spare),
        "log" => return class(VdevClass::Log),
        "special" => return class(VdevClass::Special),
        "dedup" => return class(VdevClass::Dedup),
        "cache" => return class(VdevClass::Cache),
        _ => {}
    }
    let parity = |digits: &str| match digits {
        "" | "1" => Some(1),
        "2" => Some(2),
        "3" => Some(3),
        _ => None,
    };
    let group = |kind, parity: u8| {
        Some(Word::Group { kind, least: usize::from(parity) + 1, most: CHILDREN_MOST })
    };
    if let Some(digits) = word.strip_prefix("raidz") {
        let parity = parity(digits)?;
        return group(Kind::Raidz(parity), parity);
    }
    let rest = word.strip_prefix("draid")?;
    let parity = parity(rest.split(':').next().unwrap_or(""))?;
    group(Kind::Draid(parity), parity)
}

/// Whether a pool cannot have this name because it starts like a keyword.
pub fn is_reserved(name: &str) -> bool {
    ["mirror", "raidz", "draid", "spare"].iter().any(|word| name.starts_with(word)) || name == "log"
}

/// Reads a specification. `resolve` makes a leaf of a word that is no keyword.
///
/// # Errors
/// The lines to print.
pub fn parse(
    words: &[String],
    resolve: &mut dyn FnMut(&str) -> Result<VdevPlan, String>,
) -> Result<Vec<VdevPlan>, String> {
    let mut parser = Parser {
        rest: words,
        resolve,
        plan: Vec::new(),
        class: VdevClass::Normal,
        seen: Vec::new(),
        is_log_open: false,
    };
    while let Some((word, after)) = parser.rest.split_first() {
        parser.rest = after;
        match keyword(word) {
            Some(Word::Group { kind, least, most }) => parser.group(word, kind, least, most)?,
            Some(Word::Class(class @ (VdevClass::Spare | VdevClass::Cache))) => {
                parser.leaves_of_class(word, class)?;
            }
            Some(Word::Class(class)) => parser.begin_class(word, class)?,
            None => parser.leaf(word)?,
        }
    }
    if parser.is_log_open {
        return invalid("log requires at least 1 device".to_owned());
    }
    if parser.plan.is_empty() {
        return invalid("at least one toplevel vdev must be specified".to_owned());
    }
    Ok(parser.plan)
}

fn invalid<T>(text: String) -> Result<T, String> {
    Err(format!("invalid vdev specification: {text}"))
}

/// A specification that was read up to `rest`.
struct Parser<'a> {
    rest: &'a [String],
    resolve: &'a mut dyn FnMut(&str) -> Result<VdevPlan, String>,
    plan: Vec<VdevPlan>,
    /// The class of what comes.
    class: VdevClass,
    /// Classes that can be given once, and were.
    seen: Vec<VdevClass>,
    /// Nothing follows the keyword `log` yet, which is a mistake; other classes are forgotten.
    is_log_open: bool,
}

impl<'a> Parser<'a> {
    /// Refuses a class that was given before.
    fn once(&mut self, word: &str, class: VdevClass) -> Result<(), String> {
        if self.seen.contains(&class) {
            return invalid(format!("'{word}' can be specified only once"));
        }
        self.seen.push(class);
        Ok(())
    }

    /// The words up to the next keyword.
    fn take_leaves(&mut self) -> &'a [String] {
        let count = self.rest.iter().position(|word| keyword(word).is_some());
        let (leaves, rest) = self.rest.split_at(count.unwrap_or(self.rest.len()));
        self.rest = rest;
        leaves
    }

    /// `spare` or `cache` with the devices behind it.
    fn leaves_of_class(&mut self, word: &str, class: VdevClass) -> Result<(), String> {
        self.once(word, class)?;
        let leaves = self.take_leaves();
        if leaves.is_empty() {
            return invalid(format!("{word} requires at least 1 devices"));
        }
        for leaf in leaves {
            self.plan.push(VdevPlan { class, ..(self.resolve)(leaf)? });
        }
        self.class = VdevClass::Normal;
        Ok(())
    }

    /// `log`, `special` or `dedup`: what follows is of that class.
    fn begin_class(&mut self, word: &str, class: VdevClass) -> Result<(), String> {
        self.is_log_open = class == VdevClass::Log;
        if self.is_log_open {
            self.once(word, class)?;
        }
        self.class = class;
        Ok(())
    }

    fn leaf(&mut self, word: &str) -> Result<(), String> {
        self.plan.push(VdevPlan { class: self.class, ..(self.resolve)(word)? });
        self.is_log_open = false;
        Ok(())
    }

    /// `mirror`, `raidz` or `draid` with the devices behind it.
    fn group(&mut self, word: &str, kind: Kind, least: usize, most: usize) -> Result<(), String> {
        let class = self.class;
        if class == VdevClass::Log && !matches!(kind, Kind::Mirror) {
            let name = if matches!(kind, Kind::Raidz(_)) { "raidz" } else { "draid" };
            return invalid(format!("unsupported 'log' device: {name}"));
        }
        let leaves = self.take_leaves();
        if leaves.len() < least {
            return invalid(format!("{word} requires at least {least} devices"));
        }
        if leaves.len() > most {
            return invalid(format!("{word} supports no more than {most} devices"));
        }
        let mut children = Vec::with_capacity(leaves.len());
        for leaf in leaves {
            children.push(VdevPlan { class, ..(self.resolve)(leaf)? });
        }
        let kind = match kind {
            Kind::Mirror => VdevPlanKind::Mirror,
            Kind::Raidz(parity) => VdevPlanKind::Raidz { parity },
            Kind::Draid(parity) => draid(word, parity, children.len())?,
        };
        self.plan.push(VdevPlan { kind, class, children, ..VdevPlan::default() });
        self.is_log_open = false;
        Ok(())
    }
}

/// Reads what follows `draid`: `[:<data>d][:<children>c][:<spares>s]`.
fn draid(word: &str, parity: u8, children: usize) -> Result<VdevPlanKind, String> {
    let (mut data, mut spares) = (None, 0u64);
    let children = children as u64;
    for part in word.split(':').skip(1) {
        let syntax = || format!("invalid dRAID syntax; expected [:<number><c|d|s>] not '{word}'");
        let end = part.find(|c: char| !c.is_ascii_digit()).ok_or_else(syntax)?;
        let (digits, unit) = part.split_at(end);
        let number: u64 = digits.parse().map_err(|_| syntax())?;
        match unit {
            "d" => data = Some(number),
            "s" => spares = number,
            "c" if number != children => {
                return Err(format!(
                    "invalid number of dRAID children; {number} required but {children} provided"
                ));
            }
            "c" => {}
            _ => return Err(syntax()),
        }
    }
    let parity_disks = u64::from(parity);
    let room = children.saturating_sub(spares).saturating_sub(parity_disks);
    let data = data.unwrap_or_else(|| room.min(DRAID_DATA));
    if parity_disks == 0 || parity_disks > PARITY_MOST {
        return Err(format!(
            "invalid dRAID parity level {parity}; must be between 1 and {PARITY_MOST}"
        ));
    }
    if data == 0 || data > room {
        return Err(format!(
            "requested number of dRAID data disks per group {data} is too high,\nat most {room} \
             disks are available for data"
        ));
    }
    if spares > DRAID_SPARES_MOST || spares > children.saturating_sub(data + parity_disks) {
        return Err(format!(
            "invalid number of dRAID spares {spares}; additional disks would be required"
        ));
    }
    let width = data + parity_disks;
    let rest = children - spares;
    let groups = (1..=rest.max(1)).find(|groups| (groups * width).is_multiple_of(rest.max(1)));
    let byte = |number: u64| u8::try_from(number).unwrap_or(u8::MAX);
    Ok(VdevPlanKind::Draid {
        parity,
        data: byte(data),
        children: byte(children),
        spares: byte(spares),
        groups: byte(groups.unwrap_or(1)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_words(line: &str) -> Result<Vec<VdevPlan>, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        parse(&words, &mut |word| match word.starts_with('/') {
            true => Ok(VdevPlan { path: Some(word.to_owned()), ..VdevPlan::default() }),
            false => Err(format!(
                "cannot open '{word}': no such device in /dev\nmust be a full path or shorthand \
                 device name"
            )),
        })
    }

    /// Recorded from OpenZFS 2.1.11 in a virtual machine (`zpool create -n tank ...`).
    #[test]
    fn refusals_have_the_words_of_openzfs() {
        let unknown = |word: &str| {
            format!(
                "cannot open '{word}': no such device in /dev\nmust be a full path or shorthand \
                 device name"
            )
        };
        let invalid = |words: &str| format!("invalid vdev specification: {words}");
        for (line, words) in [
            ("mirror", invalid("mirror requires at least 2 devices")),
            ("mirror /d/0", invalid("mirror requires at least 2 devices")),
            ("mirror mirror /d/0 /d/1", invalid("mirror requires at least 2 devices")),
            ("raidz /d/0", invalid("raidz requires at least 2 devices")),
            ("raidz2 /d/0 /d/1", invalid("raidz2 requires at least 3 devices")),
            ("raidz3 /d/0 /d/1 /d/2", invalid("raidz3 requires at least 4 devices")),
            ("raidz4 /d/0 /d/1", unknown("raidz4")),
            ("raidz0 /d/0 /d/1", unknown("raidz0")),
            ("draid4 /d/0 /d/1 /d/2 /d/3", unknown("draid4")),
            ("nope", unknown("nope")),
            ("draid /d/0", invalid("draid requires at least 2 devices")),
            ("draid2:1d:3c:0s /d/0 /d/1", invalid("draid2:1d:3c:0s requires at least 3 devices")),
            (
                "draid:9d /d/0 /d/1 /d/2",
                "requested number of dRAID data disks per group 9 is too high,\nat most 2 disks \
                 are available for data"
                    .to_owned(),
            ),
            (
                "draid1:1d:4c:3s /d/0 /d/1 /d/2 /d/3",
                "requested number of dRAID data disks per group 1 is too high,\nat most 0 disks \
                 are available for data"
                    .to_owned(),
            ),
            (
                "draid1:0d /d/0 /d/1 /d/2",
                "requested number of dRAID data disks per group 0 is too high,\nat most 2 disks \
                 are available for data"
                    .to_owned(),
            ),
            (
                "draid1:x /d/0 /d/1 /d/2",
                "invalid dRAID syntax; expected [:<number><c|d|s>] not 'draid1:x'".to_owned(),
            ),
            (
                "draid1:5c /d/0 /d/1 /d/2",
                "invalid number of dRAID children; 5 required but 3 provided".to_owned(),
            ),
            ("/d/0 log", invalid("log requires at least 1 device")),
            ("/d/0 log log /d/1", invalid("'log' can be specified only once")),
            ("/d/0 log /d/1 log /d/2", invalid("'log' can be specified only once")),
            ("/d/0 cache /d/1 cache /d/2", invalid("'cache' can be specified only once")),
            ("/d/0 cache mirror /d/1 /d/2", invalid("cache requires at least 1 devices")),
            ("/d/0 spare mirror /d/1 /d/2", invalid("spare requires at least 1 devices")),
            ("/d/0 log raidz /d/1 /d/2", invalid("unsupported 'log' device: raidz")),
            ("/d/0 spare", invalid("spare requires at least 1 devices")),
            ("/d/0 cache", invalid("cache requires at least 1 devices")),
        ] {
            assert_eq!(parse_words(line), Err(words), "{line}");
        }
    }

    #[test]
    fn layouts_are_understood() {
        let plan = parse_words(
            "mirror /a /b special mirror /c /d dedup /e log mirror /f /g cache /h spare /i /j",
        )
        .unwrap();
        let shown: Vec<(String, VdevClass, usize)> =
            plan.iter().map(|vdev| (vdev.label(), vdev.class, vdev.children.len())).collect();
        let row = |label: &str, class, children| (label.to_owned(), class, children);
        assert_eq!(
            shown,
            [
                row("mirror", VdevClass::Normal, 2),
                row("mirror", VdevClass::Special, 2),
                row("/e", VdevClass::Dedup, 0),
                row("mirror", VdevClass::Log, 2),
                row("/h", VdevClass::Cache, 0),
                row("/i", VdevClass::Spare, 0),
                row("/j", VdevClass::Spare, 0),
            ]
        );
        let plan = parse_words("raidz2 /a /b /c /d raidz /e /f").unwrap();
        assert_eq!(plan[0].kind, VdevPlanKind::Raidz { parity: 2 });
        assert_eq!(plan[1].kind, VdevPlanKind::Raidz { parity: 1 });
        let plan = parse_words("draid2:1d:5c:1s /a /b /c /d /e").unwrap();
        let draid = VdevPlanKind::Draid { parity: 2, data: 1, children: 5, spares: 1, groups: 4 };
        assert_eq!(plan[0].kind, draid);
        assert_eq!(plan[0].label(), "draid2:1d:5c:1s");
        let plan = parse_words("draid /a /b /c").unwrap();
        let draid = VdevPlanKind::Draid { parity: 1, data: 2, children: 3, spares: 0, groups: 1 };
        assert_eq!(plan[0].kind, draid);
    }

    #[test]
    fn reserved_names() {
        for name in ["mirror", "raidz", "raidz2x", "draid2", "spare", "spares", "log"] {
            assert!(is_reserved(name), "{name}");
        }
        for name in ["tank", "logs", "c0", "cache"] {
            assert!(!is_reserved(name), "{name}");
        }
    }
}
