//! The operations of OO7, in the order in which they are measured.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fieldstone_peers::oo7::Visits;
use fieldstone_store::{Snapshot, Store, Transaction};

use super::contents::Contents;
use super::model::Model;
use super::{queries, structure, traversals, updates};

/// What an operation has visited or changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// The number of visits or changes.
    pub(super) count: u64,
    /// The sum of the visited ids, unless the operation defines another one.
    pub(super) sum: u64,
}

impl Found {
    pub(super) fn add(&mut self, id: u32) {
        self.count += 1;
        self.sum += u64::from(id);
    }

    /// The sum of a traversal depends on the order of its visits.
    pub(super) const fn of_visits(visits: Visits) -> Self {
        Self { count: visits.count, sum: visits.sum }
    }
}

/// How an operation uses the store.
#[derive(Clone, Copy, Debug)]
pub(super) enum Work {
    /// By a snapshot.
    Read(fn(&Snapshot, &Contents) -> Result<Found>),
    /// By a transaction.
    Change(fn(&mut Transaction, &Contents) -> Result<Found>),
}

/// An operation of OO7.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    /// The beginning of the names of its rows.
    pub(super) name: &'static str,
    pub(super) work: Work,
    /// What it must find in a database that is as it was built, also after earlier runs of it.
    pub(super) expected: fn(&Model) -> Found,
}

/// The time of a run of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunTime {
    /// From the snapshot or the begin of the transaction to the end, with the commit.
    pub(super) total: Duration,
    /// The commit; zero without changes.
    pub(super) commit: Duration,
}

const fn read(
    name: &'static str,
    work: fn(&Snapshot, &Contents) -> Result<Found>,
    expected: fn(&Model) -> Found,
) -> Operation {
    Operation { name, work: Work::Read(work), expected }
}

const fn change(
    name: &'static str,
    work: fn(&mut Transaction, &Contents) -> Result<Found>,
    expected: fn(&Model) -> Found,
) -> Operation {
    Operation { name, work: Work::Change(work), expected }
}

/// The traversal that is compared with objects in memory: the place of T1 in [`OPERATIONS`].
pub(super) const T1: usize = 0;

/// All operations. Those that read come first: the others change dates.
pub(super) const OPERATIONS: [Operation; 19] = [
    read("T1 visit all parts", traversals::visit_all, Model::visits),
    read("T6 visit root parts", traversals::visit_roots, Model::root_visits),
    read("T8 scan the manual", traversals::scan_manual, Model::manual_characters),
    read("T9 compare two characters", traversals::compare_ends, Model::manual_ends),
    read("Q1 10 parts by id", queries::look_up_parts, Model::looked_up_parts),
    read("Q2 1 % of the dates", queries::new_parts, Model::new_parts),
    read("Q3 10 % of the dates", queries::newer_parts, Model::newer_parts),
    read("Q4 users of 100 titles", queries::users_of_titles, Model::users_of_titles),
    read("Q5 older assemblies", queries::older_assemblies, Model::older_assemblies),
    read("Q7 all parts by id", queries::all_parts, Model::all_parts),
    read("Q8 parts with documents", queries::parts_with_documents, Model::parts_with_documents),
    change("T2a swap root parts", updates::swap_roots, Model::changed_roots),
    change("T2b swap all parts", updates::swap_all, Model::changed_parts),
    change("T2c swap all 4 times", updates::swap_all_4_times, Model::parts_changed_4_times),
    change("T3a dates of root parts", updates::date_roots, Model::changed_roots),
    change("T3b dates of all parts", updates::date_all, Model::changed_parts),
    change("T3c dates of all 4 times", updates::date_all_4_times, Model::parts_changed_4_times),
    change("insert 10 parts", structure::insert, Model::changed_composites),
    change("delete 10 parts", structure::delete, Model::changed_composites),
];

impl Operation {
    /// Whether it commits changes.
    pub(super) const fn is_change(&self) -> bool {
        matches!(self.work, Work::Change(_))
    }

    /// Runs it once.
    ///
    /// # Errors
    /// Those of the store, and if it finds something else than `expected`.
    pub(super) fn run(&self, store: &Store, contents: &Contents, expected: Found) -> Result<RunTime> {
        self.try_run(store, contents, expected).with_context(|| format!("cannot run {}", self.name))
    }

    fn try_run(&self, store: &Store, contents: &Contents, expected: Found) -> Result<RunTime> {
        let (start, mut commit) = (Instant::now(), Duration::ZERO);
        let found = match self.work {
            Work::Read(read) => read(&store.read()?, contents)?,
            Work::Change(change) => {
                let mut tx = store.begin()?;
                let found = change(&mut tx, contents)?;
                let since = Instant::now();
                tx.commit()?;
                commit = since.elapsed();
                found
            }
        };
        let total = start.elapsed();
        ensure!(found == expected, "it has found {found:?}, not {expected:?}");
        Ok(RunTime { total, commit })
    }
}
