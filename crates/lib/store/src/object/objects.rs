//! What an open store has for its objects.

use std::any::TypeId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use fieldstone_pages::Memory;

use crate::error::Result;
use crate::lock::lock;
use crate::object::collection::{CollectReport, Collector};
use crate::object::layout::Layout;
use crate::object::pointers::MOST_SLOTS;
use crate::object::stored::Object;
use crate::object::types;
use crate::object::window::{WindowOptions, WindowUse, Windows, empty_range};
use crate::shared::Shared;
use crate::snapshot::Snapshot;

/// Options of a store for its objects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObjectOptions {
    /// Slots for pages in a window.
    pub(crate) slots: u32,
    /// Memory of the pages in each window.
    pub(crate) memory_bytes: usize,
    pub(crate) collects_at_commit: bool,
}

impl ObjectOptions {
    pub(crate) const DEFAULT: Self = Self { slots: MOST_SLOTS, memory_bytes: 0, collects_at_commit: false };
}

/// What an open store has for its objects.
#[derive(Debug)]
pub(crate) struct Objects {
    pub(crate) windows: Windows,
    /// What a snapshot without objects reads.
    empty: Memory,
    /// Locked while a collection or a step of one runs.
    pub(crate) collector: Mutex<Collector>,
    /// The report of its last step. Whoever reads it waits for no collection.
    pub(crate) collected: Mutex<CollectReport>,
    /// The numbers of types that are committed.
    numbers: Mutex<HashMap<TypeId, u32>>,
}

impl Objects {
    pub(crate) fn new(shared: &Shared, options: ObjectOptions) -> Result<Self> {
        let ObjectOptions { slots, memory_bytes, collects_at_commit } = options;
        let collector = Mutex::new(Collector::new(collects_at_commit));
        let windows = Windows::new(WindowOptions { slots, memory_bytes });
        let (collected, numbers) = Default::default();
        Ok(Self { windows, empty: empty_range(&shared.path)?, collector, collected, numbers })
    }

    /// Publishes the report of the collector.
    pub(crate) fn set_collected(&self, collector: &Collector) {
        lock(&self.collected).clone_from(&collector.report);
    }

    /// The window of a snapshot, and the address of its first byte. A store without objects has no window.
    pub(crate) fn window(&self, shared: &Arc<Shared>, version: u64, end: u32) -> Result<(Option<WindowUse>, usize)> {
        if !shared.object_changes.has_objects() {
            return Ok((None, self.empty.start()));
        }
        let window = self.windows.take(shared, version, end)?;
        let start = window.start();
        Ok((Some(window), start))
    }

    /// The number of a type; `None` if the snapshot has no such objects.
    pub(crate) fn number<T: Object>(&self, shared: &Shared, snapshot: &Snapshot) -> Result<Option<u32>> {
        let type_id = TypeId::of::<T>();
        if let Some(&number) = lock(&self.numbers).get(&type_id) {
            return Ok(Some(number));
        }
        let number = types::number(snapshot, shared, T::NAME, &Layout::of::<T>())?;
        if let Some(number) = number {
            lock(&self.numbers).insert(type_id, number);
        }
        Ok(number)
    }
}
