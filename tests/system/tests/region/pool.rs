//! Pages of the hugetlb pool are used only with `--pages hugetlb`, and never those reserved by
//! another process.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use crate::common::{ReservedPool, pool};
use crate::fixture::{Waiting, collapsed, compiled, outside, primary, run, stderr, workload};

const FREE: u64 = 64;

/// The fewest free pages, and the most reserved and surplus pages, during `work`.
fn watch_pool(work: impl FnOnce()) -> (u64, u64, u64) {
    let done = AtomicBool::new(false);
    let now = || ["free_hugepages", "resv_hugepages", "surplus_hugepages"].map(|name| pool(name).unwrap());
    let [mut free, mut reserved, mut surplus] = now();
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            while !done.load(SeqCst) {
                let [f, p, l] = now();
                (free, reserved, surplus) = (free.min(f), reserved.max(p), surplus.max(l));
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            (free, reserved, surplus)
        });
        work();
        done.store(true, SeqCst);
        watch.join().unwrap()
    })
}

#[test]
fn the_pool_is_used_only_on_request() {
    let Some(odd) = workload("odd") else { return };
    let Some(_pool) = ReservedPool::with_free(FREE) else { return };
    let before = watch_pool(|| {});
    for options in ["", "--pages thp --reserve 64M --prefault", "--pages 4k", "--also stacks,globals", "--process odd"]
    {
        let after = watch_pool(|| {
            let output = run(options, &[&odd, "hold", "64M", "200"]);
            assert!(output.status.success(), "{options}: {}", stderr(&output));
        });
        assert_eq!(after, before, "{options}");
    }
    let used = watch_pool(|| assert!(run("--pages hugetlb", &[&odd, "hold", "64M", "200"]).status.success()));
    assert!(used.0 < before.0, "the watch sees what is taken: {used:?}");
    let mut command = Command::new(&odd);
    command.args(["churn", "32M"]);
    let churning = Waiting::start(command);
    let after = watch_pool(|| {
        collapsed(churning.running.id(), "");
    });
    assert_eq!(after, before, "attach --huge");
    assert!(churning.end().success());
}

#[test]
fn only_available_remedies_are_printed() {
    for (kind, has_reserve) in [("hugetlb", true), ("hugetlb-1g", false)] {
        let message = stderr(&run(&format!("--pages {kind}"), &["true"]));
        assert!(message.is_empty() || message.contains("--reserve") == has_reserve, "{message}");
    }
}

#[test]
fn pages_reserved_by_another_process_are_not_used() {
    let source = "#define _GNU_SOURCE\n#include <stdio.h>\n#include <unistd.h>\n#include <sys/mman.h>\n\
        int main(void) { long bytes = 20L << 21; char c; char *p = mmap(0, bytes, PROT_READ | PROT_WRITE,\n\
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0); if (p == MAP_FAILED) return 1;\n\
        puts(\"promised\"); fflush(stdout); while (read(0, &c, 1) > 0) {}\n\
        for (long i = 0; i < bytes; i += 4096) p[i] = 1; return 0; }\n";
    let (Some(gups), Some((_directory, program))) = (workload("gups"), compiled(source, &[])) else { return };
    let Some(_pool) = ReservedPool::with_free(20) else { return };
    let other = Waiting::start(Command::new(program));
    assert_eq!(other.line, "promised\n");
    let stats = primary("--pages hugetlb", &[&gups, "16M"]);
    assert!(outside(&stats, "hugetlb pool empty") >= 16 << 20, "{:?}", stats.outside);
    let status = other.end();
    assert!(status.success(), "every page that was promised is there: {status}");
}
