//! Insertions and deletions of composite parts.
//!
//! A deletion removes the entries of the indexes, the texts, the uses in assemblies, and the roots. The objects
//! are unreachable then, and the next collection removes them.

use anyhow::{Context, Result, ensure};
use fieldstone_stats::random::SplitMix64;
use fieldstone_store::{LongPtr, Ptr, Transaction};

use super::build::{add_composite_part, share};
use super::contents::{CHANGED_PARTS, Contents, id_of};
use super::operations::Found;
use super::schema::{
    ATOMIC_PARTS, BASE_ASSEMBLIES, BUILD_DATES, COMPOSITE_PARTS, CompositePart, DOCUMENTS, TEXTS, TITLES,
    composite_root, date_key, title,
};
use super::sets;

/// Inserts composite parts, each of which a random base assembly uses. The sum is that of their atomic parts.
pub(super) fn insert(tx: &mut Transaction, contents: &Contents) -> Result<Found> {
    let (mut random, mut found) = (SplitMix64::new(1), Found::default());
    let last = tx.table(COMPOSITE_PARTS)?.range::<u32>(..)?.next_back().transpose()?;
    for part in contents.inserted_parts(last.map_or(0, |(id, _)| id))? {
        let composite = add_composite_part(tx, &part)?;
        let id = id_of(random.below(contents.bases()));
        let base = tx.table(BASE_ASSEMBLIES)?.get(&id)?.with_context(|| format!("there is no base assembly {id}"))?;
        let base = tx.short(base)?;
        share(tx, base, composite)?;
        found.count += 1;
        found.sum += part.fields.len() as u64;
    }
    Ok(found)
}

/// Deletes the composite parts that were inserted last. The sum is that of their atomic parts.
pub(super) fn delete(tx: &mut Transaction, _contents: &Contents) -> Result<Found> {
    let mut found = Found::default();
    let composites = tx.table(COMPOSITE_PARTS)?;
    let last = composites.range::<u32>(..)?.rev().take(CHANGED_PARTS);
    let last: Vec<(u32, LongPtr<CompositePart>)> = last.collect::<fieldstone_store::Result<_>>()?;
    for (id, place) in last {
        let composite = tx.short(place)?;
        found.sum += delete_part(tx, id, composite)?;
        found.count += 1;
    }
    Ok(found)
}

/// Deletes a composite part. Returns how many atomic parts it had.
fn delete_part(tx: &mut Transaction, id: u32, pointer: Ptr<CompositePart>) -> Result<u64> {
    let composite = tx.get(pointer)?;
    let is_private = !sets::items_of(tx, composite.used_in_private)?.is_empty();
    ensure!(!is_private, "cannot delete the composite part {id}: a base assembly has it as a private part");
    for base in sets::items_of(tx, composite.used_in_shared)? {
        let parts = tx.get(base)?.shared;
        ensure!(sets::remove(tx, parts, pointer)?, "the composite part {id} names an assembly that does not use it");
    }
    let (mut part, mut parts) = (composite.first_part, 0);
    while !part.is_null() {
        let atomic = tx.get(part)?;
        tx.table(ATOMIC_PARTS)?.remove(&atomic.id)?;
        tx.table(BUILD_DATES)?.remove(&date_key(atomic.build_date, atomic.id))?;
        (part, parts) = (atomic.next, parts + 1);
    }
    tx.table(DOCUMENTS)?.remove(&id)?;
    tx.table(TITLES)?.remove(&title(id))?;
    tx.table(TEXTS)?.remove(&id)?;
    tx.table(COMPOSITE_PARTS)?.remove(&id)?;
    tx.remove_root(&composite_root(id))?;
    Ok(parts)
}
