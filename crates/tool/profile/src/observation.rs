//! Observe the memory of one run: nothing, its footprint, or also the pages of each allocation
//! site.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use fieldstone_launch::launch::RunningProgram;
use fieldstone_launch::memory_history::{PageReadCallback, PageReadEvent};
use fieldstone_launch::memory_monitor::MemoryMonitor;
use fieldstone_report::Footprint;
use fieldstone_wire::Mixture;

use crate::site_pages::{self, PagesBySite};
use crate::trace::{SharedRecords, SharedSites};

/// What to observe during a run.
#[derive(Clone, Debug)]
pub(crate) enum Observation {
    /// Nothing, because the run is timed.
    Nothing,
    /// The memory of its processes.
    Memory,
    /// The memory of its processes, and the pages of the allocation sites in these records.
    Sites(Arc<SharedRecords>),
}

/// The observations of one run.
#[derive(Clone, Debug, Default)]
pub struct ObservedRun {
    /// Memory of the primary process over time; `None` if no process was seen.
    pub footprint: Option<Footprint>,
    /// Name of the primary process.
    pub primary: String,
    /// Peak resident memory of the primary process, in bytes.
    pub peak_bytes: u64,
    /// Whether the primary process has the requested name; `true` without a request.
    pub has_name: bool,
    /// Pages by allocation site; `None` if sites were not recorded.
    pub site_pages: Option<PagesBySite>,
}

/// The last inspected pages of each process, by process number.
type PagesByProcess = Arc<Mutex<HashMap<u32, Option<PagesBySite>>>>;

/// The observer of a running program.
#[derive(Debug)]
pub(crate) struct Observer {
    watch: MemoryMonitor,
    site_pages: PagesByProcess,
}

impl Observer {
    /// Starts to observe a program that has just started; `None` if there is nothing to observe.
    pub(crate) fn start(observation: &Observation, running: &RunningProgram) -> Option<Self> {
        let site_pages = PagesByProcess::default();
        let inspector = match observation {
            Observation::Nothing => return None,
            Observation::Memory => None,
            Observation::Sites(records) => Some(inspector(Arc::clone(records), Arc::clone(&site_pages))),
        };
        let session = running.session.as_ref().map(Arc::clone);
        Some(Self { watch: MemoryMonitor::start_with_callback(running.child.id(), session, inspector), site_pages })
    }

    /// Stops the watch and describes the primary process: the one called `name`, else the largest.
    pub(crate) fn finish(self, running: &RunningProgram, kind: Mixture, name: Option<&str>) -> ObservedRun {
        let sight = self.watch.finish();
        let named = sight.primary(name);
        let Some(pid) = named.or_else(|| sight.primary(None)) else { return ObservedRun::default() };
        let mut site_pages = self.site_pages.lock().unwrap_or_else(PoisonError::into_inner);
        ObservedRun {
            has_name: named.is_some(),
            footprint: Some(sight.footprint(&kind.to_string(), pid, running.session.as_deref())),
            primary: sight.name(pid).unwrap_or_default().to_owned(),
            peak_bytes: sight.peak_bytes(pid),
            site_pages: site_pages.remove(&pid).flatten(),
        }
    }
}

/// Inspects the pages of a process's allocation sites each time its memory is read.
fn inspector(records: Arc<SharedRecords>, found: PagesByProcess) -> PageReadCallback {
    PageReadCallback::new(move |PageReadEvent { pid, inner_pid, has_record }| {
        let sites = records.sites.as_ref().map(SharedSites::record).filter(|_| has_record);
        let site_pages = sites.map(|sites| site_pages::inspect_pages(pid, inner_pid, sites));
        found.lock().unwrap_or_else(PoisonError::into_inner).insert(pid, site_pages);
    })
}
