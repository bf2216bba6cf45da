// The common code of the programs for false sharing: threads that start together, options, times,
// progress, exit codes.
//
// They are C or C++, so that the same source can be built at each level of optimisation: a value
// that the compiler keeps in a register is not shared. Like the other programs: phases on stderr,
// checksum on stdout, exit 1 if the result is wrong, 2 if it cannot run. Also on stderr, and not
// phases:
//
//   1.98 processors at work            over the kernel; below the number of threads, threads waited
//                                      for a processor
//   all threads at work since 5123.4   when the last thread began, by CLOCK_MONOTONIC in seconds
//   at 5123.456789: 1200000 done       with --progress: CLOCK_MONOTONIC in seconds, operations of
//                                      all threads so far; printed first just before the threads
//                                      begin, last when they have ended

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

// The size of a cache line; two of them, since processors fetch lines in pairs.
#define LINE 64
#define APART (2 * LINE)
#define MAX_THREADS 64

// Set by each program: in C by a definition later on, in C++ before this file is included.
#ifndef __cplusplus
static const char *const program;
static const char *const usage_text;
#endif

// The options of every program, and the operations of each thread, with --progress: two lines
// apart, on separate pages, since a thread that accesses a page with repaired bytes is delayed.
static struct {
    uint64_t threads, pinned, progress_ms;
    char *progress;
} common = {2, 0, 0, NULL};

__attribute__((noreturn)) static void usage(const char *argument, const char *why) {
    fprintf(stderr,
            "%s: %s: %s\n%s"
            "  --threads N     1 to 64 (2)\n"
            "  --pin           bind each thread to a CPU\n"
            "  --progress MS   print the progress every MS milliseconds\n",
            program, argument, why, usage_text);
    exit(2);
}

__attribute__((noreturn)) static void cannot(const char *what, int error) {
    fprintf(stderr, "%s: %s: %s\n", program, what, strerror(error));
    exit(2);
}

static double seconds_of(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static double seconds(void) { return seconds_of(CLOCK_MONOTONIC); }

// splitmix64: the output for a counter.
static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

static void expect(const char *what, uint64_t found, uint64_t expected) {
    if (found == expected) return;
    fprintf(stderr, "%s: wrong result: %s is %llu, expected %llu\n", program, what, (unsigned long long)found,
            (unsigned long long)expected);
    exit(1);
}

static void conclude(uint64_t checksum) {
    printf("checksum: %016llx\n", (unsigned long long)checksum);
}

// An option and the destination of its value: a number, or the index of a word in a list that ends
// with NULL. Without `most` and words it is a flag, and its value becomes 1.
struct option {
    const char *name;
    uint64_t *value;
    uint64_t least, most, step; // a number is a multiple of `step`, if that is not 0
    const char *const *words;
};

static uint64_t number(const struct option *option, const char *text) {
    char *end = NULL;
    errno = 0;
    const uint64_t value = strtoull(text, &end, 10);
    if (errno != 0 || *end != '\0' || text[0] < '0' || text[0] > '9') usage(option->name, "not a number");
    if (value < option->least || value > option->most) usage(option->name, "the number is out of range");
    if (option->step > 0 && value % option->step != 0) usage(option->name, "the number is not a multiple of the step");
    return value;
}

static uint64_t choice(const struct option *option, const char *word) {
    uint64_t at = 0;
    while (option->words[at] != NULL && strcmp(option->words[at], word) != 0) ++at;
    if (option->words[at] == NULL) usage(option->name, "unknown word");
    return at;
}

static const struct option *named(const char *name, const struct option *options) {
    while (options->name != NULL && strcmp(options->name, name) != 0) ++options;
    return options->name == NULL ? NULL : options;
}

// Parses the arguments: the program's own options, the last of which has no name, and the common
// ones.
static void parse(int argc, char **argv, const struct option *own) {
    static const struct option of_all[] = {
        {"--threads", &common.threads, 1, MAX_THREADS, 0, NULL},
        {"--pin", &common.pinned, 0, 0, 0, NULL},
        {"--progress", &common.progress_ms, 1, 60000, 0, NULL},
        {NULL, NULL, 0, 0, 0, NULL},
    };
    for (int i = 1; i < argc; ++i) {
        const struct option *option = named(argv[i], own);
        if (option == NULL) option = named(argv[i], of_all);
        if (option == NULL) usage(argv[i], "unknown option");
        if (option->most == 0 && option->words == NULL) {
            *option->value = 1;
            continue;
        }
        if (++i == argc) usage(option->name, "the value is missing");
        *option->value = option->words == NULL ? number(option, argv[i]) : choice(option, argv[i]);
    }
}

// Zeroed memory that begins `shift` bytes after the start of a line; never freed.
static void *lines(size_t bytes, size_t shift) {
    const size_t all = (bytes + shift + 2 * APART - 1) / APART * APART;
    char *const start = (char *)aligned_alloc(APART, all);
    if (start == NULL) cannot("no memory", ENOMEM);
    memset(start, 0, all);
    return start + shift;
}

// Binds the calling thread to the `index`-th CPU of its affinity mask, counted cyclically.
static void pin(unsigned index) {
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

#define PAGE 4096
#define PROGRESS_BYTES ((MAX_THREADS * APART + PAGE - 1) / PAGE * PAGE)

static uint64_t *done_by(unsigned index) { return (uint64_t *)(common.progress + index * APART); }

// Adds operations of thread `index`. Called between loops, with values that no thread writes.
__attribute__((always_inline)) static inline void did(unsigned index, uint64_t operations) {
    if (common.progress != NULL) __atomic_store_n(done_by(index), *done_by(index) + operations, __ATOMIC_RELAXED);
}

static void print_progress(void) {
    uint64_t done = 0;
    for (unsigned i = 0; i < common.threads; ++i) done += __atomic_load_n(done_by(i), __ATOMIC_RELAXED);
    fprintf(stderr, "at %.6f: %llu done\n", seconds(), (unsigned long long)done);
}

struct team {
    void (*work)(unsigned index);
    pthread_barrier_t start;
    unsigned ended;
};

struct member {
    struct team *team;
    unsigned index;
    pthread_t thread;
    double began;
};

static void *member_life(void *argument) {
    struct member *const member = (struct member *)argument;
    if (common.pinned) pin(member->index);
    pthread_barrier_wait(&member->team->start);
    member->began = seconds();
    member->team->work(member->index);
    __atomic_add_fetch(&member->team->ended, 1, __ATOMIC_RELEASE);
    return NULL;
}

// Prints the progress until all threads have ended, which is checked at each interval.
static void follow(const struct team *team) {
    const struct timespec step = {(time_t)(common.progress_ms / 1000), (long)(common.progress_ms % 1000) * 1000000};
    // The end is checked before the line is printed, so the last line contains all work.
    for (int are_done = 0; !are_done;) {
        nanosleep(&step, NULL);
        are_done = __atomic_load_n(&team->ended, __ATOMIC_ACQUIRE) == common.threads;
        print_progress();
    }
}

// Runs `work` for each index below the number of threads, each in its own thread, started together.
// Prints the time as the phase `kernel`.
static void run_together(void (*work)(unsigned index)) {
    static struct member members[MAX_THREADS];
    struct team team;
    team.work = work;
    team.ended = 0;
    if (common.progress_ms > 0) {
        common.progress = (char *)aligned_alloc(PAGE, PROGRESS_BYTES);
        if (common.progress == NULL) cannot("no memory for the progress", ENOMEM);
        memset(common.progress, 0, PROGRESS_BYTES);
    }
    pthread_barrier_init(&team.start, NULL, (unsigned)common.threads + 1);
    for (unsigned i = 0; i < common.threads; ++i) {
        members[i].team = &team;
        members[i].index = i;
        const int error = pthread_create(&members[i].thread, NULL, member_life, &members[i]);
        if (error != 0) cannot("pthread_create", error);
    }
    // Before the barrier: after it, threads may already have made progress.
    if (common.progress != NULL) print_progress();
    pthread_barrier_wait(&team.start);
    const double start = seconds(), worked = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    if (common.progress != NULL) follow(&team);
    for (unsigned i = 0; i < common.threads; ++i) pthread_join(members[i].thread, NULL);
    const double took = seconds() - start;
    fprintf(stderr, "kernel: %.6f\n", took);
    fprintf(stderr, "%.2f processors at work\n", (seconds_of(CLOCK_PROCESS_CPUTIME_ID) - worked) / took);
    double last = 0;
    for (unsigned i = 0; i < common.threads; ++i) last = members[i].began > last ? members[i].began : last;
    fprintf(stderr, "all threads at work since %.6f\n", last);
    pthread_barrier_destroy(&team.start);
}

#endif
