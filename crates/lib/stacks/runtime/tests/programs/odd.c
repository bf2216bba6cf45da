/* Other uses of stacks: nested functions, wide vectors, vfork, destructors of thread-specific data that recurse,
 * cancellation during an allocation. And unchecked code that overflows the headroom traps. */
#define _GNU_SOURCE
#include "descend.h"
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

static unsigned long guard(void) {
    unsigned long word;
    __asm__ volatile("mov %%fs:0x70, %0" : "=r"(word));
    return word;
}

#ifndef __clang__
KEEP static long with(long (*function)(long), long value) { return function(value); }

/* gcc puts the nested function's trampoline on the stack. */
KEEP static long nested(int depth) {
    volatile char frame[FRAME_BYTES];
    USE(frame);
    long add(long value) { return value + depth + frame[0] * 0; }
    frame[0] = 0;
    return with(add, depth ? nested(depth - 1) : 0);
}
#endif

typedef int wide __attribute__((vector_size(32)));

/* The upper half of a vector register holds an argument while segments are allocated. */
__attribute__((target("avx2"))) KEEP static wide widest(wide value, int depth) {
    volatile char frame[20000];
    USE(frame);
    frame[0] = 1;
    return depth ? widest(value + frame[0], depth - 1) : value;
}

__attribute__((target("avx2"))) KEEP static void vectors(void) {
    wide found = widest((wide){0, 1, 2, 3, 4, 5, 6, 7}, 100);
    for (int at = 0; at < 8; at++) CHECK(found[at] == at + 100);
}

/* Whether stacks are executable: lld never makes them so, whatever the objects request. */
static int is_executable(void) {
    char line[256];
    FILE *maps = fopen("/proc/self/maps", "r");
    int found = 0;
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "[stack]")) found = strstr(line, "rwxp") != NULL;
    fclose(maps);
    return found;
}

/* The child descends deeper than the parent, and exits. */
KEEP static void forks(void) {
    long here = (long)__builtin_frame_address(0);
    pid_t child = vfork();
    if (child == 0) {
        descend(300);
        _exit(7);
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 7);
    CHECK(descend(1) == 1);
    CHECK(guard() < (unsigned long)here && (unsigned long)here - guard() < 1 << 20);
}

static pthread_key_t key;
static long destroyed;

static void destroy(void *value) { destroyed = descend(*(int *)value); }

static void *with_key(void *value) {
    pthread_setspecific(key, value);
    return NULL;
}

/* While this is set, madvise is slow, so that a cancellation interrupts the allocation. */
static __thread int is_slow;

__attribute__((no_split_stack)) int madvise(void *start, size_t bytes, int advice) {
    for (volatile long at = 0; is_slow && at < 100000000; at++) {}
    return (int)syscall(SYS_madvise, start, bytes, advice);
}

static volatile int has_begun;

KEEP static long large(void) {
    volatile char frame[20 << 20];
    USE(frame);
    return frame[0] = 1;
}

static void *cancelled(void *nothing) {
    int old;
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &old);
    has_begun = is_slow = 1;
    large();
    for (;;) pause();
    return nothing;
}

static ucontext_t home, machine;
static void *home_stack[10], *stack[10];

/* Unchecked code with a frame larger than the headroom. */
__attribute__((no_split_stack)) KEEP static void overflow(void) {
    volatile char frame[31 << 10];
    USE(frame);
    for (int at = sizeof frame - 1; at >= 0; at -= 4096) frame[at] = 1;
}

static void body(void) {
    overflow();
    __splitstack_setcontext(home_stack);
    swapcontext(&machine, &home);
}

/* In a coroutine, above another stack: a child must end by SIGSEGV if the kernel supports guard pages. */
static void overflows(void) {
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (syscall(SYS_madvise, page, 4096, 102)) return;
    pid_t child = fork();
    if (child == 0) {
        getcontext(&machine);
        machine.uc_stack.ss_sp = __splitstack_makecontext(1024, stack, &machine.uc_stack.ss_size);
        makecontext(&machine, body, 0);
        __splitstack_getcontext(home_stack);
        __splitstack_setcontext(stack);
        swapcontext(&home, &machine);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == 11);
}

int main(void) {
#ifndef __clang__
    if (is_executable()) CHECK(nested(400) == 400 * 401 / 2);
#endif
    if (__builtin_cpu_supports("avx2")) vectors();
    forks();
    pthread_t thread;
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    int depth = 1000;
    CHECK(pthread_key_create(&key, destroy) == 0);
    CHECK(pthread_create(&thread, &small, with_key, &depth) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(destroyed == depth);
    CHECK(pthread_create(&thread, NULL, cancelled, NULL) == 0);
    while (!has_begun) usleep(1000);
    usleep(10000);
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(large() == 1);
    overflows();
    puts("odd");
    return 0;
}
