//! Backups: a snapshot as a new file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::catalog::TableEntry;
use crate::error::{Error, Result};
use crate::header::Header;
use crate::node::Node;
use crate::object::types::{PAGES, decode_page_key};
use crate::page::{PAGE, Page, seal};
use crate::recovery::{write_start, write_whole};
use crate::shared::Shared;
use crate::space::GROUP;
use crate::tree;

/// Writes version `version` of a store, of a file with `end` pages, to a new file. The caller has
/// registered the version. Pages that are not in memory are read for this only.
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
    write_whole(path, copy).map(drop)
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
