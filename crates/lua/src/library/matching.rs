//! Functions of `string` that look for patterns.
//!
//! Invariant: as in [`super`].

use std::cell::Cell;

use super::position;
use crate::error::Result;
use crate::pattern::{Capture, Matcher, find_plain};
use crate::value::{Str, Value};
use crate::vm::Vm;

type Results = Result<Vec<Value>>;

/// How much more than others a call by `gsub` needs: text and captures lie on the way.
const WEIGHT: u32 = 3;

/// What was captured, as values; the whole match if nothing was.
fn captured(vm: &mut Vm<'_>, text: &[u8], matcher: &Matcher<'_>, whole: (usize, usize)) -> Results {
    if matcher.captures.is_empty() {
        return Ok(vec![vm.string(text.get(whole.0..whole.1).unwrap_or_default())?]);
    }
    only_captured(vm, text, matcher)
}

fn only_captured(vm: &mut Vm<'_>, text: &[u8], matcher: &Matcher<'_>) -> Results {
    let mut values = Vec::with_capacity(matcher.captures.len());
    for capture in &matcher.captures {
        values.push(match capture {
            Capture::Position(place) => super::count(place + 1),
            Capture::Text(start, length) => {
                vm.string(text.get(*start..start + length).unwrap_or_default())?
            }
            Capture::Open(_) => return Err(vm.error("unfinished capture")),
        });
    }
    Ok(values)
}

pub(super) fn find(vm: &mut Vm<'_>, args: &[Value], finds: bool) -> Results {
    let (text, pattern) = (vm.text_argument(args, 1)?, vm.text_argument(args, 2)?);
    let (bytes, mut pattern) = (text.bytes(), pattern.bytes());
    let start = position(vm.int_or(args, 3, 1)?, bytes.len()).max(1);
    let Some(start) = usize::try_from(start - 1).ok().filter(|start| *start <= bytes.len()) else {
        return Ok(vec![Value::Nil]);
    };
    let is_plain = args.get(3).is_some_and(Value::is_true)
        || !pattern.iter().any(|byte| b"^$*+?.([%-".contains(byte));
    if finds && is_plain {
        let rest = bytes.get(start..).unwrap_or_default();
        let found = find_plain(rest, pattern).map_err(|reason| vm.error(&reason))?;
        return Ok(match found {
            Some(at) => {
                vec![super::count(start + at + 1), super::count(start + at + pattern.len())]
            }
            None => vec![Value::Nil],
        });
    }
    let is_anchored = pattern.first() == Some(&b'^');
    if is_anchored {
        pattern = pattern.get(1..).unwrap_or_default();
    }
    let mut matcher = Matcher::new(bytes, pattern);
    for at in start..=bytes.len() {
        if let Some(end) = matcher.match_at(at).map_err(|reason| vm.error(&reason))? {
            if !finds {
                return captured(vm, bytes, &matcher, (at, end));
            }
            let mut values = vec![super::count(at + 1), super::count(end)];
            values.append(&mut only_captured(vm, bytes, &matcher)?);
            return Ok(values);
        }
        if is_anchored {
            break;
        }
    }
    Ok(vec![Value::Nil])
}

pub(super) fn gmatch(vm: &mut Vm<'_>, args: &[Value]) -> Results {
    let (text, pattern) = (vm.text_argument(args, 1)?, vm.text_argument(args, 2)?);
    let next = Cell::new(0);
    let step = vm.native(move |vm, _| {
        let bytes = text.bytes();
        let mut matcher = Matcher::new(bytes, pattern.bytes());
        for at in next.get()..=bytes.len() {
            if let Some(end) = matcher.match_at(at).map_err(|reason| vm.error(&reason))? {
                next.set(if end == at { end + 1 } else { end });
                return captured(vm, bytes, &matcher, (at, end));
            }
        }
        next.set(usize::MAX);
        Ok(vec![Value::Nil])
    })?;
    Ok(vec![step])
}

pub(super) fn gsub(vm: &mut Vm<'_>, args: &[Value]) -> Results {
    let (text, pattern) = (vm.text_argument(args, 1)?, vm.text_argument(args, 2)?);
    let replacement = match args.get(2) {
        Some(value @ (Value::Str(_) | Value::Int(_) | Value::Table(_) | Value::Function(_))) => {
            value.clone()
        }
        _ => return Err(vm.argument_error(3, "string/function/table expected")),
    };
    let bytes = text.bytes();
    let most = match args.get(3) {
        None | Some(Value::Nil) => usize::MAX,
        Some(_) => usize::try_from(vm.int_argument(args, 4)?).unwrap_or(0),
    };
    let mut pattern = pattern.bytes();
    let is_anchored = pattern.first() == Some(&b'^');
    if is_anchored {
        pattern = pattern.get(1..).unwrap_or_default();
    }
    let mut matcher = Matcher::new(bytes, pattern);
    let (mut out, mut at, mut count) = (Vec::new(), 0, 0);
    while count < most {
        let end = matcher.match_at(at).map_err(|reason| vm.error(&reason))?;
        if let Some(end) = end {
            count += 1;
            replace(vm, bytes, &matcher, (at, end), &replacement, &mut out)?;
            vm.room_for(out.len())?;
        }
        match end {
            Some(end) if end > at => at = end,
            _ => match bytes.get(at) {
                Some(byte) => {
                    out.push(*byte);
                    at += 1;
                }
                None => break,
            },
        }
        if is_anchored {
            break;
        }
    }
    out.extend_from_slice(bytes.get(at..).unwrap_or_default());
    Ok(vec![vm.take_string(out)?, super::count(count)])
}

/// Adds what stands for a match.
fn replace(
    vm: &mut Vm<'_>,
    text: &[u8],
    matcher: &Matcher<'_>,
    whole: (usize, usize),
    replacement: &Value,
    out: &mut Vec<u8>,
) -> Result<()> {
    let original = text.get(whole.0..whole.1).unwrap_or_default();
    let values = captured(vm, text, matcher, whole)?;
    let value = match replacement {
        Value::Str(pattern) => return fill_in(vm, pattern, original, &values, out),
        Value::Int(number) => {
            out.extend_from_slice(number.to_string().as_bytes());
            return Ok(());
        }
        Value::Function(_) => {
            let found = vm.call_deep(replacement, &values, WEIGHT)?;
            found.into_iter().next().unwrap_or(Value::Nil)
        }
        _ => {
            let key = values.first().cloned().unwrap_or(Value::Nil);
            vm.get(replacement, &key)?
        }
    };
    match value {
        Value::Nil | Value::Bool(false) => out.extend_from_slice(original),
        Value::Str(text) => out.extend_from_slice(text.bytes()),
        Value::Int(number) => out.extend_from_slice(number.to_string().as_bytes()),
        other => {
            let kind = other.type_name();
            return Err(vm.error(&format!("invalid replacement value (a {kind})")));
        }
    }
    Ok(())
}

/// A replacement in which `%1` and its like stand for captures.
fn fill_in(
    vm: &mut Vm<'_>,
    pattern: &Str,
    original: &[u8],
    values: &[Value],
    out: &mut Vec<u8>,
) -> Result<()> {
    let mut rest = pattern.bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte != b'%' {
            out.push(*byte);
            continue;
        }
        let Some((digit, after)) = rest.split_first() else {
            return Err(vm.error("invalid use of '%' in replacement string"));
        };
        rest = after;
        match digit {
            b'0' => out.extend_from_slice(original),
            b'1'..=b'9' => match values.get(usize::from(digit - b'1')) {
                Some(Value::Str(text)) => out.extend_from_slice(text.bytes()),
                Some(Value::Int(place)) => out.extend_from_slice(place.to_string().as_bytes()),
                _ => {
                    let number = digit - b'0';
                    return Err(
                        vm.error(&format!("invalid capture index %{number} in replacement string"))
                    );
                }
            },
            b'%' => out.push(b'%'),
            _ => return Err(vm.error("invalid use of '%' in replacement string")),
        }
    }
    Ok(())
}
