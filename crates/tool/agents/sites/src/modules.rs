//! Which file each frame lies in, by the loader's word. Asked for new sites only.
//!
//! Newer loaders (glibc 2.35) answer without a lock, as the unwinder's tables are found. Older ones lend their list under one: a
//! program whose own allocator maps memory with its lock held could wait there for a thread that looks through the list and
//! allocates. So what is mapped is announced only where the loader is a newer one ([`is_lock_free`]).
//!
//! The program itself is called by the path that it was started by, if that leads to its file: of `redis-server`, a link to
//! `redis-check-rdb`, the kernel knows the latter only.

#![allow(unsafe_code, reason = "reads what the loader lends")]

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::MaybeUninit;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicPtr, AtomicUsize};

use fieldstone_wire::sites::{FRAMES, NO_MODULE, PATH_BYTES};

use crate::start;

/// The running program's file; empty where it cannot be told.
struct Program {
    path: UnsafeCell<[u8; PATH_BYTES]>,
    bytes: AtomicUsize,
}

// SAFETY: written by the constructor alone, before there is a second thread.
unsafe impl Sync for Program {}

static PROGRAM: Program = Program { path: UnsafeCell::new([0; PATH_BYTES]), bytes: AtomicUsize::new(0) };

/// The loader's function that finds a file without a lock; null where it has none.
static FIND: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// As `_dl_find_object` of `dlfcn.h`.
type Find = unsafe extern "C" fn(*const c_void, *mut Found) -> c_int;

/// As `struct dl_find_object` of `dlfcn.h` on x86-64.
#[repr(C)]
struct Found {
    flags: u64,
    start: usize,
    end: usize,
    link_map: *const LinkMap,
    eh_frame: *const c_void,
    reserved: [u64; 7],
}

/// What every loader's `struct link_map` begins with.
#[repr(C)]
struct LinkMap {
    base: u64,
    name: *const c_char,
}

/// Notes what will be asked when sites are new, while no lock can be held.
///
/// # Safety
/// Called by the constructor alone.
pub(crate) unsafe fn prepare() {
    // SAFETY: a C string; nobody else is here.
    unsafe {
        FIND.store(libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr()), Relaxed);
        PROGRAM.bytes.store(note_program(&mut *PROGRAM.path.get()), Relaxed);
    }
}

/// Writes the program's path; its length.
fn note_program(path: &mut [u8; PATH_BYTES]) -> usize {
    // SAFETY: the call writes less than the room that there is, so that the path ends in zero.
    let bytes = unsafe {
        libc::readlink(c"/proc/self/exe".as_ptr(), path.as_mut_ptr().cast(), PATH_BYTES - 1).max(0).cast_unsigned()
    };
    // SAFETY: only tells a word of what the kernel passed.
    let word = unsafe { libc::getauxval(libc::AT_EXECFN) } as usize;
    let started_by = core::ptr::with_exposed_provenance::<c_char>(word);
    // SAFETY: null or a C string of the kernel's, which nobody has had in hand yet.
    let Some(started_by) = (!started_by.is_null()).then(|| unsafe { CStr::from_ptr(started_by) }) else { return bytes };
    let own = CStr::from_bytes_until_nul(path).ok().and_then(file_of);
    let length = started_by.count_bytes();
    if !started_by.to_bytes().starts_with(b"/") || length > PATH_BYTES || own.is_none() || file_of(started_by) != own {
        return bytes;
    }
    path[..length].copy_from_slice(started_by.to_bytes());
    length
}

/// Device and number of a file.
fn file_of(path: &CStr) -> Option<(u64, u64)> {
    let mut status = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the call fills the record, or leaves the zeroes, which are a valid one.
    let (failed, status) = unsafe { (libc::stat(path.as_ptr(), status.as_mut_ptr()), status.assume_init()) };
    (failed == 0).then_some((status.st_dev, status.st_ino))
}

/// Whether a stack is known without waiting for anybody.
pub(crate) fn is_lock_free() -> bool {
    !FIND.load(Relaxed).is_null()
}

/// The number of each frame's module, entered in the record if it is new.
pub(crate) fn of(frames: &[u64]) -> [u16; FRAMES] {
    let mut search = Search { frames, modules: [NO_MODULE; FRAMES] };
    if !is_lock_free() {
        // SAFETY: the callback gets the search that lives here, and only during the call.
        unsafe { libc::dl_iterate_phdr(Some(look_for_frames), (&raw mut search).cast()) };
    } else {
        // SAFETY: the loader's function of this name has this type, and is there.
        let find = unsafe { core::mem::transmute::<*mut c_void, Find>(FIND.load(Relaxed)) };
        for (module, &frame) in search.modules.iter_mut().zip(frames) {
            *module = found(find, frame);
        }
    }
    search.modules
}

fn found(find: Find, frame: u64) -> u16 {
    let mut found = MaybeUninit::<Found>::zeroed();
    // SAFETY: the loader fills the record where it knows a file there, and that file stays: its code is on the stack.
    unsafe {
        // A frame is the address behind a call, which may be the last instruction of all.
        let address = core::ptr::without_provenance::<c_void>(frame as usize - 1);
        if find(address, found.as_mut_ptr()) != 0 {
            return NO_MODULE;
        }
        let found = found.assume_init_ref();
        let map = &*found.link_map;
        number(map.base, map.name, found.start as u64..found.end as u64)
    }
}

struct Search<'a> {
    frames: &'a [u64],
    modules: [u16; FRAMES],
}

unsafe extern "C" fn look_for_frames(info: *mut libc::dl_phdr_info, _: usize, search: *mut c_void) -> c_int {
    // SAFETY: the loader's record, lent for the call, and what `of` passed.
    let (info, search) = unsafe { (&*info, &mut *search.cast::<Search<'_>>()) };
    let range = range(info);
    for (module, frame) in search.modules.iter_mut().zip(search.frames) {
        if range.contains(&(frame - 1)) && *module == NO_MODULE {
            // SAFETY: the loader's own words.
            *module = unsafe { number(info.dlpi_addr, info.dlpi_name, range.clone()) };
        }
    }
    GO_ON
}

const GO_ON: c_int = 0;
const STOP: c_int = 1;

/// # Safety
/// `name` has to be null or a C string.
unsafe fn number(base: u64, name: *const c_char, range: Range<u64>) -> u16 {
    let Some(sites) = start::sites() else { return NO_MODULE };
    // SAFETY: the caller's word.
    let name = if name.is_null() { &[][..] } else { unsafe { CStr::from_ptr(name) }.to_bytes() };
    // The main program has no name in the list.
    let path = if name.is_empty() { program() } else { name };
    sites.intern_module(base, range, path)
}

fn program() -> &'static [u8] {
    // SAFETY: never written again after the constructor.
    let path: &'static [u8; PATH_BYTES] = unsafe { &*PROGRAM.path.get() };
    &path[..PROGRAM.bytes.load(Relaxed)]
}

/// From the first to past the last of the addresses that the file is mapped at.
fn range(info: &libc::dl_phdr_info) -> Range<u64> {
    // SAFETY: as many headers as the record says.
    let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let loaded = || headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    let start = loaded().map(|header| header.p_vaddr).min().unwrap_or(0);
    let end = loaded().map(|header| header.p_vaddr + header.p_memsz).max().unwrap_or(0);
    info.dlpi_addr.wrapping_add(start)..info.dlpi_addr.wrapping_add(end)
}

/// Where the recorder itself lies.
pub(crate) fn ours() -> Range<u64> {
    let mut range = of as *const () as u64..0;
    // SAFETY: the callback gets the range that lives here, and only during the call.
    unsafe { libc::dl_iterate_phdr(Some(look_for_us), (&raw mut range).cast()) };
    range
}

unsafe extern "C" fn look_for_us(info: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
    // SAFETY: the loader's record, lent for the call, and what `ours` passed.
    let (info, found) = unsafe { (&*info, &mut *found.cast::<Range<u64>>()) };
    let range = range(info);
    if !range.contains(&found.start) {
        return GO_ON;
    }
    *found = range;
    STOP
}
