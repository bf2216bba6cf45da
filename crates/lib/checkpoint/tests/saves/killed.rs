//! A process that is killed while it saves: its last whole save is restored.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use fieldstone_checkpoint::{Directory, Error};

use crate::fixture::{MIB, WORDS, checkpointer, filled, names};

/// The folder in which the child saves.
const FOLDER: &str = "FIELDSTONE_TEST_FOLDER";

/// Saves until it is killed. Each save has one number in all its pages.
#[test]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let saves = Directory::open(folder).unwrap();
    let memory = filled(2 * MIB);
    let mut saver = checkpointer(&memory);
    for number in 1.. {
        memory.words().iter().step_by(WORDS).for_each(|word| word.store(number, Relaxed));
        saver.save(&saves, || ((), number)).unwrap();
        saves.keep(2).unwrap();
    }
}

/// The number of the last save, which is in all its pages; 0 without one.
fn restored(folder: &Path) -> u64 {
    let last = match Directory::open(folder).unwrap().last() {
        Ok(last) => last,
        Err(Error::NoSave(_)) => return 0,
        Err(error) => panic!("{error}"),
    };
    let (memories, number) = (last.restore().unwrap(), last.value());
    assert!(memories[0].words().iter().step_by(WORDS).all(|word| word.load(Relaxed) == number), "a mixture of saves");
    number
}

#[test]
fn a_killed_process_has_its_last_whole_save() {
    let folder = tempfile::tempdir().unwrap();
    let mut last = 0;
    for round in 0..25 {
        let before = names(folder.path()).last().cloned();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "killed::child"])
            .env(FOLDER, folder.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        // After its first save, at some moment of a later one.
        while names(folder.path()).iter().rfind(|name| name.ends_with(".save")) <= before.as_ref() {
            assert!(child.try_wait().unwrap().is_none(), "the child ends before it is killed");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(round * 7 % 40));
        child.kill().unwrap();
        child.wait().unwrap();
        last = restored(folder.path()).max(last);
    }
    assert!(last > 0, "no save was restored");
    // What the killed processes have begun is removed by the next save.
    checkpointer(&filled(MIB)).save(&Directory::open(folder.path()).unwrap(), || ((), 0)).unwrap();
    let left = names(folder.path());
    assert!(left.iter().all(|name| name.ends_with(".save")), "{left:?}");
}
