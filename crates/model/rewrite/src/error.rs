//! Errors of this crate: one enum, each variant with its remedy.

use serde::{Deserialize, Serialize};

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An invalid page, or code that is not rewritten.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A page with invalid rules.
    #[error("page {start:#x}: {problem}: {remedy}")]
    Page {
        /// Its first address.
        start: u64,
        /// The problem.
        problem: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// Code that cannot be rewritten safely.
    #[error("code at {ip:#x} is not rewritten: {reason}")]
    Refused {
        /// Address of the instruction.
        ip: u64,
        /// The reason.
        reason: RefusalReason,
    },
}

impl Error {
    pub(crate) const fn refused(ip: u64, reason: RefusalReason) -> Self {
        Self::Refused { ip, reason }
    }

    /// The reason, if code was refused.
    #[must_use]
    pub const fn reason(&self) -> Option<RefusalReason> {
        match self {
            Self::Refused { reason, .. } => Some(*reason),
            Self::Page { .. } => None,
        }
    }
}

/// Why code is not rewritten. The bytes that it accesses must not be moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum RefusalReason {
    /// There is no valid instruction.
    Undecodable,
    /// Two instructions of the flow share bytes.
    Overlap,
    /// The instruction accesses no memory that could be redirected.
    NoMemory,
    /// It accesses several places.
    SeveralOperands,
    /// A string instruction: its addresses are in fixed registers.
    String,
    /// A gather or scatter: it has as many addresses as elements.
    Gather,
    /// Its address is relative to `fs` or `gs`.
    Segment,
    /// Its operand is on the stack.
    Stack,
    /// It saves or restores the processor's state, or its size is unknown.
    StateArea,
    /// A jump or call through memory.
    Branch,
    /// A bit string: the register's value may address bytes beyond the operand.
    BitString,
    /// An address of 32-bit registers, or another form without a displacement.
    AddressForm,
    /// The access does not fit into the rule's bytes.
    Straddles,
    /// An absolute address outside of the rule's bytes.
    OutsideRule,
    /// A target is more than 2 GiB away from the code.
    OutOfReach,
    /// No register is available for a guard.
    NoScratch,
    /// The loop has a call: a return address in the clone would break unwinding.
    Call,
    /// The instruction is not in the loop.
    NotInLoop,
    /// An entry of the clone would bypass a check.
    BehindCheck,
    /// The flow has fewer than five bytes of instructions at the loop's head.
    ShortHead,
    /// A jump leads into the bytes to be overwritten.
    InnerTarget,
    /// At the clone's address, an overwritten instruction would not be a trap.
    Pun,
}

impl RefusalReason {
    /// The meaning and the remedy.
    #[must_use]
    pub const fn message(self) -> &'static str {
        match self {
            Self::Undecodable => "its bytes are no instruction: sample again",
            Self::Overlap => "instructions overlap: start from another sample",
            Self::NoMemory => "it accesses no memory that can be redirected: try the instruction before it",
            Self::SeveralOperands => "it accesses several places: undo the rules of this page",
            Self::String => "a string instruction: undo the rules of this page",
            Self::Gather => "a gather or scatter: undo the rules of this page",
            Self::Segment => "its address goes through fs or gs: do not remap thread-local memory",
            Self::Stack => "its operand is on the stack: do not remap stacks",
            Self::StateArea => "it saves the processor's state, or its size is unknown: undo the rules of this page",
            Self::Branch => "a jump or call through memory: undo the rules of this page",
            Self::BitString => "a bit string without a limit: undo the rules of this page",
            Self::AddressForm => "its address has no displacement to change: undo the rules of this page",
            Self::Straddles => "it does not fit into the rule's bytes: undo the rules of this page, or widen the rule",
            Self::OutsideRule => "it is outside of the rule's bytes: pass the rule that contains it",
            Self::OutOfReach => "the distance is beyond 2 GiB: place the code or the view nearer",
            Self::NoScratch => "no register is free: do not clone the loop",
            Self::Call => "the loop has a call: do not clone it",
            Self::NotInLoop => "it is not in the loop: use a rewritelet",
            Self::BehindCheck => "the entry would bypass a check of the clone: enter at the start of a block",
            Self::ShortHead => "fewer than five bytes are known at the head: do not patch it",
            Self::InnerTarget => "a jump leads into the bytes of the patch: do not patch the head",
            Self::Pun => "the displacement to the entry has wrong bytes: use an address of Pun::entry_from",
        }
    }
}

impl std::fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.message())
    }
}

#[cfg(test)]
mod tests {
    use super::{Error, RefusalReason};

    #[test]
    fn a_refusal_has_address_reason_and_remedy() {
        let error = Error::refused(0x40_1000, RefusalReason::Call);
        assert_eq!(error.to_string(), "code at 0x401000 is not rewritten: the loop has a call: do not clone it");
        assert_eq!(error.reason(), Some(RefusalReason::Call));
    }
}
