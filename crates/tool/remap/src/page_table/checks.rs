//! Checks before a page moves: memory or threads that forbid it.
//!
//! A page must not move if some access to it cannot wait. Such accesses are those of devices and
//! kernel workers, those of the kernel when a thread exits, and those to the thread's stack.

use std::iter;

use fieldstone_sys::smaps::Mapping;

use crate::error::Result;
use crate::page_table::futex;
use crate::page_table::moved::{PageMap, page_error, page_with};
use crate::space::peculiarity;
use crate::tracer::Tracer;
use crate::tracer::status::{has_seccomp_filter, is_kernel_worker, locked_kib, pinned_kib, threads_of};
use crate::tracer::traced_thread::is_64_bit;

/// Maximum size of a C library's thread control block, from the thread pointer on, in bytes.
const CONTROL_BLOCK_BYTES: u64 = 2560;
/// Maximum number of robust mutexes that the kernel visits when a thread exits.
const MAX_ROBUST: usize = 2048;
const PR_GET_TID_ADDRESS: u64 = 40;

/// The mapping of a page that may move.
///
/// # Errors
/// [`Error::Page`](crate::Error::Page) with the reason if it must not.
pub(crate) fn movable_mapping(pid: u32, table: &[Mapping], page: u64) -> Result<&Mapping> {
    let mapping = table.iter().find(|mapping| mapping.range().contains(&page));
    let mapping = mapping.ok_or_else(|| page_error(page, "it is not mapped"))?;
    if !mapping.has_permissions("rw-p") {
        let why = "it is no private memory that can be written: other processes, or code, may be in it";
        return Err(page_error(page, why));
    }
    // Asynchronous I/O and devices write physical memory and cause no fault.
    let is_asynchronous =
        |mapping: &Mapping| mapping.name.starts_with("/[aio]") || mapping.name == "anon_inode:[io_uring]";
    let has_workers = table.iter().any(is_asynchronous) || threads_of(pid).into_iter().any(is_kernel_worker);
    if pinned_kib(pid) > 0 || has_workers {
        return Err(page_error(page, "the kernel or a device may write to the program's memory by itself"));
    }
    if mapping.name.starts_with("[stack") {
        return Err(page_error(page, "it is on a stack"));
    }
    if let Some(why) = peculiarity(pid, page) {
        return Err(page_error(page, why));
    }
    // After mlockall(2) a new mapping is filled at once.
    if mapping.is_file() && locked_kib(pid) > 0 {
        return Err(page_error(page, "it is a file's, and the program has locked memory"));
    }
    Ok(mapping)
}

/// Checks that no thread has its stack or its control block in a page, and that the kernel does not
/// access the page when a thread exits: such an access does not wait. `scratch` is memory for a
/// result of prctl(2).
///
/// # Errors
/// [`Error::Page`](crate::Error::Page) with the reason if one has.
pub(crate) fn check_threads(tracer: &mut Tracer, pages: &PageMap, page: u64, scratch: u64) -> Result<()> {
    let is_on_page = |address| page_with(address) == page;
    for thread in tracer.threads() {
        let Some((traced, _)) = tracer.stopped(thread) else { continue };
        let registers = traced.tracee.registers()?;
        if is_on_page(registers.rsp) {
            return Err(page_error(page, "it is on a stack"));
        }
        if !is_64_bit(&registers) {
            return Err(page_error(page, "a thread is in code of 32 bits"));
        }
        if futex::written_words(&registers).into_iter().any(is_on_page) {
            return Err(page_error(page, "a thread waits for a mutex in it that inherits priority"));
        }
        let block = registers.fs_base;
        let ends = [block.saturating_sub(1), block, block.saturating_add(CONTROL_BLOCK_BYTES)];
        if block != 0 && ends.into_iter().any(is_on_page) {
            return Err(page_error(page, "a thread's own block lies in it"));
        }
        let is_unfit = |address| is_on_page(address) || pages.contains_address(address);
        if exit_addresses(tracer, pages, thread, scratch)?.into_iter().any(is_unfit) {
            let why = "the kernel writes to it when a thread ends: its number, or a robust mutex that it holds";
            return Err(page_error(page, why));
        }
    }
    Ok(())
}

/// Addresses that the kernel accesses when a thread exits.
fn exit_addresses(tracer: &mut Tracer, pages: &PageMap, thread: u32, scratch: u64) -> Result<Vec<u64>> {
    let mut found = Vec::new();
    // For the first thread, the kernel clears a word of the control block, which is checked
    // already.
    if thread != tracer.pid() && tracer.stopped(thread).is_some() && !has_seccomp_filter(thread) {
        let arguments = [PR_GET_TID_ADDRESS, scratch, 0, 0, 0, 0];
        // Kernels without CONFIG_CHECKPOINT_RESTORE fail here.
        let is_known =
            tracer.call_by(thread, ("prctl", libc::SYS_prctl), arguments).is_some_and(|result| result.is_ok());
        if is_known {
            found.push(tracer.memory().word(scratch)?);
        }
    }
    found.extend(robust_mutexes(tracer, pages, thread)?);
    Ok(found)
}

/// Addresses of the robust list of a thread, which the kernel visits when the thread exits. The
/// list ends at the first moved page, which cannot be read at its own address.
///
/// # Errors
/// As ptrace(2).
pub(crate) fn robust_mutexes(tracer: &mut Tracer, pages: &PageMap, thread: u32) -> Result<Vec<u64>> {
    let Some(traced) = tracer.thread(thread) else { return Ok(Vec::new()) };
    let head = traced.tracee.robust_list()?;
    if head == 0 {
        return Ok(Vec::new());
    }
    let memory = tracer.memory();
    let read = |address: u64| if pages.contains_address(address) { None } else { memory.word(address).ok() };
    let (Some(offset), Some(pending)) = (read(head.wrapping_add(8)), read(head.wrapping_add(16))) else {
        return Ok(vec![head]);
    };
    // The lowest bit of a link marks a priority-inheriting mutex.
    let is_mutex = |&link: &u64| ![0, head].contains(&(link & !1));
    let listed = iter::successors(read(head), |link| read(link & !1)).take_while(is_mutex).take(MAX_ROBUST);
    let links = listed.chain(Some(pending).filter(is_mutex)).map(|link| link & !1);
    Ok(iter::once(head).chain(links.flat_map(|link| [link, link.wrapping_add(offset)])).collect())
}
