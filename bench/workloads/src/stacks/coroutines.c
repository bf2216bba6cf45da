/* Suspended coroutines, each on its own stack. Prints the KiB per coroutine, including page tables.
 *
 *   coroutines [COUNT]     100,000; built with stacks of blocks */
#include <fieldstone/stacks.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

static ucontext_t home, *machines;
static void *home_stack[10], *(*stacks)[10];
static long now, woken;

static void to_home(long self) {
    __splitstack_getcontext(stacks[self]);
    __splitstack_setcontext(home_stack);
    swapcontext(&machines[self], &home);
}

static void to(long self) {
    now = self;
    __splitstack_getcontext(home_stack);
    __splitstack_setcontext(stacks[self]);
    swapcontext(&home, &machines[self]);
}

static void body(void) {
    long self = now;
    to_home(self);
    woken += self;
    to_home(self);
}

/* A field in KiB of /proc/self/status. */
static long status(const char *name) {
    char line[256];
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, name, strlen(name))) {
            fclose(file);
            return atol(line + strlen(name));
        }
    abort();
}

static long taken(void) { return status("VmRSS:") + status("VmPTE:"); }

int main(int count, char **words) {
    long many = count > 1 ? atol(words[1]) : 100000;
    machines = malloc((size_t)many * sizeof *machines);
    stacks = malloc((size_t)many * sizeof *stacks);
    memset(machines, 1, (size_t)many * sizeof *machines);
    memset(stacks, 1, (size_t)many * sizeof *stacks);
    long before = taken();
    for (long at = 0; at < many; at++) {
        getcontext(&machines[at]);
        machines[at].uc_stack.ss_sp = __splitstack_makecontext(1024, stacks[at], &machines[at].uc_stack.ss_size);
        machines[at].uc_link = NULL;
        makecontext(&machines[at], body, 0);
        to(at);
    }
    long after = taken();
    for (long at = 0; at < many; at++) to(at);
    if (woken != many * (many - 1) / 2) return 1;
    printf("%.4f\n", (double)(after - before) / (double)many);
    return 0;
}
