#!/usr/bin/env python3
"""Long jobs begun here or by OpenZFS's kernel module, cut off, carried on by the other, cut off again, ended by the first.

Run by hand, as root, on a machine with /dev/fuse and zdb:

    tests/long_jobs.py --cenote target/release/cenote --module ZVM [--dir DIR] [--first ours|theirs] [JOB ...]

ZVM is a command that runs a line in a machine with the module and sees the directory $ZVM_SHARE as /zvm. Each job has a pool
of its own, made and filled here. We are cut off by SIGKILL and the module by a reset of its machine. At the end the job
is done, both say so, files are what they were, a scrub finds nothing, and `zdb -bcc` finds no leak. One line a job and
stage tells what was under way then: a job that was done before its turn shows nothing of the other.
"""
import argparse, json, os, pathlib, random, shutil, signal, subprocess, sys, time

HERE = pathlib.Path(__file__).resolve().parent
MIB = 1 << 20

# What makes a pool of these disks; what is done before, by whoever begins; and what begins the job.
JOBS = {
    "scrub": ("mirror a b", "", "zpool scrub POOL"),
    "resilver": ("mirror a b", "zpool offline POOL DISKS/b; MORE", "zpool online POOL DISKS/b"),
    "replace": ("raidz1 a b c", "", "zpool replace POOL DISKS/b DISKS/e"),
    "attach": ("mirror a b", "", "zpool attach POOL DISKS/a DISKS/e"),
    "rebuild": ("mirror a b", "", "zpool attach -s POOL DISKS/a DISKS/e"),
    "draid": ("draid1:2d:5c:1s a b c d f", "zpool offline POOL DISKS/b; MORE", "zpool replace POOL DISKS/b draid1-0-0"),
    "remove": ("a b", "", "zpool remove POOL DISKS/b"),
    "initialize": ("mirror a b", "", "zpool initialize POOL"),
    "trim": ("mirror a b", "", "zpool trim POOL"),
    "destroy": ("raidz1 a b c", "", "zfs destroy -r POOL/goes"),
    "discard": ("mirror a b", "zpool checkpoint POOL; zfs destroy -r POOL/goes; zpool sync POOL; sleep 3", "zpool checkpoint -d POOL"),
    "expansion": ("raidz1 a b c", "", "zpool attach POOL raidz1-0 DISKS/e"),
}
# Of the module's tunables: those that hold its jobs up, and how they are set to hold and to go on.
HELD = {"zfs_scan_suspend_progress": (1, 0), "zfs_removal_suspend_progress": (1, 0), "zfs_async_block_max_blocks": (40, 400)}


def run(words, **more):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, **more)


def entries(text):
    return {entry["path"]: entry for entry in map(json.loads, text.splitlines())}


def fill(place, seed, count):
    rng = random.Random(seed)
    for number in range(count):
        below = place / f"d{number % 17}"
        below.mkdir(exist_ok=True)
        size = rng.choice([300, 5_000, 20_000, 70_000, 400_000])
        (below / f"f{number}").write_bytes(rng.randbytes(size))


class Job:
    def __init__(self, name, args):
        self.name, self.args = name, args
        self.pool = f"j{name}"
        self.disks = args.dir / name
        self.mount = args.dir / "mnt"
        self.layout, self.before, self.order = JOBS[name]
        self.failed = []

    def env(self):
        return {**os.environ, "CENOTE_RUN_DIR": str(self.args.dir / "run"), "ZFS_HOSTID": "0x11111111"}

    def ours(self, line, may_fail=False):
        """A line of commands here."""
        place = f"{self.args.dir}/bin"
        done = run(["bash", "-ec", self.words(line, self.disks, self.mount)], env={**self.env(), "PATH": f"{place}:{os.environ['PATH']}"})
        if done.returncode and not may_fail:
            self.failed.append(f"{line}: {done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def words(self, line, disks, mount):
        more = f"head -c 60000000 /dev/urandom > {mount}/{self.pool}/more; zpool sync {self.pool}"
        return line.replace("MORE", more).replace("POOL", self.pool).replace("DISKS", str(disks)).replace("MNT", str(mount))

    def create(self):
        self.disks.mkdir(parents=True)
        for disk in "abcdef":
            run(["truncate", "-s", "640M", self.disks / disk])
        kind = " ".join(word if len(word) > 1 else f"DISKS/{word}" for word in self.layout.split())
        modern = "-o feature@raidz_expansion=enabled" if self.name == "expansion" else "-o compatibility=openzfs-2.1-linux"
        self.ours(f"zpool create {modern} -O recordsize=16k -O compression=off -R MNT POOL {kind}; zfs create POOL/goes")
        root = self.mount / self.pool
        fill(root, 1, 700)
        fill(root / "goes", 2, 700)
        self.ours("zpool export POOL")

    def status(self, text):
        """What is under way, by `zpool status`."""
        told = ("in progress", "under way", "remove:", "Removal", "initializ", "trimm", "discarding", "Evacuation", "resilver", "scrub", "expan")
        # With -i and -t every device says whether it ever was.
        idle = ("uninitialized", "untrimmed") if self.name not in ("initialize", "trim") else ()
        lines = [line for line in text.splitlines() if any(word in line for word in told)]
        lines = [" ".join(line.split()) for line in lines if not any(word in line for word in idle)]
        return "; ".join(line for line in lines if "action:" not in line and "state may" not in line)[:220]

    def stage_ours(self, stage):
        self.ours("zpool import -f -d DISKS -R MNT POOL")
        if stage == "begins":
            if self.before:
                self.ours(self.before)
            self.ours(self.order)
        if stage != "ends":
            time.sleep(random.choice([0.02, 0.1, 0.3, 0.6]))
            status = self.ours("zpool status -i -t POOL; zpool get -H -o value freeing POOL", True)
            pid = int((self.args.dir / f"run/{self.pool}.pid").read_text().split()[0])
            os.kill(pid, signal.SIGKILL)
            time.sleep(0.3)
            for line in reversed(pathlib.Path("/proc/self/mounts").read_text().splitlines()):
                if line.split()[1].startswith(str(self.mount)):
                    run(["umount", "-l", line.split()[1]])
            return status
        self.ours("timeout 300 zpool wait POOL")
        status = self.ours("zpool status -i -t POOL; zpool get -H -o value freeing POOL")
        self.ours("zpool scrub -w POOL")
        scrubbed = self.ours("zpool status POOL")
        manifest = run([sys.executable, HERE / "manifest.py", self.mount / self.pool]).stdout
        self.ours("zpool export POOL")
        return status, scrubbed, manifest

    def line_theirs(self, stage):
        """What the module's machine does with this pool."""
        held = "; ".join(f"echo {{}} > /sys/module/zfs/parameters/{name}" for name in HELD)
        hold, go = (held.format(*(value[which] for value in HELD.values())) for which in (0, 1))
        disks, mount, out = f"/zvm/{self.name}", "/tmp/m", f"/zvm/{self.name}.{stage}"
        if stage == "ends":
            line = (f"{go}; zpool import -f -d DISKS -R MNT POOL && timeout 600 zpool wait POOL; (zpool status -i -t POOL; zpool get -H -o value freeing POOL) > {out}; "
                    f"zpool scrub -w POOL; zpool status POOL > {out}.scrub; python3 {HERE}/manifest.py MNT/POOL > {out}.manifest; zpool export POOL")
        else:
            begin = "".join(f"{words}; " for words in (self.before, self.order) if words) if stage == "begins" else ""
            line = (f"{hold}; zpool import -f -d DISKS -R MNT POOL; {begin} {go}; sleep 0.4; {hold}; timeout 30 zpool sync POOL; "
                    f"(zpool status -i -t POOL; zpool get -H -o value freeing POOL) > {out}")
        return "mkdir -p /tmp/m; ( " + self.words(line, disks, mount) + f" ) > {out}.log 2>&1"

    def read_theirs(self, stage):
        read = lambda end: (path.read_text() if (path := self.args.dir / f"{self.name}.{stage}{end}").exists() else "")
        if not read(""):
            self.failed.append(f"theirs, {stage}: the machine with the module says nothing: {read('.log')}")
        return (read(""), read(".scrub"), read(".manifest")) if stage == "ends" else read("")

    def judge(self, who, told, before):
        status, scrubbed, manifest = told
        if "with 0 errors" not in scrubbed or "No known data errors" not in scrubbed:
            self.failed.append(f"{who}: the scrub says {scrubbed}")
        if any(word in status for word in ("in progress", "replacing-", " DEGRADED ")) and self.name != "draid":
            self.failed.append(f"{who}: the job is not done: {status}")
        found = {path: entry for path, entry in entries(manifest).items() if path != "more" and not path.startswith("goes")}
        wanted = {path: entry for path, entry in before.items() if not path.startswith("goes")}
        if found != wanted:
            differing = sorted(path for path in wanted | found if wanted.get(path) != found.get(path))
            self.failed.append(f"{who}: {len(differing)} entries differ: {differing[:5]}")
        zdb = ["/opt/openzfs-2.3/run", "zdb"] if self.name == "expansion" else ["zdb"]
        done = run([*zdb, "-e", "-bcc", "-p", self.disks, self.pool])
        if done.returncode or "No leaks" not in done.stdout + done.stderr:
            self.failed.append(f"{who}: zdb is not content: {(done.stdout + done.stderr)[-2000:]}")


def in_machine(args, jobs, stage):
    """Runs a stage of all jobs in one life of the module's machine."""
    lines = "; ".join(job.line_theirs(stage) for job in jobs)
    end = "" if stage == "ends" else "; sync /zvm/*.*; sleep 1; echo b > /proc/sysrq-trigger; sleep 60"
    modern = {"ZVM_ZFS": "/opt/openzfs-2.3"} if any(job.name == "expansion" for job in jobs) else {}
    run([args.module, "-t", "2400", "--", lines + end], env={**os.environ, "ZVM_SHARE": str(args.dir), **modern})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cenote", required=True)
    parser.add_argument("--module", required=True)
    parser.add_argument("--dir", default="/var/tmp/cenote-jobs", type=pathlib.Path)
    parser.add_argument("--first", choices=["ours", "theirs"], action="append")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("jobs", nargs="*")
    args = parser.parse_args()
    random.seed(args.seed)
    # The expansion needs another module, so a machine of its own.
    names = args.jobs or [name for name in JOBS if name != "expansion"]
    failed = False
    for first in args.first or ["ours", "theirs"]:
        shutil.rmtree(args.dir, ignore_errors=True)
        for below in ("bin", "mnt", "run"):
            (args.dir / below).mkdir(parents=True)
        for tool in ("zpool", "zfs"):
            path = args.dir / "bin" / tool
            path.write_text(f'#!/bin/sh\nexec {os.path.abspath(args.cenote)} {tool} "$@"\n')
            path.chmod(0o755)
        jobs = [Job(name, args) for name in names]
        before = {}
        for job in jobs:
            job.create()
            job.ours("zpool import -d DISKS -R MNT POOL")
            before[job.name] = entries(run([sys.executable, HERE / "manifest.py", job.mount / job.pool]).stdout)
            job.ours("zpool export POOL")
        others = {"ours": "theirs", "theirs": "ours"}
        for who, stage in [(first, "begins"), (others[first], "goes-on"), (first, "ends")]:
            if who == "theirs":
                in_machine(args, jobs, stage)
            for job in jobs:
                told = job.stage_ours(stage) if who == "ours" else job.read_theirs(stage)
                print(f"{job.name:<12}{who:<8}{stage:<9}{job.status(told[0] if stage == 'ends' else told)}", flush=True)
                if stage == "ends":
                    job.judge(who, told, before[job.name])
        for job in jobs:
            for reason in job.failed:
                failed = True
                print(f"WRONG {job.name}, begun by {first}: {reason}")
        print(f"begun by {first}: {sum(not job.failed for job in jobs)} of {len(jobs)} well", flush=True)
    sys.exit(failed)


main()
