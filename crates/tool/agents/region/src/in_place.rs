//! Memory that has to stay at an address of the program's choice: it gets the requested pages in
//! place.
//!
//! Virtual machines and databases reserve addresses without access and open parts of them later: by
//! mprotect(2), or by mmap(2) with `MAP_FIXED`, which makes a new mapping.
//!
//! ```text
//! mmap(hint, 2 GiB, PROT_NONE)            [ advised                                  ]   Reserved
//! mprotect(256 KiB, PROT_READ|WRITE)      [ advised | RW | advised                   ]   Opened: keeps the advice, merges
//! mmap(MAP_FIXED, 4 MiB, READ|WRITE)      [ advised | RW | advised | RW | advised    ]   Opened: advised again
//! ```
//!
//! Advice on a reservation allocates no memory. All parts have equal advice, so the kernel merges
//! adjacent opened parts. The opening that completes an aligned 2 MiB collapses it into a huge page
//! (see [`crate::growth`]). A mapping larger than the machine's memory that is opened at once is
//! sparse by intention and stays on small pages.
//!
//! A hint is passed to the kernel, since the program may check the address or derive others from
//! it. The exception is a reservation of less than 2 MiB: a JavaScript engine makes many of them at
//! random addresses. One alone holds no huge page, but the kernel places them next to each other if
//! it chooses the address. A hint below [`LOW`] is always passed.

use fieldstone_wire::PlacementReason;
use fieldstone_wire::span::{SpanKind, UNIT};

use crate::calls::MmapCall;
use crate::growth;
use crate::placement::{READ_WRITE, apply_page_kind};
use crate::spans::{KNOWN_SPANS, OPENED};
use crate::state::{contains, count, count_served, memory_bytes};
use crate::table::GRANULE;

/// Programs rely on addresses below this: compressed pointers of a JVM reach 32 GiB, or 64 GiB with
/// objects aligned to 16 bytes, and its class data is mapped at 32 GiB.
pub(crate) const LOW: usize = 64 << 30;

impl MmapCall {
    /// Whether the request is a small reservation whose hint would separate it from similar ones.
    pub(crate) fn is_scattered(&self, bytes: usize) -> bool {
        self.is_reservation() && bytes < GRANULE && self.address >= LOW && !self.is_fixed()
    }
}

/// Records private anonymous memory that the kernel just mapped at `address`, outside the region,
/// and requests its pages.
pub(crate) fn after_mmap(request: &MmapCall, address: usize, bytes: usize, reason: PlacementReason) {
    let is_known = || KNOWN_SPANS.has(address, bytes, SpanKind::Reserved) || KNOWN_SPANS.has(address, bytes, OPENED);
    let is_large = bytes >= GRANULE || is_known();
    match reason {
        PlacementReason::Stack | PlacementReason::ShortStack | PlacementReason::OwnHugetlb => {
            record_outside(address, bytes, reason);
        }
        _ if request.is_reservation() && (bytes >= UNIT as usize || is_known()) => record_reserved(address, bytes),
        _ if request.is_reservation() => {}
        PlacementReason::Giant => record_outside(address, bytes, reason),
        _ if is_large => serve(address, bytes, if request.is_sparse() { libc::PROT_NONE } else { request.prot }),
        _ => record_outside(address, bytes, reason),
    }
}

fn record_outside(address: usize, bytes: usize, reason: PlacementReason) {
    count(reason, bytes);
    KNOWN_SPANS.note(address, bytes, SpanKind::Memory(reason));
}

/// Records a range without access, in the region or not, that may be opened later.
pub(crate) fn record_reserved(address: usize, bytes: usize) {
    apply_page_kind(address, bytes, libc::PROT_NONE);
    KNOWN_SPANS.note(address, bytes, SpanKind::Reserved);
}

/// Requests the page kind for a new mapping with access, and touches it with `--prefault`.
fn serve(address: usize, bytes: usize, prot: i32) {
    apply_page_kind(address, bytes, prot);
    record_opened(address, bytes);
}

fn record_opened(address: usize, bytes: usize) {
    KNOWN_SPANS.note(address, bytes, OPENED);
    if contains(address) {
        count_served(bytes);
    } else {
        count(PlacementReason::InPlace, bytes);
    }
    growth::collapse_completed_ends(address, bytes);
}

/// Records a change of protection by the program.
pub(crate) fn after_mprotect(address: usize, bytes: usize, prot: i32) {
    if prot & READ_WRITE == READ_WRITE && KNOWN_SPANS.has(address, bytes, SpanKind::Reserved) {
        if bytes > memory_bytes() {
            crate::placement::advise(address, bytes, false);
            record_outside(address, bytes, PlacementReason::Giant);
        } else {
            record_opened(address, bytes);
        }
    } else if prot == libc::PROT_NONE && KNOWN_SPANS.has(address, bytes, OPENED) {
        KNOWN_SPANS.note(address, bytes, SpanKind::Reserved);
    }
}

/// Records a mapping that the program made over its own addresses of the region.
pub(crate) fn after_fixed_mmap(request: &MmapCall, bytes: usize) {
    let address = request.address;
    if request.is_reservation() {
        record_reserved(address, bytes);
    } else if KNOWN_SPANS.has(address, bytes, SpanKind::Reserved) {
        KNOWN_SPANS.note(address, bytes, OPENED);
        growth::collapse_completed_ends(address, bytes);
    }
}
