//! The two environment variables that bring the recorder along, and hiding them from the program.
//!
//! They do not come back for the programs that this one starts: those run without the tracer too.

#![allow(unsafe_code, reason = "edits the environment block that the kernel laid out, before anybody reads it")]

use core::ffi::{CStr, c_char};

use fieldstone_wire::sites::SITES_VARIABLE;

/// The variable by which the loader finds the recorder, first of its list.
const PRELOAD: &CStr = c"LD_PRELOAD";

/// Takes the recorder's variables out of the environment. The record's path, if it was there.
///
/// # Safety
/// `envp` has to be the program's environment vector, which stays where it is, and nobody else may be reading it.
pub(crate) unsafe fn take(envp: *mut *mut c_char) -> Option<&'static CStr> {
    // SAFETY: the caller's word; what is taken out of the vector stays in the block behind it.
    unsafe {
        let path = remove(envp, SITES_VARIABLE)?;
        if let Some(list) = remove(envp, PRELOAD) {
            // What the user preloads stays: its entry is shortened in place, and goes where the vector ends now.
            let text = list.to_bytes();
            let rest = text.iter().position(|byte| b": ".contains(byte)).map_or(&[][..], |end| &text[end + 1..]);
            if !rest.is_empty() {
                let start = list.as_ptr().cast_mut();
                core::ptr::copy(rest.as_ptr().cast(), start, rest.len() + 1);
                append(envp, start.sub(PRELOAD.to_bytes().len() + 1));
            }
        }
        Some(path)
    }
}

/// Takes `name=value` out of the vector. The value of the last one that was there.
unsafe fn remove(envp: *mut *mut c_char, name: &CStr) -> Option<&'static CStr> {
    let (mut read, mut write, mut value) = (envp, envp, None);
    // SAFETY: the vector ends in null, and `write` never passes `read`.
    unsafe {
        while !(*read).is_null() {
            let entry: &'static CStr = CStr::from_ptr(*read);
            let rest = entry.to_bytes_with_nul().strip_prefix(name.to_bytes());
            match rest.and_then(|rest| rest.strip_prefix(b"=")) {
                Some(rest) => value = CStr::from_bytes_with_nul(rest).ok(),
                None => {
                    *write = *read;
                    write = write.add(1);
                }
            }
            read = read.add(1);
        }
        *write = core::ptr::null_mut();
    }
    value
}

/// Puts an entry at the end of the vector, out of which one was removed before.
unsafe fn append(envp: *mut *mut c_char, entry: *mut c_char) {
    let mut end = envp;
    // SAFETY: the vector ends in null, and behind that null there is the place of the entry that was removed.
    unsafe {
        while !(*end).is_null() {
            end = end.add(1);
        }
        *end = entry;
        *end.add(1) = core::ptr::null_mut();
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::string::String;
    use std::vec::Vec;

    use super::*;

    /// What `take` leaves of an environment, and the record's path.
    fn taken(entries: &[&str]) -> (Vec<String>, Option<String>) {
        let texts = entries.iter().map(|&entry| CString::new(entry).unwrap().into_raw());
        let mut vector: Vec<*mut c_char> = texts.chain([core::ptr::null_mut()]).collect();
        // SAFETY: a vector of C strings that ends in null, of this test alone, whose strings are never freed.
        let path = unsafe { take(vector.as_mut_ptr()) }.map(|path| String::from(path.to_str().unwrap()));
        let left = vector.iter().take_while(|entry| !entry.is_null());
        // SAFETY: each that is left is one of the strings above.
        let left = left.map(|&entry| String::from(unsafe { CStr::from_ptr(entry) }.to_str().unwrap())).collect();
        (left, path)
    }

    #[test]
    fn the_recorders_variables_are_taken_and_no_others() {
        let (left, path) = taken(&["A=1", "LD_PRELOAD=/sites.so", "B=2", "FIELDSTONE_SITES=/proc/1/fd/3", "C="]);
        assert_eq!(left, ["A=1", "B=2", "C="]);
        assert_eq!(path.as_deref(), Some("/proc/1/fd/3"));
    }

    #[test]
    fn what_the_user_preloads_stays() {
        let (left, path) = taken(&["FIELDSTONE_SITES=/s", "LD_PRELOAD=/sites.so:/b.so c.so", "LD_PRELOAD_X=1"]);
        assert_eq!(left, ["LD_PRELOAD_X=1", "LD_PRELOAD=/b.so c.so"]);
        assert_eq!(path.as_deref(), Some("/s"));
        assert_eq!(taken(&["LD_PRELOAD=/sites.so:", "FIELDSTONE_SITES=/s"]).0, [""; 0]);
    }

    #[test]
    fn without_a_record_nothing_is_touched() {
        assert_eq!(taken(&["LD_PRELOAD=/a.so", "A=1"]), (std::vec!["LD_PRELOAD=/a.so".into(), "A=1".into()], None));
    }
}
