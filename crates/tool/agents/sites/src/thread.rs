//! The mailbox of each thread, and the word that marks a thread as inside the recorder.
//!
//! A thread is identified by its thread pointer: living threads differ in it, reading it is one
//! instruction, and a forked child continues with its copy of its thread's mailbox. Mailboxes are
//! claimed by compare-exchange and never freed, so that a search ends at the first free one. A new
//! thread with the thread pointer of an ended one uses its mailbox.
//!
//! A nested entry (by a signal handler, or because the unwinder allocates) is refused and counted.
//! The mark is the number of forks so far: a new thread of the child may get the mailbox of a
//! thread that was inside the recorder at the fork. A signal handler that leaves the recorder by
//! `siglongjmp` leaves its thread marked: further allocations of that thread are counted as
//! [`LossReason::Nested`].
//!
//! The same word marks a thread as inside an interposed allocator: memory that it maps there has no
//! site. A signal handler that interrupts the allocator may allocate, and is announced.

#![allow(unsafe_code, reason = "reads the thread pointer, and the mapped mailboxes")]

use core::arch::asm;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use core::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use fieldstone_wire::sites::{CACHE_BYTES, CACHES_ADDRESS, LossReason, MAILBOXES, MAILBOXES_ADDRESS, Mailbox};

use crate::start;

/// The mark of a thread inside the recorder; incremented in the child of a fork.
static ENTRY_MARK: AtomicU64 = AtomicU64::new(1);
/// Added to the mark of a thread inside an allocator.
const IN_ALLOCATOR: u64 = 1 << 63;

/// The current thread, inside the recorder until this is dropped.
pub(crate) struct ThreadGuard {
    mailbox: &'static Mailbox,
    number: usize,
    /// The previous value of the word: inside an allocator, or zero.
    before: u64,
}

impl ThreadGuard {
    /// Enters the recorder. `None`, and counted, if the thread cannot announce anything.
    pub(crate) fn enter() -> Option<Self> {
        let sites = start::sites()?;
        let lost = |why| {
            sites.count_loss(why);
            None
        };
        let (mailbox, number) = match own_mailbox() {
            Ok(own) => own,
            Err(why) => return lost(why),
        };
        let (before, mark) = (mailbox.busy.load(Relaxed), ENTRY_MARK.load(Relaxed));
        if before == mark {
            return lost(LossReason::Nested);
        }
        mailbox.busy.store(mark, Relaxed);
        // A signal handler of this thread must see the mark before any later store.
        compiler_fence(Ordering::SeqCst);
        Some(Self { mailbox, number, before })
    }

    /// As [`ThreadGuard::enter`], but `None` if the thread is inside an interposed allocator.
    pub(crate) fn enter_outside_allocators() -> Option<Self> {
        Self::enter().filter(|thread| thread.before != ENTRY_MARK.load(Relaxed) | IN_ALLOCATOR)
    }

    /// The mailbox of the thread.
    pub(crate) fn mailbox(&self) -> &'static Mailbox {
        self.mailbox
    }

    /// The address of the thread's cache, mapped at first use; `None` if there is no memory for it.
    pub(crate) fn cache(&self) -> Option<u64> {
        let address = CACHES_ADDRESS + (self.number * CACHE_BYTES) as u64;
        let mapped = &self.mailbox.cache;
        match mapped.load(Relaxed) {
            0 => {
                let is_mapped = start::map_private(address, CACHE_BYTES);
                mapped.store(if is_mapped { address } else { u64::MAX }, Relaxed);
                is_mapped.then_some(address)
            }
            u64::MAX => None,
            address => Some(address),
        }
    }
}

impl Drop for ThreadGuard {
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        self.mailbox.busy.store(self.before, Relaxed);
    }
}

/// Calls a function of an interposed allocator.
pub(crate) fn in_allocator<R>(call: impl FnOnce() -> R) -> R {
    let own = start::sites().and_then(|_| own_mailbox().ok());
    let mark = ENTRY_MARK.load(Relaxed);
    // A call from inside the recorder keeps the recorder's mark.
    let own = own.map(|(mailbox, _)| (mailbox, mailbox.busy.load(Relaxed)));
    let Some((mailbox, before)) = own.filter(|(_, before)| *before != mark) else { return call() };
    mailbox.busy.store(mark | IN_ALLOCATOR, Relaxed);
    compiler_fence(Ordering::SeqCst);
    let result = call();
    compiler_fence(Ordering::SeqCst);
    mailbox.busy.store(before, Relaxed);
    result
}

/// Invalidates the marks of the parent's other threads in the child.
pub(crate) extern "C" fn after_fork() {
    ENTRY_MARK.fetch_add(1, Relaxed);
}

fn mailboxes() -> Option<&'static [Mailbox; MAILBOXES]> {
    // SAFETY: mapped for the life of the process with this length; all zeroes are valid mailboxes.
    start::has_mailboxes().then(|| unsafe { &*core::ptr::with_exposed_provenance(MAILBOXES_ADDRESS as usize) })
}

/// The mailbox of the current thread, and its number.
fn own_mailbox() -> Result<(&'static Mailbox, usize), LossReason> {
    let mailboxes = mailboxes().ok_or(LossReason::MailboxesUnmapped)?;
    let number = find_or_claim(mailboxes, thread_pointer()).ok_or(LossReason::NoFreeMailbox)?;
    Ok((&mailboxes[number], number))
}

/// The number of the mailbox of `owner`, claimed if it has none yet.
fn find_or_claim(mailboxes: &[Mailbox; MAILBOXES], owner: u64) -> Option<usize> {
    // Thread pointers differ by whole pages; the multiplication moves the difference to the high
    // bits.
    let first = (owner.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
    (0..MAILBOXES).map(|step| (first + step) % MAILBOXES).find(|&number| {
        let word = &mailboxes[number].owner;
        match word.load(Acquire) {
            0 => match word.compare_exchange(0, owner, AcqRel, Acquire) {
                Ok(_) => true,
                Err(other) => other == owner,
            },
            other => other == owner,
        }
    })
}

fn thread_pointer() -> u64 {
    let pointer;
    // SAFETY: the ABI stores the thread pointer in the word that it points to; nothing is written.
    unsafe { asm!("mov {}, fs:[0]", out(reg) pointer, options(nostack, readonly, preserves_flags)) };
    pointer
}

#[cfg(test)]
mod tests {
    use std::boxed::Box;
    use std::vec::Vec;

    use super::*;

    fn empty_mailboxes() -> Box<[Mailbox; MAILBOXES]> {
        // SAFETY: all zeroes are valid mailboxes, which are atomics.
        unsafe { Box::<[Mailbox; MAILBOXES]>::new_zeroed().assume_init() }
    }

    #[test]
    fn each_thread_finds_its_mailbox_again() {
        let mailboxes = empty_mailboxes();
        let owners: Vec<u64> = (1..=MAILBOXES as u64).map(|thread| 0x7f00_0000_0740 + thread * 0x1000).collect();
        let mut numbers: Vec<usize> = owners.iter().map(|&owner| find_or_claim(&mailboxes, owner).unwrap()).collect();
        let again: Vec<usize> = owners.iter().map(|&owner| find_or_claim(&mailboxes, owner).unwrap()).collect();
        assert_eq!(numbers, again);
        numbers.sort_unstable();
        assert!(numbers.iter().copied().eq(0..MAILBOXES), "no two have one");
        assert_eq!(find_or_claim(&mailboxes, 0x10), None, "all are in use");
    }

    #[test]
    fn thread_pointers_differ() {
        let other = std::thread::spawn(thread_pointer).join().unwrap();
        assert_ne!(thread_pointer(), other);
        assert_eq!(thread_pointer(), thread_pointer());
    }
}
