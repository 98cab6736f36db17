#!/usr/bin/env python3
"""Measures orders among many datasets and snapshots: what one costs, what those about all cost, and memory.

  orders.py --cenote target/release/cenote --datasets 10 1000 10000 --snapshots 100000

For each number of datasets a new pool on one sparse file under --dir gets them, all side by side below one
filesystem, none mounted. Needs no root. Invariant: every figure counts a whole command, from its start to its end, when
what it did is on the disk; the median of --times, orders about all of them once.
"""
import argparse, contextlib, os, shutil, statistics, subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor
from bench import FAILURES, peak_memory, run, show

TOP = "many/all"


class Pool:
    """A pool of Cenote on a file."""

    def __init__(self, args):
        self.at, self.binary, self.size = f"{args.dir}/orders", args.cenote, args.size
        self.environment = dict(os.environ, CENOTE_RUN_DIR=f"{self.at}/run")

    def tool(self, *words):
        return run([self.binary, *words], env=self.environment, timeout=3600)

    def __enter__(self):
        shutil.rmtree(self.at, ignore_errors=True)
        os.makedirs(f"{self.at}/run")
        with open(f"{self.at}/disk", "wb") as image:
            image.truncate(self.size)
        self.tool("zpool", "create", "-R", f"{self.at}/mnt", "-O", "mountpoint=none", "many", f"{self.at}/disk")
        self.tool("zfs", "create", TOP)
        return self

    def __exit__(self, *_):
        with contextlib.suppress(*FAILURES):
            self.tool("zpool", "export", "many")
        shutil.rmtree(self.at, ignore_errors=True)

    def process(self):
        with open(f"{self.at}/run/many.pid") as pid:
            return int(pid.readline())

    def resident(self):
        """MiB the pool process has now."""
        with open(f"/proc/{self.process()}/status") as status:
            line = next(line for line in status if line.startswith("VmRSS"))
        return int(line.split()[1]) / 1024

    def groups(self):
        """The newest group that an event of the history is of."""
        lines = self.tool("zpool", "history", "-i", "many").splitlines()
        return max((int(line.split("txg:")[1].split("]")[0]) for line in lines if "txg:" in line), default=0)


def timed(order):
    """Milliseconds that an order takes."""
    start = time.monotonic()
    order()
    return (time.monotonic() - start) * 1000


def together(orders, count):
    """Does orders with so many commands at a time; milliseconds for all."""
    with ThreadPoolExecutor(count) as commands:
        return timed(lambda: list(commands.map(lambda order: order(), orders)))


def single(pool, args):
    """Orders about one dataset, looked at among the others."""
    zfs = lambda *words: lambda: pool.tool("zfs", *words)
    orders = {
        "create": lambda n: zfs("create", f"{TOP}/x{n}"),
        "set": lambda n: zfs("set", "atime=off", f"{TOP}/x{n}"),
        "set three properties": lambda n: zfs("set", "exec=off", "quota=1G", f"test:n={n}", f"{TOP}/x{n}"),
        "inherit": lambda n: zfs("inherit", "atime", f"{TOP}/x{n}"),
        "snapshot": lambda n: zfs("snapshot", f"{TOP}/x{n}@s"),
        "hold": lambda n: zfs("hold", "tag", f"{TOP}/x{n}@s"),
        "release": lambda n: zfs("release", "tag", f"{TOP}/x{n}@s"),
        "clone": lambda n: zfs("clone", f"{TOP}/x{n}@s", f"{TOP}/c{n}"),
        "list of one": lambda n: zfs("list", "-H", "-o", "name,used,quota", f"{TOP}/x{n}"),
        "destroy a clone": lambda n: zfs("destroy", f"{TOP}/c{n}"),
        "destroy a snapshot": lambda n: zfs("destroy", f"{TOP}/x{n}@s"),
        "rename": lambda n: zfs("rename", f"{TOP}/x{n}", f"{TOP}/y{n}"),
        "destroy": lambda n: zfs("destroy", f"{TOP}/y{n}"),
    }
    for name, order in orders.items():
        yield f"{name}, ms", statistics.median(timed(order(n)) for n in range(args.times))


def many(pool, count):
    """Orders about all datasets."""
    zfs = lambda *words: lambda: pool.tool("zfs", *words)
    yield "list of all, ms", timed(zfs("list", "-H", "-r", "-o", "name,used", "many"))
    yield "set what all inherit, ms", timed(zfs("set", "exec=off", "many"))
    yield "inherit -r, ms", timed(zfs("inherit", "-r", "exec", "many"))
    yield "snapshot -r, ms", timed(zfs("snapshot", "-r", f"{TOP}@all"))
    yield "rename -r of the snapshots, ms", timed(zfs("rename", "-r", f"{TOP}@all", "@each"))
    yield "destroy -r of the snapshots, ms", timed(zfs("destroy", "-r", f"{TOP}@each"))
    sets = [zfs("set", f"test:n={n}", f"{TOP}/d{n % count}") for n in range(100)]
    before = pool.groups()
    yield "100 sets at a time, ms", together(sets, 100)
    yield "100 sets at a time, groups", pool.groups() - before


def again(pool):
    """Opening the pool anew."""
    pool.tool("zpool", "export", "many")
    yield "import, ms", timed(lambda: pool.tool("zpool", "import", "-d", pool.at, "-R", f"{pool.at}/mnt", "many"))
    yield "first list of all, ms", timed(lambda: pool.tool("zfs", "list", "-H", "-r", "-o", "name", "many"))


def measure(args, count, snapshots):
    """Every figure of a pool with so many datasets, and so many snapshots of each."""
    figures = {}
    with Pool(args) as pool:
        start = pool.resident()
        made = together([lambda n=n: pool.tool("zfs", "create", f"{TOP}/d{n}") for n in range(count)], args.commands)
        figures[f"{args.commands} creates at a time, /s"] = count * 1000 / made
        for number in range(snapshots):
            pool.tool("zfs", "snapshot", "-r", f"{TOP}@s{number}")
        figures |= single(pool, args)
        figures |= many(pool, count)
        # What reading and writing took beside is given back with the process.
        figures |= again(pool)
        figures["memory of the process, MiB"] = pool.resident()
        figures["memory for a dataset or snapshot, KiB"] = max(pool.resident() - start, 0) * 1024 / (count * (1 + snapshots))
        figures["most memory, MiB"] = peak_memory(pool.process())
        figures["rename of all, ms"] = timed(lambda: pool.tool("zfs", "rename", TOP, "many/other"))
        figures["destroy -r of all, ms"] = timed(lambda: pool.tool("zfs", "destroy", "-r", "many/other"))
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", default="/var/tmp/cenote-bench-orders", help="where everything lies")
    parser.add_argument("--cenote", default="cenote", help="our program")
    parser.add_argument("--datasets", type=int, nargs="+", default=[10, 1000, 10_000], help="how many, in turn")
    parser.add_argument("--snapshots", type=int, default=0, help="snapshots in one more run, of the most datasets")
    parser.add_argument("--times", type=int, default=20, help="orders of each kind")
    parser.add_argument("--commands", type=int, default=16, help="commands at a time while datasets are made")
    parser.add_argument("--size", type=int, default=64 << 30, help="bytes of the sparse file")
    args = parser.parse_args()
    args.dir, args.cenote = os.path.abspath(args.dir), shutil.which(args.cenote) or os.path.abspath(args.cenote)
    runs = [(f"{count:,} datasets", count, 0) for count in args.datasets]
    if args.snapshots:
        most = max(args.datasets)
        each = -(-args.snapshots // (most + 1))
        runs.append((f"{most:,} datasets, {each * (most + 1):,} snapshots", most, each))
    results, notes = {}, []
    for name, count, snapshots in runs:
        print(name, file=sys.stderr)
        try:
            results[name] = measure(args, count, snapshots)
        except FAILURES as error:
            notes.append(f"{name}: {error}")
    measures = list(dict.fromkeys(measure for figures in results.values() for measure in figures))
    table = [["", *results]]
    for name in measures:
        figures = (results[run].get(name) for run in results)
        table.append([name, *("-" if figure is None else f"{figure:.4g}" for figure in figures)])
    show(table)
    for note in notes:
        print(note)
    return bool(notes)


if __name__ == "__main__":
    sys.exit(main())
