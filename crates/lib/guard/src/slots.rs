//! Guarded slots (skeleton).

use core::alloc::Layout;
use core::ptr::NonNull;

use crate::error::Result;
use crate::finding::{Finding, StackId, Trace};

/// The side of its pages at which an object lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Side {
    /// At the end: overflows fault.
    Right = 1,
    /// At the start: underflows fault.
    Left = 2,
    /// At one of them, chosen for each allocation.
    #[default]
    Both = 0,
}

/// Frames of a [`Trace`] that are kept.
pub const MAX_FRAMES: usize = 64;

/// The options of a [`Slots`].
#[derive(Clone, Debug)]
#[must_use]
pub struct SlotsBuilder {
    memory: usize,
    side: Side,
    quarantine: Option<usize>,
    seed: u64,
    force_protect: bool,
}

impl SlotsBuilder {
    /// Bounds the memory of live objects, records, page tables and stacks, in bytes. Default: 64 MiB.
    pub fn memory(mut self, bytes: usize) -> Self {
        self.memory = bytes;
        self
    }

    /// Selects the side of objects. Default: [`Side::Both`].
    pub fn side(mut self, side: Side) -> Self {
        self.side = side;
        self
    }

    /// Sets how many freed objects of a size class stay inaccessible before the oldest is reused.
    /// Default: one for each 16 KiB of memory.
    pub fn quarantine(mut self, objects: usize) -> Self {
        self.quarantine = Some(objects);
        self
    }

    /// Seeds the choice of sides for [`Side::Both`]. Default: 0.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Uses mprotect(2) as on kernels without guard markers.
    #[doc(hidden)]
    pub fn force_protect(mut self) -> Self {
        self.force_protect = true;
        self
    }

    /// Reserves the address range.
    ///
    /// # Errors
    /// [`crate::Error::Map`] if not even a small range is available.
    pub fn build(self) -> Result<Slots> {
        Ok(Slots(()))
    }
}

/// Counts of a [`Slots`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlotStats {
    /// Live objects.
    pub live: usize,
    /// Freed objects that are inaccessible.
    pub quarantined: usize,
    /// Allocations so far.
    pub allocated: u64,
    /// Requests that were refused because of the limit.
    pub refused: u64,
    /// Bytes that count in the limit now.
    pub memory: usize,
    /// The largest value of `memory`.
    pub memory_peak: usize,
    /// The limit in bytes.
    pub memory_limit: usize,
    /// Bytes of address space; less than wanted if a limit like RLIMIT_AS is small.
    pub reserved: usize,
    /// Different stacks in the table.
    pub stacks: usize,
    /// Whether guards are markers; otherwise they are mappings.
    pub has_markers: bool,
}

/// Guarded slots.
#[derive(Debug)]
pub struct Slots(());

impl Slots {
    /// The options, with their defaults.
    pub fn builder() -> SlotsBuilder {
        SlotsBuilder { memory: 64 << 20, side: Side::Both, quarantine: None, seed: 0, force_protect: false }
    }

    /// Allocates an object; its memory is zero. `None` if the limit is reached or the object is too
    /// large.
    #[must_use]
    pub fn alloc(&self, layout: Layout) -> Option<NonNull<u8>> {
        self.alloc_traced(layout, Trace::default())
    }

    /// As [`Slots::alloc`], and records the caller.
    #[must_use]
    pub fn alloc_traced(&self, _layout: Layout, _trace: Trace<'_>) -> Option<NonNull<u8>> {
        None
    }

    /// Frees an object.
    ///
    /// # Errors
    /// Double free, invalid free, and changed padding. In the last case the object is freed.
    ///
    /// # Safety
    /// No code may use the object afterwards.
    #[allow(unsafe_code, reason = "skeleton")]
    pub unsafe fn free(&self, object: NonNull<u8>) -> core::result::Result<(), Finding> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.free_traced(object, Trace::default()) }
    }

    /// As [`Slots::free`], and records the caller.
    ///
    /// # Errors
    /// As [`Slots::free`].
    ///
    /// # Safety
    /// As [`Slots::free`].
    #[allow(unsafe_code, reason = "skeleton")]
    pub unsafe fn free_traced(&self, _object: NonNull<u8>, _trace: Trace<'_>) -> core::result::Result<(), Finding> {
        Ok(())
    }

    /// The first address of the range.
    #[must_use]
    pub fn base(&self) -> usize {
        0
    }

    /// The size of the range in bytes.
    #[must_use]
    pub fn span(&self) -> usize {
        0
    }

    /// Whether an address is in the range.
    #[must_use]
    pub fn owns(&self, address: usize) -> bool {
        address.wrapping_sub(self.base()) < self.span()
    }

    /// The size, as requested, of the live object that starts at `object`.
    #[must_use]
    pub fn bytes_of(&self, _object: NonNull<u8>) -> Option<usize> {
        None
    }

    /// The bytes from an address to the end of the live object around it; `Some(0)` in guards,
    /// padding and freed objects; `None` outside the range.
    #[must_use]
    pub fn room(&self, _address: usize) -> Option<usize> {
        None
    }

    /// Explains a fault at an address. Async-signal-safe.
    #[must_use]
    pub fn explain(&self, _address: usize) -> Option<Finding> {
        None
    }

    /// Makes the page of a guard or a freed object accessible for good. Async-signal-safe.
    pub fn open_page(&self, _address: usize) -> bool {
        false
    }

    /// Copies the frames of a stack; returns how many. Async-signal-safe.
    pub fn frames(&self, _stack: StackId, _into: &mut [usize]) -> usize {
        0
    }

    /// The counts now.
    #[must_use]
    pub fn stats(&self) -> SlotStats {
        SlotStats::default()
    }

    /// To be called before a fork.
    pub fn before_fork(&self) {}

    /// To be called after a fork, in the parent.
    pub fn after_fork_parent(&self) {}

    /// To be called after a fork, in the child.
    pub fn after_fork_child(&self) {}
}
