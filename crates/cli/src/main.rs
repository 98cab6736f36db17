//! The bell: one binary.

mod offline;
#[allow(dead_code)]
mod service;
mod zdb;

use clap::Parser;

#[derive(Parser)]
enum Cenote {
    /// List a directory
    Ls(offline::command::ListArguments),
    /// Show a tree
    Tree(offline::command::TreeArguments),
    /// Print files or volumes
    Cat(offline::command::CatArguments),
    /// Copy a tree out
    Cp(offline::command::CopyArguments),
}

fn main() -> std::process::ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("zdb") => zdb::run(&arguments),
        _ => match Cenote::parse() {
            Cenote::Ls(a) => offline::command::list(&a),
            Cenote::Tree(a) => offline::command::tree(&a),
            Cenote::Cat(a) => offline::command::cat(&a),
            Cenote::Cp(a) => offline::command::copy_out(&a),
        },
    }
}
