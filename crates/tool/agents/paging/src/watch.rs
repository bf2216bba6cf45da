//! The work of the agent's thread.
//!
//! ```text
//! far below the bound   sleeps; reads /proc/self/statm
//! near the bound        adopts the program's memory, then serves faults;
//!                       looks for new memory when mapped or resident memory has changed
//! ```
//! Private memory that is not paged counts too: the pager's bound is this process's part of the
//! user's bound ([`crate::share`]) less that memory.

#![allow(unsafe_code, reason = "unmaps memory of a forked parent")]

use core::ops::Range;
use core::ptr::null_mut;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize};

use fieldstone_paging::{Callbacks, Pager, Stores};
use fieldstone_preload::line;
use fieldstone_wire::paging::{PagingConfig, PagingProcess};

use crate::maps::{MemorySize, for_each_mapping, processor};
use crate::raw::PAGE;
use crate::share::Share;
use crate::thread::Thread;
use crate::{advice, loss, raw, sites, start, thread, threads};

/// Bytes of a thread's control block that the kernel may write when the thread ends.
const CONTROL_BLOCK: usize = 2400;

/// How much memory a program can touch in a millisecond, in pages: 8 GB/s.
const PAGES_A_MILLISECOND: usize = 2048;

/// Milliseconds between two looks at the program's memory while it is paged.
const INTERVAL: u32 = 2;

/// Milliseconds that the evictor sleeps at most.
const IDLE: u32 = 1000;

/// The part of the bound that pages get at least, as a divisor: with less, a program would only wait
/// for its pages.
const LEAST_SHARE: usize = 4;

/// The start and the end of the pager's own memory.
static OWN: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
/// A page that the pager has registered; 0 before there is a pager.
static REGISTERED: AtomicUsize = AtomicUsize::new(0);
/// The number of children that had got their pages before this process forked.
static CHILDREN: AtomicU64 = AtomicU64::new(0);

/// The pager of this process, for the evictor.
static PAGER: AtomicPtr<Pager> = AtomicPtr::new(null_mut());

/// Before a fork: remembers how many children have got their pages.
pub(crate) fn before_fork() {
    let children = start::session().map_or(0, |(_, process)| process.counters.children.load(SeqCst));
    CHILDREN.store(children, SeqCst);
}

/// In a forked child: waits until the parent's pager has given it all pages. The wait ends when the
/// parent has copied what it has stored, or has ended.
pub(crate) fn await_pages() {
    let registered = REGISTERED.swap(0, SeqCst);
    if registered == 0 {
        return;
    }
    while fieldstone_paging::is_served_by_parent(registered) == Some(true) {
        raw::sleep_briefly();
    }
    let children = start::session().map_or(0, |(_, process)| process.counters.children.load(SeqCst));
    if children == CHILDREN.load(SeqCst) {
        raw::write_error(
            b"fieldstone: a forked process ends: its parent ended before it had copied the child's memory\n",
        );
        raw::end_process();
    }
}

/// Unmaps the memory of the pager that the parent of this forked process has.
pub(crate) fn forget_in_child() {
    let [start, end] = OWN.each_ref().map(|end| end.swap(0, Relaxed));
    // SAFETY: the parent's pager is not in this process, and nothing else uses its memory.
    unsafe { raw::unmap(start..end) };
}

/// The entry of the thread.
pub(crate) extern "C" fn run() -> ! {
    raw::set_thread_name(c"fs-pager");
    if let Some(((session, process), share)) = start::session().zip(start::share()) {
        watch(&session.config, process, share);
    }
    raw::exit_thread()
}

/// The entry of the evictor.
extern "C" fn evict() -> ! {
    raw::set_thread_name(c"fs-evictor");
    // SAFETY: the pager is on the stack of the other thread, which set this and never returns.
    let pager = unsafe { PAGER.load(Acquire).as_ref() };
    loop {
        match pager {
            Some(pager) => pager.evict_ahead(IDLE),
            None => raw::exit_thread(),
        }
    }
}

fn watch(config: &PagingConfig, process: &'static PagingProcess, mut share: Share) {
    let bound = (config.bound_bytes as usize / PAGE).max(1);
    let Some(size) = MemorySize::open() else { return };
    loop {
        let (_, private) = size.read();
        process.unpaged.store(private as u64, Relaxed);
        let room = (share.allowed(bound) / 4 * 3).saturating_sub(private);
        if room == 0 {
            break;
        }
        raw::sleep((room / PAGES_A_MILLISECOND / 2).clamp(1, 100) as u32);
    }
    start::record_guarded();
    let stores = Stores {
        lz4_bytes: config.lz4_bytes as usize,
        zstd_bytes: config.zstd_bytes as usize,
        file: config.directory(),
        exchange: start::exchange(),
        order: config.order,
    };
    let callbacks = Callbacks { wiped: advice::visit_wiped, on_loss: &loss::report, on_fault: sites::record };
    match Pager::new(bound * PAGE, stores, &process.counters, callbacks) {
        Ok(pager) => {
            let own = pager.own_range();
            REGISTERED.store(pager.registered_page(), SeqCst);
            OWN[0].store(own.start, Relaxed);
            OWN[1].store(own.end, Relaxed);
            PAGER.store(core::ptr::from_ref(&pager).cast_mut(), Release);
            thread::spawn(Thread::Evictor, evict);
            serve(&pager, &size, process, bound, share)
        }
        Err(error) => {
            process.refused_errno.store(error.errno().cast_unsigned(), Relaxed);
            line::print(format_args!("fieldstone: {} runs without a bound: {error}", process.name));
        }
    }
}

/// Serves the faults of the process until its end.
fn serve(pager: &Pager, size: &MemorySize, process: &PagingProcess, bound: usize, mut share: Share) -> ! {
    let mut buffer = [0; 16 << 10];
    let (mut has_new, mut last) = (true, 0);
    let (mut looked, mut has_warned, mut is_full, mut has_locked) = (0, false, false, false);
    loop {
        let now = fieldstone_paging::now_ns();
        if now - looked > u64::from(INTERVAL) * 1_000_000 {
            looked = now;
            let (mapped, private) = size.read();
            has_new |= mapped != last;
            last = mapped;
            if core::mem::take(&mut has_new) {
                adopt(pager, &mut buffer);
            }
            // On the processor of the thread that waits, no other processor must wake up first.
            if let Some(processor) = processor(sites::last_thread()) {
                raw::run_on(processor);
            }
            pager.recount();
            threads::take_blocks(|block| pager.keep(block..block + CONTROL_BLOCK));
            let paged = process.counters.resident.load(Relaxed) as usize;
            if !is_full && pager.is_full() {
                is_full = true;
                line::print(format_args!(
                    "fieldstone: the bound of --resident is exceeded: the stores of {} take no more pages\n\
                     try: end --page-store with file:DIRECTORY, on a file system with room",
                    process.name
                ));
            }
            if !has_locked && pager.has_locked() {
                has_locked = true;
                line::print(format_args!(
                    "fieldstone: the bound of --resident is exceeded: {} has locked or protected memory, which cannot \
                     leave it\ntry: a larger --resident, or a smaller limit of locked memory (ulimit -l)",
                    process.name
                ));
            }
            let unpaged = private.saturating_sub(paged + pager.own_pages());
            process.unpaged.store(unpaged as u64, Relaxed);
            let allowed = share.allowed(bound);
            let left = allowed.saturating_sub(unpaged).max(allowed / LEAST_SHARE);
            process.counters.bound.store(left as u64, Relaxed);
            if unpaged > bound - bound / LEAST_SHARE && !has_warned {
                has_warned = true;
                raw::write_error(
                    b"fieldstone: the bound of --resident is exceeded: memory that cannot be paged takes most of it\n",
                );
            }
        }
        match pager.serve(INTERVAL) {
            Ok(changed) => has_new |= changed,
            // Without its pager, the program would read zeros instead of its pages.
            Err(_) => {
                raw::write_error(b"fieldstone: a process ends: its pager cannot receive page faults\n");
                raw::end_process();
            }
        }
    }
}

/// Pages the memory that the program has mapped since the last time.
fn adopt(pager: &Pager, buffer: &mut [u8]) {
    let (own, [stack, other]) = (pager.own_range(), thread::stacks());
    for_each_mapping(buffer, |range, is_writable| {
        // The kernel may show own memory and memory of the program beside it as one mapping.
        visit_without(range, &[own.clone(), stack.clone(), other.clone()], &mut |range| {
            if !start::is_excluded(&range) {
                // Memory that the kernel does not let a pager page stays outside the bound.
                let _ = pager.adopt(range, is_writable);
            }
        });
    });
}

/// Calls `visit` for the parts of a range that are outside of others.
fn visit_without(range: Range<usize>, others: &[Range<usize>], visit: &mut dyn FnMut(Range<usize>)) {
    match others.split_first() {
        None if range.is_empty() => {}
        None => visit(range),
        Some((other, rest)) if other.start < range.end && range.start < other.end => {
            visit_without(range.start..other.start.max(range.start), rest, visit);
            visit_without(other.end.min(range.end)..range.end, rest, visit);
        }
        Some((_, rest)) => visit_without(range, rest, visit),
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn own_memory_is_left_out() {
        let parts = |range: Range<usize>, others: &[Range<usize>]| {
            let mut parts = Vec::new();
            visit_without(range, others, &mut |part| parts.push(part));
            parts
        };
        assert_eq!(parts(10..20, &[0..0, 12..14, 30..40]), [10..12, 14..20]);
        assert_eq!(parts(10..20, &[14..20, 12..13]), [10..12, 13..14]);
        assert_eq!(parts(10..20, &[5..12, 13..14, 18..30]), [12..13, 14..18]);
        assert_eq!(parts(10..20, &[0..40, 0..0]), []);
    }
}
