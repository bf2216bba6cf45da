//! Determines why resident memory is outside the region.
//!
//! ```text
//! the agent's table ──→ spans ─┐
//!                              ├─→ the cause of each private read-write mapping outside the region
//! smaps ───────────────────────┘
//! ```
//! The span with the largest overlap decides. A mapping without a span is zero-initialised data if
//! it directly follows a file mapping. Otherwise a system call that bypassed libc created it. Cost:
//! one read of 8 KiB for each snapshot.

use fieldstone_sys::process::ProcessMemory;
use fieldstone_sys::smaps::Mapping;
use fieldstone_wire::PlacementReason;
use fieldstone_wire::span::{SPANS, Span, SpanKind};

/// Why a mapping is outside the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    /// The agent reported it: the index of the reason in `PlacementReason::ALL`.
    Counted(usize),
    /// Zero-initialised data of a program or library.
    Bss,
    /// The agent did not intercept the call that mapped it.
    Unseen,
}

impl Cause {
    /// The agent serves the memory at its own address.
    pub(crate) const IN_PLACE: Self = Self::Counted(PlacementReason::InPlace as usize);

    /// Whether the agent serves the memory at its own address.
    pub(crate) fn is_in_place(self) -> bool {
        matches!(self, Self::Counted(reason) if PlacementReason::ALL[reason].is_in_place())
    }

    /// The text in a report.
    pub(crate) fn description(self) -> &'static str {
        match self {
            Self::Counted(reason) => PlacementReason::ALL[reason].words(),
            Self::Bss => "zero-initialised globals: --also globals serves them",
            Self::Unseen => "mapped by system calls that bypass libc: `fieldstone attach --huge` puts it on huge pages",
        }
    }
}

/// Reads the agent's spans at `address` in process `pid`.
/// Empty if `address` is 0 (no agent) or the memory cannot be read.
pub(crate) fn spans(pid: u32, address: u64) -> Vec<Span> {
    let mut bytes = vec![0; SPANS * size_of::<u64>()];
    let memory = ProcessMemory::open(pid);
    if address == 0 || memory.and_then(|memory| memory.read_exact(address, &mut bytes)).is_err() {
        return Vec::new();
    }
    let words = bytes.chunks_exact(size_of::<u64>()).filter_map(|word| Some(u64::from_le_bytes(word.try_into().ok()?)));
    words.filter_map(Span::from_word).collect()
}

/// Why `mapping` is outside the region; `before` is the mapping at the next lower address.
pub(crate) fn cause(mapping: &Mapping, before: Option<&Mapping>, spans: &[Span]) -> Cause {
    let overlap = |span: &&Span| span.overlap(mapping.start, mapping.end);
    match spans.iter().filter(|span| overlap(span) > 0).max_by_key(overlap).map(|span| span.holding) {
        Some(SpanKind::Reserved) => Cause::IN_PLACE,
        Some(SpanKind::Memory(reason)) => Cause::Counted(reason as usize),
        None if mapping.has_flag("gd") => Cause::Counted(PlacementReason::Stack as usize),
        None if before.is_some_and(|before| is_data(before) && before.end == mapping.start) => {
            if mapping.has_flag("hg") { Cause::IN_PLACE } else { Cause::Bss }
        }
        None => Cause::Unseen,
    }
}

/// Whether the mapping may be the initialised data of a program or library.
fn is_data(mapping: &Mapping) -> bool {
    mapping.inode != 0 && !mapping.permissions.shared && !mapping.permissions.execute
}

#[cfg(test)]
mod tests {
    use super::*;
    use fieldstone_sys::smaps;

    const SMAPS: &str = "\
100000000000-100000100000 rw-p 00001000 08:01 5 /bin/program
Rss: 64 kB
100000100000-100000900000 rw-p 00000000 00:00 0
Rss: 64 kB
VmFlags: rd wr mr mw me ac
200000000000-200000800000 rw-p 00000000 00:00 0
Rss: 64 kB
300000000000-300000800000 rw-p 00000000 00:00 0
Rss: 64 kB
";

    #[test]
    fn the_largest_span_decides_and_otherwise_the_mapping() {
        let image = SMAPS.replace("rw-p", "rwxp");
        let mappings = smaps::parse(image.as_bytes()).unwrap();
        assert_eq!(cause(&mappings[1], Some(&mappings[0]), &[]), Cause::Unseen, "the program mapped this image itself");
        let mappings = smaps::parse(SMAPS.as_bytes()).unwrap();
        let stack = SpanKind::Memory(PlacementReason::Stack);
        let spans = [
            Span::around(0x2000_0000_0000, 65536, stack),
            Span::around(0x2000_0001_0000, 7 << 20, SpanKind::Memory(PlacementReason::InPlace)),
        ];
        let of = |index: usize| cause(&mappings[index], Some(&mappings[index - 1]), &spans);
        assert_eq!([of(1), of(2), of(3)], [Cause::Bss, Cause::IN_PLACE, Cause::Unseen]);
        let of = |spans: &[Span]| cause(&mappings[2], None, spans);
        assert_eq!(of(&spans[..1]), Cause::Counted(0));
        assert_eq!(of(&[Span::around(0x2000_0000_0000, 1, SpanKind::Reserved)]), Cause::IN_PLACE);
    }

    #[test]
    fn the_spans_are_read_from_the_memory_of_the_process() {
        let mut words = vec![0_u64; SPANS];
        let span = Span::around(0x1234_0000_0000, 1 << 20, SpanKind::Reserved);
        words[7] = span.word();
        assert_eq!(spans(std::process::id(), words.as_ptr().addr() as u64), [span]);
        assert!(spans(std::process::id(), 0).is_empty() && spans(std::process::id(), 4096).is_empty());
    }
}
