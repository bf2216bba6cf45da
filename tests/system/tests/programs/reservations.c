/* Memory as virtual machines and databases map it: reserved without access, opened later. Usage: reservations WAY.
 * Each way uses 64 MiB, checks that it was zero, and returns 0 if the kernel behaves as documented. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TOTAL (64ul << 20)
#define HIGH 0x200000000000ul
#define LOW 0x600000000ul
enum { NONE = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, OPEN = MAP_PRIVATE | MAP_ANONYMOUS, RW = PROT_READ | PROT_WRITE };

static int use(char *start, unsigned long bytes) {
    for (unsigned long at = 0; at < bytes; at += 512) if (start[at]) return 1;
    memset(start, 1, bytes);
    return 0;
}

static char *reserve(unsigned long hint, unsigned long bytes) {
    char *start = mmap((void *)hint, bytes, PROT_NONE, NONE, -1, 0);
    return start == MAP_FAILED ? 0 : start;
}

/* Pieces as a JavaScript engine maps them: at random hints, trimmed to an alignment of 256 KiB. */
static int scattered(void) {
    const unsigned long piece = 256 << 10, asked = 2 * piece - 4096;
    for (unsigned long i = 0; i < TOTAL / piece; i++) {
        char *start = reserve(HIGH + i * 7919 * piece, asked);
        char *aligned = (char *)(((unsigned long)start + piece - 1) & -piece);
        if (!start || aligned > start && munmap(start, aligned - start)) return 1;
        if (start + asked > aligned + piece && munmap(aligned + piece, start + asked - aligned - piece)) return 1;
        if (mprotect(aligned, piece, RW) || use(aligned, piece)) return 1;
    }
    return 0;
}

/* One reservation, opened piece by piece. */
static int stepwise(unsigned long hint, unsigned long reserved, unsigned long piece, int by_map) {
    char *start = reserve(hint, reserved);
    if (!start || hint && start != (char *)hint) return 1;
    for (unsigned long at = 0; at < TOTAL; at += piece) {
        if (by_map ? mmap(start + at, piece, RW, OPEN | MAP_FIXED, -1, 0) != start + at : mprotect(start + at, piece, RW)) return 1;
        if (use(start + at, piece)) return 1;
    }
    return 0;
}

/* The memory is zero each time it is closed and opened again. */
static int reopened(void) {
    char *start = reserve(0, 8ul << 40);
    for (int i = 0; i < 3; i++) {
        if (mmap(start, TOTAL, RW, OPEN | MAP_FIXED, -1, 0) != start || use(start, TOTAL)) return 1;
        if (i < 2 && mmap(start, TOTAL, PROT_NONE, NONE | MAP_FIXED, -1, 0) != start) return 1;
    }
    return 0;
}

/* A hint below 32 GiB is used, with access and without: compressed pointers reach no higher. */
static int low(void) {
    char *reserved = reserve(LOW, TOTAL), *open = mmap((void *)(LOW + 2 * TOTAL), TOTAL, RW, OPEN, -1, 0);
    if (reserved != (char *)LOW || open != (char *)LOW + 2 * TOTAL) return 1;
    return mprotect(reserved, TOTAL, RW) || use(reserved, TOTAL) || use(open, TOTAL);
}

static int executable(void) {
    char *start = mmap(0, TOTAL, RW | PROT_EXEC, OPEN, -1, 0);
    return start == MAP_FAILED || use(start, TOTAL);
}

static int raw(void) {
    char *start = (char *)syscall(SYS_mmap, 0, TOTAL, RW, OPEN, -1, 0);
    return start == MAP_FAILED || use(start, TOTAL);
}

/* Disables huge pages, as some language runtimes do at their start. */
static int disabled(void) {
    if (prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)) return 1;
    char *volatile start = malloc(TOTAL);
    memset(start, 1, TOTAL);
    return start[TOTAL / 2] != 1;
}

int main(int count, char **arguments) {
    const char *way = count > 1 ? arguments[1] : "";
    if (!strcmp(way, "scattered")) return scattered();
    if (!strcmp(way, "mapped")) return stepwise(0, 8ul << 40, TOTAL, 1);
    if (!strcmp(way, "mapped-in-steps")) return stepwise(HIGH, 1ul << 30, 1 << 20, 1);
    if (!strcmp(way, "protected")) return stepwise(HIGH, 1ul << 40, 256 << 10, 0);
    if (!strcmp(way, "unhinted")) return stepwise(0, TOTAL, 256 << 10, 0);
    if (!strcmp(way, "reopened")) return reopened();
    if (!strcmp(way, "low")) return low();
    if (!strcmp(way, "executable")) return executable();
    if (!strcmp(way, "raw")) return raw();
    if (!strcmp(way, "disabled")) return disabled();
    return 2;
}
