//! What cannot have a region is refused, with the reason, before anything runs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::outside::may_not;
use crate::stage::{compiled, run, said};

/// The command ends with 2, prints nothing, and says all of `words`.
fn refused(program: &str, words: &[&str]) {
    let output = run("", &[program]);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(2), "{program}: {said}");
    assert!(output.stdout.is_empty());
    assert!(words.iter().all(|word| said.contains(word)), "{program}: {said:?} lacks one of {words:?}");
    assert!(said.starts_with("fieldstone: ") && said.lines().count() == 1, "{said:?}");
}

fn executable(path: &Path, contents: &[u8], mode: u32) -> String {
    fs::write(path, contents).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn what_is_not_there_or_no_program() {
    let room = tempfile::tempdir().unwrap();
    refused("no-such-program-anywhere", &["no-such-program-anywhere", "not in the path"]);
    refused("/no/such/program", &["/no/such/program"]);
    refused(room.path().to_str().unwrap(), &["directory"]);
    refused(&executable(&room.path().join("plain"), b"#!/bin/sh\n", 0o644), &["not executable"]);
    refused(&executable(&room.path().join("text"), b"some text\n", 0o755), &["no ELF program and no script"]);
    let script = executable(&room.path().join("script"), b"#!/no/such/interpreter -x\n", 0o755);
    refused(&script, &["/no/such/interpreter"]);
}

#[test]
fn a_set_user_id_copy() {
    let room = tempfile::tempdir().unwrap();
    let file = executable(&room.path().join("set-id"), &fs::read("/bin/true").unwrap(), 0o4755);
    refused(&file, &["set-user-id", "copy"]);
}

/// From outside it can be served, but not with all of this.
#[test]
fn a_static_program_with_what_only_the_agent_gives() {
    let Some((_room, program)) = compiled("int main(void) { return 0; }\n", &["-static"]) else { return };
    for options in ["--pages 4k", "--pages hugetlb", "--prefault", "--reserve 4M", "--also stacks", "--process x"] {
        let output = run(options, &[&program]);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(2), "{options}");
        let option = options.strip_suffix(" 4M").or_else(|| options.strip_suffix(" stacks"));
        let option = option.or_else(|| options.strip_suffix(" x")).unwrap_or(options);
        assert!(said.contains(option) && said.contains("statically linked"), "{said}");
        let remedy = format!("try: fieldstone run --region --pages thp -- {program}");
        assert_eq!(said.lines().nth(1), Some(remedy.as_str()), "{said}");
    }
    let remedied = run("--pages thp", &[&program]);
    assert!(remedied.status.success() || may_not(&said(&remedied)), "{}", said(&remedied));
}

#[test]
fn a_program_of_32_bits_or_another_machine() {
    let room = tempfile::tempdir().unwrap();
    let mut header = fs::read("/bin/true").unwrap();
    header[18] = 8;
    refused(&executable(&room.path().join("mips"), &header, 0o755), &["another processor"]);
    header[4] = 1;
    refused(&executable(&room.path().join("narrow"), &header, 0o755), &["32-bit"]);
}

#[test]
fn a_run_that_mends_nothing() {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_fieldstone")).args(["run", "--", "true"]).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("--region"), "{}", said(&output));
}
