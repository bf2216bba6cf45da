//! What the program means by `mmap`, `munmap`, `mprotect` and `madvise`, kept to the letter on the region's pages.
//!
//! On ordinary pages every call goes to the kernel unchanged; the table only learns what happened. On hugetlb pages
//! (see [`crate::huge`]) a call that they cannot bear is preceded by [`crate::demote`].

#![allow(unsafe_code, reason = "passes the program's own calls on to the kernel")]

use fieldstone_wire::PlacementReason;
use fieldstone_wire::span::SpanKind;

use crate::demote::make_ordinary;
use crate::huge::{self, has_hugetlb};
use crate::in_place::{self, LOW};
use crate::place::{self, READ_WRITE, granules, release, settle};
use crate::raw::{self, Raw};
use crate::spans::KNOWN;
use crate::state::{
    TABLE, address_of, contains, count_served, granule_of, hinted_served, is_exact, memory_bytes, stacks_served,
    touches,
};
use crate::table::{GRANULE, PAGE, State};

const FIXED: i32 = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE;
/// Flags that change neither what the memory is nor where it may lie.
const PLAIN: i32 = libc::MAP_PRIVATE
    | libc::MAP_ANONYMOUS
    | libc::MAP_NORESERVE
    | libc::MAP_POPULATE
    | libc::MAP_LOCKED
    | libc::MAP_NONBLOCK
    | libc::MAP_DENYWRITE
    | libc::MAP_EXECUTABLE;

/// Advice that a hugetlb page has no use for. After `MADV_FREE` the contents may stay, as they may where the kernel had
/// no need to act on it.
const HINTS: [i32; 9] = [
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

/// There is no memory for moving a hugetlb page's contents, so the call must fail.
pub(crate) const NO_MEMORY: Raw = -(libc::ENOMEM as Raw);

/// glibc aligns a thread's arenas to this (`HEAP_MAX_SIZE`).
const ARENA: usize = 64 << 20;

/// A call of `mmap`, as the program made it.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) address: usize,
    pub(crate) bytes: usize,
    pub(crate) prot: i32,
    pub(crate) flags: i32,
    pub(crate) fd: i32,
    pub(crate) offset: usize,
}

/// What becomes of a request.
enum Fate {
    /// The region gives it.
    Serve,
    /// It is private anonymous memory, but the kernel gives it, for this reason.
    Leave(PlacementReason),
    /// It is no private anonymous read-write memory.
    Ignore,
}

impl Request {
    fn is_private_anonymous(&self) -> bool {
        let kind = libc::MAP_SHARED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        self.flags & kind == libc::MAP_PRIVATE | libc::MAP_ANONYMOUS
            && self.bytes > 0
            && self.offset.is_multiple_of(PAGE)
    }

    /// Whether it takes addresses without access.
    pub(crate) fn is_reservation(&self) -> bool {
        self.prot == libc::PROT_NONE
    }

    /// Whether the program insists on the address.
    pub(crate) fn is_fixed(&self) -> bool {
        self.flags & FIXED != 0
    }

    /// Whether the program says that it will not touch all of it.
    pub(crate) fn is_sparse(&self) -> bool {
        self.flags & libc::MAP_NORESERVE != 0
    }

    /// Whether the program hints at an address that it is to keep.
    fn is_hinted(&self) -> bool {
        let kept = self.address < LOW || self.is_reservation() || !hinted_served();
        self.address != 0 && !contains(self.address) && kept
    }

    fn fate(&self) -> Fate {
        let has = |flag| self.flags & flag != 0;
        let reservation = self.is_reservation();
        if !self.is_private_anonymous() || self.prot & libc::PROT_WRITE == 0 && !reservation {
            return Fate::Ignore;
        }
        Fate::Leave(match () {
            () if has(libc::MAP_GROWSDOWN) || has(libc::MAP_STACK) && !stacks_served() => PlacementReason::Stack,
            () if has(libc::MAP_STACK) && self.bytes <= GRANULE => PlacementReason::ShortStack,
            () if self.is_fixed() => PlacementReason::Fixed,
            () if has(libc::MAP_HUGETLB) => PlacementReason::OwnHugetlb,
            () if has(map_32bit()) => PlacementReason::Low32,
            () if self.is_hinted() => PlacementReason::Hint,
            () if self.prot & libc::PROT_EXEC != 0 => PlacementReason::Executable,
            () if self.flags & !PLAIN & !libc::MAP_STACK != 0 || !reservation && self.prot != READ_WRITE => {
                PlacementReason::OddFlag
            }
            () if self.bytes > memory_bytes() && (reservation || self.is_sparse()) => PlacementReason::Giant,
            () if reservation && self.bytes < GRANULE && !has(libc::MAP_STACK) => PlacementReason::InPlace,
            () => return Fate::Serve,
        })
    }

    /// Makes the call as the program made it.
    fn pass(&self) -> Raw {
        // SAFETY: the program asked for exactly this.
        unsafe { raw::mmap(self.address, self.bytes, self.prot, self.flags, self.fd, self.offset) }
    }
}

#[cfg(target_arch = "x86_64")]
fn map_32bit() -> i32 {
    libc::MAP_32BIT
}

#[cfg(not(target_arch = "x86_64"))]
fn map_32bit() -> i32 {
    0
}

/// Rounds up to whole pages; `None` for more than there are addresses.
pub(crate) fn whole_pages(bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(PAGE)
}

/// `mmap(2)`.
pub(crate) fn mmap(request: Request) -> Raw {
    let Some(bytes) = whole_pages(request.bytes) else { return request.pass() };
    if request.flags & FIXED != 0 && touches(request.address, bytes) {
        return map_fixed(request, bytes);
    }
    match request.fate() {
        Fate::Ignore => pass_hinted(request, bytes),
        Fate::Leave(reason) => leave(request, bytes, reason),
        Fate::Serve => serve(request, bytes),
    }
}

/// The kernel chooses where it lies; the pages asked for are asked for there.
fn leave(mut request: Request, bytes: usize, reason: PlacementReason) -> Raw {
    if request.is_scattered(bytes) {
        request.address = 0;
    }
    let result = pass_hinted(request, bytes);
    if !raw::failed(result) && !contains(result.cast_unsigned()) {
        in_place::mapped(&request, result.cast_unsigned(), bytes, reason);
    }
    result
}

/// What the region does not give may come to lie in it all the same, if the program asks for an address nearby.
fn pass_hinted(request: Request, bytes: usize) -> Raw {
    let result = request.pass();
    if request.address != 0 && !raw::failed(result) && contains(result.cast_unsigned()) {
        record(request, result.cast_unsigned(), bytes);
    }
    result
}

/// Records a mapping of the program's own, in the region.
fn record(request: Request, address: usize, bytes: usize) {
    place::adopt(address, bytes);
    if request.flags & libc::MAP_GROWSDOWN != 0 {
        place::leave_below(address);
    }
}

fn serve(request: Request, bytes: usize) -> Raw {
    let result = place::map(bytes, request.prot, request.flags);
    if !raw::failed(result) {
        if request.prot == READ_WRITE {
            count_served(bytes);
        } else if request.flags & libc::MAP_STACK == 0 {
            KNOWN.note(result.cast_unsigned(), bytes, SpanKind::Reserved);
        }
        return result;
    }
    let full = result == -(libc::ENOSPC as Raw);
    leave(request, bytes, if full { PlacementReason::NoRoom } else { PlacementReason::Refused })
}

/// The program names addresses inside the region: those of a mapping that it has, or free ones.
fn map_fixed(request: Request, bytes: usize) -> Raw {
    // A hugetlb page that is replaced whole needs no copy, but EEXIST must leave it as it is.
    if !make_ordinary(request.address, bytes, PlacementReason::DemotedByCall) {
        return NO_MEMORY;
    }
    let result = request.pass();
    if !raw::failed(result) {
        record(request, request.address, bytes);
        if request.is_private_anonymous() && request.flags & !PLAIN & !FIXED == 0 {
            if request.prot == READ_WRITE {
                count_served(bytes);
                settle(request.address, bytes, request.prot);
            }
            in_place::replaced(&request, bytes);
        }
    }
    result
}

/// `munmap(2)`.
pub(crate) fn munmap(address: usize, bytes: usize) -> Raw {
    let whole = whole_pages(bytes).filter(|_| address.is_multiple_of(PAGE) && bytes > 0);
    if let Some(bytes) = whole.filter(|&bytes| address.checked_add(bytes).is_some()) {
        KNOWN.forget(address, bytes);
    }
    let Some(bytes) = whole.filter(|&bytes| touches(address, bytes)) else {
        // SAFETY: the program's own call; nothing of it lies in the region, or the kernel refuses it.
        return unsafe { raw::munmap(address, bytes) };
    };
    if has_hugetlb(address, bytes) {
        return huge::unmap(address, bytes, unmap_ordinary);
    }
    unmap_ordinary(address, bytes)
}

fn unmap_ordinary(address: usize, bytes: usize) -> Raw {
    // SAFETY: the program's own call, on pages that take it.
    let result = unsafe { raw::munmap(address, bytes) };
    if !raw::failed(result) {
        release(address, bytes);
    }
    result
}

/// `mprotect(2)`; `from_libc` if libc itself calls.
pub(crate) fn mprotect(address: usize, bytes: usize, prot: i32, from_libc: bool) -> Raw {
    let mut wanted = bytes;
    let whole = whole_pages(bytes).filter(|&whole| address.checked_add(whole).is_some());
    if let Some(whole) = whole.filter(|&whole| whole > 0 && touches(address, whole)) {
        let hugetlb = has_hugetlb(address, whole);
        if !hugetlb && prot == READ_WRITE && from_libc {
            count_served(whole);
            wanted = arena_bytes(address, whole);
        } else if hugetlb && !make_ordinary(address, whole, PlacementReason::DemotedByCall) {
            return NO_MEMORY;
        }
    }
    // SAFETY: the program's own call, or one that also opens the rest of a granule that is wholly libc's.
    let result = unsafe { raw::mprotect(address, wanted, prot) };
    if let Some(whole) = whole.filter(|_| !from_libc && !raw::failed(result)) {
        in_place::protected(address, whole, prot);
    }
    result
}

/// `pkey_mprotect(2)`; without a key it is mprotect(2).
pub(crate) fn pkey_mprotect(address: usize, bytes: usize, prot: i32, key: i32) -> Raw {
    if key == -1 {
        return mprotect(address, bytes, prot, false);
    }
    let whole = whole_pages(bytes).filter(|&whole| touches(address, whole) && has_hugetlb(address, whole));
    if whole.is_some_and(|whole| !make_ordinary(address, whole, PlacementReason::DemotedByCall)) {
        return NO_MEMORY;
    }
    // SAFETY: the program's own call, on pages that take it.
    unsafe { raw::syscall(libc::SYS_pkey_mprotect, [address, bytes, prot as usize, key as usize, 0, 0]) }
}

/// libc grows a thread's arena in small steps inside a reservation of its own. Each step is widened to the end of its
/// granule, so that a huge page fits when the arena gets there; libc opens those pages again later, to no effect.
/// Not in an arena's first granule: a thread that allocates little shall not pay for a huge page.
fn arena_bytes(address: usize, bytes: usize) -> usize {
    let end = address + bytes;
    if !contains(address) || !contains(end - 1) || is_exact() {
        return bytes;
    }
    let granule = granule_of(end - 1);
    if address_of(granule).is_multiple_of(ARENA) || TABLE.state(granule) != State::Whole {
        return bytes;
    }
    address_of(granule + 1) - address
}

/// `madvise(2)`.
pub(crate) fn madvise(address: usize, bytes: usize, advice: i32) -> Raw {
    let Some(whole) = whole_pages(bytes).filter(|&whole| address.is_multiple_of(PAGE) && has_hugetlb(address, whole))
    else {
        // SAFETY: the program's own call, on pages that take it.
        return unsafe { raw::madvise(address, bytes, advice) };
    };
    match advice {
        libc::MADV_DONTNEED => {
            let dropped = granules(address, whole).map(|granule| huge::drop_contents(granule, address, whole));
            dropped.fold(0, Raw::min)
        }
        _ if HINTS.contains(&advice) => 0,
        _ if !make_ordinary(address, whole, PlacementReason::DemotedByCall) => NO_MEMORY,
        // SAFETY: the program's own call.
        _ => unsafe { raw::madvise(address, bytes, advice) },
    }
}
