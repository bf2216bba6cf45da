//! Parallel iteration leaf by leaf: `array.par_leaves().flatten()` and `array.par_leaves_mut()`.

use rayon::iter::{IntoParallelIterator, ParallelIterator};

use super::{Tree, TreeArray};

impl<T: Sync> Tree<T> {
    /// The leaves' slices, distributed to the threads of rayon's pool.
    pub fn par_leaves(&self) -> impl ParallelIterator<Item = &[T]> {
        self.leaves().collect::<Vec<_>>().into_par_iter()
    }
}

impl<T: Send> TreeArray<T> {
    /// The leaves' mutable slices, distributed to the threads of rayon's pool.
    ///
    /// # Panics
    /// As [`TreeArray::leaves_mut`].
    pub fn par_leaves_mut(&mut self) -> impl ParallelIterator<Item = &mut [T]> {
        self.leaves_mut().collect::<Vec<_>>().into_par_iter()
    }
}
