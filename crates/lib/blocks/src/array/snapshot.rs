//! Snapshots: the array as it was, at no cost until somebody writes.

use core::fmt;
use core::ops::Deref;

use super::hold::clone_leaf;
use super::{Tree, TreeArray};
use crate::sync::Arc;

/// An array as it was when [`TreeArray::snapshot`] was called. Reads as its [`Tree`]. A handle: clones are the same snapshot.
pub struct Snapshot<T>(Arc<Tree<T>>);

impl<T: Clone + Send + Sync> TreeArray<T> {
    /// The array as it is now.
    ///
    /// Costs some nanoseconds. The next write to the array copies the directory (microseconds for a gigabyte), and the first write to
    /// each leaf thereafter copies that leaf, as long as a snapshot needs it.
    ///
    /// Elements are `Sync` and `Send` since array and snapshot may go to two threads, and the last one drops what they share.
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
