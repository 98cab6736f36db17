#!/usr/bin/env python3
"""Measures how far it is from a request to its answer: one request at a time, of one kind, on an idle pool.

  journeys.py --cenote BEFORE --cenote AFTER [--runs 5]

Binaries take turns on a new pool on one file under --dir. Needs root and perf. Invariant: a time is that of the request
alone, seen by who asks; processor time, switches of threads and system calls are those of the pool process while such
requests were made, divided by their number; of the first two those of commands are counted with them.
"""
import argparse, contextlib, json, mmap, os, random, resource, shutil, signal, statistics, subprocess, tempfile, time
from bench import FAILURES, run, show

# what is counted of the pool process: perf's word for it
EVENTS = {"processor us": "task-clock", "switches": "context-switches", "system calls": "raw_syscalls:sys_enter"}
RECORD = 128 << 10
BLOCK = 4096


class Pool:
    """A pool of one binary, with a file to read and one to write."""

    def __init__(self, args, binary):
        self.at, self.binary, self.size = f"{args.dir}/journeys", binary, args.size
        self.environment = dict(os.environ, CENOTE_RUN_DIR=f"{self.at}/run")
        self.records = args.records

    def tool(self, *words):
        return run([self.binary, *words], env=self.environment, timeout=600)

    def path(self, name):
        return f"{self.at}/mnt/way/{name}"

    def __enter__(self):
        shutil.rmtree(self.at, ignore_errors=True)
        os.makedirs(f"{self.at}/run")
        with open(f"{self.at}/disk", "wb") as image:
            image.truncate(self.size)
        settings = ("-O", "compression=off", "-O", "atime=off")
        self.tool("zpool", "create", "-R", f"{self.at}/mnt", *settings, "way", f"{self.at}/disk")
        noise = random.Random(1)
        for name, records in (("read", self.records), ("written", 256)):
            with open(self.path(name), "wb") as file:
                for _ in range(records):
                    file.write(noise.randbytes(RECORD))
        self.again()
        return self

    def again(self):
        """Opens the pool anew: nothing of it is in memory."""
        self.tool("zpool", "export", "way")
        self.tool("zpool", "import", "-d", self.at, "-R", f"{self.at}/mnt", "way")
        with open(f"{self.at}/run/way.pid") as pid:
            self.process = int(pid.readline())

    def __exit__(self, *_):
        with contextlib.suppress(*FAILURES):
            self.tool("zpool", "destroy", "-f", "way")
        shutil.rmtree(self.at, ignore_errors=True)


@contextlib.contextmanager
def opened(pool, name, flags):
    """A file that the kernel keeps nothing of."""
    descriptor = os.open(pool.path(name), flags | os.O_DIRECT)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def timed(request, times):
    """Microseconds of each of so many requests."""
    took = []
    for number in range(times):
        start = time.perf_counter_ns()
        request(number)
        took.append((time.perf_counter_ns() - start) / 1000)
    return took


def reads(pool, times):
    places = random.Random(2).sample(range(pool.records), min(times, pool.records))
    page = mmap.mmap(-1, BLOCK)
    with opened(pool, "read", os.O_RDONLY) as file:
        return timed(lambda number: os.preadv(file, [page], places[number % len(places)] * RECORD), times)


def writes(pool, times):
    places, page = random.Random(3), mmap.mmap(-1, BLOCK)
    page.write(random.Random(4).randbytes(BLOCK))
    with opened(pool, "written", os.O_WRONLY) as file:
        return timed(lambda _: os.pwritev(file, [page], places.randrange(256 * RECORD // BLOCK) * BLOCK), times)


def syncs(pool, times):
    """Of a write and its fsync, the second."""
    places, page, took = random.Random(5), mmap.mmap(-1, BLOCK), []
    with opened(pool, "written", os.O_WRONLY) as file:
        for _ in range(times):
            os.pwritev(file, [page], places.randrange(256 * RECORD // BLOCK) * BLOCK)
            took += timed(lambda _: os.fsync(file), 1)
    return took


def looks(pool, times):
    return timed(lambda _: pool.tool("zpool", "status", "way"), times)


def makes(pool, times):
    first = pool.made = getattr(pool, "made", 0)
    pool.made += times
    return timed(lambda number: pool.tool("zfs", "create", f"way/x{first + number}"), times)


# name: the requests, how many, whether nothing of the file may be in memory
JOURNEYS = {
    "read": (reads, 2000, True),
    "read what is in memory": (reads, 2000, False),
    "write": (writes, 4000, False),
    "fsync": (syncs, 400, False),
    "zpool status": (looks, 200, False),
    "zfs create": (makes, 50, False),
}


def watched(pool, requests, times):
    """Microseconds of each request; for each, what the pool process and the commands did."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.NamedTemporaryFile("r") as written:
        words = ["perf", "stat", "-x", ",", "-o", written.name, "-e", ",".join(EVENTS.values()), "-p", str(pool.process)]
        perf = subprocess.Popen(words)
        time.sleep(0.5)
        took = requests(pool, times)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        perf.send_signal(signal.SIGINT)
        perf.wait()
        lines = [line.split(",") for line in written if line.count(",") > 2]
    counted = {line[2]: float(line[0]) for line in lines}
    did = {name: counted[event] for name, event in EVENTS.items()}
    did["processor us"] *= 1000
    did["processor us"] += (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e6
    did["switches"] += after.ru_nvcsw + after.ru_nivcsw - before.ru_nvcsw - before.ru_nivcsw
    return took, {name: count / times for name, count in did.items()}


def measure(pool):
    for name, (requests, times, is_cold) in JOURNEYS.items():
        if is_cold:
            pool.again()
        else:
            requests(pool, min(times, 100))
        pool.tool("zpool", "sync", "way")
        took, did = watched(pool, requests, times)
        yield f"{name}, us", statistics.median(took)
        for what, figure in did.items():
            yield f"{name}, {what}", figure


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cenote", action="append", required=True, help="binary; several take turns")
    parser.add_argument("--dir", default="/tmp/cenote-journeys")
    parser.add_argument("--size", type=int, default=4 << 30, help="bytes of the disk")
    parser.add_argument("--records", type=int, default=4096, help="of 128 KiB, in the file that is read")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", help="file for every figure")
    args = parser.parse_args()
    figures = {}
    for _ in range(args.runs):
        for binary in args.cenote:
            with Pool(args, os.path.abspath(binary)) as pool:
                for name, figure in measure(pool):
                    figures.setdefault(name, {}).setdefault(binary, []).append(figure)
    table = [["middle (least to most)", *args.cenote]]
    for name, by_binary in figures.items():
        table.append([name, *(f"{statistics.median(of):.1f} ({min(of):.1f} to {max(of):.1f})" for of in by_binary.values())])
    show(table)
    if args.json:
        with open(args.json, "w") as file:
            json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
