//! How a program ended, in the words of every report.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// `exit 0`, `signal 11 (SIGSEGV)`.
#[must_use]
pub fn words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit {code}"),
        (None, Some(signal)) => format!("signal {signal} ({})", signal_name(signal)),
        (None, None) => "an unknown end".to_owned(),
    }
}

/// The name of a signal.
#[must_use]
pub fn signal_name(signal: i32) -> &'static str {
    signal_hook::low_level::signal_name(signal).unwrap_or("unnamed")
}

/// The exit code that a shell would give for this end.
#[must_use]
pub fn shell_code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code & 0xff).unwrap_or(u8::MAX)
}

/// Ends this process by the signal that ended the other one, without a core file of its own; returns if none did.
///
/// # Errors
/// The kernel's, for a signal that cannot be raised.
pub fn end_by_signal_of(status: ExitStatus) -> std::io::Result<()> {
    let Some(signal) = status.signal() else { return Ok(()) };
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(rustix::process::Resource::Core, none)?;
    signal_hook::low_level::emulate_default_handler(signal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_signals_have_words() {
        assert_eq!(words(ExitStatus::from_raw(0)), "exit 0");
        assert_eq!(words(ExitStatus::from_raw(7 << 8)), "exit 7");
        assert_eq!(words(ExitStatus::from_raw(libc::SIGSEGV)), "signal 11 (SIGSEGV)");
        assert_eq!(shell_code(ExitStatus::from_raw(libc::SIGKILL)), 137);
        assert_eq!(shell_code(ExitStatus::from_raw(3 << 8)), 3);
    }
}
