//! Random operations on an array, applied to it and to a vector.

use fieldstone_blocks::{Snapshot, TreeArray};
use proptest::prelude::*;

use crate::element::Element;

/// Numbers are fractions of 65536: of some leaves for amounts, of the length for indices.
#[derive(Clone, Debug)]
pub(crate) enum Op {
    Push,
    TryPush,
    Pop,
    Extend(u16),
    ExtendFromSlice(u16),
    Resize(u16),
    ResizeWith(u16),
    Truncate(u16),
    Clear,
    Reserve(u16),
    ReserveLeaf,
    ReservePrefault(u16),
    Shrink,
    Set(u16),
    Update(Vec<(u16, u32)>),
    Swap(u16, u16),
    SwapRemove(u16),
    Append(u16),
    RangeMut(u16, u16),
    LeavesMut,
    Appender(u16),
    Snapshot,
    DropSnapshot(u16),
    CloneSnapshot(u16),
    Clone,
    IntoIter(u16, u16),
}

pub(crate) fn ops(most: usize) -> impl Strategy<Value = Vec<Op>> {
    let n = any::<u16>;
    let op = prop_oneof![
        3 => Just(Op::Push),
        1 => Just(Op::TryPush),
        3 => Just(Op::Pop),
        3 => n().prop_map(Op::Extend),
        3 => n().prop_map(Op::ExtendFromSlice),
        1 => n().prop_map(Op::Resize),
        1 => n().prop_map(Op::ResizeWith),
        2 => n().prop_map(Op::Truncate),
        1 => Just(Op::Clear),
        1 => n().prop_map(Op::Reserve),
        1 => Just(Op::ReserveLeaf),
        1 => n().prop_map(Op::ReservePrefault),
        2 => Just(Op::Shrink),
        3 => n().prop_map(Op::Set),
        2 => prop::collection::vec((n(), any::<u32>()), 0..70).prop_map(Op::Update),
        1 => (n(), n()).prop_map(|(a, b)| Op::Swap(a, b)),
        1 => n().prop_map(Op::SwapRemove),
        1 => n().prop_map(Op::Append),
        1 => (n(), n()).prop_map(|(a, b)| Op::RangeMut(a, b)),
        1 => Just(Op::LeavesMut),
        2 => n().prop_map(Op::Appender),
        5 => Just(Op::Snapshot),
        3 => n().prop_map(Op::DropSnapshot),
        1 => n().prop_map(Op::CloneSnapshot),
        1 => Just(Op::Clone),
        1 => (n(), n()).prop_map(|(a, b)| Op::IntoIter(a, b)),
    ];
    prop::collection::vec(op, 1..most)
}

/// The array, the vector that it must equal, and snapshots with the vectors that they must equal.
pub(crate) struct Pair<T> {
    pub(crate) array: TreeArray<T>,
    pub(crate) model: Vec<T>,
    pub(crate) snapshots: Vec<(Snapshot<T>, Vec<T>)>,
    seed: u32,
}

impl<T: Element> Pair<T> {
    pub(crate) fn new(array: TreeArray<T>) -> Self {
        Self { array, model: Vec::new(), snapshots: Vec::new(), seed: 0 }
    }

    fn next_element(&mut self) -> T {
        self.seed += 1;
        T::of(self.seed)
    }

    fn next_elements(&mut self, fraction: u16) -> Vec<T> {
        (0..self.amount(fraction)).map(|_| self.next_element()).collect()
    }

    /// An amount of up to two and a half leaves.
    fn amount(&self, fraction: u16) -> usize {
        let leaf = self.array.per_leaf().min(if cfg!(miri) { 20 } else { 4500 });
        usize::from(fraction) * leaf * 5 / 2 / 65536
    }

    /// An index in the array; `None` while it is empty.
    pub(crate) fn index(&self, fraction: u16) -> Option<usize> {
        (!self.model.is_empty()).then(|| usize::from(fraction) * self.model.len() / 65536)
    }

    pub(crate) fn range(&self, a: u16, b: u16) -> std::ops::Range<usize> {
        let (a, b) = (usize::from(a.min(b)), usize::from(a.max(b)));
        a * (self.model.len() + 1) / 65536..b * (self.model.len() + 1) / 65536
    }

    pub(crate) fn apply(&mut self, op: &Op) {
        match *op {
            Op::Push => {
                let element = self.next_element();
                self.model.push(element.clone());
                self.array.push(element);
            }
            Op::TryPush => {
                let element = self.next_element();
                self.model.push(element.clone());
                self.array.try_push(element).unwrap();
            }
            Op::Pop => assert_eq!(self.array.pop(), self.model.pop()),
            Op::Extend(n) => {
                let new = self.next_elements(n);
                self.array.extend(new.iter().filter(|_| true).cloned());
                self.model.extend(new);
            }
            Op::ExtendFromSlice(n) => {
                let new = self.next_elements(n);
                self.array.extend_from_slice(&new);
                self.model.extend(new);
            }
            Op::Append(n) => self.append(n),
            Op::Appender(n) => self.append_and_read(n),
            _ => self.apply_size(op),
        }
    }

    fn apply_size(&mut self, op: &Op) {
        match *op {
            Op::Resize(n) => {
                let (len, element) = (self.amount(n), self.next_element());
                self.model.resize(len, element.clone());
                self.array.resize(len, element);
            }
            Op::ResizeWith(n) => {
                let (len, mut ours, mut theirs) = (self.amount(n), self.seed, self.seed);
                let next = |seed: &mut u32| {
                    *seed += 1;
                    T::of(*seed)
                };
                self.model.resize_with(len, || next(&mut theirs));
                self.array.resize_with(len, || next(&mut ours));
                self.seed = ours;
            }
            Op::Truncate(n) => {
                let len = usize::from(n) * (self.model.len() + 1) / 65536;
                self.model.truncate(len);
                self.array.truncate(len);
            }
            Op::Clear => {
                self.model.clear();
                self.array.clear();
            }
            Op::Reserve(n) => {
                let wanted = self.amount(n);
                self.array.reserve(wanted);
                assert!(self.array.capacity() >= self.array.len() + wanted);
            }
            Op::ReserveLeaf => self.array.reserve_leaf().unwrap(),
            Op::ReservePrefault(n) => self.array.reserve_prefault(self.amount(n)).unwrap(),
            Op::Shrink => {
                self.array.shrink_to_fit();
                let spare = self.array.capacity() - self.array.len();
                assert!(size_of::<T>() == 0 || spare < self.array.per_leaf(), "{spare} elements of capacity remain");
            }
            _ => self.apply_change(op),
        }
    }

    fn apply_change(&mut self, op: &Op) {
        match *op {
            Op::Set(at) => {
                let Some(at) = self.index(at) else { return };
                let element = self.next_element();
                self.model[at] = element.clone();
                self.array[at] = element;
            }
            Op::Update(ref updates) => {
                let updates: Vec<_> =
                    updates.iter().filter_map(|&(at, seed)| self.index(at).map(|at| (at, seed))).collect();
                updates.iter().for_each(|&(at, seed)| self.model[at] = T::of(seed));
                self.array.update(updates, |element, seed| *element = T::of(seed));
            }
            Op::Swap(a, b) => {
                let (Some(a), Some(b)) = (self.index(a), self.index(b)) else { return };
                self.model.swap(a, b);
                self.array.swap(a, b);
            }
            Op::SwapRemove(at) => {
                let Some(at) = self.index(at) else { return };
                assert_eq!(self.array.swap_remove(at), self.model.swap_remove(at));
            }
            Op::RangeMut(a, b) => {
                let (range, element) = (self.range(a, b), self.next_element());
                self.model[range.clone()].fill(element.clone());
                self.array.range_mut(range).rev().for_each(|slot| *slot = element.clone());
            }
            Op::LeavesMut => {
                let leaf = self.array.per_leaf().min(self.model.len().max(1));
                self.model.chunks_mut(leaf).for_each(<[T]>::reverse);
                self.array.leaves_mut().for_each(<[T]>::reverse);
            }
            _ => self.apply_copy(op),
        }
    }

    fn apply_copy(&mut self, op: &Op) {
        match *op {
            Op::Snapshot => {
                let snapshot = self.array.snapshot();
                self.snapshots.push((snapshot, self.model.clone()));
            }
            Op::DropSnapshot(n) | Op::CloneSnapshot(n) if !self.snapshots.is_empty() => {
                let at = usize::from(n) % self.snapshots.len();
                let (snapshot, model) = self.snapshots.swap_remove(at);
                if matches!(op, Op::CloneSnapshot(_)) {
                    self.snapshots.extend([(snapshot.clone(), model.clone()), (snapshot, model)]);
                }
            }
            Op::Clone => self.array = self.array.clone(),
            Op::IntoIter(front, back) => {
                let empty = TreeArray::new_in(self.array.pool());
                let (mut ours, mut theirs) = (
                    std::mem::replace(&mut self.array, empty).into_iter(),
                    std::mem::take(&mut self.model).into_iter(),
                );
                for _ in 0..front % 7 {
                    assert_eq!(ours.next(), theirs.next());
                }
                for _ in 0..back % 7 {
                    assert_eq!(ours.next_back(), theirs.next_back());
                }
                assert_eq!(ours.len(), theirs.len());
                // Drop one in three before its end.
                if front % 3 > 0 {
                    self.array.extend(ours);
                    self.model.extend(theirs);
                }
            }
            _ => {}
        }
    }

    fn append(&mut self, n: u16) {
        let new = self.next_elements(n);
        let mut other = TreeArray::new_in(self.array.pool());
        other.extend_from_slice(&new);
        // Append also moves elements out of an array that a snapshot shares.
        let kept = other.snapshot();
        self.array.append(&mut other);
        assert!(other.is_empty() && *kept == *new);
        self.model.extend(new);
    }

    fn append_and_read(&mut self, n: u16) {
        let new = self.next_elements(n);
        let (mut appender, reader) = self.array.appender().unwrap();
        for element in new {
            self.model.push(element.clone());
            appender.push(element);
            assert_eq!(reader.len(), self.model.len());
            assert_eq!(reader.get(reader.len() - 1), self.model.last());
        }
        assert_eq!(reader.get(self.model.len()), None);
        assert!(reader.leaves().flatten().eq(&self.model));
        assert!((0..self.model.len()).step_by(37).all(|at| reader.get(at) == self.model.get(at)));
    }
}
