// The handler of a timer signal allocates at any point of the program, also inside the recorder. Linked to bump.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>

#define APART __attribute__((noinline, noclone))
extern size_t bump_calls;
static volatile int handled;
static void *volatile kept;

APART void in_handler(void) { kept = malloc(11); __asm__ volatile(""); }
static void handler(int signal) { in_handler(); handled++; }
APART void at_work(int depth) { if (depth) at_work(depth - 1); else kept = malloc(7); __asm__ volatile(""); }

int main(void) {
    struct sigaction action = { .sa_handler = handler };
    struct itimerval often = { { 0, 50 }, { 0, 50 } }, never = { { 0, 0 }, { 0, 0 } };
    sigaction(SIGALRM, &action, NULL);
    size_t before = bump_calls;
    setitimer(ITIMER_REAL, &often, NULL);
    for (int i = 0; handled < 2000 && i < 8000000; i++) at_work(i % 50);
    setitimer(ITIMER_REAL, &never, NULL);
    size_t calls = bump_calls - before;
    static char text[64];
    setvbuf(stdout, text, _IOFBF, sizeof text);
    printf("%zu %d\n", calls, handled);
    return 0;
}
