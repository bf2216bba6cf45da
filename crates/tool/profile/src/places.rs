//! Which pages the memory of each allocation site really lay on: a real run, watched, with the site recorder beside the region's agent.
//!
//! ```text
//! real run     site 7: module, offset ... | places: 16 addresses ──→ look_up: the folio at each
//!                   │ the same stack, by files and offsets: addresses are others in each run
//! traced run   site 3: module, offset ... | walks                ──→ "99 % of the walks, huge on thp: 97 %"
//! ```
//!
//! A place is an address that was given out, any byte as likely as any other. What lies there when the process is largest counts; what
//! was freed and is not in memory by then says nothing. Where the memory was freed and given out again, its page is told for both.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use fieldstone_report::quantity::seconds;
use fieldstone_report::translation::SitePages;
use fieldstone_sys::{pagemap, smaps};
use fieldstone_wire::Mixture;
use fieldstone_wire::sites::{PLACES, Place, Site, Sites};
use fieldstone_wire::trace::Plan as Bursts;

use super::observe::Observed;
use super::once::Once;
use crate::error::Result;
use crate::trace::{Records, SharedSites, SharedTrace};
use fieldstone_symbols::{Frame, frames_of};

/// Sites whose places are looked up, those that gave out most: a process that leaves waits for it.
const MOST_SITES: usize = 512;
const HUGE_BYTES: u64 = 2 << 20;
/// A run of less may be over before its processes were looked at twice.
const SHORT: Duration = Duration::from_millis(50);

/// What was found at the places of a site.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Found {
    /// Places in memory.
    pub places: u32,
    /// Those of them on pages of the size asked for, or larger; parts, where only a share is known.
    pub large: f64,
}

/// What was found, by the numbers of the sites.
pub(crate) type Places = HashMap<u32, Found>;

/// Records for a real run on `kind`.
///
/// # Errors
/// No memory or no descriptor.
pub(super) fn records(kind: Mixture) -> Result<Arc<Records>> {
    let sites = SharedSites::create()?;
    let wanted_bytes = u32::try_from(kind.kind().page_bytes()).unwrap_or(u32::MAX);
    sites.record().wanted_page_bytes.store(wanted_bytes, Relaxed);
    Ok(Arc::new(Records { trace: SharedTrace::create(Bursts::default())?, sites: Some(sites) }))
}

/// Looks up what lies at the places of process `pid`, which knows itself by `inner_pid`. Exact where this user may see frame
/// numbers; else by the share of each mapping that is on huge pages, which knows nothing of smaller folios.
pub(crate) fn look_up(pid: u32, inner_pid: u32, sites: &Sites) -> Places {
    let mut all: Vec<(u32, &Site)> = sites.sites().collect();
    all.sort_by_key(|(_, site)| std::cmp::Reverse(site.bytes.load(Relaxed)));
    all.truncate(MOST_SITES);
    let own = |place: &Place| place.process == inner_pid;
    let places =
        all.iter().flat_map(|&(number, site)| site.places().filter(own).map(move |place| (number, place.address)));
    let (numbers, addresses): (Vec<u32>, Vec<u64>) = places.unzip();
    let wanted_bytes = u64::from(sites.wanted_page_bytes.load(Relaxed));
    let shares: Vec<Option<f64>> = match pagemap::folios_at(pid, &addresses) {
        Ok(Some(folios)) => {
            let large = |bytes: u64| if bytes >= wanted_bytes { 1.0 } else { 0.0 };
            folios.iter().map(|folio| folio.map(|folio| large(folio.folio_bytes))).collect()
        }
        _ => shares_of_mappings(pid, &addresses, wanted_bytes),
    };
    let mut found = Places::new();
    for (number, large) in numbers.into_iter().zip(shares).filter_map(|(number, share)| Some((number, share?))) {
        let of_site = found.entry(number).or_default();
        of_site.places += 1;
        of_site.large += large;
    }
    found
}

/// How much of the mapping at each address is on pages of `wanted_bytes` or more; `None` where nothing is known.
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
    // Whether a smaller folio is there, no mapping tells.
    addresses.iter().map(|address| share(address).filter(|_| wanted_bytes >= HUGE_BYTES)).collect()
}

/// A stack, in any run of the program.
type Stack = Vec<Frame>;

/// What a real run on one kind of pages told of its sites.
#[derive(Debug)]
pub(super) struct Recorded {
    kind: String,
    by_stack: HashMap<Stack, SitePages>,
    /// Why nothing is known.
    pub(super) unseen: Option<String>,
}

impl Recorded {
    /// What the run was seen to do.
    pub(super) fn of(kind: Mixture, once: &Once, observed: Observed, records: &Records) -> Self {
        let record = records.sites.as_ref().map(SharedSites::record);
        let Some(sites) = record.filter(|sites| sites.programs.load(Relaxed) > 0) else {
            return Self::failed(kind, "the site recorder was not loaded");
        };
        let Some(places) = observed.places else {
            return Self::failed(kind, &unrecorded(&observed.primary, once.elapsed));
        };
        let mut this = Self { kind: kind.to_string(), by_stack: HashMap::new(), unseen: None };
        let mut files = Files::default();
        for (number, found) in places {
            if let Some(site) = sites.site(number).filter(|_| found.places > 0) {
                let told = told(&this.kind, site.bytes.load(Relaxed), found);
                let stack = files.stack(sites, site);
                this.by_stack.entry(stack).and_modify(|pages| pages.join(&told)).or_insert(told);
            }
        }
        if this.by_stack.is_empty() {
            let ended = if once.broken { format!(": it ended with {}", once.outcome) } else { String::new() };
            this.unseen = Some(sentence(kind, &format!("nothing that a site gave out was found in memory{ended}")));
        }
        this
    }

    /// A run that told nothing, and why.
    pub(super) fn failed(kind: Mixture, why: &str) -> Self {
        Self { kind: kind.to_string(), by_stack: HashMap::new(), unseen: Some(sentence(kind, why)) }
    }
}

/// Why nothing is known of a run whose largest process was `primary`.
fn unrecorded(primary: &str, elapsed: Duration) -> String {
    if elapsed < SHORT {
        return format!("it ended after {}, too short to be looked at", seconds(elapsed.as_secs_f64()));
    }
    format!("its largest process, {primary}, was not recorded: it was started by exec, or seen too late")
}

fn sentence(kind: Mixture, why: &str) -> String {
    format!("which pages each site's memory got on {kind}: {why}")
}

fn told(kind: &str, bytes: u64, found: Found) -> SitePages {
    let places = u64::from(found.places);
    SitePages {
        kind: kind.to_owned(),
        share: found.large / places as f64,
        // As many of all bytes as places are in memory of all places.
        bytes: u64::try_from(u128::from(bytes) * u128::from(places) / PLACES as u128).unwrap_or(u64::MAX),
        samples: places,
    }
}

/// The real runs, ready to be asked about the sites of the traced one.
#[derive(Debug)]
pub(super) struct RealRuns {
    runs: Vec<Recorded>,
    files: Files,
}

impl RealRuns {
    pub(super) fn new(runs: Vec<Recorded>) -> Self {
        Self { runs, files: Files::default() }
    }

    /// What each of them told of the site's stack. Told once: of two sites of one stack the first one has it.
    pub(super) fn take(&mut self, sites: &Sites, site: &Site) -> Vec<SitePages> {
        let stack = self.files.stack(sites, site);
        self.runs.iter_mut().filter_map(|run| run.by_stack.remove(&stack)).collect()
    }
}

/// Files by the one name that all of their names lead to: an interpreter is found by different ones in both runs.
#[derive(Debug, Default)]
struct Files(HashMap<PathBuf, PathBuf>);

impl Files {
    /// The stack of a site, but for the frames of the C library that it begins with: a thread begins elsewhere under the tracer.
    fn stack(&mut self, sites: &Sites, site: &Site) -> Stack {
        let mut stack = frames_of(sites, site);
        let begins = |frame: &Frame| {
            let name = frame.module.as_ref().and_then(|path| path.file_name()).unwrap_or_default();
            ["libc.so", "libc-"].iter().any(|libc| name.to_string_lossy().starts_with(libc))
        };
        let kept = stack.iter().rposition(|frame| !begins(frame)).map_or(stack.len(), |last| last + 1);
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

    /// A record of a run whose program lies at `base`, with a site for each of these offsets.
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

    fn recorded(shared: SharedSites, places: Places) -> Recorded {
        ended_after(Duration::ZERO, shared, Some(places))
    }

    fn ended_after(elapsed: Duration, shared: SharedSites, places: Option<Places>) -> Recorded {
        let records = Records { trace: SharedTrace::create(Bursts::default()).unwrap(), sites: Some(shared) };
        let observed = Observed { places, primary: "job".into(), ..Observed::default() };
        let once = Once { elapsed, ..Once::default() };
        Recorded::of(Mixture::from(fieldstone_wire::PageKind::Thp), &once, observed, &records)
    }

    #[test]
    fn a_stack_is_known_again_at_other_addresses() {
        let (real, numbers) =
            run(0x5555_0000_0000, &[[0x100, 0x200, 0x300], [0x110, 0x200, 0x300], [0x100, 0x210, 0x300]]);
        real.record().programs.store(1, Relaxed);
        for &number in &numbers {
            real.record().site(number).unwrap().count(1600);
        }
        let places =
            [Found { places: 16, large: 16.0 }, Found { places: 8, large: 2.0 }, Found { places: 0, large: 0.0 }];
        let recorded = recorded(real, numbers.into_iter().zip(places).collect());
        assert_eq!((recorded.unseen.as_ref(), recorded.by_stack.len()), (None, 2));
        // The thread begins elsewhere in the C library, and the last stack was not in the real run at all.
        let offsets = [[0x110, 0x200, 0x777], [0x100, 0x200, 0x777], [0x100, 0x210, 0x300], [0x120, 0x200, 0x300]];
        let (traced, numbers) = run(0x4000_0000, &offsets);
        let mut real = RealRuns::new(vec![recorded]);
        let mut told = |number: u32| {
            let sites = traced.record();
            let pages = real.take(sites, sites.site(number).unwrap());
            pages.into_iter().map(|pages| (pages.kind, pages.share, pages.bytes, pages.samples)).collect::<Vec<_>>()
        };
        assert_eq!(told(numbers[0]), [("thp".to_owned(), 0.25, 800, 8)]);
        assert_eq!(told(numbers[1]), [("thp".to_owned(), 1.0, 1600, 16)]);
        assert!(told(numbers[2]).is_empty() && told(numbers[3]).is_empty());
        assert!(told(numbers[1]).is_empty(), "it was told");
    }

    #[test]
    fn a_run_that_tells_nothing_says_why() {
        let why = |recorded: Recorded| recorded.unseen.unwrap();
        assert!(why(recorded(run(4096, &[]).0, Places::new())).contains("on thp: the site recorder was not loaded"));
        let (shared, _) = run(4096, &[]);
        shared.record().programs.store(1, Relaxed);
        assert!(why(recorded(shared, Places::new())).contains("found in memory"));
        let unlooked = |elapsed| {
            let (shared, _) = run(4096, &[]);
            shared.record().programs.store(1, Relaxed);
            why(ended_after(elapsed, shared, None))
        };
        let short = unlooked(Duration::from_millis(3));
        assert!(short.contains("3.00 ms, too short to be looked at") && !short.contains("exec"), "{short}");
        assert!(unlooked(Duration::from_secs(3)).contains("job, was not recorded: it was started by exec"));
    }

    #[test]
    fn our_own_places_are_looked_up() {
        let (shared, numbers) = run(4096, &[[0x10, 0x20, 0x30], [0x11, 0x20, 0x30]]);
        let sites = shared.record();
        sites.wanted_page_bytes.store(2 << 20, Relaxed);
        let memory = vec![1_u8; 1 << 20];
        for (&number, process) in numbers.iter().zip([std::process::id(), std::process::id() ^ 1]) {
            let site = sites.site(number).unwrap();
            let counted = site.count(memory.len() as u64);
            site.sample(memory.as_ptr().addr() as u64, &counted, || process);
        }
        let look_up = || look_up(std::process::id(), std::process::id(), sites);
        let found = look_up();
        assert!(found[&numbers[0]].places >= 15, "a megabyte fills its places: {found:?}");
        assert!(!found.contains_key(&numbers[1]), "what another process was given is not looked for here");
        sites.wanted_page_bytes.store(u32::MAX, Relaxed);
        assert!(look_up().values().all(|found| found.large == 0.0), "no page is that large");
        // Where frame numbers are hidden, smaps knows what is huge, and no more.
        if pagemap::frames_visible() {
            sites.wanted_page_bytes.store(4096, Relaxed);
            assert!(look_up().values().all(|found| found.large == f64::from(found.places)), "every page is");
        }
        drop(memory);
    }
}
