//! The options of `run --guard`, and what is refused.

use std::process::Command;

use fieldstone_report::{HeapError, SavedFile};

use crate::binaries;
use crate::fixture::{compiled, counted, findings, run, stderr, stdout};

#[test]
fn the_report_has_the_documented_form() {
    let program = compiled("keep_going.c", "");
    let output = run("--guard=all --guard-side right", &[&program]);
    let text = stderr(&output);
    let lines: Vec<&str> = text.lines().collect();
    let name = program.rsplit('/').next().unwrap();
    assert!(lines[0].starts_with(&format!("fieldstone: heap-buffer-overflow in {name} (process ")), "{text}");
    assert_eq!(lines[1], "  write of 1 byte, 0 bytes after an object of 32 bytes");
    assert!(lines[2].starts_with("    fill   ") && lines[2].ends_with("keep_going.c:8"), "{text}");
    assert!(
        lines[3].starts_with("    main   ") && lines[4].starts_with("  the object was allocated in thread "),
        "{text}"
    );
    assert_eq!(lines[6], "  guarded: 1 of 1 allocations of this site");
}

#[test]
fn keep_going_reports_each_place_once_and_finds_more() {
    let program = compiled("keep_going.c", "");
    let (output, found) = findings("--guard=all --guard-side right --keep-going", &[&program]);
    let kinds: Vec<&str> = found.iter().map(|error| error.kind.as_str()).collect();
    assert_eq!(kinds, ["heap-buffer-overflow", "use-after-free", "double-free"], "{}", stderr(&output));
    assert_eq!((stdout(&output).as_str(), output.status.code()), ("end\n", Some(1)), "1 instead of 0");
    let (output, _) = findings("--guard=all --guard-side right --keep-going", &[&program, "7"]);
    assert_eq!(output.status.code(), Some(7), "the program's own");
}

#[test]
fn keep_going_reports_an_error_at_its_write_and_not_at_the_free_too() {
    let program = compiled("beside.c", "");
    let (output, found) = findings("--guard=all --guard-side right --keep-going", &[&program]);
    let text = stderr(&output);
    assert_eq!(found.len(), 1, "{text}");
    assert_eq!((found[0].is_padding, found[0].stack[0].function.as_str()), (false, "fill"), "{text}");
    // An object at the left side of its pages finds the error at its free: once.
    let (output, found) = findings("--guard=all --guard-side left --keep-going", &[&program]);
    let text = stderr(&output);
    assert_eq!((found.len(), found[0].is_padding), (1, true), "{text}");
    assert!(text.contains("\n  try: run again with --guard-side right"), "{text}");
}

#[test]
fn a_run_without_findings_leaves_a_file_that_can_be_printed() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("findings.json");
    run(&format!("--guard=all --guard-report {}", file.display()), &["true"]);
    let printed = Command::new(binaries::command()).arg("report").arg(&file).output().unwrap();
    assert!(stdout(&printed).starts_with("0 memory errors\n"), "{}", stderr(&printed));
    assert!(printed.status.success());
}

#[test]
fn a_new_site_is_guarded_after_the_budget_of_time_is_used_up() {
    let program = compiled("sites.c", "-O0");
    for run in 0..3 {
        let (output, found) = findings("--guard", &[&program]);
        assert_eq!(found.len(), 1, "run {run}: {:?} {}", output.status, stderr(&output));
    }
}

#[test]
fn the_file_of_findings_has_the_documented_fields_and_can_be_printed() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("findings.json");
    let program = compiled("keep_going.c", "");
    let options = format!("--guard=all --guard-side right --keep-going --guard-report {}", file.display());
    run(&options, &[&program]);
    run(&options, &[&program]);
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(text.lines().count(), 6, "it is appended to: {text}");
    let first: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    for field in [
        "kind",
        "access",
        "bytes",
        "offset",
        "object_bytes",
        "stack",
        "allocated",
        "freed",
        "site_allocations",
        "site_guarded",
    ] {
        assert!(first.get(field).is_some(), "{field}: {first}");
    }
    assert_eq!((first["access"].as_str(), first["bytes"].as_u64()), (Some("write"), Some(1)));
    let printed = Command::new(binaries::command()).arg("report").arg(&file).output().unwrap();
    let printed = stdout(&printed);
    assert!(printed.starts_with("6 memory errors\n") && printed.contains("use-after-free in "), "{printed}");
    let Ok(SavedFile::HeapErrors(saved)) = SavedFile::load(&file) else { panic!("no findings") };
    assert!(saved.iter().all(|error| error.schema == HeapError::SCHEMA));
}

#[test]
fn the_statistics_count_what_was_guarded() {
    let program = compiled("family.c", "");
    let (_, all) = counted("--guard=all", &[&program]);
    let process = &all.processes[0];
    assert!(process.allocations > 10_000 && process.guarded > process.allocations / 2, "{process:?}");
    assert!(process.peak_memory_bytes > 0 && process.peak_memory_bytes <= 1 << 30, "{process:?}");
    let (_, sampled) = counted("--guard", &[&program]);
    let process = &sampled.processes[0];
    assert!(process.guarded > 20 && process.guarded < process.allocations / 10, "{process:?}");
    let reasons: u64 = process.unguarded.iter().map(|unguarded| unguarded.allocations).sum();
    assert_eq!(process.guarded + reasons, process.allocations, "{process:?}");
}

#[test]
fn past_the_memory_limit_objects_are_counted_as_unguarded() {
    let program = compiled("family.c", "");
    let (output, stats) = counted("--guard=all --guard-memory 2M", &[&program]);
    assert!(output.status.success(), "{}", stderr(&output));
    let process = &stats.processes[0];
    let memory = process.unguarded.iter().find(|unguarded| unguarded.reason.contains("memory limit"));
    assert!(memory.unwrap().allocations > 0 && process.peak_memory_bytes <= 2 << 20, "{process:?}");
}

#[test]
fn what_cannot_be_guarded_is_refused_with_a_remedy() {
    let refused = |arguments: &[&str]| {
        let output = Command::new(binaries::command()).args(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        stderr(&output)
    };
    let program = compiled("keep_going.c", "-static");
    let text = refused(&["run", "--guard", "--", &program]);
    assert!(text.contains("statically linked and loads no agent\ntry: link it dynamically"), "{text}");
    let text = refused(&["run", "--region", "--guard", "--", &program]);
    assert!(text.contains("cannot guard"), "{text}");
    let text = refused(&["attach", "--guard", "1"]);
    assert!(text.contains("cannot guard a running process") && text.contains("try: fieldstone run --guard"), "{text}");
    let text = refused(&["run", "--guard", "--repair", "--", "true"]);
    assert!(text.contains("cannot combine --repair with --guard"), "{text}");
    for option in ["--guard=2/3", "--guard=1/0", "--guard=none"] {
        assert!(refused(&["run", option, "--", "true"]).contains("give `all`, or 1/N"), "{option}");
    }
    assert!(refused(&["run", "--guard", "--guard-memory", "4K", "--", "true"]).contains("the least is 1M"));
    assert!(refused(&["run", "--region", "--keep-going", "--", "true"]).contains("--guard"));
    assert!(
        refused(&["run", "--guard", "--guard-report", "/no/such/file", "--", "true"])
            .contains("cannot write /no/such/file: there is no directory /no")
    );
}
