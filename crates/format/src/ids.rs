//! Newtypes for the numbers that must not be mixed.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
        impl From<$inner> for $name {
            fn from(value: $inner) -> Self {
                Self(value)
            }
        }
    };
}

number! {
    /// A transaction group number.
    Txg(u64)
}
number! {
    /// An object number inside one object set.
    ObjectId(u64)
}
number! {
    /// A 64-bit identity of a pool, vdev, dataset or key.
    Guid(u64)
}
number! {
    /// Height in a block tree: 0 is data, `n` points at blocks of level `n - 1`.
    Level(u8)
}
