//! Standard output and error of the commands.
//!
//! Invariant: a reader that goes away ends the program quietly, as a signal would end a C program.

use std::io::{self, Write};

/// Exit code of a program that lost its reader: as if killed by SIGPIPE.
const LOST_READER: i32 = 141;

/// Prints on standard output.
pub fn out(text: &str) {
    put(&mut io::stdout().lock(), text);
}

/// Prints a line on standard error.
pub fn complain(line: &str) {
    put(&mut io::stderr().lock(), &format!("{line}\n"));
}

fn put(to: &mut dyn Write, text: &str) {
    if to.write_all(text.as_bytes()).and_then(|()| to.flush()).is_err() {
        std::process::exit(LOST_READER);
    }
}

/// What the C library calls an error.
pub fn words_of(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}
