//! One moved page: what redirecting its accesses has cost, and whether its threads get on faster than before.
//!
//! ```text
//!   moved ─┬─ accesses go on to be redirected one by one, for longer than its allowance ──→ put back, at any time
//!          └─ laps of the loops that access its lines, with the repair : before it
//!               even the worst reading is a gain ─────────────→ stays
//!               even the best reading is no gain ─────────────→ put back; compared once more without it
//!               not known in time ─┬─ all code settled in clones of loops ──→ stays: they add nothing to a lap
//!                                  └─ code is entered and left at each access ──→ put back: that can cost more than the line did
//! ```
//! A lap is counted by the loop's own counter (`fieldstone_sharing::progress`), of the same threads and counters on both sides.

use std::collections::{BTreeMap, BTreeSet};

use fieldstone_remap::Route;
use fieldstone_sharing::{Allowance, Compared, Outcome, Paces, PagePlan, Progress, trial};

/// Code that was not optimised takes so many times as long.
const SLOWER: f64 = if cfg!(debug_assertions) { 10.0 } else { 1.0 };
/// What redirecting the accesses of one page may cost at once, in nanoseconds: some 100 accesses.
pub(super) const TRY_NS: f64 = 8e6;
/// The part of the time that its line took which redirecting its accesses may take for as long as the page is moved. The rest is the gain.
const BY_HAND: f64 = 0.1;
/// The part of a redirect that does not take us processor time: the fault and two changes of threads, in nanoseconds.
const WAKE_NS: f64 = 15e3;
/// After this long a trial of code that is entered and left at each access is over; loops take as long until they are in their clones.
const SHORT_NS: u64 = 60_000_000;
/// A trial of loops that has shown nothing after this long is over.
const LONG_NS: u64 = 1_000_000_000;
/// Readings of the first moments after a clone was made are left out.
const SETTLED_NS: u64 = 2_000_000;
/// Readings are compared from this long after the last clone on.
const LEAST_NS: u64 = 40_000_000;
/// A page that was put back without a gain is compared once more after this long.
pub(super) const DOUBTED_NS: u64 = 250_000_000;
/// The part of the time that a repair is taken to lose of which that is not known. High, so that the next try is late.
const UNKNOWN_LOSS: f64 = 1.0;

/// A page that is moved.
#[derive(Debug)]
pub(super) struct Repair {
    pub(super) plan: PagePlan,
    /// What its heaviest line took of the threads' time.
    pub(super) share: f64,
    /// When it was moved.
    moved_ns: u64,
    /// When a clone was made for it last.
    led_ns: u64,
    /// When an access was redirected by itself last.
    by_hand_ns: u64,
    /// How often each instruction was redirected by itself, and what that cost in nanoseconds, since a clone was made for it last.
    by_hand: BTreeMap<u64, (u32, f64)>,
    /// Instructions whose code is entered and left at each access.
    stretches: BTreeSet<u64>,
    allowance: Allowance,
    /// What it has cost, in nanoseconds.
    spent_ns: f64,
    /// How fast its threads got on before it was moved, until its trial is over.
    before: Option<Paces>,
    is_open: bool,
}

/// What a trial has shown.
#[derive(Debug, PartialEq)]
pub(super) enum Finding {
    /// The threads get on faster.
    Gain,
    /// Accesses go on to be redirected one by one: so many a second.
    ByHand(u64),
    /// The threads get on so many times as fast as before; none where that is not known.
    NoGain(Option<f64>),
    /// It stays, though a gain was not shown.
    Stays,
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

/// What serving took, in nanoseconds of our processor time: what the program lost by it.
pub(super) fn lost_ns(spent_ns: u64, accesses: usize) -> f64 {
    spent_ns as f64 / SLOWER + WAKE_NS * accesses as f64
}

impl Repair {
    /// One that was moved now. `before`: how fast its threads got on.
    pub(super) fn new(plan: PagePlan, share: f64, before: Option<Paces>, now_ns: u64) -> Self {
        let allowance = Allowance::new(TRY_NS, BY_HAND * share, now_ns);
        Self {
            plan,
            share,
            moved_ns: now_ns,
            led_ns: now_ns,
            by_hand_ns: now_ns,
            by_hand: BTreeMap::new(),
            stretches: BTreeSet::new(),
            allowance,
            spent_ns: 0.0,
            before,
            is_open: true,
        }
    }

    /// An access by the instruction at `ip` was redirected, which cost the program so much.
    pub(super) fn redirected(&mut self, ip: u64, route: Route, cost_ns: f64, now_ns: u64) {
        self.by_hand_ns = now_ns;
        self.spent_ns += cost_ns;
        if route == Route::Alone {
            let (times, cost) = self.by_hand.entry(ip).or_default();
            (*times, *cost) = (*times + 1, *cost + cost_ns);
            self.allowance.spend(cost_ns, now_ns);
        } else {
            // The accesses before were what it took to make the clone.
            self.allowance.refund(self.by_hand.remove(&ip).map_or(0.0, |(_, cost)| cost));
            self.led_ns = now_ns;
        }
        if route == Route::Stretch {
            self.stretches.insert(ip);
        }
    }

    /// What it has cost the program so far, in nanoseconds.
    pub(super) const fn spent_ns(&self) -> f64 {
        self.spent_ns
    }

    /// How fast its threads got on before, for a repair that takes its place.
    pub(super) fn take_before(self) -> Option<Paces> {
        self.before
    }

    /// Whether accesses are being led to clones, so that it may still cost what a try may cost.
    pub(super) const fn is_settling(&self, now_ns: u64) -> bool {
        self.is_open && now_ns.saturating_sub(self.by_hand_ns) < SHORT_NS / 4
    }

    /// Whether samples can show what it is worth.
    pub(super) fn is_compared(&self) -> bool {
        self.is_open && self.before.as_ref().is_some_and(|before| !before.is_empty())
    }

    /// The instructions that keep it from paying: those that were redirected most, and those whose code is entered and left at each access.
    pub(super) fn culprits(&self) -> BTreeSet<u64> {
        let all: u32 = self.by_hand.values().map(|(times, _)| times).sum();
        let often = self.by_hand.iter().filter(|(_, (times, _))| times * 8 >= all).map(|(&ip, _)| ip);
        often.chain(self.stretches.iter().copied()).collect()
    }

    /// How fast the threads get on with it.
    pub(super) fn paces(&self, progress: &Progress, now_ns: u64) -> Paces {
        progress.by_lines(&self.plan.lines, &(self.led_ns + SETTLED_NS..now_ns))
    }

    /// What of the time since it was moved its threads have lost, if they get on so many times as fast as before.
    pub(super) fn loss_ns(&self, times: Option<f64>, now_ns: u64) -> f64 {
        let lost = times.map_or(UNKNOWN_LOSS, |times| (1.0 - times).max(0.0));
        lost * now_ns.saturating_sub(self.moved_ns) as f64
    }

    /// Accesses a second that were redirected one by one, where that has cost more than it may.
    pub(super) fn by_hand(&self, now_ns: u64) -> Option<Finding> {
        let is_over = self.allowance.left_ns(now_ns) < 0.0;
        let all: u64 = self.by_hand.values().map(|&(times, _)| u64::from(times)).sum();
        is_over.then(|| Finding::ByHand(all * 1_000_000_000 / now_ns.saturating_sub(self.moved_ns).max(1)))
    }

    /// What is found now, if it is anything new.
    pub(super) fn finding(&mut self, progress: Option<&Progress>, now_ns: u64) -> Option<Finding> {
        let by_hand = self.by_hand(now_ns);
        if by_hand.is_some() || !self.is_open {
            return by_hand;
        }
        let limit_ns = if self.stretches.is_empty() { LONG_NS } else { SHORT_NS };
        let is_over = now_ns.saturating_sub(self.moved_ns) > limit_ns;
        if now_ns.saturating_sub(self.led_ns) < LEAST_NS && !is_over {
            return None;
        }
        let compared = progress.and_then(|progress| self.before.as_ref()?.compared(&self.paces(progress, now_ns)));
        let compared = compared.filter(|compared| self.is_of(compared));
        let outcome = compared.as_ref().map_or(Outcome::Doubt, |found| trial::outcome(&found.before, &found.after));
        let times = compared.map(|found| found.after.likely);
        let found = match outcome {
            Outcome::Gain => Finding::Gain,
            Outcome::NoGain => Finding::NoGain(times),
            Outcome::Doubt if !is_over => return None,
            Outcome::Doubt if self.stretches.is_empty() => Finding::Stays,
            Outcome::Doubt => Finding::NoGain(times),
        };
        self.is_open = false;
        Some(found)
    }

    /// Whether all threads whose bytes were separated are among these.
    fn is_of(&self, compared: &Compared) -> bool {
        let mut parted = self.plan.moves.iter().flat_map(|one| &one.threads);
        parted.all(|thread| compared.threads.contains(thread))
    }
}

impl Doubted {
    /// Whether threads get on worse without it: what they do had changed, and it was a gain.
    pub(super) fn was_a_gain(&self, progress: &Progress, now_ns: u64) -> bool {
        let without = progress.by_lines(&self.plan.lines, &(self.since_ns + DOUBTED_NS / 2..now_ns));
        let compared = without.compared(&self.paces);
        compared.is_some_and(|found| trial::outcome(&found.before, &found.after) == Outcome::Gain)
    }
}

#[cfg(test)]
mod tests {
    use fieldstone_sharing::{Mark, Move};

    use super::*;

    const MS: u64 = 1_000_000;

    /// Samples of two threads, each a millisecond and a pace: so many laps before the tenth, so many after it.
    fn progress(laps: [(u64, u64); 2], until_ms: u64) -> Progress {
        let mut progress = Progress::default();
        for (thread, (before, after)) in (1..).zip(laps) {
            let mut value = 0;
            for ms in 0..until_ms {
                value += if ms < 10 { before } else { after };
                progress.pass(thread);
                let at_ns = ms * MS;
                let mark = Mark { thread, counter: 0x40, value, step: 1, bytes: 8, is_late: false, at_ns };
                progress.see(&mark, &[0x1000]);
            }
        }
        progress
    }

    /// A page whose lines these two threads use, moved at the tenth millisecond.
    fn repair(progress: Option<&Progress>, threads: [u32; 2]) -> Repair {
        let of = |(start, view, thread)| Move { bytes: start..start + 8, view, threads: vec![thread] };
        let moves = [(0x1000, 0, threads[0]), (0x1008, 1, threads[1])].map(of).to_vec();
        let plan = PagePlan { page: 0x1000, views: 2, moves, lines: vec![0x1000] };
        let before = progress.map(|progress| progress.by_lines(&plan.lines, &(0..10 * MS)));
        Repair::new(plan, 1.0, before, 10 * MS)
    }

    #[test]
    fn a_repair_is_taken_back_where_all_of_its_threads_get_on_no_faster() {
        let judge = |laps, threads: [u32; 2], now_ms: u64| {
            let progress = progress(laps, 300);
            let mut repair = repair(Some(&progress), threads);
            (repair.finding(Some(&progress), now_ms * MS), repair.is_compared())
        };
        assert_eq!(judge([(10, 30), (10, 30)], [1, 2], 300), (Some(Finding::Gain), false));
        let (found, _) = judge([(10, 9), (10, 10)], [1, 2], 300);
        let is_slower = |found: &Finding| matches!(found, Finding::NoGain(Some(times)) if (0.94..0.96).contains(times));
        assert!(found.as_ref().is_some_and(is_slower), "{found:?}");
        assert_eq!(judge([(10, 9), (10, 10)], [1, 3], 300), (None, true), "nothing is known of the third");
        assert_eq!(judge([(10, 9), (10, 10)], [1, 3], 1100), (Some(Finding::Stays), false));
        assert_eq!(judge([(10, 9), (10, 10)], [1, 2], 12), (None, true), "too early");
    }

    #[test]
    fn code_that_is_entered_at_each_access_has_to_show_a_gain_soon() {
        let soon = 11 * MS + SHORT_NS;
        for (laps, found) in [(30, Finding::Gain), (0, Finding::NoGain(None))] {
            let progress = (laps > 0).then(|| progress([(10, laps), (10, laps)], 1000));
            let mut repair = repair(progress.as_ref(), [1, 2]);
            repair.redirected(0x40, Route::Stretch, 1e5, 11 * MS);
            assert_eq!(repair.finding(progress.as_ref(), soon), Some(found));
            assert_eq!(repair.culprits(), BTreeSet::from([0x40]));
            assert_eq!(repair.finding(progress.as_ref(), 2 * soon), None, "it is over");
        }
    }

    #[test]
    fn accesses_that_no_clone_takes_in_end_a_repair_as_they_come() {
        let mut repair = repair(None, [1, 2]);
        for access in 0..150 {
            repair.redirected(0x40 + u64::from(access < 20), Route::Alone, 5e4, 10 * MS + access * MS / 20);
        }
        assert_eq!(repair.by_hand(10 * MS + 150 * MS / 20), None);
        for access in 150..200 {
            repair.redirected(0x40, Route::Alone, 5e4, 10 * MS + access * MS / 20);
        }
        assert_eq!(repair.by_hand(20 * MS), Some(Finding::ByHand(20_000)));
        assert_eq!(repair.culprits(), BTreeSet::from([0x40]), "the other one came by at first only");
        assert!((0.9e7..1.1e7).contains(&repair.spent_ns()));
    }

    #[test]
    fn accesses_before_a_clone_are_the_cost_of_making_it() {
        let mut repair = repair(None, [1, 2]);
        for site in 0..100 {
            (0..9).for_each(|_| repair.redirected(site, Route::Alone, 5e4, 10 * MS));
            repair.redirected(site, Route::Stretch, 5e4, 10 * MS);
        }
        assert_eq!(repair.by_hand(10 * MS), None);
        assert!((4.9e7..5.1e7).contains(&repair.spent_ns()));
    }

    #[test]
    fn a_few_accesses_a_second_are_worth_the_gain() {
        let mut repair = repair(None, [1, 2]);
        for access in 0..5000 {
            repair.redirected(0x40, Route::Alone, 5e4, 10 * MS + access * MS);
            assert_eq!(repair.by_hand(10 * MS + access * MS), None);
        }
    }
}
