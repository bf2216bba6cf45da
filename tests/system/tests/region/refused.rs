//! Programs that cannot have a region are refused, with the reason, before anything runs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::binaries;
use crate::fixture::{compiled, region, run, stderr};
use crate::outside::is_collapse_forbidden;

/// Runs a program: the command has to return 2, print nothing, and report all of `words`.
fn refused(program: &str, words: &[&str]) {
    let output = run("", &[program]);
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{program}: {message}");
    assert!(output.stdout.is_empty());
    assert!(words.iter().all(|word| message.contains(word)), "{program}: {message:?} lacks one of {words:?}");
    assert!(message.starts_with("fieldstone: "), "{message:?}");
    assert!(message.lines().skip(1).all(|line| line.starts_with("try: ")), "{message:?}");
}

fn executable(path: &Path, contents: &[u8], mode: u32) -> String {
    fs::write(path, contents).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn missing_files_and_other_files_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    refused("no-such-program-anywhere", &["no-such-program-anywhere", "not in the path"]);
    refused("/no/such/program", &["/no/such/program"]);
    refused(directory.path().to_str().unwrap(), &["directory"]);
    refused(&executable(&directory.path().join("plain"), b"#!/bin/sh\n", 0o644), &["not executable"]);
    refused(
        &executable(&directory.path().join("text"), b"some text\n", 0o755),
        &["no ELF program and no script with a #! line", "`sh "],
    );
    let script = executable(&directory.path().join("script"), b"#!/no/such/interpreter -x\n", 0o755);
    refused(&script, &["/script: its interpreter /no/such/interpreter", "does not exist"]);
    refused("/dev/null", &["a device, not a regular file"]);
    let link = directory.path().join("loop");
    std::os::unix::fs::symlink(&link, &link).unwrap();
    refused(link.to_str().unwrap(), &["oo many levels of symbolic links"]);
}

/// The message of each command that starts a program, without the command's own remedies.
fn message_of_each(program: &str) -> Vec<String> {
    let commands: [&[&str]; 4] =
        [&["run", "--region"], &["run", "--repair"], &["sharing"], &["profile", "--runs", "1"]];
    let message_of = |command: &&[&str]| {
        // A hang is the failure that this test looks for.
        let mut timed = Command::new("timeout");
        timed.args(["-k", "1", "20", binaries::command()]).args(*command).args(["--", program]);
        let output = timed.env("FIELDSTONE_AGENT_DIR", env!("CARGO_TARGET_TMPDIR")).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{command:?} {program}: {}", stderr(&output));
        stderr(&output)
    };
    commands.iter().map(message_of).collect()
}

#[test]
fn every_command_explains_in_the_same_words() {
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo");
    assert!(Command::new("mkfifo").args(["-m", "755"]).arg(&fifo).status().unwrap().success());
    let through_fifo = format!("#!{}\n", fifo.display());
    let programs = [
        (fifo.to_str().unwrap().to_owned(), "FIFO"),
        (executable(&directory.path().join("over-fifo"), through_fifo.as_bytes(), 0o755), "FIFO"),
        (executable(&directory.path().join("text"), b"exit 3\n", 0o755), "#! line"),
        (executable(&directory.path().join("empty"), b"", 0o755), "it is empty"),
        (executable(&directory.path().join("windows"), b"#!/bin/sh\r\n", 0o755), "carriage return"),
        (executable(&directory.path().join("no-interpreter"), b"#!/nonexistent\n", 0o755), "/nonexistent"),
    ];
    for (program, word) in programs {
        let all = message_of_each(&program);
        let first = &all[0];
        assert!(first.starts_with(&format!("fieldstone: cannot start {program}: ")) && first.contains(word), "{first}");
        assert!(all.iter().all(|message| message.ends_with(first.as_str())), "{all:#?}");
    }
}

#[test]
fn an_unreadable_program_is_refused() {
    const NOBODY: u32 = 65534;
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let file = executable(&directory.path().join("unreadable"), &fs::read("/bin/true").unwrap(), 0o711);
    let Ok(output) = region("", &[&file]).uid(NOBODY).gid(NOBODY).output() else {
        println!("SKIP not root: no other user can be tried");
        return;
    };
    assert_eq!(output.status.code(), Some(2));
    let message = stderr(&output);
    assert!(message.contains("execute it but not read it") && message.contains("\ntry: chmod a+r "), "{message}");
}

#[test]
fn options_of_a_repair_are_refused_without_a_repair() {
    for arguments in
        ["run --region --rules x -- true", "run --region --consolidate -- true", "attach --huge 1 --rules x"]
    {
        let output = Command::new(binaries::command()).args(arguments.split(' ')).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        let message = stderr(&output);
        assert!(message.contains("cannot be used with"), "{arguments}: {message}");
    }
}

#[test]
fn a_misspelt_option_is_named() {
    let output = Command::new(binaries::command()).args(["run", "--regoin", "--", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--regoin: it is no option of `fieldstone run`"), "{}", stderr(&output));
}

#[test]
fn a_set_user_id_program_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = executable(&directory.path().join("set-id"), &fs::read("/bin/true").unwrap(), 0o4755);
    refused(&file, &["set-user-id", "copy"]);
}

/// It can be served from outside, but not with these options.
#[test]
fn options_that_need_the_agent_are_refused_for_a_static_program() {
    let Some((_directory, program)) = compiled("int main(void) { return 0; }\n", &["-static"]) else { return };
    for options in ["--pages 4k", "--pages hugetlb", "--prefault", "--reserve 4M", "--also stacks", "--process x"] {
        let output = run(options, &[&program]);
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{options}");
        let option = options.strip_suffix(" 4M").or_else(|| options.strip_suffix(" stacks"));
        let option = option.or_else(|| options.strip_suffix(" x")).unwrap_or(options);
        assert!(message.contains(option) && message.contains("statically linked"), "{message}");
        let remedy = format!("try: fieldstone run --region --pages thp -- {program}");
        assert_eq!(message.lines().nth(1), Some(remedy.as_str()), "{message}");
    }
    let remedied = run("--pages thp", &[&program]);
    assert!(remedied.status.success() || is_collapse_forbidden(&stderr(&remedied)), "{}", stderr(&remedied));
}

#[test]
fn programs_of_32_bits_or_another_machine_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let mut header = fs::read("/bin/true").unwrap();
    header[18] = 8;
    refused(&executable(&directory.path().join("mips"), &header, 0o755), &["another processor"]);
    header[4] = 1;
    refused(&executable(&directory.path().join("narrow"), &header, 0o755), &["32-bit"]);
}

#[test]
fn a_run_without_a_mode_is_refused() {
    let output = std::process::Command::new(binaries::command()).args(["run", "--", "true"]).output();
    let output = output.unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--region"), "{}", stderr(&output));
}
