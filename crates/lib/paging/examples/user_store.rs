//! A store of a user: pages in a map. `cargo run --release -p fieldstone-paging --example user_store`

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fieldstone_paging::{Advice, Error, Page, Paged, Store, StoreError};

/// The last key, and the pages by their keys.
#[derive(Default)]
struct MapStore(Mutex<(u32, HashMap<u32, Page>)>);

impl MapStore {
    fn lock(&self) -> MutexGuard<'_, (u32, HashMap<u32, Page>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MapStore {
    fn put(&self, pages: &[&Page], keys: &mut [u32]) -> Result<usize, StoreError> {
        let (last, map) = &mut *self.lock();
        for (page, key) in pages.iter().zip(keys) {
            *last += 1;
            *key = *last;
            map.insert(*key, **page);
        }
        Ok(pages.len())
    }

    fn get(&self, keys: &[u32], pages: &mut [Page]) -> Result<(), StoreError> {
        let (_, map) = &*self.lock();
        for (key, page) in keys.iter().zip(pages) {
            *page = *map.get(key).ok_or(StoreError::Damaged)?;
        }
        Ok(())
    }

    fn forget(&self, keys: &[u32]) {
        let (_, map) = &mut *self.lock();
        keys.iter().for_each(|key| _ = map.remove(key));
    }
}

fn main() -> Result<(), Error> {
    let memory = match Paged::builder(8 << 20).resident(1 << 20).store(MapStore::default()).build() {
        Ok(memory) => memory,
        Err(error @ Error::NoUserfaultfd { .. }) => {
            println!("SKIP {error}");
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let words = memory.as_slice::<AtomicU64>();
    words[0].store(42, Relaxed);
    memory.advise(0..memory.len(), Advice::Cold)?;
    assert_eq!(memory.resident(0..memory.len())?, 0);
    assert_eq!(words[0].load(Relaxed), 42);
    println!("a page came back from {}", memory.stats().stores[0].name);
    Ok(())
}
