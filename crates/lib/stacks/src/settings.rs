//! Settings from the environment: the default stack limit, and the bytes of the system's stack that
//! a thread uses first.

#![allow(unsafe_code, reason = "calls the system and reads the environment")]

use core::ffi::CStr;
use core::fmt::Write;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::message::MessageBuffer;

/// Bytes of the system's stack that a thread uses before its blocks, unless
/// `FIELDSTONE_STACK_FIRST` sets more. About a block, so that a program behaves alike in every
/// thread.
pub(crate) const FIRST_BYTES: usize = 64 << 10;

/// The smallest limit: a thread's first bytes with their headroom.
const MIN_LIMIT_BYTES: usize = 128 << 10;

/// The default limit in bytes.
pub(crate) fn default_limit_bytes() -> usize {
    static DEFAULT: AtomicUsize = AtomicUsize::new(0);
    let find = || from_environment(c"FIELDSTONE_STACK_LIMIT", MIN_LIMIT_BYTES).unwrap_or_else(quarter_of_memory);
    cached(&DEFAULT, find)
}

/// Bytes of the system's stack that a thread uses before it continues in blocks. A program that
/// measures recursion depth by distances of addresses finds those of a plain stack within these
/// bytes.
pub(crate) fn first_bytes() -> usize {
    static FIRST: AtomicUsize = AtomicUsize::new(0);
    cached(&FIRST, || from_environment(c"FIELDSTONE_STACK_FIRST", FIRST_BYTES).unwrap_or(FIRST_BYTES))
}

/// Computes a number at the first call and caches it; 0 means not yet computed.
fn cached(cache: &AtomicUsize, find: impl FnOnce() -> usize) -> usize {
    match cache.load(Ordering::Relaxed) {
        0 => {
            let found = find();
            cache.store(found, Ordering::Relaxed);
            found
        }
        value => value,
    }
}

fn quarter_of_memory() -> usize {
    // SAFETY: the calls return numbers and write no memory.
    let (pages, page_bytes) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    let bytes = usize::try_from(pages).unwrap_or(0).saturating_mul(usize::try_from(page_bytes).unwrap_or(0));
    (bytes / 4).max(64 << 20)
}

/// The size in an environment variable; `None` if it is not set. Reports a value that is no size of
/// at least `least` bytes, and returns `None`.
fn from_environment(name: &CStr, least: usize) -> Option<usize> {
    // SAFETY: the name is a C string. The value is read before the program can change its
    // environment.
    let value = unsafe {
        let value = libc::getenv(name.as_ptr());
        if value.is_null() {
            return None;
        }
        CStr::from_ptr(value)
    };
    let parsed = value.to_str().ok().and_then(|text| parse(text, least));
    if parsed.is_none() {
        let mut line = MessageBuffer::new();
        let _ = writeln!(
            line,
            "fieldstone: cannot use {}={value:?}: it is not a size of at least {}K in bytes or with K, M or G; \
             using the default",
            name.to_str().unwrap_or("?"),
            least >> 10,
        );
        line.write_to_stderr();
    }
    parsed
}

/// Parses a size: digits, and K, M or G.
fn parse(text: &str, least: usize) -> Option<usize> {
    let (digits, unit) = match text.as_bytes().last()? {
        b'K' | b'k' => (&text[..text.len() - 1], 10),
        b'M' | b'm' => (&text[..text.len() - 1], 20),
        b'G' | b'g' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number = digits.parse::<usize>().ok()?;
    number.checked_mul(1 << unit).filter(|&bytes| bytes >= least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_digits_and_a_unit() {
        let limit = |text| parse(text, MIN_LIMIT_BYTES);
        assert_eq!(limit("131072"), Some(128 << 10));
        assert_eq!((limit("256K"), limit("4m"), limit("2G")), (Some(256 << 10), Some(4 << 20), Some(2 << 30)));
        for bad in ["", "K", "-1", "1", "64K", "4 M", "4MB", "99999999999G"] {
            assert_eq!(limit(bad), None, "{bad}");
        }
        assert_eq!((parse("64K", FIRST_BYTES), parse("63K", FIRST_BYTES)), (Some(64 << 10), None));
    }
}
