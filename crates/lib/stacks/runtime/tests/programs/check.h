/* Shared by the programs here: a check that prints where it failed, and recursion that the compiler keeps. */
#ifndef CHECK_H
#define CHECK_H

#include <fieldstone/stacks.h>
#include <stdio.h>
#include <stdlib.h>

#if defined(__clang__)
/* clang emits no checks for functions of variable arguments, and refuses to compile them. */
#define VARIADIC __attribute__((no_split_stack))
#else
#define VARIADIC
#endif

#define KEEP __attribute__((noinline))

/* Keeps an array from being optimised away. */
#define USE(array) __asm__ volatile("" : : "r"(array) : "memory")

#define CHECK(condition)                                                                       \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #condition);            \
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
