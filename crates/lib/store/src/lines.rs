//! The difference between two versions of a page, in lines of 64 bytes.
//!
//! ```text
//! mask   a bit for each line that differs
//! lines  the new contents of each
//! ```

use crate::page::{PAGE, Page};

/// Bytes of a line.
const LINE: usize = 64;

/// Appends the lines of `new` that differ from `old`. Returns their mask.
pub(crate) fn append(new: &Page, old: &Page, bytes: &mut Vec<u8>) -> u64 {
    let mut mask = 0;
    for (index, (line, before)) in new.as_chunks::<LINE>().0.iter().zip(old.as_chunks::<LINE>().0).enumerate() {
        if line != before {
            mask |= 1 << index;
            bytes.extend_from_slice(line);
        }
    }
    mask
}

/// Writes lines into a page. Returns how many bytes they took; `None` if there are too few.
pub(crate) fn apply(page: &mut Page, mask: u64, bytes: &[u8]) -> Option<usize> {
    let mut rest = bytes;
    for index in (0..PAGE / LINE).filter(|index| mask >> index & 1 == 1) {
        let (line, behind) = rest.split_at_checked(LINE)?;
        page[index * LINE..][..LINE].copy_from_slice(line);
        rest = behind;
    }
    Some(bytes.len() - rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn applied_lines_make_the_new_page() {
        let old: Page = std::array::from_fn(|index| index as u8);
        let mut new = old;
        for at in [0, 63, 64, 1000, 4095] {
            new[at] ^= 1;
        }
        let mut bytes = Vec::new();
        let mask = append(&new, &old, &mut bytes);
        assert_eq!((mask.count_ones(), bytes.len()), (4, 4 * LINE));
        let mut page = old;
        assert_eq!(apply(&mut page, mask, &bytes), Some(bytes.len()));
        assert_eq!(page, new);
        assert_eq!(apply(&mut page, mask, &bytes[1..]), None);
        assert_eq!(append(&old, &old, &mut bytes), 0);
    }
}
