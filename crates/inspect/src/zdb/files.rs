//! Files of a dataset: their attributes and the path that leads to them.
//!
//! Chapter 05. Invariant: what of a file cannot be read is said, and the rest is shown.

use cenote_engine::object::{Object, ObjectSet};
use cenote_format::ObjectType;
use cenote_format::sa::Attribute;
use cenote_posix::attributes::{Facts, SystemAttributes};
use cenote_posix::paths::Paths;
use cenote_posix::tree::Timestamp;
use cenote_posix::view::View;
use serde_json::json;

use super::described::{Described, moment};

/// The files of one object set, if it holds files that can be read.
pub struct Files {
    view: Option<View>,
    /// Why there are none.
    reason: Option<String>,
    paths: Paths,
}

impl Files {
    /// The files of `set`.
    pub fn open(set: &ObjectSet) -> Self {
        let (view, reason) = match View::open(set.clone(), 0) {
            Ok(view) => (Some(view), None),
            Err(error) => (None, Some(error.reason)),
        };
        Self { view, reason, paths: Paths::default() }
    }

    /// No files at all.
    pub fn none(reason: &str) -> Self {
        Self { view: None, reason: Some(reason.to_owned()), paths: Paths::default() }
    }

    /// Adds the attributes of the file `object`, and its path.
    pub fn describe(&self, out: &mut Described, object: &Object) {
        let Some(view) = &self.view else {
            return out.failed("attributes", self.reason.as_deref().unwrap_or("no filesystem"));
        };
        let facts = match Facts::read(view.attribute_table().as_deref(), object) {
            Ok(facts) => facts,
            Err(error) => return out.failed("attributes", error.reason),
        };
        let found = self.paths.find(view, object.id(), facts.parent);
        let path = found.unwrap_or_else(|parts| parts);
        out.pair("path", &path, json!(path));
        out.pair("uid    ", facts.uid, facts.uid);
        out.pair("gid    ", facts.gid, facts.gid);
        let times = [
            ("atime", facts.accessed),
            ("mtime", facts.modified),
            ("ctime", facts.changed),
            ("crtime", facts.created),
        ];
        for (name, time) in times {
            out.line(format!("\t{name}\t{}", moment(time.seconds.cast_unsigned())));
            out.fact(name, seconds(time));
        }
        out.pair("gen", facts.generation, facts.generation);
        out.pair("mode", format!("{:o}", facts.mode), facts.mode);
        out.pair("size", facts.size, facts.size);
        out.pair("parent", facts.parent, facts.parent);
        out.pair("links", facts.links, facts.links);
        out.pair("pflags", format!("{:x}", facts.flags), facts.flags);
        if object.dnode().bonus_type == ObjectType::SYSTEM_ATTRIBUTES {
            attributes(out, view, object);
        }
    }
}

fn seconds(time: Timestamp) -> f64 {
    time.seconds as f64 + f64::from(time.nanoseconds) / 1e9
}

/// The attributes that not every file has.
fn attributes(out: &mut Described, view: &View, object: &Object) {
    let table = view.attribute_table();
    let bonus = object.dnode().bonus();
    let system = match SystemAttributes::open(table.as_deref(), object, bonus) {
        Ok(system) => system,
        Err(error) => return out.failed("attributes", error.reason),
    };
    for (attribute, name) in [
        (Attribute::Project, "projid"),
        (Attribute::XattrDirectory, "xattr"),
        (Attribute::Device, "rdev"),
    ] {
        match system.word(attribute) {
            Ok(Some(value)) if value != 0 => out.pair(name, value, value),
            Ok(_) => {}
            Err(error) => out.failed(name, error.reason),
        }
    }
    if let Ok(Some(target)) = system.value(Attribute::SymlinkTarget) {
        let target = String::from_utf8_lossy(&target).into_owned();
        out.pair("target", &target, json!(target));
    }
    if let Ok(Some(packed)) = system.value(Attribute::XattrList) {
        match cenote_format::nvlist::NvList::decode_prefix(&packed) {
            Ok((list, _, _)) => {
                out.line(format!(
                    "\tSA xattrs: {} bytes, {} entries",
                    packed.len(),
                    list.iter().count()
                ));
                let names =
                    list.iter().map(|pair| String::from_utf8_lossy(&pair.name).into_owned());
                let names: Vec<String> = names.collect();
                names.iter().for_each(|name| out.line(format!("\t\t{name}")));
                out.fact("sa_xattrs", json!(names));
            }
            Err(error) => out.failed("SA xattrs", error),
        }
    }
}
