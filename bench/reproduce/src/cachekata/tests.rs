//! Tests of all rows and cells, and of the values of constructed runs.

use std::collections::BTreeSet;
use std::time::Duration;

use super::program::{ALL, Form, LINEAR_REGRESSION};
use super::run::{Event, TimedRun};
use super::sized_program::Round;
use super::timeline::{Progress, with_clock_times};
use super::*;
use crate::experiment::{MeasuredValue, Row};

fn timed_run(seconds: f64, moved: usize) -> TimedRun {
    let event = || Event { at_ms: 20.0, kind: "moved".into() };
    let events = (0..moved).map(|_| event()).collect();
    TimedRun { kernel: Duration::from_secs_f64(seconds), processors: 2.0, events, errors: String::new() }
}

fn value(figures: &[MeasuredValue], row: &str) -> f64 {
    let figure = figures.iter().find(|figure| figure.row == row).unwrap_or_else(|| panic!("no {row} in {figures:?}"));
    figure.ratio.unwrap_or(figure.value)
}

#[test]
fn a_round_is_compared_with_one_thread_alone() {
    let forms = [
        (Form::Padded, timed_run(1.25, 0)),
        (Form::Repaired, timed_run(1.5, 1)),
        (Form::Ladder, timed_run(2.5, 1)),
        (Form::Shared, timed_run(4.5, 0)),
        (Form::Alone, timed_run(1.0, 0)),
    ];
    let figures = scaling::figures(&Round(forms.into()));
    for (row, expected) in [
        ("with false sharing", 1.0 / 4.5),
        ("with false sharing, repaired", 1.0 / 1.5),
        ("with false sharing, repaired by a single ladder", 0.4),
        ("padded by hand", 0.8),
        ("speedup by the repair", 3.0),
        ("time repaired, relative to padded by hand", 1.2),
        ("pages that the repair moved", 1.0),
    ] {
        assert!((value(&figures, row) - expected).abs() < 1e-9, "{row}: {figures:?}");
    }
    let without = scaling::figures(&Round(vec![(Form::Alone, timed_run(1.0, 0)), (Form::Shared, timed_run(2.0, 0))]));
    assert_eq!(without.len(), 1, "{without:?}");
}

/// Rows of a cell with equal names would have the same number.
#[test]
fn rows_and_ids_are_distinct() {
    let ids = |scale| cells(scale).into_iter().map(|cell| cell.id).collect::<BTreeSet<_>>();
    assert_eq!(ids(Scale::Full).len(), cells(Scale::Full).len());
    assert!(ids(Scale::Full).is_superset(&ids(Scale::Quick)) && ids(Scale::Quick).len() > 8);
    for cell in cells(Scale::Full) {
        let names: BTreeSet<String> = cell.rows.iter().map(Row::value_name).collect();
        assert_eq!(names.len(), cell.rows.len(), "{}", cell.id);
    }
    assert!(crate::catalog::all().iter().any(|experiment| experiment.name == "cachekata"));
}

#[test]
fn a_form_has_its_own_options_and_each_thread_the_same_work() {
    let words = |form, threads| LINEAR_REGRESSION.arguments(form, threads, 7).join(" ");
    assert_eq!(words(Form::Alone, 4), "--shift 16 --pin --threads 1 --rounds 7 --points 500000");
    assert_eq!(words(Form::Repaired, 4), "--shift 16 --pin --threads 4 --rounds 7 --points 2000000");
    assert_eq!(words(Form::Padded, 4), "--padded --pin --threads 4 --rounds 7 --points 2000000");
}

/// Checks the names of files and options in the sources of the programs.
#[test]
fn the_programs_know_their_options() {
    let source = |file: &str| {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../workloads/src/sharing").join(file);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    for program in ALL {
        let (name, level) = program.file.split_once("-O").unwrap();
        assert!(matches!(level, "0" | "1" | "2" | "3"), "{}", program.file);
        let known = source(&format!("{name}.c")) + &source("threads.h");
        let all = [Form::Shared, Form::Padded].map(|form| program.arguments(form, 2, 1)).concat();
        for word in all.iter().filter(|word| word.parse::<u64>().is_err()) {
            assert!(known.contains(&format!("\"{word}\"")), "{name} does not know {word}");
        }
    }
}

/// The progress of a run from second 5: half the speed of the padded one for 40 ms, then the same.
const WORDS: &str = "init: 0.001\nat 5.000000: 0 done\nat 5.040000: 200 done\nat 5.500000: 4800 done\nat 5.505: 4800 done\nkernel: 0.505\n";

#[test]
fn progress_is_a_speed_between_any_two_times() {
    let progress = Progress::read(WORDS).unwrap();
    let near = |found: Option<f64>, wanted: f64| found.is_some_and(|found| (found - wanted).abs() < 1e-6);
    assert!(near(progress.rate(0.0, 0.02), 5000.0) && near(progress.rate(0.1, 0.12), 10_000.0));
    assert!(near(progress.rate(0.03, 0.05), 7500.0), "between two printed values");
    assert_eq!((progress.rate(0.49, 0.51), progress.rate(0.6, 0.5)), (None, None), "beyond the end");
    assert!(Progress::read("at 5.0: 0 done\nat 5.1: 7 done\n").unwrap_err().to_string().contains("at 5.1"));
}

#[test]
fn a_timeline_shows_speed_and_events_where_they_were() {
    let by_hand = Progress::read("at 1.0: 0 done\nat 1.5: 5000 done\nat 1.51: 5000 done\n").unwrap();
    let events = [(5025.0, "found"), (5031.0, "moved"), (5041.0, "led"), (5045.0, "led"), (5450.0, "undone")];
    let events = events.map(|(at_ms, kind)| Event { at_ms, kind: kind.into() });
    let figures = timeline::figures(&by_hand, &Progress::read(WORDS).unwrap(), &events);
    let speed = |bin: &str| value(&figures, &format!("speed, relative to padded by hand: {bin}"));
    assert!((speed("20 ms") - 0.5).abs() < 1e-9 && (speed("40 ms") - 1.0).abs() < 1e-9);
    assert!((speed("300 ms on") - 1.0).abs() < 1e-9);
    for (row, expected) in [
        ("lines found: 0 ms", 0.0),
        ("lines found: 20 ms", 1.0),
        ("pages moved: 20 ms", 1.0),
        ("accesses redirected: 40 ms", 2.0),
        ("pages moved back: 280 ms", 0.0),
        ("pages moved back: 300 ms on", 1.0),
    ] {
        assert_eq!(value(&figures, row), expected, "{row}");
    }
    for (row, at_ms) in [("first line found", 25.0), ("first page moved", 31.0), ("last access redirected", 45.0)] {
        assert!((value(&figures, row) - at_ms * 1e6).abs() < 1.0, "{row}");
    }
    // The values fill all rows of the cell, and no other.
    let rows: BTreeSet<String> = timeline::cells()[0].rows.iter().map(Row::value_name).collect();
    assert_eq!(figures.iter().map(|figure| figure.row.clone()).collect::<BTreeSet<_>>(), rows);
}

#[test]
fn the_event_with_the_smallest_delay_aligns_the_clocks() {
    let event = |at_ms, kind: &str| Event { at_ms, kind: kind.into() };
    let received = vec![(1020.5, event(20.0, "found")), (1030.1, event(30.0, "moved")), (1090.0, event(40.0, "led"))];
    let times: Vec<f64> = with_clock_times(received).into_iter().map(|event| event.at_ms).collect();
    assert!(
        times.iter().zip([1020.1, 1030.1, 1040.1]).all(|(found, wanted)| (found - wanted).abs() < 1e-9),
        "{times:?}"
    );
}
