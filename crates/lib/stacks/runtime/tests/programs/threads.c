/* 160 threads, each deeper than its system stack; threads that end by pthread_exit and by cancellation in deep
 * segments, whose cleanups run; forks. The segments of ended threads are freed. */
#include "descend.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

static atomic_int cleaned, reached;

static void cleanup(void *unused) {
    (void)unused;
    CHECK(descend(100) == 100);
    cleaned++;
}

KEEP static void leave(int depth, int by_exit) {
    volatile char frame[FRAME_BYTES];
    USE(frame);
    frame[0] = (char)depth;
    pthread_cleanup_push(cleanup, NULL);
    if (depth > 0) {
        leave(depth - 1, by_exit);
    } else if (by_exit) {
        pthread_exit((void *)42);
    } else {
        reached++;
        for (;;) pause();
    }
    pthread_cleanup_pop(0);
    frame[1] = frame[0];
}

static void *deep(void *depth) { return (void *)descend((int)(long)depth); }
static void *exits(void *unused) { return leave(300, 1), unused; }
static void *waits(void *unused) { return leave(300, 0), unused; }

static void many(void) {
    pthread_t threads[160];
    pthread_attr_t small;
    CHECK(pthread_attr_init(&small) == 0 && pthread_attr_setstacksize(&small, 64 << 10) == 0);
    for (int at = 0; at < 160; at++) CHECK(pthread_create(&threads[at], at % 2 ? &small : NULL, deep, (void *)1000L) == 0);
    for (int at = 0; at < 160; at++) {
        void *result;
        CHECK(pthread_join(threads[at], &result) == 0 && result == (void *)1000L);
    }
}

static void ends(void) {
    pthread_t thread;
    void *result;
    CHECK(pthread_create(&thread, NULL, exits, NULL) == 0 && pthread_join(thread, &result) == 0);
    CHECK(result == (void *)42 && cleaned == 301);
    CHECK(pthread_create(&thread, NULL, waits, NULL) == 0);
    while (!reached) usleep(1000);
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED && cleaned == 602);
}

KEEP static void forks(int depth) {
    volatile char frame[FRAME_BYTES];
    USE(frame);
    frame[0] = (char)depth;
    if (depth > 0) {
        forks(depth - 1);
        return;
    }
    for (int round = 0; round < 20; round++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) _exit(descend(3000) == 3000 ? 7 : 8);
        int status;
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    }
    frame[1] = frame[0];
}

static void *forker(void *unused) { return forks(200), unused; }

int main(void) {
    many();
    long before = resident();
    for (int round = 0; round < 5; round++) many();
    /* 160 threads of 1 MiB each would hold 160 MiB if it were not freed. */
    CHECK(resident() < before + 40000);
    ends();
    pthread_t thread, other;
    CHECK(pthread_create(&thread, NULL, forker, NULL) == 0 && pthread_create(&other, NULL, deep, (void *)100000L) == 0);
    forks(200);
    CHECK(pthread_join(thread, NULL) == 0 && pthread_join(other, NULL) == 0);
    puts("threads ended");
    return 0;
}
