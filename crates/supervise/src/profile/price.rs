//! What the walks of a trace cost: its own addresses, replayed on this machine.
//!
//! ```text
//!   4 KiB minus 2 MiB pages, ns a recorded access      independent ........ program ........ dependent
//!                                                      low                  likely            high
//! ```
//! The program lies where the judged walks of its trace say. Divided by the walks that 2 MiB pages take away, that is the cost of
//! a walk; other configurations are priced with it.

use fieldstone_report::translation::{Modelled, Range, Side, Translation, WalkCost};

use crate::calibrate::{Difference, Replayed};
use crate::trace::Followed;

/// A walk of a data access costs no more than this, whatever the noise says.
const MOST_NS: f64 = 1000.0;
/// Fewer walks a recorded access than this are no base for a price.
const FEWEST: f64 = 1e-4;

/// Prices the walks of `told`. `native_s` is the processor time of a run on 4 KiB pages.
pub(super) fn price(told: &mut Translation, followed: &Followed, replayed: &Replayed, native_s: f64) {
    let scale = followed.accesses as f64 / followed.counted_accesses.max(1) as f64;
    let walks = |name: &str| told.configuration(name).map_or(0, |modelled| modelled.data.region_walks);
    let saved = walks("4K").saturating_sub(walks("2M")) as f64 / followed.sample.passed.max(1) as f64;
    let waits = followed.dependent_walks as f64 / followed.judged_walks.max(1) as f64;
    let Some(ns) = walk_ns(&replayed.independent, &replayed.dependent, waits, saved) else {
        told.unseen.push(
            "what a walk costs: 4 KiB pages have hardly more walks than 2 MiB ones, so there is nothing to measure it by".to_owned(),
        );
        return;
    };
    let baseline = told.configurations.first().map(|modelled| modelled.data).unwrap_or_default();
    let run_ns = native_s * 1e9;
    for modelled in &mut told.configurations {
        give_shares(modelled, &baseline, ns, scale / run_ns);
    }
    told.walk_cost = Some(WalkCost {
        ns,
        from: "replay".to_owned(),
        how: format!(
            "{} recorded accesses replayed on 4 KiB and 2 MiB pages here; {:.0} % of {} judged walks waited for an address",
            replayed.loads,
            waits * 100.0,
            followed.judged_walks
        ),
    });
}

/// Nanoseconds a walk; none where there are too few to divide by.
fn walk_ns(independent: &Difference, dependent: &Difference, waits: f64, saved: f64) -> Option<Range> {
    if saved < FEWEST {
        return None;
    }
    let likely = independent.median + (dependent.median - independent.median) * waits;
    let of = |ns: f64| (ns / saved).clamp(0.0, MOST_NS);
    let low = of(independent.low.min(dependent.low));
    let high = of(dependent.high.max(independent.high));
    Some(Range { low, likely: of(likely), high })
}

fn give_shares(modelled: &mut Modelled, baseline: &Side, ns: Range, scale: f64) {
    let share = |walks: u64| map(ns, |ns| (walks as f64 * ns * scale).clamp(0.0, 1.0));
    modelled.data_share = Some(share(modelled.data.walks));
    modelled.instruction_share = Some(share(modelled.instruction.walks));
    let fewer = baseline.walks as f64 - modelled.data.walks as f64;
    let time = map(ns, |ns: f64| (1.0 - fewer * ns * scale).max(0.0));
    modelled.time = Some(Range { low: time.low.min(time.high), likely: time.likely, high: time.low.max(time.high) });
}

fn map(range: Range, change: impl Fn(f64) -> f64) -> Range {
    Range { low: change(range.low), likely: change(range.likely), high: change(range.high) }
}
