//! The objects of OO7, and the tables of their texts and indexes.
//!
//! ```text
//! module ─→ assembly … ─→ base assembly ⇄ composite part ⇄ atomic parts ⇄ connections
//! module ⇄ manual                         composite part ⇄ document
//! ```
//! The texts of the manual and of the documents are values of tables: an object has at most 3,000 bytes.
//! A composite part has a root of the store, so a collection keeps it while no assembly uses it.

use fieldstone_peers::oo7::{BASE_COMPONENTS, FAN_OUT, OUTGOING};
use fieldstone_store::{LongPtr, Ptr, Table, stored};

use super::sets::{BaseAssemblySet, CompositePartSet, ConnectionSet};

stored! {
    /// A design.
    pub(super) struct Module {
        pub(super) id: u32,
        pub(super) kind: [u8; 10],
        pub(super) build_date: u32,
        pub(super) manual: Ptr<Manual>,
        /// The assembly above all others.
        pub(super) design_root: Ptr<Assembly>,
    }

    /// The manual of a module. Its text is in [`MANUALS`].
    pub(super) struct Manual {
        pub(super) id: u32,
        pub(super) title: [u8; 40],
        /// Bytes of the text.
        pub(super) length: u32,
        pub(super) module: Ptr<Module>,
    }

    /// A complex assembly, or at level 1 a base assembly.
    pub(super) struct Assembly {
        pub(super) id: u32,
        pub(super) kind: [u8; 10],
        pub(super) build_date: u32,
        pub(super) level: u32,
        pub(super) super_assembly: Ptr<Assembly>,
        pub(super) module: Ptr<Module>,
        /// Of a complex assembly.
        pub(super) assemblies: [Ptr<Assembly>; FAN_OUT],
        /// Of a base assembly: the composite parts that the traversals visit.
        pub(super) private: [Ptr<CompositePart>; BASE_COMPONENTS],
        /// Of a base assembly: composite parts that the traversals do not visit.
        pub(super) shared: Ptr<CompositePartSet>,
    }

    /// A composite part.
    pub(super) struct CompositePart {
        pub(super) id: u32,
        pub(super) kind: [u8; 10],
        pub(super) build_date: u32,
        pub(super) document: Ptr<Document>,
        /// Base assemblies that have it in [`Assembly::private`].
        pub(super) used_in_private: Ptr<BaseAssemblySet>,
        /// Base assemblies that have it in [`Assembly::shared`].
        pub(super) used_in_shared: Ptr<BaseAssemblySet>,
        /// Where traversals begin.
        pub(super) root_part: Ptr<AtomicPart>,
        /// Of the list of its parts, by [`AtomicPart::next`].
        pub(super) first_part: Ptr<AtomicPart>,
    }

    /// The document of a composite part. Its text is in [`TEXTS`].
    pub(super) struct Document {
        pub(super) id: u32,
        pub(super) title: [u8; 40],
        pub(super) part: Ptr<CompositePart>,
    }

    /// An atomic part.
    pub(super) struct AtomicPart {
        pub(super) id: u32,
        pub(super) kind: [u8; 10],
        pub(super) build_date: u32,
        pub(super) x: u32,
        pub(super) y: u32,
        /// The id of the document of its composite part.
        pub(super) document_id: u32,
        pub(super) to: [Ptr<Connection>; OUTGOING],
        pub(super) from: Ptr<ConnectionSet>,
        pub(super) part_of: Ptr<CompositePart>,
        /// The next part of its composite part.
        pub(super) next: Ptr<AtomicPart>,
    }

    /// A connection between atomic parts of one composite part.
    pub(super) struct Connection {
        pub(super) kind: [u8; 10],
        pub(super) length: u32,
        pub(super) from: Ptr<AtomicPart>,
        pub(super) to: Ptr<AtomicPart>,
    }
}

/// The index of atomic parts by their ids.
pub(super) const ATOMIC_PARTS: Table<u32, LongPtr<AtomicPart>> = Table::new("atomic parts");
/// The index of atomic parts by [`date_key`].
pub(super) const BUILD_DATES: Table<u64, LongPtr<AtomicPart>> = Table::new("build dates");
/// The index of composite parts by their ids.
pub(super) const COMPOSITE_PARTS: Table<u32, LongPtr<CompositePart>> = Table::new("composite parts");
/// The index of base assemblies by their ids.
pub(super) const BASE_ASSEMBLIES: Table<u32, LongPtr<Assembly>> = Table::new("base assemblies");
/// The index of modules by their ids.
pub(super) const MODULES: Table<u32, LongPtr<Module>> = Table::new("modules");
/// The index of documents by their ids.
pub(super) const DOCUMENTS: Table<u32, LongPtr<Document>> = Table::new("documents");
/// The index of documents by their titles.
pub(super) const TITLES: Table<str, LongPtr<Document>> = Table::new("titles");
/// The texts of documents by their ids.
pub(super) const TEXTS: Table<u32, str> = Table::new("texts");
/// The texts of manuals by their ids.
pub(super) const MANUALS: Table<u32, str> = Table::new("manuals");

/// The root of the module.
pub(super) const MODULE: &str = "module";

/// The root of a composite part.
pub(super) fn composite_root(id: u32) -> String {
    format!("composite part {id}")
}

/// The key of an atomic part in [`BUILD_DATES`]: keys are ordered by the date.
pub(super) const fn date_key(build_date: u32, id: u32) -> u64 {
    (build_date as u64) << 32 | id as u64
}

/// The title of the document of a composite part.
pub(super) fn title(id: u32) -> String {
    format!("Composite Part {id:08}")
}

/// A title as a field, with zeros behind it.
pub(super) fn title_field(title: &str) -> [u8; 40] {
    let mut field = [0; 40];
    field.iter_mut().zip(title.bytes()).for_each(|(place, byte)| *place = byte);
    field
}
