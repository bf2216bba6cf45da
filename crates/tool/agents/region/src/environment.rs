//! Removes the two environment variables that load the agent, and keeps them for programs that this
//! one starts.

#![allow(unsafe_code, reason = "edits the environment block that the kernel laid out, before anybody reads it")]

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char};
use core::mem::MaybeUninit;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering::SeqCst};

use fieldstone_wire::SESSION_VARIABLE;

/// The variable that makes the loader load the agent.
pub(crate) const PRELOAD: &CStr = c"LD_PRELOAD";

/// `NAME=value` strings that programs started by this one get.
#[derive(Clone, Copy)]
pub(crate) struct AgentVariables {
    pub(crate) preload: &'static CStr,
    pub(crate) session: &'static CStr,
}

const ENTRY_BYTES: usize = 1024;

/// An environment string, written once by the constructor.
struct SavedVariable(UnsafeCell<[u8; ENTRY_BYTES]>);

// SAFETY: written by the constructor before any thread runs, and only read after `IS_COMPLETE` is
// set.
unsafe impl Sync for SavedVariable {}

static PRELOAD_ENTRY: SavedVariable = SavedVariable(UnsafeCell::new([0; ENTRY_BYTES]));
static SESSION_ENTRY: SavedVariable = SavedVariable(UnsafeCell::new([0; ENTRY_BYTES]));
static IS_COMPLETE: AtomicBool = AtomicBool::new(false);
static LOADER: AtomicPtr<c_char> = AtomicPtr::new(core::ptr::null_mut());

impl SavedVariable {
    /// Stores `NAME=` and the value.
    fn store(&self, name: &[u8], value: &[u8]) -> bool {
        // SAFETY: the constructor is the only thread, and no reader exists before `IS_COMPLETE` is
        // set.
        let bytes = unsafe { &mut *self.0.get() };
        if name.len() + value.len() >= ENTRY_BYTES {
            return false;
        }
        let (start, rest) = bytes.split_at_mut(name.len());
        start.copy_from_slice(name);
        rest[..value.len()].copy_from_slice(value);
        rest[value.len()] = 0;
        true
    }

    fn text(&'static self) -> &'static CStr {
        // SAFETY: `IS_COMPLETE` is set before the first call, and the bytes do not change after
        // that.
        let bytes = unsafe { &*self.0.get() };
        CStr::from_bytes_until_nul(bytes).unwrap_or(c"")
    }
}

/// The variables for the next program; `None` if this process has no session.
pub(crate) fn agent_variables() -> Option<AgentVariables> {
    IS_COMPLETE.load(SeqCst).then(|| AgentVariables { preload: PRELOAD_ENTRY.text(), session: SESSION_ENTRY.text() })
}

/// Whether `entry` is `name=...`.
pub(crate) fn is_variable(entry: &CStr, name: &CStr) -> bool {
    entry.to_bytes().strip_prefix(name.to_bytes()).is_some_and(|rest| rest.first() == Some(&b'='))
}

/// Removes the agent's variables from the environment and stores them. Returns the path of the
/// session, if it was there.
///
/// # Safety
/// `envp` has to be the environment vector of the process, and no other thread may read it.
pub(crate) unsafe fn remove_agent_variables(envp: *mut *mut c_char) -> Option<&'static CStr> {
    let mut read = envp;
    let mut write = envp;
    let mut stored = (false, false);
    // SAFETY: the caller passes a vector that ends in null, and `write` never passes `read`.
    unsafe {
        while !(*read).is_null() {
            let entry = CStr::from_ptr(*read);
            let mut stays = true;
            if is_variable(entry, SESSION_VARIABLE) {
                stored.0 = SESSION_ENTRY.store(entry.to_bytes(), &[]);
                stays = false;
            } else if is_variable(entry, PRELOAD) {
                let text = entry.to_bytes();
                let own = own_entry(text, own_path().to_bytes());
                stored.1 = PRELOAD_ENTRY.store(&text[..LIST], &text[own.clone()]);
                stays = strip(*read, own, text.len());
            }
            if stays {
                *write = *read;
                write = write.add(1);
            }
            read = read.add(1);
        }
        *write = core::ptr::null_mut();
    }
    let complete = stored == (true, true);
    IS_COMPLETE.store(complete, SeqCst);
    let session = SESSION_ENTRY.text().to_bytes_with_nul();
    let value = session.get(SESSION_VARIABLE.to_bytes().len() + 1..)?;
    complete.then(|| CStr::from_bytes_with_nul(value).ok()).flatten()
}

/// Where the list starts in `LD_PRELOAD=...`.
const LIST: usize = PRELOAD.to_bytes().len() + 1;

/// The path by which the agent was loaded; empty if the loader has no record of it.
fn own_path() -> &'static CStr {
    let mut found = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: all zeroes are a valid record. The loader fills it, and keeps the name while the agent
    // is loaded.
    unsafe {
        libc::dladdr((own_path as fn() -> &'static CStr as *const ()).cast(), found.as_mut_ptr());
        let name = found.assume_init_ref().dli_fname;
        if name.is_null() { c"" } else { CStr::from_ptr(name) }
    }
}

/// The place of the agent's entry in `LD_PRELOAD=...`: the one with this path, else the first. Other
/// agents may be before it, whose constructors run later.
fn own_entry(text: &[u8], path: &[u8]) -> Range<usize> {
    let entry = |start: usize| {
        let end = text[start..].iter().position(|byte| b": ".contains(byte)).map_or(text.len(), |at| start + at);
        start..end
    };
    let mut own = entry(LIST);
    while text[own.clone()] != *path {
        if own.end == text.len() {
            return entry(LIST);
        }
        own = entry(own.end + 1);
    }
    own
}

/// Removes an entry and a separator from the list of `length` bytes. False if nothing is left.
///
/// # Safety
/// `text` has to be a string of this length that no other code reads.
unsafe fn strip(text: *mut c_char, own: Range<usize>, length: usize) -> bool {
    let (mut start, mut end) = (own.start, own.end);
    if end < length {
        end += 1;
    } else if start > LIST {
        start -= 1;
    }
    // SAFETY: both are in the string with its final NUL.
    unsafe { core::ptr::copy(text.add(end), text.add(start), length + 1 - end) };
    length - (end - start) > LIST
}

/// Records the path of the loader that the main program names.
pub(crate) fn set_loader(path: *const c_char) {
    LOADER.store(path.cast_mut(), SeqCst);
}

/// The path of the loader that this process runs under.
pub(crate) fn loader() -> Option<&'static CStr> {
    let path = LOADER.load(SeqCst);
    // SAFETY: null, or a C string in the PT_INTERP segment of the main program, which stays mapped.
    (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) })
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::string::String;
    use std::vec::Vec;

    use super::*;

    /// The entries that remain in an environment, and the path of the session.
    fn remaining(entries: &[&str]) -> (Vec<String>, Option<String>) {
        let mut texts: Vec<Vec<u8>> =
            entries.iter().map(|&entry| CString::new(entry).unwrap().into_bytes_with_nul()).collect();
        let mut vector: Vec<*mut c_char> = texts.iter_mut().map(|text| text.as_mut_ptr().cast()).collect();
        vector.push(core::ptr::null_mut());
        // SAFETY: the vector holds C strings, ends in null, and is used by this test only.
        let session =
            unsafe { remove_agent_variables(vector.as_mut_ptr()) }.map(|path| String::from(path.to_str().unwrap()));
        let left = vector.iter().take_while(|entry| !entry.is_null());
        // SAFETY: each remaining entry points to one of `texts`.
        let left = left.map(|&entry| String::from(unsafe { CStr::from_ptr(entry) }.to_str().unwrap())).collect();
        (left, session)
    }

    /// One test function, since the stored variables are global.
    #[test]
    fn only_the_agents_variables_are_removed() {
        let (left, session) =
            remaining(&["A=1", "LD_PRELOAD=/agent.so", "B=2", "FIELDSTONE_SESSION=/proc/1/fd/3", "C="]);
        assert_eq!(left, ["A=1", "B=2", "C="]);
        assert_eq!(session.as_deref(), Some("/proc/1/fd/3"));
        let variables = agent_variables().unwrap();
        assert_eq!(
            (variables.preload, variables.session),
            (c"LD_PRELOAD=/agent.so", c"FIELDSTONE_SESSION=/proc/1/fd/3")
        );

        let (left, _) = remaining(&["FIELDSTONE_SESSION=/s", "LD_PRELOAD=/agent.so:/b.so c.so", "LD_PRELOAD_X=1"]);
        assert_eq!(left, ["LD_PRELOAD=/b.so c.so", "LD_PRELOAD_X=1"], "the user's preload stays");
        assert_eq!(agent_variables().unwrap().preload, c"LD_PRELOAD=/agent.so");
        assert_eq!(remaining(&["LD_PRELOAD=/agent.so:", "FIELDSTONE_SESSION=/s"]).0, [""; 0]);

        assert_eq!(remaining(&["LD_PRELOAD=/agent.so", "A=1"]).1, None, "without a session nothing is agent_variables");
        assert!(agent_variables().is_none());
        let long = std::format!("FIELDSTONE_SESSION=/{}", "x".repeat(ENTRY_BYTES));
        assert_eq!(remaining(&[&long, "LD_PRELOAD=/agent.so"]).1, None, "nor with one that cannot be variables");
        assert!(agent_variables().is_none());
    }

    #[test]
    fn the_agents_entry_is_found_and_removed_at_each_place() {
        for (list, left) in [
            ("/sites.so:/region.so:/b.so", "LD_PRELOAD=/sites.so:/b.so"),
            ("/sites.so:/region.so", "LD_PRELOAD=/sites.so"),
            ("/region.so /b.so", "LD_PRELOAD=/b.so"),
            ("/other.so:/region.so.1", "LD_PRELOAD=/region.so.1"),
            ("/region.so", "LD_PRELOAD="),
        ] {
            let mut text = CString::new(std::format!("LD_PRELOAD={list}")).unwrap().into_bytes_with_nul();
            let length = text.len() - 1;
            let own = own_entry(&text[..length], b"/region.so");
            // SAFETY: the string has this length, and is used by this test only.
            let stays = unsafe { strip(text.as_mut_ptr().cast(), own, length) };
            assert_eq!(
                (CStr::from_bytes_until_nul(&text).unwrap().to_str().unwrap(), stays),
                (left, left.len() > LIST)
            );
        }
    }

    #[test]
    fn a_variable_is_its_whole_name() {
        assert!(is_variable(c"LD_PRELOAD=", PRELOAD));
        assert!(!is_variable(c"LD_PRELOAD", PRELOAD));
        assert!(!is_variable(c"LD_PRELOADS=x", PRELOAD));
        assert!(!is_variable(c"xLD_PRELOAD=x", PRELOAD));
    }
}
