/* The sum of the first n integers by recursion: as deep as it gets. The blog's second micro-benchmark. Prints nanoseconds a call
 * and, where it is built on blocks, how often its stack took memory.
 *
 *   sum N [ROUNDS]     the first round is cold; printed is the mean of the rest, or of it alone */
#include "clock.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

uint64_t fieldstone_stack_allocations(void) __attribute__((weak));

KEEP static long sum(long n) {
    if (n == 0) return 0;
    long below = sum(n - 1);
    __asm__ volatile("" : "+r"(below));
    return below + n;
}

int main(int count, char **words) {
    long n = count > 1 ? atol(words[1]) : 20000;
    long rounds = count > 2 ? atol(words[2]) : 1;
    double time = 0;
    for (long round = 0; round < rounds; round++) {
        double start = now();
        long found = sum(n);
        double taken = now() - start;
        if (found != n * (n + 1) / 2) {
            fprintf(stderr, "sum: %ld of %ld numbers\n", found, n);
            return 1;
        }
        if (round > 0 || rounds == 1) time += taken;
    }
    printf("%.4f", time / (double)(n * (rounds > 1 ? rounds - 1 : 1)));
    if (fieldstone_stack_allocations) printf(" %llu", (unsigned long long)fieldstone_stack_allocations());
    puts("");
    return 0;
}
