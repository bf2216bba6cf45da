//! From records to counts: each thread has the TLBs of a core of its own, each process its memory.
//!
//! ```text
//! batch ─┬ event ──→ the process's memory: what lies in the primary region, what was allocated by whom
//!        └ access ─→ placed ─→ the thread's core: counted, or only warming up
//! ```

use std::collections::HashMap;

use fieldstone_report::translation::Moment;
use fieldstone_translation::reach::{Reach, ReachPoint};
use fieldstone_translation::{Access, Configuration, Counts, PageSize, Scheme, Simulator};
use fieldstone_wire::trace::{EVENT_WORDS, Kind, LANES, Phase, Record, Trace};
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
    /// Walks for data on the first configuration, by whose memory it was.
    pub blame: HashMap<Whose, u64>,
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

/// Listens to a trace and simulates it.
#[derive(Debug)]
pub struct Follower {
    configurations: Vec<Configuration>,
    cores: Vec<Option<Simulator>>,
    processes: HashMap<u32, Process>,
    /// Whether a configuration must know where the region's pieces begin.
    has_ranges: bool,
    /// The accesses that were placed and not yet run, and the records that they come from.
    placed: Vec<Access>,
    records: Vec<Record>,
    /// The last access to data of each lane.
    last: [Option<Access>; LANES],
    /// The burst that each lane is in.
    burst: [Burst; LANES],
    bursts: Bursts,
    so_far: Followed,
    reach: Reach,
    /// Accesses counted that make a stretch.
    stretch: u64,
}

impl Follower {
    /// A follower that has heard nothing.
    ///
    /// # Errors
    /// A configuration that is none.
    pub fn new(configurations: &[Configuration]) -> Result<Self> {
        Simulator::new(configurations)?;
        Ok(Self {
            configurations: configurations.to_vec(),
            cores: (0..LANES).map(|_| None).collect(),
            processes: HashMap::new(),
            has_ranges: configurations.iter().any(|one| matches!(one.scheme, Scheme::RangeTlb { .. })),
            placed: Vec::new(),
            records: Vec::new(),
            last: [None; LANES],
            burst: [Burst::default(); LANES],
            bursts: Bursts::default(),
            so_far: Followed { counts: vec![Counts::default(); configurations.len()], ..Followed::default() },
            reach: Reach::new(PageSize::Small4k),
            stretch: 1 << 20,
        })
    }

    /// What it all came to.
    #[must_use]
    pub fn finish(mut self, trace: &Trace) -> Followed {
        for core in std::mem::take(&mut self.cores).iter().flatten() {
            add(&mut self.so_far.counts, core);
        }
        (0..LANES).for_each(|lane| self.end_burst(lane));
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
                core.run(&self.placed);
                self.reach.run(&self.placed);
                let data = self.placed.iter().filter(|access| access.is_in_region() && !access.is_fetch());
                self.so_far.sample.pass(data.map(|access| access.address()));
                for &at in core.walked() {
                    let (access, record) = (self.placed[at as usize], self.records[at as usize]);
                    if access.is_fetch() {
                        continue;
                    }
                    *self
                        .so_far
                        .blame
                        .entry(allocations.whose(record.address(), access.is_in_region()))
                        .or_default() += 1;
                    if let Some(depends) = record.depends() {
                        self.so_far.judged_walks += 1;
                        self.so_far.dependent_walks += u64::from(depends);
                    }
                }
            }
            Phase::Warming => core.warm(&self.placed),
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
                        core.set_ranges(&process.region.range_starts());
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

    fn end_burst(&mut self, lane: usize) {
        self.bursts.add(std::mem::take(&mut self.burst[lane]));
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
            self.cores[origin.lane] = Simulator::new(&self.configurations).ok().map(|mut core| {
                core.watch(Some(BASELINE));
                core
            });
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
                core.skipped(like, accesses - recorded);
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
        if let Some(core) = self.cores[origin.lane].take() {
            add(&mut self.so_far.counts, &core);
        }
        self.end_burst(origin.lane);
        self.last[origin.lane] = None;
    }
}

fn walks(core: &Simulator) -> Vec<u64> {
    core.counts().iter().map(|counts| counts.data.walks).collect()
}

fn add(total: &mut [Counts], core: &Simulator) {
    total.iter_mut().zip(core.counts()).for_each(|(total, counts)| *total += counts);
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
