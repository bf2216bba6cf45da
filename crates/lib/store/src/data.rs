//! The types of keys and values, as bytes.

use crate::object::{LongPtr, Object, object_page::MOST_ADDRESSES};

/// A type of values.
pub trait Value {
    /// What is lent of a stored value.
    type Lent<'a>;
    /// The name of the type, which is kept in the file.
    const TYPE: &'static str;

    /// Appends the bytes of a value.
    fn encode(&self, bytes: &mut Vec<u8>);

    /// Calls `use_bytes` with the bytes of a value. A type that has its bytes in memory lends them.
    fn with_bytes<T>(&self, use_bytes: impl FnOnce(&[u8]) -> T) -> T {
        let mut bytes = Vec::new();
        self.encode(&mut bytes);
        use_bytes(&bytes)
    }

    /// The value of stored bytes; `None` if they are none of this type.
    fn decode(bytes: &[u8]) -> Option<Self::Lent<'_>>;
}

/// A type of keys: their bytes are ordered like them.
pub trait Key: Value {
    /// The key itself, which is not lent.
    type Owned;

    /// The key of stored bytes; `None` if they are none of this type.
    fn decode_key(bytes: &[u8]) -> Option<Self::Owned>;

    /// As [`Key::decode_key`], of bytes that are stored in two parts.
    fn decode_key_parts(prefix: &[u8], rest: &[u8]) -> Option<Self::Owned> {
        Self::decode_key(&[prefix, rest].concat())
    }
}

macro_rules! numbers {
    ($($number:ident: $unsigned:ident),*) => {$(
        impl Value for $number {
            type Lent<'a> = Self;
            const TYPE: &'static str = stringify!($number);

            fn encode(&self, bytes: &mut Vec<u8>) {
                self.with_bytes(|ordered| bytes.extend_from_slice(ordered));
            }

            fn with_bytes<T>(&self, use_bytes: impl FnOnce(&[u8]) -> T) -> T {
                // Negative numbers come before the others.
                let ordered = self.cast_unsigned_bits() ^ Self::SIGN;
                use_bytes(&ordered.to_be_bytes())
            }

            fn decode(bytes: &[u8]) -> Option<Self> {
                let ordered = $unsigned::from_be_bytes(bytes.try_into().ok()?);
                Some(Self::of_bits(ordered ^ Self::SIGN))
            }
        }

        impl Key for $number {
            type Owned = Self;

            fn decode_key(bytes: &[u8]) -> Option<Self> {
                Self::decode(bytes)
            }

            fn decode_key_parts(prefix: &[u8], rest: &[u8]) -> Option<Self> {
                let mut bytes = [0; size_of::<Self>()];
                let (start, end) = bytes.split_at_mut_checked(prefix.len())?;
                start.copy_from_slice(prefix);
                if end.len() != rest.len() {
                    return None;
                }
                end.copy_from_slice(rest);
                Self::decode(&bytes)
            }
        }
    )*};
}

/// Numbers by their bits.
trait Bits<Unsigned> {
    /// The bit that is changed, so that the bits are ordered like the numbers.
    const SIGN: Unsigned;

    fn cast_unsigned_bits(self) -> Unsigned;
    fn of_bits(bits: Unsigned) -> Self;
}

macro_rules! bits {
    ($($unsigned:ident $signed:ident),*) => {$(
        impl Bits<$unsigned> for $unsigned {
            const SIGN: $unsigned = 0;

            fn cast_unsigned_bits(self) -> $unsigned {
                self
            }

            fn of_bits(bits: $unsigned) -> Self {
                bits
            }
        }

        impl Bits<$unsigned> for $signed {
            const SIGN: $unsigned = 1 << ($unsigned::BITS - 1);

            fn cast_unsigned_bits(self) -> $unsigned {
                self.cast_unsigned()
            }

            fn of_bits(bits: $unsigned) -> Self {
                bits.cast_signed()
            }
        }
    )*};
}

bits!(u8 i8, u16 i16, u32 i32, u64 i64, u128 i128);
numbers!(u8: u8, u16: u16, u32: u32, u64: u64, u128: u128, i8: u8, i16: u16, i32: u32, i64: u64, i128: u128);

impl Value for [u8] {
    type Lent<'a> = &'a [u8];
    const TYPE: &'static str = "bytes";

    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self);
    }

    fn with_bytes<T>(&self, use_bytes: impl FnOnce(&[u8]) -> T) -> T {
        use_bytes(self)
    }

    fn decode(bytes: &[u8]) -> Option<&[u8]> {
        Some(bytes)
    }
}

impl Key for [u8] {
    type Owned = Vec<u8>;

    fn decode_key(bytes: &[u8]) -> Option<Vec<u8>> {
        Some(bytes.to_vec())
    }

    fn decode_key_parts(prefix: &[u8], rest: &[u8]) -> Option<Vec<u8>> {
        Some([prefix, rest].concat())
    }
}

impl Value for str {
    type Lent<'a> = &'a str;
    const TYPE: &'static str = "text";

    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(self.as_bytes());
    }

    fn with_bytes<T>(&self, use_bytes: impl FnOnce(&[u8]) -> T) -> T {
        use_bytes(self.as_bytes())
    }

    fn decode(bytes: &[u8]) -> Option<&str> {
        std::str::from_utf8(bytes).ok()
    }
}

impl Key for str {
    type Owned = String;

    fn decode_key(bytes: &[u8]) -> Option<String> {
        String::from_utf8(bytes.to_vec()).ok()
    }

    fn decode_key_parts(prefix: &[u8], rest: &[u8]) -> Option<String> {
        String::from_utf8([prefix, rest].concat()).ok()
    }
}

/// Bytes that the name of the type of a pointer can have.
const LONGEST_TYPE_NAME: usize = 512;
/// How the name of the type of a pointer begins; the name of the type of the object follows.
pub(crate) const POINTER: &str = "pointer to ";

/// The address of a stored pointer; `None` if no file has such an address.
pub(crate) fn stored_address(bytes: &[u8]) -> Option<u64> {
    let address = u64::from_le_bytes(bytes.try_into().ok()?);
    (address < MOST_ADDRESSES).then_some(address)
}

/// A pointer as a value, so that tables can index objects. The value has 8 bytes, little-endian.
///
/// The name of the type of the object is a part of [`Value::TYPE`]: a table of pointers to another type is
/// refused. An entry keeps no object: [`crate::Store::collect`] follows roots and objects only. So a program
/// removes the entry of an object together with the last pointer to it; see [`LongPtr`] for one that stays.
impl<T: Object> Value for LongPtr<T> {
    type Lent<'a> = Self;
    const TYPE: &'static str = PointerType::<T>::NAME;

    fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.0.to_le_bytes());
    }

    fn with_bytes<R>(&self, use_bytes: impl FnOnce(&[u8]) -> R) -> R {
        use_bytes(&self.0.to_le_bytes())
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        stored_address(bytes).map(Self::of)
    }
}

/// The type of the pointers to a type of objects.
struct PointerType<T>(std::marker::PhantomData<fn() -> T>);

impl<T: Object> PointerType<T> {
    const BYTES: &'static [u8; LONGEST_TYPE_NAME] = &join(POINTER, T::NAME);
    const NAME: &'static str = match str::from_utf8(Self::BYTES.split_at(POINTER.len() + T::NAME.len()).0) {
        Ok(name) => name,
        Err(_) => panic!("two texts are a text"),
    };
}

/// The bytes of a text and of one that follows, then zeros.
const fn join(first: &str, second: &str) -> [u8; LONGEST_TYPE_NAME] {
    let (first, second, mut joined) = (first.as_bytes(), second.as_bytes(), [0; LONGEST_TYPE_NAME]);
    assert!(first.len() + second.len() <= LONGEST_TYPE_NAME, "the name of a type of objects is too long");
    joined.split_at_mut(first.len()).0.copy_from_slice(first);
    joined.split_at_mut(first.len()).1.split_at_mut(second.len()).0.copy_from_slice(second);
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Ptr;

    crate::stored! { struct Part { id: u32, next: Ptr<Part> } }

    fn bytes<V: Value + ?Sized>(value: &V) -> Vec<u8> {
        let mut bytes = Vec::new();
        value.encode(&mut bytes);
        bytes
    }

    #[test]
    fn bytes_are_ordered_like_numbers() {
        let numbers = [i32::MIN, -70_000, -1, 0, 1, 70_000, i32::MAX];
        assert!(numbers.map(|number| bytes(&number)).is_sorted());
        assert_eq!(numbers.map(|number| i32::decode(&bytes(&number))), numbers.map(Some));
        assert_eq!((u64::decode(&bytes(&7_u64)), u64::decode(&[1, 2])), (Some(7), None));
        assert_eq!((str::decode(&bytes("é")), str::decode(&[0xff])), (Some("é"), None));
    }

    #[test]
    fn a_pointer_has_8_bytes_and_the_name_of_its_type() {
        assert_eq!(LongPtr::<Part>::TYPE, "pointer to Part");
        let pointer = LongPtr::<Part>::of(0x12_3456_789a);
        assert_eq!(bytes(&pointer), [0x9a, 0x78, 0x56, 0x34, 0x12, 0, 0, 0]);
        assert_eq!(LongPtr::decode(&bytes(&pointer)), Some(pointer));
        assert_eq!(LongPtr::<Part>::decode(&[0; 8]), Some(LongPtr::NULL));
        assert_eq!((LongPtr::<Part>::decode(&[1; 7]), LongPtr::<Part>::decode(&[0xff; 8])), (None, None));
    }
}
