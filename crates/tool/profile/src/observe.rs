//! What is observed of one run: nothing, its memory, or the pages of what each allocation site got too.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use fieldstone_launch::launch::Running;
use fieldstone_launch::sight::{Inspected, Inspector};
use fieldstone_launch::watch::Watch;
use fieldstone_report::Footprint;
use fieldstone_wire::Mixture;

use crate::places::{self, Places};
use crate::trace::{Records, SharedSites};

/// What is to be observed of a run.
#[derive(Clone, Debug)]
pub(crate) enum Observation {
    /// Nothing: the run is measured.
    Nothing,
    /// Its processes' memory.
    Memory,
    /// Its processes' memory, and the pages of what the sites of these records gave out.
    Sites(Arc<Records>),
}

/// What was observed of a run.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// The primary process's memory.
    pub footprint: Option<Footprint>,
    /// Its name.
    pub primary: String,
    /// Its largest resident memory, in bytes.
    pub peak_bytes: u64,
    /// Whether it has the name that was asked for, if one was.
    pub named: bool,
    /// The pages of what its sites gave out; `None` where sites were not recorded.
    pub places: Option<Places>,
}

/// The pages of the sites of each process, by its number, when its pages were read last.
type PlacesByProcess = Arc<Mutex<HashMap<u32, Option<Places>>>>;

/// A run that is being observed.
#[derive(Debug)]
pub(crate) struct Observer {
    watch: Watch,
    places: PlacesByProcess,
}

impl Observer {
    /// Observes a program that was just started; `None` if nothing is to be observed.
    pub(crate) fn start(observation: &Observation, running: &Running) -> Option<Self> {
        let places = PlacesByProcess::default();
        let inspector = match observation {
            Observation::Nothing => return None,
            Observation::Memory => None,
            Observation::Sites(records) => Some(inspector(Arc::clone(records), Arc::clone(&places))),
        };
        let session = running.session.as_ref().map(Arc::clone);
        Some(Self { watch: Watch::inspected(running.child.id(), session, inspector), places })
    }

    /// Ends the watch and describes the primary process: the one of that `name`, else the largest.
    pub(crate) fn finish(self, running: &Running, kind: Mixture, name: Option<&str>) -> Observed {
        let sight = self.watch.finish();
        let named = sight.primary(name);
        let Some(pid) = named.or_else(|| sight.primary(None)) else { return Observed::default() };
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        Observed {
            named: named.is_some(),
            footprint: Some(sight.footprint(&kind.to_string(), pid, running.session.as_deref())),
            primary: sight.name(pid).unwrap_or_default().to_owned(),
            peak_bytes: sight.peak_bytes(pid),
            places: places.remove(&pid).flatten(),
        }
    }
}

/// Looks up the places of the sites of each process whose pages were read.
fn inspector(records: Arc<Records>, found: PlacesByProcess) -> Inspector {
    Inspector::new(move |Inspected { pid, inner_pid, has_record }| {
        let sites = records.sites.as_ref().map(SharedSites::record).filter(|_| has_record);
        let places = sites.map(|sites| places::look_up(pid, inner_pid, sites));
        found.lock().unwrap_or_else(PoisonError::into_inner).insert(pid, places);
    })
}
