//! The table of hazards in docs/store.md names tests that exist.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::Path;

/// All hazards: a letter, and how many there are.
const HAZARDS: [(&str, usize); 6] = [("D", 14), ("F", 6), ("C", 6), ("S", 5), ("P", 10), ("A", 6)];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(3).unwrap()
}

/// The text of all sources below a folder.
fn sources(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, text);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            text.push_str(&fs::read_to_string(&path).unwrap());
        }
    }
}

/// The rows of the table: hazard, and names in the last column.
fn rows(page: &str) -> Vec<(String, Vec<String>)> {
    let section = page.split("\n## ").find(|section| section.starts_with("Hazards\n")).unwrap_or_default();
    let cells = section.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    let rows = cells.map(|line| line.split(" | ").collect::<Vec<_>>()).filter(|row| row.len() == 3);
    let rows = rows.filter(|row| row[0] != "hazard" && !row[0].starts_with('-'));
    rows.map(|row| {
        let hazard = row[0].split(' ').next().unwrap().to_owned();
        (hazard, row[2].split('`').skip(1).step_by(2).map(str::to_owned).collect())
    })
    .collect()
}

/// The names that are no tests here.
fn missing(rows: &[(String, Vec<String>)], sources: &str, makefile: &str) -> Vec<String> {
    let exists = |name: &str| match name.strip_prefix("make ") {
        Some(target) => makefile.lines().filter_map(|line| line.split(':').next()).any(|other| {
            // A percent sign stands for any name: targets-%.
            other
                .split_once('%')
                .map_or(other == target, |(start, end)| target.starts_with(start) && target.ends_with(end))
        }),
        None => [format!("fn {name}("), format!("struct {name};")].iter().any(|item| sources.contains(item)),
    };
    rows.iter().flat_map(|row| &row.1).filter(|name| !exists(name)).cloned().collect()
}

#[test]
fn each_hazard_has_tests_that_exist() {
    let (page, mut text) = (fs::read_to_string(root().join("docs/store.md")).unwrap(), String::new());
    sources(&root().join("crates/lib/store"), &mut text);
    sources(&root().join("tests/system/tests/store"), &mut text);
    let (rows, makefile) = (rows(&page), fs::read_to_string(root().join("Makefile")).unwrap());
    let expected: Vec<String> = HAZARDS
        .iter()
        .flat_map(|(letter, count)| (1..=*count).map(move |number| format!("{letter}{number}")))
        .collect();
    assert_eq!(rows.iter().map(|row| &row.0).collect::<Vec<_>>(), expected.iter().collect::<Vec<_>>());
    let untested: Vec<&String> = rows.iter().filter(|row| row.1.is_empty()).map(|row| &row.0).collect();
    assert_eq!(untested, Vec::<&String>::new(), "hazards without a test");
    assert_eq!(missing(&rows, &text, &makefile), Vec::<String>::new());
}

#[test]
fn a_name_of_no_test_is_found() {
    let page = "# Page\n\n## Hazards\n| hazard | what | test |\n|---|---|---|\n| D1 a | b | `some_test`, `other_test` |\n| D2 c \
                | d | `make some-target`, `make no-target` |\n\n## Next\n| a | b | `c` |\n";
    let rows = rows(page);
    assert_eq!(rows.len(), 2, "{rows:?}");
    let found = missing(&rows, "fn some_test() {}", "some-target: ## does something\n");
    assert_eq!(found, ["other_test", "make no-target"]);
}
