//! A random layout per process: the addresses of code and data change results by more than the
//! measured effects.
//!
//! ```text
//! drawn from the sample's seed     how                                                      range
//! address space                    randomisation by the kernel, which stays enabled
//! environment                      a padding variable, set by the parent: moves the stack   0 to 4 KiB
//! stack                            calls before the kernel                                  0 to 63 frames of 80 bytes and more
//! heap                             a block that stays allocated                             0 to 64 KiB
//! baseline array                   its start within a page                                  0 to 63 cache lines
//! code                             nops at the kernel's entry, one of four copies           0, 16, 32, 48 bytes
//! ```
//! The compiler aligns loops to 16 bytes, so four paddings reach all places within a cache line.
//!
//! Source: Zagieboylo's blog, "Conclusion" (Stabilizer), and Mytkowicz et al., *Producing wrong
//! data without doing anything obviously wrong!*. Unlike in Stabilizer, a process keeps its layout,
//! and each sample has its own process.

#![allow(unsafe_code, reason = "nops are assembly")]

use fieldstone_workloads::random::SplitMix64;

/// Number of copies of each kernel's code.
pub const PADDINGS: usize = 4;

/// The layout of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The seed of the other fields.
    pub seed: u64,
    /// Bytes of the padding variable in the environment.
    pub environment_bytes: usize,
    /// Number of calls between `main` and the kernel.
    pub stack_frames: usize,
    /// Bytes that stay allocated on the heap.
    pub heap_bytes: usize,
    /// Cache lines from the start of a page to the baseline array.
    pub array_lines: usize,
    /// The copy of each kernel that runs, below [`PADDINGS`].
    pub padding: usize,
}

impl Layout {
    /// Draws the layout of a seed.
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        Self {
            seed,
            environment_bytes: random.below(4096),
            stack_frames: random.below(64),
            heap_bytes: 16 * random.below(4096),
            array_lines: random.below(64),
            padding: random.below(PADDINGS),
        }
    }

    /// Runs `work` with this layout's stack and heap.
    pub fn within<R>(&self, work: impl FnOnce() -> R) -> R {
        let heap = std::hint::black_box(vec![0_u8; self.heap_bytes]);
        let result = deeper(self.stack_frames, work);
        drop(heap);
        result
    }
}

/// Calls `work` below `frames` more stack frames.
#[inline(never)]
fn deeper<R, F: FnOnce() -> R>(frames: usize, work: F) -> R {
    let room = std::hint::black_box([0_u8; 64]);
    let result = if frames == 0 { work() } else { deeper(frames - 1, work) };
    // The frame is used after the call, so that the call does not become a jump.
    std::hint::black_box(&room);
    result
}

/// Bytes of a nop.
const NOP_BYTES: usize = if cfg!(target_arch = "x86_64") { 1 } else { 4 };

/// `BYTES` bytes of nops.
#[inline(always)]
pub fn nops<const BYTES: usize>() {
    // SAFETY: a nop changes neither registers nor memory.
    unsafe {
        core::arch::asm!(
            ".rept {count}", "nop", ".endr",
            count = const BYTES / NOP_BYTES, options(nomem, nostack, preserves_flags)
        );
    }
}

/// Returns `value`, which the compiler must load into a register. A loop with it is not vectorised.
#[inline(always)]
pub fn consume(value: u64) -> u64 {
    let mut value = value;
    // SAFETY: the assembly has no instruction; the compiler only assumes that the value may change.
    unsafe {
        core::arch::asm!("/* {0} */", inout(reg) value, options(pure, nomem, nostack, preserves_flags));
    }
    value
}

/// Boxes a kernel in the copy of the layout: `kernel!(layout, move || body)`.
///
/// The body is compiled [`PADDINGS`] times at different addresses. Functions that it calls must be
/// `#[inline(always)]`, or they stay at one address.
#[macro_export]
macro_rules! kernel {
    ($layout:expr, move || $body:expr) => {
        match $layout.padding {
            0 => Box::new(move || $body) as Box<dyn FnMut() -> u64>,
            1 => Box::new(move || {
                $crate::nops::<16>();
                $body
            }),
            2 => Box::new(move || {
                $crate::nops::<32>();
                $body
            }),
            _ => Box::new(move || {
                $crate::nops::<48>();
                $body
            }),
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_reach_every_padding_and_differ() {
        let layouts: Vec<Layout> = (0..64).map(Layout::of_seed).collect();
        assert!((0..PADDINGS).all(|padding| layouts.iter().any(|layout| layout.padding == padding)));
        assert!(layouts.iter().any(|layout| layout.stack_frames > 32 && layout.heap_bytes > 32 << 10));
        assert_eq!(layouts[7], Layout::of_seed(7));
    }

    #[test]
    fn the_stack_really_moves() {
        let on_stack = |frames: usize| {
            let layout = Layout { stack_frames: frames, ..Layout::of_seed(1) };
            layout.within(|| {
                let here = std::hint::black_box(1_u8);
                (&raw const here).addr()
            })
        };
        assert!(on_stack(0) >= on_stack(10) + 10 * 64);
    }

    #[test]
    fn every_copy_of_a_kernel_computes_the_same() {
        for padding in 0..PADDINGS {
            let layout = Layout { padding, ..Layout::of_seed(0) };
            let mut kernel = kernel!(layout, move || (0..100_u64).fold(0, |sum, value| sum + consume(value)));
            assert_eq!(kernel(), 4950);
        }
    }
}
