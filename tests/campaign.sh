#!/bin/bash
# All that takes hours before a version is called safe: each part of docs/architecture.md's "Power cuts" and "Exercisers", of
# docs/torture.md and docs/zts.md, with its output below OUT. Run by hand, as root.
#
#   tests/campaign.sh OUT PART...      with parts, and what they took on two free cores:
#
#   torture:A..B   20,000 seeds (95 minutes)            mixed       every layout with the real module (35)
#   cuts           all power cuts (25 to 40)            findings    the scripts of ../shared/findings (12)
#   fuzz           ten minutes of each target, an       faults      those of ../shared/findings/faults (60)
#                  hour of pool_image (115)             zts:LIST    OpenZFS's own tests, groups named in the file LIST (65)
#   posix          pjdfstest, 20 x 50,000 of fsx (20)    jobs        tests/long_jobs.py, with both modules
#   streams        tests/streams_both_ways.py
#
# LIMIT: seconds for each of OpenZFS's tests. CENOTE: the release binary (target/release/cenote). IDLE=1: all of it yields to whatever else the machine does (`nice` counts only
# within a session). LANES: fuzz targets at once (as many as there are processors). A part ends with one line in OUT/summary: its name,
# its exit code, the commit.
set -u
here=$(cd "$(dirname "$0")/.." && pwd)
out=$(mkdir -p "$1" && cd "$1" && pwd)
shift
cenote=$(realpath "${CENOTE:-$here/target/release/cenote}")
shared=$here/../shared
export RUST_BACKTRACE=0
[ -z "${IDLE:-}" ] || echo 19 > /proc/self/autogroup
cd "$here" || exit 1

torture() {
    cargo build --locked --profile torture -p cenote-torture || return 1
    local binary=${CARGO_TARGET_DIR:-target}/torture/cenote-torture
    cp "$binary" "$out/cenote-torture"
    "$out/cenote-torture" --seeds "$1" --jobs "${JOBS:-3}"
}

cuts() {
    # Those of the thirteenth workload, an expansion, would take a day.
    CUT_SECONDS=600 CUT_THREADS=2 cargo test --locked --profile torture -p cenote-posix --test crashes -- \
        --nocapture raidz_that_is_expanded &&
    CUT_SECONDS=100000 CUT_THREADS=2 cargo test --locked --profile torture -p cenote-posix --test crashes -- \
        --nocapture --skip raidz_that_is_expanded
}

mixed() {
    local failed=0 layout
    while read -r -a layout; do
        echo "== ${layout[*]}"
        ZVM_SHARE=$out/mixed tests/mixed_workload.py --cenote "$cenote" --dir "$out/mixed" \
            --module "$shared/tools/zvm" "${layout[@]}" < /dev/null || failed=1
    done <<'LAYOUTS'
mirror 2
mirror 3 --missing 2
raidz1 3
raidz1 3 --missing 1 --kill
raidz2 5 --missing 2
raidz3 6 --missing 3 --kill
draid1 5
stripe 2
LAYOUTS
    return $failed
}

findings() {
    local failed=0 script said
    for script in "$shared"/findings/*.sh; do
        for variant in "" LAYOUT=raidz1 LAYOUT=mirror; do
            case $variant:$(basename "$script") in
                :* | LAYOUT=raidz1:stale-* | LAYOUT=mirror:stale-*) ;;
                *) continue ;;
            esac
            said=$(env $variant timeout 600 "$script" "$cenote" 2>&1 < /dev/null | tail -1)
            echo "$(basename "$script") $variant: $said"
            case $said in ok:* | skipped:*) ;; *) failed=1 ;; esac
        done
    done
    return $failed
}

faults() {
    # Their results are read, not counted: see the README there.
    export FLT=$out/faults CENOTE=$cenote CENOTE_RUN_DIR=$out/faults/run
    mkdir -p "$CENOTE_RUN_DIR"
    local scripts=$shared/findings/faults each
    for each in "device_faults.py all" "host_faults.py all" "log_mirror.py mirror nothing" "log_mirror.py mirror stale" \
        "log_mirror.py raidz1 scribble" "full_small.py 256M 8 65536 fsync" "full_acked.py" "full_again.sh" \
        "full_log_replay.sh" "double_import.sh" "double_loop.sh" "split_brain.sh" "stale_half.py" "suspended.py mirror" \
        "import_silent.py" "loop_block.py" "rewind_uberblocks.sh 3" "mount_window.sh"; do
        echo "== $each"
        # shellcheck disable=SC2086
        (cd "$scripts" && timeout 5400 ./$each < /dev/null 2>&1)
        echo "== exit code $?"
        grep -o "$FLT[^ ]*" /proc/self/mounts | sort -r | xargs -r -n 1 umount -l
    done
}

zts() {
    local binaries=$out/zts-bin tool=$out/zts-tool
    mkdir -p "$binaries" && cp "$cenote" "$binaries/cenote"
    # A copy of the tool that takes our `zed` and `zinject` along, and lets a shell be process 1: nobody else reaps a zed that was stopped.
    rm -rf "$tool" && cp -r "$shared/tools/zts" "$tool" && chmod -R u+w "$tool"
    sed -i 's/^for f in zpool zfs zdb mount.zfs mount.fuse.cenote; do ln -s /for f in zpool zfs zdb zed zinject mount.zfs mount.fuse.cenote; do ln -sf /' "$tool/run-zts"
    sed -i 's/for f in zpool zfs zdb mount.zfs/for f in zpool zfs zdb zed zinject mount.zfs/
        s#exec /usr/bin/python3 /zts/zts.py drive "$1"#/usr/bin/python3 /zts/zts.py drive "$1"; exit $?#' "$tool/enter"
    # The suite's tests of events run the zedlets of Debian's package, which need not be installed.
    if [ ! -e /usr/lib/zfs-linux/zed.d/all-debug.sh ]; then
        (mkdir -p "$out/zed" && cd "$out/zed" && apt-get download -qq zfs-zed && dpkg -x zfs-zed_*.deb . &&
            mkdir -p /etc/zfs /usr/lib/zfs-linux && cp -rL etc/zfs/zed.d /etc/zfs/ && cp -rL usr/lib/zfs-linux/zed.d /usr/lib/zfs-linux/)
    fi
    # shellcheck disable=SC2046
    "$tool/run-zts" -b "$binaries" -w "$out/zts-work" -o "$out/zts" -t "${LIMIT:-400}" $(cat "$1")
}

jobs() {
    local failed=0
    ZVM_SHARE=$out/jobs tests/long_jobs.py --cenote "$cenote" --module "$shared/tools/zvm" --dir "$out/jobs" || failed=1
    # The module of 2.3: it is built by `install-oracles --vm-2.3`.
    ZVM_SHARE=$out/jobs-2.3 tests/long_jobs.py --cenote "$cenote" --module "$shared/tools/zvm" --dir "$out/jobs-2.3" expansion || failed=1
    return $failed
}

streams() {
    tests/streams_both_ways.py --cenote "$cenote" --module "$shared/tools/zvm" --dir "$out/streams"
}

fuzz() {
    (
        cd fuzz || exit 1
        export RUSTC_BOOTSTRAP=1 LSAN_OPTIONS=suppressions=$PWD/leaks.suppressions:print_suppressions=0
        cargo fuzz build -O || exit 1
        one() {
            mkdir -p "corpus/${1%:*}"
            cargo fuzz run -O "${1%:*}" "corpus/${1%:*}" "seeds/${1%:*}" -- \
                -max_total_time="${1#*:}" -rss_limit_mb=4096 > "$2/fuzz-${1%:*}.log" 2>&1
            echo "${1%:*}: $?, $(grep -c ERROR "$2/fuzz-${1%:*}.log") errors"
        }
        export -f one
        for target in fuzz_targets/*.rs; do
            basename "$target" .rs | sed '/^pool_image$/d; s/$/:600/'
        done | sed '1i pool_image:3600' | xargs -P "${LANES:-$(nproc)}" -I{} bash -c 'one {} "$0"' "$out"
    ) | tee "$out/fuzz-results"
    ! grep -v ": 0, 0 errors" "$out/fuzz-results"
}

posix() {
    export CENOTE_RUN_DIR=$out/posix/run
    local place=$out/posix failed=0 seed
    mkdir -p "$place/run" "$place/mnt"
    truncate -s 3G "$place/a" "$place/b" "$place/c"
    "$cenote" zpool create -f -O compression=lz4 -R "$place/mnt" exercised raidz1 "$place/a" "$place/b" "$place/c" || return 1
    for seed in $(seq 1 "${FSX_SEEDS:-20}"); do
        fsx -S "$seed" -N 50000 "$place/mnt/exercised/file$seed" > "$place/fsx$seed.log" 2>&1 || { failed=1; echo "fsx $seed failed"; }
    done
    mkdir "$place/mnt/exercised/pjd"
    (cd "$place/mnt/exercised/pjd" && pjdfstest -c "$here/tests/pjdfstest.toml" -p "$place/mnt/exercised/pjd" > "$place/pjdfstest.log" 2>&1) || failed=1
    tail -3 "$place/pjdfstest.log"
    "$cenote" zpool export exercised || failed=1
    zdb -e -bcc -p "$place" exercised > "$place/zdb.log" 2>&1 || failed=1
    return $failed
}

# Read as a whole before it begins: whoever edits this file in those hours changes nothing of what runs.
all() {
    local part started name code
    for part in "$@"; do
        started=$(date +%s)
        name=${part%%:*}
        "$name" "${part#*:}" > "$out/$name.log" 2>&1
        code=$?
        echo "$part exit code $code after $((($(date +%s) - started) / 60)) minutes, $(git rev-parse --short HEAD)" >> "$out/summary"
    done
}
all "$@"; exit
