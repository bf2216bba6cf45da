//! Trees of pages: sorted keys with values.
//!
//! The page of the root keeps its number, unless the file is compacted. When the root is full, its entries
//! move to a new page below it.

use std::ops::Bound;

use crate::editor::Editor;
use crate::error::Result;
use crate::extent::Extent;
use crate::frames::MOST_PAGES;
use crate::node::{self, Fences, Node, Payload};
use crate::page::{NODE, PAGE, Page, kind};
use crate::shared::Shared;

/// More levels than any tree has.
pub(crate) const DEEPEST: usize = 24;
/// A node whose entries take less is joined with a neighbour.
const FEW: usize = PAGE / 4;

/// Pages of one version.
pub trait Pages {
    /// The contents of a page.
    ///
    /// # Errors
    /// If it cannot be read, or is damaged.
    fn page(&self, number: u32) -> Result<&Page>;

    /// A large value.
    ///
    /// # Errors
    /// As of a page.
    fn extent(&self, extent: Extent) -> Result<&[u8]>;

    /// The error of a page with wrong contents.
    fn wrong(&self, number: u32, what: &str) -> crate::Error;
}

/// A branch on the way to a leaf, and the child that was taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) page: u32,
    pub(crate) child: usize,
}

/// The way to a leaf.
#[derive(Debug)]
pub(crate) struct Way {
    pub(crate) steps: Vec<Step>,
    pub(crate) leaf: u32,
}

/// A page that must be a node.
fn node_at(pages: &impl Pages, number: u32) -> Result<Node<'_>> {
    let page = pages.page(number)?;
    if kind(page) == NODE { Ok(Node(page)) } else { Err(pages.wrong(number, "it is no node of a tree")) }
}

pub(crate) fn way(pages: &impl Pages, root: u32, key: &[u8]) -> Result<Way> {
    descend(pages, root, |node| node.child_of(key))
}

/// Goes down from the root, by the child that `choose` takes of each branch.
fn descend(pages: &impl Pages, root: u32, choose: impl Fn(Node<'_>) -> usize) -> Result<Way> {
    let mut way = Way { steps: Vec::new(), leaf: root };
    loop {
        let node = node_at(pages, way.leaf)?;
        if node.is_leaf() {
            return Ok(way);
        }
        if way.steps.len() == DEEPEST {
            return Err(pages.wrong(way.leaf, "the tree has too many levels"));
        }
        let child = choose(node);
        way.steps.push(Step { page: way.leaf, child });
        way.leaf = node.child(child);
    }
}

/// The value of a key.
pub(crate) fn get<'a>(pages: &'a impl Pages, root: u32, key: &[u8]) -> Result<Option<&'a [u8]>> {
    let mut number = root;
    for _ in 0..DEEPEST {
        let node = node_at(pages, number)?;
        if node.is_leaf() {
            return node.find(key).ok().map(|index| value(pages, node, index)).transpose();
        }
        number = node.child(node.child_of(key));
    }
    Err(pages.wrong(number, "the tree has too many levels"))
}

/// The value of an entry, in its leaf or in an extent.
fn value<'a>(pages: &'a impl Pages, leaf: Node<'a>, index: usize) -> Result<&'a [u8]> {
    leaf.extent(index).map_or_else(|| Ok(leaf.value(index)), |extent| pages.extent(extent))
}

/// Goes over the pages of a tree: `read` gets the number of each, and reads it.
pub(crate) fn walk(shared: &Shared, root: u32, mut read: impl FnMut(u32, &mut Page) -> Result<()>) -> Result<()> {
    let (mut rest, mut visited, mut page) = (vec![(root, 0)], 0, [0; PAGE]);
    while let Some((number, depth)) = rest.pop() {
        visited += 1;
        if depth > DEEPEST || visited > MOST_PAGES {
            return Err(shared.wrong(number, "the tree has too many levels or pages"));
        }
        read(number, &mut page)?;
        if kind(&page) != NODE {
            return Err(shared.wrong(number, "it is no node of a tree"));
        }
        let node = Node(&page);
        if !node.is_leaf() {
            rest.extend((0..=node.count()).rev().map(|child| (node.child(child), depth + 1)));
        }
    }
    Ok(())
}

/// Makes a page the root of an empty tree.
pub(crate) fn plant(page: &mut Page) {
    node::clear(page, 0, Fences { lower: &[], upper: None });
}

/// Inserts a key with a value or a reference, or replaces them. Returns whether the key is new.
pub(crate) fn insert(editor: &mut Editor<'_>, root: u32, key: &[u8], value: Payload<'_>) -> Result<bool> {
    let (mut is_new, mut removed) = (true, None);
    loop {
        let way = way(editor, root, key)?;
        let leaf = editor.edit(way.leaf)?;
        let place = match Node(leaf).find(key) {
            Ok(place) if node::replace(leaf, place, value) => return Ok(false),
            Ok(place) => {
                is_new = false;
                removed = Node(leaf).extent(place);
                node::remove(leaf, place);
                place
            }
            Err(place) => place,
        };
        if node::fits(leaf, key, value) {
            node::insert(leaf, place, key, value);
            editor.remove_extents(removed);
            return Ok(is_new);
        }
        split(editor, way, place, key)?;
    }
}

/// Divides the leaf of a way, and the branches above it that are full.
fn split(editor: &mut Editor<'_>, mut way: Way, place: usize, key: &[u8]) -> Result<()> {
    let (mut full, mut place) = (way.leaf, place);
    loop {
        if way.steps.is_empty() {
            let below = grow(editor, full)?;
            way.steps.push(Step { page: full, child: 0 });
            full = below;
        }
        let old = *editor.page(full)?;
        let at = node::division(&old, place, key);
        let separator = separator_at(Node(&old), at, key);
        // The parent is divided first, so that this page has one with room.
        let Some(parent) = way.steps.pop() else { return Ok(()) };
        let page = editor.edit(parent.page)?;
        if !node::fits(page, &separator, Payload::Child(0)) {
            (full, place) = (parent.page, parent.child);
            continue;
        }
        let right = editor.allocate()?;
        node::insert(editor.edit(parent.page)?, parent.child, &separator, Payload::Child(right));
        let mut divided = [0; PAGE];
        node::divide(&old, at, &separator, editor.edit(full)?, &mut divided);
        *editor.edit(right)? = divided;
        return Ok(());
    }
}

/// The key between the two sides of a division. `key` is what will be inserted.
fn separator_at(node: Node<'_>, at: usize, key: &[u8]) -> Vec<u8> {
    let (mut left, mut right) = (Vec::new(), Vec::new());
    if !node.is_leaf() {
        node.append_key(at, &mut right);
        return right;
    }
    node.append_key(at - 1, &mut left);
    if at < node.count() {
        node.append_key(at, &mut right);
    } else {
        right.extend_from_slice(key);
    }
    node::separator(&left, &right).to_vec()
}

/// Moves the entries of the root to a new page, which becomes its only child.
fn grow(editor: &mut Editor<'_>, root: u32) -> Result<u32> {
    let below = editor.allocate()?;
    let old = *editor.page(root)?;
    *editor.edit(below)? = old;
    let level = Node(&old).level() + 1;
    let page = editor.edit(root)?;
    node::clear(page, level, Fences { lower: &[], upper: None });
    node::set_first_child(page, below);
    Ok(below)
}

/// Removes a key. Returns whether it was there.
pub(crate) fn remove(editor: &mut Editor<'_>, root: u32, key: &[u8]) -> Result<bool> {
    let way = way(editor, root, key)?;
    let leaf = node_at(editor, way.leaf)?;
    let Ok(place) = leaf.find(key) else { return Ok(false) };
    let extent = leaf.extent(place);
    node::remove(editor.edit(way.leaf)?, place);
    editor.remove_extents(extent);
    join_up(editor, way)?;
    Ok(true)
}

/// Removes all keys between two bounds; how many they were. It changes each leaf once.
pub(crate) fn remove_range(editor: &mut Editor<'_>, root: u32, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Result<u64> {
    let mut removed = 0;
    loop {
        let first = Entries::new(&*editor, root, from, to)?.next_key()?.map(<[u8]>::to_vec);
        let Some(first) = first else { return Ok(removed) };
        removed += remove_of_leaf(editor, root, &first, to)?;
    }
}

/// Removes the keys of one leaf, from `first` up to a bound.
fn remove_of_leaf(editor: &mut Editor<'_>, root: u32, first: &[u8], to: Bound<&[u8]>) -> Result<u64> {
    let way = way(editor, root, first)?;
    let leaf = node_at(editor, way.leaf)?;
    let start = leaf.find(first).unwrap_or_else(|place| place);
    let end = match to {
        Bound::Included(key) if leaf.is_below_end(key) => leaf.find(key).map_or_else(|place| place, |place| place + 1),
        Bound::Excluded(key) if leaf.is_below_end(key) => leaf.find(key).unwrap_or_else(|place| place),
        _ => leaf.count(),
    };
    let extents: Vec<Extent> = (start..end).filter_map(|place| leaf.extent(place)).collect();
    let page = editor.edit(way.leaf)?;
    (start..end).rev().for_each(|place| node::remove(page, place));
    editor.remove_extents(extents);
    join_up(editor, way)?;
    Ok((end - start) as u64)
}

/// Joins nodes with few entries with a neighbour, from the leaf upwards.
fn join_up(editor: &mut Editor<'_>, mut way: Way) -> Result<()> {
    let mut few = way.leaf;
    while let Some(parent) = way.steps.pop() {
        if node_at(editor, few)?.used() >= FEW {
            return Ok(());
        }
        join(editor, parent)?;
        few = parent.page;
    }
    // A root with one child takes its entries.
    let root = node_at(editor, few)?;
    if !root.is_leaf() && root.count() == 0 {
        let child = root.child(0);
        let entries = *editor.page(child)?;
        *editor.edit(few)? = entries;
        editor.free(child)?;
    }
    Ok(())
}

/// Joins a child with the one beside it, if their entries fit into one page.
fn join(editor: &mut Editor<'_>, parent: Step) -> Result<()> {
    let node = node_at(editor, parent.page)?;
    if node.count() == 0 {
        return Ok(());
    }
    let left = parent.child.min(node.count() - 1);
    let mut separator = Vec::new();
    node.append_key(left, &mut separator);
    let (first, second) = (node.child(left), node.child(left + 1));
    let mut joined = [0; PAGE];
    if node::join(node_at(editor, first)?.0, node_at(editor, second)?.0, &separator, &mut joined) {
        *editor.edit(first)? = joined;
        node::remove_child(editor.edit(parent.page)?, left + 1);
        editor.free(second)?;
    }
    Ok(())
}

/// The entries of a tree between two keys, in order from either end.
#[derive(Debug)]
pub(crate) struct Entries<'a, P> {
    pages: &'a P,
    /// Before the next entry from the front, and behind the next one from the back.
    front: Cursor,
    back: Cursor,
    is_done: bool,
    key: Vec<u8>,
}

/// A place between the entries of a leaf.
#[derive(Debug)]
struct Cursor {
    way: Way,
    place: usize,
}

impl Cursor {
    /// The place before the entries of a bound, or behind them.
    fn at(pages: &impl Pages, root: u32, bound: Bound<&[u8]>, is_end: bool) -> Result<Self> {
        let way = match bound {
            Bound::Included(key) | Bound::Excluded(key) => way(pages, root, key)?,
            Bound::Unbounded if is_end => descend(pages, root, |node| node.count())?,
            Bound::Unbounded => descend(pages, root, |_| 0)?,
        };
        let node = node_at(pages, way.leaf)?;
        let place = match bound {
            Bound::Unbounded if is_end => node.count(),
            Bound::Unbounded => 0,
            Bound::Included(key) => node.find(key).map_or_else(|place| place, |place| place + usize::from(is_end)),
            Bound::Excluded(key) => node.find(key).map_or_else(|place| place, |place| place + usize::from(!is_end)),
        };
        Ok(Self { way, place })
    }

    /// Goes to the neighbouring leaf: the next one with `step` 1, the one before with -1. Returns false if
    /// there is none.
    fn turn(&mut self, pages: &impl Pages, step: isize) -> Result<bool> {
        let depth = self.way.steps.len();
        while let Some(last) = self.way.steps.pop() {
            let node = node_at(pages, last.page)?;
            let Some(child) = last.child.checked_add_signed(step).filter(|&child| child <= node.count()) else {
                continue;
            };
            self.way.steps.push(Step { child, ..last });
            let mut number = node.child(child);
            while self.way.steps.len() < depth {
                let node = node_at(pages, number)?;
                if node.is_leaf() {
                    return Err(pages.wrong(number, "the tree has leaves at different levels"));
                }
                let child = if step > 0 { 0 } else { node.count() };
                self.way.steps.push(Step { page: number, child });
                number = node.child(child);
            }
            self.way.leaf = number;
            let node = node_at(pages, number)?;
            if !node.is_leaf() {
                return Err(pages.wrong(number, "the tree has leaves at different levels"));
            }
            self.place = if step > 0 { 0 } else { node.count() };
            return Ok(true);
        }
        Ok(false)
    }
}

impl<'a, P: Pages> Entries<'a, P> {
    /// The entries between two bounds.
    pub(crate) fn new(pages: &'a P, root: u32, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Result<Self> {
        let front = Cursor::at(pages, root, from, false)?;
        let back = Cursor::at(pages, root, to, true)?;
        let is_done = is_empty(from, to);
        Ok(Self { pages, front, back, is_done, key: Vec::new() })
    }

    /// Whether all entries were taken.
    fn is_over(&mut self) -> bool {
        self.is_done |= self.front.way.leaf == self.back.way.leaf && self.front.place >= self.back.place;
        self.is_done
    }

    /// Goes over the next entry from the front: its leaf, and its place there.
    fn advance(&mut self) -> Result<Option<(Node<'a>, usize)>> {
        while !self.is_over() {
            let leaf = node_at(self.pages, self.front.way.leaf)?;
            if self.front.place < leaf.count() {
                self.front.place += 1;
                return Ok(Some((leaf, self.front.place - 1)));
            }
            self.is_done = !self.front.turn(self.pages, 1)?;
        }
        Ok(None)
    }

    /// Goes over the next entry from the back.
    fn advance_back(&mut self) -> Result<Option<(Node<'a>, usize)>> {
        while !self.is_over() {
            if let Some(place) = self.back.place.checked_sub(1) {
                self.back.place = place;
                return Ok(Some((node_at(self.pages, self.back.way.leaf)?, place)));
            }
            self.is_done = !self.back.turn(self.pages, -1)?;
        }
        Ok(None)
    }

    /// The next entry from the front: its key is lent until the next one is taken.
    pub(crate) fn next(&mut self) -> Result<Option<(&[u8], &'a [u8])>> {
        let entry = self.advance()?;
        self.lend(entry)
    }

    /// The next entry from the back.
    pub(crate) fn next_back(&mut self) -> Result<Option<(&[u8], &'a [u8])>> {
        let entry = self.advance_back()?;
        self.lend(entry)
    }

    /// The key of the next entry from the front, without its value.
    pub(crate) fn next_key(&mut self) -> Result<Option<&[u8]>> {
        let entry = self.advance()?;
        Ok(entry.map(|(leaf, place)| self.key_of(leaf, place)))
    }

    fn key_of(&mut self, leaf: Node<'_>, place: usize) -> &[u8] {
        self.key.clear();
        leaf.append_key(place, &mut self.key);
        &self.key
    }

    fn lend(&mut self, entry: Option<(Node<'a>, usize)>) -> Result<Option<(&[u8], &'a [u8])>> {
        let Some((leaf, place)) = entry else { return Ok(None) };
        let value = value(self.pages, leaf, place)?;
        Ok(Some((self.key_of(leaf, place), value)))
    }
}

/// Whether no key is between two bounds.
fn is_empty(from: Bound<&[u8]>, to: Bound<&[u8]>) -> bool {
    match (from, to) {
        (Bound::Included(from), Bound::Included(to)) => from > to,
        (Bound::Included(from) | Bound::Excluded(from), Bound::Included(to) | Bound::Excluded(to)) => from >= to,
        _ => false,
    }
}
