//! Backups: a snapshot as a new file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::catalog::TableEntry;
use crate::error::{Error, Result};
use crate::header::Header;
use crate::new_file::NewFile;
use crate::node::Node;
use crate::object::types::{PAGES, decode_page_key};
use crate::page::{PAGE, Page, seal};
use crate::recovery::write_start;
use crate::shared::Shared;
use crate::space::GROUP;
use crate::tree;

/// Writes version `version` of a store, of a file with `end` pages, to a new file. The caller has
/// registered the version. Pages that are not in memory are read for this only. The new file has at most the
/// permissions of the file of the store.
pub(crate) fn write(shared: &Shared, version: u64, end: u32, path: &Path) -> Result<()> {
    let failed = |error: io::Error| Error::making(path, "write the backup", &error);
    let copy = |file: &File| {
        let start = write_start(file, shared.header.log_pages).map_err(failed)?;
        let mut copy = Copy { shared, version, file, path, store: start.store, last: 0 };
        for map in (shared.first..end).step_by(GROUP as usize) {
            copy.page(map, &mut [0; PAGE])?;
        }
        copy.trees()?;
        let header = Header { end: copy.last + 1, ..start };
        // A large value may end in the middle of the last page.
        file.set_len(u64::from(header.end) * PAGE as u64).map_err(failed)?;
        file.write_all_at(&header.bytes(), header.offset()).map_err(failed)
    };
    let mode = shared.storage.mode().map_err(|error| Error::io(&shared.path, "read the permissions", &error))?;
    NewFile { path, mode: mode & 0o666, is_locked: false }.make(copy).map(drop)
}

/// A backup that is written.
struct Copy<'a> {
    shared: &'a Shared,
    version: u64,
    file: &'a File,
    path: &'a Path,
    /// The number of the new store.
    store: u64,
    /// The last page that was written.
    last: u32,
}

impl Copy<'_> {
    fn write(&mut self, bytes: &[u8], number: u32) -> Result<()> {
        self.last = self.last.max(number + (bytes.len().div_ceil(PAGE) as u32).saturating_sub(1));
        let written = self.file.write_all_at(bytes, u64::from(number) * PAGE as u64);
        written.map_err(|error| Error::making(self.path, "write the backup", &error))
    }

    /// Copies a page, and leaves its contents in `page`.
    fn page(&mut self, number: u32, page: &mut Page) -> Result<()> {
        self.shared.copy_page(number, self.version, page)?;
        let mut sealed = *page;
        seal(&mut sealed, number, self.store);
        self.write(&sealed, number)
    }

    /// Copies the catalog, the trees of the tables, and the pages of objects.
    fn trees(&mut self) -> Result<()> {
        let (shared, catalog) = (self.shared, self.shared.header.catalog());
        let (mut roots, mut name) = (Vec::new(), Vec::new());
        tree::walk(shared, catalog, |number, page| {
            self.page(number, page)?;
            let node = Node(page);
            for index in (0..node.count()).filter(|_| node.is_leaf()) {
                let entry = TableEntry::decode_or(node.value(index), |what| shared.wrong(number, what))?;
                name.clear();
                node.append_key(index, &mut name);
                roots.push((entry.root, name == PAGES.name.as_bytes()));
            }
            Ok(())
        })?;
        roots.into_iter().try_for_each(|(root, names_pages)| {
            tree::walk(shared, root, |number, page| {
                self.page(number, page)?;
                let node = Node(page);
                if names_pages {
                    return self.objects(node);
                }
                (0..node.count()).filter(|_| node.is_leaf()).filter_map(|index| node.extent(index)).try_for_each(
                    |extent| {
                        let contents = shared.read_extent(extent)?;
                        self.write(&contents, extent.start)
                    },
                )
            })
        })
    }

    /// Copies the pages of objects that a node names.
    fn objects(&mut self, node: Node<'_>) -> Result<()> {
        let mut key = Vec::new();
        for index in (0..node.count()).filter(|_| node.is_leaf()) {
            key.clear();
            node.append_key(index, &mut key);
            if let Some((_, page)) = decode_page_key(&key) {
                self.page(page, &mut [0; PAGE])?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::sync::{Arc, Barrier};

    use super::*;
    use crate::check_tests::disk;
    use crate::crash::{Hook, HookedDisk, OnDisk, TABLES, empty, open_on};
    use crate::object::ObjectOptions;
    use crate::{Scope, Store, check};

    /// Stops the thread "backup" at its first read, until the test goes on.
    #[derive(Debug)]
    struct Stop {
        was_reached: AtomicBool,
        reached: Barrier,
        released: Barrier,
    }

    impl Hook for Arc<Stop> {
        fn before_read(&self, _bytes: Range<u64>) -> io::Result<()> {
            if std::thread::current().name() == Some("backup") && !self.was_reached.swap(true, SeqCst) {
                self.reached.wait();
                self.released.wait();
            }
            Ok(())
        }
    }

    fn set(store: &Store, value: u8) {
        for start in (0..400).step_by(20) {
            let keys = start..start + 20;
            store
                .write(|tx| {
                    keys.into_iter().try_for_each(|key| tx.table(TABLES[0])?.insert(&key, &[value; 900]).map(drop))
                })
                .unwrap();
        }
    }

    #[test]
    fn a_backup_is_whole_while_others_replace_more_than_the_old_versions_that_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("copy");
        let (reached, released) = (Barrier::new(2), Barrier::new(2));
        let stop = Arc::new(Stop { was_reached: AtomicBool::new(false), reached, released });
        let storage = HookedDisk(OnDisk(disk(&empty(64))), Arc::clone(&stop));
        let store = open_on(Box::new(storage), 32 * PAGE, ObjectOptions::DEFAULT).unwrap();
        set(&store, 1);
        store.0.shared.frames.limit_old_versions(16 * PAGE);
        let backup = {
            let (store, path) = (store.clone(), path.clone());
            std::thread::Builder::new().name("backup".to_owned()).spawn(move || store.backup(path))
        };
        stop.reached.wait();
        (2..5).for_each(|value| set(&store, value));
        stop.released.wait();
        backup.unwrap().join().unwrap().unwrap();
        let copy = Store::open(&path).unwrap();
        let now = copy.read().unwrap();
        let table = now.table(TABLES[0]).unwrap();
        assert!((0..400).all(|key| table.get(&key).unwrap() == Some(&[1; 900][..])));
        drop((now, copy));
        assert_eq!(check(&path, Scope::All, |finding| panic!("{finding:?}")).unwrap().findings, 0);
    }
}
