//! The C functions that replace functions of libc; they set errno as libc does.

#![allow(unsafe_code, reason = "C functions called with the program's arguments")]

use core::arch::naked_asm;
use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::SeqCst};

use crate::arch::jump_with_return_address;
use crate::calls::{self, MmapCall};
use crate::elf::LoadedObject;
use crate::patch::FunctionPatch;
use crate::raw::{RawResult, failed};
use crate::remap::{self, MremapCall};
use crate::{exact, exec, heap, shared_memory};

static LIBC_START: AtomicUsize = AtomicUsize::new(0);
static LIBC_END: AtomicUsize = AtomicUsize::new(0);
static LIBC_BREAK: AtomicPtr<usize> = AtomicPtr::new(core::ptr::null_mut());

/// The functions that map and unmap memory.
pub(crate) fn memory_functions() -> [FunctionPatch; 6] {
    [
        FunctionPatch { name: c"mmap", number: libc::SYS_mmap, target: mmap as *const () as usize },
        FunctionPatch { name: c"munmap", number: libc::SYS_munmap, target: munmap as *const () as usize },
        FunctionPatch { name: c"mremap", number: libc::SYS_mremap, target: mremap as *const () as usize },
        FunctionPatch { name: c"brk", number: libc::SYS_brk, target: brk as *const () as usize },
        FunctionPatch { name: c"madvise", number: libc::SYS_madvise, target: madvise as *const () as usize },
        FunctionPatch { name: c"mprotect", number: libc::SYS_mprotect, target: mprotect as *const () as usize },
    ]
}

/// Functions that are patched if possible. Calls of an unpatched function are invisible to the
/// agent, as raw system calls are. With the first two a program observes memory mapped ahead; the
/// others fail on a part of a hugetlb page.
pub(crate) fn optional_functions() -> [FunctionPatch; 4] {
    [
        FunctionPatch { name: c"mlockall", number: libc::SYS_mlockall, target: mlockall as *const () as usize },
        FunctionPatch { name: c"ioctl", number: libc::SYS_ioctl, target: ioctl as *const () as usize },
        FunctionPatch { name: c"shmat", number: libc::SYS_shmat, target: shmat as *const () as usize },
        FunctionPatch {
            name: c"pkey_mprotect",
            number: libc::SYS_pkey_mprotect,
            target: pkey_mprotect as *const () as usize,
        },
    ]
}

/// The functions that execute programs.
pub(crate) fn exec_functions() -> [FunctionPatch; 3] {
    [
        FunctionPatch { name: c"execve", number: libc::SYS_execve, target: execve as *const () as usize },
        FunctionPatch { name: c"execveat", number: libc::SYS_execveat, target: execveat as *const () as usize },
        FunctionPatch { name: c"fexecve", number: libc::SYS_execveat, target: fexecve as *const () as usize },
    ]
}

/// Records the range of libc's code, and makes the heap start in the region.
pub(crate) fn record_libc(object: &LoadedObject, heap_start: usize) -> bool {
    let Some(current) = object.symbol(c"__curbrk") else { return false };
    LIBC_START.store(object.text.0, SeqCst);
    LIBC_END.store(object.text.1, SeqCst);
    let current = core::ptr::with_exposed_provenance_mut::<usize>(current.address);
    LIBC_BREAK.store(current, SeqCst);
    // SAFETY: `__curbrk` is the variable behind `sbrk`; only the constructor runs, so nothing else
    // accesses it.
    unsafe { current.write(heap_start) };
    true
}

fn set_errno(result: RawResult) -> RawResult {
    if !failed(result) {
        return result;
    }
    // SAFETY: `__errno_location` returns the errno of the calling thread.
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
    let result = calls::mmap(MmapCall { address, bytes, prot, flags, fd, offset });
    core::ptr::with_exposed_provenance_mut(set_errno(result).cast_unsigned())
}

unsafe extern "C" fn munmap(address: usize, bytes: usize) -> c_int {
    set_errno(calls::munmap(address, bytes)) as c_int
}

/// Variadic in C: the fifth argument is used with `MREMAP_FIXED` or `MREMAP_DONTUNMAP` only.
unsafe extern "C" fn mremap(old: usize, old_bytes: usize, new_bytes: usize, flags: c_int, new: usize) -> *mut c_void {
    let result = remap::mremap(MremapCall { old, old_bytes, new_bytes, flags, new });
    core::ptr::with_exposed_provenance_mut(set_errno(result).cast_unsigned())
}

unsafe extern "C" fn madvise(address: usize, bytes: usize, advice: c_int) -> c_int {
    set_errno(calls::madvise(address, bytes, advice)) as c_int
}

unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    set_errno(exact::mlockall(flags as usize)) as c_int
}

/// Variadic in C: each request has at most one argument.
unsafe extern "C" fn ioctl(fd: c_int, request: usize, argument: usize) -> c_int {
    set_errno(exact::ioctl(fd as usize, request, argument)) as c_int
}

unsafe extern "C" fn shmat(id: c_int, address: usize, flags: c_int) -> *mut c_void {
    core::ptr::with_exposed_provenance_mut(set_errno(shared_memory::shmat(id, address, flags)).cast_unsigned())
}

unsafe extern "C" fn pkey_mprotect(address: usize, bytes: usize, prot: c_int, key: c_int) -> c_int {
    set_errno(calls::pkey_mprotect(address, bytes, prot, key)) as c_int
}

unsafe extern "C" fn brk(address: usize) -> c_int {
    let new_break = heap::brk(address);
    // SAFETY: `__curbrk`, which libc's own `brk` sets here too, under the same rules for callers.
    unsafe { LIBC_BREAK.load(SeqCst).write(new_break) };
    if new_break < address { set_errno(-(libc::ENOMEM as RawResult)) as c_int } else { 0 }
}

/// Passes the return address as fourth argument, to distinguish a call by libc (growing an arena)
/// from the program's.
#[unsafe(naked)]
unsafe extern "C" fn mprotect(_address: usize, _bytes: usize, _prot: c_int) -> c_int {
    naked_asm!(jump_with_return_address!(), sym mprotect_from)
}

unsafe extern "C" fn mprotect_from(address: usize, bytes: usize, prot: c_int, caller: usize) -> c_int {
    let from_libc = (LIBC_START.load(SeqCst)..LIBC_END.load(SeqCst)).contains(&caller);
    set_errno(calls::mprotect(address, bytes, prot, from_libc)) as c_int
}

unsafe extern "C" fn execve(path: *const c_char, argv: exec::StringVector, envp: exec::StringVector) -> c_int {
    // SAFETY: the program passes these arguments under the contract of `execve`.
    set_errno(unsafe { exec::execveat(libc::AT_FDCWD, path, argv, envp, 0) }) as c_int
}

unsafe extern "C" fn execveat(
    directory: c_int,
    path: *const c_char,
    argv: exec::StringVector,
    envp: exec::StringVector,
    flags: c_int,
) -> c_int {
    // SAFETY: the program passes these arguments under the contract of `execveat`.
    set_errno(unsafe { exec::execveat(directory, path, argv, envp, flags) }) as c_int
}

unsafe extern "C" fn fexecve(fd: c_int, argv: exec::StringVector, envp: exec::StringVector) -> c_int {
    if fd < 0 || argv.is_null() || envp.is_null() {
        return set_errno(-(libc::EINVAL as RawResult)) as c_int;
    }
    // SAFETY: the program passes both vectors under the contract of `fexecve`, and the path is an
    // empty C string.
    set_errno(unsafe { exec::execveat(fd, c"".as_ptr(), argv, envp, libc::AT_EMPTY_PATH) }) as c_int
}
