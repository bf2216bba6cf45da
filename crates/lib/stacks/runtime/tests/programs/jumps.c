/* longjmp out of many segments, repeatedly, and from a signal handler on its own stack: afterwards the stack grows
 * from its current place, and deeper segments are ignored. */
#include "check.h"
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <pthread.h>

static jmp_buf place;

KEEP static long descend(int depth, int jump) {
    volatile char frame[FRAME_BYTES];
    USE(frame);
    memset((char *)frame, depth, sizeof frame);
    if (depth == 0) {
        if (jump) longjmp(place, jump);
        return 0;
    }
    long below = descend(depth - 1, jump);
    CHECK(frame[17] == (char)depth && frame[FRAME_BYTES - 1] == (char)depth);
    return below + 1;
}

KEEP static void jump_from(int depth) {
    volatile int rounds = 0;
    int came = setjmp(place);
    rounds++;
    CHECK(came == rounds - 1);
    if (rounds <= 50) descend(1 + (depth + rounds * 37) % 3000, rounds);
    CHECK(rounds == 51);
    CHECK(descend(5000, 0) == 5000);
}

KEEP static void deep(int depth) {
    volatile char frame[FRAME_BYTES];
    USE(frame);
    frame[0] = frame[FRAME_BYTES - 1] = (char)depth;
    if (depth % 16 == 3) jump_from(depth);
    if (depth > 0) deep(depth - 1);
    CHECK(frame[0] == (char)depth && frame[FRAME_BYTES - 1] == (char)depth);
}

static sigjmp_buf from_handler;

static void handler(int signal) {
    (void)signal;
    CHECK(descend(200, 0) == 200);
    siglongjmp(from_handler, 1);
}

static void faults(void) {
    static char alternate[256 << 10];
    stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
    CHECK(sigaltstack(&stack, NULL) == 0);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = SA_ONSTACK;
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
    for (volatile int round = 0; round < 100; round++) {
        if (sigsetjmp(from_handler, 1) == 0) {
            *(volatile int *)8 = 1;
            CHECK(!"the fault was not delivered");
        }
        CHECK(descend(1000, 0) == 1000);
    }
}

static void *thread(void *unused) {
    deep(100);
    return unused;
}

int main(void) {
    deep(100);
    faults();
    pthread_t threads;
    CHECK(pthread_create(&threads, NULL, thread, NULL) == 0);
    CHECK(pthread_join(threads, NULL) == 0);
    puts("jumped");
    return 0;
}
