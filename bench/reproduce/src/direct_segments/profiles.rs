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

    /// Its name in rows.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Paper => "E5-2430",
            Self::Here => "this processor",
        }
    }

    /// Its value of `--tlb`.
    pub(super) const fn option(self) -> &'static str {
        match self {
            Self::Paper => "sandy-bridge",
            Self::Here => "host",
        }
    }
}

/// A number with its bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct BoundedValue {
    pub(super) value: f64,
    pub(super) ends: Option<Ends>,
}

impl BoundedValue {
    pub(super) const fn exactly(value: f64) -> Self {
        Self { value, ends: None }
    }

    pub(super) fn estimated(range: Interval) -> Self {
        Self { value: range.likely, ends: Some(Ends { low: range.low, high: range.high, confidence: None }) }
    }

    /// The complement to 1: the saving for a share of the time, and vice versa.
    fn complement(self) -> Self {
        let ends = self.ends.map(|ends| Ends { low: 1.0 - ends.high, high: 1.0 - ends.low, ..ends });
        Self { value: 1.0 - self.value, ends }
    }
}

/// Two profiles of a workload, traced for one processor each. Real runs and footprints are those of
/// `here`.
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

    /// The footprint of the unchanged program on 4 KiB pages.
    pub(super) fn footprint(&self) -> Option<&Footprint> {
        self.here.footprint(&self.here.baseline)
    }

    /// Seconds of a run on 4 KiB pages; for a server, of its load.
    pub(super) fn run_s(&self) -> Option<f64> {
        Some(Summary::of(&self.here).kind(&self.here.baseline)?.cost?.wall_s)
    }

    /// Page walks for data per instruction.
    pub(super) fn walks_per_instruction(&self, processor: Processor, configuration: &str) -> Option<f64> {
        let instructions = self.translation(processor)?.counted_instructions;
        let walks = self.configuration(processor, configuration)?.data.walks;
        (instructions > 0).then(|| walks as f64 / instructions as f64)
    }

    /// Page walks for data of the whole run, extrapolated from bursts.
    pub(super) fn walks(&self, processor: Processor, configuration: &str) -> Option<f64> {
        let of = self.translation(processor)?;
        let walks = self.configuration(processor, configuration)?.data.walks;
        let counted = of.counted_accesses;
        (counted > 0).then(|| walks as f64 * (of.accesses as f64 / counted as f64))
    }

    /// The share of the walks on 4 KiB pages that a direct segment removes.
    pub(super) fn in_segment(&self, processor: Processor) -> Option<f64> {
        let data = &self.configuration(processor, "4k")?.data;
        (data.walks > 0).then(|| data.region_walks as f64 / data.walks as f64)
    }

    /// The predicted saving of another configuration on this machine, as a share of the time.
    pub(super) fn predicted(&self, configuration: &str) -> Option<BoundedValue> {
        let time = self.configuration(Processor::Here, configuration)?.time?;
        Some(BoundedValue::estimated(time).complement())
    }

    /// The real saving of a page kind on this machine, as a share of the time.
    pub(super) fn saved(&self, kind: &str) -> Option<BoundedValue> {
        saved(&self.here, kind)
    }

    /// The same as if the kernel time of first touches were that of 4 KiB pages. The prediction is
    /// for this saving, because it covers user mode only.
    pub(super) fn saved_in_user_mode(&self, kind: &str) -> Option<BoundedValue> {
        let mut profile = self.here.clone();
        let baseline = profile.samples.iter().filter(|sample| sample.kind == profile.baseline);
        let system_s = median(&baseline.map(|sample| sample.system_s).collect::<Vec<_>>())?;
        for sample in &mut profile.samples {
            sample.value = sample.user_s + system_s;
        }
        saved(&profile, kind)
    }
}

fn saved(profile: &Profile, kind: &str) -> Option<BoundedValue> {
    let ratio = Summary::of(profile).kind(kind)?.ratio?;
    let ends = Ends { low: ratio.low, high: ratio.high, confidence: ratio.confidence };
    Some(BoundedValue { value: ratio.median, ends: Some(ends) }.complement())
}

/// The time until 90 % of the largest resident memory is allocated, as a share of a run of `run_s`
/// seconds. The run of a server is longer than its load; the last point is before its end.
pub(super) fn allocated_by(footprint: &Footprint, run_s: f64) -> Option<f64> {
    let most = footprint.peak()?.resident_bytes;
    let end_s = footprint.points.last()?.t_s.max(run_s);
    let allocated = footprint.points.iter().find(|point| point.resident_bytes >= most / 10 * 9)?;
    (end_s > 0.0).then(|| allocated.t_s / end_s)
}

/// The largest swapped-out memory, as a share of the largest resident memory.
pub(super) fn swapped(footprint: &Footprint) -> Option<f64> {
    let most = footprint.peak()?.resident_bytes;
    (most > 0).then(|| footprint.swap_peak_bytes() as f64 / most as f64)
}

/// The share of memory, by the measure `bytes`, with permission to read and write but not to
/// execute. Inaccessible ranges do not count: they are reserved address ranges, for example of the
/// allocator for each thread.
pub(super) fn read_write(footprint: &Footprint, bytes: fn(&PermissionShare) -> u64) -> Option<f64> {
    let permitted = || footprint.permissions.iter().filter(|share| share.permission != "---");
    let all: u64 = permitted().map(bytes).sum();
    let read_write: u64 = permitted().filter(|share| share.permission == "rw-").map(bytes).sum();
    (all > 0).then(|| read_write as f64 / all as f64)
}
