/* Grows the heap (sbrk(2)), lowers it to a random break or to its start, and protects its last page in between. A copy has
 * the expected bytes: those of remaining pages, and zeroes in new ones.
 *   heap [SEED] [locked]    with `locked`, calls mlockall(2) when the heap is at its start again
 * Prints the numbers of refused calls and of wrong bytes; natively both are 0. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, MOST = 24 << 20, STEPS = 600 };

static char *start, *copy;
static long size, refused, wrong;
static unsigned seed;

static long below(long bound) { return rand_r(&seed) % bound; }
static long pages_up(long bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

static void compare(long from, long to) {
    for (long i = from; i < to && memcmp(start + from, copy + from, to - from); i++) wrong += start[i] != copy[i];
}

/* Sets the break and writes nothing. The pages that the heap loses become zero in the copy. */
static void set(long bytes) {
    if (sbrk(bytes - size) == (void *)-1) {
        refused++;
        return;
    }
    if (pages_up(bytes) < pages_up(size)) memset(copy + pages_up(bytes), 0, pages_up(size) - pages_up(bytes));
    size = bytes;
}

static void fill(long from, long to) {
    int value = 1 + below(100);
    memset(start + from, value, to - from);
    memset(copy + from, value, to - from);
}

static void grow(void) {
    static const long most[] = {300, 3 * PAGE, 64 << 10, 1 << 20, 9 << 20};
    long old = size, more = 1 + below(most[below(5)]);
    if (old + more > MOST) return;
    set(old + more);
    if (size == old) return;
    compare(old, size);
    fill(old, size);
}

/* Lowers the break into a protected page and raises it again. */
static void protect(void) {
    long old = size, page = (size - 1) / PAGE - below(5);
    if (size == 0 || page < 0) return;
    page *= PAGE;
    int readable = below(2);
    refused += mprotect(start + page, PAGE, readable ? PROT_READ : PROT_NONE) != 0;
    long inside = old - page < PAGE ? old - page : PAGE;
    set(page + below(inside) + 1);
    if (readable) compare(page, size);
    set(old);
    compare(page + PAGE, old);
    refused += mprotect(start + page, PAGE, PROT_READ | PROT_WRITE) != 0;
    compare(page, old);
    fill(page, old);
}

int main(int count, char **words) {
    seed = count > 1 ? atoi(words[1]) : 1;
    copy = mmap(0, MOST + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    start = sbrk(0);
    refused += (uintptr_t)start % PAGE && sbrk(PAGE - (uintptr_t)start % PAGE) == (void *)-1;
    start = sbrk(0);
    for (int step = 0; step < STEPS; step++) {
        switch (below(8)) {
            case 0: set(0); break;
            case 1: case 2: set(below(size + 1)); break;
            case 3: protect(); break;
            default: grow();
        }
        if (count > 2 && step == STEPS / 2) {
            set(0);
            mlockall(MCL_CURRENT);
            munlockall();
        }
    }
    compare(0, size);
    printf("%ld refused, %ld wrong\n", refused, wrong);
    return 0;
}
