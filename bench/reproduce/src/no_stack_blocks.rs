//! No stacks of blocks: `fieldstone-stacks` is for x86-64.

/// Calls `f` on the present stack.
#[inline(always)]
pub(crate) fn grow<R>(f: impl FnOnce() -> R) -> R {
    f()
}

/// Whether a stack can continue in another block.
pub(crate) const AVAILABLE: bool = false;
