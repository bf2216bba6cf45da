//! The difference between two versions of a page, in lines of 64 bytes.
//!
//! ```text
//! mask   a bit for each line that differs
//! lines  the new contents of each
//! ```
//! The checks of the two pages are not compared: an entry of the log contains the new one.

use crate::aligned::AlignedBuffer;
use crate::page::{CHECK, LINE, PAGE, Page};

/// Whether two lines differ. All words are compared, so that vector instructions are used.
fn differs(one: &[u8; LINE], other: &[u8; LINE]) -> bool {
    let words = one.as_chunks::<8>().0.iter().zip(other.as_chunks::<8>().0);
    words.fold(0, |found, (one, other)| found | (u64::from_le_bytes(*one) ^ u64::from_le_bytes(*other))) != 0
}

/// Appends the lines of `new` that differ from `old`. Returns their mask.
pub(crate) fn append(new: &Page, old: &Page, bytes: &mut AlignedBuffer) -> u64 {
    let (new_lines, old_lines) = (new.as_chunks::<LINE>().0, old.as_chunks::<LINE>().0);
    let mut mask = u64::from(new[CHECK..LINE] != old[CHECK..LINE]);
    for (index, (line, before)) in new_lines.iter().zip(old_lines).enumerate().skip(1) {
        mask |= u64::from(differs(line, before)) << index;
    }
    let mut rest = mask;
    while rest != 0 {
        bytes.extend_from_slice(&new_lines[rest.trailing_zeros() as usize]);
        rest &= rest - 1;
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

    fn lines_of(new: &Page, old: &Page) -> (u64, AlignedBuffer) {
        let mut bytes = AlignedBuffer::with_capacity(0);
        (append(new, old, &mut bytes), bytes)
    }

    #[test]
    fn applied_lines_make_the_new_page() {
        let old: Page = std::array::from_fn(|index| index as u8);
        let mut new = old;
        for at in [8, 63, 64, 1000, 4095] {
            new[at] ^= 1;
        }
        let (mask, bytes) = lines_of(&new, &old);
        assert_eq!((mask.count_ones(), bytes.len()), (4, 4 * LINE));
        let mut page = old;
        assert_eq!(apply(&mut page, mask, &bytes), Some(bytes.len()));
        assert_eq!(page, new);
        assert_eq!(apply(&mut page, mask, &bytes[1..]), None);
    }

    #[test]
    fn each_changed_byte_behind_the_check_changes_its_line_only() {
        let old: Page = std::array::from_fn(|index| (index * 7) as u8);
        for at in 0..PAGE {
            let mut new = old;
            new[at] ^= 0x80;
            let (mask, bytes) = lines_of(&new, &old);
            let expected = if at < CHECK { 0 } else { 1 << (at / LINE) };
            assert_eq!((mask, bytes.len()), (expected, mask.count_ones() as usize * LINE), "byte {at}");
        }
    }
}
