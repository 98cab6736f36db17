//! The commands of `zfs` and their syntax.
//!
//! Invariant: one table, in the order of the help text, from which every usage text is made; an
//! empty line of the help stands where the group changes.

/// One command: its group in the help text, name, syntax.
pub const COMMANDS: &[(u8, &str, &str)] = &[
    (0, "version", "version [-j]"),
    (
        1,
        "create",
        "create [-Pnpuv] [-o property=value] ... <filesystem>\ncreate [-Pnpsv] [-b blocksize] [-o property=value] ... -V <size> <volume>",
    ),
    (
        1,
        "destroy",
        "destroy [-fnpRrv] <filesystem|volume>\ndestroy [-dnpRrv] <filesystem|volume>@<snap>[%<snap>][,...]\ndestroy <filesystem|volume>#<bookmark>",
    ),
    (2, "snapshot", "snapshot [-r] [-o property=value] ... <filesystem|volume>@<snap> ..."),
    (2, "rollback", "rollback [-rRf] <snapshot>"),
    (2, "clone", "clone [-p] [-o property=value] ... <snapshot> <filesystem|volume>"),
    (2, "promote", "promote <clone-filesystem>"),
    (
        2,
        "rename",
        "rename [-f] <filesystem|volume|snapshot> <filesystem|volume|snapshot>\nrename -p [-f] <filesystem|volume> <filesystem|volume>\nrename -u [-f] <filesystem> <filesystem>\nrename -r <snapshot> <snapshot>",
    ),
    (2, "bookmark", "bookmark <snapshot|bookmark> <newbookmark>"),
    (
        2,
        "program",
        "program [-jn] [-t <instruction limit>] [-m <memory limit (b)>]\n    <pool> <program file> [lua args...]",
    ),
    (
        3,
        "list",
        "list [-Hp] [-j [--json-int]] [-r|-d max] [-o property[,...]] [-s property]...\n    [-S property]... [-t type[,...]] [filesystem|volume|snapshot] ...",
    ),
    (4, "set", "set [-u] <property=value> ... <filesystem|volume|snapshot> ..."),
    (
        4,
        "get",
        "get [-rHp] [-j [--json-int]] [-d max] [-o \"all\" | field[,...]]\n    [-t type[,...]] [-s source[,...]]\n    <\"all\" | property[,...]> [filesystem|volume|snapshot|bookmark] ...",
    ),
    (4, "inherit", "inherit [-rS] <property> <filesystem|volume|snapshot> ..."),
    (4, "upgrade", "upgrade [-v]\nupgrade [-r] [-V version] <-a | filesystem ...>"),
    (
        5,
        "userspace",
        "userspace [-Hinp] [-o field[,...]] [-s field] ...\n    [-S field] ... [-t type[,...]] <filesystem|snapshot|path>",
    ),
    (
        5,
        "groupspace",
        "groupspace [-Hinp] [-o field[,...]] [-s field] ...\n    [-S field] ... [-t type[,...]] <filesystem|snapshot|path>",
    ),
    (
        5,
        "projectspace",
        "projectspace [-Hp] [-o field[,...]] [-s field] ... \n    [-S field] ... <filesystem|snapshot|path>",
    ),
    (
        6,
        "project",
        "project [-d|-r] <directory|file ...>\nproject -c [-0] [-d|-r] [-p id] <directory|file ...>\nproject -C [-k] [-r] <directory ...>\nproject [-p id] [-r] [-s] <directory ...>",
    ),
    (7, "mount", "mount [-j]\nmount [-flvO] [-o opts] <-a|-R filesystem|filesystem>"),
    (7, "unmount", "unmount [-fu] <-a | filesystem|mountpoint>"),
    (7, "share", "share [-l] <-a [nfs|smb] | filesystem>"),
    (7, "unshare", "unshare <-a [nfs|smb] | filesystem|mountpoint>"),
    (
        8,
        "send",
        "send [-DLPbcehnpsVvw] [-i|-I snapshot]\n     [-R [-X dataset[,dataset]...]]     <snapshot>\nsend [-DnVvPLecw] [-i snapshot|bookmark] <filesystem|volume|snapshot>\nsend [-DnPpVvLec] [-i bookmark|snapshot] --redact <bookmark> <snapshot>\nsend [-nVvPe] -t <receive_resume_token>\nsend [-PnVv] --saved filesystem",
    ),
    (
        8,
        "receive",
        "receive [-vMnsFhu] [-o <property>=<value>] ... [-x <property>] ...\n    <filesystem|volume|snapshot>\nreceive [-vMnsFhu] [-o <property>=<value>] ... [-x <property>] ... \n    [-d | -e] <filesystem>\nreceive -A <filesystem|volume>",
    ),
    (
        9,
        "allow",
        "allow <filesystem|volume>\nallow [-ldug] <\"everyone\"|user|group>[,...] <perm|@setname>[,...]\n    <filesystem|volume>\nallow [-ld] -e <perm|@setname>[,...] <filesystem|volume>\nallow -c <perm|@setname>[,...] <filesystem|volume>\nallow -s @setname <perm|@setname>[,...] <filesystem|volume>",
    ),
    (
        10,
        "unallow",
        "unallow [-rldug] <\"everyone\"|user|group>[,...]\n    [<perm|@setname>[,...]] <filesystem|volume>\nunallow [-rld] -e [<perm|@setname>[,...]] <filesystem|volume>\nunallow [-r] -c [<perm|@setname>[,...]] <filesystem|volume>\nunallow [-r] -s @setname [<perm|@setname>[,...]] <filesystem|volume>",
    ),
    (11, "hold", "hold [-r] <tag> <snapshot> ..."),
    (11, "holds", "holds [-rHp] <snapshot> ..."),
    (11, "release", "release [-r] <tag> <snapshot> ..."),
    (11, "diff", "diff [-FHth] <snapshot> [snapshot|filesystem]"),
    (11, "load-key", "load-key [-rn] [-L <keylocation>] <-a | filesystem|volume>"),
    (11, "unload-key", "unload-key [-r] <-a | filesystem|volume>"),
    (
        11,
        "change-key",
        "change-key [-l] [-o keyformat=<value>]\n    [-o keylocation=<value>] [-o pbkdf2iters=<value>]\n    <filesystem|volume>\nchange-key -i [-l] <filesystem|volume>",
    ),
    (11, "redact", "redact <snapshot> <bookmark> <redaction_snapshot> ..."),
    (11, "wait", "wait [-t <activity>] <filesystem>"),
    (11, "zone", "zone <nsfile> <filesystem>"),
    (11, "unzone", "unzone <nsfile> <filesystem>"),
];
