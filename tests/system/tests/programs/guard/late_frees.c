// Threads free each other's blocks after the memory limit of guarded objects is reached.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { THREADS = 24, BLOCKS = 32 };
static void *blocks[THREADS][BLOCKS];
static pthread_barrier_t barrier;

static void *work(void *argument) {
    long own = (long)argument;
    for (int at = 0; at < BLOCKS; at++) blocks[own][at] = malloc(3000);
    pthread_barrier_wait(&barrier);
    for (int at = 0; at < BLOCKS; at++) free(__atomic_exchange_n(&blocks[(own + at) % THREADS][at], 0, __ATOMIC_SEQ_CST));
    return 0;
}

int main(void) {
    pthread_t threads[THREADS];
    alarm(60);
    for (int at = 0; at < 20000; at++) *(void *volatile *)malloc(16) = 0;
    pthread_barrier_init(&barrier, 0, THREADS);
    for (long at = 0; at < THREADS; at++) pthread_create(&threads[at], 0, work, (void *)at);
    for (int at = 0; at < THREADS; at++) pthread_join(threads[at], 0);
    puts("all freed");
}
