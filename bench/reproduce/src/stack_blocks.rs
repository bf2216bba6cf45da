//! Stacks of blocks, by `fieldstone-stacks`.

pub(crate) use fieldstone_stacks::grow;

/// Whether a stack can continue in another block.
pub(crate) const AVAILABLE: bool = true;
