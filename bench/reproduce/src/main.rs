//! The program `fieldstone-reproduce`, which `fieldstone reproduce` starts.

use std::process::ExitCode;

fn main() -> ExitCode {
    fieldstone_reproduce::command::main()
}
