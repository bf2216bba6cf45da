//! What the trees of the objects of a file name: types, roots and pages.

use std::collections::{BTreeMap, HashSet};

use crate::finding::{Finding, Lost};
use crate::node::Node;
use crate::object::layout::Layout;
use crate::object::types::{PAGES, ROOM, ROOTS, Root, TYPES, decode_page_key, is_reserved};
use crate::raw::RawTable;
use crate::walk::NodeAt;

/// A page of objects that a tree names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListedPage {
    /// The number of its type.
    pub(crate) number: u32,
    pub(crate) page: u32,
    /// The page that names it.
    pub(crate) parent: u32,
}

/// A root that a tree names.
#[derive(Clone, Debug)]
pub(crate) struct ListedRoot {
    pub(crate) name: String,
    pub(crate) root: Root,
    pub(crate) parent: u32,
}

/// What the trees of the objects name.
#[derive(Debug, Default)]
pub(crate) struct ObjectLists {
    /// Name and layout of each type, by number.
    pub(crate) types: BTreeMap<u32, (String, Layout)>,
    pub(crate) roots: Vec<ListedRoot>,
    pub(crate) pages: Vec<ListedPage>,
    /// Number of the type and page of pages with unused slots.
    pub(crate) room: HashSet<(u32, u32)>,
    /// Entries that cannot be read.
    pub(crate) wrong: Vec<Finding>,
}

impl ObjectLists {
    /// Whether a table is one of these trees.
    pub(crate) fn is_part(table: &RawTable) -> bool {
        is_reserved(&table.name)
    }

    /// Adds the entries of a leaf of one of these trees.
    pub(crate) fn add(&mut self, table: &RawTable, at: NodeAt<'_>) {
        for index in (0..at.node.count()).filter(|_| at.node.is_leaf()) {
            if self.add_entry(&table.name, at.page, at.node, index).is_none() {
                let what = format!("the tree {} has an entry that describes nothing", table.name);
                self.wrong.push(Finding::at_page(at.page, what, Lost::Nothing));
            }
        }
    }

    fn add_entry(&mut self, table: &str, parent: u32, node: Node<'_>, index: usize) -> Option<()> {
        let mut key = Vec::new();
        node.append_key(index, &mut key);
        if node.extent(index).is_some() {
            return None;
        }
        if table == TYPES.name {
            let (number, layout) = Layout::decode(node.value(index))?;
            let before = self.types.insert(number, (String::from_utf8(key).ok()?, layout));
            return before.is_none().then_some(());
        }
        if table == ROOTS.name {
            let (name, root) = (String::from_utf8(key).ok()?, Root::decode(node.value(index))?);
            self.roots.push(ListedRoot { name, root, parent });
            return Some(());
        }
        let (number, page) = decode_page_key(&key)?;
        if table == PAGES.name {
            self.pages.push(ListedPage { number, page, parent });
        } else if table == ROOM.name {
            self.room.insert((number, page));
        }
        Some(())
    }

    /// A finding for each type with objects: they are no entries.
    pub(crate) fn missing(&self) -> Vec<Finding> {
        let mut first = BTreeMap::new();
        for listed in &self.pages {
            first.entry(listed.number).or_insert(listed.page);
        }
        let what = "it has objects, and a dump has tables only: a program copies both with Store::backup";
        first.into_iter().map(|(number, page)| Finding::at_page(page, what, self.lost(number))).collect()
    }

    /// The objects of a type are lost.
    pub(crate) fn lost(&self, number: u32) -> Lost {
        Lost::Objects(self.types.get(&number).map_or_else(|| format!("number {number}"), |found| found.0.clone()))
    }
}
