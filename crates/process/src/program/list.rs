//! `zfs.list`: iterators over datasets and what belongs to them.
//!
//! Invariant: an iterator goes through what there was when it was made: a program may destroy what it is given.

use std::cell::RefCell;

use cenote_engine::dataset::{Catalog, Dataset, Source};
use cenote_format::property::{self, Types};
use cenote_lua::{Result, TableId, Value, Vm};

use super::arguments::Form;
use super::properties::source;
use super::{Host, open, trouble};

type Lines = Vec<Vec<Item>>;

/// Part of what one step of an iterator gives.
enum Item {
    Text(String),
    Number(u64),
    Nothing,
}

type Look = fn(&Host<'_>, &Catalog, &Dataset) -> cenote_engine::Result<Lines>;

pub fn register<'h>(vm: &mut Vm<'h>, module: TableId, host: &'h Host<'h>) -> Result<()> {
    let of_heads: [(&str, Look); 3] =
        [("snapshots", snapshots), ("children", children), ("bookmarks", bookmarks)];
    for (name, look) in of_heads {
        iterator(vm, module, host, name, Some(false), look)?;
    }
    let of_snapshots: [(&str, Look); 2] = [("clones", clones), ("holds", holds)];
    for (name, look) in of_snapshots {
        iterator(vm, module, host, name, Some(true), look)?;
    }
    for name in ["properties", "user_properties"] {
        iterator(vm, module, host, name, None, user_properties)?;
    }
    let form = Form::positional("system_properties", &["dataset"]);
    vm.register(module, "system_properties", move |vm, args| {
        let given = form.parse(vm, args)?;
        let dataset = open(vm, host, given.text(0))?;
        let table = vm.new_table()?;
        for name in system_properties(vm, host, &dataset)? {
            let name = vm.string(name.as_bytes())?;
            vm.push(table, name)?;
        }
        Ok(vec![Value::Table(table)])
    })
}

/// Registers what makes an iterator over what belongs to heads (`of_snapshots` being false), snapshots, or both.
fn iterator<'h>(
    vm: &mut Vm<'h>,
    module: TableId,
    host: &'h Host<'h>,
    name: &'static str,
    of_snapshots: Option<bool>,
    look: Look,
) -> Result<()> {
    let form = Form::positional(name, &["dataset"]);
    vm.register(module, name, move |vm, args| {
        vm.check()?;
        let given = form.parse(vm, args)?;
        let dataset = open(vm, host, given.text(0))?;
        if of_snapshots.is_some_and(|wanted| wanted != dataset.is_snapshot()) {
            let kind = if dataset.is_snapshot() { "is a snapshot" } else { "is not a snapshot" };
            return Err(host.fatal(vm, &format!("'{}' {kind}", dataset.name)));
        }
        let found = host.group.catalog().and_then(|catalog| look(host, &catalog, &dataset));
        let lines = match found {
            Ok(lines) => lines,
            Err(error) => return Err(trouble(vm, host, name, &error)),
        };
        let rest = RefCell::new(lines.into_iter());
        let step = vm.native(move |vm, _| {
            let Some(line) = rest.borrow_mut().next() else { return Ok(vec![Value::Nil]) };
            let mut values = Vec::with_capacity(line.len());
            for item in line {
                values.push(match item {
                    Item::Text(text) => vm.take_string(text.into_bytes())?,
                    Item::Number(number) => Value::Int(number.cast_signed()),
                    Item::Nothing => Value::Nil,
                });
            }
            Ok(values)
        })?;
        Ok(vec![step])
    })
}

fn text(text: impl ToString) -> Vec<Item> {
    vec![Item::Text(text.to_string())]
}

fn snapshots(_: &Host<'_>, catalog: &Catalog, head: &Dataset) -> cenote_engine::Result<Lines> {
    Ok(catalog.snapshots(head)?.iter().map(|snapshot| text(&snapshot.name)).collect())
}

fn children(_: &Host<'_>, catalog: &Catalog, head: &Dataset) -> cenote_engine::Result<Lines> {
    let children = catalog.children(&head.directory)?;
    let shown = children.iter().filter(|child| !child.component().starts_with('%'));
    Ok(shown.map(|child| text(&child.path)).collect())
}

fn bookmarks(_: &Host<'_>, catalog: &Catalog, head: &Dataset) -> cenote_engine::Result<Lines> {
    Ok(catalog.bookmarks(head)?.iter().map(|(name, _)| text(name)).collect())
}

fn clones(_: &Host<'_>, catalog: &Catalog, snapshot: &Dataset) -> cenote_engine::Result<Lines> {
    Ok(catalog.clones(snapshot)?.iter().map(text).collect())
}

fn holds(_: &Host<'_>, catalog: &Catalog, snapshot: &Dataset) -> cenote_engine::Result<Lines> {
    let holds = catalog.holds(snapshot)?;
    Ok(holds.into_iter().map(|(tag, at)| vec![Item::Text(tag), Item::Number(at)]).collect())
}

fn user_properties(host: &Host<'_>, _: &Catalog, of: &Dataset) -> cenote_engine::Result<Lines> {
    let all = host.group.user_properties(of)?.into_iter();
    Ok(all
        .map(|one| {
            let from = match &one.source {
                Source::None => Item::Nothing,
                known => source(known, of).map_or(Item::Nothing, Item::Text),
            };
            vec![Item::Text(one.name.clone()), Item::Text(one.parsable()), from]
        })
        .collect())
}

/// The names of the properties that a dataset of this kind has.
fn system_properties(vm: &mut Vm<'_>, host: &Host<'_>, of: &Dataset) -> Result<Vec<&'static str>> {
    let kind = host.group.catalog().and_then(|catalog| catalog.kind(of));
    let types = match kind {
        _ if of.is_snapshot() => Types::SNAPSHOT,
        Ok(kind) => kind.types(),
        Err(error) => return Err(trouble(vm, host, "system_properties", &error)),
    };
    let shown = property::DATASET.iter().filter(|one| one.visible && one.types.intersects(types));
    Ok(shown.map(|one| one.name).collect())
}
