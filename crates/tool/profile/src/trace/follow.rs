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

use super::allocations::{Allocations, Whose};
use super::bursts::{Burst, Bursts, Rate};
use super::cores::{BASELINE, Core};
use super::process::Process;
use super::record::{Heard, Listener, Origin};
use super::sample::{Sample, Walks};
use crate::error::Result;

/// Stretches of the run that are told apart at most; when there are more, neighbours are joined.
const MOMENTS: usize = 256;

/// Processes without a thread whose memory is still known: a child may be heard of after its parent has ended.
const ENDED: usize = 8;

/// So many instructions a processor looks ahead, about: walks that lie further apart do not overlap.
const LOOK_AHEAD: f64 = 256.0;

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
    /// Instructions that ran for each access of which the sample consists, where the walks were: at most 256 of them.
    pub instructions_each: f64,
    /// Pieces of the trace: offsets in the primary region of recorded accesses to data.
    pub sample: Sample,
    /// Walks for data on the first configuration, and on 2 MiB pages if these are modelled, by whose memory it was.
    pub blame: BTreeMap<Whose, Blame>,
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

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts are far below 2^53")]
fn whole(count: f64) -> u64 {
    count.round() as u64
}

/// Sums over bursts, each multiplied by its weight.
#[derive(Clone, Debug)]
struct Weighted {
    counts: Vec<Counts>,
    blame: BTreeMap<Whose, [f64; 2]>,
    judged: f64,
    dependent: f64,
    spread: f64,
}

/// What a lane's last burst came to.
#[derive(Clone, Debug)]
struct Pending {
    burst: Burst,
    /// What the core had counted when it began, and has counted in it.
    before: Vec<Counts>,
    blame: BTreeMap<Whose, Blame>,
    judged: u64,
    dependent: u64,
    /// Instructions an access of the sample's kind, by batches: the sum over the burst's walks.
    spread: f64,
    sample: Sample,
    /// Accesses of the thread in it, warm-up and all, and what passed before and after it.
    own: u64,
    passed: [u64; 2],
}

impl Pending {
    /// A burst that begins where `passed` accesses passed since the last one.
    fn new(before: Vec<Counts>, passed: u64) -> Self {
        Self {
            burst: Burst::default(),
            before,
            blame: BTreeMap::new(),
            judged: 0,
            dependent: 0,
            spread: 0.0,
            sample: Sample::of_burst(),
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
const PLACES: u64 = 16;

/// Listens to a trace and simulates it.
#[derive(Debug)]
pub struct Follower {
    configurations: Vec<Configuration>,
    cores: Vec<Option<Core>>,
    processes: HashMap<u32, Process>,
    /// The process of each lane that is in use, and those that have none any more, the last to end last.
    owners: [Option<u32>; LANES],
    ended: VecDeque<u32>,
    /// Whether a configuration must know where the region's pieces begin.
    has_ranges: bool,
    /// The accesses that were placed and not yet run, and the records that they come from.
    placed: Vec<Access>,
    records: Vec<Record>,
    /// The last access to data of each lane.
    last: [Option<Access>; LANES],
    plan: Plan,
    /// What each lane did last, and its last burst.
    phases: [Option<Phase>; LANES],
    pending: Vec<Pending>,
    /// Of each lane's run so far.
    rates: Vec<Rate>,
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
            owners: [None; LANES],
            ended: VecDeque::new(),
            has_ranges: configurations.iter().any(|one| matches!(one.scheme, Scheme::RangeTlb { .. })),
            placed: Vec::new(),
            records: Vec::new(),
            last: [None; LANES],
            plan,
            phases: [None; LANES],
            pending: (0..LANES).map(|_| Pending::new(Vec::new(), 0)).collect(),
            rates: vec![Rate::default(); LANES],
            bursts: Bursts::default(),
            weighted: Weighted {
                counts: vec![Counts::default(); configurations.len()],
                blame: BTreeMap::new(),
                judged: 0.0,
                dependent: 0.0,
                spread: 0.0,
            },
            so_far: Followed::default(),
            reach: Reach::new(PageSize::Small4k),
            stretch: 1 << 20,
        })
    }

    /// What it all came to.
    #[must_use]
    pub fn finish(mut self, trace: &Trace) -> Followed {
        (0..LANES).for_each(|lane| self.end_burst(lane, true));
        self.settle();
        if trace.plan.burst > 0 {
            self.so_far.bursts = self.bursts.count();
            self.so_far.relative_error = self.bursts.relative_error();
        }
        self.so_far.reach = self.reach.points();
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
            self.so_far.processes += 1;
        }
        self.processes.entry(origin.process).or_default()
    }

    /// A lane is no longer its process's. Of those that have none left, the memory of the last few is kept.
    fn disown(&mut self, lane: usize) {
        let Some(process) = self.owners[lane].take() else { return };
        if self.owners.contains(&Some(process)) {
            return;
        }
        self.ended.push_back(process);
        if self.ended.len() > ENDED
            && let Some(oldest) = self.ended.pop_front()
        {
            self.processes.remove(&oldest);
        }
    }

    /// Runs what was placed so far through the thread's core.
    fn simulate(&mut self, allocations: &Allocations, lane: usize, phase: Phase) {
        let Some(core) = &mut self.cores[lane] else { return };
        match phase {
            Phase::Counted => {
                core.each().for_each(|simulator| simulator.run(&self.placed));
                self.reach.run(&self.placed);
                let walked = |places: &[u32]| {
                    let walked = places.iter().map(|&at| (self.placed[at as usize], self.records[at as usize]));
                    walked.filter(|(access, _)| !access.is_fetch()).collect::<Vec<_>>()
                };
                let whose = |access: Access, record: Record| allocations.whose(record.address(), access.is_in_region());
                let (small, large) = (walked(core.simulator.walked()), walked(core.walked_large()));
                let walks = Walks::of(small.iter().map(|(_, record)| *record));
                let data = self.placed.iter().filter(|access| is_sampled(**access)).map(|access| access.address());
                let pending = &mut self.pending[lane];
                // Where no burst has to end before its weight is known, nothing is kept for each thread.
                match self.plan.burst {
                    0 => self.so_far.sample.pass(data, walks, PLACES),
                    _ => pending.sample.pass(data, walks, 1),
                }
                pending.judged += walks.judged;
                pending.dependent += walks.waited;
                for (access, record) in small {
                    pending.blame.entry(whose(access, record)).or_default().walks += 1;
                }
                for (access, record) in large {
                    pending.blame.entry(whose(access, record)).or_default().walks_large += 1;
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

    /// Places and runs a batch; how many accesses to data it records, and those of them in the region.
    fn follow(&mut self, origin: Origin, phase: Phase, records: &[Record]) -> (u64, u64) {
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
                    self.placed.push(access);
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
        let pending = std::mem::replace(&mut self.pending[lane], Pending::new(now.clone(), passed));
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
        for (whose, blame) in pending.blame {
            let [walks, walks_large] = weighted.blame.entry(whose).or_default();
            *walks += blame.walks as f64 * weight;
            *walks_large += blame.walks_large as f64 * weight;
        }
        weighted.judged += pending.judged as f64 * weight;
        weighted.dependent += pending.dependent as f64 * weight;
        weighted.spread += pending.spread * weight;
        self.so_far.sample.pass_all(pending.sample, whole(weight / self.unit() * PLACES as f64).max(1));
    }

    /// Brings what was weighted back to the accesses that were really counted: shares are then those of the run, and sums those of the
    /// bursts.
    fn settle(&mut self) {
        let part = self.so_far.counted_accesses as f64 / self.bursts.accesses().max(1.0);
        // All weights are 1: nothing is to be rounded.
        let part = if (part - 1.0).abs() < 1e-12 { 1.0 } else { part };
        self.so_far.counts = self.weighted.counts.iter().map(|counts| counts.times(part)).collect();
        let blame = |[walks, walks_large]: [f64; 2]| Blame {
            walks: whole(walks * part),
            walks_large: whole(walks_large * part),
        };
        let blamed = std::mem::take(&mut self.weighted.blame);
        self.so_far.blame = blamed.into_iter().map(|(whose, walks)| (whose, blame(walks))).collect();
        self.so_far.judged_walks = whole(self.weighted.judged * part);
        self.so_far.dependent_walks = whole(self.weighted.dependent * part);
        let walks = self.bursts.walks();
        self.so_far.instructions_each = if walks > 0.0 { self.weighted.spread / walks } else { 0.0 };
    }

    /// Notes how many walks there were by now: in the lane's burst, and in stretches that grow with the run. Those of the first configuration.
    fn note_moment(&mut self, before: &[u64], lane: usize, counted: u64) -> u64 {
        let Some(core) = &self.cores[lane] else { return 0 };
        let walks: Vec<u64> = core.walks().iter().zip(before).map(|(now, before)| now - before).collect();
        let burst = &mut self.pending[lane].burst;
        burst.accesses += counted;
        let own = walks.get(BASELINE).copied().unwrap_or(0);
        burst.walks += own;
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
        own
    }
}

impl Listener for Follower {
    fn hear(&mut self, origin: Origin, heard: &Heard) -> u64 {
        let Some(phase) = heard.phase else { return 1 };
        if self.cores[origin.lane].is_none() {
            self.cores[origin.lane] = Core::new(&self.configurations).ok();
            self.so_far.threads += 1;
            self.owners[origin.lane] = Some(origin.process);
            self.ended.retain(|&ended| ended != origin.process);
        }
        if begins_burst(self.phases[origin.lane].replace(phase), phase) {
            self.end_burst(origin.lane, false);
        }
        let before = self.cores[origin.lane].as_ref().map(Core::walks).unwrap_or_default();
        let (recorded, in_region) = self.follow(origin, phase, &heard.records);
        // What a killed process left behind says nothing of those that were not recorded.
        let accesses = heard.accesses.max(recorded);
        self.so_far.accesses += accesses;
        self.so_far.instructions += heard.instructions;
        let pending = &mut self.pending[origin.lane];
        *if phase == Phase::Passing { &mut pending.passed[1] } else { &mut pending.own } += accesses;
        if phase == Phase::Counted {
            if let (Some(core), Some(like)) = (&mut self.cores[origin.lane], self.last[origin.lane]) {
                core.each().for_each(|simulator| simulator.skipped(like, accesses - recorded));
            }
            self.so_far.recorded += recorded;
            self.so_far.counted_accesses += accesses;
            self.so_far.counted_instructions += heard.instructions;
            let walks = self.note_moment(&before, origin.lane, accesses);
            let each = (heard.instructions as f64 / in_region.max(1) as f64).min(LOOK_AHEAD);
            self.pending[origin.lane].spread += each * walks as f64;
        }
        self.rates[origin.lane].haste().min(self.plan.haste.max(1))
    }

    fn leave(&mut self, origin: Origin) {
        self.end_burst(origin.lane, true);
        self.disown(origin.lane);
        self.cores[origin.lane] = None;
        self.pending[origin.lane] = Pending::new(Vec::new(), 0);
        self.rates[origin.lane] = Rate::default();
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
