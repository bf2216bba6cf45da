//! Stores on other file systems and disks: in memory, with sectors of 4 KiB, in layers, full, and after a loss of
//! power.
//!
//! ```text
//! test ─→ unshare --mount ─→ shell: mounts a file system in a folder ─→ this program again: `child`
//! ```

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use fieldstone_store::{ErrorKind, Scope, Store, Table, check};

const NUMBERS: Table<u64, [u8]> = Table::new("numbers");
/// The role of the process that uses the file system, and its folder.
const ROLE: &str = "FIELDSTONE_STORE_ROLE";
const FOLDER: &str = "FIELDSTONE_STORE_FOLDER";

/// Mounts a file system in `$FOLDER` and runs the program in it: `$CHILD`. Where it cannot be mounted, the exit code
/// is 77.
fn run_mounted(role: &str, script: &str) -> Option<Output> {
    let folder = tempfile::tempdir().unwrap();
    let program = std::env::current_exe().unwrap();
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "bash", "-ec", script])
        .current_dir(folder.path())
        .env("CHILD", program)
        .env(ROLE, role)
        .env(FOLDER, folder.path().join("disk"))
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stderr);
    if output.status.code() == Some(77) || text.contains("unshare failed") {
        return None;
    }
    assert!(output.status.success(), "{role}: {text}{}", String::from_utf8_lossy(&output.stdout));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "no child ran");
    Some(output)
}

const RUN: &str = "$CHILD child --exact --nocapture";

fn value(key: u64, round: u64) -> Vec<u8> {
    let bytes = if key.is_multiple_of(40) { 9000 } else { 150 };
    (key ^ round << 32).to_le_bytes().repeat(bytes / 8)
}

fn set(store: &Store, round: u64) {
    for start in (0..800).step_by(20) {
        let insert = |tx: &mut fieldstone_store::Transaction| {
            (start..start + 20).try_for_each(|key| tx.table(NUMBERS)?.insert(&key, &value(key, round)).map(drop))
        };
        store.write(insert).unwrap();
    }
}

fn assert_round(path: &Path, round: u64) {
    let checked = check(path, Scope::All, |finding| panic!("{finding:?}")).unwrap();
    assert_eq!(checked.findings, 0);
    let store = Store::open(path).unwrap();
    let now = store.read().unwrap();
    let table = now.table(NUMBERS).unwrap();
    assert!((0..800).all(|key| table.get(&key).unwrap() == Some(&value(key, round)[..])));
}

/// Everything that a store does with its file.
fn use_everything(folder: &Path) {
    let (path, copy) = (folder.join("a.store"), folder.join("copy.store"));
    let store = Store::builder(&path).log_bytes(64 << 10).open().unwrap();
    (1..4).for_each(|round| set(&store, round));
    // As it would be after a kill: commits are in the log only.
    std::fs::copy(&path, folder.join("killed.store")).unwrap();
    store.backup(&copy).unwrap();
    store.write(|tx| tx.table(NUMBERS)?.remove_range(400..)).unwrap();
    store.compact().unwrap();
    assert_eq!(Store::open(&path).unwrap_err().kind(), ErrorKind::Busy);
    set(&store, 4);
    drop(store);
    assert_round(&path, 4);
    assert_round(&copy, 3);
    assert_round(&folder.join("killed.store"), 3);
}

/// Fills a disk, and goes on when there is room again.
fn fill_the_disk(folder: &Path) {
    let path = folder.join("full.store");
    let store = Store::builder(&path).log_bytes(64 << 10).open().unwrap();
    let mut kept = 0;
    let error = loop {
        let value = vec![kept as u8; 3000];
        match store
            .write(|tx| (0..20).try_for_each(|at| tx.table(NUMBERS)?.insert(&(kept * 20 + at), &value).map(drop)))
        {
            Ok(()) => kept += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert!(error.to_string().contains("\ntry: "), "{error}");
    let count = |store: &Store| store.read().unwrap().table(NUMBERS).unwrap().iter().unwrap().count() as u64;
    assert!(kept > 10 && count(&store) == kept * 20, "{kept}");
    assert_eq!(store.backup(folder.join("copy")).unwrap_err().kind(), ErrorKind::Full);
    assert!(!folder.join("copy").exists());
    // Without reopening: what is removed makes room.
    store.write(|tx| tx.table(NUMBERS)?.remove_range(100..)).unwrap();
    store.write(|tx| (100..200).try_for_each(|key| tx.table(NUMBERS)?.insert(&key, &[7; 3000]).map(drop))).unwrap();
    assert_eq!(count(&store), 200);
    drop(store);
    assert_eq!(check(&path, Scope::All, |finding| panic!("{finding:?}")).unwrap().findings, 0);
    assert_eq!(count(&Store::open(&path).unwrap()), 200);
}

/// Writes large values in one transaction until the disk is full.
fn fill_the_disk_by_one_transaction(folder: &Path) {
    let path = folder.join("full.store");
    let store = Store::builder(&path).log_bytes(64 << 10).open().unwrap();
    store.write(|tx| tx.table(NUMBERS)?.insert(&0, &[1; 100])).unwrap();
    let bytes = || std::fs::metadata(&path).unwrap().len();
    let before = bytes();
    let error = store
        .write(|tx| (1..21).try_for_each(|key| tx.table(NUMBERS)?.insert(&key, &[7; 4 << 20]).map(drop)))
        .unwrap_err();
    assert_eq!((error.kind(), bytes()), (ErrorKind::Full, before), "{error}");
    store.write(|tx| tx.table(NUMBERS)?.insert(&1, &[7; 4 << 20])).unwrap();
    drop(store);
    assert_eq!(check(&path, Scope::All, |finding| panic!("{finding:?}")).unwrap().findings, 0);
}

/// Makes and writes stores until the disk is copied, as a loss of power would leave it.
fn write_until_the_power_is_lost(folder: &Path) {
    let store = Store::builder(folder.join("a.store")).log_bytes(64 << 10).open().unwrap();
    set(&store, 7);
    set(&store, 8);
    store.backup(folder.join("copy.store")).unwrap();
    Store::open(folder.join("empty.store")).unwrap();
    let copied = Command::new("cp").arg(folder.with_extension("image")).arg(folder.with_extension("lost")).status();
    assert!(copied.unwrap().success());
    // The last one is not synced.
    std::fs::write(folder.join("after"), "after").unwrap();
}

/// One of the roles, in the process that has the file system.
#[test]
fn child() {
    let (Ok(role), Some(folder)) = (std::env::var(ROLE), std::env::var_os(FOLDER)) else { return };
    let folder = PathBuf::from(folder);
    match role.as_str() {
        "everything" => use_everything(&folder),
        "full" => fill_the_disk(&folder),
        "large" => fill_the_disk_by_one_transaction(&folder),
        "lose power" => write_until_the_power_is_lost(&folder),
        "after" => {
            ["a.store", "copy.store"].iter().for_each(|name| assert_round(&folder.join(name), 8));
            assert!(folder.join("empty.store").exists() && !folder.join("after").exists());
        }
        "make" => set(&Store::builder(folder.join("a.store")).log_bytes(64 << 10).open().unwrap(), 1),
        other => panic!("no role {other}"),
    }
}

#[test]
fn a_store_in_memory_works() {
    let script = format!("mkdir disk; mount -t tmpfs none disk || exit 77; {RUN}");
    if run_mounted("everything", &script).is_none() {
        println!("SKIP no tmpfs can be mounted here");
    }
}

#[test]
fn a_store_on_sectors_of_4_kib_works() {
    let script = format!(
        "truncate -s 64M image; mkdir disk; mkfs.ext4 -q -F -b 4096 image || exit 77
         loop=$(losetup -b 4096 -f --show image) || exit 77
         trap 'losetup -d $loop' EXIT
         mount $loop disk || exit 77
         test $(blockdev --getss $loop) = 4096
         {RUN}
         umount disk"
    );
    if run_mounted("everything", &script).is_none() {
        println!("SKIP no loop device can be mounted here");
    }
}

#[test]
fn a_store_in_layers_is_copied_when_it_is_opened() {
    let script = format!(
        "mkdir disk base; mount -t tmpfs none base || exit 77; mkdir base/lower base/upper base/work
         FIELDSTONE_STORE_ROLE=make FIELDSTONE_STORE_FOLDER=$PWD/base/lower {RUN} > /dev/null
         before=$(cksum < base/lower/a.store)
         mount -t overlay -o lowerdir=base/lower,upperdir=base/upper,workdir=base/work none disk || exit 77
         {RUN}
         test \"$before\" = \"$(cksum < base/lower/a.store)\""
    );
    if run_mounted("everything", &script).is_none() {
        println!("SKIP no overlay can be mounted here");
    }
}

#[test]
fn a_full_disk_is_an_error_and_what_is_removed_makes_room() {
    let script = format!("mkdir disk; mount -t tmpfs -o size=4M none disk || exit 77; {RUN}");
    if run_mounted("full", &script).is_none() {
        println!("SKIP no tmpfs can be mounted here");
    }
}

#[test]
fn a_transaction_that_fills_the_disk_leaves_the_size_of_the_file() {
    let script = format!("mkdir disk; mount -t tmpfs -o size=40M none disk || exit 77; {RUN}");
    if run_mounted("large", &script).is_none() {
        println!("SKIP no tmpfs can be mounted here");
    }
}

#[test]
fn commits_and_names_that_returned_are_there_after_a_loss_of_power() {
    let script = format!(
        "truncate -s 96M disk.image; mkfs.ext4 -q -F disk.image || exit 77
         mkdir disk; mount -o loop disk.image disk || exit 77
         {RUN}
         umount disk
         mount -o loop disk.lost disk
         FIELDSTONE_STORE_ROLE=after {RUN} > /dev/null"
    );
    if run_mounted("lose power", &script).is_none() {
        println!("SKIP no loop device can be mounted here");
    }
}
