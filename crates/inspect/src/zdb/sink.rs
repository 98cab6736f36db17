//! Where `zdb` writes: lines of text at once, or one JSON document at the end.
//!
//! Invariant: text is never held back, so that long listings need no memory; a closed output ends
//! the listing quietly.

use std::fmt::Display;
use std::io::{BufWriter, StdoutLock, Write};

use serde_json::{Map, Value};

use super::render;

/// The output of one run.
pub struct Sink {
    out: BufWriter<StdoutLock<'static>>,
    json: Option<Map<String, Value>>,
    broken: bool,
    sound: bool,
}

impl Sink {
    /// Text, or one document of JSON.
    pub fn new(json: bool) -> Self {
        let out = BufWriter::new(std::io::stdout().lock());
        Self { out, json: json.then(Map::new), broken: false, sound: true }
    }

    /// JSON was asked for.
    pub fn is_json(&self) -> bool {
        self.json.is_some()
    }

    /// Nobody reads any more.
    pub fn is_closed(&self) -> bool {
        self.broken
    }

    /// Something is wrong with the pool: the exit code tells.
    pub fn complain(&mut self) {
        self.sound = false;
    }

    /// A line of text; nothing in JSON.
    pub fn line(&mut self, text: impl Display) {
        if self.json.is_none() && !self.broken {
            self.broken = writeln!(self.out, "{text}").is_err();
        }
    }

    /// A field of the JSON document; nothing in text.
    pub fn json(&mut self, name: &str, value: Value) {
        if let Some(map) = &mut self.json {
            map.insert(name.to_owned(), value);
        }
    }

    /// A tree of values under a title.
    pub fn tree(&mut self, title: &str, name: &str, value: Value) {
        if self.is_json() {
            self.json(name, value);
        } else {
            self.line(format_args!("{title}:"));
            let text = render::text(&value, 1);
            self.line(text.trim_end_matches('\n'));
        }
    }

    /// Bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.json = None;
        self.broken |= self.out.write_all(bytes).is_err();
    }

    /// Ends the output. Whether it was complete, and nothing was wrong with the pool.
    pub fn finish(mut self) -> bool {
        if let Some(map) = self.json.take() {
            let document = Value::Object(map);
            self.broken |= writeln!(self.out, "{document:#}").is_err();
        }
        let flushed = self.out.flush().is_ok();
        flushed && !self.broken && self.sound
    }
}
