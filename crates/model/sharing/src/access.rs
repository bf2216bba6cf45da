//! One access to memory, as a sample shows it.
//!
//! A sample of a thread yields the accesses of the instruction that it stopped at, or of the loop around it. Each
//! access has a weight: the samples, or the part of one, that it stands for. A sample that yields seven accesses gives
//! each a seventh, so that the weights of all accesses add up to samples, and the shares of `cost` are shares of time.

use serde::{Deserialize, Serialize};

/// An access: where, by whom, when, and how many samples it stands for. By default it is none, which is not usable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Access {
    /// The first byte.
    pub address: u64,
    /// How many bytes, at most [`Self::MOST_BYTES`].
    pub bytes: u32,
    /// It writes; it may read too.
    pub write: bool,
    /// It is atomic: a locked instruction or an exchange.
    pub atomic: bool,
    /// It is a read and a write that changes single bits: OR, AND, XOR, or a bit test that sets, clears or flips.
    #[serde(default)]
    pub bitwise: bool,
    /// The thread, by the kernel's number.
    pub thread: u32,
    /// The address of the instruction.
    pub site: u64,
    /// The samples that it stands for, above 0 and at most 1.
    pub weight: f64,
    /// When, in nanoseconds of one clock for all threads.
    pub at_ns: u64,
    /// The number of the CPU that the thread ran on.
    pub cpu: u32,
}

impl Access {
    /// The widest access that says anything about a line: a saved vector state fits. Block copies are wider, and touch
    /// each line only in passing.
    pub const MOST_BYTES: u32 = 512;

    /// Can it be counted? Not if it is empty or too wide, wraps around, or weighs nothing.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        (1..=Self::MOST_BYTES).contains(&self.bytes)
            && self.weight.is_finite()
            && self.weight > 0.0
            && self.address.checked_add(self.bytes.into()).is_some()
    }

    /// The address behind its last byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.address.saturating_add(self.bytes.into())
    }
}

#[cfg(test)]
mod tests {
    use super::Access;

    const ACCESS: Access = Access {
        address: 64,
        bytes: 8,
        write: true,
        atomic: false,
        bitwise: false,
        thread: 1,
        site: 2,
        weight: 1.0,
        at_ns: 3,
        cpu: 4,
    };

    #[test]
    fn accesses_that_say_nothing_are_not_usable() {
        assert!(ACCESS.is_usable() && ACCESS.end() == 72);
        assert!(Access { bytes: Access::MOST_BYTES, ..ACCESS }.is_usable());
        for unusable in [
            Access { bytes: 0, ..ACCESS },
            Access { bytes: Access::MOST_BYTES + 1, ..ACCESS },
            Access { weight: 0.0, ..ACCESS },
            Access { weight: f64::NAN, ..ACCESS },
            Access { weight: f64::INFINITY, ..ACCESS },
            Access { address: u64::MAX - 6, ..ACCESS },
        ] {
            assert!(!unusable.is_usable(), "{unusable:?}");
        }
    }

    #[test]
    fn an_access_survives_json() {
        let text = serde_json::to_string(&ACCESS).unwrap();
        assert_eq!(serde_json::from_str::<Access>(&text).unwrap(), ACCESS);
    }
}
