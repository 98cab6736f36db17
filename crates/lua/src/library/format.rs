//! `string.format`: whole numbers, strings and characters.
//!
//! Invariant: a field is never wider than two digits say.

use crate::error::Result;
use crate::value::Value;
use crate::vm::Vm;

/// What stands between `%` and the letter.
#[derive(Default)]
struct Spec {
    left: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    zero: bool,
    width: usize,
    precision: Option<usize>,
}

pub(super) fn format(vm: &mut Vm<'_>, args: &[Value]) -> Result<Vec<Value>> {
    let pattern = vm.text_argument(args, 1)?;
    let mut rest = pattern.bytes();
    let (mut out, mut number) = (Vec::new(), 1);
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte != b'%' {
            out.push(*byte);
            continue;
        }
        if let [b'%', after @ ..] = rest {
            out.push(b'%');
            rest = after;
            continue;
        }
        number += 1;
        let (spec, after) = match spec(rest) {
            Ok(found) => found,
            Err(reason) => return Err(vm.error(reason)),
        };
        let Some((letter, after)) = after.split_first() else {
            return Err(vm.error("invalid option '%' to 'format'"));
        };
        rest = after;
        if args.len() < number {
            return Err(vm.argument_error(number, "no value"));
        }
        one(vm, args, number, *letter, &spec, &mut out)?;
        vm.room_for(out.len())?;
    }
    Ok(vec![vm.take_string(out)?])
}

fn spec(text: &[u8]) -> std::result::Result<(Spec, &[u8]), &'static str> {
    let (mut spec, mut rest) = (Spec::default(), text);
    let mut flags = 0;
    while let Some((flag, after)) = rest.split_first() {
        match flag {
            b'-' => spec.left = true,
            b'+' => spec.plus = true,
            b' ' => spec.space = true,
            b'#' => spec.alternate = true,
            b'0' => spec.zero = true,
            _ => break,
        }
        flags += 1;
        rest = after;
    }
    if flags > 5 {
        return Err("invalid format (repeated flags)");
    }
    (spec.width, rest) = digits(rest);
    if let [b'.', after @ ..] = rest {
        let (precision, after) = digits(after);
        (spec.precision, rest) = (Some(precision), after);
    }
    if rest.first().is_some_and(u8::is_ascii_digit) {
        return Err("invalid format (width or precision too long)");
    }
    Ok((spec, rest))
}

fn digits(text: &[u8]) -> (usize, &[u8]) {
    let count = text.iter().take(2).take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, rest) = text.split_at_checked(count).unwrap_or((&[], text));
    (digits.iter().fold(0, |sum, digit| sum * 10 + usize::from(digit - b'0')), rest)
}

fn one(
    vm: &mut Vm<'_>,
    args: &[Value],
    number: usize,
    letter: u8,
    spec: &Spec,
    out: &mut Vec<u8>,
) -> Result<()> {
    match letter {
        b'c' => {
            let value = vm.int_argument(args, number)?;
            pad(&[value.to_le_bytes()[0]], spec, out);
        }
        b'd' | b'i' => {
            let value = vm.int_argument(args, number)?;
            let sign = if value < 0 {
                "-"
            } else if spec.plus {
                "+"
            } else if spec.space {
                " "
            } else {
                ""
            };
            figures(sign, &value.unsigned_abs().to_string(), spec, out);
        }
        b'u' | b'o' | b'x' | b'X' => {
            let value = vm.int_argument(args, number)?.cast_unsigned();
            let alternate = spec.alternate && value != 0;
            let (prefix, text) = match letter {
                b'o' => (if alternate { "0" } else { "" }, format!("{value:o}")),
                b'x' => (if alternate { "0x" } else { "" }, format!("{value:x}")),
                b'X' => (if alternate { "0X" } else { "" }, format!("{value:X}")),
                _ => ("", value.to_string()),
            };
            figures(prefix, &text, spec, out);
        }
        b'q' => {
            let text = vm.text_argument(args, number)?;
            quote(text.bytes(), out);
        }
        b's' => {
            let value = args.get(number - 1).cloned().unwrap_or(Value::Nil);
            let Value::Str(text) = vm.spell(&value)? else {
                return Err(vm.error("'tostring' must return a string to 'format'"));
            };
            let most = spec.precision.unwrap_or(usize::MAX).min(text.bytes().len());
            pad(text.bytes().get(..most).unwrap_or_default(), spec, out);
        }
        _ => {
            let letter = char::from(letter);
            return Err(vm.error(&format!("invalid option '%{letter}' to 'format'")));
        }
    }
    Ok(())
}

fn pad(text: &[u8], spec: &Spec, out: &mut Vec<u8>) {
    let blanks = spec.width.saturating_sub(text.len());
    if !spec.left {
        out.resize(out.len() + blanks, b' ');
    }
    out.extend_from_slice(text);
    if spec.left {
        out.resize(out.len() + blanks, b' ');
    }
}

fn figures(sign: &str, figures: &str, spec: &Spec, out: &mut Vec<u8>) {
    let mut zeros = spec.precision.unwrap_or(1).saturating_sub(figures.len());
    if spec.zero && !spec.left && spec.precision.is_none() {
        zeros = spec.width.saturating_sub(figures.len() + sign.len());
    }
    let text = format!("{sign}{}{figures}", "0".repeat(zeros));
    pad(text.as_bytes(), spec, out);
}

fn quote(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for (at, byte) in text.iter().enumerate() {
        match byte {
            b'"' | b'\\' | b'\n' => out.extend_from_slice(&[b'\\', *byte]),
            byte if byte.is_ascii_control() => {
                let digit_follows = text.get(at + 1).is_some_and(u8::is_ascii_digit);
                let code = match digit_follows {
                    true => format!("\\{byte:03}"),
                    false => format!("\\{byte}"),
                };
                out.extend_from_slice(code.as_bytes());
            }
            byte => out.push(*byte),
        }
    }
    out.push(b'"');
}
