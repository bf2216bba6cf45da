//! Visits the nodes of a tree in the order of their keys, and verifies each against its place.
//!
//! ```text
//! root ─→ stack of places ─→ read, verify ─→ node: visited, and its children are the next places
//!                                        └─→ damage: visited, and the walk goes on behind it
//! ```
//! Invariant: no node is visited twice, so each walk ends, whatever the file contains.
//! Cost: each page is read once; two bits a page of the file.

use std::collections::HashMap;

use crate::node::{Fences, Node};
use crate::page::{NODE, PAGE, Page, kind};
use crate::page_set::PageSet;
use crate::store_file::StoreFile;
use crate::tree::DEEPEST;

/// Where a page is expected in a tree.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) page: u32,
    /// The page that refers to it.
    pub(crate) parent: u32,
    /// `None` for a root, which has any level.
    pub(crate) level: Option<u8>,
    /// Its keys are at least this one.
    pub(crate) lower: Vec<u8>,
    /// Its keys are below this one.
    pub(crate) upper: Option<Vec<u8>>,
}

/// A part of a tree that cannot be read.
#[derive(Clone, Debug)]
pub(crate) struct Damage {
    /// The page that is wrong: that of the place, or the one that refers to it.
    pub(crate) page: u32,
    pub(crate) what: String,
    pub(crate) place: Place,
    /// The keys that are missing: from each first one to each second one.
    pub(crate) missing: Vec<KeyRange>,
}

/// Keys that are at least the first one and below the second one.
pub(crate) type KeyRange = (Vec<u8>, Option<Vec<u8>>);

/// What is visited in place of an unreadable page.
#[derive(Debug)]
pub(crate) struct Substitute {
    /// In the order of their keys.
    pub(crate) places: Vec<Place>,
    /// The keys that none of them has.
    pub(crate) missing: Vec<KeyRange>,
}

/// A node of a tree.
#[derive(Clone, Copy)]
pub(crate) struct NodeAt<'a> {
    pub(crate) page: u32,
    pub(crate) node: Node<'a>,
    /// Entries whose large values are where none can be, or where another one is: each with what is wrong.
    wrong: &'a [(usize, String)],
}

impl NodeAt<'_> {
    /// What is wrong with the place of the large value of an entry.
    pub(crate) fn wrong_place(&self, index: usize) -> Option<&str> {
        self.wrong.iter().find(|wrong| wrong.0 == index).map(|wrong| wrong.1.as_str())
    }
}

/// What a walk visits.
pub(crate) enum Visited<'a> {
    Node(NodeAt<'a>),
    Damage(Damage),
}

/// Walks over the trees of a file.
pub(crate) struct Walk<'f> {
    pub(crate) file: &'f StoreFile,
    /// The pages that a tree refers to.
    pub(crate) referenced: PageSet,
    /// The nodes that were visited.
    pub(crate) visited: PageSet,
    /// By number and first key of a page.
    pub(crate) substitutes: HashMap<(u32, Vec<u8>), Substitute>,
}

impl<'f> Walk<'f> {
    pub(crate) fn new(file: &'f StoreFile) -> Self {
        let none = || PageSet::new(file.end());
        Self { file, referenced: none(), visited: none(), substitutes: HashMap::new() }
    }

    /// Visits a tree. `parent` is the page that names its root.
    ///
    /// # Errors
    /// Those of `visit`, which end the walk.
    pub(crate) fn tree<E>(
        &mut self,
        root: u32,
        parent: u32,
        visit: &mut dyn FnMut(Visited<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.places(vec![Place { page: root, parent, level: None, lower: Vec::new(), upper: None }], visit)
    }

    /// Visits the last place and the nodes below it, then the place before it, and so on.
    pub(crate) fn places<E>(
        &mut self,
        mut places: Vec<Place>,
        visit: &mut dyn FnMut(Visited<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut page = [0; PAGE];
        while let Some(place) = places.pop() {
            match self.read(&place, &mut page) {
                Ok(()) => {
                    let node = Node(&page);
                    push_children(&place, node, &mut places);
                    let wrong = self.refer_to_extents(node);
                    visit(Visited::Node(NodeAt { page: place.page, node, wrong: &wrong }))?;
                }
                Err((page, what)) => {
                    let missing = match self.substitutes.remove(&(place.page, place.lower.clone())) {
                        Some(substitute) => {
                            places.extend(substitute.places.into_iter().rev());
                            substitute.missing
                        }
                        None => vec![(place.lower.clone(), place.upper.clone())],
                    };
                    visit(Visited::Damage(Damage { page, what, place, missing }))?;
                }
            }
        }
        Ok(())
    }

    /// Marks the pages of the large values of a leaf. Returns the entries whose pages cannot be theirs.
    fn refer_to_extents(&mut self, node: Node<'_>) -> Vec<(usize, String)> {
        let mut wrong = Vec::new();
        for index in (0..node.count()).filter(|_| node.is_leaf()) {
            let Some(extent) = node.extent(index) else { continue };
            let start = extent.start;
            if !self.file.is_extent_place(extent) {
                wrong.push((index, format!("it refers to page {start}, where no such large value can be")));
            } else if extent.pages().any(|page| self.referenced.contains(page)) {
                wrong.push((index, format!("it refers to a large value at page {start}, and so does another page")));
            } else {
                extent.pages().for_each(|page| self.referenced.insert(page));
            }
        }
        wrong
    }

    /// Reads the node of a place. The error is a page and what is wrong with it.
    fn read(&mut self, place: &Place, page: &mut Page) -> Result<(), (u32, String)> {
        let number = place.page;
        if !self.file.is_node_place(number) {
            return Err((place.parent, format!("it refers to page {number}, where no node of a tree can be")));
        }
        self.referenced.insert(number);
        if self.visited.contains(number) {
            return Err((place.parent, format!("it refers to page {number}, and so does another page")));
        }
        self.file.page(number, page).map_err(|what| (number, what))?;
        if kind(page) == NODE && usize::from(Node(page).level()) >= DEEPEST {
            return Err((number, "its tree has too many levels".to_owned()));
        }
        let fences = Fences { lower: &place.lower, upper: place.upper.as_deref() };
        Node(page).verify(place.level, fences).map_err(|what| (number, what.to_owned()))?;
        self.visited.insert(number);
        Ok(())
    }
}

/// Adds the children of a node, the first one last.
fn push_children(place: &Place, node: Node<'_>, places: &mut Vec<Place>) {
    let Some(level) = node.level().checked_sub(1) else { return };
    let key = |index: usize| {
        let mut key = Vec::new();
        node.append_key(index, &mut key);
        key
    };
    for child in (0..=node.count()).rev() {
        places.push(Place {
            page: node.child(child),
            parent: place.page,
            level: Some(level),
            lower: child.checked_sub(1).map_or_else(|| place.lower.clone(), key),
            upper: if child < node.count() { Some(key(child)) } else { place.upper.clone() },
        });
    }
}
