//! How a package of streams begins: what is in it, with properties, and what belongs to what.
//!
//! Chapter 07, section 11. Invariant: what is listed was looked up in one state of the pool.

use std::collections::BTreeMap;

use cenote_format::nvlist::{Encoding, NvList, Value};
use cenote_format::property::{self, INHERIT_SUFFIX, RECEIVED_SUFFIX};
use cenote_format::send_stream::{Begin, BeginFlags, Features, HeaderKind};
use cenote_format::zap::Value as Stored;
use cenote_format::{Guid, ObjectId};

use crate::Result;
use crate::dataset::{Catalog, Dataset, Table};

/// A filesystem or volume of a package.
pub struct Member {
    /// Its head.
    pub head: Dataset,
    /// Its snapshots that are in the package, or that it goes on from, oldest first.
    pub snapshots: Vec<Dataset>,
    /// The snapshot of its parent that belongs to what it is sent after; 0 if there is none.
    pub parent_from: Guid,
    /// The snapshot it was cloned from.
    pub origin: Option<Guid>,
}

/// What a package is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Package<'a> {
    /// Full name of the snapshot that is sent.
    pub name: &'a str,
    /// The snapshot it goes on from: what comes after the `@`.
    pub from: Option<&'a str>,
    /// What is below is in it.
    pub recursive: bool,
    /// Streams are as encrypted on the disks.
    pub raw: bool,
    /// What is in it is listed, with properties; else it only announces that several streams follow.
    pub listed: bool,
    /// Of properties only those that were received.
    pub received_only: bool,
    /// Holds are listed.
    pub holds: bool,
}

impl Package<'_> {
    /// The record a package of `members` begins with, and the list that comes with it.
    ///
    /// # Errors
    /// What cannot be read.
    pub fn begin(&self, catalog: &Catalog, members: &[Member]) -> Result<(Begin, Vec<u8>)> {
        let begin = Begin {
            kind: HeaderKind::Compound,
            features: if self.holds { Features::HOLDS } else { Features::empty() },
            creation_time: 0,
            objset_kind: 0,
            flags: BeginFlags::empty(),
            to_guid: Guid(0),
            from_guid: Guid(0),
            to_name: self.name.as_bytes().into(),
            payload_len: 0,
        };
        if !self.listed {
            return Ok((begin, Vec::new()));
        }
        let mut list = NvList::new();
        if let Some(from) = self.from {
            list.push("fromsnap", from);
        }
        list.push("tosnap", self.name.split_once('@').map_or("", |(_, snapshot)| snapshot));
        if !self.recursive {
            list.push("not_recursive", Value::Boolean);
        }
        if self.raw {
            list.push("raw", Value::Boolean);
        }
        let mut all = NvList::new();
        for member in members {
            let guid = format!("{:#x}", member.head.phys.guid.0);
            all.push(guid, self.member(catalog, member)?);
        }
        list.push("fss", all);
        Ok((begin, list.encode(Encoding::Xdr)?))
    }

    fn member(&self, catalog: &Catalog, member: &Member) -> Result<NvList> {
        let directory = &member.head.directory;
        let mut list = NvList::new();
        list.push("name", directory.path.as_str());
        list.push("parentfromsnap", member.parent_from.0);
        if let Some(origin) = member.origin {
            list.push("origin", origin.0);
        }
        if catalog.key_object(directory)?.is_some_and(|key| key.root == directory.id) {
            list.push("is_encroot", Value::Boolean);
        }
        list.push("props", self.properties(catalog, directory.phys.properties)?);
        let (mut guids, mut properties, mut holds) = (NvList::new(), NvList::new(), NvList::new());
        for snapshot in &member.snapshots {
            let name = snapshot.name.to_string();
            let name = name.split_once('@').map_or("", |(_, name)| name);
            guids.push(name, snapshot.phys.guid.0);
            properties.push(name, self.properties(catalog, snapshot.phys.properties)?);
            if self.holds {
                let mut tags = NvList::new();
                for (tag, placed) in catalog.holds(snapshot)? {
                    tags.push(tag, placed);
                }
                holds.push(name, tags);
            }
        }
        list.push("snaps", guids);
        list.push("snapprops", properties);
        if self.holds {
            list.push("snapholds", holds);
        }
        Ok(list)
    }

    /// What is set in the property table in object `id`, or was received and not set since.
    fn properties(&self, catalog: &Catalog, id: ObjectId) -> Result<NvList> {
        let mut list = NvList::new();
        let Some(table) = Table::open(catalog.mos(), id)? else { return Ok(list) };
        let stored: BTreeMap<String, Stored> = table.entries()?.into_iter().collect();
        let is_sent = |name: &str| match property::dataset(name) {
            Some(property) => !property.is_read_only(),
            None => property::is_user_name(name),
        };
        let base = |name: &str| name.split('$').next().unwrap_or_default().to_owned();
        let names: std::collections::BTreeSet<String> =
            stored.keys().map(|key| base(key)).collect();
        for name in names.iter().filter(|name| is_sent(name)) {
            let own = stored.get(name).filter(|_| !self.received_only);
            let inherits = stored.contains_key(&format!("{name}{INHERIT_SUFFIX}"));
            let received = stored.get(&format!("{name}{RECEIVED_SUFFIX}"));
            let received = received.filter(|_| self.received_only || !inherits);
            let Some(value) = own.or(received) else { continue };
            match (value.as_u64(), value.as_c_string()) {
                (_, Some(text)) => list.push(name, Value::String(text.into())),
                (Some(number), None) => list.push(name, number),
                (None, None) => {}
            }
        }
        Ok(list)
    }
}
