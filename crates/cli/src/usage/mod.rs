//! Usage texts, all made from one table for each tool.
//!
//! Invariant: the same words, tabs and order as OpenZFS 2.3 prints.

mod zfs;
mod zpool;

use std::process::ExitCode;

use cenote_control::properties::{DATASET, POOL};

use cenote_control::terminal;

/// A tool with a command table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// `zpool`.
    Zpool,
    /// `zfs`.
    Zfs,
}

impl Tool {
    fn name(self) -> &'static str {
        match self {
            Tool::Zpool => "zpool",
            Tool::Zfs => "zfs",
        }
    }

    fn commands(self) -> &'static [(u8, &'static str, &'static str)] {
        match self {
            Tool::Zpool => zpool::COMMANDS,
            Tool::Zfs => zfs::COMMANDS,
        }
    }

    /// Whether there is such a command, implemented or not.
    pub fn has(self, command: &str) -> bool {
        self.commands().iter().any(|(_, name, _)| *name == command)
    }

    /// Prints what `help` (or `--help`, which takes no topic) asks for.
    pub fn help(self, command: &str, topics: &[String]) -> ExitCode {
        match topics.first().map(String::as_str) {
            Some(topic) if command == "help" && self.has(topic) => {
                terminal::out(&self.of(topic));
                ExitCode::SUCCESS
            }
            Some(topic) if command == "help" => {
                terminal::complain(&format!("there is no help on '{topic}'"));
                ExitCode::FAILURE
            }
            _ => {
                terminal::out(&self.overview());
                ExitCode::SUCCESS
            }
        }
    }

    /// Refuses a command that does not exist, or that is not implemented.
    pub fn refuse_command(self, command: &str) -> ExitCode {
        if self.has(command) {
            terminal::complain(&format!("{} {command} is not supported yet", self.name()));
            return ExitCode::FAILURE;
        }
        self.refuse(&format!("unrecognized command '{command}'"))
    }

    /// Says what is wrong with the command line, and which commands there are.
    pub fn refuse(self, message: &str) -> ExitCode {
        terminal::complain(message);
        terminal::complain(self.overview().trim_end());
        ExitCode::from(2)
    }

    fn see_help(self) -> String {
        let name = self.name();
        format!("For further help on a command or topic, run: {name} help [<topic>]\n")
    }

    /// The help text with all commands.
    pub fn overview(self) -> String {
        let name = self.name();
        let mut text =
            format!("usage: {name} command args ...\nwhere 'command' is one of the following:\n");
        let mut group = None;
        for (of, _, syntax) in self.commands() {
            if group != Some(of) {
                text.push('\n');
                group = Some(of);
            }
            text.push_str(&tabbed(syntax));
        }
        if self == Tool::Zfs {
            text.push_str("\nEach dataset is of the form: pool/[dataset/]*dataset[@name]\n");
            text.push_str(AFTER_ZFS);
        }
        text.push('\n');
        text.push_str(&self.see_help());
        text
    }

    /// The usage text of one command.
    pub fn of(self, command: &str) -> String {
        let mut text = "usage:\n".to_owned();
        for (_, name, syntax) in self.commands() {
            if *name == command {
                text.push_str(&tabbed(syntax));
            }
        }
        match (self, command) {
            (Tool::Zpool, "list" | "get" | "set") => text.push_str(&pool_properties()),
            (Tool::Zfs, "list" | "get" | "set" | "inherit") => {
                text.push_str(&dataset_properties());
            }
            (Tool::Zfs, _) => {
                text.push_str(AFTER_ZFS);
                text.push('\n');
                text.push_str(&self.see_help());
            }
            _ => {}
        }
        text
    }

    /// Complains and prints the usage of a command; what a wrong command line ends with.
    pub fn wrong(self, command: &str, message: &str) -> ExitCode {
        if !message.is_empty() {
            terminal::complain(message);
        }
        terminal::complain(self.of(command).trim_end_matches('\n'));
        ExitCode::from(2)
    }
}

const AFTER_ZFS: &str = "\nFor the property list, run: zfs set|get\n\nFor the delegated permission \
                         list, run: zfs allow|unallow\n";

fn tabbed(syntax: &str) -> String {
    syntax.lines().map(|line| format!("\t{line}\n")).collect()
}

fn pool_properties() -> String {
    let mut text = "\nthe following properties are supported:\n\n".to_owned();
    text.push_str(&format!("\t{:<19}  {:>4}   VALUES\n\n", "PROPERTY", "EDIT"));
    for editable in [false, true] {
        let mut names: Vec<_> =
            POOL.iter().filter(|i| i.editable == editable && !i.values.is_empty()).collect();
        names.sort_by_key(|info| info.name);
        for info in names {
            let edit = if editable { "YES" } else { "NO" };
            text.push_str(&format!("\t{:<19}  {edit:>4}   {}\n", info.name, info.values));
        }
    }
    let states = "disabled | enabled | active";
    text.push_str(&format!("\t{:<19}  {:>4}   {states}\n", "feature@...", "YES"));
    text.push_str("\nThe feature@ properties must be appended with a feature name.\n");
    text.push_str("See zpool-features(7).\n");
    text
}

/// Properties that are set when a dataset is created and listed with the editable ones.
const AT_CREATION: [&str; 7] = [
    "casesensitivity",
    "encryption",
    "keyformat",
    "normalization",
    "pbkdf2iters",
    "utf8only",
    "volblocksize",
];

/// Properties with an argument, for the list: name, editable, values.
const WITH_ARGUMENT: [(&str, bool, &str); 14] = [
    ("userused@...", false, "<size>"),
    ("groupused@...", false, "<size>"),
    ("projectused@...", false, "<size>"),
    ("userobjused@...", false, "<size>"),
    ("groupobjused@...", false, "<size>"),
    ("projectobjused@...", false, "<size>"),
    ("userquota@...", true, "<size> | none"),
    ("groupquota@...", true, "<size> | none"),
    ("projectquota@...", true, "<size> | none"),
    ("userobjquota@...", true, "<size> | none"),
    ("groupobjquota@...", true, "<size> | none"),
    ("projectobjquota@...", true, "<size> | none"),
    ("written@<snap>", false, "<size>"),
    ("written#<bookmark>", false, "<size>"),
];

fn dataset_properties() -> String {
    let line = |name: &str, edit: bool, inherit: bool, values: &str| {
        let word = |yes: bool| if yes { "YES" } else { "NO" };
        format!("\t{name:<20}  {:>4}  {:>7}   {values}\n", word(edit), word(inherit))
    };
    let mut text = "\nThe following properties are supported:\n\n".to_owned();
    text.push_str(&format!("\t{:<20}  {:>4}  {:>7}   VALUES\n\n", "PROPERTY", "EDIT", "INHERIT"));
    for second in [false, true] {
        let belongs = |name: &str, editable| editable || AT_CREATION.contains(&name);
        let mut infos: Vec<_> = DATASET
            .iter()
            .filter(|i| !i.values.is_empty() && belongs(i.name, i.editable) == second)
            .collect();
        infos.sort_by_key(|info| info.name);
        for info in infos {
            text.push_str(&line(info.name, info.editable, info.inherited, info.values));
        }
    }
    for (name, editable, values) in WITH_ARGUMENT {
        text.push_str(&line(name, editable, false, values));
    }
    text.push_str("\nSizes are specified in bytes with standard units such as K, M, G, etc.\n");
    text.push_str(
        "\nUser-defined properties can be specified by using a name containing a colon (:).\n",
    );
    text.push_str(
        "\nThe {user|group|project}[obj]{used|quota}@ properties must be appended with\na \
         user|group|project specifier of one of these forms:\n    POSIX name      (eg: \
         \"matt\")\n    POSIX id        (eg: \"126829\")\n    SMB name@domain (eg: \
         \"matt@sun\")\n    SMB SID         (eg: \"S-1-234-567-89\")\n",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_has_the_lines_of_openzfs() {
        let text = Tool::Zpool.of("list");
        let start = "usage:\n\tlist [-gHLpPv] [-o property[,...]] [-j [--json-int, \
                     --json-pool-key-guid]] ...\n\t    [-T d|u] [pool] [interval [count]]\n\nthe \
                     following properties are supported:\n\n\tPROPERTY             EDIT   \
                     VALUES\n\n\tallocated              NO   <size>\n";
        assert!(text.starts_with(start), "{text}");
        assert!(text.contains("\taltroot               YES   <path>\n"), "{text}");
        let text = Tool::Zfs.of("get");
        assert!(text.contains("\tPROPERTY              EDIT  INHERIT   VALUES\n"), "{text}");
        assert!(text.contains("\tavailable               NO       NO   <size>\n"), "{text}");
        assert!(text.contains("\tcasesensitivity         NO      YES   sensitive"), "{text}");
        let text = Tool::Zpool.overview();
        assert!(text.contains("following:\n\n\tversion [-j]\n\n\tcreate [-fnd]"), "{text}");
        assert!(text.contains("\texport [-af] <pool> ...\n\tupgrade\n\tupgrade -v\n"), "{text}");
        assert!(Tool::Zfs.overview().contains("\tmount [-j]\n\tmount [-flvO]"));
    }
}
