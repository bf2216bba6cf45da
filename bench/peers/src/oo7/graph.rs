//! A graph in some memory, and its traversals.
//!
//! T1 goes depth first through the assemblies, and in each composite part depth first through the atomic
//! parts, from the root part along the connections. T6 visits the root parts only.

use super::{BASE_COMPONENTS, FAN_OUT, OUTGOING};

/// What is below an assembly.
#[derive(Clone, Copy, Debug)]
pub enum AssemblyParts<A, C> {
    /// The assemblies of a complex assembly.
    Complex([A; FAN_OUT]),
    /// The composite parts of a base assembly.
    Base([C; BASE_COMPONENTS]),
}

/// Objects that refer to each other by some kind of pointer. Each function reads one object.
pub trait Graph {
    /// A pointer to an assembly.
    type Assembly: Copy;
    /// A pointer to a composite part.
    type Composite: Copy;
    /// A pointer to an atomic part.
    type Atomic: Copy;
    /// A pointer to a connection.
    type Connection: Copy;

    /// The assembly above all others.
    fn design_root(&self) -> Self::Assembly;

    /// What is below an assembly.
    fn below(&self, assembly: Self::Assembly) -> AssemblyParts<Self::Assembly, Self::Composite>;

    /// The first atomic part of a composite part.
    fn root_part(&self, composite: Self::Composite) -> Self::Atomic;

    /// The number of an atomic part, and the connections from it.
    fn part(&self, part: Self::Atomic) -> (u32, [Self::Connection; OUTGOING]);

    /// The part to which a connection goes.
    fn target(&self, connection: Self::Connection) -> Self::Atomic;
}

/// What a traversal has visited. All graphs of one design have the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Visits {
    /// The number of visited atomic parts.
    pub count: u64,
    /// Depends on their numbers and their order.
    pub sum: u64,
}

impl Visits {
    fn add(&mut self, number: u32) {
        self.count += 1;
        self.sum = self.sum.wrapping_mul(3).wrapping_add(number.into());
    }
}

/// The largest number of atomic parts of a composite part.
const MOST_PARTS: usize = 256;

/// T1. All parts of a composite part must have adjacent numbers, the root part the lowest.
///
/// # Panics
/// If a composite part has more than 256 parts.
#[inline(never)]
pub fn visit_parts<G: Graph>(graph: &G) -> Visits {
    let mut visits = Visits::default();
    visit_composites(graph, graph.design_root(), &mut |root| {
        let (first, _) = graph.part(root);
        visit_from(graph, root, first, &mut [0; MOST_PARTS / 64], &mut visits);
    });
    visits
}

/// T6.
#[inline(never)]
pub fn visit_root_parts<G: Graph>(graph: &G) -> Visits {
    let mut visits = Visits::default();
    visit_composites(graph, graph.design_root(), &mut |root| visits.add(graph.part(root).0));
    visits
}

/// Calls `visit` with the root part of each composite part.
fn visit_composites<G: Graph>(graph: &G, assembly: G::Assembly, visit: &mut impl FnMut(G::Atomic)) {
    match graph.below(assembly) {
        AssemblyParts::Complex(assemblies) => {
            assemblies.into_iter().for_each(|assembly| visit_composites(graph, assembly, visit));
        }
        AssemblyParts::Base(composites) => {
            composites.into_iter().for_each(|composite| visit(graph.root_part(composite)));
        }
    }
}

fn visit_from<G: Graph>(
    graph: &G,
    part: G::Atomic,
    first: u32,
    visited: &mut [u64; MOST_PARTS / 64],
    visits: &mut Visits,
) {
    let (number, connections) = graph.part(part);
    let place = (number - first) as usize;
    let (word, bit) = (&mut visited[place / 64], 1 << (place % 64));
    if *word & bit != 0 {
        return;
    }
    *word |= bit;
    visits.add(number);
    for connection in connections {
        visit_from(graph, graph.target(connection), first, visited, visits);
    }
}
