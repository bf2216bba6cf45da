//! The experiment `checkpoint` as a whole: a writer and servers while their memory is saved.

use std::path::Path;
use std::process::Command;

use assert_cmd::cargo::cargo_bin;
use serde_json::Value;

/// Measures cells quickly, once. Returns the results and the page.
fn measure(folder: &Path, cells: &[&str]) -> (Value, String) {
    let page = folder.join("page.html");
    let mut command = Command::new(cargo_bin("fieldstone-reproduce"));
    command.args(cells).args(["--quick", "--runs", "1", "--format", "json", "--html"]).arg(&page);
    let output = command.arg("--out").arg(folder).output().expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let results = serde_json::from_slice(&output.stdout).expect("the output is JSON");
    (results, std::fs::read_to_string(page).expect("there is a page"))
}

/// The table whose heading ends so.
fn table<'a>(results: &'a Value, heading: &str) -> &'a Value {
    let mut tables = results[0]["tables"].as_array().expect("there are tables").iter();
    let found = tables.find(|table| table["heading"].as_str().is_some_and(|of| of.ends_with(heading)));
    found.unwrap_or_else(|| panic!("no table {heading}"))
}

/// The entries of a row.
fn entries<'a>(table: &'a Value, row: &str) -> &'a Vec<Value> {
    let mut lines = table["lines"].as_array().expect("there are lines").iter();
    let found = lines.find(|line| line["row"].as_str().is_some_and(|of| of.contains(row)));
    found.unwrap_or_else(|| panic!("no row {row}"))["entries"].as_array().expect("there are entries")
}

fn median(entry: &Value) -> f64 {
    entry["ours"]["median"].as_f64().unwrap_or_else(|| panic!("no number: {entry}"))
}

#[test]
fn both_methods_are_plotted_over_time_and_by_their_pauses() {
    let folder = tempfile::tempdir().unwrap();
    let (results, page) = measure(folder.path(), &["checkpoint/writer/few-pages"]);
    let curves = table(&results, "over time");
    assert_eq!(curves["columns"], serde_json::json!(["checkpoint, 64 MiB", "fork, 64 MiB"]));
    for column in 0..2 {
        let lines = curves["lines"].as_array().unwrap().iter();
        let speeds: Vec<f64> = lines.filter_map(|line| line["entries"][column]["ours"]["median"].as_f64()).collect();
        assert!(speeds.len() > 50 && speeds.iter().all(|speed| (0.0..20.0).contains(speed)), "{speeds:?}");
        assert!(speeds.iter().any(|speed| *speed > 0.0));
    }
    for (kind, heading) in [("longest time of 64 writes", "longest time of 64 writes"), ("stop", "the time of fork(2)")]
    {
        let counts = table(&results, heading);
        for method in ["checkpoint", "fork"] {
            let counts = entries(counts, &format!("{method}, 64 MiB: {kind}"));
            assert_eq!(counts.iter().map(median).sum::<f64>(), 2.0, "two saves");
        }
    }
    let costs = table(&results, "a save");
    for column in 0..2 {
        let of = |row| median(&entries(costs, row)[column]);
        assert!(of("begin to stop") <= of("begin to end of the stop"));
        assert!(of("begin to end of the stop") <= of("begin to end of the save"));
    }
    assert_eq!(page.matches("<svg").count(), 4, "the curves, two histograms, and the speed during a save");
    assert!(page.contains("checkpoint, 64 MiB") && page.contains("fork, 64 MiB") && page.contains("polyline"));
}

#[test]
fn servers_have_latencies_or_the_program_that_is_missing_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (results, page) =
        measure(folder.path(), &["checkpoint/server/kv-checkpoint", "checkpoint/server/redis-server"]);
    let (latencies, ratios) = (table(&results, "latency of SET"), table(&results, "the same server without"));
    for column in 0..2 {
        if let Some(reason) = entries(latencies, "p50, with saves")[column]["skipped"].as_str() {
            assert!(
                reason.starts_with("no ") && (reason.contains("install") || reason.contains("builds it")),
                "{reason}"
            );
            assert!(page.contains("SKIP"));
            println!("SKIP {reason}");
            continue;
        }
        let of = |row: &str| median(&entries(latencies, row)[column]);
        for load in ["without saves", "with saves"] {
            let [half, most, all] = ["p50", "p99.9", "maximum"].map(|name| of(&format!("{name}, {load}")));
            assert!(0.0 < half && half <= most && most <= all, "{half} {most} {all}");
        }
        let ratio = of("p99.9, with saves") / of("p99.9, without saves");
        assert!((median(&entries(ratios, "p99.9")[column]) - ratio).abs() < 1e-9);
        assert!(median(&entries(table(&results, "saves"), "saves during the load")[column]) >= 1.0);
    }
}
