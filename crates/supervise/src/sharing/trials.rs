//! Pages on trial: do the threads get on faster with a repair than without?
//!
//! Both are laps of the loops that come by the page's lines (`fieldstone_sharing::progress`), of the same threads and counters: before the page
//! was moved, and since loops have settled in their clones. What shows no gain is put back, and looked at once more without.

use fieldstone_sharing::{Compared, Outcome, Paces, PagePlan, Progress, trial};

/// After this long the loops should be in their clones.
pub(super) const SETTLED_NS: u64 = 250_000_000;
/// A trial that has shown nothing after so long is over.
const LONGEST_NS: u64 = 1_000_000_000;

/// A page that is moved.
#[derive(Debug)]
pub(super) struct Repair {
    pub(super) plan: PagePlan,
    /// What its heaviest line took of the threads' time.
    pub(super) share: f64,
    /// When it was moved.
    pub(super) moved_ns: u64,
    /// Since when its accesses are counted, and how many there were.
    pub(super) since_ns: u64,
    pub(super) by_hand: u32,
}

/// A page that was put back since that brought no gain.
#[derive(Debug)]
pub(super) struct Doubted {
    pub(super) plan: PagePlan,
    /// As of [`Repair`].
    pub(super) share: f64,
    /// How fast threads got on with it.
    pub(super) paces: Paces,
    /// When it was put back.
    pub(super) since_ns: u64,
}

impl Repair {
    /// Whether it is too early to say what it is worth.
    pub(super) const fn is_on_trial(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.moved_ns) <= LONGEST_NS
    }

    /// How fast the threads get on with it.
    pub(super) fn paces(&self, progress: &Progress, now_ns: u64) -> Paces {
        // Until then loops were led into their clones.
        let settled_ns = self.moved_ns + SETTLED_NS / 2;
        progress.by_lines(&self.plan.lines, &(settled_ns..now_ns))
    }

    /// Whether all threads whose bytes were parted are among these.
    fn is_of(&self, compared: &Compared) -> bool {
        let mut parted = self.plan.moves.iter().flat_map(|one| &one.threads);
        parted.all(|thread| compared.threads.contains(thread))
    }

    /// How many times as fast the threads get on as before a page was moved, where that is shown to be no gain: for all of them. What shows a
    /// gain, or nothing for too long, is not asked again.
    pub(super) fn no_gain(&self, progress: &Progress, before: &mut Option<Paces>, now_ns: u64) -> Option<f64> {
        let compared = before.as_ref()?.compared(&self.paces(progress, now_ns));
        let compared = compared.filter(|compared| self.is_of(compared));
        let outcome = compared.as_ref().map_or(Outcome::Doubt, |found| trial::outcome(&found.before, &found.after));
        match outcome {
            Outcome::NoGain => return compared.map(|found| found.after.likely),
            Outcome::Gain => *before = None,
            Outcome::Doubt if !self.is_on_trial(now_ns) => *before = None,
            Outcome::Doubt => {}
        }
        None
    }
}

impl Doubted {
    /// Whether threads get on worse without it: what they do had changed, and it was a gain.
    pub(super) fn was_a_gain(&self, progress: &Progress, now_ns: u64) -> bool {
        let settled_ns = self.since_ns + SETTLED_NS / 2;
        let without = progress.by_lines(&self.plan.lines, &(settled_ns..now_ns));
        let compared = without.compared(&self.paces);
        compared.is_some_and(|found| trial::outcome(&found.before, &found.after) == Outcome::Gain)
    }
}

#[cfg(test)]
mod tests {
    use fieldstone_sharing::{Mark, Move};

    use super::*;

    /// Samples of two threads, each a millisecond and a pace: so many laps before the tenth, so many after it.
    fn progress(laps: [(u64, u64); 2], until_ms: u64) -> Progress {
        let mut progress = Progress::default();
        for (thread, (before, after)) in (1..).zip(laps) {
            let mut value = 0;
            for ms in 0..until_ms {
                value += if ms < 10 { before } else { after };
                progress.pass(thread);
                let at_ns = ms * 1_000_000;
                let mark = Mark { thread, counter: 0x40, value, step: 1, bytes: 8, is_late: false, at_ns };
                progress.see(&mark, &[0x1000]);
            }
        }
        progress
    }

    #[test]
    fn a_repair_is_taken_back_where_all_of_its_threads_get_on_no_faster() {
        let ms = 1_000_000;
        let judge = |laps, threads: [u32; 2], now_ms: u64| {
            let progress = progress(laps, 300);
            let of = |(start, view, thread)| Move { bytes: start..start + 8, view, threads: vec![thread] };
            let moves = [(0x1000, 0, threads[0]), (0x1008, 1, threads[1])].map(of).to_vec();
            let plan = PagePlan { page: 0x1000, views: 2, moves, lines: vec![0x1000] };
            let mut before = Some(progress.by_lines(&plan.lines, &(0..10 * ms)));
            let repair = Repair { plan, share: 1.0, moved_ns: 10 * ms, since_ns: 10 * ms, by_hand: 0 };
            let times = repair.no_gain(&progress, &mut before, now_ms * ms);
            (times, before.is_some())
        };
        assert_eq!(judge([(10, 30), (10, 30)], [1, 2], 300), (None, false), "it helps, and is not asked again");
        let (times, _) = judge([(10, 9), (10, 10)], [1, 2], 300);
        assert!(times.is_some_and(|times| (0.94..0.96).contains(&times)), "{times:?}");
        assert_eq!(judge([(10, 9), (10, 10)], [1, 3], 300), (None, true), "who knows how the third gets on");
        assert_eq!(judge([(10, 9), (10, 10)], [1, 3], 1100), (None, false), "nobody ever will");
        assert_eq!(judge([(10, 9), (10, 10)], [1, 2], 12), (None, true), "too early");
    }
}
