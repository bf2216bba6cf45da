//! Tests of checks, statistics and dumps with damaged images of a store in memory.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use crate::check::{Scope, check_opened};
use crate::crash::{Disk, OnDisk, Random, TABLES, empty, open};
use crate::finding::{Finding, Lost};
use crate::header::Header;
use crate::lock::lock;
use crate::log::BLOCK;
use crate::node::Node;
use crate::page::{PAGE, Page, seal, set_u16, u32_at};
use crate::raw::{RawItem, RawTable};
use crate::space::is_used;
use crate::store_file::StoreFile;
use crate::{ErrorKind, Result, Store};

/// Entries of the first table.
const ENTRIES: u32 = 600;

pub(crate) fn disk(image: &[u8]) -> Arc<Mutex<Disk>> {
    Disk::new(image.to_vec(), u64::MAX, Random(1))
}

pub(crate) fn file(image: &[u8]) -> Result<StoreFile> {
    StoreFile::read(PathBuf::from("image"), Box::new(OnDisk(disk(image))))
}

fn fill(store: &Store) {
    (0..ENTRIES / 50).for_each(|block| fill_block(store, block));
}

/// Commits 50 entries of the first table, and one of the second.
pub(crate) fn fill_block(store: &Store, block: u32) {
    let insert = store.write(|tx| {
        for key in block * 50..block * 50 + 50 {
            tx.table(TABLES[0])?.insert(&key, &[key as u8; 120])?;
        }
        // Some are in extents.
        let bytes = if block.is_multiple_of(4) { 3 * PAGE } else { 300 };
        tx.table(TABLES[1])?.insert(&block, &vec![1; bytes]).map(drop)
    });
    insert.unwrap();
}

/// The image of a store that was closed.
pub(crate) fn image() -> Vec<u8> {
    let disk = disk(&empty(16));
    fill(&open(&disk).unwrap());
    lock(&disk).cached().into_owned()
}

/// The image of a store that was killed: its last commits are in the log only.
pub(crate) fn killed_image() -> Vec<u8> {
    let disk = disk(&empty(128));
    let store = open(&disk).unwrap();
    fill(&store);
    lock(&disk).cached().into_owned()
}

/// What a check finds.
pub(crate) fn findings(image: &[u8]) -> Vec<Finding> {
    let mut all = Vec::new();
    let checked = check_opened(file(image), Scope::All, |finding| all.push(finding)).unwrap();
    assert_eq!(checked.findings, all.len() as u64);
    all
}

fn is_found(image: &[u8], page: u32) -> bool {
    findings(image).iter().any(|finding| finding.page() == u64::from(page))
}

pub(crate) fn page_mut(image: &mut [u8], number: u32) -> &mut Page {
    (&mut image[number as usize * PAGE..][..PAGE]).try_into().unwrap()
}

/// Changes a page and its check.
pub(crate) fn change_page(image: &mut [u8], number: u32, change: impl FnOnce(&mut Page)) {
    let store = file(image).unwrap().header.store;
    let page = page_mut(image, number);
    change(page);
    seal(page, number, store);
}

/// The keys of the first table, and the number of findings.
fn keys(image: &[u8], is_salvage: bool) -> (BTreeSet<u32>, u64) {
    let (mut keys, mut missing) = (BTreeSet::new(), 0);
    let file = file(image).unwrap();
    let take = |item: RawItem<'_>| {
        match item {
            RawItem::Entry(table, key, _) if table.name == "one" => {
                keys.insert(u32::from_be_bytes(key.try_into().unwrap()));
            }
            RawItem::Missing(_) => missing += 1,
            _ => {}
        }
        Ok::<(), Infallible>(())
    };
    let Ok(()) = if is_salvage { file.salvage(take) } else { file.read_all(take) };
    (keys, missing)
}

/// Header, map, end, and the root of the first table.
pub(crate) fn places(image: &[u8]) -> (Header, Page, u32, u32) {
    let mut image = image.to_vec();
    let file = file(&image).unwrap();
    let (header, end) = (file.header, file.end());
    let map = *page_mut(&mut image, header.first());
    let catalog = *page_mut(&mut image, header.catalog());
    (header, map, end, u32_at(Node(&catalog).value(0), 0))
}

#[test]
fn a_flipped_byte_in_any_page_in_use_is_found() {
    let whole = image();
    assert_eq!(findings(&whole), []);
    let (header, map, end, _) = places(&whole);
    let mut in_use = 0;
    for page in header.first()..end {
        let mut image = whole.clone();
        page_mut(&mut image, page)[page as usize * 997 % PAGE] ^= 0x10;
        if is_used(&map, page - header.first()) {
            // The check of a large value covers all its pages.
            let is_found = |found: &Finding| {
                let pages = if found.what.contains("large value") { 3 } else { 1 };
                (found.page()..found.page() + pages).contains(&page.into())
            };
            assert!(findings(&image).iter().any(is_found), "page {page}");
            in_use += 1;
        } else {
            assert_eq!(findings(&image), [], "page {page}");
        }
    }
    assert!(in_use > 20, "{in_use}");
    for copy in [0, 1] {
        let mut image = whole.clone();
        page_mut(&mut image, copy)[50] ^= 1;
        let found = findings(&image);
        assert_eq!((found[0].page(), &found[0].lost), (u64::from(copy), &Lost::Nothing));
    }
    let mut image = whole;
    (page_mut(&mut image, 0)[50], page_mut(&mut image, 1)[50]) = (7, 7);
    assert_eq!(findings(&image)[0].lost, Lost::All);
}

#[test]
fn a_damaged_leaf_loses_the_keys_between_its_fences() {
    let mut image = image();
    let (_, _, _, root) = places(&image);
    let page = *page_mut(&mut image, root);
    let node = Node(&page);
    assert!(node.level() == 1 && node.count() > 3);
    page_mut(&mut image, node.child(2))[100] ^= 1;
    let (mut from, mut to) = (Vec::new(), Vec::new());
    node.append_key(1, &mut from);
    node.append_key(2, &mut to);
    let table = RawTable { name: "one".into(), key_type: "u32".into(), value_type: "bytes".into() };
    let lost = Lost::Entries { table, from, to: Some(to) };
    assert_eq!(findings(&image), [Finding::at_page(node.child(2), "its check is wrong", lost)]);
}

#[test]
fn a_page_with_a_right_check_and_wrong_contents_is_found() {
    let whole = image();
    let (header, _, _, root) = places(&whole);
    let mut random = Random(99);
    for page in [header.first(), header.catalog(), root] {
        for _ in 0..20 {
            let mut image = whole.clone();
            change_page(&mut image, page, |page| page[12..].fill_with(|| random.below(256) as u8));
            assert!(is_found(&image, page), "page {page}");
        }
    }
    let mut branch = whole.clone();
    let root_page = *page_mut(&mut branch, root);
    let (first, second) = (Node(&root_page).child(0), Node(&root_page).child(1));
    // A leaf at the place of another one.
    let mut image = whole.clone();
    let other = *page_mut(&mut image, second);
    change_page(&mut image, first, |page| *page = other);
    assert!(is_found(&image, first));
    // The same leaf twice, and pages that are no leaves.
    for child in [second, root, header.first(), 0, 3, u32::MAX] {
        let mut image = whole.clone();
        change_page(&mut image, root, |page| crate::node::set_first_child(page, child));
        assert!(!findings(&image).is_empty(), "child {child}");
    }
    let mut image = whole;
    change_page(&mut image, first, |page| set_u16(page, 26, 1));
    assert!(is_found(&image, first));
}

#[test]
fn maps_are_compared_with_the_trees() {
    let whole = image();
    let (header, map, end, root) = places(&whole);
    let first = header.first();
    let flip = |number: u32| {
        let mut image = whole.clone();
        change_page(&mut image, first, |page| page[16 + (number - first) as usize / 8] ^= 1 << ((number - first) % 8));
        findings(&image)
    };
    let found = flip(root);
    assert!(found.len() == 1 && found[0].what.contains("unused in the map"), "{found:?}");
    assert_eq!(found[0].page(), u64::from(root));
    let found = flip(end + 5);
    assert!(found.len() == 1 && found[0].what.contains("behind the end"), "{found:?}");
    if let Some(unused) = (first..end).find(|&number| !is_used(&map, number - first)) {
        let found = flip(unused);
        assert!(found.len() == 1 && found[0].lost == Lost::Space(PAGE as u64), "{found:?}");
    }
    assert!(!flip(first).is_empty());
}

#[test]
fn pages_that_are_swapped_or_zero_are_damaged() {
    let whole = image();
    let (header, map, end, root) = places(&whole);
    let is_in_use = |number: &u32| is_used(&map, number - header.first());
    let others: Vec<u32> = (header.first()..end).filter(|number| is_in_use(number) && *number != root).collect();
    let root_page = *page_mut(&mut whole.clone(), root);
    for other in others {
        let mut image = whole.clone();
        let other_page = std::mem::replace(page_mut(&mut image, other), root_page);
        *page_mut(&mut image, root) = other_page;
        assert!(is_found(&image, root), "pages {root} and {other}");
        let mut image = whole.clone();
        page_mut(&mut image, other).fill(0);
        let lost = findings(&image);
        // Pages of a large value are zeros of that value.
        assert!(lost.iter().any(|found| (found.page()..found.page() + 3).contains(&u64::from(other))), "page {other}");
    }
    let mut image = whole;
    page_mut(&mut image, root).fill(0);
    let error = open(&disk(&image)).and_then(|store| crate::crash::both(&store)).unwrap_err();
    assert_eq!((error.kind(), error.page()), (ErrorKind::Corrupt, Some(root)));
    assert!(error.to_string().contains("zeros only"), "{error}");
}

#[test]
fn each_truncation_is_found() {
    let whole = image();
    let (_, _, end, _) = places(&whole);
    for pages in 0..end {
        let bytes = pages as usize * PAGE + 100;
        if bytes < end as usize * PAGE {
            assert!(!findings(&whole[..bytes]).is_empty(), "{bytes} bytes");
        }
    }
}

#[test]
fn a_store_that_was_killed_is_read_through_its_log() {
    let killed = killed_image();
    assert_eq!(findings(&killed), []);
    assert_eq!(keys(&killed, false), ((0..ENTRIES).collect(), 0));
    let file = file(&killed).unwrap();
    let stat = file.stat().unwrap();
    assert!(stat.unrecovered_commits > 5 && stat.recent_commits.commits >= stat.unrecovered_commits, "{stat:?}");
    assert_eq!((stat.tables.len(), stat.tables[0].entries), (2, u64::from(ENTRIES)));
    // Recovery leaves the same entries.
    let disk = disk(&killed);
    drop(open(&disk).unwrap());
    let recovered = lock(&disk).cached().into_owned();
    assert_eq!((findings(&recovered), keys(&recovered, false).0.len()), (Vec::new(), ENTRIES as usize));
}

#[test]
fn a_record_that_others_follow_is_not_the_end_of_the_log() {
    let killed = killed_image();
    let half = file(&killed).unwrap().header.half(file(&killed).unwrap().header.epoch) as usize;
    let mut image = killed.clone();
    image[half + 100] ^= 1;
    let found = findings(&image);
    let last = file(&killed).unwrap().log.sequence;
    assert_eq!((found[0].offset, &found[0].lost), (half as u64, &Lost::Commits(1, last)));
    assert_eq!(file(&image).unwrap().stat().unwrap_err().kind(), ErrorKind::Corrupt);
    // The last record may be half written: that is no damage.
    let mut image = killed;
    let log_end = half + file(&image).unwrap().header.half_bytes();
    let in_log = image[half..log_end].chunks(BLOCK).rposition(|block| block.iter().any(|&byte| byte != 0)).unwrap();
    image[half + in_log * BLOCK] ^= 1;
    assert!(findings(&image).iter().all(|finding| !finding.is_loss()));
}

#[test]
fn salvage_finds_the_leaves_of_a_damaged_root() {
    let mut image = image();
    let (_, _, _, root) = places(&image);
    let page = *page_mut(&mut image, root);
    page_mut(&mut image, root)[9] ^= 1;
    let all: BTreeSet<u32> = (0..ENTRIES).collect();
    assert_eq!(keys(&image, false), (BTreeSet::new(), 1));
    assert_eq!(keys(&image, true), (all.clone(), 1));
    // Of a leaf that is damaged as well, the keys are missing.
    let leaf = Node(&page).child(1);
    page_mut(&mut image, leaf)[9] ^= 1;
    let (found, missing) = keys(&image, true);
    assert!(found.len() > 500 && found.len() < all.len() && missing == 1, "{} keys, {missing} missing", found.len());
}
