//! Taking back what the kernel keeps of data that was refused.
//!
//! Opening is not asked of us, so what nobody may change (an immutable file, a snapshot) can be opened for
//! writing and mapped. The write that comes of it is refused, but the changed pages stay, and others
//! would see them.
//!
//! Invariant: the kernel is told from a thread that answers nothing and holds nothing, after the
//! write was answered: it may wait for writes of the same pages to be answered. One thread at most
//! does so for a mount.

use std::sync::Arc;

use parking_lot::Mutex;

/// The nodes whose data the kernel is to forget.
#[derive(Debug, Default)]
pub(super) struct Refused(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    nodes: Vec<u64>,
    /// A thread is at it.
    runs: bool,
}

impl Refused {
    /// A write of `node` was refused and answered: `forget` is called for it soon.
    pub(super) fn add(self: &Arc<Self>, node: u64, forget: impl Fn(u64) + Send + 'static) {
        let mut waiting = self.0.lock();
        if !waiting.nodes.contains(&node) {
            waiting.nodes.push(node);
        }
        if waiting.runs {
            return;
        }
        let refused = self.clone();
        let run = move || {
            while let Some(node) = refused.next() {
                forget(node);
            }
        };
        match std::thread::Builder::new().name("refused".into()).spawn(run) {
            Ok(_) => waiting.runs = true,
            // The next that is refused tries again.
            Err(error) => tracing::warn!(%error, "refused data stays in the kernel's memory"),
        }
    }

    fn next(&self) -> Option<u64> {
        let mut waiting = self.0.lock();
        let node = waiting.nodes.pop();
        waiting.runs = node.is_some();
        node
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_node_is_forgotten_after_it_was_refused_last() {
        let refused = Arc::new(Refused::default());
        let (told, hears) = mpsc::channel();
        let (go_on, waits) = mpsc::channel::<()>();
        refused.add(1, move |node| {
            told.send(node).unwrap();
            waits.recv().unwrap();
        });
        let next = || hears.recv_timeout(Duration::from_secs(20));
        assert_eq!(next(), Ok(1));
        // Refused again while it is being forgotten, and twice: once more, by the same thread.
        for _ in 0..2 {
            refused.add(1, |_| panic!("another thread"));
        }
        go_on.send(()).unwrap();
        assert_eq!(next(), Ok(1));
        go_on.send(()).unwrap();
        assert!(next().is_err(), "the thread ends, and nobody tells any more");
    }
}
