//! Orders that fail: each kind of order fails at each of its steps, and then is done.
//!
//! Invariant: an order that failed leaves the metadata as it was, and the next one is done.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_engine::dataset::change::{MosChange, NewDataset, PropertyInput};
use cenote_engine::dataset::{Changed, InventoryReader, Table};
use cenote_engine::pool::change::{Additions, DatasetOrders, Encryption, NewNamed, Parents};
use cenote_engine::pool::group::LivePool;
use cenote_engine::txg::Tx;
use cenote_engine::vdev::AllocationClass;
use cenote_engine::{ErrorKind, Result};
use cenote_format::config::{TopLevel, VdevConfig, VdevKind};
use cenote_format::delegation::Key;
use cenote_format::dsl_directory::DslDirectory;
use cenote_format::objset::ObjsetKind;
use cenote_format::{ObjectId, ObjectType};

use super::{World, noise, nothing, open_leaf};

/// More steps than any order has.
const STEPS: u64 = 2000;

/// The metadata, but for how space is kept: that changes with every group.
pub(super) fn facts(world: &World) -> BTreeMap<u64, String> {
    let mos = world.live.pool().mos();
    let directory = Table::open(&mos, ObjectId(1)).unwrap().unwrap();
    let log = directory.number("com.delphix:log_spacemap_zap").unwrap().unwrap_or(0);
    let mut facts = BTreeMap::new();
    let mut at = 0;
    while let Some(id) = mos.next_object(at).unwrap() {
        at = id.0;
        let object = mos.object(id).unwrap();
        let dnode = object.dnode();
        let kind = dnode.object_type.name();
        if at == log || kind.contains("space map") {
            continue;
        }
        let mut fact = format!("{kind}, {}: ", dnode.bonus_type.name());
        if dnode.bonus_type == ObjectType::DSL_DIRECTORY {
            let phys = DslDirectory::decode(dnode.bonus()).unwrap();
            // What the metadata itself takes is charged here.
            let phys = DslDirectory {
                used_bytes: 0,
                compressed_bytes: 0,
                uncompressed_bytes: 0,
                used_breakdown: Default::default(),
                ..phys
            };
            fact += &format!("{phys:?}");
        } else if !dnode.bonus_type.name().contains("size") {
            fact += &format!("{:?}", dnode.bonus());
        }
        if let Ok(table) = Table::of(object.clone()) {
            let mut entries = table.entries().unwrap();
            entries.retain(|(name, _)| !name.contains("spacemap") && !name.contains("unflushed"));
            entries.sort_by(|one, other| one.0.cmp(&other.0));
            fact += &format!(" {entries:?}");
        }
        facts.insert(at, fact);
    }
    facts
}

pub(super) fn differing(
    now: &BTreeMap<u64, String>,
    before: &BTreeMap<u64, String>,
) -> Vec<String> {
    let ids: std::collections::BTreeSet<_> = now.keys().chain(before.keys()).collect();
    let differ = ids.into_iter().filter(|id| now.get(id) != before.get(id));
    differ.map(|id| format!("{id}: {:?}, before {:?}", now.get(id), before.get(id))).collect()
}

/// Has the order fail at its first step, its second, and so on, until it is done.
pub(super) fn fail_everywhere(
    world: &World,
    what: &str,
    order: impl Fn(&Arc<LivePool>) -> Result<()>,
) {
    world.settle();
    let before = facts(world);
    for step in 1..STEPS {
        world.live.fail_order_at(step);
        let done = order(&world.live);
        let left = world.live.fail_order_at(0);
        if let Ok(()) = done {
            assert!(step > 1, "{what} changed nothing");
            world.census();
            world.survey(what);
            println!("{what}: {} steps", step - 1);
            return;
        }
        let error = done.unwrap_err().to_string();
        assert!(error.contains("made to fail") && left == 0, "{what}, step {step}: {error}");
        let differ = differing(&facts(world), &before);
        assert!(differ.is_empty(), "{what}, step {step}: {differ:#?}");
        if step.is_power_of_two() {
            world.census();
        }
    }
    panic!("{what} has no end");
}

/// As [`fail_everywhere`], of a change of the metadata.
fn change(
    world: &World,
    what: &str,
    work: impl Fn(&LivePool, &MosChange<'_>) -> Result<()> + Clone + Send + 'static,
) {
    fail_everywhere(world, what, |live| {
        let work = work.clone();
        live.change(move |live, change| {
            work(live, change)?;
            live.wake_freeing();
            Ok(())
        })
    });
}

#[test]
fn an_order_that_fails_at_any_step_changes_nothing() {
    let world = World::new(&[]);
    let root = world.live.pool().catalog().root().unwrap().id;
    let create = |name: &'static str| {
        change(&world, "create", move |live, change| {
            let properties = &[PropertyInput::text("test:of", name)];
            let new = NewDataset { parent: root, name, properties, ..NewDataset::default() };
            live.make_dataset(change, &new, ObjsetKind::Zfs, nothing).map(drop)
        });
    };
    create("a");
    create("b");
    let object = world.write("p/a", 1, 300_000);
    world.write("p/b", 2, 100_000);
    let (a, b) = (world.id("p/a"), world.id("p/b"));
    change(&world, "snapshots", move |_, change| {
        for head in [a, b] {
            change.create_snapshot(head, "s", &[PropertyInput::text("test:x", "y")])?;
        }
        Ok(())
    });
    world.overwrite("p/a", object, 50_000, 3, 100_000);
    world.snapshot("p/a", "t");
    world.overwrite("p/a", object, 80_000, 4, 100_000);
    world.live.sync().unwrap();
    let (s, t) = (world.id("p/a@s"), world.id("p/a@t"));
    change(&world, "hold", move |_, change| change.hold(s, "tag", false));
    change(&world, "release", move |_, change| change.release(s, "tag").map(drop));
    change(&world, "bookmark", move |_, change| change.create_bookmark(a, "mark", s));
    change(&world, "set", move |_, change| {
        change.set_property(a, &PropertyInput::number("refreservation", 1 << 20))?;
        change.set_property(a, &PropertyInput::number("quota", 100 << 20))?;
        change.set_property(a, &PropertyInput::text("test:long", &"long".repeat(200)))
    });
    change(&world, "inherit", move |_, change| change.inherit_property(a, "test:long", false));
    let directory = world.live.pool().catalog().directory("p/a").unwrap().id;
    change(&world, "allow", move |_, change| {
        let key = Key::parse(b"el$").map_err(cenote_engine::Error::from)?;
        change.allow(directory, &[(key, vec!["snapshot".to_owned(), "mount".to_owned()])])
    });
    change(&world, "clone", move |live, change| {
        let origin = Some(t);
        let new = NewDataset { parent: root, name: "c", origin, ..NewDataset::default() };
        live.clone_dataset(change, &new).map(drop)
    });
    world.overwrite("p/c", object, 0, 5, 60_000);
    world.live.sync().unwrap();
    ["p/a", "p/b", "p/c"].iter().for_each(|name| world.close(name));
    let c = world.id("p/c");
    change(&world, "promote", move |_, change| change.promote(c));
    change(&world, "promote back", move |_, change| change.promote(a));
    change(&world, "rollback", move |live, change| live.rollback_dataset(change, a));
    change(&world, "rename a snapshot", move |_, change| change.rename_snapshot(a, "s", "u"));
    let (from, to) = (
        world.live.pool().catalog().directory("p/c").unwrap().id,
        world.live.pool().catalog().directory("p/b").unwrap().id,
    );
    change(&world, "rename", move |_, change| change.rename_directory(from, to, "d"));
    change(&world, "destroy everything", move |_, change| {
        change.destroy_head(c)?;
        change.destroy_bookmark(a, "mark")?;
        for snapshot in [s, t] {
            change.destroy_snapshot(snapshot, false)?;
        }
        change.destroy_head(a)
    });
    world.finish();
}

#[test]
fn an_order_about_the_pool_that_fails_at_any_step_changes_nothing() {
    let world = World::new(&[]);
    world.filesystem("a");
    world.write("p/a", 1, 100_000);
    world.close("p/a");
    let path = world.directory.path().join("log");
    std::fs::File::create(&path).unwrap().set_len(64 << 20).unwrap();
    let log = VdevConfig {
        kind: VdevKind::File,
        path: Some(path.display().to_string()),
        top: Some(TopLevel { ashift: 12, is_log: true, ..TopLevel::default() }),
        ..VdevConfig::default()
    };
    fail_everywhere(&world, "add a log", move |live| {
        let tops = vec![(log.clone(), AllocationClass::Log)];
        live.add_vdevs(Additions { tops, ..Additions::default() }, Arc::new(open_leaf))
    });
    let tree = world.live.pool().config().vdev_tree.clone().unwrap();
    let guid = tree.children()[1].guid;
    fail_everywhere(&world, "remove a log", move |live| live.remove_vdev(guid));
    let comment = PropertyInput::text("comment", "of a test");
    fail_everywhere(&world, "set comment", move |live| live.set_pool_property(comment.clone()));
    assert_eq!(world.live.pool().config().comment.as_deref(), Some("of a test"));
    let mode = PropertyInput::number("failmode", 1);
    fail_everywhere(&world, "set failmode", move |live| live.set_pool_property(mode.clone()));
    fail_everywhere(&world, "reguid", |live| live.reguid(None));
    fail_everywhere(&world, "checkpoint", |live| live.take_checkpoint());
    world.write("p/a", 2, 100_000);
    world.close("p/a");
    fail_everywhere(&world, "discard a checkpoint", |live| live.discard_checkpoint());
    world.finish();
}

/// How many groups were written meanwhile.
fn groups(world: &World, orders: impl FnOnce(&LivePool)) -> u64 {
    world.settle();
    let before = world.live.pool().uberblock().txg.0;
    orders(&world.live);
    world.live.pool().uberblock().txg.0 - before
}

#[test]
fn an_order_about_many_datasets_takes_one_group() {
    let world = World::new(&[]);
    let root = world.live.pool().catalog().root().unwrap().id;
    let names: Vec<String> = (0..50).map(|number| format!("n{number}")).collect();
    let made = names.clone();
    world
        .live
        .change(move |live, change| {
            made.iter().try_for_each(|name| {
                let new = NewDataset { parent: root, name, ..NewDataset::default() };
                live.make_dataset(change, &new, ObjsetKind::Zfs, nothing).map(drop)
            })
        })
        .unwrap();
    let all: Vec<String> = names.iter().map(|name| format!("p/{name}")).collect();
    let value = |dataset: &str| {
        let catalog = world.live.pool().catalog();
        let table = catalog.dataset_named(dataset).unwrap().directory.phys.properties;
        Table::open(catalog.mos(), table).unwrap().unwrap().number("atime").unwrap()
    };
    let inputs = |size: u64| {
        let quota = PropertyInput::number("quota", size);
        vec![PropertyInput::number("atime", 0), quota]
    };
    let set = |live: &LivePool, last: u64| {
        let each = all.iter().map(|name| (name.clone(), inputs(64 << 20)));
        let mut each: Vec<_> = each.collect();
        each[49].1.push(PropertyInput::number("reservation", last));
        live.orders().given_by("zfs set", 0).set_properties(each)
    };
    // One that cannot be set keeps the others from being set.
    groups(&world, |live| drop(set(live, 1 << 50).unwrap_err()));
    assert!(all.iter().all(|name| value(name).is_none()));
    assert_eq!(groups(&world, |live| set(live, 1 << 20).unwrap()), 1);
    assert!(all.iter().all(|name| value(name) == Some(0)));
    let inherit = |live: &LivePool| live.orders().inherit(&all, "atime", false).unwrap();
    assert_eq!(groups(&world, inherit), 1);
    assert!(all.iter().all(|name| value(name).is_none()));
    world.survey("orders about many");
    world.finish();
}

/// A filesystem to be made.
pub(super) fn new(name: &str) -> NewNamed {
    NewNamed {
        name: name.to_owned(),
        properties: Vec::new(),
        creator: 0,
        encryption: Encryption::Inherited,
        kind: ObjsetKind::Zfs,
        case_insensitive: false,
    }
}

/// Orders that make these parents too.
fn with<'a>(live: &'a LivePool, parents: &[&str]) -> DatasetOrders<'a> {
    let names = parents.iter().map(|name| (*name).to_owned()).collect();
    let fill = Arc::new(nothing);
    let parents = Parents { names, creator: 0, case_insensitive: false, fill };
    live.orders().given_by("zfs create -p", 0).with_parents(parents)
}

#[test]
fn parents_are_made_in_the_group_of_what_lies_below_them() {
    let world = World::new(&[]);
    world.filesystem("a");
    world.snapshot("p/a", "s");
    fail_everywhere(&world, "create -p", |live| {
        with(live, &["p/x", "p/x/y"]).create(new("p/x/y/z"), nothing)
    });
    let once = groups(&world, |_| {
        let orders = with(&world.live, &["p/1", "p/1/2", "p/1/2/3"]);
        orders.create(new("p/1/2/3/4"), nothing).unwrap();
    });
    assert_eq!(once, 1);
    // Another made some of them meanwhile.
    with(&world.live, &["p/x", "p/x/y", "p/x/y/w"]).create(new("p/x/y/w/z"), nothing).unwrap();
    // What fails itself leaves no parents behind.
    with(&world.live, &["p/k"]).create(new("p/x"), nothing).unwrap_err();
    with(&world.live, &["p/k"]).rename(&[("p/nope".into(), "p/k/n".into())]).unwrap_err();
    assert!(world.live.pool().catalog().dataset_named("p/k").is_err());
    with(&world.live, &["p/k"]).rename(&[("p/x".into(), "p/k/x".into())]).unwrap();
    with(&world.live, &["p/k/c"]).clone_snapshot("p/a@s", "p/k/c/d", Vec::new(), 0).unwrap();
    world.id("p/k/x/y/w/z");
    world.id("p/k/c/d");
    world.census();
    world.survey("parents");
    world.finish();
}

#[test]
fn what_is_set_inside_a_dataset_is_set_with_the_rest() {
    let world = World::new(&[]);
    world.filesystem("a");
    let object = world.write("p/a", 1, 10_000);
    world.live.sync().unwrap();
    let quota = |size| vec![PropertyInput::number("quota", size)];
    let dataset = || world.live.pool().catalog().dataset_named("p/a").unwrap();
    let open = world.live.open_dataset(&dataset()).unwrap();
    // What is inside comes last: it is not begun where the rest does not fit, and where it fails itself the
    // rest is not done.
    let refused = world.live.orders().set_with("p/a", quota(1), |_| panic!("done all the same"));
    refused.unwrap_err();
    let fail = |_: &Tx| Err(cenote_engine::Error::invalid("for a test"));
    world.live.orders().set_with("p/a", quota(64 << 20), fail).unwrap_err();
    assert_eq!(dataset().directory.phys.quota, 0);
    assert!(world.read("p/a", object, 10_000) == noise(10_000, 1));
    let set = open.clone();
    let groups = groups(&world, |live| {
        let inside =
            move |tx: &Tx| set.set().object(object)?.write(tx, 0, &noise(10_000, 2)).map(drop);
        live.orders().given_by("zfs set", 0).set_with("p/a", quota(64 << 20), inside).unwrap();
    });
    assert_eq!(groups, 1);
    assert_eq!(dataset().directory.phys.quota, 64 << 20);
    assert!(world.read("p/a", object, 10_000) == noise(10_000, 2));
    drop(open);
    world.close("p/a");
    world.finish();
}

#[test]
fn snapshots_that_go_with_their_clone_are_destroyed_with_it() {
    let world = World::new(&[]);
    world.filesystem("a");
    let object = world.write("p/a", 1, 100_000);
    let all = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let orders = world.live.orders();
    // Marked for destruction, it waits for its clone.
    let wait = |snapshot: &str| {
        orders.snapshot(&all(&[snapshot]), Vec::new()).unwrap();
        orders.clone_snapshot(snapshot, "p/c", Vec::new(), 0).unwrap();
        orders.destroy(&all(&[snapshot]), true).unwrap();
        world.id(snapshot);
    };
    let gone = |name: &str| world.live.pool().catalog().dataset_named(name).is_err();
    wait("p/a@s");
    orders.destroy(&all(&["p/c", "p/a@none"]), false).unwrap_err();
    orders.destroy(&all(&["p/c", "p/a@s"]), false).unwrap();
    assert!(gone("p/c") && gone("p/a@s"));
    orders.snapshot(&all(&["p/a@older"]), Vec::new()).unwrap();
    world.overwrite("p/a", object, 0, 2, 50_000);
    wait("p/a@newer");
    orders.rollback("p/a@older", &all(&["p/c", "p/a@newer"])).unwrap();
    assert!(gone("p/c") && gone("p/a@newer"));
    assert!(world.read("p/a", object, 100_000) == noise(100_000, 1));
    world.survey("clones that were waited for");
    world.finish();
}

#[test]
fn snapshots_taken_at_once_keep_to_the_limit_above_them() {
    let world = World::new(&[]);
    let orders = world.live.orders();
    ["p/q", "p/q/x", "p/q/y"].iter().for_each(|name| orders.create(new(name), nothing).unwrap());
    let limit = |most| {
        let input = PropertyInput::number("snapshot_limit", most);
        orders.set_properties(vec![("p/q".to_owned(), vec![input])]).unwrap();
    };
    let both = ["p/q/x@s".to_owned(), "p/q/y@s".to_owned()];
    limit(1);
    let refused = orders.snapshot(&both, Vec::new()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Quota);
    let catalog = || world.live.pool().catalog();
    assert!(both.iter().all(|name| catalog().dataset_named(name).is_err()));
    limit(2);
    orders.snapshot(&both, Vec::new()).unwrap();
    let more = orders.snapshot(&["p/q@s".to_owned()], Vec::new()).unwrap_err();
    assert_eq!(more.kind(), ErrorKind::Quota);
    // It does not hold for who may set it.
    let beyond = || world.live.orders().beyond_limits();
    beyond().snapshot(&["p/q@s".to_owned()], Vec::new()).unwrap();
    let more = orders.snapshot(&["p/q/x@t".to_owned()], Vec::new()).unwrap_err();
    assert_eq!(more.kind(), ErrorKind::Quota);
    world.survey("limits");
    world.finish();
}

/// What an order cost: entries of tables gone through, objects of the metadata written, directories and
/// snapshots read again afterwards.
type Cost = (u64, usize, u64);

/// The costs of orders in a pool with so many filesystems and snapshots side by side.
fn costs(others: usize) -> Vec<(&'static str, Cost)> {
    let world = World::sized(4 << 30, &[]);
    let root = world.live.pool().catalog().root().unwrap().id;
    world
        .live
        .change(move |live, change| {
            for number in 0..others {
                let name = &format!("n{number}");
                let new = NewDataset { parent: root, name, ..NewDataset::default() };
                live.make_dataset(change, &new, ObjsetKind::Zfs, nothing)?;
            }
            Ok(())
        })
        .unwrap();
    let all: Vec<String> = (0..others).map(|number| format!("p/n{number}@s")).collect();
    world.live.orders().snapshot(&all, Vec::new()).unwrap();
    let reader = &mut InventoryReader::default();
    let mut costs = Vec::new();
    let mut cost = |what: &'static str, order: &dyn Fn(DatasetOrders<'_>) -> Result<()>| {
        let pool = world.live.pool();
        // What went before is done, freeing too.
        (0..4).for_each(|_| world.live.sync().unwrap());
        let (catalog, changed) = pool.take_changed();
        reader.next(&catalog, &**pool.keys(), &changed, false).unwrap();
        let before = (pool.io().pipe.listed(), reader.reads());
        order(world.live.orders().given_by(what, 0)).unwrap();
        let (catalog, changed) = pool.take_changed();
        reader.next(&catalog, &**pool.keys(), &changed, false).unwrap();
        let Changed::Objects(written) = changed else { panic!("{what} changed everything") };
        let cost =
            (pool.io().pipe.listed() - before.0, written.objects.len(), reader.reads() - before.1);
        costs.push((what, cost));
    };
    let names = |name: &str| vec![name.to_owned()];
    cost("create", &|orders| {
        let properties = vec![PropertyInput::number("atime", 0)];
        orders.create(NewNamed { properties, ..new("p/x") }, nothing)
    });
    cost("set", &|orders| {
        let inputs =
            vec![PropertyInput::number("atime", 1), PropertyInput::number("quota", 64 << 20)];
        orders.set_properties(vec![("p/x".to_owned(), inputs)])
    });
    cost("inherit", &|orders| orders.inherit(&names("p/x"), "atime", false));
    cost("snapshot", &|orders| orders.snapshot(&names("p/x@a"), Vec::new()));
    cost("rename a snapshot", &|orders| orders.rename(&[("p/x@a".into(), "p/x@b".into())]));
    cost("hold", &|orders| orders.hold(&names("p/x@b"), "tag"));
    cost("release", &|orders| orders.release(&names("p/x@b"), "tag"));
    cost("clone", &|orders| orders.clone_snapshot("p/x@b", "p/c", Vec::new(), 0));
    cost("promote", &|orders| orders.promote("p/c"));
    cost("rename", &|orders| orders.rename(&[("p/x".into(), "p/n1/y".into())]));
    cost("destroy", &|orders| orders.destroy(&names("p/n1/y"), false));
    cost("destroy a snapshot", &|orders| orders.destroy(&names("p/c@b"), false));
    cost("destroy another", &|orders| orders.destroy(&names("p/c"), false));
    if others < 100 {
        world.survey("all of it");
    }
    world.census();
    costs
}

#[test]
fn an_order_costs_what_it_changes() {
    let (few, many) = (costs(10), costs(2000));
    for ((what, few), (_, many)) in few.iter().zip(&many) {
        println!("{what}: {few:?} among 10, {many:?} among 2000");
        assert!(many.0 <= few.0 + 2, "{what}: {} entries listed, {} among 10", many.0, few.0);
        assert!(many.1 <= few.1 + 8, "{what}: {} objects written, {} among 10", many.1, few.1);
        assert_eq!(many.2, few.2, "{what}: directories and snapshots read");
    }
}

#[test]
fn orders_given_at_once_share_groups() {
    let world = World::new(&[]);
    world.filesystem("a");
    world.filesystem("b");
    let groups = groups(&world, |live| {
        std::thread::scope(|scope| {
            for number in 0..100 {
                scope.spawn(move || {
                    let input = PropertyInput::number(&format!("test:n{number}"), number);
                    let name = if number % 2 == 0 { "p/a" } else { "p/b" };
                    let orders = live.orders().given_by("zfs set", 0);
                    orders.set_properties(vec![(name.to_owned(), vec![input])]).unwrap();
                });
            }
        });
    });
    assert!(groups <= 20, "{groups} groups for 100 orders");
    // Of one dataset there is one in a group: the others wait for the next.
    std::thread::scope(|scope| {
        for number in 0..6 {
            let live = &world.live;
            scope.spawn(move || {
                let names = ["p/a", "p/b"].map(|head| format!("{head}@{number}"));
                live.orders().snapshot(&names, Vec::new()).unwrap();
            });
        }
    });
    let catalog = world.live.pool().catalog();
    let mut groups: Vec<u64> = catalog
        .snapshots(&catalog.dataset_named("p/a").unwrap())
        .unwrap()
        .iter()
        .map(|one| one.phys.creation_txg.0)
        .collect();
    groups.dedup();
    assert_eq!(groups.len(), 6);
    world.survey("orders at once");
    world.finish();
}
