/* 20,000 timer signals while the stack crosses the border between two segments, with handlers that recurse: on the
 * interrupted stack, then on an alternate one. errno must not change. */
#define DESCEND_BYTES 200
#include "descend.h"
#include <errno.h>
#include <signal.h>
#include <sys/time.h>

static volatile sig_atomic_t signals;

static void handler(int signal) {
    (void)signal;
    int before = errno;
    CHECK(descend(30 + signals % 400) == 30 + signals % 400);
    errno = before;
    signals++;
}

/* Every frame near the border makes calls that cross it. */
KEEP static long climb(int depth) {
    volatile char frame[600];
    USE(frame);
    frame[0] = (char)depth;
    long sum = 0;
    for (int at = 0; at < 3; at++) sum += descend(at);
    if (depth > 0) sum += climb(depth - 1);
    return sum + frame[0] - (char)depth;
}

static void run(int flags, int wanted) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = flags;
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    CHECK(sigaction(SIGPROF, &action, NULL) == 0);
    struct itimerval often = {{0, 50}, {0, 50}}, never = {{0, 0}, {0, 0}};
    signals = 0;
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    errno = 77;
    while (signals < wanted) {
        CHECK(climb(400) == 401 * 3);
        fieldstone_stack_trim();
        CHECK(errno == 77);
    }
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
}

int main(void) {
    static char alternate[64 << 10];
    stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
    run(0, 10000);
    CHECK(sigaltstack(&stack, NULL) == 0);
    run(SA_ONSTACK, 10000);
    puts("20000 signals");
    return 0;
}
