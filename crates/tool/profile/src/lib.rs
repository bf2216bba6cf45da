//! `fieldstone profile`: a program run alternately on several kinds of pages.
//!
//! ```text
//! warm-up   4k  thp  hugetlb ...      one run a kind, watched, not counted: footprint, and how long a run takes
//! round 0   4k  thp  hugetlb          ABBA: each round in the order opposite to the last, so that a machine that
//! round 1   hugetlb  thp  4k          gets slower or faster favours nobody
//! ...
//! ```
//!
//! In a virtual machine as much memory as the program needs is touched before each run (see
//! [`fieldstone_sys::warm`]): else the host's paging would be measured, on one side more than on the other.
//!
//! With a trace there is one more watched run on each kind but the baseline, with the site recorder preloaded: it tells which pages
//! the memory of each allocation site really got. It comes last and is not counted, as the recorder takes time.
//!
//! The baseline is the program as it is, without the agent, on base pages only: the same allocator, and what the agent
//! costs counts against the others.

pub mod calibrate;
mod counted;
pub mod error;
mod findings;
mod last_words;
mod mosaics;
mod observe;
mod once;
mod places;
mod plan;
mod price;
mod server;
mod surroundings;
pub mod trace;
mod traced;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fieldstone_report::{Finding, Footprint, Kind, Profile, Program as ReportProgram, Resident, Sample};
use fieldstone_stats::order;
use fieldstone_sys::knob::Restorer;
use fieldstone_sys::machine;
use fieldstone_sys::warm::warm;
use fieldstone_wire::{Mixture, PageKind};

use counted::Tally;
use fieldstone_launch::agent::AgentFile;
use fieldstone_launch::launch::{Injection, Treatment};
use fieldstone_launch::pages::{self, Held};
use fieldstone_launch::session::RegionOptions;
use fieldstone_launch::signals::Interrupt;
use observe::Observation;
use places::Recorded;
use traced::Native;

pub use error::{Error, Result};
pub use observe::Observed;
pub use once::Once;
pub use plan::{Load, Metric, Plan, Recording, Tracing};
pub use surroundings::describe as describe_machine;
pub use traced::{Traced, trace_once};

/// What happens while a profile is taken, for whoever shows it.
#[derive(Clone, Debug)]
pub enum Event {
    /// The warm-up run on this kind begins.
    WarmUp(Mixture),
    /// The kind cannot be had.
    Unavailable(Mixture, String),
    /// Every warm-up is done: so many runs will take about so long.
    Estimate(u32, Duration),
    /// The measured runs are over, the traced one begins.
    Trace,
    /// The run of this number begins.
    Run(u32, Mixture),
}

/// One kind of page that is being compared, with what is held for it.
struct Candidate {
    kind: Mixture,
    unavailable: Option<String>,
    /// The pool that was filled for it.
    _held: Option<Held>,
    footprint: Option<Footprint>,
    /// The warm-up run, where there was one.
    warm: Option<Sample>,
    took: Duration,
}

/// A profile being taken.
struct Taking<'a> {
    plan: &'a Plan,
    agent: &'a AgentFile,
    restorer: &'a Restorer,
    interrupt: &'a Interrupt,
    primary: String,
    peak_bytes: u64,
    virtual_machine: bool,
    warnings: Vec<String>,
}

/// What the measured runs gave.
#[derive(Default)]
struct Measured {
    samples: Vec<Sample>,
    tally: Tally,
    native: Native,
}

/// Takes a profile. Ends early, with every child ended and every setting given back, when `interrupt` says so.
///
/// # Errors
/// The program does not run on 4 KiB pages, the load fails, the user ended it.
pub fn profile(
    plan: &Plan,
    agent: &AgentFile,
    restorer: &Restorer,
    interrupt: &Interrupt,
    tell: &mut dyn FnMut(Event),
) -> Result<Profile> {
    fieldstone_sys::process::set_child_subreaper(true).map_err(Error::system("adopt the program's orphans"))?;
    interrupt.spare_children();
    let taken_at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let warnings = surroundings::warnings();
    let mut taking = Taking {
        plan,
        agent,
        restorer,
        interrupt,
        primary: String::new(),
        peak_bytes: 0,
        virtual_machine: machine::machine().virtual_machine,
        warnings,
    };
    let mut candidates = Vec::new();
    for &kind in &plan.kinds {
        tell(Event::WarmUp(kind));
        let candidate = taking.warm_up(kind)?;
        if let Some(why) = &candidate.unavailable {
            tell(Event::Unavailable(kind, why.clone()));
        }
        candidates.push(candidate);
    }
    let available = || candidates.iter().filter(|candidate| candidate.unavailable.is_none());
    let round: Duration = available().map(|candidate| candidate.took).sum();
    let kinds: Vec<_> = available().map(|candidate| candidate.kind).collect();
    let rounds = 0..plan.runs;
    let sequence: Vec<_> = rounds.flat_map(|round| in_order(&kinds, round)).collect();
    tell(Event::Estimate(u32::try_from(sequence.len()).unwrap_or(u32::MAX), round * plan.runs));
    let Measured { samples, tally, native } = taking.measure(&sequence, tell)?;
    let is_repeatable = {
        let warm: Vec<_> = candidates.iter().filter_map(|candidate| candidate.warm.clone()).collect();
        findings::not_repeatable(&warm, &samples).is_none()
    };
    let translation = plan.trace.as_ref().map(|asked| {
        if !is_repeatable {
            return Err(Error::Tracer { why: "later runs did not do what the first one did".to_owned() });
        }
        tell(Event::Trace);
        let recorded = kinds.iter().filter(|kind| asked.sites && kind.kind() != PageKind::Small4k && !kind.is_mosaic());
        let recorded = recorded.map(|&kind| taking.record(asked, kind)).collect::<Result<Vec<_>>>()?;
        traced::trace(plan, asked, &native, &samples, recorded, interrupt)
    });
    let mut profile = taking.describe(candidates, samples, taken_at.as_secs());
    match translation {
        None => {}
        Some(Ok(mut told)) => {
            (told.counted, told.uncounted) = tally.finish();
            profile.translation = Some(told);
        }
        // What was timed holds all the same, and whoever did not want to wait for the trace has that.
        Some(Err(error)) => profile.findings.push(Finding::NotTraced { why: error.to_string() }),
    }
    Ok(profile)
}

/// The kinds in the order of a round, each with the round's number.
fn in_order(kinds: &[Mixture], round: u32) -> impl Iterator<Item = (u32, Mixture)> {
    order(kinds.len(), round as usize).map(move |index| (round, kinds[index]))
}

impl Taking<'_> {
    /// Makes the measured runs, in this order of rounds and kinds.
    fn measure(&mut self, sequence: &[(u32, Mixture)], tell: &mut dyn FnMut(Event)) -> Result<Measured> {
        let mut measured = Measured::default();
        for (position, &(round, kind)) in sequence.iter().enumerate() {
            let position = u32::try_from(position).unwrap_or(u32::MAX);
            tell(Event::Run(position, kind));
            let (once, _) = self.run(kind, &Observation::Nothing)?;
            if kind.kind() == PageKind::Small4k {
                measured.native.add(&once);
            }
            if let Some(counted) = &once.walks {
                measured.tally.add(kind, counted);
            }
            measured.samples.push(self.sample(&once, kind, round, position));
        }
        Ok(measured)
    }

    fn warm_up(&mut self, kind: Mixture) -> Result<Candidate> {
        let mut candidate =
            Candidate { kind, unavailable: None, _held: None, footprint: None, warm: None, took: Duration::ZERO };
        match self.hold(kind.kind()) {
            Ok(held) => {
                self.warnings.extend(held.as_ref().and_then(Held::shortfall).map(str::to_owned));
                candidate._held = held;
            }
            Err(Error::Launch(fieldstone_launch::Error::PageKind { why, .. })) => {
                candidate.unavailable = Some(why);
                return Ok(candidate);
            }
            Err(error @ Error::Linux(_)) => {
                candidate.unavailable = Some(error.to_string());
                return Ok(candidate);
            }
            Err(error) => return Err(error),
        }
        let began = Instant::now();
        let (once, observed) = self.run(kind, &Observation::Memory)?;
        candidate.took = began.elapsed();
        if kind.kind() == PageKind::Small4k {
            self.settle_baseline(&once, &observed)?;
        } else if once.broken {
            candidate.unavailable = Some(format!(
                "the program ended with {} on it, and well on 4 KiB pages{}",
                once.outcome,
                once.last_words()
            ));
        }
        candidate.warm = Some(self.sample(&once, kind, 0, 0));
        candidate.footprint = observed.footprint;
        Ok(candidate)
    }

    fn settle_baseline(&mut self, once: &Once, observed: &Observed) -> Result<()> {
        if once.broken {
            let outcome = match once.outcome.as_str() {
                once::TIMED_OUT => format!(
                    "it was stopped after {} s (give it more by --timeout, or, if it is a server, --load and --ready)",
                    self.plan.timeout.as_secs_f64()
                ),
                ended => ended.to_owned(),
            };
            return Err(Error::Baseline { outcome, stderr: once.stderr.clone() });
        }
        if let Some(name) = self.plan.process.as_ref().filter(|_| !observed.named) {
            self.warnings.push(format!(
                "no process whose program file is called {name} was seen: nothing was given a region, and all kinds of pages were the same; the largest process was {}",
                observed.primary
            ));
        }
        if !once.left.is_empty() {
            self.warnings.push(format!(
                "when it ended it left processes behind ({}), which were ended then: what they would have done is not measured. If it \
                 is a daemon, have it stay in the foreground",
                once.left.join(", ")
            ));
        }
        self.primary.clone_from(&observed.primary);
        self.peak_bytes = observed.peak_bytes;
        Ok(())
    }

    /// Holds what a kind needs for as long as the profile takes. Folio sizes are switched for each run alone, since
    /// they are one setting for the whole machine.
    fn hold(&self, kind: PageKind) -> Result<Option<Held>> {
        let needed = match kind {
            PageKind::Hugetlb1g => self.peak_bytes / kind.page_bytes() * kind.page_bytes(),
            PageKind::Hugetlb2m => self.peak_bytes + self.peak_bytes / 8 + (64 << 20),
            PageKind::Small4k | PageKind::Folio64k | PageKind::Thp => {
                drop(pages::hold(self.restorer, kind, 0)?);
                return Ok(None);
            }
        };
        let unfit = |why: String| Error::page_kind(kind.name(), why);
        if needed == 0 {
            return Err(unfit("the program never has 1 GiB in memory".to_owned()));
        }
        // The pool and the program on ordinary pages are in memory at once.
        let available = machine::machine().memory_available_bytes;
        if needed + self.peak_bytes > available {
            return Err(unfit(format!("a pool of {} MiB beside the program does not fit in memory", needed >> 20)));
        }
        Ok(Some(pages::hold(self.restorer, kind, needed)?))
    }

    fn run(&self, kind: Mixture, observation: &Observation) -> Result<(Once, Observed)> {
        let watched = !matches!(observation, Observation::Nothing);
        let treatment = match kind.kind() {
            PageKind::Small4k => Treatment::SmallPages,
            _ => self.in_region(kind, watched, None),
        };
        self.run_under(self.plan, kind, &treatment, observation)
    }

    fn in_region(&self, kind: Mixture, watched: bool, injection: Option<Injection>) -> Treatment {
        let (process, also) = (self.plan.process.clone(), self.plan.also);
        let options = RegionOptions { process, also, ..RegionOptions::on(kind) };
        Treatment::Region { options, agent: self.agent.clone(), watched, injection }
    }

    /// A real run whose sites are recorded. Only an end that the user asked for ends the profile.
    fn record(&self, asked: &Tracing, kind: Mixture) -> Result<Recorded> {
        let recorded = places::records(kind).and_then(|records| {
            let treatment = self.in_region(kind, true, Some(asked.tracer.injection(&records)?));
            let plan = Plan { timeout: asked.timeout, trace: None, ..self.plan.clone() };
            let observation = Observation::Sites(Arc::clone(&records));
            let (once, observed) = self.run_under(&plan, kind, &treatment, &observation)?;
            Ok(Recorded::of(kind, &once, observed, &records))
        });
        match recorded {
            Err(error) if error.is_interrupt() => Err(error),
            Err(error) => Ok(Recorded::failed(kind, &error.to_string())),
            recorded => recorded,
        }
    }

    fn run_under(
        &self,
        plan: &Plan,
        kind: Mixture,
        treatment: &Treatment,
        observation: &Observation,
    ) -> Result<(Once, Observed)> {
        let folios = kind.kind() == PageKind::Folio64k;
        let _folios = folios.then(|| pages::hold(self.restorer, kind.kind(), 0)).transpose()?;
        self.interrupt.check()?;
        if self.virtual_machine {
            warm(self.peak_bytes + self.peak_bytes / 8);
        }
        let outcome = match &plan.load {
            None => once::run(plan, kind, treatment, observation, self.interrupt),
            Some(load) => server::run(plan, load, kind, treatment, observation, self.interrupt),
        };
        self.interrupt.check()?;
        outcome
    }

    fn sample(&self, once: &Once, kind: Mixture, round: u32, position: u32) -> Sample {
        let value = match self.plan.metric {
            Metric::Time | Metric::Throughput => once.elapsed.as_secs_f64(),
            Metric::Cpu => once.user_s + once.system_s,
        };
        Sample {
            kind: kind.to_string(),
            round,
            position,
            wall_s: once.elapsed.as_secs_f64(),
            user_s: once.user_s,
            system_s: once.system_s,
            value,
            minor_faults: once.minor_faults,
            major_faults: once.major_faults,
            max_resident_bytes: once.max_resident_bytes,
            outcome: once.outcome.clone(),
            output_hash: once.output_hash.map(|hash| format!("{hash:016x}")),
        }
    }

    fn describe(self, candidates: Vec<Candidate>, samples: Vec<Sample>, taken_at_unix_s: u64) -> Profile {
        let plan = self.plan;
        let warm: Vec<_> = candidates.iter().filter_map(|candidate| candidate.warm.clone()).collect();
        let kind = |candidate: &Candidate| Kind {
            name: candidate.kind.to_string(),
            unavailable: candidate.unavailable.clone(),
        };
        let mut profile = Profile {
            schema: Profile::SCHEMA.to_owned(),
            tool_version: env!("CARGO_PKG_VERSION").to_owned(),
            taken_at_unix_s,
            machine: surroundings::describe(),
            program: ReportProgram {
                command: plan.program.words(),
                primary: self.primary,
                load: plan.load.as_ref().map(|load| load.command.clone()),
                ready_port: plan.load.as_ref().map(|load| load.port),
                requests: plan.load.as_ref().and_then(|load| load.requests),
            },
            metric: plan.metric,
            baseline: PageKind::Small4k.name().to_owned(),
            kinds: candidates.iter().map(kind).collect(),
            findings: findings::of(&warm, &samples, plan.timeout),
            samples,
            footprints: candidates.into_iter().filter_map(|candidate| candidate.footprint).collect(),
            resident: Vec::new(),
            warnings: self.warnings,
            translation: None,
        };
        profile.resident = Resident::all(&profile);
        profile
    }
}
