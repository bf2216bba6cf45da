//! The traced run of a profile: one run under the tracer, told as [`Translation`].

use fieldstone_report::Sample;
use fieldstone_report::quantity::{count, seconds};
use fieldstone_report::stats::median;
use fieldstone_report::translation::{ModelledConfiguration, Processor, Reach, Side, Site, Translation};
use fieldstone_translation::{Configuration, Counts, Level, Machine};
use fieldstone_wire::PageKind;

use super::findings::{of_kind, usual_outcome};
use super::mosaics;
use super::once::{self, Once, TIMED_OUT};
use super::places::{RealRuns, Recorded};
use super::plan::{Plan, Tracing as Asked};
use super::price::{WalksEach, price, scale, waiting};
use super::server;
use crate::calibrate::{Effort, replay};
use crate::error::{Error, Result};
use crate::launch::Treatment;
use crate::signals::Interrupt;
use crate::symbols::{FrameName, MAPPED, Symbols, frames_of, remedies};
use crate::trace::{Followed, Records, Tracing, Whose};
use fieldstone_wire::sites::{Lost, SITES, Sites};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// What a traced run gives.
#[derive(Debug)]
pub struct Traced {
    /// The run itself.
    pub run: Once,
    /// What its accesses came to.
    pub followed: Followed,
    /// The records that it wrote.
    pub records: Arc<Records>,
}

/// Of the replay: six pairs make an interval, and more make it narrow where the machine is shared. Short ones go on for some time, since on
/// such a machine memory is slower and faster from one tenth of a second to the next.
const REPLAY: Effort = Effort { pairs: 15, ns: if cfg!(debug_assertions) { 300_000_000 } else { 4_000_000_000 } };

/// Runs `plan`'s program once under the tracer, and its accesses through the models. `native_s` is the processor time of a run
/// without it, if that is known.
///
/// # Errors
/// As [`super::profile`].
pub fn trace_once(plan: &Plan, asked: &Asked, native_s: Option<f64>, interrupt: &Interrupt) -> Result<Traced> {
    let bursts = asked.recording.fitted(native_s, plan.load.is_some());
    let tracing = Tracing::start(bursts, &asked.configurations, asked.sites)?;
    let records = tracing.records();
    let treatment = Treatment::Traced(asked.tracer.clone(), Arc::clone(&records));
    let plan = &Plan { timeout: asked.timeout, trace: None, ..plan.clone() };
    let run = match &plan.load {
        None => once::run(plan, PageKind::Small4k.into(), &treatment, false, interrupt),
        Some(load) => server::run(plan, load, PageKind::Small4k.into(), &treatment, false, interrupt),
    };
    // Threads that wait for a reader would wait for ever.
    records.trace.close();
    let followed = tracing.finish()?;
    let (run, _) = run?;
    interrupt.check()?;
    Ok(Traced { run, followed, records })
}

/// Processor times of real runs on 4 KiB pages, in seconds.
#[derive(Debug, Default)]
pub(super) struct Native {
    /// From start to end: what a trace sees.
    whole: Vec<f64>,
    /// What is compared: of a server, while it has its load.
    compared: Vec<f64>,
}

impl Native {
    /// Adds a run.
    pub(super) fn add(&mut self, once: &Once) {
        self.whole.push(once.whole_cpu_s);
        self.compared.push(once.user_s + once.system_s);
    }
}

/// Traces `plan`'s program; `native` are the real runs that its times are shares of, `samples` those on all kinds of pages, `recorded`
/// those that tell of the pages of its sites.
pub(super) fn trace(
    plan: &Plan,
    asked: &Asked,
    native: &Native,
    samples: &[Sample],
    recorded: Vec<Recorded>,
    interrupt: &Interrupt,
) -> Result<Translation> {
    let some = |times: &[f64]| median(times).filter(|time| *time > 0.0);
    let Traced { run, followed, records } = trace_once(plan, asked, some(&native.whole), interrupt)?;
    if let Some(why) = went_wrong(plan, &run, samples) {
        return Err(Error::Tracer { why });
    }
    let mut told = describe(&followed, asked);
    if let Some(sites) = &records.sites {
        told.unseen.extend(recorded.iter().filter_map(|run| run.unseen.clone()));
        told.sites = blamed(&followed, sites.record(), &mut RealRuns::new(recorded));
        told.unseen.extend(remedies(&told.sites, sites.record()));
        told.unseen.extend(lost(sites.record()));
    }
    if asked.sites && records.trace.record().sites.load(Relaxed) == 0 {
        told.unseen.push(
            "who allocates: the recorder was not loaded (a static program, or one that clears LD_PRELOAD)".to_owned(),
        );
    }
    told.started = (followed.execs > 0).then(|| records.trace.last_program()).flatten();
    if run.broken {
        told.unseen.push(format!(
            "the traced run took too long and was stopped: what came after {} is not in the counts, and what share of the time its walks \
             take is not known. --timeout gives it longer",
            seconds(run.elapsed.as_secs_f64())
        ));
    }
    let addresses = followed.sample.addresses();
    let walks = WalksEach::of(&asked.configurations, &addresses);
    if let (Some(native_s), Some(walks), false) = (some(&native.whole), walks, addresses.is_empty() || run.broken) {
        match replay(&addresses, followed.instructions_each, &waiting(&followed), REPLAY, || interrupt.check()) {
            Ok(replayed) => price(&mut told, &asked.configurations, &followed, (&replayed, walks), native_s),
            Err(error @ Error::Interrupted { .. }) => return Err(error),
            Err(error) => told.unseen.push(format!("what a walk costs: {error}")),
        }
        fit_mosaics(plan, samples, &followed, native_s, &mut told);
    }
    told.traced_s = run.elapsed.as_secs_f64();
    told.slowdown = some(&native.compared).map(|native| (run.user_s + run.system_s) / native);
    Ok(told)
}

/// Why nothing can be said of the program by a traced run that ended as none of its real runs did. One that was stopped has done a part of the
/// same; how a server answers SIGTERM is no matter.
fn went_wrong(plan: &Plan, run: &Once, samples: &[Sample]) -> Option<String> {
    let kind = PageKind::Small4k.name();
    let is_known = || of_kind(samples, kind).any(|sample| sample.outcome == run.outcome);
    let as_usual = if plan.load.is_some() { !run.broken } else { is_known() };
    if as_usual || run.outcome == TIMED_OUT {
        return None;
    }
    let usual = usual_outcome(samples, kind).unwrap_or("well");
    let hint = if run.outcome.contains("SIGKILL") {
        "If nobody sent that signal, the kernel did, for want of memory: QEMU takes some 6 MiB for each GiB of addresses that the program \
         maps, used or not. Give it more, or trace it with less to do"
    } else {
        "QEMU's processor lacks AVX-512 and newer instructions; what the program says where it runs under `qemu-x86_64` alone may tell more"
    };
    Some(format!(
        "under QEMU the program ended with {}{}, and without it with {usual}. {hint}",
        run.outcome,
        run.last_words()
    ))
}

/// A server's times are those under its load, while a trace sees its start and end too: they make no pairs.
fn fit_mosaics(plan: &Plan, samples: &[Sample], followed: &Followed, native_s: f64, told: &mut Translation) {
    let fitted = mosaics::fit(&plan.kinds, samples, told, scale(followed), native_s).filter(|_| plan.load.is_none());
    match fitted {
        Some(Ok(fitted)) => told.mosaics = Some(fitted),
        Some(Err(error)) => told.unseen.push(format!("what a walk costs by real runs on mosaics: {error}")),
        None => {}
    }
}

fn describe(followed: &Followed, asked: &Asked) -> Translation {
    let configurations = asked.configurations.iter().zip(&followed.counts);
    Translation {
        processor: Processor {
            name: asked.machine.name.clone(),
            geometry: geometry(&asked.machine),
            source: asked.machine.source.clone(),
            foreign: asked.foreign,
        },
        tracer: asked.tracer.words(),
        accesses: followed.accesses,
        instructions: followed.instructions,
        counted_accesses: followed.counted_accesses,
        counted_instructions: followed.counted_instructions,
        bursts: followed.bursts,
        burst_error: followed.relative_error,
        configurations: configurations.map(|(configuration, counts)| modelled(configuration, counts)).collect(),
        reach: reach(followed),
        moments: followed.moments.clone(),
        unseen: unseen(followed),
        ..Translation::default()
    }
}

/// The data TLBs in words: `L1 72 full; L2 3072, 24 ways; 6 walkers`.
fn geometry(machine: &Machine) -> String {
    let array = |level: &Level| {
        let pages: Vec<String> = level.pages.iter().map(ToString::to_string).collect();
        let ways = if level.ways == 0 { "full".to_owned() } else { format!("{} ways", level.ways) };
        format!("{} {}, {ways} ({})", level.name, level.entries, pages.join(", "))
    };
    let ranks = machine.data.iter().flat_map(|rank| &rank.arrays).map(array);
    let walkers = match machine.walkers {
        0 => None,
        1 => Some("1 walker".to_owned()),
        many => Some(format!("{many} walkers")),
    };
    ranks.chain(walkers).collect::<Vec<_>>().join("; ")
}

fn modelled(configuration: &Configuration, counts: &Counts) -> ModelledConfiguration {
    ModelledConfiguration {
        name: configuration.name.clone(),
        data: side(&counts.data),
        instruction: side(&counts.instruction),
        ..ModelledConfiguration::default()
    }
}

fn side(counts: &fieldstone_translation::Side) -> Side {
    Side {
        accesses: counts.accesses,
        first_level_misses: counts.accesses - counts.hits[0] - counts.in_segment - counts.untranslated,
        walks: counts.walks,
        walk_references: counts.walk_memory_references,
        far_walks: counts.walks_pte_line_missed,
        region_walks: counts.walks_in_region,
        in_segment: counts.in_segment,
    }
}

/// Sites with their walks, most first; what no allocator gave out is told by what it is.
fn blamed(followed: &Followed, sites: &Sites, real: &mut RealRuns) -> Vec<Site> {
    let mut symbols = Symbols::default();
    let walks = followed.blame.iter().map(|(&whose, blame)| (whose, [blame.walks, blame.walks_large]));
    let mut named: Vec<Site> = walks.map(|(whose, walks)| site(whose, walks, sites, real, &mut symbols)).collect();
    named.sort_by(|one, other| other.walks.cmp(&one.walks).then_with(|| one.function.cmp(&other.function)));
    let mut blamed: Vec<Site> = Vec::new();
    for site in named {
        match blamed.iter_mut().find(|other| is_same_code(other, &site)) {
            Some(other) => other.join(&site),
            None => blamed.push(site),
        }
    }
    blamed.sort_by_key(|site| std::cmp::Reverse(site.walks));
    blamed
}

/// Allocations that no site was recorded for, where they are more than a thousandth of all.
fn lost(sites: &Sites) -> Option<String> {
    let lost: u64 = sites.lost.iter().map(|count| count.load(Relaxed)).sum();
    let known: u64 = sites.entries.iter().map(|site| site.allocations.load(Relaxed)).sum();
    (lost > known / 1000).then(|| {
        let full = sites.lost[Lost::TableFull as usize].load(Relaxed);
        format!(
            "who made {} allocations: the recorder had no room for more than {} stacks in {} of them, or was busy in their thread",
            count(lost),
            count(SITES as u64),
            count(full)
        )
    })
}

/// Whether two stacks are told as one site: the stack of the one with the most walks stands for both.
fn is_same_code(one: &Site, other: &Site) -> bool {
    (&one.function, &one.file, one.line, &one.module) == (&other.function, &other.file, other.line, &other.module)
}

/// A site with its walks on 4 KiB and on 2 MiB pages.
fn site(
    whose: Whose,
    [walks, walks_large]: [u64; 2],
    sites: &Sites,
    real: &mut RealRuns,
    symbols: &mut Symbols,
) -> Site {
    let plain = |words: &str| Site { function: words.to_owned(), walks, walks_large, ..Site::default() };
    let number = match whose {
        Whose::Site(number) => number,
        Whose::Mapped => return plain(MAPPED),
        Whose::Outside => return plain("(stack, globals, files)"),
    };
    let Some(record) = sites.site(number) else { return plain("(allocated, by whom was not recorded)") };
    let name = symbols.name(&frames_of(sites, record));
    Site {
        function: name.function,
        file: name.file.map(|file| file.to_string_lossy().into_owned()),
        line: name.line,
        module: name.module,
        stack: name.stack.iter().map(frame_words).collect(),
        allocations: record.allocations.load(Relaxed),
        bytes: record.bytes.load(Relaxed),
        walks,
        walks_large,
        pages: real.take(sites, record),
    }
}

fn frame_words(frame: &FrameName) -> String {
    match (&frame.file, frame.line) {
        (Some(file), Some(line)) => format!("{} ({}:{line})", frame.function, file.display()),
        _ => format!("{} ({})", frame.function, frame.module),
    }
}

/// The curve, an access of the program: the records are fewer than the accesses.
fn reach(followed: &Followed) -> Vec<Reach> {
    let data = followed.counts.first().map_or(0, |counts| counts.data.accesses);
    let share = followed.recorded as f64 / data.max(1) as f64;
    let points = followed.reach.iter();
    points.map(|point| Reach { entries: point.entries, misses_per_access: point.misses_an_access * share }).collect()
}

fn unseen(followed: &Followed) -> Vec<String> {
    let mut unseen = Vec::new();
    if followed.counted_accesses == 0 {
        unseen.push("no access was counted: the run was too short for the bursts asked for".to_owned());
    }
    if followed.laneless > 0 {
        unseen.push(format!(
            "{} threads beyond the {} that can be traced at once",
            followed.laneless,
            fieldstone_wire::trace::LANES
        ));
    }
    if followed.generated > 0 {
        unseen.push(
            "which line of its source made the memory that a just-in-time compiler or an interpreter manages itself: the sites are those of malloc"
                .to_owned(),
        );
    }
    if followed.execs > 0 {
        unseen.push(format!(
            "programs that it started by exec ({}): they ran without the tracer. Trace the one that matters by itself",
            followed.execs
        ));
    }
    unseen
}
