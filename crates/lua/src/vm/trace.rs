//! Where a program is, in words: places of errors, and how it got there.
//!
//! Invariant: what is said never depends on more than the frames there are.

use super::Vm;
use super::call::Frame;
use crate::error::Stop;
use crate::op::{Op, Subject};
use crate::value::Value;

/// What a program is called in places.
const CHUNK: &str = "[string \"channel program\"]";
/// Levels that are shown of a long way, at its end and at its beginning.
const LAST: usize = 12;
const FIRST: usize = 10;

impl Vm<'_> {
    /// `chunk:line: ` of the frame so far from the innermost, if it is one of the program's.
    pub(super) fn place(&self, level: usize) -> String {
        let Some(frame) = self.frames.iter().rev().nth(level) else { return String::new() };
        match line_of(frame) {
            Some(line) => format!("{CHUNK}:{line}: "),
            None => String::new(),
        }
    }

    /// An error of the instruction under way.
    pub(super) fn error_here(&mut self, reason: &str) -> Stop {
        let text = format!("{}{reason}", self.place(0));
        match self.string(text.as_bytes()) {
            Ok(value) => Stop::Error(value),
            Err(stop) => stop,
        }
    }

    /// An operand of the instruction under way is of the wrong type.
    pub(super) fn operand_error(&mut self, doing: &str, operand: &Value, which: usize) -> Stop {
        let kind = operand.type_name();
        let subject = self.frames.last().and_then(|frame| {
            let proto = frame.proto.as_ref()?;
            let pc = u32::try_from(frame.pc.checked_sub(1)?).ok()?;
            proto.subjects.get(&pc)?.get(which)?.clone()
        });
        match subject {
            Some((what, name)) => {
                let name = name.lossy();
                self.error_here(&format!("attempt to {doing} {what} '{name}' (a {kind} value)"))
            }
            None => self.error_here(&format!("attempt to {doing} a {kind} value")),
        }
    }

    /// What the function under way is called where it was called: kind and name.
    pub(super) fn call_name(&self) -> Option<(&'static str, String)> {
        let depth = self.frames.len().checked_sub(1)?;
        self.name_of_frame(depth).map(|(kind, name)| (kind, name.lossy()))
    }

    fn name_of_frame(&self, depth: usize) -> Option<Subject> {
        let frame = self.frames.get(depth)?;
        if frame.is_tail || frame.is_entry {
            return None;
        }
        let caller = self.frames.get(depth.checked_sub(1)?)?;
        let proto = caller.proto.as_ref()?;
        let pc = caller.pc.checked_sub(1)?;
        if !matches!(proto.code.get(pc), Some(Op::Call { .. } | Op::TailCall(..))) {
            return None;
        }
        proto.subjects.get(&u32::try_from(pc).ok()?)?.first()?.clone()
    }

    /// The way to where the program is, after `reason`.
    pub fn traceback(&self, reason: &str) -> String {
        let mut text = reason.to_owned();
        // A program that is none has not been anywhere.
        if self.frames.is_empty() {
            return text;
        }
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str("stack traceback:");
        let count = self.frames.len();
        for depth in (0..count).rev() {
            let level = count - 1 - depth;
            if count > LAST + FIRST && level == LAST {
                text.push_str("\n\t...");
            }
            if count > LAST + FIRST && level >= LAST && depth >= FIRST {
                continue;
            }
            self.describe(depth, &mut text);
        }
        text
    }

    fn describe(&self, depth: usize, text: &mut String) {
        let Some(frame) = self.frames.get(depth) else { return };
        match line_of(frame) {
            Some(line) => text.push_str(&format!("\n\t{CHUNK}:{line}: in ")),
            None => text.push_str("\n\t[C]: in "),
        }
        let line = frame.proto.as_ref().map(|proto| proto.line);
        match (self.name_of_frame(depth), line) {
            (Some((_, name)), _) => text.push_str(&format!("function '{}'", name.lossy())),
            (None, Some(0)) => text.push_str("main chunk"),
            (None, Some(line)) => text.push_str(&format!("function <{CHUNK}:{line}>")),
            (None, None) => text.push('?'),
        }
        if frame.is_tail {
            text.push_str("\n\t(...tail calls...)");
        }
    }
}

/// The line a frame of the program is in.
fn line_of(frame: &Frame<'_>) -> Option<u32> {
    let proto = frame.proto.as_ref()?;
    Some(proto.line_at(frame.pc.saturating_sub(1)))
}
