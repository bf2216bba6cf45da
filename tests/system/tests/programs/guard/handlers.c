/* A program with handlers of SIGSEGV and SIGBUS of its own, installed in each way. It checks that they get what they
 * would get without guards. With the argument "error" it ends with a memory error, which must be reported although
 * the program handles SIGSEGV. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(c) do { if (!(c)) { printf("line %d: %s\n", __LINE__, #c); fflush(stdout); _exit(3); } } while (0)
static sigjmp_buf back;
static volatile int calls, code, on_other_stack, blocked_usr1, blocked_segv;
static void *volatile where;
static char *other_stack;

static void note(void) {
    sigset_t now;
    char here;
    sigprocmask(SIG_BLOCK, 0, &now);
    blocked_usr1 = sigismember(&now, SIGUSR1);
    blocked_segv = sigismember(&now, SIGSEGV);
    on_other_stack = &here >= other_stack && &here < other_stack + 65536;
    calls++;
}
static void simple(int signal) { CHECK(signal == SIGSEGV || signal == SIGBUS); note(); siglongjmp(back, 1); }
static void full(int signal, siginfo_t *info, void *context) {
    CHECK(signal == SIGSEGV);
    ucontext_t *c = context;
    CHECK(c->uc_mcontext.gregs[REG_RIP] != 0);
    where = info->si_addr;
    code = info->si_code;
    note();
    siglongjmp(back, 1);
}
static void returns(int signal, siginfo_t *info, void *context) { (void)context; CHECK(signal == SIGSEGV); code = info->si_code; calls++; }
#define FAULT(address) (sigsetjmp(back, 1) ? 0 : (*(volatile char *)(address) = 1))

int main(int argc, char **argv) {
    char *closed = mmap(0, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    other_stack = malloc(65536);
    sigaltstack(&(stack_t){.ss_sp = other_stack, .ss_size = 65536}, 0);
    struct sigaction old, action = {.sa_sigaction = full, .sa_flags = SA_SIGINFO};
    sigaddset(&action.sa_mask, SIGUSR1);
    /* nothing is installed at first */
    CHECK(!sigaction(SIGSEGV, 0, &old) && old.sa_handler == SIG_DFL && !(old.sa_flags & SA_SIGINFO));
    /* sigaction with a record, a mask, on the normal stack */
    CHECK(!sigaction(SIGSEGV, &action, &old) && old.sa_handler == SIG_DFL);
    FAULT(closed + 100);
    CHECK(calls == 1 && where == closed + 100 && code == SEGV_ACCERR && !on_other_stack && blocked_usr1 && blocked_segv);
    FAULT((char *)0 + 16);
    CHECK(calls == 2 && where == (char *)16 && code == SEGV_MAPERR);
    /* what was installed is read back */
    CHECK(!sigaction(SIGSEGV, 0, &old) && old.sa_sigaction == full && old.sa_flags & SA_SIGINFO && sigismember(&old.sa_mask, SIGUSR1));
    /* the other stack, nothing blocked */
    sigemptyset(&action.sa_mask);
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    CHECK(!sigaction(SIGSEGV, &action, 0));
    FAULT(closed);
    CHECK(calls == 3 && on_other_stack && !blocked_usr1 && !blocked_segv);
    /* once only */
    action.sa_flags = SA_SIGINFO | SA_RESETHAND;
    CHECK(!sigaction(SIGSEGV, &action, 0));
    FAULT(closed);
    CHECK(calls == 4 && !sigaction(SIGSEGV, 0, &old) && old.sa_handler == SIG_DFL);
    /* signal and its relatives */
    CHECK(signal(SIGSEGV, simple) == SIG_DFL);
    FAULT(closed);
    CHECK(calls == 5 && blocked_segv && signal(SIGSEGV, SIG_DFL) == simple);
    CHECK(sysv_signal(SIGSEGV, simple) == SIG_DFL);
    FAULT(closed);
    CHECK(calls == 6 && !blocked_segv && !sigaction(SIGSEGV, 0, &old) && old.sa_handler == SIG_DFL);
    CHECK(sigset(SIGSEGV, simple) == SIG_DFL);
    FAULT(closed);
    CHECK(calls == 7 && sigset(SIGSEGV, SIG_HOLD) == simple && sigset(SIGSEGV, simple) == SIG_HOLD);
    CHECK(signal(SIGBUS, simple) == SIG_DFL);
    if (!sigsetjmp(back, 1)) raise(SIGBUS);
    /* sent by a process: the handler returns */
    action.sa_sigaction = returns;
    action.sa_flags = SA_SIGINFO;
    CHECK(!sigaction(SIGSEGV, &action, 0));
    calls = 0;
    CHECK(!kill(getpid(), SIGSEGV) && calls == 1 && code == SI_USER);
    /* ignored when sent, but not a fault */
    CHECK(signal(SIGSEGV, SIG_IGN) == (void (*)(int))returns && !raise(SIGSEGV));
    for (int how = 0; how < 3; how++) {
        pid_t child = fork();
        if (!child) {
            if (how) signal(SIGSEGV, SIG_DFL);
            if (how < 2) *(volatile char *)closed = 1;
            else kill(getpid(), SIGSEGV);
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    }
    puts("ok");
    fflush(stdout);
    if (argc > 1) {
        action.sa_sigaction = returns;
        CHECK(!sigaction(SIGSEGV, &action, 0) && !strcmp(argv[1], "error"));
        volatile char *volatile p = malloc(64);
        p[argc * 32] = 1; /* handlers error */
    }
    return 0;
}
