// A malloc that maps its pool by mmap at its first call, and memory for each large block, with its lock held.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
#define HEAD 4096

void *malloc(size_t bytes) {
    pthread_mutex_lock(&lock);
    char *mapped = mmap(NULL, HEAD + bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) abort();
    *(size_t *)mapped = bytes;
    pthread_mutex_unlock(&lock);
    return mapped + HEAD;
}
void free(void *block) { if (block) munmap((char *)block - HEAD, HEAD + *(size_t *)((char *)block - HEAD)); }
void *calloc(size_t n, size_t bytes) { return malloc(n * bytes); }
void *realloc(void *block, size_t bytes) {
    void *fresh = malloc(bytes);
    if (block) {
        size_t old = *(size_t *)((char *)block - HEAD);
        memcpy(fresh, block, old < bytes ? old : bytes);
        free(block);
    }
    return fresh;
}
