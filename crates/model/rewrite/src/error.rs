//! What can go wrong: one enum; each message names the place and the way out.

use serde::{Deserialize, Serialize};

/// The result of everything in this crate that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// A page that cannot be, or code that is left as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A page whose rules make no sense.
    #[error("page {start:#x}: {problem}: {remedy}")]
    Page {
        /// Its first address.
        start: u64,
        /// What is wrong.
        problem: String,
        /// What would be right.
        remedy: &'static str,
    },
    /// Code that cannot be rewritten safely.
    #[error("code at {ip:#x} is not rewritten: {reason}")]
    Refused {
        /// The instruction.
        ip: u64,
        /// Why not.
        reason: RefusalReason,
    },
}

impl Error {
    pub(crate) const fn refused(ip: u64, reason: RefusalReason) -> Self {
        Self::Refused { ip, reason }
    }

    /// The reason, where code was refused.
    #[must_use]
    pub const fn reason(&self) -> Option<RefusalReason> {
        match self {
            Self::Refused { reason, .. } => Some(*reason),
            Self::Page { .. } => None,
        }
    }
}

/// Why code is left as it is. The bytes that it touches stay, or go back, where they were.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Refused {
    /// No instruction can be read there.
    Undecodable,
    /// Two instructions of the flow share bytes.
    Overlap,
    /// The instruction touches no memory that could be redirected.
    NoMemory,
    /// It touches several places.
    SeveralOperands,
    /// A string instruction: its addresses are in fixed registers.
    String,
    /// A gather or scatter: as many addresses as elements.
    Gather,
    /// It goes through `fs` or `gs`.
    Segment,
    /// Its operand lies on the stack.
    Stack,
    /// It saves or restores the processor's state, or a size that cannot be told.
    StateArea,
    /// A jump or call through memory.
    Branch,
    /// A bit string: the register's value leads beyond the operand.
    BitString,
    /// An address made of 32-bit registers, or another form that holds no displacement.
    AddressForm,
    /// The access does not fit into the rule's bytes.
    Straddles,
    /// An absolute address outside the rule's bytes.
    OutsideRule,
    /// Where it leads is more than 2 GiB from where the code is to be.
    OutOfReach,
    /// No register can be used for a guard.
    NoScratch,
    /// The loop calls: a return address in the clone would break unwinding.
    Call,
    /// The instruction is not in the loop.
    NotInLoop,
    /// The clone would be entered behind a check that it relies on.
    BehindCheck,
    /// The instructions at the loop's head cannot be read on to five bytes.
    ShortHead,
    /// A jump leads into the bytes that would be overwritten.
    InnerTarget,
    /// The clone's address does not leave a trap at each instruction that is overwritten.
    Pun,
}

impl Refused {
    /// What it means, and what to do.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Undecodable => "its bytes are no instruction: sample again",
            Self::Overlap => "instructions overlap: start from another sample",
            Self::NoMemory => "it touches no memory that can be redirected: look at the instruction before it",
            Self::SeveralOperands => "it touches several places: undo the rules of this page",
            Self::String => "a string instruction: undo the rules of this page",
            Self::Gather => "a gather or scatter: undo the rules of this page",
            Self::Segment => "its address goes through fs or gs: do not remap thread-local memory",
            Self::Stack => "its operand lies on the stack: do not remap stacks",
            Self::StateArea => "it saves the processor's state or a size unknown: undo the rules of this page",
            Self::Branch => "a jump or call through memory: undo the rules of this page",
            Self::BitString => "a bit string without an end: undo the rules of this page",
            Self::AddressForm => "its address has no displacement to change: undo the rules of this page",
            Self::Straddles => "it does not fit into the rule's bytes: undo the rules of this page, or widen the rule",
            Self::OutsideRule => "it is outside the rule's bytes: give the rule that holds it",
            Self::OutOfReach => "the distance is beyond 2 GiB: place the code or the view nearer",
            Self::NoScratch => "no register is free: leave the loop as it is",
            Self::Call => "the loop calls: leave it as it is",
            Self::NotInLoop => "it is not in the loop: rewrite it by itself",
            Self::BehindCheck => "a check of the clone would be passed by: enter at the beginning of a block",
            Self::ShortHead => "fewer than five bytes are known at the head: leave it unpatched",
            Self::InnerTarget => "a jump leads into the bytes of the patch: leave the head unpatched",
            Self::Pun => "the entry's address has the wrong bytes: take one that Pun::entry_from gives",
        }
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.words())
    }
}

#[cfg(test)]
mod tests {
    use super::{Error, RefusalReason};

    #[test]
    fn a_refusal_tells_where_why_and_what_to_do() {
        let error = Error::refused(0x40_1000, RefusalReason::Call);
        assert_eq!(error.to_string(), "code at 0x401000 is not rewritten: the loop calls: leave it as it is");
        assert_eq!(error.reason(), Some(RefusalReason::Call));
    }
}
