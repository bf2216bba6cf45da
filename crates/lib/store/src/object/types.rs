//! The trees that objects need: types, roots, and the pages of each type.
//!
//! ```text
//! fieldstone.types          name ─→ number, layout
//! fieldstone.roots          name ─→ number of the type, address
//! fieldstone.object_pages   number of a type, page ─→ nothing
//! fieldstone.object_room    the same, of pages that may have unused slots
//! ```
//! They are tables of the catalog, so that recovery, backup, check and `compact` treat them as others.
//! Types are never removed, and their numbers never change.

use std::ops::Bound;

use crate::catalog::{self, Signature};
use crate::editor::Editor;
use crate::error::{Error, ErrorKind, Result};
use crate::node::{LARGEST_ENTRY, Payload};
use crate::object::layout::Layout;
use crate::object::object_page::MOST_ADDRESSES;
use crate::page::{set_u32, set_u64, u32_at, u64_at};
use crate::shared::Shared;
use crate::tree::{self, Entries, Pages};

/// How the names of these tables begin. No table of a program has such a name.
const RESERVED: &str = "fieldstone.";
pub(crate) const TYPES: Signature<'_> = Signature { name: "fieldstone.types", key: "text", value: "bytes" };
pub(crate) const ROOTS: Signature<'_> = Signature { name: "fieldstone.roots", key: "text", value: "bytes" };
pub(crate) const PAGES: Signature<'_> = Signature { name: "fieldstone.object_pages", key: "u64", value: "bytes" };
pub(crate) const ROOM: Signature<'_> = Signature { name: "fieldstone.object_room", key: "u64", value: "bytes" };

pub(crate) fn is_reserved(table: &str) -> bool {
    table.starts_with(RESERVED)
}

/// Refuses the names of tables that belong to the store.
pub(crate) fn check_table_name(shared: &Shared, table: &str) -> Result<()> {
    if !is_reserved(table) {
        return Ok(());
    }
    let what = format!("cannot use the table {table}: names that begin with {RESERVED} belong to the store");
    Err(Error::new(ErrorKind::Type, &shared.path, what).with_remedy("another name"))
}

/// The key of a page of a type in the trees of the pages.
pub(crate) fn page_key(number: u32, page: u32) -> [u8; 8] {
    (u64::from(number) << 32 | u64::from(page)).to_be_bytes()
}

/// The number of a type and the page of such a key.
pub(crate) fn decode_page_key(key: &[u8]) -> Option<(u32, u32)> {
    let key = u64::from_be_bytes(key.try_into().ok()?);
    Some(((key >> 32) as u32, key as u32))
}

/// Whether a page has objects of a type. The contents of a page do not say so: they stay when it is freed.
pub(crate) fn has_page(pages: &impl Pages, shared: &Shared, number: u32, page: u32) -> Result<bool> {
    let Some(tree) = catalog::root(pages, shared, PAGES)? else { return Ok(false) };
    Ok(tree::get(pages, tree, &page_key(number, page))?.is_some())
}

/// Whether a page has objects of any type. The page itself is not read.
///
/// Cost: a search in a tree for each type of the store.
pub(crate) fn has_page_of_any(pages: &impl Pages, shared: &Shared, page: u32) -> Result<bool> {
    for number in 1..=count(pages, shared)? {
        if has_page(pages, shared, number, page)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The number of types, which is the largest number of one.
fn count(pages: &impl Pages, shared: &Shared) -> Result<u32> {
    let Some(tree) = catalog::root(pages, shared, TYPES)? else { return Ok(0) };
    let (mut entries, mut count) = (Entries::new(pages, tree, Bound::Unbounded, Bound::Unbounded)?, 0);
    while entries.next_key()?.is_some() {
        count += 1;
    }
    Ok(count)
}

/// Why a page has no objects of a type: it has those of another type, or none, or that cannot be read.
pub(crate) fn no_object_page(pages: &impl Pages, shared: &Shared, name: &str, page: u32) -> Error {
    match has_page_of_any(pages, shared, page) {
        Ok(true) => {
            let what = format!("a pointer to an object of type {name} leads to another type");
            Error::new(ErrorKind::Type, &shared.path, what)
        }
        Ok(false) => no_object(shared, name),
        Err(error) => error,
    }
}

/// A pointer leads to no object.
pub(crate) fn no_object(shared: &Shared, name: &str) -> Error {
    let what = format!(
        "a pointer leads to no object of type {name}: it is NULL, the object was removed, or a Ptr of another snapshot \
         or transaction"
    );
    Error::new(ErrorKind::Absent, &shared.path, what).with_remedy(
        "a root or a LongPtr, which lead to the same object in each snapshot and transaction, and a test for NULL",
    )
}

/// Where a root leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Root {
    /// The number of its type.
    pub(crate) number: u32,
    pub(crate) address: u64,
}

impl Root {
    pub(crate) fn encode(self) -> [u8; 12] {
        let mut bytes = [0; 12];
        set_u32(&mut bytes, 0, self.number);
        set_u64(&mut bytes, 4, self.address);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let root = (bytes.len() == 12).then(|| Self { number: u32_at(bytes, 0), address: u64_at(bytes, 4) })?;
        (root.address < MOST_ADDRESSES).then_some(root)
    }
}

/// The root of a name, if there is one.
pub(crate) fn root(pages: &impl Pages, shared: &Shared, name: &str) -> Result<Option<Root>> {
    let Some(tree) = catalog::root(pages, shared, ROOTS)? else { return Ok(None) };
    let Some(bytes) = tree::get(pages, tree, name.as_bytes())? else { return Ok(None) };
    Root::decode(bytes).map(Some).ok_or_else(|| pages.wrong(tree, "its tree has a root that leads nowhere"))
}

/// All roots.
pub(crate) fn roots(pages: &impl Pages, shared: &Shared) -> Result<Vec<Root>> {
    let (mut roots, Some(tree)) = (Vec::new(), catalog::root(pages, shared, ROOTS)?) else { return Ok(Vec::new()) };
    let mut entries = Entries::new(pages, tree, Bound::Unbounded, Bound::Unbounded)?;
    while let Some((_, bytes)) = entries.next()? {
        let root = Root::decode(bytes);
        roots.push(root.ok_or_else(|| pages.wrong(tree, "its tree has a root that leads nowhere"))?);
    }
    Ok(roots)
}

/// The number and the layout of the type of a name; `None` if the store has no such objects.
fn find(pages: &impl Pages, shared: &Shared, name: &str) -> Result<Option<(u32, Layout)>> {
    let Some(tree) = catalog::root(pages, shared, TYPES)? else { return Ok(None) };
    let Some(bytes) = tree::get(pages, tree, name.as_bytes())? else { return Ok(None) };
    let wrong = || pages.wrong(tree, "its tree has a type that is described in an unknown way");
    Layout::decode(bytes).map(Some).ok_or_else(wrong)
}

/// The number of a type; `None` if the store has no such objects.
///
/// # Errors
/// [`ErrorKind::Type`] if the type has other fields in the file.
pub(crate) fn number(pages: &impl Pages, shared: &Shared, name: &str, layout: &Layout) -> Result<Option<u32>> {
    let Some((number, found)) = find(pages, shared, name)? else { return Ok(None) };
    if found == *layout {
        return Ok(Some(number));
    }
    let what = format!("objects of type {name} have the fields {} in the file, not {}", found.text, layout.text);
    Err(Error::new(ErrorKind::Type, &shared.path, what)
        .with_remedy("another name for the new type, and a copy of each object"))
}

/// The number of the type of a name, with any fields; `None` if the store has no such objects.
pub(crate) fn number_of(pages: &impl Pages, shared: &Shared, name: &str) -> Result<Option<u32>> {
    Ok(find(pages, shared, name)?.map(|(number, _)| number))
}

/// The number of a type, which gets one if it has none.
pub(crate) fn number_or_new(editor: &mut Editor<'_>, name: &str, layout: &Layout) -> Result<u32> {
    if let Some(number) = number(editor, editor.shared, name, layout)? {
        return Ok(number);
    }
    let bytes = name.len() + layout.encode(0).len();
    if bytes > LARGEST_ENTRY {
        let what = format!("the description of type {name} has {bytes} bytes, and {LARGEST_ENTRY} are possible");
        return Err(Error::new(ErrorKind::TooLarge, &editor.shared.path, what)
            .with_remedy("fewer changes between pointers of different types, or shorter names of types"));
    }
    let tree = catalog::root_or_new(editor, TYPES)?;
    let number = count(&*editor, editor.shared)? + 1;
    tree::insert(editor, tree, name.as_bytes(), Payload::Value(&layout.encode(number)))?;
    Ok(number)
}
