//! Results of calls from C: a code, errno, and a message kept per thread.

#![allow(unsafe_code, reason = "exports symbols; sets errno; consumes handles")]

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

use fieldstone_guard::Finding;
use fieldstone_pages::{Error, Memory};

use crate::memory::MemoryHandle;

/// Why a call failed.
pub(crate) enum CallError {
    /// An error of `fieldstone-pages`.
    Pages(Error),
    /// An error of `fieldstone-guard`.
    Guard(fieldstone_guard::Error),
    /// An error of `fieldstone-paging`.
    Paging(fieldstone_paging::Error),
    /// An error of `fieldstone-checkpoint`.
    Checkpoint(fieldstone_checkpoint::Error),
    /// An error of `fieldstone-store`.
    Store(fieldstone_store::Error),
    /// A store has no such entry, or no more of them.
    NoEntry,
    /// A free found a memory error.
    Finding(Finding),
    /// There is nothing to explain at an address.
    NotExplained,
    /// An argument is null, or not of its enum.
    Argument(&'static str),
    /// An argument does not fit; with a message.
    Refused(String),
    /// This build lacks a Cargo feature of this crate.
    #[cfg_attr(all(feature = "opendal", feature = "zstd"), expect(dead_code, reason = "this build has all features"))]
    Feature {
        /// The operation that needs it.
        operation: &'static str,
        /// Its name.
        feature: &'static str,
    },
    /// A caught panic: a bug in this library.
    Panic,
}

pub(crate) type CallResult = Result<(), CallError>;

/// The place for a created handle.
pub(crate) type OutHandle<'a, T> = Option<&'a mut MaybeUninit<Option<Box<T>>>>;

impl From<Error> for CallError {
    fn from(error: Error) -> Self {
        Self::Pages(error)
    }
}

impl From<fieldstone_guard::Error> for CallError {
    fn from(error: fieldstone_guard::Error) -> Self {
        Self::Guard(error)
    }
}

impl From<fieldstone_paging::Error> for CallError {
    fn from(error: fieldstone_paging::Error) -> Self {
        Self::Paging(error)
    }
}

impl From<fieldstone_checkpoint::Error> for CallError {
    fn from(error: fieldstone_checkpoint::Error) -> Self {
        Self::Checkpoint(error)
    }
}

impl From<fieldstone_store::Error> for CallError {
    fn from(error: fieldstone_store::Error) -> Self {
        Self::Store(error)
    }
}

impl CallError {
    /// The number in `enum fs_error`, and the errno.
    fn code(&self) -> (c_int, c_int) {
        match self {
            Self::Pages(error) => pages_code(error),
            Self::Argument(_) | Self::Refused(_) | Self::Guard(fieldstone_guard::Error::Option { .. }) => {
                (-6, libc::EINVAL)
            }
            Self::Guard(fieldstone_guard::Error::Map { errno, .. }) => (-1, *errno),
            Self::Guard(fieldstone_guard::Error::Full { .. }) => (-1, libc::ENOMEM),
            Self::Paging(error) => (paging_code(*error), error.errno()),
            Self::Checkpoint(error) => checkpoint_code(error),
            Self::Store(error) => store_code(error),
            Self::NoEntry => (-15, libc::ENOENT),
            Self::Feature { .. } => (-3, libc::ENOTSUP),
            Self::Finding(_) => (-8, libc::EFAULT),
            Self::NotExplained => (-9, libc::ENOENT),
            Self::Guard(_) | Self::Panic => (-7, libc::ENOTRECOVERABLE),
        }
    }

    fn message(&self) -> String {
        match self {
            Self::Pages(error) => error.to_string(),
            Self::Guard(error) => error.to_string(),
            Self::Paging(error) => error.to_string(),
            Self::Checkpoint(error) => error.to_string(),
            Self::Store(error) => error.to_string(),
            Self::NoEntry => "there is no such entry, or no more of them".to_owned(),
            Self::Finding(finding) => finding.to_string(),
            Self::NotExplained => "the address is in a live object, or in memory without an object".to_owned(),
            Self::Argument(what) => (*what).to_owned(),
            Self::Refused(what) => what.clone(),
            Self::Feature { operation, feature } => format!(
                "cannot {operation}: this libfieldstone was built without the feature `{feature}`\n\
                 try: cargo build --release -p fieldstone-capi --features {feature}"
            ),
            Self::Panic => "a bug in libfieldstone: please report its output on stderr".to_owned(),
        }
    }
}

/// The number in `enum fs_error` of an error of `fieldstone-pages`, and the errno.
fn pages_code(error: &Error) -> (c_int, c_int) {
    match error {
        Error::System { .. } => (-1, error.errno().unwrap_or(libc::EIO)),
        Error::Range { .. } => (-2, libc::EINVAL),
        Error::Unsupported { .. } => (-3, libc::ENOTSUP),
        Error::Forked => (-4, libc::ECHILD),
        Error::Fill { .. } => (-5, libc::EINVAL),
        _ => (-7, libc::ENOTRECOVERABLE),
    }
}

/// The number in `enum fs_error` of an error of `fieldstone-checkpoint`, and the errno.
fn checkpoint_code(error: &fieldstone_checkpoint::Error) -> (c_int, c_int) {
    use fieldstone_checkpoint::Error;
    match error {
        Error::Memory(error) => pages_code(error),
        Error::File { source, .. } | Error::Thread(source) => (-1, source.raw_os_error().unwrap_or(libc::EIO)),
        Error::Cancelled => (-1, libc::ECANCELED),
        Error::WriterRan | Error::Outrun { .. } | Error::Pinned => (-3, libc::ENOTSUP),
        Error::Damaged { .. } | Error::MissingParent { .. } => (-10, libc::EBADMSG),
        Error::Unsupported { .. } => (-11, libc::ENOTSUP),
        Error::NoSave(_) => (-15, libc::ENOENT),
        Error::Busy => (-16, libc::EBUSY),
        Error::Taken(_) => (-16, libc::EEXIST),
        _ => (-7, libc::ENOTRECOVERABLE),
    }
}

/// The number in `enum fs_error` of an error of `fieldstone-store`, and the errno.
fn store_code(error: &fieldstone_store::Error) -> (c_int, c_int) {
    use fieldstone_store::ErrorKind;
    match error.kind() {
        ErrorKind::Io => (-1, error.os_error().unwrap_or(libc::EIO)),
        ErrorKind::Memory => (-1, libc::ENOMEM),
        ErrorKind::Forked => (-4, libc::ECHILD),
        ErrorKind::TooLarge => (-6, libc::EINVAL),
        ErrorKind::Corrupt => (-10, libc::EBADMSG),
        ErrorKind::Version => (-11, libc::ENOTSUP),
        ErrorKind::Full => (-12, libc::ENOSPC),
        ErrorKind::Poisoned => (-13, libc::EROFS),
        ErrorKind::Type => (-14, libc::EINVAL),
        ErrorKind::Busy => (-16, libc::EBUSY),
        ErrorKind::Exists => (-16, libc::EEXIST),
        ErrorKind::TooOld => (-17, libc::ESTALE),
        _ => (-7, libc::ENOTRECOVERABLE),
    }
}

/// The number in `enum fs_error` of an error of `fieldstone-paging`.
const fn paging_code(error: fieldstone_paging::Error) -> c_int {
    match error {
        fieldstone_paging::Error::Range { .. } => -2,
        fieldstone_paging::Error::Forked => -4,
        fieldstone_paging::Error::Option { .. } => -6,
        _ => -1,
    }
}

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// Runs a call, keeps its message if it fails, and returns its code. Not for signal handlers.
pub(crate) fn run_call(call: impl FnOnce() -> CallResult) -> c_int {
    code_of(call, |error| {
        // Quoted input may contain a zero byte; an exiting thread has no message any more.
        let text = CString::new(error.message().replace('\0', "?")).unwrap_or_default();
        let _ = MESSAGE.try_with(|message| message.replace(text));
    })
}

/// As `run_call`, without a message: does not allocate, and uses no thread-local storage but errno.
pub(crate) fn run_call_in_handler(call: impl FnOnce() -> CallResult) -> c_int {
    code_of(call, |_| {})
}

fn code_of(call: impl FnOnce() -> CallResult, keep: impl FnOnce(&CallError)) -> c_int {
    let Err(error) = catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(CallError::Panic)) else { return 0 };
    keep(&error);
    let (code, errno) = error.code();
    // SAFETY: errno belongs to this thread.
    unsafe { *libc::__errno_location() = errno };
    code
}

/// The referent of a handle; an error for null.
pub(crate) fn non_null<T: ?Sized>(handle: Option<&T>) -> Result<&T, CallError> {
    handle.ok_or(CallError::Argument("the handle is null: check the result of the call that creates it"))
}

/// Creates a handle; null on failure.
pub(crate) fn create<T>(place: OutHandle<'_, T>, constructor: impl FnOnce() -> Result<T, CallError>) -> CallResult {
    let place = place.ok_or(CallError::Argument("the place for the handle is null"))?.write(None);
    *place = Some(Box::new(constructor()?));
    Ok(())
}

/// Takes control of memory. Consumes the memory's handle on success, and leaves it unchanged on
/// failure.
pub(crate) fn take_memory<T>(
    memory: *mut MemoryHandle,
    place: OutHandle<'_, T>,
    constructor: impl FnOnce(Memory) -> Result<T, CallError>,
) -> CallResult {
    // SAFETY: a handle is null or live, as the header requires.
    let borrowed = non_null(unsafe { memory.as_ref() })?;
    create(place, || constructor(borrowed.memory().share()))?;
    // SAFETY: `create` has made the new handle, and the header transfers its ownership here.
    drop(unsafe { Box::from_raw(memory) });
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn fs_error_message() -> *const c_char {
    // The text stays until this thread's next failure.
    MESSAGE.try_with(|message| message.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

#[unsafe(no_mangle)]
extern "C" fn fs_error_name(code: c_int) -> *const c_char {
    let name: &'static CStr = match code {
        0 => c"no error",
        -1 => c"a system call failed",
        -2 => c"not whole pages inside the memory",
        -3 => c"not supported here",
        -4 => c"created before a fork",
        -5 => c"not as long as a page",
        -6 => c"an argument is null or unknown",
        -7 => c"a bug in libfieldstone",
        -8 => c"a free found a memory error",
        -9 => c"no memory error at this address",
        -10 => c"a file is damaged",
        -11 => c"a file has another version",
        -12 => c"no room",
        -13 => c"closed to writes after a failed one",
        -14 => c"a table has other types",
        -15 => c"not there",
        -16 => c"in use",
        -17 => c"a snapshot is too old",
        _ => c"not a code of libfieldstone",
    };
    name.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn fs_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_a_code_and_has_a_message() {
        assert_eq!(run_call(|| panic!("for the test")), -7);
        // SAFETY: the message is a zero-terminated string of this thread.
        let text = unsafe { CStr::from_ptr(fs_error_message()) }.to_str().unwrap();
        assert!(text.contains("report"), "{text}");
        assert_eq!(run_call_in_handler(|| Err(CallError::Argument("another text"))), -6);
        // SAFETY: the message is a zero-terminated string of this thread.
        let after = unsafe { CStr::from_ptr(fs_error_message()) }.to_str().unwrap();
        assert_eq!(after, text, "a handler's failure keeps the message");
    }
}
