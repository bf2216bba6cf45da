//! What goes on in a line: shared falsely, truly, only read, by one thread at a time, or a mixture.
//!
//! Bytes are grouped by the threads that use them; what the groups do to each other decides.
//!
//! ```text
//!   byte      0       8       16      24      32      40      48      56      64
//!   thread 1  WWWWWWWW                RRRRRRRR        WWWWWWWW
//!   thread 2          WWWWWWWW        RRRRRRRR        WWWWWWWW
//!   group     {1}     {2}             readers         {1, 2}: truly shared
//!             └───────┴─ fight: one writes, the other uses other bytes of the line ─┘
//! ```
//! - Only threads that ran at the same time count for each other ([`crate::windows`]); a thread that ran with no other
//!   counts for nothing.
//! - A thread that uses a byte seldom, next to the one that uses it most, is its *guest*: a monitor that looks at counters
//!   now and then does not make them one shared thing. The verdict is [`Verdict::Mixed`] then.
//! - Bytes that several threads read and none writes are one group: reading together is no sharing that costs.
//!
//! Source: Cachekata, section 4.3, for what false and true sharing are. The thresholds are ours.

mod crowd;
mod groups;
#[cfg(test)]
mod tests;

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::line::Line;
use crowd::Crowd;
use groups::Group;

/// The share of a line's weight that must be movable beside truly shared bytes. Below it the line goes on to travel for
/// these, and moving the rest apart gives back less than a trial of it costs.
pub const LEAST_MOVABLE: f64 = 0.10;

/// The share of the weight that must not be the heaviest group's. A line that one group has nearly for itself is taken
/// from it so seldom that the few misses are not worth a moved page.
pub const LEAST_CONTEST: f64 = 0.02;

/// What goes on in a line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
pub enum Verdict {
    /// Several threads, but too few samples to say whether they ran at the same time.
    Undecided,
    /// One thread, or one at a time, or others so seldom that it costs nothing.
    Private,
    /// Several threads at the same time; none writes.
    ReadOnly,
    /// Threads use different bytes, and some write.
    FalseSharing {
        /// Who uses which bytes, heaviest first; two at least.
        owners: Vec<Owner>,
    },
    /// Several threads write the same bytes.
    TrueSharing {
        /// These bytes.
        shared: Vec<Owner>,
    },
    /// One thread writes what others read.
    ProducerConsumer {
        /// These bytes.
        shared: Vec<Owner>,
    },
    /// Several threads write the same bytes by instructions that change single bits, or plainly and one byte at a time: most likely different
    /// bits of one byte or word. No rule can separate bits; the declaration can.
    BitsOfOneByte {
        /// These bytes.
        shared: Vec<Owner>,
    },
    /// Both: bytes that are truly shared, and bytes beside them that fight.
    Mixed {
        /// What is truly shared, heaviest first. Empty if bytes are shared with guests only.
        shared: Vec<Owner>,
        /// What could be moved away, heaviest first.
        movable: Vec<Owner>,
    },
}

/// Bytes of a line, and who uses them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Owner {
    /// The threads, by number.
    pub threads: Vec<u32>,
    /// Threads that use them too, but seldom.
    pub guests: Vec<u32>,
    /// Their addresses, in order.
    pub bytes: Vec<Range<u64>>,
    /// Samples of reads, faded.
    pub read: f64,
    /// Samples of writes, faded.
    pub written: f64,
}

/// A line and its verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// What was seen.
    pub line: Line,
    /// What it means.
    pub verdict: Verdict,
}

impl Judged {
    /// Judges a line.
    #[must_use]
    pub fn new(line: Line) -> Self {
        let verdict = judge(&line);
        Self { line, verdict }
    }

    /// Would it be seen in neither line of the pair alone? The prefetcher's doing, then. Always false for a single line.
    #[must_use]
    pub fn only_as_pair(&self) -> bool {
        let halves = self.line.halves();
        self.verdict.is_finding() && halves.is_some_and(|halves| halves.iter().all(|half| !judge(half).is_finding()))
    }
}

impl Verdict {
    /// Is it a finding: are there bytes that should be elsewhere?
    #[must_use]
    pub fn is_finding(&self) -> bool {
        matches!(self, Self::FalseSharing { .. } | Self::Mixed { .. })
    }

    /// What could be moved away; empty where nothing could.
    #[must_use]
    pub fn movable(&self) -> &[Owner] {
        match self {
            Self::FalseSharing { owners } => owners,
            Self::Mixed { movable, .. } => movable,
            _ => &[],
        }
    }

    /// What is truly shared; empty where nothing is.
    #[must_use]
    pub fn shared(&self) -> &[Owner] {
        match self {
            Self::TrueSharing { shared }
            | Self::ProducerConsumer { shared }
            | Self::BitsOfOneByte { shared }
            | Self::Mixed { shared, .. } => shared,
            _ => &[],
        }
    }

    /// In the words of a report.
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

/// Whether these are the bytes of more than one.
fn is_word(bytes: &Range<u64>) -> bool {
    bytes.end - bytes.start > 1
}

/// What goes on in this line?
#[must_use]
pub fn judge(line: &Line) -> Verdict {
    let crowd = Crowd::of(line);
    if crowd.is_empty() {
        return if crowd.is_too_young() { Verdict::Undecided } else { Verdict::Private };
    }
    let mut groups = groups::of(line, &crowd);
    groups.sort_by(|a, b| b.weight().total_cmp(&a.weight()));
    if groups.iter().all(|group| group.all_writers == 0) {
        return Verdict::ReadOnly;
    }
    let owners = |groups: &[&Group]| -> Vec<Owner> { groups.iter().map(|group| group.owner(line)).collect() };
    let fighting: Vec<&Group> =
        groups.iter().filter(|group| groups.iter().any(|other| group.fights(other, &crowd))).collect();
    let (shared, movable): (Vec<&Group>, Vec<&Group>) = fighting.iter().copied().partition(|group| group.is_shared());
    let heaviest = fighting.first().map_or(0.0, |group| group.weight());
    let all: f64 = groups.iter().map(Group::weight).sum();
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
    // Of groups that are truly shared, one may stay; the others could be moved too.
    let staying = shared.first().map_or(0.0, |group| group.weight());
    if !shared.is_empty() && fought - staying >= LEAST_MOVABLE * all {
        return Verdict::Mixed { shared: owners(&shared), movable: owners(&movable) };
    }
    truly(&groups, line)
}

/// The verdict of a line in which nothing is worth moving.
fn truly(groups: &[Group], line: &Line) -> Verdict {
    let several: Vec<&Group> = groups.iter().filter(|group| !group.overlap.is_empty()).collect();
    let shared: Vec<Owner> = several.iter().map(|group| group.owner(line)).collect();
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
