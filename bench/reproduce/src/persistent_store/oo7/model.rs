//! What each operation must find, computed from the numbers of the database without a store.

use fieldstone_peers::oo7::{MemoryGraph, NativePointers, Visits, visit_parts, visit_root_parts};

use super::build::MODULE_ID;
use super::contents::{CHANGED_PARTS, Contents, id_of, manual_text};
use super::operations::Found;
use super::queries::{DATE_OF_1_PERCENT, DATE_OF_10_PERCENT, LOOK_UPS, TITLE_LOOK_UPS, random_ids};
use super::traversals::COUNTED;

/// The database as numbers, and its graph with native pointers.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) contents: Contents,
    graph: MemoryGraph<NativePointers>,
}

impl Model {
    pub(super) fn new(contents: Contents) -> Self {
        let graph = MemoryGraph::build(&contents.design, NativePointers::new());
        Self { contents, graph }
    }

    /// T1 with native pointers.
    pub(super) fn traverse(&self) -> Visits {
        visit_parts(&self.graph)
    }

    pub(super) fn visits(&self) -> Found {
        Found::of_visits(self.traverse())
    }

    pub(super) fn root_visits(&self) -> Found {
        Found::of_visits(visit_root_parts(&self.graph))
    }

    /// The private composite parts of all base assemblies, as indexes.
    fn private(&self) -> impl Iterator<Item = usize> {
        self.contents.design.components.iter().flatten().copied()
    }

    pub(super) fn changed_roots(&self) -> Found {
        found(self.private().map(|composite| id_of(composite * self.contents.size.parts)))
    }

    pub(super) fn changed_parts(&self) -> Found {
        let parts = self.contents.size.parts;
        found(self.private().flat_map(|composite| (composite * parts..(composite + 1) * parts).map(id_of)))
    }

    pub(super) fn parts_changed_4_times(&self) -> Found {
        let Found { count, sum } = self.changed_parts();
        Found { count: 4 * count, sum: 4 * sum }
    }

    pub(super) fn manual_characters(&self) -> Found {
        let text = manual_text(MODULE_ID, self.contents.size.manual_bytes);
        Found { count: text.matches(char::from(COUNTED)).count() as u64, sum: text.len() as u64 }
    }

    pub(super) fn manual_ends(&self) -> Found {
        let text = manual_text(MODULE_ID, self.contents.size.manual_bytes);
        Found { count: (text.chars().next() == text.chars().next_back()).into(), sum: text.len() as u64 }
    }

    pub(super) fn looked_up_parts(&self) -> Found {
        found(random_ids(LOOK_UPS, self.contents.design.fields.len()))
    }

    pub(super) fn new_parts(&self) -> Found {
        self.parts_from(DATE_OF_1_PERCENT)
    }

    pub(super) fn newer_parts(&self) -> Found {
        self.parts_from(DATE_OF_10_PERCENT)
    }

    fn parts_from(&self, date: u32) -> Found {
        let fields = self.contents.design.fields.iter().enumerate();
        found(fields.filter(|(_, fields)| fields.build_date >= date).map(|(index, _)| id_of(index)))
    }

    /// The composite parts of a base assembly, as indexes.
    fn parts_of(&self, base: usize) -> impl Iterator<Item = usize> {
        self.contents.design.components[base].into_iter().chain(self.contents.shared[base])
    }

    pub(super) fn users_of_titles(&self) -> Found {
        let users = |id: u32| {
            let uses = (0..self.contents.bases()).flat_map(|base| self.parts_of(base).map(move |part| (base, part)));
            uses.filter(move |&(_, part)| id_of(part) == id).map(|(base, _)| id_of(base))
        };
        found(random_ids(TITLE_LOOK_UPS, self.contents.size.composites).flat_map(users))
    }

    pub(super) fn older_assemblies(&self) -> Found {
        let Contents { base_dates, composite_dates, .. } = &self.contents;
        let is_older = |base: &usize| self.parts_of(*base).any(|part| composite_dates[part] > base_dates[*base]);
        found((0..base_dates.len()).filter(is_older).map(id_of))
    }

    pub(super) fn all_parts(&self) -> Found {
        found((0..self.contents.design.fields.len()).map(id_of))
    }

    pub(super) fn parts_with_documents(&self) -> Found {
        found(self.contents.design.fields.iter().map(|fields| fields.document))
    }

    pub(super) fn changed_composites(&self) -> Found {
        Found { count: CHANGED_PARTS as u64, sum: (CHANGED_PARTS * self.contents.size.parts) as u64 }
    }
}

fn found(ids: impl Iterator<Item = u32>) -> Found {
    let mut found = Found::default();
    ids.for_each(|id| found.add(id));
    found
}
