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
    let all = [("base", true), ("coroutine", true), ("strings", true), ("table", false)];
    for (name, eager) in all.into_iter().chain(all.map(|(name, _)| (name, false))) {
        // Installed by the package zfs-test, where it is installed.
        let Ok(text) = std::fs::read(format!("{folder}/tst.lib_{name}.lua")) else { continue };
        let goes_on = || true;
        let limits = Limits { instructions: 10_000_000, memory: 40_000_000 };
        let mut vm = machine(limits, &goes_on).unwrap();
        vm.eager = eager;
        let main = vm.load(&text, "channel program").unwrap();
        match vm.call(&main, &[]) {
            Ok(_) => {}
            Err(Stop::Error(Value::Str(text))) => panic!("{name}: {}", vm.traceback(&text.lossy())),
            Err(stop) => panic!("{name}: {stop:?}"),
        }
    }
}

#[test]
fn nothing_is_given_up_too_early() {
    let text = "
        local all, sum = {}, 0
        local function keep(n) local t = {n} return function() return t[1] end end
        for i = 1, 60 do all[i] = keep(i) all['k' .. i] = {i, {i}} end
        table.sort(all, function(a, b) return a() > b() end)
        local co = coroutine.wrap(function() for i = 1, 60 do coroutine.yield({all[i](), {}}) end end)
        for i = 1, 60 do local t = co() sum = sum + t[1] + all['k' .. i][2][1] end
        local text = string.gsub(string.rep('ab', 30), '%w', function(c) return {c} and c .. c end)
        local mt = setmetatable({}, {__index = function(_, k) return ({k})[1] end, __concat = function() return ({7})[1] end})
        return sum, #text, mt.some, mt .. 'x'";
    let goes_on = || true;
    let limits = Limits { instructions: 10_000_000, memory: 4_000_000 };
    let mut vm = machine(limits, &goes_on).unwrap();
    vm.eager = true;
    let main = vm.load(text.as_bytes(), "channel program").unwrap();
    let found = vm.call(&main, &[]).unwrap();
    let words: Vec<String> = found
        .iter()
        .map(|value| match value {
            Value::Str(text) => text.lossy(),
            other => format!("{other:?}"),
        })
        .collect();
    assert_eq!(words, ["Int(3660)", "Int(120)", "some", "Int(7)"]);
}

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % most as u64).unwrap()
    }

    fn one_of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len())]
    }

    /// A template in which `E` stands for an expression and `S` for statements.
    fn filled(&mut self, template: &str, depth: u32) -> String {
        let mut text = String::new();
        for letter in template.chars() {
            match letter {
                'E' => text.push_str(&self.expression(depth)),
                'S' => text.push_str(&self.statements(depth)),
                other => text.push(other),
            }
        }
        text
    }

    fn expression(&mut self, depth: u32) -> String {
        let simple = [
            "a",
            "b",
            "t",
            "f",
            "nil",
            "true",
            "0",
            "1",
            "-1",
            "3",
            "9223372036854775807",
            "'x'",
            "'12'",
            "t.x",
            "t[1]",
            "...",
            "mt",
            "string.rep('ab', 5)",
            "tostring(t)",
        ];
        let nested = [
            "E + E",
            "E - E",
            "E * E",
            "E / E",
            "E % E",
            "E ^ E",
            "E .. E",
            "E == E",
            "E < E",
            "E <= E",
            "E and E",
            "E or E",
            "not E",
            "-E",
            "#E",
            "(E)",
            "{E, E}",
            "{x = E, [E] = E}",
            "f(E, E)",
            "E.x",
            "(E)[E]",
            "(E)(E)",
            "function(...) S end",
            "function(a, b) S end",
            "select(E, E, E)",
            "next(E)",
            "rawlen(E)",
            "string.format('%d %s %x', E, E, E)",
            "string.find(E, E, E)",
            "string.gsub(E, '(.)', E)",
            "string.sub(E, E, E)",
            "table.concat({E, E}, E)",
            "table.unpack({E, E}, E, E)",
            "setmetatable({E}, mt)",
            "coroutine.wrap(function(a) S coroutine.yield(E) end)",
            "coroutine.resume(coroutine.create(f), E)",
            "tonumber(E, E)",
            "string.byte(E, E, E)",
        ];
        match depth == 0 || self.below(3) == 0 {
            true => self.one_of(&simple).to_owned(),
            false => {
                let template = self.one_of(&nested);
                self.filled(template, depth - 1)
            }
        }
    }

    fn statements(&mut self, depth: u32) -> String {
        let all = [
            "a = E ",
            "a, b = E, E ",
            "local a = E ",
            "local a, b = E ",
            "t[E] = E ",
            "t.x = E ",
            "f(E) ",
            "if E then S end ",
            "if E then S elseif E then S else S end ",
            "for i = E, E do S end ",
            "for i = 1, 3, E do a = i S end ",
            "for k, v in pairs(t) do S end ",
            "while E do S break end ",
            "repeat local c = E S until c ",
            "do local function g(...) S return g, ... end a = g end ",
            "do goto l S ::l:: end ",
            "table.sort({E, E, E}, E) ",
            "table.insert(t, E) ",
            "table.remove(t) ",
            "for _, v in ipairs({E, E}) do b = v S end ",
            "do return E end ",
            "collectgarbage() ",
        ];
        let count = if depth == 0 { self.below(2) } else { self.below(3) };
        let mut text = String::new();
        for _ in 0..count {
            let template = self.one_of(&all);
            text.push_str(&self.filled(template, depth.saturating_sub(1)));
        }
        text
    }
}

#[test]
fn whatever_a_program_says_it_ends() {
    let mut random = Random(88_172_645_463_325_252);
    let (mut ran, mut failed, mut malformed) = (0, 0, 0);
    let begin = "local a, b, t, f, mt = 1, 'x', {1, 2, x = 3}, function(...) return ..., 2 end, {}
        mt.__index, mt.__add, mt.__lt, mt.__call = f, f, f, f ";
    for _ in 0..20_000 {
        let text = format!("{begin}{}", random.statements(4));
        match run_within(&text, Limits { instructions: 2000, memory: 200_000 }) {
            Ok(_) => ran += 1,
            Err(why) if why.contains("stack traceback") => failed += 1,
            Err(_) => malformed += 1,
        }
    }
    // What is cut off in the middle, or has a word too many, is no program.
    for _ in 0..20_000 {
        let mut text = random.statements(3);
        let at = random.below(text.len() + 1);
        match random.below(2) {
            0 => text.truncate(at),
            _ => text.insert_str(
                at,
                random.one_of(&["end ", "(", "::", "goto ", "\\", "'", "[==[", "]", " .. "]),
            ),
        }
        drop(run_within(&text, Limits { instructions: 2000, memory: 200_000 }));
    }
    assert!(ran > 1000 && failed > 1000, "{ran} {failed} {malformed}");
}
