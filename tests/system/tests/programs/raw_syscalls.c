/* Memory calls of libc, and raw system calls, on adjacent addresses. The argument selects the calls; prints the number of
 * wrong pages.
 *   hints    raw mmap(2) with hints into free parts next to libc's mappings, then many small mappings of libc
 *   holes    raw munmap(2) of parts of libc's mappings: mprotect(2) reports the hole, the next mapping there is zero
 *   shared   shmat(2) with SHM_REMAP over a reservation of libc, unmapped by libc
 *   replaced shmat(2) with SHM_REMAP over a part of memory in use
 *   keyed    pkey_mprotect(2) of a page
 *   growing  stacks that grow down (MAP_GROWSDOWN) in holes of libc's mappings, mapped by libc and by raw calls
 *   mixed    threads do all of this at random, and one of them forks */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1UL << 20)
enum { RW = PROT_READ | PROT_WRITE, PAGE = 4096, PRIVATE = MAP_PRIVATE | MAP_ANONYMOUS };

static char *mapped(long result) {
    if (result == -1) perror("mmap"), exit(2);
    return (char *)result;
}
static char *libc_map(size_t bytes) { return mapped((long)mmap(0, bytes, RW, PRIVATE, -1, 0)); }
static char *raw_map(char *at, size_t bytes, int flags) { return mapped(syscall(SYS_mmap, at, bytes, RW, PRIVATE | flags, -1, 0L)); }

static long unlike(const char *at, size_t bytes, int value) {
    long wrong = 0;
    for (size_t i = 0; i < bytes; i += PAGE) wrong += at[i] != (char)value;
    return wrong;
}
static void mark(char *at, size_t bytes, int value) {
    for (size_t i = 0; i < bytes; i += PAGE) at[i] = value;
}
/* Counts pages of fresh memory that are not zero, and marks them. */
static long take(char *at, size_t bytes, int value) {
    long wrong = unlike(at, bytes, 0);
    mark(at, bytes, value);
    return wrong;
}

static long hints(void) {
    enum { COUNT = 8, SMALL = 400 };
    char *raws[COUNT], *small[SMALL];
    long wrong = 0;
    for (int i = 0; i < COUNT; i++) {
        char *at = libc_map(3 * MIB);
        wrong += take(at, 3 * MIB, 1);
        raws[i] = raw_map(at + 3 * MIB, 256 << 10, 0);
        mark(raws[i], 256 << 10, 100 + i);
    }
    for (int i = 0; i < SMALL; i++) wrong += take(small[i] = libc_map(64 << 10), 64 << 10, i);
    for (int i = 0; i < COUNT; i++) wrong += unlike(raws[i], 256 << 10, 100 + i) + (munmap(raws[i], 256 << 10) != 0);
    for (int i = 0; i < SMALL; i++) wrong += unlike(small[i], 64 << 10, i);
    return wrong;
}

static long holes(void) {
    enum { COUNT = 32 };
    char *blocks[COUNT], *more[COUNT];
    long wrong = 0;
    for (int i = 0; i < COUNT; i++) wrong += take(blocks[i] = libc_map(6 * MIB), 6 * MIB, i + 1);
    for (int i = 0; i < COUNT; i++) syscall(SYS_munmap, blocks[i] + 2 * MIB + PAGE, i % 2 ? 64 << 10 : 2 * MIB);
    for (int i = 0; i < COUNT; i++) wrong += mprotect(blocks[i], 6 * MIB, PROT_READ) != -1 || errno != ENOMEM;
    for (int i = 0; i < COUNT; i++) mprotect(blocks[i], 2 * MIB, RW);
    for (int i = 0; i < COUNT; i++) wrong += unlike(blocks[i], 2 * MIB, i + 1);
    for (int i = 0; i < COUNT; i++) wrong += take(more[i] = libc_map(3 * MIB), 3 * MIB, 90);
    for (int i = 0; i < COUNT; i++) wrong += munmap(blocks[i], 6 * MIB) != 0;
    for (int i = 0; i < COUNT; i++) wrong += take(libc_map(6 * MIB), 6 * MIB, 80);
    for (int i = 0; i < COUNT; i++) wrong += unlike(more[i], 3 * MIB, 90);
    return wrong;
}

static long shared(void) {
    int id = shmget(IPC_PRIVATE, 4 * MIB, 0600 | IPC_CREAT);
    char *all = mapped((long)mmap(0, 64 * MIB, PROT_NONE, PRIVATE | MAP_NORESERVE, -1, 0));
    char *at = shmat(id, all + 8 * MIB, SHM_REMAP), *other = shmat(id, 0, 0);
    shmctl(id, IPC_RMID, 0);
    if (at != all + 8 * MIB || other == (char *)-1) return -1;
    mark(at, 2 * MIB, 5);
    if (!fork()) mark(at + 2 * MIB, 2 * MIB, 77), _exit(0);
    wait(0);
    long wrong = munmap(all, 64 * MIB) != 0;
    for (int i = 0; i < 16; i++) wrong += take(libc_map(4 * MIB), 4 * MIB, 3);
    return wrong + unlike(other, 2 * MIB, 5) + unlike(other + 2 * MIB, 2 * MIB, 77);
}

static long replaced(void) {
    int id = shmget(IPC_PRIVATE, MIB, 0600 | IPC_CREAT);
    char *all = libc_map(8 * MIB), *middle = all + MIB + 4 * PAGE;
    mark(all, 8 * MIB, 7);
    char *at = shmat(id, middle, SHM_REMAP), *other = shmat(id, 0, 0);
    shmctl(id, IPC_RMID, 0);
    if (at != middle || other == (char *)-1) return -1;
    long wrong = take(at, MIB, 5) + unlike(other, MIB, 5) + (shmdt(at) != 0);
    char *small = libc_map(MIB), *large = libc_map(8 * MIB);
    wrong += take(small, MIB, 3) + take(large, 8 * MIB, 3) + unlike(other, MIB, 5);
    wrong += unlike(all, middle - all, 7) + unlike(middle + MIB, all + 8 * MIB - middle - MIB, 7);
    return wrong + (munmap(all, 8 * MIB) != 0);
}

static long keyed(void) {
    int key = pkey_alloc(0, 0);
    char *all = libc_map(4 * MIB);
    mark(all, 4 * MIB, 7);
    long wrong = key < 0 ? 0 : pkey_mprotect(all + 3 * PAGE, PAGE, PROT_READ, key) != 0;
    wrong += pkey_mprotect(all + 5 * PAGE, PAGE, PROT_READ, -1) != 0;
    return wrong + unlike(all, 4 * MIB, 7) + (munmap(all + 3 * PAGE, 3 * PAGE) != 0);
}

static long growing(void) {
    enum { COUNT = 4, GROWN = 3 * MIB, SMALL = 200 };
    char *tops[COUNT], *small[SMALL];
    long wrong = 0;
    for (int i = 0; i < COUNT; i++) {
        char *hole = mapped((long)mmap(0, 16 * MIB, PROT_NONE, PRIVATE | MAP_NORESERVE, -1, 0));
        munmap(hole, 16 * MIB);
        tops[i] = hole + 16 * MIB;
        if (i % 2) raw_map(tops[i] - PAGE, PAGE, MAP_GROWSDOWN | MAP_FIXED);
        else mapped((long)mmap(tops[i] - PAGE, PAGE, RW, PRIVATE | MAP_GROWSDOWN | MAP_FIXED, -1, 0));
        for (long down = PAGE; down <= GROWN; down += PAGE) *(volatile char *)(tops[i] - down) = 100 + i;
    }
    for (int i = 0; i < SMALL; i++) wrong += take(small[i] = libc_map(200 << 10), 200 << 10, i);
    for (int i = 0; i < COUNT; i++) wrong += unlike(tops[i] - GROWN, GROWN, 100 + i);
    for (int i = 0; i < SMALL; i++) wrong += unlike(small[i], 200 << 10, i);
    return wrong;
}

struct piece { char *at; size_t bytes; int value; };

static void change(struct piece *piece, unsigned *seed, long *wrong) {
    size_t cut = (1 + rand_r(seed) % (piece->bytes / PAGE)) * PAGE, more = (1 + rand_r(seed) % 700) * PAGE;
    *wrong += unlike(piece->at, piece->bytes, piece->value);
    int how = rand_r(seed) % 4;
    if (how == 1) {
        char *moved = mapped((long)mremap(piece->at, piece->bytes, more, MREMAP_MAYMOVE));
        if (more > piece->bytes) *wrong += take(moved + piece->bytes, more - piece->bytes, piece->value);
        piece->at = moved, piece->bytes = more;
        return;
    }
    if (how != 0) cut = piece->bytes;
    if (how == 0 && rand_r(seed) % 2) syscall(SYS_munmap, piece->at, cut);
    else *wrong += munmap(piece->at, cut) != 0;
    piece->at = cut == piece->bytes ? 0 : piece->at + cut;
    piece->bytes -= cut;
}

static void *work(void *argument) {
    enum { HELD = 48, STEPS = 1500 };
    unsigned seed = (unsigned)(long)argument * 7919 + 1;
    struct piece held[HELD] = {0};
    long wrong = 0;
    char *near = 0;
    for (int step = 0; step < STEPS; step++) {
        struct piece *piece = &held[rand_r(&seed) % HELD];
        if (piece->at) {
            change(piece, &seed, &wrong);
            continue;
        }
        piece->bytes = (1 + rand_r(&seed) % (rand_r(&seed) % 4 ? 40 : 900)) * PAGE;
        piece->value = 1 + rand_r(&seed) % 100;
        if (near && rand_r(&seed) % 3 == 0) piece->at = raw_map(near + (long)(rand_r(&seed) % 1024) * PAGE, piece->bytes, 0);
        else piece->at = libc_map(piece->bytes), near = piece->at + piece->bytes;
        wrong += take(piece->at, piece->bytes, piece->value);
        if (argument || step % 300 >= 10) continue;
        pid_t child = fork();
        if (!child) {
            for (int i = 0; i < 100; i++) wrong += take(libc_map(64 << 10), 64 << 10, 9);
            for (int i = 0; i < HELD; i++) wrong += held[i].at ? unlike(held[i].at, held[i].bytes, held[i].value) : 0;
            _exit(wrong != 0);
        }
        int status;
        waitpid(child, &status, 0);
        wrong += status != 0;
    }
    return (void *)wrong;
}

static long mixed(void) {
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    long wrong = 0;
    for (long i = 0; i < THREADS; i++) pthread_create(&threads[i], 0, work, (void *)i);
    for (int i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        wrong += (long)result;
    }
    return wrong;
}

int main(int count, char **words) {
    static const struct { const char *name; long (*act)(void); } all[] = {
        {"hints", hints}, {"holes", holes}, {"shared", shared}, {"replaced", replaced},
        {"keyed", keyed}, {"growing", growing}, {"mixed", mixed}};
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
        if (count > 1 && !strcmp(words[1], all[i].name)) printf("%ld wrong\n", all[i].act());
    return 0;
}
