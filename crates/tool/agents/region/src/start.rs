//! The constructor: runs when the agent is loaded, before any other constructor and before any
//! thread.
//!
//! ```text
//! take the environment variables -> map the session -> claim a slot -> find a free range
//!     -> map the reserve -> patch libc -> advise globals and the main stack (--also)
//! ```
//! A step that fails leaves the program unserved ([`DormancyReason`] with the reason); the program runs as
//! without the agent.

#![allow(unsafe_code, reason = "runs as a constructor, maps the session")]

use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};

use fieldstone_wire::{Config, DormancyReason, PageKind, ProcessPhase, ProcessSlot, Session};

use crate::arch::BASES;
use crate::elf::{self, LoadedObject};
use crate::spans::KNOWN_SPANS;
use crate::state::{self, TABLE, initialize};
use crate::table::{GRANULE, GRANULES, GranuleState, PAGE};
use crate::{entries, environment, globals, heap, main_stack, migration, patch, placement, raw};

const GIB: usize = 1 << 30;
/// `PATH_MAX` of Linux.
const PATH_BYTES: usize = 4096;

/// The constructor.
///
/// # Safety
/// Only the loader may call this, with the process's own argument and environment vectors.
pub(crate) unsafe extern "C" fn start(_argc: c_int, argv: *const *const c_char, envp: *mut *mut c_char) {
    // SAFETY: the loader passes the environment vector, and no other code has read it yet.
    let Some(path) = (unsafe { environment::remove_agent_variables(envp) }) else { return };
    let Some(session) = open_session(path) else { return };
    let slot = session.claim();
    state::attach(session, slot);
    let served = serve(&session.config, argv);
    if let Some(slot) = slot {
        if let Err(reason) = served {
            slot.dormant.store(reason as u32, SeqCst);
        }
        publish_slot(slot, if served.is_ok() { ProcessPhase::Serving } else { ProcessPhase::Dormant });
    }
    if served == Err(DormancyReason::Sanitizer) {
        // SAFETY: the loader passed both vectors, and they stay valid for the life of the process.
        unsafe { restart_without_agent(argv, envp) };
    }
}

/// Executes the program again without the agent: a sanitizer's library refuses to load after
/// another one. No code of the program has run yet. Returns if that fails.
unsafe fn restart_without_agent(argv: *const *const c_char, envp: *mut *mut c_char) {
    let mut path = [0u8; PATH_BYTES];
    if !executable(&mut path).is_empty() {
        // SAFETY: the path is NUL-terminated, since the buffer is longer, and the caller passes the
        // loader's vectors.
        unsafe {
            raw::syscall(libc::SYS_execve, [path.as_ptr() as usize, argv as usize, envp as usize, 0, 0, 0]);
        }
    }
}

/// The path of the running program; empty if it is too long.
fn executable(path: &mut [u8; PATH_BYTES]) -> &[u8] {
    let link = c"/proc/self/exe".as_ptr() as usize;
    let arguments = [libc::AT_FDCWD as usize, link, path.as_mut_ptr() as usize, PATH_BYTES - 1, 0, 0];
    // SAFETY: the kernel writes at most `PATH_BYTES - 1` bytes to `path`, which is longer.
    let read = unsafe { raw::syscall(libc::SYS_readlinkat, arguments) };
    usize::try_from(read).ok().filter(|&read| read < PATH_BYTES - 1).map_or(&[], |read| &path[..read])
}

fn publish_slot(slot: &ProcessSlot, phase: ProcessPhase) {
    slot.parent.store(raw::getppid(), Relaxed);
    slot.spans.store(KNOWN_SPANS.address(), Relaxed);
    slot.base.store(state::base() as u64, Relaxed);
    slot.limit.store(if state::base() == 0 { 0 } else { state::limit() as u64 }, Relaxed);
    slot.reserve_left_bytes.store(state::reserve_left_bytes() as u64, Relaxed);
    slot.phase.store(phase as u32, SeqCst);
    slot.pid.store(raw::getpid(), SeqCst);
}

fn open_session(path: &CStr) -> Option<&'static Session> {
    // SAFETY: `path` is a NUL-terminated C string.
    let fd = unsafe { raw::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC | libc::O_NONBLOCK) };
    if raw::failed(fd) {
        return None;
    }
    // The path may name another file by now: the number of an ended process can belong to a new
    // one.
    if raw::file_bytes(fd as c_int) < size_of::<Session>() {
        raw::close(fd as c_int);
        return None;
    }
    // SAFETY: without a fixed address the kernel picks a free range, so no mapping is replaced.
    let mapped = unsafe { raw::mmap(0, size_of::<Session>(), placement::READ_WRITE, libc::MAP_SHARED, fd as c_int, 0) };
    raw::close(fd as c_int);
    if raw::failed(mapped) {
        return None;
    }
    // SAFETY: mapped for the life of the process and long enough (checked above); all fields that
    // change are atomic.
    let session = unsafe { &*core::ptr::with_exposed_provenance::<Session>(mapped.cast_unsigned()) };
    session.check().ok().map(|()| session)
}

fn serve(config: &Config, argv: *const *const c_char) -> Result<(), DormancyReason> {
    record_loader();
    let libc = elf::find(c"libc.so.6").ok_or(DormancyReason::Entries)?;
    if !patch::apply(&libc, &entries::exec_functions(), &[]) {
        return Err(DormancyReason::Entries);
    }
    if config.process().is_some_and(|name| !is_named(name, argv)) {
        return Err(DormancyReason::OtherName);
    }
    // SAFETY: `getauxval` reads the auxiliary vector and has no precondition.
    if unsafe { libc::getauxval(libc::AT_PAGESZ) } != PAGE as u64 {
        return Err(DormancyReason::PageSize);
    }
    if [c"__asan_init", c"__tsan_init", c"__msan_init"].into_iter().any(elf::any_defines) {
        return Err(DormancyReason::Sanitizer);
    }
    let base = free_range().ok_or(DormancyReason::NoRange)?;
    initialize(base, config, memory_bytes());
    forbid_unsafe_hugetlb();
    reserve(usize::try_from(config.reserve_bytes).unwrap_or(usize::MAX));
    patch_libc(&libc)?;
    apply_also(config.also);
    Ok(())
}

/// Applies the options of `--also`.
fn apply_also(also: u32) {
    if also & Config::GLOBALS != 0 {
        globals::advise_all();
    }
    if also & Config::STACKS != 0 {
        state::serve_stacks();
        main_stack::grow_and_advise();
    }
    if also & Config::HINTED != 0 {
        state::ignore_hints();
    }
    if also & Config::DISABLED != 0 {
        state::reenable_huge_pages();
    }
}

fn patch_libc(libc: &LoadedObject) -> Result<(), DormancyReason> {
    if !patch::apply(libc, &entries::memory_functions(), &entries::optional_functions())
        || !entries::record_libc(libc, heap::start())
    {
        return Err(DormancyReason::Entries);
    }
    // SAFETY: both callbacks are functions of the agent, which is never unloaded.
    unsafe { libc::pthread_atfork(Some(before_fork), None, Some(after_fork)) };
    Ok(())
}

fn forbid_unsafe_hugetlb() {
    if matches!(state::kind(), PageKind::Hugetlb2m | PageKind::Hugetlb1g) && !migration::is_supported() {
        state::forbid_hugetlb();
    }
}

unsafe extern "C" fn before_fork() {
    migration::before_fork();
}

/// The child counts in its own slot.
unsafe extern "C" fn after_fork() {
    migration::after_fork();
    let Some(session) = state::session() else { return };
    let slot = session.claim();
    state::set_slot(slot);
    if let Some(slot) = slot {
        publish_slot(slot, ProcessPhase::Serving);
    }
}

/// Runs when the program calls `exit`: the supervisor reads its memory a last time, for at most 0.5
/// s.
pub(crate) extern "C" fn finish() {
    let (Some(session), Some(slot)) = (state::session(), state::slot()) else { return };
    let (serving, leaving) = (ProcessPhase::Serving as u32, ProcessPhase::Leaving as u32);
    if session.config.watched == 0 || slot.phase.compare_exchange(serving, leaving, SeqCst, SeqCst).is_err() {
        return;
    }
    session.attention.fetch_add(1, SeqCst);
    futex(&session.attention, libc::FUTEX_WAKE, 1, None);
    let timeout = libc::timespec { tv_sec: 0, tv_nsec: 500_000_000 };
    futex(&slot.phase, libc::FUTEX_WAIT, leaving, Some(&timeout));
}

fn futex(word: &AtomicU32, operation: c_int, value: u32, timeout: Option<&libc::timespec>) {
    let timeout = timeout.map_or(0, |timeout| core::ptr::from_ref(timeout) as usize);
    let arguments = [word.as_ptr() as usize, operation as usize, value as usize, timeout, 0, 0];
    // SAFETY: the word is in the mapped session, and the kernel only reads it and the timeout.
    unsafe { raw::syscall(libc::SYS_futex, arguments) };
}

/// Whether the program's file, or the name it was executed by, is `name`.
fn is_named(name: &[u8], argv: *const *const c_char) -> bool {
    let mut path = [0u8; PATH_BYTES];
    let file = executable(&mut path);
    // SAFETY: the loader passed `argv`; its first entry is null or a C string.
    let called = unsafe { (*argv).as_ref() }.map_or(&[][..], |text| unsafe { CStr::from_ptr(text) }.to_bytes());
    [file, called].into_iter().any(|path| path.rsplit(|&byte| byte == b'/').next() == Some(name))
}

unsafe extern "C" fn visit_main_program(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    _: *mut core::ffi::c_void,
) -> c_int {
    // SAFETY: the linker lends the record for this call; its first object is the main program.
    let info = unsafe { &*info };
    // SAFETY: the record gives the address and the number of the program headers.
    let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    if let Some(header) = headers.iter().find(|header| header.p_type == libc::PT_INTERP) {
        let address = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
        environment::set_loader(core::ptr::with_exposed_provenance(address));
    }
    1
}

/// Records the loader that this process runs under.
pub(crate) fn record_loader() {
    // SAFETY: the callback keeps only a pointer into a segment of the main program, which stays
    // mapped.
    unsafe { libc::dl_iterate_phdr(Some(visit_main_program), core::ptr::null_mut()) };
}

/// A base from which the whole range is free. It is random unless the process disabled address
/// randomization.
fn free_range() -> Option<usize> {
    // SAFETY: the argument 0xffffffff reads the personality and changes nothing.
    let persona = unsafe { raw::syscall(libc::SYS_personality, [0xffff_ffff, 0, 0, 0, 0, 0]) };
    let fixed = persona & libc::ADDR_NO_RANDOMIZE as isize != 0;
    let slide = if fixed { 0 } else { random() % 1024 * GIB };
    BASES.into_iter().map(|base| base + slide).find(|&base| is_free(base))
}

fn random() -> usize {
    // SAFETY: `AT_RANDOM` is null or points to 16 random bytes that the kernel wrote for this
    // process.
    unsafe {
        let bytes = libc::getauxval(libc::AT_RANDOM) as *const [u8; 8];
        if bytes.is_null() { 0 } else { usize::from_le_bytes(*bytes) }
    }
}

fn is_free(base: usize) -> bool {
    // A limit on addresses makes this trial fail; the region is mapped piece by piece and still
    // works.
    placement::is_free(base, GRANULES * GRANULE)
}

fn memory_bytes() -> usize {
    let info = raw::sysinfo();
    (info.totalram as usize).saturating_mul(info.mem_unit as usize)
}

/// Leaves the first addresses of the region to the heap and maps `bytes` behind them. Halves the
/// size until the pool and the limits allow it.
fn reserve(bytes: usize) {
    let heap = memory_bytes().next_power_of_two().div_ceil(GRANULE).min(GRANULES / 4);
    let mut granules = bytes.div_ceil(GRANULE).min(GRANULES / 2);
    let unused = if state::kind() == PageKind::Hugetlb2m { GranuleState::ReservedHuge } else { GranuleState::Reserved };
    while granules > 0 && !map_reserve(state::address_of(heap), granules * GRANULE, unused) {
        granules /= 2;
    }
    let reserve = heap..heap + granules;
    TABLE.set_floor(reserve.end);
    state::set_reserve(&reserve);
    if let Some(slot) = state::slot() {
        slot.reserve_bytes.store((granules * GRANULE) as u64, Relaxed);
        slot.reserve_refused_bytes.store(bytes.saturating_sub(granules * GRANULE) as u64, Relaxed);
    }
    TABLE.set_states(reserve, unused);
}

/// Maps reserve memory: hugetlb pages for [`GranuleState::ReservedHuge`].
fn map_reserve(address: usize, bytes: usize, unused: GranuleState) -> bool {
    let hugetlb = if unused == GranuleState::ReservedHuge { libc::MAP_HUGETLB | libc::MAP_HUGE_2MB } else { 0 };
    if raw::failed(raw::map_new(address, bytes, placement::READ_WRITE, hugetlb)) {
        return false;
    }
    if hugetlb == 0 {
        placement::apply_page_kind(address, bytes, 0);
        let untouched = placement::populate_reserve(address, bytes);
        if let Some(slot) = state::slot() {
            slot.reserve_untouched_bytes.store(untouched as u64, Relaxed);
        }
    } else {
        placement::populate_huge(address, bytes);
    }
    true
}
