/* A loop whose call crosses a border between stack segments each time: the hot split. The calling frame is tried at every
 * distance where a border may be. Prints the nanoseconds per call at the worst distance.
 *
 *   border FIRST LAST     bytes of stack below main between which the loop is tried */
#include "clock.h"
#include <alloca.h>
#include <stdio.h>
#include <stdlib.h>

static char *top;

KEEP static long leaf(long a, long b, const char *frame) {
    volatile char own[64];
    own[0] = frame[0];
    return a + b + own[0];
}

KEEP static double loop(long calls, const char *frame) {
    double start = now();
    long sum = 0;
    for (long at = 0; at < calls; at++) {
        sum = leaf(sum, at, frame);
        __asm__ volatile("" : "+r"(sum));
    }
    return (now() - start) / (double)calls;
}

/* Descends to `bytes` below main in frames of about 200 bytes, and a last one that fits. */
KEEP static double at(long bytes, long calls) {
    volatile char frame[128];
    frame[0] = 0;
    long left = bytes - (top - (char *)frame);
    if (left > 600) return at(bytes, calls) + frame[0];
    char *rest = alloca((size_t)(left > 0 ? left : 0) + 1);
    rest[0] = 0;
    return loop(calls, rest);
}

int main(int count, char **words) {
    char here;
    top = &here;
    long first = count > 1 ? atol(words[1]) : 0, last = count > 2 ? atol(words[2]) : 1 << 17;
    /* Warm up: allocate every segment, touch every page. */
    at(last + 100000, 1);
    double worst = 0;
    long where = first;
    for (long bytes = first; bytes < last; bytes += 16) {
        double one = at(bytes, 200), two = at(bytes, 200), least = one < two ? one : two;
        if (least > worst) {
            worst = least;
            where = bytes;
        }
    }
    double least = at(where, 2000000);
    for (int round = 0; round < 4; round++) {
        double again = at(where, 2000000);
        if (again < least) least = again;
    }
    printf("%.4f\n", least);
    return 0;
}
