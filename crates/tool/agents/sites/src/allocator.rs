//! The functions that the recorder interposes.

#![allow(unsafe_code, reason = "gets functions from the loader by name")]

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The address of an allocated block.
pub(crate) type BlockAddress = *mut c_void;

/// A function that takes a number of bytes.
pub(crate) type SizedFunction = unsafe extern "C" fn(usize) -> BlockAddress;
/// A function that takes a count or an alignment, then a number of bytes.
pub(crate) type PairFunction = unsafe extern "C" fn(usize, usize) -> BlockAddress;

/// The type of mmap(2).
pub(crate) type MmapFunction =
    unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, libc::off64_t) -> *mut c_void;

/// The interposed functions; `None` for those that this libc lacks.
#[derive(Clone, Copy)]
pub(crate) struct AllocatorFunctions {
    pub(crate) malloc: SizedFunction,
    pub(crate) calloc: PairFunction,
    pub(crate) realloc: unsafe extern "C" fn(BlockAddress, usize) -> BlockAddress,
    pub(crate) free: unsafe extern "C" fn(BlockAddress),
    pub(crate) reallocarray: Option<unsafe extern "C" fn(BlockAddress, usize, usize) -> BlockAddress>,
    pub(crate) memalign: Option<PairFunction>,
    pub(crate) aligned_alloc: Option<PairFunction>,
    pub(crate) posix_memalign: Option<unsafe extern "C" fn(*mut BlockAddress, usize, usize) -> c_int>,
    pub(crate) valloc: Option<SizedFunction>,
    pub(crate) pvalloc: Option<SizedFunction>,
    pub(crate) usable_size: Option<unsafe extern "C" fn(BlockAddress) -> usize>,
    pub(crate) mmap: Option<MmapFunction>,
}

struct FunctionsCell(UnsafeCell<Option<AllocatorFunctions>>);

// SAFETY: written once by the thread that set `SEARCHING`, and read only in state `KNOWN`, which is
// final.
unsafe impl Sync for FunctionsCell {}

static FUNCTIONS: FunctionsCell = FunctionsCell(UnsafeCell::new(None));
static STATE: AtomicU32 = AtomicU32::new(UNKNOWN);

const UNKNOWN: u32 = 0;
const SEARCHING: u32 = 1;
const KNOWN: u32 = 2;

/// The functions; `None` while they are being searched. That happens before the program has a
/// second thread: the loader allocates before its first constructor.
pub(crate) fn functions() -> Option<&'static AllocatorFunctions> {
    if STATE.load(Acquire) != KNOWN {
        if STATE.compare_exchange(UNKNOWN, SEARCHING, Acquire, Relaxed).is_err() {
            return None;
        }
        let functions = search();
        // SAFETY: only this thread moved the state to `SEARCHING`, and no reader exists before
        // `KNOWN`.
        unsafe { *FUNCTIONS.0.get() = functions };
        STATE.store(KNOWN, Release);
    }
    // SAFETY: in state `KNOWN` the value is not written again.
    unsafe { (*FUNCTIONS.0.get()).as_ref() }
}

fn search() -> Option<AllocatorFunctions> {
    // SAFETY: each name is of the function whose type the field has, in each libc and allocator.
    unsafe {
        Some(AllocatorFunctions {
            malloc: next_function(c"malloc")?,
            calloc: next_function(c"calloc")?,
            realloc: next_function(c"realloc")?,
            free: next_function(c"free")?,
            reallocarray: next_function(c"reallocarray"),
            memalign: next_function(c"memalign"),
            aligned_alloc: next_function(c"aligned_alloc"),
            posix_memalign: next_function(c"posix_memalign"),
            valloc: next_function(c"valloc"),
            pvalloc: next_function(c"pvalloc"),
            usable_size: next_function(c"malloc_usable_size"),
            mmap: next_function(c"mmap"),
        })
    }
}

/// The next function of this name after the recorder.
///
/// # Safety
/// `F` has to be the type of the function.
unsafe fn next_function<F: Copy>(name: &CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>(), "F is a function") };
    // SAFETY: `name` is a C string; the loader returns null if no such function exists.
    let address = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    // SAFETY: the caller guarantees that `F` is the function's type, and its size is checked above.
    (!address.is_null()).then(|| unsafe { core::mem::transmute_copy::<*mut c_void, F>(&address) })
}
