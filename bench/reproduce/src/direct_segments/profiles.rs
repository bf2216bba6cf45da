//! The results of a workload's profiles: the values that the tables need, where they are known.

use fieldstone_report::translation::{ModelledConfiguration, Translation};
use fieldstone_report::{Footprint, PermissionShare, Profile, Summary};
use fieldstone_stats::{Interval, median};

use crate::experiment::Ends;

/// A modelled processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Processor {
    /// The paper's.
    Paper,
    /// This machine's.
    Here,
}

impl Processor {
    pub(super) const ALL: [Self; 2] = [Self::Paper, Self::Here];

    /// As rows call it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Paper => "E5-2430",
            Self::Here => "this processor",
        }
    }

    /// For `--tlb`.
    pub(super) const fn option(self) -> &'static str {
        match self {
            Self::Paper => "sandy-bridge",
            Self::Here => "host",
        }
    }
}

/// A number of a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Bounded {
    pub(super) value: f64,
    pub(super) ends: Option<Ends>,
}

impl Bounded {
    pub(super) const fn exactly(value: f64) -> Self {
        Self { value, ends: None }
    }

    pub(super) fn estimated(range: Interval) -> Self {
        Self { value: range.likely, ends: Some(Ends { low: range.low, high: range.high, confidence: None }) }
    }

    /// What is left of 1: a saving where this is a time, and the other way round.
    fn rest(self) -> Self {
        let ends = self.ends.map(|ends| Ends { low: 1.0 - ends.high, high: 1.0 - ends.low, ..ends });
        Self { value: 1.0 - self.value, ends }
    }
}

/// Two profiles of a workload: traced for each processor; the real runs and the footprints are this machine's.
#[derive(Debug)]
pub(super) struct Profiles {
    pub(super) paper: Profile,
    pub(super) here: Profile,
}

impl Profiles {
    fn translation(&self, processor: Processor) -> Option<&Translation> {
        let profile = if processor == Processor::Paper { &self.paper } else { &self.here };
        profile.translation.as_ref()
    }

    pub(super) fn configuration(&self, processor: Processor, name: &str) -> Option<&ModelledConfiguration> {
        self.translation(processor)?.configuration(name)
    }

    /// The program as it is, on 4 KiB pages.
    pub(super) fn footprint(&self) -> Option<&Footprint> {
        self.here.footprint(&self.here.baseline)
    }

    /// From start to end on 4 KiB pages; of a server, its load.
    pub(super) fn run_s(&self) -> Option<f64> {
        Some(Summary::of(&self.here).kind(&self.here.baseline)?.cost?.wall_s)
    }

    /// Page walks for data of this number of instructions.
    pub(super) fn walks_per_instruction(&self, processor: Processor, configuration: &str) -> Option<f64> {
        let instructions = self.translation(processor)?.counted_instructions;
        let walks = self.configuration(processor, configuration)?.data.walks;
        (instructions > 0).then(|| walks as f64 / instructions as f64)
    }

    /// Page walks for data of the whole run: of bursts, as many as the run would have had.
    pub(super) fn walks(&self, processor: Processor, configuration: &str) -> Option<f64> {
        let of = self.translation(processor)?;
        let walks = self.configuration(processor, configuration)?.data.walks;
        let counted = of.counted_accesses;
        (counted > 0).then(|| walks as f64 * (of.accesses as f64 / counted as f64))
    }

    /// The part of the walks on 4 KiB pages that a direct segment would take away.
    pub(super) fn in_segment(&self, processor: Processor) -> Option<f64> {
        let data = &self.configuration(processor, "4k")?.data;
        (data.walks > 0).then(|| data.region_walks as f64 / data.walks as f64)
    }

    /// The part of the time that another configuration should save on this machine.
    pub(super) fn predicted(&self, configuration: &str) -> Option<Bounded> {
        let time = self.configuration(Processor::Here, configuration)?.time?;
        Some(Bounded::estimated(time).rest())
    }

    /// The part of the time that a kind of page really saved on this machine.
    pub(super) fn saved(&self, kind: &str) -> Option<Bounded> {
        saved(&self.here, kind)
    }

    /// The same had first touches cost the kernel what they cost on 4 KiB pages: what is predicted, since translation is in user mode.
    pub(super) fn saved_in_user_mode(&self, kind: &str) -> Option<Bounded> {
        let mut profile = self.here.clone();
        let baseline = profile.samples.iter().filter(|sample| sample.kind == profile.baseline);
        let system_s = median(&baseline.map(|sample| sample.system_s).collect::<Vec<_>>())?;
        for sample in &mut profile.samples {
            sample.value = sample.user_s + system_s;
        }
        saved(&profile, kind)
    }
}

fn saved(profile: &Profile, kind: &str) -> Option<Bounded> {
    let ratio = Summary::of(profile).kind(kind)?.ratio?;
    let ends = Ends { low: ratio.low, high: ratio.high, confidence: ratio.confidence };
    Some(Bounded { value: ratio.median, ends: Some(ends) }.rest())
}

/// The part of a run of `run_s` seconds after which nine tenths of the largest resident memory are there. A server's run is longer than
/// its load; what was seen last was seen before the end.
pub(super) fn allocated_by(footprint: &Footprint, run_s: f64) -> Option<f64> {
    let most = footprint.peak()?.resident_bytes;
    let end_s = footprint.points.last()?.t_s.max(run_s);
    let there = footprint.points.iter().find(|point| point.resident_bytes >= most / 10 * 9)?;
    (end_s > 0.0).then(|| there.t_s / end_s)
}

/// The part of the largest resident memory that was ever swapped out.
pub(super) fn swapped(footprint: &Footprint) -> Option<f64> {
    let most = footprint.peak()?.resident_bytes;
    (most > 0).then(|| footprint.swap_peak_bytes() as f64 / most as f64)
}

/// The part of the memory of some measure that can be read and written and not executed. What nobody may touch is an address range
/// that is kept free, as the allocator does for each thread, and no memory.
pub(super) fn read_write(footprint: &Footprint, bytes: fn(&PermissionShare) -> u64) -> Option<f64> {
    let permitted = || footprint.permissions.iter().filter(|share| share.permission != "---");
    let all: u64 = permitted().map(bytes).sum();
    let read_write: u64 = permitted().filter(|share| share.permission == "rw-").map(bytes).sum();
    (all > 0).then(|| read_write as f64 / all as f64)
}
