//! Slots for new objects.
//!
//! A transaction fills one page of a type after the other: first the pages that have unused slots, then
//! new ones. The trees of the pages change only when a page is full, or new, or is freed.

use std::collections::HashMap;
use std::ops::Bound;

use crate::catalog;
use crate::editor::Editor;
use crate::error::{Error, ErrorKind, Result};
use crate::node::{LARGEST_ENTRY, Payload};
use crate::object::layout::Layout;
use crate::object::object_page::{self, ObjectPage};
use crate::object::types::{PAGES, ROOM, decode_page_key, page_key};
use crate::page::{OBJECT, kind};
use crate::tree::{self, Entries, Pages};

/// A type with the number that it has in the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NumberedType<'a> {
    pub(crate) number: u32,
    pub(crate) layout: &'a Layout,
}

/// A page of a transaction that must have objects.
pub(crate) fn object_page<'a>(pages: &'a impl Pages, number: u32) -> Result<ObjectPage<'a>> {
    let page = pages.page(number)?;
    if kind(page) == OBJECT { Ok(ObjectPage(page)) } else { Err(pages.wrong(number, "it has no objects")) }
}

/// Takes a slot for an object, and marks it as used. Returns its page and number. `filled` has the page that
/// is filled of each type.
pub(crate) fn take_slot(
    editor: &mut Editor<'_>,
    filled: &mut HashMap<u32, u32>,
    object: NumberedType<'_>,
) -> Result<(u32, usize)> {
    loop {
        let page = match filled.get(&object.number) {
            Some(&page) => page,
            None => page_with_room(editor, object)?,
        };
        filled.insert(object.number, page);
        let found = object_page(editor, page)?;
        if !found.has_type(object.number, object.layout) {
            return Err(editor.wrong(page, "it has objects of another type than the tree of the pages says"));
        }
        if let Some(slot) = found.unused() {
            object_page::set_used(editor.edit(page)?, slot);
            return Ok((page, slot));
        }
        filled.remove(&object.number);
        let room = catalog::root_or_new(editor, ROOM)?;
        tree::remove(editor, room, &page_key(object.number, page))?;
    }
}

/// The first page of a type that may have unused slots, or a new one.
fn page_with_room(editor: &mut Editor<'_>, object: NumberedType<'_>) -> Result<u32> {
    let room = catalog::root_or_new(editor, ROOM)?;
    let [from, to] = [page_key(object.number, 0), page_key(object.number, u32::MAX)];
    let first = Entries::new(&*editor, room, Bound::Included(&from), Bound::Included(&to))?
        .next_key()?
        .and_then(|key| decode_page_key(&key.to_vec()));
    if let Some((_, page)) = first {
        return Ok(page);
    }
    let page = editor.allocate()?;
    if !object_page::clear(editor.edit(page)?, object.number, object.layout) {
        let what = format!("objects of {} bytes with their pointers do not fit into a page", object.layout.size);
        return Err(Error::new(ErrorKind::TooLarge, &editor.shared.path, what).with_remedy("several smaller objects"));
    }
    let all = catalog::root_or_new(editor, PAGES)?;
    let key = page_key(object.number, page);
    tree::insert(editor, all, &key, Payload::Value(&[]))?;
    tree::insert(editor, room, &key, Payload::Value(&[]))?;
    Ok(page)
}

/// Frees a page without objects.
pub(crate) fn free_page(editor: &mut Editor<'_>, number: u32, page: u32) -> Result<()> {
    for table in [PAGES, ROOM] {
        let tree = catalog::root_or_new(editor, table)?;
        tree::remove(editor, tree, &page_key(number, page))?;
    }
    editor.free(page)
}

/// Records that a page has unused slots.
pub(crate) fn add_room(editor: &mut Editor<'_>, number: u32, page: u32) -> Result<()> {
    let room = catalog::root_or_new(editor, ROOM)?;
    tree::insert(editor, room, &page_key(number, page), Payload::Value(&[])).map(drop)
}

/// The longest name of a type or a root.
pub(crate) const LONGEST_NAME: usize = LARGEST_ENTRY / 2;
