#!/usr/bin/env python3
"""Measures Cenote beside its peers on one machine, in one run, and prints one table.

Pools (stripe, mirror, raidz1) made by the OpenZFS kernel module, or by Cenote where there is none,
each with one big incompressible file and a tree of many small files; the same files on ext4 (the
directory's own disk) and in a zfs-fuse pool; `zdb -cc` as the peer for verification. Needs root
(drops caches, mounts).

  bench.py prepare --vm COMMAND   makes everything under --dir (once; about half an hour)
  bench.py prepare                the same with pools made by Cenote (some minutes)
  bench.py run                    measures and prints the table

COMMAND runs a shell command in a virtual machine that has the zfs module, with the current
directory shared as its working directory: `COMMAND -t SECONDS -d IMAGE ... -- 'shell command'`.
Invariant: every figure is a median of several runs from the same state of the caches.
"""
import argparse, fcntl, json, os, random, shlex, shutil, statistics, struct, subprocess, sys, tarfile, time
from io import BytesIO

POOLS = {"bstripe": 2, "bmirror": 2, "braidz1": 3}
PARTITION_START = 1 << 20
# What may go wrong with a peer without ending the whole run.
FAILURES = (RuntimeError, OSError, subprocess.SubprocessError)

# measure -> (peer, wanted ratio, "more" or "less" is better); ratios are Cenote's stripe to the peer
TARGETS = {
    "sequential read cold, MB/s": ("ext4", 0.8, "more"),
    "random 4 KiB read cached, k/s": ("ext4", 1.0, "more"),
    "find and stat cold, s": ("zfs-fuse", 1 / 3, "less"),
    "verify everything, s": ("zdb", 0.5, "less"),
}


def run(command, **options):
    """Runs a command; its output, or an exception with what it said."""
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise RuntimeError(f"{shlex.join(map(str, command))}: {said[-1] if said else done.returncode}")
    return done.stdout


# --- preparing -----------------------------------------------------------------------------------

def make_source(at, args):
    """The big file and the small ones, from a seed."""
    os.makedirs(at, exist_ok=True)
    chance = random.Random(args.seed)
    big = f"{at}/big"
    if not os.path.exists(big):
        with open(big + ".new", "wb") as out:
            for _ in range(args.mebibytes):
                out.write(chance.randbytes(1 << 20))
        os.rename(big + ".new", big)
    archive = f"{at}/files.tar"
    if not os.path.exists(archive):
        words = chance.randbytes(1 << 16)
        with tarfile.open(archive + ".new", "w") as out:
            for number in range(args.files):
                size = min(int(chance.expovariate(1 / 2000)), 65536)
                start = chance.randrange(len(words))
                data = (words[start:] + words + words)[:size]
                entry = tarfile.TarInfo(f"files/d{number // 1000:03}/file-{number:06}")
                entry.size, entry.mtime, entry.mode = size, 1_700_000_000 + number, 0o644
                out.addfile(entry, BytesIO(data))
        os.rename(archive + ".new", archive)


def make_disk(path, size):
    """An image with one partition that fills it."""
    with open(path, "wb") as image:
        os.posix_fallocate(image.fileno(), 0, PARTITION_START + size)
        # A master boot record: no bootable flag, type 83 (Linux), first sector, sectors.
        entry = struct.pack("<BBBBBBBBII", 0, 0, 0, 0, 0x83, 0, 0, 0, PARTITION_START // 512, size // 512)
        image.write(bytes(446) + entry + bytes(48) + b"\x55\xaa")


def take_out_partition(path):
    """Turns the image into the bare partition, in place (ext4, XFS: collapse range)."""
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    with open(path, "r+b") as image:
        offsets = [ctypes.c_int64(0), ctypes.c_int64(PARTITION_START)]
        if libc.fallocate(image.fileno(), 8, *offsets):
            raise OSError(ctypes.get_errno(), "fallocate")


def prepare_pools(args):
    if os.path.exists(f"{args.dir}/pools/done"):
        return
    shutil.rmtree(f"{args.dir}/pools", ignore_errors=True)
    data = (args.mebibytes << 20) + args.files * 6144 + (512 << 20)
    shares = {"bstripe": data // 2, "bmirror": data, "braidz1": data * 6 // 10}
    images = []
    for pool, count in POOLS.items():
        os.makedirs(f"{args.dir}/pools/{pool}")
        for number in range(count):
            images.append(f"{args.dir}/pools/{pool}/disk{number}")
            make_disk(images[-1], shares[pool] * 11 // 10 >> 20 << 20)
    if not args.vm:
        for image in images:
            take_out_partition(image)
        make_own_pools(args)
        open(f"{args.dir}/pools/done", "w").close()
        return
    shutil.copy(os.path.join(os.path.dirname(os.path.abspath(__file__)), "make_pools.sh"), args.dir)
    command = shlex.split(args.vm) + ["-t", "7200"]
    for image in images:
        command += ["-d", image]
    environment = dict(os.environ, ZVM_SHARE=args.dir)
    subprocess.run(command + ["--", "bash make_pools.sh"], cwd=args.dir, env=environment, check=True)
    for image in images:
        take_out_partition(image)
    open(f"{args.dir}/pools/done", "w").close()


def make_own_pools(args):
    """What make_pools.sh does in the virtual machine, by Cenote."""
    for pool, layout in (("bstripe", []), ("bmirror", ["mirror"]), ("braidz1", ["raidz1"])):
        with Cenote(args, pool) as own:
            disks = [f"{own.disks}/disk{number}" for number in range(POOLS[pool])]
            own.tool("zpool", "create", "-R", own.root, "-o", "ashift=12", "-O", "compression=lz4",
                     "-O", "mountpoint=none", pool, *layout, *disks)
            own.tool("zfs", "create", "-o", f"mountpoint=/mnt/{pool}", f"{pool}/fs")
            shutil.copy(f"{args.dir}/source/big", f"{own.mountpoint}/big")
            run(["tar", "-xf", f"{args.dir}/source/files.tar", "-C", own.mountpoint])
            own.close()


def prepare_ext4(args):
    at = f"{args.dir}/ext4"
    if not os.path.exists(f"{at}/done"):
        shutil.rmtree(at, ignore_errors=True)
        os.makedirs(at)
        os.link(f"{args.dir}/source/big", f"{at}/big")
        run(["tar", "-xf", f"{args.dir}/source/files.tar", "-C", at])
        open(f"{at}/done", "w").close()


def prepare_zfs_fuse(args):
    at = f"{args.dir}/zfs-fuse"
    if os.path.exists(f"{at}/done"):
        return
    shutil.rmtree(at, ignore_errors=True)
    os.makedirs(f"{at}/pool")
    with open(f"{at}/pool/disk0", "wb") as image:
        size = (args.mebibytes << 20) + args.files * 6144 + (1 << 30)
        os.posix_fallocate(image.fileno(), 0, size)
    with ZfsFuse(args) as peer:
        peer.tool("zpool", "create", "-m", peer.mountpoint, peer.pool, f"{at}/pool/disk0")
        shutil.copy(f"{args.dir}/source/big", f"{peer.mountpoint}/big")
        run(["tar", "-xf", f"{args.dir}/source/files.tar", "-C", peer.mountpoint])
        peer.close()
    open(f"{at}/done", "w").close()


# --- the peers -----------------------------------------------------------------------------------

class Ext4:
    """The files on the directory's own filesystem."""
    name = "ext4"

    def __init__(self, args):
        self.mountpoint = f"{args.dir}/ext4"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def open(self):
        pass

    def close(self):
        pass

    def memory(self):
        return None


class ZfsFuse:
    """The last other ZFS in user space (pool version 23)."""
    name, pool = "zfs-fuse", "bzfsfuse"

    def __init__(self, args):
        self.prefix = shlex.split(args.zfs_fuse)
        self.disks = f"{args.dir}/zfs-fuse/pool"
        self.mountpoint = f"{args.dir}/zfs-fuse/mnt"
        self.log = f"{args.dir}/zfs-fuse/log"

    def tool(self, *words):
        return run([*self.prefix, *words], timeout=300)

    def __enter__(self):
        os.makedirs(self.mountpoint, exist_ok=True)
        for directory in ("/var/lock/zfs", "/var/run/zfs"):
            os.makedirs(directory, exist_ok=True)
        with open(self.log, "w") as log:
            self.daemon = subprocess.Popen(
                [*self.prefix, "zfs-fuse", "-n", "--no-kstat-mount", "-a", "3600", "-e", "3600"],
                stdout=log, stderr=log)
        time.sleep(2)
        return self

    def __exit__(self, *_):
        try:
            self.close()
        except FAILURES:
            pass
        self.daemon.terminate()
        try:
            self.daemon.wait(20)
        except subprocess.TimeoutExpired:
            self.daemon.kill()
            self.daemon.wait()

    def open(self):
        self.tool("zpool", "import", "-d", self.disks, self.pool)

    def close(self):
        # A daemon that has just been unmounted says busy for a moment.
        for patience in range(20):
            try:
                return self.tool("zpool", "export", self.pool)
            except RuntimeError as error:
                if "busy" not in str(error) or patience == 19:
                    raise
                time.sleep(0.5)

    def memory(self):
        return peak_memory(self.daemon.pid)


class Cenote:
    """Ours, on one of the pools."""

    def __init__(self, args, pool):
        self.pool, self.name = pool, f"cenote {pool[1:]}"
        self.binary = args.cenote
        self.disks = f"{args.dir}/pools/{pool}"
        self.root = f"{args.dir}/mnt"
        self.mountpoint = f"{self.root}/mnt/{pool}"
        self.run_dir = f"{args.dir}/run"
        self.verify_command = [
            word.format(cenote=self.binary, disks=self.disks, pool=pool)
            for word in shlex.split(args.cenote_verify)]

    def tool(self, *words):
        environment = dict(os.environ, CENOTE_RUN_DIR=self.run_dir)
        return run([self.binary, *words], env=environment, timeout=300)

    def __enter__(self):
        os.makedirs(self.run_dir, exist_ok=True)
        return self

    def __exit__(self, *_):
        try:
            self.close()
        except FAILURES:
            pass

    def open(self):
        self.tool("zpool", "import", "-o", "readonly=on", "-d", self.disks, "-R", self.root, self.pool)

    def close(self):
        self.tool("zpool", "export", self.pool)

    def memory(self):
        with open(f"{self.run_dir}/{self.pool}.pid") as pid:
            return peak_memory(int(pid.readline()))


def peak_memory(pid):
    """Most memory a process had, in MiB."""
    with open(f"/proc/{pid}/status") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return None


# --- the measures --------------------------------------------------------------------------------

def drop_caches():
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as control:
        control.write("3")


def sequential(path):
    """MB/s of reading a file from one end to the other, 1 MiB at a time."""
    buffer, total = bytearray(1 << 20), 0
    start = time.monotonic()
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            total += count
    return total / (time.monotonic() - start) / 1e6


def random_cached(path, seconds=3):
    """Thousand 4 KiB reads a second at random places of a region that is in memory."""
    region = min(256 << 20, os.path.getsize(path))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for offset in range(0, region, 1 << 20):
            os.pread(descriptor, 1 << 20, offset)
    finally:
        os.close(descriptor)
    if shutil.which("fio"):
        said = run(["fio", "--name=r", f"--filename={path}", "--rw=randread", "--bs=4k",
                    "--ioengine=psync", f"--size={region}", "--norandommap", "--readonly",
                    "--invalidate=0", "--time_based", f"--runtime={seconds}",
                    "--output-format=json"])
        said = said[said.index("{"):]
        return json.loads(said)["jobs"][0]["read"]["iops"] / 1e3
    descriptor, count, pages = os.open(path, os.O_RDONLY), 0, region // 4096
    buffers, chance, end = [bytearray(4096)], random.Random(1), time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            for _ in range(1000):
                os.preadv(descriptor, buffers, chance.randrange(pages) * 4096)
            count += 1000
    finally:
        os.close(descriptor)
    return count / seconds / 1e3


def timed(command, expect=None):
    """Seconds a command takes; checks how many lines it printed."""
    start = time.monotonic()
    lines = run(command).count("\n")
    elapsed = time.monotonic() - start
    if expect is not None and lines != expect:
        raise RuntimeError(f"{shlex.join(command)}: {lines} lines, not {expect}")
    return elapsed


def same(path, source):
    """The first and last MiB of a copy are right; catches a peer that serves rubbish fast."""
    size = os.path.getsize(source)
    if os.path.getsize(path) != size:
        raise RuntimeError(f"{path} has the wrong size")
    with open(path, "rb") as one, open(source, "rb") as two:
        for offset in (0, max(0, size - (1 << 20))):
            one.seek(offset), two.seek(offset)
            if one.read(1 << 20) != two.read(1 << 20):
                raise RuntimeError(f"{path} has the wrong content")


def measure(peer, args, note):
    """All file measures of one peer: {measure: [figures]}."""
    figures = {}

    def add(name, work, *arguments):
        try:
            figure = work(*arguments)
        except FAILURES as error:
            return note(f"{peer.name}: {name}: {error}")
        figures.setdefault(name, []).append(figure)

    with peer:
        for number in range(args.runs):
            try:
                peer.open()
            except FAILURES as error:
                note(f"{peer.name}: {error}")
                break
            at = peer.mountpoint
            try:
                if number == 0:
                    same(f"{at}/big", f"{args.dir}/source/big")
                    peer.close()
                    peer.open()
                drop_caches()
                add("sequential read cold, MB/s", sequential, f"{at}/big")
                add("random 4 KiB read cached, k/s", random_cached, f"{at}/big")
                peer.close(), peer.open(), drop_caches()
                find = ["find", f"{at}/files", "-type", "f", "-printf", "%s\\n"]
                add("find and stat cold, s", timed, find, args.files)
                add("find and stat warm, s", timed, find, args.files)
                peer.close(), peer.open(), drop_caches()
                tar = ["sh", "-c", 'tar -cf - "$1" | cat > /dev/null', "sh", f"{at}/files"]
                add("read all small files cold, s", timed, tar)
                memory = peer.memory()
                if memory is not None:
                    figures.setdefault("memory of the server, MiB", []).append(memory)
                peer.close()
            except FAILURES as error:
                note(f"{peer.name}: {error}")
                break
    return figures


def verify(name, command, runs, note):
    """Seconds and memory of a program that verifies a whole pool, with cold caches."""
    times, memory = [], []
    for _ in range(runs):
        drop_caches()
        start = time.monotonic()
        try:
            child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        except OSError as error:
            note(f"{name}: {error}")
            break
        said = child.stderr.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            last = said.strip().splitlines()[-1:] or [f"exit code {child.returncode}"]
            note(f"{name}: {last[0]}")
            break
        times.append(time.monotonic() - start)
        memory.append(usage.ru_maxrss / 1024)
    return times, memory


def rows(results, names):
    """The table: measure, one column a peer, ratio, target."""
    measures = list(TARGETS)
    measures += sorted({m for figures in results.values() for m in figures} - set(measures))
    table = [["", *names, "ratio", "target", ""]]
    for name in measures:
        median = {p: statistics.median(f[name]) for p, f in results.items() if f.get(name)}
        line = [name] + [f"{median[p]:.4g}" if p in median else "-" for p in names]
        peer, wanted, better = TARGETS.get(name, (None, None, None))
        ours = median.get("cenote stripe")
        if peer in median and ours is not None:
            ratio = ours / median[peer]
            met = ratio >= wanted if better == "more" else ratio <= wanted
            sign = ">=" if better == "more" else "<="
            line += [f"{ratio:.2f} x {peer}", f"{sign} {wanted:g}", "met" if met else "missed"]
        else:
            line += ["", "", ""]
        table.append(line)
    return table


def show(table):
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    for line in table:
        cells = [cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths))]
        print("  ".join(cells).rstrip())


def measure_all(args):
    notes = []

    def note(text):
        notes.append(text)
        print("note:", text, file=sys.stderr)

    peers = [Cenote(args, pool) for pool in POOLS] + [Ext4(args), ZfsFuse(args)]
    results, before = {}, os.getloadavg()
    for peer in peers:
        if args.only and not any(word in peer.name for word in args.only):
            continue
        print("measuring", peer.name, file=sys.stderr)
        results[peer.name] = measure(peer, args, note)
    for pool in POOLS:
        disks = f"{args.dir}/pools/{pool}"
        ours, theirs = f"cenote {pool[1:]}", "zdb" if pool == "bstripe" else f"zdb {pool[1:]}"
        jobs = [(ours, Cenote(args, pool).verify_command), (theirs, ["zdb", "-e", "-p", disks, "-cc", pool])]
        for name, command in jobs:
            if args.only and not any(word in name for word in args.only):
                continue
            print("verifying with", name, file=sys.stderr)
            times, memory = verify(name, command, args.runs, note)
            results.setdefault(name, {}).update({"verify everything, s": times, "verify: memory, MiB": memory})
    names = list(results)
    show(rows(results, names))
    print(f"\nmedians of {args.runs} runs; {args.mebibytes} MiB file, {args.files} small files; "
          f"{os.cpu_count()} processors, kernel {os.uname().release}; "
          f"load before {before[0]:.1f}, after {os.getloadavg()[0]:.1f}")
    for text in notes:
        print("note:", text)
    if args.json:
        with open(args.json, "w") as out:
            json.dump({"results": results, "notes": notes}, out, indent=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["prepare", "run", "all"])
    parser.add_argument("--dir", default="/var/tmp/cenote-bench", help="where everything lies (30 GB)")
    parser.add_argument("--mebibytes", type=int, default=4096, help="size of the big file")
    parser.add_argument("--files", type=int, default=100_000, help="number of small files")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--vm", default=os.environ.get("CENOTE_BENCH_VM"), help="runs a command beside the zfs module")
    parser.add_argument("--cenote", default="cenote", help="our program")
    parser.add_argument("--cenote-verify", default="{cenote} zdb -e -p {disks} -cc {pool}")
    parser.add_argument("--zfs-fuse", default=os.environ.get("ZFS_FUSE", "env"), help="prefix of zfs-fuse's programs")
    parser.add_argument("--only", action="append", help="measure only peers whose name has this in it")
    parser.add_argument("--json", help="also write the figures there")
    args = parser.parse_args()
    args.dir = os.path.realpath(args.dir)
    os.makedirs(args.dir, exist_ok=True)
    lock = open(f"{args.dir}/lock", "w")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if args.what in ("prepare", "all"):
        make_source(f"{args.dir}/source", args)
        prepare_ext4(args)
        prepare_zfs_fuse(args)
        prepare_pools(args)
    if args.what in ("run", "all"):
        measure_all(args)


if __name__ == "__main__":
    main()
