//! System calls on moved pages: the kernel waits, the page is restored, and the call succeeds.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod program;

use fieldstone_remap::{Error, RestoreReason};
use program::{ProgramBuilder, restore_reason, split_words};

/// Calls with memory on the page, wholly or in part, as arguments or behind them.
const CALLS: [(&str, &str); 9] = [
    (
        "read into it",
        r#"int p[2]; CHECK(!pipe(p)); CHECK(write(p[1], "abc", 3) == 3);
        CHECK(read(p[0], (void *)(counters + 100), 3) == 3); CHECK(!memcmp((void *)(counters + 100), "abc", 3));"#,
    ),
    (
        "write from it",
        r#"int p[2]; char c[3]; CHECK(!pipe(p)); memcpy((void *)(counters + 100), "xyz", 3);
        CHECK(write(p[1], (void *)(counters + 100), 3) == 3); CHECK(read(p[0], c, 3) == 3); CHECK(!memcmp(c, "xyz", 3));"#,
    ),
    (
        "a buffer that ends behind it",
        r#"int p[2]; char *at = (char *)counters + 4093; CHECK(!pipe(p)); CHECK(write(p[1], "abcdef", 6) == 6);
        CHECK(read(p[0], at, 6) == 6); CHECK(!memcmp(at, "abcdef", 6));"#,
    ),
    (
        "a buffer that begins before it",
        r#"int p[2]; char *at = (char *)counters - 3; CHECK(!pipe(p)); CHECK(write(p[1], "abcdef", 6) == 6);
        CHECK(read(p[0], at, 6) == 6); CHECK(!memcmp(at, "abcdef", 6));"#,
    ),
    (
        "readv and writev, with vectors on it",
        r#"int p[2]; char c[8] = {0}; struct iovec *v = (struct iovec *)(counters + 40); CHECK(!pipe(p));
        v[0].iov_base = "ab"; v[0].iov_len = 2; v[1].iov_base = "cde"; v[1].iov_len = 3; CHECK(writev(p[1], v, 2) == 5);
        v[0].iov_base = c; v[0].iov_len = 1; v[1].iov_base = (void *)(counters + 60); v[1].iov_len = 4; CHECK(readv(p[0], v, 2) == 5);
        CHECK(c[0] == 'a' && !memcmp((void *)(counters + 60), "bcde", 4));"#,
    ),
    (
        "sendmsg and recvmsg",
        r#"int s[2]; CHECK(!socketpair(AF_UNIX, SOCK_DGRAM, 0, s)); struct msghdr *m = (struct msghdr *)(counters + 40);
        struct iovec *v = (struct iovec *)(counters + 50); memset(m, 0, sizeof *m); m->msg_iov = v; m->msg_iovlen = 1;
        v->iov_base = "hello"; v->iov_len = 5; CHECK(sendmsg(s[0], m, 0) == 5);
        v->iov_base = (void *)(counters + 70); v->iov_len = 8; CHECK(recvmsg(s[1], m, 0) == 5); CHECK(!memcmp((void *)(counters + 70), "hello", 5));"#,
    ),
    (
        "a futex that waits",
        r"static volatile uint32_t *word; word = (volatile uint32_t *)(counters + 100); *word = 1;
        struct timespec soon = { 0, 1000000 }; CHECK(syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 1, &soon, 0, 0) == -1 && errno == ETIMEDOUT);
        CHECK(syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 2, &soon, 0, 0) == -1 && errno == EAGAIN);",
    ),
    (
        "the result of a call",
        r"struct timespec *now = (struct timespec *)(counters + 100); now->tv_sec = 0; CHECK(!syscall(SYS_clock_gettime, 0, now)); CHECK(now->tv_sec > 0);",
    ),
    (
        "another process that looks in",
        r"counters[100] = 77; pid_t child = fork(); if (!child) { uint64_t seen = 0; struct iovec own = { &seen, 8 }, theirs = { (void *)(counters + 100), 8 };
        _exit(process_vm_readv(getppid(), &own, 1, &theirs, 1, 0) == 8 && seen == 77 ? 0 : 1); }
        int status; CHECK(waitpid(child, &status, 0) == child && status == 0);",
    ),
];

#[test]
fn a_kernel_access_restores_the_page() {
    for (name, call) in CALLS {
        let builder = ProgramBuilder::new(call).globals("#include <linux/futex.h>");
        let Some(then) = builder.assert_same_results() else { return };
        assert!(matches!(restore_reason(&then), Some(RestoreReason::Kernel(_))), "{name}: {then:?}");
    }
}

#[test]
fn a_futex_waiter_on_a_moved_page_is_woken() {
    let globals = "#include <linux/futex.h>
        static pthread_t sleeper; static volatile int woken;
        static void *sleeps(void *word) { while (!*(volatile uint32_t *)word) syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 0, 0, 0, 0); woken = 1; return 0; }";
    let before = "CHECK(!pthread_create(&sleeper, 0, sleeps, (void *)(counters + 100))); usleep(20000);";
    let wake = "if (!woken) { counters[100] = 1; CHECK(syscall(SYS_futex, counters + 100, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0) == 1); pthread_join(sleeper, 0); }";
    let mut running = ProgramBuilder::new(wake).globals(globals).before(before).start();
    let Some(mut process) = running.open_and_move() else { return };
    // Tracing restarts the call, which reads the word.
    let then = running.serve_for_a_while(&mut process);
    assert!(matches!(restore_reason(&then), Some(RestoreReason::Kernel(_))), "{then:?}");
    running.run_phase(&mut process);
    let (_, output) = running.finish(&mut process);
    assert_eq!(output.last().map(String::as_str), Some("right right"), "{output:?}");
}

#[test]
fn mutexes_and_conditions_on_the_page_work() {
    let globals = "static pthread_mutex_t *lock; static pthread_cond_t *ready; static volatile int turns;
        static void *turn(void *own) { for (int i = 0; i < 50; i++) { pthread_mutex_lock(lock);
            while (turns % 2 != (int)(uintptr_t)own) pthread_cond_wait(ready, lock);
            turns++; pthread_cond_broadcast(ready); pthread_mutex_unlock(lock); } return 0; }";
    let before = "lock = (pthread_mutex_t *)(counters + 40); ready = (pthread_cond_t *)(counters + 60);
        pthread_mutex_init(lock, 0); pthread_cond_init(ready, 0);";
    let turns = "pthread_t t[2]; int begin = turns; for (uintptr_t i = 0; i < 2; i++) pthread_create(&t[i], 0, turn, (void *)i);
        pthread_join(t[0], 0); pthread_join(t[1], 0); CHECK(turns == begin + 100);";
    ProgramBuilder::new(turns).globals(globals).before(before).assert_same_results();
}

/// A priority-inheriting mutex on the page, for which the kernel would not wait.
const INHERITING: &str = "static pthread_mutex_t *lock; static volatile int turns;
    static void *turn(void *own) { (void)own; for (int i = 0; i < 200; i++) { CHECK(!pthread_mutex_lock(lock)); turns++; usleep(20);
        CHECK(!pthread_mutex_unlock(lock)); } return 0; }
    static void make(void) { pthread_mutexattr_t kind; pthread_mutexattr_init(&kind); pthread_mutexattr_setprotocol(&kind, PTHREAD_PRIO_INHERIT);
        lock = (pthread_mutex_t *)(counters + 40); CHECK(!pthread_mutex_init(lock, &kind)); }";

#[test]
fn a_page_is_restored_before_a_mutex_in_it_inherits_priority() {
    let turns =
        "pthread_t t[2]; int begin = turns; for (uintptr_t i = 0; i < 2; i++) pthread_create(&t[i], 0, turn, 0);
        pthread_join(t[0], 0); pthread_join(t[1], 0); CHECK(turns == begin + 400);";
    let builder = ProgramBuilder::new(turns).globals(INHERITING).before("make();");
    let Some(then) = builder.assert_same_results() else { return };
    assert!(
        matches!(restore_reason(&then), Some(RestoreReason::Access { reason, .. }) if reason.contains("priority")),
        "{then:?}"
    );
}

#[test]
fn a_page_does_not_move_while_a_thread_waits_for_a_priority_inheriting_mutex() {
    let globals = format!("{INHERITING} static pthread_t waiting;");
    let before =
        "make(); CHECK(!pthread_mutex_lock(lock)); CHECK(!pthread_create(&waiting, 0, turn, 0)); usleep(50000);";
    let end = "if (turns == 0) { CHECK(!pthread_mutex_unlock(lock)); pthread_join(waiting, 0); } CHECK(turns == 200);";
    let mut running = ProgramBuilder::new(end).globals(&globals).before(before).start();
    let Some(mut process) = running.open() else { return };
    match process.move_page(&split_words(running.page)) {
        Err(Error::Page { why, .. }) => assert!(why.contains("priority"), "{why}"),
        other => panic!("{other:?}"),
    }
    running.run_phase(&mut process);
    process.move_page(&split_words(running.page)).unwrap();
    let (_, output) = running.finish(&mut process);
    assert_eq!(output.last().map(String::as_str), Some("right right"), "{output:?}");
}
