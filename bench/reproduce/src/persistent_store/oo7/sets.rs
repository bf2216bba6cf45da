//! Sets of pointers as objects: lists of chunks with three pointers each.

use anyhow::Result;
use fieldstone_store::{Object, Ptr, Snapshot, Transaction, stored};

use super::schema::{Assembly, CompositePart, Connection};

/// Pointers of a chunk.
pub(super) const CHUNK: usize = 3;

stored! {
    /// Base assemblies.
    pub(super) struct BaseAssemblySet { items: [Ptr<Assembly>; CHUNK], next: Ptr<BaseAssemblySet> }
    /// Composite parts.
    pub(super) struct CompositePartSet { items: [Ptr<CompositePart>; CHUNK], next: Ptr<CompositePartSet> }
    /// Connections.
    pub(super) struct ConnectionSet { items: [Ptr<Connection>; CHUNK], next: Ptr<ConnectionSet> }
}

/// An object of a list that is a set. A pointer to the first one is the set; [`Ptr::NULL`] is the empty one.
pub(super) trait Chunk: Object {
    /// The type to which the pointers of the set lead.
    type Item: Object;

    /// A chunk with a list behind it. Null pointers are free places.
    fn new(items: [Ptr<Self::Item>; CHUNK], next: Ptr<Self>) -> Self;

    /// Its pointers, and the next chunk.
    fn content(&self) -> ([Ptr<Self::Item>; CHUNK], Ptr<Self>);
}

macro_rules! chunks {
    ($($chunk:ident: $item:ident),*) => {$(
        impl Chunk for $chunk {
            type Item = $item;

            fn new(items: [Ptr<$item>; CHUNK], next: Ptr<Self>) -> Self {
                Self { items, next }
            }

            fn content(&self) -> ([Ptr<$item>; CHUNK], Ptr<Self>) {
                (self.items, self.next)
            }
        }
    )*};
}

chunks!(BaseAssemblySet: Assembly, CompositePartSet: CompositePart, ConnectionSet: Connection);

/// The set with one more item, which is not in it yet.
///
/// # Errors
/// As [`Transaction::alloc`] and [`Transaction::get`].
pub(super) fn add<C: Chunk>(tx: &mut Transaction, set: Ptr<C>, item: Ptr<C::Item>) -> Result<Ptr<C>> {
    let mut chunk = set;
    while !chunk.is_null() {
        let (mut items, next) = tx.get(chunk)?.content();
        if let Some(free) = items.iter_mut().find(|place| place.is_null()) {
            *free = item;
            *tx.edit(chunk)? = C::new(items, next);
            return Ok(set);
        }
        chunk = next;
    }
    let mut items = [Ptr::NULL; CHUNK];
    items[0] = item;
    Ok(tx.alloc(C::new(items, set))?)
}

/// A set of all items.
///
/// # Errors
/// As [`Transaction::alloc`].
pub(super) fn set_of<C: Chunk>(tx: &mut Transaction, items: &[Ptr<C::Item>]) -> Result<Ptr<C>> {
    let mut set = Ptr::NULL;
    for chunk in items.chunks(CHUNK) {
        let mut places = [Ptr::NULL; CHUNK];
        places[..chunk.len()].copy_from_slice(chunk);
        set = tx.alloc(C::new(places, set))?;
    }
    Ok(set)
}

/// Removes an item. Returns whether it was in the set.
///
/// # Errors
/// As [`Transaction::get`].
pub(super) fn remove<C: Chunk>(tx: &mut Transaction, set: Ptr<C>, item: Ptr<C::Item>) -> Result<bool> {
    let mut chunk = set;
    while !chunk.is_null() {
        let (mut items, next) = tx.get(chunk)?.content();
        if let Some(place) = items.iter_mut().find(|place| **place == item) {
            *place = Ptr::NULL;
            *tx.edit(chunk)? = C::new(items, next);
            return Ok(true);
        }
        chunk = next;
    }
    Ok(false)
}

/// The items of a set in a transaction.
///
/// # Errors
/// As [`Transaction::get`].
pub(super) fn items_of<C: Chunk>(tx: &mut Transaction, set: Ptr<C>) -> Result<Vec<Ptr<C::Item>>> {
    let (mut chunk, mut found) = (set, Vec::new());
    while !chunk.is_null() {
        let (items, next) = tx.get(chunk)?.content();
        found.extend(items.into_iter().filter(|item| !item.is_null()));
        chunk = next;
    }
    Ok(found)
}

/// The items of a set in a snapshot.
pub(super) fn items<C: Chunk>(now: &Snapshot, set: Ptr<C>) -> impl Iterator<Item = Ptr<C::Item>> {
    let chunk = |pointer: Ptr<C>| (!pointer.is_null()).then(|| now.follow(pointer).content());
    let chunks = std::iter::successors(chunk(set), move |(_, next)| chunk(*next));
    chunks.flat_map(|(items, _)| items).filter(|item| !item.is_null())
}
