//! Files of each version of the format, which later versions read.
//!
//! `tests/golden` has the blocks of each file that are not zeros: its size, then for each block its number, 8 bytes
//! each, and 512 bytes. `make golden-store` writes them, if the format has changed before a release.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};

use fieldstone_store::{Ptr, Scope, Store, StoreFile, Table, check, stored};

const BLOCK: usize = 512;
/// The files: one that was closed, one with commits in the log only, and one whose log has been used in both halves.
const NAMES: [&str; 3] = ["closed", "killed", "full-log"];

const TEXT: Table<str, str> = Table::new("text");
const BYTES: Table<[u8], [u8]> = Table::new("bytes");
const EMPTY: Table<u8, i8> = Table::new("empty");

macro_rules! numbers {
    ($use_each:ident) => {
        $use_each!(u8 "u8", u16 "u16", u32 "u32", u64 "u64", u128 "u128", i8 "i8", i16 "i16", i32 "i32", i64 "i64", i128 "i128")
    };
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("v1-{name}"))
}

stored! {
    struct Part {
        id: u32,
        next: Ptr<Part>,
        weights: [i64; 3],
    }
}

/// Objects of the list that the root `parts` begins.
const PARTS: u32 = 150;

/// A value of an entry, which is in an extent for some.
fn value(key: u32) -> Vec<u8> {
    let bytes = [0, 9, 120, 1100, 5000][key as usize % 5];
    key.to_le_bytes().into_iter().cycle().take(bytes).collect()
}

/// Commits everything; `last` are the entries of the last commits.
fn fill(store: &Store, last: u32) {
    macro_rules! insert {
        ($($number:ident $name:literal),*) => {
            store.write(|tx| {
                $(
                    let table: Table<$number, $number> = Table::new($name);
                    for number in [$number::MIN, 1, 100, $number::MAX] {
                        tx.table(table)?.insert(&number, &(number / 2))?;
                    }
                )*
                tx.table(EMPTY)?;
                for word in ["", "a\tb", "ü\u{1F600}"] {
                    tx.table(TEXT)?.insert(word, word)?;
                }
                Ok(())
            }).unwrap();
        };
    }
    numbers!(insert);
    store
        .write(|tx| {
            let mut next = Ptr::NULL;
            for id in (0..PARTS).rev() {
                next = tx.alloc(Part { id, next, weights: [-1, 0, id.into()] })?;
            }
            tx.set_root("parts", next)
        })
        .unwrap();
    for start in (0..last).step_by(4) {
        store
            .write(|tx| {
                for key in start..start + 4 {
                    tx.table(BYTES)?.insert(&key.to_be_bytes(), &value(key))?;
                }
                // Removed entries leave unused pages.
                tx.table(BYTES)?
                    .remove_range(&(start / 3).to_be_bytes()[..]..&(start / 3 + 1).to_be_bytes()[..])
                    .map(drop)
            })
            .unwrap();
    }
}

/// The keys of the table with bytes that are there after [`fill`].
fn keys(last: u32) -> Vec<u32> {
    let mut keys = std::collections::BTreeSet::new();
    for start in (0..last).step_by(4) {
        keys.extend(start..start + 4);
        keys.remove(&(start / 3));
    }
    keys.into_iter().collect()
}

const fn last(name: &str) -> u32 {
    if name.len() == 8 { 120 } else { 60 }
}

fn pack(image: &[u8]) -> Vec<u8> {
    let mut packed = (image.len() as u64).to_le_bytes().to_vec();
    for (number, block) in image.chunks(BLOCK).enumerate().filter(|(_, block)| block.iter().any(|&byte| byte != 0)) {
        packed.extend_from_slice(&(number as u64).to_le_bytes());
        packed.extend_from_slice(block);
    }
    packed
}

fn unpack(packed: &[u8]) -> Vec<u8> {
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap()) as usize;
    let mut image = vec![0; number(&packed[..8])];
    for block in packed[8..].chunks(8 + BLOCK) {
        image[number(&block[..8]) * BLOCK..][..BLOCK].copy_from_slice(&block[8..]);
    }
    image
}

/// Asserts that a file has what [`fill`] has committed.
fn assert_filled(path: &Path, last: u32) {
    let store = Store::open(path).unwrap();
    let now = store.read().unwrap();
    macro_rules! compare {
        ($($number:ident $name:literal),*) => {$(
            let table: Table<$number, $number> = Table::new($name);
            let found: Vec<_> = now.table(table).unwrap().iter().unwrap().map(|entry| entry.unwrap()).collect();
            let mut expected = [$number::MIN, 1, 100, $number::MAX].map(|number| (number, number / 2));
            expected.sort();
            assert_eq!(found, expected);
        )*};
    }
    numbers!(compare);
    assert_eq!(now.table(EMPTY).unwrap().iter().unwrap().count(), 0);
    assert_eq!(now.table(TEXT).unwrap().get("ü\u{1F600}").unwrap(), Some("ü\u{1F600}"));
    let found: Vec<(Vec<u8>, Vec<u8>)> = now
        .table(BYTES)
        .unwrap()
        .iter()
        .unwrap()
        .map(|entry| entry.map(|(key, value)| (key, value.to_vec())).unwrap())
        .collect();
    let mut part = now.root::<Part>("parts").unwrap();
    for id in 0..PARTS {
        assert_eq!((part.id, part.weights), (id, [-1, 0, id.into()]));
        part = now.follow(part.next);
    }
    now.check_objects().unwrap();
    assert!(found.into_iter().eq(keys(last).into_iter().map(|key| (key.to_be_bytes().to_vec(), value(key)))));
}

#[test]
#[ignore = "replaces the golden files: `make golden-store`"]
fn write_golden_files() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(golden("").parent().unwrap()).unwrap();
    for name in NAMES {
        let path = folder.path().join(name);
        let store = Store::builder(&path).log_bytes(64 << 10).open().unwrap();
        fill(&store, last(name));
        if name == "closed" {
            drop(store);
            fs::write(golden(name), pack(&fs::read(&path).unwrap())).unwrap();
        } else {
            // The file of an open store is as after a kill.
            fs::copy(&path, folder.path().join("copy")).unwrap();
            fs::write(golden(name), pack(&fs::read(folder.path().join("copy")).unwrap())).unwrap();
        }
    }
}

#[test]
fn golden_files_of_version_1_are_read_and_written() {
    let folder = tempfile::tempdir().unwrap();
    for name in NAMES {
        let packed = fs::read(golden(name)).unwrap_or_else(|error| panic!("{}: {error}", golden(name).display()));
        assert!(packed.len() < 400 << 10, "{name} has {} bytes", packed.len());
        let path = folder.path().join(name);
        fs::write(&path, unpack(&packed)).unwrap();
        let checked = check(&path, Scope::All, |finding| panic!("{name}: {finding:?}")).unwrap();
        assert_eq!(checked.findings, 0);
        let stat = StoreFile::open(&path).unwrap().stat().unwrap();
        assert_eq!(stat.version, 1);
        assert_eq!((stat.unrecovered_commits > 0, stat.tables.len()), (name != "closed", 13), "{name}");
        assert_filled(&path, last(name));
        let store = Store::open(&path).unwrap();
        store.write(|tx| tx.table(EMPTY)?.insert(&1, &2)).unwrap();
        drop(store);
        assert_eq!(check(&path, Scope::All, |finding| panic!("{name}: {finding:?}")).unwrap().findings, 0);
    }
}

/// The numbers of a header are little-endian on each machine.
#[test]
fn the_bytes_of_a_file_do_not_depend_on_the_machine() {
    let packed = fs::read(golden("closed")).unwrap();
    let image = unpack(&packed);
    let header = [0, 4096].map(|at| &image[at..at + 64]).into_iter().max_by_key(|header| header[24]).unwrap();
    assert_eq!((&header[..8], &header[8..16]), (&b"FSSTORE\n"[..], &[1, 0, 0, 0, 0, 0, 0, 0][..]));
    // 16 pages of log.
    assert_eq!(header[40..44], [16, 0, 0, 0]);
}
