// Counters: each thread adds to an element of one array that begins with a line ("synthetic" of
// Cachekata, section 6.1).
//
//     line 0                              line 2
//     | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 |   ...         own: one line for eight threads
//     | 0 |                               | 1 | ...   padded: two lines per thread
//
// The worst case of false sharing, and patterns that look like it but are not:
//
//     own        thread i adds to element i                  false sharing
//     padded     the same, elements two lines apart          none
//     same       all add to element 0, atomically            true sharing
//     read       all read the line, none writes              none
//     pair       each of two threads waits for a word that the other writes
//     bits       thread i flips bit i of one byte, atomically: one byte cannot be separated
//     turns      like own, but one thread after the other    negligible
//
// With --save the kernel reads the elements periodically, wherever a repair has moved them.
//
// The counter is volatile: at every level of optimisation each addition is a load and a store, or
// one `add`.

#define _GNU_SOURCE
#include "threads.h"

#include <sys/mman.h>
#include <unistd.h>

static const char *const program = "counters";
static const char *const usage_text =
    "Usage: counters [OPTIONS]\n"
    "  --iterations N  per thread (100000000)\n"
    "  --pattern P     own, padded, same, read, pair, bits or turns (own); bits for 8 threads at most, pair for 2\n"
    "  --atomic        use `lock add` with own, padded and turns, too\n"
    "  --globals       put the array in a global, not on the heap\n"
    "  --reenter N     leave and re-enter the loop every N iterations\n"
    "  --save N        write the element to a memfd every N iterations\n";

enum pattern { OWN, PADDED, SAME, READ, PAIR, BITS, TURNS };
static const char *const patterns[] = {"own", "padded", "same", "read", "pair", "bits", "turns", NULL};

#define WORD sizeof(uint64_t)

static char global_array[MAX_THREADS * APART] __attribute__((aligned(APART)));

static struct {
    uint64_t pattern, iterations, reenter, save, atomic, globals;
} asked = {.pattern = OWN, .iterations = 100000000};

static const struct option options[] = {
    {.name = "--pattern", .value = &asked.pattern, .words = patterns},
    {.name = "--iterations", .value = &asked.iterations, .least = 1, .most = (uint64_t)1 << 48},
    {.name = "--reenter", .value = &asked.reenter, .least = 1, .most = (uint64_t)1 << 48},
    {.name = "--save", .value = &asked.save, .least = 1, .most = (uint64_t)1 << 48},
    {.name = "--atomic", .value = &asked.atomic},
    {.name = "--globals", .value = &asked.globals},
    {.name = NULL},
};

static char *array;
static int file; // of --save: a word per thread

// The result of each thread of `read`, far from the others.
static struct {
    uint64_t sum;
    char rest[APART - WORD];
} found[MAX_THREADS] __attribute__((aligned(APART)));

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

static uint64_t *element(unsigned index) {
    return (uint64_t *)(array + index * (asked.pattern == PADDED ? APART : WORD));
}

__attribute__((noinline)) static void add(volatile uint64_t *at, uint64_t times) {
    for (uint64_t i = 0; i < times; ++i) *at = *at + 1;
}

__attribute__((noinline)) static void add_locked(uint64_t *at, uint64_t times) {
    for (uint64_t i = 0; i < times; ++i) __atomic_fetch_add(at, 1, __ATOMIC_RELAXED);
}

__attribute__((noinline)) static void flip_bit(unsigned char *at, unsigned bit, uint64_t times) {
    const unsigned char mask = (unsigned char)(1u << bit);
    for (uint64_t i = 0; i < times; ++i) __atomic_fetch_xor(at, mask, __ATOMIC_RELAXED);
}

__attribute__((noinline)) static uint64_t read_all(const volatile uint64_t *from, uint64_t times) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < times; ++i) sum += from[i % (LINE / WORD)];
    return sum;
}

// Increments a word whenever it is even, or odd; the other thread increments it otherwise.
__attribute__((noinline)) static void hand_over(uint64_t *word, unsigned side, uint64_t times) {
    for (uint64_t i = 0; i < times; ++i) {
        // On one CPU, let the other thread run.
        for (unsigned tries = 1; __atomic_load_n(word, __ATOMIC_ACQUIRE) % 2 != side; ++tries)
            if (tries % 256 == 0) sched_yield();
        __atomic_store_n(word, *word + 1, __ATOMIC_RELEASE);
    }
}

static void some(unsigned index, uint64_t times) {
    switch (asked.pattern) {
    case SAME: add_locked(element(0), times); break;
    case READ: found[index].sum += read_all(element(0), times); break;
    case PAIR: hand_over(element(0), index, times); break;
    case BITS: flip_bit((unsigned char *)array, index, times); break;
    default:
        if (asked.atomic) add_locked(element(index), times);
        else add(element(index), times);
    }
}

static void work(unsigned index) {
    if (asked.pattern == TURNS) pthread_mutex_lock(&turn);
    const uint64_t piece = asked.save > 0 ? asked.save : asked.reenter;
    for (uint64_t left = asked.iterations; left > 0;) {
        const uint64_t times = piece > 0 && piece < left ? piece : left;
        some(index, times);
        did(index, times);
        left -= times;
        if (asked.save > 0 && pwrite(file, element(index), WORD, (off_t)(index * WORD)) != (ssize_t)WORD) cannot("pwrite", errno);
    }
    if (asked.pattern == TURNS) pthread_mutex_unlock(&turn);
}

// The sum that `read` computes: element i is i + 1.
static uint64_t line_sum(uint64_t times) {
    const uint64_t words = LINE / WORD, rest = times % words;
    return times / words * (words * (words + 1) / 2) + rest * (rest + 1) / 2;
}

static uint64_t check(void) {
    uint64_t checksum = 0;
    for (unsigned i = 0; i < common.threads; ++i) {
        uint64_t value = *element(i), expected = asked.iterations;
        if (asked.pattern == SAME) value = *element(0), expected = asked.iterations * common.threads;
        if (asked.pattern == PAIR) value = *element(0), expected = asked.iterations * 2;
        if (asked.pattern == BITS) value = array[0] >> i & 1, expected = asked.iterations & 1;
        // Each piece starts reading at the first word.
        if (asked.pattern == READ) {
            const uint64_t pieces = asked.reenter > 0 ? asked.iterations / asked.reenter : 0;
            value = found[i].sum;
            expected = pieces * line_sum(asked.reenter) + line_sum(asked.iterations - pieces * asked.reenter);
        }
        expect("an element", value, expected);
        if (asked.save > 0) {
            uint64_t saved = 0;
            if (pread(file, &saved, WORD, (off_t)(i * WORD)) != (ssize_t)WORD) cannot("pread", errno);
            expect("what was saved", saved, asked.iterations);
        }
        checksum = mix(checksum ^ value);
    }
    return checksum;
}

int main(int argc, char **argv) {
    parse(argc, argv, options);
    if (asked.pattern == PAIR && common.threads != 2) usage("--threads", "a pair is two threads");
    if (asked.pattern == BITS && common.threads > 8) usage("--threads", "a byte has eight bits");
    if (asked.save > 0 && (asked.reenter > 0 || (asked.pattern != OWN && asked.pattern != PADDED)))
        usage("--save", "requires own or padded, and no --reenter");
    if (asked.save > 0 && (file = memfd_create("counters", MFD_CLOEXEC)) < 0) cannot("memfd_create", errno);
    array = asked.globals ? global_array : lines(sizeof global_array, 0);
    if (asked.pattern == READ)
        for (unsigned i = 0; i < LINE / WORD; ++i) *element(i) = i + 1;
    const double start = seconds();
    run_together(work);
    const double took = seconds() - start;
    const uint64_t checksum = check();
    // Formatted so that it is not parsed as a phase.
    fprintf(stderr, "%.4e operations a second\n", (double)(asked.iterations * common.threads) / took);
    conclude(checksum);
}
