//! Objects of a snapshot.

#![allow(unsafe_code, reason = "lends objects of a window")]

use crate::error::{Error, ErrorKind, Result};
use crate::object::object_page::{ObjectPage, UNITS, page_of};
use crate::object::stored::{LongPtr, Object, Ptr};
use crate::object::types;
use crate::object::window::Window;
use crate::page::{OBJECT, PAGE, Page, kind};
use crate::snapshot::Snapshot;

/// # Objects
/// A page of objects is read and verified when the first object in it is accessed. If that fails, the
/// objects of the page read as zeros, and later calls that return a [`Result`] return the error. So
/// after a traversal by [`Snapshot::follow`], [`Snapshot::check_objects`] returns whether all of it was
/// real.
impl Snapshot {
    /// The object to which a pointer leads, in about the time of an addition, lent until the snapshot
    /// ends. [`Ptr::NULL`] leads to zeros.
    ///
    /// The pointer is from this snapshot: another one may lead to a wrong object, or make later calls
    /// return an error.
    #[inline]
    #[must_use]
    pub fn follow<T: Object>(&self, pointer: Ptr<T>) -> &T {
        let address = self.base + pointer.0 as usize * 8;
        // SAFETY: any pointer leads into the window, which ends a page behind the last one. Its bytes do
        // not change while the snapshot has it, and any bytes are an object. An object begins at a
        // multiple of 8 bytes, the largest alignment.
        unsafe { &*std::ptr::with_exposed_provenance(address) }
    }

    /// As [`Snapshot::follow`], and verifies that the pointer leads to an object of this type.
    ///
    /// # Errors
    /// [`ErrorKind::Absent`] for [`Ptr::NULL`] and where no object is, [`ErrorKind::Type`] for an object of
    /// another type, and as [`Snapshot::check_objects`].
    pub fn get<T: Object>(&self, pointer: Ptr<T>) -> Result<&T> {
        self.check_objects()?;
        let Some(number) = self.open.objects.number::<T>(&self.open.shared, self)? else {
            return Err(self.no_object(T::NAME));
        };
        self.check_page(pointer, number)?;
        let page = self.base + (pointer.0 / UNITS as u32) as usize * PAGE;
        // SAFETY: the page is in the window, whose bytes do not change while the snapshot has it.
        let page: &Page = unsafe { &*std::ptr::with_exposed_provenance(page) };
        let found_kind = kind(page);
        // The page is in memory now, and whether it is real is known.
        self.check_objects()?;
        let page = ObjectPage(page);
        if found_kind != OBJECT || number != page.type_number() {
            return Err(wrong_type(&self.open.shared.path, T::NAME));
        }
        match page.slots().slot_of(pointer.0.into()).filter(|&slot| page.is_used(slot)) {
            Some(_) => Ok(self.follow(pointer)),
            None => Err(self.no_object(T::NAME)),
        }
    }

    /// Verifies that the page of a pointer has objects of a type, before an access that poisons the window.
    fn check_page<T: Object>(&self, pointer: Ptr<T>, number: u32) -> Result<()> {
        let address = self.window.as_ref().and_then(|window| window.address(pointer.0)).filter(|&address| address > 0);
        let page = address.and_then(|address| u32::try_from(page_of(address)).ok());
        let Some(page) = page else { return Err(self.no_object(T::NAME)) };
        let shared = &self.open.shared;
        if types::is_page_of(self, shared, number, page)? {
            return Ok(());
        }
        if types::is_page_of_other(self, shared, number, page)? {
            return Err(wrong_type(&shared.path, T::NAME));
        }
        Err(self.no_object(T::NAME))
    }

    fn no_object(&self, name: &str) -> Error {
        let what = format!("the pointer leads to no object of type {name}");
        Error::new(ErrorKind::Absent, &self.open.shared.path, what)
    }

    /// The object to which a root leads.
    ///
    /// # Errors
    /// [`ErrorKind::Absent`] if there is no root of this name, and as [`Snapshot::get`].
    pub fn root<T: Object>(&self, name: &str) -> Result<&T> {
        let pointer = self.root_pointer(name)?;
        if pointer.is_null() {
            let what = format!("there is no root {name}");
            return Err(Error::new(ErrorKind::Absent, &self.open.shared.path, what));
        }
        self.get(pointer)
    }

    /// The pointer of a root: [`Ptr::NULL`] if there is none of this name.
    ///
    /// # Errors
    /// [`ErrorKind::Type`] if it leads to another type, and as [`Snapshot::check_objects`].
    pub fn root_pointer<T: Object>(&self, name: &str) -> Result<Ptr<T>> {
        self.check_objects()?;
        let Some(window) = &self.window else { return Ok(Ptr::NULL) };
        let Some(root) = types::root(self, &self.open.shared, name)? else { return Ok(Ptr::NULL) };
        if self.open.objects.number::<T>(&self.open.shared, self)? != Some(root.number) {
            return Err(wrong_root(&self.open.shared.path, name, T::NAME));
        }
        window.pointer(root.address).map(Ptr::of)
    }

    /// The place of an object, with which another snapshot or transaction finds it.
    ///
    /// # Errors
    /// [`ErrorKind::Absent`] if the pointer is not from this snapshot.
    pub fn long<T: Object>(&self, pointer: Ptr<T>) -> Result<LongPtr<T>> {
        let address =
            if pointer.is_null() { Some(0) } else { self.window.as_ref().and_then(|window| window.address(pointer.0)) };
        address.map(LongPtr::of).ok_or_else(|| self.no_object(T::NAME))
    }

    /// The pointer to the object at a place.
    ///
    /// # Errors
    /// [`ErrorKind::Window`] if the objects that were reached have more pages than a window, and as
    /// [`Snapshot::check_objects`].
    pub fn short<T: Object>(&self, place: LongPtr<T>) -> Result<Ptr<T>> {
        self.check_objects()?;
        match &self.window {
            Some(window) => window.pointer(place.0).map(Ptr::of),
            None if place.is_null() => Ok(Ptr::NULL),
            None => Err(self.no_object(T::NAME)),
        }
    }

    /// Returns whether all objects that were accessed until now were real.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] and [`ErrorKind::Io`] for a page that could not be read;
    /// [`ErrorKind::Window`] if a store is larger than its window and the objects that were reached have
    /// more pages: go on in a new snapshot, from a [`LongPtr`]. [`ErrorKind::Forked`] in a forked child.
    pub fn check_objects(&self) -> Result<()> {
        self.window.as_deref().map_or(Ok(()), Window::check)
    }
}

/// The error of a pointer to an object of another type.
pub(crate) fn wrong_type(path: &std::path::Path, expected: &str) -> Error {
    Error::new(ErrorKind::Type, path, format!("a pointer to an object of type {expected} leads to another type"))
}

/// The error of a root with another type.
pub(crate) fn wrong_root(path: &std::path::Path, name: &str, expected: &str) -> Error {
    Error::new(ErrorKind::Type, path, format!("the root {name} does not lead to an object of type {expected}"))
}
