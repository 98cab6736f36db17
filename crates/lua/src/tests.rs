//! Programs and what they come to.
//!
//! Invariant: what a program may do is tried with programs.

use crate::{Limits, Stop, Value, machine};

/// What a program gives, as text; or why it stopped.
fn run(text: &str) -> std::result::Result<String, String> {
    run_within(text, Limits { instructions: 10_000_000, memory: 40_000_000 })
}

fn run_within(text: &str, limits: Limits) -> std::result::Result<String, String> {
    let goes_on = || true;
    let mut vm = machine(limits, &goes_on).map_err(|stop| format!("{stop:?}"))?;
    let done = vm.load(text.as_bytes(), "channel program").and_then(|main| vm.call(&main, &[]));
    match done {
        Ok(values) => {
            let words = values.iter().map(|value| match value {
                Value::Str(text) => text.lossy(),
                Value::Int(number) => number.to_string(),
                other => format!("{other:?}"),
            });
            Ok(words.collect::<Vec<_>>().join(" "))
        }
        Err(Stop::Error(Value::Str(text))) => Err(vm.traceback(&text.lossy())),
        Err(stop) => Err(format!("{stop:?}")),
    }
}

#[test]
fn numbers_are_whole_and_wrap_around() {
    assert_eq!(run("return 7 / 2, -7 / 2, 7 % 3, 2 ^ 10, '10' + 1").unwrap(), "3 -3 1 1024 11");
    assert_eq!(
        run("return 18446744073709551615 + 1 == (-18446744073709551616)").unwrap(),
        "Bool(true)"
    );
    assert!(run("return 1.5").unwrap_err().contains("malformed number near '1.5'"));
}

#[test]
fn errors_say_where() {
    let told = run("\nreturn 1 / 0").unwrap_err();
    let expected = "[string \"channel program\"]:2: attempt to divide by zero\nstack traceback:\n\t[string \"channel program\"]:2: in main chunk";
    assert_eq!(told, expected);
    let told = run("abc = nil; abc.deref()").unwrap_err();
    assert!(told.contains("attempt to index global 'abc' (a nil value)"), "{told}");
    let told = run("local t = {} t.x.y = 1").unwrap_err();
    assert!(told.contains("attempt to index field 'x' (a nil value)"), "{told}");
    let told = run("error('no')").unwrap_err();
    assert!(told.contains(":1: no\nstack traceback:\n\t[C]: in function 'error'"), "{told}");
    for (text, near) in [("{]", "'{'"), ("retrn 1", "'1'"), ("x = = 1", "'='")] {
        let told = run(text).unwrap_err();
        assert!(told.ends_with(&format!("near {near}")), "{told}");
    }
}

#[test]
fn variables_that_functions_share_are_new_each_time() {
    let text = "
        local all = {}
        for i = 1, 3 do
            local j = i * 10
            all[i] = function(more) j = j + more return i + j end
        end
        local a, b = all[1](1), all[1](1)
        return a, b, all[3](0)";
    assert_eq!(run(text).unwrap(), "12 13 33");
    assert_eq!(
        run(
            "local function f(n) if n == 0 then return 0 end return n + f(n - 1) end return f(100)"
        )
        .unwrap(),
        "5050"
    );
}

#[test]
fn loops_jumps_and_several_values() {
    let text = "
        local sum = 0
        for i = 10, 1, -3 do
            for j = 1, 10 do
                if j == 3 then goto continue end
                if j > 5 then break end
                sum = sum + j
                ::continue::
            end
        end
        repeat local done = sum > 0 until done
        while true do break end
        local function three() return 1, 2, 3 end
        local a, b, c, d = three()
        local t = {three(), three()}
        return sum, a, b, c, d == nil, #t, (three()), select('#', three(), three())";
    assert_eq!(run(text).unwrap(), "48 1 2 3 Bool(true) 4 1 4");
    assert!(run("goto nowhere").unwrap_err().contains("no visible label 'nowhere'"));
    assert!(
        run("do goto l end local x ::l:: return x").unwrap_err().contains("jumps into the scope")
    );
}

#[test]
fn limits_of_instructions_memory_and_depth() {
    let limits = |instructions, memory| Limits { instructions, memory };
    let forever = "i = 1 while true do i = i + 1 end";
    assert_eq!(run_within(forever, limits(1000, 1 << 20)).unwrap_err(), "Instructions");
    assert_eq!(run_within("return 1", limits(1000, 1)).unwrap_err(), "Memory");
    let grows = "a = {} i = 0 while true do i = i + 1 a[i] = 'the ' .. i .. 'th' end";
    assert_eq!(run_within(grows, limits(100_000_000, 100_000)).unwrap_err(), "Memory");
    assert_eq!(
        run_within("s = 'teststring' s = s .. s .. s .. s return s", limits(1000, 100_000))
            .unwrap()
            .len(),
        40
    );
    let deep =
        "function f(x) if x == 0 then return x end return f(x - 1) + 1 end return f('DEPTH')";
    let at = |depth: &str| run_within(&deep.replace("DEPTH", depth), limits(10_000_000, 10 << 20));
    assert_eq!(at("10000").unwrap(), "10000");
    assert_eq!(at("10000000").unwrap_err(), "Memory");
    assert_eq!(run("return string.rep('x', 1000000000000)").unwrap_err(), "Memory");
    let nested = "if true then ".repeat(243) + &"end ".repeat(243);
    assert!(run(&nested).unwrap_err().contains("too many C levels"));
    let told = run("function f(s) return string.gsub(s, '.', f) end return f('foo')").unwrap_err();
    assert!(
        told.starts_with("C stack overflow\nstack traceback:\n\t[C]: in function 'gsub'"),
        "{told}"
    );
    assert_eq!(told.matches("[C]: in function 'gsub'").count(), 7, "{told}");
    assert!(told.ends_with("\n\t(...tail calls...)"), "{told}");
}

#[test]
fn unused_memory_is_found_again() {
    let text = "
        for i = 1, 200000 do local t = {i} t.self = t local function f() return f, t end end
        local weak = setmetatable({}, {__mode = 'k'})
        weak[{}] = 1
        collectgarbage()
        return next(weak) == nil";
    let limits = Limits { instructions: 100_000_000, memory: 1 << 20 };
    assert_eq!(run_within(text, limits).unwrap(), "Bool(true)");
}

#[test]
fn coroutines_give_way_in_metamethods_and_iterators() {
    let text = "
        local mt = {__add = function(a, b) coroutine.yield('add') return 7 end,
                    __lt = function() coroutine.yield('lt') return true end}
        local a = setmetatable({}, mt)
        local co = coroutine.wrap(function()
            local sum = a + a
            if a < a then sum = sum + 1 end
            for i in function(_, i) coroutine.yield('for') if i < 2 then return i + 1 end end, nil, 0 do
                sum = sum + i
            end
            return sum
        end)
        local told = {}
        for i = 1, 6 do told[i] = co() end
        local failed, why = coroutine.resume(coroutine.create(function() error({}) end))
        return table.concat(told, ' ') , failed, type(why)";
    assert_eq!(run(text).unwrap(), "add lt for for for 11 Bool(false) table");
}

#[test]
fn the_suite_of_the_library_passes() {
    let folder = "/usr/share/zfs/zfs-tests/tests/functional/channel_program/lua_core";
    for name in ["base", "coroutine", "strings", "table"] {
        // Installed by the package zfs-test, where it is installed.
        let Ok(text) = std::fs::read(format!("{folder}/tst.lib_{name}.lua")) else { continue };
        let goes_on = || true;
        let limits = Limits { instructions: 10_000_000, memory: 40_000_000 };
        let mut vm = machine(limits, &goes_on).unwrap();
        let main = vm.load(&text, "channel program").unwrap();
        match vm.call(&main, &[]) {
            Ok(_) => {}
            Err(Stop::Error(Value::Str(text))) => panic!("{name}: {}", vm.traceback(&text.lossy())),
            Err(stop) => panic!("{name}: {stop:?}"),
        }
    }
}
