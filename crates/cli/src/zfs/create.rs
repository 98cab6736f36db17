//! `zfs create`.
//!
//! Invariant: the size and reservation of a volume are worked out here, everything that depends on
//! what is there in the pool process.

use std::process::ExitCode;

use cenote_control::changes::{Change, NewDataset};
use cenote_control::client::Client;
use cenote_control::plan::PropertySetting;
use cenote_control::report::DatasetKind;

use super::common::{self, fail};
use crate::datasets::names;
use crate::getopt::{OptionError, Parsed, Spec};
use crate::keys;
use crate::settings::{dataset, number};
use crate::usage::Tool;
use crate::zpool::common::history_line;
use cenote_control::terminal;

const SPEC: Spec = Spec { letters: "Pb:no:psuvV:", long: &[] };
/// Block size of a volume if nothing is said, in bytes.
const VOLUME_BLOCK: u64 = 16_384;
/// Bytes of an indirect block, and pointers in it.
const INDIRECT_BLOCK: u64 = 128 << 10;
const POINTERS: u64 = 1024;
/// Blocks of metadata a volume has besides its indirect blocks.
const METADATA_BLOCKS: u64 = 7;
/// Copies that metadata has.
const METADATA_COPIES: u64 = 2;

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zfs.wrong("create", message);
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(OptionError::Missing(_)) => return wrong("missing size argument"),
        Err(error) => return wrong(&error.message()),
    };
    let volume = parsed.has('V');
    if !volume && (parsed.has('s') || parsed.has('b')) {
        return wrong("'-s' and '-b' can only be used when creating a volume");
    }
    if volume && parsed.has('u') {
        return wrong("'-u' can only be used when creating a filesystem");
    }
    let what = if volume { "volume" } else { "filesystem" };
    let mut wanted = match Wanted::read(&parsed) {
        Ok(wanted) => wanted,
        Err(message) => return fail(&message),
    };
    let name = match parsed.operands.as_slice() {
        [] => return wrong(&format!("missing {what} argument")),
        [name] => name,
        _ => return wrong("too many arguments"),
    };
    let line = history_line("zfs", "create", arguments);
    match create(&parsed, &mut wanted, name, line) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) if message.is_empty() => ExitCode::FAILURE,
        Err(message) => fail(&message),
    }
}

/// The options.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wanted {
    /// Properties as they were written, and those that options stand for.
    pairs: Vec<(String, String)>,
    /// Size of a volume in bytes.
    volume: Option<u64>,
}

impl Wanted {
    fn read(parsed: &Parsed) -> Result<Wanted, String> {
        let mut wanted = Wanted::default();
        let mut block = None;
        for (letter, argument) in &parsed.options {
            let text = argument.as_deref().unwrap_or("");
            match letter {
                'V' => {
                    let size = number::parse(text)
                        .map_err(|words| format!("bad volume size '{text}': {words}"))?;
                    wanted.volume = Some(size);
                    common::add_pair("volsize", &size.to_string(), &mut wanted.pairs)?;
                }
                'b' => {
                    let size = number::parse(text)
                        .map_err(|words| format!("bad volume block size '{text}': {words}"))?;
                    block = Some(size);
                    common::add_pair("volblocksize", &size.to_string(), &mut wanted.pairs)?;
                }
                'o' => common::pairs(std::iter::once(text), &mut wanted.pairs)?,
                _ => {}
            }
        }
        let Some(size) = wanted.volume else { return Ok(wanted) };
        let given = wanted.pairs.iter().find(|(name, _)| name == "volblocksize");
        let given = given.and_then(|(_, value)| number::parse(value).ok());
        let block = block.or(given).unwrap_or(VOLUME_BLOCK).max(1);
        let size = size.checked_next_multiple_of(block).unwrap_or(size);
        wanted.volume = Some(size);
        for (name, value) in &mut wanted.pairs {
            if name == "volsize" {
                *value = size.to_string();
            }
        }
        let holds = |name: &str| name == "refreservation" || name == "refreserv";
        wanted.pairs.retain(|(name, value)| !(holds(name) && value == "auto"));
        let reserved = wanted.pairs.iter().any(|(name, _)| holds(name));
        if !parsed.has('s') && !reserved {
            let bytes = reservation(size, block);
            wanted.pairs.push(("refreservation".to_owned(), bytes.to_string()));
        }
        Ok(wanted)
    }
}

/// The space a volume of `size` bytes can take, with its metadata; of one copy, whatever property
/// `copies` says: OpenZFS reserves no more.
pub(super) fn reservation(size: u64, block: u64) -> u64 {
    let mut blocks = size / block;
    let mut metadata = METADATA_BLOCKS;
    while blocks > 1 {
        blocks = blocks.div_ceil(POINTERS);
        metadata += blocks;
    }
    size.saturating_add(metadata * METADATA_COPIES * INDIRECT_BLOCK)
}

fn create(parsed: &Parsed, wanted: &mut Wanted, name: &str, line: String) -> Result<(), String> {
    let client = Client::default();
    let verb = if parsed.has('n') { "verify" } else { "create" };
    let cannot = |words: &str| format!("cannot {verb} '{name}': {words}");
    let kind = if wanted.volume.is_some() { DatasetKind::Volume } else { DatasetKind::Filesystem };
    if let Some(problem) = names::new_name_problem(name, &[kind]) {
        return Err(cannot(&problem));
    }
    let pool = names::pool_of(name);
    if !name.contains('/') {
        // With -p what is there already is as good as made.
        return match parsed.has('p') && wanted.volume.is_none() && client.knows(pool) {
            true => Ok(()),
            false => Err(cannot("missing dataset name")),
        };
    }
    if !client.knows(pool) {
        return Err(cannot(&format!("no such pool '{pool}'")));
    }
    if wanted.volume == Some(0) {
        return Err(cannot("volume size cannot be zero"));
    }
    let subject = common::subject(&client, name, kind, true, &wanted.pairs);
    let mut properties = Vec::new();
    for (property, value) in &wanted.pairs {
        let setting = dataset::parse(property, value, &subject).map_err(|words| cannot(&words))?;
        properties.push(setting);
    }
    dataset::complete(&mut properties).map_err(|words| cannot(&words))?;
    say(parsed, wanted, name);
    if parsed.has('n') {
        return Ok(());
    }
    let new = NewDataset {
        name: name.to_owned(),
        volume_size: wanted.volume,
        key: key(&client, name, &mut properties, parsed.has('p')).map_err(|w| cannot(&w))?,
        properties: properties.into_iter().filter(|setting| setting.name != "volsize").collect(),
        parents: parsed.has('p'),
        mount: !parsed.has('u'),
    };
    match common::change(&client, name, Some(line), Change::CreateDataset(new)) {
        true => Ok(()),
        false => Err(String::new()),
    }
}

/// Asks for the key if the dataset becomes an encryption root.
fn key(
    client: &Client,
    name: &str,
    properties: &mut Vec<PropertySetting>,
    parents: bool,
) -> Result<Option<cenote_control::plan::NewKey>, String> {
    if parents && common::exists(client, name) {
        return Ok(None);
    }
    keys::new_key(name, properties, Some(&common::encryption_above(client, name)))
}

/// What `-v`, `-n` and `-P` show.
fn say(parsed: &Parsed, wanted: &Wanted, name: &str) {
    let (dry, exact) = (parsed.has('n'), parsed.has('P'));
    if !parsed.has('v') && !exact {
        return;
    }
    let verb = if dry && !exact { "would create" } else { "create" };
    let mut text = String::new();
    if parsed.has('p') {
        text.push_str(&match exact {
            true => format!("create_ancestors\t{name}\n"),
            false => format!("{verb} ancestors of {name}\n"),
        });
    }
    text.push_str(&match exact {
        true => format!("create\t{name}\n"),
        false => format!("{verb} {name}\n"),
    });
    for (property, value) in &wanted.pairs {
        text.push_str(&match exact {
            true => format!("property\t{property}\t{value}\n"),
            false => format!("\t{property}={value}\n"),
        });
    }
    terminal::out(&text);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Wanted, String> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        Wanted::read(&SPEC.parse(&words).unwrap())
    }

    /// Recorded from OpenZFS 2.1.11 in a virtual machine; its volumes have blocks of 8 KiB.
    #[test]
    fn volumes_reserve_what_openzfs_reserves() {
        let reserve = |line: &str| {
            let wanted = read(line).unwrap();
            let value = |wanted: &Wanted, name: &str| {
                let found = wanted.pairs.iter().find(|(other, _)| other == name);
                found.map(|(_, value)| value.clone()).unwrap_or_default()
            };
            (value(&wanted, "volsize"), value(&wanted, "refreservation"))
        };
        let pair = |size: &str, bytes: &str| (size.to_owned(), bytes.to_owned());
        assert_eq!(reserve("-V 10M -b 8k"), pair("10485760", "13107200"));
        assert_eq!(reserve("-V 10M -b 16k"), pair("10485760", "12582912"));
        assert_eq!(reserve("-V 10M -o volblocksize=8k"), pair("10485760", "13107200"));
        assert_eq!(reserve("-V 8193 -b 8k"), pair("16384", "2113536"));
        assert_eq!(reserve("-V 1.5m -b 8k"), pair("1572864", "3670016"));
        assert_eq!(reserve("-s -V 100G"), pair("107374182400", ""));
        assert_eq!(reserve("-V 10M -o refreservation=5M"), pair("10485760", "5M"));
        let auto = "-V 10M -b 8k -o refreservation=auto";
        assert_eq!(reserve(auto), pair("10485760", "13107200"));
    }

    #[test]
    fn refusals_have_the_words_of_openzfs() {
        for (line, words) in [
            ("-V x", "bad volume size 'x': bad numeric value 'x'"),
            ("-V 1Q", "bad volume size '1Q': invalid numeric suffix 'Q'"),
            ("-o quota", "missing '=' for property=value argument"),
            ("-o atime=on -o atime=off", "property 'atime' specified multiple times"),
            ("-V 10M -o volsize=1M", "property 'volsize' specified multiple times"),
            ("-V 10M -b 8k -o volblocksize=8k", "property 'volblocksize' specified multiple times"),
        ] {
            assert_eq!(read(line), Err(words.to_owned()), "{line}");
        }
    }
}
