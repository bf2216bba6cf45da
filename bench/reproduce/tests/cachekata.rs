//! The experiment `cachekata` as a whole: with stand-ins for the programs and for the command,
//! whose times are known, for tables, page and CSV; and with a real repair if the programs are
//! built.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use assert_cmd::cargo::cargo_bin;
use serde_json::Value;

/// One thread alone takes a second, two threads with false sharing 4 s, padded 1.25 s, repaired 1.5
/// s.
const PROGRAM: &str = r#"#!/bin/sh
kernel=4.0
case "$*" in *"--threads 1 "*) kernel=1.0 ;; *--padded* | *"--pattern padded"*) kernel=1.25 ;; esac
case "$REPAIRED" in repaired) kernel=1.5 ;; esac
echo "$(basename "$0") $* $REPAIRED" >>"$(dirname "$0")/../calls"
case "$*" in *--progress*) printf 'at 5.%s: 100 done\n' 0 4 8 >&2 ;; esac
printf 'kernel: %s\n1.98 processors at work\n' $kernel >&2
"#;

/// `run --repair --stats FILE -- PROGRAM`.
const REPAIR: &str = r#"#!/bin/sh
[ "$1 $2 $3" = "run --repair --stats" ] || exit 3
cat >"$4" <<END
{"schema":"fieldstone-repair/1","seen":{"samples":900,"walked":90,"blind":1,"lost":0},"events":[
  {"at_ms":12.5,"event":"found","line":4096,"share":0.4},
  {"at_ms":14.0,"event":"moved","page":4096,"views":2,"lines":[4096]},
  {"at_ms":15.0,"event":"led","ip":4198400,"thread":7}]}
END
shift 5
export REPAIRED=repaired
exec "$@"
"#;

/// A folder with `fieldstone-reproduce` and the stand-ins.
fn folder(repair: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = |name: &str| folder.path().join(name);
    fs::copy(cargo_bin("fieldstone-reproduce"), at("fieldstone-reproduce")).expect("the program is copied");
    fs::create_dir(at("sharing")).expect("a folder in it");
    let programs =
        ["counters-O2", "linear_regression-O0", "histogram-O2"].map(|name| (format!("sharing/{name}"), PROGRAM));
    for (name, script) in programs.into_iter().chain([("fieldstone".to_owned(), repair)]) {
        fs::write(at(&name), script).expect("the folder can be written");
        fs::set_permissions(at(&name), fs::Permissions::from_mode(0o755)).expect("it can be made a program");
    }
    folder
}

fn reproduce(program: &Path, out: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).arg("--out").arg(out).output().expect("the program starts")
}

fn text(folder: &Path, arguments: &[&str]) -> String {
    let output = reproduce(&folder.join("fieldstone-reproduce"), &folder.join("out"), arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("it prints text")
}

fn has_two_processors() -> bool {
    let has = std::thread::available_parallelism().is_ok_and(|processors| processors.get() > 1);
    if !has {
        println!("SKIP one processor");
    }
    has
}

const CELLS: [&str; 4] = ["cachekata/layout", "cachekata/start/16", "cachekata/repair/2", "cachekata/histogram-O2/2"];

#[test]
fn runs_fill_the_paper_s_figures() {
    if !has_two_processors() {
        return;
    }
    let folder = folder(REPAIR);
    let page = folder.path().join("all.html");
    let mut measure = CELLS.to_vec();
    measure.extend(["--quick", "--html", page.to_str().unwrap()]);
    let shown = text(folder.path(), &measure);
    for words in ["52-byte", "64-byte", "3-6x", "not in the text"] {
        assert!(shown.contains(words), "{words} in {shown}");
    }

    let csv = text(folder.path(), &["cachekata", "--saved", "--format", "csv"]);
    let line = |row: &str, cell: &str| {
        let found = csv.lines().find(|line| line.contains(row) && line.contains(&format!(",{cell},")));
        found.unwrap_or_else(|| panic!("{row} of {cell} in {csv}")).to_owned()
    };
    for (row, cell, numbers) in [
        (",bytes of an element,", "cachekata/layout/32-bit", ",count,52,52,52,,1,52,52-byte,"),
        (",lines used by the loops of several threads,", "cachekata/layout/64-bit", ",count,7,7,7,,1,7,,"),
        (",\"time, relative to separate elements\",", "cachekata/start/16", ",ratio,3.2,3.2,3.2,"),
        (",with false sharing,", "cachekata/repair/2", ",share,0.25,0.25,0.25,"),
        (",padded by hand,", "cachekata/repair/2", ",share,0.8,0.8,0.8,"),
        (",\"time repaired, relative to padded by hand\",", "cachekata/repair/2", ",ratio,1.2,1.2,1.2,"),
        (",pages that the repair moved,", "cachekata/repair/2", ",count,1,1,1,"),
        (",with false sharing,", "cachekata/histogram-O2/2", ",share,0.25,0.25,0.25,"),
    ] {
        assert!(line(row, cell).contains(numbers), "{}", line(row, cell));
    }
    let faster = line(",speedup by the repair,", "cachekata/repair/2");
    assert!(faster.contains(",ratio,2.66") && faster.contains(",3-6x,"), "{faster}");
    assert!(!csv.lines().any(|line| line.contains("by hand") && line.contains("histogram")), "{csv}");

    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("3-6x") && page.contains("25.0 %") && page.contains("<svg"));

    // The order of the six samples alternates.
    let calls = fs::read_to_string(folder.path().join("calls")).unwrap();
    let order = |call: &str| match call {
        call if call.ends_with("repaired") => 'r',
        call if call.contains("--padded") => 'h',
        call if call.contains("--threads 1 ") => '1',
        _ => 's',
    };
    let regression: String = calls.lines().filter(|call| call.starts_with("linear")).map(order).collect();
    assert!(regression.contains("1srh") && regression.contains("hrs1"), "{regression}");
    assert!(calls.lines().all(|call| call.contains("--pin")), "{calls}");
}

#[test]
fn what_cannot_be_repaired_is_skipped_by_name() {
    if !has_two_processors() {
        return;
    }
    let folder = folder("#!/bin/sh\necho 'fieldstone: this kernel permits no sampling' >&2\nexit 2\n");
    let shown = text(folder.path(), &["cachekata/repair/2", "cachekata/timeline", "--quick", "--runs", "1"]);
    assert!(shown.contains("SKIP 2 threads: not repaired: this kernel permits no sampling"), "{shown}");

    fs::remove_dir_all(folder.path().join("sharing")).unwrap();
    let shown = text(folder.path(), &["cachekata/repair/2", "--quick", "--runs", "1"]);
    assert!(shown.contains("no sharing/linear_regression-O0 beside this program"), "{shown}");
    let other = folder.path().join("other");
    let output = reproduce(&folder.path().join("fieldstone-reproduce"), &other, &["cachekata/cores/32", "--runs", "1"]);
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.contains("needs 32 processors") || shown.contains("no sharing/"), "{shown}");
}

/// The values of one real sample, or why there is none.
struct RealSample {
    /// Pages moved in the synthetic program and in the timeline.
    moved: [f64; 2],
    /// Nanoseconds until the first line was found and the first page was moved.
    first: [f64; 2],
    /// Performance under repair by ladders, relative to linear speedup.
    ladder: f64,
}

fn measure_once(program: &Path) -> Result<RealSample, String> {
    let folder = tempfile::tempdir().unwrap();
    let cells = ["cachekata/synthetic-O2/2", "cachekata/timeline", "cachekata/ladder/2"];
    let output =
        reproduce(program, folder.path(), &[&cells[..], &["--quick", "--runs", "1", "--format", "json"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let lines: Vec<&Value> =
        json[0]["tables"].as_array().unwrap().iter().flat_map(|table| table["lines"].as_array().unwrap()).collect();
    let sum = |row: &str| {
        let line = lines.iter().find(|line| line["row"] == row).unwrap_or_else(|| panic!("no {row} in {json}"));
        let entries = line["entries"].as_array().unwrap().iter().filter(|entry| !entry.is_null());
        let number = |entry: &Value| {
            let why = || entry["skipped"].as_str().unwrap_or("no event").to_owned();
            entry["ours"]["median"].as_f64().ok_or_else(why)
        };
        entries.map(number).sum::<Result<f64, String>>()
    };
    Ok(RealSample {
        moved: [sum("pages that the repair moved")?, sum("pages moved")?],
        first: [sum("first line found")?, sum("first page moved")?],
        ladder: sum("with false sharing, repaired by a single ladder")?,
    })
}

/// Whether two threads have two processors at this time.
fn is_quiet(counters: &Path) -> bool {
    let words = ["--pin", "--pattern", "padded", "--iterations", "200000000"];
    let output = Command::new(counters).args(words).output().expect("the program starts");
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    let processors = printed.lines().find_map(|line| line.strip_suffix(" processors at work")?.parse::<f64>().ok());
    processors.expect(&printed) > 1.8
}

#[test]
fn programs_are_really_repaired() {
    let program = cargo_bin("fieldstone-reproduce");
    let sibling = |name: &str| program.with_file_name(name);
    let counters = sibling("sharing/counters-O2");
    if !sibling("fieldstone").exists() || !counters.exists() || !sibling("sharing/linear_regression-O0").exists() {
        println!("SKIP the command and the C programs were not built beside fieldstone-reproduce");
        return;
    }
    for _ in 0..3 {
        let was_quiet = is_quiet(&counters);
        match measure_once(&program) {
            Ok(RealSample { moved: [synthetic, timeline], first: [found, moved], ladder })
                if synthetic >= 1.0 && timeline >= 1.0 =>
            {
                assert!(0.0 < found && found <= moved, "{found} {moved}");
                assert!(0.0 < ladder && ladder < 1.5, "{ladder}");
                return;
            }
            Ok(sample) if was_quiet && is_quiet(&counters) => panic!("no page was moved: {:?}", sample.moved),
            Ok(sample) => println!("on a busy machine no page was moved: {:?}", sample.moved),
            Err(reason) => println!("retry: {reason}"),
        }
    }
    println!("SKIP cachekata: two threads did not run at the same time, or nothing may be repaired here");
}
