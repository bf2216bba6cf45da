//! New stores and backups: of several threads at a time, with their permissions, and with long names.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Barrier;

use fieldstone_store::{ErrorKind, Result, Scope, Store, Table, check};

const NUMBERS: Table<u64, [u8]> = Table::new("numbers");

fn open(path: &Path) -> Result<Store> {
    Store::builder(path).log_bytes(64 << 10).open()
}

fn fill(path: &Path) -> Store {
    let store = open(path).unwrap();
    store.write(|tx| (0..2000).try_for_each(|key| tx.table(NUMBERS)?.insert(&key, &[1; 100]).map(drop))).unwrap();
    store
}

/// Runs the same in two threads at the same time.
fn twice<T: Send>(run: impl Fn() -> T + Sync) -> [T; 2] {
    let start = Barrier::new(2);
    std::thread::scope(|scope| {
        let threads = [(); 2].map(|()| {
            scope.spawn(|| {
                start.wait();
                run()
            })
        });
        threads.map(|thread| thread.join().unwrap())
    })
}

fn assert_whole(path: &Path) {
    assert_eq!(check(path, Scope::All, |finding| panic!("{finding:?}")).unwrap().findings, 0);
    let store = open(path).unwrap();
    assert_eq!(store.read().unwrap().table(NUMBERS).unwrap().iter().unwrap().count(), 2000);
}

#[test]
fn one_of_two_backups_to_the_same_path_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let store = fill(&folder.path().join("a.store"));
    for round in 0..10 {
        let copy = folder.path().join(format!("{round}.copy"));
        let made = twice(|| store.backup(&copy).map_err(|error| error.kind()));
        assert!(made.contains(&Ok(())) && made.contains(&Err(ErrorKind::Exists)), "{made:?}");
        assert_whole(&copy);
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 11, "a temporary file stays");
}

#[test]
fn one_of_two_that_make_a_store_has_it() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..10 {
        let path = folder.path().join(format!("{round}.store"));
        let made = twice(|| open(&path));
        let refused: Vec<ErrorKind> = made.iter().filter_map(|made| Some(made.as_ref().err()?.kind())).collect();
        assert_eq!(refused, [ErrorKind::Busy]);
        drop(made);
        open(&path).unwrap();
    }
}

#[test]
fn a_backup_has_no_wider_permissions_than_its_store() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.store");
    let store = fill(&path);
    for mode in [0o600, 0o640, 0o400] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let copy = folder.path().join(format!("{mode:o}.copy"));
        store.backup(&copy).unwrap();
        let found = fs::metadata(&copy).unwrap().permissions().mode() & 0o777;
        assert_eq!(found & !mode, 0, "{found:o} of {mode:o}");
    }
}

#[test]
fn names_of_250_bytes_can_be_used() {
    let folder = tempfile::tempdir().unwrap();
    let [path, copy] = ["a", "b"].map(|letter| folder.path().join(letter.repeat(250)));
    fill(&path).backup(&copy).unwrap();
    assert_whole(&path);
    assert_whole(&copy);
}

#[test]
fn a_link_with_the_name_of_an_earlier_temporary_file_is_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let store = fill(&folder.path().join("a.store"));
    let other = folder.path().join("other");
    fs::write(&other, "other").unwrap();
    let name = format!("copy.{}.new", std::process::id());
    std::os::unix::fs::symlink(&other, folder.path().join(name)).unwrap();
    store.backup(folder.path().join("copy")).unwrap();
    assert_eq!(fs::read_to_string(&other).unwrap(), "other");
    assert_whole(&folder.path().join("copy"));
}
