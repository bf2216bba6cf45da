//! Divides the entries of two neighbours evenly between them.

use std::ops::Range;

use super::{Fences, Node, SLOT, clear, fits, insert, separator};
use crate::page::Page;

/// Two neighbours, whose entries are counted from the first one of the left.
#[derive(Clone, Copy)]
struct Neighbours<'a> {
    left: Node<'a>,
    right: Node<'a>,
}

impl<'a> Neighbours<'a> {
    /// The node with an entry, and its place there.
    fn entry(self, index: usize) -> (Node<'a>, usize) {
        match index.checked_sub(self.left.count()) {
            None => (self.left, index),
            Some(index) => (self.right, index),
        }
    }

    fn key(self, index: usize) -> Vec<u8> {
        let (node, index) = self.entry(index);
        let mut key = Vec::new();
        node.append_key(index, &mut key);
        key
    }

    /// The first entry of the second half of their bytes.
    fn middle(self) -> usize {
        let bytes = |index| {
            let (node, index) = self.entry(index);
            SLOT + node.rest(index).len() + node.payload(index).bytes()
        };
        let (all, mut sum) = (self.left.used() + self.right.used(), 0);
        let count = self.left.count() + self.right.count();
        let middle = (0..count).position(|index| {
            sum += bytes(index);
            sum > all / 2
        });
        middle.unwrap_or(count / 2).clamp(1, count - 1)
    }

    /// Appends entries to a page. Returns false if they do not fit.
    fn append(self, page: &mut Page, entries: Range<usize>) -> bool {
        entries.into_iter().enumerate().all(|(place, index)| {
            let (key, (node, index)) = (self.key(index), self.entry(index));
            let payload = node.payload(index);
            let is_possible = fits(page, &key, payload);
            if is_possible {
                insert(page, place, &key, payload);
            }
            is_possible
        })
    }
}

/// Divides the entries of two neighbouring leaves evenly. Returns the new key between them; `None` if the
/// entries do not fit, as keys are longer where the prefix of a page is shorter.
pub(crate) fn balance(left: &Page, right: &Page, balanced: &mut [Page; 2]) -> Option<Vec<u8>> {
    let old = Neighbours { left: Node(left), right: Node(right) };
    let count = old.left.count() + old.right.count();
    if count < 2 {
        return None;
    }
    let middle = old.middle();
    let separator = separator(&old.key(middle - 1), &old.key(middle)).to_vec();
    let [new_left, new_right] = balanced;
    clear(new_left, 0, Fences { lower: old.left.fences().lower, upper: Some(&separator) });
    clear(new_right, 0, Fences { lower: &separator, upper: old.right.fences().upper });
    (old.append(new_left, 0..middle) && old.append(new_right, middle..count)).then_some(separator)
}
