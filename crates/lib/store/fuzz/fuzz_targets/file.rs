//! Changes bytes of a store, corrects the checks of what was changed, and does with the file all that can be done.
//!
//! The input is a list of changes: page (16 bits), place in the page (16 bits), byte. The last byte of the input chooses
//! the store: one that was closed, or one that was killed, whose log has commits.
#![no_main]

use std::convert::Infallible;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use fieldstone_store::{Scope, Store, StoreFile, Table, check, fuzz};
use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;

const NUMBERS: Table<u32, [u8]> = Table::new("numbers");
const TEXT: Table<str, str> = Table::new("text");

/// In memory, if there is such a folder.
static FOLDER: LazyLock<TempDir> =
    LazyLock::new(|| tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder"));

/// A store that was closed, and one that was killed.
static IMAGES: LazyLock<[Vec<u8>; 2]> = LazyLock::new(|| {
    let (path, copy) = (FOLDER.path().join("seed"), FOLDER.path().join("copy"));
    let store = Store::builder(&path).log_bytes(64 << 10).open().expect("a store");
    for block in 0..20_u32 {
        let filled = store.write(|tx| {
            for key in block * 20..block * 20 + 20 {
                tx.table(NUMBERS)?.insert(&key, &[key as u8; 90])?;
                tx.table(TEXT)?.insert(&format!("key {key}"), "text")?;
            }
            tx.table(NUMBERS)?.insert(&(1000 + block), &[7; 5000]).map(drop)
        });
        filled.expect("room");
    }
    fs::copy(&path, &copy).expect("a copy");
    drop(store);
    [path, copy].map(|path| fs::read(path).expect("an image"))
});

/// Reads everything and writes a little. Errors are as good as results.
fn use_file(path: &Path) {
    let _ = check(path, Scope::All, drop);
    if let Ok(file) = StoreFile::open(path) {
        let _ = file.stat();
        let Ok(()) = file.read_all(|_| Ok::<(), Infallible>(()));
        let Ok(()) = file.salvage(|_| Ok::<(), Infallible>(()));
    }
    let Ok(store) = Store::builder(path).memory_bytes(1 << 20).open() else { return };
    if let Ok(now) = store.read() {
        let _ = now.table(NUMBERS).and_then(|table| table.iter()).map(|all| all.take(5000).count());
        let _ = now.table(TEXT).and_then(|table| table.range("key 1".."key 3")).map(|some| some.rev().take(5000).count());
    }
    let _ = store.write(|tx| {
        tx.table(NUMBERS)?.insert(&7, &[1; 300])?;
        tx.table(NUMBERS)?.remove_range(100..200)?;
        tx.table(TEXT)?.insert("new", "text").map(drop)
    });
}

fuzz_target!(|input: &[u8]| {
    let Some((&which, changes)) = input.split_last() else { return };
    let mut image = IMAGES[usize::from(which % 2)].clone();
    let pages = image.len() / 4096;
    for change in changes.as_chunks::<5>().0.iter().take(64) {
        let page = usize::from(u16::from_le_bytes([change[0], change[1]])) % pages;
        let place = usize::from(u16::from_le_bytes([change[2], change[3]])) % 4096;
        image[page * 4096 + place] = change[4];
        fuzz::correct_checks(&mut image, page);
    }
    let path = FOLDER.path().join("changed");
    fs::write(&path, &image).expect("room");
    use_file(&path);
});
