//! `fs_paging`: `include/fieldstone/paging.h`.

#![allow(unsafe_code, reason = "exports symbols; calls C functions; reads a path passed by C")]

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr::null_mut;

use fieldstone_paging::{Advice, Error, Lz4, OnLoss, Paged, PagedBuilder, TempFile};

use crate::memory::range;
use crate::result::{CallError, OutHandle, create, non_null, run_call};

const DEFAULT_BYTES: usize = 1 << 30;

/// The smallest bound of the library.
const MIN_RESIDENT: usize = 256 << 10;

/// `fs_paging_on_loss`.
type CLossHandler = unsafe extern "C" fn(usize, *const c_char, *mut c_void) -> c_uint;

/// `fs_paging_options`: zero is the default.
#[repr(C)]
struct Options {
    bytes: usize,
    resident: usize,
    lz4: usize,
    directory: *const c_char,
    without_lz4: bool,
    without_file: bool,
    on_loss: Option<CLossHandler>,
    user: *mut c_void,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            bytes: 0,
            resident: 0,
            lz4: 0,
            directory: std::ptr::null(),
            without_lz4: false,
            without_file: false,
            on_loss: None,
            user: null_mut(),
        }
    }
}

/// `fs_paging_counts`.
#[repr(C)]
struct Counts {
    bytes: usize,
    resident: usize,
    resident_peak: usize,
    resident_limit: usize,
    stored: usize,
    evicted: u64,
    evicted_zero: u64,
    loaded: u64,
    load_ns: u64,
    faults: u64,
    first_accesses: u64,
    unmovable: u64,
    refused: u64,
    lost: u64,
    has_kernel_faults: bool,
}

/// A handler of losses with its `user` pointer.
struct LossCallback {
    handler: CLossHandler,
    user: *mut c_void,
}

// SAFETY: the header requires that `user` may be used by several threads at a time.
unsafe impl Send for LossCallback {}
// SAFETY: the header requires that `user` may be used by several threads at a time.
unsafe impl Sync for LossCallback {}

impl LossCallback {
    fn call(&self, page: usize, error: Error) -> OnLoss {
        let message = CString::new(error.to_string()).unwrap_or_default();
        // SAFETY: the function has the header's type, and the message outlives the call.
        match unsafe { (self.handler)(page, message.as_ptr(), self.user) } {
            1 => OnLoss::Retry,
            _ => OnLoss::Fault,
        }
    }
}

/// A number, or its default for zero.
const fn or_default(number: usize, default: usize) -> usize {
    if number == 0 { default } else { number }
}

/// The options of the library for those of C.
fn builder(options: &Options) -> Result<PagedBuilder, CallError> {
    if options.without_lz4 && options.without_file {
        return Err(CallError::Argument("without lz4 and without a file there is no store"));
    }
    let bytes = or_default(options.bytes, DEFAULT_BYTES);
    let resident = or_default(options.resident, (bytes / 4).max(MIN_RESIDENT));
    let mut builder = Paged::builder(bytes).resident(resident);
    if !options.without_lz4 {
        builder = builder.store(Lz4::limit(or_default(options.lz4, resident / 4)));
    }
    if !options.without_file {
        builder = builder.store(TempFile::in_dir(directory(options))?);
    }
    if let Some(handler) = options.on_loss {
        let callback = LossCallback { handler, user: options.user };
        builder = builder.on_loss(move |page, error| callback.call(page, error));
    }
    Ok(builder)
}

fn directory(options: &Options) -> PathBuf {
    if options.directory.is_null() {
        return std::env::temp_dir();
    }
    // SAFETY: the header requires a string, which is read during the call only.
    let path = unsafe { CStr::from_ptr(options.directory) };
    OsStr::from_bytes(path.to_bytes()).into()
}

#[unsafe(no_mangle)]
extern "C" fn fs_paging_open(options: Option<&Options>, paging: OutHandle<'_, Paged>) -> c_int {
    run_call(|| create(paging, || Ok(builder(options.unwrap_or(&Options::default()))?.build()?)))
}

#[unsafe(no_mangle)]
extern "C" fn fs_paging_free(paging: Option<Box<Paged>>) {
    run_call(|| {
        drop(paging);
        Ok(())
    });
}

#[unsafe(no_mangle)]
extern "C" fn fs_paging_address(paging: Option<&Paged>) -> *mut c_void {
    paging.map_or(null_mut(), |paging| paging.as_ptr().as_ptr().cast())
}

#[unsafe(no_mangle)]
extern "C" fn fs_paging_advise(paging: Option<&Paged>, offset: usize, bytes: usize, advice: c_uint) -> c_int {
    run_call(|| {
        let advice = match advice {
            0 => Advice::Soon,
            1 => Advice::Cold,
            2 => Advice::Drop,
            _ => return Err(CallError::Argument("the advice is not one of enum fs_paging_advice")),
        };
        Ok(non_null(paging)?.advise(range(offset, bytes), advice)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn fs_paging_set_resident(paging: Option<&Paged>, bytes: usize) -> c_int {
    run_call(|| Ok(non_null(paging)?.set_resident(bytes)?))
}

#[unsafe(no_mangle)]
extern "C" fn fs_paging_stats(paging: Option<&Paged>, counts: Option<&mut MaybeUninit<Counts>>) -> c_int {
    run_call(|| {
        let stats = non_null(paging)?.stats();
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        counts.ok_or(CallError::Argument("the place for the counts is null"))?.write(Counts {
            bytes: size(stats.bytes),
            resident: size(stats.resident),
            resident_peak: size(stats.resident_peak),
            resident_limit: size(stats.resident_limit),
            stored: size(stats.stores.iter().map(|store| store.bytes).sum()),
            evicted: stats.evicted,
            evicted_zero: stats.evicted_zero,
            loaded: stats.stores.iter().map(|store| store.loaded).sum(),
            load_ns: stats.stores.iter().map(|store| store.load_ns).sum(),
            faults: stats.faults,
            first_accesses: stats.first_accesses,
            unmovable: stats.unmovable,
            refused: stats.refused,
            lost: stats.lost,
            has_kernel_faults: stats.has_kernel_faults,
        });
        Ok(())
    })
}
