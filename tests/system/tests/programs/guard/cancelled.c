/* Threads that are cancelled while they allocate. With "asynchronous" that may be inside malloc: then only memory of
 * guards is used meanwhile. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is_asynchronous;
static volatile int started;

static void *work(void *argument) {
    int old;
    free(malloc(10));
    pthread_setcanceltype(is_asynchronous ? PTHREAD_CANCEL_ASYNCHRONOUS : PTHREAD_CANCEL_DEFERRED, &old);
    started = 1;
    for (unsigned i = 0;; i++) {
        void *p = malloc(i % 500 + 1);
        free(p);
        if (!is_asynchronous) pthread_testcancel();
    }
    return argument;
}

int main(int argc, char **argv) {
    is_asynchronous = argc > 1 && !strcmp(argv[1], "asynchronous");
    for (int i = 0; i < 50; i++) {
        pthread_t thread;
        void *result;
        started = 0;
        if (pthread_create(&thread, 0, work, 0)) return 2;
        while (!started) usleep(100);
        usleep(i * 20);
        pthread_cancel(thread);
        pthread_join(thread, &result);
        if (result != PTHREAD_CANCELED) return 3;
        for (int k = 0; k < 100; k++) free(malloc(k + 1));
    }
    puts("ok");
    return 0;
}
