#!/bin/bash
# Runs inside the virtual machine with the OpenZFS kernel module: makes the pools to be measured on
# the disks it is given, two for a stripe, two for a mirror, three for raidz1, in this order. Each
# disk has one partition (zpool leaves partitions as they are). The current directory holds
# source/big and source/files.tar.
set -e
say() { echo "[$(cut -d. -f1 /proc/uptime)s] $*"; }
# 1 GiB for dirty data is more than this small machine has.
echo $((256 << 20)) > /sys/module/zfs/parameters/zfs_dirty_data_max
create() { zpool create -o cachefile=none -o ashift=12 -O compression=lz4 -O mountpoint=none "$@"; }
create bstripe /dev/vda1 /dev/vdb1
create bmirror mirror /dev/vdc1 /dev/vdd1
create braidz1 raidz1 /dev/vde1 /dev/vdf1 /dev/vdg1
zfs create -o mountpoint=/mnt/bstripe bstripe/fs
say "big file"
dd if=source/big of=/mnt/bstripe/big bs=1M status=none
say "many files"
tar -xf source/files.tar -C /mnt/bstripe
zpool sync bstripe
zfs snapshot bstripe/fs@bench
for pool in bmirror braidz1; do
  say "copy to $pool"
  zfs send -L -c bstripe/fs@bench | zfs receive -o mountpoint=/mnt/$pool -u $pool/fs
  zfs destroy $pool/fs@bench
done
zfs destroy bstripe/fs@bench
for pool in bstripe bmirror braidz1; do
  zpool list -v $pool
  zpool export $pool
done
say "done"
