//! Sizes and counts of a file.

use std::collections::{BTreeMap, HashSet};

use crate::contents::{Part, visit};
use crate::error::{Error, Result};
use crate::header::VERSION;
use crate::log_records::{half, leading};
use crate::object::layout::Layout;
use crate::object::lists::ObjectLists;
use crate::object::object_page::ObjectPage;
use crate::page::{OBJECT, PAGE, kind};
use crate::raw::RawTable;
use crate::space::{GROUP, is_used};
use crate::store_file::StoreFile;
use crate::walk::{NodeAt, Walk};

/// Sizes and counts of a file, in bytes unless said otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stat {
    /// Version of the file format.
    pub version: u32,
    /// The file.
    pub file_bytes: u64,
    /// Pages of trees and maps that are in use.
    pub live_bytes: u64,
    /// Pages that later commits can use: unused ones, and those behind the end of the store.
    pub free_bytes: u64,
    /// The log.
    pub log_bytes: u64,
    /// The number of the last commit.
    pub last_commit: u64,
    /// The number of commits that are only in the log: the next opening recovers them.
    pub unrecovered_commits: u64,
    /// The tables, in the order of their names.
    pub tables: Vec<TableStat>,
    /// The types of objects, in the order in which they came.
    pub types: Vec<TypeStat>,
    /// The commits whose records are in the log, also those that need no recovery.
    pub recent_commits: CommitBytes,
}

/// Sizes and counts of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableStat {
    /// The table.
    pub table: RawTable,
    /// The number of entries.
    pub entries: u64,
    /// Bytes of all keys and values.
    pub entry_bytes: u64,
    /// Bytes of the pages of its tree.
    pub page_bytes: u64,
    /// Pages from its root to an entry; 1 if the root has the entries.
    pub levels: u32,
}

/// Sizes and counts of the objects of a type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TypeStat {
    /// The name of the type.
    pub name: String,
    /// The number of objects.
    pub objects: u64,
    /// Bytes of an object.
    pub object_bytes: u64,
    /// Bytes of their pages.
    pub page_bytes: u64,
}

/// What commits have written, or will have written once the log has changed to its other half.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommitBytes {
    /// The number of commits.
    pub commits: u64,
    /// Bytes of their records.
    pub log_bytes: u64,
    /// Bytes of the pages that they changed, each once for each half of the log.
    pub page_bytes: u64,
}

impl StoreFile {
    /// Measures the file. Cost: all pages in use are read once, and the log.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Corrupt`] for the first damage by which entries are lost, and
    /// [`crate::ErrorKind::Io`].
    pub fn stat(&self) -> Result<Stat> {
        if let Some(lost) = self.findings.iter().find(|finding| finding.is_loss()) {
            return Err(Error::corrupt(&self.path, u32::try_from(lost.page()).ok(), &lost.what));
        }
        let io = |error| Error::io(&self.path, "read", &error);
        let (file_bytes, live_bytes) = (self.storage.bytes().map_err(io)?, self.live_bytes()?);
        let mut lists = ObjectLists::default();
        let tables = self.table_stats(&mut lists)?;
        let start_bytes = u64::from(self.header.first()) * PAGE as u64;
        Ok(Stat {
            version: VERSION,
            file_bytes,
            live_bytes,
            free_bytes: file_bytes.saturating_sub(start_bytes).saturating_sub(live_bytes),
            log_bytes: 2 * self.header.half_bytes() as u64,
            last_commit: self.log.sequence,
            unrecovered_commits: self.log.sequence - self.header.sequence,
            tables,
            types: self.type_stats(&lists)?,
            recent_commits: self.recent_commits().map_err(io)?,
        })
    }

    /// Bytes of the pages that the maps mark.
    fn live_bytes(&self) -> Result<u64> {
        let (mut map, mut pages) = ([0; PAGE], 0);
        for first in self.maps() {
            self.map(first, &mut map).map_err(|what| Error::corrupt(&self.path, Some(first), &what))?;
            pages += (0..GROUP).filter(|&index| is_used(&map, index)).count() as u64;
        }
        Ok(pages * PAGE as u64)
    }

    fn type_stats(&self, lists: &ObjectLists) -> Result<Vec<TypeStat>> {
        let of_type = |(number, (name, layout)): (&u32, &(String, Layout))| {
            let stat = TypeStat { name: name.clone(), object_bytes: layout.size as u64, ..TypeStat::default() };
            (*number, stat)
        };
        let mut types: BTreeMap<u32, TypeStat> = lists.types.iter().map(of_type).collect();
        let mut page = [0; PAGE];
        for listed in &lists.pages {
            let wrong = |what: &str| Error::corrupt(&self.path, Some(listed.page), what);
            self.page(listed.page, &mut page).map_err(|what| wrong(&what))?;
            if kind(&page) != OBJECT {
                return Err(wrong("it has no objects"));
            }
            if let Some(stat) = types.get_mut(&listed.number) {
                stat.objects += ObjectPage(&page).used().count() as u64;
                stat.page_bytes += PAGE as u64;
            }
        }
        Ok(types.into_values().collect())
    }

    /// The tables of programs. The trees of the objects are added to `lists`.
    fn table_stats(&self, lists: &mut ObjectLists) -> Result<Vec<TableStat>> {
        let mut tables: Vec<TableStat> = Vec::new();
        visit(&mut Walk::new(self), &mut |part| {
            match part {
                Part::Table(table) if ObjectLists::is_part(table) => {}
                Part::Node(table, at) if ObjectLists::is_part(table) => lists.add(table, at),
                Part::Table(table) => {
                    tables.push(TableStat {
                        table: table.clone(),
                        entries: 0,
                        entry_bytes: 0,
                        page_bytes: 0,
                        levels: 0,
                    });
                }
                Part::Node(_, NodeAt { node, .. }) => {
                    let Some(table) = tables.last_mut() else { return Ok(()) };
                    table.page_bytes += PAGE as u64;
                    table.levels = table.levels.max(u32::from(node.level()) + 1);
                    let mut key = Vec::new();
                    for index in (0..node.count()).filter(|_| node.is_leaf()) {
                        key.clear();
                        node.append_key(index, &mut key);
                        let extent = node.extent(index);
                        table.entries += 1;
                        table.entry_bytes += key.len() as u64;
                        table.entry_bytes += extent.map_or(node.value(index).len() as u64, |extent| extent.bytes);
                        table.page_bytes += extent.map_or(0, |extent| extent.pages().len() as u64 * PAGE as u64);
                    }
                }
                Part::Damage { finding, .. } => {
                    return Err(Error::corrupt(&self.path, u32::try_from(finding.page()).ok(), &finding.what));
                }
            }
            Ok(())
        })?;
        Ok(tables)
    }

    /// What is known about the commits in both halves of the log.
    fn recent_commits(&self) -> std::io::Result<CommitBytes> {
        let mut sum = CommitBytes::default();
        for epoch in [0, 1] {
            let (half, mut changed) = (half(&*self.storage, &self.header, epoch)?, HashSet::new());
            for (at, record) in leading(&half, self.header.store) {
                sum.commits += 1;
                sum.log_bytes += record.found.in_log() as u64;
                if record.found.apart == 0 {
                    let changes = record.found.lines(&half[at..]).unwrap_or_default();
                    changed.extend(record.found.changes(changes).flatten().map(|change| change.number));
                } else {
                    // Its pages are behind the end of the file, and are written to their places at
                    // once.
                    sum.log_bytes = sum.log_bytes.saturating_add(record.found.bytes as u64);
                    sum.page_bytes += u64::from(record.found.entries) * PAGE as u64;
                }
            }
            sum.page_bytes += changed.len() as u64 * PAGE as u64;
        }
        Ok(sum)
    }
}
