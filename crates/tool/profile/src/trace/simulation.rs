//! From records to counts: each thread has the TLBs of a core of its own, each process its memory.
//!
//! ```text
//! batch ─┬ event ──→ the process's memory: what lies in the primary region, what was allocated by whom
//!        └ access ─→ placed ─→ the thread's core: counted, or only warming up
//! ```
//! A burst counts by the accesses that it is nearest to: its own, and half of those that passed before and after it. That is known when the next
//! one begins; until then what it came to waits. Only the curve of reaches and the moments take each burst as it comes.
//!
//! Where a thread has more walks than in the rest of its run, it is asked to haste (`wire`'s plan): by what the last burst but one came to. If a
//! burst shortened the gap after itself, those that happened to have many walks would count less than others.

use std::collections::{BTreeMap, HashMap, VecDeque};

use fieldstone_report::translation::Moment;
use fieldstone_translation::reach::{Reach, ReachPoint};
use fieldstone_translation::{Access, Configuration, Counts, PageSize, Scheme};
use fieldstone_wire::trace::{EVENT_WORDS, Kind, LANES, Phase, Plan, Record, Trace};
use std::sync::atomic::Ordering::Relaxed;

use super::allocations::{Allocations, MemoryOwner};
use super::bursts::{BurstCounts, BurstStatistics, WalkRate};
use super::cores::{BASELINE, Core};
use super::process_memory::ProcessMemory;
use super::record::{DecodedBatch, BatchConsumer, ThreadOrigin};
use super::sample::{AddressSample, WalkCounts};
use crate::error::Result;

/// Stretches of the run that are told apart at most; when there are more, neighbours are joined.
const MAX_MOMENTS: usize = 256;

/// Processes without a thread whose memory is still known: a child may be heard of after its parent has ended.
const MAX_ENDED: usize = 8;

/// So many instructions a processor looks ahead, about: walks that lie further apart do not overlap.
const REORDER_WINDOW: f64 = 256.0;

/// What a trace came to.
#[derive(Clone, Debug, Default)]
pub struct TraceResults {
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
    /// BurstStatistics that were counted, each thread's for itself; 0 if the whole run was.
    pub bursts: u64,
    /// The standard error of the walks an access on the first configuration, as a share of them, by how the bursts differ. None
    /// if the whole run was counted, or fewer than two bursts.
    pub relative_error: Option<f64>,
    /// What the models counted, in the order of the configurations.
    pub counts: Vec<Counts>,
    /// How the walks were spread over the run.
    pub moments: Vec<Moment>,
    /// WalkCounts on the first configuration that were judged, and those of them whose address was read from memory shortly before.
    pub classified_walks: u64,
    /// See [`Self::classified_walks`].
    pub dependent_walks: u64,
    /// Instructions that ran for each access of which the sample consists, where the walks were: at most 256 of them.
    pub instructions_each: f64,
    /// Pieces of the trace: offsets in the primary region of recorded accesses to data.
    pub sample: AddressSample,
    /// WalkCounts for data on the first configuration, and on 2 MiB pages if these are modelled, by whose memory it was.
    pub walks_by_owner: BTreeMap<MemoryOwner, AttributedWalks>,
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

/// WalkCounts that some memory is to walks_by_owner for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttributedWalks {
    /// On the first configuration.
    pub walks: u64,
    /// On 2 MiB pages.
    pub walks_large: u64,
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts are far below 2^53")]
fn whole(count: f64) -> u64 {
    count.round() as u64
}

/// Sums over bursts, each multiplied by its weight.
#[derive(Clone, Debug)]
struct WeightedSums {
    counts: Vec<Counts>,
    walks_by_owner: BTreeMap<MemoryOwner, [f64; 2]>,
    classified: f64,
    dependent: f64,
    spread: f64,
}

/// What a lane's last burst came to.
#[derive(Clone, Debug)]
struct PendingBurst {
    burst: BurstCounts,
    /// What the core had counted when it began, and has counted in it.
    before: Vec<Counts>,
    walks_by_owner: BTreeMap<MemoryOwner, AttributedWalks>,
    classified: u64,
    dependent: u64,
    /// Instructions an access of the sample's kind, by batches: the sum over the burst's walks.
    spread: f64,
    sample: AddressSample,
    /// Accesses of the thread in it, warm-up and all, and what passed before and after it.
    own: u64,
    passed: [u64; 2],
}

impl PendingBurst {
    /// A burst that begins where `passed` accesses passed since the last one.
    fn new(before: Vec<Counts>, passed: u64) -> Self {
        Self {
            burst: BurstCounts::default(),
            before,
            walks_by_owner: BTreeMap::new(),
            classified: 0,
            dependent: 0,
            spread: 0.0,
            sample: AddressSample::for_burst(),
            own: 0,
            passed: [passed, 0],
        }
    }

    /// How many accesses each of those that were counted stands for: the burst, for all that it is nearest to. Nothing is before a thread's
    /// first one and after its last.
    fn weight(&self, is_last: bool) -> f64 {
        let [before, after] = self.passed.map(|passed| passed as f64);
        let nearest = self.own as f64 + before / 2.0 + if is_last { after } else { after / 2.0 };
        nearest / self.burst.accesses as f64
    }
}

/// Pieces of a sample count in whole numbers: so many for a burst that stands for one of the first periods.
const WEIGHT_UNITS: u64 = 16;

/// Listens to a trace and simulates it.
#[derive(Debug)]
pub struct TraceSimulator {
    configurations: Vec<Configuration>,
    cores: Vec<Option<Core>>,
    processes: HashMap<u32, ProcessMemory>,
    /// The process of each lane that is in use, and those that have none any more, the last to end last.
    lane_processes: [Option<u32>; LANES],
    ended: VecDeque<u32>,
    /// Whether a configuration must know where the region's pieces begin.
    has_ranges: bool,
    /// The accesses that were placed and not yet run, and the records that they come from.
    accesses: Vec<Access>,
    records: Vec<Record>,
    /// The last access to data of each lane.
    last: [Option<Access>; LANES],
    plan: Plan,
    /// What each lane did last, and its last burst.
    phases: [Option<Phase>; LANES],
    pending: Vec<PendingBurst>,
    /// Of each lane's run so far.
    rates: Vec<WalkRate>,
    bursts: BurstStatistics,
    /// Each burst as often as it counts; `so_far` has the counts by these at the end.
    weighted: WeightedSums,
    results: TraceResults,
    reach: Reach,
    /// Accesses counted that make a stretch.
    moment_accesses: u64,
}

impl TraceSimulator {
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
            lane_processes: [None; LANES],
            ended: VecDeque::new(),
            has_ranges: configurations.iter().any(|one| matches!(one.scheme, Scheme::RangeTlb { .. })),
            accesses: Vec::new(),
            records: Vec::new(),
            last: [None; LANES],
            plan,
            phases: [None; LANES],
            pending: (0..LANES).map(|_| PendingBurst::new(Vec::new(), 0)).collect(),
            rates: vec![WalkRate::default(); LANES],
            bursts: BurstStatistics::default(),
            weighted: WeightedSums {
                counts: vec![Counts::default(); configurations.len()],
                walks_by_owner: BTreeMap::new(),
                classified: 0.0,
                dependent: 0.0,
                spread: 0.0,
            },
            results: TraceResults::default(),
            reach: Reach::new(PageSize::Small4k),
            moment_accesses: 1 << 20,
        })
    }

    /// What it all came to.
    #[must_use]
    pub fn finish(mut self, trace: &Trace) -> TraceResults {
        (0..LANES).for_each(|lane| self.end_burst(lane, true));
        self.normalize();
        if trace.plan.burst > 0 {
            self.results.bursts = self.bursts.count();
            self.results.relative_error = self.bursts.relative_error();
        }
        self.results.reach = self.reach.points();
        self.results.generated = trace.generated.load(Relaxed);
        self.results.laneless = trace.laneless.load(Relaxed);
        self.results.execs = trace.execs.load(Relaxed);
        self.results
    }

    fn process(&mut self, origin: ThreadOrigin) -> &mut ProcessMemory {
        if !self.processes.contains_key(&origin.process) {
            // A fork's child has what its parent had.
            let inherited = self.processes.get(&origin.parent).cloned().unwrap_or_default();
            self.processes.insert(origin.process, inherited);
            self.results.processes += 1;
        }
        self.processes.entry(origin.process).or_default()
    }

    /// A lane is no longer its process's. Of those that have none left, the memory of the last few is kept.
    fn release_process(&mut self, lane: usize) {
        let Some(process) = self.lane_processes[lane].take() else { return };
        if self.lane_processes.contains(&Some(process)) {
            return;
        }
        self.ended.push_back(process);
        if self.ended.len() > MAX_ENDED
            && let Some(oldest) = self.ended.pop_front()
        {
            self.processes.remove(&oldest);
        }
    }

    /// Runs what was placed so far through the thread's core.
    fn run_accesses(&mut self, allocations: &Allocations, lane: usize, phase: Phase) {
        let Some(core) = &mut self.cores[lane] else { return };
        match phase {
            Phase::Counted => {
                core.simulators().for_each(|simulator| simulator.run(&self.accesses));
                self.reach.run(&self.accesses);
                let walked = |places: &[u32]| {
                    let walked = places.iter().map(|&at| (self.accesses[at as usize], self.records[at as usize]));
                    walked.filter(|(access, _)| !access.is_fetch()).collect::<Vec<_>>()
                };
                let owner = |access: Access, record: Record| allocations.owner(record.address(), access.is_in_region());
                let (small, large) = (walked(core.simulator.walked()), walked(core.walked_large()));
                let walks = WalkCounts::of(small.iter().map(|(_, record)| *record));
                let data = self.accesses.iter().filter(|access| is_sampled(**access)).map(|access| access.address());
                let pending = &mut self.pending[lane];
                // Where no burst has to end before its weight is known, nothing is kept for each thread.
                match self.plan.burst {
                    0 => self.results.sample.add_piece(data, walks, WEIGHT_UNITS),
                    _ => pending.sample.add_piece(data, walks, 1),
                }
                pending.classified += walks.classified;
                pending.dependent += walks.dependent;
                for (access, record) in small {
                    pending.walks_by_owner.entry(owner(access, record)).or_default().walks += 1;
                }
                for (access, record) in large {
                    pending.walks_by_owner.entry(owner(access, record)).or_default().walks_large += 1;
                }
            }
            Phase::Warming => core.simulators().for_each(|simulator| simulator.warm(&self.accesses)),
            Phase::Passing => {}
        }
        let data = self.accesses.iter().rev().find(|access| !access.is_fetch());
        self.last[lane] = data.copied().or(self.last[lane]);
        self.accesses.clear();
        self.records.clear();
    }

    /// Places and runs a batch; how many accesses to data it records, and those of them in the region.
    fn simulate_batch(&mut self, origin: ThreadOrigin, phase: Phase, records: &[Record]) -> (u64, u64) {
        let (mut recorded, mut in_region) = (0, 0);
        let mut rest = records;
        let mut process = std::mem::take(self.process(origin));
        while let Some((&record, after)) = rest.split_first() {
            rest = after;
            match record.kind() {
                Some(kind @ (Kind::Data | Kind::Fetch)) => {
                    let access = process.region.place(record.address(), kind == Kind::Fetch);
                    recorded += u64::from(kind == Kind::Data);
                    in_region += u64::from(is_sampled(access));
                    self.accesses.push(access);
                    self.records.push(record);
                }
                Some(Kind::Event) => {
                    let Some((operands, after)) = after.split_at_checked(EVENT_WORDS - 1) else { break };
                    rest = after;
                    self.run_accesses(&process.allocations, origin.lane, phase);
                    if process.apply_event(record.address(), operands)
                        && self.has_ranges
                        && let Some(core) = &mut self.cores[origin.lane]
                    {
                        let starts = process.region.range_starts();
                        core.simulators().for_each(|simulator| simulator.set_ranges(&starts));
                    }
                }
                None => break,
            }
        }
        self.run_accesses(&process.allocations, origin.lane, phase);
        self.results.region_bytes = self.results.region_bytes.max(process.region.bytes());
        *self.process(origin) = process;
        (recorded, in_region)
    }

    /// The weight of what stands for one of the first periods.
    fn unit(&self) -> f64 {
        let Plan { burst, period, .. } = self.plan;
        if burst == 0 || period == 0 { 1.0 } else { period as f64 / burst as f64 }
    }

    /// The lane's next burst begins, or its thread ends: now it is known how much of the run the last one stands for.
    fn end_burst(&mut self, lane: usize, is_last: bool) {
        let now = self.cores[lane].as_ref().map(Core::counts).unwrap_or_default();
        let passed = self.pending[lane].passed[1];
        let pending = std::mem::replace(&mut self.pending[lane], PendingBurst::new(now.clone(), passed));
        if pending.burst.accesses == 0 {
            return;
        }
        let weight = if self.plan.burst == 0 { 1.0 } else { pending.weight(is_last) };
        self.rates[lane].add(pending.burst, weight);
        self.bursts.add(pending.burst, weight);
        let weighted = &mut self.weighted;
        for (at, (total, counts)) in weighted.counts.iter_mut().zip(&now).enumerate() {
            let own = counts.since(&pending.before.get(at).copied().unwrap_or_default());
            *total += &own.times(weight);
        }
        for (owner, walks_by_owner) in pending.walks_by_owner {
            let [walks, walks_large] = weighted.walks_by_owner.entry(owner).or_default();
            *walks += walks_by_owner.walks as f64 * weight;
            *walks_large += walks_by_owner.walks_large as f64 * weight;
        }
        weighted.classified += pending.classified as f64 * weight;
        weighted.dependent += pending.dependent as f64 * weight;
        weighted.spread += pending.spread * weight;
        self.results.sample.add_burst(pending.sample, whole(weight / self.unit() * WEIGHT_UNITS as f64).max(1));
    }

    /// Brings what was weighted back to the accesses that were really counted: shares are then those of the run, and sums those of the
    /// bursts.
    fn normalize(&mut self) {
        let part = self.results.counted_accesses as f64 / self.bursts.accesses().max(1.0);
        // All weights are 1: nothing is to be rounded.
        let part = if (part - 1.0).abs() < 1e-12 { 1.0 } else { part };
        self.results.counts = self.weighted.counts.iter().map(|counts| counts.times(part)).collect();
        let walks_by_owner = |[walks, walks_large]: [f64; 2]| AttributedWalks {
            walks: whole(walks * part),
            walks_large: whole(walks_large * part),
        };
        let blamed = std::mem::take(&mut self.weighted.walks_by_owner);
        self.results.walks_by_owner = blamed.into_iter().map(|(owner, walks)| (owner, walks_by_owner(walks))).collect();
        self.results.classified_walks = whole(self.weighted.classified * part);
        self.results.dependent_walks = whole(self.weighted.dependent * part);
        let walks = self.bursts.walks();
        self.results.instructions_each = if walks > 0.0 { self.weighted.spread / walks } else { 0.0 };
    }

    /// Notes how many walks there were by now: in the lane's burst, and in stretches that grow with the run. Those of the first configuration.
    fn record_moment(&mut self, before: &[u64], lane: usize, counted: u64) -> u64 {
        let Some(core) = &self.cores[lane] else { return 0 };
        let walks: Vec<u64> = core.walks().iter().zip(before).map(|(now, before)| now - before).collect();
        let burst = &mut self.pending[lane].burst;
        burst.accesses += counted;
        let own = walks.get(BASELINE).copied().unwrap_or(0);
        burst.walks += own;
        let moment_accesses = self.moment_accesses;
        let moments = &mut self.results.moments;
        match moments.last_mut() {
            Some(last) if last.counted < moment_accesses => {
                last.accesses = self.results.accesses;
                last.counted += counted;
                last.walks.iter_mut().zip(&walks).for_each(|(sum, walks)| *sum += walks);
            }
            _ => moments.push(Moment { accesses: self.results.accesses, counted, walks }),
        }
        if moments.len() > MAX_MOMENTS {
            let joined = moments.chunks(2).map(join).collect();
            *moments = joined;
            self.moment_accesses *= 2;
        }
        own
    }
}

impl BatchConsumer for TraceSimulator {
    fn consume(&mut self, origin: ThreadOrigin, decoded: &DecodedBatch) -> u64 {
        let Some(phase) = decoded.phase else { return 1 };
        if self.cores[origin.lane].is_none() {
            self.cores[origin.lane] = Core::new(&self.configurations).ok();
            self.results.threads += 1;
            self.lane_processes[origin.lane] = Some(origin.process);
            self.ended.retain(|&ended| ended != origin.process);
        }
        if begins_burst(self.phases[origin.lane].replace(phase), phase) {
            self.end_burst(origin.lane, false);
        }
        let before = self.cores[origin.lane].as_ref().map(Core::walks).unwrap_or_default();
        let (recorded, in_region) = self.simulate_batch(origin, phase, &decoded.records);
        // What a killed process left behind says nothing of those that were not recorded.
        let accesses = decoded.accesses.max(recorded);
        self.results.accesses += accesses;
        self.results.instructions += decoded.instructions;
        let pending = &mut self.pending[origin.lane];
        *if phase == Phase::Passing { &mut pending.passed[1] } else { &mut pending.own } += accesses;
        if phase == Phase::Counted {
            if let (Some(core), Some(like)) = (&mut self.cores[origin.lane], self.last[origin.lane]) {
                core.simulators().for_each(|simulator| simulator.skipped(like, accesses - recorded));
            }
            self.results.recorded += recorded;
            self.results.counted_accesses += accesses;
            self.results.counted_instructions += decoded.instructions;
            let walks = self.record_moment(&before, origin.lane, accesses);
            let each = (decoded.instructions as f64 / in_region.max(1) as f64).min(REORDER_WINDOW);
            self.pending[origin.lane].spread += each * walks as f64;
        }
        self.rates[origin.lane].haste().min(self.plan.haste.max(1))
    }

    fn end_thread(&mut self, origin: ThreadOrigin) {
        self.end_burst(origin.lane, true);
        self.release_process(origin.lane);
        self.cores[origin.lane] = None;
        self.pending[origin.lane] = PendingBurst::new(Vec::new(), 0);
        self.rates[origin.lane] = WalkRate::default();
        self.phases[origin.lane] = None;
        self.last[origin.lane] = None;
    }
}

/// Whether it is of the kind that the sample has.
const fn is_sampled(access: Access) -> bool {
    access.is_in_region() && !access.is_fetch()
}

/// Whether a burst begins with this batch: with the first that warms up, or is counted where none does.
const fn begins_burst(before: Option<Phase>, phase: Phase) -> bool {
    match phase {
        Phase::Warming => !matches!(before, Some(Phase::Warming)),
        Phase::Counted => matches!(before, None | Some(Phase::Passing)),
        Phase::Passing => false,
    }
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
