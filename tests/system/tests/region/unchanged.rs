//! The environment that the program sees is the same as without the command.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use crate::binaries;
use crate::fixture::{compiled, region, run, stderr, stdout, workload};

fn natively(program: &[&str]) -> Command {
    let mut command = Command::new(program[0]);
    // This variable is a setting of the test itself.
    command.args(&program[1..]).env("FIELDSTONE_AGENT_DIR", env!("CARGO_TARGET_TMPDIR")).stdin(Stdio::null());
    command
}

fn same(native: &Output, with_region: &Output) {
    assert_eq!(stdout(native), stdout(with_region));
    assert_eq!(native.status.code(), with_region.status.code(), "{}", stderr(with_region));
}

#[test]
fn environment_arguments_and_descriptors_are_unchanged() {
    let Some(odd) = workload("odd") else { return };
    let program = [odd.as_str(), "surroundings", "a b", "", "--stats", "--"];
    same(&natively(&program).output().unwrap(), &run("", &program));
}

#[test]
fn the_environment_of_a_child_is_unchanged() {
    let program = ["sh", "-c", "env; exec env"];
    same(&natively(&program).output().unwrap(), &run("", &program));
}

#[test]
fn the_user_s_preload_is_kept() {
    let source = "extern long write(int, const void *, unsigned long);\n\
        __attribute__((constructor)) static void hello(void) { write(1, \"preloaded\\n\", 10); }\n";
    let Some((_directory, library)) = compiled(source, &["-shared", "-fPIC"]) else { return };
    let program = ["sh", "-c", "echo \"<$LD_PRELOAD>\"; env | grep LD_PRE; exit 0"];
    let native = natively(&program).env("LD_PRELOAD", &library).output().unwrap();
    let with_region = region("", &program).env("LD_PRELOAD", &library).output().unwrap();
    assert!(stdout(&native).contains("preloaded"));
    // The command itself loads the library, too.
    let region_output = stdout(&with_region);
    let program_output = region_output.strip_prefix("preloaded\n").unwrap();
    assert_eq!(stdout(&native), program_output, "{}", stderr(&with_region));
}

#[test]
fn standard_input_and_output_are_passed_through() {
    let Some(odd) = workload("odd") else { return };
    let mut running = region("", &[&odd, "echo"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let text: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
    let mut input = running.stdin.take().unwrap();
    let written = text.clone();
    let writer = std::thread::spawn(move || input.write_all(&written).unwrap());
    let output = running.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success() && output.stdout == text);
}

/// The program has the same descriptors, and fails to write as it would natively.
#[test]
fn closed_standard_streams_stay_closed() {
    // The exit code has a bit for each open stream, and one for a failed write.
    let script = "c=0; [ -e /proc/$$/fd/0 ] && c=1; [ -e /proc/$$/fd/1 ] && c=$((c + 2)); \
        [ -e /proc/$$/fd/2 ] && c=$((c + 4)); echo x || c=$((c + 8)); exit $c";
    let code = |before: &str, redirection: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("{before} sh -c '{script}' {redirection}")]);
        shell.env("FIELDSTONE_AGENT_DIR", env!("CARGO_TARGET_TMPDIR")).output().unwrap().status.code()
    };
    let with_region = binaries::command();
    for (redirection, native) in [("", 7), ("<&-", 6), (">&-", 13), ("2>&-", 3), ("<&- >&- 2>&-", 8)] {
        assert_eq!(code("", redirection), Some(native), "{redirection}");
        for mode in ["--region", "--repair"] {
            assert_eq!(
                code(&format!("{with_region} run {mode} --"), redirection),
                Some(native),
                "{mode} {redirection}"
            );
        }
    }
}

#[test]
fn a_limit_on_addresses_works_as_natively() {
    let source = "#include <stdlib.h>\n#include <stdio.h>\n#include <string.h>\n\
        int main(void) { char *much = malloc(1u << 30), *some = malloc(64 << 20);\n\
        if (some) memset(some, 1, 64 << 20);\n printf(\"%d %d\\n\", much != 0, some != 0); return 0; }\n";
    let Some((_directory, program)) = compiled(source, &["-O0"]) else { return };
    let limited = |command: &mut Command| stdout(&command.output().unwrap());
    let script = format!("ulimit -v 500000; exec {program}");
    let shell = ["sh", "-c", script.as_str()];
    assert_eq!(limited(&mut natively(&shell)), "0 1\n");
    assert_eq!(limited(&mut region("", &shell)), "0 1\n");
    assert_eq!(limited(&mut region("--reserve 64M", &[&program])), "1 1\n", "no limit, no refusal");
}
