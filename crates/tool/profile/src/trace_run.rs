//! Run the program once under the tracer, and summarise the results as a [`Translation`].
//!
//! ```text
//! trace_once ─→ TraceResults ─┬→ counts, moments, curve of TLB sizes
//!                             ├→ walks by allocation site   + site_pages, symbols
//!                             └→ sample of addresses ─→ calibrate::replay ─→ price ─→ shares of time
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use fieldstone_launch::signals::Interrupt;
use fieldstone_report::MeasuredRun;
use fieldstone_report::quantity::{count, seconds};
use fieldstone_report::translation::{
    AllocationSite, ModelledConfiguration, ModelledProcessor, Reach, ReportedSide, Translation,
};
use fieldstone_stats::median;
use fieldstone_symbols::{FrameName, Symbolizer, UNATTRIBUTED, remedies, site_frames};
use fieldstone_translation::{Configuration, Counts, Mmu, TlbArray};
use fieldstone_wire::sites::{LossReason, SITES, Sites};
use fieldstone_wire::{PageKind, Remedy};

use super::findings::{most_common_outcome, samples_of_kind};
use super::mosaics;
use super::observation::Observation;
use super::plan::{ProfilePlan, TraceOptions};
use super::price::{WalksPerLoad, phase_dependence, price, scale};
use super::program_run::{self, ProgramRun, TIMED_OUT};
use super::server;
use super::site_pages::{SiteObservation, SiteObservations};
use crate::calibrate::{Effort, replay};
use crate::error::{Error, Result};
use crate::trace::{AddressOwner, SharedRecords, TraceResults, TraceSession};

/// A traced run.
#[derive(Debug)]
pub struct TraceRun {
    /// The program's run under the tracer.
    pub run: ProgramRun,
    /// The results of the simulation.
    pub results: TraceResults,
    /// The shared records that it filled.
    pub records: Arc<SharedRecords>,
}

/// Effort of the replay. Six pairs give an interval, and more make it narrower on a shared machine.
/// The minimum time averages out memory speed, which varies there from one tenth of a second to the
/// next.
const REPLAY: Effort = Effort { pairs: 15, ns: if cfg!(debug_assertions) { 300_000_000 } else { 4_000_000_000 } };

/// Runs the program once under the tracer, and simulates its accesses. `native_s` is the CPU time
/// of an untraced run in seconds, if known.
///
/// # Errors
/// As [`super::profile`].
pub fn trace_once(
    plan: &ProfilePlan,
    options: &TraceOptions,
    native_s: Option<f64>,
    interrupt: &Interrupt,
) -> Result<TraceRun> {
    let bursts = options.recording.bursts_for(native_s, plan.load.is_some());
    let tracing = TraceSession::start(bursts, &options.configurations, options.sites)?;
    let records = tracing.records();
    let treatment = options.tracer.treatment(&plan.program, &records)?;
    let plan = &ProfilePlan { timeout: options.timeout, trace: None, ..plan.clone() };
    let run = match &plan.load {
        None => program_run::run(plan, PageKind::Small4k.into(), &treatment, &Observation::Nothing, interrupt),
        Some(load) => server::run(plan, load, PageKind::Small4k.into(), &treatment, &Observation::Nothing, interrupt),
    };
    // Otherwise threads that wait for the reader would block forever.
    records.trace.close();
    let results = tracing.finish()?;
    let (run, _) = run?;
    interrupt.check()?;
    Ok(TraceRun { run, results, records })
}

/// CPU times of real runs on 4 KiB pages, in seconds.
#[derive(Debug, Default)]
pub(super) struct NativeTimes {
    /// From start to end, as the trace covers it.
    total_s: Vec<f64>,
    /// As compared by the profile: for a server, only during the load.
    measured_s: Vec<f64>,
}

impl NativeTimes {
    /// Adds the times of a run.
    pub(super) fn add(&mut self, run: &ProgramRun) {
        self.total_s.push(run.total_cpu_s);
        self.measured_s.push(run.user_s + run.system_s);
    }
}

/// Traces the program. `native` are the baseline's CPU times, `samples` all measured runs, and
/// `observations` the real runs with the site recorder.
pub(super) fn trace(
    plan: &ProfilePlan,
    options: &TraceOptions,
    native: &NativeTimes,
    samples: &[MeasuredRun],
    observations: Vec<SiteObservation>,
    interrupt: &Interrupt,
) -> Result<Translation> {
    let median_if_positive = |times: &[f64]| median(times).filter(|time| *time > 0.0);
    let TraceRun { run, results, records } = trace_once(plan, options, median_if_positive(&native.total_s), interrupt)?;
    if let Some(why) = failure_reason(plan, &run, samples) {
        return Err(Error::Tracer { why });
    }
    let mut translation = describe(&results, options);
    if let Some(sites) = &records.sites {
        translation.unseen.extend(observations.iter().filter_map(|run| run.unknown_reason.clone()));
        translation.sites = sites_by_walks(&results, sites.record(), &mut SiteObservations::new(observations));
        translation.unseen.extend(remedies(&translation.sites, sites.record()));
        translation.unseen.extend(lost_allocations(sites.record()));
    }
    if options.sites && records.trace.record().sites.load(Relaxed) == 0 {
        translation.unseen.push(
            "allocation sites: the recorder was not loaded (the program is static, or it clears LD_PRELOAD)".to_owned(),
        );
    }
    translation.started = (results.execs > 0).then(|| records.trace.last_program()).flatten();
    if run.has_failed {
        translation.unseen.push(format!(
            "the traced run exceeded its time limit and was stopped: the counts end after {}, and the share of time for walks is unknown{}",
            seconds(run.elapsed.as_secs_f64()),
            Remedy(Some("a longer --timeout"))
        ));
    }
    let addresses = results.sample.addresses();
    let walks = WalksPerLoad::measure(&options.configurations, &addresses);
    if let (Some(native_s), Some(walks), false) =
        (median_if_positive(&native.total_s), walks, addresses.is_empty() || run.has_failed)
    {
        match replay(&addresses, results.instructions_per_access, &phase_dependence(&results), REPLAY, || {
            Ok(interrupt.check()?)
        }) {
            Ok(replayed) => price(&mut translation, &options.configurations, &results, (&replayed, walks), native_s),
            Err(error) if error.is_interrupt() => return Err(error),
            Err(error) => translation.unseen.push(format!("the cost of a walk: {error}")),
        }
        fit_mosaics(plan, samples, &results, native_s, &mut translation);
    }
    translation.traced_s = run.elapsed.as_secs_f64();
    translation.slowdown = median_if_positive(&native.measured_s).map(|native| (run.user_s + run.system_s) / native);
    Ok(translation)
}

/// Why the traced run is not valid; `None` if it ended like the real runs. A run that exceeded its
/// time limit is a valid part of one. The exit status of a server after SIGTERM is ignored.
fn failure_reason(plan: &ProfilePlan, run: &ProgramRun, samples: &[MeasuredRun]) -> Option<String> {
    let kind = PageKind::Small4k.name();
    let is_known = || samples_of_kind(samples, kind).any(|sample| sample.outcome == run.outcome);
    let as_usual = if plan.load.is_some() { !run.has_failed } else { is_known() };
    if as_usual || run.outcome == TIMED_OUT {
        return None;
    }
    let usual = most_common_outcome(samples, kind).unwrap_or("success");
    let (cause, remedy) = if run.outcome.contains("SIGKILL") {
        (
            "The kernel sends this signal when memory runs out: QEMU needs about 6 MiB for each GiB of addresses that the program maps, \
             used or not",
            "more memory, or a smaller input",
        )
    } else {
        (
            "QEMU does not emulate AVX-512 and newer instructions",
            "run the program under `qemu-x86_64` alone, which shows its own messages",
        )
    };
    Some(format!(
        "under QEMU the program ended with {}{}, and without it with {usual}. {cause}{}",
        run.outcome,
        run.last_stderr_line(),
        Remedy(Some(remedy))
    ))
}

/// Fits the mosaics, except for a server: its times cover the load only, but its trace also covers
/// start and stop.
fn fit_mosaics(
    plan: &ProfilePlan,
    samples: &[MeasuredRun],
    results: &TraceResults,
    native_s: f64,
    translation: &mut Translation,
) {
    let fitted =
        mosaics::fit(&plan.kinds, samples, translation, scale(results), native_s).filter(|_| plan.load.is_none());
    match fitted {
        Some(Ok(fitted)) => translation.mosaics = Some(fitted),
        Some(Err(error)) => translation.unseen.push(format!("the cost of a walk from real runs on mosaics: {error}")),
        None => {}
    }
}

fn describe(results: &TraceResults, options: &TraceOptions) -> Translation {
    let configurations = options.configurations.iter().zip(&results.counts);
    Translation {
        processor: ModelledProcessor {
            name: options.machine.name.clone(),
            geometry: geometry(&options.machine),
            source: options.machine.source.clone(),
            foreign: options.foreign,
        },
        tracer: options.tracer.description(),
        accesses: results.accesses,
        instructions: results.instructions,
        counted_accesses: results.counted_accesses,
        counted_instructions: results.counted_instructions,
        bursts: results.bursts,
        burst_error: results.relative_error,
        configurations: configurations.map(|(configuration, counts)| modelled(configuration, counts)).collect(),
        reach: reach(results),
        moments: results.moments.clone(),
        unseen: limitations(results),
        ..Translation::default()
    }
}

/// Describes the data TLBs: `L1 72 full; L2 3072, 24 ways; 6 walkers`.
fn geometry(machine: &Mmu) -> String {
    let array = |array: &TlbArray| {
        let pages: Vec<String> = array.pages.iter().map(ToString::to_string).collect();
        let ways = if array.ways == 0 { "full".to_owned() } else { format!("{} ways", array.ways) };
        format!("{} {}, {ways} ({})", array.name, array.entries, pages.join(", "))
    };
    let levels = machine.data.iter().flat_map(|level| &level.arrays).map(array);
    let walkers = match machine.walkers {
        0 => None,
        1 => Some("1 walker".to_owned()),
        many => Some(format!("{many} walkers")),
    };
    levels.chain(walkers).collect::<Vec<_>>().join("; ")
}

fn modelled(configuration: &Configuration, counts: &Counts) -> ModelledConfiguration {
    ModelledConfiguration {
        name: configuration.name.clone(),
        data: side(&counts.data),
        instruction: side(&counts.instruction),
        ..ModelledConfiguration::default()
    }
}

fn side(counts: &fieldstone_translation::SideCounts) -> ReportedSide {
    ReportedSide {
        accesses: counts.accesses,
        first_level_misses: counts.accesses - counts.hits[0] - counts.in_segment - counts.untranslated,
        walks: counts.walks,
        walk_references: counts.walk_memory_references,
        far_walks: counts.walks_pte_line_missed,
        region_walks: counts.walks_in_region,
        in_segment: counts.in_segment,
    }
}

/// The owners of memory with their walks, most walks first. Memory that no allocator returned has a
/// descriptive name.
fn sites_by_walks(results: &TraceResults, sites: &Sites, real: &mut SiteObservations) -> Vec<AllocationSite> {
    let mut symbols = Symbolizer::default();
    let walks = results.walks_by_owner.iter().map(|(&owner, walks)| (owner, [walks.walks, walks.walks_large]));
    let mut named: Vec<AllocationSite> =
        walks.map(|(owner, walks)| site(owner, walks, sites, real, &mut symbols)).collect();
    named.sort_by(|one, other| other.walks.cmp(&one.walks).then_with(|| one.function.cmp(&other.function)));
    let mut sites_by_walks: Vec<AllocationSite> = Vec::new();
    for site in named {
        match sites_by_walks.iter_mut().find(|other| is_same_code(other, &site)) {
            Some(other) => other.join(&site),
            None => sites_by_walks.push(site),
        }
    }
    sites_by_walks.sort_by_key(|site| std::cmp::Reverse(site.walks));
    sites_by_walks
}

/// A message about unrecorded allocations, if they are more than a thousandth of all.
fn lost_allocations(sites: &Sites) -> Option<String> {
    let lost: u64 = sites.lost.iter().map(|count| count.load(Relaxed)).sum();
    let known: u64 = sites.entries.iter().map(|site| site.allocations.load(Relaxed)).sum();
    (lost > known / 1000).then(|| {
        let full = sites.lost[LossReason::TableFull as usize].load(Relaxed);
        format!(
            "the sites of {} allocations: the recorder's table of {} stacks was full for {} of them; for the others the recorder was busy",
            count(lost),
            count(SITES as u64),
            count(full)
        )
    })
}

/// Whether two stacks have the same innermost code. They are reported as one site, with the stack
/// of more walks.
fn is_same_code(one: &AllocationSite, other: &AllocationSite) -> bool {
    (&one.function, &one.file, one.line, &one.module) == (&other.function, &other.file, other.line, &other.module)
}

/// A site with its walks on 4 KiB and 2 MiB pages.
fn site(
    owner: AddressOwner,
    [walks, walks_large]: [u64; 2],
    sites: &Sites,
    real: &mut SiteObservations,
    symbols: &mut Symbolizer,
) -> AllocationSite {
    let plain =
        |words: &str| AllocationSite { function: words.to_owned(), walks, walks_large, ..AllocationSite::default() };
    let number = match owner {
        AddressOwner::Site(number) => number,
        AddressOwner::Mapped => return plain(UNATTRIBUTED),
        AddressOwner::Outside => return plain("(stack, globals, files)"),
    };
    let Some(record) = sites.site(number) else { return plain("(allocated at an unrecorded site)") };
    let name = symbols.name(&site_frames(sites, record));
    AllocationSite {
        function: name.function,
        file: name.file.map(|file| file.to_string_lossy().into_owned()),
        line: name.line,
        module: name.module,
        stack: name.stack.iter().map(format_frame).collect(),
        allocations: record.allocations.load(Relaxed),
        bytes: record.bytes.load(Relaxed),
        walks,
        walks_large,
        pages: real.take_pages(sites, record),
    }
}

fn format_frame(frame: &FrameName) -> String {
    match (&frame.file, frame.line) {
        (Some(file), Some(line)) => format!("{} ({}:{line})", frame.function, file.display()),
        _ => format!("{} ({})", frame.function, frame.module),
    }
}

/// Scales the curve of TLB sizes from recorded accesses to all accesses.
fn reach(results: &TraceResults) -> Vec<Reach> {
    let data = results.counts.first().map_or(0, |counts| counts.data.accesses);
    let share = results.recorded as f64 / data.max(1) as f64;
    let points = results.reach.iter();
    points.map(|point| Reach { entries: point.entries, misses_per_access: point.misses_an_access * share }).collect()
}

fn limitations(results: &TraceResults) -> Vec<String> {
    let mut limitations = Vec::new();
    if results.counted_accesses == 0 {
        limitations.push("any access: the run was too short for the requested bursts".to_owned());
    }
    if results.untraced_threads > 0 {
        limitations.push(format!(
            "{} threads beyond the {} that can be traced at the same time",
            results.untraced_threads,
            fieldstone_wire::trace::LANES
        ));
    }
    if results.generated > 0 {
        limitations.push(
            "the source lines of memory that a just-in-time compiler or an interpreter manages: the sites are those of malloc"
                .to_owned(),
        );
    }
    if results.execs > 0 {
        limitations.push(format!(
            "programs that it started by exec ({}): they ran without the tracer. Trace the relevant program directly",
            results.execs
        ));
    }
    limitations
}
