//! Knobs are plain files here; the real pool is in `tests/knob.rs`.

use std::fs;
use std::path::{Path, PathBuf};

use super::*;

struct Room(tempfile::TempDir);

impl Room {
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

    /// Names in the room that are notes.
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

/// A restorer raises the pool by 64 pages and is killed, so that they stay.
fn leave_64_pages(room: &Room, pool: &Path) {
    let killed = room.restorer();
    let raised = killed.raise_pool_in(pool, 64).unwrap();
    kill(&killed);
    assert!(raised.give_back().is_err());
}

fn kill(restorer: &Restorer) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(restorer.pid()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    crate::process::wait4(Some(restorer.pid()), true).unwrap();
}

#[test]
fn a_knob_is_given_back_on_drop_and_leaves_no_note() {
    let room = Room::new();
    let knob = room.knob("always [madvise] never\n");
    let restorer = room.restorer();
    let set = restorer.set(&knob, "always").unwrap();
    assert_eq!((value(&knob).as_str(), set.former(), room.notes()), ("always", "madvise", 1));
    drop(set);
    assert_eq!((value(&knob).as_str(), room.notes()), ("madvise", 0));
}

#[test]
fn a_stopped_restorer_gives_a_knob_back() {
    let room = Room::new();
    let knob = room.knob("1");
    let restorer = room.restorer();
    let set = restorer.set(&knob, "2").unwrap();
    let pid = rustix::process::Pid::from_raw(i32::try_from(restorer.pid()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    drop(set);
    assert_eq!(value(&knob), "1");
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    drop(restorer);
}

#[test]
fn the_end_of_the_restorer_gives_all_back_newest_first() {
    let room = Room::new();
    let knob = room.knob("1");
    let restorer = room.restorer();
    let kept = restorer.set(&knob, "2").unwrap();
    // What `forget` leaves is what a killed holder leaves: holds that nobody releases.
    std::mem::forget(restorer.set(&knob, "2").unwrap());
    let pool = room.pool(5, 0);
    let line = restorer.shared.line.lock().unwrap().get_ref().try_clone().unwrap();
    let raised = restorer.raise_pool_in(&pool, 3).unwrap();
    assert_eq!((value(&knob).as_str(), pages(&pool).as_str(), raised.pages()), ("2", "8", 3));
    line.shutdown(Shutdown::Both).unwrap();
    crate::process::wait4(Some(restorer.pid()), true).unwrap();
    assert_eq!((value(&knob).as_str(), pages(&pool).as_str(), room.notes()), ("1", "5", 0));
    assert!(matches!(kept.give_back(), Err(Error::RestorerGone { remedy }) if remedy.contains("echo 1 | sudo tee")));
}

#[test]
fn the_last_of_two_fieldstones_gives_back() {
    let room = Room::new();
    let knob = room.knob("1");
    let (one, other) = (room.restorer(), room.restorer());
    let first = one.set(&knob, "2").unwrap();
    let refused = other.set(&knob, "3");
    assert!(matches!(refused, Err(Error::KnobHeld { held, .. }) if held == "2"));
    let second = other.set(&knob, "2").unwrap();
    assert_eq!(second.former(), "1");
    first.give_back().unwrap();
    assert_eq!(value(&knob), "2");
    second.give_back().unwrap();
    assert_eq!((value(&knob).as_str(), room.notes()), ("1", 0));
}

#[test]
fn what_somebody_else_wrote_meanwhile_stays() {
    let room = Room::new();
    let knob = room.knob("1");
    let set = room.restorer().set(&knob, "2").unwrap();
    fs::write(&knob, "7").unwrap();
    set.give_back().unwrap();
    assert_eq!((value(&knob).as_str(), room.notes()), ("7", 0));
}

#[test]
fn the_next_one_gives_back_what_a_killed_restorer_could_not() {
    let room = Room::new();
    let knob = room.knob("1");
    let killed = room.restorer();
    let set = killed.set(&knob, "2").unwrap();
    kill(&killed);
    assert!(matches!(set.give_back(), Err(Error::RestorerGone { .. })));
    assert_eq!(value(&knob), "2");
    let next = room.restorer().set(&knob, "3").unwrap();
    assert_eq!((value(&knob).as_str(), next.former()), ("3", "1"));
    next.give_back().unwrap();
    assert_eq!((value(&knob).as_str(), room.notes()), ("1", 0));
}

#[test]
fn pools_are_lowered_by_what_was_added_in_any_order() {
    let room = Room::new();
    let pool = room.pool(0, 0);
    let (one, other) = (room.restorer(), room.restorer());
    let first = one.raise_pool_in(&pool, 2).unwrap();
    let second = other.raise_pool_in(&pool, 3).unwrap();
    first.give_back().unwrap();
    assert_eq!(pages(&pool), "3");
    second.give_back().unwrap();
    assert_eq!((pages(&pool).as_str(), room.notes()), ("0", 0));
}

#[test]
fn the_last_one_gives_back_the_pages_of_killed_restorers() {
    let room = Room::new();
    let pool = room.pool(3, 0);
    let (killed, other) = (room.restorer(), room.restorer());
    let raised = killed.raise_pool_in(&pool, 64).unwrap();
    // Beside one that lives.
    let beside = other.raise_pool_in(&pool, 2).unwrap();
    kill(&killed);
    assert!(raised.give_back().is_err());
    beside.give_back().unwrap();
    assert_eq!((pages(&pool).as_str(), room.notes()), ("3", 0));
    // And alone, before the next one comes.
    leave_64_pages(&room, &pool);
    assert_eq!((pages(&pool).as_str(), room.notes()), ("67", 1));
    room.restorer().raise_pool_in(&pool, 5).unwrap().give_back().unwrap();
    assert_eq!((pages(&pool).as_str(), room.notes()), ("3", 0));
}

#[test]
fn pages_that_killed_restorers_left_and_somebody_took_are_not_taken_again() {
    let room = Room::new();
    let pool = room.pool(3, 0);
    leave_64_pages(&room, &pool);
    fs::write(pool.join("nr_hugepages"), "40").unwrap();
    room.restorer().raise_pool_in(&pool, 5).unwrap().give_back().unwrap();
    assert_eq!((pages(&pool).as_str(), room.notes()), ("40", 0));
}

#[test]
fn a_pool_that_others_changed_keeps_their_change() {
    let room = Room::new();
    let pool = room.pool(10, 0);
    let restorer = room.restorer();
    let raised = restorer.raise_pool_in(&pool, 4).unwrap();
    fs::write(pool.join("nr_hugepages"), "20").unwrap(); // somebody added 6
    raised.give_back().unwrap();
    assert_eq!(pages(&pool), "16");
    let raised = restorer.raise_pool_in(&pool, 4).unwrap();
    fs::write(pool.join("nr_hugepages"), "17").unwrap(); // somebody took 3: not below the former 16
    raised.give_back().unwrap();
    assert_eq!(pages(&pool), "16");
    let raised = restorer.raise_pool_in(&pool, 4).unwrap();
    fs::write(pool.join("nr_hugepages"), "2").unwrap(); // somebody wanted 2
    raised.give_back().unwrap();
    assert_eq!(pages(&pool), "2");
}

#[test]
fn surplus_pages_are_not_made_permanent() {
    let room = Room::new();
    // 7 pages, 3 of them surplus: set to 4. Nine are asked for, so that two can be had beside the surplus ones.
    let pool = room.pool(7, 3);
    let restorer = room.restorer();
    let raised = restorer.raise_pool_in(&pool, 2).unwrap();
    assert_eq!((pages(&pool).as_str(), raised.pages()), ("9", 2));
    drop(raised);
    assert_eq!(pages(&pool), "4", "what was set before");
}

#[test]
fn what_cannot_be_a_knob_is_refused() {
    let room = Room::new();
    let restorer = room.restorer();
    let knob = room.knob("1");
    for unfit in ["", "a\tb", "a\nb", &"9".repeat(61)] {
        assert!(matches!(restorer.set(&knob, unfit), Err(Error::KnobUnfit { .. })), "{unfit:?}");
    }
    let missing = restorer.set(&room.0.path().join("missing"), "1");
    assert!(matches!(missing, Err(Error::File { source, .. }) if source.raw_os_error() == Some(libc::ENOENT)));
    assert!(matches!(restorer.raise_pool(12345 << 10, 1), Err(Error::File { .. })));
    assert_eq!((value(&knob).as_str(), room.notes()), ("1", 0));
}
