//! Reports as text, in the words and columns of OpenZFS 2.3.
//!
//! Invariant: these functions only format. They take reports, know nothing of sockets or the
//! engine, and end every line they return with a newline.

pub mod advice;
pub mod dataset_get;
pub mod dataset_list;
mod iostat;
pub mod number;
pub mod pool_events;
pub mod pool_get;
mod pool_histogram;
pub mod pool_history;
pub mod pool_import;
pub mod pool_iostat;
pub mod pool_list;
pub mod pool_status;
pub mod scan;
pub mod sort;
pub mod table;
pub mod time;
pub mod vdev_get;
pub mod vdev_name;
pub mod words;
