//! Tests of objects whose pages have wrong pointers, or cannot be read.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use crate::check_tests::{change_page, disk, findings, page_mut};
use crate::crash::{Hook, HookedDisk, OnDisk, TABLES, empty, open, open_on};
use crate::lock::lock;
use crate::object::collection::VersionPages;
use crate::object::marks::Marks;
use crate::object::object_page::{ObjectPage, address};
use crate::object::tests::object_pages;
use crate::object::{LongPtr, ObjectOptions, Ptr};
use crate::page::{PAGE, offset_of};
use crate::{ErrorKind, Result, Store};

crate::stored! {
    struct Item { id: u64, next: Ptr<Item>, data: [u64; 20] }
    struct Other { id: u64, item: Ptr<Item> }
}

/// A page of the file that cannot be read; 0 for none.
#[derive(Debug, Default)]
struct UnreadablePage(AtomicU32);

impl Hook for Arc<UnreadablePage> {
    fn before_read(&self, bytes: Range<u64>) -> io::Result<()> {
        let page = self.0.load(Relaxed);
        if page > 0 && bytes.contains(&offset_of(page)) { Err(io::ErrorKind::InvalidData.into()) } else { Ok(()) }
    }
}

/// Adds items of these numbers, each with a pointer to the one before. Returns the place of the last one.
fn add_items(store: &Store, ids: Range<u64>) -> Result<LongPtr<Item>> {
    store.write(|tx| {
        let mut last = Ptr::NULL;
        for id in ids {
            last = tx.alloc(Item { id, next: last, ..Item::ZERO })?;
        }
        tx.long(last)
    })
}

/// The number of objects in an image, which must be whole.
fn objects(image: &mut [u8]) -> usize {
    assert_eq!(findings(image), []);
    let pages = object_pages(image);
    pages.into_iter().map(|page| ObjectPage(page_mut(image, page)).used().count()).sum()
}

#[test]
fn a_pointer_of_more_than_32_bits_in_a_file_that_fits_into_its_window_is_damage() {
    let disk_before = disk(&empty(16));
    let store = open(&disk_before).unwrap();
    let last = add_items(&store, 1..3).unwrap();
    store.write(|tx| tx.short(last).and_then(|pointer| tx.set_root("last", pointer))).unwrap();
    assert_eq!(store.read().unwrap().root::<Item>("last").unwrap().id, 2);
    drop(store);
    let mut image = lock(&disk_before).cached().into_owned();
    let page = object_pages(&mut image)[0];
    // The low 32 bits of the pointer still lead to the first item.
    change_page(&mut image, page, |page| {
        let place = ObjectPage(page).pointers(1).next().unwrap();
        let address = place.address(page);
        assert!(address > 0 && address >> 32 == 0);
        place.set_address(page, address | 1 << 32);
    });
    let store = open(&disk(&image)).unwrap();
    let now = store.read().unwrap();
    let error = now.root::<Item>("last").map(|item| item.id).unwrap_err();
    assert_eq!((error.kind(), error.page()), (ErrorKind::Corrupt, Some(page)), "{error}");
    assert!(error.message().contains("behind the end of the file"), "{error}");
}

/// An image with `pages` pages of items, of which the root `first` reaches one on the first page; and the place of
/// that item.
fn image_with_items(pages: usize) -> (Vec<u8>, LongPtr<Item>) {
    let disk = disk(&empty(16));
    let store = open(&disk).unwrap();
    let first = add_items(&store, 0..1).unwrap();
    store.write(|tx| tx.short(first).and_then(|pointer| tx.set_root("first", pointer))).unwrap();
    let mut image = lock(&disk).cached().into_owned();
    while object_pages(&mut image).len() < pages {
        add_items(&store, 100..120).unwrap();
        // Nothing of it is in the log only.
        store.compact().unwrap();
        image = lock(&disk).cached().into_owned();
    }
    drop(store);
    (lock(&disk).cached().into_owned(), first)
}

#[test]
fn a_failed_step_of_a_collection_is_undone_and_its_commit_has_its_own_changes() {
    let (mut image, first) = image_with_items(4);
    let (before, pages) = (objects(&mut image), object_pages(&mut image));
    let (disk, unreadable) = (disk(&image), Arc::<UnreadablePage>::default());
    let storage = HookedDisk(OnDisk(Arc::clone(&disk)), Arc::clone(&unreadable));
    let options = ObjectOptions { collects_at_commit: true, ..ObjectOptions::DEFAULT };
    let store = open_on(Box::new(storage), 64 * PAGE, options).unwrap();
    // It marks what the root reaches.
    let begun = store.write(|tx| {
        let pointer = tx.short(first)?;
        (0..70).try_for_each(|_| tx.set_root("first", pointer))
    });
    begun.unwrap();
    assert_eq!(store.collected().steps, 1);
    // The next step removes items of the first two pages before it fails.
    unreadable.0.store(pages[2], Relaxed);
    let committed = store.write(|tx| {
        let pointer = tx.short(first)?;
        tx.edit(pointer)?.id = 7;
        tx.table(TABLES[0])?.insert(&1, &[1]).map(drop)
    });
    committed.unwrap();
    let report = store.collected();
    assert_eq!(report.failure.map(|error| error.kind()), Some(ErrorKind::Io));
    assert_eq!((report.steps, report.objects, report.pages, report.collections), (2, 0, 0, 0));
    unreadable.0.store(0, Relaxed);
    let now = store.read().unwrap();
    assert_eq!(now.root::<Item>("first").unwrap().id, 7);
    assert!(now.table(TABLES[0]).unwrap().get(&1).unwrap().is_some());
    drop((now, store));
    assert_eq!(objects(&mut lock(&disk).cached().into_owned()), before);
    let store = open(&disk).unwrap();
    assert_eq!(store.collect().unwrap().objects, before as u64 - 1);
    assert_eq!(store.read().unwrap().root::<Item>("first").unwrap().id, 7);
}

#[test]
fn a_pointer_to_a_page_without_objects_does_not_end_a_collection() {
    let (mut whole, first) = image_with_items(2);
    let (before, objects_page) = (objects(&mut whole), object_pages(&mut whole)[0]);
    let value_disk = disk(&whole);
    let store = open(&value_disk).unwrap();
    store.write(|tx| tx.table(TABLES[0])?.insert(&1, &[7; 3 * PAGE])).unwrap();
    drop(store);
    let with_value = lock(&value_disk).cached().into_owned();
    let value_page = (0..with_value.len() / PAGE).find(|page| with_value[page * PAGE..][..PAGE] == [7; PAGE]).unwrap();
    for page in [value_page as u64, 1, 1 << 20] {
        let mut image = with_value.clone();
        change_page(&mut image, objects_page, |page_of_item| {
            let place = ObjectPage(page_of_item).pointers(0).next().unwrap();
            assert_eq!(place.address(page_of_item), 0);
            place.set_address(page_of_item, address(page as u32, 3));
        });
        let disk = disk(&image);
        let store = open(&disk).unwrap();
        assert_eq!(store.collect().unwrap().objects, before as u64 - 1, "page {page}");
        let now = store.read().unwrap();
        assert_eq!(now.get(now.short(first).unwrap()).unwrap().id, 0);
    }
}

#[test]
fn a_page_of_objects_that_cannot_be_read_ends_the_marking() {
    let (mut image, _) = image_with_items(2);
    let page = object_pages(&mut image)[0];
    let unit = ObjectPage(page_mut(&mut image, page)).slots().unit(0);
    let scan = |image: &[u8]| {
        let store = open(&disk(image)).unwrap();
        let mut marks = Marks::default();
        marks.mark(address(page, unit));
        let shared = &store.0.shared;
        marks.scan(&VersionPages::new(shared, shared.published().0), 8)
    };
    assert!(scan(&image).unwrap());
    // The lowest byte of the number of the type.
    let mut other_type = image.clone();
    change_page(&mut other_type, page, |page| page[16] ^= 1);
    assert_eq!(scan(&other_type).unwrap_err().page(), Some(page));
    page_mut(&mut image, page)[1000] ^= 1;
    assert_eq!(scan(&image).unwrap_err().page(), Some(page));
}

#[test]
fn a_pointer_to_an_object_that_cannot_be_read_is_an_error_of_the_file() {
    let (mut image, first) = image_with_items(2);
    let page = object_pages(&mut image)[0];
    let unreadable = Arc::<UnreadablePage>::default();
    let storage = HookedDisk(OnDisk(disk(&image)), Arc::clone(&unreadable));
    let store = open_on(Box::new(storage), 64 * PAGE, ObjectOptions::DEFAULT).unwrap();
    // On a page of its own.
    let other = store.write(|tx| tx.alloc(Other::ZERO).and_then(|pointer| tx.long(pointer))).unwrap();
    unreadable.0.store(page, Relaxed);
    let kind_of = |result: Result<()>| result.unwrap_err().kind();
    let mut tx = store.begin().unwrap();
    let (pointer, other) = (tx.short(first).unwrap(), tx.short(other).unwrap());
    assert_eq!(kind_of(tx.get(pointer).map(drop)), ErrorKind::Io);
    assert_eq!(kind_of(tx.edit(pointer).map(drop)), ErrorKind::Io);
    assert_eq!(kind_of(tx.set_root("other", pointer)), ErrorKind::Io);
    assert_eq!(kind_of(tx.get::<Other>(Ptr::of(pointer.0)).map(drop)), ErrorKind::Type);
    assert_eq!(kind_of(tx.alloc(Other { id: 1, item: pointer }).map(drop)), ErrorKind::Io);
    drop(tx);
    let mut tx = store.begin().unwrap();
    tx.edit(other).unwrap().item = pointer;
    assert_eq!(kind_of(tx.commit()), ErrorKind::Io);
}
