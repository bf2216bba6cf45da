// Accesses of one kind, with a count that can be derived: `accesses KIND`. The pages, more than the entries of the tests' TLB,
// are accessed in rounds, so that each page of a round misses.

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { PAGE = 4096, PAGES = 400, ROUNDS = 100, REPEATS = 2000000 };

static char *pages(int flags) {
    char *memory = mmap(0, 2 * PAGES * PAGE, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return memory;
}

static char *shared;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t bell = PTHREAD_COND_INITIALIZER;

static void sweep(char *memory, long first, long stride) {
    for (int round = 0; round < ROUNDS; round++)
        for (long page = 0; page < PAGES; page++)
            *(volatile uint64_t *)(memory + first + page * stride) = round;
}

// Waits for memory that another thread allocates.
static void *user(void *unused) {
    pthread_mutex_lock(&lock);
    while (!shared)
        pthread_cond_wait(&bell, &lock);
    pthread_mutex_unlock(&lock);
    sweep(shared, 64, PAGE);
    return unused;
}

__attribute__((noinline)) static void hand_over(void) {
    pthread_mutex_lock(&lock);
    shared = malloc(PAGES * PAGE + PAGE);
    pthread_cond_signal(&bell);
    pthread_mutex_unlock(&lock);
}

int main(int count, char **words) {
    const char *kind = count > 1 ? words[1] : "";
    if (!strcmp(kind, "plain")) {
        sweep(pages(MAP_PRIVATE), 0, PAGE);
    } else if (!strcmp(kind, "shared")) {
        sweep(pages(MAP_SHARED), 0, PAGE);
    } else if (!strcmp(kind, "straddling")) {
        sweep(pages(MAP_PRIVATE), PAGE - 4, 2 * PAGE);
    } else if (!strcmp(kind, "again")) {
        // One store and two loads of one address.
        uint64_t place = 0;
        for (long at = 0; at < REPEATS; at++)
            __asm__ volatile("mov %%rax, (%0); mov (%0), %%rax; mov (%0), %%rdx" : : "r"(&place) : "rax", "rdx", "memory");
    } else if (!strcmp(kind, "bits")) {
        // The bit number selects a bit beyond the operand: two pages of a pair, with one operand address.
        char *memory = pages(MAP_PRIVATE);
        for (int round = 0; round < ROUNDS; round++)
            for (long page = 0; page < PAGES; page += 2)
                __asm__ volatile("btsq %1, (%0); btsq %2, (%0)"
                                 : : "r"(memory + page * PAGE), "r"(0L), "r"(PAGE * 8L) : "memory", "cc");
    } else if (!strcmp(kind, "handed")) {
        pthread_t thread;
        pthread_create(&thread, 0, user, 0);
        struct timespec while_it_waits = {0, 100000000};
        nanosleep(&while_it_waits, 0);
        hand_over();
        pthread_join(thread, 0);
    } else {
        return 2;
    }
    return 0;
}
