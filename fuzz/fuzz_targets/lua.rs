//! Programs in Lua, run within narrow limits.
#![no_main]

use cenote_lua::{Limits, Stop, Value, machine};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let goes_on = || true;
    let limits = Limits { instructions: 20_000, memory: 1 << 20 };
    let Ok(mut vm) = machine(limits, &goes_on) else { return };
    let done = vm.load(input, "fuzz").and_then(|main| vm.call(&main, &[]));
    if let Err(Stop::Error(Value::Str(text))) = done {
        let _ = vm.traceback(&text.lossy());
    }
    assert!(vm.instructions() <= limits.instructions);
});
