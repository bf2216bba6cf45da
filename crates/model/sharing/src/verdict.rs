//! The verdict about a line: false sharing, true sharing, only read, private, or a mixture.
//!
//! Algorithm: bytes are grouped by the threads that use them. The groups' accesses decide.
//!
//! ```text
//!   byte      0       8       16      24      32      40      48      56      64
//!   thread 1  WWWWWWWW                RRRRRRRR        WWWWWWWW
//!   thread 2          WWWWWWWW        RRRRRRRR        WWWWWWWW
//!   group     {1}     {2}             readers         {1, 2}: truly shared
//!             └───────┴─ contention: one writes, the other uses other bytes of the line ─┘
//! ```
//! | file | what it decides or does |
//! |---|---|
//! | `groups` | which bytes have the same users; which groups contend |
//! | `overlap` | which threads ran at the same time |
//!
//! - Threads are compared only if they ran at the same time ([`crate::windows`]). A thread that ran with no
//!   other is ignored.
//! - A thread that rarely uses a byte, compared to the byte's heaviest user, is its *guest*. An example is
//!   a monitor that reads counters periodically. It does not make them truly shared; the verdict is
//!   [`Verdict::Mixed`].
//! - Bytes that several threads read and none writes are one group, since reading together costs nothing.
//!
//! Source: Cachekata, section 4.3, for false and true sharing. The thresholds are our own.

mod groups;
mod overlap;
#[cfg(test)]
mod tests;

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::line_use::LineUse;
use groups::ByteGroup;
use overlap::ThreadOverlap;

/// Minimum share of a line's weight that must be movable beside truly shared bytes. Below it, the
/// truly shared bytes dominate the line's transfers, and a repair gains less than a trial of it
/// costs.
pub const LEAST_MOVABLE: f64 = 0.10;

/// Minimum share of the weight beside the heaviest group. A line that one group dominates is
/// transferred too rarely to be worth a moved page.
pub const LEAST_CONTEST: f64 = 0.02;

/// The verdict about a line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
pub enum Verdict {
    /// Several threads, but too few samples to decide whether they ran at the same time.
    Undecided,
    /// One thread, one thread at a time, or others so rarely that it costs nothing.
    Private,
    /// Several threads at the same time; none writes.
    ReadOnly,
    /// Threads use different bytes, and some write.
    FalseSharing {
        /// The owners of the bytes, heaviest first; at least two.
        owners: Vec<ByteOwner>,
    },
    /// Several threads write the same bytes.
    TrueSharing {
        /// These bytes.
        shared: Vec<ByteOwner>,
    },
    /// One thread writes bytes that others read.
    ProducerConsumer {
        /// These bytes.
        shared: Vec<ByteOwner>,
    },
    /// Several threads write the same bytes, either by instructions that change single bits, or by
    /// plain accesses of single bytes. Most likely these are different bits of one byte or word. No
    /// rule can separate bits; the declaration can.
    BitsOfOneByte {
        /// These bytes.
        shared: Vec<ByteOwner>,
    },
    /// Both: truly shared bytes, and contended bytes beside them.
    Mixed {
        /// The truly shared bytes, heaviest first. Empty if bytes are shared with guests only.
        shared: Vec<ByteOwner>,
        /// The bytes that can move, heaviest first.
        movable: Vec<ByteOwner>,
    },
}

/// Bytes of a line with the same users.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ByteOwner {
    /// The threads.
    pub threads: Vec<u32>,
    /// Threads that use them rarely.
    pub guests: Vec<u32>,
    /// Their addresses, in order.
    pub bytes: Vec<Range<u64>>,
    /// Decayed samples of reads.
    pub read: f64,
    /// Decayed samples of writes.
    pub written: f64,
}

/// A line with its verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JudgedLine {
    /// The use of the line.
    pub line: LineUse,
    /// The verdict.
    pub verdict: Verdict,
}

impl JudgedLine {
    /// Judges a line.
    #[must_use]
    pub fn new(line: LineUse) -> Self {
        let verdict = judge(&line);
        Self { line, verdict }
    }

    /// Whether neither line of the pair alone is a finding, so that the prefetcher causes it.
    /// Always false for a single line.
    #[must_use]
    pub fn only_as_pair(&self) -> bool {
        let halves = self.line.halves();
        self.verdict.is_finding() && halves.is_some_and(|halves| halves.iter().all(|half| !judge(half).is_finding()))
    }
}

impl Verdict {
    /// Whether it is a finding: some bytes should move.
    #[must_use]
    pub fn is_finding(&self) -> bool {
        matches!(self, Self::FalseSharing { .. } | Self::Mixed { .. })
    }

    /// The bytes that can move; empty if none can.
    #[must_use]
    pub fn movable(&self) -> &[ByteOwner] {
        match self {
            Self::FalseSharing { owners } => owners,
            Self::Mixed { movable, .. } => movable,
            _ => &[],
        }
    }

    /// The truly shared bytes; empty if there are none.
    #[must_use]
    pub fn shared(&self) -> &[ByteOwner] {
        match self {
            Self::TrueSharing { shared }
            | Self::ProducerConsumer { shared }
            | Self::BitsOfOneByte { shared }
            | Self::Mixed { shared, .. } => shared,
            _ => &[],
        }
    }

    /// Text for reports.
    #[must_use]
    pub fn words(&self) -> &'static str {
        match self {
            Self::Undecided => "too few samples to say",
            Self::Private => "one thread at a time",
            Self::ReadOnly => "only read",
            Self::FalseSharing { .. } => "false sharing",
            Self::TrueSharing { .. } => "true sharing",
            Self::ProducerConsumer { .. } => "true sharing: one writes, others read",
            Self::BitsOfOneByte { shared } if shared.iter().flat_map(|owner| &owner.bytes).any(is_word) => {
                "true sharing: most likely different bits of one word"
            }
            Self::BitsOfOneByte { .. } => "true sharing: most likely different bits of one byte",
            Self::Mixed { .. } => "false sharing beside true sharing",
        }
    }
}

/// Whether a range has more than one byte.
fn is_word(bytes: &Range<u64>) -> bool {
    bytes.end - bytes.start > 1
}

/// The verdict about this line.
#[must_use]
pub fn judge(line: &LineUse) -> Verdict {
    let overlap = ThreadOverlap::of(line);
    if overlap.is_empty() {
        return if overlap.is_too_young() { Verdict::Undecided } else { Verdict::Private };
    }
    let mut groups = groups::of(line, &overlap);
    groups.sort_by(|a, b| b.weight().total_cmp(&a.weight()));
    if groups.iter().all(|group| group.all_writers == 0) {
        return Verdict::ReadOnly;
    }
    let owners = |groups: &[&ByteGroup]| -> Vec<ByteOwner> { groups.iter().map(|group| group.owner(line)).collect() };
    let fighting: Vec<&ByteGroup> =
        groups.iter().filter(|group| groups.iter().any(|other| group.fights(other, &overlap))).collect();
    let (shared, movable): (Vec<&ByteGroup>, Vec<&ByteGroup>) =
        fighting.iter().copied().partition(|group| group.is_shared());
    let heaviest = fighting.first().map_or(0.0, |group| group.weight());
    let all: f64 = groups.iter().map(ByteGroup::weight).sum();
    let fought: f64 = fighting.iter().map(|group| group.weight()).sum();
    if shared.is_empty() && fought - heaviest >= LEAST_CONTEST * all {
        let alone = movable.iter().all(|group| group.guests == 0);
        let movable = owners(&movable);
        return if alone {
            Verdict::FalseSharing { owners: movable }
        } else {
            Verdict::Mixed { shared: Vec::new(), movable }
        };
    }
    // Of several truly shared groups, one stays; the others can move too.
    let staying = shared.first().map_or(0.0, |group| group.weight());
    if !shared.is_empty() && fought - staying >= LEAST_MOVABLE * all {
        return Verdict::Mixed { shared: owners(&shared), movable: owners(&movable) };
    }
    truly(&groups, line)
}

/// The verdict about a line without bytes worth moving.
fn truly(groups: &[ByteGroup], line: &LineUse) -> Verdict {
    let several: Vec<&ByteGroup> = groups.iter().filter(|group| !group.overlap.is_empty()).collect();
    let shared: Vec<ByteOwner> = several.iter().map(|group| group.owner(line)).collect();
    if shared.is_empty() {
        Verdict::Private
    } else if several.iter().all(|group| group.written_by_many.is_empty()) {
        Verdict::ProducerConsumer { shared }
    } else if several.iter().all(|group| group.is_bits(line)) {
        Verdict::BitsOfOneByte { shared }
    } else {
        Verdict::TrueSharing { shared }
    }
}
