//! What users may do to whom `zfs allow` gave permissions.
//!
//! Chapter 06, section 18. Invariant: nothing that stands on a dataset gives anybody anything on another one that
//! is not below it; what is written in a set counts only at and above the place where the set was given.

use std::borrow::Cow;
use std::collections::BTreeMap;

use cenote_control::peer::Peer;
use cenote_format::delegation::{Key, Scope, Who};

use super::datasets::Shown;

/// A permission that an order needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// On what: a filesystem, volume or snapshot, also one that is not there yet.
    pub dataset: String,
    /// One of these is enough.
    pub any_of: Vec<Cow<'static, str>>,
    /// It is about to be made there: what creators are given counts, too.
    pub is_new: bool,
}

impl Need {
    /// `permission` on `dataset`.
    pub fn new(permission: impl Into<Cow<'static, str>>, dataset: &str) -> Self {
        let path = dataset.split('#').next().unwrap_or_default();
        Self { dataset: path.to_owned(), any_of: vec![permission.into()], is_new: false }
    }

    /// Setting `property` of `dataset`.
    pub fn of_property(property: &str, dataset: &str) -> Self {
        Self::new(permission_of(property), dataset)
    }

    /// The same on what an order makes.
    #[must_use]
    pub fn on_new(mut self) -> Self {
        self.is_new = true;
        self
    }

    /// Another permission will do as well.
    #[must_use]
    pub fn or(mut self, permission: &'static str) -> Self {
        self.any_of.push(Cow::Borrowed(permission));
        self
    }
}

/// The permission that lets somebody set a property.
fn permission_of(name: &str) -> Cow<'static, str> {
    if let Some((kind, _)) = name.split_once('@') {
        return Cow::Owned(kind.to_owned());
    }
    match name.contains(':') {
        true => Cow::Borrowed("userprop"),
        false => Cow::Owned(name.to_owned()),
    }
}

/// The filesystem or volume above, or of which a snapshot is.
pub fn above(name: &str) -> &str {
    name.rsplit_once(['/', '@']).map_or(name, |(above, _)| above)
}

/// What stands on one directory.
type Given = BTreeMap<Key, Vec<String>>;

/// Whether `who` has what is needed.
pub fn has(shown: &Shown, who: &Peer, need: &Need) -> bool {
    let (path, snapshot) = match need.dataset.split_once('@') {
        Some((path, _)) => (path, true),
        None => (need.dataset.as_str(), false),
    };
    let levels: Vec<(bool, &Given)> = ways(path)
        .into_iter()
        .filter_map(|level| {
            let entry = shown.inventory().entry(level)?;
            Some((level == path && !snapshot, &*entry.permissions))
        })
        .collect();
    need.any_of.iter().any(|permission| {
        is_allowed(&levels, who, permission) || need.is_new && creator_gets(&levels, permission)
    })
}

/// A name and those above it, nearest first.
fn ways(path: &str) -> Vec<&str> {
    let mut all = vec![path];
    while let Some((above, _)) = all.last().and_then(|path| path.rsplit_once('/')) {
        all.push(above);
    }
    all
}

/// Whether the levels, nearest first, give `permission`: what is local counts on the first where that is the
/// dataset itself.
fn is_allowed(levels: &[(bool, &Given)], who: &Peer, permission: &str) -> bool {
    let mut sets = Sets::new();
    for (is_it, given) in levels {
        let scope = if *is_it { Scope::Local } else { Scope::Descendant };
        let his = persons(who).into_iter().map(|who| (who, scope));
        for (who, scope) in his {
            let listed = |sets: bool| given.get(&Key { who: who.clone(), scope, sets });
            if listed(false).is_some_and(|all| all.iter().any(|one| one == permission)) {
                return true;
            }
            add(&mut sets, listed(true));
        }
        if any_set_has(given, &mut sets, permission) {
            return true;
        }
    }
    false
}

/// What everybody is, and what one is called.
fn persons(who: &Peer) -> Vec<Who> {
    let groups = who.groups.iter().map(|group| Who::Group(*group));
    std::iter::once(Who::Everyone).chain(who.user.map(Who::User)).chain(groups).collect()
}

/// Sets that were given, and whether what is in them was found: then what is written of them further up does not
/// count.
type Sets = BTreeMap<String, bool>;

/// Sets that are given here; what was found of others of their names nearer by stays.
fn add(sets: &mut Sets, given: Option<&Vec<String>>) {
    for name in given.into_iter().flatten() {
        sets.entry(name.clone()).or_default();
    }
}

/// Whether one of these sets, as it is written here, has `permission`; sets that are in them are added.
fn any_set_has(given: &Given, sets: &mut Sets, permission: &str) -> bool {
    let is_due = |(name, is_found): (&String, &bool)| (!is_found).then(|| name.clone());
    let mut due: Vec<String> = sets.iter().filter_map(is_due).collect();
    while let Some(name) = due.pop() {
        let key =
            |sets: bool| Key { who: Who::Set(name.clone()), scope: Scope::NotApplicable, sets };
        let (own, inner) = (given.get(&key(false)), given.get(&key(true)));
        if own.is_some_and(|all| all.iter().any(|one| one == permission)) {
            return true;
        }
        if own.is_some() || inner.is_some() {
            sets.insert(name.clone(), true);
        }
        for inner in inner.into_iter().flatten().filter(|inner| !sets.contains_key(*inner)).cloned()
        {
            due.push(inner);
        }
        for name in &due {
            sets.entry(name.clone()).or_default();
        }
    }
    false
}

/// Whether who makes something below these levels is given `permission` on it.
fn creator_gets(levels: &[(bool, &Given)], permission: &str) -> bool {
    let mut sets = Sets::new();
    levels.iter().any(|(_, given)| {
        let of =
            |sets: bool| given.get(&Key { who: Who::Creator, scope: Scope::NotApplicable, sets });
        add(&mut sets, of(true));
        of(false).is_some_and(|all| all.iter().any(|one| one == permission))
            || any_set_has(given, &mut sets, permission)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(all: &[(&str, &[&str])]) -> Given {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        all.iter().map(|(key, names)| (Key::parse(key.as_bytes()).unwrap(), owned(names))).collect()
    }

    fn alice() -> Peer {
        Peer { user: Some(1000), groups: vec![100, 27] }
    }

    #[test]
    fn users_groups_and_everyone_where_it_was_given() {
        let top = given(&[("ul$1000", &["snapshot"]), ("gd$27", &["mount"]), ("ed$", &["hold"])]);
        let below = given(&[]);
        let on_top = [(true, &top)];
        let on_below = [(true, &below), (false, &top)];
        let may = |levels: &[(bool, &Given)], what| is_allowed(levels, &alice(), what);
        assert!(may(&on_top, "snapshot") && !may(&on_top, "mount") && !may(&on_top, "hold"));
        assert!(!may(&on_below, "snapshot") && may(&on_below, "mount") && may(&on_below, "hold"));
        let bob = Peer { user: Some(1001), groups: vec![101] };
        assert!(!is_allowed(&on_top, &bob, "snapshot") && !is_allowed(&on_below, &bob, "mount"));
        assert!(is_allowed(&on_below, &bob, "hold"));
        // A snapshot is below its filesystem.
        assert!(!may(&[(false, &top)], "snapshot") && may(&[(false, &top)], "mount"));
        let nobody = Peer::default();
        assert!(is_allowed(&on_below, &nobody, "hold") && !is_allowed(&on_below, &nobody, "mount"));
    }

    #[test]
    fn sets_are_looked_up_where_they_are_given_and_above() {
        let top = given(&[
            ("s-$@all", &["destroy"]),
            ("S-$@all", &["@some"]),
            ("s-$@some", &["mount"]),
            ("S-$@some", &["@all"]),
        ]);
        let below = given(&[("Ul$1000", &["@all"])]);
        let lowest = given(&[("s-$@all", &["create"])]);
        let may = |levels: &[(bool, &Given)], what| is_allowed(levels, &alice(), what);
        assert!(may(&[(true, &below), (false, &top)], "destroy"));
        assert!(may(&[(true, &below), (false, &top)], "mount"));
        assert!(!may(&[(true, &below), (false, &top)], "create"));
        // Given locally: not below; and what stands lower down says nothing.
        assert!(!may(&[(true, &lowest), (false, &below), (false, &top)], "destroy"));
        assert!(!may(&[(true, &lowest), (false, &below), (false, &top)], "create"));
        assert!(!may(&[(true, &below)], "destroy"));
    }

    #[test]
    fn what_is_written_of_a_set_nearer_by_hides_what_is_written_above() {
        let top = given(&[("s-$@set", &["snapshot"]), ("Ud$1000", &["@set"])]);
        let below =
            given(&[("s-$@set", &["checksum"]), ("Ul$1000", &["@set"]), ("Ud$1000", &["@set"])]);
        let lowest = given(&[]);
        let may = |levels: &[(bool, &Given)], what| is_allowed(levels, &alice(), what);
        let (own, under) =
            ([(true, &below), (false, &top)], [(true, &lowest), (false, &below), (false, &top)]);
        assert!(may(&own, "checksum") && !may(&own, "snapshot"));
        assert!(may(&under, "checksum") && !may(&under, "snapshot"));
        // Where nothing is written of it nearer by, the one above counts.
        assert!(may(&[(true, &lowest), (false, &top)], "snapshot"));
    }

    #[test]
    fn who_makes_something_has_what_is_promised_on_it() {
        let top = given(&[("c-$", &["quota"]), ("C-$", &["@own"]), ("s-$@own", &["destroy"])]);
        let levels = [(false, &top)];
        assert!(creator_gets(&levels, "quota") && creator_gets(&levels, "destroy"));
        assert!(!creator_gets(&levels, "mount") && !is_allowed(&levels, &alice(), "quota"));
    }

    #[test]
    fn a_property_needs_the_permission_of_its_name() {
        let of = |name: &str| permission_of(name).into_owned();
        assert_eq!(of("userquota@1000"), "userquota");
        assert_eq!(of("com.example:x"), "userprop");
        assert_eq!(of("compression"), "compression");
        assert_eq!((above("tank/a@b"), above("tank/a"), above("tank")), ("tank/a", "tank", "tank"));
    }
}
