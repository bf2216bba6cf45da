/* Three errors, each three times. The argument is the exit code. */
#include <stdio.h>
#include <stdlib.h>

static void *volatile held;
__attribute__((noinline, noipa)) static void fill(char *p) {
    for (int i = 0; i < 40; i++)
        p[i] = (char)i;
}
int main(int argc, char **argv) {
    for (int round = 0; round < 3; round++) {
        char *p = held = malloc(32);
        fill(p);
        free(p);
        volatile char *old = held;
        (void)old[3];
        free(held);
    }
    puts("end");
    return argc > 1 ? atoi(argv[1]) : 0;
}
