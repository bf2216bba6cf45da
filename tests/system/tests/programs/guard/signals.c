/* A timer interrupts allocations, also inside the agent, and its handler allocates, resizes and frees. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

static volatile sig_atomic_t handled;

static void handle(int signal) {
    char *p = malloc(50);
    memset(p, signal, 50);
    p = realloc(p, 500);
    if (p[49] != (char)signal) abort();
    free(p);
    handled++;
}

int main(void) {
    signal(SIGALRM, handle);
    struct itimerval often = {{0, 200}, {0, 200}};
    setitimer(ITIMER_REAL, &often, 0);
    for (int i = 0; i < 200000 && handled < 500; i++) {
        char *p = malloc(i % 2000 + 1);
        p[i % 2000] = 1;
        p = realloc(p, i % 2000 + 30);
        free(p);
    }
    struct itimerval never = {0};
    setitimer(ITIMER_REAL, &never, 0);
    puts(handled > 10 ? "ok" : "no signals");
    return 0;
}
