//! The queries: they find objects by indexes, and visit each by reading its id.

use anyhow::{Context, Result};
use fieldstone_stats::random::SplitMix64;
use fieldstone_store::Snapshot;

use super::contents::{Contents, id_of};
use super::operations::Found;
use super::schema::{ATOMIC_PARTS, BASE_ASSEMBLIES, BUILD_DATES, DOCUMENTS, TITLES, date_key, title};
use super::sets::items;

/// Parts that Q1 looks up.
pub(super) const LOOK_UPS: usize = 10;
/// Titles that Q4 looks up.
pub(super) const TITLE_LOOK_UPS: usize = 100;
/// The first date of Q2: one percent of the atomic parts are as new.
pub(super) const DATE_OF_1_PERCENT: u32 = 1990;
/// The first date of Q3: ten percent of the atomic parts are as new.
pub(super) const DATE_OF_10_PERCENT: u32 = 1900;

/// Random ids of `count` objects, always the same.
pub(super) fn random_ids(draws: usize, count: usize) -> impl Iterator<Item = u32> {
    let mut random = SplitMix64::new(1);
    (0..draws).map(move |_| id_of(random.below(count)))
}

/// Q1: atomic parts by random ids.
pub(super) fn look_up_parts(now: &Snapshot, contents: &Contents) -> Result<Found> {
    let (parts, mut found) = (now.table(ATOMIC_PARTS)?, Found::default());
    for id in random_ids(LOOK_UPS, contents.design.fields.len()) {
        let place = parts.get(&id)?.with_context(|| format!("there is no atomic part {id}"))?;
        found.add(now.follow(now.short(place)?).id);
    }
    now.check_objects()?;
    Ok(found)
}

/// Q2: the newest atomic parts, one percent of all.
pub(super) fn new_parts(now: &Snapshot, _contents: &Contents) -> Result<Found> {
    parts_from(now, DATE_OF_1_PERCENT)
}

/// Q3: the newest atomic parts, ten percent of all.
pub(super) fn newer_parts(now: &Snapshot, _contents: &Contents) -> Result<Found> {
    parts_from(now, DATE_OF_10_PERCENT)
}

/// The atomic parts that were built at a date or later.
fn parts_from(now: &Snapshot, date: u32) -> Result<Found> {
    let mut found = Found::default();
    for entry in now.table(BUILD_DATES)?.range(date_key(date, 0)..)? {
        found.add(now.follow(now.short(entry?.1)?).id);
    }
    now.check_objects()?;
    Ok(found)
}

/// Q4: the base assemblies that use the composite parts of documents with random titles.
pub(super) fn users_of_titles(now: &Snapshot, contents: &Contents) -> Result<Found> {
    let (titles, mut found) = (now.table(TITLES)?, Found::default());
    for id in random_ids(TITLE_LOOK_UPS, contents.size.composites) {
        let place = titles.get(&*title(id))?.with_context(|| format!("there is no document {id}"))?;
        let composite = now.follow(now.follow(now.short(place)?).part);
        let users = items(now, composite.used_in_private).chain(items(now, composite.used_in_shared));
        users.for_each(|base| found.add(now.follow(base).id));
    }
    now.check_objects()?;
    Ok(found)
}

/// Q5: the base assemblies that are older than a composite part that they use.
pub(super) fn older_assemblies(now: &Snapshot, _contents: &Contents) -> Result<Found> {
    let mut found = Found::default();
    for entry in now.table(BASE_ASSEMBLIES)?.iter()? {
        let base = now.follow(now.short(entry?.1)?);
        let mut parts = base.private.into_iter().chain(items(now, base.shared));
        if parts.any(|part| now.follow(part).build_date > base.build_date) {
            found.add(base.id);
        }
    }
    now.check_objects()?;
    Ok(found)
}

/// Q7: all atomic parts.
pub(super) fn all_parts(now: &Snapshot, _contents: &Contents) -> Result<Found> {
    let mut found = Found::default();
    for entry in now.table(ATOMIC_PARTS)?.iter()? {
        found.add(now.follow(now.short(entry?.1)?).id);
    }
    now.check_objects()?;
    Ok(found)
}

/// Q8: the document of each atomic part, by a look-up of its id for each part.
pub(super) fn parts_with_documents(now: &Snapshot, _contents: &Contents) -> Result<Found> {
    let (documents, mut found) = (now.table(DOCUMENTS)?, Found::default());
    for entry in now.table(ATOMIC_PARTS)?.iter()? {
        let part = now.follow(now.short(entry?.1)?);
        if let Some(document) = documents.get(&part.document_id)? {
            found.add(now.follow(now.short(document)?).id);
        }
    }
    now.check_objects()?;
    Ok(found)
}
