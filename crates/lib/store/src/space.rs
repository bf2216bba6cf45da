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

/// The first unused page of a group that is not held, which is in use from now on.
pub(crate) fn take(page: &mut Page, is_held: impl Fn(u32) -> bool) -> Option<u32> {
    for at in (BITS..PAGE).step_by(8) {
        let word = u64_at(page, at);
        let mut unused = !word;
        while unused != 0 {
            let bit = unused.trailing_zeros();
            let index = (at - BITS) as u32 * 8 + bit;
            if !is_held(index) {
                set_u64(page, at, word | 1 << bit);
                return Some(index);
            }
            unused &= unused - 1;
        }
    }
    None
}

/// The first of `pages` adjacent unused pages of a group, none of which is held.
fn find_run(page: &Page, pages: u32, is_held: impl Fn(u32) -> bool) -> Option<u32> {
    let (mut start, mut index) = (1, 1);
    while index < GROUP {
        if index.is_multiple_of(8) && page[BITS + index as usize / 8] == u8::MAX {
            index += 8;
            start = index;
            continue;
        }
        if is_used(page, index) || is_held(index) {
            start = index + 1;
        } else if index + 1 - start == pages {
            return Some(start);
        }
        index += 1;
    }
    None
}

pub(crate) fn is_used(page: &Page, index: u32) -> bool {
    page[BITS + index as usize / 8] >> (index % 8) & 1 == 1
}

fn set_used(page: &mut Page, index: u32) {
    page[BITS + index as usize / 8] |= 1 << (index % 8);
}

fn set_unused(page: &mut Page, index: u32) {
    page[BITS + index as usize / 8] &= !(1 << (index % 8));
}

/// The map of a group, which is made if the file ends before it. `first` is the map of the first group.
fn map_of(editor: &mut Editor<'_>, first: u32, group: u32) -> Result<u32> {
    let map = first + group * GROUP;
    if map >= editor.edits.end {
        if editor.writer.held.contains(map) {
            // Snapshots may still read the map that was here.
            editor.keep(map);
            editor.page(map)?;
        }
        editor.extend(map)?;
        clear(editor.create(map)?);
    }
    Ok(map)
}

/// Takes a page for a node or a map. `first` is the map of the first group.
pub(crate) fn allocate(editor: &mut Editor<'_>, first: u32) -> Result<u32> {
    let writer = editor.writer;
    let mut group = editor.edits.group;
    loop {
        let map = map_of(editor, first, group)?;
        if let Some(index) = take(editor.edit(map)?, |index| writer.held.contains(map + index)) {
            editor.edits.group = group;
            editor.extend(map + index)?;
            return Ok(map + index);
        }
        group += 1;
    }
}

/// Takes adjacent pages for an extent, of the groups before a page; the first of them. `None` if there are
/// none.
pub(crate) fn allocate_run(editor: &mut Editor<'_>, first: u32, pages: u32, before: u32) -> Result<Option<u32>> {
    let mut group = editor.edits.run_group;
    while first + group * GROUP < before {
        let map = map_of(editor, first, group)?;
        let found = find_run(editor.page(map)?, pages, |index| !editor.can_contain_extents(map + index));
        if let Some(start) = found.filter(|start| map + start + pages <= before) {
            let page = editor.edit(map)?;
            (start..start + pages).for_each(|index| set_used(page, index));
            editor.edits.run_group = group;
            editor.extend(map + start + pages - 1)?;
            return Ok(Some(map + start));
        }
        group += 1;
    }
    Ok(None)
}

/// Pages that are in use, maps among them.
pub(crate) fn used_pages(editor: &Editor<'_>, first: u32) -> Result<u32> {
    let maps = (first..editor.edits.end).step_by(GROUP as usize);
    maps.map(|map| Ok(editor.page(map)?[BITS..].iter().map(|byte| byte.count_ones()).sum::<u32>())).sum()
}

/// The last page of a group that is in use; 0 is the map itself.
pub(crate) fn last_used(map: &Page) -> u32 {
    (1..GROUP).rev().find(|&index| is_used(map, index)).unwrap_or(0)
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
    editor.edits.run_group = editor.edits.run_group.min(group);
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
            assert_eq!(take(&mut map, |_| false), Some(index));
        }
        assert_eq!(take(&mut map, |_| false), None);
        set_unused(&mut map, 77);
        assert!(!is_used(&map, 77) && is_used(&map, 78));
        set_unused(&mut map, 79);
        assert_eq!(take(&mut map, |index| index == 77), Some(79));
        assert_eq!(take(&mut map, |_| false), Some(77));
    }

    #[test]
    fn a_run_has_only_adjacent_unused_pages() {
        let mut map = [0; PAGE];
        clear(&mut map);
        assert_eq!(find_run(&map, GROUP - 1, |_| false), Some(1));
        assert_eq!(find_run(&map, GROUP, |_| false), None);
        (1..100).for_each(|index| set_used(&mut map, index));
        (40..48).for_each(|index| set_unused(&mut map, index));
        assert_eq!([8, 9].map(|pages| find_run(&map, pages, |_| false)), [Some(40), Some(100)]);
        assert_eq!([4, 5].map(|pages| find_run(&map, pages, |index| index == 43)), [Some(44), Some(100)]);
    }
}
