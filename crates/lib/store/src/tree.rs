//! Trees of pages: sorted keys with values.
//!
//! The page of the root keeps its number, unless the file is compacted. When the root is full, its entries
//! move to a new page below it.

mod entries;
mod neighbours;

use std::ops::Bound;

use crate::editor::Editor;
use crate::error::Result;
use crate::extent::Extent;
use crate::frames::MOST_PAGES;
use crate::node::{self, Fences, Node, Payload};
use crate::page::{NODE, PAGE, Page, kind, prefetch};
use crate::shared::Shared;

pub(crate) use entries::{Entries, KeyParts};

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

    /// The contents of a page that is in memory, to be read soon.
    fn page_in_memory(&self, _number: u32) -> Option<&Page> {
        None
    }

    /// A large value.
    ///
    /// # Errors
    /// As of a page.
    fn extent(&self, extent: Extent) -> Result<&[u8]>;

    /// The error of a page with wrong contents.
    fn wrong(&self, number: u32, what: &str) -> crate::Error;
}

/// A branch on the way to a leaf, and the child that was taken.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Step {
    pub(crate) page: u32,
    pub(crate) child: u16,
}

impl Step {
    pub(crate) fn child(self) -> usize {
        self.child.into()
    }
}

/// The way to a leaf.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    branches: [Step; DEEPEST],
    depth: usize,
    pub(crate) leaf: u32,
}

impl Way {
    /// A way without branches.
    fn new(leaf: u32) -> Self {
        Self { branches: [Step::default(); DEEPEST], depth: 0, leaf }
    }

    /// The branches from the root downwards.
    pub(crate) fn steps(&self) -> &[Step] {
        &self.branches[..self.depth]
    }

    /// Adds a branch, in which `child` was taken. Returns false if there are too many.
    fn push(&mut self, page: u32, child: usize) -> bool {
        let Some(step) = self.branches.get_mut(self.depth) else { return false };
        *step = Step { page, child: child as u16 };
        self.depth += 1;
        true
    }

    /// Removes the lowest branch.
    fn pop(&mut self) -> Option<Step> {
        self.depth = self.depth.checked_sub(1)?;
        Some(self.branches[self.depth])
    }
}

/// A page that must be a node.
#[inline]
fn node_at(pages: &impl Pages, number: u32) -> Result<Node<'_>> {
    let page = pages.page(number)?;
    // The lines behind the one with the kind: the search looks at several of them.
    (1..4).for_each(|line| prefetch(page, line));
    if kind(page) == NODE { Ok(Node(page)) } else { Err(no_node(pages, number)) }
}

#[cold]
fn no_node(pages: &impl Pages, number: u32) -> crate::Error {
    pages.wrong(number, "it is no node of a tree")
}

#[cold]
fn too_deep(pages: &impl Pages, number: u32) -> crate::Error {
    pages.wrong(number, "the tree has too many levels")
}

/// A child, whose level and fences must be those that its parent has for it. So whatever the file
/// contains, a change sees only nodes that belong together.
fn child_at<'a>(pages: &'a impl Pages, parent: Node<'_>, child: usize) -> Result<(u32, Node<'a>)> {
    let number = parent.child(child);
    let node = node_at(pages, number)?;
    if !node.is_child_of(parent, child) {
        return Err(pages.wrong(number, "its level or its fences are not those that its parent has for it"));
    }
    Ok((number, node))
}

/// The way to the leaf with a key, to change it.
pub(crate) fn way(pages: &impl Pages, root: u32, key: &[u8]) -> Result<Way> {
    let (mut way, mut node) = (Way::new(root), node_at(pages, root)?);
    let fences = node.fences();
    if !fences.lower.is_empty() || fences.upper.is_some() {
        return Err(pages.wrong(root, "it is the root of a tree, and has fences"));
    }
    while !node.is_leaf() {
        let child = node.child_of(key);
        if !way.push(way.leaf, child) {
            return Err(too_deep(pages, way.leaf));
        }
        (way.leaf, node) = child_at(pages, node, child)?;
    }
    Ok(way)
}

/// The value of a key.
#[inline]
pub(crate) fn get<'a>(pages: &'a impl Pages, root: u32, key: &[u8]) -> Result<Option<&'a [u8]>> {
    let mut number = root;
    for _ in 0..DEEPEST {
        let node = node_at(pages, number)?;
        if node.is_leaf() {
            let Ok(index) = node.find(key) else { return Ok(None) };
            return value(pages, node.entry(index).1).map(Some);
        }
        number = node.child(node.child_of(key));
    }
    Err(too_deep(pages, number))
}

/// The value of an entry of a leaf, or of the extent that it refers to.
#[inline]
fn value<'a>(pages: &'a impl Pages, payload: Payload<'a>) -> Result<&'a [u8]> {
    match payload {
        Payload::Value(value) => Ok(value),
        Payload::Reference(reference) => pages.extent(Extent::decode(reference)),
        Payload::Child(_) => Ok(&[]),
    }
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
        if !neighbours::relieve(editor, &way, key, value)? {
            split(editor, way, place, key)?;
        }
    }
}

/// Divides the leaf of a way, and the branches above it that are full.
fn split(editor: &mut Editor<'_>, mut way: Way, place: usize, key: &[u8]) -> Result<()> {
    let (mut full, mut place) = (way.leaf, place);
    loop {
        if way.depth == 0 {
            let below = grow(editor, full)?;
            way.push(full, 0);
            full = below;
        }
        let old = *editor.page(full)?;
        let at = node::division(&old, place, key);
        let separator = separator_at(Node(&old), at, key);
        // The parent is divided first, so that this page has one with room.
        let Some(parent) = way.pop() else { return Ok(()) };
        let page = editor.edit(parent.page)?;
        if !node::fits(page, &separator, Payload::Child(0)) {
            (full, place) = (parent.page, parent.child());
            continue;
        }
        let right = editor.allocate()?;
        node::insert(editor.edit(parent.page)?, parent.child(), &separator, Payload::Child(right));
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

/// Removes all keys between two bounds; how many they were. It changes each leaf once, and none if it removes all.
pub(crate) fn remove_range(editor: &mut Editor<'_>, root: u32, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Result<u64> {
    if from == Bound::Unbounded && to == Bound::Unbounded {
        return clear(editor, root);
    }
    let mut removed = 0;
    loop {
        let first = Entries::new(&*editor, root, from, to)?.next_key()?.map(KeyParts::to_vec);
        let Some(first) = first else { return Ok(removed) };
        removed += remove_of_leaf(editor, root, &first, to)?;
    }
}

/// Removes all keys; how many they were. Only the root is changed: the pages below it are read and freed.
pub(crate) fn clear(editor: &mut Editor<'_>, root: u32) -> Result<u64> {
    node_at(editor, root)?;
    let (mut rest, mut removed) = (vec![root], 0);
    while let Some(number) = rest.pop() {
        let page = *editor.page(number)?;
        let node = Node(&page);
        if node.is_leaf() {
            removed += node.count() as u64;
            editor.remove_extents((0..node.count()).filter_map(|place| node.extent(place)));
        } else {
            for child in 0..=node.count() {
                rest.push(child_at(editor, node, child)?.0);
            }
        }
        if number == root {
            plant(editor.edit(root)?);
        } else {
            // A page that is in the tree twice is an error here, so this ends.
            editor.free(number)?;
        }
    }
    Ok(removed)
}

/// Removes the keys of one leaf, from `first` up to a bound.
fn remove_of_leaf(editor: &mut Editor<'_>, root: u32, first: &[u8], to: Bound<&[u8]>) -> Result<u64> {
    let way = way(editor, root, first)?;
    let leaf = node_at(editor, way.leaf)?;
    let Ok(start) = leaf.find(first) else {
        return Err(editor.wrong(way.leaf, "it does not have the keys of its place"));
    };
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
    while let Some(parent) = way.pop() {
        if node_at(editor, few)?.used() >= FEW {
            return Ok(());
        }
        join(editor, parent)?;
        few = parent.page;
    }
    // A root with one child takes its entries.
    let root = node_at(editor, few)?;
    if !root.is_leaf() && root.count() == 0 {
        let (child, below) = child_at(editor, root, 0)?;
        let entries = *below.0;
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
    let left = parent.child().min(node.count() - 1);
    let mut separator = Vec::new();
    node.append_key(left, &mut separator);
    let ((first, lower), (second, upper)) = (child_at(editor, node, left)?, child_at(editor, node, left + 1)?);
    let mut joined = [0; PAGE];
    if node::join(lower.0, upper.0, &separator, &mut joined) {
        *editor.edit(first)? = joined;
        node::remove_child(editor.edit(parent.page)?, left + 1);
        editor.free(second)?;
    }
    Ok(())
}
