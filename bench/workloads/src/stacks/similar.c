/* A similarity search, modelled on ferret: the candidates of each query lie in a function's frame of 618 KB.
 *
 *   similar [QUERIES]     1000 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define KEEP __attribute__((noinline))

enum { THINGS = 4096, FEATURES = 16, CANDIDATES = 618000 / 16, BEST = 10 };

struct candidate {
    float distance;
    uint32_t thing, part[2];
};

static float features[THINGS][FEATURES];

static uint64_t mix(uint64_t value) {
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
    value = (value ^ value >> 27) * 0x94d049bb133111ebu;
    return value ^ value >> 31;
}

static float distance(const float *a, const float *b) {
    float sum = 0;
    for (int at = 0; at < FEATURES; at++) sum += (a[at] - b[at]) * (a[at] - b[at]);
    return sum;
}

/* Restores the heap order, with the largest distance at the top. */
KEEP static void sift(struct candidate *heap, unsigned at, unsigned count) {
    for (unsigned below; (below = 2 * at + 1) < count; at = below) {
        if (below + 1 < count && heap[below + 1].distance > heap[below].distance) below++;
        if (heap[below].distance <= heap[at].distance) return;
        struct candidate held = heap[at];
        heap[at] = heap[below];
        heap[below] = held;
    }
}

/* Finds the nearest things of a query: first all candidates, then a heap of the best ones. */
KEEP static uint64_t query(const float *wanted) {
    struct candidate candidates[CANDIDATES];
    unsigned count = 0;
    for (uint32_t thing = 0; thing < THINGS; thing++) {
        float found = distance(wanted, features[thing]);
        /* Each thing has parts, which are separate candidates. */
        for (uint32_t part = 0; part < 9; part++)
            candidates[count++] = (struct candidate){found + (float)(part * 7 % 9), thing, {part, 0}};
    }
    for (unsigned at = BEST / 2; at-- > 0;) sift(candidates, at, BEST);
    for (unsigned at = BEST; at < count; at++)
        if (candidates[at].distance < candidates[0].distance) {
            candidates[0] = candidates[at];
            sift(candidates, 0, BEST);
        }
    uint64_t sum = 0;
    for (unsigned at = 0; at < BEST; at++) sum += mix(candidates[at].thing * 16 + candidates[at].part[0] + 1);
    return sum;
}

int main(int count, char **words) {
    long queries = count > 1 ? atol(words[1]) : 1000;
    for (uint32_t thing = 0; thing < THINGS; thing++)
        for (uint32_t at = 0; at < FEATURES; at++)
            features[thing][at] = (float)(mix(thing * FEATURES + at + 1) & 0xffff) / 65536;
    uint64_t sum = 0;
    for (long at = 0; at < queries; at++) {
        float wanted[FEATURES];
        for (int feature = 0; feature < FEATURES; feature++)
            wanted[feature] = (float)(mix((uint64_t)at * 977 + (uint64_t)feature) & 0xffff) / 65536;
        sum += query(wanted);
    }
    printf("%016llx\n", (unsigned long long)sum);
    return 0;
}
