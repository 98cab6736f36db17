//! The base library, without what loads or prints, and without `pcall`.
//!
//! Invariant: as in [`super`].

use crate::error::{Result, Stop};
use crate::value::{Value, parse_in_base};
use crate::vm::Vm;

type Results = Result<Vec<Value>>;

pub(super) fn register(vm: &mut Vm<'_>) -> Result<()> {
    let globals = vm.globals();
    let (key, itself) = (vm.string(b"_G")?, Value::Table(globals));
    vm.raw_set(globals, key, itself)?;
    let (key, version) = (vm.string(b"_VERSION")?, vm.string(b"Lua 5.2")?);
    vm.raw_set(globals, key, version)?;
    vm.register(globals, "assert", assert)?;
    vm.register(globals, "collectgarbage", collect_garbage)?;
    vm.register(globals, "error", error)?;
    vm.register(globals, "getmetatable", get_metatable)?;
    vm.register(globals, "setmetatable", set_metatable)?;
    vm.register(globals, "next", next)?;
    register_iterators(vm)?;
    vm.register(globals, "rawequal", |vm, args| {
        Ok(vec![Value::Bool(vm.any_argument(args, 1)? == vm.any_argument(args, 2)?)])
    })?;
    vm.register(globals, "rawlen", raw_len)?;
    vm.register(globals, "rawget", |vm, args| {
        let table = vm.table_argument(args, 1)?;
        let key = vm.any_argument(args, 2)?;
        Ok(vec![vm.raw_get(table, &key)])
    })?;
    vm.register(globals, "rawset", |vm, args| {
        let table = vm.table_argument(args, 1)?;
        let (key, value) = (vm.any_argument(args, 2)?, vm.any_argument(args, 3)?);
        vm.raw_set(table, key, value)?;
        Ok(vec![Value::Table(table)])
    })?;
    vm.register(globals, "select", select)?;
    vm.register(globals, "tonumber", to_number)?;
    vm.register(globals, "tostring", |vm, args| {
        let value = vm.any_argument(args, 1)?;
        Ok(vec![vm.spell(&value)?])
    })?;
    vm.register(globals, "type", |vm, args| {
        let name = vm.any_argument(args, 1)?.type_name();
        Ok(vec![vm.string(name.as_bytes())?])
    })
}

fn assert(vm: &mut Vm<'_>, args: &[Value]) -> Results {
    if vm.any_argument(args, 1)?.is_true() {
        return Ok(args.to_vec());
    }
    let reason = match args.get(1) {
        None | Some(Value::Nil) => "assertion failed!".to_owned(),
        Some(_) => vm.text_argument(args, 2)?.lossy(),
    };
    Err(vm.error(&reason))
}

fn collect_garbage(vm: &mut Vm<'_>, args: &[Value]) -> Results {
    let what = match args.first() {
        None | Some(Value::Nil) => "collect".to_owned(),
        Some(_) => vm.text_argument(args, 1)?.lossy(),
    };
    match what.as_str() {
        "collect" | "step" => {
            vm.collect();
            Ok(vec![Value::Int(0)])
        }
        "count" => Ok(vec![super::count(vm.used() / 1024), super::count(vm.used() % 1024)]),
        "isrunning" => Ok(vec![Value::Bool(true)]),
        "stop" | "restart" | "setpause" | "setstepmul" | "generational" | "incremental" => {
            Ok(vec![Value::Int(0)])
        }
        other => Err(vm.argument_error(1, &format!("invalid option '{other}'"))),
    }
}

fn error(vm: &mut Vm<'_>, args: &[Value]) -> Results {
    let level = vm.int_or(args, 2, 1)?;
    let value = args.first().cloned().unwrap_or(Value::Nil);
    match &value {
        Value::Str(text) if level > 0 => {
            let text = text.lossy();
            Err(vm.error_at(&text, usize::try_from(level).unwrap_or(usize::MAX)))
        }
        _ => Err(Stop::Error(value)),
    }
}

fn get_metatable(vm: &mut Vm<'_>, args: &[Value]) -> Results {
    let of = vm.any_argument(args, 1)?;
    let Some(meta) = vm.metatable(&of) else { return Ok(vec![Value::Nil]) };
    match vm.field(meta, "__metatable") {
        Value::Nil => Ok(vec![Value::Table(meta)]),
        instead => Ok(vec![instead]),
    }
}

fn set_metatable(vm: &mut Vm<'_>, args: &[Value]) -> Results {
    let table = vm.table_argument(args, 1)?;
    let meta = match args.get(1) {
        Some(Value::Nil) => None,
        Some(Value::Table(meta)) => Some(*meta),
        _ => return Err(vm.argument_error(2, "nil or table expected")),
    };
    if !vm.metamethod(&Value::Table(table), "__metatable").is_nil() {
        return Err(vm.error("cannot change a protected metatable"));
    }
    if let Some(table) = vm.tables.get_mut(table.0) {
        table.meta = meta;
    }
    Ok(vec![Value::Table(table)])
}

fn next(vm: &mut Vm<'_>, args: &[Value]) -> Results {
    let table = vm.table_argument(args, 1)?;
    let key = args.get(1).cloned().unwrap_or(Value::Nil);
    match vm.next(table, &key) {
        Some(Some((key, value))) => Ok(vec![key, value]),
        Some(None) => Ok(vec![Value::Nil]),
        None => Err(vm.error("invalid key to 'next'")),
    }
}

fn register_iterators(vm: &mut Vm<'_>) -> Result<()> {
    let globals = vm.globals();
    let next = vm.field(globals, "next");
    let step = vm.native(|vm, args| {
        let table = vm.table_argument(args, 1)?;
        let at = vm.int_argument(args, 2)?.wrapping_add(1);
        let value = vm.raw_get(table, &Value::Int(at));
        Ok(match value {
            Value::Nil => vec![Value::Nil],
            value => vec![Value::Int(at), value],
        })
    })?;
    // A program may take them from the globals.
    vm.keep(next.clone());
    vm.keep(step.clone());
    vm.register(globals, "pairs", move |vm, args| iterate(vm, args, "__pairs", &next, Value::Nil))?;
    vm.register(globals, "ipairs", move |vm, args| {
        iterate(vm, args, "__ipairs", &step, Value::Int(0))
    })
}

fn iterate(vm: &mut Vm<'_>, args: &[Value], meta: &str, step: &Value, first: Value) -> Results {
    let of = vm.any_argument(args, 1)?;
    let function = vm.metamethod(&of, meta);
    if !function.is_nil() {
        let mut found = vm.call(&function, &[of])?;
        found.resize(3, Value::Nil);
        return Ok(found);
    }
    vm.table_argument(args, 1)?;
    Ok(vec![step.clone(), of, first])
}

fn raw_len(vm: &mut Vm<'_>, args: &[Value]) -> Results {
    match args.first() {
        Some(Value::Table(table)) => Ok(vec![Value::Int(vm.length_of(*table))]),
        Some(Value::Str(text)) => Ok(vec![super::count(text.bytes().len())]),
        _ => Err(vm.argument_error(1, "table or string expected")),
    }
}

fn select(vm: &mut Vm<'_>, args: &[Value]) -> Results {
    let rest = args.get(1..).unwrap_or_default();
    if let Some(Value::Str(text)) = args.first()
        && text.bytes().first() == Some(&b'#')
    {
        return Ok(vec![super::count(rest.len())]);
    }
    let number = vm.int_argument(args, 1)?;
    let length = i64::try_from(rest.len()).unwrap_or(i64::MAX);
    let from = match number {
        1.. => number - 1,
        _ if number < 0 => number.saturating_add(length),
        _ => -1,
    };
    match usize::try_from(from) {
        Ok(from) => Ok(rest.get(from..).unwrap_or_default().to_vec()),
        Err(_) => Err(vm.argument_error(1, "index out of range")),
    }
}

fn to_number(vm: &mut Vm<'_>, args: &[Value]) -> Results {
    let value = vm.any_argument(args, 1)?;
    if matches!(args.get(1), None | Some(Value::Nil)) {
        return Ok(vec![value.to_int().map_or(Value::Nil, Value::Int)]);
    }
    let base = vm.int_argument(args, 2)?;
    let text = vm.text_argument(args, 1)?;
    let Some(base) = u32::try_from(base).ok().filter(|base| (2..=36).contains(base)) else {
        return Err(vm.argument_error(2, "base out of range"));
    };
    Ok(vec![parse_in_base(text.bytes(), base).map_or(Value::Nil, Value::Int)])
}

impl Vm<'_> {
    /// A value as text, as `tostring` has it.
    pub(crate) fn spell(&mut self, value: &Value) -> Result<Value> {
        let function = self.metamethod(value, "__tostring");
        if !function.is_nil() {
            let found = self.call(&function, std::slice::from_ref(value))?;
            return Ok(found.into_iter().next().unwrap_or(Value::Nil));
        }
        let text = match value {
            Value::Str(_) => return Ok(value.clone()),
            Value::Int(number) => number.to_string(),
            Value::Bool(truth) => truth.to_string(),
            Value::Nil | Value::Cell(_) => "nil".to_owned(),
            Value::Table(id) => format!("table: 0x{:08x}", id.0),
            Value::Function(id) => format!("function: 0x{:08x}", id.0),
            Value::Thread(id) => format!("thread: 0x{:08x}", id.0),
        };
        self.string(text.as_bytes())
    }
}
