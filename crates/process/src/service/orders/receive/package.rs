//! What a package says of the snapshots in it: the datasets they are of, and what goes with them.
//!
//! Chapter 07, section 11. Invariant: what cannot be read as it should be is left out, never guessed.

use std::collections::{BTreeMap, HashMap};

use cenote_engine::dataset::change::PropertyInput;
use cenote_engine::pool::change::SentRoot;
use cenote_format::nvlist::{NvList, Value};
use cenote_format::property;

/// One dataset of a package.
#[derive(Clone, Debug, Default)]
pub(super) struct Sent {
    /// Its name where it comes from.
    pub(super) name: String,
    /// Its properties, if they were sent.
    pub(super) properties: Option<Vec<PropertyInput>>,
    /// Guids of its snapshots by name.
    pub(super) snapshots: BTreeMap<String, u64>,
    /// Properties of its snapshots.
    pub(super) of_snapshots: BTreeMap<String, Vec<PropertyInput>>,
    /// Tags its snapshots are held with.
    pub(super) holds: BTreeMap<String, Vec<String>>,
    /// Guid of the snapshot that the dataset above it starts from; 0: none.
    pub(super) above: u64,
    /// Where its key is found.
    pub(super) key_location: Option<String>,
    /// It is an encryption root.
    pub(super) is_root: bool,
    /// Guid of the snapshot it is a clone of; 0: none.
    pub(super) origin: u64,
}

/// The list of a package.
#[derive(Clone, Debug, Default)]
pub(super) struct Package {
    /// All below the dataset was sent, too.
    pub(super) is_recursive: bool,
    /// What is encrypted comes as it lies on the disks.
    pub(super) is_raw: bool,
    /// It starts from snapshots of this name.
    pub(super) from: Option<String>,
    /// The datasets.
    pub(super) datasets: Vec<Sent>,
    /// Which of them has the snapshot of a guid, and under which name.
    by_guid: HashMap<u64, (usize, String)>,
}

/// Properties that are made with a dataset, or are no properties of the one that receives.
const LEFT_OUT: [&str; 8] = [
    "volsize",
    "volblocksize",
    "version",
    "encryption",
    "keyformat",
    "keylocation",
    "pbkdf2iters",
    "origin",
];

impl Package {
    pub(super) fn of(list: &NvList) -> Self {
        let all = list.nvlist("fss");
        let datasets =
            all.into_iter().flat_map(NvList::iter).filter_map(|pair| match &pair.value {
                Value::List(sent) => Some(Sent::of(sent)),
                _ => None,
            });
        let datasets: Vec<Sent> = datasets.collect();
        let mut by_guid = HashMap::new();
        for (place, sent) in datasets.iter().enumerate() {
            for (name, guid) in &sent.snapshots {
                by_guid.entry(*guid).or_insert_with(|| (place, name.clone()));
            }
        }
        Self {
            is_recursive: !list.is_empty() && !list.flag("not_recursive"),
            is_raw: list.flag("raw"),
            from: list.string_lossy("fromsnap"),
            datasets,
            by_guid,
        }
    }

    /// The dataset that a snapshot is of, and what it is called.
    pub(super) fn of_snapshot(&self, guid: u64) -> Option<(&Sent, &str)> {
        let (place, name) = self.by_guid.get(&guid)?;
        Some((self.datasets.get(*place)?, name.as_str()))
    }
}

fn name_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Sent {
    /// Which encryption root it has, if it is called `dataset` here.
    pub(super) fn root_of(&self, dataset: String) -> SentRoot {
        SentRoot { dataset, is_root: self.is_root, location: self.key_location.clone() }
    }

    fn of(list: &NvList) -> Self {
        let each = |key: &str| list.nvlist(key).into_iter().flat_map(NvList::iter);
        let numbers = each("snaps").filter_map(|pair| match pair.value {
            Value::Uint64(guid) => Some((name_of(&pair.name), guid)),
            _ => None,
        });
        let of_snapshots = each("snapprops").filter_map(|pair| match &pair.value {
            Value::List(list) => Some((name_of(&pair.name), properties(list))),
            _ => None,
        });
        let holds = each("snapholds").filter_map(|pair| match &pair.value {
            Value::List(list) => {
                let tags = list.iter().map(|pair| name_of(&pair.name));
                Some((name_of(&pair.name), tags.collect()))
            }
            _ => None,
        });
        Self {
            name: list.string_lossy("name").unwrap_or_default(),
            properties: list.nvlist("props").map(properties),
            snapshots: numbers.collect(),
            of_snapshots: of_snapshots.collect(),
            holds: holds.collect(),
            above: list.u64("parentfromsnap").unwrap_or(0),
            key_location: list.nvlist("props").and_then(key_location),
            is_root: list.flag("is_encroot"),
            origin: list.u64("origin").unwrap_or(0),
        }
    }
}

/// Where a key is found that stands with its dataset.
fn key_location(properties: &NvList) -> Option<String> {
    let value = match properties.get("keylocation") {
        Some(Value::List(list)) => list.get("value"),
        other => other,
    };
    let Some(Value::String(text)) = value else { return None };
    let text = name_of(text);
    ["file:///", "https://", "http://"].iter().any(|start| text.starts_with(start)).then_some(text)
}

fn properties(list: &NvList) -> Vec<PropertyInput> {
    let input = |name: &str, value: &Value| match value {
        Value::Uint64(number) => Some(PropertyInput::number(name, *number)),
        Value::String(text) => Some(PropertyInput::text(name, &String::from_utf8_lossy(text))),
        // From some senders: the value with where it comes from.
        Value::List(list) => match list.get("value") {
            Some(Value::Uint64(number)) => Some(PropertyInput::number(name, *number)),
            Some(Value::String(text)) => {
                Some(PropertyInput::text(name, &String::from_utf8_lossy(text)))
            }
            _ => None,
        },
        _ => None,
    };
    let is_made = |name: &str| {
        LEFT_OUT.contains(&name)
            || property::dataset(name)
                .is_some_and(|native| native.is_read_only() || native.is_settable_once())
    };
    let all = list.iter().filter_map(|pair| input(&name_of(&pair.name), &pair.value));
    all.filter(|input| !is_made(&input.name)).collect()
}
