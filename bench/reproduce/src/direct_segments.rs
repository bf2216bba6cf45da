//! The tables of direct segments by Basu et al.: the use of virtual memory by big-memory programs,
//! the cost of TLB misses by page size, and the misses that a direct segment removes.
//!
//! ```text
//! workload ── server, mariadb ──→ profile ── fieldstone profile --trace, twice ──→ profiles ──→ rows
//! ```
//! | module | content |
//! |---|---|
//! | `workload` | the six programs of the paper, with bounded sizes |
//! | `server`, `mariadb` | memcached and MariaDB, and their loads |
//! | `profile`, `profiles` | `fieldstone profile --trace` as a child; the results of two such runs |
//! | `rows` | the rows of the tables, each with the source of its number |
//!
//! Source: Basu et al., *Efficient Virtual Memory for Big Memory Servers* (slides of a review):
//! "Uso de Memoria Virtual" (permissions, allocation, swapping), "Coste de Memoria Virtual" (share
//! of cycles in TLB misses), "Resultados" (misses in the segment, scaling of GUPS; two figures are
//! lost images).
//!
//! Difference from the paper: it counted misses on the processor and trapped them in a changed
//! kernel. Here the accesses run through models of the paper's processor and of this one. The cost
//! of a walk is calibrated on this machine.

mod mariadb;
mod profile;
mod profiles;
mod rows;
mod server;
mod workload;

use crate::experiment::{Cell, Experiment, Needs, Scale};

use rows::all_rows;
use workload::Workload;

/// Memory use, cost of misses, misses in the direct segment, GUPS by size.
#[must_use]
pub fn experiment() -> Experiment {
    Experiment {
        name: "direct-segments",
        title: "Direct segments for big-memory programs",
        source: "Basu et al., the tables of permissions, of the cost of TLB misses and of misses in the direct segment",
        about: "Each program runs on 4 KiB and on 2 MiB pages, and twice under QEMU, where all its memory accesses go through \
                models of two processors: the E5-2430 of the paper, and this machine's. The models count walks. Their cost is \
                an estimate, because the cost of a walk is calibrated on this machine, also for the paper's processor. The \
                likely value is above the lowest and the highest. The paper's number is the percentage of cycles on its own \
                machine of 96 GB; our programs use one or two GiB. The primary region is all private writable anonymous \
                memory in one range, as under `run --region`. Real runs: the processor time that 2 MiB pages saved, including \
                the faults of first touches; for a server only under its load. Real runs in user mode: the same as if those \
                faults had the cost of 4 KiB pages, which is what the model predicts. graph500 is the bundled bfs; BT and CG \
                are kernels like those of NAS; MySQL is MariaDB under transactions like those of TPC-C. Memory with a \
                permission excludes inaccessible address ranges. Allocated by: the time until 90 % of the largest resident \
                memory is allocated. The walks of GUPS are per update and include those of filling and checking the table, at \
                most 5 %. Walks for instructions have the cost of walks for data. A dash means that a profile has no number, \
                or that an estimate for instructions is too wide, because too few walks for data determine their cost.",
        needs: Needs { minutes: 25, memory_bytes: 3 << 30, disk_bytes: 1 << 30 },
        cells,
    }
}

fn cells(scale: Scale) -> Vec<Cell> {
    workload::all(scale).into_iter().map(cell).collect()
}

fn cell(workload: Workload) -> Cell {
    let id = format!("direct-segments/{}", workload.id);
    let rows = all_rows(&workload).into_iter().map(|row| row.row).collect();
    Cell::new(id, workload.column, workload.memory_bytes, rows, move |trial| profile::measure(trial, &workload))
}

#[cfg(test)]
mod tests;
