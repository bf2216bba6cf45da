//! Whole files: check, stat, dump and load.

use std::fs;
use std::process::Command;

use fieldstone_store::Store;
use serde_json::Value;

use crate::binaries;
use crate::fixture::{COUNT, Fixture, NUMBERS, fill, run, stderr, stdout, with_input};

#[test]
fn what_is_dumped_and_loaded_is_dumped_as_the_same_text() {
    let fixture = Fixture::new();
    let text = stdout("dump", &fixture.store());
    assert_eq!(text.lines().count(), 4 + 257 + 5 + COUNT as usize + 1);
    assert!(text.ends_with("\ncomplete\t5262\n"), "the last line");
    for line in ["bytes\tbytes\tbytes\t\t", "numbers\ti32\tu64\t-2500\t18446744073709551615", "zero\tu8\ttext"] {
        assert!(text.lines().any(|found| found == line), "{line:?}");
    }
    let copy = fixture.path("copy.store");
    let loaded = with_input("load", &copy, text.as_bytes());
    assert_eq!(loaded.status.code(), Some(0), "{}", stderr(&loaded));
    assert_eq!(String::from_utf8(loaded.stdout).unwrap(), "loaded: 5,262 entries of 4 tables\n");
    assert_eq!(stdout("dump", &copy), text);
    // An existing store keeps its other entries, and equal ones are replaced.
    assert_eq!(
        with_input("load", &copy, b"new\tu8\tu8\t1\t2\nnumbers\ti32\tu64\t0\t7\ncomplete").status.code(),
        Some(0)
    );
    let after = stdout("dump", &copy);
    assert_eq!(after.lines().count(), text.lines().count() + 2);
    assert!(after.contains("numbers\ti32\tu64\t0\t7\n"));
}

#[test]
fn json_lines_are_loaded_too() {
    let fixture = Fixture::new();
    let (text, json) = (stdout("dump", &fixture.store()), stdout("dump --format json", &fixture.store()));
    let first: Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    assert_eq!(first, serde_json::json!({"table": "bytes", "key_type": "bytes", "value_type": "bytes"}));
    let copy = fixture.path("copy.store");
    let loaded = with_input("load --format json", &copy, json.as_bytes());
    let result: Value = serde_json::from_slice(&loaded.stdout).unwrap();
    assert_eq!((&result["entries"], &result["tables"]), (&5262.into(), &4.into()));
    assert_eq!(stdout("dump", &copy), text);
}

#[test]
fn reading_does_not_change_the_file_and_sees_what_is_not_recovered() {
    let fixture = Fixture::new();
    // The copy of an open store is as that of a killed one: commits are in its log only.
    let store = Store::open(fixture.store()).unwrap();
    store.write(|tx| tx.table(NUMBERS)?.insert(&i32::MAX, &1)).unwrap();
    let killed = fixture.path("killed.store");
    fs::copy(fixture.store(), &killed).unwrap();
    let before = fs::read(&killed).unwrap();
    assert!(stdout("check", &killed).ends_with(": no findings\n"));
    assert!(stdout("dump", &killed).contains("\t2147483647\t1\n"));
    let stat: Value = serde_json::from_str(&stdout("stat --format json", &killed)).unwrap();
    assert_eq!((&stat["unrecovered_commits"], &stat["tables"][1]["entries"]), (&1.into(), &(COUNT + 1).into()));
    assert!(stat["bytes_to_disk_a_commit"].as_u64().unwrap() > 512);
    assert!(fs::read(&killed).unwrap() == before, "a command that reads has changed the file");
    for options in ["check", "stat", "dump", "load"] {
        let output = run(options, &fixture.store());
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{options}: {message}");
        assert!(message.contains("a.store: ") && message.contains("\ntry: "), "{options}: {message}");
    }
}

#[test]
fn statistics_are_printed() {
    let fixture = Fixture::new();
    let text = stdout("stat", &fixture.store());
    for part in ["version", "nothing to recover", "to disk a commit", "numbers", "i32", "5,000", "zero"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    let stat: Value = serde_json::from_str(&stdout("stat --format json", &fixture.store())).unwrap();
    let names: Vec<&str> =
        stat["tables"].as_array().unwrap().iter().map(|table| table["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["bytes", "numbers", "words\tand \\ names", "zero"]);
    let table = &stat["tables"][1];
    assert_eq!((&table["entries"], &table["entry_bytes"]), (&COUNT.into(), &(COUNT * 12).into()));
    assert_eq!(stat["file_bytes"].as_u64().unwrap(), fs::metadata(fixture.store()).unwrap().len());
}

#[test]
fn wrong_input_is_refused_with_its_line() {
    let fixture = Fixture::new();
    let copy = fixture.path("copy.store");
    for (input, reason) in [
        ("t\tu8\tu8\t1\t1\nt\tu8", "line 2 of standard input: it has 2 fields"),
        ("t\tu8\tu8\t256\t1", "line 1 of standard input: 256 is no u8"),
        ("t\tbytes\tbytes\t\\y\t1", "line 1 of standard input: behind \\"),
        ("t\tbytes\ttext\t1\t1\nt\tbytes\tbytes\t1\t1", "has keys of type bytes"),
    ] {
        let output = with_input("load", &copy, input.as_bytes());
        assert_eq!(output.status.code(), Some(2), "{input:?}");
        assert!(stderr(&output).contains(reason), "{input:?}: {}", stderr(&output));
        assert!(stderr(&output).contains("; 0 lines before are in the store"), "{}", stderr(&output));
    }
    let too_large = format!("t\tbytes\tbytes\t{}\t1", "k".repeat(3000));
    assert!(stderr(&with_input("load", &copy, too_large.as_bytes())).contains("a key has at most 512 bytes"));
    assert_eq!(stdout("dump", &copy), "complete\t0\n");
}

#[test]
fn a_reader_may_close_the_pipe_early() {
    let fixture = Fixture::new();
    let script = "set -o pipefail; \"$0\" store dump \"$1\" | head -n 1";
    let output = Command::new("bash").args(["-c", script, binaries::command()]).arg(fixture.store()).output().unwrap();
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    assert_eq!(output.stdout, b"bytes\tbytes\tbytes\n");
}

#[test]
fn other_files_are_no_stores() {
    let fixture = Fixture::new();
    let other = fixture.path("other");
    fs::write(&other, "no store".repeat(5000)).unwrap();
    assert_eq!(run("check", &other).status.code(), Some(1));
    for options in ["stat", "dump", "dump --salvage", "load"] {
        assert_eq!(run(options, &other).status.code(), Some(2), "{options}");
    }
    for path in [fixture.path("absent"), fixture.path(".")] {
        for options in ["check", "stat", "dump"] {
            let output = run(options, &path);
            assert_eq!(output.status.code(), Some(2), "{options}");
            assert!(stderr(&output).starts_with("fieldstone: cannot "), "{}", stderr(&output));
        }
    }
    assert!(!fixture.path("absent").exists());
    let store = Store::open(fixture.path("new.store")).unwrap();
    fill(&store);
    drop(store);
    assert_eq!(stdout("dump", &fixture.path("new.store")), stdout("dump", &fixture.store()));
}

#[test]
fn an_input_that_ends_early_is_an_error_and_what_was_loaded_stays() {
    let fixture = Fixture::new();
    for format in ["", " --format json"] {
        let (dump, load) = (format!("dump{format}"), format!("load{format}"));
        let text = stdout(&dump, &fixture.store());
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        let copy = fixture.path(&format!("copy{}.store", format.len()));
        // Without the last line.
        let output = with_input(&load, &copy, lines[..lines.len() - 1].concat().as_bytes());
        assert_eq!(output.status.code(), Some(2));
        let message = stderr(&output);
        assert!(message.contains("it ends without the last line of a dump; 5,266 lines before"), "{message}");
        assert!(message.contains("are in the store, with 5,262 entries\ntry: "), "{message}");
        assert_eq!(stdout(&dump, &copy), text);
        // Without a line in the middle.
        let output = with_input(&load, &copy, [&lines[..9], &lines[10..]].concat().concat().as_bytes());
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains("says 5,262 entries, and it has 5,261"), "{}", stderr(&output));
        // Nothing at all.
        let absent = fixture.path("absent.store");
        let output = with_input(&load, &absent, b"");
        assert!(output.status.code() == Some(2) && !absent.exists(), "{}", stderr(&output));
        let output = with_input(&load, &copy, b"");
        assert!(output.status.code() == Some(2) && stderr(&output).contains("no entry and no table"));
        let empty = fixture.path(&format!("empty{}.store", format.len()));
        assert_eq!(
            with_input(&load, &empty, lines[lines.len() - 1].replace("5262", "0").as_bytes()).status.code(),
            Some(0)
        );
    }
}
