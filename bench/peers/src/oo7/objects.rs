//! The objects of OO7 in memory, for each kind of pointer.

#![allow(unsafe_code, reason = "a space returns the object of a pointer as the type that the caller names")]
#![expect(dead_code, reason = "the objects have the fields of OO7, of which the traversals read some")]

use super::spaces::Space;
use super::{AssemblyParts, BASE_COMPONENTS, Design, FAN_OUT, Graph, LEVELS, OUTGOING, PartFields};

/// A complex or a base assembly.
struct Assembly<P> {
    number: u32,
    kind: [u8; 10],
    is_base: bool,
    build_date: u32,
    /// The assembly above it.
    super_assembly: P,
    /// Assemblies, or composite parts.
    below: [P; FAN_OUT],
}

struct CompositePart<P> {
    number: u32,
    kind: [u8; 10],
    build_date: u32,
    root_part: P,
    /// Of a list by [`AtomicPart::next`].
    first_part: P,
}

struct AtomicPart<P> {
    number: u32,
    fields: PartFields,
    to: [P; OUTGOING],
    /// A list of [`Incoming`].
    from: P,
    part_of: P,
    /// The next part of its composite part.
    next: P,
}

struct Connection<P> {
    kind: [u8; 10],
    length: u32,
    from: P,
    to: P,
}

/// Connections to an atomic part.
struct Incoming<P> {
    connections: [P; 3],
    next: P,
}

const KIND: [u8; 10] = *b"type #1   ";

/// A graph in the memory of a space.
#[derive(Debug)]
pub struct MemoryGraph<S: Space> {
    space: S,
    design_root: S::Pointer,
}

impl<S: Space> MemoryGraph<S> {
    /// Allocates all objects of a design.
    #[must_use]
    pub fn build(design: &Design, mut space: S) -> Self {
        let parts: Vec<S::Pointer> =
            (0..design.connections.len()).map(|part| allocate_part(&mut space, design, part)).collect();
        for (part, to) in design.connections.iter().enumerate() {
            connect(&mut space, &parts, part, to);
        }
        let composites: Vec<S::Pointer> =
            parts.chunks(design.parts).map(|parts| allocate_composite(&mut space, parts)).collect();
        let mut components = design.components.iter();
        let design_root = allocate_assembly(&mut space, &composites, &mut components, LEVELS, S::Pointer::default());
        Self { space, design_root }
    }

    /// Resident bytes of the objects, with what their allocator adds.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.space.bytes()
    }

    fn get<T>(&self, pointer: S::Pointer) -> &T {
        // SAFETY: the pointers of a type are in the fields for that type, and no object is freed.
        unsafe { self.space.get(pointer) }
    }
}

fn allocate_part<S: Space>(space: &mut S, design: &Design, part: usize) -> S::Pointer {
    let none = S::Pointer::default();
    let (number, fields) = (number(part), design.fields[part]);
    space.allocate(AtomicPart { number, fields, to: [none; OUTGOING], from: none, part_of: none, next: none })
}

/// Allocates the connections from a part.
fn connect<S: Space>(space: &mut S, parts: &[S::Pointer], part: usize, to: &[usize; OUTGOING]) {
    for (place, &target) in to.iter().enumerate() {
        let (from, to) = (parts[part], parts[target]);
        let connection = space.allocate(Connection { kind: KIND, length: number(part + place), from, to });
        // SAFETY: `parts` are atomic parts of this space.
        unsafe { space.get_mut::<AtomicPart<S::Pointer>>(from).to[place] = connection };
        add_incoming(space, to, connection);
    }
}

fn add_incoming<S: Space>(space: &mut S, to: S::Pointer, connection: S::Pointer) {
    let none = S::Pointer::default();
    // SAFETY: `to` is an atomic part of this space.
    let first = unsafe { space.get::<AtomicPart<S::Pointer>>(to).from };
    if first != none {
        // SAFETY: `from` of an atomic part is none or of this type.
        let incoming = unsafe { space.get_mut::<Incoming<S::Pointer>>(first) };
        if let Some(free) = incoming.connections.iter_mut().find(|connection| **connection == none) {
            *free = connection;
            return;
        }
    }
    let incoming = space.allocate(Incoming { connections: [connection, none, none], next: first });
    // SAFETY: `to` is an atomic part of this space.
    unsafe { space.get_mut::<AtomicPart<S::Pointer>>(to).from = incoming };
}

fn allocate_composite<S: Space>(space: &mut S, parts: &[S::Pointer]) -> S::Pointer {
    // SAFETY: `parts` are atomic parts of this space.
    let number = unsafe { space.get::<AtomicPart<S::Pointer>>(parts[0]).number };
    let (root_part, first_part) = (parts[0], parts[0]);
    let composite = space.allocate(CompositePart { number, kind: KIND, build_date: 0, root_part, first_part });
    for (place, &part) in parts.iter().enumerate() {
        let next = parts.get(place + 1).copied().unwrap_or_default();
        // SAFETY: `parts` are atomic parts of this space.
        let part = unsafe { space.get_mut::<AtomicPart<S::Pointer>>(part) };
        (part.part_of, part.next) = (composite, next);
    }
    composite
}

fn allocate_assembly<'a, S: Space>(
    space: &mut S,
    composites: &[S::Pointer],
    components: &mut impl Iterator<Item = &'a [usize; BASE_COMPONENTS]>,
    levels: usize,
    super_assembly: S::Pointer,
) -> S::Pointer {
    let none = [S::Pointer::default(); FAN_OUT];
    let (number, is_base) = (number(levels), levels == 1);
    let assembly = space.allocate(Assembly { number, kind: KIND, is_base, build_date: 0, super_assembly, below: none });
    let mut below = none;
    if is_base {
        let chosen = components.next().copied().unwrap_or_default();
        below = chosen.map(|composite| composites[composite]);
    } else {
        for place in &mut below {
            *place = allocate_assembly(space, composites, components, levels - 1, assembly);
        }
    }
    // SAFETY: this call has allocated it as an assembly.
    unsafe { space.get_mut::<Assembly<S::Pointer>>(assembly).below = below };
    assembly
}

fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

impl<S: Space> Graph for MemoryGraph<S> {
    type Assembly = S::Pointer;
    type Composite = S::Pointer;
    type Atomic = S::Pointer;
    type Connection = S::Pointer;

    fn design_root(&self) -> S::Pointer {
        self.design_root
    }

    fn below(&self, assembly: S::Pointer) -> AssemblyParts<S::Pointer, S::Pointer> {
        let assembly = self.get::<Assembly<S::Pointer>>(assembly);
        if assembly.is_base { AssemblyParts::Base(assembly.below) } else { AssemblyParts::Complex(assembly.below) }
    }

    fn root_part(&self, composite: S::Pointer) -> S::Pointer {
        self.get::<CompositePart<S::Pointer>>(composite).root_part
    }

    fn part(&self, part: S::Pointer) -> (u32, [S::Pointer; OUTGOING]) {
        let part = self.get::<AtomicPart<S::Pointer>>(part);
        (part.number, part.to)
    }

    fn target(&self, connection: S::Pointer) -> S::Pointer {
        self.get::<Connection<S::Pointer>>(connection).to
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;

    use super::super::{Handles, NativePointers, OffsetPointers, ShortPointers, Visits, visit_parts, visit_root_parts};
    use super::*;

    /// The traversals T1 and T6, and the bytes.
    fn traverse<S: Space>(space: S) -> (Visits, Visits, usize) {
        let graph = MemoryGraph::build(&Design::small(), space);
        (visit_parts(&graph), visit_root_parts(&graph), graph.bytes())
    }

    #[test]
    fn all_kinds_of_pointers_visit_the_same_43_740_parts() {
        let native = traverse(NativePointers::new());
        assert_eq!((native.0.count, native.1.count), (43_740, 2187));
        for (t1, t6, _) in [traverse(OffsetPointers::new()), traverse(Handles::new()), traverse(ShortPointers::new())] {
            assert_eq!((t1, t6), (native.0, native.1));
        }
    }

    #[test]
    fn objects_with_short_pointers_are_smaller() {
        let bytes = [traverse(ShortPointers::new()).2, traverse(OffsetPointers::new()).2];
        assert!(bytes[0] < bytes[1] && bytes[1] < traverse(NativePointers::new()).2, "{bytes:?}");
    }

    #[test]
    fn each_connection_is_in_the_lists_of_its_two_parts() {
        let design = Design::new(4, 20);
        let graph = MemoryGraph::build(&design, NativePointers::new());
        let AssemblyParts::Complex(mut below) = graph.below(graph.design_root()) else { panic!("it is the highest") };
        let composite = loop {
            match graph.below(below[0]) {
                AssemblyParts::Complex(lower) => below = lower,
                AssemblyParts::Base(composites) => break composites[0],
            }
        };
        let (mut part, mut outgoing, mut incoming) = (graph.root_part(composite), 0, 0);
        while part.is_some() {
            let object: &AtomicPart<Option<NonNull<u8>>> = graph.get(part);
            assert!(
                object.part_of == composite
                    && object.to.iter().all(|&to| graph.get::<Connection<Option<NonNull<u8>>>>(to).from == part)
            );
            outgoing += object.to.len();
            let mut list = object.from;
            while list.is_some() {
                let node: &Incoming<Option<NonNull<u8>>> = graph.get(list);
                let found = node.connections.iter().filter(|connection| connection.is_some());
                incoming += found.inspect(|&&connection| assert_eq!(graph.target(connection), part)).count();
                list = node.next;
            }
            part = object.next;
        }
        assert_eq!((outgoing, incoming), (60, 60));
    }
}
