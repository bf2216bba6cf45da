//! Persistent stores by Appel and Li: what a durable commit costs, how much room a store takes, and what
//! operations on objects cost.
//!
//! | module | content |
//! |---|---|
//! | `commits` | the time of a commit, and its parts |
//! | `growth` | the size of the file while all values are overwritten |
//! | `oo7` | traversals, queries and changes of objects |
//!
//! Source: Appel and Li, *Virtual Memory Primitives for User Programs*, "Persistent stores". The paper has no
//! times of it.

mod commits;
mod growth;
mod oo7;

use std::time::Duration;

use fieldstone_peers::store::{ENGINES, EngineType, LMDB, OURS, REDB};

use crate::experiment::{Cell, Experiment, Needs, Scale};

/// Commits, file sizes and OO7.
#[must_use]
pub fn experiment() -> Experiment {
    Experiment {
        name: "persistent-store",
        title: "Persistent stores",
        source: "Appel and Li, Persistent Stores",
        about: "fieldstone-store, LMDB and redb have the same records in the same file system: keys of 16 and values of \
                100 bytes. A commit overwrites 1, 10 or 100 random values, and is durable when it returns. A sample is a \
                process in which each store makes its commits; the order alternates from sample to sample. The parts of \
                the time of a commit are measured from outside, alike for all stores: processor time by the clock of the \
                thread, the wait for a processor by /proc/thread-self/schedstat. The rest is the wait for the disk. The \
                processor time builds the record of the changes and issues the write. The least that a durable commit \
                does is one direct write of its bytes (O_DIRECT and RWF_DSYNC) to a file that was written before: it is \
                timed alone in the same directory. The bytes of a commit are those that its thread passes to write(2). \
                Threads of a store write more later. File bytes are those of all files of the open store, live bytes \
                those of all keys and values. An overwrite is four transactions that replace all values in random order. \
                A full run has 200,000 records, a quick one 20,000: there, the log of 8 MiB is most of the file of \
                fieldstone-store. OO7 is a design of 364 complex and 729 base assemblies, of 500 composite parts, and of 20 \
                atomic parts (small) or 200 (medium) in each composite part, with 3 connections each. Only \
                fieldstone-store has objects. Texts and indexes are tables of it. Each operation runs five times: cold, \
                after the store was closed, its file dropped from the page cache by posix_fadvise and the store opened; \
                then four times hot, of which the mean of the first three counts. Operations that read take a snapshot, \
                the others make one durable transaction, whose commit is within their time. The traversals go through \
                the private composite parts of the base assemblies; Q4 and Q5 count the shared ones as well. Each \
                number of visits and changes is verified. T1 is compared with the same graph in memory, with pointers of \
                8 bytes and objects of malloc. A quick run has 50 composite parts of 4 atomic parts. The paper has no \
                times.",
        needs: Needs { minutes: 30, memory_bytes: 1 << 30, disk_bytes: 1 << 30 },
        cells,
    }
}

/// The compared stores: ours, and those with goals.
const STORES: [EngineType; 3] = [OURS, ENGINES[LMDB], ENGINES[REDB]];
/// The place of LMDB in [`STORES`].
const BASELINE: usize = LMDB;

const RECORDS: usize = 200_000;
const RECORDS_QUICK: usize = 20_000;
/// Entries of a transaction that loads records.
const LOAD_BATCH: usize = 10_000;
/// Memory of a cell: the records, and the stores' copies of them.
const MEMORY_BYTES: u64 = 1 << 30;

fn cells(scale: Scale) -> Vec<Cell> {
    let (records, divisor) = if scale == Scale::Quick { (RECORDS_QUICK, 5) } else { (RECORDS, 1) };
    commits::cells(records, divisor).chain(growth::cells(records)).chain(oo7::cells(scale)).collect()
}

fn nanoseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e9
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::experiment::{MeasuredValue, Row, SampleOutcome};
    use crate::layout::Layout;
    use crate::trial::{Task, Trial};

    /// The values of a sample of a cell, each of which has its row.
    fn sample(cell: &Cell) -> Vec<MeasuredValue> {
        let layout = Layout::of_seed(3);
        let trial = Trial { cell: cell.id.clone(), layout, quick: true, memory_bytes: u64::MAX, task: Task::Time };
        let SampleOutcome::Measured { figures, .. } = (cell.measure)(&trial).unwrap() else { panic!("it was skipped") };
        let names: BTreeSet<String> = cell.rows.iter().map(Row::value_name).collect();
        assert_eq!(names.len(), cell.rows.len(), "no two rows have one name");
        assert_eq!(figures.iter().map(|value| value.row.clone()).collect::<BTreeSet<_>>(), names);
        figures
    }

    fn of<'a>(values: &'a [MeasuredValue], row: &str) -> &'a MeasuredValue {
        values.iter().find(|value| value.row == row).unwrap_or_else(|| panic!("no value {row}"))
    }

    #[test]
    fn the_parts_of_a_commit_are_its_whole_time() {
        let cell = commits::cells(500, 100).next().unwrap();
        let values = sample(&cell);
        for store in STORES {
            let share = |part: &str| of(&values, &format!("{}: {part}", store.name)).value;
            let all = share("processor time") + share("wait for the disk") + share("wait for a processor");
            assert!((all - 1.0).abs() < 1e-6, "{}: {all}", store.name);
            assert!(share("processor time") > 0.0 && share("bytes written by the thread") >= 512.0);
            assert!(share("median commit, µs") <= share("99th percentile, µs"), "{}", store.name);
            assert!(share("one direct write of as many bytes, µs") > 0.0);
        }
        let (ours, lmdb) = (of(&values, "Fieldstone"), of(&values, "LMDB"));
        assert_eq!((ours.ratio, lmdb.ratio), (Some(ours.value / lmdb.value), None));
    }

    #[test]
    fn a_file_is_larger_than_its_live_bytes_after_each_overwrite() {
        for cell in growth::cells(500) {
            let values = sample(&cell);
            assert_eq!(values.len(), 11, "before, and after each of ten overwrites");
            assert!(values.iter().all(|value| value.ratio.unwrap() > 1.0), "{values:?}");
        }
    }

    #[test]
    fn an_id_is_one_size_of_work() {
        let ids = |scale| cells(scale).into_iter().map(|cell| cell.id).collect::<BTreeSet<_>>();
        let (full, quick) = (ids(Scale::Full), ids(Scale::Quick));
        assert!(full.is_disjoint(&quick) && full.len() == 8, "{full:?}");
        // A quick run has no medium configuration of OO7.
        assert_eq!(quick.len(), 7, "{quick:?}");
    }
}
