//! Taylor's figures of false sharing and of its repair: how elements lie on lines, what it costs to share one, a program that is repaired
//! while it runs, and programs as they are, repaired, and padded by hand.
//!
//! Source: Taylor, *Cachekata: Memory Hierarchy Optimization via Dynamic Binary Translation*, sections 4.3 and 6.2, Figures 4.1, 4.2, 6.1,
//! 6.2 and 6.3. The text has lost the figures' numbers, but for a few in its sentences.
//!
//! ```text
//! program    the C programs of `bench/workloads/src/sharing`: forms, sizes        layout     4.1: elements and lines, counted
//! run        one run of a program, as it is or under `run --repair`         start      4.1: time by where the array begins
//! race       runs that are compared: how long, in which order               sharers    4.3: writers and readers of a line
//!                                                                           scaling    4.2, 6.2, 6.3: against linear speedup
//!                                                                           timeline   6.1: what happens when
//! ```
//! Where we differ:
//! - the programs are ours, after the Phoenix suite's and PARSEC's; each thread has as much to do, however many there are;
//! - Plastic detects with hardware counters under a hypervisor and redirects each loop from its first fault. Here a process beside the
//!   program samples its registers, moves the page by userfaultfd, and writes a jump at the head of the loop;
//! - most virtual machines have no counter of coherency misses (HITM): the timeline shows each event and the speed.

mod layout;
mod program;
mod race;
mod run;
mod scaling;
mod sharers;
mod start;
#[cfg(test)]
mod tests;
mod timeline;

use crate::experiment::{Cell, Experiment, Needs, Scale};

/// False sharing, and its repair.
#[must_use]
pub fn experiment() -> Experiment {
    Experiment {
        name: "cachekata",
        title: "False sharing, and its repair while the program runs",
        source: "Taylor, Cachekata, sections 4.3 and 6.2, Figures 4.1, 4.2, 6.1, 6.2 and 6.3",
        about: "Each number compares whole runs of C programs, one after the other, in an order that turns round from sample to sample; \
                what is timed is the part in which the threads run, as the program prints it. Each thread has a processor, and as much to do as \
                one thread alone, so that the time of one thread alone over that of all is the performance relative to linear speedup. A run \
                counts only if its threads really ran at the same time, or were held up while the repair moved something. A repaired run is one of `fieldstone run --repair`, with \
                all that it takes: sampling, finding, moving, leading each loop to its clone. Padded by hand are the same programs with each \
                thread's element two lines from the next; the histogram has no such form. What the repair moves is counted in pages. At -O2 and \
                -O3 linear regression keeps its sums in registers and shares nothing; `24 bytes on` says where in a line its array begins, \
                which otherwise malloc decides. The paper's machine had eight cores; its numbers are in its sentences, since the figures \
                are lost images. In the timeline, times run from the moment when the threads begin; the paper's repair began after seconds of \
                looking on, ours looks every few milliseconds.",
        needs: Needs { minutes: 20, memory_bytes: 64 << 20, disk_bytes: 0 },
        cells,
    }
}

fn cells(scale: Scale) -> Vec<Cell> {
    let parts = [layout::cells(), start::cells(scale), sharers::cells(scale), scaling::by_cores(scale)];
    let repaired = [timeline::cells(), scaling::repaired(scale), scaling::programs(scale)];
    parts.into_iter().chain(repaired).flatten().collect()
}
