//! Objects under collections, commits and snapshots that go on at the same time.

#![allow(unsafe_code, reason = "asks the kernel which pages are in memory")]
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fieldstone_store::{ErrorKind, LongPtr, Ptr, Result, Scope, Store, Table, check, stored};

stored! {
    struct Node { id: u64, next: Ptr<Node>, data: [u64; 20] }
    struct Large { id: u64, next: Ptr<Large>, data: [u64; 380] }
    struct Counter { count: u64, data: [u64; 299] }
    struct LongNames {
        a_field_whose_name_has_about_fifty_characters_number_1: [u64; 3],
        a_field_whose_name_has_about_fifty_characters_number_2: Ptr<Node>,
        a_field_whose_name_has_about_fifty_characters_number_3: [u32; 5],
        a_field_whose_name_has_about_fifty_characters_number_4: u16,
        a_field_whose_name_has_about_fifty_characters_number_5: u8,
        a_field_whose_name_has_about_fifty_characters_number_6: u8,
        a_field_whose_name_has_about_fifty_characters_number_7: i64,
        a_field_whose_name_has_about_fifty_characters_number_8: Ptr<LongNames>,
        a_field_whose_name_has_about_fifty_characters_number_9: [Node; 2],
    }
    struct Nested { one: LongNames, two: LongNames, three: [LongNames; 3] }
}

const SUMS: Table<str, u64> = Table::new("sums");

/// A collection at a commit begins while commits before it are not durable yet: objects in slots that the last
/// collection has freed stay.
#[test]
fn collections_at_commits_that_are_durable_later_keep_what_roots_reach() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("later.store");
    let store = Store::builder(&path).collect_at_commit(true).open().unwrap();
    for round in 0..1500_u64 {
        let mut tx = store.begin().unwrap();
        let root = format!("live {}", round % 100);
        if round >= 100 {
            let pointer = tx.root::<Node>(&root).unwrap();
            assert_eq!(tx.get(pointer).unwrap().id, round - 100);
        }
        let kept = tx.alloc(Node { id: round, ..Node::ZERO }).unwrap();
        tx.set_root(&root, kept).unwrap();
        for _ in 0..20 {
            tx.alloc(Node { id: u64::MAX, ..Node::ZERO }).unwrap();
        }
        // Each makes the next collection begin earlier.
        for _ in 0..70 {
            tx.set_root("other", kept).unwrap();
        }
        tx.commit_later().unwrap();
    }
    let report = store.collected();
    assert!(report.collections > 5 && report.failure.is_none(), "{report:?}");
    drop(store);
    assert_eq!(check(&path, Scope::All, |finding| println!("{finding:?}")).unwrap().findings, 0);
}

/// Adds to the list, removes its first node, or changes the second one. `ids` are those of the list.
fn change(store: &Store, ids: &mut Vec<u64>, step: u64) -> Result<()> {
    let mut tx = store.begin()?;
    let first = tx.root::<Node>("list")?;
    match step % 5 {
        3 if ids.len() > 300 => {
            let next = tx.get(first)?.next;
            tx.set_root("list", next)?;
            ids.pop();
        }
        4 if ids.len() > 1 => {
            let second = tx.get(first)?.next;
            let place = ids.len() - 2;
            ids[place] += 1;
            tx.edit(second)?.id = ids[place];
        }
        _ => {
            let node = tx.alloc(Node { id: step * 10, next: first, ..Node::ZERO })?;
            tx.set_root("list", node)?;
            ids.push(step * 10);
        }
    }
    tx.table(SUMS)?.insert("sum", &ids.iter().sum())?;
    tx.commit()
}

/// Walks the list of snapshots, each of which must have the sum of its version, until `is_over`. Returns the
/// number of walks.
fn walk(store: &Store, is_over: &AtomicBool) -> u64 {
    let mut walks = 0;
    while !is_over.load(Ordering::Relaxed) {
        let now = store.read().unwrap();
        let mut pointer = match now.root_pointer::<Node>("list") {
            Ok(pointer) => pointer,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Window, "{error}");
                continue;
            }
        };
        let mut sum = 0;
        while !pointer.is_null() {
            let node = now.follow(pointer);
            (sum, pointer) = (sum + node.id, node.next);
        }
        match now.check_objects() {
            Ok(()) => {
                assert_eq!(sum, now.table(SUMS).unwrap().get("sum").unwrap().unwrap_or(0));
                walks += 1;
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::Window, "{error}"),
        }
    }
    walks
}

#[test]
fn windows_of_any_size_show_one_version_while_others_commit() {
    for (window_pages, collects) in [(64, true), (100, false), (1 << 23, false), (1 << 23, true)] {
        let folder = tempfile::tempdir().unwrap();
        let builder = Store::builder(folder.path().join("w.store")).memory_bytes(2 << 20).window_pages(window_pages);
        let store =
            builder.log_bytes(128 << 10).old_version_bytes(64 << 20).collect_at_commit(collects).open().unwrap();
        let (is_over, start) = (AtomicBool::new(false), Instant::now());
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..3).map(|_| scope.spawn(|| walk(&store, &is_over))).collect();
            let (mut ids, mut step) = (Vec::new(), 0);
            while step < 300 || start.elapsed() < Duration::from_millis(700) {
                change(&store, &mut ids, step).unwrap();
                step += 1;
            }
            is_over.store(true, Ordering::Relaxed);
            let walks: u64 = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
            assert!(walks > 10, "{walks} walks with {window_pages} pages");
        });
        assert_eq!(store.collected().failure.map(|error| error.to_string()), None);
    }
}

#[test]
fn what_a_snapshot_was_lent_stays_when_it_is_too_old() {
    let folder = tempfile::tempdir().unwrap();
    let builder = Store::builder(folder.path().join("lent.store")).memory_bytes(1 << 20).old_version_bytes(1 << 20);
    let store = builder.open().unwrap();
    let mut places: Vec<LongPtr<Large>> = Vec::new();
    let mut tx = store.begin().unwrap();
    let mut first = Ptr::NULL;
    for id in 0..600 {
        first = tx.alloc(Large { id, next: first, data: [id; 380] }).unwrap();
        places.push(tx.long(first).unwrap());
    }
    tx.set_root("list", first).unwrap();
    tx.commit().unwrap();
    let now = store.read().unwrap();
    let lent = now.root::<Large>("list").unwrap();
    let pointers: Vec<Ptr<Large>> = places.iter().map(|&place| now.short(place).unwrap()).collect();
    for round in 1..4 {
        let write = |tx: &mut fieldstone_store::Transaction| {
            places.iter().try_for_each(|&place| {
                let pointer = tx.short(place)?;
                tx.edit(pointer)?.id += 1000 * round;
                Ok(())
            })
        };
        store.write(write).unwrap();
    }
    // More pages than the window has in memory.
    let zeros = pointers.iter().filter(|&&pointer| now.follow(pointer).id == 0).count();
    assert!(zeros > 500, "{zeros} objects could not be read");
    assert_eq!(now.check_objects().unwrap_err().kind(), ErrorKind::TooOld);
    assert!(lent.id == 599 && lent.data == [599; 380]);
}

#[test]
fn pages_that_a_window_has_dropped_are_filled_again_however_much_others_write() {
    let folder = tempfile::tempdir().unwrap();
    let builder = Store::builder(folder.path().join("kept.store")).memory_bytes(1 << 20).old_version_bytes(1 << 20);
    let store = builder.open().unwrap();
    let mut tx = store.begin().unwrap();
    let mut first = Ptr::NULL;
    for id in 0..600 {
        first = tx.alloc(Large { id, next: first, data: [id; 380] }).unwrap();
    }
    tx.set_root("list", first).unwrap();
    tx.commit().unwrap();
    let now = store.read().unwrap();
    let all = || {
        let (mut found, mut pointer) = (Vec::new(), now.root_pointer::<Large>("list").unwrap());
        while !pointer.is_null() {
            let object = now.follow(pointer);
            found.push(object);
            pointer = object.next;
        }
        found
    };
    // Most of their pages were dropped by the end.
    let lent = all();
    for _ in 0..4 {
        store
            .write(|tx| {
                let mut pointer = tx.root::<Large>("list")?;
                while !pointer.is_null() {
                    let mut object = tx.edit(pointer)?;
                    (object.id, object.data) = (0, [0; 380]);
                    pointer = object.next;
                }
                Ok(())
            })
            .unwrap();
    }
    assert!((0..600).rev().zip(&lent).all(|(id, object)| object.id == id && object.data == [id; 380]));
    now.check_objects().unwrap();
}

#[test]
fn a_type_with_a_long_description_is_there_after_reopening() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long.store");
    let store = Store::open(&path).unwrap();
    store
        .write(|tx| {
            let one = tx.alloc(LongNames::ZERO)?;
            let nested = tx.alloc(Nested { two: LongNames { ..LongNames::ZERO }, ..Nested::ZERO })?;
            tx.set_root("one", one)?;
            tx.set_root("nested", nested)
        })
        .unwrap();
    drop(store);
    let store = Store::open(&path).unwrap();
    let now = store.read().unwrap();
    now.root::<LongNames>("one").unwrap();
    now.root::<Nested>("nested").unwrap();
    assert_eq!(now.root::<Node>("one").unwrap_err().kind(), ErrorKind::Type);
}

/// Makes a list of objects, each on a page of its own. Returns their places.
fn list_of_pages(store: &Store, objects: u64) -> Vec<LongPtr<Large>> {
    let made = store.write(|tx| {
        let (mut first, mut places) = (Ptr::NULL, Vec::new());
        for id in 0..objects {
            first = tx.alloc(Large { id, next: first, data: [id; 380] })?;
            places.push(tx.long(first)?);
        }
        tx.set_root("list", first)?;
        Ok(places)
    });
    made.unwrap()
}

#[test]
fn collections_at_commits_end_while_each_commit_replaces_more_pages_than_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let builder = Store::builder(folder.path().join("pinned.store")).memory_bytes(1 << 20).old_version_bytes(1 << 20);
    let store = builder.collect_at_commit(true).open().unwrap();
    let places = list_of_pages(&store, 600);
    let before = store.collected().collections;
    let replace_all = |tx: &mut fieldstone_store::Transaction| {
        places.iter().try_for_each(|&place| {
            let pointer = tx.short(place)?;
            tx.edit(pointer)?.id += 1;
            Ok(())
        })
    };
    for _ in 0..60 {
        store.write(replace_all).unwrap();
        assert_eq!(store.collected().failure.map(|error| error.to_string()), None);
    }
    let report = store.collected();
    assert!(report.collections > before + 1 && report.objects == 0, "{report:?}");
    let now = store.read().unwrap();
    assert!((0..600).zip(&places).all(|(id, &place)| now.get(now.short(place).unwrap()).unwrap().id == id + 60));
}

/// Whether the page at an address is in memory.
fn is_in_memory(address: usize) -> bool {
    let mut state = 0_u8;
    let page = std::ptr::with_exposed_provenance_mut(address & !4095);
    // SAFETY: mincore(2) reads no memory, and writes one byte for the one page.
    assert_eq!(unsafe { libc::mincore(page, 4096, &raw mut state) }, 0);
    state & 1 == 1
}

#[test]
fn a_window_has_an_eighth_of_the_memory_of_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::builder(folder.path().join("window.store")).memory_bytes(1 << 20).open().unwrap();
    list_of_pages(&store, 600);
    let now = store.read().unwrap();
    for _ in 0..3 {
        let (mut addresses, mut pointer) = (Vec::new(), now.root_pointer::<Large>("list").unwrap());
        while !pointer.is_null() {
            let object = now.follow(pointer);
            pointer = object.next;
            addresses.push((&raw const *object).expose_provenance());
        }
        now.check_objects().unwrap();
        let in_memory = || addresses.iter().filter(|&&address| is_in_memory(address)).count();
        // Each thread that fills pages may still have to drop one.
        let begun = Instant::now();
        while in_memory() > 32 && begun.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let in_memory = in_memory();
        assert!(addresses.len() == 600 && (16..=32).contains(&in_memory), "{in_memory} pages");
    }
}

const ROWS: Table<u64, [u8]> = Table::new("rows");

/// A window that is filled repeatedly with one page has no more pages than one, so it does not keep its version.
#[test]
fn a_snapshot_of_one_object_becomes_too_old_after_many_others() {
    let folder = tempfile::tempdir().unwrap();
    let builder = Store::builder(folder.path().join("one.store")).memory_bytes(1 << 20).old_version_bytes(1 << 20);
    let store = builder.open().unwrap();
    let set_rows =
        |byte| store.write(|tx| (0..2000).try_for_each(|key| tx.table(ROWS)?.insert(&key, &[byte; 900]).map(drop)));
    set_rows(0).unwrap();
    let made = store.write(|tx| {
        let counter = tx.alloc(Counter::ZERO)?;
        tx.set_root("counter", counter)
    });
    made.unwrap();
    for count in 1..=100 {
        let counted = store.write(|tx| {
            let pointer = tx.root::<Counter>("counter")?;
            tx.edit(pointer)?.count += 1;
            Ok(())
        });
        counted.unwrap();
        assert_eq!(store.read().unwrap().root::<Counter>("counter").unwrap().count, count);
    }
    let old = store.read().unwrap();
    let lent = old.root::<Counter>("counter").unwrap();
    (1..6).for_each(|byte| set_rows(byte).unwrap());
    let read = old.table(ROWS).and_then(|rows| rows.get(&1000).map(drop));
    assert_eq!(read.unwrap_err().kind(), ErrorKind::TooOld);
    assert_eq!(lent.count, 100);
}
