//! `zpool create`.
//!
//! Invariant: nothing is written before every argument has been checked; the pool process makes
//! the pool, and this returns when it answers and the root filesystem is mounted.

use std::path::Path;
use std::process::ExitCode;

use cenote_control::begin::{self, Beginning};
use cenote_control::changes::{Change, MountRequest};
use cenote_control::client::Client;
use cenote_control::look::{self, Look, Uses};
use cenote_control::plan::{CreatePool, PropertySetting, VdevPlan, VdevPlanKind};
use cenote_control::report::{DatasetKind, VdevClass};
use cenote_control::text::number as shown;

use super::common;
use super::vdevs::{devices, grammar, layout, replication};
use crate::getopt::{Parsed, Spec};
use crate::keys;
use crate::leftovers;
use crate::settings::pool::When;
use crate::settings::{compatibility, dataset, number, pool};
use crate::usage::Tool;
use cenote_control::terminal;

const SPEC: Spec = Spec { letters: "fndR:m:o:O:t:", long: &[] };
/// Smallest device in bytes.
pub const DEVICE_LEAST: u64 = 64 << 20;
/// Longest name of a pool in bytes.
const NAME_MOST: usize = 255;

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return Tool::Zpool.wrong("create", &error.message()),
    };
    let options = match Options::read(&parsed) {
        Ok(options) => options,
        Err(message) => return fail(&message),
    };
    let (name, words) = match parsed.operands.split_first() {
        None => return Tool::Zpool.wrong("create", "missing pool name argument"),
        Some((_, [])) => return Tool::Zpool.wrong("create", "missing vdev specification"),
        Some((name, words)) => (name, words),
    };
    let line = common::history_line("zpool", "create", arguments);
    match options.create(&Client::default(), name, words, line) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) if message.is_empty() => ExitCode::FAILURE,
        Err(message) => fail(&message),
    }
}

fn fail(message: &str) -> ExitCode {
    terminal::complain(message);
    ExitCode::FAILURE
}

/// The options, as far as they can be judged without the pool's name.
#[derive(Debug, Default)]
struct Options {
    force: bool,
    dry_run: bool,
    no_features: bool,
    altroot: Option<String>,
    mountpoint: Option<String>,
    temporary_name: Option<String>,
    ashift: Option<u8>,
    compatibility: Option<String>,
    pool: Vec<(String, String)>,
    features: Vec<(String, String)>,
    root: Vec<(String, String)>,
}

impl Options {
    fn read(parsed: &Parsed) -> Result<Options, String> {
        let mut options = Options {
            force: parsed.has('f'),
            dry_run: parsed.has('n'),
            no_features: parsed.has('d'),
            ..Options::default()
        };
        for (letter, argument) in &parsed.options {
            let text = argument.as_deref().unwrap_or("");
            let pair = || {
                let split = text.split_once('=');
                split.ok_or_else(|| format!("missing '=' for -{letter} option"))
            };
            match letter {
                'R' if !text.starts_with('/') => {
                    return Err(format!(
                        "invalid alternate root '{text}': must be an absolute path"
                    ));
                }
                'R' => options.altroot = Some(text.to_owned()),
                'm' => options.root_property("mountpoint", text)?,
                'o' => {
                    let (name, value) = pair()?;
                    options.pool_property(name, value)?;
                }
                'O' => {
                    let (name, value) = pair()?;
                    options.root_property(name, value)?;
                }
                't' if text.contains('/') => {
                    return Err(format!(
                        "cannot create '{text}': invalid character '/' in temporary name\nuse \
                         'zfs create' to create a dataset"
                    ));
                }
                't' => {
                    if let Some(problem) = name_problem(text) {
                        return Err(format!("cannot open '{text}': {problem}"));
                    }
                    options.temporary_name = Some(text.to_owned());
                }
                _ => {}
            }
        }
        if !options.features.is_empty() && options.pool.iter().any(|(name, _)| name == "version") {
            let words = "'feature@' and 'version' properties cannot be specified together";
            return Err(words.to_owned());
        }
        Ok(options)
    }

    fn pool_property(&mut self, name: &str, value: &str) -> Result<(), String> {
        let twice = |name: &str| Err(format!("property '{name}' specified multiple times"));
        if let Some(feature) = name.strip_prefix("feature@") {
            if self.features.iter().any(|(other, _)| other == feature) {
                return twice(name);
            }
            self.features.push((feature.to_owned(), value.to_owned()));
            return Ok(());
        }
        let known = pool::native(name).map(|property| property.name);
        let name =
            known.ok_or_else(|| format!("property '{name}' is not a valid pool property"))?;
        match name {
            "altroot" if self.altroot.is_some() => return twice(name),
            "altroot" => self.altroot = Some(value.to_owned()),
            "ashift" if self.ashift.is_some() => return twice(name),
            "ashift" => self.ashift = ashift(value)?,
            "compatibility" if self.compatibility.is_some() => return twice(name),
            "compatibility" => self.compatibility = Some(value.to_owned()),
            _ if self.pool.iter().any(|(other, _)| other == name) => return twice(name),
            _ => self.pool.push((name.to_owned(), value.to_owned())),
        }
        Ok(())
    }

    fn root_property(&mut self, name: &str, value: &str) -> Result<(), String> {
        let invalid = || format!("property '{name}' is not a valid filesystem property");
        let applies = dataset::native(name)
            .map(|property| property.types.contains(cenote_control::property::Types::FILESYSTEM));
        if !applies.unwrap_or_else(|| dataset::is_property(name)) {
            return Err(invalid());
        }
        let name = dataset::native(name).map_or(name, |property| property.name);
        if name == "mountpoint" {
            // the last one counts
            self.mountpoint = Some(value.to_owned());
            return Ok(());
        }
        if self.root.iter().any(|(other, _)| other == name) {
            return Err(format!("property '{name}' specified multiple times"));
        }
        self.root.push((name.to_owned(), value.to_owned()));
        Ok(())
    }

    fn create(
        &self,
        client: &Client,
        name: &str,
        words: &[String],
        command: String,
    ) -> Result<(), String> {
        if name.contains('/') {
            return Err(format!(
                "cannot create '{name}': invalid character '/' in pool name\nuse 'zfs create' to \
                 create a dataset"
            ));
        }
        if let Some(problem) = name_problem(name) {
            return Err(format!(
                "cannot create '{name}': {problem}\npool name may have been omitted"
            ));
        }
        let mut vdevs = self.vdevs(words)?;
        self.mountpoint_is_fine(name)?;
        if self.dry_run {
            terminal::out(&layout::created(name, &vdevs));
            return Ok(());
        }
        vdevs.iter_mut().for_each(|vdev| vdev.ashift = self.ashift);
        let cannot = |words: String| format!("cannot create '{name}': {words}");
        let properties = self.pool_settings().map_err(cannot)?;
        let features = self.features(name)?;
        let (root_properties, root_key) = self.root_settings(name, &features)?;
        refuse_small(name, &vdevs)?;
        let imported = self.temporary_name.as_deref().unwrap_or(name);
        if client.knows(imported) && !leftovers::clear(client, imported) {
            return Err(cannot("pool already exists".to_owned()));
        }
        let plan = CreatePool {
            name: name.to_owned(),
            temporary_name: self.temporary_name.clone(),
            altroot: self.altroot.clone(),
            vdevs,
            properties,
            features,
            root_properties,
            root_key,
            command,
        };
        begin::start(&Beginning::Create(Box::new(plan))).map_err(|f| f.message)?;
        mount(client, imported)
    }

    /// Reads the specification of vdevs, and checks it.
    fn vdevs(&self, words: &[String]) -> Result<Vec<VdevPlan>, String> {
        let vdevs = grammar::parse(words, &mut |word| devices::resolve(word))?;
        let mut problems = checked(&vdevs, self.force)?;
        let normal = vdevs.iter().any(|vdev| vdev.class == VdevClass::Normal);
        if problems.is_empty() && !normal {
            problems.push("at least one general top-level vdev must be specified".to_owned());
        }
        if problems.is_empty()
            && !self.force
            && let Err(words) = replication::of_plan(&vdevs)
        {
            problems.push(words);
        }
        refuse(&problems, self.force)?;
        Ok(vdevs)
    }

    /// The properties that are stored in the pool, checked; `altroot`, which is not stored, too.
    fn pool_settings(&self) -> Result<Vec<PropertySetting>, String> {
        let mut properties = Vec::new();
        for (property, value) in &self.pool {
            properties.push(pool::parse(property, value, When::Creation)?);
        }
        if let Some(ashift) = self.ashift {
            properties.push(PropertySetting::number("ashift", u64::from(ashift)));
        }
        if let Some(value) = &self.compatibility {
            properties.push(PropertySetting::text("compatibility", value));
        }
        // not stored in pools
        properties.retain(|setting| setting.name != "cachefile");
        if let Some(altroot) = &self.altroot {
            pool::parse("altroot", altroot, When::Creation)?;
        }
        Ok(properties)
    }

    /// Whether the root filesystem can be mounted where it should be.
    fn mountpoint_is_fine(&self, name: &str) -> Result<(), String> {
        let wanted = self.mountpoint.clone().unwrap_or_else(|| format!("/{name}"));
        if matches!(wanted.as_str(), "legacy" | "none") {
            return Ok(());
        }
        if !wanted.starts_with('/') {
            return Err(format!(
                "invalid mountpoint '{wanted}': must be an absolute path, 'legacy', or 'none'"
            ));
        }
        let place = format!("{}{wanted}", self.altroot.as_deref().unwrap_or(""));
        let advice = "use '-m' option to provide a different default";
        match std::fs::read_dir(Path::new(&place)).map(|mut entries| entries.next().is_some()) {
            Ok(true) => Err(format!("mountpoint '{place}' exists and is not empty\n{advice}")),
            Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
                Err(format!("mountpoint '{place}' : Not a directory\n{advice}"))
            }
            _ => Ok(()),
        }
    }

    /// The features to enable.
    fn features(&self, name: &str) -> Result<Vec<String>, String> {
        let cannot = |words: String| format!("cannot create '{name}': {words}");
        let allowed = match &self.compatibility {
            Some(value) => {
                compatibility::allowed(value).map_err(|words| format!("Error: {words}"))?
            }
            None => compatibility::shipped(compatibility::PORTABLE).unwrap_or_default(),
        };
        let mut wanted =
            if self.no_features { compatibility::Features::new() } else { allowed.clone() };
        for (feature, value) in &self.features {
            let enable = pool::feature(feature, value, When::Creation).map_err(cannot)?;
            let known = cenote_control::feature::by_name(feature).map(|known| known.name());
            let Some(known) = known else { continue };
            if !enable {
                wanted.remove(known);
                continue;
            }
            if self.compatibility.is_some() && !allowed.contains(known) {
                terminal::complain(&format!(
                    "Warning: feature \"{known}\" enabled but is not in specified 'compatibility' \
                     feature set."
                ));
            }
            wanted.insert(known);
        }
        Ok(compatibility::with_dependencies(&wanted))
    }

    fn root_settings(
        &self,
        name: &str,
        features: &[String],
    ) -> Result<(Vec<PropertySetting>, Option<cenote_control::plan::NewKey>), String> {
        let cannot = |words: String| format!("cannot create '{name}': {words}");
        let mut subject = dataset::Subject::new(DatasetKind::Filesystem, true);
        if !features.iter().any(|feature| feature == "large_blocks") {
            subject.block_most = 128 << 10;
        }
        let mut settings = Vec::new();
        let mountpoint = self.mountpoint.as_ref().map(|value| ("mountpoint", value.as_str()));
        let all = self.root.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        for (property, value) in mountpoint.into_iter().chain(all) {
            settings.push(dataset::parse(property, value, &subject).map_err(cannot)?);
        }
        dataset::complete(&mut settings).map_err(cannot)?;
        let key = keys::new_key(name, &mut settings, None).map_err(cannot)?;
        if key.is_some() && !features.iter().any(|feature| feature == "encryption") {
            return Err(cannot("Encryption feature not enabled.".to_owned()));
        }
        Ok((settings, key))
    }
}

fn ashift(value: &str) -> Result<Option<u8>, String> {
    let number = number::parse(value).map_err(|_| "ashift must be a number.".to_owned())?;
    if number != 0 && !pool::ASHIFT.contains(&number) {
        let (least, most) = (pool::ASHIFT.start(), pool::ASHIFT.end());
        return Err(format!(
            "invalid 'ashift={number}' property: only values between {least} and {most} are \
             allowed."
        ));
    }
    Ok(u8::try_from(number).ok().filter(|number| *number != 0))
}

/// Reads `-o ashift=` of a command that takes no other property; `Err(None)` asks for the usage.
pub fn only_ashift(parsed: &Parsed) -> Result<Option<u8>, Option<String>> {
    let mut found = None;
    for option in parsed.arguments('o') {
        let (name, value) =
            option.split_once('=').ok_or_else(|| Some("missing '=' for -o option".to_owned()))?;
        if name != "ashift" {
            return Err(None);
        }
        found = ashift(value).map_err(Some)?;
    }
    Ok(found)
}

/// Why a pool cannot be given a name.
pub fn name_problem(name: &str) -> Option<String> {
    if grammar::is_reserved(name) {
        return Some("name is reserved".to_owned());
    }
    if name.len() > NAME_MOST {
        return Some("name is too long".to_owned());
    }
    common::name_problem(name)
}

/// What is in use among the leaves of a plan; with `force` only what nothing overrides.
///
/// # Errors
/// If nobody could look.
pub fn checked(plan: &[VdevPlan], force: bool) -> Result<Vec<String>, String> {
    Ok(look::ask::<Uses>(&Look::Uses(plan.to_vec()))?.left(force))
}

/// Refuses a specification because of these problems, if there are any.
///
/// # Errors
/// The lines to print.
pub fn refuse(problems: &[String], force: bool) -> Result<(), String> {
    if problems.is_empty() {
        return Ok(());
    }
    let advice = match force {
        true => "the following errors must be manually repaired:",
        false => "use '-f' to override the following errors:",
    };
    Err(format!("invalid vdev specification\n{advice}\n{}", problems.join("\n")))
}

/// Refuses devices that are too small or named twice.
///
/// # Errors
/// The lines to print.
pub fn refuse_small(name: &str, plan: &[VdevPlan]) -> Result<(), String> {
    let leaves: Vec<&VdevPlan> = plan.iter().flat_map(VdevPlan::leaves).collect();
    let place = |leaf: &VdevPlan| {
        leaf.path.as_deref().map(|path| {
            std::fs::canonicalize(path).unwrap_or_else(|_| Path::new(path).to_path_buf())
        })
    };
    let mut seen: Vec<std::path::PathBuf> = leaves.iter().filter_map(|leaf| place(leaf)).collect();
    let count = seen.len();
    seen.sort();
    seen.dedup();
    let mut disks = leaves.iter().filter(|leaf| leaf.whole_disk).filter_map(|leaf| place(leaf));
    // As the kernel names them: sda1, but nvme0n1p1.
    let is_part_of = |part: &Path, disk: &Path| {
        let (Some(part), Some(disk)) = (part.to_str(), disk.to_str()) else { return false };
        let rest = part.strip_prefix(disk).and_then(|rest| {
            if disk.ends_with(|c: char| c.is_ascii_digit()) {
                rest.strip_prefix('p')
            } else {
                Some(rest)
            }
        });
        rest.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let overlap = disks.any(|disk| seen.iter().any(|part| is_part_of(part, &disk)));
    if seen.len() < count || overlap {
        return Err(format!(
            "cannot create '{name}': one or more vdevs refer to the same device, or one of\nthe \
             devices is part of an active md or lvm device"
        ));
    }
    let is_small = |leaf: &&VdevPlan| {
        leaf.size < DEVICE_LEAST && matches!(leaf.kind, VdevPlanKind::File | VdevPlanKind::Disk)
    };
    // A distributed spare is as large as what the smallest device offers.
    let is_spare_small = |vdev: &VdevPlan| {
        let has_spares = matches!(vdev.kind, VdevPlanKind::Draid { spares: 1.., .. });
        has_spares
            && vdev
                .children
                .iter()
                .any(|leaf| cenote_control::allocatable(leaf.size) < DEVICE_LEAST)
    };
    let small = leaves.iter().find(|leaf| is_small(leaf));
    if small.is_some() || plan.iter().any(is_spare_small) {
        let least = shown::plain(DEVICE_LEAST);
        let which = small.and_then(|leaf| Some((leaf.path.as_deref()?, shown::bytes(leaf.size))));
        let which = which.map(|(path, size)| format!(": {path} has {size}")).unwrap_or_default();
        return Err(format!(
            "cannot create '{name}': one or more devices is less than the minimum size \
             ({least}){which}"
        ));
    }
    Ok(())
}

fn mount(client: &Client, pool: &str) -> Result<(), String> {
    let mounted = client.order(pool, &Change::Mount(MountRequest::default()).into());
    let warnings = mounted.map_err(|failure| failure.message)?;
    if warnings.is_empty() { Ok(()) } else { Err(warnings.join("\n")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Options, String> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        Options::read(&SPEC.parse(&words).unwrap())
    }

    /// OpenZFS 2.1.11 opens such a pool from 68.5 MiB a device on.
    #[test]
    fn distributed_spares_have_a_least_size() {
        let refused = |layout: &str, size: u64| {
            let words: Vec<String> = layout.split(' ').map(str::to_owned).collect();
            let mut leaf = |path: &str| {
                Ok(VdevPlan { path: Some(path.to_owned()), size, ..VdevPlan::default() })
            };
            refuse_small("tank", &grammar::parse(&words, &mut leaf).unwrap()).is_err()
        };
        let layout = "draid1:2d:4c:1s /a /b /c /d";
        assert!(refused(layout, 68 << 20) && !refused(layout, 69 << 20));
        assert!(!refused("draid1:2d:4c:0s /a /b /c /d", 64 << 20));
    }

    /// Recorded from OpenZFS 2.1.11 in a virtual machine.
    #[test]
    fn refusals_have_the_words_of_openzfs() {
        for (line, words) in [
            (
                "-o ashift=7",
                "invalid 'ashift=7' property: only values between 9 and 16 are allowed.",
            ),
            ("-o ashift=x", "ashift must be a number."),
            ("-o bogus=1", "property 'bogus' is not a valid pool property"),
            ("-o com.x:y=z", "property 'com.x:y' is not a valid pool property"),
            ("-o noequal", "missing '=' for -o option"),
            ("-o comment=hi -o comment=ho", "property 'comment' specified multiple times"),
            (
                "-o version=28 -o feature@lz4_compress=enabled",
                "'feature@' and 'version' properties cannot be specified together",
            ),
            ("-O bogus=1", "property 'bogus' is not a valid filesystem property"),
            ("-O volsize=1G", "property 'volsize' is not a valid filesystem property"),
            ("-R rel", "invalid alternate root 'rel': must be an absolute path"),
        ] {
            assert_eq!(read(line).unwrap_err(), words, "{line}");
        }
        let mountpoint = read("-m relative").unwrap().mountpoint_is_fine("tank");
        let words = "invalid mountpoint 'relative': must be an absolute path, 'legacy', or 'none'";
        assert_eq!(mountpoint, Err(words.to_owned()));
        assert_eq!(name_problem("mirror").as_deref(), Some("name is reserved"));
        assert_eq!(name_problem("1tank").as_deref(), Some("name must begin with a letter"));
        let words = "invalid character '%' in pool name";
        assert_eq!(name_problem("tan%k").as_deref(), Some(words));
    }

    #[test]
    fn features_follow_the_options() {
        let features = |line: &str| read(line).unwrap().features("tank");
        assert_eq!(features("-f").unwrap().len(), 34);
        assert_eq!(features("-d").unwrap().len(), 0);
        assert_eq!(features("-o compatibility=grub2").unwrap().len(), 11);
        assert_eq!(features("-o compatibility=legacy").unwrap().len(), 0);
        let some = features("-d -o feature@async_destroy=enabled -o feature@hole_birth=enabled");
        assert_eq!(some.unwrap(), ["async_destroy", "enabled_txg", "hole_birth"]);
        let less = features("-o feature@encryption=disabled").unwrap();
        assert!(less.len() == 33 && !less.iter().any(|name| name == "encryption"));
        let more = features("-o feature@blake3=enabled").unwrap();
        assert!(more.iter().any(|name| name == "blake3"));
        let words = "cannot create 'tank': feature 'bogus' unsupported by kernel";
        assert_eq!(features("-o feature@bogus=enabled"), Err(words.to_owned()));
        let words = "Error: could not read/parse feature file(s): bogus ";
        assert_eq!(features("-o compatibility=bogus"), Err(words.to_owned()));
    }

    /// The command of the boot pool in the shell sessions this must run.
    #[test]
    fn a_boot_pool_is_understood() {
        let options = read(
            "-o cachefile=/etc/zfs/zpool.cache -o ashift=12 -d -o feature@async_destroy=enabled -o \
             feature@zpool_checkpoint=enabled -O acltype=posixacl -O canmount=off -O \
             compression=lz4 -O devices=off -O normalization=formD -O relatime=on -O xattr=sa -O \
             mountpoint=/boot -R /mnt",
        )
        .unwrap();
        assert_eq!(options.ashift, Some(12));
        let features = options.features("bpool").unwrap();
        assert_eq!(features, ["async_destroy", "zpool_checkpoint"]);
        let (settings, key) = options.root_settings("bpool", &features).unwrap();
        assert!(key.is_none());
        assert_eq!(settings[0], PropertySetting::text("mountpoint", "/boot"));
        assert!(settings.contains(&PropertySetting::number("acltype", 1)));
        assert!(settings.contains(&PropertySetting::number("utf8only", 1)));
    }
}
