//! Compares every way to read an array with the same on a slice.

use std::hash::{DefaultHasher, Hash, Hasher};

use fieldstone_blocks::Tree;

use crate::element::Element;
use crate::op::Pair;

/// Random positions and steps of a check.
pub(crate) type Probe = (u16, u16, Vec<(u8, u16)>);

pub(crate) fn check<T: Element>(pair: &mut Pair<T>, probe: &Probe) {
    for (snapshot, model) in &pair.snapshots {
        assert!(**snapshot == **model, "a snapshot does not change");
    }
    assert!(*pair.array == *pair.model, "the array equals the vector");
    let (a, b, script) = probe;
    let range = pair.range(*a, *b);
    read(&pair.array, &pair.model, range, usize::from(*a) + 1, script);
    if let Some((snapshot, model)) = pair.snapshots.last() {
        read(snapshot, model, 0..model.len(), usize::from(*b) % 300 + 1, script);
    }
    walk(pair.array.iter_mut(), pair.model.iter_mut(), script);
    compare(pair);
}

fn read<T: Element>(tree: &Tree<T>, model: &[T], range: std::ops::Range<usize>, step: usize, script: &[(u8, u16)]) {
    assert_eq!(
        (tree.len(), tree.is_empty(), tree.first(), tree.last()),
        (model.len(), model.is_empty(), model.first(), model.last())
    );
    assert_eq!(tree.get(model.len()), None);
    assert!(
        tree.leaves().flatten().eq(model)
            && tree.leaves().rev().flat_map(|leaf| leaf.iter().rev()).eq(model.iter().rev())
    );
    assert_eq!(tree.leaves().len(), model.len().div_ceil(tree.per_leaf()));
    let aligned = |element: *const T| element.addr().is_multiple_of(align_of::<T>());
    assert!(tree.iter().all(|element| aligned(element)));
    assert!(tree.leaves_in(range.clone()).flatten().eq(&model[range.clone()]));
    walk(tree.iter(), model.iter(), script);
    walk(tree.range(range.clone()), model[range.clone()].iter(), script);
    fold(tree.range(range.clone()), model[range].iter(), script);
    stride(tree, model, step % 977 + 1, script);
    cursor(tree, model, script);
}

/// Takes the same steps from both ends of two iterators.
fn walk<A, B>(mut ours: A, mut theirs: B, script: &[(u8, u16)])
where
    A: DoubleEndedIterator + ExactSizeIterator,
    B: DoubleEndedIterator<Item = A::Item> + ExactSizeIterator,
    A::Item: PartialEq + std::fmt::Debug,
{
    for &(kind, n) in script {
        let n = usize::from(n) * (theirs.len() + 2) / 65536;
        match kind % 4 {
            0 => assert_eq!(ours.next(), theirs.next()),
            1 => assert_eq!(ours.next_back(), theirs.next_back()),
            2 => assert_eq!(ours.nth(n), theirs.nth(n)),
            _ => assert_eq!(ours.nth_back(n / 3), theirs.nth_back(n / 3)),
        }
        assert_eq!((ours.len(), ours.size_hint()), (theirs.len(), theirs.size_hint()));
    }
}

/// Folds the remaining elements from both sides, after some steps from each end; compares `count`
/// and `last`.
fn fold<'a, T: Element>(
    mut ours: fieldstone_blocks::Iter<'a, T>,
    mut theirs: std::slice::Iter<'a, T>,
    script: &[(u8, u16)],
) {
    for _ in 0..script.len() % 3 {
        assert_eq!((ours.next(), ours.next_back()), (theirs.next(), theirs.next_back()));
    }
    assert!(ours.clone().rev().fold(Vec::new(), collected) == theirs.clone().rev().fold(Vec::new(), collected));
    assert_eq!((ours.clone().count(), ours.clone().last()), (theirs.len(), theirs.clone().last()));
    assert!(ours.fold(Vec::new(), collected) == theirs.fold(Vec::new(), collected));
}

fn collected<T>(mut all: Vec<T>, element: T) -> Vec<T> {
    all.push(element);
    all
}

fn stride<T: Element>(tree: &Tree<T>, model: &[T], step: usize, script: &[(u8, u16)]) {
    let (mut ours, mut theirs) = (tree.stride(step), model.iter().step_by(step));
    for &(_, n) in script.iter().take(3) {
        let n = usize::from(n) % 5;
        assert_eq!(ours.nth(n), theirs.nth(n));
        assert_eq!(ours.len(), theirs.len());
    }
    assert!(ours.fold(Vec::new(), collected) == theirs.fold(Vec::new(), collected));
    assert!(tree.stride(usize::MAX).eq(model.first()));
}

fn cursor<T: Element>(tree: &Tree<T>, model: &[T], script: &[(u8, u16)]) {
    let (mut cursor, mut at) = (tree.cursor(), 0_usize);
    for &(kind, n) in script {
        let n = usize::from(n) * (model.len() + 2) / 65536;
        match kind % 4 {
            0 => {
                assert_eq!(cursor.next(), model.get(at));
                at += usize::from(at < model.len());
            }
            1 => {
                let before = at.checked_sub(1).filter(|&before| before < model.len());
                assert_eq!(cursor.previous(), before.map(|before| &model[before]));
                at = before.unwrap_or(at);
            }
            2 => {
                cursor.seek(n);
                at = n;
            }
            _ => assert_eq!(cursor.at(n), model.get(n)),
        }
        assert_eq!((cursor.index(), cursor.get()), (at, model.get(at)));
    }
}

fn compare<T: Element>(pair: &Pair<T>) {
    let hash = |hashed: &dyn Fn(&mut DefaultHasher)| {
        let mut hasher = DefaultHasher::new();
        hashed(&mut hasher);
        hasher.finish()
    };
    assert_eq!(hash(&|hasher| pair.array.hash(hasher)), hash(&|hasher| pair.model.hash(hasher)));
    assert!(pair.array == pair.model && pair.array.to_vec() == pair.model);
    if let Some((snapshot, model)) = pair.snapshots.last() {
        let mut then = fieldstone_blocks::TreeArray::new_in(snapshot.pool());
        snapshot.leaves().for_each(|leaf| then.extend_from_slice(leaf));
        assert_eq!(pair.array.cmp(&then), pair.model.cmp(model));
        assert_eq!(pair.array.partial_cmp(&then), pair.model.partial_cmp(model));
        assert_eq!(pair.array == then, pair.model == *model);
    }
}
