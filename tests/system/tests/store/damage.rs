//! Damaged files: what is found, what is lost, and what is salvaged.

use std::fs;

use serde_json::Value;

use crate::fixture::{COUNT, Fixture, run, stderr, stdout, with_input};

const PAGE: usize = 4096;

/// Flips a bit of the last page of the file that contains these bytes. Returns its number.
fn damage(fixture: &Fixture, bytes: &[u8]) -> usize {
    let mut image = fs::read(fixture.store()).unwrap();
    let at = image.windows(bytes.len()).rposition(|window| window == bytes).unwrap();
    image[at] ^= 1;
    fs::write(fixture.store(), image).unwrap();
    at / PAGE
}

#[test]
fn a_damaged_page_is_a_finding_with_the_keys_that_are_lost() {
    let fixture = Fixture::new();
    // A leaf of the table with the numbers.
    let page = damage(&fixture, &[0xff; 8]);
    let output = run("check", &fixture.store());
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    let line = text.lines().next().unwrap();
    let start = format!("page {page}, byte {}: its check is wrong. Lost: entries of table numbers, keys ", page * PAGE);
    assert!(line.starts_with(&start), "{line}");
    assert!(text.ends_with(": 1 finding\n"), "{text}");

    let json: Value = serde_json::from_slice(&run("check --format json", &fixture.store()).stdout).unwrap();
    let finding = &json["findings"][0];
    assert_eq!((&finding["page"], &finding["table"]), (&page.into(), &"numbers".into()));
    let is_number = |text: &Value| text.is_null() || text.as_str().unwrap().parse::<i32>().is_ok();
    assert!(is_number(&finding["from"]) && is_number(&finding["to"]), "{finding}");
    assert_eq!(json["schema"], "fieldstone-store-check/1");
    assert_eq!(run("check --quick", &fixture.store()).status.code(), Some(0));
}

#[test]
fn salvage_passes_a_damaged_page_and_reports_what_is_missing() {
    let fixture = Fixture::new();
    let whole = stdout("dump", &fixture.store());
    let page = damage(&fixture, &[0xff; 8]);
    for options in ["dump", "stat"] {
        let output = run(options, &fixture.store());
        assert_eq!(output.status.code(), Some(2), "{options}");
        let message = stderr(&output);
        assert!(
            message.contains(&format!("page {page}"))
                && message.contains("\ntry: ")
                && message.contains("fieldstone store "),
            "{message}"
        );
    }
    let output = run("dump --salvage", &fixture.store());
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).starts_with(&format!("fieldstone: page {page}, byte ")), "{}", stderr(&output));
    let (rows, last) = text.trim_end().rsplit_once('\n').unwrap();
    assert!(last.starts_with("salvaged\t"), "{last}");
    let missing = whole.lines().count() - text.lines().count();
    assert!(missing > 10 && missing < COUNT as usize / 4, "{missing} lines are missing");
    let lines: std::collections::HashSet<&str> = whole.lines().collect();
    assert!(rows.lines().all(|line| lines.contains(line)));
    let copy = fixture.path("copy.store");
    let loaded = with_input("load", &copy, text.as_bytes());
    assert_eq!(loaded.status.code(), Some(0));
    assert!(stderr(&loaded).contains("entries are missing"), "{}", stderr(&loaded));
    assert_eq!(stdout("dump", &copy), text.replace("salvaged", "complete"));
    assert_eq!(run("check", &copy).status.code(), Some(0));
}

#[test]
fn a_file_without_a_header_is_a_finding_and_cannot_be_dumped() {
    let fixture = Fixture::new();
    let mut image = fs::read(fixture.store()).unwrap();
    image[..2 * PAGE].fill(0);
    fs::write(fixture.store(), image).unwrap();
    let output = run("check", &fixture.store());
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains("Lost: everything"));
    let output = run("dump --salvage", &fixture.store());
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("it is no store"), "{}", stderr(&output));
}
