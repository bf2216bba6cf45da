//! From records to counts: each thread has the TLBs of a core of its own, each process its memory.
//!
//! ```text
//! batch ─┬ event ──→ the process's memory: what lies in the primary region, what was allocated by whom
//!        └ access ─→ placed ─→ the thread's core: counted, or only warming up
//! ```
//! A burst counts by how many of the first ones it stands for (`wire`'s plan), in all but the replayed sample, the curve of reaches, the
//! moments and the judged walks: those take each as it comes.

use std::collections::HashMap;

use fieldstone_report::translation::{Moment, canonical};
use fieldstone_translation::reach::{Reach, ReachPoint};
use fieldstone_translation::{Access, Configuration, Counts, PageSize, Scheme, Simulator};
use fieldstone_wire::trace::{EVENT_WORDS, Kind, LANES, Phase, Plan, Record, Trace};
use std::sync::atomic::Ordering::Relaxed;

use super::allocations::{Allocations, Whose};
use super::bursts::{Burst, Bursts};
use super::process::Process;
use super::record::{Heard, Listener, Origin};
use super::sample::Sample;
use crate::error::Result;

/// Stretches of the run that are told apart at most; when there are more, neighbours are joined.
const MOMENTS: usize = 256;

/// The configuration whose walks are looked at one by one: 4 KiB pages.
const BASELINE: usize = 0;
/// The one whose walks are looked at beside them, where there is one.
const LARGE: &str = "2m";

/// What a trace came to.
#[derive(Clone, Debug, Default)]
pub struct Followed {
    /// Accesses of the whole run.
    pub accesses: u64,
    /// Instructions of the whole run.
    pub instructions: u64,
    /// Accesses that were counted in the models.
    pub counted_accesses: u64,
    /// Accesses to data among them that were recorded; the others could not miss.
    pub recorded: u64,
    /// Instructions that ran with them.
    pub counted_instructions: u64,
    /// Bursts that were counted, each thread's for itself; 0 if the whole run was.
    pub bursts: u64,
    /// The standard error of the walks an access on the first configuration, as a share of them, by how the bursts differ. None
    /// if the whole run was counted, or fewer than two bursts.
    pub relative_error: Option<f64>,
    /// What the models counted, in the order of the configurations.
    pub counts: Vec<Counts>,
    /// How the walks were spread over the run.
    pub moments: Vec<Moment>,
    /// Walks on the first configuration that were judged, and those of them whose address was read from memory shortly before.
    pub judged_walks: u64,
    /// See [`Self::judged_walks`].
    pub dependent_walks: u64,
    /// Pieces of the trace: offsets in the primary region of recorded accesses to data.
    pub sample: Sample,
    /// Walks for data on the first configuration, and on 2 MiB pages if these are modelled, by whose memory it was.
    pub blame: HashMap<Whose, Blame>,
    /// Misses of one fully associative TLB, by its entries, a recorded access.
    pub reach: Vec<ReachPoint>,
    /// Times that the program asked for memory that it can write code into.
    pub generated: u32,
    /// Threads that were traced.
    pub threads: u64,
    /// Processes that were traced.
    pub processes: usize,
    /// The largest that the primary region of a process was.
    pub region_bytes: u64,
    /// Threads that found no lane.
    pub laneless: u32,
    /// Programs started by exec, which ran without the plugin.
    pub execs: u32,
}

/// Walks that some memory is to blame for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Blame {
    /// On the first configuration.
    pub walks: u64,
    /// On 2 MiB pages.
    pub walks_large: u64,
}

impl Blame {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts are far below 2^53")]
    fn times(self, factor: f64) -> Self {
        let times = |count: u64| (count as f64 * factor).round() as u64;
        Self { walks: times(self.walks), walks_large: times(self.walks_large) }
    }
}

/// A thread's core. A simulator tells the single walks of one configuration, so that of 2 MiB pages has one of its own.
#[derive(Debug)]
struct Core {
    simulator: Simulator,
    /// Its place among the configurations.
    large: Option<(usize, Simulator)>,
}

impl Core {
    fn new(configurations: &[Configuration]) -> Result<Self> {
        let mut others = configurations.to_vec();
        let at = configurations.iter().position(|one| canonical(&one.name) == LARGE).filter(|&at| at != BASELINE);
        let watching = |configurations: &[Configuration]| {
            let mut simulator = Simulator::new(configurations)?;
            simulator.watch(Some(0));
            Ok::<_, crate::Error>(simulator)
        };
        let large = at.map(|at| Ok::<_, crate::Error>((at, watching(&[others.remove(at)])?))).transpose()?;
        Ok(Self { simulator: watching(&others)?, large })
    }

    /// All of it.
    fn each(&mut self) -> impl Iterator<Item = &mut Simulator> {
        std::iter::once(&mut self.simulator).chain(self.large.as_mut().map(|(_, large)| large))
    }

    /// What was counted, in the order of the configurations.
    fn counts(&self) -> Vec<Counts> {
        let mut counts = self.simulator.counts().to_vec();
        if let Some((at, large)) = &self.large {
            large.counts().iter().for_each(|one| counts.insert(*at, *one));
        }
        counts
    }

    /// Places in the last batch of the accesses that walked on 2 MiB pages.
    fn walked_large(&self) -> &[u32] {
        self.large.as_ref().map_or(&[], |(_, large)| large.walked())
    }
}

/// Sums over bursts, each multiplied by its weight.
#[derive(Clone, Debug)]
struct Weighted {
    counts: Vec<Counts>,
    accesses: f64,
}

/// Listens to a trace and simulates it.
#[derive(Debug)]
pub struct Follower {
    configurations: Vec<Configuration>,
    cores: Vec<Option<Core>>,
    processes: HashMap<u32, Process>,
    /// Whether a configuration must know where the region's pieces begin.
    has_ranges: bool,
    /// The accesses that were placed and not yet run, and the records that they come from.
    placed: Vec<Access>,
    records: Vec<Record>,
    /// The last access to data of each lane.
    last: [Option<Access>; LANES],
    plan: Plan,
    /// The burst that each lane is in, and how many there were before it.
    burst: [Burst; LANES],
    before: [u64; LANES],
    /// What each lane's core had counted when it began.
    counted: Vec<Vec<Counts>>,
    bursts: Bursts,
    /// Each burst as often as it counts; `so_far` has the counts by these at the end.
    weighted: Weighted,
    so_far: Followed,
    reach: Reach,
    /// Accesses counted that make a stretch.
    stretch: u64,
}

impl Follower {
    /// A follower that has heard nothing, of a trace that is recorded by `plan`.
    ///
    /// # Errors
    /// A configuration that is none.
    pub fn new(configurations: &[Configuration], plan: Plan) -> Result<Self> {
        Core::new(configurations)?;
        Ok(Self {
            configurations: configurations.to_vec(),
            cores: (0..LANES).map(|_| None).collect(),
            processes: HashMap::new(),
            has_ranges: configurations.iter().any(|one| matches!(one.scheme, Scheme::RangeTlb { .. })),
            placed: Vec::new(),
            records: Vec::new(),
            last: [None; LANES],
            plan,
            burst: [Burst::default(); LANES],
            before: [0; LANES],
            counted: vec![Vec::new(); LANES],
            bursts: Bursts::default(),
            weighted: Weighted { counts: vec![Counts::default(); configurations.len()], accesses: 0.0 },
            so_far: Followed::default(),
            reach: Reach::new(PageSize::Small4k),
            stretch: 1 << 20,
        })
    }

    /// What it all came to.
    #[must_use]
    pub fn finish(mut self, trace: &Trace) -> Followed {
        (0..LANES).for_each(|lane| self.end_burst(lane));
        self.settle();
        if trace.plan.burst > 0 {
            self.so_far.bursts = self.bursts.count();
            self.so_far.relative_error = self.bursts.relative_error();
        }
        self.so_far.reach = self.reach.points();
        self.so_far.processes = self.processes.len();
        self.so_far.generated = trace.generated.load(Relaxed);
        self.so_far.laneless = trace.laneless.load(Relaxed);
        self.so_far.execs = trace.execs.load(Relaxed);
        self.so_far
    }

    fn process(&mut self, origin: Origin) -> &mut Process {
        if !self.processes.contains_key(&origin.process) {
            // A fork's child has what its parent had.
            let inherited = self.processes.get(&origin.parent).cloned().unwrap_or_default();
            self.processes.insert(origin.process, inherited);
        }
        self.processes.entry(origin.process).or_default()
    }

    /// Runs what was placed so far through the thread's core.
    fn simulate(&mut self, allocations: &Allocations, lane: usize, phase: Phase) {
        let Some(core) = &mut self.cores[lane] else { return };
        match phase {
            Phase::Counted => {
                core.each().for_each(|simulator| simulator.run(&self.placed));
                self.reach.run(&self.placed);
                let data = self.placed.iter().filter(|access| access.is_in_region() && !access.is_fetch());
                self.so_far.sample.pass(data.map(|access| access.address()));
                let walked = |places: &[u32]| {
                    let walked = places.iter().map(|&at| (self.placed[at as usize], self.records[at as usize]));
                    walked.filter(|(access, _)| !access.is_fetch()).collect::<Vec<_>>()
                };
                let whose = |access: Access, record: Record| allocations.whose(record.address(), access.is_in_region());
                let (small, large) = (walked(core.simulator.walked()), walked(core.walked_large()));
                let weight = self.plan.weight_of(self.before[lane]);
                for (access, record) in small {
                    self.so_far.blame.entry(whose(access, record)).or_default().walks += weight;
                    if let Some(depends) = record.depends() {
                        self.so_far.judged_walks += 1;
                        self.so_far.dependent_walks += u64::from(depends);
                    }
                }
                for (access, record) in large {
                    self.so_far.blame.entry(whose(access, record)).or_default().walks_large += weight;
                }
            }
            Phase::Warming => core.each().for_each(|simulator| simulator.warm(&self.placed)),
            Phase::Passing => {}
        }
        let data = self.placed.iter().rev().find(|access| !access.is_fetch());
        self.last[lane] = data.copied().or(self.last[lane]);
        self.placed.clear();
        self.records.clear();
    }

    /// Places and runs a batch; how many accesses it records.
    fn follow(&mut self, origin: Origin, phase: Phase, records: &[Record]) -> u64 {
        let mut recorded = 0;
        let mut rest = records;
        let mut process = std::mem::take(self.process(origin));
        while let Some((&record, after)) = rest.split_first() {
            rest = after;
            match record.kind() {
                Some(kind @ (Kind::Data | Kind::Fetch)) => {
                    recorded += u64::from(kind == Kind::Data);
                    self.placed.push(process.region.place(record.address(), kind == Kind::Fetch));
                    self.records.push(record);
                }
                Some(Kind::Event) => {
                    let Some((operands, after)) = after.split_at_checked(EVENT_WORDS - 1) else { break };
                    rest = after;
                    self.simulate(&process.allocations, origin.lane, phase);
                    if process.change(record.address(), operands)
                        && self.has_ranges
                        && let Some(core) = &mut self.cores[origin.lane]
                    {
                        let starts = process.region.range_starts();
                        core.each().for_each(|simulator| simulator.set_ranges(&starts));
                    }
                }
                None => break,
            }
        }
        self.simulate(&process.allocations, origin.lane, phase);
        self.so_far.region_bytes = self.so_far.region_bytes.max(process.region.bytes());
        *self.process(origin) = process;
        recorded
    }

    /// The lane's burst is over, if it was in one: it counts by its weight.
    fn end_burst(&mut self, lane: usize) {
        let burst = std::mem::take(&mut self.burst[lane]);
        let Some(core) = self.cores[lane].as_ref().filter(|_| burst.accesses > 0) else { return };
        let weight = self.plan.weight_of(self.before[lane]);
        self.before[lane] += 1;
        self.bursts.add(burst, weight as f64);
        self.weighted.accesses += burst.accesses as f64 * weight as f64;
        let (now, before) = (core.counts(), std::mem::take(&mut self.counted[lane]));
        for (at, (total, counts)) in self.weighted.counts.iter_mut().zip(&now).enumerate() {
            let own = counts.since(&before.get(at).copied().unwrap_or_default());
            *total += &own.times(weight as f64);
        }
        self.counted[lane] = now;
    }

    /// Brings what was weighted back to the accesses that were really counted: shares are then those of the run, and sums those of the
    /// bursts.
    fn settle(&mut self) {
        let part = self.so_far.counted_accesses as f64 / self.weighted.accesses.max(1.0);
        // All weights are 1: nothing is to be rounded.
        let part = if (part - 1.0).abs() < 1e-12 { 1.0 } else { part };
        self.so_far.counts = self.weighted.counts.iter().map(|counts| counts.times(part)).collect();
        for blame in self.so_far.blame.values_mut() {
            *blame = blame.times(part);
        }
    }

    /// Notes how many walks there were by now: in the lane's burst, and in stretches that grow with the run.
    fn note_moment(&mut self, before: &[u64], lane: usize, counted: u64) {
        let Some(core) = &self.cores[lane] else { return };
        let walks: Vec<u64> = walks(core).iter().zip(before).map(|(now, before)| now - before).collect();
        let burst = &mut self.burst[lane];
        burst.accesses += counted;
        burst.walks += walks.get(BASELINE).copied().unwrap_or(0);
        let stretch = self.stretch;
        let moments = &mut self.so_far.moments;
        match moments.last_mut() {
            Some(last) if last.counted < stretch => {
                last.accesses = self.so_far.accesses;
                last.counted += counted;
                last.walks.iter_mut().zip(&walks).for_each(|(sum, walks)| *sum += walks);
            }
            _ => moments.push(Moment { accesses: self.so_far.accesses, counted, walks }),
        }
        if moments.len() > MOMENTS {
            let joined = moments.chunks(2).map(join).collect();
            *moments = joined;
            self.stretch *= 2;
        }
    }
}

impl Listener for Follower {
    fn hear(&mut self, origin: Origin, heard: &Heard) {
        let Some(phase) = heard.phase else { return };
        if self.cores[origin.lane].is_none() {
            self.cores[origin.lane] = Core::new(&self.configurations).ok();
            self.so_far.threads += 1;
        }
        let before = self.cores[origin.lane].as_ref().map(walks).unwrap_or_default();
        let recorded = self.follow(origin, phase, &heard.records);
        // What a killed process left behind says nothing of those that were not recorded.
        let accesses = heard.accesses.max(recorded);
        self.so_far.accesses += accesses;
        self.so_far.instructions += heard.instructions;
        if phase == Phase::Counted {
            if let (Some(core), Some(like)) = (&mut self.cores[origin.lane], self.last[origin.lane]) {
                core.each().for_each(|simulator| simulator.skipped(like, accesses - recorded));
            }
            self.so_far.recorded += recorded;
            self.so_far.counted_accesses += accesses;
            self.so_far.counted_instructions += heard.instructions;
            self.note_moment(&before, origin.lane, accesses);
        } else {
            self.end_burst(origin.lane);
        }
    }

    fn leave(&mut self, origin: Origin) {
        self.end_burst(origin.lane);
        self.cores[origin.lane] = None;
        self.counted[origin.lane].clear();
        self.before[origin.lane] = 0;
        self.last[origin.lane] = None;
    }
}

fn walks(core: &Core) -> Vec<u64> {
    core.counts().iter().map(|counts| counts.data.walks).collect()
}

fn join(moments: &[Moment]) -> Moment {
    let mut joined = moments.first().cloned().unwrap_or_default();
    for moment in moments.iter().skip(1) {
        joined.accesses = moment.accesses;
        joined.counted += moment.counted;
        joined.walks.iter_mut().zip(&moment.walks).for_each(|(sum, walks)| *sum += walks);
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use fieldstone_translation::Machine;

    #[test]
    fn two_mebibyte_pages_stand_apart_and_count_as_before() {
        let machine = Machine::preset("zen4").unwrap();
        let sizes = [PageSize::Small4k, PageSize::Large2m, PageSize::Huge1g];
        let configurations = sizes.map(|size| Configuration::paged(&machine, size));
        let mut core = Core::new(&configurations).unwrap();
        let mut together = Simulator::new(&configurations).unwrap();
        let mut region = fieldstone_translation::PrimaryRegion::default();
        region.add(0, 64 << 20);
        let batch: Vec<Access> = (0..64 << 8).map(|page| region.place(page << 12, false)).collect();
        core.each().for_each(|simulator| simulator.run(&batch));
        together.run(&batch);
        assert_eq!(core.counts(), together.counts());
        assert_eq!(core.walked_large().len(), 32, "one walk for each page of 2 MiB");
        assert_eq!(core.simulator.walked().len(), 64 << 8, "and for each of 4 KiB");
        let small = Core::new(&configurations[..1]).unwrap();
        assert!(small.large.is_none() && small.walked_large().is_empty());
    }
}
