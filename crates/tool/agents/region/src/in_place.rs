//! Memory that has to stay at the program's own address, on the pages asked for where it lies.
//!
//! Virtual machines and databases reserve addresses without access and open parts of them later: by mprotect(2), or by mmap(2)
//! with `MAP_FIXED`, which makes a new mapping.
//!
//! ```text
//! mmap(hint, 2 GiB, PROT_NONE)            [ advised                                  ]   Reserved
//! mprotect(256 KiB, PROT_READ|WRITE)      [ advised | RW | advised                   ]   Opened: keeps the advice, merges
//! mmap(MAP_FIXED, 4 MiB, READ|WRITE)      [ advised | RW | advised | RW | advised    ]   Opened: advised again
//! ```
//!
//! Advice on a reservation fills no memory. All parts have the same advice, so the kernel merges those that are opened side by
//! side; the opening that completes an aligned 2 MiB puts it on a huge page (see [`crate::grown`]). A mapping larger than the
//! machine's memory that is opened at once is sparse by intention and stays on small pages.
//!
//! A hint is kept, since the program may check the address or derive others from it. A reservation of less than 2 MiB is the
//! exception: it is one of many (the heap pages of a JavaScript engine, at random addresses), holds no huge page
//! alone, and lies beside its like when the kernel chooses the address. Below [`LOW`] a hint is kept always.

use fieldstone_wire::PlacementReason;
use fieldstone_wire::span::{SpanKind, UNIT};

use crate::calls::Request;
use crate::grown;
use crate::place::{READ_WRITE, settle};
use crate::spans::{KNOWN, OPENED};
use crate::state::{contains, count, count_served, memory_bytes};
use crate::table::GRANULE;

/// Addresses below this mean something: a JVM's compressed pointers reach 32 GiB, or 64 GiB where objects are aligned to 16
/// bytes, and its class data is mapped at 32 GiB.
pub(crate) const LOW: usize = 64 << 30;

impl Request {
    /// Whether the request is a small reservation whose hint keeps it apart from its like.
    pub(crate) fn is_scattered(&self, bytes: usize) -> bool {
        self.is_reservation() && bytes < GRANULE && self.address >= LOW && !self.is_fixed()
    }
}

/// Notes and serves private anonymous memory that the kernel has just mapped at `address`, outside the region.
pub(crate) fn mapped(request: &Request, address: usize, bytes: usize, reason: PlacementReason) {
    let known = || KNOWN.has(address, bytes, SpanKind::Reserved) || KNOWN.has(address, bytes, OPENED);
    let huge = bytes >= GRANULE || known();
    match reason {
        PlacementReason::Stack | PlacementReason::ShortStack | PlacementReason::OwnHugetlb => {
            leave(address, bytes, reason)
        }
        _ if request.is_reservation() && (bytes >= UNIT as usize || known()) => reserve(address, bytes),
        _ if request.is_reservation() => {}
        PlacementReason::Giant => leave(address, bytes, reason),
        _ if huge => open(address, bytes, if request.is_sparse() { libc::PROT_NONE } else { request.prot }),
        _ => leave(address, bytes, reason),
    }
}

fn leave(address: usize, bytes: usize, reason: PlacementReason) {
    count(reason, bytes);
    KNOWN.note(address, bytes, SpanKind::Memory(reason));
}

/// A range without access, in the region or not, that may be opened later.
pub(crate) fn reserve(address: usize, bytes: usize) {
    settle(address, bytes, libc::PROT_NONE);
    KNOWN.note(address, bytes, SpanKind::Reserved);
}

/// A new mapping with access: advises it, and touches it where that is asked for.
fn open(address: usize, bytes: usize, prot: i32) {
    settle(address, bytes, prot);
    opened(address, bytes);
}

fn opened(address: usize, bytes: usize) {
    KNOWN.note(address, bytes, OPENED);
    if contains(address) {
        count_served(bytes);
    } else {
        count(PlacementReason::InPlace, bytes);
    }
    grown::complete_ends(address, bytes);
}

/// Follows a change of protection that the program has made.
pub(crate) fn protected(address: usize, bytes: usize, prot: i32) {
    if prot & READ_WRITE == READ_WRITE && KNOWN.has(address, bytes, SpanKind::Reserved) {
        if bytes > memory_bytes() {
            crate::place::advise(address, bytes, false);
            leave(address, bytes, PlacementReason::Giant);
        } else {
            opened(address, bytes);
        }
    } else if prot == libc::PROT_NONE && KNOWN.has(address, bytes, OPENED) {
        KNOWN.note(address, bytes, SpanKind::Reserved);
    }
}

/// Follows a mapping that the program has put at addresses of the region, over what it has there.
pub(crate) fn replaced(request: &Request, bytes: usize) {
    let address = request.address;
    if request.is_reservation() {
        reserve(address, bytes);
    } else if KNOWN.has(address, bytes, SpanKind::Reserved) {
        KNOWN.note(address, bytes, OPENED);
        grown::complete_ends(address, bytes);
    }
}
