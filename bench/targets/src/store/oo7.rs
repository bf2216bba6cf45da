//! The cells of objects: OO7's traversal T1, and the memory of its graph, by kind of pointer.
//!
//! | side | pointer | object |
//! |---|---|---|
//! | handles | number of 4 bytes | at the address in a table: the goal's baseline of time |
//! | native | address of 8 bytes | of malloc(3): the goal's baseline of memory |
//! | offsets | 8 bytes from a base | adjacent |
//! | short | 4 bytes: units of 8 bytes from a base | adjacent |
//!
//! All objects are in memory. Each traversal visits 43,740 atomic parts in the same order.

use std::hint::black_box;

use anyhow::ensure;
use fieldstone_peers::oo7::{
    Design, Graph, Handles, MemoryGraph, NativePointers, OffsetPointers, ShortPointers, Space, Visits, visit_parts,
};
use fieldstone_stats::{Rounds, median};

use super::samples::Sample;
use super::{SECTION, Scale};
use crate::cell::GoalCell;
use crate::request::Request;

/// The goals, each with the reason why the store is not measured.
const SKIPPED: [(&str, &str); 2] = [
    ("long_pointer_vs_handle", "the store has no objects with pointers yet"),
    ("short_pointer_memory", "the store has no objects with pointers yet"),
];
const CASE: &str = "OO7";
/// Rounds of all sides.
const ROUNDS: usize = 12;

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

/// The same graph with each kind of pointer.
fn sides(design: &Design) -> Vec<Side> {
    vec![
        Side::in_space("handles", design, Handles::new()),
        Side::in_space("native", design, NativePointers::new()),
        Side::in_space("offsets", design, OffsetPointers::new()),
        Side::in_space("short", design, ShortPointers::new()),
    ]
}

/// Measures the sides if a cell is wanted.
pub(super) fn measure(request: &Request<'_>, scale: &Scale, show: &mut dyn FnMut(GoalCell)) -> anyhow::Result<()> {
    let wanted: Vec<_> =
        SKIPPED.into_iter().filter(|(goal, _)| format!("{goal} {CASE}").contains(request.only)).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let design = Design::small();
    let sides = sides(&design);
    let seconds = traverse(&sides, design.t1_visits(), scale.traversals)?;
    let list = |value: &dyn Fn(usize) -> String| {
        let sides = sides.iter().enumerate().map(|(index, side)| format!("{} {}", side.name, value(index)));
        sides.collect::<Vec<_>>().join(", ")
    };
    println!("# OO7 T1, median µs: {}", list(&|index| format!("{:.1}", seconds[index] * 1e6)));
    println!("# OO7 graph, KiB: {}", list(&|index| (sides[index].bytes >> 10).to_string()));
    for (goal, why) in wanted {
        show(GoalCell::skipped_case(request.goals.get(SECTION, goal)?, CASE, why));
    }
    Ok(())
}

/// The median seconds of a traversal for each side.
fn traverse(sides: &[Side], visits: u64, traversals: usize) -> anyhow::Result<Vec<f64>> {
    let expected = (sides[0].traverse)();
    ensure!(expected.count == visits, "T1 has visited {} parts, not {visits}", expected.count);
    let run = |index: usize| {
        let sample = Sample::of_cpu_time(|| {
            for _ in 0..traversals {
                let found = black_box((sides[index].traverse)());
                ensure!(found == expected, "T1 has visited {found:?} by {}, not {expected:?}", sides[index].name);
            }
            Ok(())
        })?;
        Ok::<_, anyhow::Error>(sample.seconds() / traversals as f64)
    };
    let rounds = Rounds::run(sides.len(), run, |rounds| rounds.count() == ROUNDS)?;
    Ok((0..sides.len()).filter_map(|side| median(rounds.of(side))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_side_visits_43_740_parts_and_has_its_time() {
        let sides = sides(&Design::small());
        let seconds = traverse(&sides, 43_740, 1).unwrap();
        assert_eq!(seconds.len(), sides.len());
        assert!(seconds.iter().all(|&seconds| seconds > 0.0) && sides.iter().all(|side| side.bytes > 1 << 20));
    }

    #[test]
    fn a_side_that_visits_other_parts_is_an_error() {
        let mut sides = sides(&Design::small());
        sides.push(Side::in_space("other", &Design::new(400, 20), ShortPointers::new()));
        let error = traverse(&sides, 43_740, 1).unwrap_err().to_string();
        assert!(error.contains("by other"), "{error}");
    }
}
