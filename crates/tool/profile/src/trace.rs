//! Trace a program under QEMU and simulate its accesses while it runs.
//!
//! ```text
//! program under QEMU ─ plugin ─→ shared record ─→ TraceReader ─→ TraceSimulator ─→ TraceResults
//!                                 (record)                        │ ├ process_memory  region and allocations
//! tracer          starts QEMU                                     │ ├ allocations     owner of an address
//! executable      the file that QEMU runs for a script            │ ├ cores           TLBs of a thread
//!                                                                 │ ├ bursts          sampling error
//! simulation      TraceSimulator                                  │ └ sample          addresses to replay
//! ```
//!
//! The program and the models run on different processors. A thread of the program waits only if
//! all its batches are full.

mod allocations;
mod bursts;
mod cores;
mod executable;
mod process_memory;
mod record;
mod sample;
mod simulation;
#[cfg(test)]
mod tests;
mod tracer;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use fieldstone_launch::shared_record::SharedRecord;
use fieldstone_translation::Configuration;
use fieldstone_wire::sites::Sites;
use fieldstone_wire::trace::SamplingPlan;

pub use allocations::AddressOwner;
pub use record::{BatchConsumer, DecodedBatch, SharedTrace, ThreadOrigin, TraceReader};
pub use sample::{AddressSample, DependenceCounts};
pub use simulation::{TraceResults, TraceSimulator};
pub use tracer::QemuTracer;

use crate::error::{Error, Result};

/// How long the reader waits for a batch before it checks for the end of the program.
const READ_TIMEOUT: Duration = Duration::from_millis(100);

/// The shared record of the program's allocation sites.
pub type SharedSites = SharedRecord<Sites>;

/// The records that the traced program shares with this process.
#[derive(Debug)]
pub struct SharedRecords {
    /// Its accesses.
    pub trace: SharedTrace,
    /// Its allocation sites, if recorded.
    pub sites: Option<SharedSites>,
}

/// A trace and the thread that reads it.
#[derive(Debug)]
pub struct TraceSession {
    records: Arc<SharedRecords>,
    has_ended: Arc<AtomicBool>,
    thread: JoinHandle<TraceResults>,
}

impl TraceSession {
    /// Creates the records and starts the reader.
    ///
    /// # Errors
    /// Out of memory or of descriptors; an invalid configuration.
    pub fn start(plan: SamplingPlan, configurations: &[Configuration], sites: bool) -> Result<Self> {
        let sites = if sites { Some(SharedSites::create()?) } else { None };
        let records = Arc::new(SharedRecords { trace: SharedTrace::create(plan)?, sites });
        let has_ended = Arc::new(AtomicBool::new(false));
        let mut simulator = TraceSimulator::new(configurations, plan)?;
        let thread = spawn({
            let (records, has_ended) = (Arc::clone(&records), Arc::clone(&has_ended));
            move || {
                let mut reader = TraceReader::new(&records.trace);
                while !has_ended.load(SeqCst) {
                    reader.read(&mut simulator, READ_TIMEOUT);
                }
                reader.read_remaining(&mut simulator);
                simulator.finish(records.trace.record())
            }
        });
        Ok(Self { records, has_ended, thread })
    }

    /// The records for the program to fill.
    #[must_use]
    pub fn records(&self) -> Arc<SharedRecords> {
        Arc::clone(&self.records)
    }

    /// Reads the remaining batches and returns the results. Call it after the program has ended.
    ///
    /// # Errors
    /// [`Error::Tracer`] if the reader thread panicked.
    pub fn finish(self) -> Result<TraceResults> {
        self.has_ended.store(true, SeqCst);
        self.records.trace.wake_reader();
        // Terminates: the reader waits at most `READ_TIMEOUT`, and then reads the remaining
        // batches.
        self.thread.join().map_err(|_| Error::Tracer { why: "the models stopped".to_owned() })
    }
}

impl From<fieldstone_translation::Error> for Error {
    fn from(error: fieldstone_translation::Error) -> Self {
        Self::Tracer { why: error.to_string() }
    }
}
