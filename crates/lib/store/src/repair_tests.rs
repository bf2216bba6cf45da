//! Tests of pages that recovery completes by their lines in the log: what is repaired, and what is found.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use crate::check::{Scope, check_opened};
use crate::check_tests::{disk, file, findings, image, page_mut};
use crate::crash::{Disk, Hook, HookedDisk, Model, OnDisk, Random, TABLES, both, empty, open, open_on};
use crate::lock::lock;
use crate::object::ObjectOptions;
use crate::page::{CHECK, PAGE, Page, offset_of};
use crate::progress::RecoveryOptions;
use crate::recovery::recover;
use crate::store_file::StoreFile;
use crate::{ErrorKind, Store};

/// Keys whose entries share a leaf.
const KEYS: u32 = 30;
const LINE: usize = 64;

/// The entry of a commit: adjacent commits change different lines of one page.
fn entry(commit: u32) -> (u32, Vec<u8>) {
    (commit * 7 % KEYS, vec![commit as u8; 100])
}

fn commit(store: &Store, commit: u32) -> crate::Result<()> {
    let (key, value) = entry(commit);
    store.write(|tx| tx.table(TABLES[0])?.insert(&key, &value).map(drop))
}

/// What the tables contain after the first commits.
fn after(commits: u32) -> Model {
    [(1..=commits).map(entry).collect(), BTreeMap::new()]
}

#[test]
fn a_page_that_two_flushes_have_torn_is_repaired() {
    // A half of this log has about 16 commits: the calls are those of several flushes of the same page.
    for calls in 0..120 {
        let disk = Disk::new(empty(4), calls, Random(calls + 1));
        let Ok(store) = open(&disk) else { continue };
        let returned = (1..).take_while(|&number| commit(&store, number).is_ok()).last().unwrap_or(0);
        drop(store);
        for _ in 0..4 {
            let image = lock(&disk).crashed();
            // The recovery crashes too, after as many calls.
            let again = Disk::new(image.clone(), calls % 7, Random(calls + 2));
            drop(open(&again));
            for image in [image, lock(&again).crashed()] {
                assert_eq!(findings(&image), [], "{calls} calls");
                let found = both(&open(&disk_of(image)).unwrap()).unwrap();
                assert!(found == after(returned) || found == after(returned + 1), "{returned} commits, {calls} calls");
            }
        }
    }
}

fn disk_of(image: Vec<u8>) -> Arc<Mutex<Disk>> {
    Disk::new(image, u64::MAX, Random(1))
}

/// The image of a store that is killed after one more commit, and the page that this commit has changed.
fn killed_after(image: &[u8], key: u32) -> (Vec<u8>, u32) {
    let disk = disk(image);
    let store = open(&disk).unwrap();
    store.write(|tx| tx.table(TABLES[0])?.insert(&key, &[0xEE; 120])).unwrap();
    let killed = lock(&disk).cached().into_owned();
    let pages: Vec<u32> = file(&killed).unwrap().log.pages.keys().copied().collect();
    assert_eq!(pages.len(), 1, "the commit has changed a leaf only");
    (killed, pages[0])
}

/// Whether readers report the page, also after recovery has written it, and nothing else is lost.
fn is_reported(image: &[u8], page: u32) -> bool {
    let is_found = |image: &[u8]| findings(image).iter().any(|finding| finding.page() == u64::from(page));
    let disk = disk(image);
    let store = open(&disk).unwrap();
    let error = both(&store).map(drop).unwrap_err();
    let is_read = store.read().unwrap().table(TABLES[0]).unwrap().get(&0).unwrap().is_some();
    drop(store);
    let recovered = lock(&disk).cached().into_owned();
    is_found(image)
        && is_found(&recovered)
        && is_read
        && (error.kind(), error.page()) == (ErrorKind::Corrupt, Some(page))
}

#[test]
fn a_damaged_line_is_repaired_if_the_log_contains_it_and_reported_if_not() {
    let (killed, page) = killed_after(&image(), 300);
    let mut with_log = [0; PAGE];
    file(&killed).unwrap().page(page, &mut with_log).unwrap();
    let in_file: Page = *page_mut(&mut killed.clone(), page);
    let (mut repaired, mut reported) = (0, 0);
    for line in 0..PAGE / LINE {
        let bytes = line * LINE + if line == 0 { CHECK } else { 0 }..(line + 1) * LINE;
        let mut image = killed.clone();
        page_mut(&mut image, page)[bytes.start + line % 50] ^= 0x20;
        if with_log[bytes.clone()] == in_file[bytes] {
            assert!(is_reported(&image, page), "line {line}");
            reported += 1;
        } else {
            assert_eq!(findings(&image), [], "line {line}");
            assert!(both(&open(&disk(&image)).unwrap()).unwrap()[0][&300] == [0xEE; 120]);
            repaired += 1;
        }
    }
    assert!(repaired >= 2 && reported > 50, "{repaired} lines are repaired, {reported} are reported");
}

#[test]
fn an_old_page_with_a_right_check_in_the_place_of_a_newer_one_is_reported() {
    let mut before = image();
    let disk = disk(&before);
    open(&disk).unwrap().write(|tx| tx.table(TABLES[0])?.insert(&301, &[0xDD; 120])).unwrap();
    let closed = lock(&disk).cached().into_owned();
    let (mut killed, page) = killed_after(&closed, 300);
    assert_eq!(findings(&killed), []);
    // The write of the flush when the store was closed is lost.
    *page_mut(&mut killed, page) = *page_mut(&mut before, page);
    assert!(is_reported(&killed, page));
}

#[test]
fn changes_of_pages_that_were_cut_off_are_dropped() {
    let disk = Disk::new(empty(128), u64::MAX, Random(1));
    let fill = |store: &Store| {
        (0..600).try_for_each(|key| store.write(|tx| tx.table(TABLES[0])?.insert(&key, &[1; 200]).map(drop)))
    };
    fill(&open(&disk).unwrap()).unwrap();
    let store = open(&disk).unwrap();
    let bytes = || lock(&disk).cached().len();
    let full = bytes();
    store.write(|tx| tx.table(TABLES[0])?.insert(&599, &[2; 200])).unwrap();
    store.write(|tx| tx.table(TABLES[0])?.remove_range(20..)).unwrap();
    store.compact().unwrap();
    // This disk has no smaller files.
    let mut killed = lock(&disk).cached().into_owned();
    let end = file(&killed).unwrap().end() as usize * PAGE;
    assert!(end < full, "{end} of {full} bytes");
    killed.truncate(end);
    assert_eq!(findings(&killed), []);
    let found = both(&open(&disk_of(killed)).unwrap()).unwrap();
    assert!(found[0].keys().copied().eq(0..20));
}

#[test]
fn a_page_that_an_extent_had_meanwhile_does_not_need_its_old_contents() {
    let disk = Disk::new(empty(4), u64::MAX, Random(1));
    // All versions stay in memory.
    let store = open_on(Box::new(OnDisk(Arc::clone(&disk))), 1 << 24, ObjectOptions::DEFAULT).unwrap();
    for bytes in [300, 3 * PAGE, 310, 3 * PAGE, 320] {
        for key in 0..40_u8 {
            store.write(|tx| tx.table(TABLES[0])?.insert(&key.into(), &vec![key; bytes])).unwrap();
            assert_eq!(findings(&lock(&disk).cached()), [], "entry {key} with {bytes} bytes");
        }
        store.write(|tx| tx.table(TABLES[0])?.remove_range::<u32>(..)).unwrap();
    }
}

/// Bytes that cannot be read.
#[derive(Debug)]
struct BadBytes(Range<u64>);

impl Hook for BadBytes {
    fn before_read(&self, bytes: Range<u64>) -> io::Result<()> {
        let is_bad = bytes.start < self.0.end && self.0.start < bytes.end;
        if is_bad { Err(io::Error::other("a bad sector")) } else { Ok(()) }
    }
}

#[test]
fn a_page_of_the_log_that_cannot_be_read_is_a_finding_and_recovery_does_not_replace_it() {
    let (killed, page) = killed_after(&image(), 300);
    let disk = disk(&killed);
    let bad = || Box::new(HookedDisk(OnDisk(Arc::clone(&disk)), BadBytes(offset_of(page)..offset_of(page + 1))));
    let (path, mut found) = (PathBuf::from("image"), Vec::new());
    check_opened(StoreFile::read(path.clone(), bad()), Scope::All, |finding| found.push(finding)).unwrap();
    assert!(found.len() == 1 && found[0].page() == u64::from(page) && found[0].is_loss(), "{found:?}");
    let error = recover(path, bad(), 1 << 20, &RecoveryOptions::default()).map(drop).unwrap_err();
    assert!(error.kind() == ErrorKind::Io && error.to_string().contains(&format!("page {page}")), "{error}");
    assert!(lock(&disk).cached() == killed, "the file is as it was");
}
