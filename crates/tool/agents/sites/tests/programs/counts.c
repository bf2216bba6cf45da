// Calls each allocation function a known number of times, each in a separate function.
#define _GNU_SOURCE
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define APART __attribute__((noinline, noclone))
static void *volatile kept;

APART void *innermost(size_t bytes) {
    void *block = malloc(bytes);
    kept = block;
    return block;
}
APART void outer_one(void) { for (int i = 0; i < 100; i++) { void *b = innermost(24); memset(b, 1, 24); free(b); } }
APART void outer_two(void) { for (int i = 0; i < 30; i++) { void *b = innermost(1000); free(b); } }
APART void by_calloc(void) {
    for (int i = 0; i < 50; i++) {
        char *b = kept = calloc(3, 8);
        for (int k = 0; k < 24; k++) if (b[k]) abort();
        memset(b, 1, 24);
        free(b);
    }
}
APART void by_realloc(void) {
    char *b = NULL;
    for (size_t bytes = 16; bytes <= 1 << 20; bytes *= 2) {
        b = kept = realloc(b, bytes);
        for (size_t k = 0; k < bytes / 2; k++) if (bytes > 16 && b[k] != 7) abort();
        memset(b, 7, bytes);
    }
    if (realloc(b, PTRDIFF_MAX)) abort(); // announced again: the block stays
    free(b);
}
APART void by_reallocarray(void) {
    void *b = kept = reallocarray(NULL, 4, 10);
    if (reallocarray(NULL, SIZE_MAX, 2)) abort();
    free(b);
}
APART void by_alignment(void) {
    void *b;
    if (posix_memalign(&b, 64, 100) || (uintptr_t)b % 64) abort();
    kept = b; free(b);
    b = kept = aligned_alloc(128, 256); if ((uintptr_t)b % 128) abort(); free(b);
    b = kept = memalign(256, 300); if ((uintptr_t)b % 256) abort(); free(b);
    b = kept = valloc(500); if ((uintptr_t)b % 4096) abort(); free(b);
    b = kept = pvalloc(1); if ((uintptr_t)b % 4096) abort(); free(b);
    if (posix_memalign(&b, 3, 100) == 0) abort();
}

int main(void) {
    outer_one();
    outer_two();
    by_calloc();
    by_realloc();
    by_reallocarray();
    by_alignment();
    free(NULL);
    return 0;
}
