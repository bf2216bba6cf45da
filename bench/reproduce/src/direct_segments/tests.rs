use std::collections::BTreeSet;

use fieldstone_report::{PermissionShare, Profile};
use fieldstone_stats::Interval;

use super::profiles::{Processor, Profiles};
use super::*;
use crate::experiment::MeasuredValue;

/// A constructed profile; the expected numbers are computed from it by hand.
fn traced() -> Profile {
    serde_json::from_str(include_str!("../../tests/traced.json")).unwrap()
}

/// The same with half as many walks on the paper's processor.
fn profiles() -> Profiles {
    let mut paper = traced();
    let mut here = traced();
    // An inaccessible range, which is no memory.
    let reserved = PermissionShare { permission: "---".into(), bytes: 64 << 20, resident_bytes: 0 };
    here.footprints[0].permissions.push(reserved);
    // Runs last two seconds; the last point is earlier.
    here.footprints[0].points.pop();
    here.footprints[0].points.last_mut().unwrap().resident_bytes = 500 << 20;
    // The kernel time is 0.5 of 2 s on 4 KiB pages, and 1 of 1.5 s on 2 MiB pages.
    for sample in &mut here.samples {
        sample.system_s = if sample.kind == "thp" { 1.0 } else { 0.5 };
        sample.user_s -= sample.system_s;
    }
    for modelled in &mut paper.translation.as_mut().unwrap().configurations {
        modelled.data.walks /= 2;
    }
    Profiles { paper, here }
}

fn gups() -> Workload {
    workload::all(Scale::Quick).into_iter().find(|workload| workload.id == "gups/128M").unwrap()
}

fn figures(profiles: &Profiles) -> Vec<MeasuredValue> {
    all_rows(&gups()).iter().map(|row| row.value(profiles)).collect()
}

#[test]
fn each_row_finds_its_number() {
    let figures = figures(&profiles());
    let figure = |row: &str| figures.iter().find(|figure| figure.row == row).unwrap_or_else(|| panic!("no {row}"));
    for (row, value) in [
        ("mapped with read-write permission", 0.995),
        ("resident with read-write permission", 0.996),
        // 470 of 500 MiB after 0.5 of 2 s.
        ("allocated by, part of the run", 0.25),
        ("swapped out at most", 0.0),
        ("misses of this processor", 0.999),
        ("4 KiB pages, walks on this processor", 100.0),
        ("4 KiB pages, walks on E5-2430", 50.0),
        // A table of 128 MiB has 2^21 updates.
        ("4 KiB pages, this processor: 128 MiB", 200_000.0 / f64::from(1 << 21)),
        ("direct segment, E5-2430: 128 MiB", 100.0 / f64::from(1 << 21)),
    ] {
        let figure = figure(row);
        assert!((figure.value - value).abs() < 1e-12 && figure.ends.is_none(), "{figure:?}");
    }
    for (row, low, value, high, confidence) in [
        ("4 KiB pages: data, this processor", 0.4, 0.5, 0.6, false),
        ("4 KiB pages: instructions, E5-2430", 0.001, 0.002, 0.004, false),
        ("2 MiB pages, predicted", 0.3, 0.4, 0.45, false),
        ("2 MiB pages, real runs in user mode", 0.5, 0.5, 0.5, true),
        ("2 MiB pages, real runs", 0.25, 0.25, 0.25, true),
        ("direct segment, predicted: 128 MiB", 0.4, 0.5, 0.55, false),
    ] {
        let figure = figure(row);
        let ends = figure.ends.unwrap();
        let all = [(ends.low, low), (figure.value, value), (ends.high, high)];
        assert!(all.iter().all(|(found, wanted)| (found - wanted).abs() < 1e-12), "{figure:?}");
        assert_eq!(ends.confidence.is_some(), confidence, "{figure:?}");
    }
}

/// Profiles without a cost of walks, without walks, and without a trace: dashes, and no NaN.
#[test]
fn an_unknown_value_is_a_dash() {
    let mut unpriced = profiles();
    let mut idle = profiles();
    let mut untraced = profiles();
    for profile in [&mut unpriced.here, &mut unpriced.paper] {
        for modelled in &mut profile.translation.as_mut().unwrap().configurations {
            (modelled.data_share, modelled.instruction_share, modelled.time) = (None, None, None);
        }
    }
    for profile in [&mut idle.here, &mut idle.paper] {
        let translation = profile.translation.as_mut().unwrap();
        (translation.counted_accesses, translation.counted_instructions) = (0, 0);
        translation.configurations.iter_mut().for_each(|modelled| modelled.data = Default::default());
        profile.footprints.clear();
        profile.samples.clear();
    }
    (untraced.here.translation, untraced.paper.translation) = (None, None);
    let mut wide = profiles();
    for modelled in &mut wide.here.translation.as_mut().unwrap().configurations {
        modelled.instruction_share = Some(Interval { low: 0.0, likely: 0.3, high: 0.6 });
    }
    for (profiles, dashes) in [(unpriced, 16), (idle, 26), (untraced, 34), (wide, 1)] {
        let figures = figures(&profiles);
        assert!(figures.iter().all(|figure| figure.value.is_finite()), "{figures:?}");
        let found = figures.iter().filter(|figure| figure.instead.as_deref() == Some("–")).count();
        assert_eq!((figures.len(), found), (42, dashes), "{figures:?}");
    }
}

/// Rows of a cell with equal names would have the same number.
#[test]
fn rows_and_ids_are_distinct() {
    for scale in [Scale::Full, Scale::Quick] {
        let cells = cells(scale);
        let ids: BTreeSet<&str> = cells.iter().map(|cell| cell.id.as_str()).collect();
        assert_eq!(ids.len(), cells.len());
        for cell in &cells {
            let names: BTreeSet<String> = cell.rows.iter().map(crate::Row::value_name).collect();
            assert_eq!(names.len(), cell.rows.len(), "{}", cell.id);
        }
    }
    let ids = |scale| cells(scale).into_iter().map(|cell| cell.id).collect::<BTreeSet<_>>();
    assert!(ids(Scale::Full).is_disjoint(&ids(Scale::Quick)), "an id means the same work at each scale");
}

/// The line of each workload has the numbers of the paper, in the spelling of each table.
#[test]
fn the_paper_s_numbers_stand_beside_its_six_workloads() {
    let cells = cells(Scale::Full);
    let quoted: Vec<usize> =
        cells.iter().map(|cell| cell.rows.iter().filter(|row| row.paper.is_some()).count()).collect();
    assert_eq!(quoted.iter().filter(|count| **count == 6).count(), 6, "{quoted:?}");
    assert_eq!(quoted.iter().filter(|count| **count == 0).count(), 3, "sizes of GUPS: {quoted:?}");
    let options = Processor::ALL.map(Processor::option);
    assert_eq!(options, ["sandy-bridge", "host"]);
}
