//! These knobs are plain files; `tests/knob.rs` tests a real pool.

use std::fs;
use std::path::{Path, PathBuf};

use super::*;

struct KnobDirectory(tempfile::TempDir);

impl KnobDirectory {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn restorer(&self) -> Restorer {
        Restorer::with_notes_in(self.0.path().to_owned()).unwrap()
    }

    fn knob(&self, value: &str) -> PathBuf {
        let knob = self.0.path().join("knob");
        fs::write(&knob, value).unwrap();
        knob
    }

    fn pool(&self, pages: u64, surplus: u64) -> PathBuf {
        let pool = self.0.path().join("pool");
        fs::create_dir(&pool).unwrap();
        fs::write(pool.join("surplus_hugepages"), surplus.to_string()).unwrap();
        fs::write(pool.join("nr_hugepages"), pages.to_string()).unwrap();
        pool
    }

    /// Number of notes in the directory.
    fn notes(&self) -> usize {
        let names = fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_str().unwrap().starts_with("fieldstone-knob")).count()
    }
}

fn value(knob: &Path) -> String {
    fs::read_to_string(knob).unwrap()
}

fn pages(pool: &Path) -> String {
    value(&pool.join("nr_hugepages"))
}

/// Raises the pool by 64 pages through a restorer that is then killed, so that the pages stay.
fn leave_64_pages(directory: &KnobDirectory, pool: &Path) {
    let killed = directory.restorer();
    let raised = killed.raise_pool_in(pool, 64).unwrap();
    kill(&killed);
    assert!(raised.restore().is_err());
}

fn kill(restorer: &Restorer) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(restorer.pid()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    crate::process::wait4(Some(restorer.pid()), true).unwrap();
}

#[test]
fn a_knob_is_restored_on_drop_without_a_note() {
    let directory = KnobDirectory::new();
    let knob = directory.knob("always [madvise] never\n");
    let restorer = directory.restorer();
    let set = restorer.set(&knob, "always").unwrap();
    assert_eq!((value(&knob).as_str(), set.former(), directory.notes()), ("always", "madvise", 1));
    drop(set);
    assert_eq!((value(&knob).as_str(), directory.notes()), ("madvise", 0));
}

#[test]
fn a_stopped_restorer_restores_a_knob() {
    let directory = KnobDirectory::new();
    let knob = directory.knob("1");
    let restorer = directory.restorer();
    let set = restorer.set(&knob, "2").unwrap();
    let pid = rustix::process::Pid::from_raw(i32::try_from(restorer.pid()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    drop(set);
    assert_eq!(value(&knob), "1");
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    drop(restorer);
}

#[test]
fn the_end_of_the_socket_restores_all_newest_first() {
    let directory = KnobDirectory::new();
    let knob = directory.knob("1");
    let restorer = directory.restorer();
    let kept = restorer.set(&knob, "2").unwrap();
    // `forget` leaves the same state as a killed holder: holds that are never released.
    std::mem::forget(restorer.set(&knob, "2").unwrap());
    let pool = directory.pool(5, 0);
    let socket = restorer.shared.socket.lock().unwrap().get_ref().try_clone().unwrap();
    let raised = restorer.raise_pool_in(&pool, 3).unwrap();
    assert_eq!((value(&knob).as_str(), pages(&pool).as_str(), raised.pages()), ("2", "8", 3));
    socket.shutdown(Shutdown::Both).unwrap();
    crate::process::wait4(Some(restorer.pid()), true).unwrap();
    assert_eq!((value(&knob).as_str(), pages(&pool).as_str(), directory.notes()), ("1", "5", 0));
    assert!(matches!(kept.restore(), Err(Error::RestorerKilled { remedy }) if remedy.contains("echo 1 | sudo tee")));
}

#[test]
fn the_last_of_two_holders_restores() {
    let directory = KnobDirectory::new();
    let knob = directory.knob("1");
    let (one, other) = (directory.restorer(), directory.restorer());
    let first = one.set(&knob, "2").unwrap();
    let refused = other.set(&knob, "3");
    assert!(matches!(refused, Err(Error::KnobBusy { held, .. }) if held == "2"));
    let second = other.set(&knob, "2").unwrap();
    assert_eq!(second.former(), "1");
    first.restore().unwrap();
    assert_eq!(value(&knob), "2");
    second.restore().unwrap();
    assert_eq!((value(&knob).as_str(), directory.notes()), ("1", 0));
}

#[test]
fn a_value_of_another_writer_stays() {
    let directory = KnobDirectory::new();
    let knob = directory.knob("1");
    let set = directory.restorer().set(&knob, "2").unwrap();
    fs::write(&knob, "7").unwrap();
    set.restore().unwrap();
    assert_eq!((value(&knob).as_str(), directory.notes()), ("7", 0));
}

#[test]
fn the_next_holder_restores_after_a_killed_restorer() {
    let directory = KnobDirectory::new();
    let knob = directory.knob("1");
    let killed = directory.restorer();
    let set = killed.set(&knob, "2").unwrap();
    kill(&killed);
    assert!(matches!(set.restore(), Err(Error::RestorerKilled { .. })));
    assert_eq!(value(&knob), "2");
    let next = directory.restorer().set(&knob, "3").unwrap();
    assert_eq!((value(&knob).as_str(), next.former()), ("3", "1"));
    next.restore().unwrap();
    assert_eq!((value(&knob).as_str(), directory.notes()), ("1", 0));
}

#[test]
fn pools_are_lowered_by_the_added_pages_in_any_order() {
    let directory = KnobDirectory::new();
    let pool = directory.pool(0, 0);
    let (one, other) = (directory.restorer(), directory.restorer());
    let first = one.raise_pool_in(&pool, 2).unwrap();
    let second = other.raise_pool_in(&pool, 3).unwrap();
    first.restore().unwrap();
    assert_eq!(pages(&pool), "3");
    second.restore().unwrap();
    assert_eq!((pages(&pool).as_str(), directory.notes()), ("0", 0));
}

#[test]
fn the_last_holder_removes_pages_of_killed_restorers() {
    let directory = KnobDirectory::new();
    let pool = directory.pool(3, 0);
    let (killed, other) = (directory.restorer(), directory.restorer());
    let raised = killed.raise_pool_in(&pool, 64).unwrap();
    // One holder is killed while another one lives.
    let living = other.raise_pool_in(&pool, 2).unwrap();
    kill(&killed);
    assert!(raised.restore().is_err());
    living.restore().unwrap();
    assert_eq!((pages(&pool).as_str(), directory.notes()), ("3", 0));
    // One holder is killed before the next one starts.
    leave_64_pages(&directory, &pool);
    assert_eq!((pages(&pool).as_str(), directory.notes()), ("67", 1));
    directory.restorer().raise_pool_in(&pool, 5).unwrap().restore().unwrap();
    assert_eq!((pages(&pool).as_str(), directory.notes()), ("3", 0));
}

#[test]
fn pages_of_killed_restorers_are_not_removed_twice() {
    let directory = KnobDirectory::new();
    let pool = directory.pool(3, 0);
    leave_64_pages(&directory, &pool);
    fs::write(pool.join("nr_hugepages"), "40").unwrap();
    directory.restorer().raise_pool_in(&pool, 5).unwrap().restore().unwrap();
    assert_eq!((pages(&pool).as_str(), directory.notes()), ("40", 0));
}

#[test]
fn changes_of_others_to_a_pool_are_kept() {
    let directory = KnobDirectory::new();
    let pool = directory.pool(10, 0);
    let restorer = directory.restorer();
    let raised = restorer.raise_pool_in(&pool, 4).unwrap();
    fs::write(pool.join("nr_hugepages"), "20").unwrap(); // another writer added 6
    raised.restore().unwrap();
    assert_eq!(pages(&pool), "16");
    let raised = restorer.raise_pool_in(&pool, 4).unwrap();
    fs::write(pool.join("nr_hugepages"), "17").unwrap(); // another writer removed 3: not below the former 16
    raised.restore().unwrap();
    assert_eq!(pages(&pool), "16");
    let raised = restorer.raise_pool_in(&pool, 4).unwrap();
    fs::write(pool.join("nr_hugepages"), "2").unwrap(); // another writer set 2
    raised.restore().unwrap();
    assert_eq!(pages(&pool), "2");
}

#[test]
fn surplus_pages_are_not_made_permanent() {
    let directory = KnobDirectory::new();
    // 7 pages, 3 of them surplus: configured 4. Nine are requested, so that two are added to the
    // surplus ones.
    let pool = directory.pool(7, 3);
    let restorer = directory.restorer();
    let raised = restorer.raise_pool_in(&pool, 2).unwrap();
    assert_eq!((pages(&pool).as_str(), raised.pages()), ("9", 2));
    drop(raised);
    assert_eq!(pages(&pool), "4", "the configured size before");
}

#[test]
fn an_invalid_knob_is_refused() {
    let directory = KnobDirectory::new();
    let restorer = directory.restorer();
    let knob = directory.knob("1");
    for unfit in ["", "a\tb", "a\nb", &"9".repeat(61)] {
        assert!(matches!(restorer.set(&knob, unfit), Err(Error::InvalidKnob { .. })), "{unfit:?}");
    }
    let missing = restorer.set(&directory.0.path().join("missing"), "1");
    assert!(matches!(missing, Err(Error::File { source, .. }) if source.raw_os_error() == Some(libc::ENOENT)));
    assert!(matches!(restorer.raise_pool(12345 << 10, 1), Err(Error::File { .. })));
    assert_eq!((value(&knob).as_str(), directory.notes()), ("1", 0));
}
