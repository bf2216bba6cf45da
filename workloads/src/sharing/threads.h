// What the programs for false sharing have in common: threads that start together, arguments, times, the verdict.
//
// They are C so that the same source can be built at each level of optimisation: what a compiler keeps in a register is
// shared with nobody. Like the other programs: phases on stderr, checksum on stdout, exit 1 when the result is wrong,
// 2 when it cannot run.

#ifndef FIELDSTONE_THREADS_H
#define FIELDSTONE_THREADS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// A line of the cache; two of them, since processors fetch lines in pairs.
#define LINE 64
#define APART (2 * LINE)
#define MAX_THREADS 64

// Set by each program.
static const char *const program;
static const char *const usage_text;

__attribute__((noreturn, unused)) static void usage(const char *why) {
    fprintf(stderr, "%s: %s\n%s", program, why, usage_text);
    exit(2);
}

__attribute__((noreturn, unused)) static void cannot(const char *what, int error) {
    fprintf(stderr, "%s: %s: %s\n", program, what, strerror(error));
    exit(2);
}

__attribute__((unused)) static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

// splitmix64: the output for a counter.
__attribute__((unused)) static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

__attribute__((unused)) static void expect(const char *what, uint64_t found, uint64_t expected) {
    if (found == expected) return;
    fprintf(stderr, "%s: wrong result: %s is %llu, expected %llu\n", program, what, (unsigned long long)found,
            (unsigned long long)expected);
    exit(1);
}

__attribute__((unused)) static void conclude(uint64_t checksum) {
    printf("checksum: %016llx\n", (unsigned long long)checksum);
}

// The value of argument `*at`, and on to the next.
__attribute__((unused)) static const char *value_of(int argc, char **argv, int *at) {
    if (*at + 1 >= argc) usage("an option has no value");
    return argv[++*at];
}

__attribute__((unused)) static uint64_t number(const char *text, uint64_t least, uint64_t most) {
    char *end = NULL;
    errno = 0;
    const uint64_t value = strtoull(text, &end, 10);
    if (errno != 0 || *end != '\0' || text[0] < '0' || text[0] > '9' || value < least || value > most)
        usage("a number is none, or out of range");
    return value;
}

// Memory whose first byte is `shift` bytes past the start of a line, zeroed; never freed.
__attribute__((unused)) static void *lines(size_t bytes, size_t shift) {
    const size_t all = (bytes + shift + 2 * APART - 1) / APART * APART;
    char *const start = aligned_alloc(APART, all);
    if (start == NULL) cannot("no memory", ENOMEM);
    memset(start, 0, all);
    return start + shift;
}

// Binds the calling thread to the `index`-th CPU that it may use, counted round.
__attribute__((unused)) static void pin(unsigned index) {
    cpu_set_t may, one;
    if (sched_getaffinity(0, sizeof may, &may) != 0) cannot("sched_getaffinity", errno);
    unsigned left = index % (unsigned)CPU_COUNT(&may);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (!CPU_ISSET(cpu, &may) || left-- > 0) continue;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        if (sched_setaffinity(0, sizeof one, &one) != 0) cannot("sched_setaffinity", errno);
        return;
    }
}

struct team {
    unsigned threads;
    int pinned;
    void (*work)(unsigned index);
    pthread_barrier_t start;
};

struct member {
    struct team *team;
    unsigned index;
    pthread_t thread;
};

__attribute__((unused)) static void *member_life(void *argument) {
    struct member *const member = argument;
    if (member->team->pinned) pin(member->index);
    pthread_barrier_wait(&member->team->start);
    member->team->work(member->index);
    return NULL;
}

// Runs `work(0)` to `work(threads - 1)`, each in a thread of its own, started together; prints the time as the phase `kernel`.
__attribute__((unused)) static void run_together(unsigned threads, int pinned, void (*work)(unsigned)) {
    static struct member members[MAX_THREADS];
    struct team team = {.threads = threads, .pinned = pinned, .work = work};
    pthread_barrier_init(&team.start, NULL, threads + 1);
    for (unsigned i = 0; i < threads; ++i) {
        members[i].team = &team;
        members[i].index = i;
        const int error = pthread_create(&members[i].thread, NULL, member_life, &members[i]);
        if (error != 0) cannot("pthread_create", error);
    }
    pthread_barrier_wait(&team.start);
    const double start = seconds();
    for (unsigned i = 0; i < threads; ++i) pthread_join(members[i].thread, NULL);
    fprintf(stderr, "kernel: %.6f\n", seconds() - start);
    pthread_barrier_destroy(&team.start);
}

#endif
