//! Traversals that change atomic parts: T2 swaps their coordinates, T3 changes their dates, which are indexed.

use anyhow::{Result, ensure};
use fieldstone_store::{Ptr, Transaction};

use super::contents::Contents;
use super::operations::Found;
use super::schema::{Assembly, AtomicPart, BUILD_DATES, CompositePart, MODULE, Module, date_key};

/// Changes an atomic part.
type Change = fn(&mut Transaction, Ptr<AtomicPart>) -> Result<()>;

/// T2a.
pub(super) fn swap_roots(tx: &mut Transaction, contents: &Contents) -> Result<Found> {
    Update { contents, is_deep: false, times: 1, change: swap, found: Found::default() }.run(tx)
}

/// T2b.
pub(super) fn swap_all(tx: &mut Transaction, contents: &Contents) -> Result<Found> {
    Update { contents, is_deep: true, times: 1, change: swap, found: Found::default() }.run(tx)
}

/// T2c.
pub(super) fn swap_all_4_times(tx: &mut Transaction, contents: &Contents) -> Result<Found> {
    Update { contents, is_deep: true, times: 4, change: swap, found: Found::default() }.run(tx)
}

/// T3a.
pub(super) fn date_roots(tx: &mut Transaction, contents: &Contents) -> Result<Found> {
    Update { contents, is_deep: false, times: 1, change: change_date, found: Found::default() }.run(tx)
}

/// T3b.
pub(super) fn date_all(tx: &mut Transaction, contents: &Contents) -> Result<Found> {
    Update { contents, is_deep: true, times: 1, change: change_date, found: Found::default() }.run(tx)
}

/// T3c.
pub(super) fn date_all_4_times(tx: &mut Transaction, contents: &Contents) -> Result<Found> {
    Update { contents, is_deep: true, times: 4, change: change_date, found: Found::default() }.run(tx)
}

/// Swaps x and y.
fn swap(tx: &mut Transaction, part: Ptr<AtomicPart>) -> Result<()> {
    let mut part = tx.edit(part)?;
    (part.x, part.y) = (part.y, part.x);
    Ok(())
}

/// Makes an odd date one larger and an even one one smaller, in the part and in the index.
fn change_date(tx: &mut Transaction, part: Ptr<AtomicPart>) -> Result<()> {
    let mut edit = tx.edit(part)?;
    let (id, before) = (edit.id, edit.build_date);
    let after = if before.is_multiple_of(2) { before.saturating_sub(1) } else { before + 1 };
    edit.build_date = after;
    drop(edit);
    let place = tx.long(part)?;
    let mut dates = tx.table(BUILD_DATES)?;
    ensure!(dates.remove(&date_key(before, id))?, "the index of dates has no part {id} of {before}");
    dates.insert(&date_key(after, id), &place)?;
    Ok(())
}

/// A traversal in the order of T1.
struct Update<'a> {
    contents: &'a Contents,
    /// Whether it changes all parts of a composite part; otherwise it changes the root parts.
    is_deep: bool,
    /// Changes of a part in a visit.
    times: u32,
    change: Change,
    found: Found,
}

impl Update<'_> {
    fn run(mut self, tx: &mut Transaction) -> Result<Found> {
        let module = tx.root::<Module>(MODULE)?;
        let design_root = tx.get(module)?.design_root;
        self.visit_assembly(tx, design_root)?;
        Ok(self.found)
    }

    fn visit_assembly(&mut self, tx: &mut Transaction, assembly: Ptr<Assembly>) -> Result<()> {
        let assembly = tx.get(assembly)?;
        if assembly.level > 1 {
            return assembly.assemblies.into_iter().try_for_each(|below| self.visit_assembly(tx, below));
        }
        assembly.private.into_iter().try_for_each(|composite| self.visit_composite(tx, composite))
    }

    fn visit_composite(&mut self, tx: &mut Transaction, composite: Ptr<CompositePart>) -> Result<()> {
        let root_part = tx.get(composite)?.root_part;
        let first_id = tx.get(root_part)?.id;
        self.visit_part(tx, root_part, first_id, &mut vec![false; self.contents.size.parts])
    }

    /// Visits a part and those to which it is connected. `visited` has those of the composite part.
    fn visit_part(
        &mut self,
        tx: &mut Transaction,
        pointer: Ptr<AtomicPart>,
        first_id: u32,
        visited: &mut [bool],
    ) -> Result<()> {
        let part = tx.get(pointer)?;
        let place = visited.get_mut(part.id.wrapping_sub(first_id) as usize);
        let place = place.ok_or_else(|| anyhow::anyhow!("the part {} is in another composite part", part.id))?;
        if std::mem::replace(place, true) {
            return Ok(());
        }
        for _ in 0..self.times {
            (self.change)(tx, pointer)?;
            self.found.add(part.id);
        }
        if self.is_deep {
            for connection in part.to {
                let target = tx.get(connection)?.to;
                self.visit_part(tx, target, first_id, visited)?;
            }
        }
        Ok(())
    }
}
