//! Traversals that read: T1 and T6 through the objects, T8 and T9 of the manual.

use anyhow::{Result, ensure};
use fieldstone_peers::oo7::{AssemblyParts, Graph, OUTGOING, Visits, visit_parts, visit_root_parts};
use fieldstone_store::{Ptr, Snapshot};

use super::contents::Contents;
use super::operations::Found;
use super::schema::{Assembly, AtomicPart, CompositePart, Connection, MANUALS, MODULE, Module};

/// The character that T8 counts.
pub(super) const COUNTED: u8 = b'I';

/// The design of a snapshot.
struct StoredDesign<'a> {
    now: &'a Snapshot,
    root: Ptr<Assembly>,
}

impl Graph for StoredDesign<'_> {
    type Assembly = Ptr<Assembly>;
    type Composite = Ptr<CompositePart>;
    type Atomic = Ptr<AtomicPart>;
    type Connection = Ptr<Connection>;

    fn design_root(&self) -> Ptr<Assembly> {
        self.root
    }

    fn below(&self, assembly: Ptr<Assembly>) -> AssemblyParts<Ptr<Assembly>, Ptr<CompositePart>> {
        let assembly = self.now.follow(assembly);
        if assembly.level > 1 {
            AssemblyParts::Complex(assembly.assemblies)
        } else {
            AssemblyParts::Base(assembly.private)
        }
    }

    fn root_part(&self, composite: Ptr<CompositePart>) -> Ptr<AtomicPart> {
        self.now.follow(composite).root_part
    }

    fn part(&self, part: Ptr<AtomicPart>) -> (u32, [Ptr<Connection>; OUTGOING]) {
        let part = self.now.follow(part);
        // The number of a part in memory begins with 0.
        (part.id.wrapping_sub(1), part.to)
    }

    fn target(&self, connection: Ptr<Connection>) -> Ptr<AtomicPart> {
        self.now.follow(connection).to
    }
}

impl<'a> StoredDesign<'a> {
    fn of(now: &'a Snapshot) -> Result<Self> {
        Ok(Self { now, root: now.root::<Module>(MODULE)?.design_root })
    }
}

/// What was visited, if all of it was real.
fn checked(now: &Snapshot, visits: Visits) -> Result<Found> {
    now.check_objects()?;
    Ok(Found::of_visits(visits))
}

/// T1: visits the atomic parts of each composite part of each base assembly.
pub(super) fn visit_all(now: &Snapshot, _contents: &Contents) -> Result<Found> {
    checked(now, visit_parts(&StoredDesign::of(now)?))
}

/// T6: visits the root part of each composite part of each base assembly.
pub(super) fn visit_roots(now: &Snapshot, _contents: &Contents) -> Result<Found> {
    checked(now, visit_root_parts(&StoredDesign::of(now)?))
}

/// The text of the manual.
fn manual(now: &Snapshot) -> Result<&str> {
    let manual = now.follow(now.root::<Module>(MODULE)?.manual);
    now.check_objects()?;
    let text = now.table(MANUALS)?.get(&manual.id)?.unwrap_or_default();
    ensure!(text.len() == manual.length as usize, "the manual has {} bytes, not {}", text.len(), manual.length);
    Ok(text)
}

/// T8: counts a character in the manual.
pub(super) fn scan_manual(now: &Snapshot, _contents: &Contents) -> Result<Found> {
    let text = manual(now)?;
    let count = text.bytes().filter(|&byte| byte == COUNTED).count();
    Ok(Found { count: count as u64, sum: text.len() as u64 })
}

/// T9: compares the first and the last character of the manual. The count is 1 if they are the same.
pub(super) fn compare_ends(now: &Snapshot, _contents: &Contents) -> Result<Found> {
    let text = manual(now)?.as_bytes();
    Ok(Found { count: (text.first() == text.last()).into(), sum: text.len() as u64 })
}
