/* Many coroutines on separate stacks, by ucontext; some outgrow their first block. Also the ranges that a root scan
 * finds on a stack. Prints the KiB per coroutine that waits in a small frame. */
#include "descend.h"
#include <ucontext.h>

enum { COUNT = 20000 };

struct coroutine {
    ucontext_t machine;
    void *stack[10];
};

static struct coroutine *all;
static ucontext_t home;
static void *home_stack[10];
static int now;

static void to_home(void) {
    struct coroutine *self = &all[now];
    __splitstack_getcontext(self->stack);
    __splitstack_setcontext(home_stack);
    swapcontext(&self->machine, &home);
}

static void to(int number) {
    now = number;
    __splitstack_getcontext(home_stack);
    __splitstack_setcontext(all[number].stack);
    swapcontext(&home, &all[number].machine);
}

static void body(void) {
    int self = now;
    to_home();
    CHECK(self == now);
    if (self % 100 == 0) CHECK(descend(500) == 500);
    to_home();
    CHECK(self == now);
    to_home();
}

/* Bytes in use on the calling thread's stack, over all ranges. */
KEEP static size_t used(void) {
    void *segment = NULL, *sp = NULL, *initial = NULL;
    size_t length, sum = 0;
    while (__splitstack_find(segment, sp, &length, &segment, &sp, &initial)) sum += length;
    return sum;
}

KEEP static size_t used_at(int depth) {
    volatile char frame[FRAME_BYTES];
    USE(frame);
    memset((char *)frame, 0, sizeof frame);
    size_t sum = depth ? used_at(depth - 1) : used();
    return sum + (size_t)frame[FRAME_BYTES - 1];
}

int main(void) {
    all = calloc(COUNT, sizeof *all);
    memset(all, 1, COUNT * sizeof *all);
    long before = resident();
    for (int at = 0; at < COUNT; at++) {
        CHECK(getcontext(&all[at].machine) == 0);
        all[at].machine.uc_stack.ss_sp = __splitstack_makecontext(1024, all[at].stack, &all[at].machine.uc_stack.ss_size);
        int off = 0;
        __splitstack_block_signals_context(all[at].stack, &off, NULL);
        all[at].machine.uc_link = NULL;
        makecontext(&all[at].machine, body, 0);
        to(at);
    }
    printf("%.2f KiB each\n", (double)(resident() - before) / COUNT);
    for (int round = 0; round < 2; round++)
        for (int at = 0; at < COUNT; at++) to(at);
    for (int at = 0; at < COUNT; at++) __splitstack_releasecontext(all[at].stack);
    CHECK(resident() < before + 10000);
    size_t shallow = used_at(1), deep = used_at(1000);
    CHECK(deep - shallow > 999 * FRAME_BYTES && deep - shallow < 999 * (FRAME_BYTES + 200));
    CHECK(descend(3000) == 3000);
    puts("switched");
    return 0;
}
