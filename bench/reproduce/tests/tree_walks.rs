//! The experiment `tree-walks` as a whole: a quick run as text, page, CSV and JSON, and the
//! consistency of its totals.

use std::path::Path;
use std::process::Command;

use assert_cmd::cargo::cargo_bin;
use serde_json::Value;

fn text(folder: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(cargo_bin("fieldstone-reproduce"));
    let output = command.args(arguments).arg("--out").arg(folder).output().expect("the program starts");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("the output is UTF-8")
}

/// The value of a row in a column of a table.
fn number(json: &Value, table: &str, row: &str, column: usize) -> f64 {
    let named = |of: &&Value, field: &str, name: &str| of[field].as_str().is_some_and(|text| text.starts_with(name));
    let find = |all: &Value, field: &str, name: &str| {
        let all = all.as_array().expect("a list");
        all.iter().find(|of| named(of, field, name)).unwrap_or_else(|| panic!("no {name}")).clone()
    };
    let line = find(&find(&json[0]["tables"], "heading", table)["lines"], "row", row);
    let entry = &line["entries"][column]["ours"];
    assert_eq!(entry["n"], 1, "models count the same each time: {row}");
    entry["median"].as_f64().unwrap_or_else(|| panic!("{row}: {entry}"))
}

const CELLS: [&str; 4] =
    ["tree-walks/skylake/strided", "tree-walks/trees/strided", "tree-walks/trees/gups", "tree-walks/zen4/gups/4M"];

#[test]
fn totals_go_together_and_every_format_says_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("all.html");
    let mut measure = CELLS.to_vec();
    measure.extend(["--quick", "--format", "json", "--html", page.to_str().unwrap()]);
    let json: Value = serde_json::from_str(&text(folder.path(), &measure)).unwrap();
    // 4 KB, 4 MB, 256 MB: trees of one, two and three levels.
    for column in 0..3 {
        let strided = |row: &str| number(&json, "Strided scan, every", row, column);
        for pages in ["4 KiB", "2 MiB", "1 GiB"] {
            let [read, walks, missed] = ["entries read by page walks", "page walks", "missed in the first TLB"]
                .map(|what| strided(&format!("array on {pages} pages: {what}")));
            assert!(
                walks <= read && read <= 4.0 * walks && walks <= missed && missed <= 1.0,
                "{read} {walks} {missed}"
            );
        }
        for table in ["Strided scan, every", "GUPS, "] {
            let tree = |row: &str| number(&json, table, &format!("tree, {row}"), column);
            let (naive, cursor) = (tree("naive: pointers"), tree("cursor: pointers"));
            let [small, large] = [32, 1536].map(|entries| tree(&format!("accelerator of {entries} entries")));
            assert_eq!(naive, column as f64, "a naive walk reads a pointer above each level but the root");
            assert!(cursor <= naive && small <= naive && large <= small, "{naive} {cursor} {small} {large}");
            // Three instructions per step, with a cursor six.
            assert_eq!(tree("naive: instructions"), 2.0 + 3.0 * naive);
            assert!((tree("cursor: instructions") - (3.0 + 6.0 * cursor)).abs() < 1e-9);
        }
    }
    let walked = number(&json, "Strided scan, every", "array on 4 KiB pages: page walks", 2);
    assert_eq!(walked, 1.0, "a TLB of 1536 entries never holds the next of 65536 small pages");
    assert_eq!(number(&json, "Strided scan, every", "tree, cursor: pointers", 1), 0.125, "a block has eight pages");

    let csv = text(folder.path(), &["tree-walks", "--saved", "--format", "csv"]);
    let line =
        csv.lines().find(|line| line.contains("array on 4 KiB pages: missed") && line.contains(",4MB,")).unwrap();
    assert!(line.contains(",share,1,1,1,,1,1,") && line.contains("above 90%"), "{line}");
    assert!(csv.contains("tree-walks/zen4/gups/4M"), "{csv}");
    let shown = text(folder.path(), &["tree-walks", "--saved", "--format", "markdown"]);
    let naive = shown.lines().find(|line| line.starts_with("| tree, naive: pointers read<br>paper |")).unwrap();
    assert!(naive.contains("| 0<br>depth-1 | 1.00<br>depth-2 | 2.00 |"), "{naive}");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(["above 90%", "depth-2", "2 MiB pages, zen4", "<svg"].iter().all(|word| page.contains(word)));
}
