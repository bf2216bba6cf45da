//! The program as a whole: measuring, saving, resuming, printing.

use std::path::Path;
use std::process::{Command, Output};

use assert_cmd::cargo::cargo_bin;
use serde_json::Value;

fn reproduce(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(cargo_bin("fieldstone-reproduce"));
    command.args(arguments).arg("--out").arg(folder).output().expect("the program starts")
}

/// The standard output of a run that must succeed.
fn text(folder: &Path, arguments: &[&str]) -> String {
    let output = reproduce(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("the output is UTF-8")
}

const CELLS: [&str; 2] = ["table2/paper-tree/4K", "table2/tree-array/4K"];

#[test]
fn table2_is_measured_and_all_formats_agree() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("all.html");
    let measure = [CELLS[0], CELLS[1], "--quick", "--format", "json", "--html", page.to_str().unwrap()];
    let json: Value = serde_json::from_str(&text(folder.path(), &measure)).unwrap();
    let experiment = &json[0];
    let session = &experiment["sessions"][0];
    assert_eq!((experiment["name"].as_str(), session["quick"].as_bool()), (Some("table2"), Some(true)));
    assert!(["kernel", "cpu", "commit"].iter().all(|field| !session[field].as_str().unwrap().is_empty()));
    assert!(session["noise"].as_f64().unwrap() >= 0.0 && session["command"][1] == CELLS[0]);

    let lines: Vec<&Value> =
        experiment["tables"].as_array().unwrap().iter().flat_map(|table| table["lines"].as_array().unwrap()).collect();
    let naive = lines.iter().find(|line| line["row"] == "Linear Scan: Naive").unwrap();
    let entry = &naive["entries"][0];
    let ours = entry["ours"]["median"].as_f64().unwrap();
    assert!(ours > 0.0 && entry["ours"]["n"] == 6 && entry["ours"]["confidence"].as_f64().unwrap() >= 0.95);
    assert!(entry["ours"]["low"].as_f64().unwrap() <= ours && ours <= entry["ours"]["high"].as_f64().unwrap());
    assert_eq!(entry["paper"]["value"], "1.36");
    assert!(entry["paper"]["sentence"].as_str().unwrap().contains("1.36"));
    assert!(entry["pages"][0].as_str().unwrap().contains('%'));

    let saved = |format| text(folder.path(), &["table2", "--saved", "--format", format]);
    let number = format!("{ours:.2}");
    for format in ["text", "markdown"] {
        let shown = saved(format);
        assert!(shown.contains(&number) && shown.contains("1.36") && shown.contains("not in the text"), "{shown}");
    }
    let csv = saved("csv");
    let line = csv.lines().find(|line| line.contains(",Linear Scan: Naive,")).unwrap();
    assert!(line.contains(&ours.to_string()) && line.ends_with(",1.36,"), "{line}");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains(&number) && page.contains("<svg"));
    // Without a name: all saved results, as the page of the repository.
    let page = text(folder.path(), &["--saved", "--format", "markdown"]);
    let command = "`fieldstone reproduce --saved --format markdown`";
    assert!(page.starts_with("# Results\n") && page.contains(command) && page.contains(&number), "{page}");
}

#[test]
fn without_saved_samples_nothing_can_be_printed() {
    let folder = tempfile::tempdir().unwrap();
    for names in [&["--saved"][..], &["table2", "--saved"]] {
        let output = reproduce(folder.path(), names);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains("no saved samples") && errors.contains("try: "), "{errors}");
    }
}

#[test]
fn the_machines_of_1991_stand_above_this_one() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("all.html");
    let cell = "appel-li/trap/mprotect-signal-1/4K";
    let measure = [cell, "--quick", "--runs", "1", "--format", "json", "--html", page.to_str().unwrap()];
    let json: Value = serde_json::from_str(&text(folder.path(), &measure)).unwrap();
    let table = &json[0]["tables"][0];
    let lines = table["lines"].as_array().unwrap();
    assert_eq!(lines.len(), 14, "thirteen machines and this one");
    let columns: Vec<&str> = table["columns"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let at =
        |line: &Value, name: &str| line["entries"][columns.iter().position(|column| *column == name).unwrap()].clone();
    assert_eq!(at(&lines[4], "TRAP")["paper"]["value"], "†230");
    let ours = |name| at(&lines[13], name)["ours"]["median"].as_f64().unwrap();
    assert!(0.0 < ours("ADD") && ours("ADD") < ours("TRAP") && ours("TRAP") < ours("TRAP +PROT1 +UNPROT"));
    assert_eq!(at(&lines[13], "MAP2")["instead"][0], "yes");
    // 1016 by 0.12.
    let computed = json[0]["tables"][1]["lines"][0]["entries"][0]["value"].as_f64().unwrap();
    assert!((computed - 8466.67).abs() < 0.01);
    let page = std::fs::read_to_string(page).unwrap();
    for shown in [text(folder.path(), &["appel-li", "--saved"]), page] {
        assert!(
            ["*919", "1238", "8467", "mprotect-signal, 1 thread"].iter().all(|word| shown.contains(word)),
            "{shown}"
        );
    }
}

#[test]
fn resume_goes_on_and_layouts_differ() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("table2.jsonl");
    let samples = || {
        let lines = std::fs::read_to_string(&file).unwrap();
        let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.filter_map(|line| line.get("sample").cloned()).collect::<Vec<_>>()
    };
    text(folder.path(), &[CELLS[0], "--quick", "--runs", "2"]);
    let first = samples();
    assert_eq!(first.len(), 2);
    assert_ne!(first[0]["seed"], first[1]["seed"]);
    // As after a kill in the middle of a line.
    let whole = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, &whole[..whole.len() - 20]).unwrap();
    text(folder.path(), &[CELLS[0], "--quick", "--runs", "3", "--resume"]);
    let runs: Vec<u64> = samples().iter().map(|sample| sample["run"].as_u64().unwrap()).collect();
    assert_eq!(runs, [0, 1, 2]);
    assert_eq!(samples()[0], first[0]);
    let mixed = reproduce(folder.path(), &[CELLS[0], "--runs", "3", "--resume"]);
    assert_eq!(mixed.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&mixed.stderr).contains("add --quick"));
}

#[test]
fn what_does_not_fit_is_skipped_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let output = reproduce(folder.path(), &["table2/paper-tree/64G", "--memory", "1G"]);
    let [shown, errors] = [output.stdout, output.stderr].map(|words| String::from_utf8_lossy(&words).into_owned());
    assert!(shown.contains("SKIP 64GB: needs 64 GiB, and ") && shown.contains("3.37"), "{shown}");
    let progress = errors.lines().find(|line| line.contains("samples done, next table2/paper-tree/64G"));
    assert!(progress.is_some_and(|line| line.contains(" 0 of ")), "without a terminal a line reports it: {errors}");
}

#[test]
fn sides_that_do_not_fit_together_are_measured_one_after_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let shown = text(folder.path(), &["table2/paper-tree/4M", "--quick", "--runs", "1", "--memory", "6M"]);
    assert!(shown.contains("one after the other"), "{shown}");
}

#[test]
fn list_says_what_it_takes_and_nonsense_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let list = text(folder.path(), &["list", "--cells"]);
    for word in ["table2", "blog", "min", "GiB", "table2/paper-tree/4M"] {
        assert!(list.contains(word), "{word} in {list}");
    }
    for (name, words) in [("nothing", "there is no experiment"), ("table2/nothing", "no cell of this name")] {
        let output = reproduce(folder.path(), &[name]);
        assert_eq!(output.status.code(), Some(2), "{name}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(words), "{name}");
    }
}

#[test]
fn instructions_are_counted_where_something_counts() {
    let folder = tempfile::tempdir().unwrap();
    let shown = text(folder.path(), &["blog/count/small", "--quick", "--runs", "1", "--format", "json"]);
    let json: Value = serde_json::from_str(&shown).unwrap();
    let line = &json[0]["tables"][0]["lines"][0];
    if let Some(reason) = line["entries"][0]["skipped"].as_str() {
        println!("SKIP {reason}");
        return;
    }
    let each = line["entries"][0]["ours"]["median"].as_f64().unwrap();
    assert!((2.0..200.0).contains(&each), "{each} instructions a step");
}
