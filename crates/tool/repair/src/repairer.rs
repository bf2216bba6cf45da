//! Findings in, pages moved; a repair that is not worth it is taken back.
//!
//! ```text
//!   finding ──→ plan ──→ same as in force? ── yes ──→ nothing
//!                            │ no: changed too often? ── yes ──→ given up
//!                            └─────────── no ──→ page put back, moved by the new plan, on trial
//!   on trial (`trials`): costs more than it gains ──→ put back, left alone for a while (`cooldown`), longer each time
//! ```
//! Redirected one by one, an access costs a hundred times what the cache line did: where code does not settle in its clones the repair
//! is worse than the fault. So each access is charged as it is redirected, to its page and to the program. A page is put back when it has
//! spent its allowance, and no page is tried while the program's is spent: all failed tries take [`MOST_LOST`] of the time, and [`LOST_AT_ONCE_NS`]
//! at once. Instructions are remembered that kept a page from paying: other pages that they access are left alone as long.
//! The process is held (ptrace, userfaultfd) from the first page that is to be moved until all are back.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use fieldstone_remap::{Done, Process, Touch, Wanted, Why, page_with};
use fieldstone_sharing::{Allowance, Cost, History, Judged, Move, Paces, PagePlan, Progress, Refusal, Step, rules};
use signal_hook::consts::signal::SIGCHLD;
use signal_hook::low_level::pipe;

use super::cooldown::{AGAIN_NS, Cooldown};
use super::trials::{DOUBTED_NS, Doubted, Finding, Repair, TRY_NS, lost_ns};
use super::watchdog::Watchdogs;
use crate::error::{Error, Result};
use fieldstone_launch::clock::{now_ns, thread_cpu_ns};

/// Lines that take less of the threads' time than this are left alone.
const LEAST_SHARE: f64 = 0.02;
/// A line has to weigh so many samples before its page is moved, or laps of twice as many have to come by it: in a loop of many accesses, each weighs
/// little.
const LEAST_WEIGHT: f64 = 8.0;
/// Paces of so long before a page is moved are those without the repair: threads fight since not much earlier, often.
const BEFORE_NS: u64 = 40_000_000;
/// What tries that fail may take, as a share of the time that has passed, and of a program that has just begun.
const MOST_LOST: f64 = 0.02;
const LOST_AT_ONCE_NS: f64 = 30e6;

/// Why a repair was undone.
#[derive(Clone, Debug, PartialEq)]
pub enum Undone {
    /// The kernel, an access that cannot be redirected, memory that went.
    By(Why),
    /// Too many accesses a second went on to be redirected one by one.
    ByHand(u64),
    /// The threads got on so many times as fast as before, which is no gain; none where that could not be seen.
    NoGain(Option<f64>),
    /// There are other rules for it now.
    Changed,
}

/// What a repairer did.
#[derive(Clone, Debug, PartialEq)]
pub enum Did {
    /// A page was moved.
    Moved(PagePlan),
    /// It could not be moved.
    Refused {
        /// The page.
        page: u64,
        /// What stands in the way.
        why: String,
    },
    /// One that a rule is about could not be moved.
    Denied {
        /// The page.
        page: u64,
        /// What stands in the way.
        why: String,
    },
    /// A page was put back.
    Undone {
        /// The page.
        page: u64,
        /// Why.
        why: Undone,
    },
    /// An access, or the loop around it, was led to the page's new place for the first time.
    Led {
        /// The instruction.
        ip: u64,
        /// The thread that came by.
        thread: u32,
    },
    /// Bytes were touched that are watched.
    Touched(Touch),
    /// The process has ended, or runs another program: all is forgotten.
    Over,
}

/// A page that somebody asks for: it is not on trial, and no findings of ours change it.
#[derive(Debug)]
struct Asked {
    wanted: Wanted,
    is_moved: bool,
    /// When it is tried next, and whether it was told why it could not be moved.
    next_ns: u64,
    told: bool,
}

/// Repairs one process.
#[derive(Debug)]
pub struct Repairer {
    pid: u32,
    /// Whether what a thread has on several lines comes together on as few as can be.
    consolidated: bool,
    /// Whether accesses are led to ladders, and no loop to a clone.
    by_ladders: bool,
    process: Option<Process>,
    /// Who puts everything back should this process die; from before the first page moves.
    watchdogs: Option<Watchdogs>,
    /// How often the process had to open its userfaultfd again when the watchdogs got it last.
    reopened: u32,
    /// What becomes readable when a child or a tracee of ours has stopped.
    alarm: OwnedFd,
    repairs: BTreeMap<u64, Repair>,
    history: History,
    /// Pages that could not be moved, or were put back, and instructions that kept pages from paying.
    cooldowns: BTreeMap<u64, Cooldown>,
    /// What failed tries may still cost the program.
    allowance: Allowance,
    /// Lines that fight and cannot be parted, by the last plan of their page.
    left: BTreeMap<u64, Refusal>,
    /// Pages that were put back since that brought no gain, and are looked at once more without it.
    doubted: BTreeMap<u64, Doubted>,
    /// Pages that somebody asks for.
    asked: BTreeMap<u64, Asked>,
}

impl Repairer {
    /// Of process `pid`, which is not touched yet: unless somebody has left pages of it elsewhere who was killed. These are put back. `consolidated`: what a
    /// thread has on several lines is brought together on as few as can be.
    ///
    /// # Errors
    /// Where the kernel refuses a descriptor, and where what was left behind cannot be put back.
    pub fn new(pid: u32, consolidated: bool) -> Result<Self> {
        let refused = Error::system("be told of signals");
        let (alarm, signal) = UnixStream::pair().map_err(refused)?;
        let refused = Error::system("be told of signals");
        alarm.set_nonblocking(true).and_then(|()| pipe::register(SIGCHLD, signal)).map_err(refused)?;
        let mut this = Self {
            pid,
            consolidated,
            by_ladders: false,
            process: None,
            watchdogs: None,
            reopened: 0,
            alarm: alarm.into(),
            repairs: BTreeMap::new(),
            history: History::default(),
            cooldowns: BTreeMap::new(),
            allowance: Allowance::new(LOST_AT_ONCE_NS, MOST_LOST, now_ns()),
            left: BTreeMap::new(),
            doubted: BTreeMap::new(),
            asked: BTreeMap::new(),
        };
        if Process::is_left_behind(pid)? {
            this.hold()?;
        }
        Ok(this)
    }

    /// Leads accesses to ladders, and no loop to a clone.
    #[must_use]
    pub fn by_ladders(self, by_ladders: bool) -> Self {
        Self { by_ladders, ..self }
    }

    /// The process, while it is held.
    #[must_use]
    pub const fn process(&self) -> Option<&Process> {
        self.process.as_ref()
    }

    /// Serves the process for so long at most, if it is held; whether it is.
    ///
    /// # Errors
    /// Where it refuses what has to be done.
    pub fn serve(&mut self, wait: Duration, did: &mut Vec<Did>) -> Result<bool> {
        let Some(process) = &mut self.process else { return Ok(false) };
        let began = thread_cpu_ns();
        let done = process.serve(wait);
        let spent_ns = thread_cpu_ns() - began;
        self.keep_watchdogs()?;
        let done = done?;
        let redirected = |done: &&Done| matches!(done, Done::Redirected { .. } | Done::Touched(_));
        let accesses = done.iter().filter(redirected).count();
        let each_ns = lost_ns(spent_ns, accesses) / accesses.max(1) as f64;
        for done in done {
            self.take_in(done, each_ns, did);
        }
        let now_ns = now_ns();
        let costly = |(&page, repair): (&u64, &Repair)| Some((page, repair.by_hand(now_ns)?));
        let costly: Vec<(u64, Finding)> = self.repairs.iter().filter_map(costly).collect();
        costly.into_iter().try_for_each(|(page, found)| self.conclude(page, found, None, now_ns, did))?;
        Ok(true)
    }

    /// `each_ns`: what the program has lost by each access that was redirected.
    fn take_in(&mut self, done: Done, each_ns: f64, did: &mut Vec<Did>) {
        match done {
            Done::Redirected { thread, ip, new, page, route } => {
                if let Some(repair) = self.repairs.get_mut(&page) {
                    let now_ns = now_ns();
                    repair.redirected(ip, route, each_ns, now_ns);
                    self.allowance.spend(each_ns, now_ns);
                }
                if new {
                    did.push(Did::Led { ip, thread });
                }
            }
            Done::PutBack { page, why: Why::Left } => did.push(Did::Undone { page, why: Undone::By(Why::Left) }),
            Done::Touched(touch) => did.push(Did::Touched(touch)),
            Done::PutBack { page, why } => {
                if matches!(why, Why::Kernel(_) | Why::Access { .. }) {
                    self.cooldowns.entry(page).or_default().failed(now_ns());
                }
                did.extend(self.forget(page, Undone::By(why)).1);
            }
            Done::Child(_) => {}
            Done::Over => {
                self.begin_anew();
                did.push(Did::Over);
            }
        }
    }

    /// Another program runs in the process: what is known is of the one before. What is left of that is told by [`Self::take_left`].
    pub fn begin_anew(&mut self) {
        self.process = None;
        self.repairs.clear();
        self.history = History::default();
        self.cooldowns.clear();
        self.allowance = Allowance::new(LOST_AT_ONCE_NS, MOST_LOST, now_ns());
        self.doubted.clear();
        self.asked.clear();
    }

    /// Does what the verdicts on lines ask for. `judged` are all lines that are known; `progress`, how fast the threads get on, if that is.
    ///
    /// # Errors
    /// Where the process refuses to be held or to be served.
    pub fn consider(
        &mut self,
        judged: &[(Judged, Option<Cost>)],
        progress: Option<&Progress>,
        now_ns: u64,
        did: &mut Vec<Did>,
    ) -> Result<()> {
        self.end_trials(progress, now_ns, did)?;
        self.end_doubts(progress, now_ns, did)?;
        self.do_asked(now_ns, did)?;
        for plan in self.plans(judged, now_ns) {
            if self.repairs.get(&plan.page).is_none_or(|repair| !suffices(&repair.plan, &plan)) {
                let lately = now_ns.saturating_sub(BEFORE_NS)..now_ns;
                let before = progress.map(|progress| progress.by_lines(&plan.lines, &lately));
                let share = worth(&plan, judged);
                self.repair(plan, share, before, now_ns, did)?;
            }
        }
        Ok(())
    }

    /// These pages are asked for from now on, instead of those before.
    ///
    /// # Errors
    /// Where the process refuses to have a page put back.
    pub fn ask(&mut self, mut pages: BTreeMap<u64, Wanted>, did: &mut Vec<Did>) -> Result<()> {
        let changed: Vec<u64> = self
            .asked
            .iter()
            .filter(|(page, one)| pages.get(page) != Some(&one.wanted))
            .map(|(&page, _)| page)
            .collect();
        for page in changed {
            if self.asked.get(&page).is_some_and(|one| one.is_moved) {
                self.put_back(page, Undone::Changed, did)?;
            }
            self.asked.remove(&page);
        }
        pages.retain(|page, _| !self.asked.contains_key(page));
        for (page, wanted) in pages {
            self.put_back(page, Undone::Changed, did)?;
            self.asked.insert(page, Asked { wanted, is_moved: false, next_ns: 0, told: false });
        }
        Ok(())
    }

    /// Whether bytes of the line at this address lie where somebody asks for them to lie.
    #[must_use]
    pub fn has_parted_as_asked(&self, line: u64) -> bool {
        let parts = |one: &Asked| one.wanted.owners.iter().flatten().any(|own| is_on_line(own, line));
        self.asked.get(&page_with(line)).is_some_and(|one| one.is_moved && parts(one))
    }

    /// Moves what is asked for and is not moved: not yet, or no longer.
    fn do_asked(&mut self, now_ns: u64, did: &mut Vec<Did>) -> Result<()> {
        let due = |one: &Asked| !one.is_moved && one.next_ns <= now_ns;
        let due: Vec<u64> = self.asked.iter().filter(|(_, one)| due(one)).map(|(&page, _)| page).collect();
        for page in due {
            let Some(wanted) = self.asked.get(&page).map(|one| one.wanted.clone()) else { continue };
            let moved = self.hold()?.move_page(&wanted);
            let Some(one) = self.asked.get_mut(&page) else { continue };
            match moved {
                Ok(_) => {
                    (one.is_moved, one.told) = (true, false);
                    let views = u32::try_from(wanted.owners.len()).unwrap_or(u32::MAX);
                    did.push(Did::Moved(PagePlan { page, views, moves: Vec::new(), lines: Vec::new() }));
                }
                Err(fieldstone_remap::Error::Page { why, .. }) => {
                    one.next_ns = now_ns + AGAIN_NS;
                    if !std::mem::replace(&mut one.told, true) {
                        did.push(Did::Denied { page, why });
                    }
                }
                Err(other) => return Err(other.into()),
            }
        }
        Ok(())
    }

    /// Plans for the pages of lines that cost enough.
    fn plans(&mut self, judged: &[(Judged, Option<Cost>)], now_ns: u64) -> Vec<PagePlan> {
        let page = |judged: &Judged| page_with(judged.line.address);
        let cools = |of: u64| self.cooldowns.get(&of).is_some_and(|cooldown| !cooldown.is_over(now_ns));
        let may_move = |judged: &Judged| {
            self.repairs.contains_key(&page(judged)) || !cools(page(judged)) && !is_mostly_by(judged, cools)
        };
        let worth: BTreeSet<u64> = judged
            .iter()
            .filter(|(judged, cost)| is_worth_it(judged, cost.as_ref()) && may_move(judged))
            .map(|(judged, _)| page(judged))
            .filter(|page| !self.asked.contains_key(page))
            .collect();
        if worth.is_empty() {
            return Vec::new();
        }
        let of_pages = judged.iter().map(|(judged, _)| judged).filter(|judged| worth.contains(&page(judged)));
        let lines: Vec<Judged> = of_pages.cloned().collect();
        let plan = rules::plan(&lines, rules::MOST_VIEWS, |line| self.history.has_given_up(line));
        self.left.retain(|line, _| !worth.contains(&page_with(*line)));
        self.left.extend(plan.refused.into_iter().map(|refused| (refused.line, refused.why)));
        plan.pages
    }

    /// Lines that fight and were left as they are, since their bytes cannot be parted; each is told once.
    pub fn take_left(&mut self) -> BTreeMap<u64, Refusal> {
        std::mem::take(&mut self.left)
    }

    /// Whether the program can bear one more try, beside those that go on.
    fn may_try(&self, now_ns: u64) -> bool {
        let settling = self.repairs.values().filter(|repair| repair.is_settling(now_ns)).count();
        self.allowance.left_ns(now_ns) >= TRY_NS * (settling + 1) as f64
    }

    /// Moves a page by this plan. `before`: how fast its threads get on without, unless it is moved already.
    fn repair(
        &mut self,
        plan: PagePlan,
        share: f64,
        mut before: Option<Paces>,
        now_ns: u64,
        did: &mut Vec<Did>,
    ) -> Result<()> {
        let page = plan.page;
        if !self.repairs.contains_key(&page) && !self.may_try(now_ns) {
            return Ok(());
        }
        let steps: Vec<Step> =
            plan.lines.iter().map(|&line| self.history.change(line, &on_line(&plan, line), now_ns)).collect();
        if let Some(known) = self.put_back(page, Undone::Changed, did)? {
            before = known.take_before();
        }
        // The next plan of this page leaves the line out.
        if steps.contains(&Step::GiveUp) {
            return Ok(());
        }
        let consolidated = self.consolidated;
        let moved = self.hold()?.move_page(&wanted(&plan, consolidated));
        let cooldown = self.cooldowns.entry(page).or_default();
        match moved {
            Ok(_) => {
                did.push(Did::Moved(plan.clone()));
                cooldown.moved();
                self.repairs.insert(page, Repair::new(plan, share, before, now_ns));
            }
            Err(fieldstone_remap::Error::Page { why, .. }) => {
                if cooldown.refused(now_ns) {
                    did.push(Did::Refused { page, why });
                }
            }
            Err(other) => return Err(other.into()),
        }
        Ok(())
    }

    /// Shows the watchdogs that this process is at work, and gives them the userfaultfd when it is another one.
    fn keep_watchdogs(&mut self) -> Result<()> {
        let (Some(watchdogs), Some(process)) = (&mut self.watchdogs, &self.process) else { return Ok(()) };
        if std::mem::replace(&mut self.reopened, process.reopened()) == process.reopened() {
            return watchdogs.beat();
        }
        watchdogs.share(process.userfault())
    }

    fn hold(&mut self) -> Result<&mut Process> {
        Ok(match self.process.take() {
            Some(process) => self.process.insert(process),
            None => {
                let watchdogs = match self.watchdogs.take() {
                    Some(watchdogs) => self.watchdogs.insert(watchdogs),
                    None => self.watchdogs.insert(Watchdogs::start(self.pid)?),
                };
                let mut process = Process::open(self.pid)?;
                watchdogs.share(process.userfault())?;
                self.reopened = process.reopened();
                if self.by_ladders {
                    process.lead_to_ladders();
                }
                process.wake_by(self.alarm.try_clone().map_err(Error::system("be told of signals"))?);
                self.process.insert(process)
            }
        })
    }

    /// Ends the trials of which something is found.
    fn end_trials(&mut self, progress: Option<&Progress>, now_ns: u64, did: &mut Vec<Did>) -> Result<()> {
        let found = |(&page, repair): (&u64, &mut Repair)| Some((page, repair.finding(progress, now_ns)?));
        let found: Vec<(u64, Finding)> = self.repairs.iter_mut().filter_map(found).collect();
        found.into_iter().try_for_each(|(page, found)| self.conclude(page, found, progress, now_ns, did))
    }

    /// Does what is found of a moved page: it stays, or is put back and left alone for a while.
    fn conclude(
        &mut self,
        page: u64,
        found: Finding,
        progress: Option<&Progress>,
        now_ns: u64,
        did: &mut Vec<Did>,
    ) -> Result<()> {
        let Some(repair) = self.repairs.get(&page) else { return Ok(()) };
        let why = match found {
            Finding::Gain | Finding::Stays => {
                self.allowance.refund(repair.spent_ns());
                if found == Finding::Gain {
                    self.cooldowns.entry(page).or_default().gained();
                }
                return Ok(());
            }
            Finding::ByHand(a_second) => Undone::ByHand(a_second),
            Finding::NoGain(times) => {
                self.allowance.spend(repair.loss_ns(times, now_ns), now_ns);
                if let Some((progress, _)) = progress.zip(times) {
                    let (plan, share, paces) = (repair.plan.clone(), repair.share, repair.paces(progress, now_ns));
                    self.doubted.insert(page, Doubted { plan, share, paces, since_ns: now_ns });
                }
                Undone::NoGain(times)
            }
        };
        for of in repair.culprits().into_iter().chain([page]) {
            self.cooldowns.entry(of).or_default().failed(now_ns);
        }
        self.put_back(page, why, did).map(drop)
    }

    /// Looks once more at what was put back without a gain: where threads get on worse without it, what they do had changed, and it is moved again.
    fn end_doubts(&mut self, progress: Option<&Progress>, now_ns: u64, did: &mut Vec<Did>) -> Result<()> {
        let due = |_: &u64, doubted: &mut Doubted| now_ns.saturating_sub(doubted.since_ns) >= DOUBTED_NS;
        let due: Vec<(u64, Doubted)> = self.doubted.extract_if(.., due).collect();
        for (page, doubted) in due {
            if progress.is_some_and(|progress| doubted.was_a_gain(progress, now_ns)) {
                self.cooldowns.entry(page).or_default().gained();
                self.repair(doubted.plan, doubted.share, None, now_ns, did)?;
            }
        }
        Ok(())
    }

    /// Puts a page back; returns the repair that ends.
    fn put_back(&mut self, page: u64, why: Undone, did: &mut Vec<Did>) -> Result<Option<Repair>> {
        let is_asked = self.asked.get(&page).is_some_and(|one| one.is_moved);
        if !is_asked && !self.repairs.contains_key(&page) {
            return Ok(None);
        }
        if let Some(process) = &mut self.process {
            process.put_page_back(page, Why::Asked)?;
        }
        let (repair, undone) = self.forget(page, why);
        did.extend(undone);
        Ok(repair)
    }

    /// A page is back. What had to be put back since the program's memory went is given up in the end; for what failed there are cooldowns.
    fn forget(&mut self, page: u64, why: Undone) -> (Option<Repair>, Option<Did>) {
        let asked = self.asked.get_mut(&page).map(|one| std::mem::take(&mut one.is_moved));
        let found = self.repairs.remove(&page);
        if matches!(why, Undone::By(Why::Gone | Why::Closed)) {
            let now_ns = now_ns();
            for &line in found.iter().flat_map(|repair| &repair.plan.lines) {
                self.history.change(line, &[], now_ns);
            }
        }
        let is_undone = found.is_some() || asked == Some(true);
        (found, is_undone.then_some(Did::Undone { page, why }))
    }

    /// Whether it is being found out how fast threads get on, with a repair or without one.
    pub fn is_trying(&self) -> bool {
        !self.doubted.is_empty() || self.repairs.values().any(Repair::is_compared)
    }

    /// Puts everything back and lets go of the process.
    ///
    /// # Errors
    /// Where the process refuses.
    pub fn let_go(&mut self) -> Result<()> {
        if let Some(process) = self.process.take() {
            process.release()?;
        }
        if let Some(mut watchdogs) = self.watchdogs.take() {
            watchdogs.dismiss();
        }
        self.repairs.clear();
        Ok(())
    }
}

/// Whether a line is shared falsely, and that costs enough to do something about it.
pub(super) fn is_worth_it(judged: &Judged, cost: Option<&Cost>) -> bool {
    let weight = judged.line.weight;
    // Laps do not fade: the weight tells whether they are of late.
    let is_heavy =
        weight >= LEAST_WEIGHT || weight >= 1.0 && cost.is_some_and(|cost| cost.on_line >= 2.0 * LEAST_WEIGHT);
    judged.verdict.is_finding() && is_heavy && costs_enough(cost)
}

/// Whether a line takes enough of the threads' time to be mended.
pub(super) fn costs_enough(cost: Option<&Cost>) -> bool {
    cost.is_some_and(|cost| cost.share.low >= LEAST_SHARE)
}

/// What the heaviest line of a plan takes of the threads' time.
fn worth(plan: &PagePlan, judged: &[(Judged, Option<Cost>)]) -> f64 {
    let is_mended = |judged: &Judged| plan.lines.contains(&judged.line.address);
    let costs = judged.iter().filter(|(judged, _)| is_mended(judged)).filter_map(|(_, cost)| cost.as_ref());
    costs.fold(0.0, |most, cost| cost.share.likely.max(most))
}

/// Whether more than half of the samples of a line were taken at instructions that are to be left alone.
fn is_mostly_by(judged: &Judged, cools: impl Fn(u64) -> bool) -> bool {
    let sites = || judged.line.threads.iter().flat_map(|thread| &thread.sites);
    let cooling: HashSet<u64> = sites().map(|site| site.site).filter(|&site| cools(site)).collect();
    let all: f32 = sites().map(|site| site.weight).sum();
    let by_them: f32 = sites().filter(|site| cooling.contains(&site.site)).map(|site| site.weight).sum();
    by_them * 2.0 > all
}

/// The moves of a plan that have a byte on the line at this address.
fn on_line(plan: &PagePlan, line: u64) -> Vec<Move> {
    plan.moves.iter().filter(|one| is_on_line(&one.bytes, line)).cloned().collect()
}

/// Whether one of these bytes is on the line at this address.
const fn is_on_line(bytes: &Range<u64>, line: u64) -> bool {
    bytes.start < line + 64 && line < bytes.end
}

/// Whether the rules in force do what the new plan asks for: each of its moves lies in one of theirs, and what it parts they part.
fn suffices(in_force: &PagePlan, asked: &PagePlan) -> bool {
    let holder = |one: &Move| {
        let holds = |own: &&Move| own.bytes.start <= one.bytes.start && one.bytes.end <= own.bytes.end;
        in_force.moves.iter().find(holds)
    };
    asked.moves.iter().all(|one| {
        holder(one).is_some_and(|own| {
            let parted =
                |other: &Move| other.view == one.view || holder(other).is_none_or(|theirs| theirs.view != own.view);
            asked.moves.iter().all(parted)
        })
    })
}

/// The owners of a plan's views.
fn wanted(plan: &PagePlan, consolidated: bool) -> Wanted {
    let of_view = |view| plan.moves.iter().filter(|one| one.view == view).map(|one| one.bytes.clone()).collect();
    Wanted { page: plan.page, owners: (0..plan.views).map(of_view).collect(), consolidated, watched: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(moves: &[(u64, u64, u32)]) -> PagePlan {
        let one = |&(start, end, view): &(u64, u64, u32)| Move { bytes: start..end, view, threads: Vec::new() };
        let views = moves.iter().map(|one| one.2 + 1).max().unwrap_or(0);
        PagePlan { page: 0x1000, views, moves: moves.iter().map(one).collect(), lines: vec![0x1000] }
    }

    #[test]
    fn rules_that_part_what_is_asked_for_stay_in_force() {
        let in_force = plan(&[(0x1000, 0x1010, 0), (0x1010, 0x1040, 1)]);
        for (asked, enough) in [
            (plan(&[(0x1000, 0x1010, 0), (0x1010, 0x1040, 1)]), true),
            (plan(&[(0x1000, 0x1008, 1), (0x1010, 0x1018, 0)]), true),
            (plan(&[(0x1010, 0x1018, 0), (0x1018, 0x1020, 1)]), false),
            (plan(&[(0x1008, 0x1018, 0)]), false),
            (plan(&[(0x1080, 0x1088, 0)]), false),
        ] {
            assert_eq!(suffices(&in_force, &asked), enough, "{asked:?}");
        }
    }

    #[test]
    fn each_view_is_an_owner() {
        let wanted = wanted(&plan(&[(0x1000, 0x1008, 0), (0x1008, 0x1010, 1), (0x1040, 0x1048, 0)]), false);
        assert_eq!(wanted.owners, [vec![0x1000..0x1008, 0x1040..0x1048], std::iter::once(0x1008..0x1010).collect()]);
    }
}
