//! Kinds of pointers: how an object is found by what another object has of it.
//!
//! | kind | bytes | object |
//! |---|---|---|
//! | `NativePointers` | 8 | at the address; malloc(3) |
//! | `OffsetPointers` | 8 | at base + offset; adjacent |
//! | `Handles` | 4 | at the address in a table; malloc(3) |
//! | `ShortPointers` | 4 | at base + 8 × pointer; adjacent |

#![allow(unsafe_code, reason = "allocates objects, and returns them by their addresses")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt::Debug;
use std::ptr::NonNull;

/// Memory for objects, which are freed together.
pub trait Space {
    /// A pointer inside an object. The default refers to no object.
    type Pointer: Copy + Default + PartialEq + Debug;

    /// Places an object.
    fn allocate<T>(&mut self, object: T) -> Self::Pointer;

    /// The address of an object.
    ///
    /// # Safety
    /// [`Space::allocate`] of this space has returned the pointer.
    unsafe fn address(&self, pointer: Self::Pointer) -> NonNull<u8>;

    /// Resident bytes of all objects, and of a table if there is one.
    fn bytes(&self) -> usize;

    /// The object of a pointer.
    ///
    /// # Safety
    /// [`Space::allocate`] of this space has returned the pointer for an object of the type `T`.
    #[inline]
    unsafe fn get<T>(&self, pointer: Self::Pointer) -> &T {
        // SAFETY: the caller guarantees that an object of this type is there; it lives as long as the space.
        unsafe { self.address(pointer).cast::<T>().as_ref() }
    }

    /// The object of a pointer, to be changed.
    ///
    /// # Safety
    /// As for [`Space::get`].
    unsafe fn get_mut<T>(&mut self, pointer: Self::Pointer) -> &mut T {
        // SAFETY: the caller guarantees the type, and the borrow of the space excludes other references.
        unsafe { self.address(pointer).cast::<T>().as_mut() }
    }
}

/// Objects of malloc(3).
#[derive(Debug, Default)]
struct Allocations {
    objects: Vec<NonNull<u8>>,
    bytes: usize,
}

impl Allocations {
    fn allocate<T>(&mut self, object: T) -> NonNull<u8> {
        let layout = Layout::new::<T>();
        assert!(layout.align() <= 16, "malloc aligns to 16 bytes");
        // SAFETY: malloc may be called with any size.
        let memory = unsafe { libc::malloc(layout.size()) };
        let Some(place) = NonNull::new(memory.cast::<u8>()) else { handle_alloc_error(layout) };
        // SAFETY: the memory is new, of this size and aligned for the type.
        unsafe { place.cast::<T>().write(object) };
        // SAFETY: malloc has returned this address, and nothing has freed it.
        self.bytes += unsafe { libc::malloc_usable_size(memory) } + size_of::<usize>();
        self.objects.push(place);
        place
    }
}

impl Drop for Allocations {
    fn drop(&mut self) {
        for object in &self.objects {
            // SAFETY: malloc has returned it, and it is freed once: nothing uses the space any more.
            unsafe { libc::free(object.as_ptr().cast()) };
        }
    }
}

/// Adjacent objects in a range of addresses. The first 8 bytes belong to no object.
#[derive(Debug)]
struct Arena {
    base: NonNull<u8>,
    used: usize,
}

/// The unit of short pointers.
const UNIT: usize = 8;
const PAGE: usize = 4096;

impl Arena {
    /// Addresses. Pages that have no object take no memory.
    const LAYOUT: Layout = match Layout::from_size_align(256 << 20, PAGE) {
        Ok(layout) => layout,
        Err(_) => panic!("the size is small enough"),
    };

    fn new() -> Self {
        // SAFETY: the layout has a size.
        let memory = unsafe { alloc_zeroed(Self::LAYOUT) };
        let Some(base) = NonNull::new(memory) else { handle_alloc_error(Self::LAYOUT) };
        Self { base, used: UNIT }
    }

    /// Returns the offset of the object.
    fn allocate<T>(&mut self, object: T) -> usize {
        let offset = self.used;
        self.used = (offset + size_of::<T>()).next_multiple_of(UNIT);
        assert!(align_of::<T>() <= UNIT && self.used <= Self::LAYOUT.size(), "the arena is full");
        // SAFETY: the range is inside the arena, aligned, and belongs to no other object.
        unsafe { self.base.add(offset).cast::<T>().write(object) };
        offset
    }

    const fn bytes(&self) -> usize {
        self.used.next_multiple_of(PAGE)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: `new` has allocated it with this layout, and nothing uses the space any more.
        unsafe { dealloc(self.base.as_ptr(), Self::LAYOUT) };
    }
}

/// 8-byte addresses of objects of malloc(3).
#[derive(Debug, Default)]
pub struct NativePointers(Allocations);

impl NativePointers {
    /// Without objects.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Space for NativePointers {
    type Pointer = Option<NonNull<u8>>;

    fn allocate<T>(&mut self, object: T) -> Self::Pointer {
        Some(self.0.allocate(object))
    }

    #[inline]
    unsafe fn address(&self, pointer: Self::Pointer) -> NonNull<u8> {
        // SAFETY: the caller guarantees that `allocate` has returned it, which is no default.
        unsafe { pointer.unwrap_unchecked() }
    }

    fn bytes(&self) -> usize {
        self.0.bytes
    }
}

/// 8-byte offsets of adjacent objects.
#[derive(Debug)]
pub struct OffsetPointers(Arena);

impl OffsetPointers {
    /// Without objects.
    #[must_use]
    pub fn new() -> Self {
        Self(Arena::new())
    }
}

impl Default for OffsetPointers {
    fn default() -> Self {
        Self::new()
    }
}

impl Space for OffsetPointers {
    type Pointer = u64;

    fn allocate<T>(&mut self, object: T) -> u64 {
        self.0.allocate(object) as u64
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "an offset was a usize")]
    unsafe fn address(&self, pointer: u64) -> NonNull<u8> {
        // SAFETY: an offset that was returned is inside the arena.
        unsafe { self.0.base.add(pointer as usize) }
    }

    fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

/// 4-byte numbers of objects of malloc(3), whose addresses are in a table. A number may refer to an object
/// that is not in memory, so each address is compared with null.
#[derive(Debug)]
pub struct Handles {
    allocations: Allocations,
    table: Vec<Option<NonNull<u8>>>,
}

impl Handles {
    /// Without objects.
    #[must_use]
    pub fn new() -> Self {
        Self { allocations: Allocations::default(), table: vec![None] }
    }
}

impl Default for Handles {
    fn default() -> Self {
        Self::new()
    }
}

#[cold]
fn no_object(handle: u32) -> ! {
    panic!("the object {handle} is not in memory")
}

impl Space for Handles {
    type Pointer = u32;

    fn allocate<T>(&mut self, object: T) -> u32 {
        self.table.push(Some(self.allocations.allocate(object)));
        u32::try_from(self.table.len() - 1).unwrap_or(0)
    }

    #[inline]
    unsafe fn address(&self, handle: u32) -> NonNull<u8> {
        match self.table.get(handle as usize) {
            Some(&Some(address)) => address,
            _ => no_object(handle),
        }
    }

    fn bytes(&self) -> usize {
        self.allocations.bytes + self.table.len() * size_of::<usize>()
    }
}

/// 4-byte pointers to adjacent objects, in units of 8 bytes.
#[derive(Debug)]
pub struct ShortPointers(Arena);

impl ShortPointers {
    /// Without objects.
    #[must_use]
    pub fn new() -> Self {
        Self(Arena::new())
    }
}

impl Default for ShortPointers {
    fn default() -> Self {
        Self::new()
    }
}

impl Space for ShortPointers {
    type Pointer = u32;

    fn allocate<T>(&mut self, object: T) -> u32 {
        u32::try_from(self.0.allocate(object) / UNIT).unwrap_or(0)
    }

    #[inline]
    unsafe fn address(&self, pointer: u32) -> NonNull<u8> {
        // SAFETY: a pointer that was returned is the offset of an object in units.
        unsafe { self.0.base.add(pointer as usize * UNIT) }
    }

    fn bytes(&self) -> usize {
        self.0.bytes()
    }
}
