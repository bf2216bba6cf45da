//! Random damage with right checks: every read and every change returns, and none panics.

use std::convert::Infallible;

use crate::check::{Checked, Scope, check_opened};
use crate::check_tests::{change_page, disk, file, image, killed_image, page_mut, places};
use crate::crash::{Random, TABLES, both, open};
use crate::log::BLOCK;
use crate::page::{MAP, PAGE, kind, set_u32};
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
