/* A thread accesses a freed object while another one ends the process as the argument says. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *volatile held;
static const char *how;
static pthread_barrier_t barrier;

static volatile int is_next;

static void *use(void *argument) {
    pthread_barrier_wait(&barrier);
    is_next = 1;
    held[(long)argument] = 1; /* ends error */
    return 0;
}
static void *use_elsewhere(void *argument) {
    pthread_barrier_wait(&barrier);
    held[(long)argument] = 2;
    return 0;
}
static void *end(void *unused) {
    pthread_barrier_wait(&barrier);
    while (!is_next)
        ;
    usleep(5000); /* The other thread has faulted; its report takes longer. */
    if (!strcmp(how, "exit"))
        exit(0);
    if (!strcmp(how, "_exit"))
        _exit(0);
    if (!strcmp(how, "abort"))
        abort();
    *(volatile char *)0 = 1;
    return 0;
}
int main(int argc, char **argv) {
    how = argv[1];
    void *(*start[8])(void *) = {use, end};
    long count = 2;
    if (!strcmp(how, "faults"))
        for (count = 0; count < 8; count++)
            start[count] = count % 2 ? use_elsewhere : use;
    char *object = held = malloc(64);
    free(object);
    pthread_barrier_init(&barrier, 0, count);
    pthread_t threads[8];
    for (long i = 0; i < count; i++)
        pthread_create(threads + i, 0, start[i], (void *)i);
    for (long i = 0; i < count; i++)
        pthread_join(threads[i], 0);
    return 0;
}
