//! A page as a value of a server or an object store, compressed by lz4 if that makes it smaller; and the
//! names of values.

use std::hash::{BuildHasher, RandomState};

use lz4_flex::block::{compress_into, decompress_into};

use crate::compressed::MAX_OUTPUT;
use crate::kernel::PAGE;
use crate::store::{Page, StoreError};

/// The start of the names of a store's values, which no other store has.
pub(crate) fn new_prefix(separator: char) -> String {
    let id = RandomState::new().hash_one(std::process::id());
    format!("fieldstone{separator}{id:016x}{separator}")
}

/// The value of a page.
pub(crate) fn pack(page: &Page) -> Vec<u8> {
    let mut output = [0; MAX_OUTPUT];
    match compress_into(&page[..], &mut output) {
        Ok(length) if length < PAGE => output[..length].to_vec(),
        _ => page.to_vec(),
    }
}

/// The page of a value.
///
/// # Errors
/// [`StoreError::Damaged`] if `value` is none of a page.
pub(crate) fn unpack(value: &[u8], page: &mut Page) -> Result<(), StoreError> {
    match <&Page>::try_from(value) {
        Ok(whole) => *page = *whole,
        Err(_) if matches!(decompress_into(value, &mut page[..]), Ok(PAGE)) => {}
        Err(_) => return Err(StoreError::Damaged),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_back_from_their_values() {
        let text: Page = std::array::from_fn(|at| (at / 9) as u8);
        let noise: Page = std::array::from_fn(|at| ((at * at * 31) >> 3) as u8 ^ (at * 7) as u8);
        for page in [text, noise, [0; PAGE]] {
            let mut back = [1; PAGE];
            assert_eq!(unpack(&pack(&page), &mut back), Ok(()));
            assert!(back == page);
        }
        assert!(pack(&text).len() < PAGE);
        assert_eq!(unpack(&pack(&text)[1..], &mut [0; PAGE]), Err(StoreError::Damaged));
    }
}
