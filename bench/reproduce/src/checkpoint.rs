//! Concurrent checkpointing by Li, Naughton and Plank: how much a save disturbs the program, by
//! `fieldstone-checkpoint` and by fork(2) with copy-on-write.
//!
//! | module | content |
//! |---|---|
//! | `writer` | a thread that writes at random, its lock, and its progress over time |
//! | `save` | a save by each method, with its times and its memory |
//! | `interference` | the cells of a writer beside saves |
//! | `redis_benchmark` | the load `redis-benchmark` and its latencies |
//! | `server` | the servers `examples/kv` and `redis-server` |
//! | `server_load` | the cells of a server under load |
//!
//! Source: Appel and Li, *Virtual Memory Primitives for User Programs*, "Concurrent checkpointing",
//! after Li, Naughton and Plank, *Real-Time, Concurrent Checkpoint for Parallel Programs* (1990). The
//! paper has no times of it.

mod interference;
mod redis_benchmark;
mod save;
mod server;
mod server_load;
#[cfg(test)]
mod tests;
mod writer;

pub use save::{NullSink, SaveCost, checkpoint, fork, null_file};
pub use writer::{WriteLock, filled_heap};

use crate::campaign::ON_REQUEST;
use crate::experiment::{Cell, Experiment, Needs, Scale};

use interference::{Method, Setting, WORKING_SETS};
use server::Program;
use server_load::LoadSize;

/// Interference of saves with a writer and with a server.
#[must_use]
pub fn experiment() -> Experiment {
    Experiment {
        name: "checkpoint",
        title: "Concurrent checkpoints",
        source: "Appel and Li, Concurrent checkpointing, after Li, Naughton and Plank",
        about: "A thread writes to random words of a heap, under a lock that it holds for 64 writes. Meanwhile the heap \
                is saved: by fieldstone-checkpoint, or by a forked child, while the kernel copies the pages that the \
                program writes. Both methods hash all pages and write them to /dev/null, so that no disk limits their \
                speed. A sample is a process with five saves. A curve is the speed of the thread around the save with \
                the median duration. It begins ten intervals before the save: 50 ms with a heap of 1 GiB. The stop of a \
                checkpoint is the time that the thread waits for the instant of the save, or its longest wait of one \
                write if that was longer. It is compared with the time of the call of fork(2). Additional memory: the \
                buffers of a checkpoint, or the pages that the program copied after the fork. The servers are \
                examples/kv of fieldstone-checkpoint with both methods, and Redis, which forks. They have 300,000 \
                values of 1 KiB and save to files, without compression. redis-benchmark sets random keys by 50 \
                connections: first without saves, then while the server saves and pauses for half a second by turns. \
                A quick run has two saves of 64 MiB in a sample, and 20,000 values. Heaps of 4 GiB are measured if \
                checkpoint/on-request is named. The paper has no times.",
        needs: Needs { minutes: 12, memory_bytes: 2 << 30, disk_bytes: 2 << 30 },
        cells,
    }
}

/// Saves of a sample.
const SAVES: usize = 5;
const SAVES_QUICK: usize = 2;
const HEAP_BYTES: usize = 1 << 30;
const HEAP_BYTES_QUICK: usize = 64 << 20;
const HEAP_BYTES_ON_REQUEST: usize = 4 << 30;
const LOAD: LoadSize = LoadSize { keys: 300_000, requests: 500_000, heap_bytes: 1 << 30 };
const LOAD_QUICK: LoadSize = LoadSize { keys: 20_000, requests: 100_000, heap_bytes: 128 << 20 };

fn cells(scale: Scale) -> Vec<Cell> {
    let is_quick = scale == Scale::Quick;
    let (bytes, saves) = if is_quick { (HEAP_BYTES_QUICK, SAVES_QUICK) } else { (HEAP_BYTES, SAVES) };
    let writers = |group: &'static str, bytes| {
        WORKING_SETS
            .iter()
            .flat_map(move |set| Method::ALL.map(|method| Setting { set, bytes, method, saves }.cell(group)))
    };
    let load = if is_quick { LOAD_QUICK } else { LOAD };
    let mut cells: Vec<Cell> = writers("writer", bytes).collect();
    if !is_quick {
        cells.extend(writers(ON_REQUEST, HEAP_BYTES_ON_REQUEST));
    }
    cells.extend(Program::ALL.map(|program| load.cell(program)));
    cells
}
