//! Tables without their types: entries as bytes.

use crate::catalog::Signature;
use crate::contents::{Part, visit};
use crate::data::{POINTER, Value, stored_address};
use crate::error::Result;
use crate::finding::{Finding, Lost};
use crate::object::lists::ObjectLists;
use crate::salvage::substitutes;
use crate::store_file::StoreFile;
use crate::transaction::Transaction;
use crate::walk::{NodeAt, Walk};

/// A table by its name and the names of its types, as the file has them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RawTable {
    /// The name of the table.
    pub name: String,
    /// [`Value::TYPE`] of its keys.
    pub key_type: String,
    /// [`Value::TYPE`] of its values.
    pub value_type: String,
}

impl RawTable {
    fn signature(&self) -> Signature<'_> {
        Signature { name: &self.name, key: &self.key_type, value: &self.value_type }
    }

    /// Whether these are bytes of its keys and values. Bytes of a type that this crate does not
    /// define always are.
    #[must_use]
    pub fn has_types_of(&self, key: &[u8], value: &[u8]) -> bool {
        is_of_type(&self.key_type, key) && is_of_type(&self.value_type, value)
    }
}

fn decodes<V: Value + ?Sized>(bytes: &[u8]) -> bool {
    V::decode(bytes).is_some()
}

/// Whether bytes are a value of a type. Types that this crate does not define take any bytes.
fn is_of_type(name: &str, bytes: &[u8]) -> bool {
    type Test = fn(&[u8]) -> bool;
    const TYPES: [(&str, Test); 11] = [
        (u8::TYPE, decodes::<u8>),
        (u16::TYPE, decodes::<u16>),
        (u32::TYPE, decodes::<u32>),
        (u64::TYPE, decodes::<u64>),
        (u128::TYPE, decodes::<u128>),
        (i8::TYPE, decodes::<i8>),
        (i16::TYPE, decodes::<i16>),
        (i32::TYPE, decodes::<i32>),
        (i64::TYPE, decodes::<i64>),
        (i128::TYPE, decodes::<i128>),
        (str::TYPE, decodes::<str>),
    ];
    if name.starts_with(POINTER) {
        return stored_address(bytes).is_some();
    }
    TYPES.iter().find(|known| known.0 == name).is_none_or(|known| known.1(bytes))
}

/// What a file contains.
#[derive(Debug)]
#[non_exhaustive]
pub enum RawItem<'a> {
    /// A table: its entries follow.
    Table(&'a RawTable),
    /// The table, the key and the value of an entry.
    Entry(&'a RawTable, &'a [u8], &'a [u8]),
    /// Damage: what it makes unreadable is left out.
    Missing(Finding),
}

impl StoreFile {
    /// Calls `take` for each table in the order of the names, and each of its entries in the order
    /// of the keys. Objects are missing: `take` gets a finding for each type. Cost: each page is read
    /// once.
    ///
    /// # Errors
    /// Those of `take`, which end this. Damage is passed to `take`.
    pub fn read_all<E>(
        &self,
        take: impl FnMut(RawItem<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.read_items(Walk::new(self), take)
    }

    /// As [`StoreFile::read_all`], but takes entries that an unreadable branch of a tree has led to
    /// from all pages of the file, if their table is certain. Cost: each page is read two or three
    /// times.
    ///
    /// # Errors
    /// As [`StoreFile::read_all`].
    pub fn salvage<E>(
        &self,
        take: impl FnMut(RawItem<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let walk = Walk { substitutes: substitutes(self), ..Walk::new(self) };
        self.read_items(walk, take)
    }

    fn read_items<E>(
        &self,
        mut walk: Walk<'_>,
        mut take: impl FnMut(RawItem<'_>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        for lost in self.findings.iter().filter(|finding| finding.is_loss()) {
            take(RawItem::Missing(lost.clone()))?;
        }
        let mut lists = ObjectLists::default();
        visit(&mut walk, &mut |part| match part {
            Part::Table(table) if ObjectLists::is_part(table) => Ok(()),
            Part::Node(table, node) if ObjectLists::is_part(table) => {
                lists.add(table, node);
                Ok(())
            }
            Part::Table(table) => take(RawItem::Table(table)),
            Part::Node(table, node) => entries(self, node, |key, value| match value {
                Ok(value) => take(RawItem::Entry(table, key, value)),
                Err(wrong) => take(RawItem::Missing(wrong.finding(table, key))),
            }),
            Part::Damage { finding, .. } => take(RawItem::Missing(finding)),
        })?;
        lists.missing().into_iter().try_for_each(|finding| take(RawItem::Missing(finding)))
    }
}

/// What is wrong with a large value.
pub(crate) struct WrongValue {
    page: u32,
    what: String,
}

impl WrongValue {
    /// The finding that the entry with this key is lost.
    pub(crate) fn finding(self, table: &RawTable, key: &[u8]) -> Finding {
        Finding::at_page(self.page, self.what, entry_lost(table, key))
    }
}

/// The entry with this key is lost.
pub(crate) fn entry_lost(table: &RawTable, key: &[u8]) -> Lost {
    Lost::Entries { table: table.clone(), from: key.to_vec(), to: Some([key, &[0]].concat()) }
}

/// Calls `take` for each entry of a leaf; a branch has none. Large values are read from the file.
pub(crate) fn entries<E>(
    file: &StoreFile,
    at: NodeAt<'_>,
    mut take: impl FnMut(&[u8], std::result::Result<&[u8], WrongValue>) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    let (node, mut key) = (at.node, Vec::new());
    for index in (0..node.count()).filter(|_| node.is_leaf()) {
        key.clear();
        node.append_key(index, &mut key);
        let Some(extent) = node.extent(index) else {
            take(&key, Ok(node.value(index)))?;
            continue;
        };
        let value = match at.wrong_place(index) {
            Some(what) => Err(WrongValue { page: at.page, what: what.to_owned() }),
            None => file.extent(extent).map_err(|what| WrongValue { page: extent.start, what }),
        };
        match value {
            Ok(value) => take(&key, Ok(&value))?,
            Err(wrong) => take(&key, Err(wrong))?,
        }
    }
    Ok(())
}

impl Transaction {
    /// A table without its types, which is made if it is absent.
    ///
    /// # Errors
    /// As [`Transaction::table`].
    pub fn raw_table<'a>(&'a mut self, table: &'a RawTable) -> Result<RawTableWrite<'a>> {
        let root = self.table_root(table.signature())?;
        Ok(RawTableWrite { transaction: self, root, table })
    }
}

/// A table of a transaction, written as bytes.
#[derive(Debug)]
pub struct RawTableWrite<'a> {
    transaction: &'a mut Transaction,
    root: u32,
    table: &'a RawTable,
}

impl RawTableWrite<'_> {
    /// Inserts an entry, or replaces its value. Returns whether the key is new. Bytes that are not
    /// of the types of the table are stored as they are: test them with [`RawTable::has_types_of`].
    ///
    /// # Errors
    /// As [`crate::TableWrite::insert`].
    pub fn insert(&mut self, key: &[u8], value: &[u8]) -> Result<bool> {
        self.transaction.insert_bytes(self.root, key, value)
    }

    /// The table.
    #[must_use]
    pub const fn table(&self) -> &RawTable {
        self.table
    }
}
