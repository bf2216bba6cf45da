// Prints a name, an address and a size for each of its variables, heap blocks and stacks, one per line.
// Then it waits.
//
//   program         variables, blocks, stacks
//   program NAME    also starts a thread that runs the function NAME until the end

#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

struct inner {
    int x, y;
};

struct slot {
    long hits;
    struct inner at;
    unsigned low : 3, high : 5;
    char name[12];
    union {
        long whole;
        double real;
    } either;
    int (*call)(int);
    const char *const *texts;
    struct {
        short first, second;
    };
    volatile uint64_t counts[2][3];
    struct slot *next;
};

typedef struct {
    long sum;
    long square;
} partial;

struct worker {
    int number;
    partial *own;
};

// Its members violate the alignment of their types, and one of them crosses a cache line.
struct tight {
    char before[60];
    unsigned long first;
    struct inner second;
} __attribute__((packed));

struct packet {
    long length;
    long words[];
};

struct slot slots[4] __attribute__((aligned(64)));
struct tight tight __attribute__((aligned(64)));
partial together __attribute__((aligned(64))) = {1, 2};
long table[8][2] __attribute__((aligned(64)));
// Three variables on one cache line.
#ifdef __clang__
#define ON_LINE section("line"), used
#else
#define ON_LINE section("line"), used, no_reorder
#endif
volatile long counter __attribute__((aligned(64), ON_LINE)) = 1;
static int flag __attribute__((ON_LINE)) = 2;
struct inner corner __attribute__((ON_LINE)) = {3, 4};
static partial *sums;
__thread long own_count = 5;
static __thread struct inner own_place;

#define REPORT(name, address, bytes) printf("%s %p %zu\n", name, (void *)(address), (size_t)(bytes))
#define MEMBER(type, member) \
    printf("%s.%s 0x%zx %zu\n", #type, #member, offsetof(type, member), sizeof(((type *)0)->member))

static int *of_function(void) {
    static int calls;
    ++calls;
    return &calls;
}

static void block(const char *name, void *start) { REPORT(name, start, malloc_usable_size(start)); }

// Allocates blocks of many sizes and frees some of them.
static void blocks(const char *name, unsigned seed, int count, size_t most) {
    void **kept = malloc((size_t)count * sizeof *kept);
    for (int i = 0; i < count; ++i) {
        seed = seed * 1103515245u + 12345u;
        kept[i] = malloc(1 + (seed >> 8) % most);
    }
    for (int i = 0; i < count; i += 3) free(kept[i]), kept[i] = NULL;
    for (int i = 0; i < count; ++i)
        if (kept[i] != NULL && (i % (1 + count / 100) == 0 || i > count - 20)) block(name, kept[i]);
    block(name, kept);
}

static pthread_barrier_t all;

static void *thread_life(void *argument) {
    const long index = (long)argument;
    long on_stack = index;
    static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&turn);
    printf("thread %p %ld\n", (void *)&on_stack, syscall(SYS_gettid));
    REPORT("own_count", &own_count, sizeof own_count);
    // The second thread needs more than one heap.
    blocks("in_thread", (unsigned)index, 2000, index == 1 ? 100000 : 1000);
    pthread_mutex_unlock(&turn);
    pthread_barrier_wait(&all);
    pause();
    return &on_stack;
}

static void on_own_stack(void) {
    long on_stack = 1;
    REPORT("coroutine", &on_stack, sizeof on_stack);
    pthread_barrier_wait(&all);
    for (;;) pause();
}

// Runs on a stack that is not the thread's own and has a guard below it.
static void *coroutine_life(void *argument) {
    enum { BYTES = 1 << 18, GUARD = 1 << 16 };
    static ucontext_t own, other;
    char *const mapped = mmap(0, GUARD + BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(mapped + GUARD, BYTES, PROT_READ | PROT_WRITE);
    getcontext(&other);
    other.uc_stack.ss_sp = mapped + GUARD;
    // A later mapping may be merged with this one, so part of it stays unused.
    other.uc_stack.ss_size = BYTES - GUARD;
    makecontext(&other, on_own_stack, 0);
    swapcontext(&own, &other);
    return argument;
}

static volatile int go_on = 1, ready;

__attribute__((noinline)) static void by_pointer(partial *const mine) {
    ready = 1;
    while (go_on) *(volatile long *)&mine->sum += 1;
}

static inline __attribute__((always_inline)) void step(struct worker *worker) {
    partial *volatile *const where = &worker->own;
    *(volatile long *)&(*where)->square += worker->number;
}

__attribute__((noinline)) static void through_worker(struct worker *worker) {
    ready = 1;
    while (go_on) step(worker);
}

__attribute__((noinline)) static void by_index(unsigned index) {
    ready = 1;
    while (go_on) *(volatile long *)&sums[index].sum += 1;
}

__attribute__((noinline)) static void by_number(volatile uint64_t *numbers) {
    ready = 1;
    while (go_on) numbers[1] += 1;
}

__attribute__((noinline)) static void by_packet(volatile struct packet *message) {
    ready = 1;
    while (go_on) message->words[3] += message->length;
}

__attribute__((noinline)) static void on_stack(void) {
    volatile partial here[3] = {{1, 2}, {3, 4}, {5, 6}};
    REPORT("here", here, sizeof here);
    fflush(stdout);
    ready = 1;
    while (go_on) here[1].square += 1;
}

static void *busy_life(void *which) {
    const char *const name = which;
    if (strcmp(name, "by_pointer") == 0) by_pointer(&sums[2]);
    if (strcmp(name, "by_index") == 0) by_index(1);
    if (strcmp(name, "on_stack") == 0) on_stack();
    if (strcmp(name, "by_number") == 0) {
        uint64_t *const numbers = calloc(6, sizeof *numbers);
        block("numbers", numbers);
        fflush(stdout);
        by_number(numbers);
    }
    if (strcmp(name, "by_packet") == 0) {
        struct packet *const message = calloc(1, sizeof *message + 10 * sizeof(long));
        block("message", message);
        fflush(stdout);
        by_packet(message);
    }
    if (strcmp(name, "through_worker") == 0) {
        struct worker *const worker = malloc(sizeof *worker);
        *worker = (struct worker){.number = 3, .own = sums + 1};
        through_worker(worker);
    }
    return NULL;
}

int main(int argc, char **argv) {
    REPORT("slots", slots, sizeof slots);
    MEMBER(struct slot, hits);
    MEMBER(struct slot, at);
    MEMBER(struct slot, name);
    MEMBER(struct slot, either);
    MEMBER(struct slot, call);
    MEMBER(struct slot, texts);
    MEMBER(struct slot, first);
    MEMBER(struct slot, second);
    MEMBER(struct slot, counts);
    MEMBER(struct slot, next);
    REPORT("tight", &tight, sizeof tight);
    REPORT("together", &together, sizeof together);
    REPORT("table", table, sizeof table);
    REPORT("counter", &counter, sizeof counter);
    REPORT("flag", &flag, sizeof flag);
    REPORT("corner", &corner, sizeof corner);
    REPORT("calls", of_function(), sizeof(int));
    REPORT("main_own_count", &own_count, sizeof own_count);
    REPORT("own_place", &own_place, sizeof own_place);

    sums = calloc(4, sizeof *sums);
    block("sums", sums);
    blocks("in_main", 7, 3000, 5000);
    block("mapped", malloc(1 << 20));
    block("mapped", malloc(3 << 20));
    block("mapped", aligned_alloc(4096, 1 << 20));
    block("mapped", aligned_alloc(64, 1 << 20));
    REPORT("plain", mmap(0, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 1 << 16);
    int on_stack = 0;
    REPORT("main_stack", &on_stack, sizeof on_stack);
#ifdef LIBRARY
    void *const library = dlopen(LIBRARY, RTLD_NOW);
    REPORT("shared_table", library == NULL ? NULL : dlsym(library, "shared_table"), 5 * 2 * sizeof(int));
#endif

    void *const freed = malloc(50000);
    block("behind", malloc(100));
    REPORT("freed", freed, 50000);
    free(freed);

    pthread_barrier_init(&all, NULL, 5);
    pthread_t thread;
    for (long i = 0; i < 3; ++i) pthread_create(&thread, NULL, thread_life, (void *)i);
    pthread_create(&thread, NULL, coroutine_life, NULL);
    pthread_barrier_wait(&all);
    if (argc > 1) pthread_create(&thread, NULL, busy_life, argv[1]);
    while (argc > 1 && !ready) usleep(1000);
    printf("end 0x0 0\n");
    fflush(stdout);
    getchar();
    _exit(0);
}
