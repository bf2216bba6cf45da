//! Random damage with right checks: every read and every change returns, and none panics.

use std::convert::Infallible;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::check::{Checked, Scope, check_opened};
use crate::check_tests::{change_page, disk, file, fill_block, findings, image, killed_image, page_mut, places};
use crate::crash::{OnDisk, Random, TABLES, both, open, open_as};
use crate::finding::Lost;
use crate::header::Header;
use crate::lock::lock;
use crate::log::BLOCK;
use crate::log_records;
use crate::object::ObjectOptions;
use crate::page::{MAP, PAGE, kind, set_u32, set_u64};
use crate::progress::{OnRecovery, RecoveryOptions};
use crate::{ErrorKind, Result};

/// All that reads a file; errors are as good as results.
fn read_everything(image: &[u8]) -> Result<Checked> {
    let checked = check_opened(file(image), Scope::All, drop);
    if let Ok(file) = file(image) {
        let _ = file.stat();
        let Ok(()) = file.read_all(|_| Ok::<(), Infallible>(()));
        let Ok(()) = file.salvage(|_| Ok::<(), Infallible>(()));
    }
    if let Ok(store) = open(&disk(image)) {
        let _ = both(&store);
    }
    checked
}

/// Changes a store by all operations; errors are as good as results.
fn change_everything(image: &[u8], random: &mut Random) {
    // The disk of the tests has no holes: a header with a wrong end would take all memory.
    if file(image).is_ok_and(|file| file.end() as usize > image.len() / PAGE + 4096) {
        return;
    }
    let Ok(store) = open(&disk(image)) else { return };
    for _ in 0..6 {
        let _ = store.write(|tx| {
            for _ in 0..12 {
                let key = random.below(700) as u32;
                let mut table = tx.table(TABLES[random.below(2) as usize])?;
                match random.below(8) {
                    0 => drop(table.remove_range(key..key + 60)?),
                    1 | 2 => drop(table.remove(&key)?),
                    _ => drop(table.insert(&key, &vec![7; random.below(1500) as usize])?),
                }
            }
            Ok(())
        });
    }
    let _ = store.compact();
    let _ = store.write(|tx| tx.table(TABLES[0])?.remove_range::<u32>(..));
}

/// Damages images at random, and uses them.
fn use_damaged(rounds: usize, seed: u64, use_image: impl Fn(&[u8], &mut Random)) {
    let images = [image(), killed_image()];
    let mut random = Random(seed);
    for round in 0..rounds {
        let mut image = images[round % 2].clone();
        for _ in 0..=random.below(3) {
            damage(&mut image, &mut random);
        }
        use_image(&image, &mut random);
    }
}

/// Damages one page, one header or the log, and corrects the checks.
pub(crate) fn damage(image: &mut Vec<u8>, random: &mut Random) {
    let Ok(file) = file(image) else { return };
    let (header, end) = (file.header, file.end());
    match random.below(8) {
        0 => {
            let mut fields = header;
            match random.below(4) {
                0 => fields.epoch = random.below(u64::MAX),
                1 => fields.sequence = random.below(u64::MAX),
                2 => fields.log_pages = random.below(40) as u32,
                _ => fields.end = random.below(1 << 27) as u32,
            }
            image[header.offset() as usize..][..BLOCK].copy_from_slice(&fields.bytes());
        }
        1 => image.truncate(random.below(image.len() as u64) as usize),
        2 => {
            let at = header.half(header.epoch) as usize + random.below(header.half_bytes() as u64) as usize;
            let flipped = random.below(256) as u8;
            image.get_mut(at).into_iter().for_each(|byte| *byte ^= flipped);
        }
        _ => {
            let page = header.first() + random.below(u64::from(end - header.first())) as u32;
            if (page as usize + 1) * PAGE > image.len() {
                return;
            }
            change_page(image, page, |page| {
                for _ in 0..=random.below(6) {
                    let near_start = 12 + random.below(80) as usize;
                    let at = if random.below(2) == 0 { near_start } else { random.below(PAGE as u64) as usize };
                    page[at] = random.below(256) as u8;
                }
                if random.below(6) == 0 {
                    set_u32(page, 36, random.below(u64::from(end) + 2) as u32);
                }
            });
        }
    }
}

#[test]
fn no_damage_with_right_checks_makes_a_reader_panic() {
    use_damaged(40, 4711, |image, _| drop(read_everything(image)));
}

#[test]
fn no_damage_with_right_checks_makes_a_change_panic() {
    use_damaged(60, 4712, change_everything);
}

#[test]
#[ignore = "takes minutes: 20,000 random images"]
fn no_damage_of_many_images_makes_a_change_panic() {
    use_damaged(20_000, 4713, change_everything);
}

#[test]
fn a_map_in_a_tree_is_an_error() {
    let whole = image();
    let (header, _, _, root) = places(&whole);
    let mut image = whole;
    change_page(&mut image, root, |page| crate::node::set_first_child(page, header.first()));
    // The map has bytes that would be a node with entries outside of the page.
    change_page(&mut image, header.first(), |page| page[13..16].fill(0xff));
    assert_eq!(kind(page_mut(&mut image, header.first())), MAP);
    let error = open(&disk(&image)).and_then(|store| both(&store)).unwrap_err();
    assert_eq!((error.kind(), error.page()), (ErrorKind::Corrupt, Some(header.first())));
}

/// The records of the log of an image: where each is, and its commit.
fn records(image: &[u8]) -> Vec<(Range<usize>, u64)> {
    let header = file(image).unwrap().header;
    let start = header.half(header.epoch) as usize;
    let half = &image[start..start + header.half_bytes()];
    let place =
        |(at, record): (usize, log_records::Record)| (start + at..start + at + record.found.in_log(), record.sequence);
    log_records::leading(half, header.store).map(place).collect()
}

#[test]
fn a_damaged_record_with_durable_commits_behind_it_is_an_error_that_changes_nothing() {
    let killed = killed_image();
    let all = records(&killed);
    let last = all.last().unwrap().1;
    assert!(all.len() > 8, "{} records", all.len());
    for (place, sequence) in &all[..all.len() - 1] {
        // In the header of the record, and in its lines.
        for at in [place.start + 20, place.start + 90] {
            let mut image = killed.clone();
            image[at] ^= 1;
            let found = findings(&image);
            assert!(found.iter().any(|finding| finding.lost == Lost::Commits(*sequence, last)), "{found:?}");
            let disk = disk(&image);
            let error = open(&disk).map(drop).unwrap_err();
            let text = format!("a record of the log is damaged, commits {sequence} to {last} are lost");
            assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains(&text), "{error}");
            assert!(error.remedy().unwrap().contains("accept_lost_commits"), "{error}");
            assert!(lock(&disk).cached() == image, "the file has changed");
        }
    }
}

#[test]
fn a_store_with_a_damaged_record_opens_if_the_loss_is_accepted() {
    let killed = killed_image();
    let all = records(&killed);
    let last = all.last().unwrap().1;
    for (index, (place, sequence)) in all[..all.len() - 1].iter().enumerate() {
        let mut image = killed.clone();
        image[place.start + 90] ^= 1;
        let disk = disk(&image);
        let reports = Arc::new(Mutex::new(Vec::new()));
        let on_recovery = OnRecovery::new({
            let reports = Arc::clone(&reports);
            move |progress| lock(&reports).push(progress)
        });
        let recovery = RecoveryOptions { on_recovery, accepts_lost_commits: true };
        let storage = Box::new(OnDisk(Arc::clone(&disk)));
        let store = open_as(storage, 1 << 20, ObjectOptions::DEFAULT, &recovery).unwrap();
        assert!(lock(&reports).last().is_some_and(|report| report.lost_commits == last - sequence + 1));
        // A commit of this store has 50 entries of the first table.
        assert_eq!(both(&store).unwrap()[0].len(), index * 50);
        // The next commits have the numbers of the lost ones, whose records never follow them.
        for key in 0..3 {
            store.write(|tx| tx.table(TABLES[0])?.insert(&(1000 + key), &[1; 120])).unwrap();
            let killed = lock(&disk).cached().into_owned();
            assert_eq!(findings(&killed), [], "after {sequence} commits");
            let again = both(&open(&crate::check_tests::disk(&killed)).unwrap()).unwrap();
            assert_eq!(again[0].len(), index * 50 + key as usize + 1);
        }
    }
}

/// Makes the records from an index on those of one write.
fn join_records(image: &mut [u8], index: usize) {
    let (all, store) = (records(image), file(image).unwrap().header.store);
    for (place, _) in &all[index..] {
        let record = &mut image[place.start..place.start + 64];
        set_u64(record, 56, all[index].1 - 1);
        let check = xxh3_64_with_seed(&record[8..], store);
        set_u64(record, 0, check);
    }
}

#[test]
fn a_torn_record_of_the_last_write_is_no_damage() {
    let killed = killed_image();
    for (index, (place, sequence)) in records(&killed).iter().enumerate() {
        let mut image = killed.clone();
        join_records(&mut image, index);
        image[place.start + 90] ^= 1;
        assert_eq!(findings(&image), [], "commit {sequence}");
        assert_eq!(both(&open(&disk(&image)).unwrap()).unwrap()[0].len(), index * 50);
    }
}

#[test]
fn records_of_a_torn_write_never_follow_a_new_one() {
    let mut image = killed_image();
    let first = records(&image)[0].0.start;
    join_records(&mut image, 0);
    // The records are those of the epoch after that of the header.
    let header = file(&image).unwrap().header;
    let before = Header { epoch: header.epoch - 1, ..header };
    image[..2 * PAGE].fill(0);
    image[before.offset() as usize..][..BLOCK].copy_from_slice(&before.bytes());
    image[first + 90] ^= 1;
    let disk = disk(&image);
    let store = open(&disk).unwrap();
    // A commit whose record is as long as the torn one.
    fill_block(&store, 0);
    let killed = lock(&disk).cached().into_owned();
    assert_eq!(both(&open(&crate::check_tests::disk(&killed)).unwrap()).unwrap()[0].len(), 50);
}

#[test]
fn a_file_that_was_cut_is_an_error_that_changes_nothing() {
    for (whole, is_killed) in [(image(), false), (killed_image(), true)] {
        let header = file(&whole).unwrap().header;
        for pages in header.first()..header.end {
            let cut = &whole[..pages as usize * PAGE + 100];
            let disk = disk(cut);
            let error = open(&disk).map(drop).unwrap_err();
            let text = format!("the file has {} bytes, and its header says", cut.len());
            assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains(&text), "{is_killed}: {error}");
            assert!(error.remedy().unwrap().contains("dump --salvage"), "{error}");
            assert!(lock(&disk).cached() == cut, "the file has changed");
            let mut found = Vec::new();
            check_opened(file(cut), Scope::Quick, |finding| found.push(finding)).unwrap();
            let last = file(cut).unwrap().end() - 1;
            assert!(found.len() == 1 && found[0].lost == Lost::Pages(pages, last), "{found:?}");
        }
        // What the log has made larger may be in the log only.
        if is_killed {
            let cut = &whole[..header.end as usize * PAGE];
            assert!(cut.len() < whole.len());
            assert_eq!(findings(cut).iter().filter(|finding| matches!(finding.lost, Lost::Pages(..))).count(), 0);
            let disk = disk(cut);
            drop(open(&disk).unwrap());
            let recovered = lock(&disk).cached().into_owned();
            let header = file(&recovered).unwrap().header;
            assert!(recovered.len() >= header.end as usize * PAGE, "the file is as long as its header says");
        }
    }
}

#[test]
fn pages_below_a_damaged_branch_are_not_reported_as_lost_space() {
    let mut image = image();
    let (_, _, _, root) = places(&image);
    page_mut(&mut image, root)[100] ^= 1;
    let found = findings(&image);
    let unreferenced: Vec<_> =
        found.iter().filter(|finding| finding.what.contains("no tree that can be read")).collect();
    assert!(!unreferenced.is_empty());
    assert!(unreferenced.iter().all(|finding| matches!(finding.lost, Lost::Unreachable(_))), "{unreferenced:?}");
}
