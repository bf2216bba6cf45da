//! The search, and Graph500's rules for its result.

use crate::graph::Graph;
use fieldstone_workloads::{Error, fill::fill};

/// Stands for "not reached" among parents and for "not yet known" among levels.
const NONE: u32 = u32::MAX;

/// The parent of each vertex in a breadth-first tree from `root`, whose own parent it is; `u32::MAX` where it does not reach.
pub(crate) fn breadth_first(graph: &Graph, root: u32) -> Result<Vec<u32>, Error> {
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

/// What every right tree of a root has in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tree {
    /// The sum of all levels.
    pub(crate) level_sum: u64,
    /// Edges between the vertices that it reaches.
    pub(crate) edges: u64,
}

/// Checks a tree of parents.
///
/// The rules: parents lead to the root (no cycle), each to a neighbour, one level up; an edge of the graph never leaves the
/// tree and never spans more than one level.
pub(crate) fn validate(graph: &Graph, root: u32, parents: &[u32]) -> Result<Tree, Error> {
    let levels = levels(graph, root, parents)?;
    let mut tree = Tree::default();
    for index in 0..graph.vertices() {
        let vertex = graph.vertex(index);
        let level = levels[index];
        let mut parent_is_neighbour = vertex == root || level == NONE;
        for &neighbour in graph.neighbours(vertex) {
            let other = levels[neighbour as usize];
            if (level == NONE) != (other == NONE) {
                return Err(Error::wrong(format!("the edge {vertex} to {neighbour} leaves the tree")));
            }
            if level.abs_diff(other) > 1 {
                return Err(Error::wrong(format!("the edge {vertex} to {neighbour} spans levels {level} to {other}")));
            }
            parent_is_neighbour |= parents[index] == neighbour;
        }
        if !parent_is_neighbour {
            return Err(Error::wrong(format!("the parent of {vertex} is no neighbour of it")));
        }
        if level != NONE {
            tree.level_sum += u64::from(level);
            tree.edges += graph.neighbours(vertex).len() as u64;
        }
    }
    // Each was met from both its ends.
    tree.edges /= 2;
    Ok(tree)
}

/// The distance of each vertex from `root` along `parents`.
fn levels(graph: &Graph, root: u32, parents: &[u32]) -> Result<Vec<u32>, Error> {
    let mut levels = fill(parents.len(), |_| NONE)?;
    levels[root as usize] = 0;
    let mut path = Vec::new();
    for index in (0..parents.len()).filter(|&index| parents[index] != NONE) {
        let mut vertex = graph.vertex(index);
        while levels[vertex as usize] == NONE {
            path.push(vertex);
            vertex = parents[vertex as usize];
            if vertex == NONE || path.len() > parents.len() {
                return Err(Error::wrong(format!("the parents of vertex {index} do not lead to the root")));
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
    fn ring() -> Graph {
        Graph::from_edges(6, &[(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)]).unwrap()
    }

    #[test]
    fn the_search_passes_its_own_check() {
        let parents = breadth_first(&ring(), 0).unwrap();
        assert_eq!(parents[5], NONE);
        assert_eq!(validate(&ring(), 0, &parents).unwrap(), Tree { level_sum: 1 + 2 + 2 + 1, edges: 5 });
    }

    #[test]
    fn each_rule_is_enforced() {
        let wrong = |parents: [u32; 6]| validate(&ring(), 0, &parents).unwrap_err().to_string();
        assert!(wrong([0, 2, 1, 4, 0, NONE]).contains("do not lead"), "cycle");
        assert!(wrong([0, 0, 1, 1, 0, NONE]).contains("no neighbour"), "parent without an edge");
        assert!(wrong([0, 0, 1, 2, 3, NONE]).contains("spans"), "level skipped");
        assert!(wrong([0, 0, 1, NONE, 0, NONE]).contains("leaves"), "vertex forgotten");
    }
}
