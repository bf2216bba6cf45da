//! Which pages are in use: a bit for each page, in a map page for each group.
//!
//! ```text
//! group 0   map │ pages …          32,640 pages, their map the first of them
//! group 1   map │ pages …
//! ```

use crate::editor::Editor;
use crate::error::Result;
use crate::page::{MAP, PAGE, Page, set_kind, set_u64, u64_at};
use crate::tree::Pages;

/// Where the bits begin.
const BITS: usize = 16;
/// Pages of a group.
pub(crate) const GROUP: u32 = ((PAGE - BITS) * 8) as u32;

/// Makes a page the map of a group, in which only the map itself is in use.
pub(crate) fn clear(page: &mut Page) {
    page.fill(0);
    set_kind(page, MAP);
    page[BITS] = 1;
}

/// The first unused page of a group, which is in use from now on.
pub(crate) fn take(page: &mut Page) -> Option<u32> {
    for at in (BITS..PAGE).step_by(8) {
        let word = u64_at(page, at);
        if word != u64::MAX {
            let bit = (!word).trailing_zeros();
            set_u64(page, at, word | 1 << bit);
            return Some((at - BITS) as u32 * 8 + bit);
        }
    }
    None
}

pub(crate) fn is_used(page: &Page, index: u32) -> bool {
    page[BITS + index as usize / 8] >> (index % 8) & 1 == 1
}

fn set_unused(page: &mut Page, index: u32) {
    page[BITS + index as usize / 8] &= !(1 << (index % 8));
}

/// Takes a page. `first` is the map of the first group.
pub(crate) fn allocate(editor: &mut Editor<'_>, first: u32) -> Result<u32> {
    let mut group = editor.edits.group;
    loop {
        let map = first + group * GROUP;
        if map >= editor.edits.end {
            editor.extend(map)?;
            clear(editor.create(map)?);
        }
        if let Some(index) = take(editor.edit(map)?) {
            editor.edits.group = group;
            editor.extend(map + index)?;
            return Ok(map + index);
        }
        group += 1;
    }
}

/// Returns a page.
pub(crate) fn free(editor: &mut Editor<'_>, first: u32, number: u32) -> Result<()> {
    let Some(at) = number.checked_sub(first) else { return Err(editor.wrong(number, "it is part of no tree")) };
    let group = at / GROUP;
    let (map, index) = (first + group * GROUP, at % GROUP);
    if index == 0 || !is_used(editor.page(map)?, index) {
        return Err(editor.wrong(number, "it is freed and not in use"));
    }
    set_unused(editor.edit(map)?, index);
    editor.edits.group = editor.edits.group.min(group);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_of_a_group_is_taken_once() {
        let mut map = [0; PAGE];
        clear(&mut map);
        for index in 1..GROUP {
            assert_eq!(take(&mut map), Some(index));
        }
        assert_eq!(take(&mut map), None);
        set_unused(&mut map, 77);
        assert!(!is_used(&map, 77) && is_used(&map, 78));
        assert_eq!(take(&mut map), Some(77));
    }
}
