//! What a fuzz target needs to get past the checks of a file: they are corrected after bytes were changed.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::header::Header;
use crate::log::BLOCK;
use crate::page::{MAP, NODE, PAGE, kind, seal, set_u64, u32_at, u64_at};

/// Bytes of the header of a record, and where the checks of headers, records and changes are.
const RECORD: usize = 64;
const HEADER_CHECK: usize = 48;
const CHANGES_CHECK: usize = 48;

/// Corrects the checks of a page of a file in which bytes were changed: of a copy of the header, of the records in
/// the half of the log that contains it, or of the page. Large values keep their checks.
pub fn correct_checks(image: &mut [u8], page: usize) {
    let copy = |page: usize| image.get(page * PAGE..)?.first_chunk::<BLOCK>().and_then(|copy| Header::parse(copy).ok());
    let Some(header) = [copy(0), copy(1)].into_iter().flatten().max_by_key(|header| header.epoch) else { return };
    let Some(contents) = image.get_mut(page * PAGE..).and_then(|rest| rest.first_chunk_mut::<PAGE>()) else { return };
    if page < 2 {
        let check = xxh3_64_with_seed(&contents[..HEADER_CHECK], u64_at(contents, 16));
        set_u64(contents, HEADER_CHECK, check);
    } else if page < header.first() as usize {
        let half =
            [0, 1].map(|epoch| header.half(epoch) as usize).into_iter().filter(|half| *half <= page * PAGE).max();
        let half = half.and_then(|half| image.get_mut(half..)?.get_mut(..header.half_bytes()));
        half.into_iter().for_each(|half| correct_log(half, header.store));
    } else if [NODE, MAP].contains(&kind(contents)) && u32_at(contents, 8) == page as u32 {
        seal(contents, page as u32, header.store);
    }
}

/// Corrects the checks of all records of a half.
fn correct_log(half: &mut [u8], store: u64) {
    let mut rest = half;
    while rest.len() >= RECORD && u64_at(rest, 8) != 0 {
        let bytes = u64_at(rest, 24) as usize;
        if let Some(changes) = rest[RECORD..].get(..bytes) {
            let check = xxh3_64_with_seed(changes, store);
            set_u64(rest, CHANGES_CHECK, check);
        }
        let check = xxh3_64_with_seed(&rest[8..RECORD], store);
        set_u64(rest, 0, check);
        let next = bytes.saturating_add(RECORD).checked_next_multiple_of(BLOCK).unwrap_or(usize::MAX);
        rest = rest.get_mut(next..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check_tests::{disk, file, findings, image, killed_image, page_mut};
    use crate::crash::{Random, TABLES, both, open};

    #[test]
    fn corrected_checks_are_right() {
        for whole in [image(), killed_image()] {
            let header = file(&whole).unwrap().header;
            for page in [0, 1, header.first() - 1, 2, header.first(), header.catalog()] {
                let mut image = whole.clone();
                correct_checks(&mut image, page as usize);
                assert!(image == whole || page == 1 - header.epoch as u32 % 2, "page {page}");
                page_mut(&mut image, page)[100] ^= 1;
                correct_checks(&mut image, page as usize);
                let _ = findings(&image);
                assert!(file(&image).is_ok());
            }
        }
    }

    #[test]
    fn no_changed_byte_with_right_checks_makes_a_read_panic() {
        let images = [image(), killed_image()];
        let mut random = Random(815);
        for round in 0..60 {
            let mut image = images[round % 2].clone();
            for _ in 0..=random.below(6) {
                let page = random.below((image.len() / PAGE) as u64) as usize;
                image[page * PAGE + random.below(PAGE as u64) as usize] = random.below(256) as u8;
                correct_checks(&mut image, page);
            }
            let _ = findings(&image);
            if let Ok(store) = open(&disk(&image)) {
                let _ = both(&store);
                let now = store.read().unwrap();
                let _ = now.table(TABLES[0]).and_then(|table| table.get(&3).map(drop));
            }
        }
    }
}
