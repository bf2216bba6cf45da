//! The two environment variables that bring the agent along, and hiding them from the program.

#![allow(unsafe_code, reason = "edits the environment block that the kernel laid out, before anybody reads it")]

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering::SeqCst};

use fieldstone_wire::SESSION_VARIABLE;

/// The variable by which the loader finds the agent.
pub(crate) const PRELOAD: &CStr = c"LD_PRELOAD";

/// `NAME=value` strings to give to the programs that this one starts.
#[derive(Clone, Copy)]
pub(crate) struct Inherited {
    pub(crate) preload: &'static CStr,
    pub(crate) session: &'static CStr,
}

const ENTRY_BYTES: usize = 1024;

/// Written once at load, read ever after.
struct Entry(UnsafeCell<[u8; ENTRY_BYTES]>);

// SAFETY: written before any thread runs (`take`), and only read after `KEPT` is set.
unsafe impl Sync for Entry {}

static PRELOAD_ENTRY: Entry = Entry(UnsafeCell::new([0; ENTRY_BYTES]));
static SESSION_ENTRY: Entry = Entry(UnsafeCell::new([0; ENTRY_BYTES]));
static KEPT: AtomicBool = AtomicBool::new(false);
static LOADER: AtomicPtr<c_char> = AtomicPtr::new(core::ptr::null_mut());

impl Entry {
    fn store(&self, text: &[u8]) -> bool {
        // SAFETY: there is one thread, and nobody reads before `KEPT` is set.
        let bytes = unsafe { &mut *self.0.get() };
        if text.len() >= ENTRY_BYTES {
            return false;
        }
        bytes[..text.len()].copy_from_slice(text);
        true
    }

    fn text(&'static self) -> &'static CStr {
        // SAFETY: never written again after `KEPT` was set.
        let bytes = unsafe { &*self.0.get() };
        CStr::from_bytes_until_nul(bytes).unwrap_or(c"")
    }
}

/// What the next programs inherit; `None` when this one runs without a session.
pub(crate) fn inherited() -> Option<Inherited> {
    KEPT.load(SeqCst).then(|| Inherited { preload: PRELOAD_ENTRY.text(), session: SESSION_ENTRY.text() })
}

/// Whether `entry` is `name=...`.
pub(crate) fn is_variable(entry: &CStr, name: &CStr) -> bool {
    entry.to_bytes().strip_prefix(name.to_bytes()).is_some_and(|rest| rest.first() == Some(&b'='))
}

/// Takes the agent's variables out of the environment and keeps them. The session's path, if it was there.
///
/// # Safety
/// `envp` has to be the program's environment vector, and nobody else may be reading it.
pub(crate) unsafe fn take(envp: *mut *mut c_char) -> Option<&'static CStr> {
    let mut read = envp;
    let mut write = envp;
    let mut stored = (false, false);
    // SAFETY: the vector ends in null; `write` never passes `read`.
    unsafe {
        while !(*read).is_null() {
            let entry = CStr::from_ptr(*read);
            let mut keep = true;
            if is_variable(entry, SESSION_VARIABLE) {
                stored.0 = SESSION_ENTRY.store(entry.to_bytes());
                keep = false;
            } else if is_variable(entry, PRELOAD) {
                let (first, rest) = split(entry);
                stored.1 = PRELOAD_ENTRY.store(first);
                keep = rest > 0;
                strip(*read, rest, entry.to_bytes().len());
            }
            if keep {
                *write = *read;
                write = write.add(1);
            }
            read = read.add(1);
        }
        *write = core::ptr::null_mut();
    }
    let complete = stored == (true, true);
    KEPT.store(complete, SeqCst);
    let session = SESSION_ENTRY.text().to_bytes_with_nul();
    let value = session.get(SESSION_VARIABLE.to_bytes().len() + 1..)?;
    complete.then(|| CStr::from_bytes_with_nul(value).ok()).flatten()
}

/// `LD_PRELOAD=agent` and where the rest of the list begins, zero if there is none.
fn split(entry: &CStr) -> (&[u8], usize) {
    let text = entry.to_bytes();
    match text.iter().position(|&byte| byte == b':' || byte == b' ') {
        Some(colon) if colon + 1 < text.len() => (&text[..colon], colon + 1),
        Some(colon) => (&text[..colon], 0),
        None => (text, 0),
    }
}

/// Moves the rest of the list to directly behind `LD_PRELOAD=`.
unsafe fn strip(entry: *mut c_char, rest: usize, length: usize) {
    let start = PRELOAD.to_bytes().len() + 1;
    if rest > 0 {
        // SAFETY: both places lie inside the entry, closing zero included.
        unsafe { core::ptr::copy(entry.add(rest), entry.add(start), length + 1 - rest) };
    }
}

/// Remembers the loader that the main program names.
pub(crate) fn remember_loader(path: *const c_char) {
    LOADER.store(path.cast_mut(), SeqCst);
}

/// The path of the loader that this process runs under.
pub(crate) fn loader() -> Option<&'static CStr> {
    let path = LOADER.load(SeqCst);
    // SAFETY: null, or the C string in the main program's PT_INTERP segment, which stays mapped.
    (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) })
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::string::String;
    use std::vec::Vec;

    use super::*;

    /// What `take` leaves of an environment, and the session's path.
    fn taken(entries: &[&str]) -> (Vec<String>, Option<String>) {
        let mut texts: Vec<Vec<u8>> =
            entries.iter().map(|&entry| CString::new(entry).unwrap().into_bytes_with_nul()).collect();
        let mut vector: Vec<*mut c_char> = texts.iter_mut().map(|text| text.as_mut_ptr().cast()).collect();
        vector.push(core::ptr::null_mut());
        // SAFETY: a vector of C strings that ends in null, of this test alone.
        let session = unsafe { take(vector.as_mut_ptr()) }.map(|path| String::from(path.to_str().unwrap()));
        let left = vector.iter().take_while(|entry| !entry.is_null());
        // SAFETY: each that is left is one of the strings above.
        let left = left.map(|&entry| String::from(unsafe { CStr::from_ptr(entry) }.to_str().unwrap())).collect();
        (left, session)
    }

    /// One test: what is kept is the process's.
    #[test]
    fn the_agents_variables_are_taken_and_no_others() {
        let (left, session) = taken(&["A=1", "LD_PRELOAD=/agent.so", "B=2", "FIELDSTONE_SESSION=/proc/1/fd/3", "C="]);
        assert_eq!(left, ["A=1", "B=2", "C="]);
        assert_eq!(session.as_deref(), Some("/proc/1/fd/3"));
        let kept = inherited().unwrap();
        assert_eq!((kept.preload, kept.session), (c"LD_PRELOAD=/agent.so", c"FIELDSTONE_SESSION=/proc/1/fd/3"));

        let (left, _) = taken(&["FIELDSTONE_SESSION=/s", "LD_PRELOAD=/agent.so:/b.so c.so", "LD_PRELOAD_X=1"]);
        assert_eq!(left, ["LD_PRELOAD=/b.so c.so", "LD_PRELOAD_X=1"], "the user's preload stays");
        assert_eq!(inherited().unwrap().preload, c"LD_PRELOAD=/agent.so");
        assert_eq!(taken(&["LD_PRELOAD=/agent.so:", "FIELDSTONE_SESSION=/s"]).0, [""; 0]);

        assert_eq!(taken(&["LD_PRELOAD=/agent.so", "A=1"]).1, None, "without a session nothing is inherited");
        assert!(inherited().is_none());
        let long = std::format!("FIELDSTONE_SESSION=/{}", "x".repeat(ENTRY_BYTES));
        assert_eq!(taken(&[&long, "LD_PRELOAD=/agent.so"]).1, None, "nor with one that cannot be kept");
        assert!(inherited().is_none());
    }

    #[test]
    fn a_variable_is_its_whole_name() {
        assert!(is_variable(c"LD_PRELOAD=", PRELOAD));
        assert!(!is_variable(c"LD_PRELOAD", PRELOAD));
        assert!(!is_variable(c"LD_PRELOADS=x", PRELOAD));
        assert!(!is_variable(c"xLD_PRELOAD=x", PRELOAD));
    }
}
