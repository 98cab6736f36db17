#!/usr/bin/env bash
# A pool with multihost=on between us and the real kernel module: whoever has it, the other is refused, also with -f, and
# gets it when the first has exported it or is dead.
#
# Run by hand, as root:  tests/multihost_module.sh CENOTE ZVM [DIRECTORY]
# ZVM: a command that runs a line in a machine with OpenZFS's module and sees the directory $ZVM_SHARE as /zvm.
set -u
cenote=$(realpath "$1") zvm=$(realpath "$2") place=$(realpath -m "${3:-/var/tmp/cenote-multihost}")
rm -rf "$place"; mkdir -p "$place"/{d,m,run}; truncate -s 512M "$place/d/1"
export CENOTE_RUN_DIR=$place/run ZFS_HOSTID=0x11111111 ZVM_SHARE=$place
failed=0
expect() { if [ "$1" = "$2" ]; then echo "ok: $3"; else echo "WRONG: $3: $2, not $1"; failed=1; fi; }
machine() { timeout 400 "$zvm" -t 300 -- "echo 572662306 > /sys/module/spl/parameters/spl_hostid; $*"; }
ours() { "$cenote" zpool import "$@" -d "$place/d" -R "$place/m" mh >/dev/null 2>&1; echo $?; }

machine 'zpool create -f -o multihost=on -o cachefile=none -o compatibility=openzfs-2.1-linux -O mountpoint=/f mh /zvm/d/1 &&
  cp /bin/bash /f/f && md5sum < /f/f > /zvm/sum && zpool sync && touch /zvm/ready && for i in $(seq 300); do [ -e /zvm/go ] && break; sleep 0.5; done
  zpool export mh' >"$place/first" 2>&1 &
for _ in $(seq 400); do [ -e "$place/ready" ] && break; sleep 0.5; done
expect 1 "$(ours)" "what the module has is refused here"
expect 1 "$(ours -f)" "with -f too"
touch "$place/go"; wait
expect 0 "$(ours)" "what it exported is imported"
expect "$(cat "$place/sum")" "$(md5sum <"$place/m/f/f")" "the file is the same"
cp "$place/m/f/f" "$place/m/f/g"; "$cenote" zpool sync mh
said=$(machine 'zpool import -d /zvm/d mh >/dev/null 2>&1; echo plain $?; zpool import -f -d /zvm/d mh >/dev/null 2>&1; echo forced $?')
expect "plain 1 forced 1" "$(echo $said | grep -o 'plain.*')" "the module refuses what we have"
kill -9 "$(head -n 1 "$place/run/mh.pid" | cut -d' ' -f1)"; sleep 1
awk -v p="$place/m" 'index($2, p) == 1 { print $2 }' /proc/mounts | sort -r | xargs -r -n 1 umount -l
said=$(machine 'zpool import -f -d /zvm/d mh >/dev/null 2>&1; echo forced $?; md5sum < /f/g; zpool scrub -w mh; zpool status mh | grep -c "0 errors"; zpool export mh')
expect "forced 0 $(echo $(cat "$place/sum")) 1" "$(echo $said | grep -o 'forced.*')" "it takes what we left when we died"
exit $failed
