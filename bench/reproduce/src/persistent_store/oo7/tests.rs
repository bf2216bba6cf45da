//! Tests of the operations against the definition of OO7 and against the objects.

use std::collections::BTreeMap;

use fieldstone_store::{Scope, Snapshot, Store, check};

use super::contents::{CHANGED_PARTS, Contents, QUICK, SMALL, Size};
use super::database::Database;
use super::model::Model;
use super::operations::{OPERATIONS, Operation};
use super::schema::{ATOMIC_PARTS, AtomicPart, BUILD_DATES, COMPOSITE_PARTS, DOCUMENTS, TEXTS, TITLES, date_key};

fn operation(name: &str) -> &'static Operation {
    OPERATIONS.iter().find(|operation| operation.name.starts_with(name)).unwrap()
}

/// Runs an operation, which must find what the model says. Returns the count.
fn run(name: &str, database: &Database, contents: &Contents, model: &Model) -> u64 {
    let expected = (operation(name).expected)(model);
    operation(name).run(database.store().unwrap(), contents, expected).unwrap();
    expected.count
}

fn read(database: &Database) -> Snapshot {
    database.store().unwrap().read().unwrap()
}

/// The atomic parts by id, from the index of ids.
fn parts(now: &Snapshot) -> BTreeMap<u32, AtomicPart> {
    let entries = now.table(ATOMIC_PARTS).unwrap().iter().unwrap().map(Result::unwrap);
    entries.map(|(id, place)| (id, *now.get(now.short(place).unwrap()).unwrap())).collect()
}

/// Verifies that the index of dates has each atomic part at its date, and nothing else.
fn check_dates(now: &Snapshot) {
    let indexed = now.table(BUILD_DATES).unwrap().iter().unwrap().map(Result::unwrap);
    let indexed: Vec<(u64, u32)> =
        indexed.map(|(key, place)| (key, now.get(now.short(place).unwrap()).unwrap().id)).collect();
    let mut expected: Vec<(u64, u32)> =
        parts(now).values().map(|part| (date_key(part.build_date, part.id), part.id)).collect();
    expected.sort_unstable();
    assert_eq!(indexed, expected);
}

/// Closes the store, whose file must be without damage.
fn close_and_check(mut database: Database) {
    database.close();
    let checked = check(database.path(), Scope::All, |finding| println!("{finding:?}")).unwrap();
    assert_eq!(checked.findings, 0);
}

#[test]
fn each_operation_of_the_small_configuration_has_the_counts_of_its_definition() {
    let model = Model::new(Contents::new(SMALL));
    let contents = &model.contents;
    let mut database = Database::create(contents).unwrap();
    database.reopen_cold().unwrap();
    let count = |name| run(name, &database, contents, &model);
    assert_eq!((count("T1"), count("T6"), count("Q1"), count("Q7"), count("Q8")), (43_740, 2187, 10, 10_000, 10_000));
    // One `I` in each sentence of 38 characters. The text begins with one and does not end with one.
    assert_eq!((count("T8"), count("T9")), (100_000_u64.div_ceil(38), 0));
    let (new, newer, users, older) = (count("Q2"), count("Q3"), count("Q4"), count("Q5"));
    assert!((60..140).contains(&new) && (900..1100).contains(&newer), "about 1 % and 10 %: {new}, {newer}");
    // A part has 4374 / 500 users, and one of ten parts is newer than each assembly.
    assert!((700..1050).contains(&users) && (260..430).contains(&older), "{users}, {older}");
    assert_eq!((count("T2a"), count("T2b"), count("T2c")), (2187, 43_740, 174_960));
    for (name, changes) in [("T3a", 2187), ("T3b", 43_740), ("T3c", 174_960)] {
        assert_eq!(count(name), changes);
        check_dates(&read(&database));
    }
    assert_eq!(count("T1"), 43_740);
    close_and_check(database);
}

#[test]
fn swaps_and_dates_change_each_visited_part_as_often_as_it_is_visited() {
    let model = Model::new(Contents::new(QUICK));
    let contents = &model.contents;
    let database = Database::create(contents).unwrap();
    let before = parts(&read(&database));
    run("T2b", &database, contents, &model);
    run("T3b", &database, contents, &model);
    let mut visits = vec![0; contents.size.composites];
    contents.design.components.iter().flatten().for_each(|&part| visits[part] += 1);
    for (id, part) in parts(&read(&database)) {
        let (old, visits) = (&before[&id], visits[(id as usize - 1) / contents.size.parts]);
        let swapped = if visits % 2 == 1 { (old.y, old.x) } else { (old.x, old.y) };
        assert_eq!((part.x, part.y), swapped, "part {id}, {visits} visits");
        let toggle = |date: u32| if date % 2 == 1 { date + 1 } else { date - 1 };
        assert_eq!(part.build_date, if visits % 2 == 1 { toggle(old.build_date) } else { old.build_date });
    }
    let after_an_even_number = (parts(&read(&database)), run("T2c", &database, contents, &model));
    let same = parts(&read(&database));
    assert!(same.iter().all(|(id, part)| part.x == after_an_even_number.0[id].x));
}

#[test]
fn what_was_inserted_is_deleted_and_collected_without_a_trace() {
    let model = Model::new(Contents::new(QUICK));
    let contents = &model.contents;
    let database = Database::create(contents).unwrap();
    let store = database.store().unwrap();
    assert_eq!(store.collect().unwrap().objects, 0, "roots keep all objects");
    let before = counts(store);
    run("insert", &database, contents, &model);
    run("insert", &database, contents, &model);
    let parts = contents.size.parts as u64;
    let [composites, documents, titles, texts, atomic, dates] = before;
    let added = 2 * CHANGED_PARTS as u64;
    let expected = [composites, documents, titles, texts].map(|count| count + added);
    assert_eq!(counts(store)[..4], expected);
    assert_eq!(counts(store)[4..], [atomic, dates].map(|count| count + added * parts));
    check_dates(&read(&database));
    assert_eq!(store.collect().unwrap().objects, 0, "what was inserted is reached");
    run("delete", &database, contents, &model);
    run("delete", &database, contents, &model);
    assert_eq!(counts(store), before);
    check_dates(&read(&database));
    // A composite part, its document, a set of users; and of each part itself, connections and a set or two.
    let removed = store.collect().unwrap().objects;
    let (least, most) = (added * (3 + 5 * parts), added * (3 + 6 * parts));
    assert!((least..=most).contains(&removed), "{removed}, not {least} to {most}");
    for name in ["T1", "T6", "Q4", "Q5", "Q7", "Q8"] {
        run(name, &database, contents, &model);
    }
    close_and_check(database);
}

/// The numbers of entries of the tables that an insertion changes.
fn counts(store: &Store) -> [u64; 6] {
    let now = store.read().unwrap();
    [
        now.table(COMPOSITE_PARTS).unwrap().iter().unwrap().count() as u64,
        now.table(DOCUMENTS).unwrap().iter().unwrap().count() as u64,
        now.table(TITLES).unwrap().iter().unwrap().count() as u64,
        now.table(TEXTS).unwrap().iter().unwrap().count() as u64,
        now.table(ATOMIC_PARTS).unwrap().iter().unwrap().count() as u64,
        now.table(BUILD_DATES).unwrap().iter().unwrap().count() as u64,
    ]
}

#[test]
fn a_run_that_finds_something_else_is_an_error() {
    let model = Model::new(Contents::new(Size { composites: 5, ..QUICK }));
    let database = Database::create(&model.contents).unwrap();
    let error = operation("T6").run(database.store().unwrap(), &model.contents, model.all_parts()).unwrap_err();
    assert!(format!("{error:#}").contains("cannot run T6 visit root parts: it has found"), "{error:#}");
}

#[test]
fn each_row_of_a_sample_has_its_value() {
    let size = Size { composites: 10, parts: 2, ..QUICK };
    let values = super::measure(size).unwrap();
    let mut names: Vec<String> = values.iter().map(|value| value.row.clone()).collect();
    let mut rows: Vec<String> = super::rows().iter().map(super::Row::value_name).collect();
    names.sort_unstable();
    rows.sort_unstable();
    assert_eq!(names, rows);
    assert!(values.iter().all(|value| value.value > 0.0), "{values:?}");
    let of = |row: &str| values.iter().find(|value| value.row == row).unwrap();
    for time in ["cold", "hot"] {
        let [total, commit] = ["", "commit, "].map(|part| of(&format!("T3b dates of all parts: {part}{time}")).value);
        assert!(commit < total, "{time}: {commit} of {total}");
    }
    let ours = of("Fieldstone");
    assert_eq!((of("native pointers").ratio, ours.ratio.unwrap() > 0.0), (None, true));
}
