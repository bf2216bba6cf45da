//! The call-backs that run while the program does.
//!
//! Those of markers are told the register in which QEMU's code has the guest's state, which `switch` needs: an instruction takes
//! it over before the compiler's own begin.

#![allow(unsafe_code, reason = "takes over a register")]

use std::ffi::{c_uint, c_void};

use crate::marker::Marker;
use crate::qemu::Id;
use crate::thread::{Thread, all, give_up, of};
use crate::word::Word;

/// A function that QEMU calls, which calls `$body` with one argument more: the guest's state, or 0 where it cannot be had.
macro_rules! with_state {
    ($(#[$about:meta])* $name:ident($($argument:ident: $kind:ty),+) in $register:literal, $body:ident) => {
        $(#[$about])*
        #[cfg(target_arch = "x86_64")]
        #[unsafe(naked)]
        pub(crate) extern "C" fn $name($($argument: $kind),+) {
            // QEMU's code for x86-64 has kept the guest's state in rbp since there is one.
            std::arch::naked_asm!(concat!("mov ", $register, ", rbp"), "jmp {body}", body = sym $body)
        }

        $(#[$about])*
        #[cfg(not(target_arch = "x86_64"))]
        pub(crate) extern "C" fn $name($($argument: $kind),+) {
            $body($($argument),+, 0);
        }
    };
}

with_state! {
    /// A marker, in code that tells everything.
    marked(number: c_uint, marker: *mut c_void) in "rdx", mark
}

extern "C" fn mark(number: c_uint, marker: *mut c_void, state: u64) {
    // SAFETY: the marker was registered with the call-back, and is never freed.
    if let (Some(thread), Some(marker)) = (of(number), unsafe { marker.cast::<Marker>().as_ref() })
        && !thread.mark(marker)
    {
        thread.attend(state);
    }
}

with_state! {
    /// A marker, in code that tells nothing else.
    passed(number: c_uint, marker: *mut c_void) in "rdx", pass
}

extern "C" fn pass(number: c_uint, marker: *mut c_void, state: u64) {
    // SAFETY: as in `mark`.
    if let (Some(thread), Some(marker)) = (of(number), unsafe { marker.cast::<Marker>().as_ref() })
        && !thread.pass(marker)
    {
        thread.attend(state);
    }
}

/// A block without an access to stand for it, or its second page.
pub(crate) extern "C" fn entered(number: c_uint, word: *mut c_void) {
    let (Some(thread), word) = (of(number), Word::of(word)) else { return };
    if !thread.enter(word) {
        thread.fetch(word.page());
    }
}

/// The access of a block's first instruction that has one: stands for the block too.
pub(crate) extern "C" fn touched_first(number: c_uint, information: u32, address: u64, word: *mut c_void) {
    let (Some(thread), word) = (of(number), Word::of(word)) else { return };
    if !thread.enter(word) {
        return fetch_first(thread, information, address, word);
    }
    thread.access(information, address, word);
}

#[cold]
#[inline(never)]
fn fetch_first(thread: &mut Thread, information: u32, address: u64, word: Word) {
    thread.fetch(word.page());
    thread.access(information, address, word);
}

/// An access of an instruction that is not its block's first.
pub(crate) extern "C" fn touched(number: c_uint, information: u32, address: u64, word: *mut c_void) {
    if let Some(thread) = of(number) {
        thread.access(information, address, Word::of(word));
    }
}

/// An access of an instruction that may have several, or none: not counted with its block.
pub(crate) extern "C" fn touched_each(number: c_uint, information: u32, address: u64, word: *mut c_void) {
    if let Some(thread) = of(number) {
        thread.count();
        thread.access(information, address, Word::of(word));
    }
}

/// A thread is gone.
pub(crate) extern "C" fn left(_: Id, number: c_uint) {
    if let Some(thread) = of(number) {
        thread.leave();
    }
    give_up(number);
}

/// The program ends: QEMU has stopped all other threads.
pub(crate) extern "C" fn ended(_: Id, _: *mut c_void) {
    all().for_each(|thread| thread.leave());
}
