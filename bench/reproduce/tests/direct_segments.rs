//! The experiment `direct-segments` as a whole: with a stand-in for the command that writes a
//! constructed profile, for tables, page and CSV; and with a real profile if the command and its
//! tracer are built.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use assert_cmd::cargo::cargo_bin;
use serde_json::Value;

const TRACED: &str = include_str!("traced.json");

/// Copies the profile of the requested processor to the file of `--json`, and records its
/// arguments.
const STAND_IN: &str = r#"#!/bin/sh
here=$(dirname "$0")
echo "$*" >>"$here/calls"
profile=$here/here.json
case "$*" in *"--tlb sandy-bridge"*) profile=$here/paper.json ;; esac
while [ "$1" != --json ]; do shift; done
cp "$profile" "$2"
"#;

/// A folder with `fieldstone-reproduce` and the stand-in.
fn folder(stand_in: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = |name: &str| folder.path().join(name);
    let write = |name: &str, words: &str| fs::write(at(name), words).expect("the folder can be written");
    fs::copy(cargo_bin("fieldstone-reproduce"), at("fieldstone-reproduce")).expect("the program is copied");
    write("fieldstone", stand_in);
    fs::set_permissions(at("fieldstone"), fs::Permissions::from_mode(0o755)).expect("it can be made a program");
    write("here.json", TRACED);
    let mut paper: Value = serde_json::from_str(TRACED).expect("the fixture is JSON");
    paper["translation"]["configurations"][0]["data_share"]["likely"] = 0.55.into();
    paper["translation"]["configurations"][0]["data"]["region_walks"] = 150_000.into();
    write("paper.json", &paper.to_string());
    folder
}

fn reproduce(program: &Path, out: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).arg("--out").arg(out).output().expect("the program starts")
}

fn text(folder: &Path, arguments: &[&str]) -> String {
    let output = reproduce(&folder.join("fieldstone-reproduce"), &folder.join("out"), arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("the output is UTF-8")
}

const GRAPH: &str = "direct-segments/graph500/16";
const GUPS: &str = "direct-segments/gups/128M";

#[test]
fn profiles_fill_the_paper_s_tables() {
    let folder = folder(STAND_IN);
    let page = folder.path().join("all.html");
    let measure = [GRAPH, GUPS, "--quick", "--html", page.to_str().unwrap()];
    let shown = text(folder.path(), &measure);
    // The paper's numbers, ours, and ours for the other processor.
    for number in ["51.1", "55.0 %", "50.0 %", "99.96%", "99.50 %", "75.0 %", "99.90 %", "25.0 %"] {
        assert!(shown.contains(number), "{number} in {shown}");
    }
    assert!(shown.contains("least – most") && shown.contains("40.0 % – 60.0 %"), "{shown}");

    let csv = text(folder.path(), &["direct-segments", "--saved", "--format", "csv"]);
    let line = |row: &str, column: &str| {
        let found = csv.lines().find(|line| line.contains(row) && line.contains(&format!(",{column},")));
        found.unwrap_or_else(|| panic!("{row} of {column} in {csv}")).to_owned()
    };
    let cost = line("\"4 KiB pages: data, E5-2430\"", "graph500");
    assert!(cost.contains(",estimate,0.55,0.4,0.6,,1,") && cost.ends_with(",51.1,"), "{cost}");
    assert!(line("\"4 KiB pages, this processor\"", "128 MiB").contains(",walks,0.095367431640625,"));

    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("51.1") && page.contains("40.0 % – 60.0 %") && page.contains("<svg"));
    let json: Value =
        serde_json::from_str(&text(folder.path(), &["direct-segments", "--saved", "--format", "json"])).unwrap();
    let samples = &json[0]["tables"][0]["lines"][0]["entries"][0]["ours"];
    assert_eq!((samples["median"].as_f64(), samples["n"].as_u64()), (Some(0.995), Some(1)), "a profile is one sample");

    let calls = fs::read_to_string(folder.path().join("calls")).unwrap();
    assert_eq!(calls.lines().count(), 4, "{calls}");
    assert!(calls.contains("-- bfs 16 --roots 4\n") && calls.contains("-- gups 134217728 2097152\n"), "{calls}");
    // The temporary files are removed.
    let json_of = |call: &str| Path::new(call.split("--json ").nth(1).unwrap().split(' ').next().unwrap()).to_owned();
    assert!(calls.lines().all(|call| !json_of(call).parent().unwrap().exists()), "{calls}");
}

#[test]
fn what_cannot_be_profiled_is_skipped_by_name() {
    let folder =
        folder("#!/bin/sh\necho 'fieldstone: there is no qemu-x86_64 in the path\nthe last words' >&2\nexit 2\n");
    let shown = text(folder.path(), &[GRAPH, "--quick"]);
    assert!(shown.contains("not profiled: there is no qemu-x86_64 in the path"), "{shown}");
    assert!(shown.contains("51.1"), "the paper's numbers are shown in any case: {shown}");
}

#[test]
fn gups_is_really_traced() {
    let program = cargo_bin("fieldstone-reproduce");
    if !program.with_file_name("fieldstone").exists() || !program.with_file_name("gups").exists() {
        println!("SKIP the command and its workloads were not built beside fieldstone-reproduce");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let output = reproduce(&program, folder.path(), &["direct-segments/gups/16M", "--quick", "--format", "json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let tables = json[0]["tables"].as_array().unwrap();
    let table = tables.iter().find(|table| table["heading"].as_str().unwrap().contains("E5-2430")).unwrap();
    let entry = |row: &str| {
        let lines = table["lines"].as_array().unwrap();
        lines.iter().find(|line| line["row"] == row).unwrap_or_else(|| panic!("no {row}"))["entries"][0].clone()
    };
    let small = entry("4 KiB pages, E5-2430");
    if let Some(reason) = small["skipped"].as_str() {
        println!("SKIP {reason}");
        return;
    }
    let walks = |row: &str| entry(row)["ours"]["median"].as_f64().unwrap();
    // The second TLB holds 512 of 4096 pages, so 7 of 8 updates walk. The passes over the table add
    // a few.
    assert!((0.8..1.1).contains(&walks("4 KiB pages, E5-2430")), "{small}");
    // The first TLB holds all 8 pages of 2 MiB, and a direct segment contains the whole table.
    for row in ["2 MiB pages, E5-2430", "1 GiB pages, E5-2430", "direct segment, E5-2430"] {
        assert!(walks(row) < 0.02, "{row}: {}", entry(row));
    }
}
