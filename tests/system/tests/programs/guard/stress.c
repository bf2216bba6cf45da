/* Threads that allocate, resize and free, and forks meanwhile whose children
 * allocate, free and have threads. A child that hangs or fails ends the program with an error. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 4, LIVE = 64, FORKS = 60 };
static volatile int stop;

static void *work(void *argument) {
    unsigned seed = (unsigned)(long)argument;
    unsigned char *all[LIVE] = {0};
    size_t sizes[LIVE] = {0};
    while (!stop) {
        int i = rand_r(&seed) % LIVE;
        if (all[i]) {
            for (size_t k = 0; k < sizes[i]; k++) if (all[i][k] != (unsigned char)i) { puts("changed"); _exit(6); }
            free(all[i]);
            all[i] = 0;
            continue;
        }
        size_t bytes = rand_r(&seed) % 3000;
        all[i] = malloc(bytes);
        memset(all[i], i, bytes);
        if (bytes % 7 == 0) all[i] = realloc(all[i], bytes + 100);
        sizes[i] = bytes;
    }
    for (int i = 0; i < LIVE; i++) free(all[i]);
    return 0;
}
static void *shortly(void *argument) {
    void *volatile p = malloc(100);
    memset(p, 1, 100);
    free(p);
    return argument;
}
static void child(void) {
    void *all[50];
    pthread_t thread;
    for (int i = 0; i < 50; i++) memset(all[i] = malloc(100 + i), 1, 100 + i);
    for (int i = 0; i < 50; i++) free(all[i]);
    pthread_create(&thread, 0, shortly, 0);
    pthread_join(thread, 0);
    _exit(0);
}

int main(void) {
    pthread_t threads[THREADS], thread;
    for (long i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, work, (void *)(i + 1));
    for (int i = 0; i < FORKS; i++) {
        int status, waits = 0;
        pid_t pid = fork();
        if (!pid) child();
        while (waitpid(pid, &status, WNOHANG) != pid) {
            if (++waits > 20000) { puts("a child hangs"); kill(pid, SIGKILL); _exit(4); }
            usleep(1000);
        }
        if (status) { printf("a child ended with %#x\n", status); _exit(5); }
        pthread_create(&thread, 0, shortly, 0);
        pthread_join(thread, 0);
    }
    stop = 1;
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], 0);
    puts("ok");
    return 0;
}
