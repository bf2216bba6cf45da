//! How a call answers C: a code, errno, and a message that waits for who asks.

#![allow(unsafe_code, reason = "exports symbols; sets errno; gives memory to what controls it")]

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

use fieldstone_pages::{Error, Memory};

/// Why a call did not do what was asked.
pub(crate) enum Refusal {
    /// The library says so.
    Pages(Error),
    /// An argument is null, or not of its enum.
    Argument(&'static str),
    /// A panic was caught: a mistake of this library.
    Panic,
}

pub(crate) type Answer = Result<(), Refusal>;

/// Where a handle goes.
pub(crate) type Place<'a, T> = Option<&'a mut MaybeUninit<Option<Box<T>>>>;

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self::Pages(error)
    }
}

impl Refusal {
    /// The number in `enum fs_error`, and the errno.
    fn code(&self) -> (c_int, c_int) {
        match self {
            Self::Pages(Error::System { .. }) => (-1, self.errno()),
            Self::Pages(Error::Range { .. }) => (-2, libc::EINVAL),
            Self::Pages(Error::Unsupported { .. }) => (-3, libc::ENOTSUP),
            Self::Pages(Error::Forked) => (-4, libc::ECHILD),
            Self::Pages(Error::Fill { .. }) => (-5, libc::EINVAL),
            Self::Argument(_) => (-6, libc::EINVAL),
            Self::Pages(_) | Self::Panic => (-7, libc::ENOTRECOVERABLE),
        }
    }

    fn errno(&self) -> c_int {
        match self {
            Self::Pages(error) => error.errno().unwrap_or(libc::EIO),
            _ => libc::EIO,
        }
    }

    fn message(&self) -> String {
        match self {
            Self::Pages(error) => error.to_string(),
            Self::Argument(what) => (*what).to_owned(),
            Self::Panic => "a mistake in libfieldstone: please report what it wrote to stderr".to_owned(),
        }
    }
}

thread_local! {
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// Runs a call, keeps its message if it fails, and gives its code. Not for signal handlers.
pub(crate) fn answer(call: impl FnOnce() -> Answer) -> c_int {
    code_of(call, |refusal| {
        // Quoted words may have a zero in them; a thread that ends has no message any more.
        let text = CString::new(refusal.message().replace('\0', "?")).unwrap_or_default();
        let _ = MESSAGE.try_with(|message| message.replace(text));
    })
}

/// As `answer`, without a message: allocates nothing, and uses no thread-local storage but errno.
pub(crate) fn answer_in_handler(call: impl FnOnce() -> Answer) -> c_int {
    code_of(call, |_| {})
}

fn code_of(call: impl FnOnce() -> Answer, keep: impl FnOnce(&Refusal)) -> c_int {
    let Err(refusal) = catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(Refusal::Panic)) else { return 0 };
    keep(&refusal);
    let (code, errno) = refusal.code();
    // SAFETY: errno is this thread's.
    unsafe { *libc::__errno_location() = errno };
    code
}

/// What a pointer to a handle points to.
pub(crate) fn given<T: ?Sized>(handle: Option<&T>) -> Result<&T, Refusal> {
    handle.ok_or(Refusal::Argument("the handle is null: look at the code of the call that was to make it"))
}

/// Makes a handle; where that fails it is null.
pub(crate) fn make<T>(place: Place<'_, T>, made: impl FnOnce() -> Result<T, Refusal>) -> Answer {
    let place = place.ok_or(Refusal::Argument("the place for the handle is null"))?.write(None);
    *place = Some(Box::new(made()?));
    Ok(())
}

/// Puts memory under control. The handle of the memory is gone where that works, and as it was where it fails.
pub(crate) fn control<T>(
    memory: *mut Memory,
    place: Place<'_, T>,
    made: impl FnOnce(Memory) -> Result<T, Refusal>,
) -> Answer {
    // SAFETY: a handle is null or live, as the header asks for.
    let given = given(unsafe { memory.as_ref() })?;
    make(place, || made(given.share()))?;
    // SAFETY: the handle was made by `make`, and the header takes it from its owner here.
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
        -3 => c"not to be had here",
        -4 => c"made before a fork",
        -5 => c"not as long as a page",
        -6 => c"an argument is null or unknown",
        -7 => c"a mistake in libfieldstone",
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
        assert_eq!(answer(|| panic!("for the test")), -7);
        // SAFETY: the message is this thread's, and a string.
        let text = unsafe { CStr::from_ptr(fs_error_message()) }.to_str().unwrap();
        assert!(text.contains("report"), "{text}");
        assert_eq!(answer_in_handler(|| Err(Refusal::Argument("other words"))), -6);
        // SAFETY: as above.
        let after = unsafe { CStr::from_ptr(fs_error_message()) }.to_str().unwrap();
        assert_eq!(after, text, "a handler's failure leaves the message");
    }
}
