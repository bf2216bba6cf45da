//! The sources of samples on x86-64: perf events and ptrace.
//!
//! | module | contents |
//! |---|---|
//! | `events` | the samples of all perf events of a process, with those of the hardware |
//! | `perf`, `rings`, `tasks` | the events of each thread and CPU, their rings, the threads |
//! | `ptrace`, `tracer` | the process that stops threads, and this process's side of it |
//! | `sample_ring`, `thread_state` | the samples between both processes; which threads are running |
//! | `registers` | conversion of registers |

mod events;
mod perf;
mod ptrace;
mod registers;
mod rings;
mod sample_ring;
mod tasks;
mod thread_state;
mod tracer;

use super::{SampleSource, SamplingMethod};
use crate::Result;

/// Starts sampling process `pid`.
pub(super) fn open(method: SamplingMethod, pid: u32, hertz: u32) -> Result<Box<dyn SampleSource>> {
    Ok(match method {
        SamplingMethod::Perf => Box::new(events::Events::open(pid, hertz)?),
        SamplingMethod::Ptrace => Box::new(ptrace::Stopper::start(pid, hertz)?),
    })
}
