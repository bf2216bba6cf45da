/* The sum of the first n integers by deep recursion. The blog's second micro-benchmark. Prints
 * nanoseconds per call and the number of times that the stack took memory: from the run time of
 * blocks, or from gcc's, which calls mmap by syscall. That is counted if linked with
 * --wrap=syscall.
 *
 *   sum N [ROUNDS]     the first round is cold; prints the mean of the other rounds, or the first if
 *                      it is the only one */
#include "clock.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>

uint64_t fieldstone_stack_allocations(void) __attribute__((weak));

static uint64_t mappings;

long __real_syscall(long, long, long, long, long, long, long) __attribute__((weak));

__attribute__((no_split_stack)) long __wrap_syscall(long call, long a, long b, long c, long d, long e, long f) {
    if (call == SYS_mmap) mappings++;
    return __real_syscall(call, a, b, c, d, e, f);
}

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
    printf("%.4f %llu\n", time / (double)(n * (rounds > 1 ? rounds - 1 : 1)),
           (unsigned long long)(fieldstone_stack_allocations ? fieldstone_stack_allocations() : mappings));
    return 0;
}
