//! A program that finds its own memory errors: its global allocator puts one of 16 allocations into
//! a guarded slot, and its handler of SIGSEGV explains the fault.
//!
//! `cargo run --example sampled` runs a job and prints how many objects were guarded;
//! `cargo run --example sampled -- overflow` writes past the end of an object, and ends by SIGSEGV
//! after the explanation.

#![allow(unsafe_code, reason = "an allocator, a signal handler, and an error made on purpose")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::{c_int, c_void};
use std::fmt::Write;
use std::ptr::{NonNull, null_mut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use fieldstone_guard::{Side, Slots};

/// The number of allocations for each guarded one.
const RATE: usize = 16;

struct Sampled;

#[global_allocator]
static ALLOCATOR: Sampled = Sampled;
static SLOTS: OnceLock<Option<Slots>> = OnceLock::new();
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

/// The slots; creating them does not allocate. `None` if there is no address space.
fn slots() -> Option<&'static Slots> {
    SLOTS.get_or_init(|| Slots::builder().side(Side::Right).build().ok()).as_ref()
}

// SAFETY: both allocators fulfil the contract, and each object goes back to its own.
unsafe impl GlobalAlloc for Sampled {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let is_sampled = ALLOCATIONS.fetch_add(1, Ordering::Relaxed).is_multiple_of(RATE);
        let guarded = if is_sampled { slots().and_then(|slots| slots.alloc(layout)) } else { None };
        match guarded {
            Some(object) => object.as_ptr(),
            // SAFETY: the caller passes a valid layout.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn dealloc(&self, object: *mut u8, layout: Layout) {
        let owner = slots().filter(|slots| slots.owns(object.addr()));
        match (owner, NonNull::new(object)) {
            (Some(slots), Some(object)) => {
                // SAFETY: the caller does not use the object any more.
                if let Err(finding) = unsafe { slots.free(object) } {
                    report(&finding);
                }
            }
            // SAFETY: the object is not in the slots, so it came from the system.
            _ => unsafe { System.dealloc(object, layout) },
        }
    }
}

/// A line of text that is written without allocation.
struct Line {
    text: [u8; 200],
    bytes: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for (to, from) in self.text.iter_mut().skip(self.bytes).zip(text.bytes()) {
            *to = from;
            self.bytes += 1;
        }
        Ok(())
    }
}

/// Prints a finding; async-signal-safe.
fn report(finding: &fieldstone_guard::Finding) {
    let mut line = Line { text: [0; 200], bytes: 0 };
    let _ = writeln!(line, "{finding}");
    // SAFETY: writes from a live array.
    unsafe { libc::write(2, line.text.as_ptr().cast(), line.bytes) };
}

extern "C" fn on_fault(signal: c_int, information: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the kernel passes a live siginfo_t.
    let address = unsafe { (*information).si_addr() }.addr();
    if let Some(finding) = slots().and_then(|slots| slots.explain(address)) {
        report(&finding);
    }
    // SAFETY: the access is retried and ends the process.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

fn install_handler() {
    // SAFETY: sigaction consists of integers, for which zero is valid.
    unsafe {
        let mut action = std::mem::zeroed::<libc::sigaction>();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGSEGV, &raw const action, null_mut());
    }
}

/// A job that allocates: counts words.
fn count_words(text: &str) -> usize {
    let mut words = std::collections::BTreeMap::new();
    for word in text.split_whitespace() {
        *words.entry(word.to_owned()).or_insert(0) += 1;
    }
    words.len()
}

fn main() {
    install_handler();
    if std::env::args().any(|argument| argument == "overflow") {
        for _ in 0..RATE {
            let mut buffer = vec![0_u8; 32];
            // SAFETY: none: the write is past the end, which is the error to find.
            unsafe { buffer.as_mut_ptr().add(buffer.len()).write_volatile(1) };
        }
    }
    let text = "the quick brown fox jumps over the lazy dog ".repeat(1000);
    println!("{} different words", count_words(&text));
    if let Some(slots) = slots() {
        let stats = slots.stats();
        println!("{} of {} objects were guarded", stats.allocated, ALLOCATIONS.load(Ordering::Relaxed));
    }
}

#[test]
fn the_job_runs_on_guarded_objects() {
    assert_eq!(count_words("a b a c"), 3);
    assert!(slots().is_some_and(|slots| slots.stats().allocated > 0));
}
