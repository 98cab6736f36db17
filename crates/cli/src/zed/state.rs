//! Which events were handled, and when pools were scrubbed, for the next life of this program.
//!
//! Invariant: the file is whole at any moment; one that cannot be read is told, and never overwritten.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cenote_control::events::Position;
use cenote_control::terminal;
use serde_json::{Value, json};

/// See the module.
pub struct State {
    path: PathBuf,
    positions: BTreeMap<String, Position>,
    /// Seconds since 1970, by the pools' guids.
    scrubbed: BTreeMap<u64, i64>,
    changed: bool,
}

impl State {
    /// Reads the file; `zero`: begins anew.
    ///
    /// # Errors
    /// If it is there and cannot be read.
    pub fn read(path: PathBuf, zero: bool) -> Result<Self, String> {
        let mut state =
            Self { path, positions: BTreeMap::new(), scrubbed: BTreeMap::new(), changed: zero };
        if zero {
            return Ok(state);
        }
        let odd = |reason: &str| {
            format!("{}: {reason}; 'zed -Z' begins with a new one", state.path.display())
        };
        let text = match std::fs::read_to_string(&state.path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(state),
            Err(error) => return Err(odd(&error.to_string())),
        };
        let value: Value = serde_json::from_str(&text).map_err(|error| odd(&error.to_string()))?;
        let all = |name: &str| value.get(name).and_then(Value::as_object).cloned();
        let number = |of: &Value, name: &str| of.get(name).and_then(Value::as_u64).unwrap_or(0);
        for (pool, at) in all("pools").unwrap_or_default() {
            let position = Position { life: number(&at, "life"), number: number(&at, "eid") };
            state.positions.insert(pool, position);
        }
        for (pool, when) in all("scrubbed").unwrap_or_default() {
            let when = pool.parse().ok().zip(when.as_i64());
            state.scrubbed.extend(when);
        }
        Ok(state)
    }

    /// The last event handled of each pool.
    pub fn positions(&self) -> &BTreeMap<String, Position> {
        &self.positions
    }

    /// Event `number` of this life of a pool was handled.
    pub fn handled(&mut self, pool: &str, life: u64, number: u64) {
        self.positions.insert(pool.to_owned(), Position { life, number });
        self.changed = true;
    }

    /// When the pool of this guid was scrubbed last, or first met.
    pub fn scrubbed(&mut self, pool: u64, now: i64) -> i64 {
        *self.scrubbed.entry(pool).or_insert_with(|| {
            self.changed = true;
            now
        })
    }

    /// The pool of this guid was scrubbed then.
    pub fn set_scrubbed(&mut self, pool: u64, when: i64) {
        let known = self.scrubbed.entry(pool).or_insert(when);
        *known = when.max(*known);
        self.changed = true;
    }

    /// Writes the file, if something is new.
    pub fn write(&mut self) {
        if !std::mem::take(&mut self.changed) {
            return;
        }
        let positions = self.positions.iter();
        let pools: serde_json::Map<String, Value> = positions
            .map(|(pool, at)| (pool.clone(), json!({ "life": at.life, "eid": at.number })))
            .collect();
        let scrubbed: serde_json::Map<String, Value> =
            self.scrubbed.iter().map(|(pool, when)| (pool.to_string(), json!(when))).collect();
        let text = json!({ "pools": pools, "scrubbed": scrubbed }).to_string();
        let next = self.path.with_extension("new");
        let written = std::fs::write(&next, text).and_then(|()| std::fs::rename(&next, &self.path));
        if let Err(error) = written {
            let shown = self.path.display();
            terminal::complain(&format!("zed: {shown}: {error}; events may be handled twice"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_damage_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("zed.state");
        let mut state = State::read(path.clone(), false).unwrap();
        state.handled("tank", u64::MAX, 7);
        assert_eq!(state.scrubbed(5, 100), 100);
        state.set_scrubbed(5, 90);
        state.write();
        let mut again = State::read(path.clone(), false).unwrap();
        let position = Position { life: u64::MAX, number: 7 };
        assert_eq!(again.positions().get("tank"), Some(&position));
        assert_eq!(again.scrubbed(5, 500), 100);
        std::fs::write(&path, "{").unwrap();
        let error = State::read(path.clone(), false).err().unwrap();
        assert!(error.contains("'zed -Z'"), "{error}");
        assert!(State::read(path, true).is_ok());
    }
}
