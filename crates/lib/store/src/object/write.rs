//! Objects of a transaction.

#![allow(unsafe_code, reason = "reads objects from their bytes")]

use std::any::TypeId;
use std::collections::HashMap;
use std::fmt;
use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::catalog;
use crate::error::{Error, ErrorKind, Result};
use crate::node::Payload;
use crate::object::allocation::{LONGEST_NAME, NumberedType, object_page, take_slot};
use crate::object::layout::Layout;
use crate::object::object_page::{ObjectPage, address, page_of};
use crate::object::pointers::PageSlots;
use crate::object::read::wrong_root;
use crate::object::stored::{LongPtr, Object, Ptr};
use crate::object::types::{self, ROOTS, Root};
use crate::object::window::exhausted;
use crate::page::{Page, u32_at};
use crate::page_set::PageMap;
use crate::transaction::Transaction;
use crate::tree::{self, Pages};

/// Bytes of changed objects that a changed root counts as: many objects may have become unreachable.
const CHANGED_ROOT: u64 = 1 << 10;

/// What a transaction knows of its objects.
#[derive(Debug)]
pub(crate) struct ObjectEdits {
    slots: PageSlots,
    /// The types that were used, with their numbers.
    types: HashMap<TypeId, (u32, Arc<Layout>)>,
    /// The same by name.
    numbers: HashMap<String, u32>,
    /// Pages of objects that were used, with the numbers of their types.
    pages: PageMap<u32>,
    /// The page that is filled with new objects of each type.
    filled: HashMap<u32, u32>,
    /// Bytes of the objects that were added or changed.
    pub(crate) changed_bytes: u64,
}

impl ObjectEdits {
    pub(crate) fn new(slots: u32, end: u32) -> Self {
        let slots = PageSlots::new(slots, end);
        let (types, numbers, pages, filled) = Default::default();
        Self { slots, types, numbers, pages, filled, changed_bytes: 0 }
    }

    /// Forgets what a rollback may have undone.
    pub(crate) fn forget(&mut self) {
        self.types.clear();
        self.numbers.clear();
        self.pages.clear();
        self.filled.clear();
    }
}

/// Where an object of a transaction is.
#[derive(Clone, Copy, Debug)]
struct Place {
    page: u32,
    slot: usize,
}

/// Writes an object to its slot. Returns false if it has a pointer that is not from this transaction.
fn write_object<T: Object>(page: &mut Page, slot: usize, object: &T, layout: &Layout, slots: &PageSlots) -> bool {
    let places = ObjectPage(page).slots();
    let bytes = &mut page[places.offset(slot)..][..size_of::<T>()];
    bytes.fill(0);
    object.encode(bytes);
    let mut is_right = true;
    for (index, offset) in layout.pointers().enumerate() {
        let place = places.pointer(slot, index, offset);
        let found = slots.address(u32_at(page, place.low));
        is_right &= found.is_some();
        place.set_address(page, found.unwrap_or(0));
    }
    is_right
}

/// Reads the object of a slot; `None` without a free slot for the page of a pointer.
fn read_object<T: Object>(page: &Page, slot: usize, slots: &mut PageSlots) -> Option<T> {
    let start = ObjectPage(page).slots().offset(slot);
    let mut value = MaybeUninit::<T>::uninit();
    let target = value.as_mut_ptr().cast::<u8>();
    // SAFETY: both ranges have the size of the type and are different memory. Any bytes are an object.
    unsafe { std::ptr::copy_nonoverlapping(page[start..start + size_of::<T>()].as_ptr(), target, size_of::<T>()) };
    for place in ObjectPage(page).pointers(slot) {
        let pointer = slots.pointer(place.address(page))?;
        // SAFETY: the pointer is inside of the object: the layout of the page is that of the type.
        unsafe { target.add(place.low - start).cast::<[u8; 4]>().write(pointer.to_le_bytes()) };
    }
    // SAFETY: all bytes were written above, and any bytes are an object.
    Some(unsafe { value.assume_init() })
}

/// # Objects
impl Transaction {
    /// Adds an object. It stays in the store as long as a root reaches it: see
    /// [`crate::Store::collect`].
    ///
    /// # Errors
    /// [`ErrorKind::Type`] if the type has other fields in the file; [`ErrorKind::TooLarge`] for an object
    /// that does not fit into a page; [`ErrorKind::Absent`] if it has a pointer that is not from this
    /// transaction, or whose object was removed; [`ErrorKind::Window`], [`ErrorKind::Full`], [`ErrorKind::Corrupt`] and
    /// [`ErrorKind::Io`]. After an error other than the first, the transaction cannot be committed.
    pub fn alloc<T: Object>(&mut self, object: T) -> Result<Ptr<T>> {
        let (number, layout) = self.object_type::<T>()?;
        let filled = &mut self.objects.filled;
        let (shared, version) = (&*self.open.shared, self.reader.version);
        let mut editor = crate::editor::Editor { shared, edits: &mut self.edits, writer: &self.writer, version };
        let taken = take_slot(&mut editor, filled, NumberedType { number, layout: &layout });
        let (page, slot) = self.note_failure(taken)?;
        let stored = self.store_object(Place { page, slot }, &object);
        self.note_failure(stored)?;
        let unit = object_page(self, page)?.slots().unit(slot);
        let pointer = self.objects.slots.pointer(address(page, unit)).map(Ptr::of);
        let pointer = pointer.ok_or_else(|| exhausted(&self.open.shared.path));
        self.note_failure(pointer)
    }

    /// A copy of an object, as of now.
    ///
    /// # Errors
    /// [`ErrorKind::Absent`] where no object is, [`ErrorKind::Type`] for an object of another type,
    /// [`ErrorKind::Window`], [`ErrorKind::Corrupt`] and [`ErrorKind::Io`].
    pub fn get<T: Object>(&mut self, pointer: Ptr<T>) -> Result<T> {
        let place = self.place(pointer)?;
        self.read(place)
    }

    fn read<T: Object>(&mut self, place: Place) -> Result<T> {
        let page = self.edits.page(&self.open.shared, place.page, self.reader.version)?;
        read_object(page, place.slot, &mut self.objects.slots).ok_or_else(|| exhausted(&self.open.shared.path))
    }

    /// An object to change: what is assigned to it is stored when the result is dropped.
    ///
    /// # Errors
    /// As [`Transaction::get`].
    pub fn edit<T: Object>(&mut self, pointer: Ptr<T>) -> Result<ObjectEdit<'_, T>> {
        let place = self.place(pointer)?;
        let value = self.read(place)?;
        self.change(|editor| editor.edit(place.page).map(|_| ()))?;
        Ok(ObjectEdit { transaction: self, place, value })
    }

    /// The pointer of a root: [`Ptr::NULL`] if there is none of this name.
    ///
    /// # Errors
    /// [`ErrorKind::Type`] if it leads to another type, [`ErrorKind::Window`], [`ErrorKind::Corrupt`] and
    /// [`ErrorKind::Io`].
    pub fn root<T: Object>(&mut self, name: &str) -> Result<Ptr<T>> {
        let Some(root) = types::root(self, &self.open.shared, name)? else { return Ok(Ptr::NULL) };
        if self.known_type::<T>()?.is_none_or(|(number, _)| number != root.number) {
            return Err(wrong_root(&self.open.shared.path, name, T::NAME));
        }
        let pointer = self.objects.slots.pointer(root.address);
        pointer.map(Ptr::of).ok_or_else(|| exhausted(&self.open.shared.path))
    }

    /// Makes a root lead to an object: all that it reaches stays in the store.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`] for a name of more than 512 bytes, and as [`Transaction::alloc`] and
    /// [`Transaction::get`].
    pub fn set_root<T: Object>(&mut self, name: &str, pointer: Ptr<T>) -> Result<()> {
        self.check_name(name)?;
        self.place(pointer)?;
        let (number, _) = self.object_type::<T>()?;
        let Some(address) = self.objects.slots.address(pointer.0) else { return Err(self.foreign_pointer(T::NAME)) };
        self.objects.changed_bytes += CHANGED_ROOT;
        self.change(|editor| {
            let tree = catalog::root_or_new(editor, ROOTS)?;
            let root = Root { number, address }.encode();
            tree::insert(editor, tree, name.as_bytes(), Payload::Value(&root)).map(drop)
        })
    }

    /// Removes a root. Returns whether it was there.
    ///
    /// # Errors
    /// [`ErrorKind::Full`], [`ErrorKind::Corrupt`] and [`ErrorKind::Io`]: the transaction cannot be
    /// committed.
    pub fn remove_root(&mut self, name: &str) -> Result<bool> {
        self.objects.changed_bytes += CHANGED_ROOT;
        self.change(|editor| {
            let Some(tree) = catalog::root(editor, editor.shared, ROOTS)? else { return Ok(false) };
            tree::remove(editor, tree, name.as_bytes())
        })
    }

    /// The place of an object, with which a snapshot or another transaction finds it.
    ///
    /// # Errors
    /// [`ErrorKind::Absent`] if the pointer is not from this transaction.
    pub fn long<T: Object>(&self, pointer: Ptr<T>) -> Result<LongPtr<T>> {
        self.objects.slots.address(pointer.0).map(LongPtr::of).ok_or_else(|| self.foreign_pointer(T::NAME))
    }

    /// The pointer to the object at a place.
    ///
    /// # Errors
    /// [`ErrorKind::Window`] if the objects of this transaction have more pages than a window.
    pub fn short<T: Object>(&mut self, place: LongPtr<T>) -> Result<Ptr<T>> {
        self.objects.slots.pointer(place.0).map(Ptr::of).ok_or_else(|| exhausted(&self.open.shared.path))
    }

    /// The number and the layout of a type; `None` if the store has no such objects.
    fn known_type<T: Object>(&mut self) -> Result<Option<(u32, Arc<Layout>)>> {
        if let Some((number, layout)) = self.objects.types.get(&TypeId::of::<T>()) {
            return Ok(Some((*number, Arc::clone(layout))));
        }
        let layout = Arc::new(Layout::of::<T>());
        let number = types::number(self, &self.open.shared, T::NAME, &layout)?;
        Ok(number.map(|number| self.add_type::<T>(number, layout)))
    }

    /// The number and the layout of a type, which is added to the store.
    fn object_type<T: Object>(&mut self) -> Result<(u32, Arc<Layout>)> {
        if let Some(known) = self.known_type::<T>()? {
            return Ok(known);
        }
        self.check_name(T::NAME)?;
        let layout = Arc::new(Layout::of::<T>());
        let number = self.change(|editor| types::number_or_new(editor, T::NAME, &layout))?;
        Ok(self.add_type::<T>(number, layout))
    }

    fn add_type<T: Object>(&mut self, number: u32, layout: Arc<Layout>) -> (u32, Arc<Layout>) {
        self.objects.types.insert(TypeId::of::<T>(), (number, Arc::clone(&layout)));
        (number, layout)
    }

    fn check_name(&self, name: &str) -> Result<()> {
        if name.len() <= LONGEST_NAME {
            return Ok(());
        }
        let what = format!("a name of {} bytes is too long: it has at most {LONGEST_NAME} bytes", name.len());
        Err(Error::new(ErrorKind::TooLarge, &self.open.shared.path, what))
    }

    /// Where the object of a pointer is.
    fn place<T: Object>(&mut self, pointer: Ptr<T>) -> Result<Place> {
        let address = self.objects.slots.address(pointer.0).filter(|&address| address > 0);
        let Some(address) = address else { return Err(self.foreign_pointer(T::NAME)) };
        let Some((number, layout)) = self.known_type::<T>()? else { return Err(self.foreign_pointer(T::NAME)) };
        let page = page_of(address) as u32;
        if !self.is_page_of(number, page)? {
            return Err(types::no_object_page(self, &self.open.shared, T::NAME, page));
        }
        let found = object_page(self, page)?;
        match found.slots().slot_of(address).filter(|&slot| found.is_used(slot)) {
            Some(slot) if found.has_type(number, &layout) => Ok(Place { page, slot }),
            Some(_) => Err(self.wrong(page, "its objects have other fields than their type")),
            None => Err(self.foreign_pointer(T::NAME)),
        }
    }

    /// Whether a page has objects of a type.
    ///
    /// # Errors
    /// As [`types::has_page`].
    fn is_page_of(&mut self, number: u32, page: u32) -> Result<bool> {
        if self.objects.pages.get(&page) == Some(&number) {
            return Ok(true);
        }
        let is_found = types::has_page(self, &self.open.shared, number, page)?;
        if is_found {
            self.objects.pages.insert(page, number);
        }
        Ok(is_found)
    }

    /// Writes an object to a page that was changed before.
    ///
    /// # Errors
    /// [`ErrorKind::Absent`] if it has a pointer that leads to no object of its type, and as [`types::has_page`].
    fn store_object<T: Object>(&mut self, place: Place, object: &T) -> Result<()> {
        let (_, layout) = self.object_type::<T>()?;
        let page = self.edits.changed_page(&self.open.shared, place.page);
        self.objects.changed_bytes += size_of::<T>() as u64;
        let is_stored = page.is_some_and(|page| write_object(page, place.slot, object, &layout, &self.objects.slots));
        if is_stored && self.leads_to_objects(place, &layout)? { Ok(()) } else { Err(self.foreign_pointer(T::NAME)) }
    }

    /// Whether each pointer of an object leads to an object of its type that was not removed.
    fn leads_to_objects(&mut self, place: Place, layout: &Layout) -> Result<bool> {
        let page = self.page(place.page)?;
        let addresses: Vec<u64> = ObjectPage(page).pointers(place.slot).map(|pointer| pointer.address(page)).collect();
        for (&address, target) in addresses.iter().zip(layout.targets()).filter(|(address, _)| **address > 0) {
            let Some(number) = self.number_of(target)? else { return Ok(false) };
            let page = page_of(address) as u32;
            if !self.is_page_of(number, page)? {
                return Ok(false);
            }
            let page = object_page(self, page)?;
            if !page.slots().slot_of(address).is_some_and(|slot| page.is_used(slot)) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The number of the type of a name; `None` if the store has no such objects.
    fn number_of(&mut self, name: &str) -> Result<Option<u32>> {
        if let Some(&number) = self.objects.numbers.get(name) {
            return Ok(Some(number));
        }
        let number = types::number_of(self, &self.open.shared, name)?;
        if let Some(number) = number {
            self.objects.numbers.insert(name.to_owned(), number);
        }
        Ok(number)
    }

    fn foreign_pointer(&self, name: &str) -> Error {
        types::no_object(&self.open.shared, name)
    }
}

/// An object of a transaction that is changed, and stored when this is dropped.
///
/// If it then has a pointer that is not from this transaction, or whose object was removed, the commit returns
/// [`ErrorKind::Absent`].
pub struct ObjectEdit<'a, T: Object> {
    transaction: &'a mut Transaction,
    place: Place,
    value: T,
}

impl<T: Object> Deref for ObjectEdit<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: Object> DerefMut for ObjectEdit<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T: Object> Drop for ObjectEdit<'_, T> {
    fn drop(&mut self) {
        let stored = self.transaction.store_object(self.place, &self.value);
        // The commit returns it.
        let _ = self.transaction.note_failure(stored);
    }
}

impl<T: Object + fmt::Debug> fmt::Debug for ObjectEdit<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ObjectEdit").field(&self.value).finish()
    }
}
