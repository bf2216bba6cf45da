//! The core workloads A to F of YCSB.
//!
//! ```text
//! A  50 % read  50 % update                 D  95 % read  5 % insert, the newest records most often
//! B  95 % read   5 % update                 E  95 % scan of 1 to 100 records  5 % insert
//! C 100 % read                              F  50 % read  50 % read-modify-write
//! ```
//! A record has a key of 19 to 23 bytes and ten fields of 100 bytes. A read takes all fields. An update
//! replaces one: a key-value store reads 1,000 bytes, changes 100 and writes 1,000. A read-modify-write
//! is a read and an update. Each operation is a transaction of its own, and durable if it writes.

use fieldstone_stats::random::SplitMix64;

use super::zipfian::{Latest, Scrambled, hash};
use fieldstone_peers::store::RandomBytes;
use fieldstone_peers::store::{Engine, Totals};

const FIELDS: usize = 10;
const FIELD_BYTES: usize = 100;
const RECORD_BYTES: usize = FIELDS * FIELD_BYTES;
const LONGEST_SCAN: usize = 100;

#[derive(Clone, Copy, PartialEq)]
enum OperationKind {
    Read,
    Update,
    Insert,
    Scan,
    ReadModifyWrite,
}

/// A workload: two kinds of operations, and the percentage of the first.
#[derive(Clone, Copy)]
pub(super) struct Workload {
    pub(super) name: &'static str,
    percent: usize,
    kinds: [OperationKind; 2],
    /// Operations of a sample: about 1,000 commits if it writes.
    pub(super) operations: usize,
}

const fn workload(name: &'static str, percent: usize, kinds: [OperationKind; 2], operations: usize) -> Workload {
    Workload { name, percent, kinds, operations }
}

/// The workloads in the order in which YCSB runs them. E begins with a new store.
pub(super) const WORKLOADS: [Workload; 6] = {
    use OperationKind::{Insert, Read, ReadModifyWrite, Scan, Update};
    [
        workload("A", 50, [Read, Update], 2000),
        workload("B", 95, [Read, Update], 20_000),
        workload("C", 100, [Read, Read], 100_000),
        workload("F", 50, [Read, ReadModifyWrite], 2000),
        workload("D", 95, [Read, Insert], 20_000),
        workload("E", 95, [Scan, Insert], 10_000),
    ]
};

impl Workload {
    /// Whether its scans need a store without the inserts of other workloads.
    pub(super) fn needs_new_store(self) -> bool {
        self.kinds.contains(&OperationKind::Scan)
    }

    pub(super) fn has_writes(self) -> bool {
        self.kinds[1] != OperationKind::Read
    }

    /// Whether the newest records are read most often.
    fn is_latest(self) -> bool {
        self.kinds == [OperationKind::Read, OperationKind::Insert]
    }
}

/// One operation, with all that it needs.
pub(super) struct Operation<'a> {
    kind: OperationKind,
    key: Vec<u8>,
    /// The new field or record.
    value: &'a [u8],
    /// Place of the field in the record.
    offset: usize,
    /// Records of a scan.
    length: usize,
}

impl Operation<'_> {
    pub(super) fn is_read(&self) -> bool {
        self.kind == OperationKind::Read
    }
}

/// The client of one store: how many records it has inserted.
pub(super) struct Client {
    records: u64,
}

/// The key of a record.
fn key(number: u64) -> Vec<u8> {
    format!("user{}", hash(number)).into_bytes()
}

impl Client {
    /// The client of a store that was loaded before.
    pub(super) const fn of_loaded(records: usize) -> Self {
        Self { records: records as u64 }
    }

    /// Inserts records 0 to `records - 1`, `batch` in a transaction.
    pub(super) fn load(engine: &dyn Engine, records: usize, batch: usize, bytes: &RandomBytes) -> anyhow::Result<Self> {
        let mut random = SplitMix64::new(1);
        let numbers: Vec<u64> = (0..records as u64).collect();
        for numbers in numbers.chunks(batch) {
            let keys: Vec<Vec<u8>> = numbers.iter().map(|&number| key(number)).collect();
            let entry = |key| (Vec::as_slice(key), bytes.value(RECORD_BYTES, &mut random));
            let entries: Vec<_> = keys.iter().map(entry).collect();
            engine.commit(&entries)?;
        }
        Ok(Self::of_loaded(records))
    }

    /// The next operations of a workload.
    pub(super) fn operations<'a>(
        &mut self,
        workload: Workload,
        count: usize,
        seed: u64,
        bytes: &'a RandomBytes,
    ) -> Vec<Operation<'a>> {
        let mut random = SplitMix64::new(seed);
        // YCSB reserves twice the number of inserts that it expects.
        let inserts =
            if workload.kinds[1] == OperationKind::Insert { count * (100 - workload.percent) / 50 } else { 0 };
        let scrambled = Scrambled::new(self.records + inserts as u64);
        let mut latest = workload.is_latest().then(|| Latest::new(self.records));
        let operation = |_| {
            let kind = workload.kinds[usize::from(random.below(100) >= workload.percent)];
            let number = match (&mut latest, kind) {
                (_, OperationKind::Insert) => {
                    self.records += 1;
                    self.records - 1
                }
                (Some(latest), _) => latest.draw(self.records, &mut random),
                (None, _) => scrambled.draw(self.records, &mut random),
            };
            let value_bytes = if kind == OperationKind::Insert { RECORD_BYTES } else { FIELD_BYTES };
            Operation {
                kind,
                key: key(number),
                offset: random.below(FIELDS) * FIELD_BYTES,
                length: 1 + random.below(LONGEST_SCAN),
                value: bytes.value(value_bytes, &mut random),
            }
        };
        (0..count).map(operation).collect()
    }
}

/// Runs operations; the totals of what was read.
pub(super) fn run(engine: &dyn Engine, operations: &[Operation<'_>]) -> anyhow::Result<Totals> {
    let mut totals = Totals::default();
    for Operation { kind, key, value, offset, length } in operations {
        match kind {
            OperationKind::Read => totals.merge(engine.get(&[key])?),
            OperationKind::Scan => totals.merge(engine.scan(&[key], *length)?),
            OperationKind::Insert => engine.commit(&[(key, value)])?,
            OperationKind::Update => engine.update(key, *offset, value)?,
            OperationKind::ReadModifyWrite => {
                totals.merge(engine.get(&[key])?);
                engine.update(key, *offset, value)?;
            }
        }
    }
    Ok(totals)
}

#[cfg(test)]
mod tests {
    use fieldstone_peers::store::{ENGINES, OpenStore};

    use super::*;

    #[test]
    fn keys_are_those_of_ycsb() {
        assert_eq!(key(0), b"user6284781860667377211");
        assert!((0..1000).all(|number| (19..=23).contains(&key(number).len())));
    }

    #[test]
    fn the_kinds_of_operations_have_their_shares() {
        let bytes = RandomBytes::new();
        for workload in WORKLOADS {
            let mut client = Client { records: 1000 };
            let operations = client.operations(workload, 10_000, 1, &bytes);
            let first = operations.iter().filter(|operation| operation.kind == workload.kinds[0]).count();
            assert!(first.abs_diff(workload.percent * 100) < 150, "{}: {first}", workload.name);
            let inserts = operations.iter().filter(|operation| operation.kind == OperationKind::Insert);
            assert_eq!(client.records, 1000 + inserts.count() as u64);
            assert!(operations.iter().all(|operation| (1..=100).contains(&operation.length)));
        }
    }

    #[test]
    fn all_stores_return_the_same_in_each_workload_of_ycsb() {
        let bytes = RandomBytes::new();
        let run_all = |engine_type| {
            let store = OpenStore::create(engine_type).unwrap();
            let mut client = Client::load(&*store.engine, 1000, 100, &bytes).unwrap();
            let mut totals = WORKLOADS.map(|workload| {
                let operations = client.operations(workload, 50, 9, &bytes);
                run(&*store.engine, &operations).unwrap()
            });
            totals[0].merge(store.engine.scan(&[b"user"], usize::MAX).unwrap());
            totals
        };
        let all = ENGINES.map(run_all);
        assert!(all.iter().all(|totals| *totals == all[0]), "{all:?}");
        assert!(all[0].iter().all(|totals| totals.entries() > 0), "{all:?}");
    }
}
