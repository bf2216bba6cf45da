/* Starts the given number of threads, two at a time, so that thread numbers grow. Each uses 80 pages twice. */
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>

enum { PAGES = 80 };
static sem_t *done, *leave;
static volatile char *memory;

static void *work(void *argument) {
    long own = (long)argument;
    for (int i = 0; i < 2 * PAGES; i++) memory[i % PAGES * 4096]++;
    sem_post(&done[own]);
    sem_wait(&leave[own]);
    return 0;
}

int main(int argc, char **argv) {
    long count = argc > 1 ? atol(argv[1]) : 10;
    done = calloc(count, sizeof *done);
    leave = calloc(count, sizeof *leave);
    memory = malloc(4096L * PAGES);
    pthread_t thread, before = 0;
    for (long own = 0; own < count; own++) {
        sem_init(&done[own], 0, 0);
        sem_init(&leave[own], 0, 0);
        if (pthread_create(&thread, 0, work, (void *)own)) return 1;
        sem_wait(&done[own]);
        if (own > 0) {
            sem_post(&leave[own - 1]);
            pthread_join(before, 0);
        }
        before = thread;
    }
    sem_post(&leave[count - 1]);
    return pthread_join(before, 0);
}
