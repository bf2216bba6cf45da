//! Chooses the [`Advice`] on a profile: first what to do, then what else to know.
//!
//! The order of the checks: a program that fails is not compared; a kind on which it fails, or
//! prints something else, is not recommended; then a gain, then why a gain cannot be decided, then
//! that there is none.

use crate::summary::{KindSummary, KindVerdict, WORTHWHILE};
use crate::{Advice, Finding, Footprint, Metric, Profile, RegionStats};
use fieldstone_stats::{FEWEST_FOR_INTERVAL, pairs_for};

/// Less memory than this, in bytes, has no note.
const NOTEWORTHY_BYTES: u64 = 16 << 20;
/// More runs than this are not recommended.
const MOST_RUNS: usize = 200;
/// Runs shorter than this, in seconds, are mostly start-up.
const SHORT_S: f64 = 0.05;

impl Advice {
    /// The advice on `profile`, and the notes. `usual` is how the program usually ends on the
    /// baseline.
    pub(crate) fn on(
        profile: &Profile,
        kinds: &[KindSummary],
        noise: Option<f64>,
        usual: Option<&str>,
    ) -> (Self, Vec<Self>) {
        let best = best(profile, kinds);
        let advice = first(profile, kinds, best, noise, usual);
        let mut notes = endings(profile, kinds, usual);
        notes.extend(memory(profile));
        notes.extend(best.and_then(|best| more_resident(profile, kinds, best)));
        if matches!(advice, Self::Run { .. }) {
            notes.extend(best.and_then(|best| first_touch(profile, kinds, best)));
        }
        notes.extend(kinds.iter().filter_map(|kind| {
            let reason = kind.unavailable.clone()?;
            Some(Self::Unavailable { kind: kind.name.clone(), reason })
        }));
        let baseline_s = kinds.iter().find(|kind| kind.name == profile.baseline).and_then(|kind| kind.value_s);
        notes.extend(
            baseline_s.filter(|value| value.median < SHORT_S).map(|value| Self::ShortRuns { value_s: value.median }),
        );
        notes.extend(profile.machine.virtual_machine.then_some(Self::VirtualMachine));
        (advice, notes)
    }
}

/// The kind to recommend: the one with the lowest ratio, but transparent huge pages where they are
/// within 2 % of it, since they need no reserve, and every call on a part of one works.
fn best<'a>(profile: &Profile, kinds: &'a [KindSummary]) -> Option<&'a KindSummary> {
    let differs = |name: &str| {
        profile.findings.iter().any(|finding| matches!(finding, Finding::OutputDiffers { kind } if kind == name))
    };
    let ratio = |kind: &KindSummary| kind.ratio.map_or(f64::INFINITY, |ratio| ratio.median);
    // A mosaic is an experiment: a program that gains by it gains by whole huge pages.
    let is_whole = |kind: &&KindSummary| !kind.name.contains(':');
    let gains =
        || kinds.iter().filter(is_whole).filter(|kind| kind.verdict == Some(KindVerdict::Gain) && !differs(&kind.name));
    let lowest = gains().min_by(|a, b| ratio(a).total_cmp(&ratio(b)))?;
    let thp = gains().find(|kind| kind.name == "thp").filter(|thp| ratio(thp) <= ratio(lowest) + WORTHWHILE);
    Some(thp.unwrap_or(lowest))
}

/// Bytes to set aside for `kind`: the largest resident peak of any kind, or what the region had
/// mapped at most if that is more, because a mapping takes all its pages from the pool at once.
/// `None` for kinds that need no pool.
fn reserve(profile: &Profile, kinds: &[KindSummary], kind: &str) -> Option<u64> {
    let peaks = kinds.iter().filter_map(|kind| Some(kind.resident.as_ref()?.peak_bytes));
    let region = profile.footprint(kind).and_then(|footprint| footprint.region.as_ref());
    let mapped = region.map(|region| region.mapped_peak_bytes);
    peaks.chain(mapped).max().filter(|bytes| kind == "hugetlb" && *bytes > 0)
}

fn first(
    profile: &Profile,
    kinds: &[KindSummary],
    best: Option<&KindSummary>,
    noise: Option<f64>,
    usual: Option<&str>,
) -> Advice {
    if let Some(outcome) = usual.filter(|outcome| is_failure(outcome, profile.program.load.is_some())) {
        return Advice::BaselineFails { outcome: outcome.to_owned() };
    }
    if let Some(advice) = profile.findings.iter().find_map(|finding| not_repeatable(finding, &profile.program.command))
    {
        return advice;
    }
    if let Some((best, gain)) = best.and_then(|best| Some((best, best.gain()?))) {
        let command = Advice::command(&best.name, reserve(profile, kinds, &best.name), &profile.program.command);
        let growth = best.resident.as_ref().and_then(|resident| resident.growth);
        let metric = profile.metric.noun().to_owned();
        return Advice::Run { kind: best.name.clone(), gain, metric, growth, command };
    }
    let with = |verdict| kinds.iter().filter(move |kind| kind.verdict == Some(verdict));
    let need = FEWEST_FOR_INTERVAL;
    if let Some(have) = with(KindVerdict::NotEnoughRuns).map(|kind| kind.ratio.map_or(0, |ratio| ratio.n)).max() {
        return Advice::NotEnoughRuns { have, need };
    }
    if let Some(runs) =
        with(KindVerdict::TooNoisy).filter_map(|kind| kind.ratio).map(|r| pairs_for(&r, WORTHWHILE)).max()
    {
        let (noise, runs) = (noise.unwrap_or(0.0), Some(runs).filter(|runs| *runs <= MOST_RUNS));
        return Advice::TooNoisy { noise, runs, by_the_clock: profile.metric == Metric::Time };
    }
    let some_slower = with(KindVerdict::Loss).next().is_some();
    if some_slower || with(KindVerdict::NoGain).next().is_some() {
        return Advice::NothingToGain { some_slower };
    }
    let unavailable = with(KindVerdict::Unavailable).filter(|kind| kind.name != profile.baseline);
    let unavailable = unavailable.chain(with(KindVerdict::OtherPages));
    Advice::NothingToCompare { unavailable: unavailable.map(|kind| kind.name.clone()).collect() }
}

fn not_repeatable(finding: &Finding, command: &[String]) -> Option<Advice> {
    let Finding::NotRepeatable { what, run, first, later } = finding.clone() else { return None };
    Some(Advice::NotRepeatable { what, run, first, later, remedy: Advice::repeated(command) })
}

/// Whether the program broke, rather than exited with a code. A server (`has_load`) is stopped by a
/// signal: no failure.
fn is_failure(outcome: &str, has_load: bool) -> bool {
    let stopped = ["signal 2 ", "signal 9 ", "signal 15 "].iter().any(|signal| outcome.starts_with(signal));
    outcome == "timeout" || (outcome.starts_with("signal ") && !(has_load && stopped))
}

/// How runs ended and what they printed: the findings, and failures in the samples that have no
/// finding.
fn endings(profile: &Profile, kinds: &[KindSummary], usual: Option<&str>) -> Vec<Advice> {
    let usual = usual.unwrap_or("exit 0").to_owned();
    let mut reported = Vec::new();
    let mut notes: Vec<Advice> = Vec::new();
    for finding in &profile.findings {
        notes.push(match finding.clone() {
            Finding::OutputVaries { kind } => Advice::OutputVaries { kind },
            Finding::OutputDiffers { kind } => Advice::OutputDiffers { kind },
            Finding::Failed { kind, outcome, runs } => {
                reported.push(kind.clone());
                Advice::Fails { kind, outcome, runs, usual: usual.clone() }
            }
            Finding::TimedOut { kind, limit_s, runs } => {
                reported.push(kind.clone());
                Advice::TimedOut { kind, limit_s, runs }
            }
            Finding::NotTraced { why } => Advice::NotTraced { why },
            // It is the first advice.
            Finding::NotRepeatable { .. } => continue,
            Finding::Unknown => continue,
        });
    }
    for kind in kinds.iter().filter(|kind| kind.failed > 0 && !reported.contains(&kind.name)) {
        let mut failed = profile.samples.iter().filter(|sample| sample.kind == kind.name && sample.outcome != usual);
        let outcome = failed.next().map_or_else(String::new, |sample| sample.outcome.clone());
        let runs = u32::try_from(kind.failed).unwrap_or(u32::MAX);
        notes.push(Advice::Fails { kind: kind.name.clone(), outcome, runs, usual: usual.clone() });
    }
    if usual.starts_with("exit ") && usual != "exit 0" {
        notes.push(Advice::UnusualEnd { outcome: usual });
    }
    notes
}

/// What the watched runs show of memory.
fn memory(profile: &Profile) -> Vec<Advice> {
    let swapped = profile.footprints.iter().max_by_key(|footprint| footprint.swap_peak_bytes());
    let swapped = swapped.filter(|footprint| footprint.swap_peak_bytes() >= NOTEWORTHY_BYTES);
    let mut notes: Vec<Advice> = swapped
        .map(|footprint| Advice::Swapped { kind: footprint.kind.clone(), bytes: footprint.swap_peak_bytes() })
        .into_iter()
        .collect();
    for footprint in profile.footprints.iter().filter(|footprint| footprint.kind != profile.baseline) {
        notes.extend(not_got(footprint));
        if let Some(region) = &footprint.region {
            notes.extend(region_notes(&footprint.kind, region));
        }
    }
    notes
}

/// The growth of resident memory on `best`, if it is large enough for a note. Both peaks are those
/// of the table of costs.
fn more_resident(profile: &Profile, kinds: &[KindSummary], best: &KindSummary) -> Option<Advice> {
    let baseline = kinds.iter().find(|kind| kind.name == profile.baseline)?.resident.as_ref()?;
    let resident = best.resident.as_ref()?;
    let (more, bytes) = (resident.growth?, resident.peak_bytes.saturating_sub(baseline.peak_bytes));
    let is_noteworthy = more >= 0.1 && bytes >= NOTEWORTHY_BYTES;
    is_noteworthy.then(|| Advice::MoreResident { kind: best.name.clone(), more, bytes })
}

/// A note if less than half of the memory is in pages at least as large as the requested ones, or
/// if the pool had too few. The region's own count where there is one, or else the whole process
/// when it was largest.
fn not_got(footprint: &Footprint) -> Option<Advice> {
    let short_pool = footprint.region.as_ref().filter(|_| footprint.lacks_pool_pages());
    let (fell_back_bytes, mapped_bytes) =
        short_pool.map_or((0, 0), |region| (region.fell_back_bytes, region.mapped_peak_bytes));
    let pages = footprint.region.as_ref().map(|region| region.pages.as_slice()).filter(|pages| !pages.is_empty());
    let (got_bytes, of_bytes) = match (pages, footprint.peak()) {
        (Some(pages), _) => {
            let rank = page_rank(&footprint.kind);
            let is_wanted = |kind: &str| match short_pool {
                Some(_) => kind == footprint.kind,
                None => page_rank(kind) >= rank,
            };
            let large_enough = pages.iter().filter(|share| is_wanted(&share.kind));
            (total(large_enough.map(|share| share.bytes)), total(pages.iter().map(|share| share.bytes)))
        }
        (None, Some(peak)) => {
            let by_rank = [peak.small_bytes, peak.folio_bytes, peak.huge_2m_bytes, peak.huge_1g_bytes];
            (total(by_rank[page_rank(&footprint.kind)..].iter().copied()), peak.resident_bytes)
        }
        (None, None) => return None,
    };
    // Without pagemap, folios and base pages cannot be distinguished.
    let blind = match pages {
        Some(pages) => pages.iter().any(|share| share.kind == "smaller"),
        None => footprint.points.iter().all(|point| point.folio_bytes == 0),
    };
    if page_rank(&footprint.kind) == 1 && blind {
        return None;
    }
    let is_short = short_pool.is_some() || (of_bytes >= NOTEWORTHY_BYTES && got_bytes < of_bytes / 2);
    let disabled = footprint.region.as_ref().is_some_and(|region| region.huge_pages_disabled);
    if is_short && disabled {
        return Some(Advice::Disabled { kind: footprint.kind.clone() });
    }
    let kind = footprint.kind.clone();
    is_short.then_some(Advice::PagesNotGot { kind, got_bytes, of_bytes, fell_back_bytes, mapped_bytes })
}

/// A sum that saturates: a file may hold any numbers.
fn total(bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.fold(0, u64::saturating_add)
}

/// Page kinds by size: 0 base pages, 1 folios, 2 those of 2 MiB, 3 those of 1 GiB.
fn page_rank(kind: &str) -> usize {
    match kind {
        "hugetlb-1g" => 3,
        "thp" | "hugetlb" => 2,
        folio if folio.starts_with("folio") => 1,
        _ => 0,
    }
}

fn region_notes(kind: &str, region: &RegionStats) -> Vec<Advice> {
    let kind = kind.to_owned();
    let mut notes = Vec::new();
    if region.demoted_bytes > 0 {
        notes.push(Advice::Demoted { kind: kind.clone(), bytes: region.demoted_bytes });
    }
    let served = region.served_share().unwrap_or(1.0);
    if served < 0.9 && region.private_rw_outside_bytes >= NOTEWORTHY_BYTES {
        let reason = region.outside.iter().max_by_key(|outside| (outside.resident_bytes, outside.bytes));
        let reason =
            reason.map_or_else(|| "memory from before the region began".to_owned(), |most| most.reason.clone());
        notes.push(Advice::OutsideRegion { kind, served, reason });
    }
    notes
}

/// A note if at least half of the gain is kernel time. Not for the time of a load, which the kernel
/// time of the server is no part of.
fn first_touch(profile: &Profile, kinds: &[KindSummary], best: &KindSummary) -> Option<Advice> {
    let baseline = kinds.iter().find(|kind| kind.name == profile.baseline)?;
    let (before, after) = (baseline.cost?, best.cost?);
    let gained_s = baseline.value_s?.median - best.value_s?.median;
    let saved_s = before.system_s - after.system_s;
    let part = (saved_s / gained_s).min(1.0);
    (profile.metric != Metric::Throughput && gained_s > 0.0 && part >= 0.5).then(|| Advice::FirstTouch {
        kind: best.name.clone(),
        saved_s,
        part,
        faults_before: before.minor_faults.saturating_add(before.major_faults),
        faults_after: after.minor_faults.saturating_add(after.major_faults),
    })
}
