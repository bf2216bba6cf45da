//! What happens when the agent is loaded: before any constructor, before any thread.

#![allow(unsafe_code, reason = "runs as a constructor, maps the session")]

use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};

use fieldstone_wire::{Config, DormancyReason, PageKind, ProcessPhase, ProcessSlot, Session};

use crate::elf::{self, Object};
use crate::spans::KNOWN;
use crate::state::{self, TABLE, establish};
use crate::table::{GRANULE, GRANULES, PAGE, State};
use crate::{demote, entries, environment, first_stack, globals, heap, patch, place, raw};

/// Where the region may begin. Far from where Linux puts programs and libraries, above every heap: libc's allocator
/// takes a break that moves down for corruption.
#[cfg(target_arch = "x86_64")]
const BASES: [usize; 3] = [0x6000_0000_0000, 0x6800_0000_0000, 0x5800_0000_0000];
#[cfg(target_arch = "aarch64")]
const BASES: [usize; 3] = [0xc000_0000_0000, 0xd000_0000_0000, 0xb800_0000_0000];

const GIB: usize = 1 << 30;
/// The kernel's longest path.
const PATH_BYTES: usize = 4096;

/// The constructor.
///
/// # Safety
/// Called by the loader alone, with the process's own vectors.
pub(crate) unsafe extern "C" fn start(_argc: c_int, argv: *const *const c_char, envp: *mut *mut c_char) {
    // SAFETY: the loader passes the environment before anybody else has seen it.
    let Some(path) = (unsafe { environment::take(envp) }) else { return };
    let Some(session) = open_session(path) else { return };
    let slot = session.claim();
    state::attach(session, slot);
    let served = serve(&session.config, argv);
    if let Some(slot) = slot {
        if let Err(reason) = served {
            slot.dormant.store(reason as u32, SeqCst);
        }
        introduce(slot, if served.is_ok() { ProcessPhase::Serving } else { ProcessPhase::Dormant });
    }
    if served == Err(DormancyReason::Sanitizer) {
        // SAFETY: the process's own vectors.
        unsafe { start_again(argv, envp) };
    }
}

/// A sanitizer's library refuses to run behind another one: the program starts anew without us, and nothing of it has
/// run yet. Goes on where that fails.
unsafe fn start_again(argv: *const *const c_char, envp: *mut *mut c_char) {
    let mut path = [0u8; PATH_BYTES];
    if !executable(&mut path).is_empty() {
        // SAFETY: a C string, since the buffer is longer than the path, and the caller's vectors.
        unsafe {
            raw::syscall(libc::SYS_execve, [path.as_ptr() as usize, argv as usize, envp as usize, 0, 0, 0]);
        }
    }
}

/// The running program's file; empty where its path is too long.
fn executable(path: &mut [u8; PATH_BYTES]) -> &[u8] {
    let link = c"/proc/self/exe".as_ptr() as usize;
    let arguments = [libc::AT_FDCWD as usize, link, path.as_mut_ptr() as usize, PATH_BYTES - 1, 0, 0];
    // SAFETY: the kernel writes at most the length that it is told.
    let read = unsafe { raw::syscall(libc::SYS_readlinkat, arguments) };
    usize::try_from(read).ok().filter(|&read| read < PATH_BYTES - 1).map_or(&[], |read| &path[..read])
}

fn introduce(slot: &ProcessSlot, phase: ProcessPhase) {
    slot.parent.store(raw::getppid(), Relaxed);
    slot.spans.store(KNOWN.address(), Relaxed);
    slot.base.store(state::base() as u64, Relaxed);
    slot.limit.store(if state::base() == 0 { 0 } else { state::limit() as u64 }, Relaxed);
    slot.reserve_left_bytes.store(state::reserve_left_bytes() as u64, Relaxed);
    slot.phase.store(phase as u32, SeqCst);
    slot.pid.store(raw::getpid(), SeqCst);
}

fn open_session(path: &CStr) -> Option<&'static Session> {
    // SAFETY: a C string.
    let fd = unsafe { raw::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC | libc::O_NONBLOCK) };
    if raw::failed(fd) {
        return None;
    }
    // The path may lead elsewhere by now: a number of a process that ended can belong to another.
    if raw::file_bytes(fd as c_int) < size_of::<Session>() {
        raw::close(fd as c_int);
        return None;
    }
    // SAFETY: no address is named, so nothing that exists is touched.
    let mapped = unsafe { raw::mmap(0, size_of::<Session>(), place::READ_WRITE, libc::MAP_SHARED, fd as c_int, 0) };
    raw::close(fd as c_int);
    if raw::failed(mapped) {
        return None;
    }
    // SAFETY: mapped for the life of the process; the file is long enough, and all that
    // changes in a session is atomic.
    let session = unsafe { &*core::ptr::with_exposed_provenance::<Session>(mapped.cast_unsigned()) };
    session.check().ok().map(|()| session)
}

fn serve(config: &Config, argv: *const *const c_char) -> Result<(), DormancyReason> {
    remember_loader();
    let libc = elf::find(c"libc.so.6").ok_or(DormancyReason::Entries)?;
    if !patch::redirect(&libc, &entries::execution(), &[]) {
        return Err(DormancyReason::Entries);
    }
    if config.process().is_some_and(|name| !is_called(name, argv)) {
        return Err(DormancyReason::OtherName);
    }
    // SAFETY: reads the kernel's own word on the page size.
    if unsafe { libc::getauxval(libc::AT_PAGESZ) } != PAGE as u64 {
        return Err(DormancyReason::PageSize);
    }
    if [c"__asan_init", c"__tsan_init", c"__msan_init"].into_iter().any(elf::any_defines) {
        return Err(DormancyReason::Sanitizer);
    }
    let base = free_range().ok_or(DormancyReason::NoRange)?;
    establish(base, config, memory_bytes());
    forbid_unsafe_hugetlb();
    reserve(usize::try_from(config.reserve_bytes).unwrap_or(usize::MAX));
    take_over(&libc)?;
    settle_also(config.also);
    Ok(())
}

/// What else is to lie on the pages asked for.
fn settle_also(also: u32) {
    if also & Config::GLOBALS != 0 {
        globals::settle_all();
    }
    if also & Config::STACKS != 0 {
        state::serve_stacks();
        first_stack::settle_ahead();
    }
    if also & Config::HINTED != 0 {
        state::serve_hinted();
    }
    if also & Config::DISABLED != 0 {
        state::enable_huge_pages();
    }
}

fn take_over(libc: &Object) -> Result<(), DormancyReason> {
    if !patch::redirect(libc, &entries::memory(), &entries::optional()) || !entries::adopt_libc(libc, heap::start()) {
        return Err(DormancyReason::Entries);
    }
    // SAFETY: both are functions for the life of the process.
    unsafe { libc::pthread_atfork(Some(before_fork), None, Some(after_fork)) };
    Ok(())
}

fn forbid_unsafe_hugetlb() {
    if matches!(state::kind(), PageKind::Hugetlb2m | PageKind::Hugetlb1g) && !demote::allowed() {
        state::forbid_hugetlb();
    }
}

unsafe extern "C" fn before_fork() {
    demote::before_fork();
}

/// The child counts in a slot of its own.
unsafe extern "C" fn after_fork() {
    demote::after_fork();
    let Some(session) = state::session() else { return };
    let slot = session.claim();
    state::set_slot(slot);
    if let Some(slot) = slot {
        introduce(slot, ProcessPhase::Serving);
    }
}

/// The program leaves by `exit`: the supervisor may look at its memory a last time.
pub(crate) extern "C" fn finish() {
    let (Some(session), Some(slot)) = (state::session(), state::slot()) else { return };
    let (serving, leaving) = (ProcessPhase::Serving as u32, ProcessPhase::Leaving as u32);
    if session.config.watched == 0 || slot.phase.compare_exchange(serving, leaving, SeqCst, SeqCst).is_err() {
        return;
    }
    session.attention.fetch_add(1, SeqCst);
    futex(&session.attention, libc::FUTEX_WAKE, 1, None);
    let patience = libc::timespec { tv_sec: 0, tv_nsec: 500_000_000 };
    futex(&slot.phase, libc::FUTEX_WAIT, leaving, Some(&patience));
}

fn futex(word: &AtomicU32, operation: c_int, value: u32, timeout: Option<&libc::timespec>) {
    let timeout = timeout.map_or(0, |timeout| core::ptr::from_ref(timeout) as usize);
    let arguments = [word.as_ptr() as usize, operation as usize, value as usize, timeout, 0, 0];
    // SAFETY: the word is in the mapped session; the call reads it and sleeps or wakes.
    unsafe { raw::syscall(libc::SYS_futex, arguments) };
}

/// Whether the running program's file, or the name it was called by, is `name`.
fn is_called(name: &[u8], argv: *const *const c_char) -> bool {
    let mut path = [0u8; PATH_BYTES];
    let file = executable(&mut path);
    // SAFETY: the loader's vector: its first entry is null or a C string.
    let called = unsafe { (*argv).as_ref() }.map_or(&[][..], |text| unsafe { CStr::from_ptr(text) }.to_bytes());
    [file, called].into_iter().any(|path| path.rsplit(|&byte| byte == b'/').next() == Some(name))
}

unsafe extern "C" fn note_loader(info: *mut libc::dl_phdr_info, _size: usize, _: *mut core::ffi::c_void) -> c_int {
    // SAFETY: the linker's record, lent for the call; its first object is the main program.
    let info = unsafe { &*info };
    // SAFETY: as many headers as the record says.
    let headers = unsafe { core::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    if let Some(header) = headers.iter().find(|header| header.p_type == libc::PT_INTERP) {
        let address = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
        environment::remember_loader(core::ptr::with_exposed_provenance(address));
    }
    1
}

/// Notes the loader that this process runs under.
pub(crate) fn remember_loader() {
    // SAFETY: the callback keeps nothing of the record but a pointer into the main program's own segment.
    unsafe { libc::dl_iterate_phdr(Some(note_loader), core::ptr::null_mut()) };
}

/// A base from which the whole range is free. Random, as every other part of the address space is, unless the
/// process asked for fixed addresses.
fn free_range() -> Option<usize> {
    // SAFETY: reads the process's own persona; 0xffffffff changes nothing.
    let persona = unsafe { raw::syscall(libc::SYS_personality, [0xffff_ffff, 0, 0, 0, 0, 0]) };
    let fixed = persona & libc::ADDR_NO_RANDOMIZE as isize != 0;
    let slide = if fixed { 0 } else { random() % 1024 * GIB };
    BASES.into_iter().map(|base| base + slide).find(|&base| is_free(base))
}

fn random() -> usize {
    // SAFETY: the kernel puts sixteen random bytes there for each process.
    unsafe {
        let bytes = libc::getauxval(libc::AT_RANDOM) as *const [u8; 8];
        if bytes.is_null() { 0 } else { usize::from_le_bytes(*bytes) }
    }
}

fn is_free(base: usize) -> bool {
    // A limit on addresses forbids the trial, not the region, which is mapped piece by piece.
    place::is_free(base, GRANULES * GRANULE)
}

fn memory_bytes() -> usize {
    let info = raw::sysinfo();
    (info.totalram as usize).saturating_mul(info.mem_unit as usize)
}

/// Leaves the first addresses of the region to the heap and maps `bytes` behind them. What the pool or a limit refuses
/// is halved until it fits.
fn reserve(bytes: usize) {
    let heap = memory_bytes().next_power_of_two().div_ceil(GRANULE).min(GRANULES / 4);
    let mut granules = bytes.div_ceil(GRANULE).min(GRANULES / 2);
    let idle = if state::kind() == PageKind::Hugetlb2m { State::ReservedHuge } else { State::Reserved };
    while granules > 0 && !map_reserve(state::address_of(heap), granules * GRANULE, idle) {
        granules /= 2;
    }
    let reserve = heap..heap + granules;
    TABLE.set_floor(reserve.end);
    state::set_reserve(&reserve);
    if let Some(slot) = state::slot() {
        slot.reserve_bytes.store((granules * GRANULE) as u64, Relaxed);
        slot.reserve_refused_bytes.store(bytes.saturating_sub(granules * GRANULE) as u64, Relaxed);
    }
    TABLE.let_go(reserve, idle);
}

/// Maps reserve: hugetlb for [`State::ReservedHuge`].
fn map_reserve(address: usize, bytes: usize, idle: State) -> bool {
    let hugetlb = if idle == State::ReservedHuge { libc::MAP_HUGETLB | libc::MAP_HUGE_2MB } else { 0 };
    if raw::failed(raw::map_new(address, bytes, place::READ_WRITE, hugetlb)) {
        return false;
    }
    if hugetlb == 0 {
        place::settle(address, bytes, 0);
        let untouched = place::populate_most(address, bytes);
        if let Some(slot) = state::slot() {
            slot.reserve_untouched_bytes.store(untouched as u64, Relaxed);
        }
    } else {
        place::populate_huge(address, bytes);
    }
    true
}
