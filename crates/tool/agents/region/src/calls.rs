//! `mmap`, `munmap`, `mprotect` and `madvise` on pages of the region, with the semantics of the
//! kernel.
//!
//! Calls on ordinary pages go to the kernel unchanged, and the table records the result. Before a
//! call that hugetlb pages (see [`crate::hugetlb`]) refuse, [`crate::migration`] moves the memory
//! off them.

#![allow(unsafe_code, reason = "passes the program's own calls on to the kernel")]

use fieldstone_wire::PlacementReason;
use fieldstone_wire::span::SpanKind;

use crate::arch::MAP_32BIT;
use crate::hugetlb::{self, has_hugetlb};
use crate::in_place::{self, LOW};
use crate::migration::make_ordinary;
use crate::placement::{self, READ_WRITE, apply_page_kind, granules, release};
use crate::raw::{self, RawResult};
use crate::spans::KNOWN_SPANS;
use crate::state::{
    TABLE, address_of, are_hints_ignored, are_stacks_served, contains, count_served, granule_of, is_exact,
    memory_bytes, overlaps,
};
use crate::table::{GRANULE, GranuleState, PAGE};

const FIXED_FLAGS: i32 = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE;
/// Flags that change neither the kind of the memory nor its possible addresses.
const PLAIN_FLAGS: i32 = libc::MAP_PRIVATE
    | libc::MAP_ANONYMOUS
    | libc::MAP_NORESERVE
    | libc::MAP_POPULATE
    | libc::MAP_LOCKED
    | libc::MAP_NONBLOCK
    | libc::MAP_DENYWRITE
    | libc::MAP_EXECUTABLE;

/// Advice that has no effect on a hugetlb page. After `MADV_FREE` the contents may stay, as on
/// other pages.
const IGNORED_ADVICE: [i32; 9] = [
    libc::MADV_NORMAL,
    libc::MADV_RANDOM,
    libc::MADV_SEQUENTIAL,
    libc::MADV_WILLNEED,
    libc::MADV_FREE,
    libc::MADV_HUGEPAGE,
    libc::MADV_NOHUGEPAGE,
    libc::MADV_COLD,
    libc::MADV_PAGEOUT,
];

/// The result if there is no memory to copy a hugetlb page, so that the call fails.
pub(crate) const NO_MEMORY: RawResult = -(libc::ENOMEM as RawResult);

/// The alignment of a thread's arenas in glibc (`HEAP_MAX_SIZE`).
const ARENA: usize = 64 << 20;

/// The arguments of `mmap`.
#[derive(Clone, Copy)]
pub(crate) struct MmapCall {
    pub(crate) address: usize,
    pub(crate) bytes: usize,
    pub(crate) prot: i32,
    pub(crate) flags: i32,
    pub(crate) fd: i32,
    pub(crate) offset: usize,
}

/// Where the memory of a call comes from.
enum MmapSource {
    /// From the region.
    Region,
    /// From the kernel, although it is private anonymous memory, for this reason.
    KernelCounted(PlacementReason),
    /// From the kernel: it is not private anonymous read-write memory.
    Kernel,
}

impl MmapCall {
    fn is_private_anonymous(&self) -> bool {
        let kind = libc::MAP_SHARED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        self.flags & kind == libc::MAP_PRIVATE | libc::MAP_ANONYMOUS
            && self.bytes > 0
            && self.offset.is_multiple_of(PAGE)
    }

    /// Whether it reserves addresses without access.
    pub(crate) fn is_reservation(&self) -> bool {
        self.prot == libc::PROT_NONE
    }

    /// Whether the program requires the address.
    pub(crate) fn is_fixed(&self) -> bool {
        self.flags & FIXED_FLAGS != 0
    }

    /// Whether the program declares that it will not touch all of the memory.
    pub(crate) fn is_sparse(&self) -> bool {
        self.flags & libc::MAP_NORESERVE != 0
    }

    /// Whether the program gives a hint at an address that has to be tried.
    fn is_hinted(&self) -> bool {
        let is_required = self.address < LOW || self.is_reservation() || !are_hints_ignored();
        self.address != 0 && !contains(self.address) && is_required
    }

    fn source(&self) -> MmapSource {
        let has = |flag| self.flags & flag != 0;
        let reservation = self.is_reservation();
        if !self.is_private_anonymous() || self.prot & libc::PROT_WRITE == 0 && !reservation {
            return MmapSource::Kernel;
        }
        MmapSource::KernelCounted(match () {
            () if has(libc::MAP_GROWSDOWN) || has(libc::MAP_STACK) && !are_stacks_served() => PlacementReason::Stack,
            () if has(libc::MAP_STACK) && self.bytes <= GRANULE => PlacementReason::ShortStack,
            () if self.is_fixed() => PlacementReason::Fixed,
            () if has(libc::MAP_HUGETLB) => PlacementReason::OwnHugetlb,
            () if has(MAP_32BIT) => PlacementReason::Low32,
            () if self.is_hinted() => PlacementReason::Hint,
            () if self.prot & libc::PROT_EXEC != 0 => PlacementReason::Executable,
            () if self.flags & !PLAIN_FLAGS & !libc::MAP_STACK != 0 || !reservation && self.prot != READ_WRITE => {
                PlacementReason::OddFlag
            }
            () if self.bytes > memory_bytes() && (reservation || self.is_sparse()) => PlacementReason::Giant,
            () if reservation && self.bytes < GRANULE && !has(libc::MAP_STACK) => PlacementReason::InPlace,
            () => return MmapSource::Region,
        })
    }

    /// Forwards the call to the kernel unchanged.
    fn forward(&self) -> RawResult {
        // SAFETY: the program makes exactly this call; the agent only forwards it.
        unsafe { raw::mmap(self.address, self.bytes, self.prot, self.flags, self.fd, self.offset) }
    }
}

/// Rounds up to whole pages; `None` on overflow.
pub(crate) fn whole_pages(bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(PAGE)
}

/// `mmap(2)`.
pub(crate) fn mmap(request: MmapCall) -> RawResult {
    let Some(bytes) = whole_pages(request.bytes) else { return request.forward() };
    if request.flags & FIXED_FLAGS != 0 && overlaps(request.address, bytes) {
        return map_fixed(request, bytes);
    }
    match request.source() {
        MmapSource::Kernel => forward_recording(request, bytes),
        MmapSource::KernelCounted(reason) => map_outside(request, bytes, reason),
        MmapSource::Region => serve(request, bytes),
    }
}

/// Maps outside the region, at an address of the kernel's choice, and requests the page kind there.
fn map_outside(mut request: MmapCall, bytes: usize, reason: PlacementReason) -> RawResult {
    if request.is_scattered(bytes) {
        request.address = 0;
    }
    let result = forward_recording(request, bytes);
    if !raw::failed(result) && !contains(result.cast_unsigned()) {
        in_place::after_mmap(&request, result.cast_unsigned(), bytes, reason);
    }
    result
}

/// Forwards a call that the region does not serve. A hint can make the kernel place the mapping in
/// the region.
fn forward_recording(request: MmapCall, bytes: usize) -> RawResult {
    let result = request.forward();
    if request.address != 0 && !raw::failed(result) && contains(result.cast_unsigned()) {
        record_fixed(request, result.cast_unsigned(), bytes);
    }
    result
}

/// Records a mapping in the region that the program made itself.
fn record_fixed(request: MmapCall, address: usize, bytes: usize) {
    placement::record_foreign_mapping(address, bytes);
    if request.flags & libc::MAP_GROWSDOWN != 0 {
        placement::keep_free_below(address);
    }
}

fn serve(request: MmapCall, bytes: usize) -> RawResult {
    let result = placement::map(bytes, request.prot, request.flags);
    if !raw::failed(result) {
        if request.prot == READ_WRITE {
            count_served(bytes);
        } else if request.flags & libc::MAP_STACK == 0 {
            KNOWN_SPANS.note(result.cast_unsigned(), bytes, SpanKind::Reserved);
        }
        return result;
    }
    let is_full = result == -(libc::ENOSPC as RawResult);
    map_outside(request, bytes, if is_full { PlacementReason::NoRoom } else { PlacementReason::Refused })
}

/// `mmap` at a fixed address in the region, over a mapping of the program or over free addresses.
fn map_fixed(request: MmapCall, bytes: usize) -> RawResult {
    // A hugetlb page that is replaced as a whole needs no copy, but EEXIST must leave it unchanged.
    if !make_ordinary(request.address, bytes, PlacementReason::DemotedByCall) {
        return NO_MEMORY;
    }
    let result = request.forward();
    if !raw::failed(result) {
        record_fixed(request, request.address, bytes);
        if request.is_private_anonymous() && request.flags & !PLAIN_FLAGS & !FIXED_FLAGS == 0 {
            if request.prot == READ_WRITE {
                count_served(bytes);
                apply_page_kind(request.address, bytes, request.prot);
            }
            in_place::after_fixed_mmap(&request, bytes);
        }
    }
    result
}

/// `munmap(2)`.
pub(crate) fn munmap(address: usize, bytes: usize) -> RawResult {
    let whole = whole_pages(bytes).filter(|_| address.is_multiple_of(PAGE) && bytes > 0);
    if let Some(bytes) = whole.filter(|&bytes| address.checked_add(bytes).is_some()) {
        KNOWN_SPANS.forget(address, bytes);
    }
    let Some(bytes) = whole.filter(|&bytes| overlaps(address, bytes)) else {
        // SAFETY: the program makes this call; the range is outside the region, or the kernel
        // refuses it.
        return unsafe { raw::munmap(address, bytes) };
    };
    if has_hugetlb(address, bytes) {
        return hugetlb::unmap(address, bytes, unmap_ordinary);
    }
    unmap_ordinary(address, bytes)
}

fn unmap_ordinary(address: usize, bytes: usize) -> RawResult {
    // SAFETY: the program makes this call, and no page of the range is on hugetlb.
    let result = unsafe { raw::munmap(address, bytes) };
    if !raw::failed(result) {
        release(address, bytes);
    }
    result
}

/// `mprotect(2)`; `from_libc` if the caller is libc itself.
pub(crate) fn mprotect(address: usize, bytes: usize, prot: i32, from_libc: bool) -> RawResult {
    let mut wanted = bytes;
    let whole = whole_pages(bytes).filter(|&whole| address.checked_add(whole).is_some());
    if let Some(whole) = whole.filter(|&whole| whole > 0 && overlaps(address, whole)) {
        let hugetlb = has_hugetlb(address, whole);
        if !hugetlb && prot == READ_WRITE && from_libc {
            count_served(whole);
            wanted = arena_bytes(address, whole);
        } else if hugetlb && !make_ordinary(address, whole, PlacementReason::DemotedByCall) {
            return NO_MEMORY;
        }
    }
    // SAFETY: the program makes this call; it is widened only within a granule that libc owns
    // completely.
    let result = unsafe { raw::mprotect(address, wanted, prot) };
    if let Some(whole) = whole.filter(|_| !from_libc && !raw::failed(result)) {
        in_place::after_mprotect(address, whole, prot);
    }
    result
}

/// `pkey_mprotect(2)`; without a key it equals mprotect(2).
pub(crate) fn pkey_mprotect(address: usize, bytes: usize, prot: i32, key: i32) -> RawResult {
    if key == -1 {
        return mprotect(address, bytes, prot, false);
    }
    let whole = whole_pages(bytes).filter(|&whole| overlaps(address, whole) && has_hugetlb(address, whole));
    if whole.is_some_and(|whole| !make_ordinary(address, whole, PlacementReason::DemotedByCall)) {
        return NO_MEMORY;
    }
    // SAFETY: the program makes this call, and no page of the range is on hugetlb.
    unsafe { raw::syscall(libc::SYS_pkey_mprotect, [address, bytes, prot as usize, key as usize, 0, 0]) }
}

/// The bytes to make accessible when libc grows a thread's arena, in small steps inside its own
/// reservation. Each step is widened to the end of its granule, so that a huge page fits; libc's
/// later calls for those pages have no effect. The first granule of an arena is not widened: a
/// thread that allocates little gets no huge page.
fn arena_bytes(address: usize, bytes: usize) -> usize {
    let end = address + bytes;
    if !contains(address) || !contains(end - 1) || is_exact() {
        return bytes;
    }
    let granule = granule_of(end - 1);
    if address_of(granule).is_multiple_of(ARENA) || TABLE.state(granule) != GranuleState::Whole {
        return bytes;
    }
    address_of(granule + 1) - address
}

/// `madvise(2)`.
pub(crate) fn madvise(address: usize, bytes: usize, advice: i32) -> RawResult {
    let Some(whole) = whole_pages(bytes).filter(|&whole| address.is_multiple_of(PAGE) && has_hugetlb(address, whole))
    else {
        // SAFETY: the program makes this call, and no page of the range is on hugetlb.
        return unsafe { raw::madvise(address, bytes, advice) };
    };
    match advice {
        libc::MADV_DONTNEED => {
            let results = granules(address, whole).map(|granule| hugetlb::discard(granule, address, whole));
            results.fold(0, RawResult::min)
        }
        _ if IGNORED_ADVICE.contains(&advice) => 0,
        _ if !make_ordinary(address, whole, PlacementReason::DemotedByCall) => NO_MEMORY,
        // SAFETY: the program makes this call, and the pages are ordinary now.
        _ => unsafe { raw::madvise(address, bytes, advice) },
    }
}
