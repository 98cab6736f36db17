//! Channel programs through the program: what they see, what they change, how they are stopped.
//!
//! Invariant: whatever a program does or fails to do, the pool goes on and no space is lost.

use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::Bench;

impl Bench {
    /// What a program given on standard input comes to: exit code, output, errors.
    fn program(&self, options: &[&str], text: &str, arguments: &[&str]) -> (i32, String, String) {
        let words = [&["zfs", "program"], options, &["tank", "-"], arguments].concat();
        let mut command = self.command(&words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
    }

    /// What a program returns that has to end well.
    fn returned(&self, options: &[&str], text: &str, arguments: &[&str]) -> String {
        let (code, out, err) = self.program(options, text, arguments);
        assert_eq!((code, err.as_str()), (0, ""), "{text}");
        out
    }

    fn failed(&self, options: &[&str], text: &str) -> String {
        let (code, out, err) = self.program(options, text, &[]);
        assert_eq!((code, out.as_str()), (1, ""), "{text}: {err}");
        err
    }
}

#[test]
fn programs_look_and_say() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    bench.cenote(&["zfs", "create", "-o", "com.example:colour=blue", "tank/a"]);
    bench.cenote(&["zfs", "snapshot", "tank/a@one"]);
    bench.cenote(&["zfs", "hold", "keep", "tank/a@one"]);
    bench.cenote(&["zfs", "clone", "tank/a@one", "tank/b"]);
    bench.cenote(&["zfs", "bookmark", "tank/a@one", "tank/a#mark"]);
    bench.cenote(&["zfs", "snapshot", "tank/b@lonely"]);
    let lists = "
        local found = {}
        for name in zfs.list.children('tank') do table.insert(found, name) end
        for name in zfs.list.snapshots('tank/a') do table.insert(found, name) end
        for name in zfs.list.clones('tank/a@one') do table.insert(found, name) end
        for name in zfs.list.bookmarks('tank/a') do table.insert(found, name) end
        for tag, at in zfs.list.holds('tank/a@one') do assert(at > 1000000000) table.insert(found, tag) end
        for name, value, source in zfs.list.user_properties('tank/a') do
            table.insert(found, name .. '=' .. value .. ' ' .. source)
        end
        assert(zfs.exists((...)['argv'][1]) and not zfs.exists('tank/none'))
        return table.concat(found, ',')";
    let expected = "Channel program fully executed with return value:\n    return: \
                    'tank/a,tank/b,tank/a@one,tank/b,tank/a#mark,keep,com.example:colour=blue tank/a'\n";
    for options in [&["-n"][..], &[]] {
        assert_eq!(bench.returned(options, lists, &["tank/a"]), expected);
    }
    let properties = "
        local size, from = zfs.get_prop('tank/a', 'recordsize')
        local compression = zfs.get_prop('tank/a', 'compression')
        return {size = size, from = from, type = zfs.get_prop('tank/a@one', 'type'), on = compression,
                clones = zfs.get_prop('tank/a@one', 'clones'), none = zfs.get_prop('tank/a', 'a:b') == nil,
                alone = #zfs.get_prop('tank/b@lonely', 'clones'), since = {zfs.get_prop('tank/a', 'written@one')}}";
    assert_eq!(
        bench.returned(&["-j", "-n"], properties, &[]),
        "{\"return\":{\"size\":131072,\"from\":\"default\",\"type\":\"snapshot\",\"on\":\"on\",\
         \"clones\":{\"1\":\"tank/b\"},\"none\":true,\"alone\":0,\"since\":{\"1\":0,\"2\":\"tank/a\"}}}"
    );
    let nothing = "Channel program fully executed with no return value.\n";
    assert_eq!(bench.returned(&[], "local x = 1", &[]), nothing);
    let failures = [
        (
            "return 1 / 0",
            "[string \"channel program\"]:1: attempt to divide by zero\nstack traceback:\n\t[string \"channel program\"]:1: in main chunk\n",
        ),
        ("zfs.exists('other')", "is not in the target pool 'tank'"),
        ("zfs.get_prop('tank', 'notaprop')", "'notaprop' is not a valid property"),
        ("zfs.list.snapshots('tank/a@one')", "'tank/a@one' is a snapshot"),
        ("zfs.sync.destroy{'tank/a', other=true}", "usage: destroy{"),
        ("local a = {} a.a = a return a", "Maximum table depth (20) exceeded"),
        ("return {[1] = 1, ['1'] = 2}", "Collision of key '1'"),
        ("error({})", "in function 'error'"),
    ];
    for (text, words) in failures {
        let said = bench.failed(&[], text);
        assert!(
            said.starts_with("Channel program execution failed:\n") && said.contains(words),
            "{said}"
        );
    }
    let said = bench.failed(&["-n"], "zfs.sync.snapshot('tank/a@two')");
    assert!(said.contains("requires passing sync=TRUE"), "{said}");
    let limit = "Channel program execution failed:\nInvalid instruction or memory limit.\n";
    assert_eq!(bench.failed(&["-m", "200000000"], "return 1"), limit);
    let large = "Channel program execution failed:\nReturn value too large.\n";
    assert_eq!(bench.failed(&["-m", "9223372036854775808"], "return 1"), large);
}

#[test]
fn programs_change_datasets_step_by_step_in_one_group() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    for name in ["tank/a", "tank/a/b", "tank/gone", "tank/back", "tank/undone"] {
        bench.cenote(&["zfs", "create", name]);
    }
    for (name, state) in ["back", "undone"]
        .iter()
        .flat_map(|name| ["then", "later", "now"].map(|state| (name, state)))
    {
        // With an intent log, which the snapshot has, too, and which is not the filesystem's own when it goes back.
        let mut file = std::fs::File::create(bench.at(&format!("mnt/tank/{name}/file"))).unwrap();
        file.write_all(state.as_bytes()).unwrap();
        file.sync_all().unwrap();
        if state != "now" {
            bench.cenote(&["zfs", "snapshot", &format!("tank/{name}@{state}")]);
        }
    }
    bench.cenote(&["zfs", "unmount", "tank/undone"]);
    bench.cenote(&["zfs", "unmount", "tank/back"]);
    bench.cenote(&["zfs", "unmount", "tank/gone"]);
    let text = "
        assert(zfs.check.snapshot('tank/a@x') == 0)
        assert(zfs.sync.snapshot('tank/a@x') == 0)
        assert(zfs.sync.snapshot('tank/a@y') == EAGAIN)
        assert(zfs.sync.snapshot('tank/a/b@x') == 0)
        assert(zfs.sync.snapshot('tank/a') == EINVAL)
        assert(zfs.sync.rename_snapshot('tank/a/b', 'x', 'y') == 0)
        assert(zfs.sync.bookmark('tank/a@x', 'tank/a#x') == 0)
        assert(zfs.sync.destroy('tank/a') == EBUSY)
        assert(zfs.sync.destroy('tank/none') == ENOENT)
        assert(zfs.sync.destroy('tank/gone') == 0)
        assert(zfs.sync.rollback('tank/a') == EBUSY)
        assert(zfs.sync.rollback('tank/back') == 0)
        assert(zfs.sync.destroy('tank/back@later') == 0)
        assert(zfs.sync.rollback('tank/back') == 0)
        assert(zfs.sync.destroy('tank/back@then') == 0)
        assert(zfs.sync.rollback('tank/undone') == 0)
        assert(zfs.sync.snapshot('tank/undone@early') == EAGAIN)
        assert(zfs.sync.destroy('tank/undone') == EBUSY)
        assert(zfs.sync.destroy('tank/undone@later') == 0)
        assert(zfs.sync.destroy('tank/undone@then') == 0)
        assert(zfs.sync.destroy('tank/undone') == 0)
        assert(zfs.sync.set_prop('tank/a', 'com.example:x', '1') == 0)
        assert(zfs.sync.set_prop('tank/a', 'compression', 'off') == EINVAL)
        assert(zfs.sync.set_prop('tank/a', 'com.example:y', string.rep('x', 9000)) == E2BIG)
        assert(zfs.get_prop('tank/a', 'com.example:x') == '1')
        assert(zfs.sync.inherit('tank/a', 'com.example:x') == 0)
        assert(zfs.sync.promote('tank/a') == EINVAL)
        return zfs.exists('tank/gone')";
    assert!(bench.returned(&[], text, &[]).ends_with("return: false\n"));
    let names = bench.cenote(&["zfs", "list", "-Ho", "name", "-t", "all", "-r", "tank"]);
    assert_eq!(names, "tank\ntank/a\ntank/a@x\ntank/a#x\ntank/a/b\ntank/a/b@y\ntank/back\n");
    bench.cenote(&["zfs", "mount", "tank/back"]);
    assert_eq!(std::fs::read(bench.at("mnt/tank/back/file")).unwrap(), b"then");
    assert!(bench.at("mnt/tank/a/.zfs/snapshot/x").is_dir());
    let history = bench.cenote(&["zpool", "history", "tank"]);
    assert!(history.contains("zfs program tank -"), "{history}");
    // What was done before a failure stays.
    let said = bench.failed(&[], "zfs.sync.snapshot('tank/back@kept') error('enough')");
    assert!(said.contains(":1: enough\nstack traceback:"), "{said}");
    bench.cenote(&["zfs", "list", "tank/back@kept"]);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn clones_are_promoted_and_conflicts_named() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    bench.cenote(&["zfs", "create", "tank/a"]);
    bench.cenote(&["zfs", "snapshot", "tank/a@one"]);
    bench.cenote(&["zfs", "clone", "tank/a@one", "tank/c"]);
    bench.cenote(&["zfs", "snapshot", "tank/c@one"]);
    bench.cenote(&["zfs", "clone", "tank/c@one", "tank/d"]);
    let text = "
        local number, names = zfs.sync.promote('tank/c')
        assert(number == EEXIST and #names == 1 and names[1] == 'one')
        assert(zfs.sync.rename_snapshot('tank/c', 'one', 'two') == 0)
        assert(zfs.sync.promote('tank/d') == 0)
        assert(zfs.sync.promote('tank/d') == 0)
        local all = {}
        for name in zfs.list.snapshots('tank/d') do table.insert(all, name) end
        return table.concat(all, ' ')";
    let shown = bench.returned(&[], text, &[]);
    assert!(shown.ends_with("return: 'tank/d@one tank/d@two'\n"), "{shown}");
    assert!(bench.at("mnt/tank/d/.zfs/snapshot/two").is_dir());
    assert!(!bench.at("mnt/tank/c/.zfs/snapshot/two").exists());
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn programs_that_run_away_are_stopped() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    let forever = "i = 1 while true do i = i + 1 end";
    for limit in ["1000", "100000"] {
        let said = bench.failed(&["-t", limit], forever);
        let last = format!("in main chunk\n{limit} Lua instructions\n");
        assert!(said.contains("Channel program timed out.") && said.ends_with(&last), "{said}");
    }
    let memory = "Channel program execution failed:\nMemory limit exhausted.\n";
    let grows = "a = {} i = 0 while true do i = i + 1 a[i] = 'number ' .. i end";
    assert_eq!(bench.failed(&["-m", "100000"], grows), memory);
    assert_eq!(bench.failed(&["-m", "1"], "return 1"), memory);
    assert_eq!(bench.failed(&[], "return string.rep('x', 1000000000)"), memory);
    let wide = "local t = {1} for i = 1, 18 do t = {t, t, t, t, t, t, t, t} end return t";
    let said = bench.failed(&[], wide);
    assert_eq!(said, "Channel program execution failed:\nReturn value too large.\n");
    let deep = "return ".to_owned() + &"(".repeat(100_000);
    assert!(bench.failed(&[], &deep).contains("too many C levels"));
    // Who gives it is killed: it ends, and what it did stays.
    let text = "zfs.sync.snapshot('tank@kept') for i = 1, 20000000 do zfs.check.snapshot('tank@other') end";
    let words = ["zfs", "program", "-t", "100000000", "tank", "-"];
    let mut child = bench.command(&words).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    std::thread::sleep(Duration::from_secs(2));
    child.kill().unwrap();
    child.wait().unwrap();
    let begun = Instant::now();
    bench.cenote(&["zfs", "create", "tank/after"]);
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    bench.cenote(&["zfs", "list", "tank@kept"]);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}
