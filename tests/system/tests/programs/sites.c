/* Memory allocated in four ways, each in a separate function, and accessed page by page. */
#define _GNU_SOURCE
#include <malloc.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { ROUNDS = 20, BYTES = 1 << 20, PAGE = 4096 };
#define APART __attribute__((noinline, noclone))

APART static void walk(volatile char *memory, int rounds) {
    for (int round = 0; round < rounds; round++)
        for (int at = 0; at < BYTES; at += PAGE) memory[at] += 1;
}

APART static char *table_new(void) {
    return calloc(1, BYTES); /* line of table_new */
}

APART static char *grown(void) {
    char *small = malloc(BYTES / 2);
    void *between = malloc(PAGE);
    char *large = realloc(small, BYTES); /* line of grown */
    if (!between || large == small) abort(); /* the block has to move */
    return large;
}

APART static char *pool_map(void) {
    char *pool = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); /* line of pool_map */
    if (pool == MAP_FAILED) abort();
    return pool;
}

APART static void *xmalloc(size_t bytes) {
    void *block = malloc(bytes);
    return block ? block : (abort(), block);
}

APART static char *load_world(void) {
    char *world = xmalloc(BYTES); /* line of load_world */
    world[0] = 1;
    return world;
}

int main(void) {
    mallopt(M_MMAP_THRESHOLD, 64 << 20);
    walk(table_new(), ROUNDS);
    walk(grown(), 2 * ROUNDS);
    walk(pool_map(), 3 * ROUNDS);
    walk(load_world(), 4 * ROUNDS);
    return 0;
}
