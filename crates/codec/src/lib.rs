//! Placeholder header: replaced as the room is built.
