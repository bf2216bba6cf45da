/* 64 threads; each reads its own MiB page by page, 20 times. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { THREADS = 64, ROUNDS = 20, BYTES = 1 << 20, PAGE = 4096 };

static void *work(void *unused) {
    volatile char *memory = calloc(1, BYTES);
    for (int round = 0; round < ROUNDS; round++)
        for (int at = 0; at < BYTES; at += PAGE) memory[at] += 1;
    int sum = memory[0];
    free((void *)memory);
    (void)unused;
    return (void *)(long)sum;
}

int main(void) {
    pthread_t threads[THREADS];
    long sum = 0;
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, NULL);
    for (int i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        sum += (long)result;
    }
    return sum == THREADS * ROUNDS ? 0 : 1;
}
