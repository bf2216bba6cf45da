/* Allocates on the smallest stacks: of a thread, and of a signal handler. With an argument it ends with an error
 * there. */
#define _GNU_SOURCE
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *where;
static char *volatile object;
static volatile int count;

static __attribute__((noinline, noipa)) void fail(void) {
    object[64] = 1; /* small_stacks error */
}
static void use(void) {
    for (int i = 1; i < 200; i++) {
        char *p = malloc(i);
        memset(p, 1, i);
        p = realloc(p, 2 * i);
        free(p);
        count++;
    }
}
static void *work(void *argument) {
    use();
    if (!strcmp(where, "thread")) fail();
    return argument;
}
static void handle(int signal) {
    (void)signal;
    use();
    if (!strcmp(where, "handler")) fail();
}
static void of_fault(int signal) { (void)signal; _exit(50); }

int main(int argc, char **argv) {
    where = argc > 1 ? argv[1] : "";
    object = malloc(64); /* small_stacks allocated */
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    if (pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN)) return 2;
    pthread_t thread;
    if (pthread_create(&thread, &attributes, work, 0)) return 3;
    pthread_join(thread, 0);
    /* the records of the kernel for the signal and for a fault in its handler, and 1 KiB */
    size_t bytes = 2 * sysconf(_SC_MINSIGSTKSZ) + (argc > 2 ? atoi(argv[2]) : 1024);
    stack_t stack = {.ss_sp = aligned_alloc(64, (bytes + 63) / 64 * 64), .ss_size = bytes};
    if (sigaltstack(&stack, 0)) return 4;
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR1, &action, 0);
    raise(SIGUSR1);
    action.sa_handler = of_fault;
    sigaction(SIGSEGV, &action, 0);
    if (!strcmp(where, "fault")) fail();
    printf("%d\n", count);
    return 0;
}
