//! Types of objects: plain data and pointers, the same bytes in memory and in the file.
//!
//! ```text
//! stored! { struct Part { id: u32, next: Ptr<Part> } }
//!     ─→ Part, a C struct      ─→ Field: ZERO, bytes, offsets of the pointers      ─→ Object: a name
//! ```
//! Any bytes are a value of such a type, so damaged or outdated bytes are a wrong value and nothing
//! worse.

#![allow(unsafe_code, reason = "promises that any bytes are a value")]

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;

#[cfg(target_endian = "big")]
compile_error!("objects are read in place, and the file is little-endian");

/// A type of fields of objects: numbers, pointers, arrays of these, and structs by [`crate::stored!`].
///
/// # Safety
/// Any initialised bytes are a value; the alignment is at most 8; `pointers` passes the offset of each
/// [`Ptr`] inside of the value; `encode` writes only its bytes.
pub unsafe trait Field: Copy + Send + Sync + 'static {
    /// The value whose bytes are zeros.
    const ZERO: Self;

    /// Appends the text of the type, which is kept in the file and compared.
    fn describe(text: &mut String);

    /// Calls `found` with the offset and the type of each pointer; `offset` is that of the value.
    fn pointers(offset: usize, found: &mut dyn FnMut(usize, &'static str));

    /// Writes the value to bytes of its size. Bytes between fields stay as they are.
    fn encode(&self, bytes: &mut [u8]);
}

/// A type of objects: a struct by [`crate::stored!`].
///
/// # Safety
/// As of [`Field`], and the size is at most that of a page.
pub unsafe trait Object: Field {
    /// The name of the type, which identifies it in the file.
    const NAME: &'static str;
}

/// A pointer to an object: 4 bytes, in memory and in the file.
///
/// It holds in the snapshot or the transaction that it is from. If the store fits into its window
/// (less than 28 GiB by default), it holds in later ones of the same open store as well, as long as a
/// root reaches the object. A pointer outside of the store keeps no object from being collected.
#[repr(transparent)]
pub struct Ptr<T>(pub(crate) u32, PhantomData<fn() -> T>);

impl<T> Ptr<T> {
    /// The pointer to no object.
    pub const NULL: Self = Self::of(0);

    pub(crate) const fn of(units: u32) -> Self {
        Self(units, PhantomData)
    }

    /// Whether it points to no object.
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }
}

/// The place of an object in the file: 8 bytes. It holds in all snapshots and transactions of the
/// store, as long as a root reaches the object. It can be a value of a table ([`crate::Value`]).
///
/// It keeps no object. After a collection has removed the object, `short` of a snapshot or a transaction
/// still returns a pointer. `get` and `edit` of that pointer return [`crate::ErrorKind::Absent`], or
/// [`crate::ErrorKind::Type`] if objects of another type have the page by then. If a later object of the
/// same type has the place, they return that one. [`crate::Snapshot::follow`] does not check this.
#[repr(transparent)]
pub struct LongPtr<T>(pub(crate) u64, PhantomData<fn() -> T>);

impl<T> LongPtr<T> {
    /// The pointer to no object.
    pub const NULL: Self = Self::of(0);

    pub(crate) const fn of(address: u64) -> Self {
        Self(address, PhantomData)
    }

    /// Whether it points to no object.
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }
}

macro_rules! pointer_traits {
    ($($pointer:ident)*) => {$(
        impl<T> Clone for $pointer<T> {
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<T> Copy for $pointer<T> {}

        impl<T> PartialEq for $pointer<T> {
            fn eq(&self, other: &Self) -> bool {
                self.0 == other.0
            }
        }

        impl<T> Eq for $pointer<T> {}

        impl<T> Hash for $pointer<T> {
            fn hash<H: Hasher>(&self, state: &mut H) {
                self.0.hash(state);
            }
        }

        impl<T> Default for $pointer<T> {
            fn default() -> Self {
                Self::NULL
            }
        }

        impl<T> fmt::Debug for $pointer<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({:#x})", stringify!($pointer), self.0)
            }
        }
    )*};
}

pointer_traits!(Ptr LongPtr);

// SAFETY: a pointer is a transparent u32, for which all bytes are valid, and reports itself.
unsafe impl<T: Object> Field for Ptr<T> {
    const ZERO: Self = Self::NULL;

    fn describe(text: &mut String) {
        text.push('*');
        text.push_str(T::NAME);
    }

    fn pointers(offset: usize, found: &mut dyn FnMut(usize, &'static str)) {
        found(offset, T::NAME);
    }

    fn encode(&self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.0.to_le_bytes());
    }
}

// SAFETY: an array has its elements without gaps, each of which is reported at its offset.
unsafe impl<T: Field, const N: usize> Field for [T; N] {
    const ZERO: Self = [T::ZERO; N];

    fn describe(text: &mut String) {
        text.push('[');
        T::describe(text);
        text.push_str(&format!(";{N}]"));
    }

    fn pointers(offset: usize, found: &mut dyn FnMut(usize, &'static str)) {
        for index in 0..N {
            T::pointers(offset + index * size_of::<T>(), found);
        }
    }

    fn encode(&self, bytes: &mut [u8]) {
        for (index, element) in self.iter().enumerate() {
            element.encode(&mut bytes[index * size_of::<T>()..][..size_of::<T>()]);
        }
    }
}

macro_rules! numbers {
    ($($number:ident)*) => {$(
        // SAFETY: a number has no invalid bytes, an alignment of at most 8, and no pointers.
        unsafe impl Field for $number {
            const ZERO: Self = 0 as $number;

            fn describe(text: &mut String) {
                text.push_str(stringify!($number));
            }

            fn pointers(_offset: usize, _found: &mut dyn FnMut(usize, &'static str)) {}

            fn encode(&self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}

numbers!(u8 u16 u32 u64 i8 i16 i32 i64 f32 f64);

/// Declares types of objects: C structs of numbers, [`Ptr`], other such structs, and arrays of these.
/// Each gets the constant `ZERO` and is `Copy`, and has at most about 3,000 bytes.
///
/// ```
/// use fieldstone_store::{Ptr, stored};
///
/// stored! {
///     /// A part of a machine.
///     pub struct Part { pub id: u32, pub next: Ptr<Part>, pub to: [Ptr<Part>; 3] }
/// }
/// assert!(Part { id: 1, ..Part::ZERO }.next.is_null());
/// ```
/// The name of the type and its fields are kept in the file and compared: a program with other fields
/// gets [`crate::ErrorKind::Type`].
#[macro_export]
macro_rules! stored {
    ($(
        $(#[$meta:meta])*
        $visibility:vis struct $name:ident {
            $( $(#[$field_meta:meta])* $field_visibility:vis $field:ident: $type:ty ),* $(,)?
        }
    )*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug)]
        #[repr(C)]
        $visibility struct $name {
            $( $(#[$field_meta])* $field_visibility $field: $type, )*
        }

        impl $name {
            /// The value whose bytes are zeros.
            #[allow(dead_code, reason = "not each program needs it")]
            $visibility const ZERO: Self = Self { $( $field: <$type as $crate::Field>::ZERO, )* };
        }

        const _: () = {
            assert!(::core::mem::size_of::<$name>() > 0, "an object has at least one byte");
            assert!(::core::mem::size_of::<$name>() < 4096, "an object has less than 4,096 bytes");
            assert!(::core::mem::align_of::<$name>() <= 8, "an object is aligned to at most 8 bytes");

            // SAFETY: all fields are of types for which any bytes are valid, and each is reported.
            #[allow(unsafe_code, reason = "the macro has checked the types of the fields")]
            unsafe impl $crate::Field for $name {
                const ZERO: Self = Self::ZERO;

                fn describe(text: &mut ::std::string::String) {
                    text.push('{');
                    $(
                        text.push_str(concat!(stringify!($field), ":"));
                        <$type as $crate::Field>::describe(text);
                        text.push(',');
                    )*
                    text.push('}');
                }

                fn pointers(offset: usize, found: &mut dyn FnMut(usize, &'static str)) {
                    $(
                        let at = offset + ::core::mem::offset_of!(Self, $field);
                        <$type as $crate::Field>::pointers(at, found);
                    )*
                }

                fn encode(&self, bytes: &mut [u8]) {
                    $(
                        let at = ::core::mem::offset_of!(Self, $field);
                        let end = at + ::core::mem::size_of::<$type>();
                        $crate::Field::encode(&self.$field, &mut bytes[at..end]);
                    )*
                }
            }

            // SAFETY: its fields are checked as those of a `Field`, and its size above.
            #[allow(unsafe_code, reason = "the macro has checked the types of the fields")]
            unsafe impl $crate::Object for $name {
                const NAME: &'static str = stringify!($name);
            }
        };
    )*};
}

#[cfg(test)]
mod tests {
    use super::*;

    stored! {
        struct Inner { flag: u8, next: Ptr<Outer> }
        struct Outer { number: u64, inner: [Inner; 2], last: Ptr<Inner> }
    }

    #[test]
    fn a_type_reports_its_fields_and_pointers() {
        let (mut text, mut pointers) = (String::new(), Vec::new());
        Outer::describe(&mut text);
        Outer::pointers(0, &mut |offset, name| pointers.push((offset, name)));
        assert_eq!(text, "{number:u64,inner:[{flag:u8,next:*Outer,};2],last:*Inner,}");
        assert_eq!(pointers, [(12, "Outer"), (20, "Outer"), (24, "Inner")]);
    }

    #[test]
    fn bytes_between_fields_are_zeros() {
        let inner = Inner { flag: 7, next: Ptr::of(0x0102_0304) };
        let mut bytes = [0; size_of::<Outer>()];
        Outer { number: 1, inner: [Inner::ZERO, inner], ..Outer::ZERO }.encode(&mut bytes);
        assert_eq!(bytes[16..24], [7, 0, 0, 0, 4, 3, 2, 1]);
    }
}
