//! One sampled access to memory.
//!
//! A sample of a thread yields the accesses of the interrupted instruction or of the loop around
//! it. Each access has a weight: its share of the sample. Seven accesses of one sample have a
//! seventh each. So all weights add up to the number of samples, and shares of weight are shares of
//! time.

use serde::{Deserialize, Serialize};

/// A sampled access. The default has no bytes and is not usable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct SampledAccess {
    /// Address of the first byte.
    pub address: u64,
    /// Number of bytes, at most [`Self::MOST_BYTES`].
    pub bytes: u32,
    /// Whether it writes; it may read too.
    pub write: bool,
    /// Whether it is atomic: a locked instruction or an exchange.
    pub atomic: bool,
    /// Whether it changes single bits by a read and a write: OR, AND, XOR, or a bit test that sets,
    /// clears or flips.
    #[serde(default)]
    pub bitwise: bool,
    /// The thread, by the kernel's number.
    pub thread: u32,
    /// Address of the instruction.
    pub site: u64,
    /// Samples that it represents, above 0 and at most 1.
    pub weight: f64,
    /// Time in nanoseconds, by one clock for all threads.
    pub at_ns: u64,
    /// CPU on which the thread ran.
    pub cpu: u32,
}

impl SampledAccess {
    /// Maximum size of a usable access; a saved vector state fits. Wider accesses are block copies,
    /// which access each line only briefly.
    pub const MOST_BYTES: u32 = 512;

    /// Whether it can be counted. It cannot if it is empty or too wide, wraps around, or has no
    /// weight.
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
    use super::SampledAccess;

    const ACCESS: SampledAccess = SampledAccess {
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
    fn accesses_without_information_are_not_usable() {
        assert!(ACCESS.is_usable() && ACCESS.end() == 72);
        assert!(SampledAccess { bytes: SampledAccess::MOST_BYTES, ..ACCESS }.is_usable());
        for unusable in [
            SampledAccess { bytes: 0, ..ACCESS },
            SampledAccess { bytes: SampledAccess::MOST_BYTES + 1, ..ACCESS },
            SampledAccess { weight: 0.0, ..ACCESS },
            SampledAccess { weight: f64::NAN, ..ACCESS },
            SampledAccess { weight: f64::INFINITY, ..ACCESS },
            SampledAccess { address: u64::MAX - 6, ..ACCESS },
        ] {
            assert!(!unusable.is_usable(), "{unusable:?}");
        }
    }

    #[test]
    fn an_access_round_trips_through_json() {
        let text = serde_json::to_string(&ACCESS).unwrap();
        assert_eq!(serde_json::from_str::<SampledAccess>(&text).unwrap(), ACCESS);
    }
}
