//! Signals for threads in clones: handlers see the program's own code and return to it, whatever
//! happens meanwhile.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod program;

use fieldstone_remap::RestoreReason;
use program::{ProgramBuilder, move_and_restore_repeatedly, restore_reason, split_words};

/// A handler that checks the interrupted address and sleeps.
const HANDLER: &str = r#"
#include <dlfcn.h>
#include <ucontext.h>
extern char __executable_start, etext;
static volatile int seen, strange;
static void on(int s, siginfo_t *info, void *context) {
  char *rip = (char *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
  if (rip >= (char *)&__executable_start && rip < &etext) { seen++; struct timespec t = { 0, 100000 }; nanosleep(&t, 0); }
  else { Dl_info found; if (!dladdr(rip, &found)) strange++; }
}
static void every(long us) {
  struct sigaction a; memset(&a, 0, sizeof a); a.sa_sigaction = on; a.sa_flags = SA_SIGINFO | SA_RESTART; sigaction(SIGALRM, &a, 0);
  struct itimerval t = { { 0, us }, { 0, us } }; setitimer(ITIMER_REAL, &t, 0);
  sigset_t set; sigemptyset(&set); sigaddset(&set, SIGALRM); pthread_sigmask(us ? SIG_BLOCK : SIG_UNBLOCK, &set, 0); }
"#;
#[test]
fn handlers_see_program_code() {
    let body = "int begin = seen; every(700); for (int i = 0; seen < begin + 200 && i < 20000; i++) usleep(1000); every(0); CHECK(seen >= begin + 200); CHECK(!strange);";
    for options in [&["-O2"][..], &["-O0"]] {
        let builder = ProgramBuilder::new(body).globals(HANDLER).options(options);
        if builder.assert_same_results().is_none() {
            return;
        }
    }
}

#[test]
fn handlers_return_correctly_after_page_moves() {
    let body = "every(500); sleep(2); for (int i = 0; seen <= 100 && i < 20000; i++) usleep(1000); every(0); CHECK(seen > 100); CHECK(!strange);";
    for options in [&["-O2"][..], &["-O0"]] {
        let mut running = ProgramBuilder::new(body).globals(HANDLER).options(options).start();
        let Some(mut process) = running.open_and_move() else { return };
        running.serve_until_quiet(&mut process);
        running.send_input();
        for _ in 0..60 {
            (0..5).for_each(|_| drop(process.serve(std::time::Duration::from_millis(3)).unwrap()));
            process.restore_all(&RestoreReason::Requested).unwrap();
            process.move_page(&split_words(running.page)).unwrap();
        }
        running.serve_until(&mut process, |line| line == "done");
        process.restore_all(&RestoreReason::Requested).unwrap();
        let (_, output) = running.finish(&mut process);
        assert_eq!(output.last().map(String::as_str), Some("right right"), "{options:?} {output:?}");
    }
}

#[test]
fn a_fault_handler_receives_faults_of_cloned_loops() {
    let lap = r"#include <ucontext.h>
        extern char __executable_start, etext; static volatile int faults, strange; static char *guard;
        static void on(int s, siginfo_t *info, void *context) { char *rip = (char *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
          if (rip < (char *)&__executable_start || rip >= &etext) strange++;
          if ((char *)info->si_addr < guard || (char *)info->si_addr >= guard + 4096) _exit(9);
          __sync_fetch_and_add(&faults, 1); mprotect(guard, 4096, PROT_READ | PROT_WRITE); }
        static uint64_t lap(volatile uint64_t *own) { volatile char *touched = guard; int i;
          for (i = 0; i < 1000; i++) { ++*own; *touched; } return 1000; }";
    let before = "guard = (char *)mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        struct sigaction a; memset(&a, 0, sizeof a); a.sa_sigaction = on; a.sa_flags = SA_SIGINFO; sigaction(SIGSEGV, &a, 0);";
    let body = "for (int i = 0, n; i < 50; i++) { int before = faults; CHECK(!mprotect(guard, 4096, PROT_NONE)); usleep(2000); for (n = 0; faults == before && n < 10000; n++) usleep(1000); CHECK(faults > before); } CHECK(!strange);";
    for options in [&["-O2"][..], &["-O0"]] {
        let Some(then) = ProgramBuilder::new(body).lap(lap).before(before).options(options).assert_same_results()
        else {
            return;
        };
        assert_eq!(restore_reason(&then), None);
    }
}

#[test]
fn an_alternate_signal_stack_restores_its_page() {
    let globals = "static volatile int seen; static void on(int s) { seen++; }";
    // The top of the stack, which the kernel writes first, is on the fourth page of `second`.
    let body = "stack_t old, own; memset(&own, 0, sizeof own); own.ss_sp = second; own.ss_size = 12288 + 64; CHECK(own.ss_size >= sysconf(_SC_MINSIGSTKSZ));
        CHECK(!sigaltstack(&own, &old)); struct sigaction a; memset(&a, 0, sizeof a); a.sa_handler = on; a.sa_flags = SA_ONSTACK; sigaction(SIGUSR1, &a, 0);
        int begin = seen; raise(SIGUSR1); CHECK(seen == begin + 1); CHECK(!sigaltstack(&old, 0));";
    let mut running = ProgramBuilder::new(body).globals(globals).start();
    let Some(mut process) = running.open_and_move() else { return };
    running.serve_until_quiet(&mut process);
    process.move_page(&split_words(running.second + 12288)).unwrap();
    let then = running.run_phase(&mut process);
    assert!(matches!(restore_reason(&then), Some(RestoreReason::Kernel(_))), "{then:?}");
    process.restore_all(&RestoreReason::Requested).unwrap();
    let (_, output) = running.finish(&mut process);
    assert_eq!(output.last().map(String::as_str), Some("right right"), "{output:?}");
}

#[test]
fn queued_signals_keep_their_values() {
    let globals = "static volatile pthread_t counting; static volatile int seen, strange;
        static void on(int s, siginfo_t *info, void *context) { if (info->si_code != SI_QUEUE || info->si_value.sival_int != seen) strange++; seen++; }";
    let lap = "static uint64_t lap(volatile uint64_t *own) { int i; if (own == counters + 8) counting = pthread_self(); for (i = 0; i < 1000; i++) ++*own; return 1000; }";
    let body = "struct sigaction a; memset(&a, 0, sizeof a); a.sa_sigaction = on; a.sa_flags = SA_SIGINFO | SA_RESTART; sigaction(SIGRTMIN, &a, 0); seen = 0;
        for (int i = 0; i < 3000; i++) { union sigval value; value.sival_int = i; CHECK(!pthread_sigqueue(counting, SIGRTMIN, value)); for (long n = 0; seen <= i - 20; n++) { sched_yield(); if (n > 3000000) { printf(\"lost: %d of %d, %d strange\\n\", seen, i, strange); fflush(stdout); _exit(3); } } if (i % 4 == 0) usleep(500); }
        for (int i = 0; seen < 3000 && i < 5000; i++) usleep(1000); CHECK(seen == 3000); CHECK(!strange);";
    move_and_restore_repeatedly(&ProgramBuilder::new(body).globals(globals).lap(lap));
}

#[test]
fn calls_interrupted_by_stops_are_restarted() {
    let globals = "#include <sys/epoll.h>\nstatic void on(int s) { }
        static void sockets(void) { int s[2]; char b[65536] = { 0 }; struct timeval t = { 0, 30000 }; struct iovec v = { b, 8 }; struct mmsghdr m; memset(&m, 0, sizeof m);
        m.msg_hdr.msg_iov = &v; m.msg_hdr.msg_iovlen = 1; CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, s));
        CHECK(!setsockopt(s[0], SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t)); CHECK(!setsockopt(s[0], SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t));
        while (send(s[0], b, sizeof b, MSG_DONTWAIT) > 0) {}
        for (int i = 0; i < 10; i++) { CHECK(read(s[0], b, 8) == -1 && errno == EAGAIN); CHECK(readv(s[0], &v, 1) == -1 && errno == EAGAIN);
        CHECK(recvmmsg(s[0], &m, 1, 0, 0) == -1 && errno == EAGAIN); CHECK(write(s[0], b, 8) == -1 && errno == EAGAIN);
        CHECK(writev(s[0], &v, 1) == -1 && errno == EAGAIN); CHECK(sendmmsg(s[0], &m, 1, 0) == -1 && errno == EAGAIN); }
        close(s[0]); close(s[1]); }";
    let body = "sockets(); int e = epoll_create1(0); struct epoll_event none; for (int i = 0; i < 20; i++) CHECK(epoll_wait(e, &none, 1, 20) == 0);
        struct sigaction a; memset(&a, 0, sizeof a); a.sa_handler = on; sigaction(SIGALRM, &a, 0); struct itimerval t = { { 0, 0 }, { 0, 50000 } };
        sigset_t set; sigemptyset(&set); sigaddset(&set, SIGALRM); pthread_sigmask(SIG_UNBLOCK, &set, 0);
        for (int i = 0; i < 3; i++) { t.it_value.tv_usec = 50000; setitimer(ITIMER_REAL, &t, 0); int n = epoll_wait(e, &none, 1, 10000); CHECK(n == -1 && errno == EINTR); }
        close(e);";
    let lap = "static uint64_t lap(volatile uint64_t *own) { static __thread int once; if (!once++) { sigset_t set; sigemptyset(&set); sigaddset(&set, SIGALRM); pthread_sigmask(SIG_BLOCK, &set, 0); }
        int i; for (i = 0; i < 1000; i++) ++*own; return 1000; }";
    move_and_restore_repeatedly(&ProgramBuilder::new(body).globals(globals).lap(lap));
}
