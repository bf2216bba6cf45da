//! How a program ends: the checksum on stdout and 0, or what went wrong on stderr and 1 (wrong result) or 2 (could not run).

use crate::Error;
use std::process::ExitCode;

/// Prints the checksum, or the error after the program's `name`, and returns the exit code.
pub fn conclude(name: &str, result: Result<u64, Error>) -> ExitCode {
    exit(name, result.map(|checksum| println!("checksum: {checksum:016x}")))
}

/// The exit code of `result`; an error is printed after the program's `name`.
pub fn exit(name: &str, result: Result<(), Error>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    eprintln!("{name}: {error}");
    ExitCode::from(if matches!(error, Error::Wrong { .. }) { 1 } else { 2 })
}

/// Checks one result: `Ok` when both are equal.
///
/// # Errors
/// [`Error::Wrong`] with both values.
pub fn expect_equal<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, expected: &T) -> Result<(), Error> {
    if found == expected {
        return Ok(());
    }
    Err(Error::wrong(format!("{what} is {found:?}, expected {expected:?}")))
}
