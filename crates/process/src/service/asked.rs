//! Whether what this thread does is asked for by a request of the kernel, which waits for the end of it.
//!
//! Invariant: a thread that serves no such request is not taken for one that does.

use std::cell::Cell;

thread_local! {
    static ASKED: Cell<bool> = const { Cell::new(false) };
}

/// Does `work` for a request of the kernel.
pub(super) fn by_kernel<T>(work: impl FnOnce() -> T) -> T {
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            ASKED.set(false);
        }
    }
    ASKED.set(true);
    let _end = End;
    work()
}

/// Whether a request of the kernel waits for this.
pub(super) fn is_asked_by_kernel() -> bool {
    ASKED.get()
}
