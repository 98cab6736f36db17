#!/usr/bin/env python3
"""Measures scrubs, resilvers and rebuilds: Cenote beside OpenZFS's engine and the disk, in one run, one table.

  repair.py run --cenote target/release/cenote [--ozbench PROGRAM] [--layouts mirror,raidz1,raidz2-8]

Each layout gets files of one disk under --dir (made anew) and --mebibytes of noise in 128 KiB records. Rates are of that
data, whatever redundancy costs beside it: a resilver of half of a mirror moves all of it, one of a RAID-Z rebuilds a part.
PROGRAM is called as `PROGRAM KIND COMPRESSION RECORDSIZE MEBIBYTES FILE...` and prints a line `scrub_MiBps RATE`.
Needs root (drops caches, mounts).
Invariant: a job counts from the order to its end as `zpool wait` tells it, from cold caches; afterwards a scrub finds nothing.
"""
import argparse, mmap, os, random, shutil, sys, threading, time
from bench import FAILURES, drop_caches, run

LAYOUTS = {"mirror": (["mirror"], 2), "raidz1": (["raidz1"], 3), "raidz2-8": (["raidz2"], 8)}
BLOCK = 4096


def disk(path, mebibytes):
    """A sparse image with room for that much data."""
    with open(path, "wb") as image:
        image.truncate(mebibytes * 5 // 4 + 1024 << 20)
    return path


class Pool:
    def __init__(self, args, layout):
        self.words, count = LAYOUTS[layout]
        self.at, self.binary, self.mebibytes = f"{args.dir}/repair-{layout}", args.cenote, args.mebibytes
        self.disks = [f"{self.at}/disk{number}" for number in range(count)]
        self.file = f"{self.at}/mnt/br/noise"

    def tool(self, *words):
        return run([self.binary, *words], env=dict(os.environ, CENOTE_RUN_DIR=f"{self.at}/run"), timeout=3600)

    def __enter__(self):
        shutil.rmtree(self.at, ignore_errors=True)
        os.makedirs(self.at)
        disks = [disk(path, self.mebibytes) for path in self.disks]
        self.tool("zpool", "create", "-o", "ashift=12", "-R", f"{self.at}/mnt", "-O", "compression=off", "br", *self.words, *disks)
        chance = random.Random(1)
        with open(self.file, "wb") as out:
            for _ in range(self.mebibytes):
                out.write(chance.randbytes(1 << 20))
        self.again()
        return self

    def __exit__(self, *_):
        try:
            self.tool("zpool", "destroy", "-f", "br")
        finally:
            shutil.rmtree(self.at, ignore_errors=True)

    def again(self):
        """Imports the pool anew, with cold caches."""
        self.tool("zpool", "export", "br")
        drop_caches()
        self.tool("zpool", "import", "-d", self.at, "-R", f"{self.at}/mnt", "br")

    def timed(self, *words):
        begun = time.monotonic()
        self.tool(*words)
        return self.mebibytes / (time.monotonic() - begun)

    def is_clean(self):
        if "with 0 errors" not in self.tool("zpool", "status", "br"):
            raise RuntimeError("the scrub found something")


def sequential(path):
    """MiB/s of reading what an image holds from the disk, past the caches; its holes are left out."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    buffer = mmap.mmap(-1, 1 << 20)
    begun, at, total, most = time.monotonic(), 0, 0, 2 << 30
    while total < most:
        try:
            at = os.lseek(descriptor, at, os.SEEK_DATA) & -BLOCK
        except OSError:
            break
        count = os.preadv(descriptor, [buffer], at)
        at, total = at + count, total + count
    os.close(descriptor)
    return (total >> 20) / (time.monotonic() - begun)


def reads(pool, seconds):
    """4 KiB reads a second of two readers at random places, while caches are cold."""
    drop_caches()
    end, counts = time.monotonic() + seconds, []

    def reader(seed):
        chance, count = random.Random(seed), 0
        descriptor = os.open(pool.file, os.O_RDONLY)
        while time.monotonic() < end:
            os.pread(descriptor, BLOCK, chance.randrange(pool.mebibytes << 8) * BLOCK)
            count += 1
        os.close(descriptor)
        counts.append(count)

    threads = [threading.Thread(target=reader, args=(random.random(),)) for _ in range(2)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    return sum(counts) / seconds


def measure(args, layout, table):
    def note(name, value):
        table.setdefault(name, {})[layout] = value
        print(f"{layout:<10}{name:<40}{value:10.1f}", flush=True)

    with Pool(args, layout) as pool:
        note("disk, sequential read, MiB/s", sequential(pool.disks[0]))
        drop_caches()
        note("scrub, MiB/s", pool.timed("zpool", "scrub", "-w", "br"))
        pool.is_clean()
        for name, how in (("resilver", []), ("rebuild", ["-s"])):
            pool.again()
            old, new = pool.disks[-1], disk(f"{pool.at}/new-{name}", args.mebibytes)
            note(f"{name}, MiB/s", pool.timed("zpool", "replace", *how, "-w", "br", old, new))
            os.unlink(old)
            pool.disks[-1] = new
            pool.tool("zpool", "wait", "br")
        pool.again()
        alone = reads(pool, args.seconds)
        pool.again()
        pool.tool("zpool", "scrub", "br")
        beside = reads(pool, args.seconds)
        still = "in progress" in pool.tool("zpool", "status", "br")
        note("4 KiB reads alone, /s", alone)
        note("4 KiB reads beside a scrub, /s" if still else "4 KiB reads, scrub done meanwhile, /s", beside)
        pool.tool("zpool", "wait", "-t", "scrub", "br")
        pool.is_clean()


def peer(args, layout, table):
    words, count = LAYOUTS[layout]
    kind = words[0]
    at = f"{args.dir}/repair-ozbench"
    shutil.rmtree(at, ignore_errors=True)
    os.makedirs(at)
    try:
        disks = [disk(f"{at}/disk{number}", args.mebibytes) for number in range(count)]
        text = run([args.ozbench, kind, "off", "131072", str(args.mebibytes), *disks], timeout=3600)
        for line in text.splitlines():
            if line.startswith("scrub_MiBps"):
                table.setdefault("ozbench scrub, MiB/s", {})[layout] = float(line.split()[1])
                print(f"{layout:<10}{line}", flush=True)
    finally:
        shutil.rmtree(at, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["run"])
    parser.add_argument("--cenote", required=True)
    parser.add_argument("--ozbench")
    parser.add_argument("--dir", default="/var/tmp/cenote-bench")
    parser.add_argument("--mebibytes", type=int, default=4096)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--layouts", default=",".join(LAYOUTS))
    args = parser.parse_args()
    args.cenote = os.path.abspath(args.cenote)
    table = {}
    for layout in args.layouts.split(","):
        for what in (measure, peer) if args.ozbench else (measure,):
            try:
                what(args, layout, table)
            except FAILURES as error:
                print(f"{layout}: {error}", file=sys.stderr)
    names = args.layouts.split(",")
    print("| measure | " + " | ".join(names) + " |\n|---" + "|---" * len(names) + "|")
    for name, row in table.items():
        print(f"| {name} | " + " | ".join(f"{row[one]:.0f}" if one in row else "" for one in names) + " |")


main()
