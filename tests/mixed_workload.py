#!/usr/bin/env python3
"""A mixed workload over a pool of our own, judged by OpenZFS's zdb and by what the files hold after another import.

Run by hand, as root, on a machine with /dev/fuse, zdb, git and (if there) fsx:

    tests/mixed_workload.py --cenote target/release/cenote raidz1 3 [--missing 1] [--kill] [--size 1G] [--module ZVM]

A tree of many shapes (tests/manifest.py tells what it holds), eight writers that each know what their files must hold, a
database with its own integrity check, a clone of this repository with fsck, fsx with mmap, a snapshot, removals; then
export (or, with --kill, the end of the pool process by SIGKILL), zdb -bcc, import with the first --missing devices away,
and the manifest again. With --module (the command that runs a line in a machine with the real kernel module and sees the directory $ZVM_SHARE as /zvm) that imports the pool too, compares, scrubs and writes, and we read what it wrote. Everything lies below --dir, and is left there if something differs.
"""
import argparse, hashlib, json, multiprocessing, os, pathlib, random, shutil, signal, sqlite3, subprocess, sys, time

HERE = pathlib.Path(__file__).resolve().parent


class Pool:
    """The pool, by the commands a user would give."""

    def __init__(self, args):
        self.module = args.module
        self.cenote, self.place = os.path.abspath(args.cenote), pathlib.Path(args.dir)
        self.disks, self.mount = self.place / "disks", self.place / "mnt"
        self.root = self.mount / "mixed"
        self.environment = {**os.environ, "CENOTE_RUN_DIR": str(self.place / "run")}

    def __call__(self, *words):
        done = subprocess.run([self.cenote, *map(str, words)], env=self.environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
        return done.stdout

    def create(self, layout, count, size):
        shutil.rmtree(self.place, ignore_errors=True)
        self.disks.mkdir(parents=True)
        self.mount.mkdir()
        paths = [self.disks / f"d{number}" for number in range(count)]
        for path in paths:
            subprocess.run(["truncate", "-s", size, path], check=True)
        kind = [] if layout == "stripe" else [layout]
        older = ["-o", "compatibility=openzfs-2.1-linux"] if self.module else []
        self("zpool", "create", *older, "-R", self.mount, "mixed", *kind, *paths)
        self("zfs", "create", "-o", "compression=zstd", "-o", "recordsize=1M", "mixed/z")
        self("zfs", "create", "-o", "compression=gzip", "-o", "recordsize=16K", "-o", "checksum=sha256", "mixed/g")
        self("zfs", "create", "-o", "compression=off", "-o", "copies=2", "mixed/c")

    def import_(self):
        self("zpool", "import", "-d", self.disks, "-R", self.mount, "mixed")

    def kill(self):
        pid = int((self.place / "run/mixed.pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)
        time.sleep(0.5)
        for line in reversed(pathlib.Path("/proc/self/mounts").read_text().splitlines()):
            at = line.split()[1]
            if at.startswith(str(self.mount)):
                subprocess.run(["umount", "-l", at], check=False)

    def zdb(self):
        done = subprocess.run(["zdb", "-e", "-bcc", "-p", self.disks, "mixed"], capture_output=True, text=True)
        text = done.stdout + done.stderr
        if done.returncode or "No leaks" not in text:
            sys.exit(f"zdb is not content:\n{text}")
        print("zdb: no leaks, no errors")

    def with_module(self, before):
        """The real module imports the exported pool, finds the same files, scrubs, writes; what it wrote is read here."""
        line = f"""set -e; zpool import -d /zvm/disks -R /tmp/m mixed; python3 {HERE}/manifest.py /tmp/m/mixed > /zvm/module.manifest
            zpool scrub -w mixed; zpool status -v mixed; mkdir /tmp/m/mixed/module; cd /tmp/m/mixed/module
            cp /tmp/m/mixed/z/tree/text-3000001 /tmp/m/mixed/z/tree/noise-131073 .; echo changed >> /tmp/m/mixed/g/tree/text-512
            rm -r /tmp/m/mixed/g/tree/many; zfs snapshot -r mixed@module; cd /; python3 {HERE}/manifest.py /tmp/m/mixed/module > /zvm/module.after
            zpool export mixed"""
        done = subprocess.run([self.module, "-t", "3000", "--", line], capture_output=True, text=True,
                              env={**os.environ, "ZVM_SHARE": str(self.place)})
        if done.returncode or "with 0 errors" not in done.stdout or "No known data errors" not in done.stdout:
            sys.exit(f"the module is not content:\n{done.stdout}{done.stderr}")
        if (found := entries((self.place / "module.manifest").read_text())) != before:
            differing = sorted(path for path in before | found if before.get(path) != found.get(path))
            sys.exit(f"the module reads {len(differing)} entries otherwise: {differing[:5]}")
        self.import_()
        if self.manifest("module") != entries((self.place / "module.after").read_text()):
            sys.exit("what the module wrote is read otherwise here")
        self("zpool", "export", "mixed")
        self.zdb()
        print("the real module: the same files, a clean scrub, and what it wrote is read here")

    def manifest(self, below=""):
        text = subprocess.run([sys.executable, HERE / "manifest.py", self.root / below], capture_output=True, text=True, check=True)
        return entries(text.stdout)


def entries(text):
    return {entry["path"]: entry for entry in map(json.loads, text.splitlines())}


def write(place, seed):
    """Changes thirty files at random and compares them with what they must hold."""
    rng, model = random.Random(seed), {}
    place.mkdir()
    for _ in range(300):
        name, kind = f"f{rng.randrange(30)}", rng.random()
        path = place / name
        if kind < 0.5:
            at, length = rng.randrange(300_000), rng.randrange(1, 200_000)
            data = rng.randbytes(length) if rng.random() < 0.5 else bytes([rng.randrange(256)]) * length
            with open(os.open(path, os.O_CREAT | os.O_RDWR), "r+b", buffering=0) as file:
                os.pwrite(file.fileno(), data, at)
                if rng.random() < 0.1:
                    os.fsync(file.fileno())
            held = bytearray(model.get(name, b"")).ljust(at, b"\0")
            held[at:at + length] = data
            model[name] = bytes(held)
        elif name not in model:
            continue
        elif kind < 0.7:
            length = rng.randrange(len(model[name]) + 1000)
            os.truncate(path, length)
            model[name] = model[name][:length].ljust(length, b"\0")
        elif kind < 0.85:
            target = f"f{rng.randrange(30)}"
            os.rename(path, place / target)
            model[target] = model.pop(name)
        else:
            os.unlink(path)
            del model[name]
    found = {path.name: path.read_bytes() for path in place.iterdir()}
    if found != model:
        sys.exit(f"writer {seed}: {sorted(name for name in model | found if model.get(name) != found.get(name))} differ")


def tree(place):
    """Files of many sizes, sparse ones, links, names, attributes."""
    rng = random.Random(7)
    place.mkdir()
    for size in [0, 1, 111, 512, 513, 4096, 100_000, 131_072, 131_073, 1 << 20, 3_000_001]:
        (place / f"noise-{size}").write_bytes(rng.randbytes(size))
        (place / f"text-{size}").write_bytes((b"all work and no play " * (size // 21 + 1))[:size])
    with open(place / "sparse", "wb") as file:
        for at in (0, 5_000_000, 900_000_000):
            file.seek(at)
            file.write(b"here")
    many = place / "many"
    many.mkdir()
    for number in range(3000):
        (many / f"{hashlib.sha256(bytes([number % 256, number // 256])).hexdigest()}").touch(mode=0o600 + number % 8)
    (place / "link").symlink_to("noise-111")
    os.link(place / "noise-111", place / "hard")
    os.mkfifo(place / "fifo")
    for name, length in (("user.short", 5), ("user.long", 40_000)):
        os.setxattr(place / "noise-513", name, rng.randbytes(length))


def tree_cut_off(place):
    try:
        tree(place)
    except OSError:
        pass  # the pool process was killed


def database(path):
    base = sqlite3.connect(path)
    base.execute("create table t(a integer primary key, b text)")
    for step in range(60):
        base.executemany("insert into t(b) values(?)", [("x" * (step * 37 % 2000),)] * 50)
        base.commit()
        base.execute("delete from t where a % 7 = ?", (step % 7,))
        base.commit()
    base.execute("vacuum")
    answer = base.execute("pragma integrity_check").fetchone()[0]
    base.close()
    if answer != "ok":
        sys.exit(f"the database: {answer}")


def clone(place):
    subprocess.run(["git", "clone", "-q", "--no-hardlinks", HERE.parent, place], check=True)
    subprocess.run(["git", "-C", place, "fsck", "--full", "--no-progress"], check=True, stdout=subprocess.DEVNULL)
    status = subprocess.run(["git", "-C", place, "status", "--short"], check=True, capture_output=True, text=True).stdout
    if status:
        sys.exit(f"the clone: {status}")


def work(pool, operations):
    jobs = [(write, (pool.root / f"w{seed}", seed)) for seed in range(8)]
    jobs += [(tree, (pool.root / "z/tree",)), (tree, (pool.root / "g/tree",)), (database, (pool.root / "c/base",)),
             (clone, (pool.root / "g/clone",))]
    running = [multiprocessing.Process(target=job, args=args) for job, args in jobs]
    for process in running:
        process.start()
    for process in running:
        process.join()
    if any(process.exitcode for process in running):
        sys.exit("not everything was done; see above")
    pool("zfs", "snapshot", "mixed/z@one")
    shutil.rmtree(pool.root / "z/tree/many")
    if shutil.which("fsx"):
        subprocess.run(["fsx", "-N", str(operations), pool.root / "fsx"], check=True, stdout=subprocess.DEVNULL)
    else:
        print("fsx is not installed: left out")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("layout", help="stripe, mirror, raidz1, raidz2, raidz3, draid1:2d:4c, ...")
    parser.add_argument("count", type=int, help="number of devices")
    parser.add_argument("--cenote", default="cenote")
    parser.add_argument("--dir", default="/var/tmp/cenote-mixed")
    parser.add_argument("--size", default="1G", help="of each device")
    parser.add_argument("--missing", type=int, default=0, help="devices that are away at the second import")
    parser.add_argument("--fsx", type=int, default=20_000, help="operations of fsx")
    parser.add_argument("--module", help="asks the real module too: the command that runs a line beside it")
    parser.add_argument("--kill", action="store_true", help="end with SIGKILL instead of export")
    args = parser.parse_args()
    pool = Pool(args)
    pool.create(args.layout, args.count, args.size)
    work(pool, args.fsx)
    before = pool.manifest()
    if args.kill:
        pool("zpool", "sync", "mixed")
        # What comes now may be there or not.
        late = multiprocessing.Process(target=tree_cut_off, args=(pool.root / "late",))
        late.start()
        time.sleep(1)
        pool.kill()
        late.join()
    else:
        pool("zpool", "export", "mixed")
        pool.zdb()
    away = pool.place / "away"
    away.mkdir()
    for number in range(args.missing):
        shutil.move(pool.disks / f"d{number}", away)
    pool.import_()
    after = pool.manifest()
    if args.kill:
        after = {path: entry for path, entry in after.items() if path.split("/")[0] != "late"}
        before, after = (drop(manifest, "") for manifest in (before, after))
    if before != after:
        differing = sorted(path for path in before | after if before.get(path) != after.get(path))
        sys.exit(f"{len(differing)} entries differ: {differing[:5]}")
    print(f"{len(after)} entries equal")
    pool("zpool", "export", "mixed")
    for path in away.iterdir():
        shutil.move(path, pool.disks)
    if not args.missing:
        pool.zdb()
    if args.module:
        pool.with_module(after)
    shutil.rmtree(pool.place)


def drop(manifest, path):
    return {name: entry for name, entry in manifest.items() if name != path}


if __name__ == "__main__":
    main()
