//! Makes the file smaller: pages at its end move to unused places before, a few in each transaction, so that
//! others wait for milliseconds at most.
//!
//! ```text
//! before   │ a │   │ b │   │   │ c │ d │      the end that suffices is behind the fourth page
//! after    │ a │ c │ b │ d │                  c and d have moved; the file is cut
//! ```
//! It goes through the trees leaf by leaf. A transaction of others in between can move what was not visited
//! yet, so it continues at a key and not at a page.

use std::ops::Bound;

use crate::catalog::TableEntry;
use crate::editor::Editor;
use crate::error::Result;
use crate::node::{self, Node, Payload};
use crate::page::PAGE;
use crate::space;
use crate::tree::{self, Entries, Pages};

/// Leaves that a transaction visits at most, and pages that it moves before it ends.
const LEAVES: u32 = 128;
const MOVES: u32 = 64;

/// How far it is.
#[derive(Debug, Default)]
pub(crate) struct Compaction {
    /// Pages from here on move.
    end: u32,
    /// The table that is visited; `None` for the catalog.
    table: Option<Vec<u8>>,
    /// The key from which on its leaves are visited.
    key: Vec<u8>,
    moved: u32,
}

impl Compaction {
    /// Finds the end that suffices for the pages that are in use.
    pub(crate) fn new(editor: &Editor<'_>) -> Result<Self> {
        Ok(Self { end: editor.shared.first + space::used_pages(editor, editor.shared.first)?, ..Self::default() })
    }

    /// Moves some pages. Returns whether there may be more.
    pub(crate) fn step(&mut self, editor: &mut Editor<'_>) -> Result<bool> {
        self.moved = 0;
        for _ in 0..LEAVES {
            let Some(root) = self.root(editor)? else { return Ok(false) };
            match self.visit_leaf(editor, root)? {
                Some(next) => self.key = next,
                None => {
                    self.key.clear();
                    // The shortest name behind this one.
                    let mut next = self.table.take();
                    next.iter_mut().for_each(|name| name.push(0));
                    self.table = Some(next.unwrap_or_default());
                }
            }
            if self.moved >= MOVES {
                break;
            }
        }
        Ok(true)
    }

    /// The root of the tree that is visited, which moves first; `None` behind the last table.
    fn root(&mut self, editor: &mut Editor<'_>) -> Result<Option<u32>> {
        let catalog = editor.shared.header.catalog();
        let Some(table) = &self.table else { return Ok(Some(catalog)) };
        let mut entries = Entries::new(&*editor, catalog, Bound::Included(table), Bound::Unbounded)?;
        let Some((name, bytes)) = entries.next()? else { return Ok(None) };
        let entry = TableEntry::decode_or(bytes, |what| editor.wrong(catalog, what))?;
        let name = name.to_vec();
        if name != *table {
            self.key.clear();
        }
        let root = entry.root;
        let moved = if root >= self.end {
            let mut entry = bytes.to_vec();
            self.move_page(editor, root)?.map(|new| {
                entry[..4].copy_from_slice(&new.to_le_bytes());
                tree::insert(editor, catalog, &name, Payload::Value(&entry)).map(|_| new)
            })
        } else {
            None
        };
        self.table = Some(name);
        Ok(Some(moved.transpose()?.unwrap_or(root)))
    }

    /// Moves the pages on the way to a leaf, and its large values. Returns the key to continue with: the first
    /// one behind the leaf, or one of the leaf if its large values are too much for one transaction.
    fn visit_leaf(&mut self, editor: &mut Editor<'_>, root: u32) -> Result<Option<Vec<u8>>> {
        let way = tree::way(editor, root, &self.key)?;
        let mut parent = root;
        for (depth, step) in way.steps().iter().enumerate() {
            let mut child = way.steps().get(depth + 1).map_or(way.leaf, |below| below.page);
            if child >= self.end
                && let Some(new) = self.move_page(editor, child)?
            {
                node::set_child(editor.edit(parent)?, step.child(), new);
                child = new;
            }
            parent = child;
        }
        if let Some(key) = self.move_extents(editor, parent)? {
            return Ok(Some(key));
        }
        Ok(Node(editor.page(parent)?).fences().upper.map(<[u8]>::to_vec))
    }

    /// Moves a node to an unused page before it; `None` if there is none.
    fn move_page(&mut self, editor: &mut Editor<'_>, old: u32) -> Result<Option<u32>> {
        let contents = *editor.page(old)?;
        let new = editor.allocate()?;
        // Equal if the map is wrong.
        if new >= old {
            editor.free(new)?;
            return Ok(None);
        }
        *editor.edit(new)? = contents;
        editor.free(old)?;
        self.moved += 1;
        Ok(Some(new))
    }

    /// Moves large values of a leaf, if there is room for them before. Returns the key of the next one if this
    /// transaction has moved enough.
    fn move_extents(&mut self, editor: &mut Editor<'_>, leaf: u32) -> Result<Option<Vec<u8>>> {
        let node = Node(editor.page(leaf)?);
        let start = node.find(&self.key).unwrap_or_else(|place| place);
        for place in start..node.count() {
            let node = Node(editor.page(leaf)?);
            let Some(old) = node.extent(place).filter(|extent| extent.pages().end > self.end) else { continue };
            if self.moved >= MOVES {
                let mut key = Vec::new();
                node.append_key(place, &mut key);
                return Ok(Some(key));
            }
            let contents = editor.shared.read_extent(old)?.into_vec();
            if let Some(new) = editor.write_extent_before(old.start, contents)? {
                node::set_reference(editor.edit(leaf)?, place, &new.encode());
                editor.remove_extents([old]);
                self.moved += (old.bytes / PAGE as u64) as u32 + 1;
            }
        }
        Ok(None)
    }
}

/// Ends the file behind the last page that is in use.
pub(crate) fn trim(editor: &mut Editor<'_>) -> Result<()> {
    let first = editor.shared.first;
    // So that there is something to commit.
    editor.edit(first)?;
    loop {
        let map = first + (editor.edits.end - 1 - first) / space::GROUP * space::GROUP;
        let last = map + space::last_used(editor.page(map)?);
        if last == map && map > first {
            // A group without pages needs no map.
            editor.forget(map)?;
            editor.edits.end = map;
            continue;
        }
        editor.edits.end = last + 1;
        return Ok(());
    }
}

#[cfg(test)]
mod tests {
    use super::{MOVES, PAGE};
    use crate::Store;
    use crate::check_tests::{disk, findings};
    use crate::crash::{TABLES, empty, open};

    /// Bytes of a large value: more pages than a step moves.
    const VALUE: usize = (MOVES as usize + 10) * PAGE;

    #[test]
    fn a_step_moves_few_pages() {
        /// Pages on the way to a leaf.
        const WAY: u32 = 4;
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().join("a.store")).unwrap();
        for table in [TABLES[0], TABLES[1]] {
            let fill = |tx: &mut crate::Transaction| {
                (0..1000).try_for_each(|key| tx.table(table)?.insert(&key, &[7; 900]).map(drop))
            };
            store.write(fill).unwrap();
        }
        store.write(|tx| tx.table(TABLES[0])?.clear()).unwrap();
        let (mut compaction, mut moved) = (None, Vec::new());
        while store.write(|tx| tx.compact(&mut compaction)).unwrap() {
            moved.push(compaction.as_ref().unwrap().moved);
        }
        assert!(moved.iter().all(|&pages| pages < MOVES + WAY), "{moved:?}");
        assert!(moved.iter().sum::<u32>() > 2 * MOVES, "{moved:?}");
    }

    #[test]
    fn a_step_moves_one_of_the_values_that_are_large_enough_for_a_step() {
        let disk = disk(&empty(16));
        let store = open(&disk).unwrap();
        let value = |key: u32| vec![key as u8; VALUE];
        (0..8).for_each(|key| assert!(store.write(|tx| tx.table(TABLES[0])?.insert(&key, &value(key))).unwrap()));
        (0..4).for_each(|key| assert!(store.write(|tx| tx.table(TABLES[0])?.remove(&key)).unwrap()));
        let (mut compaction, mut moved) = (None, Vec::new());
        loop {
            let mut tx = store.begin().unwrap();
            let has_more = tx.compact(&mut compaction).unwrap();
            moved.push(tx.edits.written.len());
            tx.commit().unwrap();
            if !has_more {
                break;
            }
        }
        assert!(moved.iter().all(|&values| values <= 1), "{moved:?}");
        assert_eq!(moved.iter().sum::<usize>(), 4, "{moved:?}");
        let now = store.read().unwrap();
        let table = now.table(TABLES[0]).unwrap();
        (4..8).for_each(|key| assert_eq!(table.get(&key).unwrap(), Some(&value(key)[..])));
        drop(now);
        drop(store);
        let image = crate::lock::lock(&disk).cached().into_owned();
        assert!(findings(&image).is_empty());
    }
}
