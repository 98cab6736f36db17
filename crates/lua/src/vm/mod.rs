//! Runs programs.
//!
//! Invariant: functions of programs call one another without recursion here; what does recurse (a function of the
//! library that calls one of the program) does so at most [`DEEPEST`] times. What a value refers to lives as long
//! as a stack, a frame, or something that lives refers to it.

mod access;
mod call;
mod collect;
mod coroutine;
mod execute;
mod operate;
mod trace;

use std::rc::Rc;

use crate::arena::Arena;
use crate::error::{Result, Stop};
use crate::op::Proto;
use crate::table::{TABLE_COST, Table, VALUE_COST};
use crate::value::{CellId, FunctionId, Meter, Str, TableId, ThreadId, Value};

use self::call::Frame;
pub(crate) use self::call::NativeCode;
use self::coroutine::{Coroutine, Resumer};

/// How deep calls may be nested that recurse here.
pub(crate) const DEEPEST: u32 = 20;
/// Bytes of a frame.
const FRAME_COST: usize = 80;
/// Bytes of a function, and of each variable it shares.
const FUNCTION_COST: usize = 40;
const CELL_COST: usize = 32;
/// Bytes of a coroutine.
const THREAD_COST: usize = 200;
/// Instructions between two looks whether to go on.
const GLANCE: u64 = 4096;
/// Bytes made between two such looks.
const GLANCE_BYTES: usize = 16 << 20;
/// The least that has to come before unused memory is looked for.
const LEAST_BEFORE_COLLECTION: usize = 256 << 10;

/// What a program may use.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Instructions.
    pub instructions: u64,
    /// Bytes.
    pub memory: usize,
}

/// A function.
pub(crate) struct Function<'h> {
    pub(crate) code: Code<'h>,
    /// Variables of other functions that it uses.
    pub(crate) cells: Vec<CellId>,
}

/// What it does.
pub(crate) enum Code<'h> {
    Program(Rc<Proto>),
    Native(NativeCode<'h>),
}

/// A program at work. What is registered in it may refer to what lives as long as `'h`.
pub struct Vm<'h> {
    pub(crate) tables: Arena<Table>,
    functions: Arena<Function<'h>>,
    cells: Arena<Value>,
    threads: Arena<Coroutine<'h>>,
    pub(crate) meter: Meter,
    limits: Limits,
    /// Bytes in use from which on unused ones are looked for.
    collect_at: usize,
    instructions: u64,
    /// Bytes made since it was looked last whether to go on.
    made: usize,
    goes_on: &'h dyn Fn() -> bool,
    stack: Vec<Value>,
    frames: Vec<Frame<'h>>,
    /// The coroutine at work, and the program itself as one.
    current: Option<ThreadId>,
    main: Option<ThreadId>,
    resumers: Vec<Resumer<'h>>,
    /// How many coroutines the innermost loop of execution began with.
    resumed_before: usize,
    /// The coroutine that was left last was wrapped in a function.
    last_wraps: bool,
    /// The function that the innermost loop of execution began with has ended.
    entry_ended: bool,
    /// Unused memory is looked for whenever it may be.
    #[cfg(test)]
    pub(crate) eager: bool,
    depth: u32,
    globals: Option<TableId>,
    /// What lives although no program may refer to it.
    kept: Vec<Value>,
    /// What is looked for in strings.
    pub(crate) string_meta: Option<TableId>,
}

impl<'h> Vm<'h> {
    /// A machine with nothing in it. It stops when `goes_on` does not hold any more.
    ///
    /// # Errors
    /// [`Stop::Memory`].
    pub(crate) fn bare(limits: Limits, goes_on: &'h dyn Fn() -> bool) -> Result<Self> {
        let mut vm = Self {
            tables: Arena::default(),
            functions: Arena::default(),
            cells: Arena::default(),
            threads: Arena::default(),
            meter: Meter::default(),
            limits,
            collect_at: limits.memory.min(LEAST_BEFORE_COLLECTION),
            instructions: 0,
            made: 0,
            goes_on,
            stack: Vec::new(),
            frames: Vec::new(),
            current: None,
            main: None,
            resumers: Vec::new(),
            resumed_before: 0,
            last_wraps: false,
            entry_ended: false,
            #[cfg(test)]
            eager: false,
            depth: 0,
            globals: None,
            kept: Vec::new(),
            string_meta: None,
        };
        let globals = vm.new_table()?;
        vm.globals = Some(globals);
        vm.main = Some(vm.new_thread(Coroutine::running())?);
        Ok(vm)
    }

    /// The table of globals.
    pub fn globals(&self) -> TableId {
        self.globals.unwrap_or(TableId(u32::MAX))
    }

    /// How many instructions were carried out.
    pub fn instructions(&self) -> u64 {
        self.instructions
    }

    /// Compiles a program called `chunk`.
    ///
    /// # Errors
    /// [`Stop::Error`] with what is wrong.
    pub fn load(&mut self, text: &[u8], chunk: &str) -> Result<Value> {
        let name = format!("[string \"{chunk}\"]");
        self.room_for(text.len())?;
        match crate::compile::compile(text, &name, &self.meter) {
            Ok(proto) => {
                // It is there as long as the machine.
                self.meter.add(proto.cost());
                self.check_memory()?;
                let globals = Value::Table(self.globals());
                let cell = self.new_cell(globals)?;
                self.new_function(Function { code: Code::Program(proto), cells: vec![cell] })
            }
            Err(wrong) => Err(Stop::Error(self.string(wrong.as_bytes())?)),
        }
    }

    /// A string.
    ///
    /// # Errors
    /// [`Stop::Memory`].
    pub fn string(&mut self, bytes: &[u8]) -> Result<Value> {
        self.room_for(bytes.len())?;
        Ok(Value::Str(Str::new(bytes, &self.meter)))
    }

    /// A string made already.
    ///
    /// # Errors
    /// [`Stop::Memory`].
    pub fn take_string(&mut self, bytes: Vec<u8>) -> Result<Value> {
        self.room_for(bytes.len())?;
        Ok(Value::Str(Str::new(bytes, &self.meter)))
    }

    /// An empty table.
    ///
    /// # Errors
    /// [`Stop::Memory`].
    pub fn new_table(&mut self) -> Result<TableId> {
        self.room_for(TABLE_COST)?;
        self.meter.add(TABLE_COST);
        Ok(TableId(self.tables.insert(Table::default())))
    }

    fn new_cell(&mut self, value: Value) -> Result<CellId> {
        self.room_for(CELL_COST)?;
        self.meter.add(CELL_COST);
        Ok(CellId(self.cells.insert(value)))
    }

    fn new_function(&mut self, function: Function<'h>) -> Result<Value> {
        let cost = FUNCTION_COST + function.cells.len() * VALUE_COST;
        self.room_for(cost)?;
        self.meter.add(cost);
        Ok(Value::Function(FunctionId(self.functions.insert(function))))
    }

    fn new_thread(&mut self, coroutine: Coroutine<'h>) -> Result<ThreadId> {
        self.room_for(THREAD_COST)?;
        self.meter.add(THREAD_COST);
        Ok(ThreadId(self.threads.insert(coroutine)))
    }

    /// Registers a function under `name` in a table.
    ///
    /// # Errors
    /// [`Stop::Memory`].
    pub fn register(
        &mut self,
        table: TableId,
        name: &str,
        run: impl Fn(&mut Vm<'h>, &[Value]) -> Result<Vec<Value>> + 'h,
    ) -> Result<()> {
        let function = self.native(run)?;
        let key = self.string(name.as_bytes())?;
        self.raw_set(table, key, function)
    }

    /// A function that is none of the program's. What it holds beside its arguments is not looked through for
    /// what lives.
    ///
    /// # Errors
    /// [`Stop::Memory`].
    pub fn native(
        &mut self,
        run: impl Fn(&mut Vm<'h>, &[Value]) -> Result<Vec<Value>> + 'h,
    ) -> Result<Value> {
        let code = Code::Native(NativeCode::Plain(Rc::new(run)));
        self.new_function(Function { code, cells: Vec::new() })
    }

    /// The value lives as long as the machine.
    pub fn keep(&mut self, value: Value) {
        self.kept.push(value);
    }

    /// How much lies on the stack: the place of what is put there next.
    pub(crate) fn stack_height(&self) -> usize {
        self.stack.len()
    }

    /// Puts a value on the stack, where it lives until it is dropped.
    pub(crate) fn push_kept(&mut self, value: Value) {
        self.stack.push(value);
    }

    pub(crate) fn kept_at(&self, place: usize) -> Value {
        self.stack.get(place).cloned().unwrap_or(Value::Nil)
    }

    pub(crate) fn swap_kept(&mut self, a: usize, b: usize) {
        if a.max(b) < self.stack.len() {
            self.stack.swap(a, b);
        }
    }

    pub(crate) fn drop_kept(&mut self, height: usize) {
        self.stack.truncate(height);
    }

    pub(crate) fn special(&mut self, code: NativeCode<'h>) -> Result<Value> {
        self.new_function(Function { code: Code::Native(code), cells: Vec::new() })
    }

    /// Whether the program may go on.
    ///
    /// # Errors
    /// [`Stop::Interrupted`].
    pub fn check(&self) -> Result<()> {
        if (self.goes_on)() { Ok(()) } else { Err(Stop::Interrupted) }
    }

    fn count(&mut self) -> Result<()> {
        if self.instructions >= self.limits.instructions {
            return Err(Stop::Instructions);
        }
        self.instructions += 1;
        if self.instructions.is_multiple_of(GLANCE) { self.check() } else { Ok(()) }
    }
}
