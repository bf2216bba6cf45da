//! Snapshots: read-only copies of an array that share its leaves until it is written to.

use core::fmt;
use core::ops::Deref;

use super::copy_on_write::clone_leaf;
use super::{Tree, TreeArray};
use crate::sync::Arc;

/// An array as it was at [`TreeArray::snapshot`]. Dereferences to its [`Tree`]. Clones are handles
/// of the same snapshot.
pub struct Snapshot<T>(Arc<Tree<T>>);

impl<T: Clone + Send + Sync> TreeArray<T> {
    /// Returns the array's current contents.
    ///
    /// Takes some nanoseconds. The next write to the array copies the directory (microseconds for a
    /// gigabyte). The first write to each leaf then copies that leaf, while a snapshot shares it.
    ///
    /// Array and snapshot can be on two threads, and either may drop the shared elements: hence `T:
    /// Send + Sync`.
    pub fn snapshot(&mut self) -> Snapshot<T> {
        Snapshot(self.share_root(clone_leaf::<T>))
    }
}

impl<T> Deref for Snapshot<T> {
    type Target = Tree<T>;

    #[inline]
    fn deref(&self) -> &Tree<T> {
        &self.0
    }
}

impl<T: PartialEq> PartialEq for Snapshot<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: PartialEq> PartialEq<TreeArray<T>> for Snapshot<T> {
    fn eq(&self, other: &TreeArray<T>) -> bool {
        **self == **other
    }
}

impl<T: PartialEq> PartialEq<Snapshot<T>> for TreeArray<T> {
    fn eq(&self, other: &Snapshot<T>) -> bool {
        **self == **other
    }
}

impl<T: Eq> Eq for Snapshot<T> {}

impl<T> Clone for Snapshot<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: fmt::Debug> fmt::Debug for Snapshot<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
