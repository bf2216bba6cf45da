//! Tests of the output and the exit code of `fieldstone doctor`.

#![allow(clippy::unwrap_used, reason = "a test that cannot start the command has failed")]

use std::process::{Command, Output};

fn doctor(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fieldstone")).arg("doctor").args(arguments).output().unwrap()
}

#[test]
fn text_json_and_exit_code_agree() {
    let (text, json) = (doctor(&[]), doctor(&["--format", "json"]));
    let value: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    // Lines are wrapped, so only words are compared.
    let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let words = plain(&String::from_utf8(text.stdout).unwrap());
    let verdicts = value["verdicts"].as_array().unwrap();
    assert!(verdicts.len() >= 3, "{verdicts:?}");
    for verdict in verdicts {
        let [command, level, why] = ["command", "level", "why"].map(|name| verdict[name].as_str().unwrap());
        let line = plain(&format!("{command} {level} {why}"));
        assert!(words.contains(&line), "{line}\n{words}");
    }
    let code = i32::from(verdicts.iter().any(|verdict| verdict["level"] == "unavailable"));
    assert_eq!((text.status.code(), json.status.code()), (Some(code), Some(code)));
    assert!(text.stderr.is_empty() && json.stderr.is_empty());
}

#[test]
fn an_unknown_format_is_refused() {
    let output = doctor(&["--format", "xml"]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
}
