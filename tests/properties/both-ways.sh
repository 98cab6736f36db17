#!/usr/bin/env bash
# Every settable property, set to each kind of value by us and by the real kernel module, read and shown by both.
#
# Run by hand, as root:  tests/properties/both-ways.sh CENOTE ZVM [DIRECTORY]
# ZVM: a command that runs a line in a machine with OpenZFS's module and sees the directory $ZVM_SHARE as /zvm.
set -u
cenote=$(realpath "$1") zvm=$(realpath "$2") place=$(realpath -m "${3:-/var/tmp/cenote-properties}")
here=$(dirname "$(realpath "$0")")
rm -rf "$place"; mkdir -p "$place"/{ours,theirs,bin,run}; cp "$here/set-each.sh" "$place"
for tool in zpool zfs; do printf '#!/bin/sh\nexec %s %s "$@"\n' "$cenote" $tool > "$place/bin/$tool"; done; chmod +x "$place"/bin/*
export CENOTE_RUN_DIR=$place/run ZFS_HOSTID=0x11111111 ZVM_SHARE=$place
us() { PATH=$place/bin:$PATH bash "$place/set-each.sh" "$@"; }
module() { timeout 900 "$zvm" -t 800 -- "echo 286331153 > /sys/module/spl/parameters/spl_hostid; $*"; }

us make "$place/ours" > "$place/ours.made" 2>&1
module 'bash /zvm/set-each.sh make /zvm/theirs > /zvm/theirs.made 2>&1'
for made in ours theirs; do us stored "$place/$made" > "$place/$made.stored"; us show "$place/$made" > "$place/$made.shown-by-us" 2>&1; done
module 'for made in ours theirs; do bash /zvm/set-each.sh show /zvm/$made > /zvm/$made.shown-by-them 2>&1; done'
for pair in "ours.made theirs.made" "ours.stored theirs.stored" "ours.shown-by-us ours.shown-by-them" "theirs.shown-by-us theirs.shown-by-them"; do
  set -- $pair
  echo "== $1 ($(wc -l < "$place/$1") lines) and $2 ($(wc -l < "$place/$2")): $(diff "$place/$1" "$place/$2" | grep -c '^[<>]') lines differ"
  diff "$place/$1" "$place/$2" | grep '^[<>]' | head -40
done
