//! Tests of crashes: a disk that stops at any call and keeps an arbitrary part of what was not synced.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::check_tests::findings;
use crate::data::{Key, Value};
use crate::flush::Flusher;
use crate::lock::lock;
use crate::log::BLOCK;
use crate::object::ObjectOptions;
use crate::page::{PAGE, offset_of};
use crate::progress::RecoveryOptions;
use crate::recovery::{recover, write_new};
use crate::storage::Storage;
use crate::{ErrorKind, Result, Store, Table};

pub(crate) const TABLES: [Table<u32, [u8]>; 2] = [Table::new("one"), Table::new("two")];

/// Memory of the stores: so little that they evict all the time.
const MEMORY: usize = 16 * PAGE;

/// What the model says is in the two tables.
pub(crate) type Model = [BTreeMap<u32, Vec<u8>>; 2];

/// Random numbers (xorshift64).
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// A change of the file that was not synced.
#[derive(Debug)]
enum Change {
    Write {
        offset: u64,
        bytes: Vec<u8>,
        is_durable: bool,
    },
    /// The file has this number of bytes or more.
    Reserve(u64),
    /// The file has this number of bytes or fewer.
    Cut(u64),
}

impl Change {
    fn apply(&self, image: &mut Vec<u8>) {
        match self {
            Self::Write { offset, bytes, .. } => put(image, *offset, bytes),
            Self::Reserve(bytes) => put(image, *bytes, &[]),
            Self::Cut(bytes) => image.truncate(*bytes as usize),
        }
    }
}

/// A disk with a cache.
#[derive(Debug)]
pub(crate) struct Disk {
    synced: Vec<u8>,
    changes: Vec<Change>,
    /// Calls until it stops.
    left: u64,
    random: Random,
    durable_writes: usize,
    /// How long a durable write takes.
    delay: Duration,
}

fn put(image: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let (start, end) = (offset as usize, offset as usize + bytes.len());
    image.resize(image.len().max(end), 0);
    image[start..end].copy_from_slice(bytes);
}

impl Disk {
    pub(crate) fn new(synced: Vec<u8>, left: u64, random: Random) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self {
            synced,
            changes: Vec::new(),
            left,
            random,
            durable_writes: 0,
            delay: Duration::ZERO,
        }))
    }

    /// One more call.
    fn call(&mut self) -> io::Result<()> {
        self.left = self.left.checked_sub(1).ok_or_else(|| io::Error::other("the disk has stopped"))?;
        Ok(())
    }

    /// What programs read.
    pub(crate) fn cached(&self) -> Cow<'_, [u8]> {
        if self.changes.is_empty() {
            return Cow::Borrowed(&self.synced);
        }
        let mut image = self.synced.clone();
        self.changes.iter().for_each(|change| change.apply(&mut image));
        Cow::Owned(image)
    }

    /// Whether a change that was not synced has made the file smaller.
    fn is_cut(&self) -> bool {
        let mut image = self.synced.clone();
        self.changes.iter().any(|change| {
            let before = image.len();
            change.apply(&mut image);
            image.len() < before
        })
    }

    /// What is there after a crash: of writes that were not durable, any blocks; of changes of the size, any.
    pub(crate) fn crashed(&mut self) -> Vec<u8> {
        let mut image = self.synced.clone();
        for change in &self.changes {
            match change {
                Change::Write { offset, bytes, is_durable } => {
                    for (index, block) in bytes.chunks(BLOCK).enumerate() {
                        if *is_durable || self.random.below(2) == 0 {
                            put(&mut image, offset + (index * BLOCK) as u64, block);
                        }
                    }
                }
                size => {
                    if self.random.below(2) == 0 {
                        size.apply(&mut image);
                    }
                }
            }
        }
        image
    }
}

/// The disk of a store.
#[derive(Debug)]
pub(crate) struct OnDisk(pub(crate) Arc<Mutex<Disk>>);

impl Storage for OnDisk {
    fn bytes(&self) -> io::Result<u64> {
        Ok(lock(&self.0).cached().len() as u64)
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        let mut disk = lock(&self.0);
        disk.call()?;
        disk.changes.push(Change::Reserve(bytes));
        Ok(())
    }

    fn cut(&self, bytes: u64) -> io::Result<()> {
        let mut disk = lock(&self.0);
        disk.call()?;
        disk.changes.push(Change::Cut(bytes));
        Ok(())
    }

    fn read(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let disk = lock(&self.0);
        let cached = disk.cached();
        let found = cached.get(offset as usize..).and_then(|rest| rest.get(..bytes.len()));
        bytes.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut disk = lock(&self.0);
        let alive = disk.call();
        disk.changes.push(Change::Write { offset, bytes: bytes.to_vec(), is_durable: false });
        alive
    }

    fn write_durably(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        std::thread::sleep(lock(&self.0).delay);
        let mut disk = lock(&self.0);
        let alive = disk.call();
        disk.changes.push(Change::Write { offset, bytes: bytes.to_vec(), is_durable: alive.is_ok() });
        disk.durable_writes += 1;
        alive
    }

    fn sync(&self) -> io::Result<()> {
        let mut disk = lock(&self.0);
        disk.call()?;
        disk.synced = disk.cached().into_owned();
        disk.changes.clear();
        Ok(())
    }
}

/// What happens before calls on a [`HookedDisk`].
pub(crate) trait Hook: Send + Sync + std::fmt::Debug {
    fn before_read(&self, _bytes: Range<u64>) -> io::Result<()> {
        Ok(())
    }

    fn before_write(&self) {}

    fn before_durable_write(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A disk with hooks before each read and write.
#[derive(Debug)]
pub(crate) struct HookedDisk<H>(pub(crate) OnDisk, pub(crate) H);

impl<H: Hook> Storage for HookedDisk<H> {
    fn bytes(&self) -> io::Result<u64> {
        self.0.bytes()
    }

    fn reserve(&self, bytes: u64) -> io::Result<()> {
        self.0.reserve(bytes)
    }

    fn cut(&self, bytes: u64) -> io::Result<()> {
        self.0.cut(bytes)
    }

    fn read(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.1.before_read(offset..offset + bytes.len() as u64)?;
        self.0.read(bytes, offset)
    }

    fn write(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.1.before_write();
        self.0.write(bytes, offset)
    }

    fn write_durably(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.1.before_durable_write()?;
        self.0.write_durably(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}

/// The bytes of an empty store with a log of a few pages.
pub(crate) fn empty(log_pages: u32) -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().unwrap();
    write_new(file.as_file(), log_pages).unwrap();
    std::fs::read(file.path()).unwrap()
}

pub(crate) fn open(disk: &Arc<Mutex<Disk>>) -> Result<Store> {
    open_with(disk, ObjectOptions::DEFAULT)
}

pub(crate) fn open_with(disk: &Arc<Mutex<Disk>>, options: ObjectOptions) -> Result<Store> {
    open_on(Box::new(OnDisk(Arc::clone(disk))), MEMORY, options)
}

/// Opens the store of a file that is only in memory.
pub(crate) fn open_on(storage: Box<dyn Storage>, memory: usize, options: ObjectOptions) -> Result<Store> {
    open_as(storage, memory, options, &RecoveryOptions::default())
}

/// As [`open_on`], with options of the recovery.
pub(crate) fn open_as(
    storage: Box<dyn Storage>,
    memory: usize,
    options: ObjectOptions,
    recovery: &RecoveryOptions,
) -> Result<Store> {
    let (shared, header) = recover(PathBuf::from("disk"), storage, memory, recovery)?;
    let flusher = Flusher::start_thread(&shared, header)?;
    Store::new(shared, flusher, ObjectOptions { memory_bytes: memory, ..options })
}

/// Makes random changes to both the model and a transaction.
pub(crate) fn change(store: &Store, model: &mut Model, random: &mut Random) -> Result<()> {
    store.write(|tx| {
        for _ in 0..=random.below(12) {
            let (which, key) = (random.below(2) as usize, random.below(400) as u32);
            if random.below(300) == 0 {
                tx.remove_table(TABLES[which].name())?;
                model[which].clear();
            }
            let mut table = tx.table(TABLES[which])?;
            match random.below(8) {
                0 => {
                    let end = key + random.below(30) as u32;
                    let expected = model[which].range(key..end).count() as u64;
                    assert_eq!(table.remove_range(key..end)?, expected);
                    model[which].retain(|&other, _| !(key..end).contains(&other));
                }
                1 | 2 => assert_eq!(table.remove(&key)?, model[which].remove(&key).is_some()),
                _ => {
                    // Some are in extents.
                    let most = if random.below(12) == 0 { 12_000 } else { 300 };
                    let value = vec![random.below(256) as u8; random.below(most) as usize];
                    assert_eq!(table.insert(&key, &value)?, model[which].insert(key, value).is_none());
                }
            }
        }
        Ok(())
    })
}

fn contents<K: Key<Owned = u32> + ?Sized>(store: &Store, table: Table<K, [u8]>) -> Result<BTreeMap<u32, Vec<u8>>>
where
    [u8]: Value,
{
    let now = store.read()?;
    now.table(table)?.iter()?.map(|entry| entry.map(|(key, value)| (key, value.to_vec()))).collect()
}

pub(crate) fn both(store: &Store) -> Result<Model> {
    Ok([contents(store, TABLES[0])?, contents(store, TABLES[1])?])
}

/// Crashes a store at random calls, and compares what is there with what was committed. Returns the number of crashes
/// after which the size of the file is uncertain, because it was cut.
fn crash_often(rounds: u64, seed: u64) -> u32 {
    let mut cuts = 0;
    let mut random = Random(seed);
    let mut image = empty(4);
    let mut committed = Model::default();
    for round in 0..rounds {
        let disk = Disk::new(image, random.below(60), Random(random.below(u64::MAX) | 1));
        let mut uncertain = committed.clone();
        // The recovery may crash as well.
        if let Ok(store) = open(&disk) {
            assert!(both(&store).unwrap() == committed, "round {round} of seed {seed}");
            while change(&store, &mut uncertain, &mut random).is_ok() {
                assert!(both(&store).unwrap() == uncertain, "round {round} of seed {seed}");
                committed.clone_from(&uncertain);
                if random.below(8) == 0 {
                    let _ = store.compact();
                }
            }
            assert!(both(&store).unwrap() == committed, "a failed commit is visible: round {round} of seed {seed}");
        }
        cuts += u32::from(lock(&disk).is_cut());
        image = lock(&disk).crashed();
        if round % 10 == 0 {
            assert_eq!(findings(&image), [], "round {round} of seed {seed}");
        }
        let after = Disk::new(image.clone(), u64::MAX, Random(1));
        let found =
            both(&open(&after).unwrap_or_else(|error| panic!("round {round} of seed {seed}: {error}"))).unwrap();
        assert!(found == committed || found == uncertain, "round {round} of seed {seed}");
        committed = found;
    }
    cuts
}

#[test]
fn what_returned_is_there_after_each_of_many_crashes() {
    let cuts: u32 = (1..=4).map(|seed| crash_often(150, seed)).sum();
    assert!(cuts > 20, "{cuts} crashes of a file that was cut");
}

#[test]
#[ignore = "a soak of an hour: `make soak-store`"]
fn soak() {
    let start = std::time::Instant::now();
    let (mut seed, mut crashes) = (1000, 0);
    while start.elapsed().as_secs() < 3600 {
        let _ = crash_often(400, seed);
        crate::object::tests::crash_often(100, seed);
        (seed, crashes) = (seed + 1, crashes + 500);
        println!("{crashes} crashes");
    }
}

/// Commits numbers of its own, until a commit fails; the last one that returned.
fn count_up(store: &Store, thread: u32, last: u32) -> u32 {
    let commit = |number: u32| store.write(|tx| tx.table(TABLES[0])?.insert(&thread, &number.to_le_bytes()));
    (1..=last).take_while(|&number| commit(number).is_ok()).last().unwrap_or(0)
}

#[test]
fn commits_of_several_threads_share_writes() {
    let disk = Disk::new(empty(16), u64::MAX, Random(1));
    let store = open(&disk).unwrap();
    // Longer than it takes to append a commit.
    lock(&disk).delay = Duration::from_millis(1);
    let before = lock(&disk).durable_writes;
    std::thread::scope(|scope| {
        (0..8).for_each(|thread| {
            drop(scope.spawn({
                let store = &store;
                move || assert_eq!(count_up(store, thread, 30), 30)
            }))
        });
    });
    let writes = lock(&disk).durable_writes - before;
    assert!(writes < 120, "{writes} writes for 240 commits");
    let found = contents(&store, TABLES[0]).unwrap();
    assert!(found.len() == 8 && found.values().all(|value| *value == 30_u32.to_le_bytes()));
}

#[test]
fn commits_of_several_threads_that_returned_are_there_after_a_crash() {
    for calls in 0..60 {
        let disk = Disk::new(empty(4), calls, Random(calls + 1));
        lock(&disk).delay = Duration::from_micros(100);
        let Ok(store) = open(&disk) else { continue };
        let returned: Vec<u32> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3)
                .map(|thread| {
                    let store = &store;
                    scope.spawn(move || count_up(store, thread, 200))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        drop(store);
        let after = Disk::new(lock(&disk).crashed(), u64::MAX, Random(1));
        let found = contents(&open(&after).unwrap(), TABLES[0]).unwrap();
        for (thread, &returned) in (0..).zip(&returned) {
            let there = found.get(&thread).map_or(0, |value| u32::from_le_bytes(value[..].try_into().unwrap()));
            assert!(there == returned || there == returned + 1, "{there} of {returned}, {calls} calls");
        }
    }
}

#[test]
fn what_is_committed_later_is_durable_with_the_next_commit_and_soon() {
    let disk = Disk::new(empty(16), u64::MAX, Random(1));
    let store = open(&disk).unwrap();
    let later = |key: u32| {
        let mut tx = store.begin().unwrap();
        // The next transaction sees what the one before has changed.
        assert!(key == 0 || tx.table(TABLES[0]).unwrap().get(&(key - 1)).unwrap().is_some());
        tx.table(TABLES[0]).unwrap().insert(&key, &[1]).unwrap();
        tx.commit_later().unwrap();
    };
    let on_disk =
        || contents(&open(&Disk::new(lock(&disk).crashed(), u64::MAX, Random(1))).unwrap(), TABLES[0]).unwrap().len();
    (0..50).for_each(later);
    store.write(|tx| tx.table(TABLES[0])?.insert(&1000, &[1])).unwrap();
    assert_eq!(on_disk(), 51);
    (50..60).for_each(later);
    while contents(&store, TABLES[0]).unwrap().len() < 61 {
        std::thread::yield_now();
    }
    assert_eq!(on_disk(), 61);
    later(60);
    drop(store);
    assert_eq!(on_disk(), 62);
}

#[test]
fn after_a_failed_write_the_store_can_be_read_only() {
    for call in 0..40 {
        let disk = Disk::new(empty(4), u64::MAX, Random(9));
        let store = open(&disk).unwrap();
        let (mut model, mut random) = (Model::default(), Random(77));
        change(&store, &mut model, &mut random).unwrap();
        lock(&disk).left = call;
        let mut uncertain = model.clone();
        while change(&store, &mut uncertain, &mut random).is_ok() {
            model.clone_from(&uncertain);
        }
        lock(&disk).left = u64::MAX;
        assert!(both(&store).unwrap() == model);
        let refused = store.begin().map(drop);
        // A file that cannot grow has lost nothing.
        assert!(refused.is_ok() || refused.is_err_and(|error| error.kind() == ErrorKind::Poisoned));
        drop(store);
        let found = both(&open(&disk).unwrap()).unwrap();
        assert!(found == model || found == uncertain, "call {call}");
    }
}

#[test]
fn a_file_that_is_shorter_than_its_store_after_a_crash_can_be_opened_repeatedly() {
    let disk = Disk::new(empty(64), u64::MAX, Random(1));
    let store = open(&disk).unwrap();
    // The last pages are not in use, and never written.
    let made = store.write(|tx| {
        (0..1200).try_for_each(|key| tx.table(TABLES[1])?.insert(&key, &[1; 900]).map(drop))?;
        tx.remove_table(TABLES[1].name())?;
        tx.table(TABLES[0])?.insert(&1, &[7]).map(drop)
    });
    made.unwrap();
    let needed = offset_of(store.0.shared.published().1) as usize;
    let mut crashes = (0..50).map(|_| lock(&disk).crashed());
    let mut image = crashes.find(|image| image.len() < needed).unwrap();
    for _ in 0..3 {
        let after = Disk::new(image, u64::MAX, Random(1));
        let store = open(&after).unwrap();
        assert_eq!(contents(&store, TABLES[0]).unwrap(), [(1, vec![7])].into());
        // It is not closed.
        image = lock(&after).cached().into_owned();
    }
}
