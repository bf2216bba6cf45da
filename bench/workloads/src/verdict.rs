//! Exit codes: prints the checksum on stdout and exits with 0, or prints the error on stderr and
//! exits with 1 (wrong result) or 2 (cannot run).

use crate::Error;
use std::process::ExitCode;

/// Prints the checksum, or the error after the program's `name`. Returns the exit code.
pub fn conclude(name: &str, result: Result<u64, Error>) -> ExitCode {
    exit(name, result.map(|checksum| println!("checksum: {checksum:016x}")))
}

/// Returns the exit code of `result`. Prints an error after the program's `name`.
pub fn exit(name: &str, result: Result<(), Error>) -> ExitCode {
    let Err(error) = result else { return ExitCode::SUCCESS };
    eprintln!("{name}: {error}");
    ExitCode::from(if matches!(error, Error::Wrong { .. }) { 1 } else { 2 })
}

/// Checks that both values are equal.
///
/// # Errors
/// [`Error::Wrong`] with both values.
pub fn expect_equal<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, expected: &T) -> Result<(), Error> {
    if found == expected {
        return Ok(());
    }
    Err(Error::wrong(format!("{what} is {found:?}, expected {expected:?}")))
}
