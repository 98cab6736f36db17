//! Arguments of the library's functions: in brackets one after another, or in a table with names.
//!
//! Invariant: a function that is called otherwise than its form says ends the program, with how it is called.

use cenote_lua::{Stop, Value, Vm};

/// How a function is called.
#[derive(Clone, Copy)]
pub struct Form {
    name: &'static str,
    /// Texts that it takes, in order.
    positional: &'static [&'static str],
    /// Truth values that may be given by name.
    named: &'static [&'static str],
}

/// What a function was given.
pub struct Given {
    texts: Vec<String>,
    named: Vec<bool>,
}

impl Given {
    /// The text in this place.
    pub fn text(&self, place: usize) -> &str {
        self.texts.get(place).map_or("", String::as_str)
    }

    /// The truth value by the name in this place; false if it was not given.
    pub fn is(&self, place: usize) -> bool {
        self.named.get(place).copied().unwrap_or(false)
    }
}

impl Form {
    /// A function that takes nothing by name.
    pub const fn positional(name: &'static str, positional: &'static [&'static str]) -> Self {
        Self { name, positional, named: &[] }
    }

    /// A function that takes these by name, too.
    pub const fn with(self, named: &'static [&'static str]) -> Self {
        Self { named, ..self }
    }

    /// What the function is called.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    fn wrong(&self, vm: &mut Vm<'_>, reason: &str) -> Stop {
        let positional = self.positional.iter().map(|one| format!("string {one}"));
        let named = self.named.iter().map(|one| format!("[boolean {one}=true|false]"));
        let all = positional.chain(named).collect::<Vec<_>>().join(", ");
        vm.error(&format!("{}: {reason}\nusage: {}{{{all}}}", self.name, self.name))
    }

    /// Looks through what a function was given.
    pub fn parse(&self, vm: &mut Vm<'_>, args: &[Value]) -> Result<Given, Stop> {
        let mut texts = Vec::with_capacity(self.positional.len());
        let mut named = vec![false; self.named.len()];
        match args {
            [Value::Table(table)] => {
                let mut key = Value::Nil;
                while let Some(Some((next, value))) = vm.next(*table, &key) {
                    self.entry(vm, &next, &value, &mut named)?;
                    key = next;
                }
                for place in 1..=self.positional.len() {
                    let key = Value::Int(i64::try_from(place).unwrap_or(i64::MAX));
                    let value = vm.raw_get(*table, &key);
                    texts.push(self.text(vm, place, Some(&value))?);
                }
            }
            args => {
                if args.len() > self.positional.len() {
                    let most = self.positional.len();
                    return Err(
                        self.wrong(vm, &format!("too many positional arguments, {most} expected"))
                    );
                }
                for place in 1..=self.positional.len() {
                    texts.push(self.text(vm, place, args.get(place - 1))?);
                }
            }
        }
        Ok(Given { texts, named })
    }

    fn text(&self, vm: &mut Vm<'_>, place: usize, value: Option<&Value>) -> Result<String, Stop> {
        match value {
            Some(Value::Str(text)) => Ok(text.lossy()),
            Some(Value::Nil) | None => {
                Err(self.wrong(vm, &format!("positional argument {place} is missing")))
            }
            Some(other) => {
                let kind = other.type_name();
                let reason =
                    format!("positional argument {place} has to be a string, not a {kind}");
                Err(self.wrong(vm, &reason))
            }
        }
    }

    /// One entry of a table of arguments.
    fn entry(
        &self,
        vm: &mut Vm<'_>,
        key: &Value,
        value: &Value,
        named: &mut [bool],
    ) -> Result<(), Stop> {
        match key {
            Value::Int(place) => {
                let places = 1..=i64::try_from(self.positional.len()).unwrap_or(i64::MAX);
                match places.contains(place) {
                    true => Ok(()),
                    false => {
                        Err(self.wrong(vm, &format!("there is no positional argument {place}")))
                    }
                }
            }
            Value::Str(name) => {
                let name = name.lossy();
                let place = self.named.iter().position(|known| *known == name);
                let Some(place) = place.and_then(|place| named.get_mut(place)) else {
                    return Err(self.wrong(vm, &format!("there is no keyword argument '{name}'")));
                };
                match value {
                    Value::Bool(truth) => {
                        *place = *truth;
                        Ok(())
                    }
                    other => {
                        let kind = other.type_name();
                        let reason =
                            format!("keyword argument '{name}' has to be a boolean, not a {kind}");
                        Err(self.wrong(vm, &reason))
                    }
                }
            }
            _ => Err(self.wrong(vm, "keyword arguments have names")),
        }
    }
}

#[cfg(test)]
mod tests {
    use cenote_lua::{Limits, Stop, Value, machine};

    use super::Form;

    /// What a call of `destroy` in a program comes to.
    fn called(text: &str) -> String {
        let goes_on = || true;
        let mut vm = machine(Limits { instructions: 1000, memory: 1 << 20 }, &goes_on).unwrap();
        let form = Form::positional("destroy", &["dataset"]).with(&["defer"]);
        let globals = vm.globals();
        vm.register(globals, "destroy", move |vm, args| {
            let given = form.parse(vm, args)?;
            let text = format!("{} {}", given.text(0), given.is(0));
            Ok(vec![vm.string(text.as_bytes())?])
        })
        .unwrap();
        let done = vm.load(text.as_bytes(), "channel program");
        match done.and_then(|main| vm.call(&main, &[])).as_deref() {
            Ok([Value::Str(text)]) | Err(Stop::Error(Value::Str(text))) => text.lossy(),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn arguments_come_in_brackets_or_with_names() {
        assert_eq!(called("return destroy('p')"), "p false");
        assert_eq!(called("return destroy{'p', defer=true}"), "p true");
        assert_eq!(called("return destroy{[1]='p'}"), "p false");
        for wrong in [
            "destroy('p', 'x')",
            "destroy('p', 1)",
            "destroy(1)",
            "destroy()",
            "destroy{'p', other=true}",
            "destroy{'p', defer=1}",
            "destroy{'p', 1, defer=true}",
            "destroy{defer=true}",
            "destroy{1, defer=true}",
            "destroy{'p', [true]=1}",
        ] {
            let said = called(wrong);
            let usage = "\nusage: destroy{string dataset, [boolean defer=true|false]}";
            assert!(said.contains(":1: destroy: ") && said.ends_with(usage), "{wrong}: {said}");
        }
    }
}
