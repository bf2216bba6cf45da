//! The breadth-first search, and Graph500's rules for its result.

use crate::graph::CsrGraph;
use fieldstone_workloads::{Error, fill::fill};

/// "Not reached" as a parent, "unknown" as a level.
const NONE: u32 = u32::MAX;

/// Returns the parent of each vertex in a breadth-first tree from `root`. The root is its own
/// parent; an unreached vertex has `u32::MAX`.
pub(crate) fn breadth_first(graph: &CsrGraph, root: u32) -> Result<Vec<u32>, Error> {
    let mut parents = fill(graph.vertices(), |_| NONE)?;
    let mut queue = fill(graph.vertices(), |_| 0_u32)?;
    parents[root as usize] = root;
    queue[0] = root;
    let (mut taken, mut added) = (0, 1);
    while taken < added {
        let vertex = queue[taken];
        taken += 1;
        for &neighbour in graph.neighbours(vertex) {
            let parent = &mut parents[neighbour as usize];
            if *parent == NONE {
                *parent = vertex;
                queue[added] = neighbour;
                added += 1;
            }
        }
    }
    Ok(parents)
}

/// The properties that every correct tree of one root shares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SearchTree {
    /// The sum of all levels.
    pub(crate) level_sum: u64,
    /// Edges between the vertices of the tree.
    pub(crate) edges: u64,
}

/// Checks a tree of parents.
///
/// The rules: every chain of parents ends at the root (no cycle). A parent is a neighbour, one
/// level up. No edge of the graph connects the tree with a vertex outside it, or spans more than
/// one level.
pub(crate) fn validate(graph: &CsrGraph, root: u32, parents: &[u32]) -> Result<SearchTree, Error> {
    let levels = levels(graph, root, parents)?;
    let mut tree = SearchTree::default();
    for index in 0..graph.vertices() {
        let vertex = graph.vertex(index);
        let level = levels[index];
        let mut parent_is_neighbour = vertex == root || level == NONE;
        for &neighbour in graph.neighbours(vertex) {
            let other = levels[neighbour as usize];
            if (level == NONE) != (other == NONE) {
                return Err(Error::wrong(format!(
                    "the edge {vertex} to {neighbour} connects the tree with a vertex outside it"
                )));
            }
            if level.abs_diff(other) > 1 {
                return Err(Error::wrong(format!("the edge {vertex} to {neighbour} spans levels {level} to {other}")));
            }
            parent_is_neighbour |= parents[index] == neighbour;
        }
        if !parent_is_neighbour {
            return Err(Error::wrong(format!("the parent of {vertex} is not a neighbour of it")));
        }
        if level != NONE {
            tree.level_sum += u64::from(level);
            tree.edges += graph.neighbours(vertex).len() as u64;
        }
    }
    // Each edge was counted at both of its ends.
    tree.edges /= 2;
    Ok(tree)
}

/// The distance of each vertex from `root` along `parents`.
fn levels(graph: &CsrGraph, root: u32, parents: &[u32]) -> Result<Vec<u32>, Error> {
    let mut levels = fill(parents.len(), |_| NONE)?;
    levels[root as usize] = 0;
    let mut path = Vec::new();
    for index in (0..parents.len()).filter(|&index| parents[index] != NONE) {
        let mut vertex = graph.vertex(index);
        while levels[vertex as usize] == NONE {
            path.push(vertex);
            vertex = parents[vertex as usize];
            if vertex == NONE || path.len() > parents.len() {
                return Err(Error::wrong(format!("the parents of vertex {index} do not end at the root")));
            }
        }
        let mut level = levels[vertex as usize];
        while let Some(vertex) = path.pop() {
            level += 1;
            levels[vertex as usize] = level;
        }
    }
    Ok(levels)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 0 - 1 - 2 - 3, 0 - 4 - 3, and 5 alone.
    fn ring() -> CsrGraph {
        CsrGraph::from_edges(6, &[(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)]).unwrap()
    }

    #[test]
    fn a_correct_search_passes_validation() {
        let parents = breadth_first(&ring(), 0).unwrap();
        assert_eq!(parents[5], NONE);
        assert_eq!(validate(&ring(), 0, &parents).unwrap(), SearchTree { level_sum: 1 + 2 + 2 + 1, edges: 5 });
    }

    #[test]
    fn each_rule_is_enforced() {
        let wrong = |parents: [u32; 6]| validate(&ring(), 0, &parents).unwrap_err().to_string();
        assert!(wrong([0, 2, 1, 4, 0, NONE]).contains("do not end"), "cycle");
        assert!(wrong([0, 0, 1, 1, 0, NONE]).contains("not a neighbour"), "parent without an edge");
        assert!(wrong([0, 0, 1, 2, 3, NONE]).contains("spans"), "level skipped");
        assert!(wrong([0, 0, 1, NONE, 0, NONE]).contains("outside"), "vertex missing");
    }
}
