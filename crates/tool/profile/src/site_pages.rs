//! Find which pages hold the memory of each allocation site, in a real run with the site recorder.
//!
//! ```text
//! real run     site 7: module, offset ... | places: 16 addresses ──→ pagemap: the folio at each
//!                   │ matched by file and offset of each frame, because addresses differ
//! traced run   site 3: module, offset ... | walks                ──→ "99 % of the walks, huge on thp: 97 %"
//! ```
//!
//! A place is a uniformly sampled address of the site's allocations. The pages are read when the
//! process is largest. Memory that was freed and is not resident then is not counted. If another
//! site reuses an address, the page counts for both sites.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use fieldstone_report::quantity::seconds;
use fieldstone_report::translation::SitePages;
use fieldstone_symbols::{CodeLocation, site_frames};
use fieldstone_sys::{pagemap, smaps};
use fieldstone_wire::Mixture;
use fieldstone_wire::sites::{SAMPLED_ADDRESSES, SampledAddress, Site, Sites};
use fieldstone_wire::trace::SamplingPlan as BurstPlan;

use super::observation::ObservedRun;
use super::program_run::ProgramRun;
use crate::error::Result;
use crate::trace::{SharedRecords, SharedSites, SharedTrace};

/// Sites that are inspected, those with the most bytes first. A process that exits waits for the
/// inspection.
const MAX_SITES: usize = 512;
const HUGE_BYTES: u64 = 2 << 20;
/// A shorter run may end before its processes are inspected.
const MIN_OBSERVED_RUN: Duration = Duration::from_millis(50);

/// Counts for the places of one site.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SitePageCounts {
    /// Places that are resident.
    pub places: u32,
    /// Those on pages of the wanted size or larger; fractional where only the share of the mapping
    /// is known.
    pub large: f64,
}

/// The counts by site number.
pub(crate) type PagesBySite = HashMap<u32, SitePageCounts>;

/// Creates the records for a real run on `kind`.
///
/// # Errors
/// Out of memory or of descriptors.
pub(super) fn records(kind: Mixture) -> Result<Arc<SharedRecords>> {
    let sites = SharedSites::create()?;
    let wanted_bytes = u32::try_from(kind.kind().page_bytes()).unwrap_or(u32::MAX);
    sites.record().wanted_page_bytes.store(wanted_bytes, Relaxed);
    Ok(Arc::new(SharedRecords { trace: SharedTrace::create(BurstPlan::default())?, sites: Some(sites) }))
}

/// Inspects the pages at the places of process `pid`, whose own PID namespace calls it `inner_pid`.
/// The result is exact if this user may read frame numbers. Otherwise it uses the share of each
/// mapping on huge pages, and knows nothing of smaller folios.
pub(crate) fn inspect_pages(pid: u32, inner_pid: u32, sites: &Sites) -> PagesBySite {
    let mut all: Vec<(u32, &Site)> = sites.sites().collect();
    all.sort_by_key(|(_, site)| std::cmp::Reverse(site.bytes.load(Relaxed)));
    all.truncate(MAX_SITES);
    let own = |place: &SampledAddress| place.process == inner_pid;
    let places = all
        .iter()
        .flat_map(|&(number, site)| site.sampled_addresses().filter(own).map(move |place| (number, place.address)));
    let (numbers, addresses): (Vec<u32>, Vec<u64>) = places.unzip();
    let wanted_bytes = u64::from(sites.wanted_page_bytes.load(Relaxed));
    let shares: Vec<Option<f64>> = match pagemap::folios_at(pid, &addresses) {
        Ok(Some(folios)) => {
            let large = |bytes: u64| if bytes >= wanted_bytes { 1.0 } else { 0.0 };
            folios.iter().map(|folio| folio.map(|folio| large(folio.folio_bytes))).collect()
        }
        _ => shares_of_mappings(pid, &addresses, wanted_bytes),
    };
    let mut found = PagesBySite::new();
    for (number, large) in numbers.into_iter().zip(shares).filter_map(|(number, share)| Some((number, share?))) {
        let counts = found.entry(number).or_default();
        counts.places += 1;
        counts.large += large;
    }
    found
}

/// The share of the mapping at each address on pages of `wanted_bytes` or more; `None` if unknown.
fn shares_of_mappings(pid: u32, addresses: &[u64], wanted_bytes: u64) -> Vec<Option<f64>> {
    let mappings = smaps::read(pid).unwrap_or_default();
    let share = |address: &u64| {
        let at = mappings.partition_point(|mapping| mapping.end <= *address);
        let mapping = mappings.get(at).filter(|mapping| mapping.start <= *address && mapping.present_bytes() > 0)?;
        let hugetlb = mapping.present_bytes() - mapping.resident_bytes;
        let large = if mapping.kernel_page_bytes >= wanted_bytes { hugetlb } else { 0 };
        let huge = if wanted_bytes <= HUGE_BYTES { mapping.anon_huge_bytes } else { 0 };
        Some((large + huge) as f64 / mapping.present_bytes() as f64)
    };
    // A mapping's counters do not include folios below 2 MiB.
    addresses.iter().map(|address| share(address).filter(|_| wanted_bytes >= HUGE_BYTES)).collect()
}

/// A stack as (file, offset) frames, comparable between runs of the program.
type SiteStack = Vec<CodeLocation>;

/// The pages of the allocation sites in a real run on one kind of page.
#[derive(Debug)]
pub(super) struct SiteObservation {
    kind: String,
    by_stack: HashMap<SiteStack, SitePages>,
    /// Why there are no observations; `None` if there are some.
    pub(super) unknown_reason: Option<String>,
}

impl SiteObservation {
    /// Collects the observations of a finished run.
    pub(super) fn of(kind: Mixture, run: &ProgramRun, observed: ObservedRun, records: &SharedRecords) -> Self {
        let record = records.sites.as_ref().map(SharedSites::record);
        let Some(sites) = record.filter(|sites| sites.programs.load(Relaxed) > 0) else {
            return Self::failed(kind, "the site recorder was not loaded");
        };
        let Some(places) = observed.site_pages else {
            return Self::failed(kind, &missing_reason(&observed.primary, run.elapsed));
        };
        let mut this = Self { kind: kind.to_string(), by_stack: HashMap::new(), unknown_reason: None };
        let mut files = CanonicalPaths::default();
        for (number, found) in places {
            if let Some(site) = sites.site(number).filter(|_| found.places > 0) {
                let pages = site_pages(&this.kind, site.bytes.load(Relaxed), found);
                let stack = files.stack(sites, site);
                this.by_stack.entry(stack).and_modify(|known| known.join(&pages)).or_insert(pages);
            }
        }
        if this.by_stack.is_empty() {
            let ended = if run.has_failed { format!(": it ended with {}", run.outcome) } else { String::new() };
            this.unknown_reason = Some(with_subject(kind, &format!("no memory of any site was resident{ended}")));
        }
        this
    }

    /// A run without observations, and why.
    pub(super) fn failed(kind: Mixture, why: &str) -> Self {
        Self { kind: kind.to_string(), by_stack: HashMap::new(), unknown_reason: Some(with_subject(kind, why)) }
    }
}

/// Why a run whose largest process was `primary` has no observations.
fn missing_reason(primary: &str, elapsed: Duration) -> String {
    if elapsed < MIN_OBSERVED_RUN {
        return format!("it ended after {}, too short to inspect", seconds(elapsed.as_secs_f64()));
    }
    format!("its largest process, {primary}, was not recorded: it was started by exec, or it was inspected too late")
}

fn with_subject(kind: Mixture, why: &str) -> String {
    format!("the pages of each site's memory on {kind}: {why}")
}

fn site_pages(kind: &str, bytes: u64, found: SitePageCounts) -> SitePages {
    let places = u64::from(found.places);
    SitePages {
        kind: kind.to_owned(),
        share: found.large / places as f64,
        // The bytes of the site, scaled by the share of places that are resident.
        bytes: u64::try_from(u128::from(bytes) * u128::from(places) / SAMPLED_ADDRESSES as u128).unwrap_or(u64::MAX),
        samples: places,
    }
}

/// The observations of all real runs, matched with the sites of the traced run.
#[derive(Debug)]
pub(super) struct SiteObservations {
    runs: Vec<SiteObservation>,
    files: CanonicalPaths,
}

impl SiteObservations {
    pub(super) fn new(runs: Vec<SiteObservation>) -> Self {
        Self { runs, files: CanonicalPaths::default() }
    }

    /// Removes and returns the pages of the site's stack in each run. Of two sites with one stack,
    /// the first gets them.
    pub(super) fn take_pages(&mut self, sites: &Sites, site: &Site) -> Vec<SitePages> {
        let stack = self.files.stack(sites, site);
        self.runs.iter_mut().filter_map(|run| run.by_stack.remove(&stack)).collect()
    }
}

/// Canonical paths by path: both runs may name an interpreter by different links.
#[derive(Debug, Default)]
struct CanonicalPaths(HashMap<PathBuf, PathBuf>);

impl CanonicalPaths {
    /// The stack of a site without its outermost C library frames: threads start elsewhere under
    /// the tracer.
    fn stack(&mut self, sites: &Sites, site: &Site) -> SiteStack {
        let mut stack = site_frames(sites, site);
        let is_libc = |frame: &CodeLocation| {
            let name = frame.module.as_ref().and_then(|path| path.file_name()).unwrap_or_default();
            ["libc.so", "libc-"].iter().any(|libc| name.to_string_lossy().starts_with(libc))
        };
        let kept = stack.iter().rposition(|frame| !is_libc(frame)).map_or(stack.len(), |last| last + 1);
        stack.truncate(kept);
        for path in stack.iter_mut().filter_map(|frame| frame.module.as_mut()) {
            let real =
                self.0.entry(path.clone()).or_insert_with(|| path.canonicalize().unwrap_or_else(|_| path.clone()));
            path.clone_from(real);
        }
        stack
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record of a run whose program is mapped at `base`, with one site for each element of
    /// `offsets`.
    fn run(base: u64, offsets: &[[u64; 3]]) -> (SharedSites, Vec<u32>) {
        let shared = SharedSites::create().unwrap();
        let sites = shared.record();
        let program = sites.intern_module(base, base..base + 0x10_0000, b"/no/such/program");
        let libc = sites.intern_module(base << 4, base << 4..(base << 4) + 0x10_0000, b"/no/such/libc.so.6");
        let mut numbers = Vec::new();
        for &[inner, outer, begin] in offsets {
            let mut modules = [program; fieldstone_wire::sites::FRAMES];
            modules[2] = libc;
            numbers.push(sites.intern(&[base + inner, base + outer, (base << 4) + begin], |_| modules));
        }
        (shared, numbers)
    }

    fn observed(shared: SharedSites, places: PagesBySite) -> SiteObservation {
        ended_after(Duration::ZERO, shared, Some(places))
    }

    fn ended_after(elapsed: Duration, shared: SharedSites, places: Option<PagesBySite>) -> SiteObservation {
        let records = SharedRecords { trace: SharedTrace::create(BurstPlan::default()).unwrap(), sites: Some(shared) };
        let observed = ObservedRun { site_pages: places, primary: "job".into(), ..ObservedRun::default() };
        let run = ProgramRun { elapsed, ..ProgramRun::default() };
        SiteObservation::of(Mixture::from(fieldstone_wire::PageKind::Thp), &run, observed, &records)
    }

    #[test]
    fn a_stack_is_matched_at_other_addresses() {
        let (real, numbers) =
            run(0x5555_0000_0000, &[[0x100, 0x200, 0x300], [0x110, 0x200, 0x300], [0x100, 0x210, 0x300]]);
        real.record().programs.store(1, Relaxed);
        for &number in &numbers {
            real.record().site(number).unwrap().count(1600);
        }
        let places = [
            SitePageCounts { places: 16, large: 16.0 },
            SitePageCounts { places: 8, large: 2.0 },
            SitePageCounts { places: 0, large: 0.0 },
        ];
        let observation = observed(real, numbers.into_iter().zip(places).collect());
        assert_eq!((observation.unknown_reason.as_ref(), observation.by_stack.len()), (None, 2));
        // The thread starts elsewhere in the C library, and the last stack does not occur in the
        // real run.
        let offsets = [[0x110, 0x200, 0x777], [0x100, 0x200, 0x777], [0x100, 0x210, 0x300], [0x120, 0x200, 0x300]];
        let (traced, numbers) = run(0x4000_0000, &offsets);
        let mut real = SiteObservations::new(vec![observation]);
        let mut pages = |number: u32| {
            let sites = traced.record();
            let found = real.take_pages(sites, sites.site(number).unwrap());
            found.into_iter().map(|pages| (pages.kind, pages.share, pages.bytes, pages.samples)).collect::<Vec<_>>()
        };
        assert_eq!(pages(numbers[0]), [("thp".to_owned(), 0.25, 800, 8)]);
        assert_eq!(pages(numbers[1]), [("thp".to_owned(), 1.0, 1600, 16)]);
        assert!(pages(numbers[2]).is_empty() && pages(numbers[3]).is_empty());
        assert!(pages(numbers[1]).is_empty(), "they were taken");
    }

    #[test]
    fn a_run_without_observations_has_a_reason() {
        let why = |observation: SiteObservation| observation.unknown_reason.unwrap();
        assert!(
            why(observed(run(4096, &[]).0, PagesBySite::new())).contains("on thp: the site recorder was not loaded")
        );
        let (shared, _) = run(4096, &[]);
        shared.record().programs.store(1, Relaxed);
        assert!(why(observed(shared, PagesBySite::new())).contains("was resident"));
        let not_inspected = |elapsed| {
            let (shared, _) = run(4096, &[]);
            shared.record().programs.store(1, Relaxed);
            why(ended_after(elapsed, shared, None))
        };
        let short = not_inspected(Duration::from_millis(3));
        assert!(short.contains("3.00 ms, too short to inspect") && !short.contains("exec"), "{short}");
        assert!(not_inspected(Duration::from_secs(3)).contains("job, was not recorded: it was started by exec"));
    }

    #[test]
    fn places_of_this_process_are_inspected() {
        let (shared, numbers) = run(4096, &[[0x10, 0x20, 0x30], [0x11, 0x20, 0x30]]);
        let sites = shared.record();
        sites.wanted_page_bytes.store(2 << 20, Relaxed);
        let memory = vec![1_u8; 1 << 20];
        for (&number, process) in numbers.iter().zip([std::process::id(), std::process::id() ^ 1]) {
            let site = sites.site(number).unwrap();
            let counted = site.count(memory.len() as u64);
            site.sample(memory.as_ptr().addr() as u64, &counted, || process);
        }
        let inspect_pages = || inspect_pages(std::process::id(), std::process::id(), sites);
        let found = inspect_pages();
        assert!(found[&numbers[0]].places >= 15, "one megabyte fills all places: {found:?}");
        assert!(!found.contains_key(&numbers[1]), "places of another process are skipped");
        sites.wanted_page_bytes.store(u32::MAX, Relaxed);
        assert!(inspect_pages().values().all(|found| found.large == 0.0), "no page is that large");
        // Without frame numbers, smaps only shows which memory is huge.
        if pagemap::frames_visible() {
            sites.wanted_page_bytes.store(4096, Relaxed);
            assert!(
                inspect_pages().values().all(|found| found.large == f64::from(found.places)),
                "every page is that large"
            );
        }
        drop(memory);
    }
}
