//! The commands of `zpool` and their syntax.
//!
//! Invariant: one table, in the order of the help text, from which every usage text is made; an
//! empty line of the help stands where the group changes.

/// One command: its group in the help text, name, syntax.
pub const COMMANDS: &[(u8, &str, &str)] = &[
    (0, "version", "version [-j]"),
    (
        1,
        "create",
        "create [-fnd] [-o property=value] ... \n    [-O file-system-property=value] ... \n    [-m mountpoint] [-R root] <pool> <vdev> ...",
    ),
    (1, "destroy", "destroy [-f] <pool>"),
    (2, "add", "add [-afgLnP] [-o property=value] <pool> <vdev> ..."),
    (2, "remove", "remove [-npsw] <pool> <device> ..."),
    (3, "labelclear", "labelclear [-f] <vdev>"),
    (4, "checkpoint", "checkpoint [-d [-w]] <pool> ..."),
    (4, "prefetch", "prefetch -t <type> [<type opts>] <pool>\n    -t ddt <pool>"),
    (
        5,
        "list",
        "list [-gHLpPv] [-o property[,...]] [-j [--json-int, --json-pool-key-guid]] ...\n    [-T d|u] [pool] [interval [count]]",
    ),
    (
        5,
        "iostat",
        "iostat [[[-c [script1,script2,...][-lq]]|[-rw]] [-T d | u] [-ghHjLpPvy]\n    [[pool ...]|[pool vdev ...]|[vdev ...]] [[-n] interval [count]]",
    ),
    (
        5,
        "status",
        "status [--power] [-j [--json-int, --json-flat-vdevs, ...\n    --json-pool-key-guid]] [-c [script1,script2,...]] [-dDegiLpPstvx] ...\n    [-T d|u] [pool] [interval [count]]",
    ),
    (6, "online", "online [--power][-e] <pool> <device> ..."),
    (6, "offline", "offline [--power]|[[-f][-t]] <pool> <device> ..."),
    (6, "clear", "clear [[--power]|[-nF]] <pool> [device]"),
    (6, "reopen", "reopen [-n] <pool>"),
    (7, "attach", "attach [-fsw] [-o property=value] <pool> <device> <new-device>"),
    (7, "detach", "detach <pool> <device>"),
    (7, "replace", "replace [-fsw] [-o property=value] <pool> <device> [new-device]"),
    (
        7,
        "split",
        "split [-gLnPl] [-R altroot] [-o mntopts]\n    [-o property=value] <pool> <newpool> [<device> ...]",
    ),
    (8, "initialize", "initialize [-c | -s | -u] [-w] <-a | <pool> [<device> ...]>"),
    (8, "resilver", "resilver <pool> ..."),
    (8, "scrub", "scrub [-e | -s | -p | -C] [-w] <-a | pool> ..."),
    (8, "trim", "trim [-dw] [-r <rate>] [-c | -s] <-a | <pool> [<device> ...]>"),
    (
        9,
        "import",
        "import [-d dir] [-D]\nimport [-o mntopts] [-o property=value] ... \n    [-d dir | -c cachefile] [-D] [-l] [-f] [-m] [-N] [-R root] [-F [-n]] -a\nimport [-o mntopts] [-o property=value] ... \n    [-d dir | -c cachefile] [-D] [-l] [-f] [-m] [-N] [-R root] [-F [-n]]\n    [--rewind-to-checkpoint] <pool | id> [newpool]",
    ),
    (9, "export", "export [-af] <pool> ..."),
    (9, "upgrade", "upgrade\nupgrade -v\nupgrade [-V version] <-a | pool ...>"),
    (9, "reguid", "reguid [-g guid] <pool>"),
    (10, "history", "history [-il] [<pool>] ..."),
    (10, "events", "events [-vHfj [--json-int] [pool] | -c]"),
    (
        11,
        "get",
        "get [-Hp] [-j [--json-int, --json-pool-key-guid]] ...\n    [-o \"all\" | field[,...]] <\"all\" | property[,...]> <pool> ...",
    ),
    (11, "set", "set <property=value> <pool>\nset <vdev_property=value> <pool> <vdev>"),
    (11, "sync", "sync [pool] ..."),
    (12, "wait", "wait [-Hp] [-T d|u] [-t <activity>[,...]] <pool> [interval]"),
    (13, "ddtprune", "ddtprune -d|-p <amount> <pool>"),
];
