//! Hardware counters of real runs, where there are any: what a modelled share of time is to be held against.
//!
//! They are opened when the program has been started and count all that it starts itself. Not tried on a machine that has them.

use fieldstone_report::translation::CounterReading;
use fieldstone_sys::counters::{WalkCounters, Walks};
use fieldstone_sys::cpuid;
use fieldstone_wire::Mixture;

/// Counters of one run, or why there are none.
#[derive(Debug)]
pub(super) struct Counting(Result<WalkCounters, String>);

impl Counting {
    /// Begins to count what `pid` does.
    pub(super) fn start(pid: u32) -> Self {
        Self(WalkCounters::open(pid, &cpuid::cpu()))
    }

    /// What was counted.
    pub(super) fn finish(self) -> Result<Walks, String> {
        self.0?.read().map_err(|error| format!("the counters cannot be read: {error}"))
    }
}

/// What was counted in all runs.
#[derive(Debug, Default)]
pub(super) struct Tally {
    kinds: Vec<CounterReading>,
    why_not: Option<String>,
}

impl Tally {
    /// Adds a run on pages of `kind`.
    pub(super) fn add(&mut self, kind: Mixture, counted: &Result<Walks, String>) {
        let walks = match counted {
            Ok(walks) => walks,
            Err(why) => {
                self.why_not.get_or_insert_with(|| why.clone());
                return;
            }
        };
        let kind = kind.to_string();
        let place = self.kinds.iter().position(|other| other.kind == kind).unwrap_or_else(|| {
            self.kinds.push(CounterReading { kind, ..CounterReading::default() });
            self.kinds.len() - 1
        });
        let sum = &mut self.kinds[place];
        sum.walks += walks.walks;
        sum.cycles += walks.cycles;
        sum.walk_cycles = walks.walk_cycles.map(|cycles| sum.walk_cycles.unwrap_or(0) + cycles);
    }

    /// The sums, a page kind each, and why there are none.
    pub(super) fn finish(self) -> (Vec<CounterReading>, Option<String>) {
        let why_not = self.why_not.filter(|_| self.kinds.is_empty());
        (self.kinds, why_not)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fieldstone_wire::PageKind;

    #[test]
    fn runs_are_added_by_kind_and_a_reason_stands_only_alone() {
        let walks = |walks, cycles| Ok(Walks { walks, walk_cycles: Some(2 * walks), cycles });
        let mut tally = Tally::default();
        tally.add(PageKind::Small4k.into(), &Err("no hardware counters".to_owned()));
        assert_eq!(
            Tally { why_not: tally.why_not.clone(), ..Tally::default() }.finish().1.as_deref(),
            Some("no hardware counters")
        );
        tally.add(PageKind::Small4k.into(), &walks(5, 100));
        tally.add(PageKind::Thp.into(), &walks(1, 50));
        tally.add(PageKind::Small4k.into(), &walks(7, 100));
        let (kinds, why_not) = tally.finish();
        assert_eq!((kinds[0].walks, kinds[0].walk_cycles, kinds[0].cycles, kinds[1].walks), (12, Some(24), 200, 1));
        assert_eq!(why_not, None);
    }
}
