//! The file of each frame, from the dynamic loader. Used for new sites only.
//!
//! Newer loaders (glibc 2.35) find a file without a lock, and the unwinder its tables. Older ones
//! hold a lock on their list: a program whose allocator maps memory under its own lock could
//! deadlock with a thread that walks the list and allocates. So mapped memory is announced only
//! with a newer loader ([`loader::is_available`]).
//!
//! The program itself is recorded by the path that it was started by, if that names its file: of
//! `redis-server`, a link to `redis-check-rdb`, the kernel knows the target only.

#![allow(unsafe_code, reason = "reads records of the loader")]

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::MaybeUninit;
use core::ops::Range;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

use fieldstone_preload::loader;
use fieldstone_wire::sites::{FRAMES, NO_MODULE, PATH_BYTES};

use crate::start;

/// The path of the running program; empty if it cannot be read.
struct ProgramPath {
    path: UnsafeCell<[u8; PATH_BYTES]>,
    bytes: AtomicUsize,
}

// SAFETY: written only by the constructor, before there is a second thread.
unsafe impl Sync for ProgramPath {}

static PROGRAM: ProgramPath = ProgramPath { path: UnsafeCell::new([0; PATH_BYTES]), bytes: AtomicUsize::new(0) };

/// Looks up what new sites need, while no lock can be held.
///
/// # Safety
/// Only the constructor may call this.
pub(crate) unsafe fn prepare() {
    loader::prepare();
    // SAFETY: no other thread accesses `PROGRAM` during the constructor.
    unsafe {
        PROGRAM.bytes.store(write_program_path(&mut *PROGRAM.path.get()), Relaxed);
    }
}

/// Writes the path of the program and returns its length.
fn write_program_path(path: &mut [u8; PATH_BYTES]) -> usize {
    // SAFETY: the call writes at most `PATH_BYTES - 1` bytes, so the zeroed buffer stays
    // NUL-terminated.
    let bytes = unsafe {
        libc::readlink(c"/proc/self/exe".as_ptr(), path.as_mut_ptr().cast(), PATH_BYTES - 1).max(0).cast_unsigned()
    };
    // SAFETY: `getauxval` reads the auxiliary vector and has no precondition.
    let address = unsafe { libc::getauxval(libc::AT_EXECFN) } as usize;
    let exec_path = core::ptr::with_exposed_provenance::<c_char>(address);
    // SAFETY: null or a C string of the kernel that no code has changed yet.
    let Some(exec_path) = (!exec_path.is_null()).then(|| unsafe { CStr::from_ptr(exec_path) }) else { return bytes };
    let executable = CStr::from_bytes_until_nul(path).ok().and_then(file_identity);
    let length = exec_path.count_bytes();
    if !exec_path.to_bytes().starts_with(b"/")
        || length > PATH_BYTES
        || executable.is_none()
        || file_identity(exec_path) != executable
    {
        return bytes;
    }
    path[..length].copy_from_slice(exec_path.to_bytes());
    length
}

/// The device and inode of a file.
fn file_identity(path: &CStr) -> Option<(u64, u64)> {
    let mut status = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the call writes within the record, and all zeroes are a valid value of it.
    let (failed, status) = unsafe { (libc::stat(path.as_ptr(), status.as_mut_ptr()), status.assume_init()) };
    (failed == 0).then_some((status.st_dev, status.st_ino))
}

/// The number of the module of each frame, added to the record if it is new.
pub(crate) fn of_frames(frames: &[u64]) -> [u16; FRAMES] {
    let mut search = ModuleSearch { frames, modules: [NO_MODULE; FRAMES] };
    if !loader::is_available() {
        // SAFETY: the callback gets a pointer to `search`, which outlives the call.
        unsafe { libc::dl_iterate_phdr(Some(visit_for_frames), (&raw mut search).cast()) };
    } else {
        for (module, &frame) in search.modules.iter_mut().zip(frames) {
            *module = module_of(frame);
        }
    }
    search.modules
}

fn module_of(frame: u64) -> u16 {
    // A frame is a return address; a call may be the last instruction of a file.
    let Some(found) = loader::find(frame as usize - 1) else { return NO_MODULE };
    // SAFETY: the loader's record is valid: the file stays loaded, since its code is on the stack.
    unsafe {
        let map = &*found.link_map;
        module_number(map.base as u64, map.name, found.start as u64..found.end as u64)
    }
}

struct ModuleSearch<'a> {
    frames: &'a [u64],
    modules: [u16; FRAMES],
}

unsafe extern "C" fn visit_for_frames(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: the loader lends its record for this call, and `of_frames` passed the search.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<ModuleSearch<'_>>()) };
    let range = range(info);
    for (module, frame) in search.modules.iter_mut().zip(search.frames) {
        if range.contains(&(frame - 1)) && *module == NO_MODULE {
            // SAFETY: base and name come from the loader's record.
            *module = unsafe { module_number(info.dlpi_addr, info.dlpi_name, range.clone()) };
        }
    }
    CONTINUE
}

const CONTINUE: c_int = 0;
const STOP: c_int = 1;

/// # Safety
/// `name` has to be null or a C string.
unsafe fn module_number(base: u64, name: *const c_char, range: Range<u64>) -> u16 {
    let Some(sites) = start::sites() else { return NO_MODULE };
    // SAFETY: the caller guarantees that `name` is a C string if not null.
    let name = if name.is_null() { &[][..] } else { unsafe { CStr::from_ptr(name) }.to_bytes() };
    // The main program has an empty name in the list.
    let path = if name.is_empty() { program_path() } else { name };
    sites.intern_module(base, range, path)
}

fn program_path() -> &'static [u8] {
    // SAFETY: the path is not written after the constructor.
    let path: &'static [u8; PATH_BYTES] = unsafe { &*PROGRAM.path.get() };
    &path[..PROGRAM.bytes.load(Relaxed)]
}

/// The address range of the file's mappings.
fn range(info: &libc::dl_phdr_info) -> Range<u64> {
    // SAFETY: the record gives the address and the number of the program headers.
    let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let loaded = || headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    let start = loaded().map(|header| header.p_vaddr).min().unwrap_or(0);
    let end = loaded().map(|header| header.p_vaddr + header.p_memsz).max().unwrap_or(0);
    info.dlpi_addr.wrapping_add(start)..info.dlpi_addr.wrapping_add(end)
}

/// The address range of the recorder itself.
pub(crate) fn own_range() -> Range<u64> {
    let mut range = of_frames as *const () as u64..0;
    // SAFETY: the callback gets a pointer to `range`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit_for_recorder), (&raw mut range).cast()) };
    range
}

unsafe extern "C" fn visit_for_recorder(info: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
    // SAFETY: the loader lends its record for this call, and `own_range` passed the range.
    let (info, found) = unsafe { (&*info, &mut *found.cast::<Range<u64>>()) };
    let range = range(info);
    if !range.contains(&found.start) {
        return CONTINUE;
    }
    *found = range;
    STOP
}
