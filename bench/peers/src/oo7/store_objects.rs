//! The graph as objects of a store, read through a snapshot.

use std::collections::BTreeSet;
use std::path::Path;

use fieldstone_store::{Object, Ptr, Snapshot, Store, Transaction, stored};

use super::{AssemblyParts, BASE_COMPONENTS, Design, FAN_OUT, Graph, LEVELS, OUTGOING};

stored! {
    /// A base or complex assembly.
    pub struct Assembly {
        number: u32,
        kind: [u8; 10],
        is_base: u8,
        build_date: u32,
        super_assembly: Ptr<Assembly>,
        assemblies: [Ptr<Assembly>; FAN_OUT],
        composites: [Ptr<CompositePart>; BASE_COMPONENTS],
    }

    /// A composite part.
    pub struct CompositePart {
        number: u32,
        kind: [u8; 10],
        build_date: u32,
        root_part: Ptr<AtomicPart>,
        first_part: Ptr<AtomicPart>,
    }

    /// An atomic part.
    pub struct AtomicPart {
        number: u32,
        kind: [u8; 10],
        build_date: u32,
        x: u32,
        y: u32,
        document: u32,
        to: [Ptr<Connection>; OUTGOING],
        from: Ptr<Incoming>,
        part_of: Ptr<CompositePart>,
        next: Ptr<AtomicPart>,
    }

    /// A connection between two atomic parts.
    pub struct Connection {
        kind: [u8; 10],
        length: u32,
        from: Ptr<AtomicPart>,
        to: Ptr<AtomicPart>,
    }

    /// Connections that lead to an atomic part, as a list.
    pub struct Incoming {
        connections: [Ptr<Connection>; 3],
        next: Ptr<Incoming>,
    }
}

const KIND: [u8; 10] = *b"type #1   ";
const ROOT: &str = "design";
const PAGE: usize = 4096;

/// A snapshot with the graph. All its objects are in memory once they were reached.
#[derive(Debug)]
pub struct StoreGraph {
    snapshot: Snapshot,
    design_root: Ptr<Assembly>,
}

impl StoreGraph {
    /// Allocates all objects of a design in a new store, in one transaction, and takes a snapshot.
    ///
    /// # Errors
    /// If the store cannot be made or written.
    pub fn build(design: &Design, path: &Path) -> anyhow::Result<Self> {
        let store = Store::open(path)?;
        store.write(|transaction| {
            let parts = allocate_parts(transaction, design)?;
            let mut composites = Vec::new();
            for parts in parts.chunks(design.parts) {
                composites.push(allocate_composite(transaction, parts)?);
            }
            let mut components = design.components.iter();
            let root = allocate_assembly(transaction, &composites, &mut components, LEVELS, Ptr::NULL)?;
            transaction.set_root(ROOT, root)
        })?;
        let snapshot = store.read()?;
        let design_root = snapshot.root_pointer(ROOT)?;
        Ok(Self { snapshot, design_root })
    }

    /// Whether all objects that were reached are real.
    ///
    /// # Errors
    /// If a page could not be read.
    pub fn check(&self) -> anyhow::Result<()> {
        Ok(self.snapshot.check_objects()?)
    }

    /// Bytes of the pages of all objects, which are resident afterwards.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let mut pages = BTreeSet::new();
        self.add_pages(self.design_root, &mut pages);
        pages.len() * PAGE
    }

    fn object<T: Object>(&self, pointer: Ptr<T>, pages: &mut BTreeSet<usize>) -> &T {
        let object = self.snapshot.follow(pointer);
        pages.insert(std::ptr::from_ref(object).addr() / PAGE);
        object
    }

    fn add_pages(&self, assembly: Ptr<Assembly>, pages: &mut BTreeSet<usize>) {
        let assembly = self.object(assembly, pages);
        assembly.assemblies.iter().filter(|below| !below.is_null()).for_each(|&below| self.add_pages(below, pages));
        for &composite in assembly.composites.iter().filter(|composite| !composite.is_null()) {
            let mut part = self.object(composite, pages).first_part;
            while !part.is_null() {
                let object = self.object(part, pages);
                object.to.iter().for_each(|&connection| _ = self.object(connection, pages));
                let mut list = object.from;
                while !list.is_null() {
                    list = self.object(list, pages).next;
                }
                part = object.next;
            }
        }
    }
}

type Result<T> = fieldstone_store::Result<T>;

/// Allocates the atomic parts and their connections.
fn allocate_parts(transaction: &mut Transaction, design: &Design) -> Result<Vec<Ptr<AtomicPart>>> {
    let mut parts = Vec::new();
    for (index, fields) in design.fields.iter().enumerate() {
        let super::PartFields { kind, build_date, x, y, document } = *fields;
        let number = number(index);
        parts.push(transaction.alloc(AtomicPart { number, kind, build_date, x, y, document, ..AtomicPart::ZERO })?);
    }
    for (part, to) in design.connections.iter().enumerate() {
        for (place, &target) in to.iter().enumerate() {
            let (from, to) = (parts[part], parts[target]);
            let connection = transaction.alloc(Connection { kind: KIND, length: number(part + place), from, to })?;
            transaction.edit(from)?.to[place] = connection;
            add_incoming(transaction, to, connection)?;
        }
    }
    Ok(parts)
}

fn add_incoming(transaction: &mut Transaction, to: Ptr<AtomicPart>, connection: Ptr<Connection>) -> Result<()> {
    let next = transaction.get(to)?.from;
    if !next.is_null() {
        let mut incoming = transaction.edit(next)?;
        if let Some(free) = incoming.connections.iter_mut().find(|connection| connection.is_null()) {
            *free = connection;
            return Ok(());
        }
    }
    let incoming = transaction.alloc(Incoming { connections: [connection, Ptr::NULL, Ptr::NULL], next })?;
    transaction.edit(to)?.from = incoming;
    Ok(())
}

fn allocate_composite(transaction: &mut Transaction, parts: &[Ptr<AtomicPart>]) -> Result<Ptr<CompositePart>> {
    let (number, root_part, first_part) = (transaction.get(parts[0])?.number, parts[0], parts[0]);
    let composite =
        transaction.alloc(CompositePart { number, kind: KIND, root_part, first_part, ..CompositePart::ZERO })?;
    for (place, &part) in parts.iter().enumerate() {
        let next = parts.get(place + 1).copied().unwrap_or(Ptr::NULL);
        let mut part = transaction.edit(part)?;
        (part.part_of, part.next) = (composite, next);
    }
    Ok(composite)
}

fn allocate_assembly<'a>(
    transaction: &mut Transaction,
    composites: &[Ptr<CompositePart>],
    components: &mut impl Iterator<Item = &'a [usize; BASE_COMPONENTS]>,
    levels: usize,
    super_assembly: Ptr<Assembly>,
) -> Result<Ptr<Assembly>> {
    let (number, is_base) = (number(levels), u8::from(levels == 1));
    let assembly = transaction.alloc(Assembly { number, kind: KIND, is_base, super_assembly, ..Assembly::ZERO })?;
    if levels == 1 {
        let chosen = components.next().copied().unwrap_or_default();
        transaction.edit(assembly)?.composites = chosen.map(|composite| composites[composite]);
        return Ok(assembly);
    }
    for place in 0..FAN_OUT {
        let below = allocate_assembly(transaction, composites, components, levels - 1, assembly)?;
        transaction.edit(assembly)?.assemblies[place] = below;
    }
    Ok(assembly)
}

fn number(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

impl Graph for StoreGraph {
    type Assembly = Ptr<Assembly>;
    type Composite = Ptr<CompositePart>;
    type Atomic = Ptr<AtomicPart>;
    type Connection = Ptr<Connection>;

    fn design_root(&self) -> Ptr<Assembly> {
        self.design_root
    }

    fn below(&self, assembly: Ptr<Assembly>) -> AssemblyParts<Ptr<Assembly>, Ptr<CompositePart>> {
        let assembly = self.snapshot.follow(assembly);
        if assembly.is_base == 1 {
            AssemblyParts::Base(assembly.composites)
        } else {
            AssemblyParts::Complex(assembly.assemblies)
        }
    }

    fn root_part(&self, composite: Ptr<CompositePart>) -> Ptr<AtomicPart> {
        self.snapshot.follow(composite).root_part
    }

    fn part(&self, part: Ptr<AtomicPart>) -> (u32, [Ptr<Connection>; OUTGOING]) {
        let part = self.snapshot.follow(part);
        (part.number, part.to)
    }

    fn target(&self, connection: Ptr<Connection>) -> Ptr<AtomicPart> {
        self.snapshot.follow(connection).to
    }
}

#[cfg(test)]
mod tests {
    use super::super::{MemoryGraph, ShortPointers, visit_parts, visit_root_parts};
    use super::*;

    #[test]
    fn a_store_visits_the_same_parts_as_memory() {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let design = Design::small();
        let (memory, store) = (
            MemoryGraph::build(&design, ShortPointers::new()),
            StoreGraph::build(&design, &folder.path().join("oo7.store")).unwrap(),
        );
        assert_eq!(visit_parts(&store), visit_parts(&memory));
        assert_eq!(visit_root_parts(&store), visit_root_parts(&memory));
        assert_eq!(visit_parts(&store).count, 43_740);
        store.check().unwrap();
        assert!(store.bytes() > 1 << 20, "{}", store.bytes());
    }
}
