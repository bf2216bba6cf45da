//! The next definitions of the interposed functions: those of the program's own allocator and of
//! libc.
//!
//! Each is a pointer that the entries jump through. At first it holds a boot routine, which searches
//! all of them, so that the entries have no test for the first call. The search may allocate: such
//! blocks come from [`arena`], and [`crate::foreign`] recognises them later.
//!
//! C++ operators may be in a library that the program loads later, outside the scope of the search.
//! Theirs are therefore searched at their first call, also in a loaded libstdc++ or libc++. If
//! there is none, they are malloc and free.

#![allow(unsafe_code, reason = "gets functions from the loader by name, and calls them")]

use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32};

use fieldstone_preload::arena;

type Block = *mut c_void;

/// A pointer to a function, for jumps in assembly and for calls in Rust.
#[repr(transparent)]
pub(crate) struct Next(AtomicPtr<c_void>);

impl Next {
    pub(crate) const fn new(boot: *mut c_void) -> Self {
        Self(AtomicPtr::new(boot))
    }

    /// A pointer that is set before its use.
    pub(crate) const fn empty() -> Self {
        Self::new(core::ptr::null_mut())
    }

    /// Replaces the function.
    pub(crate) fn set(&self, function: *mut c_void) {
        self.0.store(function, Release);
    }

    /// Searches the function at the first call.
    pub(crate) fn search_once(&self, name: &CStr) {
        if self.pointer().is_null() {
            self.set(find(name));
        }
    }

    /// The function as a pointer.
    pub(crate) fn pointer(&self) -> *mut c_void {
        self.0.load(Acquire)
    }

    /// The function.
    ///
    /// # Safety
    /// `F` has to be the type of the function.
    pub(crate) unsafe fn function<F: Copy>(&self) -> F {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>(), "F is a function") };
        let pointer = self.0.load(Acquire);
        // SAFETY: the pointer is a boot routine or a definition found by name; the caller guarantees
        // the type.
        unsafe { core::mem::transmute_copy::<*mut c_void, F>(&pointer) }
    }
}

pub(crate) type SizedFunction = unsafe extern "C" fn(usize) -> Block;
pub(crate) type PairFunction = unsafe extern "C" fn(usize, usize) -> Block;
pub(crate) type FreeFunction = unsafe extern "C" fn(Block);
pub(crate) type ReallocFunction = unsafe extern "C" fn(Block, usize) -> Block;
pub(crate) type UsableFunction = unsafe extern "C" fn(Block) -> usize;

pub(crate) static MALLOC: Next = Next::new(boot_malloc as SizedFunction as *mut c_void);
pub(crate) static CALLOC: Next = Next::new(boot_calloc as PairFunction as *mut c_void);
pub(crate) static MEMALIGN: Next = Next::new(boot_memalign as PairFunction as *mut c_void);
pub(crate) static ALIGNED_ALLOC: Next = Next::new(boot_memalign as PairFunction as *mut c_void);
pub(crate) static POSIX_MEMALIGN: Next =
    Next::new(boot_posix_memalign as unsafe extern "C" fn(*mut Block, usize, usize) -> c_int as *mut c_void);
pub(crate) static VALLOC: Next = Next::new(boot_valloc as SizedFunction as *mut c_void);
pub(crate) static PVALLOC: Next = Next::new(boot_valloc as SizedFunction as *mut c_void);
pub(crate) static FREE: Next = Next::new(boot_free as FreeFunction as *mut c_void);
pub(crate) static USABLE_SIZE: Next = Next::new(boot_usable_size as UsableFunction as *mut c_void);
pub(crate) static REALLOC: Next = Next::new(boot_realloc as ReallocFunction as *mut c_void);
pub(crate) static REALLOCARRAY: Next =
    Next::new(boot_reallocarray as unsafe extern "C" fn(Block, usize, usize) -> Block as *mut c_void);

static STATE: AtomicU32 = AtomicU32::new(UNKNOWN);
const UNKNOWN: u32 = 0;
const SEARCHING: u32 = 1;
const KNOWN: u32 = 2;

/// Searches the functions, once. False while the search runs: this thread's own calls meanwhile get
/// memory of the arena. The loader allocates before the program has a second thread.
pub(crate) fn search() -> bool {
    match STATE.compare_exchange(UNKNOWN, SEARCHING, AcqRel, Acquire) {
        Ok(_) => {
            for (next, name) in [
                (&MALLOC, c"malloc"),
                (&CALLOC, c"calloc"),
                (&MEMALIGN, c"memalign"),
                (&ALIGNED_ALLOC, c"aligned_alloc"),
                (&POSIX_MEMALIGN, c"posix_memalign"),
                (&VALLOC, c"valloc"),
                (&PVALLOC, c"pvalloc"),
                (&USABLE_SIZE, c"malloc_usable_size"),
                (&REALLOC, c"realloc"),
                (&REALLOCARRAY, c"reallocarray"),
                (&FREE, c"free"),
            ] {
                let found = find(name);
                if !found.is_null() {
                    next.set(found);
                }
            }
            crate::foreign::install(IS_ARENA_USED.load(Relaxed));
            STATE.store(KNOWN, Release);
            true
        }
        Err(state) => state == KNOWN,
    }
}

/// The next definition of this name; null if there is none.
pub(crate) fn find(name: &CStr) -> *mut c_void {
    // SAFETY: `name` is a C string; the loader returns null if no such function exists.
    unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
}

/// The definition of a C++ operator: the next one, or that of a run-time library outside the global
/// scope; null if none is loaded.
pub(crate) fn find_operator(name: &CStr) -> *mut c_void {
    let found = find(name);
    if !found.is_null() {
        return found;
    }
    for library in [c"libstdc++.so.6", c"libc++abi.so.1", c"libc++.so.1"] {
        // SAFETY: both arguments are C strings. RTLD_NOLOAD loads nothing; the handle keeps the
        // library loaded, which calls its functions from now on.
        let found = unsafe {
            let handle = libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            if handle.is_null() { handle } else { libc::dlsym(handle, name.as_ptr()) }
        };
        if !found.is_null() {
            return found;
        }
    }
    found
}

/// Calls a function of the table, unless its search still runs or failed: then `otherwise`.
macro_rules! boot {
    ($name:ident($($argument:ident: $type:ty),*) -> $result:ty, $next:ident, $otherwise:expr) => {
        unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            let own = $name as unsafe extern "C" fn($($type),*) -> $result as *mut c_void;
            if search() && $next.pointer() != own {
                // SAFETY: the search stored the definition of this type; the caller upholds its
                // contract.
                return unsafe { $next.function::<unsafe extern "C" fn($($type),*) -> $result>()($($argument),*) };
            }
            $otherwise
        }
    };
}

boot!(boot_malloc(bytes: usize) -> Block, MALLOC, early_block(bytes));
boot!(boot_calloc(count: usize, bytes: usize) -> Block, CALLOC, early_block(count.saturating_mul(bytes)));
boot!(boot_memalign(alignment: usize, bytes: usize) -> Block, MEMALIGN, { let _ = (alignment, bytes); core::ptr::null_mut() });
boot!(boot_posix_memalign(into: *mut Block, alignment: usize, bytes: usize) -> c_int, POSIX_MEMALIGN, { let _ = (into, alignment, bytes); libc::ENOMEM });
boot!(boot_valloc(bytes: usize) -> Block, VALLOC, { let _ = bytes; core::ptr::null_mut() });
boot!(boot_free(block: Block) -> (), FREE, { let _ = block; });
boot!(boot_usable_size(block: Block) -> usize, USABLE_SIZE, if arena::owns(block) { arena::bytes(block) } else { 0 });
boot!(boot_realloc(block: Block, bytes: usize) -> Block, REALLOC, move_in_arena(block, bytes));
boot!(boot_reallocarray(block: Block, count: usize, bytes: usize) -> Block, REALLOCARRAY, {
    let total = count.saturating_mul(bytes);
    // SAFETY: an overflow became a size that no allocator has; the caller upholds the contract.
    unsafe { REALLOC.function::<ReallocFunction>()(block, total) }
});

static IS_ARENA_USED: AtomicBool = AtomicBool::new(false);

/// A block of the arena; null if it is full.
fn early_block(bytes: usize) -> Block {
    IS_ARENA_USED.store(true, Relaxed);
    arena::alloc(bytes)
}

fn move_in_arena(block: Block, bytes: usize) -> Block {
    let moved = early_block(bytes);
    if !block.is_null() && !moved.is_null() && arena::owns(block) {
        // SAFETY: both blocks are at least this long, and the new one is not shared yet.
        unsafe { core::ptr::copy_nonoverlapping(block.cast::<u8>(), moved.cast(), arena::bytes(block).min(bytes)) };
    }
    moved
}

/// Defines the pointer `$pointer` to a function that is searched at its first call: `$search` returns
/// the function, and `$boot` calls it, keeps all arguments and continues at the function, which may
/// throw.
macro_rules! searched_at_first_call {
    ($pointer:ident, $boot:ident, $search:ident, $find:expr) => {
        static $pointer: $crate::next::Next =
            $crate::next::Next::new($boot as unsafe extern "C" fn() as *mut core::ffi::c_void);

        extern "C" fn $search() -> *mut core::ffi::c_void {
            $find
        }

        #[unsafe(naked)]
        unsafe extern "C" fn $boot() {
            core::arch::naked_asm!(
                "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9",
                "sub rsp, 8",
                "call {search}",
                "add rsp, 8",
                "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                "jmp rax",
                search = sym $search,
            )
        }
    };
}
pub(crate) use searched_at_first_call;

/// Stores the next definition of `name` in `next`, and returns it.
pub(crate) fn find_into(next: &Next, name: &CStr) -> *mut c_void {
    let found = find(name);
    next.set(found);
    found
}
