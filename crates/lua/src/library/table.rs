//! `table`.
//!
//! Invariant: as in [`super`]; what is being sorted lies on the stack, so that it lives.

use crate::error::Result;
use crate::value::{TableId, Value};
use crate::vm::Vm;

type Results = Result<Vec<Value>>;

/// Most values that `unpack` gives.
const UNPACKED: i64 = 1_000_000;

pub(super) fn register(vm: &mut Vm<'_>) -> Result<()> {
    let module = super::module(vm, "table")?;
    vm.register(module, "concat", concat)?;
    vm.register(module, "insert", insert)?;
    vm.register(module, "remove", remove)?;
    vm.register(module, "pack", pack)?;
    vm.register(module, "unpack", unpack)?;
    vm.register(module, "sort", sort)
}

/// The length as a program sees it.
fn length(vm: &mut Vm<'_>, table: TableId) -> Result<i64> {
    let value = Value::Table(table);
    let function = vm.metamethod(&value, "__len");
    if function.is_nil() {
        return Ok(vm.length_of(table));
    }
    let found = vm.call(&function, &[value])?;
    match found.first().and_then(Value::to_int) {
        Some(length) => Ok(length),
        None => Err(vm.error("object length is not a number")),
    }
}

fn concat(vm: &mut Vm<'_>, args: &[Value]) -> Results {
    let table = vm.table_argument(args, 1)?;
    let separator = match args.get(1) {
        None | Some(Value::Nil) => Vec::new(),
        Some(_) => vm.text_argument(args, 2)?.bytes().to_vec(),
    };
    let first = vm.int_or(args, 3, 1)?;
    let last = match args.get(3) {
        None | Some(Value::Nil) => length(vm, table)?,
        Some(_) => vm.int_argument(args, 4)?,
    };
    let (mut text, mut at) = (Vec::new(), first);
    while at <= last {
        match vm.raw_get(table, &Value::Int(at)) {
            Value::Str(part) => text.extend_from_slice(part.bytes()),
            Value::Int(number) => text.extend_from_slice(number.to_string().as_bytes()),
            other => {
                let kind = other.type_name();
                let reason =
                    format!("invalid value (a {kind} value) at index {at} in table for 'concat'");
                return Err(vm.error(&reason));
            }
        }
        if at == last {
            break;
        }
        text.extend_from_slice(&separator);
        vm.make_room(text.len())?;
        at = at.wrapping_add(1);
    }
    Ok(vec![vm.take_string(text)?])
}

fn insert(vm: &mut Vm<'_>, args: &[Value]) -> Results {
    let table = vm.table_argument(args, 1)?;
    let end = length(vm, table)?.wrapping_add(1);
    match args {
        [_, value] => vm.raw_set(table, Value::Int(end), value.clone())?,
        [_, _, value] => {
            let at = vm.int_argument(args, 2)?;
            if at < 1 || at > end {
                return Err(vm.argument_error(2, "position out of bounds"));
            }
            let mut to = end;
            while to > at {
                let moved = vm.raw_get(table, &Value::Int(to - 1));
                vm.raw_set(table, Value::Int(to), moved)?;
                to -= 1;
            }
            vm.raw_set(table, Value::Int(at), value.clone())?;
        }
        _ => return Err(vm.error("wrong number of arguments to 'insert'")),
    }
    Ok(Vec::new())
}

fn remove(vm: &mut Vm<'_>, args: &[Value]) -> Results {
    let table = vm.table_argument(args, 1)?;
    let size = length(vm, table)?;
    let mut at = vm.int_or(args, 2, size)?;
    if args.len() > 1 && (at < 1 || at > size.saturating_add(1)) && !(size == 0 && at == 0) {
        return Err(vm.argument_error(2, "position out of bounds"));
    }
    let removed = vm.raw_get(table, &Value::Int(at));
    while at < size {
        let moved = vm.raw_get(table, &Value::Int(at + 1));
        vm.raw_set(table, Value::Int(at), moved)?;
        at += 1;
    }
    vm.raw_set(table, Value::Int(at), Value::Nil)?;
    Ok(vec![removed])
}

fn pack(vm: &mut Vm<'_>, args: &[Value]) -> Results {
    let table = vm.new_table()?;
    for (at, value) in (1..).zip(args) {
        vm.raw_set(table, Value::Int(at), value.clone())?;
    }
    let key = vm.string(b"n")?;
    vm.raw_set(table, key, super::count(args.len()))?;
    Ok(vec![Value::Table(table)])
}

fn unpack(vm: &mut Vm<'_>, args: &[Value]) -> Results {
    let table = vm.table_argument(args, 1)?;
    let first = vm.int_or(args, 2, 1)?;
    let last = match args.get(2) {
        None | Some(Value::Nil) => length(vm, table)?,
        Some(_) => vm.int_argument(args, 3)?,
    };
    if first > last {
        return Ok(Vec::new());
    }
    let count = last.checked_sub(first).filter(|count| *count < UNPACKED);
    let Some(count) = count else { return Err(vm.error("too many results to unpack")) };
    vm.room_for(usize::try_from(count).unwrap_or(0).saturating_mul(16))?;
    Ok((first..=last).map(|at| vm.raw_get(table, &Value::Int(at))).collect())
}

fn sort(vm: &mut Vm<'_>, args: &[Value]) -> Results {
    let table = vm.table_argument(args, 1)?;
    let compare = match args.get(1) {
        None | Some(Value::Nil) => None,
        Some(function @ Value::Function(_)) => Some(function.clone()),
        Some(_) => return Err(vm.type_error(args, 2, "function")),
    };
    let size = length(vm, table)?;
    let count = usize::try_from(size).unwrap_or(0);
    vm.room_for(count.saturating_mul(16))?;
    let base = vm.stack_height();
    for at in 1..=size {
        let value = vm.raw_get(table, &Value::Int(at));
        vm.push_kept(value);
    }
    let mut sorter = Sorter { vm, base, compare };
    if count > 1 {
        sorter.sort(0, count - 1)?;
    }
    for at in 1..=size {
        let place = base.saturating_add(usize::try_from(at - 1).unwrap_or(0));
        let value = vm.kept_at(place);
        vm.raw_set(table, Value::Int(at), value)?;
    }
    vm.drop_kept(base);
    Ok(Vec::new())
}

/// Sorts what lies on the stack from `base` on, as Hoare does it, with the median of three.
struct Sorter<'a, 'h> {
    vm: &'a mut Vm<'h>,
    base: usize,
    compare: Option<Value>,
}

impl Sorter<'_, '_> {
    fn at(&self, place: usize) -> Value {
        self.vm.kept_at(self.base + place)
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.vm.swap_kept(self.base + a, self.base + b);
    }

    fn less(&mut self, a: &Value, b: &Value) -> Result<bool> {
        match &self.compare {
            None => self.vm.less(a, b),
            Some(function) => {
                let function = function.clone();
                let found = self.vm.call(&function, &[a.clone(), b.clone()])?;
                Ok(found.first().is_some_and(Value::is_true))
            }
        }
    }

    fn less_at(&mut self, a: usize, b: usize) -> Result<bool> {
        let (a, b) = (self.at(a), self.at(b));
        self.less(&a, &b)
    }

    fn sort(&mut self, mut low: usize, mut high: usize) -> Result<()> {
        while low < high {
            if self.less_at(high, low)? {
                self.swap(low, high);
            }
            if high - low == 1 {
                break;
            }
            let middle = low + (high - low) / 2;
            if self.less_at(middle, low)? {
                self.swap(middle, low);
            } else if self.less_at(high, middle)? {
                self.swap(middle, high);
            }
            if high - low == 2 {
                break;
            }
            let border = self.part(low, high, middle)?;
            // The smaller side first, the other in the next turn: so it is never deep.
            if border - low < high - border {
                self.sort(low, border.saturating_sub(1).max(low))?;
                low = border + 1;
            } else {
                self.sort(border + 1, high)?;
                high = border.saturating_sub(1).max(low);
            }
        }
        Ok(())
    }

    /// Brings what is less than the value in the middle before it, and what is not behind it; where it lies then.
    fn part(&mut self, low: usize, high: usize, middle: usize) -> Result<usize> {
        let pivot = self.at(middle);
        self.swap(middle, high - 1);
        let (mut up, mut down) = (low, high - 1);
        loop {
            up += 1;
            while {
                let value = self.at(up);
                self.less(&value, &pivot)?
            } {
                if up >= high {
                    return Err(self.vm.error("invalid order function for sorting"));
                }
                up += 1;
            }
            down -= 1;
            while {
                let value = self.at(down);
                self.less(&pivot, &value)?
            } {
                if down <= low {
                    return Err(self.vm.error("invalid order function for sorting"));
                }
                down -= 1;
            }
            if down < up {
                break;
            }
            self.swap(up, down);
        }
        self.swap(high - 1, up);
        Ok(up)
    }
}
