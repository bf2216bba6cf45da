//! Count page walks with hardware counters during real runs, to compare with the modelled shares.
//!
//! The counters open right after the program starts, and they include its child processes.
//! Limit: not tested on a machine that has such counters.

use fieldstone_report::translation::CounterReading;
use fieldstone_sys::counters::{WalkCounters, WalkCounts};
use fieldstone_sys::cpuid;
use fieldstone_wire::{Cause, Mixture};

/// The open counters of one run, or why they are not available.
#[derive(Debug)]
pub(super) struct RunCounters(Result<WalkCounters, String>);

impl RunCounters {
    /// Starts to count for `pid` and its future children.
    pub(super) fn start(pid: u32) -> Self {
        Self(WalkCounters::open(pid, &cpuid::cpu()))
    }

    /// Stops and returns the counts, or why they are not available.
    pub(super) fn finish(self) -> Result<WalkCounts, String> {
        self.0?.read().map_err(|error| format!("the counters cannot be read: {}", Cause(error)))
    }
}

/// The sums over all runs, by kind of page.
#[derive(Debug, Default)]
pub(super) struct CounterTotals {
    kinds: Vec<CounterReading>,
    unavailable: Option<String>,
}

impl CounterTotals {
    /// Adds the counts of a run on pages of `kind`.
    pub(super) fn add(&mut self, kind: Mixture, counted: &Result<WalkCounts, String>) {
        let walks = match counted {
            Ok(walks) => walks,
            Err(why) => {
                self.unavailable.get_or_insert_with(|| why.clone());
                return;
            }
        };
        let kind = kind.to_string();
        let position = self.kinds.iter().position(|other| other.kind == kind).unwrap_or_else(|| {
            self.kinds.push(CounterReading { kind, ..CounterReading::default() });
            self.kinds.len() - 1
        });
        let sum = &mut self.kinds[position];
        sum.walks += walks.walks;
        sum.cycles += walks.cycles;
        sum.walk_cycles = walks.walk_cycles.map(|cycles| sum.walk_cycles.unwrap_or(0) + cycles);
    }

    /// The sums by kind of page; the reason is set only if there are none.
    pub(super) fn finish(self) -> (Vec<CounterReading>, Option<String>) {
        let unavailable = self.unavailable.filter(|_| self.kinds.is_empty());
        (self.kinds, unavailable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fieldstone_wire::PageKind;

    #[test]
    fn counts_are_added_by_kind_and_a_reason_is_kept_only_without_counts() {
        let walks = |walks, cycles| Ok(WalkCounts { walks, walk_cycles: Some(2 * walks), cycles });
        let mut totals = CounterTotals::default();
        totals.add(PageKind::Small4k.into(), &Err("no hardware counters".to_owned()));
        assert_eq!(
            CounterTotals { unavailable: totals.unavailable.clone(), ..CounterTotals::default() }.finish().1.as_deref(),
            Some("no hardware counters")
        );
        totals.add(PageKind::Small4k.into(), &walks(5, 100));
        totals.add(PageKind::Thp.into(), &walks(1, 50));
        totals.add(PageKind::Small4k.into(), &walks(7, 100));
        let (kinds, unavailable) = totals.finish();
        assert_eq!((kinds[0].walks, kinds[0].walk_cycles, kinds[0].cycles, kinds[1].walks), (12, Some(24), 200, 1));
        assert_eq!(unavailable, None);
    }
}
