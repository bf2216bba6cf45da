//! The entries of a tree between two keys, in order from either end.
//!
//! ```text
//! leaf   │ taken │ front ─→        │      the next entry from the front, and where those of the leaf end
//! leaf   │        ←─ back  │ taken │      absent until an entry is taken from the back
//! ```
//! A cursor keeps its leaf, which stays as it is while the version is lent. So an entry costs no look-up of
//! its page. While a leaf is read, the next one is brought into the cache of the processor.
//!
//! Invariants: each leaf begins with the key before which the last one ended, so this ends whatever the
//! file contains. `end` is at most the place of the back cursor if both are in one leaf.

use std::ops::Bound;

use super::{Pages, Way, node_at, too_deep, value};
use crate::error::Result;
use crate::node::Node;
use crate::page::{LINES, Page, prefetch};

/// Entries behind the next one that are brought into the cache: cells are in any order in their page.
const DISTANCE: usize = 4;

/// The entries of a tree between two keys.
#[derive(Debug)]
pub(crate) struct Entries<'a, P> {
    pages: &'a P,
    root: u32,
    to: Bound<Vec<u8>>,
    front: Cursor<'a>,
    /// The place behind the last entry that is taken from the front in this leaf.
    end: usize,
    /// Whether no later leaf has entries for the front.
    is_last: bool,
    /// Whether an error has ended it, or no key is between the bounds.
    is_over: bool,
    back: Option<Box<Cursor<'a>>>,
    ahead: Option<Ahead<'a>>,
}

/// The next leaf, which is brought into the cache of the processor.
#[derive(Debug)]
struct Ahead<'a> {
    page: &'a Page,
    /// The lines that are there, and how many more each entry of the leaf before brings.
    lines: usize,
    lines_per_entry: usize,
}

/// A place between the entries of a leaf.
#[derive(Debug)]
struct Cursor<'a> {
    way: Way,
    /// The branch above the leaf.
    parent: Option<Node<'a>>,
    leaf: Node<'a>,
    place: usize,
}

impl<'a> Cursor<'a> {
    /// The place before the entries of a bound, or with `is_end` behind them.
    fn at(pages: &'a impl Pages, root: u32, bound: Bound<&[u8]>, is_end: bool) -> Result<Self> {
        let (mut way, mut leaf, mut parent) = (Way::new(root), node_at(pages, root)?, None);
        while !leaf.is_leaf() {
            let child = match bound {
                Bound::Included(key) | Bound::Excluded(key) => leaf.child_of(key),
                Bound::Unbounded if is_end => leaf.count(),
                Bound::Unbounded => 0,
            };
            if !way.push(way.leaf, child) {
                return Err(too_deep(pages, way.leaf));
            }
            way.leaf = leaf.child(child);
            parent = Some(leaf);
            leaf = node_at(pages, way.leaf)?;
        }
        let place = place_of(leaf, bound, is_end);
        (place..place + DISTANCE).for_each(|place| leaf.prefetch_entry(place));
        Ok(Self { way, parent, leaf, place })
    }

    /// Goes to the neighbouring leaf: the next one, or with `is_back` the one before. Returns false if there
    /// is none.
    fn turn(&mut self, pages: &'a impl Pages, is_back: bool) -> Result<bool> {
        let (depth, old) = (self.way.depth, self.leaf.fences());
        while let Some(last) = self.way.pop() {
            let mut node = node_at(pages, last.page)?;
            let child = if is_back { last.child().checked_sub(1) } else { Some(last.child() + 1) };
            let Some(mut child) = child.filter(|&child| child <= node.count()) else { continue };
            let mut number = last.page;
            while self.way.depth < depth && !node.is_leaf() {
                self.way.push(number, child);
                self.parent = Some(node);
                number = node.child(child);
                node = node_at(pages, number)?;
                child = if is_back { node.count() } else { 0 };
            }
            let new = node.fences();
            let is_neighbour = if is_back { new.upper == Some(old.lower) } else { old.upper == Some(new.lower) };
            if self.way.depth < depth || !node.is_leaf() || !is_neighbour {
                return Err(pages.wrong(number, "it is not the leaf beside the one before"));
            }
            (self.way.leaf, self.leaf) = (number, node);
            self.place = if is_back { node.count() } else { 0 };
            return Ok(true);
        }
        Ok(false)
    }
}

/// The key of an entry in two parts, as its leaf has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyParts<'a> {
    pub(crate) prefix: &'a [u8],
    pub(crate) rest: &'a [u8],
}

impl KeyParts<'_> {
    pub(crate) fn to_vec(self) -> Vec<u8> {
        [self.prefix, self.rest].concat()
    }
}

/// The place before the entries of a bound in a leaf, or with `is_end` behind them.
fn place_of(leaf: Node<'_>, bound: Bound<&[u8]>, is_end: bool) -> usize {
    match bound {
        Bound::Unbounded if is_end => leaf.count(),
        Bound::Unbounded => 0,
        Bound::Included(key) => leaf.find(key).map_or_else(|place| place, |place| place + usize::from(is_end)),
        Bound::Excluded(key) => leaf.find(key).map_or_else(|place| place, |place| place + usize::from(!is_end)),
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

impl<'a, P: Pages> Entries<'a, P> {
    /// The entries between two bounds.
    pub(crate) fn new(pages: &'a P, root: u32, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Result<Self> {
        let front = Cursor::at(pages, root, from, false)?;
        let is_over = is_empty(from, to);
        let to = to.map(<[u8]>::to_vec);
        let mut entries = Self { pages, root, to, front, end: 0, is_last: true, is_over, back: None, ahead: None };
        if !is_over {
            entries.enter_leaf();
        }
        Ok(entries)
    }

    /// Finds the end of the entries in the leaf of the front cursor.
    fn enter_leaf(&mut self) {
        let leaf = self.front.leaf;
        (self.end, self.is_last) = match (&self.back, self.to.as_ref().map(Vec::as_slice)) {
            (Some(back), _) if back.way.leaf == self.front.way.leaf => (back.place, true),
            (None, to @ (Bound::Included(key) | Bound::Excluded(key))) if leaf.is_below_end(key) => {
                (place_of(leaf, to, true), true)
            }
            _ => (leaf.count(), leaf.fences().upper.is_none()),
        };
    }

    /// The next leaf, if it has the same parent and is in memory.
    fn find_ahead(&self) -> Option<Ahead<'a>> {
        let (parent, step) = (self.front.parent?, self.front.way.steps().last()?);
        let child = Some(step.child() + 1).filter(|&child| child <= parent.count())?;
        let page = self.pages.page_in_memory(parent.child(child))?;
        Some(Ahead { page, lines: 0, lines_per_entry: LINES.div_ceil(self.front.leaf.count().max(1)) })
    }

    /// Ends it after an error.
    #[cold]
    fn fail<T>(&mut self, error: crate::Error) -> Result<T> {
        (self.end, self.is_last, self.is_over) = (0, true, true);
        Err(error)
    }

    /// Goes to the next leaf with entries for the front. Returns false if there is none.
    #[inline(never)]
    fn turn(&mut self) -> Result<bool> {
        while self.front.place >= self.end {
            if self.is_last {
                return Ok(false);
            }
            match self.front.turn(self.pages, false) {
                Ok(true) => {
                    self.enter_leaf();
                    // Not in the first leaf: short scans end there.
                    self.ahead = if self.is_last { None } else { self.find_ahead() };
                }
                Ok(false) => self.is_last = true,
                Err(error) => return self.fail(error),
            }
        }
        Ok(true)
    }

    /// The next entry from the front.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Option<(KeyParts<'a>, &'a [u8])>> {
        if self.front.place >= self.end && !self.turn()? {
            return Ok(None);
        }
        let (leaf, place) = (self.front.leaf, self.front.place);
        self.front.place += 1;
        leaf.prefetch_entry(place + DISTANCE);
        if let Some(ahead) = &mut self.ahead {
            ahead.advance();
        }
        self.lend(leaf, place)
    }

    /// The key of the next entry from the front, without its value.
    pub(crate) fn next_key(&mut self) -> Result<Option<KeyParts<'a>>> {
        if !self.turn()? {
            return Ok(None);
        }
        let (leaf, place) = (self.front.leaf, self.front.place);
        self.front.place += 1;
        Ok(Some(KeyParts { prefix: leaf.prefix(), rest: leaf.rest(place) }))
    }

    /// The next entry from the back.
    pub(crate) fn next_back(&mut self) -> Result<Option<(KeyParts<'a>, &'a [u8])>> {
        match self.advance_back() {
            Ok(Some((leaf, place))) => self.lend(leaf, place),
            Ok(None) => Ok(None),
            Err(error) => self.fail(error),
        }
    }

    #[inline]
    fn lend(&mut self, leaf: Node<'a>, place: usize) -> Result<Option<(KeyParts<'a>, &'a [u8])>> {
        let (rest, payload) = leaf.entry(place);
        match value(self.pages, payload) {
            Ok(value) => Ok(Some((KeyParts { prefix: leaf.prefix(), rest }, value))),
            Err(error) => self.fail(error),
        }
    }

    /// Moves the back cursor before the next entry from the back. Returns the leaf and the place of that.
    fn advance_back(&mut self) -> Result<Option<(Node<'a>, usize)>> {
        if self.is_over {
            return Ok(None);
        }
        let back = match &mut self.back {
            Some(back) => back,
            None => {
                let to = self.to.as_ref().map(Vec::as_slice);
                self.back.insert(Box::new(Cursor::at(self.pages, self.root, to, true)?))
            }
        };
        loop {
            let is_shared = back.way.leaf == self.front.way.leaf;
            if back.place > if is_shared { self.front.place } else { 0 } {
                back.place -= 1;
                if is_shared {
                    (self.end, self.is_last) = (back.place, true);
                }
                return Ok(Some((back.leaf, back.place)));
            }
            if is_shared || !back.turn(self.pages, true)? {
                return Ok(None);
            }
        }
    }
}

impl Ahead<'_> {
    /// Brings the lines for one entry.
    #[inline]
    fn advance(&mut self) {
        let end = (self.lines + self.lines_per_entry).min(LINES);
        (self.lines..end).for_each(|line| prefetch(self.page, line));
        self.lines = end;
    }
}
