//! `coroutine`.
//!
//! Invariant: as in [`super`].

use crate::error::Result;
use crate::value::{ThreadId, Value};
use crate::vm::{NativeCode, Vm};

pub(super) fn register(vm: &mut Vm<'_>) -> Result<()> {
    let module = super::module(vm, "coroutine")?;
    vm.register(module, "create", |vm, args| {
        let thread = create(vm, args)?;
        Ok(vec![Value::Thread(thread)])
    })?;
    vm.register(module, "wrap", |vm, args| {
        let thread = create(vm, args)?;
        Ok(vec![vm.special(NativeCode::Wrapped(thread))?])
    })?;
    vm.register(module, "running", |vm, _| {
        let (thread, is_main) = vm.running();
        Ok(vec![thread.map_or(Value::Nil, Value::Thread), Value::Bool(is_main)])
    })?;
    vm.register(module, "status", |vm, args| {
        let Some(Value::Thread(thread)) = args.first() else {
            return Err(vm.argument_error(1, "coroutine expected"));
        };
        let status = vm.status(*thread);
        Ok(vec![vm.string(status.as_bytes())?])
    })?;
    for (name, code) in [("resume", NativeCode::Resume), ("yield", NativeCode::Yield)] {
        let (key, function) = (vm.string(name.as_bytes())?, vm.special(code)?);
        vm.raw_set(module, key, function)?;
    }
    Ok(())
}

fn create(vm: &mut Vm<'_>, args: &[Value]) -> Result<ThreadId> {
    match args.first() {
        Some(function @ Value::Function(_)) => vm.new_coroutine(function.clone()),
        _ => Err(vm.type_error(args, 1, "function")),
    }
}
