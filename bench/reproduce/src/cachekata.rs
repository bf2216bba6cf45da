//! Taylor's figures of false sharing and of its repair: elements on cache lines, the cost of a
//! shared line, the timeline of a repair, and programs plain, repaired and padded by hand.
//!
//! ```text
//! program         C programs of bench/workloads/src/sharing    layout     4.1: elements and lines, counted
//! run             one run, plain or under `run --repair`       start      4.1: time by the start of the array
//! sized_program   runs to compare: length, order, checks       sharers    4.3: writers and readers of a line
//! ladder_repair   a run under repair by ladders                scaling    4.2, 6.2, 6.3: relative to linear speedup
//!                                                              timeline   6.1: events and speed over time
//! ```
//! Source: Taylor, *Cachekata: Memory Hierarchy Optimization via Dynamic Binary Translation*,
//! sections 4.3 and 6.2, Figures 4.1, 4.2, 6.1, 6.2 and 6.3. The numbers of the figures are lost,
//! except for a few in sentences.
//!
//! Differences from the thesis:
//! - The programs are written after those of Phoenix and PARSEC. Each thread has the same work, for
//!   any number of threads.
//! - Plastic detects by hardware counters under a hypervisor, and redirects each loop at its first
//!   fault. Here a second process samples the program's registers, moves the page by userfaultfd,
//!   and writes a jump at the head of the loop.
//! - Most virtual machines have no counter of coherency misses (HITM). The timeline shows each
//!   event and the speed.

pub(crate) mod ladder_repair;
mod layout;
mod program;
mod run;
mod scaling;
mod sharers;
mod sized_program;
mod start;
#[cfg(test)]
mod tests;
mod timeline;

use crate::experiment::{Cell, Experiment, Needs, Scale};

/// False sharing and its repair.
#[must_use]
pub fn experiment() -> Experiment {
    Experiment {
        name: "cachekata",
        title: "False sharing, and its repair while the program runs",
        source: "Taylor, Cachekata, sections 4.3 and 6.2, Figures 4.1, 4.2, 6.1, 6.2 and 6.3",
        about: "Each number compares whole runs of C programs, whose order alternates from sample to sample. The time is \
                that of the threads, which the program prints. Each thread has its own processor and the work of one \
                thread alone. So the time of one thread alone, divided by the time of all threads, is the performance \
                relative to linear speedup. A run counts only if its threads ran at the same time, or if the repair moved \
                a page and so may have delayed them. A repaired run is one of `fieldstone run --repair` with all its \
                costs: sampling, detection, moving pages, redirecting loops to clones. In the programs padded by hand, \
                the elements of two threads are two lines apart; the histogram has no such form. Moved pages are counted. \
                At -O2 and -O3 linear regression keeps its sums in registers and shares nothing. `24 bytes on` is the \
                offset of its array in a line, which malloc sets otherwise. The machine of the paper had eight cores; its \
                numbers are from its sentences, because the figures are lost images. In the timeline, times count from the \
                start of the threads. The paper's repair began after seconds of detection; this one analyses samples every \
                few milliseconds.",
        needs: Needs { minutes: 20, memory_bytes: 64 << 20, disk_bytes: 0 },
        cells,
    }
}

fn cells(scale: Scale) -> Vec<Cell> {
    let parts = [layout::cells(), start::cells(scale), sharers::cells(scale), scaling::by_cores(scale)];
    let repaired = [timeline::cells(), scaling::repaired(scale), scaling::programs(scale)];
    parts.into_iter().chain(repaired).flatten().collect()
}
