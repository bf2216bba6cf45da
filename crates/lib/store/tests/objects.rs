//! Objects of a store in a file: reopening, damage, memory, threads, forks, and stores that are larger than
//! their windows.

#![allow(unsafe_code, reason = "forks")]
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use fieldstone_store::{
    ErrorKind, LongPtr, Lost, Ptr, RawItem, Result, Scope, Snapshot, Store, StoreFile, Table, Transaction, check,
    stored,
};

stored! {
    struct Link { id: u64, next: Ptr<Link>, other: Ptr<Link>, data: [u64; 20] }
    struct Named { name: [u8; 16], first: Ptr<Link> }
}

/// The other definition of a type.
mod later {
    use fieldstone_store::{Ptr, stored};

    stored! { pub(crate) struct Link { id: u64, next: Ptr<Link> } }
}

const PAGE: u64 = 4096;

/// Makes a list of links in transactions of a hundred; the first one is the last that was made.
fn make_list(store: &Store, links: u64) {
    for block in 0..links.div_ceil(100) {
        let ids = block * 100..links.min(block * 100 + 100);
        store.write(|tx| list(tx, ids)).unwrap();
    }
}

/// Adds links before the first one.
fn list(tx: &mut Transaction, ids: Range<u64>) -> Result<()> {
    for id in ids {
        let next = tx.root("list")?;
        let link = tx.alloc(Link { id, next, data: [id; 20], ..Link::ZERO })?;
        tx.edit(link)?.other = link;
        tx.set_root("list", link)?;
    }
    Ok(())
}

/// The number of links, and the sum of their numbers.
fn sum(now: &Snapshot) -> (u64, u64) {
    let (mut pointer, mut count, mut sum) = (now.root_pointer::<Link>("list").unwrap(), 0, 0);
    while !pointer.is_null() {
        let link = now.follow(pointer);
        assert!(link.other == pointer && link.data == [link.id; 20]);
        (count, sum, pointer) = (count + 1, sum + link.id, link.next);
    }
    now.check_objects().unwrap();
    (count, sum)
}

fn sum_to(links: u64) -> (u64, u64) {
    (links, links * (links - 1) / 2)
}

fn is_whole(path: &Path) -> bool {
    let checked = check(path, Scope::All, |finding| println!("{finding:?}")).unwrap();
    checked.findings == 0
}

#[test]
fn objects_are_there_after_reopening_and_in_a_copy() {
    let folder = tempfile::tempdir().unwrap();
    let (path, copy) = (folder.path().join("list.store"), folder.path().join("copy.store"));
    let store = Store::open(&path).unwrap();
    assert_eq!(store.read().unwrap().root::<Link>("list").unwrap_err().kind(), ErrorKind::Absent);
    make_list(&store, 3000);
    let before = store.read().unwrap();
    store
        .write(|tx| {
            let first = tx.root::<Link>("list")?;
            let named = tx.alloc(Named { name: *b"the list of link", first })?;
            tx.set_root("named", named)
        })
        .unwrap();
    assert_eq!(sum(&before), sum_to(3000));
    store.backup(&copy).unwrap();
    drop((before, store));
    for path in [path, copy] {
        assert!(is_whole(&path));
        let store = Store::open(&path).unwrap();
        let now = store.read().unwrap();
        assert_eq!(sum(&now), sum_to(3000));
        let named = now.root::<Named>("named").unwrap();
        assert_eq!((named.name, now.follow(named.first).id), (*b"the list of link", 2999));
        assert_eq!(now.root::<Link>("named").unwrap_err().kind(), ErrorKind::Type);
        assert_eq!(now.root::<later::Link>("list").unwrap_err().kind(), ErrorKind::Type);
        let refused = store.write(|tx| tx.alloc(later::Link::ZERO).map(drop));
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Type);
        drop((now, store));
        let stat = StoreFile::open(&path).unwrap().stat().unwrap();
        let types: Vec<_> = stat.types.iter().map(|found| (found.name.as_str(), found.objects)).collect();
        assert_eq!((types, stat.tables.len()), (vec![("Link", 3000), ("Named", 1)], 0));
    }
}

#[test]
fn damage_found_in_a_traversal_is_returned_by_the_next_call() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("list.store");
    make_list(&Store::open(&path).unwrap(), 3000);
    let mut damaged = None;
    check(&path, Scope::All, |finding| panic!("{finding:?}")).unwrap();
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let mut page = [0; PAGE as usize];
    for number in 100..file.metadata().unwrap().len() / PAGE {
        file.read_exact_at(&mut page, number * PAGE).unwrap();
        // A page of objects in the middle.
        if page[12] == 3 && damaged.is_none() && number % 40 == 0 {
            file.write_all_at(&[page[3000] ^ 1], number * PAGE + 3000).unwrap();
            damaged = Some(number as u32);
        }
    }
    let mut found = Vec::new();
    check(&path, Scope::All, |finding| found.push(finding)).unwrap();
    assert!(found.iter().any(|finding| finding.page() as u32 == damaged.unwrap()), "{found:?}");
    let store = Store::open(&path).unwrap();
    let (now, other) = (store.read().unwrap(), store.read().unwrap());
    let (mut link, mut count) = (now.root::<Link>("list").unwrap(), 0);
    while link.id > 0 {
        (link, count) = (now.follow(link.next), count + 1);
    }
    assert!(count < 2999);
    let error = now.check_objects().unwrap_err();
    assert_eq!((error.kind(), error.page()), (ErrorKind::Corrupt, damaged));
    assert_eq!(now.root::<Link>("list").unwrap_err().page(), damaged);
    // A snapshot of the same version has the same window.
    assert_eq!(other.check_objects().unwrap_err().page(), damaged);
    drop((now, other));
    // A new one reads what is whole.
    assert_eq!(store.read().unwrap().root::<Link>("list").unwrap().id, 2999);
    let mut tx = store.begin().unwrap();
    let mut pointer = tx.root::<Link>("list").unwrap();
    let error = loop {
        match tx.get(pointer) {
            Ok(link) => pointer = link.next,
            Err(error) => break error,
        }
    };
    assert_eq!((error.kind(), error.page()), (ErrorKind::Corrupt, damaged));
}

#[test]
fn threads_read_one_snapshot_and_its_version_in_little_memory() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("list.store");
    let store = Store::builder(&path).memory_bytes(1 << 20).log_bytes(64 << 10).open().unwrap();
    make_list(&store, 4000);
    let now = store.read().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..5).for_each(|_| assert_eq!(sum(&now), sum_to(4000))));
        }
        scope.spawn(|| {
            for _ in 0..40 {
                store
                    .write(|tx| {
                        let first = tx.root::<Link>("list")?;
                        let (next, mut count) = (tx.get(first)?.next, 0);
                        let mut pointer = next;
                        while !pointer.is_null() && count < 100 {
                            tx.edit(pointer)?.id += 1_000_000;
                            (pointer, count) = (tx.get(pointer)?.next, count + 1);
                        }
                        Ok(())
                    })
                    .unwrap();
                let changed = store.read().unwrap();
                let second = changed.follow(changed.root::<Link>("list").unwrap().next);
                assert!(second.id >= 1_000_000);
            }
        });
    });
    assert_eq!(sum(&now), sum_to(4000));
    drop((now, store));
    assert!(is_whole(&path));
}

#[test]
fn a_transaction_sees_its_objects_and_a_rollback_undoes_them() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path().join("list.store")).unwrap();
    let mut tx = store.begin().unwrap();
    let first = tx.alloc(Link { id: 1, ..Link::ZERO }).unwrap();
    tx.set_root("list", first).unwrap();
    let mark = tx.savepoint();
    let second = tx.alloc(Named { first, ..Named::ZERO }).unwrap();
    tx.set_root("named", second).unwrap();
    tx.edit(first).unwrap().id = 7;
    assert_eq!((tx.get(first).unwrap().id, tx.get(second).unwrap().first), (7, first));
    tx.rollback_to(mark);
    assert_eq!((tx.get(first).unwrap().id, tx.root::<Named>("named").unwrap()), (1, Ptr::NULL));
    let third = tx.alloc(Named { first, ..Named::ZERO }).unwrap();
    assert_eq!(tx.get(third).unwrap().first, first);
    tx.commit().unwrap();
    drop(store.begin().unwrap());
    let now = store.read().unwrap();
    assert_eq!(now.root::<Link>("list").unwrap().id, 1);
    assert!(now.root::<Named>("named").is_err());
    // What is dropped is not committed.
    let mut tx = store.begin().unwrap();
    tx.edit(first).unwrap().id = 9;
    assert!(tx.remove_root("list").unwrap() && !tx.remove_root("named").unwrap());
    drop(tx);
    assert_eq!(store.read().unwrap().root::<Link>("list").unwrap().id, 1);
    assert_eq!(
        store
            .write(|tx| tx.table(fieldstone_store::Table::<u64, [u8]>::new("fieldstone.roots")).map(drop))
            .unwrap_err()
            .kind(),
        ErrorKind::Type
    );
}

/// Runs `body` in a forked child; its status.
fn forked(body: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child uses memory, files and _exit(2) only.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_right = body();
        // SAFETY: nothing is left to do in the child.
        unsafe { libc::_exit(i32::from(!is_right)) }
    }
    let mut status = 0;
    // SAFETY: the child was just forked; the number is written.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

#[test]
fn a_forked_child_reads_no_objects() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path().join("list.store")).unwrap();
    make_list(&store, 500);
    let now = store.read().unwrap();
    assert_eq!(sum(&now), sum_to(500));
    let status = forked(|| {
        let is_refused = now.root::<Link>("list").is_err_and(|error| error.kind() == ErrorKind::Forked);
        is_refused && store.read().is_err_and(|error| error.kind() == ErrorKind::Forked)
    });
    assert_eq!(status, 0);
    let first = now.root_pointer::<Link>("list").unwrap();
    let status = forked(|| {
        let core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the kernel reads one rlimit from a live local.
        unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const core) };
        now.follow(first).id == 0
    });
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{status}");
    assert_eq!(sum(&now), sum_to(500));
}

#[test]
fn a_dump_reports_that_objects_are_missing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("list.store");
    let store = Store::open(&path).unwrap();
    make_list(&store, 100);
    store.write(|tx| tx.table(Table::<u64, str>::new("users"))?.insert(&1, "Ada").map(drop)).unwrap();
    drop(store);
    let (mut tables, mut missing) = (Vec::new(), Vec::new());
    let dumped = StoreFile::open(&path).unwrap().salvage(|item| {
        match item {
            RawItem::Table(table) => tables.push(table.name.clone()),
            RawItem::Missing(finding) => missing.push(finding.lost),
            _ => {}
        }
        Ok::<(), std::convert::Infallible>(())
    });
    dumped.unwrap();
    assert_eq!((tables, missing), (vec!["users".to_owned()], vec![Lost::Objects("Link".to_owned())]));
}

#[test]
fn collections_run_while_threads_read_and_write() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("list.store");
    let store = Store::builder(&path).memory_bytes(1 << 20).log_bytes(64 << 10).open().unwrap();
    make_list(&store, 300);
    let is_done = AtomicBool::new(false);
    let removed = std::thread::scope(|scope| {
        let collector = scope.spawn(|| {
            let mut removed = 0;
            while !is_done.load(Ordering::Relaxed) {
                removed += store.collect().unwrap().objects;
            }
            removed
        });
        let reader = scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                let now = store.read().unwrap();
                assert!(now.root_pointer::<Link>("list").unwrap().is_null() || sum(&now).0 == 300);
            }
        });
        for _ in 0..20 {
            // All links are lost, and as many are made.
            store.write(|tx| tx.remove_root("list").map(drop)).unwrap();
            store.write(|tx| list(tx, 0..300)).unwrap();
        }
        is_done.store(true, Ordering::Relaxed);
        reader.join().unwrap();
        collector.join().unwrap()
    });
    let removed = removed + store.collect().unwrap().objects;
    assert_eq!((removed, sum(&store.read().unwrap())), (20 * 300, sum_to(300)));
    drop(store);
    assert!(is_whole(&path));
}

/// Goes through the list of a store in parts, each in a new snapshot, as far as its window goes. Returns the
/// number of links, the sum of their numbers, and the number of parts.
fn sum_in_parts(store: &Store) -> (u64, u64, u64) {
    let now = store.read().unwrap();
    let mut position: LongPtr<Link> = now.long(now.root_pointer("list").unwrap()).unwrap();
    drop(now);
    let (mut count, mut total, mut parts) = (0, 0, 0);
    while !position.is_null() {
        let now = store.read().unwrap();
        let mut pointer = now.short(position).unwrap();
        parts += 1;
        let before = position;
        while !pointer.is_null() {
            // The copy accesses the object.
            let link = *now.follow(pointer);
            if let Err(error) = now.check_objects() {
                assert_eq!(error.kind(), ErrorKind::Window, "{error}");
                break;
            }
            assert!(link.other == pointer && link.data == [link.id; 20]);
            (count, total, pointer) = (count + 1, total + link.id, link.next);
        }
        position = now.long(pointer).unwrap();
        assert_ne!(position, before);
    }
    (count, total, parts)
}

#[test]
fn a_store_of_eight_times_its_window_is_written_and_traversed_in_parts() {
    const PAGES: u64 = 64;
    // A page has 22 links.
    const LINKS: u64 = PAGES * 8 * 22;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("list.store");
    let open = || Store::builder(&path).window_pages(PAGES as u32).log_bytes(64 << 10).open().unwrap();
    let store = open();
    make_list(&store, LINKS);
    let (count, total, parts) = sum_in_parts(&store);
    assert_eq!((count, total), sum_to(LINKS));
    assert!((8..40).contains(&parts), "{parts}");
    assert!(std::fs::metadata(&path).unwrap().len() > 8 * PAGES * PAGE);
    // A pointer between objects that are far apart.
    let far = {
        let now = store.read().unwrap();
        now.long(now.root_pointer::<Link>("list").unwrap()).unwrap()
    };
    store
        .write(|tx| {
            let first = tx.short(far)?;
            let second = tx.alloc(Named { name: [7; 16], first })?;
            tx.set_root("named", second)
        })
        .unwrap();
    drop(store);
    assert!(is_whole(&path));
    let store = open();
    assert_eq!(sum_in_parts(&store), (count, total, parts));
    let now = store.read().unwrap();
    assert_eq!(now.follow(now.root::<Named>("named").unwrap().first).id, LINKS - 1);
    drop((now, store));
    // The same file with a window that it fits into.
    let store = Store::open(&path).unwrap();
    assert_eq!(sum(&store.read().unwrap()), sum_to(LINKS));
}

/// Links by the number of the test.
const LINKS: Table<u64, LongPtr<Link>> = Table::new("links");
const TEXTS: Table<u64, [u8]> = Table::new("texts");

/// Adds links that a table indexes, and of which the root `list` reaches the last one.
fn index_links(store: &Store, ids: Range<u64>) {
    let indexed = store.write(|tx| {
        for id in ids {
            let link = tx.alloc(Link { id, ..Link::ZERO })?;
            tx.set_root("list", link)?;
            let place = tx.long(link)?;
            tx.table(LINKS)?.insert(&id, &place)?;
        }
        Ok(())
    });
    indexed.unwrap();
}

#[test]
fn a_table_indexes_objects_after_reopening_and_refuses_another_type() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("links.store");
    index_links(&Store::open(&path).unwrap(), 0..100);
    let store = Store::open(&path).unwrap();
    let now = store.read().unwrap();
    for entry in now.table(LINKS).unwrap().iter().unwrap() {
        let (id, place) = entry.unwrap();
        assert_eq!(now.get(now.short(place).unwrap()).unwrap().id, id);
    }
    const NAMED: Table<u64, LongPtr<Named>> = Table::new("links");
    assert_eq!(now.table(NAMED).unwrap_err().kind(), ErrorKind::Type);
    let refused = store.write(|tx| tx.table(NAMED).map(drop));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Type);
    drop((now, store));
    assert!(is_whole(&path));
    let stat = StoreFile::open(&path).unwrap().stat().unwrap();
    assert_eq!((&*stat.tables[0].table.key_type, &*stat.tables[0].table.value_type), ("u64", "pointer to Link"));
}

/// What a snapshot and a transaction return for the indexed link of an id.
fn found(store: &Store, id: u64) -> [std::result::Result<u64, ErrorKind>; 3] {
    let now = store.read().unwrap();
    let place = now.table(LINKS).unwrap().get(&id).unwrap().unwrap();
    let read = now.get(now.short(place).unwrap()).map(|link| link.id);
    now.check_objects().unwrap();
    let mut tx = store.begin().unwrap();
    let pointer = tx.short(place).unwrap();
    let copied = tx.get(pointer).map(|link| link.id);
    let edited = tx.edit(pointer).map(|link| link.id);
    [read, copied, edited].map(|found| found.map_err(|error| error.kind()))
}

#[test]
fn an_index_keeps_no_object_and_a_removed_one_is_absent() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("links.store");
    let store = Store::open(&path).unwrap();
    index_links(&store, 0..100);
    assert_eq!((found(&store, 3), found(&store, 99)), ([Ok(3); 3], [Ok(99); 3]));
    assert_eq!(store.collect().unwrap().objects, 99, "a table keeps no object");
    // The first pages have no objects any more, the last one has the object of the root.
    for id in [0, 3, 97, 98] {
        assert_eq!(found(&store, id), [Err(ErrorKind::Absent); 3], "link {id}");
    }
    assert_eq!(found(&store, 99), [Ok(99); 3]);
    // Large values take the pages that are free.
    for key in 0..8 {
        store.write(|tx| tx.table(TEXTS)?.insert(&key, &[7; 20_000]).map(drop)).unwrap();
    }
    assert_eq!(found(&store, 0), [Err(ErrorKind::Absent); 3]);
    // Objects of the same type take their places.
    let later = store.write(|tx| {
        let link = tx.alloc(Link { id: 1000, ..Link::ZERO })?;
        tx.set_root("list", link)
    });
    later.unwrap();
    for id in 0..99 {
        let found = found(&store, id);
        assert!(found == [Err(ErrorKind::Absent); 3] || found == [Ok(1000); 3], "link {id}: {found:?}");
    }
    drop(store);
    assert!(is_whole(&path));
}
