//! Measure what virtual memory costs a program: run it alternately on several kinds of pages.
//!
//! ```text
//! warm-up   4k  thp  hugetlb ...      one run per kind, not counted: footprint and duration
//! round 0   4k  thp  hugetlb          ABBA: each round reverses the order of the one before,
//! round 1   hugetlb  thp  4k          so that drift of the machine cancels
//! ...
//! trace     4k                        one run under QEMU, its accesses simulated (`trace`)
//! sites     thp  hugetlb              one run per kind with the site recorder (`site_pages`)
//! ```
//!
//! The baseline is the unmodified program on 4 KiB pages, without the agent and with its own
//! allocator. The agent's overhead therefore counts against the other kinds.
//!
//! In a virtual machine, [`fieldstone_sys::warm`] touches the program's peak memory before each
//! run. Otherwise one side could pay more of the host's paging than the other.
//!
//! | module | what it does or decides |
//! |---|---|
//! | `plan` | what is measured: program, page kinds, load, trace |
//! | `program_run` | runs a program that ends by itself, once |
//! | `server` | runs a server once under load |
//! | `observation` | what is observed of a run: nothing, footprint, sites |
//! | `findings` | failures, hangs, and output that changes |
//! | `stderr_tail` | the last bytes of a run's standard error |
//! | `machine_state` | the machine, and conditions that make times unreliable |
//! | `site_pages` | which pages hold the memory of each allocation site |
//! | `trace` | runs a program under QEMU; simulates its accesses |
//! | `trace_run` | the run under the tracer, and its summary |
//! | `price` | the price of a trace's page walks, by replay |
//! | `calibrate` | the cost of page walks, by timing loads |
//! | `mosaics` | the cost of a page walk, from runs on mosaics |
//! | `walk_counters` | page walks of real runs, by hardware counters |
//! | `error` | errors, with cause and remedy |

pub mod calibrate;
pub mod error;
mod findings;
mod machine_state;
mod mosaics;
mod observation;
mod plan;
mod price;
mod program_run;
mod server;
mod site_pages;
mod stderr_tail;
pub mod trace;
mod trace_run;
mod walk_counters;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fieldstone_launch::agent::AgentFile;
use fieldstone_launch::launch::{Injection, Treatment};
use fieldstone_launch::pages::{self, PageReservation};
use fieldstone_launch::session::RegionOptions;
use fieldstone_launch::signals::Interrupt;
use fieldstone_report::{Finding, Footprint, MeasuredRun, Profile, ProfiledProgram, RequestedKind, Resident};
use fieldstone_stats::order;
use fieldstone_sys::knob::Restorer;
use fieldstone_sys::machine;
use fieldstone_sys::warm::warm;
use fieldstone_wire::{Mixture, PageKind};

use observation::Observation;
use site_pages::SiteObservation;
use trace_run::NativeTimes;
use walk_counters::CounterTotals;

pub use error::{Error, Result};
pub use machine_state::describe as describe_machine;
pub use observation::ObservedRun;
pub use plan::{Metric, ProfilePlan, ServerLoad, TraceCoverage, TraceOptions};
pub use program_run::ProgramRun;
pub use trace_run::{TraceRun, trace_once};

/// Progress of a profile, reported to the caller.
#[derive(Clone, Debug)]
pub enum ProfileEvent {
    /// The warm-up run on this kind starts.
    WarmUp(Mixture),
    /// The kind is not available, and why.
    Unavailable(Mixture, String),
    /// All warm-up runs are done. Number of measured runs and their estimated duration.
    Estimate(u32, Duration),
    /// The measured runs are done; the traced run starts.
    Trace,
    /// The measured run with this number starts, from 0.
    Run(u32, Mixture),
}

/// One kind of page in the comparison, with its reservation.
struct KindCandidate {
    kind: Mixture,
    unavailable: Option<String>,
    /// The pool that is reserved for this kind until the profile ends.
    _held: Option<PageReservation>,
    footprint: Option<Footprint>,
    /// The warm-up run; `None` if the kind is not available.
    warm_up: Option<MeasuredRun>,
    duration: Duration,
}

/// The state of one profile.
struct ProfileSession<'a> {
    plan: &'a ProfilePlan,
    agent: &'a AgentFile,
    restorer: &'a Restorer,
    interrupt: &'a Interrupt,
    primary: String,
    peak_bytes: u64,
    /// Readable and writable memory that the baseline had mapped, in bytes.
    mapped_bytes: u64,
    virtual_machine: bool,
    warnings: Vec<String>,
}

/// The results of the measured runs.
#[derive(Default)]
struct Measurements {
    samples: Vec<MeasuredRun>,
    counters: CounterTotals,
    native: NativeTimes,
}

/// Profiles a program. An interrupt ends it early: all children end, and all settings are restored.
///
/// # Errors
/// The program fails on 4 KiB pages, the load fails, or the user interrupts the profile.
pub fn profile(
    plan: &ProfilePlan,
    agent: &AgentFile,
    restorer: &Restorer,
    interrupt: &Interrupt,
    report: &mut dyn FnMut(ProfileEvent),
) -> Result<Profile> {
    fieldstone_sys::process::set_child_subreaper(true).map_err(Error::system("adopt the program's orphans"))?;
    interrupt.exclude_children();
    let taken_at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let warnings = machine_state::warnings();
    let mut session = ProfileSession {
        plan,
        agent,
        restorer,
        interrupt,
        primary: String::new(),
        peak_bytes: 0,
        mapped_bytes: 0,
        virtual_machine: machine::machine().virtual_machine,
        warnings,
    };
    let mut candidates = Vec::new();
    for &kind in &plan.kinds {
        report(ProfileEvent::WarmUp(kind));
        let candidate = session.warm_up(kind)?;
        if let Some(why) = &candidate.unavailable {
            report(ProfileEvent::Unavailable(kind, why.clone()));
        }
        candidates.push(candidate);
    }
    let available = || candidates.iter().filter(|candidate| candidate.unavailable.is_none());
    let round: Duration = available().map(|candidate| candidate.duration).sum();
    let kinds: Vec<_> = available().map(|candidate| candidate.kind).collect();
    let rounds = 0..plan.runs;
    let sequence: Vec<_> = rounds.flat_map(|round| in_order(&kinds, round)).collect();
    report(ProfileEvent::Estimate(u32::try_from(sequence.len()).unwrap_or(u32::MAX), round * plan.runs));
    let Measurements { samples, counters, native } = session.measure(&sequence, report)?;
    let is_repeatable = {
        let warm_up: Vec<_> = candidates.iter().filter_map(|candidate| candidate.warm_up.clone()).collect();
        findings::not_repeatable(&warm_up, &samples).is_none()
    };
    let translation = plan.trace.as_ref().map(|options| {
        if !is_repeatable {
            return Err(Error::Tracer { why: "later runs do not repeat the work of the first run".to_owned() });
        }
        report(ProfileEvent::Trace);
        let recorded =
            kinds.iter().filter(|kind| options.sites && kind.kind() != PageKind::Small4k && !kind.is_mosaic());
        let recorded = recorded.map(|&kind| session.record_sites(options, kind)).collect::<Result<Vec<_>>>()?;
        trace_run::trace(plan, options, &native, &samples, recorded, interrupt)
    });
    let mut profile = session.describe(candidates, samples, taken_at.as_secs());
    match translation {
        None => {}
        Some(Ok(mut translation)) => {
            (translation.counted, translation.uncounted) = counters.finish();
            profile.translation = Some(translation);
        }
        // The timed runs are valid without the trace.
        Some(Err(error)) => profile.findings.push(Finding::NotTraced { why: error.to_string() }),
    }
    Ok(profile)
}

/// The kinds in the order of a round, as (round, kind).
fn in_order(kinds: &[Mixture], round: u32) -> impl Iterator<Item = (u32, Mixture)> {
    order(kinds.len(), round as usize).map(move |index| (round, kinds[index]))
}

/// Size of the pool that a program needs on a hugetlb kind, in bytes.
///
/// A mapping takes all its pages from the pool at once, touched or not, so the mapped memory
/// decides. If that is more than half of the `available` memory, the resident memory does.
fn pool_bytes(kind: PageKind, resident: u64, mapped: u64, available: u64) -> u64 {
    let pool = |bytes: u64| match kind {
        // Only whole pages are requested, and the rest of the memory is on other pages.
        PageKind::Hugetlb1g => bytes / kind.page_bytes() * kind.page_bytes(),
        _ => bytes + bytes / 8 + (64 << 20),
    };
    let needed = pool(mapped.max(resident));
    if needed <= available / 2 { needed } else { pool(resident) }
}

impl ProfileSession<'_> {
    /// Does the measured runs in the order of `sequence`: round and kind.
    fn measure(&mut self, sequence: &[(u32, Mixture)], report: &mut dyn FnMut(ProfileEvent)) -> Result<Measurements> {
        let mut measurements = Measurements::default();
        for (position, &(round, kind)) in sequence.iter().enumerate() {
            let position = u32::try_from(position).unwrap_or(u32::MAX);
            report(ProfileEvent::Run(position, kind));
            let (run, _) = self.run(kind, &Observation::Nothing)?;
            if kind.kind() == PageKind::Small4k {
                measurements.native.add(&run);
            }
            if let Some(walks) = &run.walks {
                measurements.counters.add(kind, walks);
            }
            measurements.samples.push(self.sample(&run, kind, round, position));
        }
        Ok(measurements)
    }

    fn warm_up(&mut self, kind: Mixture) -> Result<KindCandidate> {
        let mut candidate = KindCandidate {
            kind,
            unavailable: None,
            _held: None,
            footprint: None,
            warm_up: None,
            duration: Duration::ZERO,
        };
        match self.reserve_pages(kind.kind()) {
            Ok(held) => {
                self.warnings.extend(held.as_ref().and_then(PageReservation::shortfall).map(str::to_owned));
                candidate._held = held;
            }
            Err(Error::Launch(fieldstone_launch::Error::PageKind { why, .. })) => {
                candidate.unavailable = Some(why);
                return Ok(candidate);
            }
            Err(Error::Launch(fieldstone_launch::Error::Linux(error))) => {
                candidate.unavailable = Some(error.to_string());
                return Ok(candidate);
            }
            Err(error) => return Err(error),
        }
        let start = Instant::now();
        let (run, observed) = self.run(kind, &Observation::Memory)?;
        candidate.duration = start.elapsed();
        if kind.kind() == PageKind::Small4k {
            self.check_baseline(&run, &observed)?;
        } else if run.has_failed {
            candidate.unavailable = Some(format!(
                "the program ended with {} on this kind, and normally on 4 KiB pages{}",
                run.outcome,
                run.last_stderr_line()
            ));
        }
        candidate.warm_up = Some(self.sample(&run, kind, 0, 0));
        candidate.footprint = observed.footprint;
        Ok(candidate)
    }

    fn check_baseline(&mut self, run: &ProgramRun, observed: &ObservedRun) -> Result<()> {
        if run.has_failed {
            let (outcome, remedy) = match run.outcome.as_str() {
                program_run::TIMED_OUT => (
                    format!("it was stopped after {} s", self.plan.timeout.as_secs_f64()),
                    "a longer --timeout, or --load and --ready for a server",
                ),
                outcome => (outcome.to_owned(), "run the program alone first, until it succeeds"),
            };
            return Err(Error::Baseline { outcome, remedy, stderr: run.stderr.clone() });
        }
        if let Some(name) = self.plan.process.as_ref().filter(|_| !observed.has_name) {
            self.warnings.push(format!(
                "no process has a program file called {name}: no process had a region, and all kinds of pages were the same; the largest process was {}",
                observed.primary
            ));
        }
        if !run.orphans.is_empty() {
            self.warnings.push(format!(
                "the program left processes behind ({}); they were killed and what they would do is not measured. Run a daemon in the \
                 foreground",
                run.orphans.join(", ")
            ));
        }
        self.primary.clone_from(&observed.primary);
        self.peak_bytes = observed.peak_bytes;
        let permissions = observed.footprint.iter().flat_map(|footprint| &footprint.permissions);
        self.mapped_bytes = permissions.filter(|share| share.permission == "rw-").map(|share| share.bytes).sum();
        Ok(())
    }

    /// Reserves what a kind needs until the profile ends. Folio sizes are a setting of the whole
    /// machine: this only checks them, and each run sets them for itself.
    fn reserve_pages(&self, kind: PageKind) -> Result<Option<PageReservation>> {
        if !matches!(kind, PageKind::Hugetlb1g | PageKind::Hugetlb2m) {
            drop(pages::reserve(self.restorer, kind, 0)?);
            return Ok(None);
        }
        let available = machine::machine().memory_available_bytes;
        let needed = pool_bytes(kind, self.peak_bytes, self.mapped_bytes, available);
        let unavailable = |why: String| Error::page_kind(kind.name(), why);
        if kind == PageKind::Hugetlb1g && self.peak_bytes < kind.page_bytes() {
            return Err(unavailable("the program never has 1 GiB of resident memory".to_owned()));
        }
        // The pool and the program's ordinary pages are resident at the same time.
        if needed + self.peak_bytes > available {
            return Err(unavailable(format!(
                "a pool of {} MiB and the program together do not fit in memory",
                needed >> 20
            )));
        }
        Ok(Some(pages::reserve(self.restorer, kind, needed)?))
    }

    fn run(&self, kind: Mixture, observation: &Observation) -> Result<(ProgramRun, ObservedRun)> {
        let watched = !matches!(observation, Observation::Nothing);
        let treatment = match kind.kind() {
            PageKind::Small4k => Treatment::SmallPages,
            _ => self.region_treatment(kind, watched, None),
        };
        self.run_under(self.plan, kind, &treatment, observation)
    }

    fn region_treatment(&self, kind: Mixture, watched: bool, injection: Option<Injection>) -> Treatment {
        let (process, also) = (self.plan.process.clone(), self.plan.also);
        let options = RegionOptions { process, also, ..RegionOptions::on(kind) };
        Treatment::Region { options, agent: self.agent.clone(), watched, injection, last: Vec::new() }
    }

    /// Runs the program with the site recorder. A failed run is a result; only an interrupt is an
    /// error.
    fn record_sites(&self, options: &TraceOptions, kind: Mixture) -> Result<SiteObservation> {
        let recorded = site_pages::records(kind).and_then(|records| {
            let treatment = self.region_treatment(kind, true, Some(options.tracer.injection(&records)?));
            let plan = ProfilePlan { timeout: options.timeout, trace: None, ..self.plan.clone() };
            let observation = Observation::Sites(Arc::clone(&records));
            let (run, observed) = self.run_under(&plan, kind, &treatment, &observation)?;
            Ok(SiteObservation::of(kind, &run, observed, &records))
        });
        match recorded {
            Err(error) if error.is_interrupt() => Err(error),
            Err(error) => Ok(SiteObservation::failed(kind, &error.to_string())),
            recorded => recorded,
        }
    }

    fn run_under(
        &self,
        plan: &ProfilePlan,
        kind: Mixture,
        treatment: &Treatment,
        observation: &Observation,
    ) -> Result<(ProgramRun, ObservedRun)> {
        let folios = kind.kind() == PageKind::Folio64k;
        let _folios = folios.then(|| pages::reserve(self.restorer, kind.kind(), 0)).transpose()?;
        self.interrupt.check()?;
        if self.virtual_machine {
            warm(self.peak_bytes + self.peak_bytes / 8);
        }
        let outcome = match &plan.load {
            None => program_run::run(plan, kind, treatment, observation, self.interrupt),
            Some(load) => server::run(plan, load, kind, treatment, observation, self.interrupt),
        };
        self.interrupt.check()?;
        outcome
    }

    fn sample(&self, run: &ProgramRun, kind: Mixture, round: u32, position: u32) -> MeasuredRun {
        let value = match self.plan.metric {
            Metric::Time | Metric::Throughput => run.elapsed.as_secs_f64(),
            Metric::Cpu => run.user_s + run.system_s,
        };
        MeasuredRun {
            kind: kind.to_string(),
            round,
            position,
            wall_s: run.elapsed.as_secs_f64(),
            user_s: run.user_s,
            system_s: run.system_s,
            value,
            minor_faults: run.minor_faults,
            major_faults: run.major_faults,
            max_resident_bytes: run.max_resident_bytes,
            outcome: run.outcome.clone(),
            output_hash: run.output_hash.map(|hash| format!("{hash:016x}")),
        }
    }

    fn describe(self, candidates: Vec<KindCandidate>, samples: Vec<MeasuredRun>, taken_at_unix_s: u64) -> Profile {
        let plan = self.plan;
        let warm_up: Vec<_> = candidates.iter().filter_map(|candidate| candidate.warm_up.clone()).collect();
        let kind = |candidate: &KindCandidate| RequestedKind {
            name: candidate.kind.to_string(),
            unavailable: candidate.unavailable.clone(),
        };
        let mut profile = Profile {
            schema: Profile::SCHEMA.to_owned(),
            tool_version: env!("CARGO_PKG_VERSION").to_owned(),
            taken_at_unix_s,
            machine: machine_state::describe(),
            program: ProfiledProgram {
                command: plan.program.command_line(),
                primary: self.primary,
                load: plan.load.as_ref().map(|load| load.command.clone()),
                ready_port: plan.load.as_ref().map(|load| load.port),
                requests: plan.load.as_ref().and_then(|load| load.requests),
            },
            metric: plan.metric,
            baseline: PageKind::Small4k.name().to_owned(),
            kinds: candidates.iter().map(kind).collect(),
            findings: findings::find(&warm_up, &samples, plan.timeout),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_holds_what_is_mapped_if_half_of_the_memory_suffices() {
        let mib = |kind, resident: u64, mapped: u64| pool_bytes(kind, resident << 20, mapped << 20, 8 << 30) >> 20;
        assert_eq!(mib(PageKind::Hugetlb2m, 40, 160), 160 + 20 + 64);
        assert_eq!(mib(PageKind::Hugetlb2m, 40, 4000), 40 + 5 + 64);
        assert_eq!(
            mib(PageKind::Hugetlb2m, 160, 40),
            160 + 20 + 64,
            "memory is resident that was not mapped at the peak"
        );
        assert_eq!(mib(PageKind::Hugetlb1g, 1100, 3500), 3072);
        assert_eq!(mib(PageKind::Hugetlb1g, 1100, 9000), 1024);
    }
}
