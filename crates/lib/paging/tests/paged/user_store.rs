//! A store of a user, in 30 lines; and stores that take no page.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::sleep;
use std::time::Duration;

use fieldstone_paging::{Lz4, Page, Paged, Store, StoreError, TempFile};

use crate::fixture::{Kind, MIB, WORDS, build, check, fill};

/// Pages in a map.
#[derive(Default)]
struct MapStore(Mutex<(u32, HashMap<u32, Page>)>);

impl Store for MapStore {
    fn put(&self, pages: &[&Page], keys: &mut [u32]) -> Result<usize, StoreError> {
        let (next, map) = &mut *self.0.lock().unwrap();
        for (page, key) in pages.iter().zip(keys) {
            *next += 1;
            *key = *next;
            map.insert(*key, **page);
        }
        Ok(pages.len())
    }

    fn get(&self, keys: &[u32], pages: &mut [Page]) -> Result<(), StoreError> {
        let (_, map) = &*self.0.lock().unwrap();
        for (key, page) in keys.iter().zip(pages) {
            *page = *map.get(key).ok_or(StoreError::Damaged)?;
        }
        Ok(())
    }

    fn forget(&self, keys: &[u32]) {
        let (_, map) = &mut *self.0.lock().unwrap();
        keys.iter().for_each(|key| _ = map.remove(key));
    }
}

#[test]
fn a_store_of_thirty_lines_works() {
    let builder = Paged::builder(8 * MIB).resident(MIB).store(MapStore::default());
    let Some(memory) = build(builder) else { return };
    fill(&memory, Kind::Noise);
    check(&memory, Kind::Noise);
    let stats = memory.stats();
    assert!(stats.stores[0].name == "MapStore" && stats.stores[0].loaded > 1000, "{stats}");
}

/// A store that takes 5 ms for each page.
#[derive(Default)]
struct SlowStore(MapStore);

impl Store for SlowStore {
    fn put(&self, pages: &[&Page], keys: &mut [u32]) -> Result<usize, StoreError> {
        sleep(Duration::from_millis(5) * pages.len() as u32);
        self.0.put(pages, keys)
    }

    fn get(&self, keys: &[u32], pages: &mut [Page]) -> Result<(), StoreError> {
        sleep(Duration::from_millis(5) * pages.len() as u32);
        self.0.get(keys, pages)
    }

    fn forget(&self, keys: &[u32]) {
        self.0.forget(keys);
    }
}

#[test]
fn four_threads_wait_for_a_slow_store_and_lose_nothing() {
    let builder = Paged::builder(MIB).resident(MIB / 2).store(SlowStore::default());
    let Some(memory) = build(builder) else { return };
    let words = memory.as_slice::<AtomicU64>();
    let quarter = words.len() / 4;
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let own = &words[thread * quarter..][..quarter];
            scope.spawn(move || {
                for round in 0..3 {
                    for word in own {
                        assert_eq!(word.fetch_add(1, Relaxed), round);
                    }
                }
            });
        }
    });
    assert!(words.iter().all(|word| word.load(Relaxed) == 3));
    let stats = memory.stats();
    assert!(stats.evicted > 100 && stats.lost == 0 && stats.refused == 0, "{stats}");
}

#[test]
fn pages_stay_when_all_stores_are_full() {
    let builder = Paged::builder(4 * MIB).resident(MIB).store(Lz4::limit(64 << 10));
    let Some(memory) = build(builder) else { return };
    fill(&memory, Kind::Noise);
    check(&memory, Kind::Noise);
    let stats = memory.stats();
    assert!(stats.refused > 0 && stats.resident > stats.resident_limit && stats.lost == 0, "{stats}");
    // The bound holds again when there is room.
    memory.advise(0..memory.len() / 4 * 3, fieldstone_paging::Advice::Drop).unwrap();
    let words = memory.as_slice::<AtomicU64>();
    assert!(memory.stats().resident <= memory.stats().resident_limit, "{}", memory.stats());
    assert_ne!(words[words.len() - 1].load(Relaxed), 0);
}

/// Takes no page, each time for another reason; or sets keys that no page can have.
struct UselessStore(AtomicU64);

impl Store for UselessStore {
    fn put(&self, pages: &[&Page], keys: &mut [u32]) -> Result<usize, StoreError> {
        match self.0.fetch_add(1, Relaxed) % 4 {
            0 => Err(StoreError::Full),
            1 => Err(StoreError::Failed(libc::EIO)),
            2 => Ok(0),
            _ => {
                keys.fill(u32::MAX);
                Ok(pages.len() + 7)
            }
        }
    }

    fn get(&self, _: &[u32], _: &mut [Page]) -> Result<(), StoreError> {
        Err(StoreError::Failed(libc::EIO))
    }

    fn forget(&self, _: &[u32]) {}
}

#[test]
fn the_next_store_gets_what_a_failing_one_does_not_take() {
    let file = TempFile::in_dir(std::env::temp_dir()).unwrap();
    let builder = Paged::builder(4 * MIB).resident(MIB).store(UselessStore(AtomicU64::new(0))).store(file);
    let Some(memory) = build(builder) else { return };
    fill(&memory, Kind::Noise);
    check(&memory, Kind::Noise);
    let stats = memory.stats();
    assert_eq!((stats.stores[0].loaded, stats.lost, stats.refused), (0, 0, 0), "{stats}");
    assert!(stats.stores[1].loaded > 0 && stats.resident_peak <= stats.resident_limit, "{stats}");
}

#[test]
fn a_store_gets_pages_in_batches() {
    struct Batches(MapStore, &'static AtomicU64);
    static LARGEST: AtomicU64 = AtomicU64::new(0);
    impl Store for Batches {
        fn put(&self, pages: &[&Page], keys: &mut [u32]) -> Result<usize, StoreError> {
            self.1.fetch_max(pages.len() as u64, Relaxed);
            self.0.put(pages, keys)
        }
        fn get(&self, keys: &[u32], pages: &mut [Page]) -> Result<(), StoreError> {
            self.0.get(keys, pages)
        }
        fn forget(&self, keys: &[u32]) {
            self.0.forget(keys);
        }
    }
    let builder = Paged::builder(4 * MIB).resident(MIB).store(Batches(MapStore::default(), &LARGEST));
    let Some(memory) = build(builder) else { return };
    fill(&memory, Kind::Text);
    memory.as_slice::<AtomicU64>().iter().step_by(WORDS).for_each(|word| _ = word.load(Relaxed));
    assert!(LARGEST.load(Relaxed) >= 16, "{LARGEST:?}");
}
