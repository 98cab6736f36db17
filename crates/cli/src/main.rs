//! The bell: one binary.
fn main() {}
