//! What a store guarantees at its limits, through the public interface.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use fieldstone_store::{Error, ErrorKind, Savepoint, Scope, Store, StoreFile, Table, Transaction, check};
use tempfile::TempDir;

use common::wait_and_open;

const NUMBERS: Table<u64, [u8]> = Table::new("numbers");

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.store");
    (folder, path)
}

fn small(path: &Path) -> Store {
    wait_and_open(&Store::builder(path).log_bytes(64 << 10))
}

fn set(store: &Store, keys: std::ops::Range<u64>, value: &[u8]) {
    store.write(|tx| keys.into_iter().try_for_each(|key| tx.table(NUMBERS)?.insert(&key, value).map(drop))).unwrap();
}

fn count(store: &Store) -> usize {
    store.read().unwrap().table(NUMBERS).unwrap().iter().unwrap().count()
}

#[test]
fn ten_thousand_snapshots_of_different_versions_live_at_a_time() {
    let (_folder, path) = folder();
    let store = small(&path);
    let snapshots: Vec<_> = (0..10_000_u64)
        .map(|number| {
            if number % 10 == 0 {
                let mut tx = store.begin().unwrap();
                tx.table(NUMBERS).unwrap().insert(&0, &number.to_le_bytes()).unwrap();
                tx.commit().unwrap();
            }
            store.read().unwrap()
        })
        .collect();
    std::thread::scope(|scope| {
        for part in snapshots.chunks(2500).zip((0..).step_by(2500)) {
            scope.spawn(move || {
                for (snapshot, number) in part.0.iter().zip(part.1..) {
                    let expected: u64 = number / 10 * 10;
                    assert_eq!(snapshot.table(NUMBERS).unwrap().get(&0).unwrap(), Some(&expected.to_le_bytes()[..]));
                }
            });
        }
    });
    drop(snapshots);
    set(&store, 0..10, b"after");
}

#[test]
fn a_file_that_is_cut_while_it_is_open_is_an_error() {
    let (_folder, path) = folder();
    let store = small(&path);
    (0..4000).step_by(100).for_each(|start| set(&store, start..start + 100, &[1; 200]));
    drop(store);
    let store = small(&path);
    let now = store.read().unwrap();
    let table = now.table(NUMBERS).unwrap();
    let lent = table.get(&0).unwrap().unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_len(100_000).unwrap();
    let error = (0..4000).find_map(|key| table.get(&key).err()).unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("the file ends before it"), "{error}");
    assert_eq!(lent, [1; 200]);
}

#[test]
fn the_same_file_by_another_path_is_busy() {
    let (folder, path) = folder();
    let store = small(&path);
    let (hard, soft) = (folder.path().join("hard"), folder.path().join("soft"));
    fs::hard_link(&path, &hard).unwrap();
    std::os::unix::fs::symlink(&path, &soft).unwrap();
    for path in [&path, &hard, &soft] {
        assert_eq!(Store::open(path).unwrap_err().kind(), ErrorKind::Busy);
        assert_eq!(StoreFile::open(path).unwrap_err().kind(), ErrorKind::Busy);
    }
    drop(store);
    let file = StoreFile::open(&hard).unwrap();
    assert_eq!(Store::open(&soft).unwrap_err().kind(), ErrorKind::Busy);
    drop(file);
    drop(Store::open(&soft).unwrap());
}

#[test]
fn a_sparse_copy_is_the_same_store() {
    let (folder, path) = folder();
    let store = small(&path);
    (0..2000).step_by(100).for_each(|start| set(&store, start..start + 100, &[1; 200]));
    drop(store);
    let copy = folder.path().join("sparse");
    let copied = std::process::Command::new("cp").arg("--sparse=always").args([&path, &copy]).status();
    assert!(copied.unwrap().success());
    let blocks = |path| std::os::unix::fs::MetadataExt::blocks(&fs::metadata(path).unwrap());
    assert!(blocks(&copy) < blocks(&path), "the copy has no holes");
    let store = small(&copy);
    assert_eq!(count(&store), 2000);
    (2000..4000).step_by(100).for_each(|start| set(&store, start..start + 100, &[2; 200]));
    drop(store);
    assert_eq!(check(&copy, Scope::All, |finding| panic!("{finding:?}")).unwrap().findings, 0);
}

#[test]
fn what_was_lent_stays_while_the_store_grows() {
    let (_folder, path) = folder();
    let store = small(&path);
    set(&store, 0..10, &[5; 100]);
    let now = store.read().unwrap();
    let table = now.table(NUMBERS).unwrap();
    let lent = table.get(&3).unwrap().unwrap();
    let before = fs::metadata(&path).unwrap().len();
    (10..40_000).step_by(1000).for_each(|start| set(&store, start..start + 1000, &[6; 500]));
    assert!(fs::metadata(&path).unwrap().len() > 10 * before);
    assert_eq!((lent, table.iter().unwrap().count()), (&[5; 100][..], 10));
    assert_eq!(table.get(&3).unwrap().unwrap().as_ptr(), lent.as_ptr());
}

#[test]
fn a_transaction_that_is_dropped_or_fails_leaves_the_size_of_the_file() {
    let (_folder, path) = folder();
    let store = small(&path);
    set(&store, 0..100, &[1; 100]);
    let bytes = || fs::metadata(&path).unwrap().len();
    let before = bytes();
    let insert =
        |tx: &mut Transaction| (0..10).try_for_each(|key| tx.table(NUMBERS)?.insert(&key, &[7; 1 << 20]).map(drop));
    let mut tx = store.begin().unwrap();
    insert(&mut tx).unwrap();
    assert!(bytes() > before + (9 << 20));
    drop(tx);
    assert_eq!(bytes(), before);
    let failed = store.write(|tx| {
        insert(tx)?;
        tx.table(NUMBERS)?.insert(&0, &vec![0; 1 << 28])
    });
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::TooLarge);
    assert_eq!((bytes(), count(&store)), (before, 100));
    store.write(insert).unwrap();
    assert!(bytes() > before + (9 << 20));
}

#[test]
fn a_file_is_cut_when_it_is_closed_also_if_nothing_was_committed() {
    let (_folder, path) = folder();
    let bytes = || fs::metadata(&path).unwrap().len();
    let store = small(&path);
    set(&store, 0..10, &[1; 100]);
    let open = bytes();
    drop(store);
    let closed = bytes();
    assert!(closed < open, "{closed} and {open} bytes");
    // As after a process that was killed in a transaction.
    fs::File::options().write(true).open(&path).unwrap().set_len(closed + (8 << 20)).unwrap();
    drop(small(&path));
    assert_eq!(bytes(), closed);
    assert_eq!(count(&small(&path)), 10);
}

#[test]
fn an_absent_table_reads_as_empty() {
    let (_folder, path) = folder();
    let now = small(&path).read().unwrap();
    let table = now.table(NUMBERS).unwrap();
    assert_eq!((table.get(&1).unwrap(), table.iter().unwrap().count()), (None, 0));
}

#[test]
fn savepoints_are_like_copies_of_the_table() {
    let (_folder, path) = folder();
    let store = small(&path);
    let mut random = 12_345_u64;
    let mut below = move |limit: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % limit
    };
    let mut committed = BTreeMap::<u64, Vec<u8>>::new();
    for _ in 0..40 {
        let (mut tx, mut model) = (store.begin().unwrap(), committed.clone());
        let mut marks: Vec<(Savepoint, BTreeMap<u64, Vec<u8>>)> = Vec::new();
        for _ in 0..below(60) {
            let key = below(500);
            match below(10) {
                0 => marks.push((tx.savepoint(), model.clone())),
                1 if !marks.is_empty() => {
                    marks.truncate(below(marks.len() as u64) as usize + 1);
                    let (mark, before) = marks.last().unwrap();
                    tx.rollback_to(*mark);
                    model.clone_from(before);
                }
                2 => {
                    tx.table(NUMBERS).unwrap().remove_range(key..key + 30).unwrap();
                    model.retain(|other, _| !(key..key + 30).contains(other));
                }
                _ => {
                    let bytes = if below(8) == 0 { 6000 } else { 300 };
                    let value = vec![key as u8; below(bytes) as usize];
                    tx.table(NUMBERS).unwrap().insert(&key, &value).unwrap();
                    model.insert(key, value);
                }
            }
        }
        {
            let table = tx.table(NUMBERS).unwrap();
            let found =
                table.range::<u64>(..).unwrap().map(|entry| entry.map(|(key, value)| (key, value.to_vec())).unwrap());
            assert!(found.eq(model.clone()));
        }
        if below(3) > 0 {
            tx.commit().unwrap();
            committed = model;
        }
    }
    drop(store);
    assert_eq!(check(&path, Scope::All, |finding| panic!("{finding:?}")).unwrap().findings, 0);
}

#[test]
fn values_have_no_alignment() {
    let (_folder, path) = folder();
    let store = small(&path);
    let mut is_odd = false;
    for bytes in 1..40 {
        set(&store, bytes..bytes + 1, &vec![1; bytes as usize]);
        let now = store.read().unwrap();
        is_odd |= !now.table(NUMBERS).unwrap().get(&bytes).unwrap().unwrap().as_ptr().addr().is_multiple_of(8);
    }
    assert!(is_odd, "all values are aligned: docs/store.md says that they are not");
}

fn pages(path: &Path) -> (u64, u64) {
    let stat = StoreFile::open(path).unwrap().stat().unwrap();
    (stat.tables[0].entry_bytes, stat.tables[0].page_bytes)
}

#[test]
fn inserts_in_random_order_fill_most_of_their_pages() {
    const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
    let (_folder, path) = folder();
    let store = small(&path);
    let insert_all = |tx: &mut Transaction| {
        // Each step has an inverse, so the keys are distinct.
        let keys =
            (0..20_000_u64).map(|number| number.wrapping_mul(ODD)).map(|key| (key ^ key >> 32).wrapping_mul(ODD));
        keys.into_iter().try_for_each(|key| tx.table(NUMBERS)?.insert(&key, &[3; 92]).map(drop))
    };
    store.write(insert_all).unwrap();
    drop(store);
    let (entries, pages) = pages(&path);
    // An entry has 10 bytes more than its key and value. Without help of neighbours, 61 % are filled.
    assert!(entries * 100 / pages > 68, "{entries} bytes of entries in {pages} bytes");
}

#[test]
fn sorted_inserts_fill_their_pages() {
    let (_folder, path) = folder();
    for (backwards, least) in [(false, 80), (true, 40)] {
        let _ = fs::remove_file(&path);
        let store = small(&path);
        for start in (0..20_000).step_by(500) {
            let start = if backwards { 19_500 - start } else { start };
            set(&store, start..start + 500, &[3; 92]);
        }
        drop(store);
        let (entries, pages) = pages(&path);
        assert!(entries * 100 / pages > least, "{entries} bytes of entries in {pages} bytes");
    }
}

#[test]
fn removed_ranges_leave_few_pages() {
    let (_folder, path) = folder();
    let store = small(&path);
    (0..20_000).step_by(500).for_each(|start| set(&store, start..start + 500, &[3; 92]));
    drop(store);
    let (_, full) = pages(&path);
    // Every second key: pages that are less than a quarter full are merged.
    for (kept, most) in [(2, 110), (8, 60), (64, 10)] {
        let store = small(&path);
        for start in (0..20_000_u64).step_by(500) {
            store
                .write(|tx| {
                    let keys = (start..start + 500).filter(|key| key % kept != 0);
                    keys.into_iter().try_for_each(|key| tx.table(NUMBERS)?.remove(&key).map(drop))
                })
                .unwrap();
        }
        drop(store);
        let (_, now) = pages(&path);
        assert!(now * 100 / full < most, "{now} of {full} bytes with a key of {kept}");
    }
    let store = small(&path);
    store.write(|tx| tx.table(NUMBERS)?.remove_range(100..)).unwrap();
    drop(store);
    assert!(pages(&path).1 <= 2 * 4096, "{} bytes", pages(&path).1);
}

#[test]
fn a_small_commit_writes_a_few_blocks() {
    let (folder, path) = folder();
    let store = Store::builder(&path).log_bytes(4 << 20).open().unwrap();
    (0..10_000).step_by(500).for_each(|start| set(&store, start..start + 500, &[3; 92]));
    drop(store);
    let store = Store::open(&path).unwrap();
    // Each key again: its page is whole in the log by then.
    (0..400).for_each(|round| set(&store, round % 20..round % 20 + 1, &[round as u8; 92]));
    let copy = folder.path().join("copy");
    fs::copy(&path, &copy).unwrap();
    let stat = StoreFile::open(&copy).unwrap().stat().unwrap();
    assert_eq!(stat.unrecovered_commits, 400);
    let bytes = stat.recent_commits.log_bytes / stat.recent_commits.commits;
    assert!(bytes <= 1024, "{bytes} bytes a commit");
}

#[test]
fn sizes_outside_of_their_range_are_refused_before_anything_is_written() {
    let (folder, path) = folder();
    let builder = || Store::builder(&path);
    let refused = [
        builder().log_bytes(usize::MAX),
        builder().log_bytes(1 << 40),
        builder().log_bytes((1 << 30) + 1),
        builder().log_bytes((64 << 10) - 1),
        builder().log_bytes(0),
        builder().memory_bytes((1 << 20) - 1),
        builder().memory_bytes(0),
    ];
    for builder in refused {
        let error = builder.open().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
        assert!(error.remedy().is_some_and(|remedy| remedy.contains("_bytes with ")), "{error}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    drop(builder().log_bytes(64 << 10).memory_bytes(1 << 20).open().unwrap());
    drop(builder().memory_bytes(usize::MAX).open().unwrap());
}

/// The files in a folder and in the folders in it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// The order of commits is that of their numbers: a clock that is set back changes nothing.
#[test]
fn no_source_reads_the_clock() {
    // A collection reports its pauses. The others are tests.
    const DURATIONS: [&str; 4] = ["object/collection.rs", "object/collect.rs", "object/tests.rs", "crash.rs"];
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = files(&sources);
    for path in &files {
        let (text, name) = (fs::read_to_string(path).unwrap(), path.strip_prefix(&sources).unwrap());
        let may_measure = DURATIONS.iter().any(|other| name == Path::new(other));
        for clock in ["SystemTime", "clock_gettime", "UtcDateTime", "Instant"] {
            let is_permitted = clock == "Instant" && may_measure;
            assert!(is_permitted || !text.contains(clock), "{} uses {clock}", name.display());
        }
    }
    let folders =
        ["object", "node", "tree"].iter().all(|folder| files.iter().any(|path| path.starts_with(sources.join(folder))));
    assert!(folders && files.len() > 50, "{} sources", files.len());
}

#[test]
fn a_file_that_is_no_store_is_reported_as_such() {
    let folder = tempfile::tempdir().unwrap();
    let long = "a long text\n".repeat(5000);
    for (number, text) in ["", "a text\n", &long].into_iter().enumerate() {
        let path = folder.path().join(number.to_string());
        std::fs::write(&path, text).unwrap();
        let error = Store::open(&path).map(drop).unwrap_err();
        assert!(error.kind() == ErrorKind::Corrupt && error.message() == "it is no store", "{error}");
        let mut found = Vec::new();
        check(&path, Scope::Quick, |finding| found.push(finding.what)).unwrap();
        assert_eq!(found, ["it is no store"]);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }
    let error = Store::open("/dev/null").map(drop).unwrap_err();
    assert_eq!(error.message(), "it is no store");
}

#[test]
fn errors_of_paths_and_sizes_name_a_remedy() {
    let (folder, path) = folder();
    let assert_error = |error: Error, what: &str, remedy: &str| {
        assert!(error.message().contains(what) && error.remedy().is_some_and(|text| text.contains(remedy)), "{error}");
    };
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(folder.path().join("nowhere"), &link).unwrap();
    let what = "cannot open the store: the symbolic link leads to a file that is absent";
    assert_error(Store::open(&link).unwrap_err(), what, "remove the link");
    assert_error(StoreFile::open(&link).unwrap_err(), what, "remove the link");
    assert_error(Store::open(folder.path()).unwrap_err(), "Is a directory", "a file in this directory");
    let absent = folder.path().join("no folder");
    let what = format!("cannot create a file in {}: No such file", absent.display());
    let remedy = format!("`mkdir -p '{}'`", absent.display());
    assert_error(Store::open(absent.join("a.store")).unwrap_err(), &what, &remedy);
    let store = small(&path);
    assert_error(store.backup(absent.join("a.store")).unwrap_err(), &what, &remedy);
    let mut tx = store.begin().unwrap();
    let keys: Table<[u8], [u8]> = Table::new("keys");
    let error = tx.table(keys).unwrap().insert(&[1; 513], &[]).unwrap_err();
    assert_error(error, "a key of 513 bytes: a key has at most 512 bytes", "a shorter key");
    let error = tx.table(NUMBERS).unwrap().insert(&0, &vec![0; 1 << 28]).unwrap_err();
    assert_error(error, "a value of 268435456 bytes: a value has at most 133689344 bytes", "several smaller values");
    let name: &str = Box::leak("n".repeat(513).into_boxed_str());
    let error = tx.table(Table::<u64, [u8]>::new(name)).unwrap_err();
    assert_error(error, "a name of 513 bytes: it has at most 512 bytes", "a shorter name");
}

#[test]
fn a_busy_file_names_who_has_it_open() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.store");
    let store = Store::open(&path).unwrap();
    let busy = || Store::open(&path).map(drop).unwrap_err();
    assert!(busy().kind() == ErrorKind::Busy && busy().remedy().unwrap().contains("threads"), "{}", busy());
    drop(store);
    // The lock of another process, which it holds until its input ends.
    let script = "echo locked; read line";
    let mut other = std::process::Command::new("flock")
        .arg(&path)
        .args(["sh", "-c", script])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Read::read_exact(other.stdout.as_mut().unwrap(), &mut [0; 6]).unwrap();
    let error = busy();
    assert_eq!((error.kind(), error.message().as_str()), (ErrorKind::Busy, "another process has it open"));
    assert_eq!(error.remedy(), Some("close it there, or copy it with Store::backup"));
    drop(other.stdin.take());
    other.wait().unwrap();
    Store::open(&path).unwrap();
}
