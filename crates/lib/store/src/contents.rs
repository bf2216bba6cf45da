//! Visits all that a file contains: the catalog, then the tree of each table.

use crate::catalog::TableEntry;
use crate::finding::{Finding, Lost};
use crate::node::Node;
use crate::raw::RawTable;
use crate::walk::{Damage, KeyRange, NodeAt, Place, Visited, Walk};

/// A part of the contents.
pub(crate) enum Part<'a> {
    /// A table: its nodes follow.
    Table(&'a RawTable),
    /// A node of a table.
    Node(&'a RawTable, NodeAt<'a>),
    /// Something that cannot be read.
    Damage {
        finding: Finding,
        /// The place in the tree of a table; `None` in the catalog.
        place: Option<Place>,
    },
}

/// A table as the catalog describes it.
struct Listed {
    table: RawTable,
    root: u32,
    /// The page of the catalog.
    page: u32,
}

/// Visits the tables of a file, and all damage.
///
/// # Errors
/// Those of `visit`, which end this.
pub(crate) fn visit<E>(walk: &mut Walk<'_>, visit: &mut dyn FnMut(Part<'_>) -> Result<(), E>) -> Result<(), E> {
    for Listed { table, root, page } in catalog(walk, visit)? {
        visit(Part::Table(&table))?;
        walk.tree(root, page, &mut |visited| match visited {
            Visited::Node(node) => visit(Part::Node(&table, node)),
            Visited::Damage(damage) => {
                let lost = |(from, to)| Lost::Entries { table: table.clone(), from, to };
                each_finding(&damage, lost, |finding| {
                    visit(Part::Damage { finding, place: Some(damage.place.clone()) })
                })
            }
        })?;
    }
    Ok(())
}

/// The tables of a file; damage of the catalog is visited.
fn catalog<E>(walk: &mut Walk<'_>, visit: &mut dyn FnMut(Part<'_>) -> Result<(), E>) -> Result<Vec<Listed>, E> {
    let (root, mut tables) = (walk.file.header.catalog(), Vec::new());
    walk.tree(root, root, &mut |visited| match visited {
        Visited::Node(NodeAt { page, node, .. }) if node.is_leaf() => (0..node.count()).try_for_each(|index| {
            match listed(page, node, index) {
                Ok(table) => tables.push(table),
                Err(finding) => visit(Part::Damage { finding: *finding, place: None })?,
            }
            Ok(())
        }),
        Visited::Node(..) => Ok(()),
        Visited::Damage(damage) => each_finding(
            &damage,
            |(from, to)| Lost::Tables { from, to },
            |finding| visit(Part::Damage { finding, place: None }),
        ),
    })?;
    Ok(tables)
}

/// A table of a leaf of the catalog.
fn listed(page: u32, node: Node<'_>, index: usize) -> Result<Listed, Box<Finding>> {
    let mut name = Vec::new();
    node.append_key(index, &mut name);
    let wrong = |what: &str, name: Vec<u8>| {
        let behind = [name.as_slice(), &[0]].concat();
        Box::new(Finding::at_page(page, what, Lost::Tables { from: name, to: Some(behind) }))
    };
    let entry = TableEntry::decode_or(node.value(index), |what| wrong(what, name.clone()))?;
    Ok(Listed { table: entry.table_or(name, wrong)?, root: entry.root, page })
}

/// The findings of some damage: one for each range of missing keys.
fn each_finding<E>(
    damage: &Damage,
    lost: impl Fn(KeyRange) -> Lost,
    visit: impl FnMut(Finding) -> Result<(), E>,
) -> Result<(), E> {
    let mut all: Vec<Lost> = damage.missing.iter().cloned().map(lost).collect();
    if all.is_empty() {
        all.push(Lost::Nothing);
    }
    all.into_iter().map(|lost| Finding::at_page(damage.page, damage.what.as_str(), lost)).try_for_each(visit)
}
