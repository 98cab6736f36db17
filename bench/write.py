#!/usr/bin/env python3
"""Measures writing: Cenote beside zfs-fuse, ext4, btrfs and OpenZFS's engine, in one run, one table.

Every peer gets files of the same disk under --dir (made anew for each), in the layouts it knows.
Needs root (mounts, loop devices).

  write.py run --cenote target/release/cenote --zfs-fuse PREFIX --ozbench PROGRAM

PREFIX goes before zfs-fuse's program names. PROGRAM is called as
`PROGRAM KIND COMPRESSION RECORDSIZE MEBIBYTES FILE...` and prints a line `seq_write MiB/s`.
Invariant: a figure counts the time until everything is on the disk, unless its name says otherwise;
what was written is compared afterwards, so that nobody is fast at losing data.
"""
import argparse, contextlib, fcntl, json, os, random, shlex, shutil, statistics, subprocess, sys, tarfile, time
from bench import FAILURES, drop_caches, peak_memory, run, show

LAYOUTS = {"stripe": ([], 2), "mirror": (["mirror"], 2), "raidz1": (["raidz1"], 3), "raidz2": (["raidz2"], 4)}
SEQUENTIAL = ("sequential write, MiB/s", "sequential write compressible, MiB/s")

# measure -> [(peer, wanted ratio)]; ratios are Cenote's stripe to the peer
LOOP = "ext4 on a loop device"
TARGETS = {name: [("zfs-fuse stripe", 2.5), ("ozbench stripe", 2.0), (LOOP, 0.7), ("ext4", 0.7)] for name in SEQUENTIAL}
TARGETS |= {f"{what}, /s": [("zfs-fuse stripe", 3.0)] for what in ("create", "stat", "rename", "unlink", "untar")}
TARGETS["write 4k x1 fsync, /s"] = [("zfs-fuse stripe", 3.0), (LOOP, 0.75), ("ext4", 0.75)]


class Directory:
    """A directory of the machine's own filesystem."""
    name = "ext4"

    def __init__(self, args):
        self.mountpoint = f"{args.dir}/ext4-plain"

    def __enter__(self):
        shutil.rmtree(self.mountpoint, ignore_errors=True)
        os.makedirs(self.mountpoint)
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.mountpoint, ignore_errors=True)

    def sync(self):
        descriptor = os.open(self.mountpoint, os.O_RDONLY)
        import ctypes
        ctypes.CDLL(None).syncfs(descriptor)
        os.close(descriptor)

    def memory(self):
        return None


class Loop(Directory):
    """A filesystem of the kernel on a loop device of the same disk."""

    def __init__(self, args, kind, make):
        self.name, self.make = f"{kind} on a loop device", make
        self.image, self.mountpoint = f"{args.dir}/{kind}.img", f"{args.dir}/{kind}"
        self.size = args.size

    def __enter__(self):
        with open(self.image, "wb") as image:
            image.truncate(self.size)
        os.makedirs(self.mountpoint, exist_ok=True)
        run([*self.make, self.image])
        run(["mount", "-o", "loop", self.image, self.mountpoint])
        return self

    def __exit__(self, *_):
        subprocess.run(["umount", self.mountpoint], capture_output=True)
        os.unlink(self.image)


class Pool(Directory):
    """A pool on files."""

    def __init__(self, args, layout):
        self.words, count = LAYOUTS[layout]
        self.layout = layout
        self.at = f"{args.dir}/{type(self).__name__}-{layout}"
        self.disks = [f"{self.at}/disk{n}" for n in range(count)]
        self.size, self.compression, self.pool = args.size, args.compression, f"bw{layout}"

    def make_disks(self):
        shutil.rmtree(self.at, ignore_errors=True)
        os.makedirs(self.at)
        for disk in self.disks:
            with open(disk, "wb") as image:
                image.truncate(self.size)


class Cenote(Pool):
    """Ours."""

    def __init__(self, args, layout):
        super().__init__(args, layout)
        self.name, self.binary = f"cenote {layout}", args.cenote
        self.mountpoint = f"{self.at}/mnt/{self.pool}"

    def tool(self, *words):
        return run([self.binary, *words], env=dict(os.environ, CENOTE_RUN_DIR=f"{self.at}/run"), timeout=600)

    def __enter__(self):
        self.make_disks()
        self.tool("zpool", "create", "-R", f"{self.at}/mnt", "-O", f"compression={self.compression}",
                  self.pool, *self.words, *self.disks)
        return self

    def __exit__(self, *_):
        try:
            self.tool("zpool", "export", self.pool)
        finally:
            shutil.rmtree(self.at, ignore_errors=True)

    def sync(self):
        self.tool("zpool", "sync", self.pool)

    def memory(self):
        with open(f"{self.at}/run/{self.pool}.pid") as pid:
            return peak_memory(int(pid.readline()))


class ZfsFuse(Pool):
    """The last other ZFS in user space (pool version 23)."""

    def __init__(self, args, layout):
        super().__init__(args, layout)
        self.name, self.prefix = f"zfs-fuse {layout}", shlex.split(args.zfs_fuse)
        self.mountpoint = f"{self.at}/mnt"
        # It knows no lz4.
        self.compression = "lzjb" if args.compression == "lz4" else args.compression

    def tool(self, *words):
        return run([*self.prefix, *words], timeout=600)

    def __enter__(self):
        self.make_disks()
        for directory in ("/var/lock/zfs", "/var/run/zfs"):
            os.makedirs(directory, exist_ok=True)
        with open(f"{self.at}/log", "w") as log:
            self.daemon = subprocess.Popen(
                [*self.prefix, "zfs-fuse", "-n", "--no-kstat-mount", "-a", "3600", "-e", "3600"],
                stdout=log, stderr=log)
        time.sleep(2)
        # It remembers the pools of a run that was stopped.
        with contextlib.suppress(*FAILURES):
            self.tool("zpool", "destroy", "-f", self.pool)
        self.tool("zpool", "create", "-m", self.mountpoint, "-O", f"compression={self.compression}",
                  self.pool, *self.words, *self.disks)
        return self

    def __exit__(self, *_):
        with contextlib.suppress(*FAILURES):
            self.tool("zpool", "destroy", "-f", self.pool)
        self.daemon.kill()
        self.daemon.wait()
        subprocess.run(["umount", "-l", self.mountpoint], capture_output=True)
        shutil.rmtree(self.at, ignore_errors=True)

    def sync(self):
        # It has no `zpool sync`; fsync of a new file writes a transaction group.
        path = f"{self.mountpoint}/.sync"
        descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        os.sync()

    def memory(self):
        return peak_memory(self.daemon.pid)


# --- the measures --------------------------------------------------------------------------------

def noise(seed, compressible):
    """A MiB; the compressible one halves."""
    block = bytearray(random.Random(seed).randbytes(1 << 20))
    if compressible:
        for start in range(0, len(block), 32):
            block[start:start + 16] = b"a text of words "
    return bytes(block)


def sequential(peer, args, compressible):
    """MiB/s of writing a file 1 MiB at a time, then sync."""
    path = f"{peer.mountpoint}/{'text' if compressible else 'noise'}"
    blocks = [noise(seed, compressible) for seed in range(16)]
    start = time.monotonic()
    with open(path, "wb", buffering=0) as file:
        for number in range(args.mebibytes):
            file.write(blocks[number % 16])
    if isinstance(peer, (Cenote, ZfsFuse)):
        peer.sync()
    else:
        descriptor = os.open(path, os.O_RDWR)
        os.fsync(descriptor)
        os.close(descriptor)
    elapsed = time.monotonic() - start
    drop_caches()
    with open(path, "rb", buffering=0) as file:
        for number in (0, args.mebibytes // 2, args.mebibytes - 1):
            file.seek(number << 20)
            if file.read(1 << 20) != blocks[number % 16]:
                raise RuntimeError(f"{path} has the wrong content")
    os.unlink(path)
    return args.mebibytes / elapsed


def jobs(peer, args):
    """The six random jobs, reads and writes: operations a second."""
    for size, count in (("4k", 1), ("64k", 16), ("1m", 1)):
        for direction in ("write", "read"):
            for fsync in ((False, True) if direction == "write" else (False,)):
                name = f"{direction} {size} x{count}{' fsync' if fsync else ''}, /s"
                words = [f"--name=j", f"--directory={peer.mountpoint}", f"--rw=rand{direction}", f"--bs={size}",
                         f"--numjobs={count}", f"--size={256 // count * (1 if count > 1 else 4)}m", "--ioengine=psync",
                         "--time_based", f"--runtime={args.seconds}", "--group_reporting", "--output-format=json",
                         "--end_fsync=1", "--fallocate=none", *(["--fsync=1"] if fsync else [])]
                said = run(["fio", *words], timeout=600)
                job = json.loads(said[said.index("{"):])["jobs"][0]
                yield name, job[direction]["iops"]
        for left in os.listdir(peer.mountpoint):
            if left.startswith("j."):
                os.unlink(f"{peer.mountpoint}/{left}")


def small_files(peer, args):
    """Create, stat, rename and unlink of many files, and untar: a second."""
    root = f"{peer.mountpoint}/small"
    os.makedirs(root)
    names = [f"{root}/d{n // 1000:03}/file-{n:06}" for n in range(args.files)]
    for n in range(0, args.files, 1000):
        os.mkdir(os.path.dirname(names[n]))
    data = noise(1, True)[:1000]

    def create(name):
        descriptor = os.open(name, os.O_CREAT | os.O_WRONLY)
        os.write(descriptor, data)
        os.close(descriptor)

    steps = [("create", create), ("stat", os.stat), ("rename", lambda name: os.rename(name, name + "r")),
             ("unlink", lambda name: os.unlink(name + "r"))]
    for what, work in steps:
        start = time.monotonic()
        for name in names:
            work(name)
        yield f"{what}, /s", args.files / (time.monotonic() - start)
    archive, count = f"{args.dir}/tree.tar", 0
    with tarfile.open(archive) as tar:
        count = sum(1 for entry in tar if entry.isfile())
    os.makedirs(f"{root}/tar")
    start = time.monotonic()
    run(["tar", "-xf", archive, "-C", f"{root}/tar"], timeout=1200)
    yield "untar, /s", count / (time.monotonic() - start)


def make_archive(args):
    """The tree to unpack: --tree, or the crates Cargo has fetched."""
    archive = f"{args.dir}/tree.tar"
    if not os.path.exists(archive):
        run(["tar", "-cf", archive, "-C", args.tree, "."], timeout=600)


def measure(peer, args, note):
    figures = {}
    with peer:
        try:
            for name, compressible in zip(SEQUENTIAL, (False, True)):
                for _ in range(args.runs):
                    figures.setdefault(name, []).append(sequential(peer, args, compressible))
            if getattr(peer, "layout", "stripe") == "stripe":
                for measures in (jobs, small_files):
                    for name, figure in measures(peer, args):
                        figures.setdefault(name, []).append(figure)
        except FAILURES as error:
            note(f"{peer.name}: {error}")
        memory = peer.memory()
        if memory is not None:
            figures["memory of the server, MiB"] = [memory]
    return figures


def engine(args, layout, note):
    """OpenZFS's own engine, without a mount."""
    words, count = LAYOUTS[layout]
    disks, figures = [f"{args.dir}/oz{n}" for n in range(count)], {}
    for name, compression in zip(SEQUENTIAL, ("off", "lz4")):
        for disk in disks:
            with open(disk, "wb") as image:
                image.truncate(args.size)
        try:
            said = run([args.ozbench, layout, compression, "131072", str(args.mebibytes), *disks], timeout=600)
            figure = next(line.split()[1] for line in said.splitlines() if line.startswith("seq_write"))
            figures[name] = [float(figure)]
        except (*FAILURES, StopIteration) as error:
            note(f"ozbench {layout}: {error}")
    for disk in disks:
        if os.path.exists(disk):
            os.unlink(disk)
    return figures


def rows(results):
    names = list(results)
    measures = list(dict.fromkeys(m for figures in results.values() for m in figures))
    table = [["", *names, "ratios of cenote stripe"]]
    for name in measures:
        median = {p: statistics.median(f[name]) for p, f in results.items() if f.get(name)}
        said = []
        for peer, wanted in TARGETS.get(name, [("zfs-fuse stripe", 3.0)] if name.endswith("/s") else []):
            if peer in median and "cenote stripe" in median:
                ratio = median["cenote stripe"] / median[peer]
                said.append(f"{ratio:.2f} x {peer} ({'met' if ratio >= wanted else 'missed'}: {wanted:g})")
        table.append([name, *(f"{median[p]:.4g}" if p in median else "-" for p in names), ", ".join(said)])
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run"])
    parser.add_argument("--dir", default="/var/tmp/cenote-bench-write", help="where everything lies (30 GB)")
    parser.add_argument("--mebibytes", type=int, default=2048, help="size of the big file")
    parser.add_argument("--files", type=int, default=100_000, help="number of small files")
    parser.add_argument("--seconds", type=int, default=10, help="length of each random job")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--compression", default="lz4")
    parser.add_argument("--cenote", default="cenote", help="our program")
    parser.add_argument("--zfs-fuse", default=os.environ.get("ZFS_FUSE", ""), help="prefix of zfs-fuse's programs")
    parser.add_argument("--ozbench", default="", help="OpenZFS's engine")
    parser.add_argument("--tree", default=os.path.expanduser("~/.cargo/registry/src"), help="what untar unpacks")
    parser.add_argument("--layout", action="append", help="only these layouts")
    parser.add_argument("--only", action="append", help="only peers whose name has this in it")
    parser.add_argument("--json", help="also write the figures there")
    args = parser.parse_args()
    args.size = 8 << 30
    args.dir = os.path.realpath(args.dir)
    os.makedirs(args.dir, exist_ok=True)
    lock = open(f"{args.dir}/lock", "w")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    make_archive(args)
    notes, results = [], {}

    def note(text):
        notes.append(text)
        print("note:", text, file=sys.stderr)

    layouts = args.layout or list(LAYOUTS)
    peers = [Cenote(args, layout) for layout in layouts]
    if args.zfs_fuse:
        peers += [ZfsFuse(args, layout) for layout in layouts]
    peers += [Directory(args), Loop(args, "ext4", ["mkfs.ext4", "-q"])]
    if shutil.which("mkfs.btrfs"):
        peers.append(Loop(args, "btrfs", ["mkfs.btrfs", "-q"]))
    wanted = [peer for peer in peers if not args.only or any(word in peer.name for word in args.only)]
    before = os.getloadavg()
    for peer in wanted:
        print("measuring", peer.name, file=sys.stderr)
        try:
            results[peer.name] = measure(peer, args, note)
        except FAILURES as error:
            note(f"{peer.name}: {error}")
    for layout in layouts if args.ozbench else []:
        results[f"ozbench {layout}"] = engine(args, layout, note)
    show(rows(results))
    print(f"\nmedians of {args.runs} runs of the sequential measures; {args.mebibytes} MiB, {args.files} small files; "
          f"{os.cpu_count()} processors, kernel {os.uname().release}; "
          f"load before {before[0]:.1f}, after {os.getloadavg()[0]:.1f}")
    for text in notes:
        print("note:", text)
    if args.json:
        with open(args.json, "w") as out:
            json.dump({"results": results, "notes": notes}, out, indent=1)


if __name__ == "__main__":
    main()
