//! Basu et al.'s tables of direct segments: what big-memory programs do with virtual memory, what its misses cost them by page size,
//! and which of the misses a direct segment takes away.
//!
//! Source: Basu et al., *Efficient Virtual Memory for Big Memory Servers* (slides of a review): "Uso de Memoria Virtual" (permissions,
//! allocation, swapping), "Coste de Memoria Virtual" (share of cycles in TLB misses), "Resultados" (misses in the segment, scaling of
//! GUPS; two figures are lost images).
//!
//! ```text
//! workload     what runs: the paper's six, bounded              server     memcached, MariaDB, and what loads them
//! profile      `fieldstone profile --trace` as a child          profiles   the results of two such runs
//! reading      a row of a table, and where its number is
//! ```
//! Where we differ: the paper counted misses on the processor and trapped them in a changed kernel; here the same accesses run through
//! models, the paper's processor and this one's, and a walk has the price that this machine was calibrated to.

mod mariadb;
mod profile;
mod profiles;
mod reading;
mod server;
mod workload;

use crate::experiment::{Cell, Experiment, Needs, Scale};

use reading::readings;
use workload::Workload;

/// Memory use, cost of misses, misses in the segment, GUPS by size.
#[must_use]
pub fn experiment() -> Experiment {
    Experiment {
        name: "direct-segments",
        title: "Direct segments for big-memory programs",
        source: "Basu et al., the tables of permissions, of the cost of TLB misses and of misses in the direct segment",
        about: "Each program runs on 4 KiB and on 2 MiB pages as it is, and twice under QEMU, where all its memory accesses go \
                through models of two processors: the paper's, an E5-2430, and this machine's. Walks are counted there; what \
                they cost is an estimate, since a walk's price was calibrated on this machine, for the paper's processor too: \
                likely, and below it the least and the most. The paper's number is percent of cycles on its own machine, of 96 \
                GB; our programs are bounded to a GiB or two. The primary region is all private anonymous memory that can be \
                written, in one range, as under `run --region`. Real runs: processor time that 2 MiB pages saved, the faults \
                of the first touch among it, of a server only under its load; in user mode: the same had those faults cost \
                what they cost on 4 KiB pages, which is what the model predicts. graph500 is the bundled bfs; BT and CG are \
                kernels in the shape of NAS's; MySQL is MariaDB under transactions like TPC-C's. Memory with a permission \
                leaves out address ranges that nobody may touch. A program allocates by the time at which 90 % of its largest \
                resident memory is there. GUPS' walks are over its updates and have those of filling and checking the table in \
                them, 5 % at most. Walks for instructions have the price of those for data. A dash stands where a profile has no \
                number, and where one for instructions may be nearly anything, since there were too few walks for data to price them.",
        needs: Needs { minutes: 25, memory_bytes: 3 << 30, disk_bytes: 1 << 30 },
        cells,
    }
}

fn cells(scale: Scale) -> Vec<Cell> {
    workload::all(scale).into_iter().map(cell).collect()
}

fn cell(workload: Workload) -> Cell {
    Cell {
        id: format!("direct-segments/{}", workload.id),
        column: workload.column.to_owned(),
        memory_bytes: workload.memory_bytes,
        rows: readings(&workload).into_iter().map(|reading| reading.row).collect(),
        measure: Box::new(move |trial| profile::measure(trial, &workload)),
    }
}

#[cfg(test)]
mod tests;
