//! The bell: one binary.

mod offline;
mod zdb;

fn main() -> std::process::ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("zdb") => zdb::run(&arguments),
        _ => {
            eprintln!("usage: cenote zdb ...");
            std::process::ExitCode::from(2)
        }
    }
}
