//! `docs/coverage.md` names what exists: every id of the papers has a row, every command parses as one of ours, every test is there.
//!
//! A row is `| id | what | command | test |`. A command is `fieldstone …` or `make …` in backquotes; a test is `FILE: function`.
//! What is not reached yet says `not yet` in place of the command and has no test.

use std::fs;
use std::path::{Path, PathBuf};

/// The ids of each paper: a letter, and how many.
const PAPERS: [(char, u32); 5] = [('Z', 6), ('P', 10), ('C', 8), ('D', 6), ('A', 11)];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> Result<String, String> {
    fs::read_to_string(root().join(path)).map_err(|error| format!("{path}: {error}"))
}

/// The rows of the table as their cells, heading and rule left out. A bar that belongs to a cell is written `\|`.
fn rows(page: &str) -> Vec<Vec<String>> {
    let lines = page.lines().filter(|line| line.starts_with('|'));
    let cells = lines.map(|line| {
        let line = line.trim().trim_matches('|').replace("\\|", "\u{0}");
        line.split('|').map(|cell| cell.trim().replace('\u{0}', "|")).collect::<Vec<_>>()
    });
    cells.filter(|cells| cells[0] != "id" && !cells[0].starts_with("---")).collect()
}

/// What stands between backquotes.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// What is wrong with a command, if something is: its subcommand and its options have to stand in the command's sources.
fn command_problem(command: &str) -> Option<String> {
    let words: Vec<&str> = command.split_whitespace().take_while(|word| *word != "--").collect();
    match words[..] {
        ["make", target] => {
            let makefile = read("Makefile").ok()?;
            let section = target.split_once('-').map(|(start, _)| format!("{start}-%:"));
            let is_there = |line: &str| {
                line.starts_with(&format!("{target}:")) || section.as_ref().is_some_and(|rule| line.starts_with(rule))
            };
            (!makefile.lines().any(is_there)).then(|| format!("the Makefile cannot make {target}"))
        }
        ["fieldstone", subcommand, ref rest @ ..] => {
            let main = read("crates/tool/cli/src/main.rs").ok()?;
            let variant = subcommand[..1].to_uppercase() + &subcommand[1..];
            if ![" {", "("].iter().any(|open| main.contains(&format!("    {variant}{open}"))) {
                return Some(format!("there is no `fieldstone {subcommand}`"));
            }
            // `diff` shares the file of `report`.
            let file = if subcommand == "diff" { "report" } else { subcommand };
            let source = sources(file);
            let mut options = rest.iter().filter_map(|word| word.strip_prefix("--"));
            let unknown = options.find(|option| !source.contains(&format!("    {}: ", option.replace('-', "_"))));
            unknown.map(|option| format!("`fieldstone {subcommand}` knows no --{option}"))
        }
        _ => Some(format!("`{command}` is no command of ours")),
    }
}

/// The source of a subcommand, and of the files in the folder of its name.
fn sources(name: &str) -> String {
    let folder = root().join("crates/tool/cli/src").join(name);
    let within = fs::read_dir(folder).into_iter().flatten().flatten();
    let files = within.filter_map(|file| fs::read_to_string(file.path()).ok());
    read(&format!("crates/tool/cli/src/{name}.rs")).into_iter().chain(files).collect()
}

/// What is wrong with `FILE: function`, if something is.
fn test_problem(test: &str) -> Option<String> {
    let Some((file, function)) = test.split_once(": ") else {
        return Some(format!("`{test}` is not `FILE: function`"));
    };
    match read(file) {
        Err(problem) => Some(problem),
        Ok(source) if source.contains(&format!("fn {function}(")) => None,
        Ok(_) => Some(format!("{file} has no {function}")),
    }
}

fn row_problems(cells: &[String]) -> Vec<String> {
    let [id, what, command, test] = cells else { return vec![format!("{cells:?} has not four cells")] };
    let (commands, tests) = (quoted(command), quoted(test));
    let mut problems = Vec::new();
    if what.is_empty() {
        problems.push("it does not say what".to_owned());
    }
    if commands.is_empty() != command.starts_with("not yet") || commands.is_empty() != tests.is_empty() {
        problems.push("it has either a command and a test, or is `not yet`".to_owned());
    }
    problems.extend(commands.into_iter().filter_map(command_problem));
    problems.extend(tests.into_iter().filter_map(test_problem));
    problems.into_iter().map(|problem| format!("{id}: {problem}")).collect()
}

fn problems(page: &str) -> Vec<String> {
    let rows = rows(page);
    let ids: Vec<&str> = rows.iter().map(|cells| cells[0].as_str()).collect();
    let wanted: Vec<String> =
        PAPERS.iter().flat_map(|&(paper, count)| (1..=count).map(move |number| format!("{paper}{number}"))).collect();
    let mut problems: Vec<String> = rows.iter().flat_map(|cells| row_problems(cells)).collect();
    if ids != wanted {
        problems.push(format!("its ids are {ids:?}, those of the papers {wanted:?}"));
    }
    problems
}

#[test]
fn the_page_names_what_exists() {
    let page = read("docs/coverage.md").expect("the page is there");
    assert_eq!(problems(&page), Vec::<String>::new());
}

#[test]
fn each_kind_of_wrong_row_is_named() {
    let test = "`tests/layers/tests/coverage.rs: each_kind_of_wrong_row_is_named`";
    for (row, complaint) in [
        (format!("| D1 | swap | `fieldstone fly` | {test} |"), "no `fieldstone fly`"),
        (format!("| D1 | swap | `fieldstone profile --wings` | {test} |"), "no --wings"),
        (format!("| D1 | swap | `make wings` | {test} |"), "cannot make wings"),
        (format!("| D1 | swap | `ls` | {test} |"), "no command of ours"),
        (format!("| D1 | swap | not yet: later | {test} |"), "either a command and a test"),
        (format!("| D1 | | `make test` | {test} |"), "does not say what"),
        ("| D1 | swap | `make test` | |".to_owned(), "either a command and a test"),
        ("| D1 | swap | `make test` | `tests/layers/tests/coverage.rs: nothing` |".to_owned(), "has no nothing"),
        ("| D1 | swap | `make test` | `tests/layers/tests/none.rs: nothing` |".to_owned(), "none.rs"),
        ("| D1 | swap |".to_owned(), "not four cells"),
    ] {
        let found = problems(&row);
        assert!(found.len() == 2 && found[0].contains(complaint), "{row}: {found:?}");
        assert!(found[1].contains("its ids are"), "{found:?}");
    }
    for valid in
        ["fieldstone profile --load COMMAND --check-output -- --wings", "fieldstone doctor", "make targets-region"]
    {
        assert_eq!(command_problem(valid), None);
    }
}
