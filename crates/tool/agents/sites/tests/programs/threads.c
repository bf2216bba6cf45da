// Eight threads allocate at two places, with stacks of several depths.
#include <pthread.h>
#include <stdlib.h>

#define APART __attribute__((noinline, noclone))
static __thread void *volatile kept;

APART void leaf(int depth) { kept = malloc(16 + depth); free(kept); __asm__ volatile(""); }
APART void deeper(int depth, int left) { if (left) deeper(depth, left - 1); else leaf(depth); __asm__ volatile(""); }
APART void *worker(void *unused) {
    for (int i = 0; i < 10000; i++) deeper(i % 4, i % 4);
    return NULL;
}

int main(void) {
    pthread_t threads[8];
    for (int i = 0; i < 8; i++) pthread_create(&threads[i], NULL, worker, NULL);
    for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
    return 0;
}
