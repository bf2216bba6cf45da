//! How large a stack may become, and its end: reports whose stack it is, how deep it is, and what helps; then the process aborts.
//!
//! The limit is a thread's own. It counts what its segments hold, not what they use. By default it is a quarter of the machine's
//! memory, or what `FIELDSTONE_STACK_LIMIT` says (bytes, or with K, M, G): so deep that no sound program meets it, and small enough
//! that one that recurses for ever ends here rather than with the machine's memory.

#![allow(unsafe_code, reason = "asks the system, and reads the environment")]

use core::ffi::CStr;
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicUsize, Ordering};

use fieldstone_blocks::Error;

use crate::segment::FIRST_BYTES;
use crate::thread::Thread;

/// The smallest limit: a thread's first bytes with their headroom fit.
const LEAST_LIMIT_BYTES: usize = 128 << 10;

/// The calling thread's limit in bytes, for all of its stack.
#[must_use]
pub fn limit_bytes() -> usize {
    // SAFETY: the calling thread's own.
    let limit_bytes = unsafe { (*Thread::here()).limit_bytes };
    if limit_bytes == 0 { default_bytes() } else { limit_bytes }
}

/// Sets the calling thread's limit; 0 is the default again.
pub fn set_limit_bytes(bytes: usize) {
    let bytes = if bytes == 0 { default_bytes() } else { bytes };
    // SAFETY: the calling thread's own.
    unsafe { (*Thread::here()).limit_bytes = bytes };
}

/// The limit of a thread that nobody has set one for.
pub(crate) fn default_bytes() -> usize {
    static DEFAULT: AtomicUsize = AtomicUsize::new(0);
    let find = || from_environment(c"FIELDSTONE_STACK_LIMIT", LEAST_LIMIT_BYTES).unwrap_or_else(quarter_of_memory);
    known(&DEFAULT, find)
}

/// How much of the stack that the system gave a thread is used before its blocks; at most all of it. A program that measures its
/// recursion by the distance of addresses from where a thread began finds the distances of a plain stack up to there.
pub(crate) fn first_bytes() -> usize {
    static FIRST: AtomicUsize = AtomicUsize::new(0);
    known(&FIRST, || from_environment(c"FIELDSTONE_STACK_FIRST", FIRST_BYTES).unwrap_or(FIRST_BYTES))
}

/// A number that is found once and kept; 0 before.
fn known(kept: &AtomicUsize, find: impl FnOnce() -> usize) -> usize {
    match kept.load(Ordering::Relaxed) {
        0 => {
            let found = find();
            kept.store(found, Ordering::Relaxed);
            found
        }
        known => known,
    }
}

fn quarter_of_memory() -> usize {
    // SAFETY: reads a number of the system's.
    let (pages, page_bytes) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    let bytes = usize::try_from(pages).unwrap_or(0).saturating_mul(usize::try_from(page_bytes).unwrap_or(0));
    (bytes / 4).max(64 << 20)
}

/// The size that an environment variable holds; `None` if it is not set, and after a message if it is no size of at least `least` bytes.
fn from_environment(name: &CStr, least: usize) -> Option<usize> {
    // SAFETY: the name is a C string; the value is read before the program could change its environment.
    let value = unsafe {
        let value = libc::getenv(name.as_ptr());
        if value.is_null() {
            return None;
        }
        CStr::from_ptr(value)
    };
    let parsed = value.to_str().ok().and_then(|text| parse(text, least));
    if parsed.is_none() {
        let mut line = Line::new();
        let _ = writeln!(
            line,
            "fieldstone: {}={value:?} is no size: give bytes, or a number with K, M or G, of at least {}K; \
             going on with the default",
            name.to_str().unwrap_or("?"),
            least >> 10,
        );
        line.show();
    }
    parsed
}

/// A size as one writes it: digits, and K, M or G.
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

/// The limit is reached.
pub(crate) fn reached(thread: &Thread, held_bytes: usize, wanted_bytes: usize) -> ! {
    end(
        thread,
        held_bytes,
        wanted_bytes,
        format_args!("is at its limit of {}", Size(thread.limit_bytes)),
        format_args!(
            "Deeper recursion than it was meant for? If not, raise the limit: FIELDSTONE_STACK_LIMIT=SIZE, or \
         fieldstone_stack_set_limit(), in Rust set_limit_bytes"
        ),
    )
}

/// There is no memory.
pub(crate) fn no_memory(thread: &Thread, held_bytes: usize, wanted_bytes: usize, error: Error) -> ! {
    end(thread, held_bytes, wanted_bytes, format_args!("cannot grow"), format_args!("{error}"))
}

/// There is no memory for a new stack.
pub fn give_up(bytes: usize, error: Error) -> ! {
    // SAFETY: the calling thread's own.
    no_memory(unsafe { &*Thread::here() }, 0, bytes, error)
}

fn end(thread: &Thread, held: usize, wanted: usize, what: fmt::Arguments<'_>, remedy: fmt::Arguments<'_>) -> ! {
    let mut name = [0_u8; 16];
    // SAFETY: the kernel writes at most 16 bytes, with a zero at their end.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let name = CStr::from_bytes_until_nul(&name).ok().and_then(|name| name.to_str().ok()).unwrap_or("?");
    // SAFETY: asks for a number.
    let tid = unsafe { libc::syscall(libc::SYS_gettid) };
    let segments = segments(thread);
    let mut line = Line::new();
    let _ = writeln!(
        line,
        "fieldstone: the stack of thread '{name}' ({tid}) {what}: it holds {} in {segments} segment{}, and a call needs {} more. {remedy}.",
        Size(held),
        if segments == 1 { "" } else { "s" },
        Size(wanted),
    );
    line.show();
    // SAFETY: ends the process.
    unsafe { libc::abort() }
}

fn segments(thread: &Thread) -> usize {
    let next = |segment: &*mut crate::segment::Segment| {
        // SAFETY: segments on the list live.
        Some(unsafe { (**segment).prev }).filter(|prev| !prev.is_null())
    };
    core::iter::successors(Some(thread.current).filter(|current| !current.is_null()), next).count()
}

/// Bytes as one reads them.
struct Size(usize);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes < 10 << 10 => write!(f, "{bytes} bytes"),
            bytes if bytes < 10 << 20 => write!(f, "{} KiB", bytes >> 10),
            bytes if bytes < 10 << 30 => write!(f, "{} MiB", bytes >> 20),
            bytes => write!(f, "{} GiB", bytes >> 30),
        }
    }
}

/// A line that is put together without memory from anywhere.
struct Line {
    bytes: [u8; 512],
    used: usize,
}

impl Line {
    fn new() -> Self {
        Self { bytes: [0; 512], used: 0 }
    }

    fn show(&self) {
        // SAFETY: the bytes are this record's own. Where nobody reads them there is nobody to tell.
        let _ = unsafe { libc::write(2, self.bytes.as_ptr().cast(), self.used) };
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.len() - self.used;
        let taken = text.len().min(room);
        self.bytes[self.used..self.used + taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.used += taken;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_digits_and_a_unit() {
        let limit = |text| parse(text, LEAST_LIMIT_BYTES);
        assert_eq!(limit("131072"), Some(128 << 10));
        assert_eq!((limit("256K"), limit("4m"), limit("2G")), (Some(256 << 10), Some(4 << 20), Some(2 << 30)));
        for bad in ["", "K", "-1", "1", "64K", "4 M", "4MB", "99999999999G"] {
            assert_eq!(limit(bad), None, "{bad}");
        }
        assert_eq!((parse("64K", FIRST_BYTES), parse("63K", FIRST_BYTES)), (Some(64 << 10), None));
    }
}
