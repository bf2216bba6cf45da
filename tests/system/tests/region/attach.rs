//! `attach --huge`: a running program gets huge pages and is otherwise unaffected.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use fieldstone_sys::smaps;
use serde_json::Value;

use crate::binaries;
use crate::common::{kill, wait_until};
use crate::fixture::{Waiting, child, collapse_command, collapsed, compiled, stderr, stdout, workload};
use crate::server::Server;

const MIB: u64 = 1 << 20;

fn churning(size: &str) -> Option<Waiting> {
    let mut command = Command::new(workload("odd")?);
    command.args(["churn", size]);
    let churning = Waiting::start(command);
    assert_eq!(churning.line, "ready\n");
    Some(churning)
}

/// Collapses with `--stats`, and returns the statistics of the first process.
fn counted(pid: u32, options: &str) -> Option<Value> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("stats.json");
    let output = collapsed(pid, &format!("{options} --stats {}", file.display()))?;
    assert!(output.status.success(), "{}", stderr(&output));
    let stats: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(stats["schema"], "fieldstone-collapse/1");
    let mut report = Command::new(binaries::command());
    let report = report.args(["report", file.to_str().unwrap()]).output().unwrap();
    assert_eq!(stdout(&report), stdout(&output), "what was saved is shown as it was: {}", stderr(&report));
    Some(stats["processes"][0].clone())
}

fn huge_bytes(pid: u32) -> u64 {
    smaps::read_rollup(pid).unwrap().anon_huge_bytes
}

#[test]
fn threads_that_write_during_a_collapse_lose_nothing() {
    let Some(churning) = churning("64M") else { return };
    let pid = churning.running.id();
    let Some(first) = counted(pid, "") else { return };
    assert!(huge_bytes(pid) >= 56 * MIB, "{first}");
    assert_eq!(first["after"]["huge_bytes"].as_u64(), Some(huge_bytes(pid)), "{first}");
    let moved = first["moved_bytes"].as_u64().unwrap();
    assert!(first["before"]["huge_bytes"].as_u64().unwrap() + moved >= 56 * MIB, "{first}");
    let again = counted(pid, "").unwrap();
    assert!(again["moved_bytes"].as_u64().unwrap() <= 2 * MIB, "it is there already: {again}");
    let status = churning.end();
    assert!(status.success(), "{status}");
}

#[test]
fn a_server_keeps_its_values() {
    let Some(server) = Server::by(|program| {
        let mut command = Command::new(program[0]);
        // With all memory on transparent pages, it would disable them for itself.
        command.args(&program[1..]).args(["--disable-thp", "no"]);
        command
    }) else {
        return;
    };
    let mut line = server.line();
    let value = |key: usize| format!("{key}-{}", "v".repeat(500));
    for key in 0..20_000 {
        assert_eq!(line.ask(&format!("SET key{key} {}", value(key))), "+OK\r\n");
    }
    let pid = server.running.id();
    let Some(stats) = counted(pid, "") else { return };
    let (huge, all) =
        (stats["after"]["huge_bytes"].as_u64().unwrap(), stats["after"]["resident_bytes"].as_u64().unwrap());
    assert!(huge >= 8 * MIB && huge * 2 > all, "{stats}");
    for key in 0..20_000 {
        line.ask(&format!("GET key{key}"));
        assert_eq!(line.next().trim_end(), value(key));
    }
    assert!(line.ask("BGSAVE").starts_with('+'));
    wait_until("the save", || server.has_saved().then_some(()));
    assert_eq!(line.ask("GET key7"), "$502\r\n");
}

#[test]
fn children_are_included_on_request() {
    let Some(odd) = workload("odd") else { return };
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{odd} churn 32M; exit $?")]);
    let waiting = Waiting::start(shell);
    let pid = waiting.running.id();
    let program = wait_until("the child", || child(pid, "odd"));
    let Some(output) = collapsed(pid, "") else { return };
    assert!(output.status.success() && huge_bytes(program) < 16 * MIB, "{}", stdout(&output));
    let remedy = "one child process is not included\ntry: --children";
    assert!(stderr(&output).contains(remedy), "{}", stderr(&output));
    let output = collapsed(pid, "--children").unwrap();
    assert!(!stderr(&output).contains("--children"), "{}", stderr(&output));
    assert!(output.status.success() && stdout(&output).contains(&format!("odd ({program})")), "{}", stdout(&output));
    assert!(huge_bytes(program) >= 24 * MIB, "{}", stdout(&output));
    assert!(waiting.end().success());
}

#[test]
fn ctrl_c_stops_between_two_pages() {
    for attempt in 0..6 {
        let Some(churning) = churning("512M") else { return };
        let pid = churning.running.id();
        let before = huge_bytes(pid);
        // SIGINT has to work even if it is ignored (a shell without job control does that
        // for `command &`) or blocked.
        let mut command = Command::new("env");
        command.args([["--ignore-signal=INT", "--block-signal=INT"][attempt % 2], binaries::command()]);
        command.args(collapse_command(pid, "").get_args()).stdin(Stdio::null());
        let running = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let begun = || {
            huge_bytes(pid) > before
                || fs::read(format!("/proc/{}/cmdline", running.id())).is_ok_and(|text| text.is_empty())
        };
        wait_until("the first page", || begun().then_some(()));
        kill("INT", &running.id().to_string());
        let output = running.wait_with_output().unwrap();
        assert!(churning.end().success());
        if stderr(&output).contains("CAP_SYS_NICE") || stderr(&output).contains("from 6.1 on") {
            println!("SKIP memory may not be collapsed from outside: {}", stderr(&output).trim());
            return;
        }
        if output.status.code() == Some(130) {
            assert!(stdout(&output).contains("were not tried"), "{}", stdout(&output));
            return;
        }
        // The command finished before the signal.
        assert!(output.status.success(), "{}", stderr(&output));
    }
    panic!("six passes over 512 MiB were through before a signal came");
}

#[test]
fn statistics_are_written_without_a_reader_and_kept_on_failure() {
    let Some(churning) = churning("4M") else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("stats.json");
    let options = format!("--stats {}", file.display());
    if collapsed(churning.running.id(), "").is_none() {
        return;
    }
    let (reader, nobody) = std::io::pipe().unwrap();
    drop(reader);
    let unread = collapse_command(churning.running.id(), &options).stdout(nobody).output().unwrap();
    assert!(unread.status.success() && unread.stderr.is_empty(), "{}", stderr(&unread));
    let written = fs::read_to_string(&file).unwrap();
    assert!(written.contains("moved_bytes"), "{written}");
    refused(collapse_command(0x7fff_fff0, &options), &["does not exist"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), written);
    assert!(churning.end().success());
}

fn refused(mut command: Command, words: &[&str]) {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let message = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(words.iter().all(|word| message.contains(word)), "{message:?} lacks one of {words:?}");
}

#[test]
fn impossible_requests_are_refused_with_the_reason() {
    refused(collapse_command(0x7fff_fff0, ""), &["does not exist"]);
    refused(collapse_command(std::process::id(), "--region"), &["unexpected argument", "--huge <PID> [--children]"]);
    refused(collapse_command(std::process::id(), "--stats /no/such/directory/x"), &["/no/such/directory/x"]);
    let mut itself = Command::new("sh");
    itself.args(["-c", &format!("exec {} attach --huge $$", binaries::command())]);
    refused(itself, &["this command itself"]);
    if fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
        refused(collapse_command(2, ""), &["kernel thread"]);
    }
    let mut neither = Command::new(binaries::command());
    neither.args(["run", "true"]);
    refused(neither, &["--region", "--repair"]);
    let mut no_mode = Command::new(binaries::command());
    no_mode.args(["attach", "--children"]);
    refused(no_mode, &["--huge <PID>", "--repair <PID>"]);
}

#[test]
fn the_old_form_works_and_prints_the_new_one() {
    const HINT: &str = "fieldstone: `fieldstone run --pid` is an old form\ntry: fieldstone attach --huge\n";
    let old_form = |pid: u32, options: &str| {
        let mut command = Command::new(binaries::command());
        command.args(["run", "--pid", &pid.to_string()]).args(options.split_whitespace()).stdin(Stdio::null());
        command
    };
    refused(old_form(std::process::id(), "--pages 4k"), &[HINT, "--pages thp"]);
    refused(old_form(std::process::id(), "--region"), &["cannot be used with", "fieldstone run --region"]);
    let Some(churning) = churning("4M") else { return };
    let pid = churning.running.id();
    if collapsed(pid, "").is_none() {
        return;
    }
    let output = old_form(pid, "").output().unwrap();
    assert!(output.status.success() && stdout(&output).contains(&format!("odd ({pid})")), "{}", stdout(&output));
    assert_eq!(stderr(&output), HINT);
    assert!(churning.end().success());
}

#[test]
fn disabled_transparent_pages_are_reported() {
    let source = "#include <sys/prctl.h>\n#include <unistd.h>\n\
        int main(int n, char **a) { prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0); return execv(a[1], a + 1); }\n";
    let (Some(odd), Some((_directory, program))) = (workload("odd"), compiled(source, &[])) else { return };
    let mut command = Command::new(program);
    command.args([&odd, "churn", "4M"]);
    let churning = Waiting::start(command);
    refused(collapse_command(churning.running.id(), ""), &["PR_SET_THP_DISABLE"]);
    assert!(churning.end().success());
}

#[test]
fn a_process_of_another_user_and_a_missing_capability_are_refused() {
    const NOBODY: u32 = 65534;
    let Some(odd) = workload("odd") else { return };
    let own = churning("4M").unwrap();
    let mut command = collapse_command(own.running.id(), "");
    let tried = command.uid(NOBODY).gid(NOBODY).output();
    let Ok(output) = tried else {
        println!("SKIP not root: no other user can be tried");
        return;
    };
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("cannot read process"), "{}", stderr(&output));
    let mut other = Command::new(odd);
    other.args(["churn", "4M"]).uid(NOBODY).gid(NOBODY);
    let other = Waiting::start(other);
    let mut command = collapse_command(other.running.id(), "");
    command.uid(NOBODY).gid(NOBODY);
    refused(command, &["CAP_SYS_NICE", "sudo"]);
    assert!(other.end().success() && own.end().success());
}
