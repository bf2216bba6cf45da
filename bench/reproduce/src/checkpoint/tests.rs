//! The values of the cells of a writer.

use std::collections::BTreeSet;

use super::*;
use crate::experiment::{MeasuredValue, Row, SampleOutcome};
use crate::layout::Layout;
use crate::trial::{Task, Trial};

/// The rows of a cell with a tiny heap, and the values of a sample.
fn sample(set: usize, method: Method) -> (Vec<Row>, Vec<MeasuredValue>) {
    let setting = Setting { set: &WORKING_SETS[set], bytes: 4 << 20, method, saves: 2 };
    let cell = setting.cell("test");
    let layout = Layout::of_seed(3);
    let trial = Trial { cell: cell.id.clone(), layout, quick: true, memory_bytes: u64::MAX, task: Task::Time };
    let SampleOutcome::Measured { figures, .. } = (cell.measure)(&trial).unwrap() else { panic!("it was skipped") };
    (cell.rows, figures)
}

#[test]
fn both_methods_fill_the_same_rows_of_each_table() {
    let mut of_methods = Vec::new();
    for (set, method) in [(0, Method::Checkpoint), (0, Method::Fork), (1, Method::Checkpoint)] {
        let (rows, values) = sample(set, method);
        let names: BTreeSet<String> = rows.iter().map(Row::value_name).collect();
        assert!(values.iter().all(|value| names.contains(&value.row)));
        assert_eq!(names.len(), rows.len(), "no two rows have one name");
        // The last points of a curve are missing if the writer ended before.
        let measured: BTreeSet<&str> = values.iter().map(|value| value.row.as_str()).collect();
        let missing = rows.iter().filter(|row| !measured.contains(row.value_name().as_str()));
        assert!(missing.clone().all(|row| row.at_s.is_some()), "{:?}", missing.collect::<Vec<_>>());
        let points = rows.iter().filter(|row| row.at_s.is_some() && measured.contains(row.value_name().as_str()));
        assert!(points.count() > 300);
        of_methods.push(rows.iter().map(|row| row.table).collect::<BTreeSet<_>>());
    }
    assert_eq!(of_methods[0], of_methods[1]);
    assert_ne!(of_methods[0], of_methods[2]);
}

#[test]
fn each_save_is_counted_in_one_class_of_each_kind() {
    for method in Method::ALL {
        let (rows, values) = sample(1, method);
        let of = |row: &Row| values.iter().find(|value| value.row == row.value_name()).map_or(0.0, |value| value.value);
        let classes = || rows.iter().filter(|row| row.column.is_some());
        assert_eq!(classes().map(of).sum::<f64>(), 4.0, "two saves, each with a stop and a longest time");
        let named = |name: &str| values.iter().find(|value| value.row.starts_with(name)).unwrap().value;
        let (stopped, resumed, end) =
            (named("begin to stop"), named("begin to end of the stop"), named("begin to end of the save"));
        assert!(stopped <= resumed && resumed <= end, "{stopped} {resumed} {end}");
        assert!(named("speed of the writer") > 0.0);
    }
}

#[test]
fn ids_differ_and_large_heaps_are_measured_on_request() {
    let cells = |scale| cells(scale).into_iter().map(|cell| cell.id).collect::<Vec<_>>();
    let (full, quick) = (cells(Scale::Full), cells(Scale::Quick));
    let all: BTreeSet<&String> = full.iter().chain(&quick).collect();
    assert_eq!(all.len(), full.len() + quick.len(), "an id is one size of work");
    assert_eq!(full.iter().filter(|id| id.contains(ON_REQUEST)).count(), 4);
    assert!(full.contains(&"checkpoint/writer/all-pages/1024M/fork".to_owned()), "{full:?}");
}
