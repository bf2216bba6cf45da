/* Single-steps the crossing of a border: at each instruction a handler runs that needs more than the next segment has,
 * frees unused segments, or both. The thread's guard must not change. */
#define _GNU_SOURCE
#include "check.h"
#include <signal.h>
#include <string.h>
#include <ucontext.h>

extern char __morestack[];

static volatile long wanted, seen, way;

static unsigned long guard(void) {
    unsigned long word;
    __asm__ volatile("mov %%fs:0x70, %0" : "=r"(word));
    return word;
}

KEEP static void large(int then_trim) {
    volatile char frame[60000];
    USE(frame);
    frame[0] = frame[59999] = 1;
    if (then_trim) fieldstone_stack_trim();
}

/* From one large segment to the next one. */
KEEP static void larger(void) {
    volatile char frame[60000];
    USE(frame);
    frame[59999] = 1;
    large(1);
}

/* Runs after each instruction while the trap flag is set; a crossing executes the beginning of __morestack. */
__attribute__((no_split_stack)) static void step(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    if ((unsigned long)registers[REG_RIP] - (unsigned long)__morestack > 4096 || seen++ != wanted) return;
    registers[REG_EFL] &= ~0x100;
    if (way == 0) large(0);
    if (way == 1) fieldstone_stack_trim();
    if (way == 2) large(1);
    if (way == 3) larger();
}

KEEP static long leaf(long value) {
    volatile char frame[3000];
    USE(frame);
    frame[0] = (char)value;
    return value + frame[0];
}

/* Whether the handler ran at the wanted instruction. */
KEEP static int cross(void) {
    volatile char frame[400];
    USE(frame);
    if ((unsigned long)__builtin_frame_address(0) - guard() > 1600) {
        int came = cross();
        USE(frame);
        return came;
    }
    fieldstone_stack_trim();
    CHECK(leaf(1) == 2 && leaf(1) == 2);
    unsigned long before = guard();
    seen = 0;
    __asm__ volatile("pushf; orl $0x100, (%%rsp); popf" : : : "memory", "cc");
    long found = leaf(5);
    __asm__ volatile("pushf; andl $~0x100, (%%rsp); popf" : : : "memory", "cc");
    CHECK(found == 10 && guard() == before);
    return seen > wanted;
}

int main(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = step;
    action.sa_flags = SA_SIGINFO;
    CHECK(sigaction(SIGTRAP, &action, NULL) == 0);
    for (way = 0; way < 4; way++) {
        for (wanted = 0; cross(); wanted++) {}
        CHECK(wanted > 30);
    }
    puts("stepped");
    return 0;
}
