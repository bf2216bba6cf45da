//! The functions that the program would have called without us.

#![allow(unsafe_code, reason = "takes functions from the loader by name")]

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// A block.
pub(crate) type Block = *mut c_void;

/// Takes the bytes.
pub(crate) type One = unsafe extern "C" fn(usize) -> Block;
/// Takes a count or an alignment, then the bytes.
pub(crate) type Two = unsafe extern "C" fn(usize, usize) -> Block;

/// As mmap(2).
pub(crate) type Map = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, libc::off64_t) -> *mut c_void;

/// The family behind us. What this libc does not have is `None`.
#[derive(Clone, Copy)]
pub(crate) struct Real {
    pub(crate) malloc: One,
    pub(crate) calloc: Two,
    pub(crate) realloc: unsafe extern "C" fn(Block, usize) -> Block,
    pub(crate) free: unsafe extern "C" fn(Block),
    pub(crate) reallocarray: Option<unsafe extern "C" fn(Block, usize, usize) -> Block>,
    pub(crate) memalign: Option<Two>,
    pub(crate) aligned_alloc: Option<Two>,
    pub(crate) posix_memalign: Option<unsafe extern "C" fn(*mut Block, usize, usize) -> c_int>,
    pub(crate) valloc: Option<One>,
    pub(crate) pvalloc: Option<One>,
    pub(crate) usable_size: Option<unsafe extern "C" fn(Block) -> usize>,
    pub(crate) mmap: Option<Map>,
}

struct Found(UnsafeCell<Option<Real>>);

// SAFETY: written once, in state `SEARCHING`, which one call alone is in; read in state `KNOWN`, that is ever after.
unsafe impl Sync for Found {}

static FOUND: Found = Found(UnsafeCell::new(None));
static STATE: AtomicU32 = AtomicU32::new(UNKNOWN);

const UNKNOWN: u32 = 0;
const SEARCHING: u32 = 1;
const KNOWN: u32 = 2;

/// The functions; `None` while they are searched. That is before the program has a second thread: the loader allocates
/// long before its first constructor.
pub(crate) fn real() -> Option<&'static Real> {
    if STATE.load(Acquire) != KNOWN {
        if STATE.compare_exchange(UNKNOWN, SEARCHING, Acquire, Relaxed).is_err() {
            return None;
        }
        let found = search();
        // SAFETY: only this call has got from `UNKNOWN` to `SEARCHING`, and nobody reads before `KNOWN`.
        unsafe { *FOUND.0.get() = found };
        STATE.store(KNOWN, Release);
    }
    // SAFETY: never written again.
    unsafe { (*FOUND.0.get()).as_ref() }
}

fn search() -> Option<Real> {
    // SAFETY: each name is that of the function whose type the field has, in every libc and every allocator.
    unsafe {
        Some(Real {
            malloc: next(c"malloc")?,
            calloc: next(c"calloc")?,
            realloc: next(c"realloc")?,
            free: next(c"free")?,
            reallocarray: next(c"reallocarray"),
            memalign: next(c"memalign"),
            aligned_alloc: next(c"aligned_alloc"),
            posix_memalign: next(c"posix_memalign"),
            valloc: next(c"valloc"),
            pvalloc: next(c"pvalloc"),
            usable_size: next(c"malloc_usable_size"),
            mmap: next(c"mmap"),
        })
    }
}

/// The next function of this name behind us.
///
/// # Safety
/// `F` has to be the function's type.
unsafe fn next<F: Copy>(name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>(), "F is a function") };
    // SAFETY: a C string; the loader says null where there is none.
    let address = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    // SAFETY: a function of type `F`, in the caller's word, is as long as an address (checked above).
    (!address.is_null()).then(|| unsafe { core::mem::transmute_copy::<*mut c_void, F>(&address) })
}
