//! Reports a finding: to the supervisor by the mailbox, or to standard error without an answer.
//!
//! A place in the code is reported once: the first finding ends the process, or with `--keep-going`
//! the place is remembered.
//!
//! Invariants: no allocation, no lock. A report may come from a signal handler on a small stack: it
//! is made on a private stack.

use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Relaxed, Release};

use fieldstone_guard::{Finding, Kind, Slots};
use fieldstone_wire::guard::{Access, CELLS, CODE_BYTES, CellState, FRAMES, FindingCell, GuardSession, Place};

use crate::private_stack::{self, OnPrivateStack};
use crate::probe::Reader;
use crate::unwind::{self, Caller};
use crate::{calls, dispositions, ending, print, raw, sites, start, thread};

/// How long to wait for the supervisor.
pub(crate) const PATIENCE_NS: u64 = 10_000_000_000;
/// How long to wait before the next look whether the supervisor still receives.
const LOOK_NS: u64 = 100_000_000;
/// Numbers that are remembered: an instruction and a site for each error.
const PLACES: usize = 2048;

/// What happened.
pub(crate) struct Incident<'a> {
    pub(crate) slots: &'a Slots,
    pub(crate) finding: &'a Finding,
    pub(crate) access: Access,
    /// Bytes of the access; 0 if the instruction has them.
    pub(crate) bytes: usize,
    pub(crate) caller: Caller,
}

/// A finding as it is reported.
pub(crate) struct Report<'a> {
    pub(crate) kind: Kind,
    pub(crate) access: Access,
    pub(crate) place: Place,
    pub(crate) address: usize,
    pub(crate) bytes: usize,
    /// The object and how it came to be; `None` for an address without one.
    pub(crate) incident: Option<&'a Incident<'a>>,
    pub(crate) caller: Caller,
}

/// Reports an error of a guarded object.
pub(crate) fn report(incident: &Incident<'_>) {
    deliver(&Report {
        kind: incident.finding.kind,
        access: incident.access,
        place: Place::Object,
        address: incident.finding.address,
        bytes: incident.bytes,
        incident: Some(incident),
        caller: incident.caller,
    });
}

/// Reports a free that the objects refused, and ends the process unless it is to keep going.
pub(crate) fn refused_free(slots: &Slots, finding: &Finding, caller: Caller) {
    let access = if finding.padding { Access::Padding } else { Access::Free };
    report(&Incident { slots, finding, access, bytes: 0, caller });
    end_by_abort();
}

/// Reports a free of an address on a stack or in a file, and ends the process unless it is to keep
/// going.
pub(crate) fn foreign_free(address: usize, place: Place, caller: Caller) {
    let (kind, access) = (Kind::InvalidFree, Access::Free);
    deliver(&Report { kind, access, place, address, bytes: 0, incident: None, caller });
    end_by_abort();
}

fn end_by_abort() {
    if !start::keeps_going() {
        // A handler of the program may continue.
        if dispositions::is_default(libc::SIGABRT) {
            ending::complete();
        }
        // As the allocator does after such a free.
        ending::abort()
    }
}

fn deliver(report: &Report<'_>) {
    let Some(session) = start::session() else { return };
    start::count_finding();
    let Some(_reporting) = ending::begin() else { return };
    if is_known(report) {
        return;
    }
    private_stack::run(|own| {
        let cell = session.cells.iter().find_map(|cell| Some((cell, cell.claim()?)));
        let is_answered = cell.is_some_and(|(cell, turn)| {
            fill(cell, report, own);
            ask(session, cell, turn)
        });
        if !is_answered {
            print::print(report, session.has_ended(), own);
        }
    });
}

/// Whether the error was reported before. Remembers it otherwise.
///
/// A write behind an object may fault, or be found at the free, also at the next object of the site.
/// So at a free, an error of a site is known if an access past an end of its objects was reported.
fn is_known(report: &Report<'_>) -> bool {
    let beside = report.incident.and_then(|incident| beside_objects(report.kind, incident));
    let is_padding = report.access == Access::Padding;
    let is_beside_known = beside.is_some_and(|beside| !remember(beside));
    is_padding && is_beside_known || !remember(report.caller.instruction)
}

/// A number for the accesses beside the objects of a site, at one of their ends. No instruction has
/// an address like this.
fn beside_objects(kind: Kind, incident: &Incident<'_>) -> Option<usize> {
    let is_beside = matches!(kind, Kind::HeapBufferOverflow | Kind::HeapBufferUnderflow);
    let (site, _) = calls::split(incident.slots, incident.finding.allocated.stack, &mut [0; 1]);
    (is_beside && site != 0).then_some(1 << 63 | (kind as usize) << 32 | site as usize)
}

/// Adds a number to those that were reported. False if it is one of them, or if there is no room.
fn remember(number: usize) -> bool {
    static KNOWN: [AtomicUsize; PLACES] = [const { AtomicUsize::new(0) }; PLACES];
    let first = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    for step in 0..PLACES {
        let place = &KNOWN[(first + step) % PLACES];
        match place.compare_exchange(0, number, Relaxed, Relaxed) {
            Ok(_) => return true,
            Err(known) if known == number => return false,
            Err(_) => {}
        }
    }
    false
}

fn fill(cell: &FindingCell, report: &Report<'_>, own: Option<&OnPrivateStack>) {
    cell.pid.store(raw::getpid(), Relaxed);
    cell.thread.store(thread::number(), Relaxed);
    cell.kind.store(report.kind as u32, Relaxed);
    cell.access.store(report.access as u32, Relaxed);
    cell.place.store(report.place as u32, Relaxed);
    cell.address.store(report.address as u64, Relaxed);
    cell.bytes.store(report.bytes as u64, Relaxed);
    cell.faulted.store(u32::from(report.caller.is_fault), Relaxed);
    if report.caller.is_fault {
        for (index, word) in cell.code.iter().enumerate() {
            word.store(code_word(report.caller.instruction + index * 8), Relaxed);
        }
    }
    let mut frames = [0; FRAMES];
    let count = unwind::stack(report.caller, &mut frames, own);
    cell.stack.store(&frames[..count]);
    let Some(Incident { slots, finding, .. }) = report.incident else {
        cell.allocated.store(&[]);
        cell.freed.store(&[]);
        return;
    };
    cell.offset.store(finding.offset.unsigned_abs() as u64, Relaxed);
    cell.object.store(finding.object.start as u64, Relaxed);
    cell.object_bytes.store(finding.object.bytes as u64, Relaxed);
    cell.allocated_by.store(finding.allocated.thread, Relaxed);
    let (site, stack) = calls::split(slots, finding.allocated.stack, &mut frames);
    cell.allocated.store(stack);
    let (allocations, guarded) = sites::counts(site);
    cell.site_allocations.store(allocations, Relaxed);
    cell.site_guarded.store(guarded, Relaxed);
    cell.freed_by.store(finding.freed.map_or(0, |freed| freed.thread), Relaxed);
    cell.freed.store(finding.freed.map_or(&[][..], |freed| calls::split(slots, freed.stack, &mut frames).1));
}

/// Eight bytes of code, which may lie over two words of memory; 0 where nothing is readable.
pub(crate) fn code_word(address: usize) -> u64 {
    let (aligned, shift) = (address as u64 & !7, address % 8 * 8);
    let mut reader = Reader::default();
    let low = reader.read(aligned).unwrap_or(0) >> shift;
    let high = if shift == 0 { 0 } else { reader.read(aligned + 8).unwrap_or(0) << (64 - shift) };
    low | high
}

/// Hands the cell to the supervisor and waits. False without an answer.
fn ask(session: &GuardSession, cell: &FindingCell, turn: u32) -> bool {
    cell.state.store(CellState::Waiting as u32, Release);
    session.attention.fetch_add(1, Release);
    raw::wake(&session.attention);
    for _ in 0..PATIENCE_NS / LOOK_NS {
        if !cell.is_waiting(turn) {
            return true;
        }
        if session.has_ended() {
            break;
        }
        raw::wait_for(&cell.state, CellState::Waiting as u32, LOOK_NS);
    }
    !cell.is_waiting(turn) || !cell.withdraw()
}

const _: () = assert!(CELLS > 0 && CODE_BYTES.is_multiple_of(8), "code is stored in whole words");
