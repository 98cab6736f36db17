//! `zfs program`: a channel program.
//!
//! Invariant: as in `super`; the program is read whole before the pool is asked, and what it returns is shown as
//! it comes.

use std::io::Read;
use std::process::ExitCode;

use cenote_control::changes::{Change, ChangeRequest, ProgramRequest};
use cenote_control::client::Client;
use cenote_control::protocol::{Part, Request};
use cenote_control::terminal;

use super::common::fail;
use crate::getopt::Spec;
use crate::usage::Tool;
use crate::zpool::common::history_line;

const SPEC: Spec = Spec { letters: "jnt:m:", long: &[] };
/// Longest program: it goes to the pool process in one message.
const LONGEST: u64 = 8 << 20;

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zfs.wrong("program", message);
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    let mut limits = [None, None];
    for (limit, letter) in limits.iter_mut().zip(['t', 'm']) {
        let Some(text) = parsed.argument(letter) else { continue };
        match number(text) {
            Some(number) => *limit = Some(number),
            None => return wrong(&format!("invalid argument '{text}': expected integer")),
        }
    }
    let [instructions, memory] = limits;
    let [pool, file, given @ ..] = parsed.operands.as_slice() else {
        return wrong("invalid number of arguments");
    };
    let text = match read(file) {
        Ok(text) => text,
        Err(message) => return fail(&message),
    };
    let client = Client::default();
    if let Err(failure) = client.pool_report(pool) {
        return fail(&format!("{}\ncannot open pool '{pool}'", failure.message));
    }
    let request = ProgramRequest {
        text,
        arguments: given.to_vec(),
        instructions,
        memory,
        looks_only: parsed.has('n'),
        json: parsed.has('j'),
    };
    let change = Change::Program(Box::new(request));
    let command = Some(history_line("zfs", "program", arguments));
    let order = Request::Change(Box::new(ChangeRequest { command, change }));
    let told = client.order_in_parts(pool, &order, &[], |part| {
        if let Part::Text(text) = part {
            terminal::out(&text);
        }
    });
    match told {
        Ok(_) => ExitCode::SUCCESS,
        Err(failure) => fail(&failure.message),
    }
}

/// A number as C writes it: decimal, hexadecimal after `0x`, octal after `0`.
fn number(text: &str) -> Option<u64> {
    let digits = text.trim_start();
    let digits = digits.strip_prefix('+').unwrap_or(digits);
    match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None if digits.len() > 1 && digits.starts_with('0') => u64::from_str_radix(digits, 8).ok(),
        None => digits.parse().ok(),
    }
}

/// The program in a file, or what comes on standard input.
fn read(file: &str) -> Result<Vec<u8>, String> {
    let mut text = Vec::new();
    let done = match file {
        "-" => std::io::stdin().lock().take(LONGEST + 1).read_to_end(&mut text),
        path => {
            std::fs::File::open(path).and_then(|file| file.take(LONGEST + 1).read_to_end(&mut text))
        }
    };
    let name = if file == "-" { "standard input" } else { file };
    match done {
        Ok(_) if text.len() as u64 <= LONGEST => Ok(text),
        Ok(_) => Err(format!("cannot read '{name}': File too large")),
        Err(error) => {
            let words = error.to_string();
            let words = words.split(" (os error").next().unwrap_or_default();
            Err(format!("cannot open '{name}': {words}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn limits_are_numbers_as_c_has_them() {
        assert_eq!(number("9223372036854775808"), Some(1 << 63));
        assert_eq!(number("0x10"), Some(16));
        assert_eq!(number("010"), Some(8));
        assert_eq!(number("0"), Some(0));
        for wrong in ["", "1k", "-1", "99999999999999999999"] {
            assert_eq!(number(wrong), None, "{wrong}");
        }
    }
}
