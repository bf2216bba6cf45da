//! Instructions that may fault, and where their threads continue then: an exception table.
//!
//! ```text
//! program   mov [rax + 8], rcx  ───fault──▶  SIGSEGV  ──▶  find(rip)  ──▶  rip = resume point
//! table     [ instruction - here | resume point - here ]   one entry for each such instruction
//! ```
//! A program that checks a limit by a guard page needs no region: the faulting instruction alone
//! says what to do. The compiler knows both addresses, and writes them as distances, so that the
//! table needs no relocation at run time. The Linux kernel's tables for its accesses to user memory
//! have the same form (`__ex_table`).
//!
//! Registered tables are sorted, linked and never freed, so that a signal handler reads them
//! without a lock, also in a forked child.

#![allow(unsafe_code, reason = "reads published tables")]

use std::ptr::{self, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::error::{Error, Result};
use crate::signal;

/// An instruction that may fault, and the point at which its thread continues then. Both are
/// distances in bytes from the address of the field itself.
#[derive(Debug)]
#[repr(C)]
pub struct ResumePoint {
    instruction: i32,
    resume: i32,
}

impl ResumePoint {
    /// The absolute addresses.
    fn addresses(&self) -> (usize, usize) {
        let target = |field: &i32| ptr::from_ref(field).addr().wrapping_add_signed(*field as isize);
        (target(&self.instruction), target(&self.resume))
    }
}

/// A registered table.
struct Table {
    source: &'static [ResumePoint],
    /// Sorted by instruction.
    points: Box<[(usize, usize)]>,
    next: AtomicPtr<Table>,
}

static TABLES: AtomicPtr<Table> = AtomicPtr::new(null_mut());

/// The registered tables.
fn tables() -> impl Iterator<Item = &'static Table> {
    // SAFETY: published tables are complete, never change but for `next` before their publication,
    // and are never freed.
    let load = |from: &'static AtomicPtr<Table>| unsafe { from.load(Ordering::Acquire).as_ref() };
    std::iter::successors(load(&TABLES), move |table| load(&table.next))
}

/// Makes threads that fault at an instruction of the table continue at its resume point, with all
/// registers unchanged. Installs the handlers of `SIGSEGV` and `SIGBUS` of this crate. Faults of
/// memory that this crate controls go to its handlers first. Registering a table again has no
/// effect.
///
/// # Errors
/// [`Error::Unsupported`] on other processors than x86-64; [`Error::System`] if sigaction(2) fails.
///
/// # Safety
/// Each instruction accesses memory, and each resume point is in the same function, where code
/// expects the registers as they are before the instruction. The table and its code stay loaded.
pub unsafe fn resume_faults(points: &'static [ResumePoint]) -> Result<()> {
    if !cfg!(target_arch = "x86_64") {
        return Err(Error::Unsupported { what: "a resume point", why: "it needs an x86-64 processor" });
    }
    if tables().any(|table| ptr::eq(table.source, points)) {
        return Ok(());
    }
    signal::install().map_err(|error| Error::system("sigaction", 0, 0, error))?;
    let mut sorted: Box<[_]> = points.iter().map(ResumePoint::addresses).collect();
    sorted.sort_unstable();
    let table = Box::leak(Box::new(Table { source: points, points: sorted, next: AtomicPtr::default() }));
    let mut head = TABLES.load(Ordering::Relaxed);
    loop {
        table.next.store(head, Ordering::Relaxed);
        match TABLES.compare_exchange_weak(head, table, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return Ok(()),
            Err(now) => head = now,
        }
    }
}

/// The resume point of an instruction. Async-signal-safe.
pub(crate) fn find(instruction: usize) -> Option<usize> {
    tables().find_map(|table| {
        let at = table.points.binary_search_by_key(&instruction, |&(instruction, _)| instruction).ok()?;
        table.points.get(at).map(|&(_, resume)| resume)
    })
}
