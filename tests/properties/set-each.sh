#!/usr/bin/env bash
# Sets every settable property to each kind of value, and prints how it is stored.
#   set-each.sh make DIR     pools prop1 and prop2 on DIR/prop{1,2}.img with zpool and zfs of PATH; exported at the end
#   set-each.sh show DIR     imports them and prints every property of everything (zpool get, zfs get)
#   set-each.sh stored DIR   prints every table of properties of the exported pools by zdb, without object numbers
# With Cenote first in PATH and in a machine with the real module: the outputs must be the same both ways.
set -u
what=$1 dir=$2; export LC_ALL=C
flags="recordsize=512,128K,1M mountpoint=none,legacy,/prop/x sharenfs=off checksum=on,off,fletcher2,fletcher4,sha256,sha512,skein
 compression=on,off,lzjb,gzip,gzip-1,gzip-9,zle,lz4,zstd,zstd-1,zstd-19,zstd-fast,zstd-fast-10,zstd-fast-1000 atime=on,off devices=on,off exec=on,off
 setuid=on,off readonly=on,off zoned=off snapdir=hidden,visible aclmode=discard,groupmask,passthrough,restricted
 aclinherit=discard,noallow,restricted,passthrough,passthrough-x canmount=on,off,noauto xattr=on,off,sa copies=1,2,3 vscan=on,off nbmand=off
 sharesmb=off quota=10M,none refquota=10M,none reservation=1M,none refreservation=1M,none primarycache=all,none,metadata
 secondarycache=all,none,metadata logbias=latency,throughput dedup=on,off,verify,sha256,sha512,skein sync=standard,always,disabled
 dnodesize=legacy,auto,1k,16k filesystem_limit=5,none snapshot_limit=5,none acltype=off,posix relatime=on,off
 redundant_metadata=all,most overlay=on,off keylocation=none special_small_blocks=0,4096 context=none org.x:y=z,5
 userquota@1=1M,none groupquota@1=1M userobjquota@1=5"
volume="checksum=off compression=zstd-5 copies=2 readonly=on reservation=1M refreservation=none logbias=throughput dedup=off sync=always
 snapshot_limit=4 redundant_metadata=most volmode=default,full,dev,none snapdev=hidden,visible primarycache=none volsize=16M"
pool="bootfs=prop1/fs0 delegation=off,on autoreplace=on failmode=wait,continue,panic listsnapshots=on autoexpand=on ashift=13 comment=a_comment autotrim=on
 compatibility=off,legacy cachefile=none multihost=on,off"
case $what in
make)
  for p in prop1 prop2; do
    truncate -s 256M $dir/$p.img
    zpool create -f -o cachefile=none -o feature@large_blocks=enabled -O mountpoint=none -O canmount=off $p $dir/$p.img || exit 1
  done
  # dataset k gets the k-th value of every property (the last one where there are fewer)
  for k in 0 1 2 3 4 5 6 7 8 9 10 11 12 13; do
    zfs create -u prop1/fs$k || zfs create prop1/fs$k
    for one in $flags; do
      name=${one%%=*}; IFS=, read -ra values <<< "${one#*=}"
      [ $k -lt ${#values[@]} ] || continue
      zfs set "$name=${values[$k]}" prop1/fs$k 2>&1 | sed "s|^|$name=${values[$k]}: |"
    done
  done
  zfs create -V 8M prop1/vol
  for one in $volume; do
    IFS=, read -ra values <<< "${one#*=}"; for v in "${values[@]}"; do zfs set "${one%%=*}=$v" prop1/vol 2>&1 | sed "s|^|vol ${one%%=*}=$v: |"; done
  done
  zfs snapshot prop1/fs0@s; zfs set org.x:y=snapshot prop1/fs0@s
  zfs inherit compression prop1/fs3; zfs inherit -r mountpoint prop1
  for one in $pool; do
    IFS=, read -ra values <<< "${one#*=}"; for v in "${values[@]}"; do zpool set "${one%%=*}=$v" prop1 2>&1 | sed "s|^|pool ${one%%=*}=$v: |"; done
  done
  for p in prop1 prop2; do zpool sync $p; zpool export $p || exit 1; done;;
show)
  for p in prop1 prop2; do
    zpool import -N -o cachefile=none -d $dir $p || exit 1
    zpool get -Hp -o property,value,source bootfs,delegation,autoreplace,failmode,listsnapshots,autoexpand,ashift,comment,autotrim,compatibility $p
    skip='creation|createtxg|guid|used.*|available|referenced|compressratio|refcompressratio|written|logical.*|objsetid|mounted|snapshots_changed'
    zfs get -Hrp -t filesystem,volume,snapshot -o name,property,value,source all $p | grep -vP "\t($skip)\t" | sort
    zpool export $p
  done;;
stored)
  for p in prop1 prop2; do
    zdb -e -dddd -p $dir $p 2>/dev/null | awk -v p=$p '
      / DSL props$| Pool properties$/ { kind = $0; sub(/.*% +[0-9.]* */, "", kind); sub(/^.*  /, "", kind); on = 1; next }
      /^    Object/ { on = 0 }
      on && / = / { gsub(/[ \t]+/, " "); if ($1 == "bootfs") $3 = $3 ~ /^[0-9]+$/ ? "an-object" : "text"; print p ":" kind ":" $0 }' | sort
  done;;
esac
