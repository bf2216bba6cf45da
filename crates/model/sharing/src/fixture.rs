//! Lines for tests, from the bytes that each thread uses.

use crate::access::SampledAccess;
use crate::line_table::LineTable;
use crate::settings::Settings;
use crate::verdict::JudgedLine;

/// Duration of a window of time.
pub(crate) const WINDOW_NS: u64 = 4_000_000;

/// Thread, first byte, bytes, write.
pub(crate) type Use = (u32, u64, u32, bool);

/// The lines of these uses, none of them atomic.
pub(crate) fn judged(uses: &[Use]) -> Vec<JudgedLine> {
    judged_lines(&uses.iter().map(|&one| (one, false)).collect::<Vec<_>>())
}

/// The lines of these uses and whether they are atomic. Each use is sampled in each of four windows.
pub(crate) fn judged_lines(uses: &[(Use, bool)]) -> Vec<JudgedLine> {
    let mut lines = LineTable::new(Settings { half_life_ns: None, most_lines: 256, ..Settings::default() }).unwrap();
    for window in 0..4 {
        for &((thread, address, bytes, write), atomic) in uses {
            let at_ns = window * WINDOW_NS;
            lines.record(&SampledAccess {
                address,
                bytes,
                write,
                atomic,
                thread,
                weight: 0.5,
                at_ns,
                cpu: thread,
                ..SampledAccess::default()
            });
        }
    }
    lines.heaviest(usize::MAX, 4 * WINDOW_NS).into_iter().map(JudgedLine::new).collect()
}
