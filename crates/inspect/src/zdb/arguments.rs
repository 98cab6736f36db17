//! The command line of `zdb`.
//!
//! Invariant: an option of OpenZFS's `zdb` that is not supported is refused by name, never ignored
//! or taken for something else.

use std::path::PathBuf;

use clap::{ArgAction, Parser};

/// Look inside pools and devices. Reads only; pools are opened straight from their devices.
#[derive(Parser, Debug)]
#[command(name = "zdb", version, disable_help_flag = true, disable_version_flag = true)]
#[command(
    after_help = "POOL alone names the pool's own objects and all its datasets, 'POOL/' its \
root dataset, POOL/NUMBER a dataset by its object. Objects: NUMBER or FIRST:LAST[:TYPES] (A all, d \
directories, f files, m space maps, z ZAPs; '-' excludes).\n\
Exit codes: 0 fine, 1 something is wrong with the pool or cannot be read, 2 usage."
)]
pub struct Arguments {
    /// Show the labels of devices
    #[arg(short = 'l', action = ArgAction::Count)]
    pub labels: u8,
    /// Show the uberblock (with -l: every uberblock of the rings)
    #[arg(short = 'u', action = ArgAction::Count)]
    pub uberblock: u8,
    /// Show the pool's configuration
    #[arg(short = 'C', action = ArgAction::Count)]
    pub config: u8,
    /// Datasets; twice: their objects; 4 times: attributes and content; 5 times: block pointers
    #[arg(short = 'd', action = ArgAction::Count)]
    pub datasets: u8,
    /// Count blocks and look for leaks; twice: by type; 3 times: by level
    #[arg(short = 'b', action = ArgAction::Count)]
    pub blocks: u8,
    /// Verify the checksums of metadata; twice: of every copy of everything
    #[arg(short = 'c', action = ArgAction::Count)]
    pub checksums: u8,
    /// Do not look for leaks
    #[arg(short = 'L')]
    pub no_leaks: bool,
    /// Metaslabs; twice: histograms; 3 times: every record of their space maps
    #[arg(short = 'm', action = ArgAction::Count)]
    pub metaslabs: u8,
    /// The pool's history; twice: internal events too; 3 times: every field
    #[arg(short = 'h', action = ArgAction::Count)]
    pub history: u8,
    /// Intent logs; twice: their blocks; 3 times: their records
    #[arg(short = 'i', action = ArgAction::Count)]
    pub intent: u8,
    /// Dedup statistics
    #[arg(short = 'D', action = ArgAction::Count)]
    pub dedup: u8,
    /// Read a block by its address: POOL VDEV:OFFSET:PSIZE[/LSIZE][:FLAGS], in hexadecimal
    #[arg(short = 'R')]
    pub raw: bool,
    /// The pool is exported (pools are always read from their devices)
    #[arg(short = 'e')]
    pub exported: bool,
    /// Go on after errors (errors never stop a look)
    #[arg(short = 'A', action = ArgAction::Count, hide = true)]
    pub proceed: u8,
    /// Exact numbers (accepted; --json has them)
    #[arg(short = 'P', hide = true)]
    pub parsable: bool,
    /// More of everything
    #[arg(short = 'v', action = ArgAction::Count)]
    pub verbose: u8,
    /// If the newest state does not open, go back to one that does
    #[arg(short = 'F')]
    pub rewind: bool,
    /// Where to look for devices: a directory or a file; may be given several times
    #[arg(short = 'p', value_name = "PATH")]
    pub places: Vec<PathBuf>,
    /// Highest transaction group to use
    #[arg(short = 't', value_name = "TXG")]
    pub txg: Option<u64>,
    /// Key material: FILE for every dataset, or LOCATION=FILE for those with that keylocation
    #[arg(long = "key", value_name = "[LOCATION=]FILE")]
    pub keys: Vec<String>,
    /// Answer as JSON
    #[arg(long)]
    pub json: bool,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    pub help: Option<bool>,
    /// Print version
    #[arg(long, action = ArgAction::Version)]
    pub version: Option<bool>,
    /// Simulate deduplication: not supported
    #[arg(short = 'S', hide = true)]
    simulate: bool,
    /// Verbatim import: not supported
    #[arg(short = 'V', hide = true)]
    verbatim: bool,
    /// Path in a dataset: not supported
    #[arg(short = 'O', hide = true)]
    path: bool,
    /// Copy out of a dataset: not supported
    #[arg(short = 'r', hide = true)]
    copy: bool,
    /// Dump read blocks: not supported
    #[arg(short = 'x', value_name = "DIRECTORY", hide = true)]
    dump: Option<String>,
    /// Checkpointed state: not supported
    #[arg(short = 'k', hide = true)]
    checkpoint: bool,
    /// Embedded block pointer: not supported
    #[arg(short = 'E', hide = true)]
    embedded: bool,
    /// Statistics of ZAPs and so on: not supported
    #[arg(short = 'M', hide = true)]
    groups: bool,
    /// Livelists: not supported
    #[arg(short = 'y', hide = true)]
    livelists: bool,
    /// Log space map statistics, zstd headers, vdev tests: not supported
    #[arg(short = 'Z', hide = true)]
    zstd: bool,
    /// Statistics of I/O: not supported
    #[arg(short = 's', hide = true)]
    statistics: bool,
    /// Options of the module: not supported
    #[arg(short = 'o', value_name = "NAME=VALUE", hide = true)]
    tunable: Vec<String>,
    /// Cache file: not supported
    #[arg(short = 'U', value_name = "FILE", hide = true)]
    cachefile: Option<String>,
    /// Most I/O in flight: not supported
    #[arg(short = 'I', value_name = "NUMBER", hide = true)]
    inflight: Option<u64>,
    /// Device (-l), pool or dataset, then objects, vdevs or an address
    #[arg(allow_negative_numbers = true)]
    pub operands: Vec<String>,
}

impl Arguments {
    /// An option that `zdb` has and that is not supported here, with what to do instead.
    pub fn unsupported(&self) -> Option<(&'static str, &'static str)> {
        let options = [
            (self.simulate, "-S", "-D shows the statistics of dedup tables"),
            (self.verbatim, "-V", "pools are opened from their labels: leave it out"),
            (self.path, "-O", "'cenote ls -l POOL/DATASET:/PATH' shows a path"),
            (self.copy, "-r", "'cenote cp POOL/DATASET:/PATH TARGET' copies"),
            (self.dump.is_some(), "-x", "-R POOL ADDRESS:r writes a block to the output"),
            (self.checkpoint, "-k", "-t TXG opens an older state"),
            (self.embedded, "-E", "-dddddd shows embedded blocks"),
            (self.groups, "-M", "-mm shows the histogram of each metaslab"),
            (self.livelists, "-y", "-b looks for leaks"),
            (self.zstd, "-Z", "-R POOL ADDRESS:d decompresses a block"),
            (self.statistics, "-s", "'zpool iostat' shows statistics"),
            (!self.tunable.is_empty(), "-o", "there are no module options: leave it out"),
            (self.cachefile.is_some(), "-U", "name places of devices with -p"),
            (self.inflight.is_some(), "-I", "leave it out"),
        ];
        let found = options.into_iter().find(|(given, _, _)| *given);
        found.map(|(_, option, instead)| (option, instead))
    }

    /// Something of a pool is asked for by name.
    pub fn asks(&self) -> bool {
        let counts = [
            self.uberblock,
            self.config,
            self.datasets,
            self.blocks,
            self.checksums,
            self.metaslabs,
            self.history,
            self.intent,
            self.dedup,
        ];
        counts.iter().any(|count| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
        let parsed = Arguments::try_parse_from(["zdb", "-x", "d", "tank"]).unwrap();
        assert_eq!(parsed.unsupported().map(|(option, _)| option), Some("-x"));
        let parsed = Arguments::try_parse_from(["zdb", "-dddd", "tank/a", "-1", "3:-1:f"]).unwrap();
        assert_eq!((parsed.datasets, parsed.operands.len()), (4, 3));
        assert!(parsed.unsupported().is_none() && parsed.asks());
    }
}
