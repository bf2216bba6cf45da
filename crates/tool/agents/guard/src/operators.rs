//! The operators new and delete of C++, in all forms.
//!
//! They are interposed because malloc's caller would be the library's `operator new` for all
//! objects. An operator that the program defines itself precedes these in the search of the loader.
//! The library's other forms call it: they are not guarded then, because the program's `operator
//! delete` may expect what its `operator new` made. If no object is guarded, the next operator
//! continues: it calls the new handler and throws.

#![allow(unsafe_code, reason = "interposes the operators of C++")]
#![allow(non_snake_case, reason = "the names are mangled ones of C++")]
#![cfg_attr(test, allow(dead_code, reason = "a test binary keeps its own operators"))]

use core::arch::naked_asm;
use core::ffi::{CStr, c_void};
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicUsize};

use fieldstone_preload::loader;

use crate::entries::{KEY_MULTIPLIER, allocation, block_function};
use crate::next::{self, FreeFunction, Next, PairFunction, SizedFunction, searched_at_first_call};
use crate::range::{self, BASE};
use crate::thread::NO_CACHE;
use crate::{calls, foreign};

type Block = *mut c_void;

/// Whether the program defines the basic operators new: without and with an alignment.
static IS_NEW_REPLACED: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];
/// Bytes of the range of guarded objects, for the operators delete without an alignment; 0 if the
/// program defines the basic one, which gets all objects then.
static DELETE_SPAN: AtomicUsize = AtomicUsize::new(0);
/// As [`DELETE_SPAN`], for those with an alignment.
static ALIGNED_DELETE_SPAN: AtomicUsize = AtomicUsize::new(0);

/// Whether the program defines an operator: the first definition is the agent's own or the
/// program's.
fn is_replaced(name: &CStr) -> bool {
    let file_of = |address: usize| loader::find(address).map(|file| file.start);
    // SAFETY: the name is a C string.
    let first = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    file_of(first as usize) != file_of(is_replaced as *const () as usize)
}

/// Looks for operators that the program defines. Call it when there are guarded objects.
pub(crate) fn prepare() {
    for (replaced, name) in IS_NEW_REPLACED.iter().zip([c"_Znwm", c"_ZnwmSt11align_val_t"]) {
        replaced.store(is_replaced(name), Relaxed);
    }
    let span = range::SPAN.load(Relaxed);
    for (delete_span, name) in [(&DELETE_SPAN, c"_ZdlPv"), (&ALIGNED_DELETE_SPAN, c"_ZdlPvSt11align_val_t")] {
        delete_span.store(if is_replaced(name) { 0 } else { span }, Release);
    }
}

pub(crate) fn is_new_replaced() -> bool {
    IS_NEW_REPLACED[0].load(Relaxed)
}

pub(crate) fn is_aligned_new_replaced() -> bool {
    IS_NEW_REPLACED[1].load(Relaxed)
}

/// Searches an operator at its first call. Until one is found, `otherwise` is used.
fn search(next: &Next, name: &CStr, otherwise: *mut c_void) -> *mut c_void {
    let found = next::find_operator(name);
    if found.is_null() {
        return otherwise;
    }
    next.set(found);
    found
}

/// Operator new without a C++ library: there is no exception to throw.
unsafe extern "C" fn new_without_library(bytes: usize) -> Block {
    // SAFETY: malloc takes every size, and returns null for one that it does not have.
    let block = unsafe { next::MALLOC.function::<SizedFunction>()(bytes) };
    if block.is_null() {
        // SAFETY: abort takes no arguments and does not return.
        unsafe { libc::abort() }
    }
    block
}

unsafe extern "C" fn aligned_new_without_library(bytes: usize, alignment: usize) -> Block {
    // SAFETY: memalign takes any size, and the caller passes an alignment.
    let block = unsafe { next::MEMALIGN.function::<PairFunction>()(alignment, bytes) };
    if block.is_null() {
        // SAFETY: abort takes no arguments and does not return.
        unsafe { libc::abort() }
    }
    block
}

macro_rules! new_operator {
    ($name:ident, $literal:literal, $slow:path, $pointer:ident, $boot:ident, $search:ident) => {
        searched_at_first_call!($pointer, $boot, $search, search(&$pointer, $literal, new_without_library as SizedFunction as *mut c_void));
        allocation!($name(_bytes: usize, _nothrow: *const c_void) -> Block, $slow, $pointer, "rsi", "rdx", "");
    };
}

macro_rules! aligned_new_operator {
    ($name:ident, $literal:literal, $slow:path, $pointer:ident, $boot:ident, $search:ident) => {
        searched_at_first_call!($pointer, $boot, $search, search(&$pointer, $literal, aligned_new_without_library as PairFunction as *mut c_void));
        allocation!($name(_bytes: usize, _alignment: usize, _nothrow: *const c_void) -> Block, $slow, $pointer, "rdx", "rcx", "");
    };
}

macro_rules! delete_operator {
    ($name:ident, $literal:literal, $span:path, $pointer:ident, $boot:ident, $search:ident) => {
        searched_at_first_call!($pointer, $boot, $search, search(&$pointer, $literal, foreign::free as FreeFunction as *mut c_void));
        block_function!($name(_block: Block, _size: usize, _alignment: usize) -> (), $span, calls::free, "qword ptr [rip + {other}]", $pointer, "rsi", "rdx");
    };
}

new_operator!(_Znwm, c"_Znwm", calls::malloc, NEW, boot_new, search_new);
new_operator!(_Znam, c"_Znam", calls::derived_new, NEW_ARRAY, boot_new_array, search_new_array);
new_operator!(
    _ZnwmRKSt9nothrow_t,
    c"_ZnwmRKSt9nothrow_t",
    calls::derived_new,
    NEW_NOTHROW,
    boot_new_nothrow,
    search_new_nothrow
);
new_operator!(
    _ZnamRKSt9nothrow_t,
    c"_ZnamRKSt9nothrow_t",
    calls::derived_new,
    NEW_ARRAY_NOTHROW,
    boot_new_array_nothrow,
    search_new_array_nothrow
);
aligned_new_operator!(
    _ZnwmSt11align_val_t,
    c"_ZnwmSt11align_val_t",
    calls::aligned_new,
    NEW_ALIGNED,
    boot_new_aligned,
    search_new_aligned
);
aligned_new_operator!(
    _ZnamSt11align_val_t,
    c"_ZnamSt11align_val_t",
    calls::derived_aligned_new,
    NEW_ARRAY_ALIGNED,
    boot_new_array_aligned,
    search_new_array_aligned
);
aligned_new_operator!(
    _ZnwmSt11align_val_tRKSt9nothrow_t,
    c"_ZnwmSt11align_val_tRKSt9nothrow_t",
    calls::derived_aligned_new,
    NEW_ALIGNED_NOTHROW,
    boot_new_aligned_nothrow,
    search_new_aligned_nothrow
);
aligned_new_operator!(
    _ZnamSt11align_val_tRKSt9nothrow_t,
    c"_ZnamSt11align_val_tRKSt9nothrow_t",
    calls::derived_aligned_new,
    NEW_ARRAY_ALIGNED_NOTHROW,
    boot_new_array_aligned_nothrow,
    search_new_array_aligned_nothrow
);
delete_operator!(_ZdlPv, c"_ZdlPv", DELETE_SPAN, DELETE, boot_delete, search_delete);
delete_operator!(_ZdaPv, c"_ZdaPv", DELETE_SPAN, DELETE_ARRAY, boot_delete_array, search_delete_array);
delete_operator!(_ZdlPvm, c"_ZdlPvm", DELETE_SPAN, DELETE_SIZED, boot_delete_sized, search_delete_sized);
delete_operator!(
    _ZdaPvm,
    c"_ZdaPvm",
    DELETE_SPAN,
    DELETE_ARRAY_SIZED,
    boot_delete_array_sized,
    search_delete_array_sized
);
delete_operator!(
    _ZdlPvRKSt9nothrow_t,
    c"_ZdlPvRKSt9nothrow_t",
    DELETE_SPAN,
    DELETE_NOTHROW,
    boot_delete_nothrow,
    search_delete_nothrow
);
delete_operator!(
    _ZdaPvRKSt9nothrow_t,
    c"_ZdaPvRKSt9nothrow_t",
    DELETE_SPAN,
    DELETE_ARRAY_NOTHROW,
    boot_delete_array_nothrow,
    search_delete_array_nothrow
);
delete_operator!(
    _ZdlPvSt11align_val_t,
    c"_ZdlPvSt11align_val_t",
    ALIGNED_DELETE_SPAN,
    DELETE_ALIGNED,
    boot_delete_aligned,
    search_delete_aligned
);
delete_operator!(
    _ZdaPvSt11align_val_t,
    c"_ZdaPvSt11align_val_t",
    ALIGNED_DELETE_SPAN,
    DELETE_ARRAY_ALIGNED,
    boot_delete_array_aligned,
    search_delete_array_aligned
);
delete_operator!(
    _ZdlPvmSt11align_val_t,
    c"_ZdlPvmSt11align_val_t",
    ALIGNED_DELETE_SPAN,
    DELETE_SIZED_ALIGNED,
    boot_delete_sized_aligned,
    search_delete_sized_aligned
);
delete_operator!(
    _ZdaPvmSt11align_val_t,
    c"_ZdaPvmSt11align_val_t",
    ALIGNED_DELETE_SPAN,
    DELETE_ARRAY_SIZED_ALIGNED,
    boot_delete_array_sized_aligned,
    search_delete_array_sized_aligned
);
delete_operator!(
    _ZdlPvSt11align_val_tRKSt9nothrow_t,
    c"_ZdlPvSt11align_val_tRKSt9nothrow_t",
    ALIGNED_DELETE_SPAN,
    DELETE_ALIGNED_NOTHROW,
    boot_delete_aligned_nothrow,
    search_delete_aligned_nothrow
);
delete_operator!(
    _ZdaPvSt11align_val_tRKSt9nothrow_t,
    c"_ZdaPvSt11align_val_tRKSt9nothrow_t",
    ALIGNED_DELETE_SPAN,
    DELETE_ARRAY_ALIGNED_NOTHROW,
    boot_delete_array_aligned_nothrow,
    search_delete_array_aligned_nothrow
);
