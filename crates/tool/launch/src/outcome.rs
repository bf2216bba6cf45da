//! How a program ended: exit code or signal, as text and as a shell's exit code.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// The text in a report: `exit 0`, `signal 11 (SIGSEGV)`.
#[must_use]
pub fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit {code}"),
        (None, Some(signal)) => format!("signal {signal} ({})", signal_name(signal)),
        (None, None) => "an unknown end".to_owned(),
    }
}

/// The name of a signal; `unnamed` for real-time signals.
#[must_use]
pub fn signal_name(signal: i32) -> &'static str {
    signal_hook::low_level::signal_name(signal).unwrap_or("unnamed")
}

/// The exit code that a shell reports: the program's own, or 128 plus the signal number.
#[must_use]
pub fn shell_code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code & 0xff).unwrap_or(u8::MAX)
}

/// Ends this process by the signal that ended the program, without a core file.
/// Returns if the program exited by itself.
///
/// # Errors
/// The kernel's error, if the core limit cannot be set or the signal cannot be raised.
pub fn raise_signal_of(status: ExitStatus) -> std::io::Result<()> {
    let Some(signal) = status.signal() else { return Ok(()) };
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::setrlimit(rustix::process::Resource::Core, none)?;
    signal_hook::low_level::emulate_default_handler(signal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_signals_have_texts() {
        assert_eq!(describe(ExitStatus::from_raw(0)), "exit 0");
        assert_eq!(describe(ExitStatus::from_raw(7 << 8)), "exit 7");
        assert_eq!(describe(ExitStatus::from_raw(libc::SIGSEGV)), "signal 11 (SIGSEGV)");
        assert_eq!(shell_code(ExitStatus::from_raw(libc::SIGKILL)), 137);
        assert_eq!(shell_code(ExitStatus::from_raw(3 << 8)), 3);
    }
}
