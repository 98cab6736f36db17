//! Exchanging the tree behind a mount, which stays, with what is open in it and mounted on it (`zfs rollback`).
//!
//! Invariant: no request sees two trees, nor a tree that another has followed; none waits for the kernel while requests
//! wait here, for the kernel may wait for those. What was changed in the kernel's memory before gets to the
//! tree of before or nowhere.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use cenote_posix::tree::{ROOT, Tree};
use rustix::fs::{Mode, OFlags};

use super::abi;
use super::changed_names::{Name, Names};
use super::handler::Handler;
use super::mount_table::mounted_places;
use super::session::Session;

/// How long the kernel may take to write what it keeps.
const WRITE_TIME: Duration = Duration::from_secs(10);
/// How long requests under way may take. Longer than those wait that wait for the order which wants the exchange.
const REQUEST_TIME: Duration = Duration::from_secs(5);

/// What takes the place of a tree.
pub enum Next {
    /// The same files, opened again.
    Same(Arc<dyn Tree>),
    /// Other files. Some may be those of before.
    Other(Arc<dyn Tree>),
    /// Nothing.
    Nothing,
}

/// What came of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exchanged {
    /// The mount serves on.
    Done,
    /// Nothing was done.
    NotBegun,
    /// The mount serves no more: it is to be unmounted.
    CutOff,
}

/// Which names the kernel is to forget.
enum Forgotten {
    Some(Names),
    /// It has done so.
    All,
}

/// Puts what `make` gives in the place of the tree, which is let go before. `place` is where it is mounted, if it is.
pub(super) fn exchange(
    session: &Session,
    place: Option<&Path>,
    make: impl FnOnce() -> Next,
) -> Exchanged {
    let handler = session.handler();
    if !handler.is_writable() || !session.is_alive() || !place.is_none_or(write_cached) {
        return Exchanged::NotBegun;
    }
    let Some(mut slot) = handler.slot.stop(REQUEST_TIME) else {
        tracing::info!(?place, "requests under way take long: files are not exchanged");
        return Exchanged::NotBegun;
    };
    let Some(names) = slot.as_deref().and_then(|tree| forgotten(session, place, tree)) else {
        return Exchanged::NotBegun;
    };
    *slot = None;
    let (next, is_same) = match make() {
        Next::Same(tree) => (tree, true),
        Next::Other(tree) => (tree, false),
        Next::Nothing => {
            handler.cut_off(true);
            return Exchanged::CutOff;
        }
    };
    if is_same {
        *slot = Some(next);
        return Exchanged::Done;
    }
    if !handler.exchanged(&*next) {
        handler.cut_off(true);
        return Exchanged::CutOff;
    }
    *slot = Some(next);
    // From here on requests are answered.
    drop(slot);
    tell(session, changed_names(handler, &names));
    handler.take_cached();
    Exchanged::Done
}

/// Has the kernel write what it keeps of changes; false if that takes too long. Another thread waits for it.
fn write_cached(place: &Path) -> bool {
    let (done, result) = mpsc::channel();
    let place = place.to_path_buf();
    let write = move || {
        let open = rustix::fs::open(place, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        // What cannot be written is lost with what it belongs to.
        let written = open.and_then(rustix::fs::syncfs);
        // Who waits may have given up.
        let _ = done.send(written);
    };
    let begun = std::thread::Builder::new().name("write-cached".into()).spawn(write);
    begun.is_ok() && result.recv_timeout(WRITE_TIME).is_ok()
}

/// What the kernel may know of names in `tree`; none if it can be told of neither some nor all of them.
fn forgotten(session: &Session, place: Option<&Path>, tree: &dyn Tree) -> Option<Forgotten> {
    let nodes = &session.handler().nodes;
    let directories = std::iter::once((abi::ROOT_ID, ROOT)).chain(nodes.held_directories());
    if let Some(names) = Names::of(tree, directories, |node| nodes.is_held(node)) {
        return Some(Forgotten::Some(names));
    }
    let place = place?;
    let is_inside = |other: &Path| other != place && other.starts_with(place);
    let takes_down = mounted_places().is_none_or(|all| all.iter().any(|other| is_inside(other)));
    // Needs Linux 6.16.
    let told = !takes_down && session.notify(abi::notify::INC_EPOCH, &[]).is_ok();
    told.then_some(Forgotten::All)
}

/// The names that mean something else now.
fn changed_names(handler: &Handler, names: &Forgotten) -> Vec<Name> {
    match (names, handler.begin()) {
        (Forgotten::Some(names), Some(answering)) => names.changed_in(answering.tree(), |number| {
            number == abi::ROOT_ID || answering.is_there(number)
        }),
        _ => Vec::new(),
    }
}

/// Tells the kernel of names that mean something else, and that what it keeps of files is not to be trusted.
fn tell(session: &Session, names: Vec<Name>) {
    for (parent, name) in names {
        if let Err(error) = session.forget_name(parent, &name) {
            tracing::warn!(%error, "the kernel was not told of a changed name");
        }
    }
    for node in session.handler().known_nodes() {
        if let Err(error) = session.forget_node(node) {
            tracing::warn!(node, %error, "the kernel was not told of a changed file");
        }
    }
}
