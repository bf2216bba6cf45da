/* What the programs here share: a check that tells where it failed, and recursion of a given depth that the compiler keeps. */
#ifndef CHECK_H
#define CHECK_H

#include <fieldstone/stacks.h>
#include <stdio.h>
#include <stdlib.h>

#if defined(__clang__)
/* clang compiles no checks into functions of variable arguments, and refuses them. */
#define VARIADIC __attribute__((no_split_stack))
#else
#define VARIADIC
#endif

#define KEEP __attribute__((noinline))

/* An array that the compiler must keep as it is: seen from outside. */
#define USE(array) __asm__ volatile("" : : "r"(array) : "memory")

#define CHECK(condition)                                                                       \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);            \
            abort();                                                                           \
        }                                                                                      \
    } while (0)

/* Resident KiB of the process. */
static inline long resident(void) {
    long total, pages;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%ld %ld", &total, &pages) == 2);
    fclose(file);
    return pages * 4;
}

/* Bytes of stack that each call of `descend` takes, at least. */
#define FRAME_BYTES 1024

#endif
