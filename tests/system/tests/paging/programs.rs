//! Real programs give the same results with a bound.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use fieldstone_report::{PagingStats, SavedFile};

use crate::binaries;
use crate::fixture::{Program, can_page, counted, largest, load_stats, paged, stderr, stdout};
use crate::wait::wait_until;

const MIB: u64 = 1 << 20;

#[test]
fn gups_has_the_same_checksum_with_half_of_its_table_resident() {
    if !can_page() {
        return;
    }
    let gups = binaries::workload("gups");
    let gups = gups.to_str().unwrap();
    let alone = Command::new(gups).args(["64M", "20000"]).output().unwrap();
    let (output, stats) = counted("--resident 32M", &[gups, "64M", "20000"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), stdout(&alone)));
    let process = largest(&stats);
    assert!(process.peak_resident_bytes <= 32 * MIB, "{process:?}");
    assert!(process.stores.iter().map(|store| store.loaded_pages).sum::<u64>() > 1000, "{process:?}");
    // It waits in its own code, whose lines are known.
    let [first, ..] = &process.waits[..] else { panic!("{process:?}") };
    assert!(first.place.contains(".rs:") && first.faults * 3 > first.of_faults, "{first:?}");
    assert!(first.of_faults * 40 > process.faults, "{first:?} of {} faults", process.faults);
    // The pager begins at three quarters of the bound; on a busy machine, the program may be past it by then.
    let begun = stats.samples.iter().filter(|sample| sample.stored_bytes > 0);
    let most = begun.map(|sample| sample.resident_bytes).max();
    assert!(most.is_some_and(|bytes| (16 * MIB..40 * MIB).contains(&bytes)), "{:?}", stats.samples);
    assert!(stats.samples.is_sorted_by_key(|sample| (sample.t_ms, sample.faults)), "{:?}", stats.samples);
}

#[test]
fn locked_memory_above_the_bound_is_reported() {
    if !can_page() {
        return;
    }
    if Command::new("/usr/bin/python3").arg("--version").output().is_err() {
        println!("SKIP no python3");
        return;
    }
    let script = "import ctypes, time\nx = bytearray(64 << 20)\nc = ctypes.CDLL(None)\n\
                  print(c.mlock((ctypes.c_char * len(x)).from_buffer(x), ctypes.c_size_t(len(x))))\n\
                  y = b''.join(bytes([i % 251]) * 65536 for i in range(400))\nprint(len(y))";
    let (output, _) = counted("--resident 24M", &["/usr/bin/python3", "-c", script]);
    assert_eq!(stdout(&output), "0\n26214400\n", "{}", stderr(&output));
    let text = stderr(&output);
    assert!(text.contains("python3 has locked or protected memory, which cannot leave it"), "{text}");
}

#[test]
fn a_store_of_compressed_pages_alone_suffices_for_pages_that_compress() {
    if !can_page() {
        return;
    }
    let script = "x = [str(i) * 40 for i in range(200000)]\nprint(sum(len(s) for s in x), x[0] == '0' * 40)";
    if Command::new("/usr/bin/python3").arg("--version").output().is_err() {
        println!("SKIP no python3");
        return;
    }
    let (output, stats) = counted("--resident 24M --page-store lz4:256M", &["/usr/bin/python3", "-c", script]);
    assert_eq!(stdout(&output), "43555600 True\n");
    let process = largest(&stats);
    assert_eq!(process.refused_pages, 0, "{process:?}");
    assert!(process.stores.len() == 1 && process.stores[0].loaded_pages > 0, "{process:?}");
}

#[test]
fn pages_come_back_from_zstd() {
    if !can_page() {
        return;
    }
    let program = binaries::workload("bounded-memory");
    let program = [program.to_str().unwrap(), "48M", "20000", "--pattern", "random"];
    let alone = Command::new(program[0]).args(&program[1..]).output().unwrap();
    let checksum = |text: String| text.lines().find(|line| line.starts_with("checksum")).unwrap().to_owned();
    // The file takes the few pages that do not compress; else they would stay, above the bound.
    let directory = tempfile::tempdir().unwrap();
    for list in ["zstd:64M", "lz4:1M,zstd:64M"] {
        let options = format!("--resident 24M --page-store {list},file:{}", directory.path().display());
        let (output, stats) = counted(&options, &program);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(checksum(stdout(&output)), checksum(stdout(&alone)));
        let process = largest(&stats);
        assert!(process.peak_resident_bytes <= 24 * MIB, "{process:?}");
        let of = |name: &str| process.stores.iter().find(|store| store.name == name);
        let loaded = |name: &str| of(name).map_or(0, |store| store.loaded_pages);
        assert!(loaded("zstd") > 5000 && (loaded("lz4") > 0) == list.starts_with("lz4"), "{process:?}");
    }
}

/// The kernel kills the program with its command, but not what the program has started.
#[test]
fn a_child_keeps_its_pages_when_the_command_is_killed() {
    if !can_page() {
        return;
    }
    let (gups, directory) = (binaries::workload("gups"), tempfile::tempdir().unwrap());
    let alone = Command::new(&gups).args(["64M", "60000"]).output().unwrap();
    let file = directory.path().join("output");
    let script = format!("{} 64M 60000 > {} & wait", gups.display(), file.display());
    let stats = directory.path().join("stats");
    let options = format!("--resident 32M --stats-every 20ms --stats {}", stats.display());
    let mut running = paged(&options, &["/bin/sh", "-c", &script]).spawn().unwrap();
    let is_paged = || {
        // The file is empty before the first line.
        let SavedFile::PagingStats(stats) = SavedFile::load(&stats).ok()? else { return None };
        stats.processes.iter().any(|process| process.evicted_pages > 1000).then_some(())
    };
    wait_until("pages leave memory", is_paged);
    running.kill().unwrap();
    assert_eq!(running.wait().unwrap().signal(), Some(9));
    let text = wait_until("the child ends", || {
        let text = std::fs::read_to_string(&file).unwrap();
        text.contains("checksum").then_some(text)
    });
    assert_eq!(text, stdout(&alone));
}

#[test]
fn statistics_are_written_while_the_program_runs() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("stats");
    std::fs::write(&file, "old").unwrap();
    let options = format!("--resident 1G --guard --stats-every 50ms --stats {}", file.display());
    let output = paged(&options, &["/bin/sleep", "0.5"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = std::fs::read_to_string(&file).unwrap();
    let lines: Vec<PagingStats> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [running @ .., last] = &lines[..] else { panic!("{text}") };
    assert!(running.len() > 3, "{text}");
    assert!(running.iter().all(|stats| stats.outcome == "running" && stats.guard.is_some()), "{text}");
    assert_ne!(last.outcome, "running");
    assert_eq!(load_stats(&file), *last);
}

#[test]
fn a_program_goes_on_when_its_store_is_full() {
    if !can_page() {
        return;
    }
    let gups = binaries::workload("gups");
    let gups = gups.to_str().unwrap();
    let alone = Command::new(gups).args(["64M", "20000"]).output().unwrap();
    let (output, stats) = counted("--resident 48M --page-store lz4:1M", &[gups, "64M", "20000"]);
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), stdout(&alone)));
    let process = largest(&stats);
    assert!(process.refused_pages > 0, "{process:?}");
}

#[test]
fn a_program_below_the_bound_is_not_paged() {
    let (output, stats) = counted("--resident 1G", &["/bin/echo", "small"]);
    assert_eq!(stdout(&output), "small\n");
    assert!(stats.processes.iter().all(|process| process.faults == 0), "{stats:?}");
}

/// Three children fill 24 MiB each and check it several times; the parent prints the largest sum of
/// their private memory in MiB.
const CHILDREN: &str = r#"
    #include <stdio.h>
    #include <stdlib.h>
    #include <sys/wait.h>
    #include <unistd.h>
    enum { COUNT = 6 << 20, CHILDREN = 3 };
    static int work(unsigned seed) {
        unsigned *words = malloc(COUNT * sizeof *words);
        for (unsigned i = 0; i < COUNT; i++) words[i] = (i + seed) * 2654435761u;
        for (int round = 0; round < 6; round++)
            for (unsigned i = 0; i < COUNT; i++)
                if (words[i]++ != (i + seed) * 2654435761u + round) return 1;
        return 0;
    }
    static long private_pages(pid_t pid) {
        char path[64];
        long mapped = 0, resident = 0, shared = 0;
        snprintf(path, sizeof path, "/proc/%d/statm", pid);
        FILE *file = fopen(path, "r");
        if (file) {
            if (fscanf(file, "%ld %ld %ld", &mapped, &resident, &shared) != 3) resident = shared;
            fclose(file);
        }
        return resident - shared;
    }
    int main(void) {
        pid_t children[CHILDREN];
        for (int i = 0; i < CHILDREN; i++)
            if (!(children[i] = fork())) _exit(work(i));
        long most = 0;
        int running = CHILDREN, wrong = 0, status;
        while (running) {
            long sum = 0;
            for (int i = 0; i < CHILDREN; i++) sum += private_pages(children[i]);
            if (sum > most) most = sum;
            pid_t ended = waitpid(-1, &status, WNOHANG);
            if (ended > 0) running--, wrong |= status;
            usleep(2000);
        }
        printf("%s %ld\n", wrong ? "wrong" : "right", most >> 8);
        return 0;
    }"#;

#[test]
fn a_program_and_its_children_have_one_bound() {
    let Some(program) = Program::compile(CHILDREN).filter(|_| can_page()) else { return };
    let directory = tempfile::tempdir().unwrap();
    let options = format!("--resident 32M --page-store file:{}", directory.path().display());
    let (output, stats) = counted(&options, &[program.path.to_str().unwrap()]);
    let text = stdout(&output);
    let most: u64 = text.trim_end().strip_prefix("right ").unwrap_or_else(|| panic!("{text}")).parse().unwrap();
    // The pagers' own records come on top, and what a child touches before the others have evicted.
    assert!((24..=44).contains(&most), "{most} MiB of 72 were resident");
    let evicting = stats.processes.iter().filter(|process| process.evicted_pages > 1000).count();
    assert_eq!(evicting, 3, "{stats:?}");
}
