#!/usr/bin/env python3
"""Streams of every kind, sent here and received by OpenZFS's kernel module, changed there and sent back; and the other way round.

Run by hand, as root, on a machine with /dev/fuse and zdb:

    tests/streams_both_ways.py --cenote target/release/cenote --module ZVM [--dir DIR] [--first ours|theirs]

ZVM is a command that runs a line in a machine with the module and sees the directory $ZVM_SHARE as /zvm. Four stages:
one side makes a pool (`from`) of filesystems of many kinds and sends it; the other receives each stream into a pool of its
own (`to`), cuts one off, changes what it received and sends that back; the first receives that, into a new pool and onto
what it has, and sends the rest of what was cut off and what it received; the other receives that. After each stage every
snapshot of every filesystem is listed by tests/manifest.py, and must hold what the snapshot held that it came from;
volumes are compared where they are devices. At the end `zdb -bcc` judges all pools.
"""
import argparse, json, os, pathlib, random, shutil, subprocess, sys

HERE = pathlib.Path(__file__).resolve().parent

# What is sent of `from`, in order: a name for the stream, what to send, and how it is received into `to`.
FORTH = [
    ("full", "from/open/plain@1", "to/plain"),
    ("next", "-i @1 from/open/plain@2", "to/plain"),
    ("all", "-I @2 from/open/plain@4", "to/plain"),
    ("clone", "-i from/open/plain@2 from/open/clone@4", "to/clone"),
    ("large", "-L -e -c from/open/big@1", "to/big"),
    ("large-next", "-L -e -c -i @1 from/open/big@2", "to/big"),
    ("large-all", "-L -e -c -I @2 from/open/big@4", "to/big"),
    ("small", "from/open/big@4", "to/split"),
    ("embedded", "-e from/open/little@1", "to/little"),
    ("embedded-all", "-e -I @1 from/open/little@4", "to/little"),
    ("nodes", "from/open/nodes@1", "to/nodes"),
    ("nodes-all", "-I @1 from/open/nodes@4", "to/nodes"),
    ("properties", "-p from/open/little@4", "-x mountpoint to/told"),
    ("open", "from/secret@4", "to/opened"),
    ("locked", "from/open/plain@4", "-o encryption=on -o keyformat=passphrase -o keylocation=file://KEY to/locked"),
    ("raw", "-w from/secret@1", "to/raw"),
    ("raw-next", "-w -i @1 from/secret@2", "to/raw"),
    ("raw-all", "-w -I @2 from/secret@4", "to/raw"),
    ("raw-large", "-w -L from/secret/large@1", "to/rawlarge"),
    ("raw-large-all", "-w -L -I @1 from/secret/large@4", "to/rawlarge"),
    ("mark", "from/open/plain@1", "to/marked"),
    ("since-mark", "-i '#mark' from/open/plain@3", "to/marked"),
    ("tree", "-R from/open@2", "-u -x mountpoint to/tree"),
    ("tree-all", "-R -I @2 from/open@4", "-F -u -x mountpoint to/tree"),
    ("raw-tree", "-R -w -L from@2", "-u -x mountpoint to/rawtree"),
    ("raw-tree-all", "-R -w -L -I @2 from@4", "-F -u -x mountpoint to/rawtree"),
    ("held", "-R -h from/open/little@4", "-u to/held"),
]
# What is sent of `to` with the snapshot 5, and how it is received: onto what it came from, or into the pool `back`.
BACK = [
    ("back", "-i @4 to/plain@5", "-F from/open/plain"),
    ("back-clone", "-i @4 to/clone@5", "-F from/open/clone"),
    ("back-large", "-L -e -c -i @4 to/big@5", "-F from/open/big"),
    ("back-nodes", "-i @4 to/nodes@5", "-F from/open/nodes"),
    ("back-raw", "-w -i @4 to/raw@5", "-F from/secret"),
    ("back-raw-large", "-w -L -i @4 to/rawlarge@5", "-F from/secret/large"),
    ("back-tree", "-R to/tree@5", "-u -x mountpoint back/tree"),
    ("back-raw-tree", "-R -w -L to/rawtree@5", "-u -x mountpoint back/rawtree"),
    ("back-locked", "-w to/locked@5", "back/locked"),
    ("back-split", "to/split@5", "back/split"),
]
# The rest of what was cut off, and once more what came back.
AGAIN = [
    ("rest", "-t TOKEN", "-s to/cut"),
    ("again-raw", "-R -w -L back/rawtree@5", "-u -x mountpoint to/again"),
    ("again-tree", "-R back/tree@5", "-u -x mountpoint to/againopen"),
]
# What a dataset is a copy of, by the beginnings of names; the longest counts. What came with -R has more below it.
COPIES = {
    "to/plain": "from/open/plain", "to/clone": "from/open/clone", "to/big": "from/open/big", "to/split": "from/open/big", "to/little": "from/open/little",
    "to/nodes": "from/open/nodes", "to/told": "from/open/little", "to/opened": "from/secret", "to/locked": "from/open/plain", "to/raw": "from/secret",
    "to/rawlarge": "from/secret/large", "to/marked": "from/open/plain", "to/tree": "from/open", "to/rawtree": "from", "to/held": "from/open/little",
    "to/cut": "from/open/plain", "back/tree": "to/tree", "back/rawtree": "to/rawtree", "back/locked": "to/locked", "back/split": "to/split",
    "to/again": "to/rawtree", "to/againopen": "to/tree",
}
# After the third stage the first side's own filesystems hold the snapshot 5 of these.
RETURNED = {"from/open/plain": "to/plain", "from/open/clone": "to/clone", "from/open/big": "to/big", "from/open/nodes": "to/nodes", "from/secret": "to/raw",
            "from/secret/large": "to/rawlarge"}


def volumes():
    """The devices of volumes, by names: only the module has any. Its machine has no udev."""
    found = {}
    for device in sorted(pathlib.Path("/dev").glob("zd*")):
        done = subprocess.run(["/lib/udev/zvol_id", str(device)], capture_output=True, text=True)
        if done.returncode == 0:
            found[done.stdout.strip()] = device
    return found


def fill(root, turn):
    """Turn `turn` of what happens to the filesystems mounted below `root`: the same wherever it runs."""
    for place in sorted(path for path in root.rglob("*") if os.path.ismount(path)):
        rng = random.Random(f"{place.relative_to(root)} {turn}")
        files = sorted(path for path in place.iterdir() if not path.is_symlink() and path.is_file())
        for path in rng.sample(files, len(files) // 3):
            size, what = path.stat().st_size, rng.randrange(6)
            with open(path, "r+b") as file:
                if what == 0:
                    file.seek(rng.randrange(size + 1))
                    file.write(rng.randbytes(rng.choice([1, 600, 140_000])))
                elif what == 1:
                    file.truncate(rng.randrange(size + 300_000))
                elif what == 2:
                    # Compression makes holes of that.
                    file.seek(rng.randrange(size + 1))
                    file.write(bytes(rng.choice([4096, 131_072, 1 << 20])))
            if what == 3:
                path.unlink()
            elif what == 4:
                path.rename(place / f"renamed-{turn}-{path.name}"[:200])
            elif what == 5:
                os.setxattr(path, b"user.turn", rng.randbytes(rng.choice([3, 200, 3000, 20_000])))
        for number in range(12):
            path = place / f"file-{turn}-{number}"
            size = rng.choice([0, 7, 90, 511, 4096, 100_000, 131_072, 300_001, 2_500_000])
            path.write_bytes(rng.randbytes(size) if rng.random() < 0.5 else b"many words " * (size // 11))
            os.chown(path, rng.choice([0, 1000, 1001]), 100)
        with open(place / f"sparse-{turn}", "wb") as file:
            # What lists the snapshots reads all of it, in a machine that is slow.
            for at in (rng.randrange(1 << 20), rng.randrange(1 << (26 if place.name == "plain" else 22))):
                file.seek(at)
                file.write(b"here")
        (place / f"link-{turn}").symlink_to("x" * rng.choice([3, 60, 500]))
        (place / f"dir-{turn}").mkdir()
        for number in range(rng.choice([3, 80])):
            (place / f"dir-{turn}" / f"{number:03}{'é' * rng.randrange(20)}").touch()
    for name, device in volumes().items():
        rng = random.Random(f"{name} {turn}")
        if not name.startswith(f"{root.name}/"):
            continue
        with open(device, "r+b") as file:
            for _ in range(6):
                file.seek(rng.randrange(15 << 20) // 4096 * 4096)
                file.write(rng.randbytes(65_536))


def listed(out, pools):
    """Writes what every snapshot of these pools holds to a file: from names of snapshots to their entries, or a hash of a volume."""
    found = {}
    names = subprocess.run(["zfs", "list", "-H", "-o", "name,mounted,mountpoint", "-t", "filesystem", "-r", *pools], capture_output=True, text=True).stdout
    for line in names.splitlines():
        name, mounted, place = line.split("\t")
        snapshots = pathlib.Path(place) / ".zfs/snapshot"
        if mounted != "yes":
            continue
        for snapshot in sorted(os.listdir(snapshots)):
            text = subprocess.run([sys.executable, str(HERE / "manifest.py"), str(snapshots / snapshot)], capture_output=True, text=True)
            found[f"{name}@{snapshot}"] = text.stdout.splitlines() or [text.stderr]
    for name, device in volumes().items():
        done = subprocess.run(["sha256sum", str(device)], capture_output=True, text=True)
        found[f"{name}@now"] = [done.stdout.split(" ")[0]]
    pathlib.Path(out).write_text(json.dumps(found))


class Side:
    """One of both sides: where its files are, how its lines run."""

    def __init__(self, who, args):
        self.who, self.args = who, args
        theirs = who == "theirs"
        self.share = "/zvm" if theirs else str(args.dir)
        self.mount = "/tmp/m" if theirs else str(args.dir / "mnt")

    def script(self, lines):
        """Every line runs; one that fails is told."""
        table = {"SHARE": self.share, "MNT": self.mount, "KEY": str(self.args.dir / "key"), "TOOL": f"{sys.executable} {HERE}/streams_both_ways.py"}
        text = ["set -o pipefail", f"mkdir -p {self.mount}"]
        for line in lines:
            for word, value in table.items():
                line = line.replace(word, value)
            text.append(f"{{ {line}; }} || echo {json.dumps('FAILED: ' + line).replace('$', chr(92) + '$')}")
        return "\n".join(text) + "\n"

    def run(self, stage, lines):
        path = self.args.dir / f"{stage}.sh"
        path.write_text(self.script(lines))
        if self.who == "theirs":
            done = subprocess.run([self.args.module, "-t", "6000", "--", f"bash /zvm/{stage}.sh"], capture_output=True, text=True,
                                  env={**os.environ, "ZVM_SHARE": str(self.args.dir)})
        else:
            done = subprocess.run(["bash", str(path)], capture_output=True, text=True, env={
                **os.environ, "CENOTE_RUN_DIR": str(self.args.dir / "run"), "PATH": f"{self.args.dir}/bin:{os.environ['PATH']}"})
        (self.args.dir / f"{stage}.log").write_text(done.stdout + done.stderr)
        wrong = [line for line in done.stdout.splitlines() if line.startswith("FAILED: ")]
        for line in wrong + ([f"exit code {done.returncode}"] if done.returncode else []):
            print(f"WRONG {self.who} {stage}: {line}", flush=True)
        return bool(wrong) or done.returncode != 0

    def create(self, pool):
        return [f"truncate -s 1G SHARE/{pool}/1 SHARE/{pool}/2",
                f"zpool create -f -o compatibility=openzfs-2.1-linux -O compression=lz4 -O xattr=sa -R MNT {pool} SHARE/{pool}/1 SHARE/{pool}/2"]


def made(side):
    """The first side makes `from`."""
    lines = [*side.create("from"), "zfs create from/open", "zfs create from/open/plain", "zfs create -o recordsize=1M from/open/big",
             "zfs create -o compression=zstd -o recordsize=16K from/open/little", "zfs create -o dnodesize=auto from/open/nodes",
             "zfs create -o encryption=on -o keyformat=passphrase -o keylocation=file://KEY from/secret",
             "zfs create -o recordsize=1M -o dnodesize=auto from/secret/large", "zfs create -s -V 16M from/open/volume",
             "zfs set userquota@1000=1G from/open/plain", "zfs set groupquota@100=2G from/secret", "zfs set some:thing=else from/open/little"]
    for turn in range(1, 5):
        if turn == 3:
            lines.append("zfs clone from/open/plain@2 from/open/clone")
        lines += [f"TOOL --fill {turn} MNT/from", f"zfs snapshot -r from@{turn}"]
    lines += ["zfs bookmark from/open/plain@1 from/open/plain#mark", "zfs hold keep from/open/little@2"]
    return lines


def sent(streams):
    return [f"zfs send {what.replace('TOKEN', '$(cat SHARE/token)')} > SHARE/{name}.stream" for name, what, _ in streams]


def received(streams):
    lines = []
    for name, what, into in streams:
        unmounted = "" if "-u" in into else "-u "
        lines.append(f"zfs receive {unmounted}{into} < SHARE/{name}.stream")
    return lines


def shown(pools):
    """Everything is mounted, with whatever keys there are."""
    return [f"for set in $(zfs list -H -o name,keystatus -t filesystem,volume -r {pools} | awk '$2 == \"unavailable\" {{print $1}}'); do zfs load-key -L file://KEY $set 2>/dev/null || true; done",
            f"for set in $(zfs list -H -o name,mounted -t filesystem -r {pools} | awk '$2 == \"no\" {{print $1}}'); do zfs set mountpoint=/$set canmount=on $set; zfs mount $set 2>/dev/null || true; done",
            "sleep 1"]


def beginning(name):
    """What this dataset is a copy of, if it is one."""
    known = [start for start in COPIES if name == start or name.startswith(start + "/")]
    start = max(known, key=len, default=None)
    return start and COPIES[start] + name[len(start):]


class Judge:
    def __init__(self, folder):
        self.folder, self.failed, self.compared = folder, 0, 0

    def load(self, stage):
        path = self.folder / f"{stage}.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def compare(self, stage, name, found, wanted):
        self.compared += 1
        if found == wanted:
            return
        self.failed += 1
        paths = lambda lines: {json.loads(line)["path"]: line for line in lines} if all(line.startswith("{") for line in lines) else {line: line for line in lines}
        found, wanted = paths(found), paths(wanted)
        odd = sorted(path for path in found | wanted if found.get(path) != wanted.get(path))
        print(f"WRONG {stage}: {name} differs in {len(odd)} entries: {[(path, found.get(path), wanted.get(path)) for path in odd[:2]]}", flush=True)

    def copies(self, stage, own, known, pools):
        """Every snapshot in one of `pools` that has one it is a copy of."""
        seen = 0
        for name, lines in own.items():
            dataset, snapshot = name.split("@")
            source = beginning(dataset)
            # Of a volume nothing is known from a side that has no devices of it.
            while source and f"{source}@{snapshot}" not in known:
                source = beginning(source)
            if dataset.split("/")[0] in pools and source and f"{source}@{snapshot}" in known:
                seen += 1
                self.compare(stage, name, lines, known[f"{source}@{snapshot}"])
        print(f"{stage}: {seen} snapshots compared", flush=True)


def both_ways(first, args):
    shutil.rmtree(args.dir, ignore_errors=True)
    for below in ("bin", "mnt", "run", "from", "to", "back"):
        (args.dir / below).mkdir(parents=True)
    (args.dir / "key").write_text("a passphrase of some length\n")
    for tool in ("zpool", "zfs"):
        path = args.dir / "bin" / tool
        path.write_text(f'#!/bin/sh\nexec {os.path.abspath(args.cenote)} {tool} "$@"\n')
        path.chmod(0o755)
    one = Side(first, args)
    other = Side("theirs" if first == "ours" else "ours", args)
    judge, failed = Judge(args.dir), False
    listing = lambda stage, pools: [f"TOOL --list SHARE/{stage}.json {pools}"]
    opened = lambda pools: [f"zpool import -f -d SHARE/{pool} -R MNT {pool}" for pool in pools.split()] + shown(pools)
    closed = lambda pools: [f"zpool export {pool}" for pool in pools.split()]

    failed |= one.run("made", made(one) + sent(FORTH) + ["zfs send from/open/plain@4 > SHARE/cut.stream"] + listing("made", "from") + closed("from"))
    cut = ["head -c 3000000 SHARE/cut.stream | zfs receive -s -u to/cut || true", "zfs get -H -o value receive_resume_token to/cut > SHARE/token", "test $(wc -c < SHARE/token) -gt 20"]
    failed |= other.run("there", other.create("to") + received(FORTH) + cut + shown("to")
                        + ["TOOL --fill 5 MNT/to", "zfs snapshot -r to@5"] + listing("there", "to") + sent(BACK)
                        + ["zfs holds -H -r to/held@2 | cut -f 2", "zfs get -H -o value some:thing to/told", "zfs get -H -o value userquota@1000 to/tree/plain"] + closed("to"))
    failed |= one.run("returned", opened("from") + one.create("back") + received(BACK) + shown("back from") + listing("returned", "from back")
                      + sent(AGAIN) + closed("from back"))
    failed |= other.run("again", opened("to") + received(AGAIN) + shown("to") + listing("again", "to") + closed("to"))

    made_there, there, returned, again = (judge.load(stage) for stage in ("made", "there", "returned", "again"))
    judge.copies("there", there, made_there, ["to"])
    judge.copies("returned", returned, {**made_there, **there}, ["back"])
    for name, source in RETURNED.items():
        judge.compare("returned", f"{name}@5", returned.get(f"{name}@5", ["there is none"]), there.get(f"{source}@5", ["nor there"]))
    judge.copies("again", again, {**made_there, **there}, ["to"])
    said = (args.dir / "there.log").read_text().splitlines()
    for words in ("keep", "else", "1G"):
        if words not in said:
            failed = True
            print(f"WRONG there: {words!r} did not come along")
    for pool in ("from", "to", "back"):
        done = subprocess.run(["zdb", "-e", "-bcc", "-p", str(args.dir / pool), pool], capture_output=True, text=True)
        if done.returncode or "No leaks" not in done.stdout + done.stderr:
            failed = True
            print(f"WRONG {pool}: zdb is not content: {(done.stdout + done.stderr)[-1500:]}")
    print(f"begun by {first}: {judge.compared} snapshots compared, {judge.failed} differ; {'not ' if failed else ''}all orders done", flush=True)
    return failed or judge.failed > 0 or judge.compared < 60


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cenote")
    parser.add_argument("--module")
    parser.add_argument("--dir", default="/var/tmp/cenote-streams", type=pathlib.Path)
    parser.add_argument("--first", choices=["ours", "theirs"], action="append")
    parser.add_argument("--fill", nargs=2, help="a stage's own: turn, and the mountpoint")
    parser.add_argument("--list", nargs="+", help="a stage's own: the file, and pools")
    args = parser.parse_args()
    if args.fill:
        return fill(pathlib.Path(args.fill[1]), int(args.fill[0]))
    if args.list:
        return listed(args.list[0], args.list[1:])
    # All of them, also after one that is wrong.
    sys.exit(any([both_ways(first, args) for first in args.first or ["ours", "theirs"]]))


main()
