//! Saves in an object store.

use std::sync::atomic::Ordering::Relaxed;

use fieldstone_checkpoint::{Error, Objects};
use opendal::services::Memory as Store;
use opendal::{EntryMode, Operator};

use crate::failing_store::FailAt;
use crate::fixture::{MIB, WORDS, checkpointer, contents, filled};

fn store() -> Operator {
    Operator::new(Store::default()).unwrap()
}

fn names(store: &Operator) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let entries = runtime.block_on(store.list("")).unwrap();
    let files = entries.iter().filter(|entry| entry.metadata().mode() == EntryMode::FILE);
    let mut names: Vec<_> = files.map(|entry| entry.name().to_owned()).collect();
    names.sort();
    names
}

fn delete(store: &Operator, name: &str) {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(store.delete(name)).unwrap();
}

#[test]
fn increments_in_objects_are_restored_merged_and_deleted() {
    let store = store();
    let saves = Objects::new(store.clone()).unwrap();
    assert!(matches!(saves.last(), Err(Error::NoSave(_))));
    let memory = filled(8 * MIB);
    let mut saver = checkpointer(&memory);
    for round in 0..16_u64 {
        for page in 0..250 {
            let at = (page * 37 + round as usize * 11) % 2048 * WORDS;
            memory.words()[at..at + WORDS].iter().for_each(|word| word.store(round * at as u64, Relaxed));
        }
        let report = saver.save(&saves, || ((), round)).unwrap();
        assert_eq!(report.is_increment, round > 0);
        saves.keep(2).unwrap();
        let last = Objects::new(store.clone()).unwrap().last().unwrap();
        assert_eq!(last.value(), round);
        assert!(contents(&last.restore().unwrap()[0]) == contents(&memory), "round {round}");
    }
    let names = names(&store);
    assert!(names.len() < 32 && names.len().is_multiple_of(2), "a manifest and pages for each save: {names:?}");
}

#[test]
fn a_restore_whose_objects_are_deleted_fails_clearly() {
    let store = store();
    let saves = Objects::new(store.clone()).unwrap();
    checkpointer(&filled(MIB)).save(&saves, || ((), 0)).unwrap();
    let last = saves.last().unwrap();
    delete(&store, names(&store).iter().find(|name| name.ends_with(".pages")).unwrap());
    let error = last.restore().unwrap_err().to_string();
    assert!(error.contains("cannot read memory://") && error.contains(".pages"), "{error}");
    // Pages without a manifest, as of a save that did not end, are no save; a manifest without pages is an error.
    assert!(matches!(saves.last(), Err(Error::File { operation: "read", .. })));
}

#[test]
fn two_processes_do_not_replace_saves_of_each_other() {
    use fieldstone_checkpoint::Sink;
    let store = store();
    let saves = Objects::new(store.clone()).unwrap();
    let memory = filled(MIB);
    let writer = saves.begin(5).unwrap();
    checkpointer(&memory).save(&saves, || ((), 9)).unwrap();
    assert!(matches!(writer.finish(&[1, 2, 3]), Err(Error::Taken(_))));
    assert!(contents(&saves.last().unwrap().restore().unwrap()[0]) == contents(&memory));
    assert_eq!(names(&store).len(), 2, "what the refused save wrote is deleted");
}

/// Each request of a save, and of `keep`, fails once; or its answer is lost.
#[test]
fn a_request_that_fails_never_damages_the_last_save() {
    let store = store();
    let clean = Objects::new(store.clone()).unwrap();
    let memory = filled(MIB);
    let mut saver = checkpointer(&memory);
    saver.save(&clean, || ((), 0)).unwrap();
    for loses_answers in [false, true] {
        let mut failed = 0;
        // Each save that is kept adds requests.
        for fails in 0..40 {
            let before = contents(&clean.last().unwrap().restore().unwrap()[0]);
            let value = clean.last().unwrap().value();
            memory.words().iter().step_by(3 * WORDS).for_each(|word| _ = word.fetch_add(1, Relaxed));
            let layer = FailAt::new(fails, loses_answers);
            let result = Objects::new(store.clone().layer(layer.clone()))
                .and_then(|failing| saver.save(&failing, || ((), value + 1)).and_then(|_| failing.keep(1)));
            let last = clean.last().unwrap();
            let restored = contents(&last.restore().unwrap()[0]);
            // A manifest whose answer was lost counts, although the save has failed.
            assert!(
                if last.value() == value { restored == before } else { restored == contents(&memory) },
                "call {fails}, {result:?}"
            );
            if !layer.has_failed() {
                result.unwrap();
                break;
            }
            // If the last save cannot be read, the next one is complete.
            if let Err(error) = result {
                assert!(error.to_string().contains("memory://"), "{error}");
                failed += 1;
            }
        }
        assert!(failed >= 8, "{failed} requests");
    }
    saver.save(&clean, || ((), 99)).unwrap();
    clean.keep(1).unwrap();
    assert!(contents(&clean.last().unwrap().restore().unwrap()[0]) == contents(&memory));
    let left = names(&store);
    let saved = left.iter().filter(|name| name.ends_with(".save")).count();
    assert_eq!(left.len(), 2 * saved, "what failed saves have written is deleted: {left:?}");
}
