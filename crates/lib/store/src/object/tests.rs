//! Tests of objects against a model: crashes, snapshots, savepoints.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::check::Scope;
use crate::check_tests::{change_page, file, findings, page_mut};
use crate::crash::{Disk, Random, empty, open, open_with};
use crate::damage_tests::damage;
use crate::finding::Lost;
use crate::lock::lock;
use crate::object::object_page::set_unused;
use crate::object::{LongPtr, ObjectOptions, Ptr};
use crate::page::{OBJECT, PAGE, kind};
use crate::transaction::Transaction;
use crate::{ErrorKind, Result, Snapshot, Store};

crate::stored! {
    struct Part { id: u32, next: Ptr<Part>, to: [Ptr<Part>; 2], label: Ptr<Label>, number: u64 }
    struct Label { text: [u8; 200], part: Ptr<Part> }
}

/// Roots of the tests.
const ROOTS: [&str; 3] = ["first", "second", "third"];

/// A part by the ids of its neighbours, 0 for none, with its number and the first byte of its label.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ModelPart {
    next: u32,
    to: [u32; 2],
    label: u8,
    number: u64,
}

/// What is in the store: parts by id, and the ids of the roots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Model {
    parts: BTreeMap<u32, ModelPart>,
    roots: BTreeMap<usize, u32>,
    last: u32,
}

impl Model {
    /// Removes the parts that no root reaches.
    fn collect(mut self) -> Self {
        let (mut rest, mut reached): (Vec<u32>, _) = (self.roots.values().copied().collect(), BTreeMap::new());
        while let Some(id) = rest.pop() {
            if id != 0 && !reached.contains_key(&id) {
                let part = self.parts[&id].clone();
                rest.extend(part.to.iter().chain([&part.next]));
                reached.insert(id, part);
            }
        }
        self.parts = reached;
        self.last = 0;
        self
    }
}

/// The parts that the roots of a snapshot reach.
fn read(now: &Snapshot) -> Result<Model> {
    let (mut model, mut rest) = (Model::default(), Vec::new());
    for (index, name) in ROOTS.iter().enumerate() {
        let root = now.root_pointer::<Part>(name)?;
        if !root.is_null() {
            model.roots.insert(index, now.get(root)?.id);
            rest.push(root);
        }
    }
    while let Some(pointer) = rest.pop() {
        let part = now.follow(pointer);
        let id = |pointer| now.follow::<Part>(pointer).id;
        if !pointer.is_null() && !model.parts.contains_key(&part.id) {
            let label = now.follow(part.label);
            assert!(part.label.is_null() || label.part == pointer && label.text == [label.text[0]; 200]);
            let found =
                ModelPart { next: id(part.next), to: part.to.map(id), label: label.text[0], number: part.number };
            model.parts.insert(part.id, found);
            rest.extend(part.to.iter().chain([&part.next]));
        }
    }
    now.check_objects()?;
    Ok(model)
}

/// The pointers of all parts that the roots of a transaction reach.
fn pointers(tx: &mut Transaction) -> Result<BTreeMap<u32, Ptr<Part>>> {
    let (mut found, mut rest) = (BTreeMap::from([(0, Ptr::NULL)]), Vec::<Ptr<Part>>::new());
    for name in ROOTS {
        rest.push(tx.root(name)?);
    }
    while let Some(pointer) = rest.pop() {
        if !pointer.is_null() {
            let part = tx.get(pointer)?;
            if found.insert(part.id, pointer).is_none() {
                rest.extend(part.to.iter().chain([&part.next]));
            }
        }
    }
    Ok(found)
}

fn pick(random: &mut Random, pointers: &BTreeMap<u32, Ptr<Part>>) -> (u32, Ptr<Part>) {
    let index = random.below(pointers.len() as u64) as usize;
    pointers.iter().nth(index).map_or((0, Ptr::NULL), |(&id, &pointer)| (id, pointer))
}

/// Adds a part with random neighbours, to which another part or a root leads.
fn add(
    tx: &mut Transaction,
    model: &mut Model,
    random: &mut Random,
    found: &mut BTreeMap<u32, Ptr<Part>>,
) -> Result<()> {
    // It is in the list behind the part before, so that few parts are lost.
    let ((before, before_pointer), to) = (pick(random, found), [pick(random, found), pick(random, found)]);
    let next = model.parts.get(&before).map_or(0, |part| part.next);
    let next = (next, found[&next]);
    model.last += 1;
    let (id, number) = (model.last, random.below(u64::MAX));
    let part = Part { id, next: next.1, to: to.map(|to| to.1), number, ..Part::ZERO };
    let pointer = tx.alloc(part)?;
    let label = if random.below(3) == 0 { random.below(255) as u8 + 1 } else { 0 };
    if label > 0 {
        tx.edit(pointer)?.label = tx_label(tx, label, pointer)?;
    }
    model.parts.insert(id, ModelPart { next: next.0, to: to.map(|to| to.0), label, number });
    if before == 0 || random.below(20) == 0 {
        let root = random.below(3) as usize;
        tx.set_root(ROOTS[root], pointer)?;
        model.roots.insert(root, id);
    } else {
        tx.edit(before_pointer)?.next = pointer;
        model.parts.get_mut(&before).unwrap().next = id;
    }
    found.insert(id, pointer);
    Ok(())
}

fn tx_label(tx: &mut Transaction, byte: u8, part: Ptr<Part>) -> Result<Ptr<Label>> {
    tx.alloc(Label { text: [byte; 200], part })
}

/// Makes random changes to both the model and a transaction, and undoes some of them.
fn change(store: &Store, model: &mut Model, random: &mut Random) -> Result<()> {
    store.write(|tx| {
        for _ in 0..=random.below(8) {
            let (mark, before) = (tx.savepoint(), model.clone());
            let mut found = pointers(tx)?;
            for _ in 0..=random.below(6) {
                let (id, pointer) = pick(random, &found);
                match random.below(24) {
                    0 => {
                        let root = random.below(3) as usize;
                        assert_eq!(tx.remove_root(ROOTS[root])?, model.roots.remove(&root).is_some());
                    }
                    1..5 if id != 0 => {
                        let to = pick(random, &found);
                        tx.edit(pointer)?.to[1] = to.1;
                        model.parts.get_mut(&id).unwrap().to[1] = to.0;
                    }
                    5..8 if id != 0 => {
                        let mut part = tx.edit(pointer)?;
                        part.number += 1;
                        model.parts.get_mut(&id).unwrap().number = part.number;
                    }
                    _ => add(tx, model, random, &mut found)?,
                }
            }
            if random.below(4) == 0 {
                tx.rollback_to(mark);
                *model = before;
            }
        }
        Ok(())
    })
}

fn read_store(store: &Store) -> Model {
    read(&store.read().unwrap()).unwrap()
}

/// Crashes a store at random calls, and compares the objects with those that were committed.
pub(crate) fn crash_often(rounds: u64, seed: u64) {
    let options = ObjectOptions { collects_at_commit: seed.is_multiple_of(2), ..ObjectOptions::DEFAULT };
    let mut random = Random(seed);
    let (mut image, mut committed) = (empty(4), Model::default());
    for round in 0..rounds {
        let disk = Disk::new(image, random.below(60), Random(random.below(u64::MAX) | 1));
        let mut uncertain = committed.clone();
        if let Ok(store) = open_with(&disk, options) {
            assert_eq!(read_store(&store), committed.clone().collect(), "round {round} of seed {seed}");
            while change(&store, &mut uncertain, &mut random).is_ok() {
                committed.clone_from(&uncertain);
                assert_eq!(read_store(&store), committed.clone().collect(), "round {round} of seed {seed}");
                match random.below(16) {
                    0 => drop(store.compact()),
                    1 => drop(store.collect()),
                    _ => {}
                }
            }
        }
        image = crashed(&disk);
        if round % 10 == 0 {
            assert_eq!(findings(&image), [], "round {round} of seed {seed}");
        }
        let after = Disk::new(image.clone(), u64::MAX, Random(1));
        let found = read_store(&open(&after).unwrap());
        let is_uncertain = found == uncertain.clone().collect();
        assert!(is_uncertain || found == committed.clone().collect(), "round {round} of seed {seed}");
        if is_uncertain {
            committed = uncertain;
        }
    }
}

fn crashed(disk: &Arc<Mutex<Disk>>) -> Vec<u8> {
    lock(disk).crashed()
}

#[test]
fn objects_of_commits_that_returned_are_there_after_each_of_many_crashes() {
    for seed in 1..=4 {
        crash_often(40, seed);
    }
}

#[test]
fn a_snapshot_has_the_objects_of_its_version() {
    let disk = Disk::new(empty(16), u64::MAX, Random(1));
    let store = open(&disk).unwrap();
    let (mut model, mut random) = (Model::default(), Random(4));
    let (mut snapshots, mut largest) = (Vec::new(), 0);
    for round in 0..300 {
        change(&store, &mut model, &mut random).unwrap();
        if round % 7 == 0 {
            snapshots.push((store.read().unwrap(), model.clone().collect()));
            largest = largest.max(snapshots.last().unwrap().1.parts.len());
        }
        if random.below(6) == 0 && snapshots.len() > 4 {
            let index = random.below(snapshots.len() as u64) as usize;
            snapshots.swap_remove(index);
        }
        let index = random.below(snapshots.len() as u64) as usize;
        assert_eq!(read(&snapshots[index].0).unwrap(), snapshots[index].1, "round {round}");
    }
    assert!(largest > 20 && model.last > 500, "{largest} of {}", model.last);
}

#[test]
fn a_pointer_to_no_object_or_another_type_is_an_error() {
    let disk = Disk::new(empty(16), u64::MAX, Random(1));
    let store = open(&disk).unwrap();
    let mut tx = store.begin().unwrap();
    let (part, label) = (tx.alloc(Part::ZERO).unwrap(), tx.alloc(Label::ZERO).unwrap());
    assert_eq!(tx.get::<Part>(Ptr::of(u32::MAX)).unwrap_err().kind(), ErrorKind::Absent);
    assert_eq!(tx.get::<Part>(Ptr::NULL).unwrap_err().kind(), ErrorKind::Absent);
    assert_eq!(tx.get::<Label>(Ptr::of(part.0)).unwrap_err().kind(), ErrorKind::Type);
    assert_eq!(tx.get::<Part>(Ptr::of(part.0 + 1)).unwrap_err().kind(), ErrorKind::Absent);
    assert_eq!(tx.set_root::<Part>("first", Ptr::of(label.0)).unwrap_err().kind(), ErrorKind::Type);
    tx.commit().unwrap();
}

#[test]
fn a_transaction_with_a_foreign_pointer_cannot_be_committed() {
    let disk = Disk::new(empty(16), u64::MAX, Random(1));
    let store = open_with(&disk, ObjectOptions { slots: 16, ..ObjectOptions::DEFAULT }).unwrap();
    let foreign = Ptr::of(u32::MAX);
    let mut tx = store.begin().unwrap();
    assert_eq!(tx.alloc(Part { next: foreign, ..Part::ZERO }).unwrap_err().kind(), ErrorKind::Absent);
    assert!(tx.commit().is_err());
    let mut tx = store.begin().unwrap();
    let part = tx.alloc(Part::ZERO).unwrap();
    tx.edit(part).unwrap().next = foreign;
    let later = tx.savepoint();
    tx.rollback_to(later);
    let error = tx.commit().unwrap_err();
    assert!(error.kind() == ErrorKind::Absent && error.message().contains("cannot be committed"), "{error}");
    // What is undone is as if it had not been tried.
    let mut tx = store.begin().unwrap();
    let part = tx.alloc(Part::ZERO).unwrap();
    let savepoint = tx.savepoint();
    tx.edit(part).unwrap().next = foreign;
    tx.rollback_to(savepoint);
    tx.commit().unwrap();
    assert!(store.read().unwrap().root_pointer::<Part>(ROOTS[0]).unwrap().is_null());
}

/// The pages of objects of the image of a store that was closed. Those behind the end of the store do not count:
/// they are from before it became smaller.
pub(crate) fn object_pages(image: &mut [u8]) -> Vec<u32> {
    let end = file(image).unwrap().end();
    (0..end).filter(|&page| kind(page_mut(image, page)) == OBJECT).collect()
}

/// The objects of each type in a file.
fn counts(disk: &Arc<Mutex<Disk>>) -> BTreeMap<String, u64> {
    let image = lock(disk).cached().into_owned();
    assert_eq!(findings(&image), []);
    let stat = file(&image).unwrap().stat().unwrap();
    stat.types.into_iter().map(|found| (found.name, found.objects)).collect()
}

/// The objects of each type that the roots of a model reach.
fn reached(model: &Model) -> BTreeMap<String, u64> {
    let parts = model.clone().collect().parts;
    let labels = parts.values().filter(|part| part.label > 0).count() as u64;
    [("Part".to_owned(), parts.len() as u64), ("Label".to_owned(), labels)].into()
}

#[test]
fn a_collection_removes_what_no_root_reaches_and_nothing_else() {
    let disk = Disk::new(empty(16), u64::MAX, Random(1));
    let (mut model, mut random, mut removed) = (Model::default(), Random(77), 0);
    for round in 0..8 {
        let store = open(&disk).unwrap();
        let old = (store.read().unwrap(), model.clone().collect());
        for _ in 0..30 {
            change(&store, &mut model, &mut random).unwrap();
        }
        let report = store.collect().unwrap();
        assert_eq!((read_store(&store), read(&old.0).unwrap()), (model.clone().collect(), old.1), "round {round}");
        removed += report.objects;
        assert_eq!(store.collect().unwrap().objects, 0);
        drop((old.0, store));
        assert_eq!(counts(&disk), reached(&model), "round {round}");
    }
    assert!(removed > 100, "{removed}");
}

#[test]
fn collections_at_commits_keep_the_store_small_and_keep_what_is_reached() {
    let disk = Disk::new(empty(64), u64::MAX, Random(1));
    let store = open_with(&disk, ObjectOptions { collects_at_commit: true, ..ObjectOptions::DEFAULT }).unwrap();
    let (mut model, mut random) = (Model::default(), Random(5));
    for round in 0..600 {
        change(&store, &mut model, &mut random).unwrap();
        if round % 50 == 0 {
            assert_eq!(read_store(&store), model.clone().collect(), "round {round}");
        }
    }
    let report = store.collected();
    assert!(report.collections > 1 && report.pages > 1 && report.failure.is_none(), "{report:?}");
    assert!(report.longest_pause <= report.time && report.steps > report.collections);
    let pages = store.0.shared.published().1;
    store.collect().unwrap();
    drop(store);
    let counted: u64 = counts(&disk).values().sum();
    assert_eq!(counted, reached(&model).values().sum());
    assert!(report.objects > counted && pages < 300, "{} objects, {pages} pages", report.objects);
}

#[test]
fn a_collection_of_a_damaged_store_removes_nothing() {
    let disk = Disk::new(empty(16), u64::MAX, Random(1));
    let store = open(&disk).unwrap();
    let (mut model, mut random) = (Model::default(), Random(3));
    (0..200).for_each(|_| change(&store, &mut model, &mut random).unwrap());
    drop(store);
    let mut image = lock(&disk).cached().into_owned();
    let last = *object_pages(&mut image).last().unwrap();
    page_mut(&mut image, last)[1000] ^= 1;
    let found = findings(&image);
    assert!(found.iter().all(|finding| matches!(finding.lost, Lost::Objects(_))) && !found.is_empty(), "{found:?}");
    let damaged = Disk::new(image.clone(), u64::MAX, Random(1));
    let store = open(&damaged).unwrap();
    assert_eq!(store.collect().unwrap_err().kind(), ErrorKind::Corrupt);
    drop(store);
    assert_eq!(findings(&lock(&damaged).cached()), found);
}

/// A ring of parts, of which each has a label that leads back to it, on pages of both types.
fn add_ring(store: &Store) {
    let mut tx = store.begin().unwrap();
    let first = tx.alloc(Part::ZERO).unwrap();
    let mut last = first;
    for id in 1..2000 {
        let part = tx.alloc(Part { id, next: last, ..Part::ZERO }).unwrap();
        tx.edit(part).unwrap().label = tx_label(&mut tx, 1, part).unwrap();
        last = part;
    }
    tx.edit(first).unwrap().next = last;
    tx.set_root(ROOTS[0], first).unwrap();
    tx.commit().unwrap();
}

#[test]
fn what_an_interrupted_collection_leaves_is_not_damage_and_is_removed_by_the_next() {
    let disk = Disk::new(empty(64), u64::MAX, Random(1));
    let store = open(&disk).unwrap();
    add_ring(&store);
    assert!(store.write(|tx| tx.remove_root(ROOTS[0])).unwrap());
    let before = lock(&disk).cached().into_owned();
    let mut left = 0;
    for calls in 8..20 {
        let stopped = Disk::new(before.clone(), calls, Random(calls));
        let is_complete = open(&stopped).and_then(|store| store.collect()).is_ok();
        let image = crashed(&stopped);
        assert_eq!(findings(&image), [], "{calls} calls");
        let after = Disk::new(image, u64::MAX, Random(1));
        let objects: u64 = counts(&after).values().sum();
        left += u32::from(!is_complete && (1..3999).contains(&objects));
        open(&after).unwrap().collect().unwrap();
        assert!(counts(&after).values().all(|&objects| objects == 0), "{calls} calls");
    }
    assert!(left > 3, "{left} collections were interrupted");
}

const VALUES: crate::Table<u32, [u8]> = crate::Table::new("values");

/// Checks that a pointer to an object that was removed is refused wherever it is used.
fn assert_removed(store: &Store, place: LongPtr<Part>) {
    let kind_of = |result: Result<()>| result.unwrap_err().kind();
    let now = store.read().unwrap();
    assert_eq!(kind_of(now.get(now.short(place).unwrap()).map(drop)), ErrorKind::Absent);
    let mut tx = store.begin().unwrap();
    let pointer = tx.short(place).unwrap();
    assert_eq!(kind_of(tx.get(pointer).map(drop)), ErrorKind::Absent);
    assert_eq!(kind_of(tx.edit(pointer).map(drop)), ErrorKind::Absent);
    assert_eq!(kind_of(tx.set_root(ROOTS[0], pointer)), ErrorKind::Absent);
    assert_eq!(kind_of(tx.alloc(Part { next: pointer, ..Part::ZERO }).map(drop)), ErrorKind::Absent);
    drop(tx);
    let mut tx = store.begin().unwrap();
    let part = tx.alloc(Part::ZERO).unwrap();
    tx.edit(part).unwrap().to[1] = pointer;
    assert_eq!(kind_of(tx.commit()), ErrorKind::Absent);
}

#[test]
fn a_pointer_to_a_removed_object_changes_nothing_that_is_there() {
    let disk = Disk::new(empty(16), u64::MAX, Random(1));
    let store = open(&disk).unwrap();
    let mut tx = store.begin().unwrap();
    let kept = tx.alloc(Part { id: 7, ..Part::ZERO }).unwrap();
    tx.set_root(ROOTS[1], kept).unwrap();
    let removed: Vec<Ptr<Part>> = (0..2000).map(|_| tx.alloc(Part::ZERO).unwrap()).collect();
    let removed: Vec<LongPtr<Part>> = removed.into_iter().map(|pointer| tx.long(pointer).unwrap()).collect();
    tx.commit().unwrap();
    assert_eq!(store.collect().unwrap().objects, 2000);
    // One is on the page of the object that stays, the other on a page that was freed.
    let ends = [removed[5], removed[1999]];
    ends.iter().for_each(|&place| assert_removed(&store, place));
    let value = |key: u32| [key as u8; 6000];
    for key in 0..60 {
        store.write(|tx| tx.table(VALUES)?.insert(&key, &value(key))).unwrap();
        assert_removed(&store, removed[key as usize * 30 + 100]);
    }
    drop(store);
    let store = open(&disk).unwrap();
    ends.iter().for_each(|&place| assert_removed(&store, place));
    let now = store.read().unwrap();
    (0..60).for_each(|key| assert_eq!(now.table(VALUES).unwrap().get(&key).unwrap().unwrap()[..], value(key)));
    assert_eq!(now.root::<Part>(ROOTS[1]).unwrap().id, 7);
    drop((now, store));
    assert_eq!(findings(&lock(&disk).cached()), []);
}

#[test]
fn a_wrong_pointer_of_an_object_that_a_root_reaches_is_found() {
    let disk = Disk::new(empty(64), u64::MAX, Random(1));
    let store = open(&disk).unwrap();
    add_ring(&store);
    drop(store);
    let mut image = lock(&disk).cached().into_owned();
    let last = *object_pages(&mut image).last().unwrap();
    change_page(&mut image, last, |page| set_unused(page, 0));
    let found = findings(&image);
    assert!(found.iter().any(|finding| finding.what.ends_with("where no object is")), "{found:?}");
}

/// All that reads and changes objects; errors are as good as results.
fn use_everything(image: &[u8]) -> Result<()> {
    if let Ok(file) = file(image) {
        let _ = file.check(Scope::All, drop);
        let _ = file.stat();
    }
    let store = open(&Disk::new(image.to_vec(), u64::MAX, Random(1)))?;
    let now = store.read()?;
    for root in ROOTS {
        let (mut pointer, mut steps) = (now.root_pointer::<Part>(root).unwrap_or_default(), 0);
        while !pointer.is_null() && steps < 1000 {
            let part = now.follow(pointer);
            let _ = now.get(part.to[0]).and_then(|other| now.get(other.label)).map(|label| label.text[0]);
            (pointer, steps) = (part.next, steps + 1);
        }
        let changed = store.write(|tx| {
            let mut pointer = tx.root::<Part>(root)?;
            for _ in 0..50 {
                let part = tx.get(pointer)?;
                tx.edit(pointer)?.label = tx_label(tx, 1, pointer)?;
                pointer = part.next;
            }
            Ok(())
        });
        let _ = changed;
    }
    now.check_objects()?;
    store.collect().map(drop)
}

#[test]
fn no_damage_with_right_checks_makes_a_reader_of_objects_panic() {
    let disk = Disk::new(empty(16), u64::MAX, Random(1));
    let store = open(&disk).unwrap();
    let (mut model, mut random) = (Model::default(), Random(3));
    (0..150).for_each(|_| change(&store, &mut model, &mut random).unwrap());
    drop(store);
    let whole = lock(&disk).cached().into_owned();
    let objects = object_pages(&mut whole.clone());
    let (start, mut failed) = (std::time::Instant::now(), 0);
    for round in 0.. {
        let mut image = whole.clone();
        if round % 2 == 0 {
            damage(&mut image, &mut random);
        } else {
            let page = objects[random.below(objects.len() as u64) as usize];
            change_page(&mut image, page, |page| {
                for _ in 0..=random.below(4) {
                    let limit = if random.below(2) == 0 { 100 } else { PAGE as u64 - 13 };
                    page[13 + random.below(limit) as usize] = random.below(256) as u8;
                }
            });
        }
        failed += u32::from(use_everything(&image).is_err());
        if round > 30 && start.elapsed().as_millis() > 1500 {
            break;
        }
    }
    assert!(failed > 10, "{failed}");
}
