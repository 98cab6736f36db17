//! What operators do, with metamethods.
//!
//! Invariant: a metamethod that an instruction calls is called as any function is, so that it may give way; its
//! result lies where the operands lay.

use std::cmp::Ordering;

use super::Vm;
use super::access::CHAIN;
use super::call::How;
use crate::error::{Result, Stop};
use crate::op::{Arith, Compare, Op};
use crate::value::{TableId, Value};

/// What looking for a key comes to.
enum Found {
    Value(Value),
    /// This function is to be asked, of this object.
    Ask(Value, Value),
}

impl Vm<'_> {
    /// Carries out what works with what lies on the stack.
    pub(super) fn operate(&mut self, op: Op, base: usize) -> Result<()> {
        match op {
            Op::GetIndex => {
                let (key, object) = (self.pop(), self.pop());
                self.index(object, key)
            }
            Op::GetField(key) => {
                let (key, object) = (self.constant(key), self.pop());
                self.index(object, key)
            }
            Op::Method(key) => self.method(key),
            Op::SetIndex(slot) => {
                // Before the value is taken from the stack, where it is known to be needed.
                self.collect_if_due()?;
                let (value, slot) = (self.pop(), base + usize::from(slot));
                self.set_index(self.at(slot), self.at(slot + 1), value)
            }
            Op::SetField(slot, key) => {
                self.collect_if_due()?;
                let (value, key) = (self.pop(), self.constant(key));
                self.set_index(self.at(base + usize::from(slot)), key, value)
            }
            Op::NewTable => {
                let table = self.new_table()?;
                self.stack.push(Value::Table(table));
                self.collect_if_due()
            }
            Op::Arith(arith) => self.arith(arith),
            Op::Negate => self.negate(),
            Op::Not => {
                let truth = self.pop().is_true();
                self.stack.push(Value::Bool(!truth));
                Ok(())
            }
            Op::Length => self.length(),
            Op::Concat => self.concat(),
            Op::Compare(compare) => self.compare(compare),
            _ => Ok(()),
        }
    }

    /// Calls a metamethod for an instruction.
    fn ask(&mut self, function: Value, args: &[Value], how: How) -> Result<()> {
        let slot = self.stack.len();
        self.stack.push(function);
        self.stack.extend_from_slice(args);
        self.begin_call(slot, how)
    }

    fn find(&mut self, object: &Value, key: &Value) -> Result<Found> {
        let mut object = object.clone();
        for _ in 0..CHAIN {
            if let Value::Table(table) = object {
                let value = self.raw_get(table, key);
                if !value.is_nil() || self.metatable(&object).is_none() {
                    return Ok(Found::Value(value));
                }
            }
            let through = self.metamethod(&object, "__index");
            match (&through, &object) {
                (Value::Nil, Value::Table(_)) => return Ok(Found::Value(Value::Nil)),
                (Value::Nil, _) => return Err(self.operand_error("index", &object, 0)),
                (Value::Function(_), _) => return Ok(Found::Ask(through, object)),
                _ => object = through,
            }
        }
        Err(self.error_here("loop in gettable"))
    }

    fn index(&mut self, object: Value, key: Value) -> Result<()> {
        match self.find(&object, &key)? {
            Found::Value(value) => {
                self.stack.push(value);
                Ok(())
            }
            Found::Ask(function, object) => self.ask(function, &[object, key], How::wanting(1)),
        }
    }

    /// An object becomes its method and itself. A method that has to be asked for is, here and now.
    fn method(&mut self, key: u32) -> Result<()> {
        let key = self.constant(key);
        let object = self.stack.last().cloned().unwrap_or(Value::Nil);
        let method = match self.find(&object, &key)? {
            Found::Value(value) => value,
            Found::Ask(function, of) => {
                let found = self.call(&function, &[of, key])?;
                found.into_iter().next().unwrap_or(Value::Nil)
            }
        };
        let top = self.stack.len().saturating_sub(1);
        self.put(top, method);
        self.stack.push(object);
        Ok(())
    }

    /// The value of a key as a program sees it, for functions of the library.
    pub(crate) fn get(&mut self, object: &Value, key: &Value) -> Result<Value> {
        match self.find(object, key)? {
            Found::Value(value) => Ok(value),
            Found::Ask(function, object) => {
                let found = self.call(&function, &[object, key.clone()])?;
                Ok(found.into_iter().next().unwrap_or(Value::Nil))
            }
        }
    }

    fn set_index(&mut self, object: Value, key: Value, value: Value) -> Result<()> {
        let mut object = object;
        for _ in 0..CHAIN {
            if let Value::Table(table) = object
                && (self.metatable(&object).is_none() || !self.raw_get(table, &key).is_nil())
            {
                return self.set_raw_here(table, key, value);
            }
            let through = self.metamethod(&object, "__newindex");
            match (&through, &object) {
                (Value::Nil, Value::Table(table)) => return self.set_raw_here(*table, key, value),
                (Value::Nil, _) => return Err(self.operand_error("index", &object, 0)),
                (Value::Function(_), _) => {
                    return self.ask(through, &[object, key, value], How::wanting(0));
                }
                _ => object = through,
            }
        }
        Err(self.error_here("loop in settable"))
    }

    fn set_raw_here(&mut self, table: TableId, key: Value, value: Value) -> Result<()> {
        if key.is_nil() {
            return Err(self.error_here("table index is nil"));
        }
        self.raw_set(table, key, value)
    }

    /// Takes two operands and asks the metamethod of the first that has one. `None`: neither has.
    fn ask_of_two(&mut self, name: &str, a: &Value, b: &Value, how: How) -> Result<Option<()>> {
        let mut function = self.metamethod(a, name);
        if function.is_nil() {
            function = self.metamethod(b, name);
        }
        match function {
            Value::Nil => Ok(None),
            function => self.ask(function, &[a.clone(), b.clone()], how).map(Some),
        }
    }

    fn arith(&mut self, arith: Arith) -> Result<()> {
        let (b, a) = (self.pop(), self.pop());
        if let (Some(x), Some(y)) = (a.to_int(), b.to_int()) {
            let result = match arith {
                Arith::Add => Some(x.wrapping_add(y)),
                Arith::Sub => Some(x.wrapping_sub(y)),
                Arith::Mul => Some(x.wrapping_mul(y)),
                Arith::Div => (y != 0).then(|| x.wrapping_div(y)),
                Arith::Mod => (y != 0).then(|| x.wrapping_rem(y)),
                Arith::Pow => Some(power(x, y)),
            };
            return match result {
                Some(number) => {
                    self.stack.push(Value::Int(number));
                    Ok(())
                }
                None => Err(self.error_here("attempt to divide by zero")),
            };
        }
        let name = match arith {
            Arith::Add => "__add",
            Arith::Sub => "__sub",
            Arith::Mul => "__mul",
            Arith::Div => "__div",
            Arith::Mod => "__mod",
            Arith::Pow => "__pow",
        };
        match self.ask_of_two(name, &a, &b, How::wanting(1))? {
            Some(()) => Ok(()),
            None if a.to_int().is_none() => Err(self.operand_error("perform arithmetic on", &a, 0)),
            None => Err(self.operand_error("perform arithmetic on", &b, 1)),
        }
    }

    fn negate(&mut self) -> Result<()> {
        let a = self.pop();
        if let Some(number) = a.to_int() {
            self.stack.push(Value::Int(number.wrapping_neg()));
            return Ok(());
        }
        match self.ask_of_two("__unm", &a, &a, How::wanting(1))? {
            Some(()) => Ok(()),
            None => Err(self.operand_error("perform arithmetic on", &a, 0)),
        }
    }

    fn length(&mut self) -> Result<()> {
        let a = self.pop();
        if let Value::Str(text) = &a {
            self.stack.push(Value::Int(i64::try_from(text.bytes().len()).unwrap_or(i64::MAX)));
            return Ok(());
        }
        let function = self.metamethod(&a, "__len");
        match (function, &a) {
            (Value::Nil, Value::Table(table)) => {
                self.stack.push(Value::Int(self.length_of(*table)));
                Ok(())
            }
            (Value::Nil, _) => Err(self.operand_error("get length of", &a, 0)),
            (function, _) => self.ask(function, &[a.clone(), a.clone()], How::wanting(1)),
        }
    }

    fn concat(&mut self) -> Result<()> {
        let (b, a) = (self.pop(), self.pop());
        if let (Some(mut first), Some(second)) = (spelled(&a), spelled(&b)) {
            self.make_room(first.len().saturating_add(second.len()))?;
            first.extend_from_slice(&second);
            let joined = self.take_string(first)?;
            self.stack.push(joined);
            return self.collect_if_due();
        }
        match self.ask_of_two("__concat", &a, &b, How::wanting(1))? {
            Some(()) => Ok(()),
            None if spelled(&a).is_none() => Err(self.operand_error("concatenate", &a, 0)),
            None => Err(self.operand_error("concatenate", &b, 1)),
        }
    }

    fn compare(&mut self, compare: Compare) -> Result<()> {
        let (b, a) = (self.pop(), self.pop());
        match compare {
            Compare::Equal => self.equal(&a, &b, true),
            Compare::Unequal => self.equal(&a, &b, false),
            Compare::Less => self.order(&a, &b, false),
            Compare::LessEqual => self.order(&a, &b, true),
            Compare::Greater => self.order(&b, &a, false),
            Compare::GreaterEqual => self.order(&b, &a, true),
        }
    }

    fn equal(&mut self, a: &Value, b: &Value, truth: bool) -> Result<()> {
        if a != b && matches!((a, b), (Value::Table(_), Value::Table(_))) {
            let (one, other) = (self.metamethod(a, "__eq"), self.metamethod(b, "__eq"));
            if !one.is_nil() && one == other {
                return self.ask(one, &[a.clone(), b.clone()], Self::truth(truth));
            }
        }
        self.stack.push(Value::Bool((a == b) == truth));
        Ok(())
    }

    fn order(&mut self, a: &Value, b: &Value, or_equal: bool) -> Result<()> {
        if let Some(order) = natural_order(a, b) {
            let truth = order == Ordering::Less || or_equal && order == Ordering::Equal;
            self.stack.push(Value::Bool(truth));
            return Ok(());
        }
        let name = if or_equal { "__le" } else { "__lt" };
        if let Some(()) = self.ask_of_two(name, a, b, Self::truth(true))? {
            return Ok(());
        }
        // What is not greater counts as less or equal.
        if or_equal && let Some(()) = self.ask_of_two("__lt", b, a, Self::truth(false))? {
            return Ok(());
        }
        Err(self.order_error(a, b))
    }

    fn order_error(&mut self, a: &Value, b: &Value) -> Stop {
        let (one, other) = (a.type_name(), b.type_name());
        match one == other {
            true => self.error_here(&format!("attempt to compare two {one} values")),
            false => self.error_here(&format!("attempt to compare {one} with {other}")),
        }
    }

    /// Whether one is less than the other, for functions of the library.
    pub(crate) fn less(&mut self, a: &Value, b: &Value) -> Result<bool> {
        if let Some(order) = natural_order(a, b) {
            return Ok(order == Ordering::Less);
        }
        let mut function = self.metamethod(a, "__lt");
        if function.is_nil() {
            function = self.metamethod(b, "__lt");
        }
        if function.is_nil() {
            return Err(self.order_error(a, b));
        }
        let found = self.call(&function, &[a.clone(), b.clone()])?;
        Ok(found.first().is_some_and(Value::is_true))
    }
}

/// Text of a string or number.
fn spelled(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::Str(text) => Some(text.bytes().to_vec()),
        Value::Int(number) => Some(number.to_string().into_bytes()),
        _ => None,
    }
}

fn natural_order(a: &Value, b: &Value) -> Option<Ordering> {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => Some(a.cmp(b)),
        (Value::Str(a), Value::Str(b)) => Some(a.bytes().cmp(b.bytes())),
        _ => None,
    }
}

/// A power that wraps around; what would be a fraction is none.
fn power(base: i64, exponent: i64) -> i64 {
    if exponent < 0 {
        return match base {
            1 => 1,
            -1 if exponent % 2 == 0 => 1,
            -1 => -1,
            _ => 0,
        };
    }
    let (mut result, mut base, mut rest) = (1_i64, base, exponent);
    while rest > 0 {
        if rest % 2 == 1 {
            result = result.wrapping_mul(base);
        }
        base = base.wrapping_mul(base);
        rest /= 2;
    }
    result
}
