//! Removes the two environment variables that load the recorder, so that the program does not see
//! them.
//!
//! Programs that this one starts do not get them: those run without the tracer too.

#![allow(unsafe_code, reason = "edits the environment block of the kernel before any other code reads it")]

use core::ffi::{CStr, c_char};

use fieldstone_wire::sites::SITES_VARIABLE;

/// The variable that makes the loader load the recorder, the first of its list.
const PRELOAD: &CStr = c"LD_PRELOAD";

/// Removes the recorder's variables from the environment. Returns the path of the record, if it was
/// there.
///
/// # Safety
/// `envp` has to be the environment vector of the process, at its final place, and no other code
/// may read it.
pub(crate) unsafe fn remove_recorder_variables(envp: *mut *mut c_char) -> Option<&'static CStr> {
    // SAFETY: the caller passes the vector of the process; removed strings stay in the block behind
    // it.
    unsafe {
        let path = remove(envp, SITES_VARIABLE)?;
        if let Some(list) = remove(envp, PRELOAD) {
            // The user's own list stays: its entry is shortened in place and moves to the end of
            // the vector.
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

/// Removes `name=value` from the vector. Returns the value of the last such entry.
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

/// Appends an entry to the vector, from which an entry was removed before.
unsafe fn append(envp: *mut *mut c_char, entry: *mut c_char) {
    let mut end = envp;
    // SAFETY: the vector ends in null, followed by the slot of the removed entry.
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

    /// The entries that remain in an environment, and the path of the record.
    fn remaining(entries: &[&str]) -> (Vec<String>, Option<String>) {
        let texts = entries.iter().map(|&entry| CString::new(entry).unwrap().into_raw());
        let mut vector: Vec<*mut c_char> = texts.chain([core::ptr::null_mut()]).collect();
        // SAFETY: the vector holds C strings that are never freed, ends in null, and is used by
        // this test only.
        let path =
            unsafe { remove_recorder_variables(vector.as_mut_ptr()) }.map(|path| String::from(path.to_str().unwrap()));
        let left = vector.iter().take_while(|entry| !entry.is_null());
        // SAFETY: each remaining entry points to one of the strings above.
        let left = left.map(|&entry| String::from(unsafe { CStr::from_ptr(entry) }.to_str().unwrap())).collect();
        (left, path)
    }

    #[test]
    fn only_the_recorders_variables_are_removed() {
        let (left, path) = remaining(&["A=1", "LD_PRELOAD=/sites.so", "B=2", "FIELDSTONE_SITES=/proc/1/fd/3", "C="]);
        assert_eq!(left, ["A=1", "B=2", "C="]);
        assert_eq!(path.as_deref(), Some("/proc/1/fd/3"));
    }

    #[test]
    fn the_users_preload_list_stays() {
        let (left, path) = remaining(&["FIELDSTONE_SITES=/s", "LD_PRELOAD=/sites.so:/b.so c.so", "LD_PRELOAD_X=1"]);
        assert_eq!(left, ["LD_PRELOAD_X=1", "LD_PRELOAD=/b.so c.so"]);
        assert_eq!(path.as_deref(), Some("/s"));
        assert_eq!(remaining(&["LD_PRELOAD=/sites.so:", "FIELDSTONE_SITES=/s"]).0, [""; 0]);
    }

    #[test]
    fn without_a_record_the_environment_is_unchanged() {
        assert_eq!(remaining(&["LD_PRELOAD=/a.so", "A=1"]), (std::vec!["LD_PRELOAD=/a.so".into(), "A=1".into()], None));
    }
}
