//! The functions that libc's entries jump to: C in shape, errno set as libc sets it.

#![allow(unsafe_code, reason = "C functions called with the program's arguments")]

use core::arch::naked_asm;
use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::SeqCst};

use crate::calls::{self, Request};
use crate::elf::Object;
use crate::patch::Entry;
use crate::raw::{Raw, failed};
use crate::remap::{self, Move};
use crate::{exact, exec, heap, segments};

static LIBC_START: AtomicUsize = AtomicUsize::new(0);
static LIBC_END: AtomicUsize = AtomicUsize::new(0);
static CURRENT_BREAK: AtomicPtr<usize> = AtomicPtr::new(core::ptr::null_mut());

/// The entries that give memory.
pub(crate) fn memory() -> [Entry; 6] {
    [
        Entry { name: c"mmap", number: libc::SYS_mmap, target: mmap as *const () as usize },
        Entry { name: c"munmap", number: libc::SYS_munmap, target: munmap as *const () as usize },
        Entry { name: c"mremap", number: libc::SYS_mremap, target: mremap as *const () as usize },
        Entry { name: c"brk", number: libc::SYS_brk, target: brk as *const () as usize },
        Entry { name: c"madvise", number: libc::SYS_madvise, target: madvise as *const () as usize },
        Entry { name: c"mprotect", number: libc::SYS_mprotect, target: mprotect as *const () as usize },
    ]
}

/// The entries without which memory is given all the same. One that is not understood stays libc's: its calls are then as
/// unseen as raw system calls. A program makes the first two where it sees memory that is mapped ahead; the kernel refuses
/// the others on a part of a hugetlb page.
pub(crate) fn optional() -> [Entry; 4] {
    [
        Entry { name: c"mlockall", number: libc::SYS_mlockall, target: mlockall as *const () as usize },
        Entry { name: c"ioctl", number: libc::SYS_ioctl, target: ioctl as *const () as usize },
        Entry { name: c"shmat", number: libc::SYS_shmat, target: shmat as *const () as usize },
        Entry { name: c"pkey_mprotect", number: libc::SYS_pkey_mprotect, target: pkey_mprotect as *const () as usize },
    ]
}

/// The entries that start programs.
pub(crate) fn execution() -> [Entry; 3] {
    [
        Entry { name: c"execve", number: libc::SYS_execve, target: execve as *const () as usize },
        Entry { name: c"execveat", number: libc::SYS_execveat, target: execveat as *const () as usize },
        Entry { name: c"fexecve", number: libc::SYS_execveat, target: fexecve as *const () as usize },
    ]
}

/// Remembers where libc's code lies, and makes the heap begin in the region.
pub(crate) fn adopt_libc(object: &Object, heap_start: usize) -> bool {
    let Some(current) = object.symbol(c"__curbrk") else { return false };
    LIBC_START.store(object.text.0, SeqCst);
    LIBC_END.store(object.text.1, SeqCst);
    let current = core::ptr::with_exposed_provenance_mut::<usize>(current.address);
    CURRENT_BREAK.store(current, SeqCst);
    // SAFETY: libc's own variable behind `sbrk`; there is one thread, and it is here.
    unsafe { current.write(heap_start) };
    true
}

fn answer(result: Raw) -> Raw {
    if !failed(result) {
        return result;
    }
    // SAFETY: the calling thread's own errno.
    unsafe { *libc::__errno_location() = (-result) as c_int };
    -1
}

unsafe extern "C" fn mmap(
    address: usize,
    bytes: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: usize,
) -> *mut c_void {
    let result = calls::mmap(Request { address, bytes, prot, flags, fd, offset });
    core::ptr::with_exposed_provenance_mut(answer(result).cast_unsigned())
}

unsafe extern "C" fn munmap(address: usize, bytes: usize) -> c_int {
    answer(calls::munmap(address, bytes)) as c_int
}

/// Variadic in C: the fifth argument means something with `MREMAP_FIXED` or `MREMAP_DONTUNMAP` only.
unsafe extern "C" fn mremap(old: usize, old_bytes: usize, new_bytes: usize, flags: c_int, new: usize) -> *mut c_void {
    let result = remap::mremap(Move { old, old_bytes, new_bytes, flags, new });
    core::ptr::with_exposed_provenance_mut(answer(result).cast_unsigned())
}

unsafe extern "C" fn madvise(address: usize, bytes: usize, advice: c_int) -> c_int {
    answer(calls::madvise(address, bytes, advice)) as c_int
}

unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    answer(exact::mlockall(flags as usize)) as c_int
}

/// Variadic in C: no request has a second argument.
unsafe extern "C" fn ioctl(fd: c_int, request: usize, argument: usize) -> c_int {
    answer(exact::ioctl(fd as usize, request, argument)) as c_int
}

unsafe extern "C" fn shmat(id: c_int, address: usize, flags: c_int) -> *mut c_void {
    core::ptr::with_exposed_provenance_mut(answer(segments::shmat(id, address, flags)).cast_unsigned())
}

unsafe extern "C" fn pkey_mprotect(address: usize, bytes: usize, prot: c_int, key: c_int) -> c_int {
    answer(calls::pkey_mprotect(address, bytes, prot, key)) as c_int
}

unsafe extern "C" fn brk(address: usize) -> c_int {
    let reached = heap::brk(address);
    // SAFETY: libc's own variable, which its `brk` sets too.
    unsafe { CURRENT_BREAK.load(SeqCst).write(reached) };
    if reached < address { answer(-(libc::ENOMEM as Raw)) as c_int } else { 0 }
}

/// Passes on who called, in a fourth argument: libc growing an arena is told from the program's own `mprotect`.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn mprotect(_address: usize, _bytes: usize, _prot: c_int) -> c_int {
    // The return address is on top of the stack, as at any function's entry.
    naked_asm!("mov rcx, [rsp]", "jmp {}", sym mprotect_from)
}

/// Passes on who called, in a fourth argument: libc growing an arena is told from the program's own `mprotect`.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn mprotect(_address: usize, _bytes: usize, _prot: c_int) -> c_int {
    naked_asm!("mov x3, x30", "b {}", sym mprotect_from)
}

unsafe extern "C" fn mprotect_from(address: usize, bytes: usize, prot: c_int, caller: usize) -> c_int {
    let from_libc = (LIBC_START.load(SeqCst)..LIBC_END.load(SeqCst)).contains(&caller);
    answer(calls::mprotect(address, bytes, prot, from_libc)) as c_int
}

unsafe extern "C" fn execve(path: *const c_char, argv: exec::Vector, envp: exec::Vector) -> c_int {
    // SAFETY: the program's own arguments.
    answer(unsafe { exec::execveat(libc::AT_FDCWD, path, argv, envp, 0) }) as c_int
}

unsafe extern "C" fn execveat(
    directory: c_int,
    path: *const c_char,
    argv: exec::Vector,
    envp: exec::Vector,
    flags: c_int,
) -> c_int {
    // SAFETY: the program's own arguments.
    answer(unsafe { exec::execveat(directory, path, argv, envp, flags) }) as c_int
}

unsafe extern "C" fn fexecve(fd: c_int, argv: exec::Vector, envp: exec::Vector) -> c_int {
    if fd < 0 || argv.is_null() || envp.is_null() {
        return answer(-(libc::EINVAL as Raw)) as c_int;
    }
    // SAFETY: the program's own arguments.
    answer(unsafe { exec::execveat(fd, c"".as_ptr(), argv, envp, libc::AT_EMPTY_PATH) }) as c_int
}
