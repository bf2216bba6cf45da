// Histogram: how often each value of red, green and blue occurs in a picture, of which each thread
// counts a part.
//
// After the Phoenix suite's program of this name, written from its description. Each thread counts
// in its own element of one array. The elements are large (3 KiB), so that only the lines at their
// borders are shared falsely, and only if the array does not begin with a line: a case with little
// to gain.
//
// The picture is drawn from a fixed seed instead of read from a file.

#define _GNU_SOURCE
#include "threads.h"

static const char *const program = "histogram";
static const char *const usage_text =
    "Usage: histogram [OPTIONS]\n"
    "  --pixels N      in total (50000000)\n"
    "  --rounds N      passes over the picture (1)\n"
    "  --shift N       start the array N bytes into a line: 0, 8, ... 56 (16, as malloc does)\n";

#define VALUES 256

typedef struct {
    const unsigned char *pixels;
    uint64_t count;
    int red[VALUES];
    int green[VALUES];
    int blue[VALUES];
} part;

static struct {
    uint64_t pixels, rounds, shift;
} asked = {.pixels = 50000000, .rounds = 1, .shift = 16};

static const struct option options[] = {
    {.name = "--pixels", .value = &asked.pixels, .least = 1, .most = 2000000000},
    {.name = "--rounds", .value = &asked.rounds, .least = 1, .most = 1000000},
    {.name = "--shift", .value = &asked.shift, .most = LINE - 8, .step = 8},
    {.name = NULL},
};

static part *parts;

__attribute__((noinline)) static void count(part *own) {
    for (uint64_t i = 0; i < own->count * 3; i += 3) {
        ++own->blue[own->pixels[i]];
        ++own->green[own->pixels[i + 1]];
        ++own->red[own->pixels[i + 2]];
    }
}

static void work(unsigned index) {
    for (uint64_t round = 0; round < asked.rounds; ++round) {
        count(&parts[index]);
        did(index, asked.pixels / common.threads);
    }
}

// Compares the counts of all threads with those of one pass by one thread.
static uint64_t check(const unsigned char *pixels) {
    static uint64_t expected[3][VALUES];
    for (uint64_t i = 0; i < asked.pixels * 3; ++i) expected[i % 3][pixels[i]] += asked.rounds;
    uint64_t checksum = 0;
    for (unsigned value = 0; value < VALUES; ++value) {
        uint64_t found[3] = {0};
        for (unsigned i = 0; i < common.threads; ++i) {
            found[0] += (uint64_t)parts[i].blue[value];
            found[1] += (uint64_t)parts[i].green[value];
            found[2] += (uint64_t)parts[i].red[value];
        }
        for (unsigned colour = 0; colour < 3; ++colour) {
            expect("a count", found[colour], expected[colour][value]);
            checksum = mix(checksum ^ found[colour]);
        }
    }
    return checksum;
}

int main(int argc, char **argv) {
    parse(argc, argv, options);
    // Each value occurs in about 1 of 256 pixels.
    if (asked.pixels * asked.rounds > (uint64_t)1 << 38) usage("--rounds", "a count has 31 bits");
    unsigned char *const pixels = malloc(asked.pixels * 3);
    if (pixels == NULL) cannot("no memory for the picture", ENOMEM);
    for (uint64_t i = 0; i < asked.pixels * 3; ++i) pixels[i] = (unsigned char)(mix(i + 1) >> 56);
    parts = lines(common.threads * sizeof(part), asked.shift);
    const uint64_t share = asked.pixels / common.threads;
    for (unsigned i = 0; i < common.threads; ++i) {
        parts[i].pixels = pixels + i * share * 3;
        parts[i].count = i + 1 == common.threads ? asked.pixels - i * share : share;
    }
    run_together(work);
    conclude(check(pixels));
}
