"""What programs that watch pools make of `zpool` and `zfs`: their command lines, and how they read the answers.

Each function does as one program does (the name and the commit it was read at stand above it), and prints what it
would tell. What a program would not have understood is an exception. Called: monitors.py POOL.
"""
import re
import subprocess
import sys


def run(line, code=0):
    done = subprocess.run(line.split(" "), capture_output=True, text=True, check=False)
    assert done.returncode == code, (line, done)
    return done.stdout


# jimsalterjrs/sanoid 8e1d11e, --monitor-health and --monitor-capacity
def sanoid(pool):
    lines = run(f"zpool list -o name,size,cap,health,free {pool}").splitlines()[1:]
    (row,) = [line.split() for line in lines if re.match(rf"{pool}\s+", line)]
    name, size, cap, health, free = row
    assert re.fullmatch(r"[\d.]+[KMGTPE]", size) and re.fullmatch(r"[\d.]+[KMGTPE]", free), row
    status, state, io = "", "OK ", True
    lines = iter(run(f"zpool status {pool}").splitlines())
    for line in lines:
        if re.search(r"NAME\s+STATE\s+READ\s+WRITE\s+CKSUM", line):
            break
    top = next(lines)
    assert re.match(rf"\s{pool}", top), top
    bad, group = [], None
    for line in lines:
        if line == "":
            break
        if re.match(r"\s(logs|spares|cache|special|dedup)", line):
            group = line.strip()
            continue
        found = re.match(r"\s+(\S+)\s+(\S+)\s+(\S+)\s+(\S+)\s+(\S+)", line)
        if found is None:
            assert group == "spares" and re.match(r"\s+\S+\s+(AVAIL|INUSE)", line), line
            continue
        device, now, *counts = found.groups()
        if now != "ONLINE" or counts != ["0", "0", "0"]:
            bad.append(f"{device.rsplit('/')[-1]}={now}")
    cap_alone = run(f"zpool list -H -o cap {pool}").split()[0]
    assert re.fullmatch(r"\d+%", cap_alone) and cap_alone == cap, cap_alone
    return f"{name} {health} {' '.join(bad)}".rstrip()


# zfsonlinux/zfs-auto-snapshot 92db087
def auto_snapshot(pool):
    ready, scrubbing, name = [], [], None
    for line in run("zpool status").splitlines():
        key, _, value = line.partition(": ")
        if re.fullmatch(r" *pool", key):
            name = value
        if re.fullmatch(r" *state", key) and re.search("ONLINE|DEGRADED", value):
            ready.append(name)
        if re.fullmatch(r" *scan", key) and re.search("scrub in progress", value):
            scrubbing.append(name)
    return f"ready={','.join(ready)} scrubbing={','.join(scrubbing)}"


# pdf/zfs_exporter 7af698c
def exporter(pool):
    asked = "allocated,dedupratio,fragmentation,free,freeing,health,leaked,readonly,size"
    states = "ONLINE DEGRADED FAULTED OFFLINE UNAVAIL REMOVED SUSPENDED".split()
    assert pool in run("zpool list -Ho name").splitlines()
    told = {}
    for line in run(f"zpool get -Hpo name,property,value {asked} {pool}").splitlines():
        name, key, value = line.split("\t")
        assert name == pool
        match key:
            case "health":
                told[key] = states.index(value)
            case "readonly":
                told[key] = ["off", "on"].index(value)
            case _:
                told[key] = float(value.rstrip("%x"))
    assert list(told) == asked.split(","), told
    assert told["allocated"] + told["free"] == told["size"], told
    datasets = "available,logicalused,quota,referenced,used,usedbydataset,written"
    for line in run(f"zfs get -Hprt filesystem -o name,property,value {datasets} {pool}").splitlines():
        _, _, value = line.split("\t")
        float(value)
    return f"health={told['health']} readonly={told['readonly']}"


# ansible-collections/community.general ade4f3e: zpool_facts, and how zpool finds out what a pool consists of
def ansible(pool):
    assert pool in run(f"zpool list {pool}")
    facts = {}
    for line in run(f"zpool get -H -o name,property,value all {pool}").splitlines():
        name, key, value = line.split("\t")
        assert name == pool
        facts[key] = value
    lines = run(f"zpool status -P -L {pool}").splitlines()
    start = [line.strip() for line in lines].index("config:")
    layout, role, group = [], None, None
    for line in (line.strip() for line in lines[start + 2 :]):
        if line.startswith("errors:"):
            break
        if not line or line.startswith(("NAME", pool)):
            continue
        word = line.split()[0]
        if word in ("logs", "cache", "spares"):
            role, group = word, None
        elif re.fullmatch(r"(mirror|raidz\d?)-\d+", word):
            group = word.split("-")[0]
        elif word.startswith("/"):
            layout.append(f"{role or 'data'}:{group or 'disk'}:{word.rsplit('/')[-1]}")
    return f"{facts['health']} {facts['feature@async_destroy']} {' '.join(layout)}"


# mistifyio/go-zfs 2a28eb6
def go_zfs(pool):
    asked = "name,health,allocated,size,free,readonly,dedupratio,fragmentation,freeing,leaked"
    told = {}
    for line in run(f"zpool get -Hp {asked} {pool}").splitlines():
        _, key, value, _ = line.split("\t")
        told[key] = value
    for key in ("allocated", "size", "free", "freeing", "leaked"):
        int(told[key])
    float(told["dedupratio"].rstrip("x"))
    int(told["fragmentation"].rstrip("%"))
    fields = "name,origin,used,available,mountpoint,compression,type,volsize,quota,referenced,written,logicalused,usedbydataset"
    (row,) = [line.split("\t") for line in run(f"zfs list -Hp -o {fields} {pool}").splitlines()]
    assert len(row) == 13, row
    return f"{told['name']} {told['health']}"


# proxmox/pve-storage 0c56bad
def proxmox(pool):
    leaves = [re.match(r"\t([^\t]+)\t", line) for line in run("zpool list -HPLv").splitlines()]
    leaves = [leaf[1].rsplit("/")[-1] for leaf in leaves if leaf and leaf[1].startswith("/")]
    told, rows, config = {}, [], False
    for line in run(f"zpool status -P {pool}").splitlines():
        if re.match(r"\s*config:", line):
            config = True
        elif found := re.match(r"\s*(\S+): (\S+.*)$", line):
            told[found[1]] = found[2]
            config = False
        elif config and (found := re.match(r"(\s+)(\S+)\s*(\S+)?(?:\s+(\S+)\s+(\S+)\s+(\S+))?\s*(.*)$", line)):
            level = len(found[1]) // 2 + 1
            if found[2] != "NAME":
                rows.append(f"{level}{found[2].rsplit('/')[-1]}")
    return f"{told['state']} {told['errors']} {' '.join(rows)} leaves={','.join(leaves)}"


# libvirt storage_backend_zfs.c
def libvirt(pool):
    told = {}
    for line in run(f"zpool get -Hp health,size,free,allocated {pool}").splitlines():
        _, key, value, _ = line.split("\t")
        told[key] = value
    assert int(told["size"]) == int(told["free"]) + int(told["allocated"])
    return told["health"]


# 45Drives/cockpit-zfs f81a26e, where it has no py-libzfs
def cockpit(pool):
    text = run(f"zpool status {pool}")
    name = re.search(r"pool:\s+(\S+)", text)[1]
    scan = re.search(r"scan: (.*?)\n(?=\S|config)", text, re.DOTALL)
    done = scan and re.search(r"(\d+(?:\.\d+)?)%\s+done", scan[1])
    to_go = scan and re.search(r"(\d+:\d+:\d+)\s+to go", scan[1])
    legacy = "The pool is formatted using a legacy on-disk format" in text
    return f"{name} legacy={legacy} under_way={bool(done)} to_go={bool(to_go)}"


# openzfs/zfs cmd/zed/zed.d/scrub_finish-notify.sh
def zedlet(pool):
    return f"'{pool}' is healthy" in run(f"zpool status -x {pool}")


if __name__ == "__main__":
    for program in (sanoid, auto_snapshot, exporter, ansible, go_zfs, proxmox, libvirt, cockpit, zedlet):
        print(f"{program.__name__}: {program(sys.argv[1])}")
