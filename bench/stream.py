#!/usr/bin/env python3
"""Measures send and receive: Cenote beside zfs-fuse and the disk, in one run, one table.

  stream.py run --cenote target/release/cenote [--zfs-fuse PREFIX] [--mebibytes 2048] [--files 100000]

A pool on one file of --dir gets noise in 128 KiB records and a tree of small files, a snapshot, a change of 1 % of both and
a second snapshot. The streams go to /dev/null, then from a file (in the page cache) into a second pool. Rates are of
the bytes of the stream; of the incremental one the time counts, beside that of the whole.
PREFIX goes before zfs-fuse's program names. Needs root (drops caches, mounts).
Invariant: every send starts with cold caches; what was received has the size that was sent.
"""
import argparse, os, random, shlex, shutil, subprocess, sys, time
from bench import FAILURES, drop_caches, run

TARGETS = {"send whole, MiB/s": 3.0, "receive whole, MiB/s": 3.0}


class Peer:
    """Two pools, `one` and `two`, on a file each."""

    def __init__(self, args, name):
        self.args, self.name, self.at = args, name, f"{args.dir}/stream-{name}"
        self.mebibytes = args.mebibytes

    def disk(self, pool):
        path = f"{self.at}/{pool}/disk"
        os.makedirs(os.path.dirname(path))
        with open(path, "wb") as image:
            image.truncate(self.mebibytes * 2 + 4096 << 20)
        return path

    def place(self, dataset):
        return f"{self.at}/mnt/{dataset}"

    def __enter__(self):
        shutil.rmtree(self.at, ignore_errors=True)
        os.makedirs(self.at)
        for pool in ("one", "two"):
            self.create(pool, self.disk(pool))
        self.tool("zfs", "create", "one/d")
        return self

    def __exit__(self, *_):
        for pool in ("one", "two"):
            try:
                self.tool("zpool", "destroy", "-f", pool)
            except FAILURES:
                pass
        shutil.rmtree(self.at, ignore_errors=True)

    def piped(self, words, stdin=None, stdout=None):
        """Seconds that a command took with its input or output in a file."""
        begun = time.monotonic()
        done = subprocess.run(self.words(*words), stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, env=self.environment())
        if done.returncode:
            raise RuntimeError(f"{shlex.join(words)}: {done.stderr.decode(errors='replace').strip()[-200:]}")
        return time.monotonic() - begun

    def tool(self, *words):
        return run(self.words(*words), env=self.environment(), timeout=3600)


class Cenote(Peer):
    def words(self, *words):
        return [self.args.cenote, *words]

    def environment(self):
        return {**os.environ, "CENOTE_RUN_DIR": f"{self.at}/run"}

    def create(self, pool, disk):
        self.tool("zpool", "create", "-o", "ashift=12", "-O", "compression=off", "-O", "atime=off", "-R", f"{self.at}/mnt", pool, disk)

    def cold(self):
        self.tool("zpool", "export", "one")
        drop_caches()
        self.tool("zpool", "import", "-d", f"{self.at}/one", "-R", f"{self.at}/mnt", "one")

    def sync(self):
        self.tool("zpool", "sync")


class ZfsFuse(Peer):
    """The last other ZFS in user space (pool version 23)."""

    def words(self, *words):
        return [*shlex.split(self.args.zfs_fuse), *words]

    def environment(self):
        return dict(os.environ)

    def start(self):
        for directory in ("/var/lock/zfs", "/var/run/zfs"):
            os.makedirs(directory, exist_ok=True)
        with open(f"{self.at}/log", "a") as log:
            self.daemon = subprocess.Popen(self.words("zfs-fuse", "-n", "--no-kstat-mount", "-a", "3600", "-e", "3600"), stdout=log, stderr=log)
        time.sleep(2)

    def __enter__(self):
        shutil.rmtree(self.at, ignore_errors=True)
        os.makedirs(self.at)
        self.start()
        for pool in ("one", "two"):
            self.create(pool, self.disk(pool))
        self.tool("zfs", "create", "one/d")
        return self

    def __exit__(self, *_):
        super().__exit__()
        self.daemon.kill()
        self.daemon.wait()

    def create(self, pool, disk):
        self.tool("zpool", "create", "-m", f"{self.at}/mnt/{pool}", "-O", "compression=off", "-O", "atime=off", pool, disk)

    def cold(self):
        self.tool("zpool", "export", "one")
        drop_caches()
        self.tool("zpool", "import", "-d", f"{self.at}/one", "one")

    def sync(self):
        os.sync()


def fill(peer, args):
    chance = random.Random(1)
    place = peer.place("one/d")
    with open(f"{place}/noise", "wb") as out:
        for _ in range(args.mebibytes):
            out.write(chance.randbytes(1 << 20))
    for number in range(args.files):
        below = f"{place}/{number // 1000}"
        if number % 1000 == 0:
            os.mkdir(below)
        with open(f"{below}/{number}", "wb") as out:
            out.write(chance.randbytes(min(int(chance.expovariate(1 / 2000)), 65536)))


def change(peer, args):
    """One record and one file of a hundred."""
    chance = random.Random(2)
    place = peer.place("one/d")
    with open(f"{place}/noise", "r+b") as out:
        for record in range(0, args.mebibytes * 8, 100):
            out.seek(record << 17)
            out.write(chance.randbytes(1 << 17))
    for number in range(0, args.files, 100):
        with open(f"{place}/{number // 1000}/{number}", "wb") as out:
            out.write(chance.randbytes(3000))


def measure(peer, args, table):
    def note(name, value):
        table.setdefault(name, {})[peer.name] = value
        print(f"{peer.name:<10}{name:<40}{value:10.2f}", flush=True)

    stream, step = f"{args.dir}/stream", f"{args.dir}/step"
    with peer:
        fill(peer, args)
        peer.tool("zfs", "snapshot", "one/d@a")
        change(peer, args)
        peer.tool("zfs", "snapshot", "one/d@b")
        peer.cold()
        with open("/dev/null", "wb") as nowhere:
            whole = peer.piped(["zfs", "send", "one/d@a"], stdout=nowhere)
            peer.cold()
            small = peer.piped(["zfs", "send", "-i", "@a", "one/d@b"], stdout=nowhere)
        for path, words in ((stream, ["zfs", "send", "one/d@a"]), (step, ["zfs", "send", "-i", "@a", "one/d@b"])):
            with open(path, "wb") as out:
                peer.piped(words, stdout=out)
        size = os.stat(stream).st_size / (1 << 20)
        note("stream, MiB", size)
        note("send whole, MiB/s", size / whole)
        note("step, MiB", os.stat(step).st_size / (1 << 20))
        note("send step, s", small)
        note("send step, % of the whole", 100 * small / whole)
        with open(stream, "rb") as data:
            took = peer.piped(["zfs", "receive", "two/d"], stdin=data)
        note("receive whole, MiB/s", size / took)
        with open(step, "rb") as data:
            small = peer.piped(["zfs", "receive", "-F", "two/d"], stdin=data)
        note("receive step, s", small)
        note("receive step, % of the whole", 100 * small / took)
        sizes = [os.stat(f"{peer.place(pool)}/d/noise").st_size for pool in ("one", "two")]
        if sizes[0] != sizes[1] or len(os.listdir(peer.place("two/d"))) != args.files // 1000 + 1:
            raise RuntimeError("what was received is not what was sent")
    for path in (stream, step):
        os.unlink(path)


def disk(args, table):
    """MiB/s of writing a file 1 MiB at a time, and of reading it past the caches."""
    path, block = f"{args.dir}/plain", random.Random(3).randbytes(1 << 20)
    begun = time.monotonic()
    with open(path, "wb", buffering=0) as out:
        for _ in range(args.mebibytes):
            out.write(block)
        os.fsync(out.fileno())
    table.setdefault("receive whole, MiB/s", {})["disk"] = args.mebibytes / (time.monotonic() - begun)
    drop_caches()
    begun = time.monotonic()
    with open(path, "rb", buffering=0) as file:
        while file.read(1 << 20):
            pass
    table.setdefault("send whole, MiB/s", {})["disk"] = args.mebibytes / (time.monotonic() - begun)
    os.unlink(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["run"])
    parser.add_argument("--cenote", required=True)
    parser.add_argument("--zfs-fuse", default=os.environ.get("ZFS_FUSE", ""))
    parser.add_argument("--dir", default="/var/tmp/cenote-bench")
    parser.add_argument("--mebibytes", type=int, default=2048)
    parser.add_argument("--files", type=int, default=100_000)
    args = parser.parse_args()
    args.cenote = os.path.abspath(args.cenote)
    os.makedirs(args.dir, exist_ok=True)
    table, peers = {}, [Cenote(args, "Cenote")] + ([ZfsFuse(args, "zfs-fuse")] if args.zfs_fuse else [])
    for peer in peers:
        try:
            measure(peer, args, table)
        except FAILURES as error:
            print(f"{peer.name}: {error}", file=sys.stderr)
    disk(args, table)
    names = [peer.name for peer in peers] + ["disk"]
    print("| measure | " + " | ".join(names) + " | wanted of zfs-fuse |\n|---" + "|---" * (len(names) + 1) + "|")
    for name, row in table.items():
        wanted = f"{TARGETS[name]:.0f} times" if name in TARGETS else ""
        print(f"| {name} | " + " | ".join(f"{row[one]:.1f}" if one in row else "" for one in names) + f" | {wanted} |")


main()
