//! Values of properties as people write them, and what is wrong with those that are none.
//!
//! Invariant: what is accepted here is as it is stored; the words of a refusal are those of
//! OpenZFS, without the start that names the command's subject.

pub use cenote_control::compatibility;
pub mod dataset;
pub mod number;
pub mod pool;

/// Takes a list of properties apart, each `known` by its name; `all` becomes `None`. `Err` with the message.
pub fn property_list(
    text: &str,
    known: impl Fn(&str) -> Option<String>,
) -> Result<Option<Vec<String>>, String> {
    if text == "all" {
        return Ok(None);
    }
    if text.is_empty() {
        return Err("bad property list: no properties specified".to_owned());
    }
    let one = |name: &str| {
        known(name).ok_or_else(|| format!("bad property list: invalid property '{name}'"))
    };
    text.split(',').map(one).collect::<Result<_, _>>().map(Some)
}
