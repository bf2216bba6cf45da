//! The cost of address translation: counts of a traced run in models of hardware, and estimates of
//! the time.
//!
//! Counts are of the counted part of a trace: all of it, or its bursts without their warm-up.
//! Estimates have the type [`Interval`]. A field without a value is empty, and [`Translation::unseen`]
//! has the reason.
//!
//! ```text
//!   Translation           the data, a part of a profile's JSON
//!   summary, verdict      its meaning, compared with measured runs, and the recommendation
//!   names                 short names of functions
//!   sites                 walks by allocation site
//!   sources               the source of each number
//! ```

pub mod names;
pub mod sites;
pub mod sources;
pub mod summary;
pub mod verdict;

use crate::quantity::{estimate, nanoseconds, percent};
use fieldstone_stats::Interval;
use serde::{Deserialize, Serialize};

/// The largest factor by which a model can make a run longer or shorter.
const MOST_TIMES: f64 = 100.0;

/// Bounds of a share that are further apart than this are no estimate.
const TOO_WIDE: f64 = 0.5;

/// Whether, as a share, an estimate's bounds are too far apart to be one.
#[must_use]
pub fn is_too_wide(share: Interval) -> bool {
    share.high - share.low > TOO_WIDE
}

/// The estimate, if it can be a relative time: a file may hold any numbers.
#[must_use]
pub fn as_share(of: Interval) -> Option<Interval> {
    let is_ordered = of.low <= of.likely && of.likely <= of.high;
    (is_ordered && of.low >= -MOST_TIMES && of.high <= MOST_TIMES).then_some(of)
}

/// The result of a traced run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Translation {
    /// The processor that was modelled, and where its sizes are from.
    pub processor: ModelledProcessor,
    /// The tracer, such as `QEMU 7.2.19, user mode`.
    pub tracer: String,
    /// Memory accesses of the traced run: operands in memory of its instructions.
    pub accesses: u64,
    /// Instructions of the traced run.
    pub instructions: u64,
    /// Counted accesses.
    pub counted_accesses: u64,
    /// Counted instructions.
    pub counted_instructions: u64,
    /// Bursts that were counted; 0 if the whole run was.
    pub bursts: u64,
    /// Relative standard error of the walks per access that counting bursts causes; `None` where
    /// all is counted.
    pub burst_error: Option<f64>,
    /// Duration of the traced run, in seconds.
    pub traced_s: f64,
    /// Processor time of the traced run over that of a run on 4 KiB pages.
    pub slowdown: Option<f64>,
    /// The counts for each configuration; 4 KiB pages first.
    pub configurations: Vec<ModelledConfiguration>,
    /// Walks by allocation site, on 4 KiB pages, most walks first. An entry without allocations is
    /// memory of no site: stacks, globals, files.
    pub sites: Vec<AllocationSite>,
    /// Misses of one fully associative TLB of 4 KiB pages, by its entries.
    pub reach: Vec<Reach>,
    /// Walks over the run.
    pub moments: Vec<Moment>,
    /// The price of a walk on this machine, and its source.
    pub walk_cost: Option<WalkCost>,
    /// Real runs on mosaics, and the price of a walk by these, if there were any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mosaics: Option<Mosaics>,
    /// Hardware counters of real runs, if there are any.
    pub counted: Vec<CounterReading>,
    /// Why no hardware counter was read, and the remedy; `None` if one was.
    pub uncounted: Option<String>,
    /// The program that replaced the traced one by exec, the last of several: it ran without the
    /// tracer.
    pub started: Option<String>,
    /// What the trace does not include, a sentence each.
    pub unseen: Vec<String>,
}

impl Translation {
    /// The configuration called `name`, in any spelling that [`canonical`] knows.
    #[must_use]
    pub fn configuration(&self, name: &str) -> Option<&ModelledConfiguration> {
        let name = canonical(name);
        self.configurations.iter().find(|modelled| canonical(&modelled.name) == name)
    }

    /// A sentence on the accesses of the recorder of allocations, where that was used.
    pub(crate) fn recorder_sentence(&self) -> Option<&'static str> {
        let is_recorded = self.sites.iter().any(|site| site.allocations > 0);
        is_recorded.then_some(
            "These counts include the accesses of the recorder of allocations, which is preloaded into the program; --no-sites leaves it out.",
        )
    }
}

/// One spelling of a configuration's name: `4K` is `4k`, `direct segment` is `direct-segment`, `no
/// translation` is `none`.
#[must_use]
pub fn canonical(name: &str) -> String {
    let name = name.to_lowercase().replace(' ', "-");
    if name == "no-translation" { "none".to_owned() } else { name }
}

/// A modelled processor.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelledProcessor {
    /// Its name, such as `zen4`.
    pub name: String,
    /// Its sizes, such as `L1 72 full; L2 3072, 24 ways`.
    pub geometry: String,
    /// Where the sizes are from.
    pub source: String,
    /// Whether it differs from the processor of this machine.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub foreign: bool,
}

impl ModelledProcessor {
    /// A sentence on results for another processor than this machine's.
    fn caveat(&self) -> Option<String> {
        self.foreign.then(|| {
            format!(
                "{} is not this machine's processor: the walks are those of its TLBs, priced on this one. A run here does not spend them, so measured times cannot check them.",
                self.name
            )
        })
    }
}

/// The counts of one configuration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelledConfiguration {
    /// `4k`, `2m`, `1g`, `direct-segment`, `none` and so on; found by [`canonical`].
    pub name: String,
    /// Accesses to data.
    pub data: ReportedSide,
    /// Fetches of instructions.
    pub instruction: ReportedSide,
    /// Share of the run's time in walks for data, where walks have a price.
    pub data_share: Option<Interval>,
    /// The same for instructions.
    pub instruction_share: Option<Interval>,
    /// Time that a run would take, as a share of that on 4 KiB pages.
    pub time: Option<Interval>,
}

/// Counts of one kind of access.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReportedSide {
    /// Accesses.
    pub accesses: u64,
    /// Those that missed the first level.
    pub first_level_misses: u64,
    /// Those that missed every level, and walked.
    pub walks: u64,
    /// Memory references of the walks.
    pub walk_references: u64,
    /// Walks whose last entry was in a cache line that was not used recently: the expensive ones.
    pub far_walks: u64,
    /// Walks for addresses in the primary region: a direct segment would avoid them.
    pub region_walks: u64,
    /// Accesses that a direct segment translated.
    pub in_segment: u64,
}

/// Code that allocated memory.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AllocationSite {
    /// The function that requested the memory, without wrappers of allocators.
    pub function: String,
    /// Its source file, where debug information names it.
    pub file: Option<String>,
    /// The line in it.
    pub line: Option<u32>,
    /// The program or library that it is in.
    pub module: String,
    /// The call stack, innermost first, with wrappers of allocators.
    pub stack: Vec<String>,
    /// Allocations in the traced run.
    pub allocations: u64,
    /// Bytes allocated in the traced run.
    pub bytes: u64,
    /// Walks for this memory on 4 KiB pages.
    pub walks: u64,
    /// The same on 2 MiB pages.
    pub walks_large: u64,
    /// The pages of its memory in real runs, by the requested kind; empty if unknown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pages: Vec<SitePages>,
}

impl AllocationSite {
    /// Adds another stack of the same code.
    pub fn join(&mut self, other: &Self) {
        self.allocations += other.allocations;
        self.bytes += other.bytes;
        self.walks += other.walks;
        self.walks_large += other.walks_large;
        for pages in &other.pages {
            match self.pages.iter_mut().find(|own| own.kind == pages.kind) {
                Some(own) => own.join(pages),
                None => self.pages.push(pages.clone()),
            }
        }
    }
}

/// The pages of a site's memory in a real run, estimated from samples when the process was largest.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SitePages {
    /// The page kind of the run.
    pub kind: String,
    /// Share of the memory, 0 to 1, on pages of at least that size.
    pub share: f64,
    /// Resident bytes that the samples represent, an estimate.
    pub bytes: u64,
    /// Resident samples.
    pub samples: u64,
}

impl SitePages {
    /// Adds other memory on the same kind of pages, weighted by bytes.
    pub fn join(&mut self, other: &Self) {
        let bytes = self.bytes.saturating_add(other.bytes);
        if bytes > 0 {
            self.share = (self.share * self.bytes as f64 + other.share * other.bytes as f64) / bytes as f64;
        }
        self.bytes = bytes;
        self.samples = self.samples.saturating_add(other.samples);
    }
}

/// Hardware counters of a real run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CounterReading {
    /// The page kind that it ran on.
    pub kind: String,
    /// Walks for loads and stores.
    pub walks: u64,
    /// Cycles with such a walk in progress; `None` where the processor has no event for them.
    pub walk_cycles: Option<u64>,
    /// Cycles of the run.
    pub cycles: u64,
}

impl CounterReading {
    /// Part of the cycles with a walk in progress.
    #[must_use]
    pub fn share(&self) -> Option<f64> {
        self.walk_cycles.filter(|_| self.cycles > 0).map(|walking| walking as f64 / self.cycles as f64)
    }
}

/// A point of the curve of misses against size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Reach {
    /// Entries of the TLB, of 4 KiB each.
    pub entries: u64,
    /// Misses an access.
    pub misses_per_access: f64,
}

/// A stretch of the run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Moment {
    /// Accesses of the program up to its end.
    pub accesses: u64,
    /// Accesses counted in it.
    pub counted: u64,
    /// Walks counted in it, in the order of the configurations.
    pub walks: Vec<u64>,
}

/// The price of a walk.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WalkCost {
    /// Nanoseconds a walk.
    pub ns: Interval,
    /// Its source: `replay`, `counters`, `mosaics` and so on.
    pub from: String,
    /// The source in words.
    pub how: String,
    /// Half the width of the replay's interval over its middle; `None` without a replay.
    pub noise: Option<f64>,
}

impl WalkCost {
    /// A replay whose repetitions differ by more than this is noisy.
    const NOISY: f64 = 0.25;

    /// The noise of the replay, if it is so large that predictions are marked.
    pub fn noisy(&self) -> Option<f64> {
        self.noise.filter(|noise| *noise > Self::NOISY)
    }
}

/// The price of a walk by real runs on mosaics: a straight line through their times against the
/// walks that the models count on the same mixtures of pages. It is independent of the calibrated
/// price ([`WalkCost`]).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Mosaics {
    /// The mixtures, from none of the region on larger pages to all of it.
    pub mixtures: Vec<ReportedMixture>,
    /// Nanoseconds a walk: the slope of the line. Likely is the median of the lines of single
    /// rounds, between the ends of its interval, or of their range where there are too few rounds
    /// for one.
    pub fitted_ns: Interval,
    /// The largest relative error of a prediction by the line through the other mixtures.
    pub worst_error: f64,
    /// Degree of the polynomial that predicts best; above 1, the time is not linear.
    pub best_degree: u32,
    /// The largest relative error of that polynomial.
    pub best_error: f64,
}

impl Mosaics {
    /// Sentences on the fit and the calibrated price.
    #[must_use]
    pub fn sentences(&self, calibrated: Option<&WalkCost>) -> Vec<String> {
        let ns = |of: &Interval| estimate(of, nanoseconds);
        let mut sentences = vec![format!("Price of a walk by the line through these times: {}.", ns(&self.fitted_ns))];
        if let Some(cost) = calibrated.filter(|cost| cost.ns.finite().is_some()) {
            let meet = cost.ns.low <= self.fitted_ns.high && self.fitted_ns.low <= cost.ns.high;
            let meet = if meet { "the two intervals meet" } else { "the two intervals do not meet" };
            sentences.push(format!("Calibrated price, independent of these runs: {}; {meet}.", ns(&cost.ns)));
        }
        sentences.push(format!(
            "Each mixture left out in turn, the line through the others is off by {} at most.",
            percent(self.worst_error)
        ));
        if self.best_degree > 1 {
            sentences.push(format!(
                "The time is no straight line of the walks: a polynomial of degree {} is off by {} at most.",
                self.best_degree,
                percent(self.best_error)
            ));
        }
        sentences
    }
}

/// A mixture of page sizes, run for real and modelled. Times are those of a run in user mode, in
/// seconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ReportedMixture {
    /// The page kind of the real runs: `4k`, `thp:25%`, `thp`.
    pub kind: String,
    /// The configuration that models it: `4K`, `25 % on 2M`, `2M`.
    pub configuration: String,
    /// Share of the region on larger pages, 0 to 1.
    pub share: f64,
    /// Walks for data of a whole run, by the model.
    pub walks: f64,
    /// Runs that were measured.
    pub runs: u32,
    /// The measured time: median and interval, or range where there are too few runs for one.
    pub measured_s: Interval,
    /// The time by the calibrated price, from the measured one on 4 KiB pages; `None` without such
    /// a price, and for 4 KiB pages.
    pub priced_s: Option<Interval>,
    /// The time on the line.
    pub fitted_s: f64,
    /// The time on the line through the other mixtures.
    pub left_out_s: f64,
}
