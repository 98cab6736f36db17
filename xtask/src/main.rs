//! For us only.
fn main() {}
