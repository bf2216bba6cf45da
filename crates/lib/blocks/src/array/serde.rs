//! Serialises an array as a sequence, like a vector.

use core::fmt;
use core::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};

use super::{Tree, TreeArray};

impl<T: Serialize> Serialize for Tree<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<T: Serialize> Serialize for TreeArray<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.tree.serialize(serializer)
    }
}

#[cfg(feature = "std")]
impl<'de, T: Deserialize<'de>> Deserialize<'de> for TreeArray<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SequenceVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for SequenceVisitor<T> {
            type Value = TreeArray<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a sequence")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<TreeArray<T>, A::Error> {
                // Do not reserve the length that the input claims: it is untrusted.
                let mut array = TreeArray::try_new_in(crate::Pool::global()).map_err(A::Error::custom)?;
                while let Some(element) = sequence.next_element()? {
                    array.try_push(element).map_err(|(_, error)| A::Error::custom(error))?;
                }
                Ok(array)
            }
        }
        deserializer.deserialize_seq(SequenceVisitor(PhantomData))
    }
}
