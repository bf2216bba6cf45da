/* Programs that use parts of their memory, for .ci/tour-sparse.
 *   sparse NAME [all]    with `all`, touches every page
 * Prints its time in microseconds and its peak of resident memory in KiB. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KIB (1L << 10)
#define MIB (1L << 20)

static int all;

static char *map(long bytes) {
    char *at = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) perror("mmap"), exit(2);
    return at;
}

static void touch(char *at, long bytes, long step) {
    for (long i = 0; i < bytes; i += all ? 4 * KIB : step) at[i] = 1;
}

static void once(void) { touch(map(1024 * MIB), 1024 * MIB, 2 * MIB); }

static void again(void) {
    for (int i = 0; i < (all ? 400 : 4000); i++) {
        char *at = map(2 * MIB);
        touch(at, 2 * MIB, MIB);
        munmap(at, 2 * MIB);
    }
}

static void discard(void) {
    char *at = map(64 * MIB);
    for (int i = 0; i < (all ? 15 : 30); i++) touch(at, 64 * MIB, 64 * KIB), madvise(at, 64 * MIB, MADV_DONTNEED);
}

static void blocks(void) {
    static char *block[200];
    for (int round = 0; round < (all ? 30 : 60); round++) {
        for (int i = 0; i < 200; i++) block[i] = malloc(200 * KIB), touch(block[i], 200 * KIB, 100 * KIB);
        for (int i = 0; i < 200; i++) free(block[i]);
    }
}

static void grow(void) {
    for (int round = 0; round < 20; round++) {
        char *at = 0;
        for (long bytes = 64 * KIB; bytes < 24 * MIB; bytes += 64 * KIB) {
            at = realloc(at, bytes);
            touch(at + bytes - 64 * KIB, 64 * KIB, 64 * KIB);
        }
        free(at);
    }
}

static void children(void) {
    for (int i = 0; i < 1000; i++) {
        pid_t child = vfork();
        if (child == 0) execl("/bin/true", "true", (char *)0), _exit(1);
        waitpid(child, 0, 0);
    }
}

/* ru_maxrss would include the memory of the process before exec. */
static long peak_kib(void) {
    char line[200];
    long kib = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status)) sscanf(line, "VmHWM: %ld", &kib);
    return kib;
}

int main(int count, char **words) {
    static const struct { const char *name; void (*act)(void); } programs[] = {
        {"once", once}, {"again", again}, {"discard", discard}, {"blocks", blocks}, {"grow", grow}, {"children", children}};
    struct timespec from, to;
    all = count > 2;
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (unsigned i = 0; i < sizeof programs / sizeof *programs; i++)
        if (count > 1 && !strcmp(words[1], programs[i].name)) programs[i].act();
    clock_gettime(CLOCK_MONOTONIC, &to);
    printf("%ld %ld\n", (to.tv_sec - from.tv_sec) * 1000000 + (to.tv_nsec - from.tv_nsec) / 1000, peak_kib());
    return 0;
}
