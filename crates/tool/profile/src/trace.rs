//! A program traced, and its accesses run through models of hardware while it runs.
//!
//! ```text
//! tracer    QEMU and the plugin: what is started
//! target    which file QEMU runs for a script
//! record    the shared record; batches in the order in which they were handed over
//! process   a process's memory: what of it is in the primary region
//! allocations  whose memory an address is
//! bursts    how well they stand for the run
//! sample    pieces that are kept, to be replayed
//! follow    each thread's accesses placed in its process's memory, and simulated
//! ```
//!
//! The program runs on one processor, the models on another: a thread waits only when it is a few batches ahead.

mod allocations;
mod bursts;
mod cores;
mod follow;
mod process;
mod record;
mod sample;
mod sites;
mod target;
#[cfg(test)]
mod tests;
mod tracer;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use fieldstone_translation::Configuration;
use fieldstone_wire::trace::Plan;

pub use allocations::Whose;
pub use follow::{Followed, Follower};
pub use record::{Heard, Listener, Origin, Reader, SharedTrace};
pub use sample::{Sample, Walks};
pub use sites::SharedSites;
pub use tracer::Tracer;

use crate::error::{Error, Result};

const PATIENCE: Duration = Duration::from_millis(100);

/// What a traced program shares with us.
#[derive(Debug)]
pub struct Records {
    /// What it does.
    pub trace: SharedTrace,
    /// Who allocates in it, if that is asked.
    pub sites: Option<SharedSites>,
}

/// A trace that is being read, on a thread of its own.
#[derive(Debug)]
pub struct Tracing {
    records: Arc<Records>,
    over: Arc<AtomicBool>,
    thread: JoinHandle<Followed>,
}

impl Tracing {
    /// Makes a record and begins to read it.
    ///
    /// # Errors
    /// No memory; a configuration that is none.
    pub fn start(plan: Plan, configurations: &[Configuration], sites: bool) -> Result<Self> {
        let sites = if sites { Some(SharedSites::create()?) } else { None };
        let records = Arc::new(Records { trace: SharedTrace::create(plan)?, sites });
        let over = Arc::new(AtomicBool::new(false));
        let mut follower = Follower::new(configurations, plan)?;
        let thread = spawn({
            let (records, over) = (Arc::clone(&records), Arc::clone(&over));
            move || {
                let mut reader = Reader::new(&records.trace);
                while !over.load(SeqCst) {
                    reader.read(&mut follower, PATIENCE);
                }
                reader.read_rest(&mut follower);
                follower.finish(records.trace.record())
            }
        });
        Ok(Self { records, over, thread })
    }

    /// What the program writes.
    #[must_use]
    pub fn records(&self) -> Arc<Records> {
        Arc::clone(&self.records)
    }

    /// The program has ended: reads the rest, and tells what all came to.
    ///
    /// # Errors
    /// [`Error::Tracer`] where the reader failed.
    pub fn finish(self) -> Result<Followed> {
        self.over.store(true, SeqCst);
        self.records.trace.ring();
        // It ends: the thread waits `PATIENCE` at most, and then reads what there is.
        self.thread.join().map_err(|_| Error::Tracer { why: "the models stopped".to_owned() })
    }
}

impl From<fieldstone_translation::Error> for Error {
    fn from(error: fieldstone_translation::Error) -> Self {
        Self::Tracer { why: error.to_string() }
    }
}
