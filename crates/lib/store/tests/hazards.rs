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

/// What the names of tests may refer to.
struct Places<'a> {
    sources: &'a str,
    makefile: &'a str,
    goals: &'a str,
}

impl Places<'_> {
    /// Whether this is a test that is run, an example that does not compile, or a target of make.
    fn has(&self, name: &str) -> bool {
        match name.strip_prefix("make ") {
            Some(target) => self.has_target(target),
            None => self.has_test(name) || self.has_example(name),
        }
    }

    /// Whether make has a target. That of a section of goals needs the section.
    fn has_target(&self, target: &str) -> bool {
        if let Some(section) = target.strip_prefix("targets-") {
            let header = format!("[{section}]");
            return self.goals.lines().any(|line| line.split_whitespace().next() == Some(header.as_str()));
        }
        self.makefile.lines().filter_map(|line| line.split_once(':')).any(|(other, _)| other == target)
    }

    fn has_test(&self, name: &str) -> bool {
        let start = format!("fn {name}(");
        lines_before(self.sources, |line| line.starts_with(&start)).iter().any(|before| {
            let attributes: Vec<&str> = before.iter().copied().take_while(|line| line.starts_with("#[")).collect();
            attributes.contains(&"#[test]") && !attributes.iter().any(|line| line.starts_with("#[ignore"))
        })
    }

    fn has_example(&self, name: &str) -> bool {
        let item = format!("struct {name};");
        lines_before(self.sources, |line| line == item).iter().any(|before| {
            let mut comment = before.iter().take_while(|line| line.starts_with("#[") || line.starts_with("///"));
            comment.any(|line| line.starts_with("/// ```compile_fail"))
        })
    }
}

/// For each line that `is_item`, the lines before it, the last one first. Their spaces at both ends are removed.
fn lines_before(sources: &str, is_item: impl Fn(&str) -> bool) -> Vec<Vec<&str>> {
    let lines: Vec<&str> = sources.lines().map(str::trim).collect();
    let items = (0..lines.len()).filter(|&at| is_item(lines[at]));
    items.map(|at| lines[..at].iter().rev().take(100).copied().collect()).collect()
}

/// The names that are no tests here.
fn missing(rows: &[(String, Vec<String>)], places: &Places<'_>) -> Vec<String> {
    rows.iter().flat_map(|row| &row.1).filter(|name| !places.has(name)).cloned().collect()
}

#[test]
fn each_hazard_has_tests_that_exist() {
    let (page, mut text) = (fs::read_to_string(root().join("docs/store.md")).unwrap(), String::new());
    sources(&root().join("crates/lib/store"), &mut text);
    sources(&root().join("tests/system/tests/store"), &mut text);
    let read = |name| fs::read_to_string(root().join(name)).unwrap();
    let (rows, makefile, goals) = (rows(&page), read("Makefile"), read("goals.toml"));
    let expected: Vec<String> = HAZARDS
        .iter()
        .flat_map(|(letter, count)| (1..=*count).map(move |number| format!("{letter}{number}")))
        .collect();
    assert_eq!(rows.iter().map(|row| &row.0).collect::<Vec<_>>(), expected.iter().collect::<Vec<_>>());
    let untested: Vec<&String> = rows.iter().filter(|row| row.1.is_empty()).map(|row| &row.0).collect();
    assert_eq!(untested, Vec::<&String>::new(), "hazards without a test");
    assert_eq!(missing(&rows, &Places { sources: &text, makefile: &makefile, goals: &goals }), Vec::<String>::new());
}

#[test]
fn a_name_of_no_test_is_found() {
    let page = "# Page\n\n## Hazards\n| hazard | what | test |\n|---|---|---|\n| D1 a | b | `some_test`, `other_test` |\n| D2 c \
                | d | `make some-target`, `make no-target` |\n\n## Next\n| a | b | `c` |\n";
    let rows = rows(page);
    assert_eq!(rows.len(), 2, "{rows:?}");
    let (sources, makefile) = ("#[test]\nfn some_test() {}", "some-target: ## does something\ntargets-%:\n");
    let found = missing(&rows, &Places { sources, makefile, goals: "" });
    assert_eq!(found, ["other_test", "make no-target"]);
}

#[test]
fn only_what_is_run_is_a_test() {
    let sources = "
        #[test]
        #[cfg(unix)]
        fn real() {}
        fn function() {}
        #[test]
        #[ignore = \"slow\"]
        fn ignored() {}
        #[ignore]
        #[test]
        fn also_ignored() {}
        #[test]

        fn apart() {}
        /// ```compile_fail,E0502
        /// ```
        #[cfg(doctest)]
        struct Refused;
        /// ```
        /// ```
        struct Plain;";
    let places = Places { sources, makefile: "soak: build\ntargets-%: build\n", goals: "# [nothing]\n[store] # x\n" };
    let names = [
        "real",
        "Refused",
        "make soak",
        "make targets-store",
        "function",
        "ignored",
        "also_ignored",
        "apart",
        "Plain",
        "make targets-nothing",
        "make targets-%",
        "make other",
    ];
    let found: Vec<&str> = names.into_iter().filter(|name| places.has(name)).collect();
    assert_eq!(found, names[..4]);
}
