//! Verifies a file: header, log, trees, maps.
//!
//! ```text
//! header, log ─→ catalog ─→ tree of each table ─→ objects ─→ maps: pages in use = pages that a tree refers to
//! ```
//! Each page of a tree is verified by its check, its number, and its place: level, fences, order of
//! the keys. It holds for arbitrary bytes: a page with a right check and wrong contents is a
//! finding like another.
//!
//! Cost: each page in use is read once, those with objects twice; two bits of memory for each page of the file.

use std::convert::Infallible;
use std::path::Path;

use crate::contents::{Part, visit};
use crate::error::{Error, ErrorKind, Result};
use crate::finding::{Finding, Lost};
use crate::object::check::ObjectCheck;
use crate::object::lists::ObjectLists;
use crate::page::{PAGE, Page};
use crate::raw::{RawTable, entries, entry_lost};
use crate::space::{GROUP, is_used};
use crate::store_file::StoreFile;
use crate::walk::{NodeAt, Walk};

/// What is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Both copies of the header, the log, and the size of the file.
    Quick,
    /// Everything.
    All,
}

/// What a check has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Checked {
    /// Findings.
    pub findings: u64,
    /// Tables of the catalog; 0 of a quick check.
    pub tables: u64,
    /// Entries of all tables that could be read; 0 of a quick check.
    pub entries: u64,
    /// Pages of trees that could be read; 0 of a quick check.
    pub pages: u64,
    /// Objects in pages that could be read; 0 of a quick check.
    pub objects: u64,
}

/// Verifies a file, and calls `found` for each finding. The file is not changed. A file without a
/// header that can be used is one finding.
///
/// # Errors
/// As [`StoreFile::open`], except [`ErrorKind::Corrupt`].
pub fn check(path: impl AsRef<Path>, scope: Scope, found: impl FnMut(Finding)) -> Result<Checked> {
    check_opened(StoreFile::open(path), scope, found)
}

/// Verifies a file that was opened, or could not be opened.
pub(crate) fn check_opened(file: Result<StoreFile>, scope: Scope, mut found: impl FnMut(Finding)) -> Result<Checked> {
    match file {
        Ok(file) => file.check(scope, found),
        Err(error) if error.kind() == ErrorKind::Corrupt => {
            found(Finding::at_page(error.page().unwrap_or(0), error.what(), Lost::All));
            Ok(Checked { findings: 1, ..Checked::default() })
        }
        Err(error) => Err(error),
    }
}

impl StoreFile {
    /// Verifies the file, and calls `found` for each finding.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if the size of the file cannot be read. Pages that cannot be read are
    /// findings.
    pub fn check(&self, scope: Scope, mut found: impl FnMut(Finding)) -> Result<Checked> {
        let mut checked = Checked::default();
        let mut found = |finding: Finding| {
            checked.findings += 1;
            found(finding);
        };
        self.findings.iter().cloned().for_each(&mut found);
        let is_readable = !self.findings.iter().any(|finding| finding.lost == Lost::All);
        if is_readable {
            self.check_size(&mut found)?;
        }
        if scope == Scope::Quick || !is_readable {
            return Ok(checked);
        }
        let (mut walk, mut tables, mut counted, mut is_damaged) = (Walk::new(self), 0, 0, false);
        let mut lists = ObjectLists::default();
        let Ok(()) = visit(&mut walk, &mut |part| {
            match part {
                Part::Node(table, at) if ObjectLists::is_part(table) => lists.add(table, at),
                Part::Table(table) => tables += u64::from(!ObjectLists::is_part(table)),
                Part::Node(table, at) => {
                    counted += if at.node.is_leaf() { at.node.count() as u64 } else { 0 };
                    self.check_entries(table, at, &mut found);
                }
                Part::Damage { finding, .. } => {
                    is_damaged = true;
                    found(finding);
                }
            }
            Ok::<(), Infallible>(())
        });
        let mut objects = ObjectCheck::new(self, &lists);
        objects.run(&mut walk, &mut found);
        checked.objects = objects.objects;
        self.check_maps(&walk, is_damaged, &mut found);
        (checked.tables, checked.entries, checked.pages) = (tables, counted, walk.visited.count());
        Ok(checked)
    }

    /// Compares the entries of a leaf with the types of its table, up to the first difference, and reads
    /// their large values.
    fn check_entries(&self, table: &RawTable, at: NodeAt<'_>, found: &mut dyn FnMut(Finding)) {
        let mut is_first = true;
        let Ok(()) = entries(self, at, |key, value| {
            match value {
                Ok(value) if is_first && !table.has_types_of(key, value) => {
                    is_first = false;
                    let what = format!(
                        "an entry has bytes that are no key of type {} or no value of type {}",
                        table.key_type, table.value_type
                    );
                    found(Finding::at_page(at.page, what, entry_lost(table, key)));
                }
                Ok(_) => {}
                Err(wrong) => found(wrong.finding(table, key)),
            }
            Ok::<(), Infallible>(())
        });
    }

    /// The file is as long as its header says, unless the log has made it smaller.
    fn check_size(&self, found: &mut dyn FnMut(Finding)) -> Result<()> {
        let bytes = self.storage.bytes().map_err(|error| Error::io(&self.path, "read", &error))?;
        if let Some(what) = self.log.wrong_size(bytes) {
            let (first, last) = ((bytes / PAGE as u64) as u32, self.end().saturating_sub(1));
            found(Finding { offset: bytes, what, lost: Lost::Pages(first, last) });
        }
        Ok(())
    }

    /// Compares the maps with the pages that trees refer to. If a tree is damaged, such pages may belong to it.
    fn check_maps(&self, walk: &Walk<'_>, is_damaged: bool, found: &mut dyn FnMut(Finding)) {
        let mut map = [0; PAGE];
        for first in self.maps() {
            let last = first + (GROUP - 1);
            match self.map(first, &mut map) {
                Ok(()) => self.check_map(first, &map, (walk, is_damaged), found),
                Err(what) => {
                    let what =
                        format!("{what}; it is the map that says which of the pages {first} to {last} are in use");
                    found(Finding::at_page(first, what, Lost::Nothing));
                }
            }
        }
    }

    /// Compares a map, in runs of pages with the same difference.
    fn check_map(&self, first: u32, map: &Page, (walk, is_damaged): (&Walk<'_>, bool), found: &mut dyn FnMut(Finding)) {
        let difference = |number: u32| {
            if number >= first + GROUP {
                return None;
            }
            let is_inside = number < self.end();
            match (is_used(map, number - first), is_inside && walk.referenced.contains(number)) {
                (true, false) if !is_inside => Some(Difference::Outside),
                (true, false) if is_damaged => Some(Difference::Unreachable),
                (true, false) => Some(Difference::Leaked),
                (false, true) => Some(Difference::Unmarked),
                _ => None,
            }
        };
        let (mut number, end) = (first + 1, first + GROUP);
        while number < end {
            let Some(kind) = difference(number) else {
                number += 1;
                continue;
            };
            let pages = (number..end).take_while(|&next| difference(next) == Some(kind)).count() as u32;
            found(kind.finding(number, pages));
            number += pages;
        }
    }
}

/// How a map and the trees contradict each other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Difference {
    Leaked,
    /// As leaked, where a tree is damaged.
    Unreachable,
    Unmarked,
    Outside,
}

impl Difference {
    /// The finding of `pages` pages from `first` on.
    fn finding(self, first: u32, pages: u32) -> Finding {
        let subject = if pages == 1 { "the page is".to_owned() } else { format!("{pages} pages from here on are") };
        let bytes = u64::from(pages) * PAGE as u64;
        let space = Lost::Space(bytes);
        let (what, lost) = match self {
            Self::Leaked => ("in use in the map, and no tree that can be read refers to it", space),
            Self::Unreachable => {
                ("in use in the map, and no tree that can be read refers to it", Lost::Unreachable(bytes))
            }
            Self::Unmarked => ("in a tree, and unused in the map: a commit can overwrite it", Lost::Nothing),
            Self::Outside => ("in use in the map, and behind the end of the store", space),
        };
        let what = if pages == 1 { what.to_owned() } else { what.replace(" it", " them") };
        Finding::at_page(first, format!("{subject} {what}"), lost)
    }
}
