//! Memory keeps its meaning: forks, dropped and moved memory, guards, threads, system calls.

use std::os::unix::process::ExitStatusExt;
use std::process::Output;

use fieldstone_report::PagingStats;

use crate::fixture::{Program, can_page, counted, largest, stderr, stdout};

/// What each program begins with: 96 MiB of pages that hold their number, and a check of them.
const COMMON: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#define PAGE 4096ul
#define PAGES (96ul << 8)
#define CHECK(x) do { if (!(x)) { printf("line %d: %s (errno %d)\n", __LINE__, #x, errno); fflush(stdout); _exit(9); } } while (0)
static unsigned long *memory;
static unsigned long *at(unsigned long page) { return memory + page * (PAGE / 8); }
static void fill(void) { for (unsigned long i = 0; i < PAGES; i++) { at(i)[0] = i * 3 + 1; at(i)[511] = i; } }
static void check(unsigned long from, unsigned long to) { for (unsigned long i = from; i < to; i++) { CHECK(at(i)[0] == i * 3 + 1); CHECK(at(i)[511] == i); CHECK(at(i)[9] == 0); } }
static void map(void) { memory = mmap(0, PAGES * PAGE, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); CHECK(memory != MAP_FAILED); fill(); }
"#;

/// Runs a program with a third of its memory resident; `None` if that is not possible here.
fn output(body: &str) -> Option<(Output, PagingStats)> {
    let program = can_page().then(|| Program::compile(&format!("{COMMON}{body}")))??;
    Some(counted("--resident 32M", &[program.path.to_str().unwrap()]))
}

/// Runs such a program, and expects exit code 0. Returns how many pages were evicted unchanged.
fn run(body: &str) -> Option<u64> {
    let (output, stats) = output(body)?;
    assert_eq!(output.status.code(), Some(0), "{}{}", stdout(&output), stderr(&output));
    Some(largest(&stats).evicted_unchanged_pages)
}

#[test]
fn parent_and_child_have_all_pages_after_a_fork() {
    run(r#"
int main(void) {
    map();
    for (int round = 0; round < 3; round++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (!pid) { check(0, PAGES); for (unsigned long i = 0; i < PAGES; i += 2) at(i)[0] = 7; for (unsigned long i = 0; i < PAGES; i += 2) CHECK(at(i)[0] == 7); _exit(0); }
        check(0, PAGES / 2);
        int end; CHECK(waitpid(pid, &end, 0) == pid && end == 0);
        check(0, PAGES);
    }
    return 0;
}"#);
}

#[test]
fn memory_that_was_dropped_or_unmapped_reads_as_zeros_and_moved_memory_keeps_its_contents() {
    run(r#"
int main(void) {
    map();
    CHECK(!madvise(at(1000), 3000 * PAGE, MADV_DONTNEED));
    for (unsigned long i = 1000; i < 4000; i++) CHECK(at(i)[0] == 0 && at(i)[511] == 0);
    check(0, 1000); check(4000, PAGES);
    CHECK(!munmap(at(5000), 1000 * PAGE));
    CHECK(mmap(at(5000), 1000 * PAGE, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at(5000));
    for (unsigned long i = 5000; i < 6000; i++) { CHECK(at(i)[0] == 0); at(i)[0] = 5; }
    check(6000, PAGES);
    for (unsigned long i = 5000; i < 6000; i++) CHECK(at(i)[0] == 5);
    unsigned long *moved = mremap(at(8000), 4000 * PAGE, 6000 * PAGE, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED);
    for (unsigned long i = 0; i < 4000; i++) CHECK(moved[i * 512] == (8000 + i) * 3 + 1);
    for (unsigned long i = 4000; i < 6000; i++) CHECK(moved[i * 512] == 0);
    check(12000, PAGES);
    return 0;
}"#);
}

#[test]
fn a_child_gets_no_pages_of_memory_that_is_wiped_and_a_guard_drops_its_page() {
    run(r#"
#include <setjmp.h>
static sigjmp_buf back;
static void on_fault(int signal) { (void)signal; siglongjmp(back, 1); }
int main(void) {
    map();
    CHECK(!madvise(at(2000), 1000 * PAGE, 18 /* MADV_WIPEONFORK */));
    pid_t pid = fork();
    if (!pid) { for (unsigned long i = 2000; i < 3000; i++) CHECK(at(i)[0] == 0); check(0, 2000); check(3000, PAGES); _exit(0); }
    int end; CHECK(waitpid(pid, &end, 0) == pid && end == 0);
    check(0, PAGES);
    if (!madvise(at(7000), PAGE, 102 /* MADV_GUARD_INSTALL */)) {
        signal(SIGSEGV, on_fault);
        if (!sigsetjmp(back, 1)) { at(7000)[0] = 1; CHECK(0); }
        CHECK(!madvise(at(7000), PAGE, 103 /* MADV_GUARD_REMOVE */));
        CHECK(at(7000)[0] == 0);
    }
    check(7001, PAGES);
    return 0;
}"#);
}

#[test]
fn many_short_threads_end_and_share_the_memory() {
    run(r#"
static void *work(void *from) { unsigned long i = (unsigned long)from; for (unsigned long n = i; n < PAGES; n += 211) { CHECK(at(n)[0] == n * 3 + 1); at(n)[1]++; } return from; }
int main(void) {
    map();
    for (unsigned long i = 0; i < 200; i += 4) {
        pthread_t threads[4];
        for (int k = 0; k < 4; k++) CHECK(!pthread_create(&threads[k], 0, work, (void *)(i + k)));
        for (int k = 0; k < 4; k++) { void *result; CHECK(!pthread_join(threads[k], &result)); CHECK(result == (void *)(i + k)); }
    }
    for (unsigned long n = 0; n < PAGES; n++) CHECK(at(n)[1] == (n % 211 < 200));
    return 0;
}"#);
}

#[test]
fn the_pager_follows_a_thread_a_second_one_evicts_and_many_threads_wait_for_one_page() {
    run(r#"
#include <dirent.h>
#include <sched.h>
static int thread_with(const char *name) {
    int found = 0; char path[300], text[32]; struct dirent *entry;
    DIR *tasks = opendir("/proc/self/task"); CHECK(tasks);
    while ((entry = readdir(tasks))) {
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
        FILE *file = fopen(path, "r");
        if (file) { if (fgets(text, sizeof text, file) && !strncmp(text, name, strlen(name))) found = atoi(entry->d_name); fclose(file); }
    }
    closedir(tasks);
    return found;
}
static pthread_barrier_t barrier;
static void *work(void *unused) {
    for (unsigned long n = 0; n < 200; n++) {
        unsigned long page = n * 7919 % PAGES;
        pthread_barrier_wait(&barrier);
        CHECK(at(page)[0] == page * 3 + 1 && at(page)[511] == page);
        __atomic_fetch_add(&at(page)[1], 1, __ATOMIC_RELAXED);
    }
    return unused;
}
int main(void) {
    map();
    CHECK(thread_with("fs-evictor"));
    cpu_set_t set; CHECK(!sched_getaffinity(thread_with("fs-pager"), sizeof set, &set));
    CHECK(CPU_COUNT(&set) == 1);
    pthread_t threads[64];
    CHECK(!pthread_barrier_init(&barrier, 0, 64));
    for (int k = 0; k < 64; k++) CHECK(!pthread_create(&threads[k], 0, work, 0));
    for (int k = 0; k < 64; k++) CHECK(!pthread_join(threads[k], 0));
    for (unsigned long n = 0; n < 200; n++) CHECK(at(n * 7919 % PAGES)[1] == 64);
    return 0;
}"#);
}

#[test]
fn pages_that_were_only_read_are_not_stored_again_and_each_change_is_kept() {
    let unchanged = run(r#"
int main(void) {
    map();
    for (unsigned long round = 1; round <= 6; round++) {
        check(0, PAGES);
        for (unsigned long i = round % 5; i < PAGES; i += 5) at(i)[300] = round;
        for (unsigned long i = round % 5; i < PAGES; i += 5) CHECK(at(i)[300] == round && at(i)[511] == i);
        if (round == 4) {
            pid_t pid = fork();
            if (!pid) { check(0, PAGES); for (unsigned long i = 4; i < PAGES; i += 5) CHECK(at(i)[300] == 4); _exit(0); }
            int end; CHECK(waitpid(pid, &end, 0) == pid && end == 0);
        }
    }
    CHECK(!madvise(at(100), 9000 * PAGE, MADV_DONTNEED));
    for (unsigned long i = 100; i < 9100; i++) CHECK(at(i)[0] == 0);
    return 0;
}"#);
    assert!(unchanged.is_none_or(|pages| pages > 1000), "{unchanged:?}");
}

#[test]
fn system_calls_reach_pages_that_are_not_resident() {
    run(r#"
int main(void) {
    map();
    int pipes[2]; CHECK(!pipe(pipes));
    char buffer[PAGE];
    for (unsigned long i = 0; i < PAGES; i += 3) {
        CHECK(write(pipes[1], at(i), PAGE) == (long)PAGE);
        CHECK(read(pipes[0], buffer, PAGE) == (long)PAGE && !memcmp(buffer, at(i), PAGE));
        memset(buffer, (int)i, PAGE);
        CHECK(write(pipes[1], buffer, PAGE) == (long)PAGE);
        CHECK(read(pipes[0], at(PAGES - 1 - i), PAGE) == (long)PAGE);
        CHECK(!memcmp(at(PAGES - 1 - i), buffer, PAGE));
        at(PAGES - 1 - i)[0] = (PAGES - 1 - i) * 3 + 1; at(PAGES - 1 - i)[511] = PAGES - 1 - i; at(PAGES - 1 - i)[9] = 0;
    }
    check(0, PAGES);
    return 0;
}"#);
}

#[test]
fn memory_that_was_freed_lazily_and_closed_descriptors_do_no_harm() {
    run(r#"
int main(void) {
    for (int fd = 3; fd < 256; fd++) close(fd);
    map();
    for (int round = 0; round < 4; round++) {
        CHECK(!madvise(at(0), PAGES / 2 * PAGE, MADV_FREE));
        for (unsigned long i = 0; i < PAGES / 2; i++) { CHECK(at(i)[0] == 0 || at(i)[0] == i * 3 + 1); at(i)[0] = i * 3 + 1; at(i)[511] = i; }
        check(PAGES / 2, PAGES);
    }
    close_range(3, ~0u, 0);
    check(0, PAGES);
    return 0;
}"#);
}

#[test]
fn no_contents_come_back_after_madvise_although_another_thread_reads() {
    run(r#"
static volatile int is_over;
static void *work(void *sum) { while (!is_over) for (unsigned long i = 0; i < 3000; i += 5) *(volatile unsigned long *)sum += at(i)[0]; return 0; }
int main(void) {
    map();
    unsigned long sum = 0;
    pthread_t thread;
    CHECK(!pthread_create(&thread, 0, work, &sum));
    for (unsigned long round = 1; round <= 30; round++) {
        for (unsigned long i = 0; i < 3000; i++) at(i)[0] = round;
        for (unsigned long i = 3000; i < PAGES; i += 2) CHECK(at(i)[0] == i * 3 + 1);
        CHECK(!madvise(at(0), 3000 * PAGE, MADV_DONTNEED));
        for (unsigned long i = 0; i < 3000; i++) CHECK(at(i)[0] == 0);
    }
    is_over = 1;
    CHECK(!pthread_join(thread, 0));
    check(3000, PAGES);
    return 0;
}"#);
}

#[test]
fn a_filter_that_stops_the_pager_ends_the_program_before_it_reads_zeros() {
    let ended = output(
        r#"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
int main(void) {
    map();
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ppoll, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {4, code};
    CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    CHECK(!syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter));
    for (;;) check(0, PAGES);
}"#,
    );
    let Some((output, _)) = ended else { return };
    assert_eq!(output.status.signal(), Some(9), "{}{}", stdout(&output), stderr(&output));
    assert!(stderr(&output).contains("its pager cannot receive page faults"), "{}", stderr(&output));
}
