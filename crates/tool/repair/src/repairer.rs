//! Moves the pages of contended lines, and restores a page if the repair costs more than it gains.
//!
//! ```text
//!   judged lines ─→ plan (`selection`) ─→ covered by the plan in force? ─ yes ─→ nothing
//!                                           │ no: changed too often? ─── yes ─→ line given up
//!                                           └── no ─→ page moved by the new plan, on trial
//!   on trial (`page_trial`): costs more than it gains ─→ restored, in cooldown (`cooldown`)
//!   rules (`requests`) ─→ page moved without a trial
//! ```
//! | file | what it decides or does |
//! |---|---|
//! | `selection` | which lines are worth a repair; whether a plan in force covers a new one |
//! | `trials` | acts on the result of a `page_trial`: a page stays, is restored or moves again |
//! | `requests` | which pages rules or the program request |
//! | `restore` | restores a page, with the reason |
//!
//! A single redirect takes about a hundred times as long as an access to a contended line. Where
//! accesses do not settle in clones, the repair is worse than the fault. So each redirect is
//! charged to the allowance of its page and to the allowance of the program.
//!
//! Invariants:
//! - A page is restored when its allowance is spent. No page is tried while the allowance of the
//!   program is spent.
//! - Failed trials take at most [`FAILED_TRIALS_SHARE`] of the time plus
//!   [`FAILED_TRIALS_BURST_NS`].
//! - Instructions that prevented a gain are in cooldown too: other pages that they mostly access
//!   are not moved.
//! - The process is traced (ptrace, userfaultfd) from the first move until all pages are restored.

mod requests;
mod restore;
mod selection;
mod trials;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use fieldstone_remap::{Process, RemapEvent, RestoreReason, page_with};
use fieldstone_sharing::{
    Allowance, ChangeDecision, JudgedLine, LineCost, LoopProgress, PaceSeries, PagePlan, PlanRefusal, RuleHistory,
    rules,
};
use signal_hook::consts::signal::SIGCHLD;
use signal_hook::low_level::pipe;

use self::requests::RequestedPage;
use self::restore::PageRestoreReason;
pub(crate) use self::selection::{costs_enough, is_worth_repair};
use self::selection::{covers, is_mostly_cooling, largest_share, moves_on_line, remap_request};
use crate::cooldown::Cooldown;
use crate::error::{Error, Result};
use crate::event::RepairEvent;
use crate::page_trial::{PageTrial, Recheck, TrialResult, lost_ns};
use crate::rule_accesses::RuleAccesses;
use crate::tuning::{BASELINE_NS, FAILED_TRIALS_BURST_NS, FAILED_TRIALS_SHARE, TRIAL_BURST_NS};
use crate::watchdog::Watchdogs;
use fieldstone_launch::clock::{now_ns, thread_cpu_ns};

/// What a call of [`Repairer::serve`] has found.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Served {
    /// Whether the process was attached, so that the call has waited for it.
    pub(crate) is_attached: bool,
    /// Whether a thread accessed bytes that rules watch.
    pub(crate) has_accesses: bool,
    /// Whether the process has ended, or runs another program. The repairer has no pages then.
    pub(crate) is_over: bool,
}

/// Repairs one process.
#[derive(Debug)]
pub(crate) struct Repairer {
    pid: u32,
    /// Whether a thread's data on several lines of a page is packed on as few lines as possible.
    consolidated: bool,
    /// Whether accesses are redirected by ladders, without clones of loops.
    uses_ladders: bool,
    /// The traced process; `None` while it is not attached.
    process: Option<Process>,
    /// The processes that restore all pages if this one dies. They run before the first page
    /// moves.
    watchdogs: Option<Watchdogs>,
    /// [`Process::reopened`] when the watchdogs got the userfaultfd.
    reopened: u32,
    /// Becomes readable when a child or a tracee of this process has stopped.
    alarm: OwnedFd,
    moved: BTreeMap<u64, PageTrial>,
    history: RuleHistory,
    /// Pages that could not be moved or were restored, and instructions that prevented a gain.
    cooldowns: BTreeMap<u64, Cooldown>,
    /// The time that failed trials may still take.
    allowance: Allowance,
    /// Contended lines that cannot be separated, by the last plan of their page.
    inseparable: BTreeMap<u64, PlanRefusal>,
    /// Pages that were restored without a gain and are compared again.
    rechecks: BTreeMap<u64, Recheck>,
    requested: BTreeMap<u64, RequestedPage>,
}

impl Repairer {
    /// A repairer of process `pid`. It attaches at once only if a killed repairer has left moved
    /// pages behind, and restores these. With `consolidated`, a thread's data on several lines of
    /// a page is packed on as few lines as possible.
    ///
    /// # Errors
    /// Where the kernel refuses a descriptor, and where pages of a killed repairer cannot be
    /// restored.
    pub(crate) fn new(pid: u32, consolidated: bool) -> Result<Self> {
        let refused = Error::system("open a pipe for signals");
        let (alarm, signal) = UnixStream::pair().map_err(refused)?;
        let refused = Error::system("receive signals");
        alarm.set_nonblocking(true).and_then(|()| pipe::register(SIGCHLD, signal)).map_err(refused)?;
        let mut this = Self {
            pid,
            consolidated,
            uses_ladders: false,
            process: None,
            watchdogs: None,
            reopened: 0,
            alarm: alarm.into(),
            moved: BTreeMap::new(),
            history: RuleHistory::default(),
            cooldowns: BTreeMap::new(),
            allowance: Allowance::new(FAILED_TRIALS_BURST_NS, FAILED_TRIALS_SHARE, now_ns()),
            inseparable: BTreeMap::new(),
            rechecks: BTreeMap::new(),
            requested: BTreeMap::new(),
        };
        if Process::is_left_behind(pid)? {
            this.attach()?;
        }
        Ok(this)
    }

    /// Redirects accesses by ladders, without clones of loops.
    #[must_use]
    pub(crate) fn with_ladders(self, uses_ladders: bool) -> Self {
        Self { uses_ladders, ..self }
    }

    /// The traced process; `None` while it is not attached.
    #[must_use]
    pub(crate) const fn process(&self) -> Option<&Process> {
        self.process.as_ref()
    }

    /// Serves the process for `timeout`, if it is attached. Accesses to watched bytes are reported
    /// by `rules`.
    ///
    /// # Errors
    /// Where the process refuses an operation.
    pub(crate) fn serve(
        &mut self,
        timeout: Duration,
        rules: &mut RuleAccesses,
        events: &mut Vec<RepairEvent>,
    ) -> Result<Served> {
        let Some(process) = &mut self.process else { return Ok(Served::default()) };
        let began = thread_cpu_ns();
        let remap_events = process.serve(timeout);
        let spent_ns = thread_cpu_ns() - began;
        self.keep_watchdogs()?;
        let remap_events = remap_events?;
        let is_redirect = |event: &&RemapEvent| matches!(event, RemapEvent::Redirected { .. } | RemapEvent::Watched(_));
        let redirects = remap_events.iter().filter(is_redirect).count();
        let cost_ns = lost_ns(spent_ns, redirects) / redirects.max(1) as f64;
        let mut served = Served { is_attached: true, ..Served::default() };
        for event in remap_events {
            self.convert(event, cost_ns, rules, &mut served, events);
        }
        let now_ns = now_ns();
        let excess = |(&page, moved): (&u64, &PageTrial)| Some((page, moved.excess_redirects(now_ns)?));
        let excess: Vec<(u64, TrialResult)> = self.moved.iter().filter_map(excess).collect();
        excess.into_iter().try_for_each(|(page, result)| self.conclude(page, result, None, now_ns, events))?;
        Ok(served)
    }

    /// Records an event of `remap` and adds the events to report. `cost_ns` is the time that the
    /// program lost by one redirect.
    fn convert(
        &mut self,
        event: RemapEvent,
        cost_ns: f64,
        rules: &mut RuleAccesses,
        served: &mut Served,
        events: &mut Vec<RepairEvent>,
    ) {
        match event {
            RemapEvent::Redirected { thread, ip, new, page, route } => {
                if let Some(moved) = self.moved.get_mut(&page) {
                    let now_ns = now_ns();
                    moved.record_redirect(ip, route, cost_ns, now_ns);
                    self.allowance.spend(cost_ns, now_ns);
                }
                if new {
                    events.push(RepairEvent::AccessRedirected { ip, thread, code: None });
                }
            }
            RemapEvent::Restored { page, why: RestoreReason::Abandoned } => {
                events.push(RepairEvent::PageRestored { page, why: RestoreReason::Abandoned.to_string() });
            }
            RemapEvent::Watched(access) => {
                served.has_accesses = true;
                rules.record(&access, events);
            }
            RemapEvent::Restored { page, why } => {
                if matches!(why, RestoreReason::Kernel(_) | RestoreReason::Access { .. }) {
                    self.cooldowns.entry(page).or_default().record_failure(now_ns());
                }
                events.extend(self.remove_page(page, &PageRestoreReason::Remap(why)).1);
            }
            RemapEvent::ChildRestored(_) => {}
            RemapEvent::Ended => {
                self.restart();
                served.is_over = true;
            }
        }
    }

    /// Removes all data of the program that ran before. [`Self::take_inseparable`] still returns
    /// its lines.
    pub(crate) fn restart(&mut self) {
        self.process = None;
        self.moved.clear();
        self.history = RuleHistory::default();
        self.cooldowns.clear();
        self.allowance = Allowance::new(FAILED_TRIALS_BURST_NS, FAILED_TRIALS_SHARE, now_ns());
        self.rechecks.clear();
        self.requested.clear();
    }

    /// Ends trials, moves requested pages, and moves the pages of judged lines that are worth it.
    /// `progress` is the progress of the threads, if it is measured.
    ///
    /// # Errors
    /// Where the process refuses an operation.
    pub(crate) fn update(
        &mut self,
        judged: &[(JudgedLine, Option<LineCost>)],
        progress: Option<&LoopProgress>,
        now_ns: u64,
        events: &mut Vec<RepairEvent>,
    ) -> Result<()> {
        self.end_trials(progress, now_ns, events)?;
        self.end_rechecks(progress, now_ns, events)?;
        self.move_requested(now_ns, events)?;
        for plan in self.plans(judged, now_ns) {
            if self.moved.get(&plan.page).is_none_or(|moved| !covers(&moved.plan, &plan)) {
                let recent = now_ns.saturating_sub(BASELINE_NS)..now_ns;
                let baseline = progress.map(|progress| progress.by_lines(&plan.lines, &recent));
                let share = largest_share(&plan, judged);
                self.apply(plan, share, baseline, now_ns, events)?;
            }
        }
        Ok(())
    }

    /// Plans for the pages of lines that are worth a repair and not in cooldown.
    fn plans(&mut self, judged: &[(JudgedLine, Option<LineCost>)], now_ns: u64) -> Vec<PagePlan> {
        let page = |judged: &JudgedLine| page_with(judged.line.address);
        let is_cooling = |key: u64| self.cooldowns.get(&key).is_some_and(|cooldown| !cooldown.is_over(now_ns));
        let can_move = |judged: &JudgedLine| {
            self.moved.contains_key(&page(judged))
                || !is_cooling(page(judged)) && !is_mostly_cooling(judged, is_cooling)
        };
        let chosen: BTreeSet<u64> = judged
            .iter()
            .filter(|(judged, cost)| is_worth_repair(judged, cost.as_ref()) && can_move(judged))
            .map(|(judged, _)| page(judged))
            .filter(|page| !self.requested.contains_key(page))
            .collect();
        if chosen.is_empty() {
            return Vec::new();
        }
        let on_pages = judged.iter().map(|(judged, _)| judged).filter(|judged| chosen.contains(&page(judged)));
        let lines: Vec<JudgedLine> = on_pages.cloned().collect();
        let plan = rules::plan(&lines, rules::MOST_VIEWS, |line| self.history.has_given_up(line));
        self.inseparable.retain(|line, _| !chosen.contains(&page_with(*line)));
        self.inseparable.extend(plan.refused.into_iter().map(|refused| (refused.line, refused.why)));
        plan.pages
    }

    /// Contended lines that stay as they are because their bytes cannot be separated. Each is
    /// returned once.
    pub(crate) fn take_inseparable(&mut self) -> BTreeMap<u64, PlanRefusal> {
        std::mem::take(&mut self.inseparable)
    }

    /// Whether the program's allowance covers one more trial in addition to those that settle.
    fn can_try(&self, now_ns: u64) -> bool {
        let settling = self.moved.values().filter(|moved| moved.is_settling(now_ns)).count();
        self.allowance.left_ns(now_ns) >= TRIAL_BURST_NS * (settling + 1) as f64
    }

    /// Moves a page by this plan. `baseline` is the progress of its threads; that of a plan in
    /// force replaces it.
    fn apply(
        &mut self,
        plan: PagePlan,
        share: f64,
        mut baseline: Option<PaceSeries>,
        now_ns: u64,
        events: &mut Vec<RepairEvent>,
    ) -> Result<()> {
        let page = plan.page;
        if !self.moved.contains_key(&page) && !self.can_try(now_ns) {
            return Ok(());
        }
        let change = |&line: &u64| self.history.change(line, &moves_on_line(&plan, line), now_ns);
        let steps: Vec<ChangeDecision> = plan.lines.iter().map(change).collect();
        if let Some(known) = self.restore(page, PageRestoreReason::RulesChanged, events)? {
            baseline = known.into_baseline();
        }
        // The next plan of this page omits the line.
        if steps.contains(&ChangeDecision::GiveUp) {
            return Ok(());
        }
        let request = remap_request(&plan, self.consolidated);
        let moved = self.attach()?.move_page(&request);
        let cooldown = self.cooldowns.entry(page).or_default();
        match moved {
            Ok(_) => {
                events.push(RepairEvent::PageMoved { page, views: plan.views, lines: plan.lines.clone() });
                cooldown.record_move();
                self.moved.insert(page, PageTrial::new(plan, share, baseline, now_ns));
            }
            Err(fieldstone_remap::Error::Page { why, .. }) => {
                if cooldown.record_refusal(now_ns) {
                    events.push(RepairEvent::PageRefused { page, why });
                }
            }
            Err(other) => return Err(other.into()),
        }
        Ok(())
    }

    /// Sends a heartbeat to the watchdogs, or the userfaultfd if it was opened again.
    fn keep_watchdogs(&mut self) -> Result<()> {
        let (Some(watchdogs), Some(process)) = (&mut self.watchdogs, &self.process) else { return Ok(()) };
        if std::mem::replace(&mut self.reopened, process.reopened()) == process.reopened() {
            return watchdogs.beat();
        }
        watchdogs.share(process.userfault())
    }

    /// The traced process. It is attached, and watchdogs are started, if it is not attached yet.
    fn attach(&mut self) -> Result<&mut Process> {
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
                if self.uses_ladders {
                    process.lead_to_ladders();
                }
                process.wake_by(self.alarm.try_clone().map_err(Error::system("receive signals"))?);
                self.process.insert(process)
            }
        })
    }

    /// Whether the progress of threads is being measured, with a repair or for a recheck.
    pub(crate) fn is_comparing(&self) -> bool {
        !self.rechecks.is_empty() || self.moved.values().any(PageTrial::is_compared)
    }

    /// Restores all pages and detaches from the process.
    ///
    /// # Errors
    /// Where the process refuses an operation.
    pub(crate) fn release(&mut self) -> Result<()> {
        if let Some(process) = self.process.take() {
            process.release()?;
        }
        if let Some(mut watchdogs) = self.watchdogs.take() {
            watchdogs.dismiss();
        }
        self.moved.clear();
        Ok(())
    }
}
