//! NUMA: memory policies of the program are the same with a region.
//!
//! The test uses the last node. On most machines it is the only one, and policies can be read all
//! the same.

use std::fs;
use std::process::Command;

use crate::common::ReservedPool;
use crate::fixture::{compiled, region, stderr, stdout};

/// Binds and interleaves mappings on a node, writes them, forks, grows and shrinks them. Then
/// prints the policy of each, from the call and from the kernel's table, and whether pages of it
/// are on another node. With a second argument, runs a command under a policy of the whole process
/// first.
const SOURCE: &str = "#define _GNU_SOURCE\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <unistd.h>\n\
    #include <sys/mman.h>\n#include <sys/syscall.h>\n#include <sys/wait.h>\n\
    static unsigned long node, bits[16];\n\
    static void show(const char *name, char *p) { int mode = -1; unsigned long got[16] = {0}; char line[4096], best[4096] = \"\";\n\
        syscall(SYS_get_mempolicy, &mode, got, 1024L, p, 2L);\n\
        FILE *f = fopen(\"/proc/self/numa_maps\", \"r\"); if (!f) { puts(\"none\"); exit(0); }\n\
        while (fgets(line, sizeof line, f)) if (strtoul(line, 0, 16) <= (unsigned long)p) strcpy(best, line);\n\
        fclose(f); strtok(best, \" \"); char *policy = strtok(0, \" \\n\"), *word; int away = 0;\n\
        while ((word = strtok(0, \" \\n\"))) if (word[0] == 'N' && strtoul(word + 1, 0, 10) != node) away = 1;\n\
        printf(\"%s %d %lx %s %d\\n\", name, mode, got[node / 64], policy, away); }\n\
    static char *area(size_t bytes, int mode) { char *p = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);\n\
        if (p == MAP_FAILED || (mode && syscall(SYS_mbind, p, bytes, (long)mode, bits, 1025L, 0L))) { puts(\"none\"); exit(0); }\n\
        return p; }\n\
    int main(int n, char **a) { node = strtoul(a[1], 0, 10); bits[node / 64] = 1ul << node % 64; size_t mib = 1 << 20;\n\
        if (n > 2) { if (syscall(SYS_set_mempolicy, 3L, bits, 1025L)) { puts(\"none\"); return 0; } execvp(a[2], a + 2); return 9; }\n\
        char *bound = area(8 * mib, 2), *spread = area(8 * mib, 3), *plain = area(8 * mib, 0), *halves = area(8 * mib, 2);\n\
        syscall(SYS_mbind, halves + 4 * mib, 4 * mib, 3L, bits, 1025L, 0L);\n\
        char *grown = area(4 * mib, 2); memset(grown, 1, 4 * mib); grown = mremap(grown, 4 * mib, 8 * mib, MREMAP_MAYMOVE);\n\
        if (grown == MAP_FAILED) return 8;\n\
        char *all[5] = {bound, spread, plain, halves, grown}; for (int i = 0; i < 5; i++) memset(all[i], i + 1, 8 * mib);\n\
        int before = n > 1 && getenv(\"LOOK_BEFORE\"), status; if (!before) { if (!fork()) _exit(bound[9] + spread[9] + halves[9]);\n\
            wait(&status); if (WEXITSTATUS(status) != 7) return 7; }\n\
        munmap(plain + 4096, 4096); mprotect(bound + 8192, 4096, PROT_READ);\n\
        show(\"bound\", bound); show(\"bound's end\", bound + 7 * mib); show(\"spread\", spread); show(\"plain\", plain);\n\
        show(\"first half\", halves); show(\"second half\", halves + 4 * mib); show(\"grown\", grown); show(\"its end\", grown + 7 * mib);\n\
        for (int i = 0; i < 5; i++) for (size_t at = 0; at < 8 * mib; at += 4096)\n\
            if ((i != 2 || at != 4096) && all[i][at] != i + 1) return 6;\n\
        return 0; }\n";

fn last_node() -> Option<String> {
    let online = fs::read_to_string("/sys/devices/system/node/online").ok()?;
    Some(online.trim().rsplit([',', '-']).next()?.to_owned())
}

/// Compares the output of the program natively and with these options, both with and without a
/// fork.
fn compare(all_options: &[&str]) {
    let Some((_directory, program)) = compiled(SOURCE, &["-O1"]) else { return };
    let Some(node) = last_node() else {
        println!("SKIP this kernel knows no memory nodes");
        return;
    };
    for look_before in [false, true] {
        let prepared = |mut command: Command| {
            if look_before {
                command.env("LOOK_BEFORE", "1");
            }
            let output = command.output().unwrap();
            assert!(output.status.success(), "{}: {}", output.status, stderr(&output));
            stdout(&output)
        };
        let mut native = Command::new(&program);
        native.arg(&node);
        let native = prepared(native);
        if native.contains("none") {
            println!("SKIP memory policies are not permitted here");
            return;
        }
        assert!(native.contains(&format!("bound 2 1 bind:{node} 0")) || node != "0", "{native}");
        for options in all_options {
            assert_eq!(prepared(region(options, &[&program, &node])), native, "{options}");
        }
    }
}

#[test]
fn policies_of_mappings_are_kept() {
    compare(&["--pages thp", "--pages 4k", "--pages thp --reserve 64M", "--also stacks,globals"]);
}

#[test]
fn policies_are_kept_when_memory_moves_off_hugetlb_pages() {
    let Some(_pool) = ReservedPool::with_free(60) else { return };
    compare(&["--pages hugetlb", "--pages hugetlb --reserve 40M"]);
}

#[test]
fn the_policy_of_the_whole_program_is_kept() {
    let Some((_directory, program)) = compiled(SOURCE, &["-O1"]) else { return };
    let Some(node) = last_node() else {
        println!("SKIP this kernel knows no memory nodes");
        return;
    };
    let under = |command: Command| {
        let mut wrapped = Command::new(&program);
        wrapped.arg(&node).arg(command.get_program()).args(command.get_args());
        wrapped.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let output = wrapped.output().unwrap();
        assert!(output.status.success(), "{}: {}", output.status, stderr(&output));
        stdout(&output)
    };
    let mut native = Command::new(&program);
    native.arg(&node);
    let native = under(native);
    if native.contains("none") {
        println!("SKIP memory policies are not permitted here");
        return;
    }
    assert!(native.contains(&format!("plain 0 0 interleave:{node}")), "{native}");
    assert_eq!(under(region("--pages thp --prefault", &[&program, &node])), native);
}
