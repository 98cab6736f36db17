//! Counting what a hostile pool answers and what it refuses.
//!
//! Invariant: no error is unwrapped; the first of them are kept, the others counted.

/// How it went.
#[derive(Default, Debug)]
pub struct Tally {
    /// Questions that were answered.
    pub good: u64,
    /// Questions that gave an error.
    pub bad: u64,
    /// The errors' texts, the first of them.
    pub errors: Vec<String>,
}

impl Tally {
    /// Counts a result and gives its value.
    pub fn of<T, E: std::fmt::Display>(&mut self, result: Result<T, E>) -> Option<T> {
        match result {
            Ok(value) => {
                self.good += 1;
                Some(value)
            }
            Err(error) => {
                self.bad += 1;
                if self.errors.len() < 100 {
                    self.errors.push(error.to_string());
                }
                None
            }
        }
    }
}
