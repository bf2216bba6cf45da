/* Fibonacci numbers by recursion: only calls. The blog's first micro-benchmark. Prints nanoseconds per call.
 *
 *   fib [N]     36; the blog used 50 */
#include "clock.h"
#include <stdio.h>
#include <stdlib.h>

/* With -DALONE every call is executed; otherwise the compiler may inline several levels. */
#ifdef ALONE
KEEP
#endif
static unsigned long fib(unsigned n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }

int main(int count, char **words) {
    unsigned n = count > 1 ? (unsigned)atoi(words[1]) : 36;
    double start = now();
    unsigned long found = fib(n);
    double time = now() - start;
    /* fib(n) takes 2 fib(n + 1) - 1 calls. */
    unsigned long a = 0, b = 1;
    for (unsigned at = 0; at < n; at++) {
        unsigned long next = a + b;
        a = b;
        b = next;
    }
    if (found != a) {
        fprintf(stderr, "fib: %lu instead of %lu\n", found, a);
        return 1;
    }
    printf("%.4f\n", time / (2.0 * (double)b - 1));
    return 0;
}
