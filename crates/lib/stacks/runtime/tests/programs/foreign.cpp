// A coroutine in a thread that a library created, which this run time has not initialised. And libm
// is the program's own.
#include "descend.h"
#include <cerrno>
#include <cmath>
#include <thread>
#include <ucontext.h>

static thread_local ucontext_t home, machine;
static thread_local void *home_stack[10], *stack[10];
static thread_local long reached;

static void body() {
    reached = descend(3000);
    __splitstack_getcontext(stack);
    __splitstack_setcontext(home_stack);
    swapcontext(&machine, &home);
}

static void run() {
    getcontext(&machine);
    machine.uc_stack.ss_sp = __splitstack_makecontext(1024, stack, &machine.uc_stack.ss_size);
    machine.uc_link = nullptr;
    makecontext(&machine, body, 0);
    __splitstack_getcontext(home_stack);
    __splitstack_setcontext(stack);
    swapcontext(&home, &machine);
    CHECK(reached == 3000);
    __splitstack_releasecontext(stack);
}

int main(int count, char **) {
    std::thread(run).join();
    // The ranges of the main thread's stack are not larger than the stack.
    void *segment = nullptr, *sp = nullptr, *initial;
    size_t length;
    CHECK(__splitstack_find(segment, sp, &length, &segment, &sp, &initial) && length < 1 << 20);
    errno = 0;
    volatile double huge = HUGE_VAL, rest = std::fmod(huge, count);
    CHECK(std::isnan(rest) && errno == EDOM);
    puts("foreign");
}
