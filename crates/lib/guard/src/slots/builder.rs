//! The options of guarded slots.

use crate::error::{Error, Result};
use crate::kernel::PAGE;
use crate::slots::Slots;
use crate::slots::budget::Budget;
use crate::slots::guards::Guards;
use crate::slots::lock::Lock;
use crate::slots::memory::Memory;
use crate::sync::AtomicUsize;

/// The side of its pages at which an object lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Side {
    /// One of them for each allocation, by a pseudo-random sequence.
    #[default]
    Both = 0,
    /// At the end: overflows fault.
    Right = 1,
    /// At the start: underflows fault.
    Left = 2,
}

impl Side {
    /// The side whose number, as by `side as u32`, is `code`: for a record outside the process.
    #[must_use]
    pub fn from_code(code: u32) -> Option<Self> {
        [Self::Both, Self::Right, Self::Left].into_iter().find(|&side| side as u32 == code)
    }
}

/// The memory for each object of the default quarantine.
const MEMORY_PER_FREED: usize = 16 << 10;
/// The smallest memory limit: an object, and the tables.
const MIN_MEMORY: usize = 16 * PAGE;

/// The options of a [`Slots`], made by [`Slots::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct SlotsBuilder {
    memory: usize,
    side: Side,
    quarantine: Option<usize>,
    seed: usize,
    has_batches: bool,
    force_protect: bool,
}

impl SlotsBuilder {
    pub(super) const fn new() -> Self {
        Self { memory: 64 << 20, side: Side::Both, quarantine: None, seed: 0, has_batches: true, force_protect: false }
    }

    /// Bounds the memory in bytes that live objects, records, page tables and stacks take together.
    /// An object takes whole pages. Default: 64 MiB.
    pub const fn memory(mut self, bytes: usize) -> Self {
        self.memory = bytes;
        self
    }

    /// Selects the side of objects. Default: [`Side::Both`].
    pub const fn side(mut self, side: Side) -> Self {
        self.side = side;
        self
    }

    /// Sets how many freed objects of a size class stay inaccessible before the oldest are reused.
    /// It is a lower bound: 64 more are kept, so that slots are reused in batches. When the memory
    /// limit or the address range is reached, objects are reused earlier. Default: one for each
    /// 16 KiB of the memory limit.
    pub const fn quarantine(mut self, objects: usize) -> Self {
        self.quarantine = Some(objects);
        self
    }

    /// Starts the sequence of sides for [`Side::Both`]. Equal seeds give equal sequences.
    /// Default: 0.
    pub const fn seed(mut self, seed: usize) -> Self {
        self.seed = seed;
        self
    }

    /// Changes one guard by each system call, for a process whose seccomp filter kills it at
    /// process_madvise(2). By default, several guards are changed by one call.
    pub const fn without_batches(mut self) -> Self {
        self.has_batches = false;
        self
    }

    /// Uses mprotect(2), as on kernels without guard markers.
    #[doc(hidden)]
    pub const fn force_protect(mut self) -> Self {
        self.force_protect = true;
        self
    }

    /// Reserves the address range. If a limit such as `RLIMIT_AS` is too small for it, the range
    /// is smaller; [`SlotStats::reserved`](crate::SlotStats::reserved) is its size.
    ///
    /// # Errors
    /// [`Error::Option`] for less memory than 64 KiB; [`Error::Map`] if not even a small range is
    /// available.
    pub fn build(self) -> Result<Slots> {
        if self.memory < MIN_MEMORY {
            return Err(Error::Option { option: "memory", value: self.memory, why: "the minimum is 65536 bytes" });
        }
        let memory = Memory::new(self.memory)?;
        Ok(Slots {
            guards: Guards::new(&memory, self.force_protect, self.has_batches),
            budget: Budget::new(self.memory, size_of_val(memory.chains())),
            memory,
            side: self.side,
            quarantine: self.quarantine.unwrap_or(self.memory / MEMORY_PER_FREED),
            seed: self.seed,
            classes: Lock::new(Default::default()),
            freed: Default::default(),
            stack_words: AtomicUsize::new(0),
            stack_count: AtomicUsize::new(0),
            counts: Default::default(),
        })
    }
}
