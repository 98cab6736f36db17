//! What must hold of every filesystem: checked object by object, through a view of its own.

use std::collections::{BTreeMap, BTreeSet};

use cenote_engine::object::ObjectSet;
use cenote_engine::zap::Zap;
use cenote_format::directory_entry::{EntryValue, kind_of_mode};
use cenote_format::sa::Attribute;
use cenote_format::{ObjectId, ObjectType, acl, master_node, pflags};
use cenote_posix::View;
use cenote_posix::attributes::TYPE;

/// Panics where directories, links, parents, lengths or the delete queue contradict each other.
pub fn check(objects: &ObjectSet) {
    let view = View::open(objects.clone(), 0).unwrap();
    let master = Zap::open(objects.object(master_node::OBJECT).unwrap()).unwrap();
    let number = |key: &[u8]| ObjectId(master.lookup(key).unwrap().unwrap().as_u64().unwrap());
    let queue = Zap::open(objects.object(number(master_node::DELETE_QUEUE)).unwrap()).unwrap();
    let queued: BTreeSet<u64> =
        queue.entries().map(|entry| entry.unwrap().value.as_u64().unwrap()).collect();
    let mut names: BTreeMap<u64, u64> = BTreeMap::new();
    let mut last_parents: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    let mut hidden = BTreeSet::new();
    let mut files = Vec::new();
    let mut after = 0;
    while let Some(id) = objects.next_object(after).unwrap() {
        after = id.0;
        let object = objects.object(id).unwrap();
        let kind = object.dnode().object_type;
        if kind != ObjectType::PLAIN_FILE && kind != ObjectType::DIRECTORY {
            continue;
        }
        let file = view.file(id).unwrap();
        let facts = file.facts;
        assert_eq!(facts.is_directory(), kind == ObjectType::DIRECTORY, "{id}");
        if let Some(directory) = view.word(&file, Attribute::XattrDirectory).unwrap() {
            hidden.insert(directory);
            assert_eq!(view.file(ObjectId(directory)).unwrap().facts.parent, id.0);
        }
        // The list says what the mode says.
        let raw = view.value(&file, Attribute::AclEntries).unwrap().unwrap();
        let count = view.word(&file, Attribute::AclCount).unwrap().unwrap();
        let list = acl::decode(&raw, count as usize).unwrap();
        let said = acl::mode(&list, facts.uid.into(), facts.gid.into());
        assert_eq!(said.bits, facts.mode & 0o777, "{id}");
        assert_eq!(said.no_execs_denied, facts.flags & pflags::NO_EXECS_DENIED != 0, "{id}");
        if facts.is_directory() {
            let zap = Zap::open(object.clone()).unwrap();
            let mut directories = 0;
            for entry in zap.entries() {
                let entry = entry.unwrap();
                let value = EntryValue::decode(entry.value.as_u64().unwrap());
                let named = view.file(value.object).unwrap_or_else(|error| {
                    let name = String::from_utf8_lossy(entry.name()).into_owned();
                    panic!("'{name}' in {id} names {}: {error}", value.object)
                });
                assert_eq!(kind_of_mode(named.facts.mode), value.kind);
                directories += u64::from(named.facts.is_directory());
                *names.entry(value.object.0).or_default() += 1;
                last_parents.entry(value.object.0).or_default().insert(id.0);
            }
            assert_eq!(zap.count().unwrap() + 2, facts.size, "size of directory {id}");
            if !queued.contains(&id.0) {
                assert_eq!(facts.links, 2 + directories, "links of directory {id}");
            }
        } else {
            let size = object.block_size();
            let blocks = facts.size.div_ceil(size).max(1);
            assert!(object.block_count() <= blocks, "{id}: {} > {blocks}", object.block_count());
            if facts.mode & TYPE == 0o100_000 && object.block_count() == blocks {
                let last = object.read_block(blocks - 1).unwrap();
                let end = (facts.size - (blocks - 1) * size) as usize;
                assert!(last[end..].iter().all(|byte| *byte == 0), "{id}: bytes behind the end");
            }
        }
        files.push((id, facts));
    }
    for (id, facts) in files {
        let count = names.get(&id.0).copied().unwrap_or(0);
        if hidden.contains(&id.0) || id == view.root() {
            assert_eq!(count, 0, "{id}");
            continue;
        }
        assert_eq!(queued.contains(&id.0), count == 0, "{id} has {count} names");
        if facts.is_directory() {
            assert!(count <= 1, "directory {id} has {count} names");
        } else {
            assert_eq!(facts.links, count, "links of {id}");
        }
        if let Some(parents) = last_parents.get(&id.0) {
            let known = parents.contains(&facts.parent);
            assert!(known || parents.len() > 1 || count > 0 && !facts.is_directory(), "{id}");
        }
    }
    for id in queued {
        assert!(objects.object(ObjectId(id)).is_ok(), "the queue names {id}");
    }
}
