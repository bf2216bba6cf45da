// Linear regression: five sums of a straight line through points. Each thread adds a part.
//
// After the program of this name in the Phoenix suite, from its description and Cachekata's figure
// 4.1. Each thread keeps its sums in its element of one array, and writes them for every point:
//
//   | metadata | tid | points | num_elems | SX | SY | SXX | SYY | SXY | tid | …   64 bytes each
//                ^ malloc returns addresses about 16 bytes into a line: no element has its own line
//
// They share falsely or not by the start of the array (`--shift`), and if the loop writes the sums:
// at -O0 it does, at -O2 they stay in registers until the end.
//
// The points are drawn from a fixed seed instead of read from a file.

#define _GNU_SOURCE
#include "threads.h"

static const char *const program = "linear_regression";
static const char *const usage_text =
    "Usage: linear_regression [OPTIONS]\n"
    "  --points N      in total (50000000)\n"
    "  --rounds N      passes over the points (1)\n"
    "  --shift N       start the array N bytes into a line, a multiple of 8 up to 56 (where malloc puts it)\n"
    "  --padded        give each element two lines of its own\n";

typedef struct {
    signed char x;
    signed char y;
} POINT_T;

typedef struct {
    pthread_t tid;
    POINT_T *points;
    int num_elems;
    long long SX;
    long long SY;
    long long SXX;
    long long SYY;
    long long SXY;
} lreg_args;

_Static_assert(sizeof(lreg_args) == LINE, "the structure of figure 4.1, 64 bits");

#define ANYWHERE UINT64_MAX

static struct {
    uint64_t points, rounds, shift, padded;
} asked = {.points = 50000000, .rounds = 1, .shift = ANYWHERE};

static const struct option options[] = {
    {.name = "--points", .value = &asked.points, .least = 2, .most = 2000000000},
    {.name = "--rounds", .value = &asked.rounds, .least = 1, .most = 1000000},
    {.name = "--shift", .value = &asked.shift, .most = LINE - 8, .step = 8},
    {.name = "--padded", .value = &asked.padded},
    {.name = NULL},
};

static char *array;

static lreg_args *element(unsigned index) {
    return (lreg_args *)(array + index * (asked.padded ? APART : sizeof(lreg_args)));
}

__attribute__((noinline)) static void regress(lreg_args *args) {
    for (int i = 0; i < args->num_elems; ++i) {
        args->SX += args->points[i].x;
        args->SXX += args->points[i].x * args->points[i].x;
        args->SY += args->points[i].y;
        args->SYY += args->points[i].y * args->points[i].y;
        args->SXY += args->points[i].x * args->points[i].y;
    }
}

static void work(unsigned index) {
    lreg_args *const args = element(index);
    args->tid = pthread_self();
    for (uint64_t round = 0; round < asked.rounds; ++round) {
        regress(args);
        did(index, asked.points / common.threads);
    }
}

static POINT_T *drawn(uint64_t count) {
    POINT_T *const points = malloc(count * sizeof(POINT_T));
    if (points == NULL) cannot("no memory for the points", ENOMEM);
    for (uint64_t i = 0; i < count; ++i) {
        const uint64_t draw = mix((i + 1) * 0x9e3779b97f4a7c15);
        points[i].x = (signed char)(draw & 0x7f);
        // A line with some noise.
        points[i].y = (signed char)((draw & 0x7f) / 2 + (draw >> 7 & 0x1f));
    }
    return points;
}

// Computes the same sums in one thread, in registers.
static lreg_args expected(const POINT_T *points) {
    lreg_args sums = {0};
    for (uint64_t i = 0; i < asked.points; ++i) {
        const long long x = points[i].x, y = points[i].y;
        sums.SX += x, sums.SXX += x * x, sums.SY += y, sums.SYY += y * y, sums.SXY += x * y;
    }
    return sums;
}

static void report(POINT_T *points) {
    lreg_args all = {0};
    for (unsigned i = 0; i < common.threads; ++i) {
        const lreg_args *const part = element(i);
        all.SX += part->SX, all.SXX += part->SXX, all.SY += part->SY, all.SYY += part->SYY, all.SXY += part->SXY;
    }
    const lreg_args right = expected(points);
    const long long times = (long long)asked.rounds;
    expect("SX", (uint64_t)all.SX, (uint64_t)(right.SX * times));
    expect("SXX", (uint64_t)all.SXX, (uint64_t)(right.SXX * times));
    expect("SY", (uint64_t)all.SY, (uint64_t)(right.SY * times));
    expect("SYY", (uint64_t)all.SYY, (uint64_t)(right.SYY * times));
    expect("SXY", (uint64_t)all.SXY, (uint64_t)(right.SXY * times));

    const double n = (double)asked.points * (double)asked.rounds;
    const double slope =
        (n * (double)all.SXY - (double)all.SX * (double)all.SY) / (n * (double)all.SXX - (double)all.SX * (double)all.SX);
    printf("slope: %.4f\noffset: %.4f\n", slope, ((double)all.SY - slope * (double)all.SX) / n);
    printf("SX: %lld\nSY: %lld\nSXX: %lld\nSYY: %lld\nSXY: %lld\n", all.SX, all.SY, all.SXX, all.SYY, all.SXY);
    conclude(mix(mix(mix(mix(mix((uint64_t)all.SX) ^ (uint64_t)all.SY) ^ (uint64_t)all.SXX) ^ (uint64_t)all.SYY) ^
                 (uint64_t)all.SXY));
}

int main(int argc, char **argv) {
    parse(argc, argv, options);
    if (asked.padded && asked.shift != ANYWHERE && asked.shift > 0) usage("--padded", "a padded array begins with a line");
    double start = seconds();
    POINT_T *const points = drawn(asked.points);
    if (asked.padded) array = lines(common.threads * APART, 0);
    else if (asked.shift != ANYWHERE) array = lines(common.threads * sizeof(lreg_args), (size_t)asked.shift);
    else array = calloc(common.threads, sizeof(lreg_args));
    if (array == NULL) cannot("no memory for the sums", ENOMEM);
    const uint64_t share = asked.points / common.threads;
    for (unsigned i = 0; i < common.threads; ++i) {
        const uint64_t first = i * share;
        element(i)->points = points + first;
        element(i)->num_elems = (int)(i + 1 == common.threads ? asked.points - first : share);
    }
    fprintf(stderr, "init: %.6f\n", seconds() - start);
    run_together(work);
    start = seconds();
    report(points);
    fprintf(stderr, "verify: %.6f\n", seconds() - start);
}
