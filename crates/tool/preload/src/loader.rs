//! The loaded file of an address, by `_dl_find_object` of glibc 2.35 and later, which takes no lock.

#![allow(unsafe_code, reason = "calls a function of the loader that is found at run time")]

use core::ffi::{c_char, c_int, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::{Acquire, Release};

/// The loader's function; null if it has none.
static FIND_OBJECT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// The type of `_dl_find_object` of `dlfcn.h`.
type FindObject = unsafe extern "C" fn(*const c_void, *mut FoundObject) -> c_int;

/// `struct dl_find_object` of `dlfcn.h` on x86-64.
#[repr(C)]
#[derive(Debug)]
pub struct FoundObject {
    flags: u64,
    /// The first address of the file's mappings.
    pub start: usize,
    /// The end of its mappings.
    pub end: usize,
    /// The loader's record of the file. It stays while the file is loaded.
    pub link_map: *const LinkMap,
    /// The address of `.eh_frame_hdr`; null if the file has none.
    pub eh_frame: *const c_void,
    reserved: [u64; 7],
}

/// The first fields of each loader's `struct link_map`.
#[repr(C)]
#[derive(Debug)]
pub struct LinkMap {
    /// The distance from addresses in the file to addresses in memory.
    pub base: usize,
    /// The path of the file, a C string; empty for the main program.
    pub name: *const c_char,
}

/// Looks up the loader's function, while no lock can be held.
pub fn prepare() {
    // SAFETY: the name is a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr()) };
    FIND_OBJECT.store(found, Release);
}

/// Whether the loader has the function and [`prepare`] was called.
pub fn is_available() -> bool {
    !FIND_OBJECT.load(Acquire).is_null()
}

/// The file that contains an address. `None` also if [`is_available`] is false.
pub fn find(address: usize) -> Option<FoundObject> {
    let pointer = FIND_OBJECT.load(Acquire);
    if pointer.is_null() {
        return None;
    }
    let mut found = MaybeUninit::<FoundObject>::zeroed();
    // SAFETY: the pointer is the loader's `_dl_find_object`, which has this type. It fills the
    // record if it returns 0, and all zeroes are a valid record.
    unsafe {
        let find = core::mem::transmute::<*mut c_void, FindObject>(pointer);
        (find(core::ptr::without_provenance(address), found.as_mut_ptr()) == 0).then(|| found.assume_init())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_has_its_file_and_other_memory_has_none() {
        prepare();
        let code = prepare as *const () as usize;
        let Some(found) = find(code) else {
            assert!(!is_available(), "a loader with the function finds this program");
            return;
        };
        assert!((found.start..found.end).contains(&code));
        let local = 0;
        assert!(find(&raw const local as usize).is_none(), "a stack is no file");
    }
}
