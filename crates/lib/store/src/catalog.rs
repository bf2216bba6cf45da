//! The tree with the names of the tables: for each the root of its tree, and the types of its keys and
//! values.

use std::ops::Bound;

use crate::data::{Key, Value};
use crate::editor::Editor;
use crate::error::{Error, ErrorKind, Result};
use crate::node::Payload;
use crate::object::types::is_reserved;
use crate::page::u32_at;
use crate::raw::RawTable;
use crate::shared::Shared;
use crate::table::Table;
use crate::tree::{self, Entries, Pages};

/// What the catalog says of a table.
pub(crate) struct TableEntry<'a> {
    pub(crate) root: u32,
    pub(crate) key: &'a str,
    pub(crate) value: &'a str,
}

impl<'a> TableEntry<'a> {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = self.root.to_le_bytes().to_vec();
        bytes.extend_from_slice(self.key.as_bytes());
        bytes.push(0);
        bytes.extend_from_slice(self.value.as_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (root, types) = bytes.split_at_checked(4)?;
        let (key, value) = std::str::from_utf8(types).ok()?.split_once('\0')?;
        Some(Self { root: u32_at(root, 0), key, value })
    }

    /// The table that an entry of the catalog describes; `wrong` makes the error if it describes none.
    pub(crate) fn decode_or<E>(bytes: &'a [u8], wrong: impl FnOnce(&'static str) -> E) -> std::result::Result<Self, E> {
        Self::decode(bytes).ok_or_else(|| wrong("the catalog describes a table in an unknown way"))
    }

    /// The table of this name; `wrong` makes the error if the name is no text.
    pub(crate) fn table_or<E>(
        &self,
        name: Vec<u8>,
        wrong: impl FnOnce(&'static str, Vec<u8>) -> E,
    ) -> std::result::Result<RawTable, E> {
        let name = String::from_utf8(name);
        let name = name.map_err(|error| wrong("the name of a table is not UTF-8", error.into_bytes()))?;
        Ok(RawTable { name, key_type: self.key.to_owned(), value_type: self.value.to_owned() })
    }
}

/// A table by its name and the names of its types.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Signature<'a> {
    pub(crate) name: &'a str,
    pub(crate) key: &'a str,
    pub(crate) value: &'a str,
}

impl Signature<'static> {
    pub(crate) const fn of<K: Key + ?Sized, V: Value + ?Sized>(table: Table<K, V>) -> Self {
        Self { name: table.name(), key: K::TYPE, value: V::TYPE }
    }
}

impl Signature<'_> {
    /// Bytes of the entry of the catalog.
    pub(crate) const fn entry_bytes(&self) -> usize {
        self.name.len() + 4 + self.key.len() + 1 + self.value.len()
    }

    /// # Errors
    /// If the name of a type has a zero byte, which ends the first one in an entry of the catalog.
    fn check_types(&self, shared: &Shared) -> Result<()> {
        match [self.key, self.value].into_iter().find(|name| name.contains('\0')) {
            None => Ok(()),
            Some(name) => {
                let what = format!("cannot open the table {}: the name {name:?} of a type has a zero byte", self.name);
                let remedy = "names without zero bytes in Key::TYPE and Value::TYPE";
                Err(Error::new(ErrorKind::Type, &shared.path, what).with_remedy(remedy))
            }
        }
    }

    /// The root in an entry of the catalog, if the entry has these types.
    fn root_of(&self, entry: &[u8]) -> Option<u32> {
        let (root, types) = entry.split_at_checked(4)?;
        let (key, value) = types.split_at_checked(self.key.len())?;
        let is_same = key == self.key.as_bytes() && value.split_first() == Some((&0, self.value.as_bytes()));
        is_same.then(|| u32_at(root, 0))
    }
}

/// The root of a table; `None` if it is absent.
pub(crate) fn root(pages: &impl Pages, shared: &Shared, table: Signature<'_>) -> Result<Option<u32>> {
    let catalog = shared.header.catalog();
    let found = tree::get(pages, catalog, table.name.as_bytes())?;
    if let Some(root) = found.and_then(|bytes| table.root_of(bytes)) {
        return Ok(Some(root));
    }
    // No table is made with such types, so none was found above.
    table.check_types(shared)?;
    let Some(bytes) = found else { return Ok(None) };
    let entry = TableEntry::decode_or(bytes, |what| pages.wrong(catalog, what))?;
    let what = format!(
        "the table {} has keys of type {} and values of type {}, not {} and {}",
        table.name, entry.key, entry.value, table.key, table.value
    );
    Err(Error::new(ErrorKind::Type, &shared.path, what))
}

/// The root of a table, which is made if it is absent.
pub(crate) fn root_or_new(editor: &mut Editor<'_>, table: Signature<'_>) -> Result<u32> {
    if let Some(root) = root(editor, editor.shared, table)? {
        return Ok(root);
    }
    let root = editor.allocate()?;
    tree::plant(editor.edit(root)?);
    let entry = TableEntry { root, key: table.key, value: table.value }.encode();
    tree::insert(editor, editor.shared.header.catalog(), table.name.as_bytes(), Payload::Value(&entry))?;
    Ok(root)
}

/// The tables of programs, in the order of their names.
pub(crate) fn tables(pages: &impl Pages, shared: &Shared) -> Result<Vec<RawTable>> {
    let (catalog, mut tables) = (shared.header.catalog(), Vec::new());
    let mut entries = Entries::new(pages, catalog, Bound::Unbounded, Bound::Unbounded)?;
    while let Some((name, bytes)) = entries.next()? {
        let entry = TableEntry::decode_or(bytes, |what| pages.wrong(catalog, what))?;
        let table = entry.table_or(name.to_vec(), |what, _| pages.wrong(catalog, what))?;
        if !is_reserved(&table.name) {
            tables.push(table);
        }
    }
    Ok(tables)
}

/// Removes a table of any types, with its entries. Returns whether it was there.
pub(crate) fn remove(editor: &mut Editor<'_>, name: &str) -> Result<bool> {
    let catalog = editor.shared.header.catalog();
    let Some(bytes) = tree::get(editor, catalog, name.as_bytes())? else { return Ok(false) };
    let root = TableEntry::decode_or(bytes, |what| editor.wrong(catalog, what))?.root;
    tree::clear(editor, root)?;
    editor.free(root)?;
    tree::remove(editor, catalog, name.as_bytes())
}
