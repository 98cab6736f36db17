//! `zpool upgrade`.
//!
//! Invariant: only features the pool's compatibility set allows are enabled.

use std::process::ExitCode;

use cenote_control::changes::Change;
use cenote_control::client::Client;
use cenote_control::feature::{FEATURE_VERSION, FEATURES, version_is_supported};
use cenote_control::report::PoolReport;

use super::{common, set};
use crate::getopt::Spec;
use crate::settings::compatibility;
use crate::usage::Tool;
use cenote_control::terminal;

const SPEC: Spec = Spec { letters: "avV:", long: &[] };
const HEADING: &str = "This system supports ZFS pool feature flags.\n\n";
const ALL_FLAGS: &str = "All pools are formatted using feature flags.\n\n";
const ALL_ENABLED: &str =
    "Every feature flags pool has all supported and requested features enabled.\n";

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zpool.wrong("upgrade", message);
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    let names = &parsed.operands;
    if let Some(text) = parsed.argument('V') {
        let version: Option<u64> = text.parse().ok();
        if !version.is_some_and(version_is_supported) {
            return wrong(&format!("invalid version '{text}'"));
        }
    }
    if parsed.has('v') {
        if parsed.has('a') || parsed.has('V') || !names.is_empty() {
            return wrong("-v option is incompatible with other arguments");
        }
        terminal::out(&supported());
        return ExitCode::SUCCESS;
    }
    if parsed.has('a') && !names.is_empty() {
        return wrong("-a option should not be used along with a pool name");
    }
    let client = Client::default();
    if !parsed.has('a') && names.is_empty() {
        if parsed.has('V') {
            return wrong("-V option is incompatible with other arguments");
        }
        let asked = common::ask(&client, &[]);
        terminal::out(&listing(&asked.pools));
        return ExitCode::from(u8::from(asked.failed));
    }
    terminal::out(HEADING);
    let asked = common::ask(&client, names);
    let line = common::history_line("zpool", "upgrade", arguments);
    let mut well = !asked.failed;
    let mut changed = false;
    for pool in &asked.pools {
        match upgrade(&client, pool, &line, !parsed.has('a')) {
            Ok(done) => changed |= done,
            Err(message) => {
                terminal::complain(&message);
                well = false;
            }
        }
    }
    if parsed.has('a') && well && !changed {
        terminal::out(
            "All pools are already formatted using feature flags.\n\nEvery feature flags pool \
             already has all supported and requested features enabled.\n",
        );
    }
    ExitCode::from(u8::from(!well))
}

/// Features a pool may have and has not, in the order of the table.
fn missing(pool: &PoolReport) -> Result<Vec<&'static str>, String> {
    let compatibility = pool.properties.value("compatibility").unwrap_or("off");
    let allowed =
        compatibility::allowed(compatibility).map_err(|words| format!("Error: {words}"))?;
    let enabled = set::enabled(pool);
    let names = FEATURES.iter().map(|feature| feature.name());
    Ok(names.filter(|name| allowed.contains(name) && !enabled.contains(name)).collect())
}

/// Upgrades one pool; whether there was something to do.
fn upgrade(client: &Client, pool: &PoolReport, line: &str, named: bool) -> Result<bool, String> {
    let name = &pool.name;
    if pool.pool_version != FEATURE_VERSION {
        return Err(format!(
            "cannot upgrade '{name}': upgrading from version {} is not supported yet",
            pool.pool_version
        ));
    }
    let missing = missing(pool)?;
    if missing.is_empty() {
        if named {
            terminal::out(&format!(
                "Pool '{name}' already has all supported and requested features enabled.\n"
            ));
        }
        return Ok(false);
    }
    let names = compatibility::with_dependencies(&missing.iter().copied().collect());
    let request = common::change(Some(line.to_owned()), Change::EnableFeatures(names));
    client.order(name, &request).map_err(|failure| failure.message)?;
    let mut text = format!("Enabled the following features on '{name}':\n");
    missing.iter().for_each(|feature| text.push_str(&format!("  {feature}\n")));
    text.push('\n');
    terminal::out(&text);
    Ok(true)
}

fn listing(pools: &[PoolReport]) -> String {
    let mut text = HEADING.to_owned();
    let old: Vec<&PoolReport> =
        pools.iter().filter(|pool| pool.pool_version != FEATURE_VERSION).collect();
    if old.is_empty() {
        text.push_str(ALL_FLAGS);
    } else {
        text.push_str(
            "The following pools are formatted with legacy version numbers and can\nbe upgraded \
             to use feature flags.  After being upgraded, these pools\nwill no longer be \
             accessible by software that does not support feature\nflags.\n\nNote that setting a \
             pool's 'compatibility' feature to 'legacy' will\ninhibit upgrades.\n\nVER  \
             POOL\n---  ------------\n",
        );
        for pool in old {
            text.push_str(&format!("{:<5}{}\n", pool.pool_version, pool.name));
        }
        text.push_str("\nUse 'zpool upgrade -v' for a list of available legacy versions.\n");
    }
    let lacking: Vec<(&str, Vec<&str>)> = pools
        .iter()
        .filter(|pool| pool.pool_version == FEATURE_VERSION)
        .filter_map(|pool| Some((pool.name.as_str(), missing(pool).ok()?)))
        .filter(|(_, names)| !names.is_empty())
        .collect();
    if lacking.is_empty() {
        text.push_str(ALL_ENABLED);
        return text;
    }
    text.push_str(
        "\nSome supported features are not enabled on the following pools. Once a\nfeature is \
         enabled the pool may become incompatible with software\nthat does not support the \
         feature. See zpool-features(7) for details.\n\nNote that the pool 'compatibility' \
         feature can be used to inhibit\nfeature upgrades.\n\nPOOL  FEATURE\n---------------\n",
    );
    for (pool, names) in lacking {
        text.push_str(&format!("{pool}\n"));
        names.iter().for_each(|name| text.push_str(&format!("      {name}\n")));
        text.push('\n');
    }
    text.push('\n');
    text
}

fn supported() -> String {
    let mut text = HEADING.to_owned();
    text.push_str("The following features are supported:\n\nFEAT DESCRIPTION\n");
    text.push_str(&"-".repeat(61));
    text.push('\n');
    for feature in FEATURES {
        let note = if feature.read_only_compatible() { " (read-only compatible)" } else { "" };
        text.push_str(&format!("{:<37}{note}\n     {}\n", feature.name(), feature.description));
    }
    text.push_str("\nThe following legacy versions are also supported:\n\nVER  DESCRIPTION\n---  ");
    text.push_str(&"-".repeat(56));
    text.push('\n');
    for (index, description) in VERSIONS.iter().enumerate() {
        text.push_str(&format!("{:>2}   {description}\n", index + 1));
    }
    text.push_str(
        "\nFor more information on a particular version, including supported releases,\nsee the \
         ZFS Administration Guide.\n\n",
    );
    text
}

/// What each version before feature flags brought, from 1.
const VERSIONS: [&str; 28] = [
    "Initial ZFS version",
    "Ditto blocks (replicated metadata)",
    "Hot spares and double parity RAID-Z",
    "zpool history",
    "Compression using the gzip algorithm",
    "bootfs pool property",
    "Separate intent log devices",
    "Delegated administration",
    "refquota and refreservation properties",
    "Cache devices",
    "Improved scrub performance",
    "Snapshot properties",
    "snapused property",
    "passthrough-x aclinherit",
    "user/group space accounting",
    "stmf property support",
    "Triple-parity RAID-Z",
    "Snapshot user holds",
    "Log device removal",
    "Compression using zle (zero-length encoding)",
    "Deduplication",
    "Received properties",
    "Slim ZIL",
    "System attributes",
    "Improved scrub stats",
    "Improved snapshot deletion performance",
    "Improved snapshot creation performance",
    "Multiple vdev replacements",
];

#[cfg(test)]
mod tests {
    use cenote_control::report::Source;

    use super::*;

    fn pool(compatibility: &str, features: &[&str]) -> PoolReport {
        let mut pool =
            PoolReport { name: "old".into(), pool_version: 5000, ..PoolReport::default() };
        pool.properties.set("compatibility", compatibility, Source::Local);
        for name in features {
            pool.properties.set(&format!("feature@{name}"), "enabled", Source::Local);
        }
        pool
    }

    /// Recorded from OpenZFS 2.1.11 in a virtual machine.
    #[test]
    fn what_is_missing_is_listed_as_openzfs_does() {
        let zol = pool("zol-0.6.1", &["async_destroy"]);
        let expected = "This system supports ZFS pool feature flags.\n\nAll pools are formatted \
                        using feature flags.\n\n\nSome supported features are not enabled on the \
                        following pools. Once a\nfeature is enabled the pool may become \
                        incompatible with software\nthat does not support the feature. See \
                        zpool-features(7) for details.\n\nNote that the pool 'compatibility' \
                        feature can be used to inhibit\nfeature upgrades.\n\nPOOL  \
                        FEATURE\n---------------\nold\n      empty_bpobj\n      \
                        lz4_compress\n\n\n";
        assert_eq!(listing(&[zol]), expected);
        let all = ["async_destroy", "empty_bpobj", "lz4_compress"];
        let expected = "This system supports ZFS pool feature flags.\n\nAll pools are formatted \
                        using feature flags.\n\nEvery feature flags pool has all supported and \
                        requested features enabled.\n";
        assert_eq!(listing(&[pool("zol-0.6.1", &all)]), expected);
    }

    #[test]
    fn the_list_of_features_has_the_form_of_openzfs() {
        let text = supported();
        let line = "async_destroy                         (read-only compatible)\n     Destroy \
                    filesystems asynchronously.\n";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("lz4_compress                         \n     LZ4 "), "{text}");
        assert!(
            text.contains("\n 9   refquota and refreservation properties\n10   Cache devices\n")
        );
    }
}
