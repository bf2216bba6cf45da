//! A letter for each thread, and the word that says that the thread is in here.
//!
//! A thread is known by its thread pointer: no two that live have the same, reading it is one instruction, and a forked
//! child goes on with its own copy of its thread's letter. Letters are taken by compare-exchange and never given back, so
//! that a search ends at the first free one; a thread that begins with the thread pointer of one that has ended has its
//! letter.
//!
//! A thread that is in the recorder already (a signal handler, or the unwinder allocates) is turned away and counted. The
//! mark is the number of forks before it: a child's new thread may get the letter of a thread that the fork left behind in
//! the middle of its work. A handler that jumps out (`siglongjmp`) while it interrupts the recorder leaves its thread
//! marked: what that thread allocates from then on is counted as [`LossReason::Nested`].
//!
//! The same word says that the thread is in a function of the malloc family behind us: what it maps there is the
//! allocator's own, and no site's. A signal handler that interrupts that may allocate, and is announced.

#![allow(unsafe_code, reason = "reads the thread pointer, and the mapped mailbox as letters")]

use core::arch::asm;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use core::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use fieldstone_wire::sites::{CACHE_BYTES, CACHES_ADDRESS, LossReason, MAILBOXES, MAILBOXES_ADDRESS, Mailbox};

use crate::start;

/// The mark of a thread that is in here; grows in the child of a fork.
static MARK: AtomicU64 = AtomicU64::new(1);
/// Added to the mark of a thread that is in an allocator.
const IN_ALLOCATOR: u64 = 1 << 63;

/// The thread that runs, in the recorder until this is dropped.
pub(crate) struct Thread {
    letter: &'static Mailbox,
    number: usize,
    /// What the word said before: that it is in an allocator, or nothing.
    before: u64,
}

impl Thread {
    /// Enters; `None`, and counted, where nothing can be announced.
    pub(crate) fn enter() -> Option<Self> {
        let sites = start::sites()?;
        let lost = |why| {
            sites.count_loss(why);
            None
        };
        let (letter, number) = match own_letter() {
            Ok(own) => own,
            Err(why) => return lost(why),
        };
        let (before, mark) = (letter.busy.load(Relaxed), MARK.load(Relaxed));
        if before == mark {
            return lost(LossReason::Nested);
        }
        letter.busy.store(mark, Relaxed);
        // A signal handler of this thread must find the mark before anything of what follows.
        compiler_fence(Ordering::SeqCst);
        Some(Self { letter, number, before })
    }

    /// As [`Thread::enter`], for what is a call of the program only outside of its allocators.
    pub(crate) fn enter_outside_allocators() -> Option<Self> {
        Self::enter().filter(|thread| thread.before != MARK.load(Relaxed) | IN_ALLOCATOR)
    }

    /// The thread's letter.
    pub(crate) fn letter(&self) -> &'static Mailbox {
        self.letter
    }

    /// Where the thread's cache lies, mapped when it is first asked for; `None` when there is no memory for it.
    pub(crate) fn cache(&self) -> Option<u64> {
        let address = CACHES_ADDRESS + (self.number * CACHE_BYTES) as u64;
        let mapped = &self.letter.cache;
        match mapped.load(Relaxed) {
            0 => {
                let there = start::map_private(address, CACHE_BYTES);
                mapped.store(if there { address } else { u64::MAX }, Relaxed);
                there.then_some(address)
            }
            u64::MAX => None,
            there => Some(there),
        }
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        self.letter.busy.store(self.before, Relaxed);
    }
}

/// Calls a function of an allocator behind us.
pub(crate) fn in_allocator<R>(call: impl FnOnce() -> R) -> R {
    let own = start::sites().and_then(|_| own_letter().ok());
    let mark = MARK.load(Relaxed);
    // What is called from the recorder is the recorder's.
    let own = own.map(|(letter, _)| (letter, letter.busy.load(Relaxed)));
    let Some((letter, before)) = own.filter(|(_, before)| *before != mark) else { return call() };
    letter.busy.store(mark | IN_ALLOCATOR, Relaxed);
    compiler_fence(Ordering::SeqCst);
    let result = call();
    compiler_fence(Ordering::SeqCst);
    letter.busy.store(before, Relaxed);
    result
}

/// Makes the marks that the parent's other threads left in the child's mailbox void.
pub(crate) extern "C" fn after_fork() {
    MARK.fetch_add(1, Relaxed);
}

fn letters() -> Option<&'static [Mailbox; MAILBOXES]> {
    // SAFETY: mapped there for the life of the process, as long as the letters are; all zeroes are valid letters.
    start::has_mailbox().then(|| unsafe { &*core::ptr::with_exposed_provenance(MAILBOXES_ADDRESS as usize) })
}

/// The letter of the thread that runs, and its number.
fn own_letter() -> Result<(&'static Mailbox, usize), LossReason> {
    let letters = letters().ok_or(LossReason::MailboxesUnmapped)?;
    let number = find(letters, thread_pointer()).ok_or(LossReason::NoFreeMailbox)?;
    Ok((&letters[number], number))
}

/// The number of the letter of `owner`, taken if it has none yet.
fn find(letters: &[Mailbox; MAILBOXES], owner: u64) -> Option<usize> {
    // Thread pointers lie whole pages apart; the multiplication puts what tells them apart into the high bits.
    let first = (owner.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
    (0..MAILBOXES).map(|step| (first + step) % MAILBOXES).find(|&number| {
        let word = &letters[number].owner;
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
    // SAFETY: the ABI has the thread pointer's own value at its first word; nothing is written.
    unsafe { asm!("mov {}, fs:[0]", out(reg) pointer, options(nostack, readonly, preserves_flags)) };
    pointer
}

#[cfg(test)]
mod tests {
    use std::boxed::Box;
    use std::vec::Vec;

    use super::*;

    fn mailbox() -> Box<[Mailbox; MAILBOXES]> {
        // SAFETY: all zeroes are valid letters.
        unsafe { Box::<[Mailbox; MAILBOXES]>::new_zeroed().assume_init() }
    }

    #[test]
    fn each_thread_finds_its_own_letter_again() {
        let letters = mailbox();
        let owners: Vec<u64> = (1..=MAILBOXES as u64).map(|thread| 0x7f00_0000_0740 + thread * 0x1000).collect();
        let mut numbers: Vec<usize> = owners.iter().map(|&owner| find(&letters, owner).unwrap()).collect();
        let again: Vec<usize> = owners.iter().map(|&owner| find(&letters, owner).unwrap()).collect();
        assert_eq!(numbers, again);
        numbers.sort_unstable();
        assert!(numbers.iter().copied().eq(0..MAILBOXES), "no two have one");
        assert_eq!(find(&letters, 0x10), None, "none is left");
    }

    #[test]
    fn threads_have_thread_pointers_of_their_own() {
        let other = std::thread::spawn(thread_pointer).join().unwrap();
        assert_ne!(thread_pointer(), other);
        assert_eq!(thread_pointer(), thread_pointer());
    }
}
