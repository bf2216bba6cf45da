//! The cells of objects: OO7's traversal T1, and the memory of its graph, by kind of pointer.
//!
//! | side | pointer | object |
//! |---|---|---|
//! | Fieldstone | 4 bytes: units of 8 bytes from a base | in the window of a snapshot |
//! | handles | number of 4 bytes | at the address in a table: the baseline of time |
//! | native | address of 8 bytes | of malloc(3): the baseline of memory |
//! | offsets | 8 bytes from a base | adjacent |
//! | short | 4 bytes: units of 8 bytes from a base | adjacent |
//!
//! All objects are in memory. Each traversal visits 43,740 atomic parts in the same order.

use std::hint::black_box;

use anyhow::ensure;
use fieldstone_peers::oo7::{
    Design, Graph, Handles, MemoryGraph, NativePointers, OffsetPointers, ShortPointers, Space, StoreGraph, Visits,
    visit_parts,
};
use fieldstone_stats::Estimate;
use tempfile::TempDir;

use super::samples::{RatioCell, Sample, compare};
use super::{SECTION, Scale};
use crate::cell::GoalCell;
use crate::request::Request;

const TIME_GOAL: &str = "long_pointer_vs_handle";
const MEMORY_GOAL: &str = "short_pointer_memory";
const CASE: &str = "OO7";
/// Places in the list of [`sides`].
const HANDLES: usize = 1;
const NATIVE: usize = 2;

/// A graph that is traversed.
struct Side {
    name: &'static str,
    traverse: Box<dyn Fn() -> Visits>,
    /// Resident bytes of the objects.
    bytes: usize,
}

impl Side {
    fn new(name: &'static str, graph: impl Graph + 'static, bytes: usize) -> Self {
        Self { name, traverse: Box::new(move || visit_parts(&graph)), bytes }
    }

    fn in_space<S: Space + 'static>(name: &'static str, design: &Design, space: S) -> Self {
        let graph = MemoryGraph::build(design, space);
        let bytes = graph.bytes();
        Self::new(name, graph, bytes)
    }
}

/// The same graph with each kind of pointer. The store is in the folder.
fn sides(design: &Design, folder: &TempDir) -> anyhow::Result<Vec<Side>> {
    let store = StoreGraph::build(design, &folder.path().join("oo7.store"))?;
    let bytes = store.bytes();
    store.check()?;
    Ok(vec![
        Side::new("Fieldstone", store, bytes),
        Side::in_space("handles", design, Handles::new()),
        Side::in_space("native", design, NativePointers::new()),
        Side::in_space("offsets", design, OffsetPointers::new()),
        Side::in_space("short", design, ShortPointers::new()),
    ])
}

/// Measures the wanted cells.
pub(super) fn measure(request: &Request<'_>, scale: &Scale, show: &mut dyn FnMut(GoalCell)) -> anyhow::Result<()> {
    let time_cell = RatioCell::wanted(request, TIME_GOAL, CASE, &[HANDLES])?;
    let is_memory_wanted = format!("{MEMORY_GOAL} {CASE}").contains(request.only);
    if time_cell.is_none() && !is_memory_wanted {
        return Ok(());
    }
    let (design, folder) = (Design::small(), tempfile::tempdir_in("/var/tmp")?);
    let sides = sides(&design, &folder)?;
    let names: Vec<&str> = sides.iter().map(|side| side.name).collect();
    if let Some(cell) = time_cell {
        let expected = expected_visits(&sides, design.t1_visits())?;
        let sample = |side: usize, _| traverse(&sides[side], expected, scale.traversals);
        let compared = compare(vec![cell], &names, request.limit, scale.pause, sample)?;
        let microseconds = compared.seconds.iter().map(|seconds| seconds * 1e6 / scale.traversals as f64);
        println!("# OO7 T1, median µs: {}", list(&names, microseconds));
        compared.cells.into_iter().for_each(&mut *show);
    }
    if is_memory_wanted {
        let bytes: Vec<f64> = sides.iter().map(|side| side.bytes as f64).collect();
        println!("# OO7 graph, KiB: {}", list(&names, bytes.iter().map(|bytes| bytes / 1024.0)));
        let ratio = bytes[0] / bytes[NATIVE];
        let estimate = Estimate { n: 1, median: ratio, low: ratio, high: ratio, confidence: Some(1.0) };
        let goal = request.goals.get(SECTION, MEMORY_GOAL)?;
        let note = format!("{} = 1, with what malloc adds", names[NATIVE]);
        show(GoalCell::measured(goal, CASE, Some(estimate), &note));
    }
    Ok(())
}

/// Each side with its value.
fn list(names: &[&str], values: impl Iterator<Item = f64>) -> String {
    names.iter().zip(values).map(|(name, value)| format!("{name} {value:.1}")).collect::<Vec<_>>().join(", ")
}

/// What each side must visit.
fn expected_visits(sides: &[Side], count: u64) -> anyhow::Result<Visits> {
    let expected = (sides[HANDLES].traverse)();
    ensure!(expected.count == count, "T1 has visited {} parts, not {count}", expected.count);
    Ok(expected)
}

/// A sample of some traversals.
fn traverse(side: &Side, expected: Visits, traversals: usize) -> anyhow::Result<Sample> {
    Sample::of_cpu_time(|| {
        for _ in 0..traversals {
            let found = black_box((side.traverse)());
            ensure!(found == expected, "T1 has visited {found:?} by {}, not {expected:?}", side.name);
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_side_visits_the_same_43_740_parts() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let sides = sides(&Design::small(), &folder).unwrap();
        let expected = expected_visits(&sides, 43_740).unwrap();
        for side in &sides {
            traverse(side, expected, 1).unwrap();
            assert!(side.bytes > 1 << 20, "{}: {}", side.name, side.bytes);
        }
    }

    #[test]
    fn a_side_that_visits_other_parts_is_an_error() {
        let side = Side::in_space("other", &Design::new(400, 20), ShortPointers::new());
        let error = traverse(&side, Visits::default(), 1).unwrap_err().to_string();
        assert!(error.contains("by other"), "{error}");
    }
}
