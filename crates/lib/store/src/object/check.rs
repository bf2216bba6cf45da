//! Verifies the objects of a file.
//!
//! ```text
//! trees ─→ pages: kind, type, slots ─→ pointers and roots: each leads to an object of its type, or to none
//!                                      └─→ if not: does a root reach the object with the pointer?
//! ```
//! A collection that was interrupted leaves objects whose neighbours it has removed. No root reaches them, and
//! their pointers are not wrong.
//!
//! Cost: each page of objects is read twice; about 30 bytes of memory for each, and a bit for each slot. Once a
//! pointer is wrong, the pages of all objects that the roots reach are read again, and take 150 bytes each.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::finding::{Finding, Lost};
use crate::object::lists::{ListedPage, ObjectLists};
use crate::object::marks::Marks;
use crate::object::object_page::{ObjectPage, Slots, page_of};
use crate::page::{OBJECT, PAGE, Page, kind};
use crate::store_file::StoreFile;
use crate::walk::Walk;

/// A page of objects that could be read.
#[derive(Debug)]
struct FoundPage {
    number: u32,
    slots: Slots,
    /// A bit for each slot in use.
    used: Box<[u64]>,
}

/// An object with a pointer that leads to no object of its type.
struct WrongPointer {
    listed: ListedPage,
    slot: usize,
    /// With which the object begins.
    unit: usize,
    what: &'static str,
}

/// Verifies the objects of a file.
pub(crate) struct ObjectCheck<'a> {
    file: &'a StoreFile,
    lists: &'a ObjectLists,
    pages: HashMap<u32, FoundPage>,
    /// Numbers of the types, by name.
    numbers: BTreeMap<&'a str, u32>,
    pub(crate) objects: u64,
}

impl<'a> ObjectCheck<'a> {
    pub(crate) fn new(file: &'a StoreFile, lists: &'a ObjectLists) -> Self {
        let numbers = lists.types.iter().map(|(&number, (name, _))| (name.as_str(), number)).collect();
        Self { file, lists, pages: HashMap::new(), numbers, objects: 0 }
    }

    /// Verifies all pages and pointers. The pages of objects are marked as referenced in `walk`.
    pub(crate) fn run(&mut self, walk: &mut Walk<'_>, found: &mut dyn FnMut(Finding)) {
        self.lists.wrong.iter().cloned().for_each(&mut *found);
        for &listed in &self.lists.pages {
            let mut page = [0; PAGE];
            match self.read(listed, walk, &mut page) {
                Ok(()) => self.add(listed, ObjectPage(&page), found),
                Err((at, what)) => found(Finding::at_page(at, what, self.lists.lost(listed.number))),
            }
        }
        let listed: HashSet<(u32, u32)> = self.lists.pages.iter().map(|listed| (listed.number, listed.page)).collect();
        let unlisted = self.lists.room.difference(&listed);
        for (number, page) in unlisted {
            let what = "the tree of the pages with unused slots names it, and the tree of all pages does not";
            found(Finding::at_page(*page, format!("{what} (type {number})"), Lost::Nothing));
        }
        self.check_roots(found);
        self.check_pointers(found);
    }

    /// Reads a page of objects. The error is a page and what is wrong with it.
    fn read(&self, listed: ListedPage, walk: &mut Walk<'_>, page: &mut Page) -> Result<(), (u32, String)> {
        let ListedPage { number, page: at, parent } = listed;
        if !self.file.is_node_place(at) {
            return Err((parent, format!("it names page {at}, where no objects can be")));
        }
        if walk.referenced.contains(at) {
            return Err((parent, format!("it names page {at}, to which another page refers")));
        }
        walk.referenced.insert(at);
        self.file.page(at, page).map_err(|what| (at, what))?;
        let wrong = |what: &str| (at, what.to_owned());
        if kind(page) != OBJECT {
            return Err(wrong("it has no objects, and the tree of the pages names it"));
        }
        let found = ObjectPage(page);
        found.check().map_err(wrong)?;
        let Some((_, layout)) = self.lists.types.get(&number) else { return Err(wrong("its type is unknown")) };
        if !found.has_type(number, layout) {
            return Err(wrong("its objects are not of the type that the tree of the pages names"));
        }
        Ok(())
    }

    fn add(&mut self, listed: ListedPage, page: ObjectPage<'_>, found: &mut dyn FnMut(Finding)) {
        let slots = page.slots();
        let mut used = vec![0_u64; slots.count.div_ceil(64)].into_boxed_slice();
        for slot in page.used() {
            used[slot / 64] |= 1 << (slot % 64);
            self.objects += 1;
        }
        if page.unused().is_some() && !self.lists.room.contains(&(listed.number, listed.page)) {
            let what = "it has unused slots, and the tree of such pages does not name it";
            found(Finding::at_page(listed.page, what, Lost::Space(PAGE as u64)));
        }
        self.pages.insert(listed.page, FoundPage { number: listed.number, slots, used });
    }

    /// What is wrong with an address that must lead to an object of a type.
    fn wrong_target(&self, address: u64, number: Option<u32>) -> Option<&'static str> {
        let page = u32::try_from(page_of(address)).ok().and_then(|page| self.pages.get(&page));
        let Some(page) = page else { return Some("to a page without objects that can be read") };
        if Some(page.number) != number {
            return Some("to an object of another type");
        }
        let slot = page.slots.slot_of(address);
        let is_used = slot.is_some_and(|slot| page.used[slot / 64] >> (slot % 64) & 1 == 1);
        (!is_used).then_some("where no object is")
    }

    fn check_roots(&self, found: &mut dyn FnMut(Finding)) {
        for listed in &self.lists.roots {
            if let Some(what) = self.wrong_target(listed.root.address, Some(listed.root.number)) {
                let what = format!("the root {} leads {what}", listed.name);
                found(Finding::at_page(listed.parent, what, self.lists.lost(listed.root.number)));
            }
        }
    }

    /// Verifies the pointers of all objects that the roots reach, of each page up to the first wrong one.
    fn check_pointers(&self, found: &mut dyn FnMut(Finding)) {
        let (mut wrong, mut page) = (Vec::new(), [0; PAGE]);
        for &listed in &self.lists.pages {
            if self.read_again(listed.page, &mut page) {
                self.add_wrong_pointers(listed, &page, &mut wrong);
            }
        }
        if wrong.is_empty() {
            return;
        }
        let reached = self.reached();
        wrong.retain(|wrong| reached.is_marked(wrong.listed.page, wrong.unit));
        wrong.dedup_by_key(|wrong| wrong.listed.page);
        for WrongPointer { listed, slot, what, .. } in wrong {
            let what = format!("the object in slot {slot} has a pointer that leads {what}");
            found(Finding::at_page(listed.page, what, self.lists.lost(listed.number)));
        }
    }

    /// Repeats the read of a page that has objects and could be read before.
    fn read_again(&self, number: u32, page: &mut Page) -> bool {
        self.pages.contains_key(&number) && self.file.page(number, page).is_ok()
    }

    fn add_wrong_pointers(&self, listed: ListedPage, page: &Page, wrong: &mut Vec<WrongPointer>) {
        let Some((_, layout)) = self.lists.types.get(&listed.number) else { return };
        let targets: Vec<Option<u32>> = layout.targets().map(|target| self.numbers.get(target).copied()).collect();
        let page_of_objects = ObjectPage(page);
        let unit_of = |slot| page_of_objects.slots().unit(slot);
        for slot in page_of_objects.used() {
            let mut places = page_of_objects.pointers(slot).zip(&targets).map(|(place, &to)| (place.address(page), to));
            let what = places.find_map(|(address, target)| match address {
                0 => None,
                _ => self.wrong_target(address, target),
            });
            wrong.extend(what.map(|what| WrongPointer { listed, slot, unit: unit_of(slot), what }));
        }
    }

    /// The objects that the roots reach.
    fn reached(&self) -> Marks {
        let (mut reached, mut page) = (Marks::default(), [0; PAGE]);
        self.lists.roots.iter().for_each(|listed| reached.mark(listed.root.address));
        while let Some(number) = reached.pop_pending() {
            if self.read_again(number, &mut page) {
                reached.scan_page(number, ObjectPage(&page));
            }
        }
        reached
    }
}
