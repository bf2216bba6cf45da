//! The experiments `persistent-store` and `redb-benchmark` as a whole.

use std::path::Path;
use std::process::Command;

use assert_cmd::cargo::cargo_bin;
use serde_json::Value;

/// Runs the program, which must succeed. Returns its output.
fn reproduce(folder: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(cargo_bin("fieldstone-reproduce"));
    let output = command.args(arguments).arg("--out").arg(folder).output().expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("the output is UTF-8")
}

/// Measures cells quickly, once. Returns the tables and the page.
fn measure(folder: &Path, cells: &[&str]) -> (Vec<Value>, String) {
    let page = folder.join("page.html");
    let options = ["--quick", "--runs", "1", "--format", "json", "--html", page.to_str().expect("the path is UTF-8")];
    let results: Value =
        serde_json::from_str(&reproduce(folder, &[cells, &options].concat())).expect("the output is JSON");
    let tables = results[0]["tables"].as_array().expect("there are tables").clone();
    (tables, std::fs::read_to_string(page).expect("there is a page"))
}

/// The medians of a row, by column.
fn row(table: &Value, name: &str) -> Vec<f64> {
    let lines = table["lines"].as_array().expect("there are lines");
    let line = lines.iter().find(|line| line["row"] == name).unwrap_or_else(|| panic!("no row {name}"));
    let entries = line["entries"].as_array().expect("there are entries").iter();
    entries.map(|entry| entry["ours"]["median"].as_f64().unwrap_or_else(|| panic!("no number: {entry}"))).collect()
}

#[test]
fn commits_have_their_parts_in_each_format() {
    let folder = tempfile::tempdir().unwrap();
    let (tables, page) = measure(folder.path(), &["persistent-store/commit"]);
    assert_eq!(tables.len(), 4, "a comparison, and the parts of each store");
    for table in &tables {
        assert_eq!(table["columns"], serde_json::json!(["1 update", "10 updates", "100 updates"]));
    }
    assert!(row(&tables[0], "Fieldstone").iter().all(|&ratio| ratio > 0.0));
    for (table, store) in tables[1..].iter().zip(["Fieldstone", "LMDB", "redb"]) {
        let part = |part: &str| row(table, &format!("{store}: {part}"));
        let [processor, disk, queue] = ["processor time", "wait for the disk", "wait for a processor"].map(part);
        for column in 0..3 {
            let all = processor[column] + disk[column] + queue[column];
            assert!((all - 1.0).abs() < 1e-6 && disk[column] > 0.0, "{store}, column {column}: {all}");
        }
        let bytes = part("bytes written by the thread");
        assert!(bytes[0] >= 512.0 && bytes[0] < bytes[2], "{store}: {bytes:?}");
    }
    assert_eq!(page.matches("<svg").count(), 4, "a plot for each table");
    let saved = |format| reproduce(folder.path(), &["persistent-store", "--saved", "--format", format]);
    for format in ["text", "csv", "markdown"] {
        let shown = saved(format);
        assert!(shown.contains("LMDB: wait for the disk") && shown.contains("100 updates"), "{format}: {shown}");
    }
}

#[test]
fn file_sizes_are_plotted_over_the_overwrites() {
    let folder = tempfile::tempdir().unwrap();
    let (tables, page) = measure(folder.path(), &["persistent-store/churn/fieldstone", "persistent-store/churn/lmdb"]);
    assert_eq!(tables.len(), 1);
    for store in ["Fieldstone", "LMDB"] {
        let sizes = row(&tables[0], store);
        assert!(sizes.len() == 11 && sizes.iter().all(|&size| size > 1.0), "{store}: {sizes:?}");
    }
    assert!(page.contains("<svg") && page.contains("by the number of overwrites"));
}

#[test]
fn operations_of_oo7_have_cold_and_hot_times() {
    let folder = tempfile::tempdir().unwrap();
    let (tables, page) = measure(folder.path(), &["persistent-store/oo7"]);
    assert_eq!(tables.len(), 4, "a comparison, cold and hot runs, and the size");
    for table in &tables {
        assert_eq!(table["columns"], serde_json::json!(["small"]));
    }
    assert!(row(&tables[0], "Fieldstone").iter().all(|&ratio| ratio > 0.0));
    for (table, time) in tables[1..].iter().zip(["cold", "hot"]) {
        let value = |name: &str| row(table, &format!("{name}{time}"))[0];
        assert!(value("T1 visit all parts: ") > 0.0 && value("Q8 parts with documents: ") > 0.0);
        assert!(value("T2b swap all parts: commit, ") < value("T2b swap all parts: "), "{time}");
    }
    assert!(page.contains("OO7, cold") && page.contains("<svg"));
}

#[test]
fn the_program_of_redb_fills_a_column_for_each_store() {
    let folder = tempfile::tempdir().unwrap();
    let (tables, _) = measure(folder.path(), &["redb-benchmark/fieldstone", "redb-benchmark/lmdb"]);
    assert_eq!(tables[0]["columns"], serde_json::json!(["Fieldstone", "LMDB"]));
    for name in ["bulk load", "random gets", "removals at both ends", "size after compaction, MiB", "ascending inserts"]
    {
        assert!(row(&tables[0], name).iter().all(|&value| value > 0.0), "{name}");
    }
    let text = reproduce(folder.path(), &["redb-benchmark", "--saved"]);
    assert!(text.contains("gets, 32 threads") && text.contains("Fieldstone"), "{text}");
}
