//! The rows of a workload, each with the function that reads its number from the profiles.

use fieldstone_report::Footprint;
use fieldstone_report::translation::is_too_wide;

use crate::experiment::{MeasuredValue, Quantity, Row};

use super::profiles::{BoundedValue, Processor, Profiles, allocated_by, read_write, swapped};
use super::workload::{Job, Workload};

const MEMORY: &str = "Use of memory";
const COST_PAPER: &str = "Time in TLB misses on the paper's processor, an E5-2430";
const COST_HERE: &str = "Time in TLB misses on this processor";
const SEGMENT: &str = "D-TLB misses that are in the direct segment";
const SAVED: &str = "Saving of large pages here: predicted, and in real runs";
const WALKS: &str = "Page walks for data per 1,000 instructions";
const GUPS_PAPER: &str = "GUPS by size: page walks per update, E5-2430";
const GUPS_HERE: &str = "GUPS by size: page walks per update, this processor";
const GUPS_SAVED: &str = "GUPS by size: saving of large pages here";

/// Configurations by their names in a profile and in rows.
const CONFIGURATIONS: [(&str, &str); 4] =
    [("4k", "4 KiB pages"), ("2m", "2 MiB pages"), ("1g", "1 GiB pages"), ("direct-segment", "direct segment")];

type Read = Box<dyn Fn(&Profiles) -> Option<BoundedValue>>;

/// A row, and the function that reads its number.
pub(super) struct ProfileRow {
    pub(super) row: Row,
    read: Read,
}

impl ProfileRow {
    fn new(row: Row, read: impl Fn(&Profiles) -> Option<BoundedValue> + 'static) -> Self {
        Self { row, read: Box::new(read) }
    }

    /// The value of the row, or a dash if the profiles have none.
    pub(super) fn value(&self, profiles: &Profiles) -> MeasuredValue {
        let name = self.row.value_name();
        match (self.read)(profiles) {
            Some(found) => MeasuredValue { ends: found.ends, ..MeasuredValue::of(name, found.value) },
            None => MeasuredValue::word(name, "–"),
        }
    }
}

/// All rows of a workload.
pub(super) fn all_rows(workload: &Workload) -> Vec<ProfileRow> {
    let mut all = Vec::new();
    if let Some([permissions, costs, segment]) = workload.paper {
        all.extend(memory(permissions));
        all.extend(Processor::ALL.into_iter().flat_map(|processor| cost(processor, costs)));
        all.extend(Processor::ALL.map(|processor| in_segment(processor, segment)));
        all.extend(saved(SAVED, None));
        all.extend(Processor::ALL.into_iter().flat_map(walks));
    }
    if let (Job::Gups { column, .. }, Some(updates)) = (&workload.job, workload.job.updates()) {
        all.extend(Processor::ALL.into_iter().flat_map(|processor| scaling(processor, column, updates)));
        all.extend(saved(GUPS_SAVED, Some(column)));
    }
    all
}

fn quoted(table: &str, line: &str, column: &str) -> String {
    format!("direct-segments/{table}/{line}/{column}")
}

fn memory(line: &str) -> [ProfileRow; 4] {
    let of = |name: &str| Row::new(Quantity::Share, MEMORY, name);
    let read = |read: fn(&Footprint) -> Option<f64>| {
        move |profiles: &Profiles| profiles.footprint().and_then(read).map(BoundedValue::exactly)
    };
    let mapped = of("mapped with read-write permission").with_paper(quoted("memory", line, "read-write"));
    [
        ProfileRow::new(mapped, read(|footprint| read_write(footprint, |share| share.bytes))),
        ProfileRow::new(
            of("resident with read-write permission"),
            read(|footprint| read_write(footprint, |share| share.resident_bytes)),
        ),
        ProfileRow::new(of("allocated by, part of the run"), |profiles| {
            allocated_by(profiles.footprint()?, profiles.run_s()?).map(BoundedValue::exactly)
        }),
        ProfileRow::new(of("swapped out at most"), read(swapped)),
    ]
}

/// Shares of the time: for data with each configuration, and for instructions on small pages.
fn cost(processor: Processor, line: &str) -> Vec<ProfileRow> {
    let table = if processor == Processor::Paper { COST_PAPER } else { COST_HERE };
    let row = |what: &str, column: Option<&str>| {
        let row = Row::new(Quantity::Estimate, table, format!("{what}, {}", processor.name()));
        match column {
            Some(column) if processor == Processor::Paper => row.with_paper(quoted("cost", line, column)),
            _ => row,
        }
    };
    let papers = [Some("4KB D-TLB"), Some("2MB D-TLB"), Some("1GB D-TLB"), None];
    let mut all: Vec<ProfileRow> = CONFIGURATIONS
        .into_iter()
        .zip(papers)
        .map(|((name, words), paper)| {
            ProfileRow::new(row(&format!("{words}: data"), paper), move |profiles| {
                Some(BoundedValue::estimated(profiles.configuration(processor, name)?.data_share?))
            })
        })
        .collect();
    let fetches = ProfileRow::new(row("4 KiB pages: instructions", Some("4KB I-TLB")), move |profiles| {
        let share = profiles.configuration(processor, "4k")?.instruction_share?;
        // The cost of a walk comes from walks for data. With few of those, the estimate is noise.
        (!is_too_wide(share)).then(|| BoundedValue::estimated(share))
    });
    all.insert(1, fetches);
    all
}

fn in_segment(processor: Processor, line: &str) -> ProfileRow {
    let row = Row::new(Quantity::Share, SEGMENT, format!("misses of {}", processor.name()));
    let row = if processor == Processor::Paper { row.with_paper(quoted("segment", line, "in")) } else { row };
    ProfileRow::new(row, move |profiles| profiles.in_segment(processor).map(BoundedValue::exactly))
}

/// The predicted saving of each configuration, and the saving of large pages in real runs.
fn saved(table: &'static str, column: Option<&'static str>) -> Vec<ProfileRow> {
    let row = |shows, name: String| {
        let row = Row::new(shows, table, name);
        column.map_or_else(|| row.clone(), |column| row.clone().in_column(column))
    };
    let predicted = CONFIGURATIONS[1..].iter().map(|&(name, words)| {
        let row = row(Quantity::Estimate, format!("{words}, predicted"));
        ProfileRow::new(row, move |profiles| profiles.predicted(name))
    });
    let real = |words: &str| row(Quantity::Share, format!("2 MiB pages, {words}"));
    let user = ProfileRow::new(real("real runs in user mode"), |profiles| profiles.saved_in_user_mode("thp"));
    let whole = ProfileRow::new(real("real runs"), |profiles| profiles.saved("thp"));
    predicted.chain([user, whole]).collect()
}

fn walks(processor: Processor) -> Vec<ProfileRow> {
    let reading = |(name, words): (&'static str, &str)| {
        let row = Row::new(Quantity::Walks, WALKS, format!("{words}, walks on {}", processor.name()));
        ProfileRow::new(row, move |profiles| {
            profiles.walks_per_instruction(processor, name).map(|walks| BoundedValue::exactly(walks * 1e3))
        })
    };
    CONFIGURATIONS.map(reading).into()
}

fn scaling(processor: Processor, column: &'static str, updates: u64) -> Vec<ProfileRow> {
    let table = if processor == Processor::Paper { GUPS_PAPER } else { GUPS_HERE };
    let reading = |(name, words): (&'static str, &str)| {
        let row = Row::new(Quantity::Walks, table, format!("{words}, {}", processor.name())).in_column(column);
        ProfileRow::new(row, move |profiles| {
            profiles.walks(processor, name).map(|walks| BoundedValue::exactly(walks / updates as f64))
        })
    };
    CONFIGURATIONS.map(reading).into()
}
