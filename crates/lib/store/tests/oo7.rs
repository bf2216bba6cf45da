//! OO7, the small configuration: an assembly of composite parts, each a graph of atomic parts, and its
//! traversals T1 and T2b.
//!
//! Source: Carey, DeWitt and Naughton, *The OO7 Benchmark*, SIGMOD 1993.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::collections::HashSet;
use std::time::Instant;

use fieldstone_store::{Ptr, Result, Scope, Snapshot, Store, Transaction, check, stored};

/// Atomic parts of a composite part, and composite parts of a module.
const ATOMIC: usize = 20;
const COMPOSITE: usize = 500;
/// Connections of an atomic part.
const CONNECTIONS: usize = 3;
/// Levels of assemblies, and assemblies below one.
const LEVELS: u32 = 7;
const FAN_OUT: usize = 3;

stored! {
    struct AtomicPart { id: u32, kind: [u8; 10], date: u32, x: u32, y: u32, to: [Ptr<Connection>; 3], part_of: Ptr<CompositePart> }
    struct Connection { kind: [u8; 10], length: u32, from: Ptr<AtomicPart>, to: Ptr<AtomicPart> }
    struct CompositePart { id: u32, kind: [u8; 10], date: u32, document: Ptr<Document>, root: Ptr<AtomicPart>, parts: [Ptr<AtomicPart>; 20] }
    struct Document { title: [u8; 40], id: u32, text: [u8; 2000], part: Ptr<CompositePart> }
    struct Assembly { id: u32, kind: [u8; 10], date: u32, level: u32, parent: Ptr<Assembly>, below: [Ptr<Assembly>; 3], parts: [Ptr<CompositePart>; 3] }
}

/// Random numbers (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

fn composite_part(tx: &mut Transaction, id: usize, random: &mut Random) -> Result<Ptr<CompositePart>> {
    let part = tx.alloc(CompositePart { id: id as u32, date: random.below(1000) as u32, ..CompositePart::ZERO })?;
    let document = tx.alloc(Document { id: id as u32, text: [b'a'; 2000], part, ..Document::ZERO })?;
    let mut parts = [Ptr::NULL; ATOMIC];
    for (index, atomic) in parts.iter_mut().enumerate() {
        let id = (id * ATOMIC + index) as u32;
        let (x, y) = (random.below(100_000) as u32, random.below(100_000) as u32);
        *atomic = tx.alloc(AtomicPart { id, x, y, part_of: part, ..AtomicPart::ZERO })?;
    }
    for (index, &from) in parts.iter().enumerate() {
        for connection in 0..CONNECTIONS {
            // The first ones are a ring.
            let to = if connection == 0 { (index + 1) % ATOMIC } else { random.below(ATOMIC) };
            let new = Connection { length: random.below(1000) as u32, from, to: parts[to], ..Connection::ZERO };
            tx.edit(from)?.to[connection] = tx.alloc(new)?;
        }
    }
    let mut edit = tx.edit(part)?;
    (edit.document, edit.root, edit.parts) = (document, parts[0], parts);
    drop(edit);
    Ok(part)
}

fn assembly(
    tx: &mut Transaction,
    level: u32,
    parent: Ptr<Assembly>,
    parts: &[Ptr<CompositePart>],
    random: &mut Random,
) -> Result<Ptr<Assembly>> {
    let new = tx.alloc(Assembly { level, parent, ..Assembly::ZERO })?;
    let mut assembly_below = [Ptr::NULL; FAN_OUT];
    if level == LEVELS {
        tx.edit(new)?.parts = std::array::from_fn(|_| parts[random.below(parts.len())]);
    } else {
        for below in &mut assembly_below {
            *below = assembly(tx, level + 1, new, parts, random)?;
        }
    }
    tx.edit(new)?.below = assembly_below;
    Ok(new)
}

fn build(store: &Store) {
    let mut random = Random(1);
    store
        .write(|tx| {
            let parts: Result<Vec<_>> = (0..COMPOSITE).map(|id| composite_part(tx, id, &mut random)).collect();
            let root = assembly(tx, 1, Ptr::NULL, &parts?, &mut random)?;
            tx.set_root("design", root)
        })
        .unwrap();
}

/// Visits the atomic parts of a composite part depth first.
fn visit_parts(now: &Snapshot, from: Ptr<AtomicPart>, visited: &mut HashSet<Ptr<AtomicPart>>) -> u64 {
    if !visited.insert(from) {
        return 0;
    }
    let part = now.follow(from);
    1 + part.to.iter().map(|&connection| visit_parts(now, now.follow(connection).to, visited)).sum::<u64>()
}

/// The visits of atomic parts from an assembly.
fn traverse(now: &Snapshot, from: &Assembly) -> u64 {
    if from.level == LEVELS {
        let visits = from.parts.iter().map(|&part| visit_parts(now, now.follow(part).root, &mut HashSet::new()));
        return visits.sum();
    }
    from.below.iter().map(|&below| traverse(now, now.follow(below))).sum()
}

/// Swaps x and y of each atomic part that is visited, each time.
fn swap_parts(tx: &mut Transaction, from: Ptr<AtomicPart>, visited: &mut HashSet<Ptr<AtomicPart>>) -> Result<u64> {
    if !visited.insert(from) {
        return Ok(0);
    }
    let mut part = tx.edit(from)?;
    (part.x, part.y) = (part.y, part.x);
    let connections = part.to;
    drop(part);
    let mut visits = 1;
    for connection in connections {
        let to = tx.get(connection)?.to;
        visits += swap_parts(tx, to, visited)?;
    }
    Ok(visits)
}

fn swap(tx: &mut Transaction, from: Ptr<Assembly>) -> Result<u64> {
    let from = tx.get(from)?;
    let mut visits = 0;
    for part in from.parts.into_iter().filter(|part| !part.is_null()) {
        let root = tx.get(part)?.root;
        visits += swap_parts(tx, root, &mut HashSet::new())?;
    }
    for below in from.below.into_iter().filter(|below| !below.is_null()) {
        visits += swap(tx, below)?;
    }
    Ok(visits)
}

#[test]
fn a_traversal_of_oo7_visits_as_many_parts_as_its_definition_says() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("oo7.store");
    let start = Instant::now();
    build(&Store::open(&path).unwrap());
    println!("built and closed in {:.1?}", start.elapsed());
    let store = Store::open(&path).unwrap();
    let now = store.read().unwrap();
    for round in 0..3 {
        let start = Instant::now();
        assert_eq!(traverse(&now, now.root("design").unwrap()), 43_740);
        now.check_objects().unwrap();
        println!("T1, round {round}: {:.1?}", start.elapsed());
    }
    let start = Instant::now();
    let visits = store.write(|tx| {
        let root = tx.root("design")?;
        swap(tx, root)
    });
    assert_eq!(visits.unwrap(), 43_740);
    println!("T2b with its commit: {:.1?}", start.elapsed());
    let start = Instant::now();
    assert_eq!(store.collect().unwrap().objects, unused_objects(&now));
    println!("collection: {:.1?}, {:?}", start.elapsed(), store.collected());
    let after = store.read().unwrap();
    assert_eq!(traverse(&after, after.root("design").unwrap()), 43_740);
    drop((now, after, store));
    assert_eq!(check(&path, Scope::All, |finding| println!("{finding:?}")).unwrap().findings, 0);
}

/// The objects of composite parts that no assembly uses.
fn unused_objects(now: &Snapshot) -> u64 {
    let (mut used, mut rest) = (HashSet::<Ptr<CompositePart>>::new(), vec![now.root::<Assembly>("design").unwrap()]);
    while let Some(assembly) = rest.pop() {
        used.extend(assembly.parts.iter().filter(|part| !part.is_null()));
        rest.extend(assembly.below.iter().filter(|below| !below.is_null()).map(|&below| now.follow(below)));
    }
    let of_part = 2 + ATOMIC + ATOMIC * CONNECTIONS;
    ((COMPOSITE - used.len()) * of_part) as u64
}
