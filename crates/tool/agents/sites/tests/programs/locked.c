// Maps memory with the lock of its allocator held, while another thread walks the loader's list and allocates.
// A recorder that waits for the list during mmap would deadlock. The allocator is a part of the program.
#include "pool.c"
#include <link.h>
#include <unistd.h>

static volatile int looked, over;
static __thread void *volatile kept;

static int look(struct dl_phdr_info *info, size_t bytes, void *unused) {
    kept = malloc(100);
    free(kept);
    looked = 1;
    return 0;
}
static void *looks(void *unused) {
    while (!over) dl_iterate_phdr(look, NULL);
    return NULL;
}
static __attribute__((noinline, noclone)) void deeper(int depth) {
    if (depth) deeper(depth - 1); else kept = malloc(5000);
    __asm__ volatile("");
}

int main(void) {
    pthread_t thread;
    alarm(60);
    pthread_create(&thread, NULL, looks, NULL);
    while (!looked) {}
    for (int i = 0; i < 3000; i++) { deeper(i % 100); free(kept); }
    over = 1;
    return pthread_join(thread, NULL);
}
