//! Children get the agent through fork and exec, unless one program is named by `--process`.

use fieldstone_report::{ProcessStats, RunStats};

use crate::fixture::{compiled, counted, has_reason, stderr, workload};

fn named<'a>(stats: &'a RunStats, name: &str) -> Vec<&'a ProcessStats> {
    stats.processes.iter().filter(|process| process.name == name).collect()
}

#[test]
fn a_child_of_a_shell_has_a_region() {
    let Some(gups) = workload("gups") else { return };
    let (output, stats) = counted("", &["sh", "-c", &format!("{gups} 32M; exit 3")]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let child = stats.primary().unwrap();
    assert_eq!(child.name, "gups");
    assert!(child.region.served_bytes >= 32 << 20, "{child:?}");
    let shell = stats.processes.iter().find(|process| process.pid == child.parent_pid).unwrap();
    assert_ne!(shell.region.base, 0, "the shell has a region of its own");
}

#[test]
fn a_child_of_python_has_a_region() {
    let Some(gups) = workload("gups") else { return };
    let script = format!("import subprocess, sys; sys.exit(subprocess.run([{gups:?}, '16M']).returncode)");
    let (output, stats) = counted("", &["python3", "-c", &script]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(named(&stats, "gups").iter().any(|child| child.region.served_bytes >= 16 << 20), "{stats:?}");
}

#[test]
fn each_exec_function_passes_the_agent_on() {
    let source = "#define _GNU_SOURCE\n#include <unistd.h>\n#include <fcntl.h>\n#include <stdlib.h>\n#include <spawn.h>\n\
        #include <sys/wait.h>\n extern char **environ;\n\
        int main(int n, char **a) { char *v[] = {a[2], \"1M\", 0}; int s; pid_t p;\n switch (a[1][0]) {\n\
        case 'e': execve(v[0], v, environ); break; case 'v': execv(v[0], v); break;\n\
        case 'p': execvp(v[0], v); break; case 'l': execl(v[0], v[0], v[1], (char *)0); break;\n\
        case 'f': fexecve(open(v[0], O_RDONLY), v, environ); break;\n\
        case 's': posix_spawn(&p, v[0], 0, 0, v, environ); waitpid(p, &s, 0); return WEXITSTATUS(s);\n\
        case 'y': return WEXITSTATUS(system(a[3]));\n\
        case 'k': if (!(p = vfork())) { execv(v[0], v); _exit(9); } waitpid(p, &s, 0); return WEXITSTATUS(s); }\n\
        return 9; }\n";
    let Some(gups) = workload("gups") else { return };
    let Some((_directory, program)) = compiled(source, &[]) else { return };
    for way in ["e", "v", "p", "l", "f", "s", "y", "k"] {
        let (output, stats) = counted("", &[&program, way, &gups, &format!("{gups} 1M; exit $?")]);
        assert!(output.status.success(), "{way}: {}", stderr(&output));
        let served = stats.processes.iter().any(|process| process.region.served_bytes >= 1 << 20);
        assert!(served, "{way}: {stats:?}");
    }
}

#[test]
fn only_the_named_program_has_a_region() {
    let Some(gups) = workload("gups") else { return };
    let (output, stats) = counted("--process gups", &["sh", "-c", &format!("{gups} 16M; exit 0")]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stats.primary_name, "gups");
    assert!(stats.primary().unwrap().region.served_bytes >= 16 << 20);
    let shell = stats.processes.iter().find(|process| !process.primary).unwrap();
    assert!(shell.region.served_bytes == 0 && has_reason(shell, "--process"), "{shell:?}");
}

#[test]
fn two_hundred_short_children_are_counted() {
    let script = "i=0; while [ $i -lt 200 ]; do (exit 0) & i=$((i+1)); done; wait";
    let (output, stats) = counted("", &["sh", "-c", script]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stats.processes.len() >= 195, "{} of 201; a number may be given again", stats.processes.len());
    let served = stats.processes.iter().filter(|process| process.region.base != 0).count();
    assert_eq!(served, stats.processes.len());
}

#[test]
fn a_child_that_cannot_load_the_agent_runs_unchanged() {
    let source = "#include <stdio.h>\n#include <stdlib.h>\n\
        int main(void) { printf(\"%d\", getenv(\"LD_PRELOAD\") || getenv(\"FIELDSTONE_SESSION\")); return 0; }\n";
    let Some((_directory, program)) = compiled(source, &["-static"]) else { return };
    let (output, stats) = counted("", &["sh", "-c", &format!("{program}; exit 0")]);
    assert_eq!(output.stdout, b"0");
    assert!(stats.processes.iter().any(|process| has_reason(process, "cannot carry the agent")), "{stats:?}");
}

/// execvp tries the directories of PATH one after the other.
#[test]
fn failed_execs_are_not_counted() {
    let child = "import subprocess; subprocess.run(['true'])";
    let command = ["env", "PATH=/nowhere:/neither:/usr/bin:/bin", "python3", "-c", child];
    let (output, stats) = counted("", &command);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stats.processes.len() >= 2, "{stats:?}");
    assert!(!stats.processes.iter().any(|process| has_reason(process, "cannot carry the agent")), "{stats:?}");
}

#[test]
fn a_sanitized_program_runs_without_a_region() {
    let source = "#include <stdlib.h>\n#include <stdio.h>\n\
        int main(void) { char *p = malloc(8 << 20); p[5] = 7; puts(\"sane\"); free(p); return 0; }\n";
    let Some((_directory, program)) = compiled(source, &["-fsanitize=address"]) else { return };
    let (output, stats) = counted("", &[&program]);
    assert_eq!(output.stdout, b"sane\n", "{}", stderr(&output));
    assert!(stats.processes.iter().all(|process| has_reason(process, "sanitizer")), "{stats:?}");
}
