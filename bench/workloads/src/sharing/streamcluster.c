// Like streamcluster: the gain of opening a centre among points, of which each thread computes a
// part.
//
// After the description of the PARSEC program of this name. Its threads keep partial costs in one
// array with elements a line of 32 bytes apart; with lines of 64, two threads share one. Only this
// kernel is implemented: each round tries a candidate; a point nearer to it than to its centre adds
// the difference to its thread's gain. The candidate is opened if all gains together exceed its
// price. Numbers are integers, so the order of sums does not matter.

#define _GNU_SOURCE
#include "threads.h"

static const char *const program = "streamcluster";
static const char *const usage_text =
    "Usage: streamcluster [OPTIONS]\n"
    "  --points N      in total (100000)\n"
    "  --rounds N      candidates tried (100)\n"
    "  --padded        give each thread's gain two lines of its own\n";

#define DIMENSIONS 4
#define ASSUMED_LINE 32

typedef struct {
    int at[DIMENSIONS];
    uint64_t cost;
} point;

static struct {
    uint64_t points, rounds, padded;
} asked = {.points = 100000, .rounds = 100};

static const struct option options[] = {
    {.name = "--points", .value = &asked.points, .least = 1, .most = 100000000},
    {.name = "--rounds", .value = &asked.rounds, .least = 1, .most = 1000000},
    {.name = "--padded", .value = &asked.padded},
    {.name = NULL},
};

static char *array;
static point *points;
static pthread_barrier_t round_end;
static uint64_t opened, price;

typedef struct {
    uint64_t gain;
    uint64_t nearer;
} gains;

static gains *element(unsigned index) {
    return (gains *)(array + index * (asked.padded ? APART : ASSUMED_LINE));
}

static uint64_t distance(const point *a, const point *b) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < DIMENSIONS; ++i) {
        const int64_t apart = (int64_t)a->at[i] - b->at[i];
        sum += (uint64_t)(apart * apart);
    }
    return sum;
}

__attribute__((noinline)) static void gain_of(gains *own, const point *candidate, uint64_t first, uint64_t last) {
    own->gain = own->nearer = 0;
    for (uint64_t i = first; i < last; ++i) {
        const uint64_t cost = distance(&points[i], candidate);
        if (cost >= points[i].cost) continue;
        own->gain += points[i].cost - cost;
        ++own->nearer;
    }
}

static uint64_t total(void) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < common.threads; ++i) sum += element(i)->gain;
    return sum;
}

static void work(unsigned index) {
    const uint64_t share = asked.points / common.threads;
    const uint64_t first = index * share, last = index + 1 == common.threads ? asked.points : first + share;
    for (uint64_t round = 0; round < asked.rounds; ++round) {
        const point candidate = points[mix(round + 1) % asked.points];
        gain_of(element(index), &candidate, first, last);
        did(index, last - first);
        pthread_barrier_wait(&round_end);
        if (total() > price) {
            for (uint64_t i = first; i < last; ++i) {
                const uint64_t cost = distance(&points[i], &candidate);
                if (cost < points[i].cost) points[i].cost = cost;
            }
            if (index == 0) ++opened;
        }
        pthread_barrier_wait(&round_end);
    }
}

static void draw_points(void) {
    for (uint64_t i = 0; i < asked.points; ++i) {
        for (unsigned d = 0; d < DIMENSIONS; ++d) points[i].at[d] = (int)(mix(i * DIMENSIONS + d + 1) & 0x3ff);
    }
    for (uint64_t i = 0; i < asked.points; ++i) points[i].cost = distance(&points[i], &points[0]);
    price = asked.points * 1024;
    opened = 1;
}

static uint64_t cost_of_all(void) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < asked.points; ++i) sum += points[i].cost;
    return sum;
}

int main(int argc, char **argv) {
    parse(argc, argv, options);
    points = malloc(asked.points * sizeof(point));
    if (points == NULL) cannot("no memory for the points", ENOMEM);
    array = lines(MAX_THREADS * APART, 0);
    draw_points();
    pthread_barrier_init(&round_end, NULL, (unsigned)common.threads);
    run_together(work);
    const uint64_t cost = cost_of_all(), centres = opened;

    // The same computation by one thread.
    draw_points();
    for (uint64_t round = 0; round < asked.rounds; ++round) {
        const point candidate = points[mix(round + 1) % asked.points];
        gains all;
        gain_of(&all, &candidate, 0, asked.points);
        if (all.gain <= price) continue;
        ++opened;
        for (uint64_t i = 0; i < asked.points; ++i) {
            const uint64_t other = distance(&points[i], &candidate);
            if (other < points[i].cost) points[i].cost = other;
        }
    }
    expect("the number of centres", centres, opened);
    expect("the cost", cost, cost_of_all());
    printf("centres: %llu\ncost: %llu\n", (unsigned long long)centres, (unsigned long long)cost);
    conclude(mix(mix(cost) ^ centres));
}
