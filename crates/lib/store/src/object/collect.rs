//! When objects are collected: by [`Store::collect`], or at commits.

use std::sync::Arc;
use std::time::Instant;

use crate::editor::Editor;
use crate::error::Result;
use crate::lock::lock;
use crate::object::collection::{CollectReport, collect};
use crate::store::Store;
use crate::transaction::Transaction;

impl Store {
    /// Removes the objects that no root reaches, and frees pages without objects. Others read and write
    /// meanwhile: each step is a transaction that changes at most 8 pages. A collection that runs at commits
    /// ends.
    ///
    /// It removes each object that no root reached when it began, also if a program has kept a [`crate::Ptr`]
    /// or [`crate::LongPtr`] to it. Snapshots that were taken before still have it.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Corrupt`] if a page of objects is damaged: nothing is removed then. As
    /// [`Transaction::commit`]: what was removed before stays removed.
    pub fn collect(&self) -> Result<CollectReport> {
        let mut collector = lock(&self.0.objects.collector);
        collector.stop();
        let version = self.begin()?.reader.version;
        let report = collect(&self.0.shared, version, |step| {
            let mut transaction = self.begin()?;
            let start = Instant::now();
            transaction.change(|editor| step(editor))?;
            transaction.commit()?;
            Ok(start.elapsed())
        })?;
        collector.add(&report);
        self.0.objects.set_collected(&collector);
        Ok(report)
    }

    /// What all collections since the store was opened have removed, and what they cost, without those of
    /// [`Store::collect`] that still run.
    #[must_use]
    pub fn collected(&self) -> CollectReport {
        lock(&self.0.objects.collected).clone()
    }
}

impl Transaction {
    /// Does a step of a collection, if the store collects at commits.
    pub(crate) fn collect_step(&mut self) {
        let open = Arc::clone(&self.open);
        // `Store::collect` has it until it is done.
        let Ok(mut collector) = open.objects.collector.try_lock() else { return };
        if !collector.is_at_commit || self.edits.pages.is_empty() || self.failure.is_some() {
            return;
        }
        let (shared, version) = (&*open.shared, self.reader.version);
        let mark = self.edits.mark();
        let mut editor = Editor { shared, edits: &mut self.edits, writer: &self.writer, version };
        if !collector.step(&open.shared, &mut editor, self.objects.changed_bytes) {
            self.edits.roll_back_to(mark, shared);
        }
        open.objects.set_collected(&collector);
    }
}
